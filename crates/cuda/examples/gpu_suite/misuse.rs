//! Wrong arguments on one rank: its own error there, a refusal on the others, and the next call works.

use expertrail_core::{Bf16, Dtype};
use expertrail_cuda::{
    CudaCombine, CudaCommunicator, CudaDispatch, CudaError, CudaHandle, DeviceIds, DeviceMemory,
    DevicePayload, DeviceRows, DeviceSlice,
};

use crate::faults::{SHAPE, Seat, expect_error};
use crate::gpu::{Outcome, during, poisoned};
use crate::launch::note;
use crate::works::{Ones, TOKENS};

/// What one rank's arguments suffer from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// One row fewer than tokens.
    ShortRows,
    /// Choices for top-1 where the communicator has top-2.
    OtherTopK,
    /// More tokens than the communicator's limit.
    ManyTokens,
    /// Weights for half of the choices.
    ShortWeights,
    /// Rows that do not start at a multiple of 16 bytes.
    Misaligned,
    /// Memory of the host, never registered with the driver.
    HostPointer,
    /// Memory of another rank's GPU.
    OtherGpu,
    /// Rows with a gap between them.
    Gaps,
    /// A handle that another communicator made.
    ForeignHandle,
    /// As many SMs as no GPU has.
    ManySms,
    /// Combine: one row fewer than arrived.
    ShortCombine,
    /// Combine: into the rows that are combined.
    OutOverRows,
}

const ALL: [Wrong; 12] = [
    Wrong::ShortRows,
    Wrong::OtherTopK,
    Wrong::ManyTokens,
    Wrong::ShortWeights,
    Wrong::Misaligned,
    Wrong::HostPointer,
    Wrong::OtherGpu,
    Wrong::Gaps,
    Wrong::ForeignHandle,
    Wrong::ManySms,
    Wrong::ShortCombine,
    Wrong::OutOverRows,
];

/// Every misuse in turn on one communicator.
pub(crate) fn run(seat: &Seat) -> Outcome {
    let deadline = seat.settings.deadline(20);
    let (comm, ones) = seat.working(deadline)?;
    let (other, others_ones) = seat.working(deadline)?;
    let foreign = other.dispatch(&others_ones.dispatch()).map_err(during("dispatch"))?;
    other.synchronize().map_err(during("the other communicator"))?;
    let stale = foreign.handle().clone();
    let mut failed = Vec::new();
    for wrong in ALL {
        // Several times in a row, so that the rank that refuses runs ahead of the others.
        for _ in 0..3 {
            let once = Misuse { seat, comm: &comm, ones: &ones, stale: &stale };
            if let Err(error) = once.check(wrong) {
                // On to the next all the same: ranks must go on making the same calls.
                failed.push(format!("{wrong:?}: {error}"));
            }
        }
        ones.works(&comm).map_err(|error| format!("after {wrong:?}: {error}; {}", failed.join("; ")))?;
    }
    if seat.gpus < 2 {
        note("one GPU: memory of another was not tried");
    }
    if failed.is_empty() { seat.part() } else { Err(failed.join("; ")) }
}

struct Misuse<'a> {
    seat: &'a Seat<'a>,
    comm: &'a CudaCommunicator,
    ones: &'a Ones,
    stale: &'a CudaHandle,
}

impl Misuse<'_> {
    fn check(&self, wrong: Wrong) -> Outcome {
        let (rank, culprit) = (self.seat.rank(), self.seat.culprit());
        if wrong == Wrong::OtherGpu && self.seat.gpus < 2 {
            return Ok(());
        }
        let result = self.call(wrong, rank == culprit)?;
        match expect_error(result, "it")? {
            CudaError::Misuse { .. } | CudaError::Address { .. } | CudaError::Setting { .. }
                if rank == culprit =>
            {
                Ok(())
            }
            CudaError::Refused { rank: told, peer, .. }
                if rank != culprit && (told, peer) == (rank, culprit) =>
            {
                Ok(())
            }
            other => Err(other.to_string()),
        }
    }

    /// The call that all ranks make, with wrong arguments on one of them.
    fn call(&self, wrong: Wrong, is_culprit: bool) -> Result<Result<(), CudaError>, String> {
        let row = Dtype::Bf16.row_bytes(SHAPE.hidden);
        let context = self.comm.context();
        let weights = poisoned(context, 4 * TOKENS * SHAPE.top_k)?;
        let rows = DeviceSlice::of(&self.ones.rows);
        let part = |slice: DeviceSlice<'static>, from, bytes| {
            slice.part(from, bytes).ok_or_else(|| "the suite has too little memory".to_owned())
        };
        if wrong == Wrong::ShortCombine {
            let received = self.comm.dispatch(&self.ones.dispatch()).map_err(during("dispatch"))?;
            let bytes = received.data().bytes() - if is_culprit { row } else { 0 };
            let rows = received.data().part(0, bytes).ok_or("no row arrived")?;
            let combine = self.comm.combine(&CudaCombine::new(DeviceRows::new(rows), received.handle()));
            return Ok(combine.and_then(|_| self.comm.synchronize()));
        }
        if wrong == Wrong::OutOverRows {
            let received = self.comm.dispatch(&self.ones.dispatch()).map_err(during("dispatch"))?;
            let mut args = CudaCombine::new(DeviceRows::new(received.data()), received.handle());
            if is_culprit {
                args = args.out(received.data());
            }
            return Ok(self.comm.combine(&args).and_then(|_| self.comm.synchronize()));
        }
        let mut args = match wrong {
            Wrong::ForeignHandle if is_culprit => CudaDispatch::cached(self.ones.payload(), self.stale),
            _ => self.ones.dispatch(),
        };
        if wrong == Wrong::ShortWeights {
            args = args.weights(DeviceSlice::of(&weights));
        }
        if !is_culprit {
            return Ok(self.dispatch(&args));
        }
        let spare = poisoned(context, 2 * (SHAPE.max_tokens + 2) * row)?;
        let host = vec![Bf16(0); TOKENS * SHAPE.hidden + 8];
        let with_rows = |rows| CudaDispatch::new(DevicePayload::Bf16(rows), TOKENS, self.ones.ids());
        let ids = DeviceSlice::of(&self.ones.ids);
        // SAFETY: `spare` lives until this returns, and each call waits for its end.
        let spare = unsafe { DeviceSlice::from_raw(spare.address(), spare.bytes()) };
        let result = match wrong {
            Wrong::ShortRows => {
                let rows = rows.part(0, (TOKENS - 1) * row).ok_or("no rows")?;
                self.dispatch(&with_rows(DeviceRows::new(rows)))
            }
            Wrong::OtherTopK => {
                let ids = DeviceIds::I32(ids.part(0, 4 * TOKENS).ok_or("no ids")?);
                self.dispatch(&CudaDispatch::new(self.ones.payload(), TOKENS, ids))
            }
            Wrong::ManyTokens => {
                let tokens = SHAPE.max_tokens + 1;
                let rows = DevicePayload::Bf16(DeviceRows::new(spare));
                self.dispatch(&CudaDispatch::new(rows, tokens, DeviceIds::I32(spare)))
            }
            Wrong::ShortWeights => {
                let half = DeviceSlice::of(&weights).part(0, weights.bytes() / 2).ok_or("no weights")?;
                self.dispatch(&args.weights(half))
            }
            Wrong::Misaligned => {
                let rows = part(spare, 8, TOKENS * row)?;
                self.dispatch(&with_rows(DeviceRows::new(rows)))
            }
            Wrong::HostPointer => {
                // SAFETY: not device memory, as this promises; the call must find out before any kernel uses it.
                let rows = unsafe {
                    DeviceSlice::from_raw(host.as_ptr().addr().next_multiple_of(16) as u64, TOKENS * row)
                };
                self.dispatch(&with_rows(DeviceRows::new(rows)))
            }
            Wrong::OtherGpu => {
                let memory = self.on_another_gpu(TOKENS * row)?;
                self.dispatch(&with_rows(DeviceRows::new(DeviceSlice::of(&memory))))
            }
            Wrong::Gaps => self
                .dispatch(&with_rows(DeviceRows::new(part(spare, 0, TOKENS * (row + 16))?).stride(row + 16))),
            Wrong::ManySms => self.dispatch(&args.sms(100_000)),
            Wrong::ForeignHandle | Wrong::ShortCombine | Wrong::OutOverRows => self.dispatch(&args),
        };
        Ok(result)
    }

    fn dispatch(&self, args: &CudaDispatch<'_>) -> Result<(), CudaError> {
        self.comm.dispatch(args)?;
        self.comm.synchronize()
    }

    fn on_another_gpu(&self, bytes: usize) -> Result<DeviceMemory, String> {
        let device = self.comm.context().device();
        let other = (device.ordinal() + 1) % self.seat.gpus;
        let context = device.driver().device(other).and_then(|device| device.context());
        context
            .and_then(|context| DeviceMemory::new(&context, bytes))
            .map_err(during("memory of another GPU"))
    }
}

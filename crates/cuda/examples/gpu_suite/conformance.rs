//! The conformance cases on GPUs: what a communicator moves is compared bit for bit with the oracle.

use expertrail_core::oracle::{self, Expected};
use expertrail_core::{Bf16, Dtype, Layout, Topology};
use expertrail_cuda::{
    Context, CudaCombine, CudaCommunicator, CudaConfig, CudaDispatch, CudaReceived, DeviceMemory, DeviceRows,
    DeviceSlice, Stream,
};
use expertrail_group::Group;

use crate::check::mix;
use crate::gpu::{
    Ids, Outcome, Payload, Reader, ScaleOrder, bf16_bytes, copy, during, f32_bytes, poison, poisoned, upload,
};
use crate::list::Listed;
use crate::settings::Settings;
use crate::shared::{Case, Inputs, World};
use crate::wanted::{Wanted, bytes, same};

/// The most SMs a case asks for.
const MOST_SMS: u64 = 24;

/// Runs one case on one rank; the error says what differed.
pub(crate) fn run(group: &Group, listed: &Listed, settings: &Settings) -> Outcome {
    let case = &listed.case;
    let topology = Topology::new(case.ranks, case.ranks_per_node).map_err(during("topology"))?;
    let mut config = CudaConfig::new(topology, case.shape());
    config.live_outputs = case.live_outputs;
    config.deadline = settings.deadline(60);
    let comm = CudaCommunicator::build(group, &config).map_err(during("build"))?;
    let stream = Stream::new(comm.context(), 0).map_err(during("a stream"))?;
    poison_pool(&comm)?;
    let name = listed.name.bytes().fold(0, |key, byte| mix(key ^ u64::from(byte)));
    for round in 0..case.rounds {
        let world = World::new(case, round);
        let here = Here {
            comm: &comm,
            world: &world,
            rank: comm.rank(),
            // Seven is prime to 24: many rounds see every number, and ranks differ in each.
            sms: (1 + (name % MOST_SMS + 7 * round + 11 * comm.rank() as u64) % MOST_SMS) as u32,
            // A caller's stream and the communicator's own, in turns.
            own: (round % 2 == 0).then(|| comm.stream()),
            stream: &stream,
            round,
        };
        here.round_trip().map_err(|e| format!("round {round}, {} SMs: {e}", here.sms))?;
    }
    comm.barrier().map_err(during("barrier"))?;
    comm.synchronize().map_err(during("the end"))?;
    // Whoever goes first must not be taken for one that leaves in the middle.
    group.barrier("end of a case").map_err(during("the end"))
}

/// Overwrites the whole pool: fresh memory is zero, and so is much of what must come.
fn poison_pool(comm: &CudaCommunicator) -> Outcome {
    let all = comm.alloc_rows(comm.stats().pool_largest, None).map_err(during("the whole pool"))?;
    if !all.is_shared() {
        return Err("the largest free piece of the pool cannot be taken".to_owned());
    }
    poison(comm.stream(), all.slice())
}

/// One rank in one round.
struct Here<'a> {
    comm: &'a CudaCommunicator,
    world: &'a World<'a>,
    rank: usize,
    sms: u32,
    own: Option<&'a Stream>,
    stream: &'a Stream,
    round: u64,
}

impl Here<'_> {
    fn case(&self) -> &Case {
        self.world.case
    }

    /// The stream that the round's calls run on.
    fn on(&self) -> &Stream {
        self.own.unwrap_or(self.stream)
    }

    fn context(&self) -> &Context {
        self.comm.context()
    }

    fn dispatch<'b>(&'b self, args: CudaDispatch<'b>) -> CudaDispatch<'b> {
        let args = args.sms(self.sms);
        if self.own.is_some() { args } else { args.stream(self.stream) }
    }

    fn round_trip(&self) -> Outcome {
        let (case, world, rank) = (self.case(), self.world, self.rank);
        let expected: Vec<Expected> = (0..case.ranks)
            .map(|r| oracle::dispatch(&world.placement(), Layout::BySource, r, |s| &world.routings[s]))
            .collect();
        let tokens = world.tokens(rank);
        let ids = Ids::upload(self.context(), world.routings[rank].ids())?;
        let wide = self.round % 2 == 1;
        self.check_layout(&ids, wide)?;

        let payload = self.payload(0)?;
        let weights = upload(self.context(), &f32_bytes(&world.weights(rank)))?;
        let mut args = self.dispatch(CudaDispatch::new(payload.borrow(), tokens, ids.borrow(wide)));
        if case.weights {
            args = args.weights(DeviceSlice::of(&weights));
        }
        let arrivals = expected[rank].arrivals.len();
        // No more than can arrive: fewer ranks than the case was made for may leave less to spare.
        let most = case.ranks * case.shape().max_tokens;
        let rows = (arrivals + case.worst_case_spare.unwrap_or(0)).min(most);
        if case.worst_case_spare.is_some() {
            args = args.worst_case_rows(rows);
        }
        let received = self.comm.dispatch(&args).map_err(during("dispatch"))?;
        let wanted = Wanted::new(world, &expected[rank], 0, rows);
        self.check_rows(&received, &wanted, rows).map_err(during("dispatch"))?;
        self.check_carried(&received, &wanted, &expected[rank]).map_err(during("dispatch"))?;
        for (version, inputs) in case.inputs.iter().enumerate() {
            let version = version as u32;
            let combine = self.combine_from(*inputs, &received, &expected, version);
            combine.map_err(|e| format!("combine {version} ({inputs:?}): {e}"))?;
        }
        self.check_cached(received, &expected).map_err(during("cached dispatch"))
    }

    fn payload(&self, version: u32) -> Result<Payload, String> {
        let (owned, order) = (self.world.payload(self.rank, version), ScaleOrder::of(self.round));
        Payload::upload(self.context(), &owned, self.world.tokens(self.rank), order)
    }

    /// The counts that callers may ask for, against arithmetic on the routing.
    fn check_layout(&self, ids: &Ids, wide: bool) -> Outcome {
        let (case, routing) = (self.case(), &self.world.routings[self.rank]);
        let placement = self.world.placement();
        let (mut ranks, mut experts) = (vec![0_u32; case.ranks], vec![0_u32; case.experts]);
        let mut membership = vec![0_u8; routing.tokens() * case.ranks];
        for token in 0..routing.tokens() {
            for &id in routing.row(token).iter().filter(|&&id| id >= 0) {
                experts[id as usize] += 1;
                membership[token * case.ranks + placement.rank_of(id as usize)] = 1;
            }
        }
        for row in membership.chunks(case.ranks) {
            row.iter().zip(&mut ranks).for_each(|(member, count)| *count += u32::from(*member));
        }
        let layout = self
            .comm
            .layout(ids.borrow(wide), routing.tokens(), Some(self.on()))
            .map_err(during("layout"))?;
        let reader = Reader::new(self.on());
        let words = |counts: &[u32]| bytes(counts, u32::to_le_bytes);
        same("layout: tokens of ranks", &reader.read(layout.rank_counts())?, &words(&ranks), 4, case.ranks)?;
        let got = reader.read(layout.expert_counts())?;
        same("layout: choices of experts", &got, &words(&experts), 4, case.experts)?;
        same("layout: membership", &reader.read(layout.membership())?, &membership, 1, case.ranks)
    }

    fn check_rows(&self, got: &CudaReceived, wanted: &Wanted, rows: usize) -> Outcome {
        let case = self.case();
        if got.rows() != rows || got.dtype() != case.dtype {
            return Err(format!(
                "{} rows of {} came, {rows} of {} wanted",
                got.rows(),
                got.dtype(),
                case.dtype
            ));
        }
        let reader = Reader::new(self.on());
        let element = case.dtype.row_bytes(1);
        same("rows", &reader.read(got.data())?, &wanted.rows, element, case.hidden)?;
        match (got.scales(), case.dtype) {
            (None, Dtype::Bf16) => Ok(()),
            (Some(scales), Dtype::Fp8E4m3) => same(
                "scales",
                &reader.read(scales)?,
                &wanted.scales,
                4,
                case.dtype.scales_per_row(case.hidden),
            ),
            (scales, dtype) => Err(format!("scales are there: {}, of {dtype} rows", scales.is_some())),
        }
    }

    fn check_carried(&self, got: &CudaReceived, wanted: &Wanted, expected: &Expected) -> Outcome {
        let case = self.case();
        let reader = Reader::new(self.on());
        let ids = reader.read(got.local_ids().ok_or("no ids came")?)?;
        same("ids", &ids, &wanted.ids, 4, case.top_k)?;
        match got.weights() {
            Some(weights) if case.weights => {
                same("weights", &reader.read(weights)?, &wanted.weights, 4, case.top_k)?;
            }
            None if !case.weights => {}
            _ => return Err("weights came along or not, against the request".to_owned()),
        }
        let sources = reader.read(got.source_tokens().ok_or("no source tokens came")?)?;
        same("source tokens", &sources, &wanted.source_tokens, 4, 1)?;
        let local = expected.expert_counts.len();
        let counts = got.device_expert_counts(local).ok_or("no expert counts on the device")?;
        let want = bytes(&expected.expert_counts, u32::to_le_bytes);
        same("expert counts on the device", &reader.read(counts)?, &want, 4, local)?;
        let arrivals = expected.arrivals.len();
        if case.worst_case_spare.is_some() {
            let known = got.arrivals().is_some() || !got.expert_counts().is_empty();
            return if known { Err("a worst-case dispatch waited for counts".to_owned()) } else { Ok(()) };
        }
        if got.arrivals() != Some(arrivals) || got.expert_counts() != expected.expert_counts {
            let (got_arrivals, got) = (got.arrivals(), got.expert_counts());
            return Err(format!(
                "{got_arrivals:?} arrivals with counts {got:?}, wanted {arrivals} with {:?}",
                expected.expert_counts
            ));
        }
        let aligned: Vec<u32> = expected.expert_counts.iter().map(|count| count.div_ceil(16) * 16).collect();
        if got.expert_counts_aligned(16) == aligned {
            Ok(())
        } else {
            Err("aligned counts differ".to_owned())
        }
    }

    /// Combines rows that lie where the case says.
    fn combine_from(
        &self,
        inputs: Inputs,
        received: &CudaReceived,
        expected: &[Expected],
        version: u32,
    ) -> Outcome {
        let rows = received.rows();
        let made = upload(self.context(), &bf16_bytes(&self.world.expert_rows(self.rank, rows, version)))?;
        let made = DeviceSlice::of(&made);
        // Owners differ in the mixed form: a source reads some rows in place and gets others pushed.
        let shared = match inputs {
            Inputs::Private => false,
            Inputs::Shared => true,
            Inputs::Mixed => !self.rank.is_multiple_of(2),
            Inputs::InPlace => {
                if received.dtype() != Dtype::Bf16 {
                    return Ok(());
                }
                copy(self.on(), received.data(), made)?;
                return self.combine(received.data(), received, expected, version);
            }
        };
        if !shared {
            return self.combine(made, received, expected, version);
        }
        let shared = self.comm.alloc_rows(made.bytes(), Some(self.on())).map_err(during("alloc_rows"))?;
        copy(self.on(), shared.slice(), made)?;
        self.combine(shared.slice(), received, expected, version)
    }

    fn combine(
        &self,
        rows: DeviceSlice<'_>,
        received: &CudaReceived,
        expected: &[Expected],
        version: u32,
    ) -> Outcome {
        let (case, world, rank, context) = (self.case(), self.world, self.rank, self.context());
        let tokens = world.tokens(rank);
        let biases: Vec<Vec<Bf16>> = (0..case.biases).map(|bias| world.bias(rank, bias)).collect();
        let on_device: Vec<DeviceMemory> =
            biases.iter().map(|bias| upload(context, &bf16_bytes(bias))).collect::<Result<_, _>>()?;
        let on_device: Vec<DeviceSlice> = on_device.iter().map(DeviceSlice::of).collect();
        let mut gradients = world.topk_gradients(rank, expected[rank].arrivals.len());
        // Behind the last arrival nothing is anybody's: whoever reads it shows.
        gradients.resize(received.rows() * case.top_k, f32::NAN);
        let gradients = upload(context, &f32_bytes(&gradients))?;
        let out = poisoned(context, tokens * Dtype::Bf16.row_bytes(case.hidden))?;

        let mut args =
            CudaCombine::new(DeviceRows::new(rows), received.handle()).biases(&on_device).sms(self.sms);
        if case.weights {
            args = args.weights(DeviceSlice::of(&gradients));
        }
        if self.own.is_none() {
            args = args.stream(self.stream);
        }
        let own_memory = version % 2 == 1;
        if own_memory {
            args = args.out(DeviceSlice::of(&out));
        }
        let combined = self.comm.combine(&args).map_err(during("call"))?;
        if own_memory && combined.rows().is_some() {
            return Err("the result is in the library's memory though the caller gave some".to_owned());
        }
        let biases: Vec<&[Bf16]> = biases.iter().map(|bias| &bias[..]).collect();
        let want = bf16_bytes(&world.combined(rank, expected, (&biases, version)));
        let reader = Reader::new(self.on());
        // The caller's memory may be longer than the result.
        let rows = combined.rows().or(DeviceSlice::of(&out).part(0, want.len())).ok_or("out is too short")?;
        let got = reader.read(rows)?;
        if got.len() != want.len() {
            return Err(format!("{} bytes came back, {} wanted", got.len(), want.len()));
        }
        same("result", &got, &want, 2, case.hidden)?;
        if case.weights {
            let want = f32_bytes(&world.combined_weights(rank, expected));
            let got = combined.weights().ok_or("no weights came back")?;
            same("weights that came back", &reader.read(got)?, &want, 4, case.top_k)?;
            poison(self.on(), combined.weights().ok_or("no weights came back")?)?;
        }
        // The memory goes back to the pool with nothing right in it.
        poison(self.on(), rows)?;
        self.comm.synchronize().map_err(during("synchronize"))
    }

    /// Another payload by the same handle, then a combine of what came.
    fn check_cached(&self, received: CudaReceived, expected: &[Expected]) -> Outcome {
        let rows = received.rows();
        let handle = received.handle().clone();
        poison(self.on(), received.data())?;
        let payload = self.payload(1)?;
        let mut args = self.dispatch(CudaDispatch::cached(payload.borrow(), &handle));
        // A handle of a worst case has its rows, whether they are asked for again or not.
        if self.case().worst_case_spare.is_some() && self.round.is_multiple_of(2) {
            args = args.worst_case_rows(rows);
        }
        let again = self.comm.dispatch(&args).map_err(during("call"))?;
        if again.local_ids().is_some() || again.weights().is_some() || again.source_tokens().is_some() {
            return Err("it gives the same rows and carries nothing".to_owned());
        }
        let wanted = Wanted::new(self.world, &expected[self.rank], 1, rows);
        self.check_rows(&again, &wanted, rows)?;
        drop(received);
        self.combine_from(Inputs::Private, &again, expected, 9)
    }
}

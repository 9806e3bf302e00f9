//! The smallest round trip whose result everybody knows.

use expertrail_core::{Bf16, Placement, Shape};
use expertrail_cuda::{
    Context, CudaCombine, CudaCommunicator, CudaDispatch, CudaError, CudaReceived, DeviceIds, DeviceMemory,
    DevicePayload, DeviceRows, DeviceSlice,
};

use crate::gpu::{Outcome, Reader, bf16_bytes, during, upload};
use crate::wanted::bytes;

/// Tokens of each rank.
pub(crate) const TOKENS: usize = 8;

/// Rows of ones, and each token's two experts: `token` and its successor.
#[derive(Debug)]
pub(crate) struct Ones {
    pub(crate) shape: Shape,
    pub(crate) rows: DeviceMemory,
    pub(crate) ids: DeviceMemory,
}

impl Ones {
    /// For a shape with top-2.
    pub(crate) fn new(context: &Context, shape: Shape) -> Result<Self, String> {
        let ids: Vec<i32> = (0..TOKENS).flat_map(|token| choices(token, shape).map(|id| id as i32)).collect();
        Ok(Self {
            shape,
            rows: upload(context, &bf16_bytes(&vec![Bf16::from_f32(1.0); TOKENS * shape.hidden]))?,
            ids: upload(context, &bytes(&ids, i32::to_le_bytes))?,
        })
    }

    pub(crate) fn payload(&self) -> DevicePayload<'_> {
        DevicePayload::Bf16(DeviceRows::new(DeviceSlice::of(&self.rows)))
    }

    pub(crate) fn ids(&self) -> DeviceIds<'_> {
        DeviceIds::I32(DeviceSlice::of(&self.ids))
    }

    pub(crate) fn dispatch(&self) -> CudaDispatch<'_> {
        CudaDispatch::new(self.payload(), TOKENS, self.ids())
    }

    /// Rows that arrive at `rank`.
    pub(crate) fn arrivals(&self, ranks: usize, rank: usize) -> Result<usize, String> {
        let placement = Placement::new(self.shape.experts, ranks).map_err(during("placement"))?;
        let here =
            |token: &usize| choices(*token, self.shape).iter().any(|&id| placement.rank_of(id) == rank);
        Ok(ranks * (0..TOKENS).filter(here).count())
    }

    /// A round trip: each token comes back once from each of its ranks.
    pub(crate) fn works(&self, comm: &CudaCommunicator) -> Outcome {
        let round_trip = || -> Result<(CudaReceived, _), CudaError> {
            let received = comm.dispatch(&self.dispatch())?;
            let combined =
                comm.combine(&CudaCombine::new(DeviceRows::new(received.data()), received.handle()))?;
            comm.synchronize()?;
            Ok((received, combined))
        };
        let (_received, combined) = round_trip().map_err(during("a round trip"))?;
        let placement =
            Placement::new(self.shape.experts, comm.topology().ranks()).map_err(during("placement"))?;
        let want: Vec<Bf16> = (0..TOKENS)
            .flat_map(|token| {
                let [a, b] = choices(token, self.shape).map(|expert| placement.rank_of(expert));
                vec![Bf16::from_f32(if a == b { 1.0 } else { 2.0 }); self.shape.hidden]
            })
            .collect();
        let got = Reader::new(comm.stream()).read(combined.rows().ok_or("no rows came back")?)?;
        if got == bf16_bytes(&want) {
            Ok(())
        } else {
            Err("a round trip of ones gives another sum".to_owned())
        }
    }
}

fn choices(token: usize, shape: Shape) -> [usize; 2] {
    [token % shape.experts, (token + 1) % shape.experts]
}

//! Shares of a link's rate that each tool was seen to reach, with where. What is expected of a figure is these
//! shares put into its own ceiling.
//!
//! All shares come from published figures, computed in validation-facts section 5 of this project's references
//! (own rank or node taken out), or from this project's own results.

use super::document::Link;
use super::links::NicKind;

/// Whose shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reference {
    /// `DeepEP` V1, normal kernels, its own tests.
    V1,
    /// The Kubernetes guide's script inside a node.
    GuideIntra,
    /// The Kubernetes guide's script across nodes.
    GuideInter,
    /// `DeepEP` V2, its own test.
    V2,
    /// `DeepEP` V1, low-latency kernels, its own test.
    LowLatency {
        /// Everything goes through the NIC.
        flat: bool,
    },
    /// `alltoall_perf`.
    AllToAll,
    /// Our HT kernels.
    OwnHt,
    /// Our LL kernels.
    OwnLl,
}

/// Of what they depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case<'a> {
    pub(super) reference: Reference,
    pub(super) combine: bool,
    pub(super) nodes: usize,
    pub(super) per_node: usize,
    pub(super) gpu: Option<&'a str>,
    pub(super) nic: NicKind,
}

/// Low and high share of a rate.
type Share = [f64; 2];

/// What was reached of one link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reached {
    /// None: nothing comparable was measured.
    pub(super) share: Option<Share>,
    /// Where it is from, or why there is none.
    pub(super) basis: &'static str,
}

/// What was reached of both.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    pub(super) up: Reached,
    pub(super) out: Reached,
}

impl Shares {
    pub(super) fn basis(&self, binds: Link) -> &'static str {
        match binds {
            Link::ScaleUp => self.up.basis,
            Link::ScaleOut => self.out.basis,
        }
    }
}

const V1_UP: &str = "DeepEP V1, NVLink-bound: 61 to 64.5 % of 450 GB/s on H200 at three providers, \
     61 % of 200 at EP16 on H800 (own rank taken out)";
const V1_UP_B200: &str =
    "DeepEP V1 on B200, Nebius: 429 and 352 GB/s without the own rank, 48 and 39 % of 900";
const V1_OUT: &str = "DeepEP V1, NIC-bound, kernel time: 87 to 89 % of 50 GB/s in its README (EP32, EP64), \
     65 % where a slower transport was seen";
const V1_OUT_EFA: &str = "DeepEP V1 on EFA, AWS tables, own node taken out: p6-b300 63 to 74 %, p5 66 to 69 %, \
     p6-b200 78 to 85 %";

const TWO: &str = "this project's baseline of DeepEP V1 on two H200 of one host, 24 SMs: 37 % of 450 GB/s in BF16 dispatch, 28 % in \
     FP8, 31 % in combine";
const TWO_GUIDE: &str = "this project's baseline of the guide's shape with DeepEP V1 on two H200 of one host, 20 to 40 SMs: 23 to 39 % of \
     450 GB/s in dispatch, 24 to 44 % in combine";
const TWO_V2: &str = "this project's baseline of DeepEP V2 on two H200 of one host, main kernel at 24 to 64 SMs: 57 to 64 % of 450 \
     GB/s in dispatch, 58 to 68 % in combine";

/// What this project measured on two GPUs: with so few ranks half of all rows stay, and the kernels work for those, too.
fn two_ranks(case: &Case<'_>) -> Option<Shares> {
    let (share, basis) = match (case.reference, case.combine) {
        (Reference::V1, false) => ([0.27, 0.38], TWO),
        (Reference::V1, true) => ([0.30, 0.32], TWO),
        (Reference::GuideIntra, false) => ([0.22, 0.39], TWO_GUIDE),
        (Reference::GuideIntra, true) => ([0.24, 0.44], TWO_GUIDE),
        (Reference::V2, false) => ([0.57, 0.64], TWO_V2),
        (Reference::V2, true) => ([0.58, 0.68], TWO_V2),
        _ => return None,
    };
    Some(Shares { up: Reached { share: Some(share), basis }, out: Reached { share: None, basis: "" } })
}

/// The shares of `case`.
pub(super) fn shares(case: &Case<'_>) -> Shares {
    let of = |up: Option<Share>, up_basis, out: Option<Share>, out_basis| Shares {
        up: Reached { share: up, basis: up_basis },
        out: Reached { share: out, basis: out_basis },
    };
    if let (1, 2, Some(shares)) = (case.nodes, case.per_node, two_ranks(case)) {
        return shares;
    }
    let blackwell = case.gpu.is_some_and(|gpu| gpu.starts_with('b') || gpu.starts_with("gb"));
    let (v1_up, v1_up_basis) = if blackwell { ([0.39, 0.48], V1_UP_B200) } else { ([0.60, 0.70], V1_UP) };
    match case.reference {
        Reference::V1 => {
            let (out, basis) = match case.nic {
                NicKind::Efa => ([0.63, 0.85], V1_OUT_EFA),
                NicKind::Mlx5 | NicKind::Unknown => ([0.65, 0.90], V1_OUT),
            };
            of(Some(v1_up), v1_up_basis, Some(out), basis)
        }
        Reference::GuideIntra => match case.gpu {
            Some("h200") => of(
                Some([270.0 / 450.0, 300.0 / 450.0]),
                "guide's script on H200: 274.8 to 290.3 GB/s; three providers agree on 270 to 300",
                None,
                "",
            ),
            // The guide's own run, and the 10 % that it says runs vary by.
            Some("b200") if case.combine => of(
                Some([0.9 * 243.4 / 900.0, 1.1 * 245.1 / 900.0]),
                "guide's script on B200: 243.4 and 245.1 GB/s, give or take 10 %; a build and settings baseline, not \
                 a floor of the hardware",
                None,
                "",
            ),
            Some("b200") => of(
                Some([0.9 * 275.4 / 900.0, 1.1 * 276.9 / 900.0]),
                "guide's script on B200: 275.4 and 276.9 GB/s, give or take 10 %; a build and settings baseline, not \
                 a floor of the hardware",
                None,
                "",
            ),
            _ => of(Some(v1_up), v1_up_basis, None, ""),
        },
        Reference::GuideInter => {
            // The guide's two runs, and the 10 % that it says runs vary by.
            let out = if case.combine { [0.9 * 0.46, 1.1 * 0.51] } else { [0.9 * 0.54, 1.1 * 0.56] };
            of(
                Some(v1_up),
                v1_up_basis,
                Some(out),
                "guide's script on two nodes, 20 SMs, hidden 3072, whole call: 54 and 56 % of 50 GB/s in dispatch, 46 and \
                 51 % in combine, give or take 10 %; more nodes were not measured",
            )
        }
        Reference::V2 => of(
            Some([0.625, 0.72]),
            "DeepEP V2 at EP8 on SM100: 643 and 675 GB/s at 24 SMs, 726 and 740 at 64, 62.5 to 72 % of 900 (own rank \
             taken out)",
            Some([0.81, 0.92]),
            "DeepEP V2: 8x2 90 and 81 GB/s, 8x4 61, that is 81 to 91.5 % of 50 (own node taken out)",
        ),
        Reference::LowLatency { flat } => {
            let (up, out) = match (case.combine, flat) {
                (false, false) => ([0.39, 0.47], [0.64, 0.77]),
                (true, false) => ([0.51, 0.62], [0.75, 0.82]),
                (false, true) => ([0.39, 0.47], [0.76, 0.79]),
                (true, true) => ([0.51, 0.62], [0.79, 0.82]),
            };
            let out_basis = if flat {
                "DeepEP README, LL at EP128 and EP256: 78 % of 50 GB/s in dispatch, 79 to 81 % in combine"
            } else {
                "DeepEP README, LL of 128 x 7168, top-8, EP16 to EP256, copies inside the node taken out"
            };
            of(
                Some(up),
                "DeepEP README, LL at EP8 on H800: 98 and 127 GB/s over 200, give or take 10 %; one row only",
                Some(out),
                out_basis,
            )
        }
        Reference::AllToAll => {
            let many = case.nodes > 8;
            of(
                None,
                "no alltoall_perf inside one node is among the references",
                Some(if many { [0.72, 0.79] } else { [0.83, 0.96] }),
                if many {
                    "alltoall_perf on p6-b300, 16 and 32 nodes: 79 and 72 % of its ceiling"
                } else {
                    "alltoall_perf on p6-b300 and p5, 2 to 8 nodes: 83 to 96 % of its ceiling"
                },
            )
        }
        Reference::OwnHt => of(
            Some(if case.combine { [0.56, 0.73] } else { [0.57, 0.74] }),
            "this project's results/h200-x2: two H200 of one host, 16 to 20 SMs, isolated calls",
            None,
            "not measured between nodes yet",
        ),
        Reference::OwnLl => of(None, "LL is not built yet", None, "LL is not built yet"),
    }
}

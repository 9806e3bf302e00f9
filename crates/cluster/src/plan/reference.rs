//! Shares of a link's rate that each tool was seen to reach, with where. What is expected of a figure is these
//! shares put into its own ceiling.
//!
//! All shares come from published figures, computed in validation-facts section 5 of this project's references
//! (own rank or node taken out), or from this project's own results.

use serde_json::Value;

use super::document::Link;
use super::links::NicKind;
use crate::judge::{Section, references};

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
    /// The rate of `NVLink` was given as a number: it may be a measured one.
    pub(super) given_up: bool,
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
const V1_UP_GIVEN: &str = "DeepEP V1, NVLink-bound: 61 to 64.5 % of a nominal 450 GB/s on H200, and at EP16 on H800 76 % of the 160 that were \
     measured there (own rank taken out); the rate here was given, so it may be either";
const V1_UP_B200: &str =
    "DeepEP V1 on B200, Nebius: 429 and 352 GB/s without the own rank, 48 and 39 % of 900";
const V1_OUT: &str = "DeepEP V1, NIC-bound, kernel time: 87 to 89 % of 50 GB/s in its README (EP32, EP64), \
     65 % where a slower transport was seen";
const V1_OUT_EFA: &str = "DeepEP V1 on EFA, AWS tables, own node taken out: dispatch p6-b300 63 to 74 %, p5 66 to 69 %, \
     p6-b200 78 to 85 %; combine from 53 %";

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

/// NIC of the guide's nodes, GB/s for each GPU.
const GUIDE_NIC: f64 = 50.0;
/// Nodes of which the guide has runs; other numbers are between or beyond them.
const GUIDE_NODES: [usize; 2] = [2, 4];

const GUIDE_OUT: &str = "guide's script, 20 SMs, hidden 3072, whole call: its samples of two nodes, give or take the 10 % that it says runs \
     vary by (judge's reference, too)";
const GUIDE_OUT_FOUR: &str = "guide's script, 20 SMs, hidden 3072, whole call: its B200 figures are of one run of four nodes and two runs of two, \
     which agree within a few percent; give or take 10 % (judge's reference, too)";
const GUIDE_OUT_OTHER: &str = "guide's script, 20 SMs, hidden 3072, whole call: from the lowest share of the NIC at two nodes to the highest at four; \
     this GPU was not measured on so many nodes";

/// What the guide's script reached of the NIC on so many nodes by judge's references, of one GPU or (none) of all. All
/// copies but those for the own node cross: (N-1)/N of what is printed.
fn guide_out(gpu: Option<&str>, combine: bool, nodes: usize) -> Option<Share> {
    let file = references();
    let op = if combine { "combine" } else { "dispatch" };
    let wire = (nodes as f64 - 1.0) / nodes as f64 / GUIDE_NIC;
    file.references
        .iter()
        .filter(|reference| {
            reference.engine == "guide"
                && reference.section == Section::Internode
                && reference.op == op
                && reference.settings.get("nodes").and_then(Value::as_u64) == Some(nodes as u64)
                && gpu.is_none_or(|gpu| gpu.eq_ignore_ascii_case(&reference.gpu))
        })
        .map(|reference| reference.range(file.variation))
        .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
        .map(|(low, high)| [low * wire, high * wire])
}

/// [`guide_out`] of this GPU, of all where the guide has none of it; where nobody measured so many nodes the widest of
/// what was.
fn guide_inter(case: &Case<'_>) -> Reached {
    let of = |gpu, nodes| guide_out(gpu, case.combine, nodes);
    let own = case.gpu.filter(|gpu| GUIDE_NODES.iter().any(|&nodes| of(Some(gpu), nodes).is_some()));
    if let Some(share) = of(own, case.nodes) {
        let basis = if case.nodes == GUIDE_NODES[0] { GUIDE_OUT } else { GUIDE_OUT_FOUR };
        return Reached { share: Some(share), basis };
    }
    let share = match GUIDE_NODES.map(|nodes| of(None, nodes)) {
        [Some(few), Some(more)] => Some([few[0].min(more[0]), few[1].max(more[1])]),
        _ => None,
    };
    Reached { share, basis: GUIDE_OUT_OTHER }
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
    let (v1_up, v1_up_basis) = match (blackwell, case.given_up) {
        (true, _) => ([0.39, 0.48], V1_UP_B200),
        (false, false) => ([0.60, 0.70], V1_UP),
        (false, true) => ([0.60, 0.78], V1_UP_GIVEN),
    };
    match case.reference {
        Reference::V1 => {
            let (out, basis) = match case.nic {
                NicKind::Efa => ([if case.combine { 0.53 } else { 0.63 }, 0.86], V1_OUT_EFA),
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
            Shares { up: Reached { share: Some(v1_up), basis: v1_up_basis }, out: guide_inter(case) }
        }
        Reference::V2 => of(
            Some([0.625, 0.72]),
            "DeepEP V2 at EP8 on SM100: 643 and 675 GB/s at 24 SMs, 726 and 740 at 64, 62.5 to 72 % of 900 (own rank \
             taken out)",
            Some([0.80, 0.92]),
            "DeepEP V2: 8x2 90 and 81 GB/s, 8x4 61, that is 81 to 91.5 % of 50 (own node taken out)",
        ),
        Reference::LowLatency { flat } => {
            let (up, out) = match (case.combine, flat) {
                // From what the README prints, which drops decimals, to what its times give.
                (false, false) => ([0.39, 0.47], [0.62, 0.77]),
                (true, false) => ([0.51, 0.62], [0.73, 0.82]),
                (false, true) => ([0.39, 0.47], [0.76, 0.79]),
                (true, true) => ([0.51, 0.62], [0.77, 0.82]),
            };
            let out_basis = if flat {
                "DeepEP README, LL at EP128 and EP256: 78 % of 50 GB/s in dispatch, 77 to 81 % in combine"
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

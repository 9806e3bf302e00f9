//! The roofline: what the links of a machine allow an exchange at best, and which link binds.
//!
//! All amounts are per GPU (per rank), averaged over ranks; GB/s = 1e9 bytes/s, one way. Symbols, as in
//! reference/validation-facts.md section 5: N nodes of G ranks, R = N G; T tokens per rank; b bytes of one
//! copy of a token's row; `U_R` and `U_N` distinct ranks and nodes of a token, own ones included
//! ([`crate::expect`]).
//!
//! The model is that of uniform routing: of the copies to nodes (N - 1)/N leave the own node, of the
//! copies to ranks (R - 1)/R leave the own rank, and each of a node's G ranks is alike. Averaged over
//! sources these shares hold for any placement.

mod reported;

pub use reported::{
    GuideTimes, SharedNic, alltoall_busbw_ceiling, guide_total, logical_to_wire, wire_to_logical,
};

use crate::expect::Distinct;
use crate::shape::SCALE_BLOCK;
use crate::topology::Topology;

/// Link speeds of a machine, per GPU and one way, and the fixed time of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// `B_v`: scale-up (`NVLink`) GB/s. Published one-way peaks: H800 200 (about 160 reached), H100 and H200
    /// 450, B200 900.
    pub scale_up_gb_s: f64,
    /// `B_n`: scale-out (NIC) GB/s of one GPU's share: 50 for 400 Gb/s.
    pub scale_out_gb_s: f64,
    /// alpha: microseconds that a call takes however little it moves.
    pub alpha_us: f64,
}

/// A link that can bound an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Link {
    /// Between the ranks of a node.
    ScaleUp,
    /// Between nodes.
    ScaleOut,
}

/// What one rank dispatches, or combines: the same rows the other way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// T: tokens of one rank.
    pub tokens: usize,
    /// b: bytes of one copy of a row: [`Dtype::wire_row_bytes`](crate::Dtype::wire_row_bytes),
    /// [`ll_fp8_row_bytes`], [`logfmt10_row_bytes`].
    pub row_bytes: usize,
    /// k: experts of one token.
    pub top_k: usize,
    /// `U_R`: mean distinct ranks of one token, own rank included.
    pub ranks_per_token: f64,
    /// `U_N`: mean distinct nodes of one token, own node included.
    pub nodes_per_token: f64,
}

impl Load {
    /// A load of `tokens` rows of `row_bytes` whose destinations follow `distinct`.
    pub fn new(tokens: usize, row_bytes: usize, top_k: usize, distinct: &Distinct) -> Self {
        Self {
            tokens,
            row_bytes,
            top_k,
            ranks_per_token: distinct.ranks.value,
            nodes_per_token: distinct.nodes.value,
        }
    }

    /// Bytes of `copies` rows per token: T b copies.
    fn bytes(&self, copies: f64) -> f64 {
        self.tokens as f64 * self.row_bytes as f64 * copies
    }

    /// Logical bytes of one rank when a token counts as `figure` says.
    pub fn logical_bytes(&self, figure: Figure) -> f64 {
        self.bytes(self.copies(figure))
    }

    fn copies(&self, figure: Figure) -> f64 {
        match figure {
            Figure::Nodes => self.nodes_per_token,
            Figure::Ranks => self.ranks_per_token,
            Figure::Experts => self.top_k as f64,
        }
    }
}

/// What a printed bandwidth counts as moved: its logical bytes are T b times this many copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Figure {
    /// One copy per distinct node, own included: `DeepEP`'s "RDMA" figure, `T b U_N`.
    Nodes,
    /// One copy per distinct rank, own included: `DeepEP`'s "NVL" figure, `T b U_R`.
    Ranks,
    /// One copy per (token, expert): `DeepEP`'s low-latency figure, `T b k`.
    Experts,
}

/// How copies travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transfer {
    /// HT: once per remote node along the rail, then over scale-up to each further rank (DESIGN 5.1, 5.2).
    TwoHop,
    /// LL, one copy per (token, expert), straight to its rank: `DeepEP` V1, and combine rule K (DESIGN 5.3).
    DirectPerExpert,
    /// LL, one copy per (token, rank), straight to it: our dispatch, and combine rule P (DESIGN 5.3).
    DirectPerRank,
}

/// Bytes that one GPU sends over its links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WireBytes {
    /// V: bytes over scale-up, forwards for other nodes' tokens included.
    pub scale_up: f64,
    /// W: bytes over scale-out.
    pub scale_out: f64,
}

/// A bound and the link that sets it; no link when nothing crosses one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// The bound, in the unit that the function giving it names.
    pub value: f64,
    /// The link that binds.
    pub binds: Option<Link>,
}

/// The bytes of `load` that cross links, per GPU.
///
/// Two hops: `W = T b U_N (N-1)/N` and `V = T b U_R (G-1)/G`; on one node that is the `(R-1)/R` of the rows
/// that leave their rank. Direct, c copies per token (k or `U_R`): `W = T b c (R-G)/R` and
/// `V = T b c (G-1)/R`. A machine whose LL mode does not use scale-up is a topology with one rank per node.
pub fn wire_bytes(topology: &Topology, load: &Load, transfer: Transfer) -> WireBytes {
    let (ranks, per_node, nodes) =
        (topology.ranks() as f64, topology.ranks_per_node() as f64, topology.nodes() as f64);
    let direct = |copies| WireBytes {
        scale_up: load.bytes(copies) * (per_node - 1.0) / ranks,
        scale_out: load.bytes(copies) * (ranks - per_node) / ranks,
    };
    match transfer {
        Transfer::TwoHop => WireBytes {
            scale_up: load.bytes(load.ranks_per_token) * (per_node - 1.0) / per_node,
            scale_out: load.bytes(load.nodes_per_token) * (nodes - 1.0) / nodes,
        },
        Transfer::DirectPerExpert => direct(load.top_k as f64),
        Transfer::DirectPerRank => direct(load.ranks_per_token),
    }
}

/// The least time of an exchange in microseconds: `alpha + max(W / B_n, V / B_v)`.
pub fn time_floor_us(machine: &Machine, wire: &WireBytes) -> Bound {
    let longest = transfer_us(machine, wire);
    Bound { value: machine.alpha_us + longest.value, ..longest }
}

/// The greatest bandwidth that can be printed, in logical GB/s per GPU: the figure's logical bytes over
/// `max(W / B_n, V / B_v)`. Alpha is left out: it is what large calls tend to.
///
/// For two hops and [`Figure::Nodes`] this is `min(B_n N/(N-1), B_v G/(G-1) U_N/U_R)`: with two nodes a NIC
/// of 50 GB/s can print up to 100. Infinite when nothing crosses a link.
pub fn logical_ceiling_gb_s(
    machine: &Machine,
    topology: &Topology,
    load: &Load,
    (transfer, figure): (Transfer, Figure),
) -> Bound {
    // A ratio of bytes per token: one token and one byte give it, even for an empty load.
    let one = Load { tokens: 1, row_bytes: 1, ..*load };
    let longest = transfer_us(machine, &wire_bytes(topology, &one, transfer));
    Bound { value: rate_gb_s(one.logical_bytes(figure), longest.value), ..longest }
}

/// The time of the slower link, alpha not counted.
fn transfer_us(machine: &Machine, wire: &WireBytes) -> Bound {
    let scale_up = time_us(wire.scale_up, machine.scale_up_gb_s);
    let scale_out = time_us(wire.scale_out, machine.scale_out_gb_s);
    let binds = if scale_out > scale_up { Link::ScaleOut } else { Link::ScaleUp };
    let value = scale_up.max(scale_out);
    Bound { value, binds: (value > 0.0).then_some(binds) }
}

/// Microseconds that `bytes` take at `gb_s`: 1 GB/s is 1,000 bytes per microsecond. Zero bytes take no
/// time, even on a link that does not exist (0 GB/s).
pub fn time_us(bytes: f64, gb_s: f64) -> f64 {
    if bytes == 0.0 { 0.0 } else { bytes / (gb_s * 1e3) }
}

/// GB/s of `bytes` in `us` microseconds.
pub fn rate_gb_s(bytes: f64, us: f64) -> f64 {
    bytes / (us * 1e3)
}

/// Bytes of one row in `DeepEP`'s low-latency FP8 dispatch: H, a 4-byte scale per 128 elements, and a 16-byte
/// header that names the source token.
pub fn ll_fp8_row_bytes(hidden: usize) -> usize {
    hidden + 4 * (hidden / SCALE_BLOCK) + 16
}

/// Bytes of one row in `DeepEP`'s 10-bit logarithmic combine format: 1.25 H, and two BF16 bounds per 128
/// elements.
pub fn logfmt10_row_bytes(hidden: usize) -> usize {
    hidden + hidden / 4 + 4 * (hidden / SCALE_BLOCK)
}

#[cfg(test)]
mod tests;

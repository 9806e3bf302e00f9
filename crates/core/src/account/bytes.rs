//! From copies to bytes.

use super::{Reach, Traffic};
use crate::roofline::Transfer;

/// Bytes of one copy of a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowSize {
    /// Elements and scales: [`Dtype::wire_row_bytes`](crate::Dtype::wire_row_bytes).
    pub row: usize,
    /// What is carried along with them and counted apart: [`topk_metadata_bytes`], or 0.
    pub metadata: usize,
}

/// Bytes over each kind of link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkBytes {
    /// Between ranks of a node, own node and forwards on other nodes together.
    pub scale_up: u64,
    /// Between nodes.
    pub scale_out: u64,
}

/// Bytes of one operation for one source rank's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpBytes {
    /// What the algorithm asks for: a row per copy, own rank included; no metadata.
    pub logical: u64,
    /// The same with one row per (token, node), own node included: the figure that is printed for
    /// scale-out.
    pub logical_nodes: u64,
    /// Rows, or partial sums of combine, that cross links.
    pub wire: LinkBytes,
    /// Metadata that crosses links along with them.
    pub metadata: LinkBytes,
}

/// Bytes of a token's top-k expert ids and weights when they travel with its row: 4 and 4 for each choice.
pub fn topk_metadata_bytes(top_k: usize) -> usize {
    top_k * (4 + 4)
}

impl Traffic {
    /// Bytes of dispatch.
    ///
    /// Two hops: scale-out carries one copy per (token, other node), scale-up the copies to the other ranks
    /// of the own node and the forwards; on one node that is every copy to another rank. Direct transfers
    /// carry each copy straight to its rank. Logical copies are per (token, rank), for
    /// [`Transfer::DirectPerExpert`] per (token, k).
    pub fn dispatch_bytes(&self, transfer: Transfer, size: RowSize) -> OpBytes {
        let copies = self.copies(transfer);
        let on_links = |bytes: usize| LinkBytes {
            scale_up: copies.scale_up * bytes as u64,
            scale_out: copies.scale_out * bytes as u64,
        };
        OpBytes {
            logical: self.reach(transfer).total() * size.row as u64,
            logical_nodes: self.node_copies() * size.row as u64,
            wire: on_links(size.row),
            metadata: on_links(size.metadata),
        }
    }

    /// Bytes of combine with rows, and partial sums, of `row_bytes` each.
    ///
    /// Every copy that dispatch made comes back along the way it went: logical counts the rows read, own
    /// rank included. In two hops the ranks of another node send their rows to the rail (as many as there
    /// were forwards), which sends one partial sum per (token, node) across. No metadata.
    pub fn combine_bytes(&self, transfer: Transfer, row_bytes: usize) -> OpBytes {
        self.dispatch_bytes(transfer, RowSize { row: row_bytes, metadata: 0 })
    }

    fn reach(&self, transfer: Transfer) -> Reach {
        match transfer {
            Transfer::TwoHop | Transfer::DirectPerRank => self.rank_copies,
            Transfer::DirectPerExpert => self.selections,
        }
    }

    /// Copies over each kind of link.
    fn copies(&self, transfer: Transfer) -> LinkBytes {
        let direct = self.reach(transfer);
        match transfer {
            Transfer::TwoHop => {
                LinkBytes { scale_up: direct.own_node + self.forwards, scale_out: self.other_node_copies }
            }
            Transfer::DirectPerExpert | Transfer::DirectPerRank => {
                LinkBytes { scale_up: direct.own_node, scale_out: direct.other_nodes }
            }
        }
    }
}

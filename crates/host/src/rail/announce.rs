//! The start of a call between nodes: what this rank is about to do and its counts go to its rail peers, and theirs come.

use std::cell::RefCell;
use std::ops::Range;

use expertrail_core::Plan;
use expertrail_core::hop::CallHeader;
use expertrail_fabric::ring::CommandKind;

use super::{Crossings, rank_on, wait_for_any};
use crate::control::Record;
use crate::error::{Cause, Phase, Result};
use crate::world::World;

/// What the rails know of a call beyond this node, of each source of this rank's rail.
#[derive(Clone, Debug, Default)]
pub(crate) struct Announced {
    /// `[node]`: tokens that the source there sends to this node.
    pub(crate) tokens: Vec<u32>,
    /// What this rank tells its node's ranks of the rails: `[node, (ranks of this node, experts of this node)]`.
    pub(crate) columns: Vec<u32>,
}

/// The experts of a node.
pub(crate) fn experts_of(world: &World, node: usize) -> Range<usize> {
    let ranks = ranks_of(world, node);
    world.placement.experts_of(ranks.start).start..world.placement.experts_of(ranks.end - 1).end
}

/// The ranks of a node.
pub(crate) fn ranks_of(world: &World, node: usize) -> Range<usize> {
    let here = world.topology.ranks_per_node();
    node * here..(node + 1) * here
}

impl Crossings {
    /// Exchanges headers for call `epoch`. `plan` is that of an uncached dispatch; `record` learns of a rank elsewhere that
    /// refuses this call or makes another.
    pub(crate) fn announce(
        &mut self,
        world: &World,
        epoch: u64,
        record: &mut Record,
        (plan, counted): (Option<&Plan>, bool),
    ) -> Result<Announced> {
        self.send_headers(world, epoch, record, (plan, counted));
        let nodes = world.topology.nodes();
        let own = self.rail.node();
        let (ranks, experts) = (ranks_of(world, own), experts_of(world, own));
        let mut announced = Announced { tokens: vec![0; nodes], columns: Vec::new() };
        for node in 0..nodes {
            if node == own {
                if let Some(plan) = plan.filter(|_| counted) {
                    announced.columns.extend(&plan.rank_counts()[ranks.clone()]);
                    announced.columns.extend(&plan.expert_counts()[experts.clone()]);
                }
                continue;
            }
            let header = self.header_from(world, epoch, node)?;
            record.hear(&header, rank_on(world, node));
            if counted && !record.is_stray() {
                let wait = world.wait(Phase::RailNotify, epoch);
                if header.rank_counts.len() != ranks.len() || header.expert_counts.len() != experts.len() {
                    return Err(world.fail(wait, Cause::Protocol, rank_on(world, node)));
                }
                announced.columns.extend(&header.rank_counts);
                announced.columns.extend(&header.expert_counts);
            }
            announced.tokens[node] = header.tokens;
        }
        if record.is_stray() {
            announced.columns.clear();
        }
        Ok(announced)
    }

    /// Sends this rank's header to its rail peers; also that of a call that it refuses.
    pub(crate) fn send_headers(
        &mut self,
        world: &World,
        epoch: u64,
        record: &Record,
        (plan, counted): (Option<&Plan>, bool),
    ) {
        for node in self.others() {
            let (ranks, experts) = (ranks_of(world, node), experts_of(world, node));
            let mut header = CallHeader {
                epoch,
                signature: record.signature,
                origin: record.origin,
                fixed: record.is_fixed(),
                ..CallHeader::default()
            };
            if let Some(plan) = plan {
                header.tokens = plan.tokens_to(ranks.clone()).count() as u32;
                if counted {
                    header.rank_counts = plan.rank_counts()[ranks].to_vec();
                    header.expert_counts = plan.expert_counts()[experts].to_vec();
                }
            }
            let bytes = header.encode();
            let at = self.rail.layout().out_header(node, epoch);
            // SAFETY: the layout holds the largest header there. The header of two calls ago has left: its receiver has
            // answered since.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.rail.base().add(at), bytes.len()) };
            self.control(CommandKind::Header, node, bytes.len(), epoch);
        }
    }

    fn header_from(&mut self, world: &World, epoch: u64, node: usize) -> Result<CallHeader> {
        let wait = world.wait(Phase::RailNotify, epoch);
        let flags = self.rail.flags().clone();
        wait_for_any(world, wait, (&RefCell::new(&mut *self), &[node]), || flags.header_is_there(node, epoch))?;
        let layout = self.rail.layout();
        let at = layout.header(node, epoch);
        // SAFETY: the place of one header of a generation that nobody writes until this rank has answered.
        let bytes = unsafe {
            std::slice::from_raw_parts(self.rail.base().add(at).cast_const(), layout.sizes().header_bytes)
        };
        CallHeader::decode(bytes)
            .ok()
            .filter(|header| header.epoch == epoch)
            .ok_or_else(|| world.fail(wait, Cause::Protocol, rank_on(world, node)))
    }
}

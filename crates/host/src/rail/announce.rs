//! The start of a call between nodes: what this rank is about to do and its counts go to its rail peers, and theirs come.

use std::cell::RefCell;
use std::ops::Range;

use expertrail_core::Plan;
use expertrail_core::hop::call::HeaderBounds;
use expertrail_core::hop::{CallHeader, Status};
use expertrail_fabric::ring::Kind;

use super::{Crossings, command, rank_on, wait_for_any};
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
    world.placement.experts_of_ranks(world.topology.ranks_of(node))
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
        self.intact(world, world.wait(Phase::RailNotify, epoch))?;
        self.send_headers(world, epoch, record, (plan, counted))?;
        let nodes = world.topology.nodes();
        let own = self.rail.node();
        let (ranks, experts) = (world.topology.ranks_of(own), experts_of(world, own));
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
                if header.to_rank.is_empty() {
                    let wait = world.wait(Phase::RailNotify, epoch);
                    return Err(world.fail(wait, Cause::Protocol, rank_on(world, node)));
                }
                announced.columns.extend(&header.to_rank);
                announced.columns.extend(&header.to_expert);
            }
            announced.tokens[node] = header.tokens_to_node;
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
    ) -> Result<()> {
        for node in self.others() {
            self.wait_until_read(world, epoch, node)?;
            let (ranks, experts) = (world.topology.ranks_of(node), experts_of(world, node));
            let mut header = CallHeader {
                epoch,
                signature: record.signature,
                origin: record.origin,
                fixed: record.is_fixed(),
                ..CallHeader::default()
            };
            if let Some(plan) = plan {
                header.tokens_to_node = plan.tokens_to(ranks.clone()).count() as u32;
                if counted {
                    header.to_rank = plan.rank_counts()[ranks].to_vec();
                    header.to_expert = plan.expert_counts()[experts].to_vec();
                }
            }
            let layout = self.rail.layout();
            let at = layout.out_header(node, epoch);
            // SAFETY: the layout holds the largest header there. The header of two calls ago has left and was read.
            let region = unsafe {
                std::slice::from_raw_parts_mut(self.rail.base().add(at), layout.sizes().header_bytes)
            };
            let bytes = header.encode(region).map_err(|error| {
                world.note(error.to_string());
                world.fail(world.wait(Phase::RailNotify, epoch), Cause::Protocol, world.rank)
            })?;
            self.push(command(Kind::Header, (0, node), bytes, epoch));
        }
        Ok(())
    }

    /// Waits until `node` is done with the header of two calls ago, whose place the next one takes: it has announced the
    /// call after that. Normal calls have seen that; a rank that has just refused calls has waited for nobody.
    fn wait_until_read(&mut self, world: &World, epoch: u64, node: usize) -> Result<()> {
        if epoch < 3 {
            return Ok(());
        }
        let wait = world.wait(Phase::RailNotify, epoch);
        let flags = self.rail.flags().clone();
        wait_for_any(world, wait, (&RefCell::new(&mut *self), &[node]), || {
            flags.header_is_there(node, epoch - 1)
        })
    }

    fn header_from(&mut self, world: &World, epoch: u64, node: usize) -> Result<CallHeader> {
        let wait = world.wait(Phase::RailNotify, epoch);
        let flags = self.rail.flags().clone();
        wait_for_any(world, wait, (&RefCell::new(&mut *self), &[node]), || {
            flags.header_is_there(node, epoch)
        })?;
        let layout = self.rail.layout();
        let at = layout.header(node, epoch);
        // SAFETY: the place of one header of a generation that nobody writes until this rank has answered.
        let region = unsafe {
            std::slice::from_raw_parts(self.rail.base().add(at).cast_const(), layout.sizes().header_bytes)
        };
        let own = self.rail.node();
        let bounds = HeaderBounds {
            ranks: world.topology.ranks_of(own).len(),
            experts: experts_of(world, own).len(),
            max_tokens: world.shape.max_tokens,
            top_k: world.shape.top_k,
        };
        CallHeader::decode(region, epoch, &bounds).map_err(|error| {
            world.note(error.to_string());
            world.fail(wait, Cause::Protocol, rank_on(world, node))
        })
    }

    /// Tells the rail peers whether all outputs of this node are large enough, and hears it of theirs.
    pub(crate) fn exchange_status(
        &mut self,
        world: &World,
        epoch: u64,
        own: Status,
    ) -> Result<Option<Status>> {
        let bytes = own.encode(epoch);
        for node in self.others() {
            let at = self.rail.layout().out_status(node, epoch);
            // SAFETY: the layout has room for a status there; that of two calls ago has left, as for headers.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.rail.base().add(at), bytes.len()) };
            self.push(command(Kind::Status, (0, node), bytes.len(), epoch));
        }
        let mut bad = (own != Status::Ready).then_some((self.rail.node(), own));
        for node in self.others() {
            let wait = world.wait(Phase::RailNotify, epoch);
            let flags = self.rail.flags().clone();
            wait_for_any(world, wait, (&RefCell::new(&mut *self), &[node]), || {
                flags.status_is_there(node, epoch)
            })?;
            let at = self.rail.layout().status(node, epoch);
            // SAFETY: as for headers.
            let region =
                unsafe { std::slice::from_raw_parts(self.rail.base().add(at).cast_const(), Status::ENCODED) };
            let status = Status::decode(region, epoch).map_err(|error| {
                world.note(error.to_string());
                world.fail(wait, Cause::Protocol, rank_on(world, node))
            })?;
            // The lowest node's, so that all ranks name the same one.
            if status != Status::Ready && bad.is_none_or(|(lowest, _)| node < lowest) {
                bad = Some((node, status));
            }
        }
        Ok(bad.map(|(_, status)| status))
    }
}

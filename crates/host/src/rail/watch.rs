//! News from other nodes, as long as the communicator lives: deaths, from the group's connections, and failures that
//! another rank has found, whatever has become of the rails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use expertrail_core::Failure;
use expertrail_fabric::rail::{Flags, Way};
use expertrail_group::{Group, GroupError};

use super::{cause_of, patience, rank_on};
use crate::error::{Cause, HostError, Result};
use crate::world::World;

/// How often the group's connection is looked at.
const EVERY: Duration = Duration::from_millis(50);

/// What stands before the failure's word when a rank tells it to its group.
const TOLD: &str = "expertrail communicator failed: ";

/// A thread that polls a group of its own. It poisons this rank when a rank of the job has died or has failed, and tells
/// the group of a failure that this rank knows.
#[derive(Debug)]
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Takes a group of all ranks that nobody else uses.
    pub(crate) fn new(group: Group, world: Arc<World>, flags: Arc<Flags>) -> Result<Self> {
        let rank = group.rank();
        let stop = Arc::new(AtomicBool::new(false));
        let ended = stop.clone();
        let thread = std::thread::Builder::new()
            .name(format!("watch-{rank}"))
            .spawn(move || {
                let mut broken = None;
                loop {
                    // Once more after the end: what was found last must reach the others too.
                    let last = ended.load(Ordering::Acquire);
                    let word = world.own().poison();
                    if word != 0 {
                        return group.fail(&format!("{TOLD}{word:016x}"));
                    }
                    if let Err(error) = group.check() {
                        if let Some(word) = known(&error, &world) {
                            world.learn(word);
                        }
                        return;
                    }
                    if last {
                        return;
                    }
                    look_at_ways(&world, &flags, &mut broken);
                    std::thread::park_timeout(EVERY);
                }
            })
            .map_err(|error| HostError::System {
                rank,
                what: "starting the thread that watches other nodes".to_owned(),
                reason: error.to_string(),
            })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

/// Fails the communicator when a way to another node stays broken: a rank that waits within its node, or is in no call,
/// does not look at its rail. `since` is when it was first seen so.
fn look_at_ways(world: &World, flags: &Flags, since: &mut Option<Instant>) {
    let own = world.topology.node_of(world.rank);
    let mut nodes = (0..world.topology.nodes()).filter(|node| *node != own);
    let broken = nodes.find_map(|node| match flags.way(node) {
        Way::Broken(error) => Some((node, error)),
        _ => None,
    });
    let Some((node, error)) = broken.filter(|_| !world.own().closed()) else { return };
    if world.own().poison() != 0 {
        return;
    }
    if since.get_or_insert_with(Instant::now).elapsed() >= patience(&error) {
        let cause = cause_of(world, Way::Broken(error));
        let (phase, epoch) = world.own().now();
        let failure = Failure { cause, culprit: rank_on(world, node), reporter: world.rank, phase, epoch };
        world.learn(failure.to_word());
    }
}

/// What of a group's failure concerns the communicator, as a failure's word. A rank that left the group in good order has
/// closed its communicator, which its rail tells.
fn known(error: &GroupError, world: &World) -> Option<u64> {
    let (cause, culprit) = match error {
        GroupError::Died { peer, .. } => (Cause::Died, peer.rank),
        GroupError::RootSilent { peer, .. } => (Cause::Network, peer.rank),
        GroupError::Failed { message, .. } => return told(message),
        _ => return None,
    };
    let (phase, epoch) = world.own().now();
    Some(Failure { cause, culprit, reporter: world.rank, phase, epoch }.to_word())
}

/// The word that a rank told the group. It comes from outside: 0 would be taken for no failure.
fn told(message: &str) -> Option<u64> {
    let digits = message.strip_prefix(TOLD)?;
    u64::from_str_radix(digits, 16).ok().filter(|word| *word != 0)
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_failures_word_is_heard() {
        assert_eq!(told("expertrail communicator failed: 6810010000000002"), Some(0x6810_0100_0000_0002));
        for other in
            ["", "6810010000000002", "expertrail communicator failed: 0", "expertrail communicator failed: x"]
        {
            assert_eq!(told(other), None, "{other}");
        }
    }
}

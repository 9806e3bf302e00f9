//! News from other nodes: deaths, from the group's connections, as long as the communicator lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use expertrail_core::{Failure, Phase};
use expertrail_group::{Group, GroupError};

use crate::control::Control;
use crate::error::{Cause, HostError, Result};

/// How often the group's connection is looked at.
const EVERY: Duration = Duration::from_millis(50);

/// A thread that polls a group of its own and poisons this rank when a rank of the job has died.
#[derive(Debug)]
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Takes a group of all ranks that nobody else uses.
    pub(crate) fn new(group: Group, own: Control) -> Result<Self> {
        let rank = group.rank();
        let stop = Arc::new(AtomicBool::new(false));
        let ended = stop.clone();
        let thread = std::thread::Builder::new()
            .name(format!("watch-{rank}"))
            .spawn(move || {
                while !ended.load(Ordering::Acquire) {
                    if let Err(error) = group.check() {
                        if let Some((cause, culprit)) = known(&error) {
                            let epoch = own.notified();
                            let phase = if own.done() >= epoch {
                                Phase::Idle
                            } else {
                                Phase::from_bits((own.read_record(epoch).signature >> 56) as u8)
                            };
                            let failure = Failure { cause, culprit, reporter: rank, phase, epoch };
                            own.set_poison(failure.to_word());
                            own.ring_door();
                        }
                        return;
                    }
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

/// What of a group's failure concerns the communicator. A rank that left the group in good order has closed its
/// communicator, which its rail tells.
fn known(error: &GroupError) -> Option<(Cause, usize)> {
    match error {
        GroupError::Died { peer, .. } => Some((Cause::Died, peer.rank)),
        GroupError::RootSilent { peer, .. } => Some((Cause::Network, peer.rank)),
        _ => None,
    }
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

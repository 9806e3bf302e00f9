//! Endpoints that are connected with each other, polled in turn by one thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use expertrail_fabric::sim::Buffer;
use expertrail_fabric::{
    Capabilities, Completion, FabricError, PeerId, Posted, RegionId, RemoteRegion, Transport, Write,
};

/// A transport that loses a write would hang the test otherwise.
const DEADLINE: Duration = Duration::from_secs(30);
/// Rounds of polls after all has come, in which nothing more may come.
const QUIET_ROUNDS: usize = 100;

/// Writes that wait for room, by endpoint.
pub(crate) type Outbox = Vec<VecDeque<Write>>;

pub(crate) struct Group {
    ends: Vec<Box<dyn Transport>>,
    buffers: Vec<Arc<Buffer>>,
    regions: Vec<(RegionId, RemoteRegion)>,
    outbox: Outbox,
    /// What came while a post was tried again.
    early: VecDeque<(usize, Completion)>,
}

/// The caller's errors start with a word that the suite looks for.
fn told(error: FabricError) -> String {
    match error {
        FabricError::Argument { what } => format!("argument: {what}"),
        other => other.to_string(),
    }
}

impl Group {
    /// Connects all to all; each gets one region of `bytes` bytes. Addresses and regions travel as bytes, as they would
    /// between processes.
    pub(crate) fn new(mut ends: Vec<Box<dyn Transport>>, bytes: usize) -> Result<Self, String> {
        assert!((3..=8).contains(&ends.len()), "the suite needs three to eight endpoints");
        let buffers: Vec<_> = ends.iter().map(|_| Arc::new(Buffer::new(bytes))).collect();
        let mut regions = Vec::new();
        for (end, buffer) in ends.iter_mut().zip(&buffers) {
            let (id, remote) = end.register(buffer.clone()).map_err(told)?;
            let remote = RemoteRegion::decode(&remote.encode()).ok_or("a region that does not decode")?;
            if remote.bytes != bytes as u64 {
                return Err(format!("a region of {bytes} bytes was registered as {}", remote.bytes));
            }
            regions.push((id, remote));
        }
        let addresses = ends.iter_mut().map(|end| end.address()).collect::<Result<Vec<_>, _>>();
        let addresses = addresses.map_err(told)?;
        for end in &mut ends {
            end.connect(&addresses).map_err(told)?;
        }
        let outbox = ends.iter().map(|_| VecDeque::new()).collect();
        Ok(Self { ends, buffers, regions, outbox, early: VecDeque::new() })
    }

    pub(crate) fn ends(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn capabilities(&self, at: usize) -> &Capabilities {
        self.ends[at].capabilities()
    }

    pub(crate) fn buffer(&self, at: usize) -> &Buffer {
        &self.buffers[at]
    }

    pub(crate) fn buffers(&self) -> Vec<Arc<Buffer>> {
        self.buffers.clone()
    }

    /// A write to `to` with the rest at zero. The first region of every endpoint has the same number.
    pub(crate) fn to(&self, to: usize) -> Write {
        Write {
            peer: PeerId(to as u32),
            local: self.regions[0].0,
            local_offset: 0,
            remote: self.regions[to].1,
            remote_offset: 0,
            bytes: 0,
            immediate: 0,
            context: 0,
        }
    }

    /// Posts when there is room, behind what waits already.
    pub(crate) fn send(&mut self, from: usize, write: impl FnOnce(&Self) -> Write) {
        let write = Write { local: self.regions[from].0, ..write(self) };
        self.outbox[from].push_back(write);
    }

    pub(crate) fn post(&mut self, from: usize, write: &Write) -> Result<Posted, String> {
        self.ends[from].write(write).map_err(told)
    }

    pub(crate) fn post_unless_busy(&mut self, from: usize, write: &Write) -> Result<(), String> {
        let start = Instant::now();
        while self.post(from, write)? == Posted::Busy {
            let found = self.poll(from)?;
            self.early.extend(found.into_iter().map(|completion| (from, completion)));
            if start.elapsed() > DEADLINE {
                return Err(format!("endpoint {from} is busy for {DEADLINE:?}"));
            }
        }
        Ok(())
    }

    /// Closes the last endpoint. Its number stays known to the others.
    pub(crate) fn close_last(&mut self) -> Result<(), String> {
        self.outbox.pop();
        self.ends.pop().map_or(Ok(()), |end| end.close().map_err(told))
    }

    /// Posts what waits and polls all endpoints in turn, until `on` says that all has come; then goes on for a while, in
    /// which `on` must refuse what comes too much. `on` may add writes.
    pub(crate) fn run(
        &mut self,
        mut on: impl FnMut(usize, Completion, &mut Outbox) -> Result<bool, String>,
    ) -> Result<(), String> {
        let start = Instant::now();
        let mut quiet = 0;
        let mut done = false;
        while quiet < QUIET_ROUNDS {
            for at in 0..self.ends.len() {
                while let Some(write) = self.outbox[at].front() {
                    if self.ends[at].write(write).map_err(told)? == Posted::Busy {
                        break;
                    }
                    self.outbox[at].pop_front();
                }
                while let Some((at, completion)) = self.early.pop_front() {
                    done = on(at, completion, &mut self.outbox)?;
                }
                for completion in self.poll(at)? {
                    done = on(at, completion, &mut self.outbox)?;
                }
            }
            if done {
                quiet += 1;
            } else if start.elapsed() > DEADLINE {
                return Err(format!("not everything came within {DEADLINE:?}"));
            }
        }
        Ok(())
    }

    fn poll(&mut self, at: usize) -> Result<Vec<Completion>, String> {
        let mut out = Vec::with_capacity(16);
        let count = self.ends[at].poll(&mut out).map_err(told)?;
        if count != out.len() {
            return Err(format!("a poll says {count} and gives {}", out.len()));
        }
        Ok(out)
    }
}

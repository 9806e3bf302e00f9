//! A fabric in memory, for tests and simulations: it does everything that [`Transport`] allows, by a seed.
//!
//! [`Network::new`] takes a [`Plan`] and makes endpoints that live in one process, each polled by its own thread or all by
//! one. The network reorders and delays writes, lands their payloads in pieces, throttles, runs out of queue, cuts links,
//! stalls endpoints, and on request breaks its promises (duplicated and early completions), so that a test of a protocol
//! can show that it fails there.
//!
//! Time is logical: a tick passes with each poll of any endpoint and with each [`Network::advance`], and several with each
//! wait, which stands for the polls that a busy endpoint would make meanwhile. No clock is read, so that one thread with one
//! seed sees the same run every time.

mod buffer;
mod plan;
mod random;
mod state;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use buffer::Buffer;
pub use plan::{Counts, Cut, Plan, Stall};
pub use random::Random;

use crate::error::{FabricError, Result};
use crate::transport::{
    Addressing, Capabilities, Completion, Memory, Posted, RegionId, RemoteRegion, Transport, Write,
};
use crate::wake::Wake;
use state::State;

/// First bytes of an address of this fabric.
const ADDRESS_TAG: [u8; 4] = *b"sim1";

/// How long an endpoint sleeps while something is on its way.
const NAP: Duration = Duration::from_micros(20);

/// The fabric that endpoints share. Clones are the same network.
#[derive(Clone)]
pub struct Network {
    state: Arc<Mutex<State>>,
}

impl Network {
    /// An empty network that behaves by `plan`.
    pub fn new(plan: Plan) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(plan))) }
    }

    /// A new endpoint on `node`. Cuts, stalls and rates name nodes; endpoints may share one. The number is the caller's
    /// choice: a test that cuts single rails gives every rail its own.
    pub fn endpoint(&self, node: u32) -> SimTransport {
        let mut state = self.lock();
        let capabilities = Capabilities {
            provider: "sim".to_owned(),
            domain: format!("sim{node}"),
            library: "simulated".to_owned(),
            addressing: Addressing::Offset,
            max_message: state.plan.max_message,
            queue_depth: state.plan.queue_depth,
            gpu_memory: false,
            manual_progress: true,
            link_bits_per_second: None,
        };
        let port = state.open(node);
        drop(state);
        SimTransport { network: self.clone(), port, capabilities }
    }

    /// Lets one tick pass; gives the tick.
    pub fn advance(&self) -> u64 {
        self.lock().advance()
    }

    /// Ticks so far.
    pub fn now(&self) -> u64 {
        self.lock().tick
    }

    /// Whether nothing is on its way. Completions may still wait for a poll.
    pub fn is_idle(&self) -> bool {
        self.lock().is_idle()
    }

    /// Adds a cut to those of the plan.
    pub fn cut(&self, cut: Cut) {
        self.lock().plan.cuts.push(cut);
    }

    /// Adds a stall to those of the plan.
    pub fn stall(&self, stall: Stall) {
        self.lock().plan.stalls.push(stall);
    }

    /// Sets the rate of every endpoint of `node`, in bytes a tick, for writes posted from now on; `None` for the plan's.
    pub fn throttle(&self, node: u32, bytes_per_tick: Option<u64>) {
        self.lock().throttle(node, bytes_per_tick);
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere is a test's failure; the state was whole after each step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

/// An endpoint of a [`Network`].
#[derive(Debug)]
pub struct SimTransport {
    network: Network,
    port: u32,
    capabilities: Capabilities,
}

impl Transport for SimTransport {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&mut self, memory: Arc<dyn Memory>) -> Result<(RegionId, RemoteRegion)> {
        self.network.lock().register(self.port, memory)
    }

    fn address(&mut self) -> Result<Vec<u8>> {
        let mut address = ADDRESS_TAG.to_vec();
        address.extend_from_slice(&self.port.to_le_bytes());
        Ok(address)
    }

    fn connect(&mut self, addresses: &[Vec<u8>]) -> Result<()> {
        let mut state = self.network.lock();
        let ports = addresses
            .iter()
            .zip(0..)
            .map(|(address, peer)| {
                address
                    .strip_prefix(&ADDRESS_TAG)
                    .and_then(|rest| Some(u32::from_le_bytes(rest.try_into().ok()?)))
                    .filter(|&port| state.has(port))
                    .ok_or(FabricError::Exchange { peer, what: "an address" })
            })
            .collect::<Result<Vec<u32>>>()?;
        state.connect(self.port, ports)
    }

    fn write(&mut self, write: &Write) -> Result<Posted> {
        self.network.lock().post(self.port, write)
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> Result<usize> {
        let most = (out.capacity() - out.len()).max(1);
        let mut state = self.network.lock();
        state.advance();
        Ok(state.take(self.port, out, most))
    }

    /// Lets some time pass and sleeps for a moment, so that ranks get the cores that proxies with nothing to do would poll
    /// away.
    fn wait(&mut self, most: Duration) -> Result<()> {
        if !self.network.lock().pass(self.port) {
            std::thread::sleep(most.min(NAP));
        }
        Ok(())
    }

    /// As [`Transport::wait`]; the network rings `wake` too, with a completion of this endpoint.
    fn wait_or(&mut self, most: Duration, wake: &Arc<Wake>) -> Result<()> {
        let busy = {
            let mut state = self.network.lock();
            if state.pass(self.port) {
                return Ok(());
            }
            state.ring(self.port, wake);
            !state.is_idle()
        };
        // Something is on its way for others: somebody must let time pass.
        let most = if busy { most.min(NAP) } else { most };
        match wake.sleep(None, most) {
            Ok(_) => Ok(()),
            Err(code) => Err(FabricError::System {
                what: "sleeping".to_owned(),
                reason: std::io::Error::from_raw_os_error(code).to_string(),
            }),
        }
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Drop for SimTransport {
    fn drop(&mut self) {
        let regions = self.network.lock().shut(self.port);
        // Not under the lock: a region's owner may do anything when it goes.
        drop(regions);
    }
}

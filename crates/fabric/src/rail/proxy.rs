//! A rail's proxy: a thread that owns one endpoint, takes commands from its rank's ring and publishes flags.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::counters::{Counters, RailStats};
use super::flags::Flags;
use super::layout::RailLayout;
use super::memory::Pages;
use super::worker::STOP_AT_ONCE;
use super::worker::{Remote, State, Worker};
use crate::error::{FabricError, Result};
use crate::ring::{Command, Consumer, Kind, Producer, RingError};
use crate::ring_memory::RingMemory;
use crate::transport::{Capabilities, Memory, PeerId, RegionId, RemoteRegion, Transport};
use crate::wake::Wake;

/// Commands that may wait in the ring.
const RING: usize = 1024;

/// Who is told of what the proxy finds. Called on the proxy's thread; must not block.
pub trait Listener: Send {
    /// Flags have changed: whoever sleeps should look.
    fn wake(&self);
    /// The rank of this rail on `node` tells of a failure that ended the communicator, as
    /// [`Failure::to_word`](expertrail_core::Failure::to_word) gives it.
    fn told(&self, node: usize, word: u64);
    /// For whom the rank has been waiting for long, as a word that its peers understand; 0 for nobody.
    fn waits(&self) -> u64 {
        0
    }
    /// The rank of this rail on `node` says for whom it waits.
    fn told_waits(&self, _node: usize, _word: u64) {}
}

/// An endpoint with its memory registered, not yet connected.
#[derive(Debug)]
pub struct RailEnd {
    transport: Box<dyn Transport>,
    layout: RailLayout,
    pages: Arc<Pages>,
    region: RegionId,
    card: RailCard,
}

/// What a rank tells its rail peers so that they can write to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailCard {
    /// Its region.
    pub region: RemoteRegion,
    /// Its address.
    pub address: Vec<u8>,
}

impl RailCard {
    /// The region's [`RemoteRegion::ENCODED`] bytes, then the address.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.region.encode().to_vec();
        bytes.extend(&self.address);
        bytes
    }

    /// Reads what [`RailCard::encode`] wrote; `None` when it is too short.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (region, address) = bytes.split_at_checked(RemoteRegion::ENCODED)?;
        Some(Self { region: RemoteRegion::decode(region)?, address: address.to_vec() })
    }
}

/// How a proxy runs.
#[derive(Clone, Debug, Default)]
pub struct ProxyConfig {
    /// Whether it may spin: it has a core of its own.
    pub spin: bool,
    /// CPUs that it is bound to: those of the NIC's NUMA node. Empty: not bound.
    pub cpus: Vec<usize>,
}

impl RailEnd {
    /// Maps and registers the region of `layout`.
    ///
    /// # Errors
    /// When there is no memory, or the provider refuses.
    pub fn new(mut transport: Box<dyn Transport>, layout: RailLayout) -> Result<Self> {
        let pages = Arc::new(Pages::new(layout.bytes())?);
        let (region, remote) = transport.register(pages.clone())?;
        let address = transport.address()?;
        Ok(Self { transport, layout, pages, region, card: RailCard { region: remote, address } })
    }

    /// What the peers must know.
    pub fn card(&self) -> &RailCard {
        &self.card
    }

    /// What the transport is and can do.
    pub fn capabilities(&self) -> &Capabilities {
        self.transport.capabilities()
    }

    /// Connects to the rail peers and starts the thread. `cards[n]` is node n's; the own one is not looked at. All sides
    /// must have connected before anyone gives a command: meet in between.
    ///
    /// # Errors
    /// For a card that is too small for the layout or an address that the provider does not take.
    pub fn start(
        self,
        node: usize,
        cards: &[RailCard],
        listener: Box<dyn Listener>,
        config: &ProxyConfig,
    ) -> Result<Rail> {
        let (mut rail, proxy) = self.attach(node, cards, listener, config)?;
        let wake = Arc::new(Wake::new()?);
        let (cpus, rung) = (config.cpus.clone(), wake.clone());
        let thread = std::thread::Builder::new()
            .name(format!("rail-{node}"))
            .spawn(move || {
                bind(&cpus);
                proxy.0.run(&rung)
            })
            .map_err(|error| FabricError::System {
                what: "starting the thread that serves the network".to_owned(),
                reason: error.to_string(),
            })?;
        (rail.thread, rail.wake) = (Some(thread), Some(wake));
        Ok(rail)
    }

    /// As [`RailEnd::start`], without a thread: the caller gives the proxy its turns. One thread can so serve the rails of a
    /// whole simulated cluster.
    ///
    /// # Errors
    /// As [`RailEnd::start`].
    pub fn attach(
        mut self,
        node: usize,
        cards: &[RailCard],
        listener: Box<dyn Listener>,
        config: &ProxyConfig,
    ) -> Result<(Rail, Proxy)> {
        let sizes = self.layout.sizes();
        let others: Vec<(usize, &RailCard)> =
            cards.iter().enumerate().filter(|(other, _)| *other != node).collect();
        if let Some((other, card)) =
            others.iter().find(|(_, card)| card.region.bytes < self.layout.bytes() as u64)
        {
            let what = format!(
                "node {other}'s region has {} bytes, this one's {}: the ranks must be built with the same settings",
                card.region.bytes,
                self.layout.bytes()
            );
            return Err(FabricError::Argument { what });
        }
        let addresses: Vec<Vec<u8>> = others.iter().map(|(_, card)| card.address.clone()).collect();
        self.transport.connect(&addresses)?;
        let mut remotes = vec![None; sizes.nodes];
        for (peer, (other, card)) in others.iter().enumerate() {
            remotes[*other] = Some(Remote { peer: PeerId(peer as u32), region: card.region });
        }
        let ring = Arc::new(RingMemory::new(RING).map_err(refused)?);
        let producer = Producer::new(ring.clone()).map_err(refused)?;
        let commands = Consumer::new(ring).map_err(refused)?;
        let flags = Arc::new(Flags::new(sizes));
        let counters = Arc::new(Counters::default());
        let capabilities = self.transport.capabilities().clone();
        let memory: Arc<dyn Memory> = self.pages.clone();
        let worker = Worker {
            transport: self.transport,
            commands,
            node,
            layout: self.layout,
            memory,
            region: self.region,
            remotes,
            flags: flags.clone(),
            counters: counters.clone(),
            listener,
            spin: config.spin,
            state: State::new(sizes.nodes, sizes.window)?,
        };
        let rail = Rail {
            node,
            layout: self.layout,
            pages: self.pages,
            capabilities,
            flags,
            counters,
            producer,
            wake: None,
            thread: None,
        };
        Ok((rail, Proxy(worker)))
    }
}

/// A proxy without a thread, from [`RailEnd::attach`].
pub struct Proxy(Worker);

impl Proxy {
    /// Polls the network, takes what the rank has commanded and posts what waits. Says whether there was anything to do.
    pub fn turn(&mut self) -> bool {
        self.0.turn()
    }
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").finish_non_exhaustive()
    }
}

fn refused(error: RingError) -> FabricError {
    match error {
        RingError::Full { .. } => FabricError::System {
            what: "giving a command to the thread that serves the network".to_owned(),
            reason: error.to_string(),
        },
        _ => FabricError::Argument { what: error.to_string() },
    }
}

/// Binds this thread to `cpus`. A kernel that refuses (a smaller cpuset) leaves it where it is: slower, not wrong.
fn bind(cpus: &[usize]) {
    if cpus.is_empty() {
        return;
    }
    let mut set = rustix::thread::CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < rustix::thread::CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// A running rail, seen from its rank.
#[derive(Debug)]
pub struct Rail {
    node: usize,
    layout: RailLayout,
    pages: Arc<Pages>,
    capabilities: Capabilities,
    flags: Arc<Flags>,
    counters: Arc<Counters>,
    producer: Producer<RingMemory>,
    /// Where a thread sleeps that the rank must wake.
    wake: Option<Arc<Wake>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Rail {
    /// This node.
    pub fn node(&self) -> usize {
        self.node
    }

    /// Where things lie in the region.
    pub fn layout(&self) -> &RailLayout {
        &self.layout
    }

    /// The region's first byte.
    pub fn base(&self) -> *mut u8 {
        self.pages.base()
    }

    /// What the transport is and can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// What the proxy publishes.
    pub fn flags(&self) -> &Arc<Flags> {
        &self.flags
    }

    /// What the proxy has done.
    pub fn stats(&self) -> RailStats {
        self.counters.read()
    }

    /// Commands that found the ring full and had to wait.
    pub fn ring_stalls(&self) -> u64 {
        self.producer.stalls()
    }

    /// Gives a command; waits while the ring is full. Without a thread that empties it, a full ring is an error.
    ///
    /// # Errors
    /// [`FabricError::Argument`] for a field that does not fit, [`FabricError::System`] when the proxy has ended.
    pub fn push(&mut self, command: &Command) -> Result<()> {
        let thread = self.thread.as_ref();
        let ring = |wake: &Option<Arc<Wake>>| {
            if let Some(wake) = wake {
                wake.wake();
            }
        };
        let lives = || {
            // A proxy that slept when the ring became full must be awake for it to become empty.
            ring(&self.wake);
            thread.is_some_and(|thread| !thread.is_finished())
        };
        self.producer.push(command, lives).map_err(refused)?;
        ring(&self.wake);
        Ok(())
    }

    /// Lets the proxy send what it has, then closes the endpoint.
    ///
    /// # Errors
    /// What could not be closed.
    pub fn close(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if self.thread.is_some() {
            // One that has ended already takes no command: its result says why. A second stop is never read.
            let _ = self.push(&Command {
                kind: Kind::Stop,
                channel: 0,
                peer: 0,
                sequence: 0,
                epoch: 0,
                slot: STOP_AT_ONCE,
                length: 0,
            });
        }
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(FabricError::System {
                what: "the thread that serves the network".to_owned(),
                reason: "it panicked; its message is above".to_owned(),
            }),
        }
    }
}

impl Drop for Rail {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

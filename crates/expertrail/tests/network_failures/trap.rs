//! A transport that does something to its rank when it is about to write a certain thing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use expertrail::core::hop::immediate::{Channel, Immediate, Kind};
use expertrail::fabric::{
    Capabilities, Completion, FabricError, Memory, Posted, RegionId, RemoteRegion, Transport, Write,
};

use super::line::When;

type Result<T> = std::result::Result<T, FabricError>;

/// What a trap does.
pub type Action = Box<dyn FnOnce() + Send>;

/// Goes off once, after it was armed.
pub struct Trap {
    inner: Box<dyn Transport>,
    armed: Arc<AtomicBool>,
    when: When,
    /// Chunks of the kind seen since it was armed.
    seen: usize,
    action: Option<Action>,
}

impl Trap {
    pub fn new(inner: Box<dyn Transport>, armed: Arc<AtomicBool>, when: When, action: Action) -> Self {
        Self { inner, armed, when, seen: 0, action: Some(action) }
    }

    fn is_it(&mut self, word: u32) -> bool {
        let Ok(Immediate { kind, channel, .. }) = Immediate::decode(word) else { return false };
        let (wanted, count) = match self.when {
            When::Idle | When::Between => return false,
            When::Header => (kind == Kind::Header, 1),
            When::Dispatch => (kind == Kind::Chunk && channel == Channel::Dispatch, 2),
            When::Combine => (kind == Kind::Chunk && channel == Channel::Combine, 2),
        };
        self.seen += usize::from(wanted);
        wanted && self.seen >= count
    }
}

impl std::fmt::Debug for Trap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trap").field("inner", &self.inner).field("when", &self.when).finish_non_exhaustive()
    }
}

impl Transport for Trap {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn register(&mut self, memory: Arc<dyn Memory>) -> Result<(RegionId, RemoteRegion)> {
        self.inner.register(memory)
    }

    fn address(&mut self) -> Result<Vec<u8>> {
        self.inner.address()
    }

    fn connect(&mut self, addresses: &[Vec<u8>]) -> Result<()> {
        self.inner.connect(addresses)
    }

    fn write(&mut self, write: &Write) -> Result<Posted> {
        if self.action.is_some()
            && self.armed.load(Ordering::Acquire)
            && self.is_it(write.immediate)
            && let Some(action) = self.action.take()
        {
            action();
        }
        self.inner.write(write)
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> Result<usize> {
        self.inner.poll(out)
    }

    fn wait(&mut self, most: Duration) -> Result<()> {
        self.inner.wait(most)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.inner.close()
    }
}

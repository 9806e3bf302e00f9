//! A flag that stops waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::interrupt;

/// Stops every wait that was given a clone of it, within about 200 ms.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// A token that only [`cancel`](Self::cancel) sets.
    pub fn new() -> Self {
        Self::default()
    }

    /// A token that the first SIGINT or SIGTERM sets; a second one ends the process as if it had no
    /// handler, so that a hung program can still be stopped from the keyboard.
    ///
    /// # Errors
    /// When the signal handlers cannot be installed.
    pub fn on_signals() -> std::io::Result<Self> {
        interrupt::cancel_flag().map(Self)
    }

    /// Stops the waits.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the waits are to stop.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

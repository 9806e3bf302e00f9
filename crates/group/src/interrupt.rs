//! SIGINT and SIGTERM, counted.
//!
//! The handlers are installed once and stay; while nobody cares they behave as if they were not there.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use signal_hook::consts::{SIGINT, SIGTERM};

struct Shared {
    /// True while a signal is to end the process as it would without handlers.
    default_action: Arc<AtomicBool>,
    /// Set by each signal; taken by [`Watch::count`].
    raised: Arc<AtomicBool>,
    /// Flags that a signal sets for good.
    cancel: Arc<AtomicBool>,
    /// Launches that handle signals themselves.
    watches: Mutex<usize>,
    cancel_wanted: AtomicBool,
}

static SHARED: OnceLock<Shared> = OnceLock::new();

fn shared() -> std::io::Result<&'static Shared> {
    static INSTALL: Mutex<()> = Mutex::new(());
    let _once = INSTALL.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(shared) = SHARED.get() {
        return Ok(shared);
    }
    let flag = |value| Arc::new(AtomicBool::new(value));
    let shared = Shared {
        default_action: flag(true),
        raised: flag(false),
        cancel: flag(false),
        watches: Mutex::new(0),
        cancel_wanted: AtomicBool::new(false),
    };
    for signal in [SIGINT, SIGTERM] {
        use signal_hook::flag;
        // In this order within the handler: end the process if nobody cares, else note the signal, and let
        // a second one end the process if only a cancel flag was asked for.
        flag::register_conditional_default(signal, Arc::clone(&shared.default_action))?;
        flag::register(signal, Arc::clone(&shared.raised))?;
        flag::register(signal, Arc::clone(&shared.cancel))?;
    }
    Ok(SHARED.get_or_init(|| shared))
}

impl Shared {
    fn settle(&self, watches: usize) {
        let cared_for = watches > 0 || self.cancel_wanted.load(Ordering::Acquire);
        self.default_action.store(!cared_for, Ordering::Release);
    }
}

/// The flag that the first signal sets. A thread then lets a second one end the process.
pub(crate) fn cancel_flag() -> std::io::Result<Arc<AtomicBool>> {
    let shared = shared()?;
    if !shared.cancel_wanted.swap(true, Ordering::AcqRel) {
        std::thread::Builder::new().name("expertrail-signals".to_owned()).spawn(move || {
            while !shared.cancel.load(Ordering::Acquire) {
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            shared.cancel_wanted.store(false, Ordering::Release);
            shared.settle(*shared.watches.lock().unwrap_or_else(PoisonError::into_inner));
        })?;
    }
    shared.settle(*shared.watches.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Arc::clone(&shared.cancel))
}

/// While it lives, SIGINT and SIGTERM are counted instead of ending the process.
pub struct Watch {
    shared: &'static Shared,
    count: AtomicUsize,
}

impl Watch {
    /// Counts from now on.
    ///
    /// # Errors
    /// When the signal handlers cannot be installed.
    pub fn new() -> std::io::Result<Self> {
        let shared = shared()?;
        let mut watches = shared.watches.lock().unwrap_or_else(PoisonError::into_inner);
        if *watches == 0 {
            shared.raised.store(false, Ordering::Release);
        }
        *watches += 1;
        shared.settle(*watches);
        drop(watches);
        Ok(Self { shared, count: AtomicUsize::new(0) })
    }

    /// Signals so far; several within one look count as one.
    pub fn count(&self) -> usize {
        if self.shared.raised.swap(false, Ordering::AcqRel) {
            self.count.fetch_add(1, Ordering::AcqRel);
        }
        self.count.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watches = self.shared.watches.lock().unwrap_or_else(PoisonError::into_inner);
        *watches -= 1;
        self.shared.settle(*watches);
    }
}

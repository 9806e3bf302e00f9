//! What the tests over libfabric share: memory, endpoints, and waiting with a deadline.

#![allow(dead_code, reason = "every test program uses a part")]

pub(crate) mod bodies;
pub(crate) mod child;

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use expertrail_fabric::ofi::{self, Library, OpenOptions, Provider};
use expertrail_fabric::{Completion, Memory, PeerId, Posted, RegionId, RemoteRegion, Transport, Write};

pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

/// Host memory, page-aligned.
#[derive(Debug)]
pub(crate) struct Bytes {
    pages: UnsafeCell<Vec<Page>>,
    bytes: usize,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(4096))]
#[allow(dead_code, reason = "only its bytes are used")]
struct Page([u8; 4096]);

// SAFETY: touched by pointer only.
unsafe impl Sync for Bytes {}

// SAFETY: the pages live as long as the value and are touched by pointer only.
unsafe impl Memory for Bytes {
    fn base(&self) -> *mut u8 {
        // SAFETY: no reference to the pages outlives this line.
        unsafe { (*self.pages.get()).as_mut_ptr().cast() }
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Bytes {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        let pages = UnsafeCell::new(vec![Page([0; 4096]); bytes.div_ceil(4096)]);
        Arc::new(Self { pages, bytes })
    }

    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.bytes);
        // SAFETY: within the pages.
        unsafe { self.base().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    pub(crate) fn get(&self, at: usize, bytes: usize) -> Vec<u8> {
        assert!(at + bytes <= self.bytes);
        let mut out = vec![0; bytes];
        // SAFETY: within the pages.
        unsafe { out.as_mut_ptr().copy_from_nonoverlapping(self.base().add(at), bytes) }
        out
    }
}

/// Bytes that differ by place and by message.
pub(crate) fn pattern(seed: u32, bytes: usize) -> Vec<u8> {
    let mut state = u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..bytes)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

/// The library, or none with a line that says so.
pub(crate) fn library() -> Option<Library> {
    match Library::open() {
        Ok(library) => Some(library),
        Err(error) if std::env::var_os(ofi::VARIABLE).is_some_and(|value| !value.is_empty()) => {
            panic!("{}: {error}", ofi::VARIABLE)
        }
        Err(error) => {
            println!("NOT RUN: {error}");
            None
        }
    }
}

pub(crate) fn options(provider: &str) -> OpenOptions {
    OpenOptions { provider: Provider::Named(provider.to_owned()), ..OpenOptions::default() }
}

/// An endpoint with a region to write from and one to be written to.
pub(crate) struct Side {
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) own: Arc<Bytes>,
    pub(crate) from: RegionId,
    pub(crate) landing: Arc<Bytes>,
    pub(crate) landing_remote: RemoteRegion,
    pub(crate) completions: Vec<Completion>,
}

impl Side {
    pub(crate) fn new(library: &Library, options: &OpenOptions, bytes: usize) -> Self {
        let mut transport = ofi::open_with(library, options).unwrap();
        let (own, landing) = (Bytes::new(bytes), Bytes::new(bytes));
        let (from, _) = transport.register(own.clone()).unwrap();
        let (_, landing_remote) = transport.register(landing.clone()).unwrap();
        Self { transport, own, from, landing, landing_remote, completions: Vec::with_capacity(256) }
    }

    /// What the peer must know.
    pub(crate) fn card(&mut self) -> (Vec<u8>, RemoteRegion) {
        (self.transport.address().unwrap(), self.landing_remote)
    }

    pub(crate) fn write(&self, to: RemoteRegion, at: u64, bytes: u64, immediate: u32) -> Write {
        Write {
            peer: PeerId(0),
            local: self.from,
            local_offset: at,
            remote: to,
            remote_offset: at,
            bytes,
            immediate,
            context: u64::from(immediate) | 7 << 40,
        }
    }

    /// Posts a write, polling while the queue is full; gives how often it was.
    pub(crate) fn post(&mut self, write: &Write) -> usize {
        let (mut busy, deadline) = (0, Instant::now() + DEADLINE);
        while self.transport.write(write).unwrap() == Posted::Busy {
            busy += 1;
            self.poll();
            assert!(Instant::now() < deadline, "still busy");
        }
        busy
    }

    pub(crate) fn poll(&mut self) -> usize {
        let got = self.transport.poll(&mut self.completions).unwrap();
        if got == 0 {
            std::thread::yield_now();
        }
        if self.completions.capacity() - self.completions.len() < 64 {
            self.completions.reserve(256);
        }
        got
    }

    pub(crate) fn poll_until(&mut self, what: &str, mut done: impl FnMut(&[Completion]) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !done(&self.completions) {
            self.poll();
            assert!(
                Instant::now() < deadline,
                "{what}: not within {DEADLINE:?}; have {}",
                self.completions.len()
            );
        }
    }
}

pub(crate) fn sent(completions: &[Completion]) -> Vec<u64> {
    let pick = |completion: &Completion| match completion {
        Completion::Sent { context } => Some(*context),
        _ => None,
    };
    completions.iter().filter_map(pick).collect()
}

pub(crate) fn arrived(completions: &[Completion]) -> Vec<u32> {
    let pick = |completion: &Completion| match completion {
        Completion::Arrived { immediate } => Some(*immediate),
        _ => None,
    };
    completions.iter().filter_map(pick).collect()
}

/// Files of the shm provider that `process` has now.
pub(crate) fn shm_files(process: u32) -> Vec<String> {
    let mine = |name: &String| name.starts_with(&format!("{process}:"));
    let names = std::fs::read_dir("/dev/shm").unwrap().flatten();
    names.map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(mine).collect()
}

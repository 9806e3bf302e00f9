//! A rank's shared memory: a memfd, so that nothing has a name and nothing outlives its processes.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::{HostError, Result};

/// A mapping of a segment, this rank's own or a peer's.
#[derive(Debug)]
pub(crate) struct Segment {
    base: NonNull<u8>,
    bytes: usize,
    fd: OwnedFd,
}

// SAFETY: the mapping is plain memory that stays where it is until drop; whoever reads or writes through
// `base` answers for ordering.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Creates this rank's segment of `bytes` zero bytes. Pages take memory when first touched.
    pub(crate) fn create(rank: usize, bytes: usize) -> Result<Self> {
        let system = |what: &str| {
            let what = format!("{what} of {} of shared memory", crate::error::bytes_text(bytes as u64));
            move |e: rustix::io::Errno| HostError::System { rank, what, reason: e.to_string() }
        };
        let name = format!("expertrail-rank-{rank}");
        let fd = rustix::fs::memfd_create(&name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(system("creation"))?;
        rustix::fs::ftruncate(&fd, bytes as u64).map_err(system("reservation"))?;
        // A peer that maps the segment may rely on its size: nobody can shrink it and turn reads into SIGBUS.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(system("sealing"))?;
        Self::map(fd, bytes).map_err(system("mapping"))
    }

    /// Maps a peer's segment of `bytes` bytes.
    pub(crate) fn open(rank: usize, peer: usize, at: PeerFd, bytes: usize) -> Result<Self> {
        let path = format!("/proc/{}/fd/{}", at.pid, at.fd);
        let failed =
            |reason: String| HostError::Segment { rank, peer, pid: at.pid, path: path.clone(), reason };
        let file = File::options().read(true).write(true).open(&path).map_err(|e| failed(e.to_string()))?;
        let found = file.metadata().map_err(|e| failed(e.to_string()))?.len();
        if found != bytes as u64 {
            return Err(failed(format!("it has {found} bytes where rank {peer} announced {bytes}")));
        }
        Self::map(file.into(), bytes).map_err(|e| failed(e.to_string()))
    }

    fn map(fd: OwnedFd, bytes: usize) -> rustix::io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of this process.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &fd,
                0,
            )?
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or(rustix::io::Errno::NOMEM)?;
        // Rows of several KiB to many targets at once miss the TLB with 4 KiB pages. Not every kernel grants
        // huge pages for shared memory; then nothing is lost.
        // SAFETY: advice on a mapping that was just made.
        let _ = unsafe { rustix::mm::madvise(base.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
        Ok(Self { base, bytes, fd })
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where peers find this segment.
    pub(crate) fn peer_fd(&self) -> PeerFd {
        PeerFd { pid: std::process::id(), fd: self.fd.as_raw_fd() }
    }

    /// Bytes of the segment that hold memory now.
    pub(crate) fn resident_bytes(&self) -> u64 {
        rustix::fs::fstat(&self.fd).map_or(0, |stat| stat.st_blocks as u64 * 512)
    }

    /// Gives the whole pages inside a range back to the system; they read as zero again.
    pub(crate) fn release(&self, offset: usize, bytes: usize) {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // A kernel that refuses keeps the pages: more memory held, nothing wrong.
        let _ = rustix::fs::fallocate(&self.fd, punch, offset as u64, bytes as u64);
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map`; everything that points into it holds an `Arc` of its owner.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// A memfd of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerFd {
    pub(crate) pid: u32,
    pub(crate) fd: i32,
}

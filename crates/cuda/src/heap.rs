//! The symmetric heap: device memory of one size on every rank, mapped into every rank.

use std::os::fd::{AsFd, OwnedFd};

use expertrail_group::Group;

use crate::agreement::{agree, unreadable};
use crate::build_error::BuildError;
use crate::context::Context;
use crate::error::CudaError;
use crate::mesh::Mesh;
use crate::vmm::{Mapping, Physical};

/// Device memory of one rank, with the same of every other rank in reach.
///
/// Its contents are undefined at first. Dropping it unmaps everything without waiting for the device or for the other
/// ranks: their mappings keep the memory alive, but kernels that use an address given here must have ended, those of
/// this process at least. A rank that dies gives its mappings up only when its process is torn down, and until then its
/// kernels may still write here: keep the heap until a pidfd says that it is gone.
#[derive(Debug)]
pub struct SymmetricHeap {
    bytes: usize,
    rank: usize,
    /// By rank, this rank's own included.
    mappings: Vec<Mapping>,
}

impl SymmetricHeap {
    /// Allocates at least `bytes` bytes on the device of every rank of `group`, and maps each into every rank.
    ///
    /// # Errors
    /// On every rank, when sizes differ, a device has too little memory, or one rank's memory cannot be mapped into
    /// another: the rank at fault gets its own error, the others [`BuildError::PeerBuild`]. Nothing stays allocated.
    pub fn create(group: &Group, mesh: &Mesh, context: &Context, bytes: usize) -> Result<Self, BuildError> {
        let rank = group.rank();
        // Sizes first: a rank with too large a size is at odds with the others before it is out of memory.
        let ((), asked) = agree(group, "symmetric heap: size", Ok(()), |()| word(bytes))?;
        same(rank, "bytes of the symmetric heap", &asked)?;

        let made = Physical::new(context, bytes).and_then(|physical| {
            let fd = physical.export()?;
            Ok((physical.map()?, fd))
        });
        let ((own, fd), made) =
            agree(group, "symmetric heap: allocation", made, |(mapping, _)| word(mapping.bytes()))?;
        // Devices of one model have pages of one size; other mixtures do not work here.
        same(rank, "bytes of the symmetric heap in whole pages", &made)?;
        let bytes = own.bytes();

        let mut own = Some(own);
        let mapped = mesh.exchange(fd.as_fd()).and_then(|fds| {
            let mut mappings = Vec::with_capacity(fds.len());
            for (peer, fd) in fds.into_iter().enumerate() {
                match (fd, own.take_if(|_| peer == rank)) {
                    (_, Some(own)) => mappings.push(own),
                    (Some(fd), None) => mappings.push(import(context, rank, peer, &fd, bytes)?),
                    (None, None) => return Err(unreadable(rank, peer)),
                }
            }
            Ok(mappings)
        });
        let (mappings, _) = agree(group, "symmetric heap: mapping", mapped, |_| Vec::new())?;
        Ok(Self { bytes, rank, mappings })
    }

    /// Bytes on every rank: those asked for, in whole pages.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of this rank's memory.
    pub fn own(&self) -> u64 {
        self.peer(self.rank)
    }

    /// The address at which this rank's kernels reach the memory of `rank`, a rank of the group; this rank's own for
    /// itself. 0 for a rank that is none.
    pub fn peer(&self, rank: usize) -> u64 {
        debug_assert!(rank < self.mappings.len(), "rank {rank} of {}", self.mappings.len());
        self.mappings.get(rank).map_or(0, Mapping::address)
    }
}

fn import(
    context: &Context,
    rank: usize,
    peer: usize,
    fd: &OwnedFd,
    bytes: usize,
) -> Result<Mapping, BuildError> {
    let mapped = Physical::import(context, fd.as_fd(), bytes).and_then(Physical::map);
    mapped.map_err(|error| match error {
        BuildError::Cuda(error) => match *error {
            CudaError::Call(error) => BuildError::PeerMemory { rank, peer, error: Box::new(error) },
            other => other.into(),
        },
        other => other,
    })
}

fn word(bytes: usize) -> Vec<u8> {
    (bytes as u64).to_le_bytes().to_vec()
}

/// Whether all ranks gave the same number; every rank comes to the same verdict.
fn same(rank: usize, what: &'static str, given: &[Vec<u8>]) -> Result<(), BuildError> {
    let mut values = Vec::with_capacity(given.len());
    for (peer, bytes) in given.iter().enumerate() {
        let word: Option<[u8; 8]> = bytes.as_slice().try_into().ok();
        values.push(word.map(u64::from_le_bytes).ok_or_else(|| unreadable(rank, peer))?);
    }
    let Some(first) = values.first() else { return Ok(()) };
    match values.iter().position(|value| value != first) {
        Some(b) => {
            let (a_value, b_value) = (first.to_string(), values[b].to_string());
            Err(BuildError::Disagree { what, a: 0, a_value, b, b_value })
        }
        None => Ok(()),
    }
}

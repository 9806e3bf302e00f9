//! A Unix stream socket between every two ranks of a group on one host: it carries the descriptors of shared device
//! memory, and its hang-up tells of a rank's death within a fraction of a millisecond (a pidfd takes some 70 ms, when
//! the dead process is torn down: results/h200-x2/NOTES.md, e).
#![forbid(unsafe_code)]

mod address;
mod rights;
mod wait;
mod watch;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use expertrail_group::{CancelToken, Group, JobToken, Peer};
use rustix::event::{PollFd, PollFlags};

use crate::agreement::{agree, unreadable};
use crate::build_error::BuildError;

use address::{Address, Job, Listener};
use rights::{Received, receive, send};
use wait::Wait;

pub use watch::{Ended, MeshWatch};

/// Names a folder for sockets, instead of abstract names.
const SOCKET_DIR: &str = "EXPERTRAIL_SOCKET_DIR";
/// The byte that a descriptor travels with.
const DESCRIPTOR: u8 = b'F';
/// What a rank says when it leaves on purpose.
const GOODBYE: u8 = b'B';

/// The sockets of one rank. Dropping it says goodbye, except while the thread panics.
#[derive(Debug)]
pub struct Mesh {
    own: Peer,
    deadline: Duration,
    cancel: CancelToken,
    /// By rank; this rank itself has none.
    sockets: Vec<Option<OwnedFd>>,
}

impl Mesh {
    /// Connects all ranks of `group`, which run on one host; they may be threads of one process. `deadline` is for
    /// this and for each [`exchange`](Self::exchange); the group's own is for its calls.
    ///
    /// Sockets have abstract names, or lie in the folder `EXPERTRAIL_SOCKET_DIR` while ranks connect.
    ///
    /// # Errors
    /// On every rank, when one cannot listen, connect or accept: the rank at fault gets its own error, the others
    /// [`BuildError::PeerBuild`].
    pub fn connect(group: &Group, deadline: Duration) -> Result<Self, BuildError> {
        let folder = std::env::var_os(SOCKET_DIR).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self::connect_in(group, deadline, folder.as_deref())
    }

    /// As [`connect`](Self::connect), with the folder given, or abstract names.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_in(group: &Group, deadline: Duration, folder: Option<&Path>) -> Result<Self, BuildError> {
        let (rank, size) = (group.rank(), group.size());
        let own = group.peer(rank).unwrap_or_else(|| Peer::unknown(rank));
        let cancel = group.cancel_token().clone();
        let mut mesh = Self { own, deadline, cancel, sockets: (0..size).map(|_| None).collect() };
        if size == 1 {
            return Ok(mesh);
        }
        let job = shared_job(group)?;

        let listener = Listener::open(rank, size, &job, folder);
        let (listener, given) =
            agree(group, "socket mesh: listen", listener, |listener| listener.address().encode())?;
        let mut addresses = Vec::with_capacity(size);
        for (peer, bytes) in given.iter().enumerate() {
            addresses.push(Address::decode(bytes).ok_or_else(|| unreadable(rank, peer))?);
        }

        // A connection is complete before it is accepted: once all ranks say that they connected to those below them,
        // everything to accept is there, and no rank waits for one that could not connect.
        let wait = mesh.wait("connecting sockets");
        let dialled: Result<Vec<OwnedFd>, BuildError> =
            (0..rank).map(|peer| addresses[peer].dial(peer, folder, &job.hello(rank), &wait)).collect();
        let (dialled, _) = agree(group, "socket mesh: connect", dialled, |_| Vec::new())?;

        let accepted = listener.accept(rank + 1..size, &job, &wait);
        let (accepted, _) = agree(group, "socket mesh: accept", accepted, |_| Vec::new())?;
        for (peer, socket) in (0..rank).zip(dialled).chain((rank + 1..size).zip(accepted)) {
            mesh.sockets[peer] = Some(socket);
        }
        Ok(mesh)
    }

    /// Sends a copy of `fd` to every other rank and receives one from each, in order of rank with nothing for this
    /// rank itself. All ranks call it, as often as each other.
    ///
    /// # Errors
    /// A rank that ended, the deadline with the ranks not heard of, or a cancelled wait. The mesh is of no use then.
    pub fn exchange(&self, fd: BorrowedFd<'_>) -> Result<Vec<Option<OwnedFd>>, BuildError> {
        const WHAT: &str = "exchange of descriptors";
        let wait = self.wait(WHAT);
        let rank = self.own.rank;
        let mut got: Vec<Option<OwnedFd>> = self.sockets.iter().map(|_| None).collect();
        let mut unsent: Vec<usize> = self.peers().map(|(peer, _)| peer).collect();
        loop {
            // Who cancels is told so, not that a peer ended, which it may have done because of that.
            wait.go_on()?;
            let mut ended = None;
            let mut fds = Vec::new();
            for (peer, socket) in self.peers() {
                let mut events = PollFlags::empty();
                if unsent.contains(&peer) {
                    if send(socket, DESCRIPTOR, fd).map_err(|error| failed(rank, peer, WHAT, error))? {
                        unsent.retain(|other| *other != peer);
                    } else {
                        events |= PollFlags::OUT;
                    }
                }
                if got[peer].is_none() {
                    match receive(socket).map_err(|error| failed(rank, peer, WHAT, error))? {
                        Received::Nothing => events |= PollFlags::IN,
                        Received::Descriptor(fd) => got[peer] = Some(fd),
                        Received::Byte(GOODBYE) | Received::End => ended = Some(peer),
                        Received::Truncated => {
                            let what = format!("receiving the descriptor of rank {peer}");
                            let reason = "the process may open no more files: raise `ulimit -n`";
                            return Err(BuildError::system(rank, what, reason));
                        }
                        Received::Byte(_) => {
                            let found = "a byte without a descriptor";
                            return Err(BuildError::Protocol { rank, peer, what: WHAT, found });
                        }
                    }
                }
                if !events.is_empty() {
                    fds.push(PollFd::from_borrowed_fd(socket, events));
                }
            }
            if let Some(peer) = ended {
                return Err(BuildError::PeerEnded { rank, peer, what: WHAT });
            }
            if fds.is_empty() {
                return Ok(got);
            }
            wait.poll(&mut fds, || {
                self.peers().map(|(peer, _)| peer).filter(|peer| got[*peer].is_none()).collect()
            })?;
        }
    }

    /// Watches the other ranks from a thread that calls `callback` once for each that ends, with how it ended. A rank
    /// that ended before is told of at once.
    ///
    /// # Errors
    /// When the system gives no thread or descriptor.
    pub fn watch(
        mut self,
        callback: impl FnMut(usize, Ended) + Send + 'static,
    ) -> Result<MeshWatch, BuildError> {
        let sockets = std::mem::take(&mut self.sockets);
        let sockets = sockets.into_iter().enumerate().filter_map(|(peer, socket)| Some((peer, socket?)));
        MeshWatch::start(self.own.rank, sockets.collect(), callback)
    }

    fn peers(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        let sockets = self.sockets.iter().enumerate();
        sockets.filter_map(|(peer, socket)| Some((peer, socket.as_ref()?.as_fd())))
    }

    fn wait(&self, what: &'static str) -> Wait<'_> {
        Wait::new(&self.own, what, self.deadline, &self.cancel)
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        watch::say_goodbye(self.peers().map(|(_, socket)| socket));
    }
}

/// The names and the secret that rank 0 drew.
fn shared_job(group: &Group) -> Result<Job, BuildError> {
    let drawn = [*JobToken::random().as_bytes(), *JobToken::random().as_bytes()].concat();
    let shared = group.broadcast("socket mesh: names", 0, &drawn)?;
    Job::from_bytes(&shared).ok_or_else(|| unreadable(group.rank(), 0))
}

/// A socket that fails is closed at the other end; anything else is the system's doing.
fn failed(rank: usize, peer: usize, what: &'static str, error: rustix::io::Errno) -> BuildError {
    use rustix::io::Errno;
    match error {
        Errno::PIPE | Errno::CONNRESET => BuildError::PeerEnded { rank, peer, what },
        error => BuildError::system(rank, format!("{what} with rank {peer}"), std::io::Error::from(error)),
    }
}

//! Tells when a rank at the other end of a socket ends, and whether it meant to.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use expertrail_group::poll::wait;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::GOODBYE;
use crate::build_error::BuildError;

/// How a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// Its socket hung up without a word: the process died, or a thread of it panicked.
    Died,
    /// It said goodbye.
    Left,
}

type Sockets = Arc<Vec<(usize, OwnedFd)>>;

/// A thread that watches the sockets of a mesh, from [`Mesh::watch`](super::Mesh::watch) to its drop. Dropping it
/// says goodbye, except while the thread panics.
///
/// A child process forked without `exec` holds the sockets too, and then a death shows only when the child has ended.
#[derive(Debug)]
pub struct MeshWatch {
    sockets: Sockets,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl MeshWatch {
    pub(super) fn start(
        rank: usize,
        sockets: Vec<(usize, OwnedFd)>,
        callback: impl FnMut(usize, Ended) + Send + 'static,
    ) -> Result<Self, BuildError> {
        let system = |error: std::io::Error| BuildError::system(rank, "watching the other ranks", error);
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| system(error.into()))?;
        let stopped = stop.try_clone().map_err(system)?;
        let sockets: Sockets = Arc::new(sockets);
        let watched = Arc::clone(&sockets);
        let thread = std::thread::Builder::new()
            .name("expertrail-mesh".to_owned())
            .spawn(move || watch(&watched, &stopped, callback))
            .map_err(system)?;
        Ok(Self { sockets, stop, thread: Some(thread) })
    }
}

fn watch(sockets: &Sockets, stop: &OwnedFd, mut callback: impl FnMut(usize, Ended)) {
    let mut there: Vec<&(usize, OwnedFd)> = sockets.iter().collect();
    loop {
        let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
        fds.extend(there.iter().map(|(_, socket)| PollFd::new(socket, PollFlags::IN)));
        wait(&mut fds, None);
        if !fds[0].revents().is_empty() {
            return;
        }
        let ready: Vec<bool> = fds[1..].iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        there.retain(|(peer, socket)| {
            let end = if ready.next().unwrap_or(false) { ended(socket.as_fd()) } else { None };
            if let Some(end) = end {
                callback(*peer, end);
            }
            end.is_none()
        });
    }
}

/// How the other end of `socket` ended, if it did. What came before the end is read first, so a goodbye is not lost.
fn ended(socket: BorrowedFd<'_>) -> Option<Ended> {
    let mut bytes = [0; 64];
    loop {
        match recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Some(Ended::Died),
            Ok((count, _)) if bytes[..count].contains(&GOODBYE) => return Some(Ended::Left),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return None,
            Err(_) => return Some(Ended::Died),
        }
    }
}

/// Tells every peer that this rank leaves on purpose. A panic is no purpose.
pub(super) fn say_goodbye<'a>(sockets: impl Iterator<Item = BorrowedFd<'a>>) {
    if std::thread::panicking() {
        return;
    }
    for socket in sockets {
        // A peer that is gone needs no word.
        let _ = send(socket, &[GOODBYE], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }
}

impl Drop for MeshWatch {
    fn drop(&mut self) {
        say_goodbye(self.sockets.iter().map(|(_, socket)| socket.as_fd()));
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // Dropped from within its own callback, it cannot wait for itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

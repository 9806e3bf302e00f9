//! Tells that a process of this host has ended.

use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use thiserror::Error;

use crate::poll::wait;

/// Why processes cannot be watched.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatchError {
    /// The kernel is too old, or a sandbox forbids it.
    #[error(
        "this kernel does not let processes be watched (pidfd_open: {reason}); Linux 5.3 or newer is needed, \
         and a container's seccomp profile must allow pidfd_open. Deaths are then noticed by the group's \
         connections only"
    )]
    Unsupported {
        /// What the system said.
        reason: String,
    },
    /// That process may not be watched.
    #[error("rank {rank} (pid {pid}) cannot be watched: {reason}")]
    Refused {
        /// The rank.
        rank: usize,
        /// Its process id.
        pid: u32,
        /// What the system said.
        reason: String,
    },
    /// A system resource ran out.
    #[error("cannot watch processes: {reason}")]
    System {
        /// What the system said.
        reason: String,
    },
}

/// A thread that watches processes of this host, from its creation to its drop.
#[derive(Debug)]
pub struct DeathWatch {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl DeathWatch {
    /// Calls `callback` once with the rank of each process that ends, within milliseconds, from a thread of
    /// its own. A process that has already ended is reported at once.
    ///
    /// Process ids must come from this host and this process-id namespace.
    ///
    /// # Errors
    /// When the kernel cannot watch processes, or may not watch one of these.
    pub fn new(
        processes: Vec<(usize, u32)>,
        mut callback: impl FnMut(usize) + Send + 'static,
    ) -> Result<Self, WatchError> {
        let system = |error: std::io::Error| WatchError::System { reason: error.to_string() };
        let mut watched = Vec::with_capacity(processes.len());
        let mut gone = Vec::new();
        for (rank, pid) in processes {
            let Some(handle) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
                return Err(WatchError::Refused { rank, pid, reason: "that is no process id".to_owned() });
            };
            match pidfd_open(handle, PidfdFlags::empty()) {
                Ok(fd) => watched.push((rank, fd)),
                Err(Errno::SRCH) => gone.push(rank),
                // EPERM comes from a container's seccomp profile that does not know the call: the kernel's
                // own pidfd_open never gives it.
                Err(error @ (Errno::NOSYS | Errno::PERM | Errno::OPNOTSUPP)) => {
                    return Err(WatchError::Unsupported { reason: std::io::Error::from(error).to_string() });
                }
                Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
                    return Err(system(error.into()));
                }
                Err(error) => {
                    return Err(WatchError::Refused {
                        rank,
                        pid,
                        reason: std::io::Error::from(error).to_string(),
                    });
                }
            }
        }
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| system(error.into()))?;
        let stopped = stop.try_clone().map_err(system)?;
        let thread = std::thread::Builder::new()
            .name("expertrail-deaths".to_owned())
            .spawn(move || {
                gone.into_iter().for_each(&mut callback);
                watch(watched, &stopped, callback);
            })
            .map_err(system)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

fn watch(mut watched: Vec<(usize, OwnedFd)>, stop: &OwnedFd, mut callback: impl FnMut(usize)) {
    loop {
        let mut fds: Vec<PollFd<'_>> = vec![PollFd::new(stop, PollFlags::IN)];
        fds.extend(watched.iter().map(|(_, fd)| PollFd::new(fd, PollFlags::IN)));
        wait(&mut fds, None);
        if !fds[0].revents().is_empty() {
            return;
        }
        let ended: Vec<bool> = fds[1..].iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let mut ended = ended.into_iter();
        watched.retain(|(rank, _)| {
            let over = ended.next().unwrap_or(false);
            if over {
                callback(*rank);
            }
            !over
        });
    }
}

impl Drop for DeathWatch {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // Dropped from within its own callback, it cannot wait for itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    fn sleeper() -> std::process::Child {
        Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap()
    }

    #[test]
    fn a_death_is_told_once_and_fast() {
        let mut children = [sleeper(), sleeper()];
        let (tell, told) = channel();
        let pids = children.iter().enumerate().map(|(rank, child)| (rank, child.id())).collect();
        let watch = DeathWatch::new(pids, move |rank| tell.send((rank, Instant::now())).unwrap()).unwrap();
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
        let killed = Instant::now();
        children[1].kill().unwrap();
        let (rank, at) = told.recv_timeout(Duration::from_secs(2)).unwrap();
        assert_eq!(rank, 1);
        assert!(at - killed < Duration::from_millis(500), "{:?}", at - killed);
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
        let dropped = Instant::now();
        drop(watch);
        assert!(dropped.elapsed() < Duration::from_millis(500));
        for child in &mut children {
            let _ = child.kill();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_process_already_gone_is_dead() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let (tell, told) = channel();
        let _watch = DeathWatch::new(vec![(5, child.id())], move |rank| tell.send(rank).unwrap()).unwrap();
        assert_eq!(told.recv_timeout(Duration::from_secs(2)), Ok(5));
    }

    #[test]
    fn nonsense_is_a_typed_error() {
        assert!(matches!(
            DeathWatch::new(vec![(1, 0)], |_| {}),
            Err(WatchError::Refused { rank: 1, pid: 0, .. })
        ));
        assert!(matches!(DeathWatch::new(vec![(1, u32::MAX)], |_| {}), Err(WatchError::Refused { .. })));
    }
}

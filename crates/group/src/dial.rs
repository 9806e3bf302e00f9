//! A rank's way to rank 0: connect, greet, be let in; again until it works or time is up.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

use crate::cancel::CancelToken;
use crate::conn::Conn;
use crate::error::{GroupError, Result};
use crate::identity::Endpoint;
use crate::poll::{SLICE, wait};
use crate::wire::{Answer, Hello};

/// How long one address may take to answer before the next is tried.
const ATTEMPT: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A search for rank 0.
pub(crate) struct Dial<'a> {
    pub(crate) root: &'a Endpoint,
    pub(crate) hello: Hello,
    pub(crate) started: Instant,
    pub(crate) until: Instant,
    pub(crate) cancel: &'a CancelToken,
}

/// Why an attempt gave nothing.
enum Miss {
    /// Worth another try.
    Again(String),
    /// Not.
    Final(GroupError),
}

impl Dial<'_> {
    /// Connects and greets until rank 0 lets us in.
    pub(crate) fn greet(mut self) -> Result<Conn> {
        let mut pause = FIRST_PAUSE;
        loop {
            let last = match self.attempt() {
                Ok(conn) => return Ok(conn),
                Err(Miss::Final(error)) => return Err(error),
                Err(Miss::Again(last)) => last,
            };
            if Instant::now() + pause >= self.until {
                return Err(GroupError::Unreachable {
                    rank: self.hello.rank,
                    addr: self.root.to_string(),
                    waited: self.until - self.started,
                    last,
                });
            }
            // In slices, so that a cancel is noticed.
            let wake = Instant::now() + pause;
            while Instant::now() < wake {
                self.check_cancel().map_err(|miss| match miss {
                    Miss::Final(error) => error,
                    Miss::Again(what) => GroupError::Argument(what),
                })?;
                std::thread::sleep(SLICE.min(wake.saturating_duration_since(Instant::now())));
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// All addresses once. The name is resolved anew each time: in a starting cluster it may appear late.
    fn attempt(&mut self) -> Result<Conn, Miss> {
        self.check_cancel()?;
        let addresses = (self.root.host.as_str(), self.root.port)
            .to_socket_addrs()
            .map_err(|error| Miss::Again(format!("the name {} does not resolve: {error}", self.root.host)))?;
        let mut last = Miss::Again(format!("the name {} has no address", self.root.host));
        for address in addresses {
            last = match self.connect(address).and_then(|fd| self.introduce(fd)) {
                Ok(conn) => return Ok(conn),
                Err(Miss::Again(what)) => Miss::Again(what),
                Err(miss) => return Err(miss),
            };
        }
        Err(last)
    }

    fn connect(&self, address: SocketAddr) -> Result<OwnedFd, Miss> {
        let again =
            |error: Errno| Miss::Again(format!("connecting to {address}: {}", std::io::Error::from(error)));
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(family, SocketType::STREAM, flags, None).map_err(again)?;
        match connect(&fd, &address) {
            Ok(()) => {}
            Err(Errno::INPROGRESS | Errno::INTR) => {
                let until = self.until.min(Instant::now() + ATTEMPT);
                loop {
                    let mut fds = [PollFd::new(&fd, PollFlags::OUT)];
                    let left = until.saturating_duration_since(Instant::now());
                    wait(&mut fds, Some(left.min(SLICE)));
                    if !fds[0].revents().is_empty() {
                        break;
                    }
                    self.check_cancel()?;
                    if left.is_zero() {
                        return Err(Miss::Again(format!("connecting to {address}: no answer")));
                    }
                }
                sockopt::socket_error(&fd).and_then(|state| state).map_err(again)?;
            }
            Err(error) => return Err(again(error)),
        }
        // With nobody listening on a port of the ephemeral range, the kernel may pick that very port for
        // our end and connect the socket to itself.
        let stream = std::net::TcpStream::from(fd);
        if stream.local_addr().ok() == Some(address) {
            return Err(Miss::Again(format!("connecting to {address}: nobody listens there")));
        }
        Ok(stream.into())
    }

    /// Says who we are and waits to be let in.
    fn introduce(&mut self, fd: OwnedFd) -> Result<Conn, Miss> {
        let addr = self.root.to_string();
        let mut conn = Conn::new(fd).map_err(|error| Miss::Again(error.to_string()))?;
        self.hello.patience = self.until.saturating_duration_since(Instant::now());
        conn.queue(self.hello.encode().into());
        loop {
            conn.flush();
            conn.fill();
            match conn.next_answer() {
                Some(Answer::Accepted) => return Ok(conn),
                Some(Answer::Refused(reason)) => {
                    return Err(Miss::Final(GroupError::Refused { rank: self.hello.rank, addr, reason }));
                }
                Some(Answer::Later(reason)) => return Err(Miss::Again(format!("{addr} answered: {reason}"))),
                Some(Answer::Stranger(found)) => {
                    let found = format!("{found:?}");
                    return Err(Miss::Final(GroupError::NotRoot { rank: self.hello.rank, addr, found }));
                }
                None => {}
            }
            if let Some(end) = conn.ended() {
                return Err(Miss::Again(format!("{addr} took the connection, then: {end}")));
            }
            self.check_cancel()?;
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Miss::Again(format!(
                    "{addr} took the connection but said nothing; rank 0 may be stuck before it joins"
                )));
            }
            wait(&mut [conn.poll_fd()], Some(left.min(SLICE)));
        }
    }

    fn check_cancel(&self) -> Result<(), Miss> {
        if self.cancel.is_cancelled() {
            let host = Some(self.hello.claim.host.clone());
            let peer = crate::error::Peer { rank: self.hello.rank, host, pid: Some(self.hello.pid) };
            return Err(Miss::Final(GroupError::Cancelled { peer, phase: "joining".to_owned() }));
        }
        Ok(())
    }
}

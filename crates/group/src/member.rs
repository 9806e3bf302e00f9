//! A rank's end of its connection to the coordinator.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::cancel::CancelToken;
use crate::conn::Conn;
use crate::error::{GroupError, Peer, Result};
use crate::poll::{SLICE, wait};
use crate::wire::{self, Call, Cause, Entry, Frame, MAX_GATHERED};

/// How much longer than the deadline a rank waits itself: the coordinator knows who is missing, so its
/// word is worth waiting for.
const GRACE: Duration = Duration::from_millis(1500);
/// How long the last words of a rank may take to leave.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// The connection, and how far the calls on it have come.
pub(crate) struct Link {
    conn: Conn,
    me: Peer,
    root: Peer,
    sequence: u64,
    root_left: bool,
}

/// A failure that another thread of this process left for the one that waits.
pub(crate) type Abort = Mutex<Option<Cause>>;

/// What a wait is for.
pub(crate) struct Wait<'a> {
    /// The call, for messages.
    pub(crate) phase: &'a str,
    /// When the coordinator should have spoken.
    pub(crate) deadline: Duration,
    pub(crate) cancel: &'a CancelToken,
    pub(crate) abort: &'a Abort,
}

impl Link {
    pub(crate) fn new(conn: Conn, me: Peer, root: Peer) -> Self {
        Self { conn, me, root, sequence: 0, root_left: false }
    }

    /// Waits until all ranks have joined.
    pub(crate) fn welcome(&mut self, wait: &Wait<'_>) -> Result<Vec<Entry>> {
        match self.next(wait)? {
            Frame::Welcome(entries) => {
                if let Some(entry) = entries.first() {
                    self.root.host = Some(entry.host.clone());
                    self.root.pid = Some(entry.pid);
                }
                Ok(entries)
            }
            _ => Err(self.out_of_turn()),
        }
    }

    /// Runs one collective: everybody's entry out, the result in.
    pub(crate) fn call(&mut self, call: &Call, body: &[u8], wait: &Wait<'_>) -> Result<Vec<u8>> {
        let sequence = self.sequence;
        self.conn.queue(wire::enter(call, sequence, wait.deadline, body).into());
        match self.next(wait)? {
            Frame::Done { sequence: done, body } if done == sequence => {
                self.sequence += 1;
                Ok(body)
            }
            _ => Err(self.out_of_turn()),
        }
    }

    /// Waits for the next frame that is no failure.
    fn next(&mut self, waiting: &Wait<'_>) -> Result<Frame> {
        let started = Instant::now();
        // A deadline beyond the clock's range is none.
        let until = started.checked_add(waiting.deadline).and_then(|at| at.checked_add(GRACE));
        loop {
            self.check_abort(waiting.abort, waiting.phase)?;
            self.conn.flush();
            self.conn.fill();
            if let Some(frame) = self.frame(waiting.phase)? {
                return Ok(frame);
            }
            self.check_end(waiting.phase)?;
            if waiting.cancel.is_cancelled() {
                let cause = Cause::Cancelled(self.me.clone());
                self.tell_failure(&cause);
                return Err(cause.into_error(waiting.phase));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(GroupError::RootSilent {
                    peer: self.root.clone(),
                    call: waiting.phase.to_owned(),
                    waited: started.elapsed(),
                });
            }
            wait(&mut [self.conn.poll_fd()], Some(left.unwrap_or(SLICE).min(SLICE)));
        }
    }

    /// Looks without waiting whether the group has failed.
    pub(crate) fn check(&mut self, abort: &Abort) -> Result<()> {
        self.check_abort(abort, "")?;
        self.conn.fill();
        match self.frame("")? {
            Some(_) => Err(self.out_of_turn()),
            None => self.check_end(""),
        }
    }

    /// The next frame that is there, failures as errors.
    fn frame(&mut self, phase: &str) -> Result<Option<Frame>> {
        loop {
            let frame = self
                .conn
                .next_frame(MAX_GATHERED)
                .map_err(|what| GroupError::Protocol { peer: self.root.clone(), what })?;
            match frame {
                Some(Frame::Fail(cause)) => return Err(cause.into_error(phase)),
                Some(Frame::RootLeft) => self.root_left = true,
                other => return Ok(other),
            }
        }
    }

    fn check_abort(&mut self, abort: &Abort, phase: &str) -> Result<()> {
        let Some(cause) = abort.lock().unwrap_or_else(PoisonError::into_inner).take() else { return Ok(()) };
        self.tell_failure(&cause);
        Err(cause.into_error(phase))
    }

    fn check_end(&self, phase: &str) -> Result<()> {
        // Between calls nobody needs a rank that left.
        if self.root_left {
            return if phase.is_empty() {
                Ok(())
            } else {
                Err(GroupError::Left { peer: self.root.clone(), phase: phase.to_owned() })
            };
        }
        match self.conn.ended() {
            Some(_) => Err(GroupError::Died { peer: self.root.clone(), phase: phase.to_owned() }),
            None => Ok(()),
        }
    }

    /// Tells the others that this rank failed.
    pub(crate) fn tell_failure(&mut self, cause: &Cause) {
        self.conn.queue(wire::fail(cause).into());
        self.conn.drain_output(LAST_WORDS);
    }

    /// Leaves on purpose.
    pub(crate) fn leave(&mut self) {
        self.conn.queue(wire::bye().into());
        self.conn.drain_output(LAST_WORDS);
        self.conn.finish_sending();
        // Unread bytes would turn the close into a reset, and the farewell could be lost.
        self.conn.fill();
    }

    pub(crate) fn local_address(&self) -> Option<std::net::SocketAddr> {
        // The descriptor is duplicated so that the standard library's type may own what it closes.
        let fd = std::os::fd::AsFd::as_fd(&self.conn).try_clone_to_owned().ok()?;
        std::net::TcpStream::from(fd).local_addr().ok()
    }

    fn out_of_turn(&self) -> GroupError {
        GroupError::Protocol { peer: self.root.clone(), what: "a message out of turn".to_owned() }
    }
}

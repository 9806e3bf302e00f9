//! One wait on many sockets, with a name, a deadline and a culprit.

use std::time::{Duration, Instant};

use expertrail_group::{CancelToken, GroupError, Peer};
use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;

use crate::build_error::BuildError;

/// How rarely the cancel token is looked at.
const SLICE: Duration = Duration::from_millis(100);

pub(super) struct Wait<'a> {
    own: &'a Peer,
    what: &'static str,
    limit: Duration,
    since: Instant,
    cancel: &'a CancelToken,
}

impl<'a> Wait<'a> {
    /// A wait that starts now and lasts `limit` at most.
    pub(super) fn new(own: &'a Peer, what: &'static str, limit: Duration, cancel: &'a CancelToken) -> Self {
        Self { own, what, limit, since: Instant::now(), cancel }
    }

    pub(super) fn rank(&self) -> usize {
        self.own.rank
    }

    /// Waits for events on `fds`, or a moment. `missing` tells who is to blame once the time is over.
    pub(super) fn poll(
        &self,
        fds: &mut [PollFd<'_>],
        missing: impl FnOnce() -> Vec<usize>,
    ) -> Result<(), BuildError> {
        if self.cancel.is_cancelled() {
            return Err(GroupError::Cancelled { peer: self.own.clone(), phase: self.what.to_owned() }.into());
        }
        let left = self.limit.saturating_sub(self.since.elapsed());
        if left.is_zero() {
            let (rank, what) = (self.own.rank, self.what);
            return Err(BuildError::Deadline { rank, what, missing: missing(), waited: self.limit });
        }
        poll_for(fds, Some(left.min(SLICE)));
        Ok(())
    }
}

/// Waits for events or until `timeout`. It never fails for longer than one call: callers loop and look at their
/// sockets anyway.
pub(super) fn poll_for(fds: &mut [PollFd<'_>], timeout: Option<Duration>) {
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    match poll(fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        // Out of memory: do not spin on it.
        Err(_) => std::thread::sleep(Duration::from_millis(10)),
    }
}

//! One wait on many sockets, with a name, a deadline and a culprit.

use std::time::{Duration, Instant};

use expertrail_group::poll::{SLICE, wait};
use expertrail_group::{CancelToken, GroupError, Peer};
use rustix::event::PollFd;

use crate::build_error::BuildError;

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

    /// Whether nobody has cancelled the wait.
    ///
    /// # Errors
    /// It was cancelled.
    pub(super) fn go_on(&self) -> Result<(), BuildError> {
        if self.cancel.is_cancelled() {
            return Err(GroupError::Cancelled { peer: self.own.clone(), phase: self.what.to_owned() }.into());
        }
        Ok(())
    }

    /// Waits for events on `fds`, or a moment. `missing` tells who is to blame once the time is over.
    pub(super) fn poll(
        &self,
        fds: &mut [PollFd<'_>],
        missing: impl FnOnce() -> Vec<usize>,
    ) -> Result<(), BuildError> {
        self.go_on()?;
        let left = self.limit.saturating_sub(self.since.elapsed());
        if left.is_zero() {
            let (rank, what) = (self.own.rank, self.what);
            return Err(BuildError::Deadline { rank, what, missing: missing(), waited: self.limit });
        }
        wait(fds, Some(left.min(SLICE)));
        Ok(())
    }
}

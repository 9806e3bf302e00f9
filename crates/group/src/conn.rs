//! A connection that never blocks: bytes are queued, sent and collected as poll allows.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::poll::wait;
use crate::wire::{Answer, Frame, NeedMore, read_answer, read_frame};

/// How much one connection may bring before others get their turn.
const TURN: usize = 4 << 20;
/// Read first: most messages are small, and the buffer is cleared before each read.
const FIRST_CHUNK: usize = 8 << 10;
const CHUNK: usize = 128 << 10;

/// One end of a stream socket.
pub(crate) struct Conn {
    fd: OwnedFd,
    input: Vec<u8>,
    /// Bytes of `input` already taken.
    taken: usize,
    output: VecDeque<Arc<[u8]>>,
    /// Bytes of the first queued message already sent.
    sent: usize,
    ended: Option<String>,
}

impl Conn {
    /// Takes over a connected stream socket.
    pub(crate) fn new(fd: OwnedFd) -> std::io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        // Only meaningful on TCP; a socket pair refuses them and needs none. Keep-alive finds a host that
        // lost power: it sends no end of stream.
        let _ = sockopt::set_tcp_nodelay(&fd, true);
        let _ = sockopt::set_socket_keepalive(&fd, true);
        let _ = sockopt::set_tcp_keepidle(&fd, Duration::from_secs(5));
        let _ = sockopt::set_tcp_keepintvl(&fd, Duration::from_secs(2));
        let _ = sockopt::set_tcp_keepcnt(&fd, 5);
        Ok(Self { fd, input: Vec::new(), taken: 0, output: VecDeque::new(), sent: 0, ended: None })
    }

    /// Queues a message; [`flush`](Self::flush) sends it.
    pub(crate) fn queue(&mut self, bytes: Arc<[u8]>) {
        if self.ended.is_none() && !bytes.is_empty() {
            self.output.push_back(bytes);
        }
    }

    /// Whether something waits to be sent.
    pub(crate) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// How the stream ended, once all that came before was read.
    pub(crate) fn ended(&self) -> Option<&str> {
        self.ended.as_deref()
    }

    /// Bytes that came and were not taken.
    pub(crate) fn input(&self) -> &[u8] {
        &self.input[self.taken..]
    }

    /// Marks bytes at the front as taken.
    pub(crate) fn take(&mut self, count: usize) {
        self.taken += count;
        if self.taken >= self.input.len() {
            self.input.clear();
            self.taken = 0;
        } else if self.taken > TURN {
            self.input.drain(..self.taken);
            self.taken = 0;
        }
    }

    /// What to poll for.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        let out = if self.has_output() { PollFlags::OUT } else { PollFlags::empty() };
        // An ended stream would be reported ready for ever.
        let input = if self.ended.is_none() { PollFlags::IN } else { PollFlags::empty() };
        PollFd::new(&self.fd, input | out)
    }

    /// Sends what the socket takes now.
    pub(crate) fn flush(&mut self) {
        while let Some(front) = self.output.front() {
            match send(&self.fd, &front[self.sent..], SendFlags::NOSIGNAL) {
                Ok(count) => {
                    self.sent += count;
                    if self.sent == front.len() {
                        self.output.pop_front();
                        self.sent = 0;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    // The reader finds out why: a peer's last words may still be in the receive queue.
                    self.output.clear();
                    self.sent = 0;
                    return;
                }
            }
        }
    }

    /// Collects what has come, up to one turn.
    pub(crate) fn fill(&mut self) {
        let mut came = 0;
        while self.ended.is_none() && came < TURN {
            let old = self.input.len();
            self.input.resize(old + if came == 0 { FIRST_CHUNK } else { CHUNK }, 0);
            let result = recv(&self.fd, &mut self.input[old..], RecvFlags::empty());
            let count = match result {
                Ok((_, count)) => count,
                Err(_) => 0,
            };
            self.input.truncate(old + count);
            came += count;
            match result {
                Ok((_, 0)) => self.ended = Some("the connection was closed".to_owned()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => self.ended = Some(std::io::Error::from(error).to_string()),
            }
        }
    }

    /// The next whole frame, or what makes the bytes no frame.
    pub(crate) fn next_frame(&mut self, limit: usize) -> Result<Option<Frame>, String> {
        let Some((frame, count)) = read_frame(self.input(), limit)? else { return Ok(None) };
        self.take(count);
        Ok(Some(frame))
    }

    /// The answer to our greeting, once it is there.
    pub(crate) fn next_answer(&mut self) -> Option<Answer> {
        match read_answer(self.input()) {
            // Nothing yet reads as a prefix of everything.
            Ok(_) if self.input().is_empty() => None,
            Ok((answer, count)) => {
                self.take(count);
                Some(answer)
            }
            Err(NeedMore) => None,
        }
    }

    /// Sends what is queued, for at most `patience`.
    pub(crate) fn drain_output(&mut self, patience: Duration) {
        let until = Instant::now() + patience;
        loop {
            self.flush();
            let left = until.saturating_duration_since(Instant::now());
            if !self.has_output() || left.is_zero() {
                return;
            }
            let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
            wait(&mut fds, Some(left));
            if fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
                self.flush();
                return;
            }
        }
    }

    /// Says that nothing more will be sent, so that the peer reads our last words before the end.
    pub(crate) fn finish_sending(&self) {
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Write);
    }
}

impl AsFd for Conn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

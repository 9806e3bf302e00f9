//! Passes the ranks' lines on, whole and marked.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, ChildStderr, ChildStdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::{LaunchError, Prefix, system};
use crate::interrupt::Watch;
use crate::poll::wait;

/// A marked line longer than this is passed on in pieces, each marked; an unmarked one in pieces that join
/// up again.
const MAX_LINE: usize = 64 << 10;
/// How long an unmarked line that is passed on in pieces may keep the others waiting.
const HOLD: Duration = Duration::from_secs(2);
/// How long a pipe that somebody still holds open after all ranks ended may stay silent.
const QUIET: Duration = Duration::from_millis(200);

type Sinks = (Box<dyn Write + Send>, Box<dyn Write + Send>);

/// The ranks' numbers, in the order of the children, and whose lines are marked with them.
pub(super) struct Marked<'a> {
    pub(super) numbers: &'a [usize],
    pub(super) prefix: Prefix,
}

/// A thread that reads all ranks' pipes.
pub(super) struct Forwarder {
    done: Receiver<()>,
    ranks_ended: Arc<AtomicBool>,
}

impl Forwarder {
    pub(super) fn start(
        children: &mut [Child],
        marked: &Marked<'_>,
        sinks: Sinks,
    ) -> Result<Self, LaunchError> {
        let mut streams = Vec::with_capacity(2 * children.len());
        for (&rank, child) in marked.numbers.iter().zip(children.iter_mut()) {
            let mark = match marked.prefix {
                Prefix::None => None,
                Prefix::All | Prefix::AllBut(_) => Some(format!("[rank {rank}] ")),
            };
            let raw = marked.prefix == Prefix::AllBut(rank);
            if let Some(pipe) = child.stdout.take() {
                let mark = mark.clone().filter(|_| !raw);
                streams.push(Stream { pipe: Some(Pipe::Out(pipe)), lines: Lines::new(mark), sink: 0 });
            }
            if let Some(pipe) = child.stderr.take() {
                streams.push(Stream { pipe: Some(Pipe::Err(pipe)), lines: Lines::new(mark), sink: 1 });
            }
        }
        let ranks_ended = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ranks_ended);
        let (tell, done) = channel();
        std::thread::Builder::new()
            .name("expertrail-output".to_owned())
            .spawn(move || {
                forward(streams, [Sink::new(sinks.0), Sink::new(sinks.1)], &ended);
                let _ = tell.send(());
            })
            .map_err(system("starting a thread for the ranks' output"))?;
        Ok(Self { done, ranks_ended })
    }

    /// Waits until all that the ranks wrote is passed on; a slow reader of ours is waited for, unless a
    /// signal says that nobody cares.
    pub(super) fn finish(self, signals: &Watch) {
        self.ranks_ended.store(true, Ordering::Release);
        let before = signals.count();
        let given_up_at = (before > 0).then(|| Instant::now() + Duration::from_secs(1));
        while let Err(RecvTimeoutError::Timeout) = self.done.recv_timeout(Duration::from_millis(50)) {
            if signals.count() > before || given_up_at.is_some_and(|at| Instant::now() >= at) {
                return;
            }
        }
    }
}

enum Pipe {
    Out(ChildStdout),
    Err(ChildStderr),
}

impl Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Out(pipe) => pipe.read(buffer),
            Self::Err(pipe) => pipe.read(buffer),
        }
    }
}

impl AsFd for Pipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Out(pipe) => pipe.as_fd(),
            Self::Err(pipe) => pipe.as_fd(),
        }
    }
}

struct Stream {
    pipe: Option<Pipe>,
    lines: Lines,
    sink: usize,
}

/// Where lines go.
struct Sink {
    to: Box<dyn Write + Send>,
    /// The stream whose unfinished line was written, and when.
    held: Option<(usize, Instant)>,
    /// Nobody reads any more; the ranks are read on so that they do not block.
    broken: bool,
}

impl Sink {
    fn new(to: Box<dyn Write + Send>) -> Self {
        Self { to, held: None, broken: false }
    }

    fn put(&mut self, stream: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let foreign = self.held.is_some_and(|(holder, _)| holder != stream);
        let result = if foreign { self.to.write_all(b"\n") } else { Ok(()) };
        let result = result.and_then(|()| self.to.write_all(bytes)).and_then(|()| self.to.flush());
        self.broken |= result.is_err();
        self.held = if bytes.ends_with(b"\n") { None } else { Some((stream, Instant::now())) };
    }

    /// Whether this stream may write now, or the others' unfinished line comes first.
    fn open_to(&self, stream: usize) -> bool {
        self.held.is_none_or(|(holder, since)| holder == stream || since.elapsed() >= HOLD)
    }
}

fn forward(mut streams: Vec<Stream>, mut sinks: [Sink; 2], ranks_ended: &AtomicBool) {
    let mut buffer = vec![0; MAX_LINE];
    let mut quiet_since = None;
    while streams.iter().any(|stream| stream.pipe.is_some()) {
        let readable = poll_streams(&streams, &sinks);
        if readable.is_empty() {
            // All ranks have ended, yet a pipe is open: a process that got away holds it.
            let since = *quiet_since.get_or_insert_with(Instant::now);
            if ranks_ended.load(Ordering::Acquire) && since.elapsed() >= QUIET {
                break;
            }
        } else {
            quiet_since = None;
        }
        for at in readable {
            let Stream { pipe, lines, sink } = &mut streams[at];
            // An earlier stream of this round may have begun a line in pieces.
            if !sinks[*sink].open_to(at) {
                continue;
            }
            let count = match pipe.as_mut().map(|pipe| pipe.read(&mut buffer)) {
                Some(Ok(count)) => count,
                Some(Err(error)) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Some(Err(_)) | None => 0,
            };
            let text = if count == 0 { lines.end() } else { lines.push(&buffer[..count]) };
            if !sinks[*sink].broken {
                sinks[*sink].put(at, &text);
            }
            if count == 0 {
                *pipe = None;
                if let Some((holder, _)) = sinks[*sink].held
                    && holder == at
                {
                    // Nothing more comes: the others need not wait.
                    sinks[*sink].held =
                        Some((usize::MAX, Instant::now().checked_sub(HOLD).unwrap_or_else(Instant::now)));
                }
            }
        }
    }
    for (at, stream) in streams.iter_mut().enumerate() {
        let text = stream.lines.end();
        if !sinks[stream.sink].broken {
            sinks[stream.sink].put(at, &text);
        }
    }
}

/// The streams that can be read now.
fn poll_streams(streams: &[Stream], sinks: &[Sink; 2]) -> Vec<usize> {
    let mut fds = Vec::with_capacity(streams.len());
    let mut which = Vec::with_capacity(streams.len());
    for (at, stream) in streams.iter().enumerate() {
        if let Some(pipe) = &stream.pipe
            && sinks[stream.sink].open_to(at)
        {
            fds.push(PollFd::new(pipe, PollFlags::IN));
            which.push(at);
        }
    }
    wait(&mut fds, Some(Duration::from_millis(100)));
    fds.iter().zip(which).filter(|(fd, _)| !fd.revents().is_empty()).map(|(_, at)| at).collect()
}

/// Makes marked whole lines of a stream of bytes, holding at most one line.
struct Lines {
    mark: Option<String>,
    rest: Vec<u8>,
}

impl Lines {
    fn new(mark: Option<String>) -> Self {
        Self { mark, rest: Vec::new() }
    }

    /// What can be written after these bytes came.
    fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.rest.extend_from_slice(bytes);
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut out = Vec::with_capacity(whole + 64);
        let rest = self.rest.split_off(whole);
        for line in std::mem::replace(&mut self.rest, rest).split_inclusive(|byte| *byte == b'\n') {
            self.mark_line(line, &mut out);
        }
        if self.rest.len() >= MAX_LINE {
            let piece = std::mem::take(&mut self.rest);
            self.mark_line(&piece, &mut out);
            if self.mark.is_some() {
                out.push(b'\n');
            }
        }
        out
    }

    /// What is left when the stream ends.
    fn end(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        let rest = std::mem::take(&mut self.rest);
        if !rest.is_empty() {
            self.mark_line(&rest, &mut out);
            if self.mark.is_some() {
                out.push(b'\n');
            }
        }
        out
    }

    fn mark_line(&self, line: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(self.mark.as_deref().unwrap_or_default().as_bytes());
        out.extend_from_slice(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_are_marked_whole() {
        let mut lines = Lines::new(Some("[rank 3] ".into()));
        assert_eq!(lines.push(b"a\nb"), b"[rank 3] a\n");
        assert_eq!(lines.push(b"c\n\n"), b"[rank 3] bc\n[rank 3] \n");
        assert_eq!(lines.push(b"tail"), b"");
        assert_eq!(lines.end(), b"[rank 3] tail\n");
        assert_eq!(lines.end(), b"");
    }

    #[test]
    fn a_huge_line_is_cut_when_marked_and_whole_when_not() {
        let long = vec![b'x'; MAX_LINE];
        let mut marked = Lines::new(Some("> ".into()));
        assert_eq!(marked.push(&long).len(), MAX_LINE + 3);
        let mut plain = Lines::new(None);
        assert_eq!(plain.push(&long), long);
        assert_eq!(plain.push(b"y\n"), b"y\n");
    }

    proptest! {
        #[test]
        fn unmarked_bytes_pass_unchanged(pieces in proptest::collection::vec("[a\n]{0,9}", 0..20)) {
            let mut lines = Lines::new(None);
            let mut out: Vec<u8> = pieces.iter().flat_map(|piece| lines.push(piece.as_bytes())).collect();
            out.extend(lines.end());
            prop_assert_eq!(out, pieces.concat().into_bytes());
        }

        #[test]
        fn marked_lines_lose_nothing(pieces in proptest::collection::vec("[a\n]{0,9}", 0..20)) {
            let mut lines = Lines::new(Some("> ".into()));
            let mut out: Vec<u8> = pieces.iter().flat_map(|piece| lines.push(piece.as_bytes())).collect();
            out.extend(lines.end());
            let text = pieces.concat();
            let wanted = text.lines().flat_map(|line| ["> ", line, "\n"]).collect::<String>();
            prop_assert_eq!(String::from_utf8(out).unwrap(), wanted);
        }
    }
}

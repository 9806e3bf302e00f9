//! Lines of a file, of bounded length.

use std::io::{self, BufRead};

use memchr::{memchr, memrchr};

/// Most bytes of a line that are read at once.
pub(super) const LONGEST: usize = 64 << 10;
/// The same for a line that is a whole document of Kubernetes.
pub(super) const DOCUMENT: usize = 32 << 20;

/// Calls `each` with every line and its number, from 1: a longer one than [`LONGEST`] comes in pieces, cut at a `\r` where there is one. What
/// was read before an error counts. `cut` becomes the number of the first document that was longer than [`DOCUMENT`].
pub(super) fn each(
    input: &mut impl BufRead,
    cut: &mut Option<u64>,
    mut each: impl FnMut(&[u8], u64),
) -> io::Result<()> {
    let mut pending: Vec<u8> = Vec::new();
    let mut open = false;
    let mut number = 1_u64;
    loop {
        let buffer = match input.fill_buf() {
            Ok(buffer) => buffer,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                if open {
                    each(&pending, number);
                }
                return Err(error);
            }
        };
        if buffer.is_empty() {
            if open {
                each(&pending, number);
            }
            return Ok(());
        }
        let mut at = 0;
        while let Some(end) = memchr(b'\n', &buffer[at..]) {
            let line = &buffer[at..at + end];
            if open {
                extend(&mut pending, line, number, cut, &mut each);
                each(&pending, number);
                pending.clear();
                if pending.capacity() > 4 * LONGEST {
                    pending = Vec::new();
                }
                open = false;
            } else if line.len() <= LONGEST {
                each(line, number);
            } else {
                extend(&mut pending, line, number, cut, &mut each);
                each(&pending, number);
                pending.clear();
            }
            number += 1;
            at += end + 1;
        }
        if at < buffer.len() {
            extend(&mut pending, &buffer[at..], number, cut, &mut each);
            open = true;
        }
        let used = buffer.len();
        input.consume(used);
    }
}

/// Adds to a line that has not ended yet, and hands over what is too long to wait for its end.
fn extend(
    pending: &mut Vec<u8>,
    more: &[u8],
    number: u64,
    cut: &mut Option<u64>,
    each: &mut impl FnMut(&[u8], u64),
) {
    let bound = if pending.is_empty() { bound(more) } else { bound(pending) };
    if bound == DOCUMENT {
        let room = bound.saturating_sub(pending.len());
        pending.extend_from_slice(&more[..more.len().min(room)]);
        if more.len() > room {
            *cut = cut.or(Some(number));
        }
        return;
    }
    pending.extend_from_slice(more);
    let mut from = 0;
    while pending.len() - from > LONGEST {
        let piece = &pending[from..from + LONGEST];
        let end = memrchr(b'\r', piece).map_or(LONGEST, |at| at + 1);
        each(&pending[from..from + end], number);
        from += end;
    }
    pending.drain(..from);
}

/// How much of a line that starts so is kept.
fn bound(start: &[u8]) -> usize {
    let head = &start[..start.len().min(4096)];
    let document = head.first() == Some(&b'{')
        && memchr::memmem::find(head, b"\"apiVersion\"").is_some()
        && memchr::memmem::find(head, b"\"kind\"").is_some();
    if document { DOCUMENT } else { LONGEST }
}

//! Descriptors over a socket (`SCM_RIGHTS`), each with one byte of its own, so that a message is never read in parts.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// What one read brought.
pub(super) enum Received {
    /// Nothing yet.
    Nothing,
    /// A descriptor, closed when this process executes another program.
    Descriptor(OwnedFd),
    /// A byte without one.
    Byte(u8),
    /// A descriptor came, but this process could not take it.
    Truncated,
    /// The peer has closed its end.
    End,
}

/// Sends `fd` with `byte`; `false` when the socket has no room.
pub(super) fn send(socket: BorrowedFd<'_>, byte: u8, fd: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::NOBUFS);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        return match sendmsg(socket, &[IoSlice::new(&[byte])], &mut control, flags) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(Errno::INTR) => continue,
            Err(error) => Err(error),
        };
    }
}

/// Reads the next byte with what came with it.
pub(super) fn receive(socket: BorrowedFd<'_>) -> rustix::io::Result<Received> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags) {
            Ok(message) => break message,
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    };
    if message.bytes == 0 {
        return Ok(Received::End);
    }
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok(match descriptor {
        Some(fd) => Received::Descriptor(fd),
        None if message.flags.contains(ReturnFlags::CTRUNC) => Received::Truncated,
        None => Received::Byte(byte[0]),
    })
}

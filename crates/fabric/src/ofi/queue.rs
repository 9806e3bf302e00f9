//! The completion queue.

use std::ffi::{c_char, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::ofi::ffi::{self, entry};
use crate::ofi::library::{Library, text};
use crate::ofi::object::Object;
use crate::wake::Wake;

/// Completions read at once.
pub(crate) const BATCH: usize = 64;
/// How long to sleep where the provider gives nothing to wait on: short against a message of 1 MiB, long against a poll.
const NAP: Duration = Duration::from_micros(50);

/// A queue and room to read it.
pub(crate) struct Queue {
    cq: Object<ffi::Cq>,
    /// Readable when something may have completed. The provider's, closed with the queue.
    descriptor: Option<i32>,
    /// The last wait ended early, and since then nothing was found: some providers' descriptors stay readable.
    woken: bool,
    idle: bool,
    entries: Box<[ffi::CqData; BATCH]>,
}

// SAFETY: the pointers in the entries are only compared, or are contexts of whoever has the queue.
unsafe impl Send for Queue {}

/// What a queue holds in place of a completion.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// One operation failed.
    Failed {
        context: *mut c_void,
        flags: u64,
        code: i32,
        /// The provider's words.
        reason: String,
    },
    /// A call failed.
    Broken { call: &'static str, code: i32 },
}

impl Queue {
    /// Opens one with room for `entries` completions, with a descriptor to wait on where the provider has that.
    ///
    /// # Errors
    /// The library's code.
    pub(crate) fn open(domain: &Object<ffi::Domain>, entries: usize) -> Result<Self, i32> {
        let with = |wait| {
            let mut attr = ffi::CqAttr {
                entries,
                flags: 0,
                format: ffi::CQ_FORMAT_DATA,
                wait,
                signaling_vector: 0,
                wait_condition: 0,
                wait_set: null_mut(),
            };
            // SAFETY: the domain is open, its table is the library's, and the queue is ours to close.
            unsafe {
                let open = domain.at().as_ref().and_then(|at| entry!(at.ops, ffi::DomainOps, cq_open));
                Object::open(|place| match open {
                    Some(open) => open(domain.at(), &raw mut attr, place, null_mut()),
                    None => -ffi::ENOSYS,
                })
            }
        };
        let cq = with(ffi::WAIT_FD).or_else(|_| with(ffi::WAIT_NONE))?;
        let mut descriptor = -1i32;
        // SAFETY: the command puts a descriptor into an int.
        let code = unsafe { cq.control(ffi::CONTROL_GETWAIT, (&raw mut descriptor).cast()) };
        let empty = ffi::CqData { context: null_mut(), flags: 0, len: 0, buffer: null_mut(), data: 0 };
        let descriptor = (code == 0 && descriptor >= 0).then_some(descriptor);
        Ok(Self { cq, descriptor, woken: false, idle: false, entries: Box::new([empty; BATCH]) })
    }

    pub(crate) fn object(&self) -> &Object<ffi::Cq> {
        &self.cq
    }

    pub(crate) fn close(&mut self) -> i32 {
        self.descriptor = None;
        self.cq.close()
    }

    /// An entry of the last [`Queue::read`].
    pub(crate) fn entry(&self, at: usize) -> ffi::CqData {
        self.entries[at]
    }

    /// Makes progress and takes up to `most` completions (at most [`BATCH`]); gives how many.
    ///
    /// # Errors
    /// A failed operation, or a failed call.
    pub(crate) fn read(&mut self, library: &Library, most: usize) -> Result<usize, Trouble> {
        let most = most.min(BATCH);
        // SAFETY: the queue is open, its table is the library's, and there is room for `most` entries of its format.
        let got = unsafe {
            match self.cq.at().as_ref().and_then(|at| entry!(at.ops, ffi::CqOps, read)) {
                Some(read) => read(self.cq.at(), self.entries.as_mut_ptr().cast(), most),
                None => -(ffi::ENOSYS as isize),
            }
        };
        self.idle = self.woken && got <= 0;
        self.woken = false;
        if got >= 0 {
            return Ok((got as usize).min(most));
        }
        match (-got) as i32 {
            ffi::EAGAIN => Ok(0),
            ffi::EAVAIL => match self.read_error(library) {
                Some(trouble) => Err(trouble),
                None => Ok(0),
            },
            code => Err(Trouble::Broken { call: "fi_cq_read", code }),
        }
    }

    fn read_error(&mut self, library: &Library) -> Option<Trouble> {
        let mut error = ffi::CqError {
            context: null_mut(),
            flags: 0,
            len: 0,
            buffer: null_mut(),
            data: 0,
            tag: 0,
            over: 0,
            error: 0,
            provider_error: 0,
            // No room of ours: the provider then points to its own.
            error_data: null_mut(),
            error_data_bytes: 0,
            spare: [0; 16],
        };
        // SAFETY: the queue is open and its table is the library's.
        unsafe {
            let ops = self.cq.at().as_ref()?.ops;
            let Some(readerr) = entry!(ops, ffi::CqOps, readerr) else {
                return Some(Trouble::Broken { call: "fi_cq_readerr", code: ffi::ENOSYS });
            };
            let got = readerr(self.cq.at(), &raw mut error, 0);
            if got < 0 && -got as i32 != ffi::EAGAIN {
                return Some(Trouble::Broken { call: "fi_cq_readerr", code: -got as i32 });
            }
            if got <= 0 {
                return None;
            }
            let mut reason = library.words(error.error);
            if let Some(strerror) = entry!(ops, ffi::CqOps, strerror) {
                let mut room = [0u8; 256];
                let at = room.as_mut_ptr().cast::<c_char>();
                let words =
                    text(strerror(self.cq.at(), error.provider_error, error.error_data, at, room.len() - 1));
                if !words.is_empty() && words != reason {
                    reason = format!("{reason}: {words}");
                }
            }
            Some(Trouble::Failed { context: error.context, flags: error.flags, code: error.error, reason })
        }
    }

    /// Sleeps until something may have completed, somebody rings `wake`, or `most` has passed.
    ///
    /// # Errors
    /// The call that failed, and its code.
    pub(crate) fn wait(
        &mut self,
        fabric: &Object<ffi::Fabric>,
        most: Duration,
        wake: Option<&Wake>,
    ) -> Result<(), (&'static str, i32)> {
        let sleep = |descriptor: Option<BorrowedFd<'_>>, most: Duration| match (wake, descriptor) {
            (Some(wake), _) => wake.sleep(descriptor, most).map(drop),
            (None, None) => {
                std::thread::sleep(most);
                Ok(())
            }
            (None, Some(descriptor)) => readable(descriptor, most),
        };
        let failed = |code| ("poll", code);
        let Some(descriptor) = self.descriptor else {
            return sleep(None, most.min(NAP)).map_err(failed);
        };
        if std::mem::take(&mut self.idle) {
            sleep(None, most.min(NAP)).map_err(failed)?;
        }
        self.woken = true;
        // Without this the provider may hold a completion that no longer makes the descriptor readable.
        // SAFETY: both objects are open and the table is the library's.
        let code = unsafe {
            let mut head = self.cq.head();
            match fabric.at().as_ref().and_then(|at| entry!(at.ops, ffi::FabricOps, trywait)) {
                Some(trywait) => trywait(fabric.at(), &raw mut head, 1),
                None => -ffi::ENOSYS,
            }
        };
        match -code {
            0 => {}
            ffi::EAGAIN => return Ok(()),
            ffi::ENOSYS => {
                return sleep(None, most.min(NAP)).map_err(failed);
            }
            code => return Err(("fi_trywait", code)),
        }
        // SAFETY: the descriptor stays open for as long as the queue.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        sleep(Some(descriptor), most).map_err(failed)
    }
}

/// Sleeps until `descriptor` is readable or `most` has passed.
///
/// # Errors
/// The number of a failed `poll`.
fn readable(descriptor: BorrowedFd<'_>, most: Duration) -> Result<(), i32> {
    let mut descriptors = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    match rustix::event::poll(&mut descriptors, Timespec::try_from(most).ok().as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.raw_os_error()),
    }
}

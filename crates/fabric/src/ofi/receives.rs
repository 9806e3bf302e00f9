//! Receives posted for providers where an immediate uses one up (`FI_RX_CQ_DATA`).

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::ofi::contexts::{Contexts, Operation, Returned};
use crate::ofi::ffi::{self, entry};
use crate::ofi::object::Object;
use crate::ofi::region;

/// Nobody writes to it: a write with an immediate lands where the write says. But not every provider takes no buffer.
const BYTES: usize = 64;

/// Posted receives. All name one buffer. Closing comes before the buffer is freed: the fields are in that order.
pub(crate) struct Receives {
    mr: Option<Object<ffi::Mr>>,
    contexts: Contexts,
    buffer: Box<[u8; BYTES]>,
    descriptor: *mut c_void,
    missing: usize,
}

// SAFETY: the descriptor is a handle of the provider's, used by whoever has the endpoint.
unsafe impl Send for Receives {}

impl Receives {
    /// Room for `count`, none posted yet; `local` when the provider wants local memory registered.
    ///
    /// # Errors
    /// The library's code.
    pub(crate) fn new(domain: &Object<ffi::Domain>, count: usize, local: bool) -> Result<Self, i32> {
        let mut buffer = Box::new([0; BYTES]);
        // Keys of regions count up from 1.
        let key = u64::from(u32::MAX);
        // SAFETY: the buffer does not move and is freed after the region.
        let mr = local
            .then(|| unsafe { region::host(domain, buffer.as_mut_ptr(), BYTES, ffi::RECV, key) })
            .transpose()?;
        // SAFETY: the region is open.
        let descriptor =
            mr.as_ref().and_then(|mr| unsafe { mr.at().as_ref() }).map_or(null_mut(), |mr| mr.descriptor);
        Ok(Self { mr, contexts: Contexts::new(count), buffer, descriptor, missing: count })
    }

    /// Whether some are to be posted again.
    pub(crate) fn is_short(&self) -> bool {
        self.missing > 0
    }

    /// Posts what is missing, as far as the provider takes it now.
    ///
    /// # Errors
    /// The library's code.
    pub(crate) fn post(&mut self, ep: &Object<ffi::Ep>) -> Result<(), i32> {
        while self.missing > 0 {
            let Some(place) = self.contexts.take(Operation { peer: 0, context: 0 }) else { return Ok(()) };
            let (buffer, context) = (self.buffer.as_mut_ptr().cast(), self.contexts.pointer(place));
            // SAFETY: the endpoint is open, its table is the library's, and buffer and context stay until it has closed.
            let code = unsafe {
                match ep.at().as_ref().and_then(|at| entry!(at.msg, ffi::MsgOps, recv)) {
                    Some(recv) => recv(ep.at(), buffer, BYTES, self.descriptor, ffi::ADDR_UNSPEC, context),
                    None => -(ffi::ENOSYS as isize),
                }
            };
            if code != 0 {
                self.contexts.give_back(place);
                let code = (-code) as i32;
                return if code == ffi::EAGAIN { Ok(()) } else { Err(code) };
            }
            self.missing -= 1;
        }
        Ok(())
    }

    /// Takes a completed receive back; whether `context` was one.
    pub(crate) fn give_back(&mut self, context: *const c_void) -> bool {
        let Some(place) = self.contexts.place(context) else { return false };
        if let Returned::Operation(_) = self.contexts.give_back(place) {
            self.missing += 1;
        }
        true
    }

    /// Closes the buffer's region; the library's code.
    pub(crate) fn close(&mut self) -> i32 {
        self.mr.as_mut().map_or(0, Object::close)
    }
}

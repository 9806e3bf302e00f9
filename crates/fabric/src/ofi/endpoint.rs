//! A reliable endpoint of libfabric as a [`Transport`].

use std::collections::VecDeque;
use std::ffi::{c_char, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{FabricError, Result};
use crate::ofi::OpenOptions;
use crate::ofi::choose::{Found, label};
use crate::ofi::contexts::{Contexts, Operation, Returned};
use crate::ofi::ffi::{self, entry};
use crate::ofi::library::Library;
use crate::ofi::object::Object;
use crate::ofi::offer::{Infos, address};
use crate::ofi::peers::{Peer, Peers, process_of};
use crate::ofi::queue::{BATCH, Queue, Trouble};
use crate::ofi::receives::Receives;
use crate::ofi::region::Region;
use crate::transport::{
    Addressing, Capabilities, Completion, Memory, Place, Posted, RegionId, RemoteRegion, Transport, Write,
};
use crate::wake::Wake;

/// Bytes before the provider's address in ours: its protocol and the format of its addresses.
const HEAD: usize = 8;

/// The endpoint and everything under it. The objects' order is that in which they must be closed.
pub(crate) struct Endpoint {
    ep: Object<ffi::Ep>,
    regions: Vec<Region>,
    receives: Option<Receives>,
    queue: Queue,
    av: Object<ffi::Av>,
    domain: Object<ffi::Domain>,
    fabric: Object<ffi::Fabric>,
    /// What the objects were opened with; some providers look at it again.
    info: Infos,
    library: Library,
    /// Lent to the provider: never freed unless the endpoint has closed.
    contexts: ManuallyDrop<Contexts>,
    capabilities: Capabilities,
    /// Provider and domain, for messages.
    name: String,
    peers: Peers,
    /// Failures found by looking at processes, still to be told.
    pending: VecDeque<Completion>,
    in_flight: usize,
    unreachable_after: Duration,
}

// SAFETY: all objects are of a domain of its own, opened for one thread at a time; `&mut self` sees to that.
unsafe impl Send for Endpoint {}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("name", &self.name)
            .field("library", &self.library)
            .field("regions", &self.regions.len())
            .field("peers", &self.peers.len())
            .field("in_flight", &self.in_flight)
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Opens what was chosen.
    ///
    /// # Errors
    /// The first call that failed, with the library's words.
    pub(crate) fn open(library: &Library, found: Found, options: &OpenOptions) -> Result<Self> {
        let Found { offer, info } = found;
        let name = label(&offer);
        let fail = |call: &'static str| {
            let (library, name) = (library.clone(), name.clone());
            move |code: i32| library.error(call, &name, code)
        };
        let at = info.head();
        // SAFETY: `at` is a description of this library's with all its parts; each object is opened by the table of the
        // one before it, and is ours to close.
        let (fabric, domain, av) = unsafe {
            let fabric: Object<ffi::Fabric> =
                Object::open(|place| library.fabric((*at).fabric, place)).map_err(fail("fi_fabric"))?;
            let open = fabric.at().as_ref().and_then(|at| entry!(at.ops, ffi::FabricOps, domain));
            let domain: Object<ffi::Domain> = Object::open(|place| match open {
                Some(open) => open(fabric.at(), at, place, null_mut()),
                None => -ffi::ENOSYS,
            })
            .map_err(fail("fi_domain"))?;
            let mut attr = ffi::AvAttr {
                // The provider's choice.
                kind: 0,
                rx_ctx_bits: 0,
                count: options.peers,
                ep_per_node: 0,
                name: std::ptr::null::<c_char>(),
                map_address: null_mut(),
                flags: 0,
            };
            let open = domain.at().as_ref().and_then(|at| entry!(at.ops, ffi::DomainOps, av_open));
            let av: Object<ffi::Av> = Object::open(|place| match open {
                Some(open) => open(domain.at(), &raw mut attr, place, null_mut()),
                None => -ffi::ENOSYS,
            })
            .map_err(fail("fi_av_open"))?;
            (fabric, domain, av)
        };
        let depth = options.queue_depth.min(offer.queue_depth.max(1)).max(1);
        let queue = Queue::open(&domain, depth + options.arrivals).map_err(fail("fi_cq_open"))?;
        // SAFETY: as above.
        let ep: Object<ffi::Ep> = unsafe {
            let open = domain.at().as_ref().and_then(|at| entry!(at.ops, ffi::DomainOps, endpoint));
            Object::open(|place| match open {
                Some(open) => open(domain.at(), at, place, null_mut()),
                None => -ffi::ENOSYS,
            })
        }
        .map_err(fail("fi_endpoint"))?;
        check(ep.bind(queue.object(), ffi::TRANSMIT | ffi::RECV)).map_err(fail("fi_ep_bind (queue)"))?;
        check(ep.bind(&av, 0)).map_err(fail("fi_ep_bind (addresses)"))?;
        if options.gpu && library.version() >= (1, 18) {
            forbid_cuda_calls(&ep);
        }
        // SAFETY: the command takes nothing.
        check(unsafe { ep.control(ffi::CONTROL_ENABLE, null_mut()) }).map_err(fail("fi_enable"))?;
        let receives = if offer.needs_receives {
            let local = offer.mr_mode.contains(&"local");
            Some(
                Receives::new(&domain, options.arrivals.min(rx_depth(&info)), local)
                    .map_err(fail("fi_mr_reg"))?,
            )
        } else {
            None
        };
        let capabilities = Capabilities {
            provider: offer.name.clone(),
            domain: offer.domain.clone(),
            library: library.name(),
            addressing: offer.addressing,
            max_message: offer.max_message,
            queue_depth: depth,
            gpu_memory: offer.gpu_memory,
            manual_progress: offer.progress != "auto",
            link_bits_per_second: offer.link_bits_per_second,
        };
        let mut endpoint = Self {
            ep,
            regions: Vec::new(),
            receives,
            queue,
            av,
            domain,
            fabric,
            info,
            library: library.clone(),
            contexts: ManuallyDrop::new(Contexts::new(depth)),
            capabilities,
            name,
            peers: Peers::default(),
            pending: VecDeque::new(),
            in_flight: 0,
            unreachable_after: options.unreachable_after,
        };
        endpoint.post_receives()?;
        Ok(endpoint)
    }

    fn error(&self, call: &'static str, code: i32) -> FabricError {
        self.library.error(call, &self.name, code)
    }

    fn peer_error(&self, peer: u32, reason: String, code: i32) -> FabricError {
        FabricError::Peer { peer, provider: self.name.clone(), reason, code }
    }

    fn post_receives(&mut self) -> Result<()> {
        let Some(receives) = &mut self.receives else { return Ok(()) };
        receives.post(&self.ep).map_err(|code| self.library.error("fi_recv", &self.name, code))
    }

    /// The write's memory on this side and its address on the other.
    fn check(&self, write: &Write) -> Result<(*mut u8, *mut c_void, u64)> {
        let Some(region) = self.regions.get(write.local.0 as usize) else {
            return Err(argument(format!("region {} is not registered", write.local.0)));
        };
        let within =
            |offset: u64, bytes: u64, all: u64| offset.checked_add(bytes).is_some_and(|end| end <= all);
        let (bytes, own, remote) = (write.bytes, region.memory.bytes() as u64, write.remote);
        if bytes == 0 || bytes > self.capabilities.max_message {
            let most = self.capabilities.max_message;
            return Err(argument(format!("a write of {bytes} bytes; {} takes 1 to {most}", self.name)));
        }
        if !within(write.local_offset, bytes, own) {
            let (offset, region) = (write.local_offset, write.local.0);
            return Err(argument(format!(
                "bytes {offset} + {bytes} are outside of region {region}, which has {own}"
            )));
        }
        if !within(write.remote_offset, bytes, remote.bytes) {
            let (offset, all, peer) = (write.remote_offset, remote.bytes, write.peer.0);
            return Err(argument(format!(
                "bytes {offset} + {bytes} are outside of the region of peer {peer}, which has {all}"
            )));
        }
        let Some(address) = remote.base.checked_add(write.remote_offset) else {
            return Err(argument(format!(
                "the region of peer {} ends beyond the address space",
                write.peer.0
            )));
        };
        // An address beyond the region's base is within it, as was checked.
        Ok((region.memory.base().wrapping_add(write.local_offset as usize), region.descriptor, address))
    }

    /// The provider took nothing. Busy, unless that will not change.
    fn refused(&mut self, peer: u32) -> Result<Posted> {
        self.look_at_processes();
        let unreachable_after = self.unreachable_after;
        let Some(known) = self.peers.get_mut(peer) else { return Ok(Posted::Busy) };
        if known.is_gone() {
            return Err(self.peer_error(peer, "its process has ended".to_owned(), ffi::ESHUTDOWN));
        }
        if known.refused() > unreachable_after {
            let seconds = unreachable_after.as_secs_f64();
            let reason = format!(
                "the provider has taken no write for {seconds} s, though none was in flight: no connection"
            );
            return Err(self.peer_error(peer, reason, ffi::ETIMEDOUT));
        }
        Ok(Posted::Busy)
    }

    /// Fails what is in flight to processes that have ended.
    fn look_at_processes(&mut self) {
        for peer in self.peers.newly_gone() {
            for operation in self.contexts.give_up(peer) {
                self.finished(operation);
                let error = self.peer_error(peer, "its process has ended".to_owned(), ffi::ESHUTDOWN);
                self.pending.push_back(Completion::Failed { context: operation.context, error });
            }
        }
    }

    fn finished(&mut self, operation: Operation) {
        self.in_flight -= 1;
        if let Some(peer) = self.peers.get_mut(operation.peer) {
            peer.in_flight -= 1;
            peer.moved();
        }
    }

    /// One batch of the queue; gives how many entries it had.
    fn batch(&mut self, most: usize, out: &mut Vec<Completion>) -> Result<usize> {
        let got = match self.queue.read(&self.library, most) {
            Ok(got) => got,
            Err(Trouble::Broken { call, code }) => return Err(self.error(call, code)),
            Err(Trouble::Failed { context, flags, code, reason }) => {
                return self.failed(context, flags, (code, reason), out).map(|()| 1);
            }
        };
        for at in 0..got {
            let entry = self.queue.entry(at);
            if is_arrival(entry.flags) {
                // The narrowest provider carries 32 bits; wider ones must not show more.
                out.push(Completion::Arrived { immediate: entry.data as u32 });
            }
            self.take_back(&entry, out)?;
        }
        if self.receives.as_ref().is_some_and(Receives::is_short) {
            self.post_receives()?;
        }
        Ok(got)
    }

    /// Takes back what the completed operation was lent.
    fn take_back(&mut self, entry: &ffi::CqData, out: &mut Vec<Completion>) -> Result<()> {
        if self.receives.as_mut().is_some_and(|receives| receives.give_back(entry.context)) {
            return Ok(());
        }
        if is_arrival(entry.flags) {
            // Without posted receives its context is nobody's.
            return Ok(());
        }
        match self.contexts.place(entry.context).map(|place| self.contexts.give_back(place)) {
            Some(Returned::Operation(operation)) => {
                self.finished(operation);
                out.push(Completion::Sent { context: operation.context });
                Ok(())
            }
            Some(Returned::GivenUp) => Ok(()),
            Some(Returned::Nothing) | None => {
                let (context, flags) = (entry.context, entry.flags);
                Err(FabricError::Library {
                    call: "fi_cq_read",
                    provider: self.name.clone(),
                    reason: format!(
                        "it completed an operation that is not in flight ({context:?}, flags {flags:#x})"
                    ),
                    code: 0,
                })
            }
        }
    }

    fn failed(
        &mut self,
        context: *mut c_void,
        flags: u64,
        (code, reason): (i32, String),
        out: &mut Vec<Completion>,
    ) -> Result<()> {
        if self.receives.as_mut().is_some_and(|receives| receives.give_back(context)) {
            // A receive that is cancelled was lent, no more.
            return if code == ffi::ECANCELED { Ok(()) } else { Err(self.broken(reason, code)) };
        }
        match self.contexts.place(context).map(|place| self.contexts.give_back(place)) {
            Some(Returned::Operation(operation)) => {
                self.finished(operation);
                let error = self.peer_error(operation.peer, reason, code);
                out.push(Completion::Failed { context: operation.context, error });
                Ok(())
            }
            Some(Returned::GivenUp) => Ok(()),
            Some(Returned::Nothing) | None => {
                Err(self.broken(format!("{reason} (not of a write of this side; flags {flags:#x})"), code))
            }
        }
    }

    fn broken(&self, reason: String, code: i32) -> FabricError {
        FabricError::Library { call: "fi_cq_read", provider: self.name.clone(), reason, code }
    }

    /// Closes everything, in order; the first call that failed.
    fn close_all(&mut self) -> std::result::Result<(), (&'static str, i32)> {
        let open = !self.ep.at().is_null();
        let code = self.ep.close();
        let mut first = check(code).map_err(|code| ("fi_close (endpoint)", code));
        if open && code == 0 {
            // SAFETY: the endpoint was open until now, so this is the first time, and the provider has given all back.
            unsafe { ManuallyDrop::drop(&mut self.contexts) }
        } else if code != 0 {
            // The provider may still use what it was lent: it keeps it for as long as the process lives.
            std::mem::forget(std::mem::take(&mut self.regions));
            std::mem::forget(self.receives.take());
        }
        for region in &mut self.regions {
            first = first.and(check(region.mr.close()).map_err(|code| ("fi_close (memory region)", code)));
        }
        let rest = [
            ("fi_close (receive buffer)", self.receives.as_mut().map_or(0, Receives::close)),
            ("fi_close (queue)", self.queue.close()),
            ("fi_close (addresses)", self.av.close()),
            ("fi_close (domain)", self.domain.close()),
            ("fi_close (fabric)", self.fabric.close()),
        ];
        for (call, code) in rest {
            first = first.and(check(code).map_err(|code| (call, code)));
        }
        first
    }
}

impl Transport for Endpoint {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&mut self, memory: Arc<dyn Memory>) -> Result<(RegionId, RemoteRegion)> {
        if memory.place() != Place::Host && !self.capabilities.gpu_memory {
            // The provider would take the address for one of host memory.
            let lacks = "it was not opened for GPU memory".to_owned();
            return Err(FabricError::Unsuitable { provider: self.name.clone(), lacks });
        }
        let number = self.regions.len() as u32;
        let (base, bytes) = (memory.base() as u64, memory.bytes() as u64);
        // Keys of ours start at 1; a provider that makes its own ignores them.
        let region = Region::new(&self.library, &self.name, &self.domain, memory, u64::from(number) + 1)?;
        let remote = RemoteRegion {
            key: region.key(),
            base: if self.capabilities.addressing == Addressing::Virtual { base } else { 0 },
            bytes,
        };
        self.regions.push(region);
        Ok((RegionId(number), remote))
    }

    fn address(&mut self) -> Result<Vec<u8>> {
        let mut bytes = vec![0u8; 256];
        loop {
            let mut used = bytes.len();
            // SAFETY: the endpoint is open, its table is the library's, and there is room for `used` bytes.
            let code = unsafe {
                match self.ep.at().as_ref().and_then(|at| entry!(at.cm, ffi::CmOps, getname)) {
                    Some(getname) => getname(self.ep.head(), bytes.as_mut_ptr().cast(), &raw mut used),
                    None => -ffi::ENOSYS,
                }
            };
            match -code {
                0 => {
                    bytes.truncate(used);
                    let mut address = own_head(&self.info).to_vec();
                    address.append(&mut bytes);
                    return Ok(address);
                }
                ffi::ETOOSMALL if used > bytes.len() => bytes.resize(used, 0),
                code => return Err(self.error("fi_getname", code)),
            }
        }
    }

    fn connect(&mut self, addresses: &[Vec<u8>]) -> Result<()> {
        if self.peers.len() > 0 {
            return Err(argument("this endpoint is connected already".to_owned()));
        }
        let own = own_head(&self.info);
        let mut peers = Vec::with_capacity(addresses.len());
        for (peer, bytes) in (0u32..).zip(addresses) {
            let Some((head, bytes)) = bytes.split_at_checked(HEAD) else {
                return Err(FabricError::Exchange { peer, what: "a fabric address" });
            };
            if head != own {
                return Err(FabricError::Exchange { peer, what: "a fabric address of another provider" });
            }
            let mut number = ffi::ADDR_UNSPEC;
            // The provider reads as far as its format goes: never beyond zeros of ours.
            let mut padded = bytes.to_vec();
            padded.resize(bytes.len().max(256) + 1, 0);
            // SAFETY: the list of addresses is open, its table is the library's, and the address is of its format.
            let inserted = unsafe {
                match self.av.at().as_ref().and_then(|at| entry!(at.ops, ffi::AvOps, insert)) {
                    Some(insert) => {
                        insert(self.av.at(), padded.as_ptr().cast(), 1, &raw mut number, 0, null_mut())
                    }
                    None => -ffi::ENOSYS,
                }
            };
            if inserted < 0 {
                return Err(self.error("fi_av_insert", inserted));
            }
            if inserted != 1 || number == ffi::ADDR_UNSPEC {
                return Err(FabricError::Exchange { peer, what: "a fabric address" });
            }
            // SAFETY: the address has these bytes.
            let text = unsafe { address(ffi::ADDR_STR, bytes.as_ptr().cast(), bytes.len()) };
            let process =
                text.filter(|_| own[4..] == ffi::ADDR_STR.to_le_bytes()).and_then(|text| process_of(&text));
            peers.push(Peer::new(number, process));
        }
        self.peers = Peers::new(peers);
        Ok(())
    }

    fn write(&mut self, write: &Write) -> Result<Posted> {
        let (base, descriptor, remote) = self.check(write)?;
        let peer = write.peer.0;
        let Some(known) = self.peers.get_mut(peer) else {
            return Err(argument(format!("peer {peer} is not connected; there are {}", self.peers.len())));
        };
        let to = known.address;
        if known.is_gone() {
            return Err(self.peer_error(peer, "its process has ended".to_owned(), ffi::ESHUTDOWN));
        }
        let Some(place) = self.contexts.take(Operation { peer, context: write.context }) else {
            return Ok(Posted::Busy);
        };
        let context = self.contexts.pointer(place);
        let (bytes, data) = (write.bytes as usize, u64::from(write.immediate));
        // SAFETY: the endpoint is open, its table is the library's; the bytes are of a registered region, which stays until
        // the endpoint has closed, and so does the context.
        let code = unsafe {
            match self.ep.at().as_ref().and_then(|at| entry!(at.rma, ffi::RmaOps, writedata)) {
                Some(writedata) => writedata(
                    self.ep.at(),
                    base.cast(),
                    bytes,
                    descriptor,
                    data,
                    to,
                    remote,
                    write.remote.key,
                    context,
                ),
                None => -(ffi::ENOSYS as isize),
            }
        };
        if code == 0 {
            self.in_flight += 1;
            if let Some(known) = self.peers.get_mut(peer) {
                known.in_flight += 1;
                known.moved();
            }
            return Ok(Posted::Yes);
        }
        self.contexts.give_back(place);
        match (-code) as i32 {
            ffi::EAGAIN => self.refused(peer),
            code => Err(self.peer_error(peer, self.library.words(code), code)),
        }
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> Result<usize> {
        let before = out.len();
        let most = (out.capacity() - before).max(1);
        let mut found = 0;
        while out.len() - before < most {
            let room = most - (out.len() - before);
            let got = self.batch(room, out)?;
            found += got;
            if got < room.min(BATCH) {
                break;
            }
        }
        if found == 0 && self.in_flight > 0 {
            self.look_at_processes();
        }
        while out.len() - before < most
            && let Some(failure) = self.pending.pop_front()
        {
            out.push(failure);
        }
        Ok(out.len() - before)
    }

    fn wait(&mut self, most: Duration) -> Result<()> {
        if !self.pending.is_empty() {
            return Ok(());
        }
        self.queue.wait(&self.fabric, most, None).map_err(|(call, code)| self.error(call, code))
    }

    fn wait_or(&mut self, most: Duration, wake: &Arc<Wake>) -> Result<()> {
        if !self.pending.is_empty() {
            return Ok(());
        }
        let wake = Some(&**wake);
        self.queue.wait(&self.fabric, most, wake).map_err(|(call, code)| self.error(call, code))
    }

    fn close(mut self: Box<Self>) -> Result<()> {
        self.close_all().map_err(|(call, code)| self.error(call, code))
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // Nobody is left to be told.
        let _ = self.close_all();
    }
}

fn argument(what: String) -> FabricError {
    FabricError::Argument { what }
}

fn check(code: i32) -> std::result::Result<(), i32> {
    if code == 0 { Ok(()) } else { Err(code) }
}

/// An immediate came in; completions of this side's writes may repeat the data's flag, but say that they are writes.
fn is_arrival(flags: u64) -> bool {
    flags & ffi::REMOTE_CQ_DATA != 0 && flags & ffi::WRITE == 0
}

/// Protocol and address format: endpoints that differ in them cannot talk.
fn own_head(info: &Infos) -> [u8; HEAD] {
    // SAFETY: a description of the library's with all its parts.
    let (protocol, format) = unsafe { ((*(*info.head()).ep).protocol, (*info.head()).address_format) };
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&protocol.to_le_bytes());
    head[4..].copy_from_slice(&format.to_le_bytes());
    head
}

fn rx_depth(info: &Infos) -> usize {
    // SAFETY: a description of the library's; its receive part may be missing.
    unsafe { (*info.head()).rx.as_ref() }.map_or(1, |rx| rx.depth).max(1)
}

/// A kernel that spins on this GPU would deadlock a provider that calls CUDA. One that cannot do without says so by its
/// refusal of this; it is then used all the same, and the kernel's deadline tells.
fn forbid_cuda_calls(ep: &Object<ffi::Ep>) {
    let permitted = false;
    // SAFETY: the endpoint is open, its table is the library's, and the option is a C `bool`.
    unsafe {
        if let Some(setopt) = ep.at().as_ref().and_then(|at| entry!(at.ops, ffi::EpOps, setopt)) {
            setopt(
                ep.head(),
                ffi::OPT_ENDPOINT,
                ffi::OPT_CUDA_API_PERMITTED,
                (&raw const permitted).cast(),
                1,
            );
        }
    }
}

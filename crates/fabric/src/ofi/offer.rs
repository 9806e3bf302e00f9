//! What a library offers: asking for it, and one offer in our words.

use std::ffi::{CString, c_char, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use crate::error::Result;
use crate::ofi::ffi;
use crate::ofi::library::{Library, text};
use crate::transport::Addressing;

unsafe extern "C" {
    fn strdup(text: *const c_char) -> *mut c_char;
}

/// One way to reach peers: a provider on one domain (NIC).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The name to ask for it by: the provider's, but the fabric's where a provider offers two kinds of endpoint (`efa`,
    /// `efa-direct`).
    pub name: String,
    /// The provider: `tcp;ofi_rxm`, `shm`, `efa`.
    pub provider: String,
    /// The fabric: a network that its domains share.
    pub fabric: String,
    /// The domain: `eth0`, `rdmap0s6`, `mlx5_0`.
    pub domain: String,
    /// This side's address, where it is text or of the internet family.
    pub address: Option<String>,
    /// What memory registration needs: `local`, `virtual address`, `allocated`, `provider key`, `hmem`.
    pub mr_mode: Vec<&'static str>,
    /// How remote memory is addressed.
    pub addressing: Addressing,
    /// Bytes of the immediate; the protocol needs 4.
    pub cq_data_bytes: usize,
    /// The largest write in bytes.
    pub max_message: u64,
    /// The largest write in bytes that may be reused at once; reported only, nothing here relies on it.
    pub inject_bytes: usize,
    /// Writes that may be in flight.
    pub queue_depth: usize,
    /// How far calls may come from several threads: `domain` and `safe` are what the transport asks for.
    pub threading: &'static str,
    /// Who moves data: `auto` (the provider) or `manual` (whoever polls).
    pub progress: &'static str,
    /// Bytes that every operation must lend until it completes: 0, 32 or 64.
    pub context_bytes: usize,
    /// Whether an immediate uses up a posted receive.
    pub needs_receives: bool,
    /// Whether GPU memory can be registered; asked only where GPU memory was asked for.
    pub gpu_memory: bool,
    /// Speed of the NIC in bits a second, if the provider says.
    pub link_bits_per_second: Option<u64>,
    /// PCI address of the NIC, `0000:36:00.0`, if it says.
    pub pci: Option<String>,
    /// NUMA node of the NIC, if the system knows it.
    pub numa_node: Option<u32>,
    /// Whether it reaches processes of this machine only.
    pub local_only: bool,
    /// Why the transport cannot use it; `None` when it can.
    pub lacks: Option<String>,
}

/// A list of descriptions, freed when dropped.
#[derive(Debug)]
pub(crate) struct Infos {
    library: Library,
    head: *mut ffi::Info,
}

// SAFETY: it owns its list, whose memory is bound to no thread.
unsafe impl Send for Infos {}

impl Drop for Infos {
    fn drop(&mut self) {
        // SAFETY: the list is the library's, and nobody else has it.
        unsafe { self.library.free(self.head) }
    }
}

/// What to ask for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Query<'a> {
    /// One provider only, by its exact name. Some are offered only when named.
    pub(crate) provider: Option<&'a str>,
    /// Whether immediates may use up posted receives. A provider that can do without does so only when this is not
    /// offered.
    pub(crate) receives: bool,
    /// Whether GPU memory is to be registered.
    pub(crate) gpu: bool,
    /// Whether every call must be safe from any thread, in place of one thread per domain.
    pub(crate) safe: bool,
}

impl Infos {
    /// Everything that matches.
    ///
    /// # Errors
    /// What the library says; nothing found is an empty list.
    pub(crate) fn query(library: &Library, query: &Query<'_>) -> Result<Self> {
        let hints = Self { library: library.clone(), head: library.dup(std::ptr::null())? };
        // SAFETY: the library made the description with all its parts, and it is ours alone.
        unsafe {
            let info = &mut *hints.head;
            info.caps = ffi::CAP_MSG | ffi::CAP_RMA | if query.gpu { ffi::CAP_HMEM } else { 0 };
            info.mode = ffi::MODE_CONTEXT
                | ffi::MODE_CONTEXT2
                | if query.receives { ffi::MODE_RX_CQ_DATA } else { 0 };
            (*info.ep).kind = ffi::EP_RDM;
            let domain = &mut *info.domain;
            domain.threading = if query.safe { ffi::THREAD_SAFE } else { ffi::THREAD_DOMAIN };
            domain.data_progress = ffi::PROGRESS_MANUAL;
            domain.mr_mode = ffi::MR_LOCAL
                | ffi::MR_VIRT_ADDR
                | ffi::MR_ALLOCATED
                | ffi::MR_PROV_KEY
                | if query.gpu { ffi::MR_HMEM } else { 0 };
            if let Some(name) = query.provider.and_then(|name| CString::new(name).ok()) {
                // A copy by C's allocator, because the library frees it.
                (*info.fabric).provider = strdup(name.as_ptr());
            }
        }
        let head = library.getinfo(query.gpu, hints.head)?;
        Ok(Self { library: library.clone(), head })
    }

    /// A list of one: a copy of `info`.
    ///
    /// # Safety
    /// `info` is a description of this library's.
    pub(crate) unsafe fn copy(library: &Library, info: *const ffi::Info) -> Result<Self> {
        Ok(Self { library: library.clone(), head: library.dup(info)? })
    }

    pub(crate) fn head(&self) -> *mut ffi::Info {
        self.head
    }

    /// All descriptions with our words for them. Those without the parts that every description has are left out.
    pub(crate) fn offers(&self) -> Vec<(*const ffi::Info, Offer)> {
        let mut found = Vec::new();
        let mut next = self.head.cast_const();
        // SAFETY: the library's list ends with null, and lives as long as this.
        while let Some(info) = unsafe { next.as_ref() } {
            // SAFETY: a description of the library's.
            if let Some(offer) = unsafe { read(info) } {
                found.push((next, offer));
            }
            next = info.next;
        }
        found
    }
}

/// Our words for one description.
///
/// # Safety
/// It is one of the library's.
unsafe fn read(info: &ffi::Info) -> Option<Offer> {
    // SAFETY: the parts are null or the library's, and live as long as the description.
    let (tx, ep, domain, fabric) =
        unsafe { (info.tx.as_ref()?, info.ep.as_ref()?, info.domain.as_ref()?, info.fabric.as_ref()?) };
    // SAFETY: null or strings of the library's.
    let (provider, fabric, name) = unsafe { (text(fabric.provider), text(fabric.name), text(domain.name)) };
    // SAFETY: the address has as many bytes as the description says.
    let address = unsafe { address(info.address_format, info.source, info.source_bytes) };
    // SAFETY: null or the library's.
    let (pci, link_bits_per_second) = unsafe { nic(info.nic) };
    let has = |bit| domain.mr_mode & bit != 0;
    let mr_mode = [
        (ffi::MR_LOCAL, "local"),
        (ffi::MR_VIRT_ADDR, "virtual address"),
        (ffi::MR_ALLOCATED, "allocated"),
        (ffi::MR_PROV_KEY, "provider key"),
        (ffi::MR_HMEM, "hmem"),
    ];
    let context_bytes = match info.mode | tx.mode {
        mode if mode & ffi::MODE_CONTEXT2 != 0 => 64,
        mode if mode & ffi::MODE_CONTEXT != 0 => 32,
        _ => 0,
    };
    // SAFETY: null or the library's.
    let rx_mode = unsafe { info.rx.as_ref() }.map_or(0, |rx| rx.mode);
    let mut offer = Offer {
        name: if provider == "efa" && fabric.starts_with("efa") { fabric.clone() } else { provider.clone() },
        local_only: address.as_deref().is_some_and(|address| address.starts_with("fi_shm://")),
        numa_node: numa_node(pci.as_deref(), &name),
        mr_mode: mr_mode.iter().filter(|(bit, _)| has(*bit)).map(|(_, word)| *word).collect(),
        addressing: if has(ffi::MR_VIRT_ADDR) { Addressing::Virtual } else { Addressing::Offset },
        cq_data_bytes: domain.cq_data_bytes,
        max_message: ep.max_message as u64,
        inject_bytes: tx.inject,
        queue_depth: tx.depth,
        threading: match domain.threading {
            0 => "unspecified",
            ffi::THREAD_SAFE => "safe",
            2 => "object",
            ffi::THREAD_DOMAIN => "domain",
            4 => "completion",
            5 => "endpoint",
            _ => "unknown",
        },
        progress: match domain.data_progress {
            ffi::PROGRESS_AUTO => "auto",
            ffi::PROGRESS_MANUAL => "manual",
            _ => "unspecified",
        },
        context_bytes,
        needs_receives: (info.mode | rx_mode) & ffi::MODE_RX_CQ_DATA != 0,
        gpu_memory: info.caps & ffi::CAP_HMEM != 0,
        domain: name,
        provider,
        fabric,
        address,
        link_bits_per_second,
        pci,
        lacks: None,
    };
    offer.lacks = lacks(&offer);
    Some(offer)
}

fn lacks(offer: &Offer) -> Option<String> {
    if offer.cq_data_bytes < 4 {
        let bytes = offer.cq_data_bytes;
        return Some(format!("it delivers {bytes} bytes of immediate with a write; the protocol needs 4"));
    }
    if offer.max_message < 1 << 17 {
        let bytes = offer.max_message;
        return Some(format!("its largest write is {bytes} bytes; the protocol needs 131072"));
    }
    None
}

/// PCI address and speed of a NIC.
///
/// # Safety
/// `nic` is null or the library's.
unsafe fn nic(nic: *const ffi::Nic) -> (Option<String>, Option<u64>) {
    // SAFETY: the caller's promise, here and for the parts.
    let Some(nic) = (unsafe { nic.as_ref() }) else { return (None, None) };
    // SAFETY: as above.
    let (bus, link) = unsafe { (nic.bus.as_ref(), nic.link.as_ref()) };
    let pci = bus
        .filter(|bus| bus.kind == ffi::BUS_PCI)
        .map(|at| format!("{:04x}:{:02x}:{:02x}.{:x}", at.domain, at.bus, at.device, at.function));
    (pci, link.map(|link| link.speed as u64).filter(|speed| *speed > 0))
}

/// NUMA node of the NIC, by its PCI address or, for a network interface, by its name.
fn numa_node(pci: Option<&str>, domain: &str) -> Option<u32> {
    let by_name = || (!domain.contains('/')).then(|| format!("/sys/class/net/{domain}/device/numa_node"));
    let path = pci.map(|at| format!("/sys/bus/pci/devices/{at}/numa_node")).or_else(by_name)?;
    // The system says -1 where it does not know.
    std::fs::read_to_string(Path::new(&path)).ok()?.trim().parse().ok()
}

/// An address as text.
///
/// # Safety
/// `at` is null or has `bytes` bytes.
pub(crate) unsafe fn address(format: u32, at: *const c_void, bytes: usize) -> Option<String> {
    if at.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), bytes) };
    match format {
        ffi::ADDR_STR => {
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
        }
        ffi::SOCKADDR | ffi::SOCKADDR_IN | ffi::SOCKADDR_IN6 => ip(bytes).map(|ip| ip.to_string()),
        _ => None,
    }
}

/// The IP address of a `sockaddr`.
fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?) {
        2 => Some(IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(4..8)?).ok()?))),
        10 => Some(IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(8..24)?).ok()?))),
        _ => None,
    }
}

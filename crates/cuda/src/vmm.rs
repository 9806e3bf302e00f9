//! Device memory by the driver's virtual memory management: physical memory that other processes can map.
//!
//! Each step is a value that undoes itself when dropped: a mapping first unmaps, then gives its addresses back, then
//! releases the memory. Memory that peers still map lives on until they unmap it.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::build_error::BuildError;
use crate::context::Context;
use crate::device::{Attribute, Device};
use crate::entry_points::{AllocationHandle, DevicePointer};
use crate::error::CudaError;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawLocation {
    kind: u32,
    id: i32,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawAllocation {
    kind: u32,
    handle_types: u32,
    location: RawLocation,
    /// Only Windows uses it.
    win32_metadata: usize,
    compression: u8,
    rdma_capable: u8,
    usage: u16,
    reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawAccess {
    location: RawLocation,
    flags: u32,
}

const _: () = assert!(size_of::<RawLocation>() == 8);
const _: () = assert!(size_of::<RawAllocation>() == 32);
const _: () = assert!(std::mem::offset_of!(RawAllocation, location) == 8);
const _: () = assert!(std::mem::offset_of!(RawAllocation, win32_metadata) == 16);
const _: () = assert!(std::mem::offset_of!(RawAllocation, rdma_capable) == 25);
const _: () = assert!(size_of::<RawAccess>() == 12);

/// `CU_MEM_ALLOCATION_TYPE_PINNED`: on the device, never moved.
const PINNED: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`; the id is then the device's ordinal.
const ON_DEVICE: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const FILE_DESCRIPTOR: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: u32 = 3;
/// `CU_MEM_ALLOC_GRANULARITY_RECOMMENDED`: pages as large as the device has.
const RECOMMENDED: c_int = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;

/// How memory of a device can be shared with other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandleTypes {
    /// By file descriptor, within one host.
    pub fd: bool,
    /// By fabric handle, within one NVLink domain.
    pub fabric: bool,
}

/// How memory of `device` can be shared. A driver too old to know a way does not offer it.
pub fn handle_types(device: &Device) -> HandleTypes {
    let offers = |attribute| device.attribute(attribute).is_ok_and(|value| value != 0);
    HandleTypes { fd: offers(Attribute::HANDLE_FD), fabric: offers(Attribute::HANDLE_FABRIC) }
}

/// Physical memory is allocated in whole multiples of this many bytes.
///
/// # Errors
/// When the driver refuses.
pub fn granularity(context: &Context) -> Result<usize, BuildError> {
    granularity_of(context, &properties(context))
}

fn granularity_of(context: &Context, wanted: &RawAllocation) -> Result<usize, BuildError> {
    let mut bytes = 0;
    context.call("cuMemGetAllocationGranularity", |api| {
        // SAFETY: the driver reads the properties and writes one size.
        unsafe { (api.vmm_granularity)(&raw mut bytes, wanted, RECOMMENDED) }
    })?;
    Ok(bytes.max(1))
}

fn properties(context: &Context) -> RawAllocation {
    let device = context.device();
    // A NIC can reach the memory only if it was asked for at the allocation.
    let rdma = device.attribute(Attribute::VIRTUAL_MEMORY_RDMA).is_ok_and(|value| value != 0);
    RawAllocation {
        kind: PINNED,
        handle_types: FILE_DESCRIPTOR,
        location: RawLocation { kind: ON_DEVICE, id: device.ordinal() as i32 },
        win32_metadata: 0,
        compression: 0,
        rdma_capable: rdma.into(),
        usage: 0,
        reserved: [0; 4],
    }
}

/// Physical memory of a device, of this process or imported from another.
#[derive(Debug)]
pub struct Physical {
    context: Context,
    raw: AllocationHandle,
    bytes: usize,
}

impl Physical {
    /// Allocates at least `bytes` bytes, in whole granules, that other processes of this host can import.
    ///
    /// # Errors
    /// [`BuildError::OutOfMemory`] when the device has not so much, and whatever else the driver says.
    pub fn new(context: &Context, bytes: usize) -> Result<Self, BuildError> {
        let wanted = properties(context);
        let granule = granularity_of(context, &wanted)?;
        let Some(rounded) = bytes.max(1).checked_next_multiple_of(granule) else {
            return Err(out_of_memory(context, bytes));
        };
        let mut raw = 0;
        let made = context.call("cuMemCreate", |api| {
            // SAFETY: the driver reads the properties and writes one handle.
            unsafe { (api.vmm_create)(&raw mut raw, rounded, &raw const wanted, 0) }
        });
        match made {
            Ok(()) => Ok(Self { context: context.clone(), raw, bytes: rounded }),
            Err(CudaError::Call(error)) if error.code == OUT_OF_MEMORY => {
                Err(out_of_memory(context, rounded))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Takes hold of memory of `bytes` bytes (its owner's [`Physical::bytes`]) that `fd` stands for. The descriptor
    /// may be closed afterwards.
    ///
    /// # Errors
    /// When the descriptor stands for no memory, or for that of a device that is not visible here.
    pub fn import(context: &Context, fd: BorrowedFd<'_>, bytes: usize) -> Result<Self, BuildError> {
        let mut raw = 0;
        // A descriptor travels in the pointer itself.
        let handle = std::ptr::without_provenance_mut(fd.as_raw_fd() as usize);
        context.call("cuMemImportFromShareableHandle", |api| {
            // SAFETY: the driver reads no memory behind a handle of this type, and writes one handle.
            unsafe { (api.vmm_import)(&raw mut raw, handle, FILE_DESCRIPTOR as c_int) }
        })?;
        Ok(Self { context: context.clone(), raw, bytes })
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A descriptor that stands for the memory and keeps it alive.
    ///
    /// # Errors
    /// When the driver refuses, for one because the process has too many open files.
    pub fn export(&self) -> Result<OwnedFd, BuildError> {
        let mut fd: c_int = -1;
        self.context.call("cuMemExportToShareableHandle", |api| {
            // SAFETY: the driver writes one integer, a descriptor being asked for.
            unsafe { (api.vmm_export)((&raw mut fd).cast(), self.raw, FILE_DESCRIPTOR as c_int, 0) }
        })?;
        if fd < 0 {
            let (name, text) = (String::new(), format!("it gave the descriptor {fd}"));
            return Err(crate::CallError { call: "cuMemExportToShareableHandle", code: 0, name, text }.into());
        }
        // SAFETY: the driver has just opened it for the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Gives the memory an address at which the context's device can read and write it.
    ///
    /// # Errors
    /// When there is no peer access from the context's device to the memory's, or the driver refuses.
    pub fn map(self) -> Result<Mapping, BuildError> {
        let (context, bytes) = (self.context.clone(), self.bytes);
        let mut address = 0;
        context.call("cuMemAddressReserve", |api| {
            // SAFETY: the driver writes one address; 0 lets it choose place and alignment.
            unsafe { (api.vmm_reserve)(&raw mut address, bytes, 0, 0, 0) }
        })?;
        let addresses = Addresses { context: context.clone(), address, bytes };
        context.call("cuMemMap", |api| {
            // SAFETY: the addresses are reserved and unused, and the memory is as long as they are.
            unsafe { (api.vmm_map)(address, bytes, 0, self.raw, 0) }
        })?;
        let mapping = Mapping { addresses, physical: self };
        let location = RawLocation { kind: ON_DEVICE, id: context.device().ordinal() as i32 };
        let access = RawAccess { location, flags: READ_WRITE };
        context.call("cuMemSetAccess", |api| {
            // SAFETY: the whole range was mapped above, and the driver reads one description.
            unsafe { (api.vmm_access)(address, bytes, &raw const access, 1) }
        })?;
        Ok(mapping)
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: created or imported once; mappings of it have been undone by then.
        self.context.call_in_drop(|api| unsafe { (api.vmm_release)(self.raw) });
    }
}

/// Reserved addresses.
#[derive(Debug)]
struct Addresses {
    context: Context,
    address: DevicePointer,
    bytes: usize,
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: reserved once, and nothing is mapped there any more.
        self.context.call_in_drop(|api| unsafe { (api.vmm_unreserve)(self.address, self.bytes) });
    }
}

/// Memory at an address of this process.
///
/// Dropping it does not wait for the device: whoever launched work on the memory waits for that first.
#[derive(Debug)]
pub struct Mapping {
    // Dropped in this order, after the mapping itself is undone.
    addresses: Addresses,
    physical: Physical,
}

impl Mapping {
    /// Its address on the device.
    pub fn address(&self) -> u64 {
        self.addresses.address
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.addresses.bytes
    }

    /// The memory.
    pub fn physical(&self) -> &Physical {
        &self.physical
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Addresses { context, address, bytes } = &self.addresses;
        // SAFETY: mapped once, by `map`.
        context.call_in_drop(|api| unsafe { (api.vmm_unmap)(*address, *bytes) });
    }
}

fn out_of_memory(context: &Context, needed: usize) -> BuildError {
    // Another program may free or take memory meanwhile: the figures are those of a moment later.
    match (context.device().identity(), context.memory_info()) {
        (Ok(device), Ok((free, total))) => BuildError::OutOfMemory {
            device: Box::new(device),
            needed: needed as u64,
            free: free as u64,
            total: total as u64,
        },
        (Err(error), _) | (_, Err(error)) => error.into(),
    }
}

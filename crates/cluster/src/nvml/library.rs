//! NVML's entry points and structures.

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;

use crate::facts::{FabricState, Nvml, NvmlGpu, P2p};

type Device = *mut c_void;

/// `nvmlPciInfo_t`.
#[repr(C)]
struct PciInfo {
    bus_id_legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    bus_id: [c_char; 32],
}

/// `nvmlGpuFabricInfo_v2_t`.
#[repr(C)]
struct FabricInfo {
    version: c_uint,
    cluster: [u8; 16],
    status: c_uint,
    clique: c_uint,
    state: u8,
    health: c_uint,
}

/// `nvmlMemory_t` and `nvmlBAR1Memory_t`: total, free, used.
#[repr(C)]
#[derive(Default)]
struct MemoryInfo {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlProcessInfo_t` of `..._v3`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProcessInfo {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

// Sizes of nvml.h for 64-bit systems; the version word of the fabric structure carries its size.
const _: () = assert!(size_of::<PciInfo>() == 68);
const _: () = assert!(size_of::<FabricInfo>() == 36);
const _: () = assert!(size_of::<MemoryInfo>() == 24);
const _: () = assert!(size_of::<ProcessInfo>() == 24);

const FABRIC_V2: c_uint = size_of::<FabricInfo>() as c_uint | 2 << 24;

/// As many links as any GPU has; NVML refuses the first number that is none.
const LINKS: c_uint = 36;

/// More GPUs than a node has.
const GPUS: c_uint = 64;

/// Counters of a link's errors: 0 replay, 1 recovery. Those of CRC are left out: links correct such errors, and on two healthy H200 they
/// counted up while the links idled (59 and 84, a few more with every call; `nvidia-smi nvlink -e` showed 0 replays and recoveries).
const LINK_ERRORS: c_uint = 2;

/// `NVML_P2P_CAPS_INDEX_NVLINK`.
const P2P_NVLINK: c_uint = 2;

const SUCCESS: c_int = 0;
const INVALID_ARGUMENT: c_int = 2;
const NOT_SUPPORTED: c_int = 3;
const INSUFFICIENT_SIZE: c_int = 7;

/// NVML, open and started.
pub(super) struct Library {
    library: libloading::Library,
}

impl Library {
    /// Opens and starts NVML; none where there is no such library.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, String> {
        // SAFETY: this runs the library's initialisers. It is the driver's own library, or what the user named.
        let library = match unsafe { libloading::Library::new(path) } {
            Ok(library) => library,
            Err(error) => {
                let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                return if reason.contains("No such file") { Ok(None) } else { Err(reason) };
            }
        };
        let library = Self { library };
        // SAFETY: the type of nvml.h.
        let init = unsafe { library.call::<unsafe extern "C" fn() -> c_int>("nvmlInit_v2") };
        let init = init.ok_or("it has no nvmlInit_v2: no NVML")?;
        // SAFETY: it takes nothing.
        let code = unsafe { init() };
        if code == SUCCESS {
            Ok(Some(library))
        } else {
            Err(format!("nvmlInit_v2 failed: {}", library.explain(code)))
        }
    }

    /// An entry point; none where this version lacks it.
    ///
    /// # Safety
    /// `T` must be its type in nvml.h.
    unsafe fn call<T: Copy>(&self, name: &str) -> Option<T> {
        // SAFETY: the caller answers for the type.
        unsafe { self.library.get::<T>(name) }.ok().map(|symbol| *symbol)
    }

    fn explain(&self, code: c_int) -> String {
        type Explain = unsafe extern "C" fn(c_int) -> *const c_char;
        // SAFETY: the type of nvml.h.
        let Some(explain) = (unsafe { self.call::<Explain>("nvmlErrorString") }) else {
            return format!("code {code}");
        };
        // SAFETY: it takes any number and returns a constant text, or null.
        let text = unsafe { explain(code) };
        if text.is_null() {
            return format!("code {code}");
        }
        // SAFETY: not null, and NVML's texts end with a zero.
        format!("{} ({code})", unsafe { CStr::from_ptr(text) }.to_string_lossy())
    }

    /// One number that `name` writes for `device`.
    fn number<T: Copy + Default>(&self, name: &str, device: Device) -> Option<T> {
        type Call<T> = unsafe extern "C" fn(Device, *mut T) -> c_int;
        // SAFETY: used below only for entry points that take a device and the address of one `T`.
        let call = unsafe { self.call::<Call<T>>(name) }?;
        let mut value = T::default();
        // SAFETY: the device is NVML's own handle, and the value outlives the call.
        (unsafe { call(device, &raw mut value) } == SUCCESS).then_some(value)
    }

    /// Two numbers.
    fn pair<T: Copy + Default>(&self, name: &str, device: Device) -> Option<(T, T)> {
        type Call<T> = unsafe extern "C" fn(Device, *mut T, *mut T) -> c_int;
        // SAFETY: used below only for entry points that take a device and the addresses of two `T`.
        let call = unsafe { self.call::<Call<T>>(name) }?;
        let (mut a, mut b) = (T::default(), T::default());
        // SAFETY: as above.
        (unsafe { call(device, &raw mut a, &raw mut b) } == SUCCESS).then_some((a, b))
    }

    /// A number for one argument more.
    fn with<T: Copy + Default>(
        &self,
        name: &str,
        device: Device,
        argument: c_uint,
    ) -> Result<T, Option<c_int>> {
        type Call<T> = unsafe extern "C" fn(Device, c_uint, *mut T) -> c_int;
        // SAFETY: used below only for entry points that take a device, one unsigned number (or an enumeration, which is one) and the
        // address of one `T`.
        let call = unsafe { self.call::<Call<T>>(name) }.ok_or(None)?;
        let mut value = T::default();
        // SAFETY: as above.
        match unsafe { call(device, argument, &raw mut value) } {
            SUCCESS => Ok(value),
            code => Err(Some(code)),
        }
    }

    /// A text.
    fn text(&self, name: &str, device: Option<Device>) -> Option<String> {
        type OfSystem = unsafe extern "C" fn(*mut c_char, c_uint) -> c_int;
        type OfDevice = unsafe extern "C" fn(Device, *mut c_char, c_uint) -> c_int;
        let mut text = [0 as c_char; 128];
        let room = text.len() as c_uint - 1;
        let code = match device {
            // SAFETY: the type of nvml.h; NVML writes at most `room` characters, and the last one stays zero.
            None => unsafe { self.call::<OfSystem>(name)?(text.as_mut_ptr(), room) },
            // SAFETY: the same.
            Some(device) => unsafe { self.call::<OfDevice>(name)?(device, text.as_mut_ptr(), room) },
        };
        (code == SUCCESS).then(|| of(&text))
    }

    /// Everything of every GPU.
    pub(super) fn read(&self) -> Result<Nvml, String> {
        type Count = unsafe extern "C" fn(*mut c_uint) -> c_int;
        type Handle = unsafe extern "C" fn(c_uint, *mut Device) -> c_int;
        // SAFETY: the types of nvml.h.
        let (count, handle) = unsafe {
            (
                self.call::<Count>("nvmlDeviceGetCount_v2"),
                self.call::<Handle>("nvmlDeviceGetHandleByIndex_v2"),
            )
        };
        let (count, handle) = count.zip(handle).ok_or("it lists no devices: too old")?;
        let mut gpus: c_uint = 0;
        // SAFETY: NVML writes one number.
        let code = unsafe { count(&raw mut gpus) };
        if code != SUCCESS {
            return Err(format!("nvmlDeviceGetCount_v2 failed: {}", self.explain(code)));
        }
        let mut devices: Vec<(u32, Device)> = Vec::new();
        let mut nvml = Nvml {
            driver: self.text("nvmlSystemGetDriverVersion", None),
            cuda: self.cuda(),
            ..Nvml::default()
        };
        for index in 0..gpus.min(GPUS) {
            let mut device: Device = std::ptr::null_mut();
            // SAFETY: NVML writes one handle.
            let code = unsafe { handle(index, &raw mut device) };
            if code == SUCCESS {
                nvml.gpus.push(self.gpu(index, device));
                devices.push((index, device));
            } else {
                nvml.refused.insert(index, self.explain(code));
            }
        }
        nvml.p2p = self.peers(&devices);
        Ok(nvml)
    }

    fn cuda(&self) -> Option<u32> {
        type Call = unsafe extern "C" fn(*mut c_int) -> c_int;
        // SAFETY: the type of nvml.h.
        let call = unsafe { self.call::<Call>("nvmlSystemGetCudaDriverVersion_v2") }?;
        let mut version = 0;
        // SAFETY: NVML writes one number.
        (unsafe { call(&raw mut version) } == SUCCESS).then_some(version as u32)
    }

    fn gpu(&self, index: u32, device: Device) -> NvmlGpu {
        let links: Vec<Result<c_uint, c_int>> =
            (0..LINKS).map_while(|link| self.link(device, link)).collect();
        // A GPU that answers for none of them tells no number either.
        let links: Vec<c_uint> = if links.iter().any(Result::is_ok) {
            links.into_iter().map(Result::unwrap_or_default).collect()
        } else {
            Vec::new()
        };
        let memory: Option<MemoryInfo> = self.memory("nvmlDeviceGetMemoryInfo", device);
        let both = |now: &str, most: &str| self.number::<c_uint>(now, device).zip(self.number(most, device));
        let remapped = self.remapped(device);
        NvmlGpu {
            index,
            name: self.text("nvmlDeviceGetName", Some(device)).unwrap_or_default(),
            pci: self.pci(device).unwrap_or_default(),
            compute: self
                .pair::<c_int>("nvmlDeviceGetCudaComputeCapability", device)
                .map(|(a, b)| (a as u32, b as u32)),
            nvlinks_up: (!links.is_empty()).then(|| links.iter().filter(|state| **state == 1).count() as u32),
            nvlinks: (!links.is_empty()).then_some(links.len() as u32),
            nvlink_errors: self.link_errors(device, links.len() as u32),
            fabric: self.fabric(device),
            ecc_uncorrected: self.ecc(device),
            remap_pending: remapped.map(|(pending, _)| pending),
            remap_failed: remapped.map(|(_, failed)| failed),
            clock_reasons: self
                .number("nvmlDeviceGetCurrentClocksEventReasons", device)
                .or_else(|| self.number("nvmlDeviceGetCurrentClocksThrottleReasons", device)),
            temperature: self.with("nvmlDeviceGetTemperature", device, 0).ok(),
            persistence: self.number::<c_uint>("nvmlDeviceGetPersistenceMode", device).map(|mode| mode == 1),
            mig: self.pair::<c_uint>("nvmlDeviceGetMigMode", device).map(|(current, _)| current == 1),
            compute_mode: self.number("nvmlDeviceGetComputeMode", device),
            pcie_generation: both(
                "nvmlDeviceGetCurrPcieLinkGeneration",
                "nvmlDeviceGetMaxPcieLinkGeneration",
            ),
            pcie_width: both("nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkWidth"),
            bar1_total: self.memory("nvmlDeviceGetBAR1MemoryInfo", device).map(|memory| memory.total),
            memory_total: memory.as_ref().map(|memory| memory.total),
            memory_free: memory.as_ref().map(|memory| memory.free),
            processes: self.processes(device),
        }
    }

    fn pci(&self, device: Device) -> Option<String> {
        type Call = unsafe extern "C" fn(Device, *mut PciInfo) -> c_int;
        // SAFETY: the type of nvml.h.
        let call = unsafe { self.call::<Call>("nvmlDeviceGetPciInfo_v3") }?;
        let mut info = PciInfo {
            bus_id_legacy: [0; 16],
            domain: 0,
            bus: 0,
            device: 0,
            device_id: 0,
            subsystem_id: 0,
            bus_id: [0; 32],
        };
        // SAFETY: NVML writes the structure, whose size is asserted above.
        let code = unsafe { call(device, &raw mut info) };
        // The function is always 0 for a GPU.
        (code == SUCCESS).then(|| format!("{:04x}:{:02x}:{:02x}.0", info.domain, info.bus, info.device))
    }

    /// Whether a link is up: 1 up, 0 down, or NVML's code where it fails to tell of a link that is there. None where the number is that
    /// of no link.
    fn link(&self, device: Device, link: c_uint) -> Option<Result<c_uint, c_int>> {
        match self.with("nvmlDeviceGetNvLinkState", device, link) {
            Ok(state) => Some(Ok(state)),
            Err(None | Some(INVALID_ARGUMENT | NOT_SUPPORTED)) => None,
            Err(Some(code)) => Some(Err(code)),
        }
    }

    fn link_errors(&self, device: Device, links: u32) -> Option<u64> {
        type Call = unsafe extern "C" fn(Device, c_uint, c_uint, *mut u64) -> c_int;
        // SAFETY: the type of nvml.h.
        let call = unsafe { self.call::<Call>("nvmlDeviceGetNvLinkErrorCounter") }?;
        let mut sum = None;
        for (link, counter) in
            (0..links).flat_map(|link| (0..LINK_ERRORS).map(move |counter| (link, counter)))
        {
            let mut value = 0;
            // SAFETY: NVML writes one number.
            if unsafe { call(device, link, counter, &raw mut value) } == SUCCESS {
                sum = Some(sum.unwrap_or(0_u64).saturating_add(value));
            }
        }
        sum
    }

    fn fabric(&self, device: Device) -> Option<FabricState> {
        type Call = unsafe extern "C" fn(Device, *mut FabricInfo) -> c_int;
        // SAFETY: the type of nvml.h.
        let call = unsafe { self.call::<Call>("nvmlDeviceGetGpuFabricInfoV") }?;
        let mut info =
            FabricInfo { version: FABRIC_V2, cluster: [0; 16], status: 0, clique: 0, state: 0, health: 0 };
        // SAFETY: the version word tells NVML which structure this is.
        if unsafe { call(device, &raw mut info) } != SUCCESS {
            return None;
        }
        let cluster: Vec<String> = info.cluster.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(FabricState {
            state: u32::from(info.state),
            status: info.status,
            health: Some(info.health),
            clique: Some(info.clique),
            cluster: cluster.concat(),
        })
    }

    fn ecc(&self, device: Device) -> Option<u64> {
        type Call = unsafe extern "C" fn(Device, c_uint, c_uint, *mut u64) -> c_int;
        // SAFETY: the type of nvml.h.
        let call = unsafe { self.call::<Call>("nvmlDeviceGetTotalEccErrors") }?;
        let mut errors = 0;
        // SAFETY: NVML writes one number. 1 is uncorrected, 0 is since the driver's load.
        (unsafe { call(device, 1, 0, &raw mut errors) } == SUCCESS).then_some(errors)
    }

    fn remapped(&self, device: Device) -> Option<(bool, bool)> {
        type Call = unsafe extern "C" fn(Device, *mut c_uint, *mut c_uint, *mut c_uint, *mut c_uint) -> c_int;
        // SAFETY: the type of nvml.h.
        let call = unsafe { self.call::<Call>("nvmlDeviceGetRemappedRows") }?;
        let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
        // SAFETY: NVML writes four numbers.
        let code = unsafe {
            call(device, &raw mut corrected, &raw mut uncorrected, &raw mut pending, &raw mut failed)
        };
        (code == SUCCESS).then_some((pending != 0, failed != 0))
    }

    fn memory(&self, name: &str, device: Device) -> Option<MemoryInfo> {
        type Call = unsafe extern "C" fn(Device, *mut MemoryInfo) -> c_int;
        // SAFETY: the type that both entry points have.
        let call = unsafe { self.call::<Call>(name) }?;
        let mut info = MemoryInfo::default();
        // SAFETY: NVML writes three numbers.
        (unsafe { call(device, &raw mut info) } == SUCCESS).then_some(info)
    }

    fn processes(&self, device: Device) -> Vec<u32> {
        type Call = unsafe extern "C" fn(Device, *mut c_uint, *mut ProcessInfo) -> c_int;
        // SAFETY: the type of nvml.h.
        let Some(call) = (unsafe { self.call::<Call>("nvmlDeviceGetComputeRunningProcesses_v3") }) else {
            return Vec::new();
        };
        let mut list = [ProcessInfo::default(); 256];
        let mut count = list.len() as c_uint;
        // SAFETY: NVML writes at most `count` entries and the number there are.
        let code = unsafe { call(device, &raw mut count, list.as_mut_ptr()) };
        let filled =
            if code == SUCCESS || code == INSUFFICIENT_SIZE { (count as usize).min(list.len()) } else { 0 };
        list.iter().take(filled).map(|process| process.pid).filter(|pid| *pid != 0).collect()
    }

    fn peers(&self, devices: &[(u32, Device)]) -> Vec<P2p> {
        type Call = unsafe extern "C" fn(Device, Device, c_uint, *mut c_uint) -> c_int;
        // SAFETY: the type of nvml.h.
        let Some(call) = (unsafe { self.call::<Call>("nvmlDeviceGetP2PStatus") }) else { return Vec::new() };
        let mut pairs = Vec::new();
        for &(from, first) in devices {
            for &(to, second) in devices.iter().filter(|(to, _)| *to != from) {
                let mut nvlink = 0;
                // SAFETY: NVML writes one number.
                if unsafe { call(first, second, P2P_NVLINK, &raw mut nvlink) } == SUCCESS {
                    pairs.push(P2p { from, to, nvlink });
                }
            }
        }
        pairs
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        type Shutdown = unsafe extern "C" fn() -> c_int;
        // SAFETY: the type of nvml.h; every handle was used before.
        if let Some(shutdown) = unsafe { self.call::<Shutdown>("nvmlShutdown") } {
            // SAFETY: NVML was started by `open`, or its start failed, and then this only returns an error.
            unsafe { shutdown() };
        }
    }
}

fn of(text: &[c_char]) -> String {
    let bytes: Vec<u8> = text.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

//! The driver's entry points that this crate calls, by their versioned names.
//!
//! Result codes and enumerations are plain integers: a newer driver may return a value that no header here has, and
//! that must stay an ordinary number. Opaque handles are pointer-sized integers, which travel like pointers in the
//! C calling convention and may pass between threads, as the driver allows.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::dynlib::entry_points;
use crate::launch::RawLaunch;
use crate::vmm::{RawAccess, RawAllocation};

/// A context, stream, event, module or function of the driver.
pub(crate) type Handle = usize;
/// An address in device memory.
pub(crate) type DevicePointer = u64;
/// `CUmemGenericAllocationHandle`, an integer of 64 bits everywhere.
pub(crate) type AllocationHandle = u64;

entry_points! {
    /// The driver.
    DriverApi {
        init = "cuInit", "CUDA 2.0", (c_uint);
        error_name = "cuGetErrorName", "CUDA 6.0", (c_int, *mut *const c_char);
        error_string = "cuGetErrorString", "CUDA 6.0", (c_int, *mut *const c_char);

        device_count = "cuDeviceGetCount", "CUDA 2.0", (*mut c_int);
        device_get = "cuDeviceGet", "CUDA 2.0", (*mut c_int, c_int);
        device_name = "cuDeviceGetName", "CUDA 2.0", (*mut c_char, c_int, c_int);
        device_attribute = "cuDeviceGetAttribute", "CUDA 2.0", (*mut c_int, c_int, c_int);
        device_uuid = "cuDeviceGetUuid_v2", "CUDA 11.4", (*mut [u8; 16], c_int);
        device_memory = "cuDeviceTotalMem_v2", "CUDA 3.2", (*mut usize, c_int);

        device_peer = "cuDeviceCanAccessPeer", "CUDA 4.0", (*mut c_int, c_int, c_int);

        context_retain = "cuDevicePrimaryCtxRetain", "CUDA 7.0", (*mut Handle, c_int);
        context_release = "cuDevicePrimaryCtxRelease_v2", "CUDA 11.0", (c_int);
        context_set = "cuCtxSetCurrent", "CUDA 4.0", (Handle);
        context_get = "cuCtxGetCurrent", "CUDA 4.0", (*mut Handle);
        context_synchronize = "cuCtxSynchronize", "CUDA 2.0", ();

        memory_info = "cuMemGetInfo_v2", "CUDA 3.2", (*mut usize, *mut usize);
        memory_alloc = "cuMemAlloc_v2", "CUDA 3.2", (*mut DevicePointer, usize);
        memory_free = "cuMemFree_v2", "CUDA 3.2", (DevicePointer);
        copy_to_device = "cuMemcpyHtoD_v2", "CUDA 3.2", (DevicePointer, *const c_void, usize);
        copy_to_host = "cuMemcpyDtoH_v2", "CUDA 3.2", (*mut c_void, DevicePointer, usize);
        copy_async = "cuMemcpyAsync", "CUDA 4.0", (DevicePointer, DevicePointer, usize, Handle);
        fill_async = "cuMemsetD8Async", "CUDA 3.2", (DevicePointer, u8, usize, Handle);

        pointer_attribute = "cuPointerGetAttribute", "CUDA 4.0", (*mut c_void, c_int, DevicePointer);

        host_alloc = "cuMemHostAlloc", "CUDA 2.2", (*mut *mut c_void, usize, c_uint);
        host_free = "cuMemFreeHost", "CUDA 2.0", (*mut c_void);
        host_pointer = "cuMemHostGetDevicePointer_v2", "CUDA 3.2", (*mut DevicePointer, *mut c_void, c_uint);

        vmm_granularity = "cuMemGetAllocationGranularity", "CUDA 10.2", (*mut usize, *const RawAllocation, c_int);
        vmm_create = "cuMemCreate", "CUDA 10.2", (*mut AllocationHandle, usize, *const RawAllocation, u64);
        vmm_release = "cuMemRelease", "CUDA 10.2", (AllocationHandle);
        vmm_export = "cuMemExportToShareableHandle", "CUDA 10.2", (*mut c_void, AllocationHandle, c_int, u64);
        vmm_import = "cuMemImportFromShareableHandle", "CUDA 10.2", (*mut AllocationHandle, *mut c_void, c_int);
        vmm_reserve = "cuMemAddressReserve", "CUDA 10.2",
            (*mut DevicePointer, usize, usize, DevicePointer, u64);
        vmm_unreserve = "cuMemAddressFree", "CUDA 10.2", (DevicePointer, usize);
        vmm_map = "cuMemMap", "CUDA 10.2", (DevicePointer, usize, usize, AllocationHandle, u64);
        vmm_unmap = "cuMemUnmap", "CUDA 10.2", (DevicePointer, usize);
        vmm_access = "cuMemSetAccess", "CUDA 10.2", (DevicePointer, usize, *const RawAccess, usize);

        stream_create = "cuStreamCreateWithPriority", "CUDA 5.5", (*mut Handle, c_uint, c_int);
        stream_destroy = "cuStreamDestroy_v2", "CUDA 4.0", (Handle);
        stream_synchronize = "cuStreamSynchronize", "CUDA 2.0", (Handle);
        stream_query = "cuStreamQuery", "CUDA 2.0", (Handle);
        stream_wait_event = "cuStreamWaitEvent", "CUDA 3.2", (Handle, Handle, c_uint);

        stream_is_capturing = "cuStreamIsCapturing", "CUDA 10.0", (Handle, *mut c_int);
        capture_mode = "cuThreadExchangeStreamCaptureMode", "CUDA 10.1", (*mut c_int);
        capture_begin = "cuStreamBeginCapture_v2", "CUDA 10.1", (Handle, c_int);
        capture_end = "cuStreamEndCapture", "CUDA 10.0", (Handle, *mut Handle);

        graph_instantiate = "cuGraphInstantiateWithFlags", "CUDA 11.4", (*mut Handle, Handle, u64);
        graph_launch = "cuGraphLaunch", "CUDA 10.0", (Handle, Handle);
        graph_destroy = "cuGraphDestroy", "CUDA 10.0", (Handle);
        graph_exec_destroy = "cuGraphExecDestroy", "CUDA 10.0", (Handle);

        event_create = "cuEventCreate", "CUDA 2.0", (*mut Handle, c_uint);
        event_destroy = "cuEventDestroy_v2", "CUDA 4.0", (Handle);
        event_record = "cuEventRecord", "CUDA 2.0", (Handle, Handle);
        event_query = "cuEventQuery", "CUDA 2.0", (Handle);
        event_synchronize = "cuEventSynchronize", "CUDA 2.0", (Handle);
        event_elapsed = "cuEventElapsedTime", "CUDA 2.0", (*mut f32, Handle, Handle);

        module_load = "cuModuleLoadData", "CUDA 2.0", (*mut Handle, *const c_void);
        module_unload = "cuModuleUnload", "CUDA 2.0", (Handle);
        module_function = "cuModuleGetFunction", "CUDA 2.0", (*mut Handle, Handle, *const c_char);
        function_get = "cuFuncGetAttribute", "CUDA 2.2", (*mut c_int, c_int, Handle);
        function_set = "cuFuncSetAttribute", "CUDA 9.0", (Handle, c_int, c_int);
        launch = "cuLaunchKernelEx", "CUDA 11.8",
            (*const RawLaunch, Handle, *mut *mut c_void, *mut *mut c_void);
    }
}

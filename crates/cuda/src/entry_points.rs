//! The driver's entry points that this crate calls, by their versioned names.
//!
//! Result codes and enumerations are plain integers: a newer driver may return a value that no header here has, and
//! that must stay an ordinary number. Opaque handles are pointer-sized integers, which travel like pointers in the
//! C calling convention and may pass between threads, as the driver allows.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::dynlib::entry_points;
use crate::launch::RawLaunch;

/// A context, stream, event, module or function of the driver.
pub(crate) type Handle = usize;
/// An address in device memory.
pub(crate) type DevicePointer = u64;

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

        stream_create = "cuStreamCreateWithPriority", "CUDA 5.5", (*mut Handle, c_uint, c_int);
        stream_destroy = "cuStreamDestroy_v2", "CUDA 4.0", (Handle);
        stream_synchronize = "cuStreamSynchronize", "CUDA 2.0", (Handle);
        stream_query = "cuStreamQuery", "CUDA 2.0", (Handle);
        stream_wait_event = "cuStreamWaitEvent", "CUDA 3.2", (Handle, Handle, c_uint);

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

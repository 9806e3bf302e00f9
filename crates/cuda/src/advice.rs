//! What to do about the driver's error codes.

/// `CUDA_ERROR_NO_DEVICE`.
pub(crate) const NO_DEVICE: i32 = 100;
/// `CUDA_ERROR_NOT_READY`.
pub(crate) const NOT_READY: i32 = 600;

/// The next step after error `code`.
pub(crate) fn advice(code: i32) -> &'static str {
    match code {
        2 => "free device memory, or use fewer tokens or a smaller hidden size",
        3 | 4 => "the driver is shutting down or was never started in this process",
        34 => {
            "this is the toolkit's stub of libcuda, not a driver: take the stubs folder out of LD_LIBRARY_PATH"
        }
        46 => {
            "another process holds the device in exclusive mode: end it, or ask the administrator for the default \
             compute mode (`nvidia-smi -q -d COMPUTE`)"
        }
        NO_DEVICE => {
            "look at CUDA_VISIBLE_DEVICES and `nvidia-smi`; a container must be started with its GPUs (`--gpus all`)"
        }
        101 => "the ordinal is not one of the visible devices: look at CUDA_VISIBLE_DEVICES",
        200 | 209 | 218 | 222 => {
            "the compiled kernel does not fit this device or driver: kernels that a release embeds need a driver as new as \
             the NVRTC that made them (580 for 13.0), others an NVRTC no newer than the driver's CUDA version; install \
             that driver, or set EXPERTRAIL_NVRTC to an older NVRTC"
        }
        700 | 715..=719 => "a kernel failed and the context is lost: end the process",
        800 | 801 => "the device, driver or its configuration does not allow this",
        802 => {
            "the GPU fabric is not up: wait for, or start, the service nvidia-fabricmanager, and see `nvidia-smi -q` \
             under Fabric"
        }
        803 => {
            "the loaded libcuda and the kernel driver are of different versions: reboot after a driver update, or take \
             the other libcuda (a compat folder) out of LD_LIBRARY_PATH"
        }
        804 => {
            "the CUDA compat libcuda does not serve this device: take its folder out of LD_LIBRARY_PATH, or install \
             a newer driver"
        }
        805..=810 => {
            "MPS is in the way: look at nvidia-cuda-mps-control's log, or unset CUDA_MPS_PIPE_DIRECTORY"
        }
        _ => "look at `nvidia-smi` and the kernel log (`dmesg`, lines with NVRM or Xid)",
    }
}

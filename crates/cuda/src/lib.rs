//! The GPU backend: ranks whose GPUs share an NVLink domain dispatch and combine through it.
//!
//! Nothing here links against CUDA. A program that uses this crate builds and starts on a machine without it, and
//! whatever is missing is a typed error that names what was looked for, where, and what to install. Below the
//! communicator lie the driver and the run-time compiler NVRTC, opened when they are wanted.

mod address;
mod advice;
mod agreement;
mod arch;
mod assemble;
mod build_error;
mod cache;
mod call;
mod combine;
mod communicator;
mod context;
mod cubin;
mod device;
mod dispatch;
mod driver;
mod dynlib;
mod entry_points;
mod error;
mod fnv;
mod heap;
mod kernel_source;
pub mod kernels;
mod launch;
mod manifest;
mod memory;
mod mesh;
mod moment;
mod nvrtc;
mod output;
mod pinned;
mod place;
mod pool;
mod protocol;
mod resources;
mod search;
mod stream;
mod tune;
mod version;
mod vmm;
mod world;

pub use arch::Arch;
pub use assemble::CudaConfig;
pub use build_error::BuildError;
pub use cache::{Cache, CacheError, Key};
pub use call::{CudaCombine, CudaDispatch, DeviceIds, DevicePayload, DeviceRows, DeviceSlice, Scales};
pub use combine::MAX_BIASES;
pub use communicator::{CudaCommunicator, CudaPhases, CudaStats};
pub use context::Context;
pub use cubin::Cubin;
pub use device::{Attribute, Device, DeviceIdentity};
pub use driver::{Driver, OLDEST_DRIVER};
pub use dynlib::Tried;
pub use error::{CallError, CudaError, LoadError, NvrtcError, Result};
pub use heap::SymmetricHeap;
pub use kernel_source::{Embedded, Fingerprint, Found, Kernels, Origin};
pub use launch::{Function, FunctionAttribute, Launch, Module};
pub use manifest::{MANIFEST, ManifestEntry, read_manifest, write_manifest};
pub use memory::DeviceMemory;
pub use mesh::{Ended, Mesh, MeshWatch};
pub use nvrtc::{Compiled, Measured, Nvrtc, OLDEST_NVRTC, Program};
pub use output::{CudaCombined, CudaHandle, CudaLayout, CudaReceived, CudaRows};
pub use pinned::Pinned;
pub use place::{Placed, choose};
pub use resources::Resources;
pub use search::Search;
pub use stream::{Event, Graph, Stream};
pub use tune::default_sms;
pub use version::Version;
pub use vmm::{HandleTypes, Mapping, Physical, granularity, handle_types};

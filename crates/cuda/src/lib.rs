//! The GPU backend's ground: the CUDA driver and the run-time compiler NVRTC, opened when they are wanted.
//!
//! Nothing here links against CUDA. A program that uses this crate builds and starts on a machine without it, and
//! whatever is missing is a typed error that names what was looked for, where, and what to install.

mod advice;
mod arch;
mod cache;
mod context;
mod cubin;
mod device;
mod driver;
mod dynlib;
mod entry_points;
mod error;
pub mod kernels;
mod launch;
mod memory;
mod nvrtc;
mod search;
mod stream;
mod version;

pub use arch::Arch;
pub use cache::{Cache, CacheError, Key};
pub use context::Context;
pub use cubin::Cubin;
pub use device::{Attribute, Device};
pub use driver::{Driver, OLDEST_DRIVER};
pub use dynlib::Tried;
pub use error::{CallError, CudaError, LoadError, NvrtcError, Result};
pub use launch::{Function, FunctionAttribute, Launch, Module};
pub use memory::DeviceMemory;
pub use nvrtc::{Compiled, Nvrtc, OLDEST_NVRTC, Program};
pub use search::Search;
pub use stream::{Event, Stream};
pub use version::Version;

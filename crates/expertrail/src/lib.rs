//! Expert-parallel communication for Mixture-of-Experts models: **dispatch** sends every token to the ranks of its
//! experts, **combine** brings what the experts made of it back and sums it.
//!
//! ```no_run
//! use expertrail::{Bf16, Communicator, Group, Routing};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let group = Group::from_env()?; // torchrun, srun, mpirun, Kubernetes or `expertrail` started this rank
//! let comm = Communicator::builder(&group).experts(256).top_k(8).hidden(7168).max_tokens(4096).build()?;
//!
//! let x = vec![Bf16::from_f32(1.0); 4096 * 7168];
//! let routing = Routing::new(vec![0; 4096 * 8], 8, 256)?;
//! let received = comm.dispatch(&x, &routing)?; // rows for my experts, by (source rank, source token)
//! let expert_out = received.bf16().unwrap_or_default(); // ... what the experts make of them
//! let out = comm.combine(expert_out, received.handle())?; // one row for each of my tokens
//! assert_eq!(out.rows().len(), x.len());
//! # Ok(())
//! # }
//! ```
//!
//! * Results are **bit-exact**: for one declared topology every backend, instruction set and run gives the bits of
//!   the oracle in [`core`](expertrail_core::oracle).
//! * Errors name the rank, the peer, the step and the call; see [`Error`]. A rank that dies is named in every
//!   survivor within two seconds.
//! * Every call is collective: all ranks make the same calls in the same order.
//!
//! Two backends: on CPUs ranks are processes or threads of one machine and rows lie in host memory, as above; on NVIDIA
//! GPUs there is one process for each GPU of one machine, and rows lie in device memory:
//!
//! ```no_run
//! use expertrail::cuda::{CudaCombine, CudaDispatch, DeviceIds, DeviceMemory, DevicePayload, DeviceRows, DeviceSlice};
//! use expertrail::{Communicator, Group};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let group = Group::from_env()?;
//! let comm = Communicator::builder(&group).experts(256).top_k(8).hidden(7168).max_tokens(4096).build_cuda()?;
//!
//! let x = DeviceMemory::new(comm.context(), 4096 * 7168 * 2)?; // BF16 rows
//! let ids = DeviceMemory::new(comm.context(), 4096 * 8 * 8)?; // 64-bit expert ids
//! let payload = DevicePayload::Bf16(DeviceRows::new(DeviceSlice::of(&x)));
//! let received = comm.dispatch(&CudaDispatch::new(payload, 4096, DeviceIds::I64(DeviceSlice::of(&ids))))?;
//! let expert_out = DeviceRows::new(received.data()); // ... what the experts make of them
//! let out = comm.combine(&CudaCombine::new(expert_out, received.handle()))?; // on the communicator's stream
//! comm.synchronize()?;
//! # drop(out);
//! # Ok(())
//! # }
//! ```
//!
//! Nothing links against CUDA: the driver is opened when a communicator for GPUs is built.

mod communicator;
pub mod config;
mod error;
mod rails;

pub use communicator::{Backend, Builder, Communicator};
pub use config::Config;
pub use error::{Error, Result};
pub use expertrail_core as core;
pub use expertrail_core::{Bf16, CoreError, Dtype, Handle, Layout, Placement, Routing, Shape, Topology};
pub use expertrail_cuda as cuda;
pub use expertrail_cuda::{CudaCommunicator, CudaError};
pub use expertrail_fabric as fabric;
pub use expertrail_group as group;
pub use expertrail_group::{CancelToken, Group, GroupError};
pub use expertrail_host as host;
pub use expertrail_host::{
    Combine, Combined, Crossing, Dispatch, HostError, Payload, RailConfig, Received, Rows, Simd,
};
pub use rails::{RailPlace, Rails};

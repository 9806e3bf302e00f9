//! The communicator that users hold, over whichever backend moves the rows.

use std::time::Duration;

use expertrail_core::{Bf16, Handle, Routing, Shape, Topology};
use expertrail_cuda::{CudaCommunicator, CudaConfig};
use expertrail_fabric::FabricError;
use expertrail_group::{CancelToken, Group};
use expertrail_host::{
    Combine, Combined, Crossing, Dispatch, HostCommunicator, HostConfig, Payload, Received, Rows, Simd,
    Stores,
};

use crate::config::Config;
use crate::error::{Error, Result};

/// What moves the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// What the builder's last call makes: [`Builder::build`] the host backend, [`Builder::build_cuda`] the GPUs'.
    #[default]
    Auto,
    /// CPUs of one machine, through shared memory.
    Host,
    /// NVIDIA GPUs of one machine, one for each rank: [`Builder::build_cuda`].
    Cuda,
}

/// Settings of a [`Communicator`]; made by [`Communicator::builder`].
#[derive(Clone, Debug)]
pub struct Builder<'a> {
    group: &'a Group,
    backend: Backend,
    ranks_per_node: Option<usize>,
    shape: Shape,
    live_outputs: usize,
    deadline: Duration,
    simd: Option<Simd>,
    stores: Option<Stores>,
    memory_limit: Option<u64>,
    cancel: CancelToken,
}

impl Builder<'_> {
    /// Number of experts, placed on the ranks in contiguous blocks. They need not divide by the ranks.
    #[must_use]
    pub fn experts(mut self, experts: usize) -> Self {
        self.shape.experts = experts;
        self
    }

    /// Choices per token, at most 32.
    #[must_use]
    pub fn top_k(mut self, top_k: usize) -> Self {
        self.shape.top_k = top_k;
        self
    }

    /// Elements of a row: a multiple of 8, for FP8 of 128.
    #[must_use]
    pub fn hidden(mut self, hidden: usize) -> Self {
        self.shape.hidden = hidden;
        self
    }

    /// The most tokens that any rank sends in one call.
    #[must_use]
    pub fn max_tokens(mut self, max_tokens: usize) -> Self {
        self.shape.max_tokens = max_tokens;
        self
    }

    /// All sizes at once.
    #[must_use]
    pub fn shape(mut self, shape: Shape) -> Self {
        self.shape = shape;
        self
    }

    /// What moves the rows.
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Declares nodes of this many ranks: combine rounds each node's sum. By default all ranks are one node.
    #[must_use]
    pub fn ranks_per_node(mut self, ranks: usize) -> Self {
        self.ranks_per_node = Some(ranks);
        self
    }

    /// How many dispatch outputs will be alive at once (training keeps one per layer); sizes the pool. Default 2.
    #[must_use]
    pub fn live_outputs(mut self, outputs: usize) -> Self {
        self.live_outputs = outputs;
        self
    }

    /// How long any wait for another rank may take. Default 60 s.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Forces an instruction set of the CPU backend (`EXPERTRAIL_SIMD` does too).
    #[must_use]
    pub fn simd(mut self, simd: Simd) -> Self {
        self.simd = Some(simd);
        self
    }

    /// Forces the kind of stores of the CPU backend.
    #[must_use]
    pub fn stores(mut self, stores: Stores) -> Self {
        self.stores = Some(stores);
        self
    }

    /// The most shared memory that all ranks of this host may need together, or the most symmetric device memory of
    /// each rank on GPUs; more is refused at build.
    #[must_use]
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = Some(bytes);
        self
    }

    /// Takes what a [`Config`] sets for a communicator: deadline and instruction set.
    #[must_use]
    pub fn config(self, config: &Config) -> Self {
        self.deadline(config.deadline.value).simd(config.simd.value)
    }

    /// Stops waits from outside, as Ctrl-C does. By default the group's token.
    #[must_use]
    pub fn cancel(mut self, token: CancelToken) -> Self {
        self.cancel = token;
        self
    }

    /// Builds the communicator whose calls take slices of host memory: the CPU backend. Collective.
    ///
    /// # Errors
    /// For a shape that is not allowed, for ranks that disagree, for too little memory, and for what goes wrong
    /// between the ranks; nothing is left behind. [`Error::HostSlices`] when [`Backend::Cuda`] was chosen.
    pub fn build(self) -> Result<Communicator> {
        if self.backend == Backend::Cuda {
            return Err(Error::HostSlices);
        }
        let config = self.host_config()?;
        Ok(Communicator { host: HostCommunicator::build(self.group, &config)? })
    }

    /// Builds the communicator of the CPU backend over several nodes: ranks of one declared node
    /// ([`Builder::ranks_per_node`]) share a machine's memory, and each rank reaches the rank of its place on every other
    /// node through `crossing`, its own open endpoint. A rank that could not open one gives the error here, so that the
    /// others hear of it. Collective.
    ///
    /// # Errors
    /// As [`Builder::build`]; for a topology of one node; for what the network says.
    pub fn build_across(self, crossing: std::result::Result<Crossing, FabricError>) -> Result<Communicator> {
        if self.backend == Backend::Cuda {
            return Err(Error::HostSlices);
        }
        let config = self.host_config().inspect_err(|error| {
            HostCommunicator::decline_across(self.group, &error.to_string());
        })?;
        Ok(Communicator { host: HostCommunicator::build_across(self.group, &config, crossing)? })
    }

    /// Builds the communicator whose calls take device memory: one process (or thread) for each GPU of one machine. The
    /// driver and, where this program embeds no kernels for the device, NVRTC are opened now. Collective.
    ///
    /// [`Builder::simd`] and [`Builder::stores`] have no meaning here.
    ///
    /// # Errors
    /// As [`Builder::build`], and when there is no driver, no device for a rank, or no way from one device to another;
    /// the message names what was looked for. [`Error::DeviceSlices`] when [`Backend::Host`] was chosen.
    pub fn build_cuda(self) -> Result<CudaCommunicator> {
        if self.backend == Backend::Host {
            return Err(Error::DeviceSlices);
        }
        let config = CudaConfig {
            live_outputs: self.live_outputs,
            deadline: self.deadline,
            memory_limit: self.memory_limit,
            cancel: self.cancel.clone(),
            ..CudaConfig::new(self.topology()?, self.shape)
        };
        Ok(CudaCommunicator::build(self.group, &config)?)
    }

    fn host_config(&self) -> Result<HostConfig> {
        Ok(HostConfig {
            live_outputs: self.live_outputs,
            deadline: self.deadline,
            simd: self.simd,
            stores: self.stores,
            memory_limit: self.memory_limit,
            cancel: self.cancel.clone(),
            ..HostConfig::new(self.topology()?, self.shape)
        })
    }

    fn topology(&self) -> Result<Topology> {
        let ranks = self.group.size();
        Ok(Topology::new(ranks, self.ranks_per_node.unwrap_or(ranks))?)
    }
}

/// Ranks that dispatch and combine rows in host memory. All calls are collective. Its sister for device memory is
/// [`CudaCommunicator`], made by [`Builder::build_cuda`].
#[derive(Debug)]
pub struct Communicator {
    host: HostCommunicator,
}

impl Communicator {
    /// Settings for a communicator of all ranks of `group`: no experts yet, one node, two live outputs, 60 s.
    pub fn builder(group: &Group) -> Builder<'_> {
        Builder {
            group,
            backend: Backend::Auto,
            ranks_per_node: None,
            shape: Shape { max_tokens: 0, hidden: 0, top_k: 0, experts: 0 },
            live_outputs: 2,
            deadline: Duration::from_mins(1),
            simd: None,
            stores: None,
            memory_limit: None,
            cancel: group.cancel_token().clone(),
        }
    }

    /// Sends BF16 rows `x` (`[tokens, hidden]`) to the ranks of their experts, and gives the rows that arrive here in
    /// order of (source rank, source token).
    ///
    /// # Errors
    /// Misuse (on this or another rank) moves nothing and leaves the communicator usable; a dead, gone or late rank
    /// ends it, and every later call gives the same error.
    pub fn dispatch(&self, x: &[Bf16], routing: &Routing) -> Result<Received> {
        self.dispatch_with(&Dispatch::new(Payload::Bf16(x), routing))
    }

    /// Dispatch with every choice: FP8, weights, expert-major layout, cached handle, worst-case rows.
    ///
    /// # Errors
    /// As [`Communicator::dispatch`].
    pub fn dispatch_with(&self, args: &Dispatch<'_>) -> Result<Received> {
        Ok(self.host.dispatch(args)?)
    }

    /// Sums `rows` (`[handle.rows(), hidden]`, one for each received row) at their tokens: `[tokens, hidden]`.
    ///
    /// # Errors
    /// As [`Communicator::dispatch`].
    pub fn combine(&self, rows: &[Bf16], handle: &Handle) -> Result<Combined> {
        self.combine_with(&Combine::new(rows, handle))
    }

    /// Combine with every choice: row weights, weights sent back, biases.
    ///
    /// # Errors
    /// As [`Communicator::dispatch`].
    pub fn combine_with(&self, args: &Combine<'_>) -> Result<Combined> {
        Ok(self.host.combine(args)?)
    }

    /// Combine into the caller's memory, `[tokens, hidden]`.
    ///
    /// # Errors
    /// As [`Communicator::dispatch`].
    pub fn combine_into(&self, args: &Combine<'_>, out: &mut [Bf16]) -> Result<Combined> {
        Ok(self.host.combine_into(args, out)?)
    }

    /// Rows in memory that combine reads without a copy; experts should write their output there.
    ///
    /// # Errors
    /// When there is no memory for so many.
    pub fn alloc_rows(&self, rows: usize) -> Result<Rows> {
        Ok(self.host.alloc_rows(rows)?)
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// As [`Communicator::dispatch`].
    pub fn barrier(&self) -> Result<()> {
        Ok(self.host.barrier()?)
    }

    /// The failure that ended this communicator, if one did. Not collective.
    ///
    /// # Errors
    /// The first failure.
    pub fn status(&self) -> Result<()> {
        Ok(self.host.status()?)
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.host.rank()
    }

    /// The declared topology.
    pub fn topology(&self) -> Topology {
        self.host.topology()
    }

    /// The CPU backend behind this communicator, for its statistics.
    pub fn host(&self) -> &HostCommunicator {
        &self.host
    }
}

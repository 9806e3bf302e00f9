//! Putting a communicator together. Collective.

use std::hash::BuildHasher;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use expertrail_core::{Cause, Placement, Shape, Topology};
use expertrail_group::{CancelToken, DeathWatch, Group};

use crate::agreement::{agree, unreadable};
use crate::build_error::BuildError;
use crate::cache::Cache;
use crate::context::Context;
use crate::device::Attribute;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::heap::SymmetricHeap;
use crate::kernel_source::{Kernels, Origin};
use crate::kernels;
use crate::launch::{Function, FunctionAttribute};
use crate::memory::{DeviceMemory, clear};
use crate::mesh::{Ended, Mesh, MeshWatch};
use crate::moment::Events;
use crate::nvrtc::{Nvrtc, Program};
use crate::pinned::Pinned;
use crate::place;
use crate::pool::Pool;
use crate::protocol::{self, Board, MAX_EXPERTS, MAX_RANKS, RawWorld};
use crate::search::Search;
use crate::stream::Stream;
use crate::world::{Functions, GRAIN, Regions, World};

/// The most outputs a pool is sized for: one for each layer of a model of a thousand layers, four times over.
const MOST_LIVE_OUTPUTS: usize = 4096;

/// A longer deadline is taken as this one; in nanoseconds it fits 64 bits with room to add.
const LONGEST_DEADLINE: Duration = Duration::from_hours(10 * 365 * 24);

/// Settings of a communicator.
#[derive(Clone, Debug)]
pub struct CudaConfig {
    /// The declared topology; all ranks must be of one host.
    pub topology: Topology,
    /// The sizes.
    pub shape: Shape,
    /// Outputs alive at once (training keeps one per layer); sizes the pool.
    pub live_outputs: usize,
    /// How long any wait for another rank may take, on the device and on the host.
    pub deadline: Duration,
    /// The most bytes of device memory that the heap may take; more is refused at build.
    pub memory_limit: Option<u64>,
    /// Stops waits from outside.
    pub cancel: CancelToken,
    /// Seed of delays before every publish, flag and read on the device, for tests; 0 for none.
    pub stress_seed: u64,
    /// Where the driver is looked for.
    pub driver: Search,
    /// Where NVRTC is looked for, if kernels for the device are not embedded.
    pub nvrtc: Search,
}

impl CudaConfig {
    /// The defaults for a topology and shape: two live outputs, 60 s.
    pub fn new(topology: Topology, shape: Shape) -> Self {
        Self {
            topology,
            shape,
            live_outputs: 2,
            deadline: Duration::from_mins(1),
            memory_limit: None,
            cancel: CancelToken::new(),
            stress_seed: 0,
            driver: Search::driver(),
            nvrtc: Search::nvrtc(),
        }
    }
}

/// The parts of a communicator.
#[derive(Debug)]
pub(crate) struct Assembled {
    pub(crate) world: Arc<World>,
    pub(crate) watch: Option<MeshWatch>,
    pub(crate) deaths: Option<DeathWatch>,
    pub(crate) origin: Origin,
}

pub(crate) fn assemble(group: &Group, config: &CudaConfig) -> Result<Assembled> {
    let rank = group.rank();
    let checked = check(group, config).map_err(BuildError::from);
    let ((placement, regions), cards) = agree(group, "communicator build", checked, |_| card(config))?;
    same_settings(rank, &cards)?;

    let driver = Driver::load(&config.driver).map_err(BuildError::from);
    let (driver, _) = agree(group, "CUDA driver", driver, |_| Vec::new())?;
    let placed = place::choose(&driver, group)?;
    let prepared = prepare(group, config, &placed.device).map_err(BuildError::from);
    let (prepared, tokens) = agree(group, "kernels", prepared, |p| p.token.to_le_bytes().to_vec())?;
    let token: [u8; 8] = tokens[0].as_slice().try_into().map_err(|_| unreadable(rank, 0))?;

    let mesh = Mesh::connect(group, config.deadline)?;
    let heap = SymmetricHeap::create(group, &mesh, &prepared.context, regions.total)?;

    let words = group.size() * group.size() + placement.most_local_experts();
    let made = furnish(config, &prepared.context, &heap, (regions, placement, rank, words));
    // Everybody's words are zero before anybody writes to them.
    let (furniture, _) = agree(group, "communicator memory", made.map_err(BuildError::from), |_| Vec::new())?;
    let board = furniture.board.clone();
    let watch = mesh.watch(move |peer, ended| {
        board.abort(if ended == Ended::Left { Cause::Left } else { Cause::Died }, peer);
    });
    let (watch, _) = agree(group, "watch of peers", watch, |_| Vec::new())?;
    let spaces = agree(group, "process-id namespaces", Ok(()), |()| pid_namespace())?.1;
    let deaths = watch_deaths(group, &furniture.board, &spaces);

    let Prepared { context, functions, origin, sms, shared, stream, .. } = prepared;
    let Furniture { board, constants, control } = furniture;
    let world = World {
        rank,
        token: u64::from_le_bytes(token),
        topology: config.topology,
        placement,
        shape: config.shape,
        cancel: config.cancel.clone(),
        stress_seed: config.stress_seed,
        sms,
        shared,
        functions,
        board,
        constants,
        _control: control,
        regions,
        pool: Pool::new(regions.pool, regions.pool_bytes, GRAIN),
        parked: Mutex::new(Vec::new()),
        known: std::array::from_fn(|_| AtomicU64::new(0)),
        events: Events::new(&context),
        stream,
        heap,
        context,
    };
    Ok(Assembled { world: Arc::new(world), watch: Some(watch), deaths, origin })
}

/// Names the space that this process's number is of; empty where that cannot be known.
fn pid_namespace() -> Vec<u8> {
    std::fs::read_link("/proc/self/ns/pid")
        .map(|link| link.as_os_str().as_encoded_bytes().to_vec())
        .unwrap_or_default()
}

/// A closed socket tells of a death at once, but a child that the dead process forked may hold it open. So processes are
/// watched too, where they can be seen; ranks in other process-id namespaces cannot.
fn watch_deaths(group: &Group, board: &Arc<Board>, spaces: &[Vec<u8>]) -> Option<DeathWatch> {
    let (own, space) = (std::process::id(), &spaces[group.rank()]);
    // Elsewhere the same number is another process, or none.
    let seen = |&(peer, pid): &(usize, u32)| pid != own && !space.is_empty() && spaces[peer] == *space;
    let peers: Vec<(usize, u32)> = group.pids().into_iter().enumerate().filter(seen).collect();
    if peers.is_empty() {
        return None;
    }
    let board = board.clone();
    DeathWatch::new(peers, move |peer| board.abort(Cause::Died, peer)).ok()
}

/// Where the experts are and how a heap is divided, if the settings are allowed.
fn check(group: &Group, config: &CudaConfig) -> Result<(Placement, Regions)> {
    let rank = group.rank();
    let misuse = |error| CudaError::Misuse { rank, error };
    let setting =
        |name, value: usize, wanted: String| CudaError::Setting { name, value: value.to_string(), wanted };
    let ranks = config.topology.ranks();
    if ranks != group.size() {
        return Err(setting("topology ranks", ranks, format!("the group's {}", group.size())));
    }
    if ranks > MAX_RANKS {
        return Err(setting("ranks", ranks, format!("at most {MAX_RANKS}, an NVLink domain")));
    }
    config.shape.check(false).map_err(misuse)?;
    config.shape.check_rows(ranks).map_err(misuse)?;
    if config.shape.experts > MAX_EXPERTS {
        return Err(setting("experts", config.shape.experts, format!("at most {MAX_EXPERTS} on GPUs")));
    }
    if config.live_outputs > MOST_LIVE_OUTPUTS {
        return Err(setting("live_outputs", config.live_outputs, format!("at most {MOST_LIVE_OUTPUTS}")));
    }
    let placement = Placement::new(config.shape.experts, ranks).map_err(misuse)?;
    let regions = Regions::new(config.topology, &placement, &config.shape, config.live_outputs);
    let total = regions.total as u64;
    if let Some(limit) = config.memory_limit.filter(|&limit| total > limit) {
        return Err(CudaError::Setting {
            name: "memory_limit",
            value: format!("{limit} bytes"),
            wanted: format!(
                "at least {total} bytes for {} with {} live outputs",
                config.shape, config.live_outputs
            ),
        });
    }
    Ok((placement, regions))
}

/// What must be equal on all ranks, as text.
fn card(config: &CudaConfig) -> Vec<u8> {
    format!("{}\n{}\n{}", config.shape, config.topology.ranks_per_node(), config.live_outputs).into_bytes()
}

fn same_settings(rank: usize, cards: &[Vec<u8>]) -> std::result::Result<(), BuildError> {
    const WHAT: [&str; 3] = ["the shape", "ranks per node", "live outputs"];
    let texts: Vec<String> = cards.iter().map(|card| String::from_utf8_lossy(card).into_owned()).collect();
    let Some(first) = texts.first() else { return Ok(()) };
    for (b, text) in texts.iter().enumerate() {
        if text.lines().count() != WHAT.len() {
            return Err(unreadable(rank, b));
        }
        for (what, (a_value, b_value)) in WHAT.into_iter().zip(first.lines().zip(text.lines())) {
            if a_value != b_value {
                let (a_value, b_value) = (a_value.to_owned(), b_value.to_owned());
                return Err(BuildError::Disagree { what, a: 0, a_value, b, b_value });
            }
        }
    }
    Ok(())
}

/// A device ready to run the kernels.
struct Prepared {
    context: Context,
    functions: Functions,
    origin: Origin,
    sms: u32,
    shared: usize,
    stream: Stream,
    token: u64,
}

fn prepare(group: &Group, config: &CudaConfig, device: &crate::device::Device) -> Result<Prepared> {
    let context = device.context()?;
    let (kernels, cache) = (Kernels::of_this_build(), Cache::from_env());
    let mut origin = Origin::Embedded;
    let shared = device.attribute(Attribute::SHARED_MEMORY_OPTIN)?.max(0) as usize;
    let mut function = |program: &Program<'_>, name, dynamic: bool| -> Result<Function> {
        let (module, found) = kernels.load(&context, program, &cache, || Nvrtc::load(&config.nvrtc))?;
        origin = found.from;
        let function = module.function(name)?;
        // Asking for an attribute loads the kernel: a lazy load behind a kernel that waits for a peer could deadlock.
        let statics = function.attribute(FunctionAttribute::STATIC_SHARED)?;
        if dynamic {
            function.set_attribute(FunctionAttribute::MOST_DYNAMIC_SHARED, shared as i32 - statics)?;
        }
        Ok(function)
    };
    let functions = Functions {
        dispatch: function(&kernels::DISPATCH, kernels::DISPATCH_NAME, true)?,
        combine: function(&kernels::COMBINE, kernels::COMBINE_NAME, true)?,
        meet: function(&kernels::MEET, kernels::MEET_NAME, false)?,
        layout: function(&kernels::LAYOUT, kernels::LAYOUT_NAME, false)?,
    };
    let sms = device.attribute(Attribute::SMS)?.max(1) as u32;
    let stream = Stream::new(&context, 0)?;
    // Only rank 0's counts.
    let token = std::hash::RandomState::new().hash_one((std::process::id(), group.rank()));
    // Static shared memory of the kernels is a page at most.
    Ok(Prepared { context, functions, origin, sms, shared: shared.saturating_sub(1024), stream, token })
}

struct Furniture {
    board: Arc<Board>,
    constants: DeviceMemory,
    control: DeviceMemory,
}

fn furnish(
    config: &CudaConfig,
    context: &Context,
    heap: &SymmetricHeap,
    (regions, placement, rank, words): (Regions, Placement, usize, usize),
) -> Result<Furniture> {
    let board = Arc::new(Board::new(Pinned::new(context, Board::bytes(words))?));
    let control = DeviceMemory::new(context, protocol::CONTROL_BYTES)?;
    // SAFETY: nobody knows this memory yet.
    unsafe { clear(context, control.address(), protocol::CONTROL_BYTES) }?;
    // SAFETY: the words lie at the start of the own heap, and no peer writes to them before all ranks have agreed.
    unsafe { clear(context, heap.own(), regions.words) }?;

    let topology = config.topology;
    let mut addresses = [0; MAX_RANKS];
    for (peer, address) in addresses.iter_mut().enumerate().take(topology.ranks()) {
        *address = heap.peer(peer);
    }
    let raw = RawWorld {
        ranks: topology.ranks() as u32,
        rank: rank as u32,
        experts: config.shape.experts as u32,
        top_k: config.shape.top_k as u32,
        ranks_per_node: topology.ranks_per_node() as u32,
        max_tokens: config.shape.max_tokens as u32,
        local_experts: placement.experts_of(rank).len() as u32,
        most_local_experts: placement.most_local_experts() as u32,
        deadline_ns: config.deadline.min(LONGEST_DEADLINE).as_nanos() as u64,
        board: board.address(),
        control: control.address(),
        landing_bytes: regions.landing_bytes as u64,
        notify: regions.notify as u64,
        expert_counts: regions.expert_counts as u64,
        landed: regions.landed as u64,
        done: regions.done as u64,
        poison: regions.poison as u64,
        landing: regions.landing as u64,
        heap: addresses,
    };
    let mut constants = DeviceMemory::new(context, size_of::<RawWorld>())?;
    constants.write(0, raw.bytes())?;
    Ok(Furniture { board, constants, control })
}

//! `--fabric`: ranks that reach other nodes through a network.

use expertrail::config::{Config, FabricName};
use expertrail::fabric::ofi::Library;
use expertrail::fabric::sim::{Network, Plan};
use expertrail::group::CancelToken;
use expertrail::{Backend, Group, RailPlace, Rails};
use expertrail_bench::run::{self, Across, BenchError, Options, Outcome};

use super::{Stop, joining, show};
use crate::args::BenchArgs;
use crate::rails;

/// What moves the rows: across nodes only CPUs, so far.
pub(super) fn backend(args: &BenchArgs, config: &Config) -> Result<Backend, Stop> {
    let backend = args.backend().map_err(Stop::usage)?;
    match (&config.fabric.value, backend) {
        (None, backend) => Ok(backend),
        (Some(_), Backend::Cuda) => Err(Stop {
            message: "--fabric with --backend cuda: GPUs do not cross nodes yet; choose --backend host"
                .to_owned(),
            code: 3,
        }),
        (Some(_), _) => Ok(Backend::Host),
    }
}

/// Finds what would stop every rank, before any is started.
pub(super) fn check(options: &Options, config: &Config) -> Result<(), Stop> {
    let Some(fabric) = &config.fabric.value else { return Ok(()) };
    let topology = options.resolved.topology;
    if topology.nodes() < 2 {
        return Err(Stop::usage(format!(
            "--fabric {fabric} with one node: nothing would cross it; declare nodes (--nodes 2), or leave --fabric out"
        )));
    }
    let limits = config.rail_config().limits;
    limits.check(&topology, &options.resolved.shape).map_err(BenchError::from)?;
    if *fabric != FabricName::Sim {
        let library = Library::open()?;
        Rails::find(&library, config, &RailPlace { one_host: true, ..RailPlace::default() })?;
    }
    Ok(())
}

/// A rank's way to other nodes, over libfabric.
pub(super) fn of_rank(options: &Options, config: &Config, group: &Group) -> Result<Option<Across>, Stop> {
    let Some(fabric) = &config.fabric.value else { return Ok(None) };
    let topology = options.resolved.topology;
    if topology.nodes() < 2 {
        return Err(Stop::usage(format!(
            "--fabric {fabric}, but all {} ranks are on one node; start ranks on several, declare nodes (--nodes 2), or \
             leave --fabric out",
            topology.ranks()
        )));
    }
    if let Some(reason) = rails::uneven(group, topology.ranks_per_node()) {
        return Err(Stop::usage(reason));
    }
    let found = Library::open().and_then(|library| {
        let mut place = rails::place(group, Some(&library), config);
        place.peers = topology.nodes() - 1;
        place.local_rank = topology.local_rank(group.rank());
        Rails::find(&library, config, &place)
    });
    let rails = found.inspect_err(|error| group.fail(&error.to_string()))?;
    Ok(Some(Across { asked: fabric.to_string(), rails, simulated: false }))
}

/// All ranks as threads of this process, over the simulated network.
pub(super) fn simulate(args: &BenchArgs, config: &Config, options: &Options) -> Result<u8, Stop> {
    let ranks = options.resolved.topology.ranks();
    let cancel = CancelToken::on_signals().unwrap_or_default();
    let groups = Group::local_threads_with(ranks, &joining(config, cancel))
        .map_err(|error| Stop::from(BenchError::from(error)))?;
    // A lively network without order, so that the run says something of the protocol: the seed is the run's.
    let plan =
        Plan { delay: (1, 8), completion_lag: 2, shuffle: true, seed: options.seed, ..Plan::ordered() };
    let network = Network::new(plan);
    let one = |group: &Group| {
        let rank = group.rank();
        let place = RailPlace { rank, ..RailPlace::default() };
        let rails = Rails::simulated(&network, config, &place);
        let across = Across { asked: FabricName::Sim.to_string(), rails, simulated: true };
        let options = Options { across: Some(across), ..options.clone() };
        run::run(group, options, &mut |_, _| {})
    };
    let all: Vec<std::thread::Result<Result<Option<Outcome>, BenchError>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = groups.iter().map(|group| scope.spawn(|| one(group))).collect();
        threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
    });
    let mut outcome = None;
    for rank in all {
        match rank {
            Ok(found) => outcome = outcome.or(found?),
            // The message is the runtime's.
            Err(_) => return Ok(1),
        }
    }
    outcome.map_or(Ok(1), |outcome| show(args, &outcome))
}

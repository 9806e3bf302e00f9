//! The rate of dispatch and combine between nodes against the raw rate of the same transport, in the same processes.
//!
//! `cargo run --release --example two_hop_rate -- [--ranks-per-node 1] [--provider tcp] [--chunk-kib 128] ...`
//!
//! Starts two nodes of ranks as processes on this machine. Each round moves, one after the other: the raw bytes (1 MiB
//! writes of all rails, both ways at once, through the trait), a dispatch, a combine. Rates are wire bytes that one rank
//! sends over the longest time of all ranks; the last lines have the medians of the rounds' ratios, by the clock and by CPU
//! time, which says more on a machine that does other things too. The shape is that of
//! `guide-internode`: 8,192 tokens of 3,072 BF16, top-8 of 128 with replacement.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use expertrail::core::hop::Limits;
use expertrail::fabric::ofi::{self, Library, OpenOptions, Provider};
use expertrail::fabric::rail::{Pages, RailCard};
use expertrail::fabric::{Completion, Memory, PeerId, Posted, Transport, Write};
use expertrail::group::spawn::{LocalLaunch, Prefix};
use expertrail::{Bf16, Combine, Communicator, Crossing, Group, RailConfig, Routing};

/// Bytes of a raw write, and how many of one rank's are on their way at once.
const RAW_BYTES: usize = 1 << 20;
const RAW_WINDOW: usize = 16;

type Failure = Box<dyn Error>;

fn main() -> ExitCode {
    let settings = match Settings::read(std::env::args().skip(1)) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let result =
        if std::env::var_os("EXPERTRAIL_RANK").is_some() { rank(&settings) } else { launch(&settings) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Settings {
    nodes: usize,
    ranks_per_node: usize,
    provider: String,
    tokens: usize,
    hidden: usize,
    experts: usize,
    top_k: usize,
    chunk_kib: usize,
    window: usize,
    outgoing: usize,
    rounds: usize,
}

impl Settings {
    fn read(mut args: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let (limits, rails) = (Limits::default(), RailConfig::default());
        let mut settings = Self {
            nodes: 2,
            ranks_per_node: 1,
            provider: "tcp".to_owned(),
            tokens: 8192,
            hidden: 3072,
            experts: 128,
            top_k: 8,
            chunk_kib: limits.chunk_bytes >> 10,
            window: limits.window,
            outgoing: rails.outgoing,
            rounds: 5,
        };
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| format!("{name} wants a value"))?;
            let number = || value.parse::<usize>().map_err(|_| format!("{name} {value}: not a number"));
            match name.as_str() {
                "--nodes" => settings.nodes = number()?,
                "--ranks-per-node" => settings.ranks_per_node = number()?,
                "--provider" => settings.provider.clone_from(&value),
                "--tokens" => settings.tokens = number()?,
                "--hidden" => settings.hidden = number()?,
                "--experts" => settings.experts = number()?,
                "--top-k" => settings.top_k = number()?,
                "--chunk-kib" => settings.chunk_kib = number()?,
                "--window" => settings.window = number()?,
                "--outgoing" => settings.outgoing = number()?,
                "--rounds" => settings.rounds = number()?.max(1),
                _ => return Err(format!("{name} is no option of this example").into()),
            }
        }
        Ok(settings)
    }
}

fn launch(settings: &Settings) -> Result<(), Failure> {
    let outcome = LocalLaunch::new(std::env::current_exe()?, settings.nodes * settings.ranks_per_node)
        .args(std::env::args().skip(1))
        .prefix(Prefix::AllBut(0))
        .run()?;
    if outcome.is_success() { Ok(()) } else { Err("a rank failed".into()) }
}

fn rank(settings: &Settings) -> Result<(), Failure> {
    let group = Group::from_env()?;
    let library = Library::open()?;
    let options = OpenOptions {
        provider: Provider::Named(settings.provider.clone()),
        domain: (settings.provider == "tcp").then(|| "lo".to_owned()),
        ..OpenOptions::default()
    };
    let mut raw = Raw::new(&group, settings, ofi::open_with(&library, &options)?)?;
    let limits =
        Limits { chunk_bytes: settings.chunk_kib << 10, window: settings.window, small_chunks: true };
    let config = RailConfig { limits, outgoing: settings.outgoing, ..RailConfig::default() };
    let transport = ofi::open_with(&library, &options)?;
    let comm = Communicator::builder(&group)
        .experts(settings.experts)
        .top_k(settings.top_k)
        .hidden(settings.hidden)
        .max_tokens(settings.tokens)
        .ranks_per_node(settings.ranks_per_node)
        .build_across(Ok(Crossing { transport, config }))?;

    let (x, routing) = (tokens(settings, group.rank()), router(settings, group.rank())?);
    // Nobody measures the first touch of pages or the first message of a connection.
    let mut out = vec![Bf16(0); x.len()];
    let bytes = one(&comm, (&x, &routing, &mut out), settings)?.bytes;
    // What one rank sends another awaits: all move as much as the one that sent most.
    let all = group.all_gather("bytes", &bytes.0.to_le_bytes())?;
    let most = all.iter().filter_map(|bytes| Some(u64::from_le_bytes(bytes[..].try_into().ok()?))).max();
    let bytes = (most.unwrap_or(bytes.0), bytes.1);
    raw.run(&group, bytes.0)?;
    let mut times = Vec::new();
    for _ in 0..settings.rounds {
        times.push(raw.run(&group, bytes.0)?);
        let round = one(&comm, (&x, &routing, &mut out), settings)?;
        times.extend([round.dispatch, round.combine]);
    }
    report(&group, settings, &comm, (bytes, &times))
}

/// Seconds by the wall's clock, and of all threads of this process.
type Spent = [f64; 2];

struct Clock {
    start: Instant,
    cpu: f64,
}

impl Clock {
    fn start() -> Self {
        Self { start: Instant::now(), cpu: cpu() }
    }

    fn spent(&self) -> Spent {
        [self.start.elapsed().as_secs_f64(), cpu() - self.cpu]
    }
}

/// Seconds that the threads of this process have run.
fn cpu() -> f64 {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return 0.0 };
    let nanoseconds = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    nanoseconds.sum::<u64>() as f64 / 1e9
}

/// One dispatch and one combine of what came.
struct Round {
    dispatch: Spent,
    combine: Spent,
    /// Bytes that crossed, control included.
    bytes: (u64, u64),
}

fn one(
    comm: &Communicator,
    (x, routing, out): (&[Bf16], &Routing, &mut [Bf16]),
    settings: &Settings,
) -> Result<Round, Failure> {
    let sent = || comm.host().rail_stats().map_or(0, |stats| stats.proxy.bytes);
    let before = sent();
    let clock = Clock::start();
    let received = comm.dispatch(x, routing)?;
    let dispatch = clock.spent();
    let between = sent();
    check(settings, &received)?;
    comm.barrier()?;
    let rows = received.bf16().ok_or("BF16 was sent")?;
    let clock = Clock::start();
    comm.combine_into(&Combine::new(rows, received.handle()), out)?;
    let combine = clock.spent();
    Ok(Round { dispatch, combine, bytes: (between - before, sent() - between) })
}

/// The element that fills the row of a token.
fn element(rank: usize, token: usize) -> Bf16 {
    Bf16::from_f32((rank * 7 + token % 113) as f32)
}

fn tokens(settings: &Settings, rank: usize) -> Vec<Bf16> {
    (0..settings.tokens)
        .flat_map(|token| std::iter::repeat_n(element(rank, token), settings.hidden))
        .collect()
}

/// Uniform choices with replacement, from a linear congruential generator.
fn router(settings: &Settings, rank: usize) -> Result<Routing, Failure> {
    let mut state = rank as u64 + 1;
    let ids = (0..settings.tokens * settings.top_k)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % settings.experts as u64) as i32
        })
        .collect();
    Ok(Routing::new(ids, settings.top_k, settings.experts)?)
}

/// First and last element of every row that came.
fn check(settings: &Settings, received: &expertrail::Received) -> Result<(), Failure> {
    let rows = received.bf16().ok_or("BF16 was sent")?;
    let arrivals = received.handle().arrivals();
    for (source, range) in arrivals.source_starts.windows(2).enumerate() {
        for row in range[0] as usize..range[1] as usize {
            let wanted = element(source, arrivals.source_tokens[row] as usize);
            let got = &rows[row * settings.hidden..(row + 1) * settings.hidden];
            if got.first() != Some(&wanted) || got.last() != Some(&wanted) {
                return Err(format!("row {row} of rank {source} is not what was sent").into());
            }
        }
    }
    Ok(())
}

/// The transport alone: as many bytes to each rail peer as its share, in large writes.
struct Raw {
    transport: Box<dyn Transport>,
    write: Vec<Write>,
    found: Vec<Completion>,
    /// Polls that found nothing since the last that did.
    idle: u32,
}

impl Raw {
    fn new(group: &Group, settings: &Settings, mut transport: Box<dyn Transport>) -> Result<Self, Failure> {
        let pages = Arc::new(Pages::new(2 * RAW_WINDOW * RAW_BYTES)?);
        for at in (0..pages.bytes()).step_by(4096) {
            // SAFETY: within the pages, which nobody else knows yet.
            unsafe { pages.base().add(at).write(1) };
        }
        let (local, region) = transport.register(pages)?;
        let card = RailCard { region, address: transport.address()? };
        let cards = group.all_gather("raw endpoints", &card.encode())?;
        let (node, rail) = (group.rank() / settings.ranks_per_node, group.rank() % settings.ranks_per_node);
        let peers: Vec<RailCard> = (0..settings.nodes)
            .filter(|&other| other != node)
            .map(|other| RailCard::decode(&cards[other * settings.ranks_per_node + rail]).ok_or("a card"))
            .collect::<Result<_, _>>()?;
        let addresses: Vec<Vec<u8>> = peers.iter().map(|card| card.address.clone()).collect();
        transport.connect(&addresses)?;
        let write = (0..).zip(&peers).map(|(peer, card)| Write {
            peer: PeerId(peer),
            local,
            local_offset: 0,
            remote: card.region,
            remote_offset: (RAW_WINDOW * RAW_BYTES) as u64,
            bytes: RAW_BYTES as u64,
            immediate: 1,
            context: 0,
        });
        let write = write.collect();
        group.barrier("raw endpoints connected")?;
        Ok(Self { transport, write, found: Vec::with_capacity(64), idle: 0 })
    }

    /// Sends `bytes` bytes in all and receives as many; all ranks at once. Gives how long that took here.
    fn run(&mut self, group: &Group, bytes: u64) -> Result<Spent, Failure> {
        group.barrier("raw bytes")?;
        let clock = Clock::start();
        let each = (bytes as usize / self.write.len()).div_ceil(RAW_BYTES);
        let total = each * self.write.len();
        let (mut posted, mut sent, mut arrived) = (0, 0, 0);
        while sent < total || arrived < total {
            while posted < total && posted - sent < RAW_WINDOW {
                let slot = ((posted % RAW_WINDOW) * RAW_BYTES) as u64;
                let write = self.write[posted % self.write.len()];
                let remote_offset = write.remote_offset + slot;
                if self.transport.write(&Write { local_offset: slot, remote_offset, ..write })?
                    == Posted::Busy
                {
                    break;
                }
                posted += 1;
            }
            let (now_sent, now_arrived) = self.poll()?;
            (sent, arrived) = (sent + now_sent, arrived + now_arrived);
        }
        let time = clock.spent();
        // A peer's last completions may need this side's progress.
        std::thread::scope(|scope| {
            let met = scope.spawn(|| group.barrier("raw bytes moved"));
            while !met.is_finished() {
                self.poll()?;
            }
            met.join().map_err(|_| "the barrier panicked")??;
            Ok::<_, Failure>(())
        })?;
        Ok(time)
    }

    /// Writes that have left and that have come; sleeps for a moment when there are none.
    fn poll(&mut self) -> Result<(usize, usize), Failure> {
        self.found.clear();
        if self.transport.poll(&mut self.found)? == 0 {
            self.idle += 1;
            if self.idle > 4 {
                self.transport.wait(Duration::from_millis(1))?;
            }
            return Ok((0, 0));
        }
        self.idle = 0;
        let (mut sent, mut arrived) = (0, 0);
        for completion in &self.found {
            match completion {
                Completion::Sent { .. } => sent += 1,
                Completion::Arrived { .. } => arrived += 1,
                Completion::Failed { error, .. } => return Err(error.clone().into()),
            }
        }
        Ok((sent, arrived))
    }
}

fn report(
    group: &Group,
    settings: &Settings,
    comm: &Communicator,
    (bytes, times): ((u64, u64), &[Spent]),
) -> Result<(), Failure> {
    let own: Vec<u8> = times.as_flattened().iter().flat_map(|seconds| seconds.to_le_bytes()).collect();
    let all = group.all_gather("times", &own)?;
    let stats = comm.host().rail_stats().ok_or("there are rails")?;
    if group.rank() != 0 {
        return Ok(());
    }
    // Of all ranks: the longest time, and the CPU time of all.
    let spent: Vec<Spent> = (0..times.len())
        .map(|i| {
            let number =
                |rank: &Vec<u8>, at: usize| rank.get(at..at + 8)?.try_into().ok().map(f64::from_le_bytes);
            let wall = all.iter().filter_map(|rank| number(rank, 16 * i)).fold(0.0, f64::max);
            [wall, all.iter().filter_map(|rank| number(rank, 16 * i + 8)).sum()]
        })
        .collect();
    let raw_bytes =
        (bytes.0 as usize / (settings.nodes - 1)).div_ceil(RAW_BYTES) * RAW_BYTES * (settings.nodes - 1);
    println!(
        "{}, {}: {} nodes of {} ranks",
        stats.library, stats.provider, settings.nodes, settings.ranks_per_node
    );
    println!(
        "chunks of {} KiB, window {}, {} outgoing",
        settings.chunk_kib, settings.window, settings.outgoing
    );
    println!("{:>34} {:>34} {:>34}", "raw", "dispatch", "combine");
    let moved = [raw_bytes as f64, bytes.0 as f64, bytes.1 as f64];
    let mut ratios = [const { Vec::new() }; 4];
    for round in spent.chunks_exact(3) {
        let rate = |what: usize, clock: usize| moved[what] / round[what][clock] / 1e9;
        for (what, [wall, cpu]) in round.iter().enumerate() {
            print!(" {:>7.1} ms {:>5.2} GB/s {:>7.1} ms CPU", wall * 1e3, rate(what, 0), cpu * 1e3);
        }
        println!();
        for (ratio, (what, clock)) in ratios.iter_mut().zip([(1, 0), (2, 0), (1, 1), (2, 1)]) {
            ratio.push(rate(what, clock) / rate(0, clock));
        }
    }
    let [dispatch, combine, dispatch_cpu, combine_cpu] = ratios.map(|mut all| {
        all.sort_by(f64::total_cmp);
        100.0 * all[all.len() / 2]
    });
    println!("{stats:?}");
    println!(
        "bytes for each second of CPU, of the raw rate's: {dispatch_cpu:.0} %, combine {combine_cpu:.0} %"
    );
    println!("median of the raw rate: dispatch {dispatch:.0} %, combine {combine:.0} %");
    Ok(())
}

//! Protocol stress: thousands of random calls under seeded delays, and what else a communicator must live with.

use expertrail_core::{Dtype, Shape, Topology};
use expertrail_cuda::{
    CudaCombine, CudaCommunicator, CudaConfig, CudaDispatch, DeviceRows, DeviceSlice, Stream,
};
use expertrail_group::Group;

use crate::beside::Product;
use crate::check::{Checker, hash, mix};
use crate::gpu::{Outcome, copy, during, poisoned, upload};
use crate::launch::note;
use crate::player::{Player, Stage};
use crate::prepared::{Prepared, VERSIONS};
use crate::random::Random;
use crate::settings::Settings;
use crate::shared::{Case, base};
use crate::slots::Slots;
use crate::wanted::Wanted;

/// Routings of each communicator.
const ROUTINGS: usize = 24;
/// Steps of the checks that are not about numbers of calls.
const STEPS: usize = 300;
/// Outputs that stay alive: one for each layer of a large model.
const LIVE: usize = 64;

/// Small rows, middling, and those of a large model.
const SHAPES: [Shape; 3] = [
    Shape { max_tokens: 64, hidden: 256, top_k: 2, experts: 5 },
    Shape { max_tokens: 192, hidden: 1024, top_k: 8, experts: 32 },
    Shape { max_tokens: 40, hidden: 7168, top_k: 8, experts: 64 },
];
/// Of the calls asked for, in quarters.
const SHARES: [usize; 3] = [1, 2, 1];

/// A check: its name, and what a rank does.
pub(crate) struct Stress {
    pub(crate) name: &'static str,
    /// What `CUDA_DEVICE_MAX_CONNECTIONS` is set to.
    pub(crate) connections: Option<&'static str>,
    run: fn(&Seat) -> Outcome,
}

/// Every check, in order.
pub(crate) const CHECKS: [Stress; 10] = [
    Stress { name: "control: one wrong bit is noticed", connections: None, run: control },
    Stress { name: "random calls, small rows", connections: None, run: |seat| mixed(seat, 0) },
    Stress { name: "random calls, middling rows", connections: None, run: |seat| mixed(seat, 1) },
    Stress { name: "random calls, large rows", connections: None, run: |seat| mixed(seat, 2) },
    Stress { name: "64 live outputs dropped in random order", connections: None, run: many_live },
    Stress { name: "two communicators at once", connections: None, run: two_communicators },
    Stress { name: "a matrix product on all SMs beside", connections: None, run: beside },
    Stress { name: "graph replays between eager calls", connections: None, run: replays },
    Stress {
        name: "two communicators at once, one connection",
        connections: Some("1"),
        run: two_communicators,
    },
    Stress {
        name: "a matrix product on all SMs beside, one connection",
        connections: Some("1"),
        run: beside,
    },
];

/// One rank of the stage.
pub(crate) struct Seat<'a> {
    pub(crate) group: &'a Group,
    pub(crate) settings: &'a Settings,
}

impl Stress {
    pub(crate) fn run(&self, seat: &Seat) -> Outcome {
        (self.run)(seat)
    }
}

impl Seat<'_> {
    fn build(&self, shape: Shape, live_outputs: usize) -> Result<CudaCommunicator, String> {
        let topology = Topology::one_node(self.group.size()).map_err(during("topology"))?;
        let mut config = CudaConfig::new(topology, shape);
        config.live_outputs = live_outputs;
        config.deadline = self.settings.deadline(30);
        // Zero would mean none.
        config.stress_seed = mix(self.settings.seed) | 1;
        CudaCommunicator::build(self.group, &config).map_err(during("build"))
    }

    /// Waits until all ranks have their last results: whoever goes first must not be taken for one that leaves in the
    /// middle.
    fn part(&self) -> Outcome {
        self.group.barrier("end of a check").map_err(during("the end"))
    }

    fn prepare(&self, comm: &CudaCommunicator, shape: Shape, many: usize) -> Result<Vec<Prepared>, String> {
        let ranks = (self.group.size(), self.group.rank());
        Prepared::many(comm.context(), shape, ranks, (many, mix(self.settings.seed ^ shape.hidden as u64)))
    }
}

fn streams(comm: &CudaCommunicator) -> Result<[Stream; 2], String> {
    let stream = |priority| Stream::new(comm.context(), priority).map_err(during("a stream"));
    Ok([stream(0)?, stream(-1)?])
}

/// That a comparison can fail: the same bytes with one bit changed, and two rows in each other's place.
fn control(seat: &Seat) -> Outcome {
    let comm = seat.build(SHAPES[0], 1)?;
    let checker = Checker::load(comm.context()).map_err(during("check.cu"))?;
    let mut slots = Slots::new(comm.context(), &checker)?;
    let right: Vec<u8> = (0..40 * 512_u32).map(|i| (mix(u64::from(i)) >> 32) as u8).collect();
    let mut flipped = right.clone();
    flipped[20_001] ^= 0x08;
    let mut swapped = right.clone();
    swapped.rotate_left(512);
    for (what, bytes, is_right) in
        [("itself", &right, true), ("a bit", &flipped, false), ("rows", &swapped, false)]
    {
        let memory = upload(comm.context(), bytes)?;
        let slice = DeviceSlice::of(&memory);
        slots.expect(comm.stream(), slice, (40, 128), hash(&right, 128), || what.to_owned())?;
        match (slots.compare(), is_right) {
            (Err(error), true) => return Err(error),
            (Ok(()), false) => return Err(format!("a difference was not noticed: {what}")),
            // What failed on purpose must not be compared again.
            (Err(_), false) => slots = Slots::new(comm.context(), &checker)?,
            (Ok(()), true) => {}
        }
    }
    seat.part()
}

/// The calls asked for, shared among three shapes.
fn mixed(seat: &Seat, which: usize) -> Outcome {
    let calls = seat.settings.calls * SHARES[which] / SHARES.iter().sum::<usize>();
    let (shape, most_live) = (SHAPES[which], 5);
    let comm = seat.build(shape, most_live)?;
    let checker = Checker::load(comm.context()).map_err(during("check.cu"))?;
    let worlds = seat.prepare(&comm, shape, ROUTINGS)?;
    let [a, b] = streams(&comm)?;
    let stage = Stage {
        comm: &comm,
        checker: &checker,
        worlds: &worlds,
        streams: &[comm.stream(), &a, &b],
        shape,
        most_live,
        streamless_calls: true,
        seed: mix(seat.settings.seed ^ (which as u64) << 32),
    };
    let started = std::time::Instant::now();
    let mut player = Player::new(stage)?;
    while player.calls() < calls {
        player.step()?;
    }
    player.end()?;
    comm.barrier().map_err(during("the last barrier"))?;
    note(&format!(
        "rank {}, {shape}: {} calls, {} outputs compared, {} fallbacks, {:.1} s",
        comm.rank(),
        player.calls(),
        player.compared(),
        comm.stats().fallbacks,
        started.elapsed().as_secs_f64()
    ));
    seat.part()
}

/// As many outputs as a model has layers, looked at only when all are there, dropped in random order. Then again, in the
/// memory that came back.
fn many_live(seat: &Seat) -> Outcome {
    let shape = SHAPES[0];
    let comm = seat.build(shape, LIVE)?;
    let checker = Checker::load(comm.context()).map_err(during("check.cu"))?;
    let worlds = seat.prepare(&comm, shape, ROUTINGS)?;
    let [a, b] = streams(&comm)?;
    let stage = Stage {
        comm: &comm,
        checker: &checker,
        worlds: &worlds,
        streams: &[comm.stream(), &a, &b],
        shape,
        most_live: LIVE,
        streamless_calls: true,
        seed: mix(seat.settings.seed ^ 0x64),
    };
    let mut player = Player::new(stage)?;
    for _ in 0..4 {
        for _ in 0..LIVE {
            player.keep()?;
        }
        player.end()?;
    }
    let stats = comm.stats();
    note(&format!("rank {}: 4 x {LIVE} live outputs, {} fallbacks", comm.rank(), stats.fallbacks));
    seat.part()
}

/// Two communicators on the same GPUs, called in the same order on all ranks.
fn two_communicators(seat: &Seat) -> Outcome {
    let comms = [seat.build(SHAPES[0], 3)?, seat.build(SHAPES[1], 3)?];
    let checker = Checker::load(comms[0].context()).map_err(during("check.cu"))?;
    let worlds = [seat.prepare(&comms[0], SHAPES[0], 8)?, seat.prepare(&comms[1], SHAPES[1], 8)?];
    let own = [streams(&comms[0])?, streams(&comms[1])?];
    let lanes = [[comms[0].stream(), &own[0][0]], [comms[1].stream(), &own[1][0]]];
    let mut players = Vec::new();
    for which in 0..2 {
        players.push(Player::new(Stage {
            comm: &comms[which],
            checker: &checker,
            worlds: &worlds[which],
            streams: &lanes[which],
            shape: SHAPES[which],
            most_live: 3,
            streamless_calls: true,
            seed: mix(seat.settings.seed ^ (0x2c + which as u64)),
        })?);
    }
    let mut common = Random::new(seat.settings.seed);
    for _ in 0..STEPS {
        let which = common.below(2);
        players[which].step().map_err(|error| format!("communicator {which}: {error}"))?;
    }
    players.iter_mut().try_for_each(Player::end)?;
    seat.part()
}

/// Calls while another stream keeps every SM busy.
fn beside(seat: &Seat) -> Outcome {
    let shape = SHAPES[1];
    let comm = seat.build(shape, 3)?;
    let checker = Checker::load(comm.context()).map_err(during("check.cu"))?;
    let worlds = seat.prepare(&comm, shape, 8)?;
    let [a, busy] = streams(&comm)?;
    let stage = Stage {
        comm: &comm,
        checker: &checker,
        worlds: &worlds,
        streams: &[comm.stream(), &a],
        shape,
        most_live: 3,
        streamless_calls: true,
        seed: mix(seat.settings.seed ^ 0x9e),
    };
    let mut player = Player::new(stage)?;
    let product = Product::new(&checker, &busy)?;
    for step in 0..STEPS / 2 {
        product.run()?;
        player.step()?;
        if step % 8 == 7 {
            product.expect(player.slots())?;
            // No more than a few milliseconds of work ahead of the calls.
            busy.synchronize().map_err(during("the matrix product"))?;
        }
    }
    player.end()?;
    note(&format!("rank {}: one product alone takes {:.2} ms", comm.rank(), product.milliseconds()));
    seat.part()
}

/// A captured dispatch and combine replayed with other data each time, between calls that are not captured.
fn replays(seat: &Seat) -> Outcome {
    let (shape, most_live) = (SHAPES[1], 3);
    let (ranks, rank) = (seat.group.size(), seat.group.rank());
    let replays = (seat.settings.calls / 10).min(1000);
    // The graph's output and what it hands back are never returned to the pool.
    let comm = seat.build(shape, most_live + 2)?;
    let context = comm.context();
    let checker = Checker::load(context).map_err(during("check.cu"))?;
    let worlds = seat.prepare(&comm, shape, 8)?;
    let stream = Stream::new(context, 0).map_err(during("a stream"))?;
    let worst = ranks * shape.max_tokens;
    let case: &'static Case = Box::leak(Box::new(Case {
        name: "replayed",
        ranks,
        ranks_per_node: ranks,
        tokens: Vec::leak(vec![shape.max_tokens]),
        hidden: shape.hidden,
        top_k: shape.top_k,
        experts: shape.experts,
        ..base()
    }));
    let seed = mix(seat.settings.seed) >> 20;
    let replayed: Vec<Prepared> = (0..6)
        .map(|key| Prepared::new(context, (case, seed + key), rank, Some(worst)))
        .collect::<Result<_, _>>()?;
    let stage = Stage {
        comm: &comm,
        checker: &checker,
        worlds: &worlds,
        // A graph is no call of the communicator: what runs beside it must be ordered by the stream.
        streams: &[&stream],
        shape,
        most_live,
        streamless_calls: false,
        seed: mix(seat.settings.seed ^ 0x64a9),
    };
    let mut player = Player::new(stage)?;
    player.step()?;
    player.compare()?;

    // What the graph reads, filled anew before each replay.
    let (row, choices) = (Dtype::Bf16.row_bytes(shape.hidden), 4 * shape.top_k);
    let [payload, out] =
        [poisoned(context, shape.max_tokens * row)?, poisoned(context, shape.max_tokens * row)?];
    let [ids, weights] =
        [poisoned(context, shape.max_tokens * choices)?, poisoned(context, shape.max_tokens * choices)?];
    let [made, gradients] = [poisoned(context, worst * row)?, poisoned(context, worst * choices)?];
    let all = DeviceSlice::of;

    stream.begin_capture().map_err(during("begin_capture"))?;
    let rows = expertrail_cuda::DevicePayload::Bf16(DeviceRows::new(all(&payload)));
    let ids_given = expertrail_cuda::DeviceIds::I32(all(&ids));
    let args = CudaDispatch::new(rows, shape.max_tokens, ids_given)
        .weights(all(&weights))
        .worst_case_rows(worst)
        .sms(6 + rank as u32)
        .stream(&stream);
    let received = comm.dispatch(&args).map_err(during("captured dispatch"))?;
    let args = CudaCombine::new(DeviceRows::new(all(&made)), received.handle())
        .weights(all(&gradients))
        .out(all(&out))
        .sms(9 - rank.min(8) as u32)
        .stream(&stream);
    let combined = comm.combine(&args).map_err(during("captured combine"))?;
    let graph = stream.end_capture().map_err(during("end_capture"))?;

    let mut common = Random::new(seat.settings.seed ^ 0x47);
    for replay in 0..replays {
        let (number, version) = (common.below(replayed.len()), common.below(VERSIONS));
        let it = &replayed[number];
        copy(&stream, all(&payload), it.payloads[version].rows())?;
        copy(&stream, all(&ids), it.ids.narrow())?;
        copy(&stream, all(&weights), all(&it.weights))?;
        copy(&stream, all(&made), all(&it.expert_rows[version]))?;
        copy(&stream, all(&gradients), all(&it.gradients))?;
        // SAFETY: all that was given and made lives to the end of this function, and eager calls are ordered behind.
        unsafe { graph.launch(&stream) }.map_err(during("replay"))?;
        let words = Wanted::row_words(Dtype::Bf16, shape.hidden);
        let (hashes, entries, tokens) = (&it.hashes, (worst, shape.top_k), shape.max_tokens);
        let ids = received.local_ids().ok_or("no ids")?;
        let carried = received.weights().ok_or("no weights")?;
        let sources = received.source_tokens().ok_or("no source tokens")?;
        let back = combined.weights().ok_or("no weights came back")?;
        let result = all(&out).part(0, 2 * tokens * shape.hidden).ok_or("out is too short")?;
        let slots = player.slots();
        for (slice, shape, wanted, what) in [
            (received.data(), (it.arrivals, words), hashes.rows[version], "rows"),
            (ids, entries, hashes.ids[1], "ids"),
            (carried, entries, hashes.weights[1], "weights"),
            (sources, (it.arrivals, 1), hashes.source_tokens, "source tokens"),
            (result, (tokens, words), hashes.combined[version], "combined rows"),
            (back, (tokens, shape.top_k), hashes.combined_weights, "combined weights"),
        ] {
            slots.expect(&stream, slice, shape, wanted, || {
                format!("{what} of replay {replay}, rank {rank}")
            })?;
        }
        player.step().map_err(|error| format!("after replay {replay}: {error}"))?;
    }
    player.end()?;
    stream.synchronize().map_err(during("the stream"))?;
    note(&format!("rank {rank}: {replays} replays between {} eager calls", player.calls()));
    drop((graph, combined, received));
    seat.part()
}

//! What happens when a rank dies, stalls, leaves, misuses the library, or differs from the others.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use expertrail_core::{Cause, Shape, Topology};
use expertrail_cuda::{CudaCombine, CudaCommunicator, CudaConfig, CudaDispatch, CudaError, DeviceRows};
use expertrail_group::Group;

use crate::gpu::{Outcome, during};
use crate::launch::note;
use crate::misuse;
use crate::random::Random;
use crate::settings::Settings;
use crate::works::Ones;

/// A death must be known everywhere within this, whatever the deadline (DESIGN 6).
const KNOWN_WITHIN: Duration = Duration::from_secs(2);
/// The deadline that plays no part in it, in seconds.
const LONG: u64 = 60;

/// Of what all faults but those in the middle of a call use. Up to eight ranks have an expert each.
pub(crate) const SHAPE: Shape = Shape { max_tokens: 16, hidden: 64, top_k: 2, experts: 8 };
/// Calls that take long enough to be killed in.
const LARGE: Shape = Shape { max_tokens: 2048, hidden: 7168, top_k: 2, experts: 8 };

/// What the victim is doing when it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Nothing; nor do the others.
    Idle,
    /// One call after the other, as are the others.
    MidCall,
    /// Nothing, while the others' kernels wait for it.
    Awaited,
}

/// Who plays the culprit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Last,
    First,
}

/// A check of this stage.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Killed(Who, Moment),
    /// And the others stay until the late rank has its error, or are gone by then.
    Stalled {
        others_stay: bool,
    },
    Left,
    LeftAtTheEnd,
    Misuse,
    DifferentCalls,
    TooSmall,
    TooManyRanks,
}

/// Every check under its name.
pub(crate) const CHECKS: [(&str, Fault); 14] = [
    ("killed while idle", Fault::Killed(Who::Last, Moment::Idle)),
    ("killed while calling", Fault::Killed(Who::Last, Moment::MidCall)),
    ("killed while calling, again", Fault::Killed(Who::Last, Moment::MidCall)),
    ("killed while kernels wait for it", Fault::Killed(Who::Last, Moment::Awaited)),
    ("rank 0 killed while calling", Fault::Killed(Who::First, Moment::MidCall)),
    ("rank 0 killed while kernels wait for it", Fault::Killed(Who::First, Moment::Awaited)),
    ("stalled beyond the deadline", Fault::Stalled { others_stay: true }),
    ("stalled until the others were gone", Fault::Stalled { others_stay: false }),
    ("left while others call", Fault::Left),
    ("left when all calls were made", Fault::LeftAtTheEnd),
    ("misuse is refused everywhere and the next call works", Fault::Misuse),
    ("different calls are named everywhere and the next works", Fault::DifferentCalls),
    ("a too small worst case is named everywhere and the next call works", Fault::TooSmall),
    ("more ranks than GPUs", Fault::TooManyRanks),
];

impl Fault {
    /// Ranks that it takes with so many GPUs.
    pub(crate) fn ranks(self, gpus: usize) -> usize {
        if matches!(self, Self::TooManyRanks) { gpus + 1 } else { gpus }
    }

    /// The rank that does not come back.
    pub(crate) fn dies(self, gpus: usize) -> Option<usize> {
        match self {
            Self::Killed(Who::Last, _) => Some(gpus - 1),
            Self::Killed(Who::First, _) => Some(0),
            _ => None,
        }
    }

    /// Whether it has no meaning with one GPU. (One GPU for several ranks is taken for each rank's own choice.)
    pub(crate) fn needs_two(self) -> bool {
        !matches!(self, Self::Misuse | Self::TooSmall)
    }
}

/// One rank of the stage.
pub(crate) struct Seat<'a> {
    pub(crate) group: &'a Group,
    pub(crate) settings: &'a Settings,
    pub(crate) gpus: usize,
    /// The check's number, for a seed and a file of its own.
    pub(crate) check: usize,
}

impl Seat<'_> {
    pub(crate) fn run(&self, fault: Fault) -> Outcome {
        match fault {
            Fault::Killed(_, moment) => self.killed(fault.dies(self.gpus).unwrap_or(0), moment),
            Fault::Stalled { others_stay } => self.stalled(others_stay),
            Fault::Left => self.left(),
            Fault::LeftAtTheEnd => self.left_at_the_end(),
            Fault::Misuse => misuse::run(self),
            Fault::DifferentCalls => self.different_calls(),
            Fault::TooSmall => self.too_small(),
            Fault::TooManyRanks => self.too_many_ranks(),
        }
    }

    pub(crate) fn rank(&self) -> usize {
        self.group.rank()
    }

    /// The rank that does what the others do not.
    pub(crate) fn culprit(&self) -> usize {
        self.group.size() - 1
    }

    /// Waits until all ranks have their last results: whoever goes first must not be taken for one that leaves in the
    /// middle.
    pub(crate) fn part(&self) -> Outcome {
        self.group.barrier("end of a check").map_err(during("the end"))
    }

    pub(crate) fn config(group: &Group, shape: Shape, deadline: Duration) -> Result<CudaConfig, String> {
        let topology = Topology::one_node(group.size()).map_err(during("topology"))?;
        Ok(CudaConfig { deadline, ..CudaConfig::new(topology, shape) })
    }

    pub(crate) fn build(&self, shape: Shape, deadline: Duration) -> Result<CudaCommunicator, String> {
        CudaCommunicator::build(self.group, &Self::config(self.group, shape, deadline)?)
            .map_err(during("build"))
    }

    /// A communicator of [`SHAPE`] that works.
    pub(crate) fn working(&self, deadline: Duration) -> Result<(CudaCommunicator, Ones), String> {
        let comm = self.build(SHAPE, deadline)?;
        let ones = Ones::new(comm.context(), SHAPE)?;
        ones.works(&comm)?;
        Ok((comm, ones))
    }

    /// Where the victim writes when it died.
    fn last_words(&self) -> PathBuf {
        self.settings.folder.join(format!("death-{}", self.check))
    }

    fn killed(&self, victim: usize, moment: Moment) -> Outcome {
        // The survivors' group is formed while all are there: no two of them need the dead rank for it.
        let survivors: Vec<usize> = (0..self.group.size()).filter(|&rank| rank != victim).collect();
        let own = [victim];
        let mine = if self.rank() == victim { &own[..] } else { &survivors[..] };
        let smaller = self.group.subset("survivors", mine).map_err(during("the survivors' group"))?;
        let shape = if moment == Moment::MidCall { LARGE } else { SHAPE };
        let comm = self.build(shape, self.settings.deadline(LONG))?;
        let ones = Ones::new(comm.context(), shape)?;
        ones.works(&comm)?;
        if self.rank() == victim {
            return self.die(&comm, moment);
        }

        let started = Instant::now();
        let error = match moment {
            // Well over what is allowed, so that "too late" and "never" are told apart.
            Moment::Idle => loop {
                match comm.status() {
                    Err(error) => break error,
                    Ok(()) if started.elapsed() > 5 * KNOWN_WITHIN => return Err("nobody noticed".to_owned()),
                    Ok(()) => std::thread::sleep(Duration::from_millis(1)),
                }
            },
            Moment::MidCall => {
                let busy = Busy::new(&comm)?;
                loop {
                    if let Err(error) = busy.round_trip(&comm) {
                        break error;
                    }
                }
            }
            // The call itself: without the dead rank's counts there is nothing that it could give.
            Moment::Awaited => match comm.dispatch(&ones.dispatch()).map(|_| ()) {
                Err(error) => error,
                Ok(()) => return Err("a dispatch without the dead rank succeeded".to_owned()),
            },
        };
        let known = SystemTime::now();
        check_failure(&error, Cause::Died, victim)?;
        let took = known.duration_since(self.time_of_death()?).unwrap_or_default();
        note(&format!("{moment:?}: rank {} knew of rank {victim}'s death after {took:.1?}", self.rank()));
        if took > KNOWN_WITHIN * self.settings.scale {
            return Err(format!("the death was known after {took:.1?}, {KNOWN_WITHIN:?} are allowed"));
        }
        let again = comm.dispatch(&ones.dispatch()).map(|_| ());
        check_failure(&expect_error(again, "a call after the failure")?, Cause::Died, victim)?;
        // Not before the others know of the death: they would hear of two ranks that are gone.
        smaller.barrier("all survivors know").map_err(during("the survivors' group"))?;
        drop(comm);

        let config = Self::config(&smaller, SHAPE, self.settings.deadline(LONG))?;
        let comm = CudaCommunicator::build(&smaller, &config).map_err(during("build of the survivors"))?;
        Ones::new(comm.context(), SHAPE)?.works(&comm).map_err(during("the survivors"))?;
        smaller.barrier("end of a check").map_err(during("the end"))
    }

    /// Ends this process at a random moment, as the kernel's out-of-memory killer would.
    fn die(&self, comm: &CudaCommunicator, moment: Moment) -> Outcome {
        let mut random = Random::new(self.settings.seed ^ (self.check as u64) << 32);
        let after = Duration::from_millis(30) + Duration::from_micros(random.below(90_000) as u64);
        let path = self.last_words();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(after);
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let written = std::fs::write(&path, now.as_nanos().to_string());
            let killed =
                rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            format!("still here: {written:?}, {killed:?}")
        });
        if moment == Moment::MidCall {
            let busy = Busy::new(comm)?;
            while !killer.is_finished() {
                busy.round_trip(comm).map_err(during("a call before the death"))?;
            }
        }
        Err(killer.join().unwrap_or_else(|_| "the killer panicked".to_owned()))
    }

    fn time_of_death(&self) -> Result<SystemTime, String> {
        let text = std::fs::read_to_string(self.last_words()).map_err(during("the victim's last words"))?;
        let nanoseconds: u64 = text.parse().map_err(during("the victim's last words"))?;
        Ok(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds))
    }

    fn stalled(&self, others_stay: bool) -> Outcome {
        let deadline = self.settings.deadline(1);
        let (comm, ones) = self.working(deadline)?;
        let culprit = self.culprit();
        if self.rank() == culprit {
            std::thread::sleep(deadline + Duration::from_millis(1500));
        }
        let started = Instant::now();
        let called = comm.dispatch(&ones.dispatch()).map(|_| ());
        // The late rank finds the others' counts, so that its dispatch may return: the rows never come. The others have
        // none of the late one.
        let late = if self.rank() == culprit { called.and_then(|()| comm.synchronize()) } else { called };
        let error = expect_error(late, "a call of a stalled group")?;
        check_failure(&error, Cause::Deadline, culprit)?;
        if self.rank() != culprit && started.elapsed() < deadline {
            return Err(format!("the deadline came after {:?} of {deadline:?}", started.elapsed()));
        }
        let again = expect_error(comm.barrier(), "a call after the failure")?;
        check_failure(&again, Cause::Deadline, culprit)?;
        if error.exit_code() != 124 {
            return Err(format!("exit code {}", error.exit_code()));
        }
        if others_stay { self.part() } else { Ok(()) }
    }

    fn left(&self) -> Outcome {
        let (comm, ones) = self.working(self.settings.deadline(LONG))?;
        let culprit = self.culprit();
        if self.rank() == culprit {
            drop(comm);
            // Alive while the others find out: leaving is not dying.
            std::thread::sleep(2 * KNOWN_WITHIN);
            return Ok(());
        }
        let started = Instant::now();
        let error = expect_error(
            comm.dispatch(&ones.dispatch()).and_then(|_| comm.synchronize()),
            "a call without a rank",
        )?;
        check_failure(&error, Cause::Left, culprit)?;
        let took = started.elapsed();
        if took < KNOWN_WITHIN * self.settings.scale { Ok(()) } else { Err(format!("known after {took:?}")) }
    }

    /// A rank that closes its communicator when all have made their last call has done nothing wrong.
    fn left_at_the_end(&self) -> Outcome {
        let (comm, ones) = self.working(self.settings.deadline(LONG))?;
        comm.barrier().map_err(during("barrier"))?;
        self.part()?;
        if self.rank() == self.culprit() {
            drop(comm);
            std::thread::sleep(KNOWN_WITHIN);
            return Ok(());
        }
        // The goodbye has come by then.
        std::thread::sleep(Duration::from_millis(300));
        comm.synchronize().map_err(during("waiting for calls that all ranks had made"))?;
        comm.status().map_err(during("status"))?;
        let error = expect_error(
            comm.dispatch(&ones.dispatch()).and_then(|_| comm.synchronize()),
            "a call without a rank",
        )?;
        check_failure(&error, Cause::Left, self.culprit())
    }

    fn different_calls(&self) -> Outcome {
        let (comm, ones) = self.working(self.settings.deadline(LONG))?;
        let received = comm.dispatch(&ones.dispatch()).map_err(during("dispatch"))?;
        let result = if self.rank() == self.culprit() {
            let rows = DeviceRows::new(received.data());
            let combine = comm.combine(&CudaCombine::new(rows, received.handle()));
            combine.and_then(|_| comm.synchronize())
        } else {
            comm.dispatch(&ones.dispatch()).and_then(|_| comm.synchronize())
        };
        match expect_error(result, "a call that differs")? {
            CudaError::Mismatch { rank, peer, call, peer_call, .. } => {
                if rank != self.rank() || peer == rank {
                    return Err(format!("rank {rank} and rank {peer} are named at rank {}", self.rank()));
                }
                for (who, text) in [(rank, &call), (peer, &peer_call)] {
                    let wanted = if who == self.culprit() { "combine" } else { "dispatch" };
                    if !text.starts_with(wanted) {
                        return Err(format!(
                            "rank {who} is said to have called {text:?}, it called {wanted}"
                        ));
                    }
                }
            }
            other => return Err(format!("not a mismatch: {other}")),
        }
        ones.works(&comm).map_err(during("the next call"))?;
        // Handles of different dispatches: the same call, but not of the same rows.
        let later = comm.dispatch(&ones.dispatch()).map_err(during("dispatch"))?;
        let mine = if self.rank() == self.culprit() { &later } else { &received };
        let combine = comm.combine(&CudaCombine::new(DeviceRows::new(mine.data()), mine.handle()));
        match expect_error(combine.and_then(|_| comm.synchronize()), "a combine with mixed handles")? {
            CudaError::Mismatch { .. } => {}
            other => return Err(format!("mixed handles are not a mismatch: {other}")),
        }
        ones.works(&comm).map_err(during("the next call"))?;
        self.part()
    }

    fn too_small(&self) -> Outcome {
        let (comm, ones) = self.working(self.settings.deadline(LONG))?;
        let culprit = self.culprit();
        let needed = ones.arrivals(self.group.size(), culprit)?;
        let most = self.group.size() * SHAPE.max_tokens;
        for rows in [0, needed / 2, needed - 1] {
            let room = if self.rank() == culprit { rows } else { most };
            let received =
                comm.dispatch(&ones.dispatch().worst_case_rows(room)).map_err(during("dispatch"))?;
            match expect_error(comm.synchronize(), "a dispatch into too few rows")? {
                CudaError::TooSmall { rank, needed: told, given } => {
                    if (rank, told, given) != (culprit, needed, rows) {
                        return Err(format!("rank {rank} needs {told}, has {given}: not {needed} of {rows}"));
                    }
                }
                other => return Err(format!("not TooSmall: {other}")),
            }
            // Its handle moves nothing either, and says so.
            let again = CudaDispatch::cached(ones.payload(), received.handle()).worst_case_rows(most);
            let again = comm.dispatch(&again).and_then(|_| comm.synchronize());
            let back = CudaCombine::new(DeviceRows::new(received.data()), received.handle());
            let back = comm.combine(&back).and_then(|_| comm.synchronize());
            for (result, what) in [(again, "a cached dispatch"), (back, "a combine")] {
                match expect_error(result, &format!("{what} of a dispatch that moved nothing"))? {
                    CudaError::Misuse { .. } => {}
                    other => {
                        return Err(format!("{what} of a dispatch that moved nothing: not Misuse: {other}"));
                    }
                }
            }
            ones.works(&comm).map_err(during("the next call"))?;
        }
        let room = if self.rank() == culprit { needed } else { most };
        let exact = comm.dispatch(&ones.dispatch().worst_case_rows(room));
        exact.and_then(|_| comm.synchronize()).map_err(during("the smallest that is enough"))?;
        self.part()
    }

    fn too_many_ranks(&self) -> Outcome {
        let config = Self::config(self.group, SHAPE, self.settings.deadline(LONG))?;
        let text = match CudaCommunicator::build(self.group, &config) {
            Ok(_) => return Err("it was built".to_owned()),
            Err(error) => error.to_string(),
        };
        let (ranks, gpus) = (self.group.size(), self.gpus);
        if text.contains(&format!("{ranks} ranks")) && text.contains(&format!("{gpus} GPU")) {
            Ok(())
        } else {
            Err(format!("{ranks} ranks and {gpus} GPUs are not in: {text}"))
        }
    }
}

/// Round trips that take a while.
struct Busy {
    rows: expertrail_cuda::DeviceMemory,
    ids: expertrail_cuda::DeviceMemory,
    tokens: usize,
}

impl Busy {
    fn new(comm: &CudaCommunicator) -> Result<Self, String> {
        let tokens = LARGE.max_tokens;
        let ids: Vec<u8> =
            (0..tokens * LARGE.top_k).flat_map(|i| ((i * 3 % LARGE.experts) as i32).to_le_bytes()).collect();
        let row = expertrail_core::Dtype::Bf16.row_bytes(LARGE.hidden);
        let rows = crate::gpu::upload(comm.context(), &vec![0; tokens * row])?;
        Ok(Self { rows, ids: crate::gpu::upload(comm.context(), &ids)?, tokens })
    }

    fn round_trip(&self, comm: &CudaCommunicator) -> Result<(), CudaError> {
        use expertrail_cuda::{CudaDispatch, DeviceIds, DevicePayload, DeviceSlice};
        let payload = DevicePayload::Bf16(DeviceRows::new(DeviceSlice::of(&self.rows)));
        let ids = DeviceIds::I32(DeviceSlice::of(&self.ids));
        let received = comm.dispatch(&CudaDispatch::new(payload, self.tokens, ids))?;
        let rows = DeviceRows::new(received.data());
        comm.combine(&CudaCombine::new(rows, received.handle()))?;
        comm.synchronize()
    }
}

/// The error that a call must give.
pub(crate) fn expect_error(result: Result<(), CudaError>, what: &str) -> Result<CudaError, String> {
    match result {
        Err(error) => Ok(error),
        Ok(()) => Err(format!("{what} succeeded")),
    }
}

fn check_failure(error: &CudaError, cause: Cause, culprit: usize) -> Outcome {
    match error {
        CudaError::Failed { failure, .. } if (failure.cause, failure.culprit) == (cause, culprit) => Ok(()),
        other => Err(format!("wanted {cause:?} of rank {culprit}, got: {other}")),
    }
}

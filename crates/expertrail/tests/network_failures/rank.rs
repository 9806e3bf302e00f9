//! What one rank does in a run: works, meets the failure, checks that it stays, and starts anew with the survivors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use expertrail::core::hop::Limits;
use expertrail::fabric::Transport;
use expertrail::host::HostError;
use expertrail::{Bf16, Communicator, Crossing, Error, Group, Placement, RailConfig, Routing, Shape};

use super::line::{Act, Line, When};
use super::trap::{Action, Trap};

pub const RANKS: usize = 4;
pub const SHAPE: Shape = Shape { max_tokens: 96, hidden: 64, top_k: 2, experts: 8 };

/// What a rank tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// It happens now.
    Acting,
    /// The first error: cause, culprit, phase, and the whole message.
    Failed { cause: String, culprit: usize, phase: String, text: String },
    /// All calls succeeded.
    Fine,
    /// Everything after the failure was as it should be.
    Anew,
    /// Something was not.
    Wrong(String),
}

/// Where a rank runs.
pub trait Job {
    /// The group of all ranks, then that of the survivors.
    fn group(&mut self) -> Group;
    /// An endpoint for the group given last.
    fn open(&mut self) -> Box<dyn Transport>;
    /// What the line does to this rank, with its report; only for acts on this rank.
    fn action(&self) -> Action;
    fn report(&self, report: Report);
}

pub fn crossing(transport: Box<dyn Transport>) -> Crossing {
    // Chunks of about 25 rows, so that each rank sends several to the other node.
    let limits = Limits { chunk_bytes: 4096, window: 2, small_chunks: true };
    Crossing { transport, config: RailConfig { limits, outgoing: 3, ..RailConfig::default() } }
}

/// Dispatches rows of ones and combines them: each token comes back once from each of its ranks.
pub fn works(comm: &Communicator) -> Result<(), Error> {
    let tokens = SHAPE.max_tokens;
    let routing = Routing::new((0..tokens as i32).flat_map(|t| [t % 8, (t + 3) % 8]).collect(), 2, 8)?;
    let x = vec![Bf16::from_f32(1.0); tokens * SHAPE.hidden];
    let received = comm.dispatch(&x, &routing)?;
    let combined = comm.combine(received.bf16().expect("BF16 rows"), received.handle())?;
    let placement = Placement::new(8, comm.topology().ranks()).expect("a placement");
    for (token, row) in combined.rows().chunks(SHAPE.hidden).enumerate() {
        let ranks = [token % 8, (token + 3) % 8].map(|expert| placement.rank_of(expert));
        let want = if ranks[0] == ranks[1] { 1.0 } else { 2.0 };
        assert!(row.iter().all(|value| value.to_f32() == want), "token {token}");
    }
    Ok(())
}

/// One rank's part of a run.
pub fn run(line: &Line, job: &mut impl Job) {
    if let Err(wrong) = play(line, job) {
        job.report(Report::Wrong(wrong));
    }
}

fn play(line: &Line, job: &mut impl Job) -> Result<(), String> {
    let group = job.group();
    let (rank, armed) = (group.rank(), Arc::new(AtomicBool::new(false)));
    let mut transport = job.open();
    let acts = rank == line.victim;
    if acts && !matches!(line.when, When::Idle | When::Between) {
        transport = Box::new(Trap::new(transport, armed.clone(), line.when, job.action()));
    }
    let build = Communicator::builder(&group).shape(SHAPE).ranks_per_node(2).deadline(line.deadline);
    let comm = build.build_across(Ok(crossing(transport))).map_err(|e| format!("build: {e}"))?;
    works(&comm).map_err(|e| format!("before: {e}"))?;
    group.barrier("before").map_err(|e| format!("before: {e}"))?;
    armed.store(acts, Ordering::Release);
    if acts && matches!(line.when, When::Idle | When::Between) {
        // Others are idle, or wait in their next call.
        std::thread::sleep(Duration::from_millis(100));
        if line.act == Act::Leave {
            job.report(Report::Acting);
            drop(comm);
            job.report(Report::Fine);
            return anew(line, (job, rank));
        }
        job.action()();
    }
    let Some(error) = first_error(line, &comm) else {
        if !line.causes.is_empty() {
            return Err("all calls succeeded".to_owned());
        }
        job.report(Report::Fine);
        return Ok(());
    };
    job.report(report_of(&error));
    stays(line, &comm, &error)?;
    let started = Instant::now();
    drop(comm);
    // Nobody waits for the farewell of a rank that is dead or stands still.
    if started.elapsed() > Duration::from_millis(1500) {
        return Err(format!("the drop took {:?}", started.elapsed()));
    }
    drop(group);
    anew(line, (job, rank))
}

fn first_error(line: &Line, comm: &Communicator) -> Option<Error> {
    let started = Instant::now();
    if line.when == When::Idle {
        while started.elapsed() < Duration::from_secs(10) {
            if let Err(error) = comm.status() {
                return Some(error);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        return None;
    }
    (0..5).find_map(|_| works(comm).err())
}

fn report_of(error: &Error) -> Report {
    match error {
        Error::Host(HostError::Failed { failure, .. }) => Report::Failed {
            cause: format!("{:?}", failure.cause),
            culprit: failure.culprit,
            phase: format!("{:?}", failure.phase),
            text: error.to_string(),
        },
        other => Report::Wrong(format!("another kind of error: {other}")),
    }
}

/// Every later call gives the same error at once. Idle ranks make none: what they leave undone their drop must do.
fn stays(line: &Line, comm: &Communicator, error: &Error) -> Result<(), String> {
    let started = Instant::now();
    let calls: &[(&str, &dyn Fn() -> Option<Error>)] = &[
        ("the status", &|| comm.status().err()),
        ("a round trip", &|| works(comm).err()),
        ("a barrier", &|| comm.barrier().err()),
    ];
    let calls = if line.when == When::Idle { &calls[..1] } else { calls };
    for (what, call) in calls {
        let later = call();
        let later = later.ok_or_else(|| format!("{what} succeeded after: {error}"))?;
        let (Report::Failed { text: a, .. }, Report::Failed { text: b, .. }) =
            (report_of(error), report_of(&later))
        else {
            return Err(format!("{what} gave {later} after {error}"));
        };
        if a != b {
            return Err(format!("{what} gave {b:?} after {a:?}"));
        }
    }
    if started.elapsed() > Duration::from_millis(500) {
        return Err(format!("calls after the failure took {:?}", started.elapsed()));
    }
    Ok(())
}

/// The survivors build a new communicator in the same processes.
fn anew(line: &Line, (job, rank): (&mut impl Job, usize)) -> Result<(), String> {
    let group = job.group();
    let transport = job.open();
    // After a death the rest need not divide into nodes of two.
    let per_node = if line.act == Act::Kill { 1 } else { 2 };
    let build = Communicator::builder(&group).shape(SHAPE).ranks_per_node(per_node);
    let comm = build.build_across(Ok(crossing(transport))).map_err(|e| format!("rank {rank} anew: {e}"))?;
    works(&comm).and_then(|()| works(&comm)).map_err(|e| format!("rank {rank} anew: {e}"))?;
    drop(comm);
    job.report(Report::Anew);
    Ok(())
}

//! How fast the command ring is between two threads: commands a second, and the time from a push to its pop.
//!
//! `cargo run --release -p expertrail-fabric --example ring_rate [ENTRIES]`. Both threads spin: the machine needs two idle
//! cores, or the figures tell of the scheduler.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use expertrail_fabric::RingMemory;
use expertrail_fabric::ring::{Command, Consumer, Kind, Producer, RingError};

const COMMANDS: u32 = 20_000_000;
/// About a millisecond.
const WINDOW: u32 = 10_000;
const ROUNDS: u32 = 5;
const HAND_OVERS: usize = 200_000;
const WARM_UP: usize = 10_000;

type Ends = (Producer<RingMemory>, Consumer<RingMemory>);

fn ends(entries: usize) -> Result<Ends, RingError> {
    let memory = Arc::new(RingMemory::new(entries)?);
    Ok((Producer::new(memory.clone())?, Consumer::new(memory)?))
}

fn command(number: u32) -> Command {
    Command {
        kind: Kind::Write,
        channel: (number % 8) as u8,
        peer: (number % 4096) as u16,
        sequence: (number % 1024) as u16,
        epoch: (number % 16) as u8,
        slot: number % (1 << 20),
        length: 8192,
    }
}

fn join<T>(thread: JoinHandle<Result<T, RingError>>) -> Result<T, Box<dyn Error>> {
    Ok(thread.join().map_err(|_| "the consumer thread panicked")??)
}

/// What one run of commands gave.
struct Rate {
    /// Commands a second over the whole run.
    whole: f64,
    /// The same of each window, ascending: on a busy machine most windows are free of the scheduler.
    windows: Vec<f64>,
    stalls: u64,
}

/// Every command is compared with what was pushed.
fn rate(entries: usize) -> Result<Rate, Box<dyn Error>> {
    let (mut producer, mut consumer) = ends(entries)?;
    let thread = std::thread::spawn(move || {
        let (mut number, mut wrong) = (0, 0);
        let mut marks = Vec::with_capacity((COMMANDS / WINDOW) as usize + 1);
        while number < COMMANDS {
            match consumer.try_pop()? {
                Some(taken) => {
                    wrong += u64::from(taken != command(number));
                    if number % WINDOW == 0 {
                        marks.push(Instant::now());
                    }
                    number += 1;
                }
                None => std::hint::spin_loop(),
            }
        }
        Ok((wrong, marks))
    });
    let start = Instant::now();
    for number in 0..COMMANDS {
        producer.push(&command(number), || !thread.is_finished())?;
    }
    let (wrong, marks) = join(thread)?;
    let seconds = start.elapsed().as_secs_f64();
    if wrong != 0 {
        return Err(format!("{wrong} commands are not what was pushed").into());
    }
    let window = |pair: &[Instant]| f64::from(WINDOW) / (pair[1] - pair[0]).as_secs_f64();
    let mut windows: Vec<f64> = marks.windows(2).map(window).collect();
    windows.sort_unstable_by(f64::total_cmp);
    Ok(Rate { whole: f64::from(COMMANDS) / seconds, windows, stalls: producer.stalls() })
}

/// Nanoseconds from before a push to after its pop, each into an idle ring, ascending. A clock's reading is in each.
fn hand_over(entries: usize) -> Result<Vec<u64>, Box<dyn Error>> {
    let (mut producer, mut consumer) = ends(entries)?;
    let epoch = Instant::now();
    // One for each command: the producer may be a command ahead of the consumer's clock.
    let pushed_at: Arc<[AtomicU64]> = (0..HAND_OVERS).map(|_| AtomicU64::new(0)).collect();
    let stamps = pushed_at.clone();
    let thread = std::thread::spawn(move || {
        let mut times = Vec::with_capacity(HAND_OVERS);
        while times.len() < HAND_OVERS {
            match consumer.try_pop()? {
                // The stamp was written before the push, which makes it visible.
                Some(_) => {
                    let stamp = stamps[times.len()].load(Ordering::Relaxed);
                    times.push((epoch.elapsed().as_nanos() as u64).saturating_sub(stamp));
                }
                None => std::hint::spin_loop(),
            }
        }
        Ok(times)
    });
    for (number, stamp) in (0..).zip(pushed_at.iter()) {
        let now = epoch.elapsed().as_nanos() as u64;
        stamp.store(now, Ordering::Relaxed);
        producer.push(&command(number), || !thread.is_finished())?;
        // The pause lets the consumer come back from its clock, so that it waits for the next command.
        while !producer.is_empty()? || (epoch.elapsed().as_nanos() as u64) < now + 1_000 {
            if thread.is_finished() {
                break;
            }
            std::hint::spin_loop();
        }
    }
    let mut times = join(thread)?;
    times.drain(..WARM_UP);
    times.sort_unstable();
    Ok(times)
}

fn main() -> Result<(), Box<dyn Error>> {
    let entries = std::env::args().nth(1).map_or(Ok(1024), |text| text.parse())?;
    for _ in 0..ROUNDS {
        let rate = rate(entries)?;
        let at = |percent: usize| rate.windows[(rate.windows.len() - 1) * percent / 100] / 1e6;
        println!(
            "{:.1} M commands/s; windows of {WINDOW}: p10 {:.1}, p50 {:.1}, p90 {:.1} M/s; {} stalls, ring of {entries}",
            rate.whole / 1e6,
            at(10),
            at(50),
            at(90),
            rate.stalls
        );
    }
    let mut clock: Vec<u64> = (0..10_001)
        .map(|_| {
            let start = Instant::now();
            start.elapsed().as_nanos() as u64
        })
        .collect();
    clock.sort_unstable();
    for _ in 0..ROUNDS {
        let times = hand_over(entries)?;
        let at = |per_mille: usize| times[(times.len() - 1) * per_mille / 1000];
        println!(
            "hand-over of {}: p50 {} ns, p99 {} ns, p99.9 {} ns, max {} ns; a clock's reading {} ns",
            times.len(),
            at(500),
            at(990),
            at(999),
            at(1000),
            clock[clock.len() / 2]
        );
    }
    Ok(())
}

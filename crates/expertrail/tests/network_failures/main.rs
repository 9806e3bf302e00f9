//! What happens between nodes when a rank, a node or a link fails: every line of `matrix.txt`, over every transport that is
//! there. All survivors must be told in time and alike, and must be able to start anew in the same processes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(unreachable_pub, missing_docs, reason = "parts of one test program")]

mod blame;
mod check;
mod line;
mod namespaces;
mod processes;
mod rank;
mod simulated;
mod trap;

use line::{Line, lines};

/// Runs the lines over one transport, one after the other: they measure times.
fn run_all(over: &str, run: impl Fn(&Line) -> check::Seen) {
    // One line alone, for whoever looks into it.
    let only: Option<usize> = std::env::var("EXPERTRAIL_TEST_LINE").ok().and_then(|text| text.parse().ok());
    let mut failures = Vec::new();
    for line in lines().iter().filter(|line| line.over == over && only.is_none_or(|n| n == line.number)) {
        let started = std::time::Instant::now();
        let seen = run(line);
        let problems = check::problems(line, &seen);
        println!("{line} ({:.1} s)", started.elapsed().as_secs_f64());
        if only.is_some() {
            seen.reports.iter().for_each(|(rank, report, at)| {
                println!("{:?} rank {rank} {report:?}", at.duration_since(started));
            });
        }
        failures.extend(problems.into_iter().map(|text| format!("{line}\n    {text}")));
    }
    assert!(failures.is_empty(), "{} problems:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn the_matrix_over_the_simulated_network() {
    run_all("sim", simulated::run);
}

#[test]
fn the_matrix_over_tcp() {
    if processes::can_run() {
        run_all("tcp", processes::run);
    }
}

#[test]
fn the_matrix_over_shm() {
    // A peer killed inside of the shm provider of 1.x may hold a spin lock in shared memory for good: of 42 survivors of such
    // kills 3 hung in the library's next call. 2.x has had none in 498.
    if processes::can_run_on(2) {
        run_all("shm", processes::run);
    }
}

/// Not a test: one rank of the runs above, in its own process.
#[test]
#[ignore = "started by the others"]
fn rank_process() {
    processes::rank();
}

/// Not a test: one rank of `scripts/test-network`, in a network namespace.
#[test]
#[ignore = "started by scripts/test-network"]
fn namespace_rank() {
    namespaces::rank();
}

//! Many nodes over the simulated network: the proxies of a whole job, their rails and the streams of a dispatch, driven by
//! one thread. What a rank costs, in time and memory, is printed against the number of ranks:
//! `cargo test -p expertrail-fabric --test scale -- --nocapture`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "scale/job.rs"]
mod job;
#[path = "scale/rank.rs"]
mod rank;

use job::{Job, Routes};

/// Private memory of this process that was written to, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("a Linux kernel");
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Seconds that this thread has run: what it takes on a machine that does other things too.
fn seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("a Linux kernel");
    text.split(' ').next().unwrap().parse::<u64>().unwrap() as f64 / 1e9
}

#[test]
fn a_job_of_1024_ranks_on_128_nodes_dispatches() {
    println!(
        "ranks nodes  build ms  ms a call  us a rank and call  KiB a rank: region, all  writes a rank and call"
    );
    let mut last = None;
    for nodes in [8, 32, 128] {
        let before = resident();
        let start = seconds();
        let mut job = Job::new(nodes, 8, Routes { tokens: 16, top_k: 8 });
        let (ranks, built) = (job.ranks(), seconds() - start);
        // Enough calls that both generations of headers come twice and every busy stream's window comes round.
        let calls = 4;
        let mut time = 0.0;
        for epoch in 1..=calls {
            let from = seconds();
            job.dispatch(epoch);
            time += (seconds() - from) / calls as f64;
            job.check(epoch);
        }
        let (memory, region) = ((resident() - before) / ranks as u64, job.region_bytes());
        println!(
            "{ranks:>5} {nodes:>5} {:>9.0} {:>10.0} {:>19.1} {:>12} {:>11} {:>23}",
            built * 1e3,
            time * 1e3,
            time * 1e6 / ranks as f64,
            region / 1024,
            memory / 1024,
            job.writes() / ranks as u64 / calls,
        );
        assert!(memory * ranks as u64 <= 4 << 30, "{memory} bytes a rank");
        last = Some(seconds() - start);
    }
    let last = last.unwrap();
    assert!(last < 60.0, "1,024 ranks took {last:.0} s");
}

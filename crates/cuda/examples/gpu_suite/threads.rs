//! Ranks as threads that share one GPU: more ranks than there are GPUs.

use std::panic::AssertUnwindSafe;

use expertrail_group::Group;

use crate::settings::Settings;

/// Runs one check with `ranks` ranks; gives what went wrong.
pub(crate) fn run(settings: &Settings, ranks: usize, (gpus, check): (usize, usize)) -> Option<String> {
    let groups = match Group::local_threads(ranks) {
        Ok(groups) => groups,
        Err(error) => return Some(error.to_string()),
    };
    let results: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = groups
            .iter()
            .map(|group| {
                scope.spawn(move || {
                    let body = AssertUnwindSafe(|| crate::one(settings, group, (gpus, check)));
                    std::panic::catch_unwind(body).unwrap_or_else(|_| Err("a panic".to_owned()))
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err("a panic".to_owned()))).collect()
    });
    let wrong: Vec<String> = results
        .into_iter()
        .enumerate()
        .filter_map(|(rank, result)| result.err().map(|error| format!("rank {rank}: {error}")))
        .collect();
    (!wrong.is_empty()).then(|| wrong.join("; "))
}

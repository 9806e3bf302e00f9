//! What the name of a log says of who wrote it.

use std::sync::LazyLock;

use regex::Regex;

/// What a name says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Named {
    /// Rank of the run.
    pub(super) rank: Option<u32>,
    /// Rank within its node.
    pub(super) local: Option<u32>,
    /// Task of srun.
    pub(super) task: Option<u32>,
    /// Host or pod.
    pub(super) node: Option<String>,
    /// Which of the nodes.
    pub(super) node_rank: Option<u32>,
}

struct Patterns {
    rank: Option<Regex>,
    torchrun: Option<Regex>,
    task: Option<Regex>,
    node: Option<Regex>,
}

static PATTERNS: LazyLock<Patterns> = LazyLock::new(|| Patterns {
    rank: Regex::new(r"(?i)(?:^|[^a-z])(?:global[-_]?rank|rank|r)[-_.]?(\d{1,6})(?:[^0-9a-z]|$)").ok(),
    torchrun: Regex::new(r"attempt_\d+/(\d{1,5})/(?:stdout|stderr|error)").ok(),
    task: Regex::new(r"(?i)(?:slurm|job|srun)[^/]*?\d+(?:\.\d+)?[-_](\d{1,5})\.[a-z]+(?:\.gz)?$").ok(),
    node: Regex::new(
        r"(?i)^(?:logs?[-_.])?([a-z0-9][a-z0-9.-]*?)(?:\.(?:log|out|err|txt|stderr|stdout))*(?:\.gz)?$",
    )
    .ok(),
});

/// Reads a name.
pub(super) fn writer(name: &str) -> Named {
    let mut found = Named::default();
    let number = |pattern: &Option<Regex>, text: &str| -> Option<u32> {
        pattern.as_ref()?.captures(text)?.get(1)?.as_str().parse().ok()
    };
    let base = name.rsplit('/').next().unwrap_or(name);
    found.local = number(&PATTERNS.torchrun, name);
    if found.local.is_none() {
        found.rank = number(&PATTERNS.rank, base).or_else(|| {
            // A folder for each rank.
            let folder = name.rsplit('/').nth(1)?;
            number(&PATTERNS.rank, folder)
        });
    }
    if found.rank.is_none() && found.local.is_none() {
        found.task = number(&PATTERNS.task, base);
    }
    let stem =
        PATTERNS.node.as_ref().and_then(|pattern| pattern.captures(base)).and_then(|found| found.get(1));
    if let Some(stem) = stem.map(|stem| stem.as_str())
        && found.rank.is_none()
        && is_node(stem)
    {
        found.node = Some(stem.to_owned());
        found.node_rank = index(stem);
    }
    found
}

/// The index in `deepep-bench-1-x7k2p`, a pod of an indexed Job, and in `worker-1`, one of a `StatefulSet`.
pub(super) fn index(pod: &str) -> Option<u32> {
    let mut parts = pod.rsplit('-');
    let last = parts.next()?;
    let before = parts.next()?;
    let short = |text: &str| text.len() <= 4 && !text.is_empty();
    if short(last)
        && let Ok(index) = last.parse()
    {
        return Some(index);
    }
    let hashed =
        last.len() == 5 && last.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    if hashed && short(before) { before.parse().ok() } else { None }
}

fn is_node(stem: &str) -> bool {
    const WORDS: [&str; 9] = ["node", "pod", "worker", "host", "gpu", "server", "bench", "launcher", "ip-"];
    const OTHER: [&str; 10] =
        ["events", "describe", "pods", "nodes", "sacct", "dmesg", "build", "all-", "kubectl", "journal"];
    let low = stem.to_ascii_lowercase();
    let told = WORDS.iter().any(|word| low.starts_with(word) || low.contains(&format!("-{word}")));
    told && stem.bytes().any(|byte| byte.is_ascii_digit() || byte == b'-')
        && !OTHER.iter().any(|word| low.contains(word))
}

//! Every `EXPERTRAIL_*` variable that exists, and those that do not.

use super::{CHUNK, DEADLINE, DOMAIN, FABRIC, LIBFABRIC, SIMD, WINDOW};

/// A variable that other parts read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// Its name.
    pub variable: &'static str,
    /// What it sets.
    pub about: &'static str,
    /// What holds where it is not set; empty for what a launcher says of a rank.
    pub default: &'static str,
}

const fn of(variable: &'static str, about: &'static str, default: &'static str) -> Elsewhere {
    Elsewhere { variable, about, default }
}

/// Variables beside those of [`Config`](super::Config): of GPUs, of ranks' identity, of the commands, of builds and tests.
pub const ELSEWHERE: [Elsewhere; 40] = [
    of("EXPERTRAIL_LIBCUDA", "the driver library", "libcuda.so.1"),
    of("EXPERTRAIL_NVRTC", "NVRTC, a file or its folder", "searched for"),
    of("EXPERTRAIL_NVML", "NVML's library", "libnvidia-ml.so.1"),
    of("EXPERTRAIL_CACHE", "folder of compiled kernels, or off", "expertrail in XDG_CACHE_HOME or ~/.cache"),
    of("EXPERTRAIL_SOCKET_DIR", "a shared folder for the ranks' sockets", "abstract sockets"),
    of("EXPERTRAIL_KUBECTL", "the kubectl to run", "kubectl"),
    of("EXPERTRAIL_RANK", "this rank", ""),
    of("EXPERTRAIL_WORLD_SIZE", "ranks in all", ""),
    of("EXPERTRAIL_LOCAL_RANK", "rank on its node", ""),
    of("EXPERTRAIL_LOCAL_SIZE", "ranks of the node", ""),
    of("EXPERTRAIL_NODE", "name of the node", ""),
    of("EXPERTRAIL_NODE_RANK", "number of the node", ""),
    of("EXPERTRAIL_ROOT", "host:port of rank 0", ""),
    of("EXPERTRAIL_PORT", "port of rank 0", ""),
    of("EXPERTRAIL_HOST", "this host's name", ""),
    of("EXPERTRAIL_JOB", "the job that ranks belong to", ""),
    of("EXPERTRAIL_TOKEN", "the secret of the job", ""),
    of("EXPERTRAIL_LISTEN_FD", "rank 0's open port", ""),
    of("EXPERTRAIL_PARENT_PID", "the process that started the rank", ""),
    of("EXPERTRAIL_TERMINAL_WIDTH", "columns of the terminal", ""),
    of("EXPERTRAIL_PROGRESS", "whether rank 0 shows progress", ""),
    of("EXPERTRAIL_OUT", "folder of a run's files", ""),
    of("EXPERTRAIL_COMMIT", "the commit that a result names", ""),
    of("EXPERTRAIL_BIN", "folder of built programs, for scripts", ""),
    of("EXPERTRAIL_BINARY", "the program that tests start", ""),
    of("EXPERTRAIL_EMBED", "folder of compiled kernels to embed, when building", ""),
    of("EXPERTRAIL_CALLS", "calls of the stress test", ""),
    of("EXPERTRAIL_SEED", "seed of the stress test", ""),
    of("EXPERTRAIL_DEADLINE_SCALE", "factor of test deadlines", ""),
    of("EXPERTRAIL_SIM_SEEDS", "seeds of the simulated network's tests", ""),
    of("EXPERTRAIL_TEST_PROVIDER", "provider of a test", ""),
    of("EXPERTRAIL_TUNE_RANK", "rank of a tuning run", ""),
    of("EXPERTRAIL_SHELLCHECK", "shellcheck, for tests", ""),
    of("EXPERTRAIL_HADOLINT", "hadolint, for tests", ""),
    of("EXPERTRAIL_KUBERNETES_VALIDATE", "a validator, for tests", ""),
    of("EXPERTRAIL_NVSHMEM_WHEELS", "packages, for tests", ""),
    of("EXPERTRAIL_SNAPSHOTS", "recorded trees, for tests", ""),
    of("EXPERTRAIL_WRITE_CAUSES", "writes a document anew, in tests", ""),
    of("EXPERTRAIL_WRITE_CONFUSION", "writes a document anew, in tests", ""),
    of("EXPERTRAIL_WRITE_GOLDEN", "writes a document anew, in tests", ""),
];

/// A variable that nobody reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Its name.
    pub name: String,
    /// The known one that is nearest, if any is near.
    pub nearest: Option<&'static str>,
}

/// The `EXPERTRAIL_*` names among `names` that do not exist, sorted.
pub fn unknown(names: impl IntoIterator<Item = String>) -> Vec<Unknown> {
    let known: Vec<&'static str> = [LIBFABRIC, FABRIC, DOMAIN, CHUNK, WINDOW, SIMD, DEADLINE]
        .into_iter()
        .chain(ELSEWHERE.iter().map(|other| other.variable))
        .collect();
    let mut found: Vec<Unknown> = names
        .into_iter()
        .filter(|name| name.starts_with("EXPERTRAIL_") && !known.contains(&name.as_str()))
        .map(|name| {
            // More than a third of the letters differing is another word.
            let near = known.iter().map(|known| (edits(&name, known), *known)).min();
            let letters = name.len() - "EXPERTRAIL_".len();
            let nearest = near.filter(|(edits, _)| *edits <= (letters / 3).max(2)).map(|(_, known)| known);
            Unknown { name, nearest }
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Letters to add, remove or change until `a` is `b`.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.iter().enumerate() {
            let change = corner + usize::from(from != *to);
            corner = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!([edits("", "abc"), edits("kitten", "sitting"), edits("a", "a")], [3, 3, 0]);
    }

    #[test]
    fn a_misspelt_name_is_named_with_the_right_one() {
        let names = [
            "EXPERTRAIL_LIBFABRICS",
            "EXPERTRAIL_FABRIC",
            "PATH",
            "EXPERTRAIL_CHUNKS",
            "EXPERTRAIL_QQQQQQQQ",
        ];
        let found = unknown(names.map(str::to_owned));
        let pairs: Vec<(&str, Option<&str>)> = found.iter().map(|u| (u.name.as_str(), u.nearest)).collect();
        assert_eq!(
            pairs,
            [
                ("EXPERTRAIL_CHUNKS", Some("EXPERTRAIL_CHUNK")),
                ("EXPERTRAIL_LIBFABRICS", Some("EXPERTRAIL_LIBFABRIC")),
                ("EXPERTRAIL_QQQQQQQQ", None),
            ]
        );
    }
}

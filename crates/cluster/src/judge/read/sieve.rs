//! Which lines are looked at: one search for everything that a reader looks for, before anything else is done with a line. Logs of
//! training runs are mostly something else.
//!
//! Failures are those of [`diagnose`](crate::diagnose) and those of [`FAILURES`], for `judge` with and without `--accept`.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use regex::Regex;

use crate::diagnose::event::{Role, Signal};
use crate::diagnose::rules;

/// Texts of failures, as the programs print them. Case matters: that keeps prose about errors out. What `diagnose` holds for a
/// warning (an Xid, a transport that did not start) is a failure here where no figure came after it.
const FAILURES: &[&str] = &[
    "DeepEP error:",
    "timeout (dispatch CPU)",
    "CPU recv timeout",
    "num_recv_tokens: -1",
    "num_rdma_recv_tokens: -1",
    "moe_recv_expert_counter[0]: -1",
    "illegal memory access",
    "CUDA error",
    "CUDA out of memory",
    "NCCL error",
    "EPException",
    "Traceback (most recent call last)",
    "AssertionError:",
    "DistBackendError",
    "ChildFailedError",
    "Watchdog caught collective operation timeout",
    "Segmentation fault",
    "Bus error",
    "Fatal Python error",
    "terminate called after throwing",
    "core dumped",
    "Process received signal",
    "exited on signal",
    "terminated by signal",
    "killed by signal",
    "(SIGKILL)",
    "non-zero exit code",
    "srun: error:",
    "slurmstepd: error:",
    "DUE TO TIME LIMIT",
    "oom-kill",
    "oom_kill event",
    "OOMKilled",
    "Out of memory: Killed process",
    "NVRM: Xid",
    "fallen off the bus",
    "DeepEP timeout",
    "RDMA sender timeout",
    "forwarder timeout",
    "receiver timeout",
    "init failed for transport: IBGDA",
    "cannot allocate buffer",
];

/// What the readers of formats look for. A line with none of these and no failure is not read.
const WANTED: &[&str] = &[
    // The guide's benchmark.
    "DeepEP Benchmark: ",
    "PyTorch: ",
    "--- Int",
    "INTRA ERROR:",
    "INTER ERROR:",
    "layout=",
    "DeepEP benchmark complete.",
    "dispatch=",
    "FAILED",
    // DeepEP's tests.
    "[config] num_tokens=",
    "[testing] ",
    "[tuning] Best ",
    "andwidth: ",
    " EP: ",
    "> Testing with ",
    "> Ranks: ",
    "> Experts: ",
    "> Tokens: ",
    "> #SM: ",
    // nccl-tests: names of collectives, comments, and the types of rows.
    "_perf",
    "# nThread ",
    " Pid ",
    "Out of bounds values",
    "Avg bus bandwidth",
    " float ",
    " half ",
    " double ",
    "int8 ",
    "int32 ",
    "int64 ",
    "bfloat16 ",
    " f8e",
    " fp8",
    // Training.
    "teration",
    "loss=",
    "DP size: ",
    "Benchmark summary saved",
    "MFU: ",
    "Max iter time: ",
    "Total setup time",
    "Total warmup time",
    // Any log.
    "nvshmem",
    "NVSHMEM",
    "NVIDIA ",
    "deepep-tests:",
    "efa",
    "--nnodes",
    "deep_ep",
    "xit",
    "COMPLETED",
    "NODE_FAIL",
    "OUT_OF_ME",
    "TIMEOUT",
    "CANCELLED",
];

/// What a text that was found is of.
enum Of {
    Wanted,
    Failure,
    Signal(Option<Regex>),
}

struct Sieve {
    texts: Option<AhoCorasick>,
    of: Vec<Of>,
}

static SIEVE: LazyLock<Sieve> = LazyLock::new(|| {
    let mut texts: Vec<&'static str> = Vec::new();
    let mut of = Vec::new();
    for text in WANTED {
        texts.push(text);
        of.push(Of::Wanted);
    }
    for text in FAILURES {
        texts.push(text);
        of.push(Of::Failure);
    }
    for signal in rules::signals().filter(|signal| counts(signal)) {
        let pattern = signal.pattern.and_then(|pattern| Regex::new(pattern).ok());
        for text in signal.any.iter().filter(|text| text.len() > 1) {
            texts.push(text);
            of.push(Of::Signal(pattern.clone()));
        }
    }
    let build = |kind| AhoCorasick::builder().match_kind(MatchKind::Standard).kind(kind).build(&texts).ok();
    Sieve { texts: build(Some(AhoCorasickKind::DFA)).or_else(|| build(None)), of }
});

/// Failures of what runs. What a cluster says of its objects (a node that is not ready) is no line of a rank.
fn counts(signal: &Signal) -> bool {
    signal.role == Role::Failure && !signal.id.starts_with("node-") && !signal.id.starts_with("build-")
}

/// Whether anything in the line is looked for.
pub(super) fn takes(line: &[u8]) -> bool {
    SIEVE.texts.as_ref().is_none_or(|texts| texts.is_match(line))
}

/// Whether the line says that something failed.
pub(super) fn failure(line: &str) -> bool {
    let Some(texts) = &SIEVE.texts else { return FAILURES.iter().any(|text| line.contains(text)) };
    texts.find_overlapping_iter(line).any(|found| match SIEVE.of.get(found.pattern().as_usize()) {
        Some(Of::Failure) => true,
        Some(Of::Signal(pattern)) => pattern.as_ref().is_none_or(|pattern| pattern.is_match(line)),
        Some(Of::Wanted) | None => false,
    })
}

//! Ids and causes of this part.

use crate::causes::CauseEntry;

pub(super) const BELOW: CauseEntry = CauseEntry {
    id: "figure-below-expected",
    title: "a bandwidth is below its reference or the engine's share of the link",
    text: "Runs of one machine and build vary by 5-10 %; what is lower has a cause in the build, the settings, the NIC of each rank or the node.",
};
pub(super) const UNJUDGED: CauseEntry = CauseEntry {
    id: "figure-not-judged",
    title: "nothing is known that a figure could be held against",
    text: "Neither a reference of these settings nor a ceiling: the output does not say on what machine it ran.",
};
pub(super) const ABOVE: CauseEntry = CauseEntry {
    id: "figure-above-ceiling",
    title: "a bandwidth is above what its link carries",
    text: "More than the link's rate is no speed but a mistake: in the bytes that are counted, the time, the number of nodes, or the NIC that is assumed.",
};
pub(super) const FAR: CauseEntry = CauseEntry {
    id: "figure-far-above-reference",
    title: "a bandwidth is far above what its reference got",
    text: "Runs of one machine and build vary by 5-10 %. Half as much again is another setting (tokens, hidden size, number of nodes) or another way of counting, until it is explained.",
};
pub(super) const ACCOUNTS: CauseEntry = CauseEntry {
    id: "figure-contradicts-itself",
    title: "a bandwidth does not follow from the bytes and the time beside it",
    text: "A bandwidth is bytes by time, and the output has both: where they disagree by more than rounding the figure was edited, or lines of different calls are mixed.",
};
pub(super) const NO_NUMBER: CauseEntry = CauseEntry {
    id: "training-figures-impossible",
    title: "a figure of the training run cannot be",
    text: "A loss that is no number, a time of zero, a utilisation above 100 %, or an average that the times beside it do not make: the iterations ended, and what they did is worth nothing.",
};
pub(super) const IGNORED: CauseEntry = CauseEntry {
    id: "option-contradicts-log",
    title: "an option says something else than the log",
    text: "Options fill in what the output does not say. What it does say holds.",
};
pub(super) const NOT_RUN: CauseEntry = CauseEntry {
    id: "section-not-run",
    title: "a part of the benchmark did not run",
    text: "The guide's script catches the errors of its parts, prints them and ends with exit code 0: only the figures tell that a part ran.",
};
pub(super) const MISSING: CauseEntry = CauseEntry {
    id: "rank-or-node-missing",
    title: "a node or rank has no figures",
    text: "The run had more nodes or ranks than the output has figures of: logs of a pod are missing, or it died. The others' figures say nothing of it.",
};
pub(super) const STACK: CauseEntry = CauseEntry {
    id: "stack-not-the-references",
    title: "the versions are not those that the references were measured with",
    text: "The guide's figures are of one stack; newer ones may be faster, slower or fail. Reproduce with that stack before a cluster is blamed.",
};
pub(super) const MIXED: CauseEntry = CauseEntry {
    id: "stack-differs-between-ranks",
    title: "ranks of one run load different versions",
    text: "Images or libraries differ between nodes; the versions talk to each other and may fail or crawl.",
};
pub(super) const SILENT: CauseEntry = CauseEntry {
    id: "nvshmem-not-confirmed",
    title: "NVSHMEM's line is missing for ranks",
    text: "Each rank prints NVSHMEM's version when its context is there. Fewer lines than ranks confirm fewer ranks (the guide's own sample has one for 16; a log cut short, or a build where only rank 0 of each rail's world prints, has fewer, too); none confirms nothing.",
};
pub(super) const UNEVEN: CauseEntry = CauseEntry {
    id: "node-slower-than-peers",
    title: "one node or rank is slower than its peers",
    text: "Build and settings are the same on all, so the cause is that machine: clocks held down, a link or NIC with fewer lanes, ECC errors, another load.",
};
pub(super) const VARY: CauseEntry = CauseEntry {
    id: "runs-vary",
    title: "runs of the same settings differ by more than 10 %",
    text: "5-10 % is normal. More means that something changes between runs: another job on the fabric, clocks, a flapping link, other nodes.",
};
pub(super) const SLOWER: CauseEntry = CauseEntry {
    id: "slower-than-baseline",
    title: "slower than the baseline",
    text: "The same figure was better before: look at what changed in between (driver, operator, image, node).",
};
pub(super) const GONE: CauseEntry = CauseEntry {
    id: "baseline-figure-missing",
    title: "the baseline has a figure that this run lacks",
    text: "What was measured before was not measured now, so nothing can be said about it.",
};
pub(super) const WRONG: CauseEntry = CauseEntry {
    id: "data-wrong",
    title: "rows arrived wrong",
    text: "A test of correctness failed: the speed of wrong data is worth nothing.",
};
pub(super) const UNVERIFIED: CauseEntry = CauseEntry {
    id: "data-not-verified",
    title: "nobody looked at the data",
    text: "The run timed calls and compared nothing.",
};
pub(super) const TOTAL: CauseEntry = CauseEntry {
    id: "total-disagrees",
    title: "the total does not follow from dispatch and combine",
    text: "The benchmark's total is the harmonic mean of both (inside a node), or at most that (between nodes, where layout adds to it). Lines of two runs are mixed, or figures were edited.",
};
pub(super) const CUT: CauseEntry = CauseEntry {
    id: "log-incomplete",
    title: "the log lacks lines that a whole run prints",
    text: "The figures stand for themselves; that the run ended cleanly is not shown.",
};
pub(super) const STOPPED: CauseEntry = CauseEntry {
    id: "training-stopped",
    title: "training stopped before its last iteration",
    text: "An iteration began and did not end, or later ones never began.",
};
pub(super) const NO_SUMMARY: CauseEntry = CauseEntry {
    id: "summary-missing",
    title: "the summary of the run was not written",
    text: "The benchmark writes its summary after the last iteration: without it the run did not end as it should.",
};
pub(super) const LAUNCHER: CauseEntry = CauseEntry {
    id: "launcher-failed",
    title: "a launcher ended with an error, or its exit code is not known",
    text: "A run is good when every node's launcher ends with 0; a rank may print figures and die in teardown.",
};
pub(super) const UNSEEN: CauseEntry = CauseEntry {
    id: "logs-of-ranks-missing",
    title: "the logs of some ranks were not given",
    text: "Files are of one rank or node each, and there are fewer than ranks or nodes. A failure in the others was not looked for.",
};

pub(super) const MARKER: CauseEntry = CauseEntry {
    id: "failure-in-log",
    title: "a rank printed a failure",
    text: "Timeouts, illegal accesses and tracebacks mean something even where the run went on. `expertrail diagnose` names the first.",
};
pub(super) const UNREAD: CauseEntry = CauseEntry {
    id: "result-not-recognised",
    title: "a file has nothing that can be judged",
    text: "It is in no format that is known: results of expertrail bench, the guide's benchmark, DeepEP's tests, nccl-tests, training benchmarks.",
};
pub(super) const SAYS_FAIL: CauseEntry = CauseEntry {
    id: "run-failed-by-itself",
    title: "the run says of itself that it is no pass",
    text: "The benchmark's own verdict stands before any comparison of its figures.",
};

/// Causes of this part. Patterns name those of the topology and of the table of versions, too.
pub const CAUSES: &[&[CauseEntry]] = &[&[
    BELOW, UNJUDGED, ABOVE, NOT_RUN, MISSING, STACK, MIXED, SILENT, UNEVEN, VARY, SLOWER, GONE, WRONG, FAR,
    ACCOUNTS, NO_NUMBER, IGNORED, UNVERIFIED, TOTAL, CUT, STOPPED, NO_SUMMARY, LAUNCHER, MARKER, UNSEEN,
    UNREAD, SAYS_FAIL,
]];

/// Ids of the findings of a verdict with what each looks at. An id is never used again for something else.
pub const CHECKS: &[(&str, &str)] = &[
    ("J001", "figures against references or the roofline"),
    ("J002", "figures against what links carry"),
    ("J003", "parts of the run"),
    ("J004", "nodes and ranks with figures"),
    ("J005", "versions"),
    ("J006", "NIC offset of the GPU"),
    ("J007", "NVSHMEM on every rank"),
    ("J008", "nodes and ranks alike"),
    ("J009", "runs alike"),
    ("J010", "against the baseline"),
    ("J011", "data"),
    ("J012", "pattern of a build without aggressive PTX"),
    ("J013", "pattern of ranks on a wrong NIC"),
    ("J014", "pattern of half of the NICs"),
    ("J015", "totals"),
    ("J016", "end of the log"),
    ("J017", "iterations"),
    ("J018", "summary of the training run"),
    ("J019", "exit codes of launchers"),
    ("J020", "failures in the log"),
    ("J021", "support between nodes in the build"),
    ("J022", "files"),
    ("J023", "the run's own verdict"),
    ("J024", "figures against their own bytes and times"),
    ("J025", "figures of the training run"),
    ("J026", "options"),
];

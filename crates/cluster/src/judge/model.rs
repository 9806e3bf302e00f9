//! What is read out of the output of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

/// A line of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Place {
    /// The name that the file was read under.
    pub file: String,
    /// Its line, from 1; 0: the whole file (JSON).
    pub line: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

/// What wrote the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The benchmark of the guide to managed Kubernetes: a part inside each node, a part between nodes.
    Guide,
    /// `DeepEP` V1 `test_intranode.py`.
    Intranode,
    /// `DeepEP` V1 `test_internode.py`.
    Internode,
    /// `DeepEP` V1 `test_low_latency.py`.
    LowLatency,
    /// `DeepEP` V2 `tests/elastic/test_ep.py`.
    V2,
    /// nccl-tests; `alltoall_perf` is what is judged.
    Alltoall,
    /// `expertrail bench`.
    Expertrail,
    /// A training benchmark: iterations, step times, loss.
    Training,
    /// The summary file of a training benchmark.
    Summary,
    /// No figures and no banner, though something that belongs to a run: an error, an exit code, a version.
    Fragment,
    /// Nothing that is known.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Kind {
    /// As it is shown to people.
    pub fn label(self) -> &'static str {
        match self {
            Self::Guide => "guide's benchmark",
            Self::Intranode => "DeepEP test_intranode",
            Self::Internode => "DeepEP test_internode",
            Self::LowLatency => "DeepEP test_low_latency",
            Self::V2 => "DeepEP V2 test_ep",
            Self::Alltoall => "nccl-tests",
            Self::Expertrail => "expertrail bench",
            Self::Training => "training log",
            Self::Summary => "training summary",
            Self::Fragment => "part of a log",
            Self::Unknown => "unknown",
        }
    }

    /// The engine whose references and priors apply; empty where none do.
    pub fn engine(self) -> &'static str {
        match self {
            Self::Guide => "guide",
            Self::Intranode | Self::Internode => "deepep-v1",
            Self::LowLatency => "deepep-ll",
            Self::V2 => "deepep-v2",
            Self::Alltoall => "nccl",
            Self::Expertrail => "expertrail",
            _ => "",
        }
    }
}

/// The part of a run that a figure is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Section {
    /// Within a node, over `NVLink`.
    Intranode,
    /// Across nodes.
    Internode,
    /// Low-latency kernels.
    LowLatency,
    /// A collective of NCCL.
    Collective,
    /// A training run.
    #[default]
    #[serde(other)]
    Training,
}

impl Section {
    /// As it is shown to people.
    pub fn label(self) -> &'static str {
        match self {
            Self::Intranode => "intra-node",
            Self::Internode => "inter-node",
            Self::LowLatency => "low-latency",
            Self::Collective => "collective",
            Self::Training => "training",
        }
    }

    /// As references name it.
    pub fn id(self) -> &'static str {
        match self {
            Self::Intranode => "intranode",
            Self::Internode => "internode",
            Self::LowLatency => "low-latency",
            Self::Collective => "collective",
            Self::Training => "training",
        }
    }
}

/// Which bytes a printed bandwidth counts: copies of a token's row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Counts {
    /// One for each node, own node included: `DeepEP`'s "RDMA", the guide's inter-node figures.
    Nodes,
    /// One for each rank, own rank included: `DeepEP`'s "NVL".
    Ranks,
    /// One for each other rank: the guide's intra-node figures. It is what crosses the wire.
    OtherRanks,
    /// One for each expert: `DeepEP`'s low-latency tests.
    Experts,
    /// nccl-tests' bus bandwidth.
    Bus,
    /// What crosses the wire.
    Wire,
    /// No bytes: a time.
    #[default]
    #[serde(other)]
    Time,
}

/// A figure that a run printed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figure {
    /// Part of the run.
    pub section: Section,
    /// `dispatch`, `combine`, `total`, `dispatch+combine`, `alltoall`, `step-time`.
    pub op: String,
    /// `bf16`, `fp8`; empty: not said.
    pub dtype: String,
    /// What it counts.
    pub counts: Counts,
    /// The node that it is of, from 0.
    pub node: Option<u32>,
    /// The rank that it is of.
    pub rank: Option<u32>,
    /// GB/s per GPU as printed; of a time, seconds.
    pub value: f64,
    /// GB/s on the wire, where the output itself says.
    pub wire_gb_s: Option<f64>,
    /// GB/s of rows written, where a ceiling of memory is what it is held against.
    pub memory_gb_s: Option<f64>,
    /// The other figure of the line: `DeepEP`'s NVL beside RDMA, V2's SU beside SO.
    pub beside_gb_s: Option<f64>,
    /// Microseconds, where they are printed.
    pub time_us: Option<f64>,
    /// Bytes on the wire of the call, where the output says: of a mean rank, of the rank with most.
    pub bytes: Vec<f64>,
    /// Microseconds of each rank, where one figure is of all.
    pub rank_times_us: BTreeMap<u32, f64>,
    /// SMs of the call, where they are printed.
    pub sms: Option<u64>,
    /// Anything else that figures must agree in to be compared: `span=isolated`, `rows_in=shared`, `size=134217728`.
    pub details: BTreeMap<String, String>,
    /// GB/s on the wire that the links carried in the same run; none: not measured.
    pub measured_ceiling: Option<f64>,
    /// The same for as many SMs.
    pub measured_push: Option<f64>,
    /// Where it stands.
    pub place: Place,
}

/// What a run was asked to do; none: its output does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Nodes.
    pub nodes: Option<u64>,
    /// There are this many nodes at least.
    pub nodes_at_least: Option<u64>,
    /// Ranks in all.
    pub ranks: Option<u64>,
    /// Ranks that a list in the output names.
    pub ranks_listed: Option<u64>,
    /// Ranks that the output's sizes and counts come to.
    pub ranks_of_rows: Option<u64>,
    /// Ranks on each node.
    pub ranks_per_node: Option<u64>,
    /// Tokens of a rank.
    pub tokens: Option<u64>,
    /// Elements of a row.
    pub hidden: Option<u64>,
    /// Experts of a token.
    pub top_k: Option<u64>,
    /// Experts in all.
    pub experts: Option<u64>,
    /// Groups that a token's experts are chosen from.
    pub groups: Option<u64>,
    /// Experts are drawn with replacement.
    pub with_replacement: bool,
    /// `ibgda`, `efa`.
    pub transport: Option<String>,
}

impl Settings {
    /// Nodes, if they are known or follow from ranks.
    pub fn node_count(&self) -> Option<u64> {
        self.nodes.or_else(|| {
            let per = self.ranks_per_node.filter(|per| *per > 0)?;
            Some(self.ranks?.div_ceil(per))
        })
    }

    /// Ranks, if they are known or follow from nodes.
    pub fn rank_count(&self) -> Option<u64> {
        self.ranks.or_else(|| Some(self.nodes?.saturating_mul(self.ranks_per_node?)))
    }
}

/// A text of the output and where it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Said {
    /// The text.
    pub text: String,
    /// Where.
    pub place: Place,
}

/// Something that went wrong, as the output says it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mark {
    /// The part that it is of, where the text says.
    pub section: Option<Section>,
    /// The rank, where the text says.
    pub rank: Option<u32>,
    /// The text, shortened.
    pub text: String,
    /// Where.
    pub place: Place,
}

/// Iterations of a training run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Training {
    /// Iterations asked for.
    pub steps: Option<u64>,
    /// Of them not timed.
    pub warmup: Option<u64>,
    /// Iterations that began.
    pub begun: BTreeSet<u64>,
    /// Iterations that ended.
    pub done: BTreeSet<u64>,
    /// The first loss that is no number, and how many there are.
    pub lost: Option<Said>,
    /// How many.
    pub losses_lost: u64,
    /// Ranks that hold the same part of the model, as the log says.
    pub data_parallel: Option<u64>,
    /// Seconds of the last iteration, as printed with it.
    pub iteration_s: Option<f64>,
    /// Ranks, as the summary file says.
    pub summary_ranks: Option<u64>,
    /// The last loss.
    pub loss: Option<f64>,
    /// Model FLOPs utilisation, per cent: of the summary, else of the last iteration.
    pub mfu_percent: Option<f64>,
    /// Peak memory, GB as printed.
    pub memory_gb: Option<f64>,
    /// Seconds of an iteration: of the summary, else the mean of what was printed.
    pub step_s: Option<f64>,
    /// Whether [`Training::step_s`] is of the summary.
    pub step_of_summary: bool,
    /// Seconds of setup, warm-up and timed iterations.
    pub setup_s: Option<f64>,
    /// Warm-up.
    pub warmup_s: Option<f64>,
    /// Timed iterations.
    pub measured_s: Option<f64>,
    /// Where the summary was written, as the output says.
    pub summary: Option<Said>,
    /// The summary file itself, where it was given.
    pub summary_file: Option<Place>,
    /// Iterations asked for, as that file says.
    pub summary_steps: Option<u64>,
    /// The summary's lines were printed.
    pub summarised: bool,
    /// Where the last thing about it stands.
    pub place: Place,
}

/// The exit code of a launcher, as the output says it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Exit {
    /// The code.
    pub code: i64,
    /// What ended: what stands before the code, and the task or host that its launcher names.
    pub who: String,
    /// It is a row of Slurm's accounting: a job's rows are of the same launchers again.
    pub accounting: bool,
    /// The row is of a numbered step (`4711.0`): its code is the highest of all of its tasks.
    pub step: bool,
    /// Where.
    pub place: Place,
}

/// What NVSHMEM says of its choice of a NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NicChoice {
    /// `NVSHMEM_ENABLE_NIC_PE_MAPPING`.
    pub mapping: bool,
    /// The device that it took, by its number.
    pub device: u64,
    /// Where.
    pub place: Place,
}

/// Correctness tests of `DeepEP`'s tests and of nccl-tests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tests {
    /// Began.
    pub begun: u64,
    /// Passed.
    pub passed: u64,
    /// Wrong, with the text.
    pub wrong: Vec<Said>,
    /// Types of data that were tested, where the tests say: `bf16`, `fp8`.
    pub dtypes: BTreeSet<String>,
    /// Verified, as the output itself says: rows or values that were compared.
    pub verified: Option<u64>,
    /// The output says that data was looked at, and less of it than it says.
    pub partly: Option<Said>,
    /// The output says that nobody looked at the data.
    pub unverified: Option<Said>,
}

/// Who wrote the lines of a file, as launchers' tags before them say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Speakers {
    /// Lines that were read.
    pub lines: u64,
    /// Those with a tag.
    pub tagged: u64,
    /// Ranks: `[rank3]:`.
    pub ranks: BTreeSet<u32>,
    /// Tasks, which are ranks or nodes: `3: `, `[1,3]<stdout>:`.
    pub tasks: BTreeSet<u32>,
    /// Pods and addresses.
    pub hosts: BTreeSet<String>,
}

/// A file that a run was put together from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogFile {
    /// Its name.
    pub name: String,
    /// It has iterations.
    pub training: bool,
    /// Who wrote it.
    pub speakers: Speakers,
}

/// Cases of V2's test. Each prints one line for each rank and operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cases {
    /// Cases that began.
    pub begun: u64,
    /// Lines with figures, by operation.
    pub lines: BTreeMap<String, u64>,
    /// Where the latest began.
    pub latest: Option<Place>,
}

/// One run, or what one file has of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// What wrote it.
    pub kind: Kind,
    /// Where it begins.
    pub place: Place,
    /// GPU: `H200`.
    pub gpu: Option<Said>,
    /// What it was asked to do.
    pub settings: Settings,
    /// Versions, by name: `torch`, `cuda`, `nccl`, `nvshmem`, `deep_ep`.
    pub versions: BTreeMap<String, Said>,
    /// `mlx5_(local_rank+N)`.
    pub hca_offset: Option<(u64, Place)>,
    /// NVSHMEM's version lines: how many, and ranks that launchers name before them.
    pub nvshmem_lines: u64,
    /// Those ranks.
    pub nvshmem_ranks: BTreeSet<u32>,
    /// Headings of parts that began.
    pub sections: BTreeMap<Section, Place>,
    /// Figures.
    pub figures: Vec<Figure>,
    /// Nodes and launchers that the lines come from.
    pub origins: BTreeSet<String>,
    /// Who wrote the lines of its file.
    pub speakers: Speakers,
    /// The files that it was put together from.
    pub logs: Vec<LogFile>,
    /// Cases of V2's test.
    pub cases: Cases,
    /// What went wrong.
    pub marks: Vec<Mark>,
    /// Exit codes.
    pub exits: Vec<Exit>,
    /// NVSHMEM's choices of NICs.
    pub nics: Vec<NicChoice>,
    /// NVSHMEM was told to use several ports of a NIC (`NVSHMEM_IBGDA_ENABLE_MULTI_PORT=1`).
    pub planes: Option<Said>,
    /// Correctness.
    pub tests: Tests,
    /// Evidence that the build can talk between nodes (NVSHMEM is linked or was seen to start).
    pub internode_support: Option<Said>,
    /// Evidence that it cannot.
    pub internode_missing: Option<Said>,
    /// Iterations.
    pub training: Option<Training>,
    /// It came to its last line.
    pub ended: Option<Place>,
    /// The inter-node part printed its times (`layout=`).
    pub layout: Option<Place>,
    /// What the run says of itself: `pass`, `fail`, `not_verified`, `inconclusive`, `not_run`.
    pub own_verdict: Option<Said>,
    /// A file of it could not be read to its end, and why.
    pub unread: Option<String>,
    /// Warnings of the run itself.
    pub warned: Vec<Said>,
    /// What was left out in reading, or could not be read.
    pub notes: Vec<String>,
}

/// How many things of a kind are kept of one run; what goes on and on is counted in a note.
pub(super) const KEPT: usize = 16_384;
pub(super) const MARKS: usize = 256;

impl Run {
    pub(super) fn new(kind: Kind, file: &str, line: u64) -> Self {
        Self { kind, place: Place { file: file.to_owned(), line }, ..Self::default() }
    }

    /// Nothing was found in it.
    pub fn is_empty(&self) -> bool {
        self.figures.is_empty()
            && self.marks.is_empty()
            && self.exits.is_empty()
            && self.nics.is_empty()
            && self.sections.is_empty()
            && self.versions.is_empty()
            && self.training.is_none()
            && self.internode_support.is_none()
            && self.internode_missing.is_none()
            && self.own_verdict.is_none()
            && self.tests == Tests::default()
    }

    pub(super) fn figure(&mut self, figure: Figure) {
        if !figure.value.is_finite() || figure.value < 0.0 {
            self.mark(Mark {
                section: Some(figure.section),
                rank: figure.rank,
                place: figure.place,
                text: format!("{} {} is no bandwidth", figure.op, figure.value),
            });
        } else if self.figures.len() < KEPT {
            self.figures.push(figure);
        } else {
            self.note(format!("more than {KEPT} figures: the rest is left out"));
        }
    }

    pub(super) fn mark(&mut self, mark: Mark) {
        if self.marks.len() < MARKS {
            self.marks.push(mark);
        } else {
            self.note(format!("more than {MARKS} lines of errors: the rest is left out"));
        }
    }

    pub(super) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) && self.notes.len() < MARKS {
            self.notes.push(note);
        }
    }
}

//! Arguments.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use expertrail::{Backend, Dtype, Layout};
use expertrail_bench::preset::{Mode, PRESETS, Preset, Scope, parse_dtype};
use expertrail_bench::schema::VerifyMode;

use crate::rails::FabricArgs;

/// Expert-parallel dispatch and combine for Mixture-of-Experts models.
#[derive(Debug, Parser)]
#[command(name = "expertrail", version, about, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Dispatch and combine real tokens between ranks, verify every row, and compare with this machine's ceiling.
    Bench(Box<BenchArgs>),
    /// The network between nodes: what libfabric offers, and what every pair of ranks reaches.
    #[command(subcommand)]
    Fabric(crate::fabric::FabricCommand),
    /// Every setting of the library: its value, and whether a flag, the environment or the default gave it.
    Config(crate::config::ConfigArgs),
    /// Read everything that matters of this node into one JSON document.
    Facts(crate::facts::FactsArgs),
    /// Check a node, or the nodes of a Kubernetes cluster: what would fail or crawl, why, and what to type.
    Check(Box<crate::check::CheckArgs>),
    /// Which NIC belongs to which GPU, why, and how to pin each rank to it.
    Topo(crate::topo::TopoArgs),
    /// Whether the versions that would load work together.
    Stack(crate::stack::StackArgs),
    /// Compare the facts of many nodes and name those that differ.
    Compare(crate::compare::CompareArgs),
    /// What a run should reach on a machine, which link binds, and whether its settings can work, before it is started.
    Plan(Box<crate::plan::PlanArgs>),
    /// What in a launch file fails at once, or runs wrong without saying so: objects of Kubernetes, batch scripts, shell, variables.
    Lint(crate::lint::LintArgs),
    /// What the numbers of a benchmark run mean: against references, the roofline, and the patterns of known faults.
    Judge(crate::judge::JudgeArgs),
    /// What went wrong, from logs: the first failure, its cause, the evidence, and the remedy.
    Diagnose(crate::diagnose::DiagnoseArgs),
    /// What a cause is: how it works, its signs, the remedy, the sources.
    Explain(crate::explain::ExplainArgs),
    /// Launch files for a system, from one description of a run.
    #[command(subcommand)]
    Render(Box<crate::render::RenderCommand>),
    /// Start a run, watch it, collect everything, say what it means, and leave the system clean.
    Launch(Box<crate::launch::LaunchArgs>),
    /// What runs inside a job, started by launch files.
    #[command(name = expertrail_launch::worker::SUBCOMMAND, subcommand, hide = true)]
    Worker(crate::worker::WorkerCommand),
    /// What a shell needs to complete this program's words.
    Completion(crate::completion::CompletionArgs),
    /// What there is of a run, and how it stands: in Kubernetes by its id, anywhere by its directory.
    Status(crate::runs::StatusArgs),
    /// Logs of a run: in Kubernetes by its id, anywhere by its directory.
    Logs(crate::runs::LogsArgs),
    /// End a run and remove everything of it: in Kubernetes by its label and namespace alone, on Slurm by the job's name, on hosts by its process.
    Clean(crate::runs::CleanArgs),
    /// Print the Kubernetes rights that a launch needs, as Roles to apply.
    Rbac(crate::runs::RbacArgs),
    /// Run one task that may hang or crash, for the command that started this.
    #[command(name = expertrail_cluster::isolate::SUBCOMMAND, hide = true)]
    Isolated,
}

/// What moves the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendName {
    /// GPUs where every rank has one of its own, or else CPUs.
    Auto,
    /// CPUs of one machine, sharing memory.
    Host,
    /// NVIDIA GPUs of one machine, one for each rank.
    Cuda,
}

/// How much is compared with the oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum VerifyName {
    /// Every row of every timed iteration.
    Full,
    /// One row in 16, others in each iteration.
    Sample,
    /// Nothing; the verdict is then "not verified" and the exit code 3.
    Off,
}

impl From<VerifyName> for VerifyMode {
    fn from(name: VerifyName) -> Self {
        match name {
            VerifyName::Full => Self::Full,
            VerifyName::Sample => Self::Sample,
            VerifyName::Off => Self::Off,
        }
    }
}

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatName {
    /// A table.
    Table,
    /// The lines of the Kubernetes guide's benchmark.
    Guide,
}

/// Order of the received rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LayoutName {
    /// By (source rank, source token).
    BySource,
    /// By expert, each expert's rows padded to a multiple of --alignment.
    ExpertMajor,
}

/// Where the rows that combine takes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum InputName {
    /// In the communicator's memory: read in place.
    Shared,
    /// In the caller's own memory: staged, on GPUs pushed.
    Private,
}

fn preset(name: &str) -> Result<Preset, String> {
    name.parse().map_err(|e: expertrail_bench::preset::PresetError| e.to_string())
}

fn preset_names() -> String {
    let lines = PRESETS.map(|p| format!("  {:<16} {}", p.name, p.about));
    format!(
        "Presets:\n{}\n\nExit codes: 0 pass, 1 wrong rows or a dead rank, 2 bad arguments, 3 not verified or not \
         built,\n4 no access, 124 deadline, 130 interrupted.",
        lines.join("\n")
    )
}

fn skew(text: &str) -> Result<f64, String> {
    let most = expertrail_bench::workload::MAX_SKEW;
    match text.parse::<f64>() {
        Ok(skew) if (0.0..=most).contains(&skew) => Ok(skew),
        _ => Err(format!("a Zipf exponent between 0 (uniform) and {most} wanted")),
    }
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.trim_end_matches('s');
    match number.parse::<f64>() {
        Ok(s) if s > 0.0 && s <= 86_400.0 => Ok(Duration::from_secs_f64(s)),
        _ => Err("seconds between 0 and 86400 wanted, as 60 or 0.5".to_owned()),
    }
}

pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match text[digits.len()..].trim() {
        "" | "B" => 1,
        "K" | "KiB" => 1u64 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        other => return Err(format!("unknown unit `{other}`; known: KiB, MiB, GiB")),
    };
    let number: u64 = digits.parse().map_err(|_| "a whole number of bytes wanted, as 512MiB".to_owned())?;
    number.checked_mul(unit).ok_or_else(|| "too many bytes".to_owned())
}

#[derive(Debug, Args)]
#[command(after_help = preset_names())]
pub(crate) struct BenchArgs {
    /// Workload; every size below overrides its part.
    #[arg(long, default_value = "quick", value_parser = preset)]
    pub(crate) preset: Preset,
    /// Rank processes to start [default: the preset's, 4].
    #[arg(long)]
    pub(crate) ranks: Option<usize>,
    /// Declared nodes; the ranks must divide by it. Decides the rounding of combine. With --ranks-per-node it sets --ranks.
    #[arg(long)]
    pub(crate) nodes: Option<usize>,
    /// Ranks on each declared node.
    #[arg(long)]
    pub(crate) ranks_per_node: Option<usize>,
    /// Tokens of each rank.
    #[arg(long)]
    pub(crate) tokens: Option<usize>,
    /// Elements of a row.
    #[arg(long)]
    pub(crate) hidden: Option<usize>,
    /// Experts chosen for a token.
    #[arg(long)]
    pub(crate) top_k: Option<usize>,
    /// Experts in all.
    #[arg(long)]
    pub(crate) experts: Option<usize>,
    /// Element type of dispatch: bf16 or fp8 (combine is always bf16) [default: the preset's; on GPUs bf16 beside an fp8].
    #[arg(long, value_parser = |t: &str| parse_dtype(t).map_err(|e| e.to_string()))]
    pub(crate) dtype: Option<Dtype>,
    /// ht (high throughput); ll is not built yet.
    #[arg(long, value_parser = |t: &str| t.parse::<Mode>().map_err(|e| e.to_string()))]
    pub(crate) mode: Option<Mode>,
    /// One group per node at once, or one over all ranks: node or world.
    #[arg(long, value_parser = |t: &str| t.parse::<Scope>().map_err(|e| e.to_string()))]
    pub(crate) scope: Option<Scope>,
    /// Whether a token may draw an expert twice.
    #[arg(long, value_name = "BOOL")]
    pub(crate) with_replacement: Option<bool>,
    /// Replay router decisions: integer .npy or .safetensors (FILE#TENSOR) of `[tokens, k]`. One file for all ranks is
    /// split among them (or used whole by each, if --tokens is its length); or one file each (repeat the option, or
    /// write {rank} in the name).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["routing_skew", "with_replacement"])]
    pub(crate) routing: Vec<String>,
    /// Zipf exponent of drawn routing; 0 is uniform.
    #[arg(long, value_name = "S", default_value = "0", value_parser = skew)]
    pub(crate) routing_skew: f64,
    /// Order of the received rows.
    #[arg(long, value_enum, default_value = "by-source")]
    pub(crate) layout: LayoutName,
    /// Rows of each expert are padded to a multiple of this (with --layout expert-major).
    #[arg(long, default_value_t = 128)]
    pub(crate) alignment: usize,
    /// Where the rows that combine takes lie [default: shared; on GPUs both, each measured by itself].
    #[arg(long, value_enum)]
    pub(crate) combine_input: Option<InputName>,
    /// SMs of each call on GPUs; several, as 8,16,24, are measured one after the other [default: the library's rule].
    /// Means --backend cuda where none is named.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=160))]
    pub(crate) sms: Vec<u32>,
    /// Seed of routing, weights and rows.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Iterations before timing starts [default: the preset's; on GPUs at least 10].
    #[arg(long)]
    pub(crate) warmup: Option<usize>,
    /// Timed iterations [default: the preset's; on GPUs at least 50].
    #[arg(long)]
    pub(crate) iters: Option<usize>,
    /// How long any wait for another rank may take, seconds (joining at the start: at least 60) [default:
    /// `EXPERTRAIL_DEADLINE`; else 60].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) deadline: Option<Duration>,
    #[command(flatten)]
    pub(crate) fabric: FabricArgs,
    /// How much is compared with the oracle, bit for bit.
    #[arg(long, value_enum, default_value = "full")]
    pub(crate) verify: VerifyName,
    /// What moves the rows.
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) backend: BackendName,
    /// The most shared memory that all ranks of this host may need, as 8GiB; on GPUs the most symmetric memory of each.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) shm_limit: Option<u64>,
    /// What is printed.
    #[arg(long, value_enum, default_value = "table")]
    pub(crate) format: FormatName,
    /// Write the result, expertrail.result/1.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write a row for each operation and rank.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Write the table as Markdown.
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
    /// Write a page with charts, one file.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// This process is one rank of an external launcher (torchrun, srun, mpirun, Kubernetes); start nothing.
    #[arg(long)]
    pub(crate) launched: bool,
}

impl BenchArgs {
    /// What moves the rows, as far as the arguments say: only GPUs have SMs.
    pub(crate) fn backend(&self) -> Result<Backend, String> {
        match (self.backend, self.sms.is_empty()) {
            (BackendName::Host, false) => {
                Err("--sms counts SMs of GPUs, but --backend host was asked for; leave one of them out"
                    .to_owned())
            }
            (BackendName::Host, true) => Ok(Backend::Host),
            (BackendName::Auto, true) => Ok(Backend::Auto),
            (BackendName::Cuda, _) | (BackendName::Auto, false) => Ok(Backend::Cuda),
        }
    }

    pub(crate) fn layout(&self) -> Layout {
        match self.layout {
            LayoutName::BySource => Layout::BySource,
            LayoutName::ExpertMajor => Layout::ExpertMajor { alignment: self.alignment },
        }
    }
}

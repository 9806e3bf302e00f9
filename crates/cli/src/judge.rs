//! `expertrail judge`.

use std::fs;
use std::io;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use expertrail_cluster::judge::{self, Accept, InputError, Options, References};

use crate::node::{Stop, check_output, finish, show};

/// Engines whose references and priors are known.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Engine {
    /// DeepEP V1, normal kernels.
    DeepepV1,
    /// DeepEP V1, low-latency kernels.
    DeepepLl,
    /// DeepEP V2.
    DeepepV2,
    /// UCCL-EP, whose tests print what DeepEP's do.
    Uccl,
}

impl Engine {
    fn id(self) -> &'static str {
        match self {
            Self::DeepepV1 => "deepep-v1",
            Self::DeepepLl => "deepep-ll",
            Self::DeepepV2 => "deepep-v2",
            Self::Uccl => "uccl",
        }
    }
}

/// Transport between nodes.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Transport {
    /// NVSHMEM's GPU-initiated transport over InfiniBand or RoCE.
    Ibgda,
    /// EFA through libfabric.
    Efa,
}

/// Arguments of `judge`.
#[derive(Debug, Args)]
#[command(
    after_help = "Reads results of `expertrail bench --json`, the output of the Kubernetes guide's benchmark, of DeepEP's tests (V1 intranode,\n\
    internode, low-latency; V2), of nccl-tests' alltoall_perf (text, or -J) and of training benchmarks, through torchrun, mpirun, srun,\n\
    kubectl or plain. Files that hold parts of one run (a pod's, a rank's) are put together.\n\
    Exit codes: 0 pass, 1 fail, 2 bad arguments, 3 not run or inconclusive, 4 no access, 5 warnings with --strict."
)]
pub(crate) struct JudgeArgs {
    /// Results and logs: files (gzip too), folders of them, or - for standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// GPU, where the output names none: H100, H200, B200, ...
    #[arg(long)]
    gpu: Option<String>,
    /// One-way rate of a GPU's NICs in GB/s; else that of usual machines with the GPU.
    #[arg(long, value_name = "GB/s", value_parser = rate)]
    nic_gb_s: Option<f64>,
    /// The same in Gb/s: 400.
    #[arg(long, value_name = "Gb/s", value_parser = rate, conflicts_with = "nic_gb_s")]
    nic: Option<f64>,
    /// One-way rate of a GPU's NVLink in GB/s; else its data sheet's.
    #[arg(long, value_name = "GB/s", value_parser = rate)]
    nvlink_gb_s: Option<f64>,
    /// Engine, where it is not the one that the output looks like.
    #[arg(long, value_enum)]
    engine: Option<Engine>,
    /// Nodes, where the output does not say.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=4096))]
    nodes: Option<u64>,
    /// Ranks of a node, where the output does not say.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=4096))]
    ranks_per_node: Option<u64>,
    /// Tokens of a rank, where the output does not say.
    #[arg(long)]
    tokens: Option<u64>,
    /// Elements of a row, where the output does not say.
    #[arg(long)]
    hidden: Option<u64>,
    /// Experts of a token, where the output does not say.
    #[arg(long)]
    top_k: Option<u64>,
    /// Experts, where the output does not say.
    #[arg(long)]
    experts: Option<u64>,
    /// Transport between nodes, where the output does not say.
    #[arg(long, value_enum)]
    transport: Option<Transport>,
    /// An older verdict (--json), or older results: what got slower is a finding.
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Judge a training run for acceptance: all steps, the summary file, exit 0 of every launcher, no failure in any rank's log, and
    /// NVSHMEM in the build.
    #[arg(long)]
    accept: bool,
    /// Iterations that the run must have; else as many as its log says.
    #[arg(long, value_name = "N", requires = "accept")]
    steps: Option<u64>,
    /// The summary file of the run.
    #[arg(long, value_name = "FILE", requires = "accept")]
    summary: Option<PathBuf>,
    /// Launchers that must have ended with 0.
    #[arg(long, value_name = "N", requires = "accept")]
    launchers: Option<u64>,
    /// Further references (expertrail.references/1); they come before those of the program.
    #[arg(long, value_name = "FILE")]
    refs: Vec<PathBuf>,
    /// Write the verdict (expertrail.verdict/1) here; - is standard output, and then nothing else goes there.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Exit with 5 where there are warnings.
    #[arg(long)]
    strict: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err("a rate above 0 is wanted".to_owned()),
    }
}

/// Runs the command; gives the exit code.
pub(crate) fn main(args: &JudgeArgs) -> u8 {
    finish(run(args))
}

fn run(args: &JudgeArgs) -> Result<u8, Stop> {
    check_output(args.json.as_deref())?;
    let mut options = options(args)?;
    let mut runs = judge::read_paths(&args.files).map_err(|error| stop(&error))?;
    if args.accept {
        let mut accept = Accept { steps: args.steps, launchers: args.launchers, summary_unread: None };
        if let Some(file) = &args.summary {
            match judge::read_paths(std::slice::from_ref(file)) {
                Ok(summary) => {
                    if summary.iter().all(|run| run.kind != judge::Kind::Summary) {
                        accept.summary_unread =
                            Some(format!("{} is no summary of a training run", file.display()));
                    }
                    runs.extend(summary.into_iter().filter(|run| run.kind == judge::Kind::Summary));
                }
                Err(error) => accept.summary_unread = Some(error.to_string()),
            }
        }
        options.accept = Some(accept);
    }
    if let Some(file) = &args.baseline {
        options.baseline = Some(judge::read_baseline(file, &options).map_err(|error| stop(&error))?);
    }
    let report = judge::judge(&runs, &options);
    show(args.json.as_deref(), || serde_json::to_string_pretty(&report), &report.text())?;
    Ok(report.exit_code())
}

fn options(args: &JudgeArgs) -> Result<Options, Stop> {
    if let Some(gpu) = &args.gpu
        && judge::references().machine(gpu).is_none()
        && args.nvlink_gb_s.is_none()
    {
        let known: Vec<&str> =
            judge::references().machines.iter().map(|machine| machine.gpu.as_str()).collect();
        return Err(Stop::usage(format!(
            "--gpu {gpu}: its links are not known (known: {}); give --nvlink-gb-s and --nic-gb-s with it",
            known.join(", ")
        )));
    }
    let mut references = Vec::new();
    for file in &args.refs {
        let text = fs::read_to_string(file).map_err(|error| {
            let text = format!("--refs {}: {error}", file.display());
            // As for any other file: one that is not there is a wrong argument.
            if error.kind() == io::ErrorKind::NotFound { Stop::usage(text) } else { Stop::access(text) }
        })?;
        let more = References::parse(&text)
            .map_err(|error| Stop::usage(format!("--refs {}: {error}", file.display())))?;
        references.extend(more.references);
    }
    Ok(Options {
        gpu: args.gpu.clone(),
        nic_gb_s: args.nic_gb_s.or(args.nic.map(|gbit| gbit / 8.0)),
        scale_up_gb_s: args.nvlink_gb_s,
        engine: args.engine.map(|engine| engine.id().to_owned()),
        nodes: args.nodes,
        ranks_per_node: args.ranks_per_node,
        tokens: args.tokens,
        hidden: args.hidden,
        top_k: args.top_k,
        experts: args.experts,
        transport: args.transport.map(|transport| {
            match transport {
                Transport::Ibgda => "ibgda",
                Transport::Efa => "efa",
            }
            .to_owned()
        }),
        references,
        baseline: None,
        accept: None,
        strict: args.strict,
    })
}

fn stop(error: &InputError) -> Stop {
    match error {
        InputError::Missing(_) | InputError::Empty(_) => Stop::usage(error.to_string()),
        InputError::Unreadable { .. } => Stop::access(error.to_string()),
    }
}

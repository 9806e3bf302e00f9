//! `expertrail check`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use expertrail_cluster::check::{self, Target};
use expertrail_cluster::probe;

use crate::check_kube::KubeArgs;
use crate::node::{Source, Stop, check_output, collecting, finish, itself, show};
use crate::topo::{profile, rails};

/// What the node is wanted for.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum TargetName {
    /// Our own library: no registry keys, no GDRCopy.
    Expertrail,
    /// DeepEP's V1 kernels over InfiniBand or RoCE with IBGDA.
    DeepepIbgda,
    /// DeepEP on AWS EFA.
    DeepepEfa,
    /// NCCL, and DeepEP V2 on it.
    Nccl,
}

impl From<TargetName> for Target {
    fn from(name: TargetName) -> Self {
        match name {
            TargetName::Expertrail => Self::Expertrail,
            TargetName::DeepepIbgda => Self::DeepepIbgda,
            TargetName::DeepepEfa => Self::DeepepEfa,
            TargetName::Nccl => Self::Nccl,
        }
    }
}

/// Arguments of `check`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 pass, 1 something fails, 2 bad arguments, 3 something that decides could not be judged, 4 no access,\n\
    5 warnings under --strict."
)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    source: Source,
    /// What the node is wanted for; what is required depends on it.
    #[arg(long = "for", value_enum, value_name = "TARGET", default_value = "expertrail")]
    target: TargetName,
    /// Provider profile to cross-check with: auto, none, an id (crusoe-b200, aws-p5en, ...) or a file.
    #[arg(long, value_name = "PROFILE", default_value = "auto")]
    profile: String,
    /// The rails, where you know them: NAME,NAME,... (ports as in NAME:1 and a leading = are accepted).
    #[arg(long, value_name = "LIST", conflicts_with = "kube")]
    hca: Option<String>,
    /// Also run what a file cannot show: lock 1 GiB, GDRCopy, dma-buf export, opening RDMA devices, copies between GPUs.
    #[arg(long, conflicts_with_all = ["facts", "root", "kube"])]
    probe: bool,
    #[command(flatten)]
    kube: KubeArgs,
    /// Exit 5 when there are warnings and nothing worse.
    #[arg(long)]
    strict: bool,
    /// Also show what is right and what does not matter.
    #[arg(long)]
    all: bool,
    /// Write all findings as JSON (expertrail.findings/1) here; - is standard output, and then nothing else goes there.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command; gives the exit code.
pub(crate) fn main(args: &CheckArgs) -> u8 {
    finish(run(args))
}

fn run(args: &CheckArgs) -> Result<u8, Stop> {
    check_output(args.json.as_deref())?;
    if args.kube.wanted() {
        let report = args.kube.run(args.target.into(), &args.profile)?;
        show(args.json.as_deref(), || serde_json::to_string_pretty(&report), &report.text(args.all))?;
        return Ok(report.exit_code(args.strict));
    }
    let facts = args.source.read(&collecting())?;
    let profile = profile(&args.profile, &facts)?;
    let rails = args.hca.as_deref().map(|list| rails(list, &facts)).transpose()?;
    let options =
        check::Options { target: args.target.into(), profile: profile.map(|(profile, _)| profile), rails };
    let mut report = check::run(&facts, &options);
    if args.probe {
        let options = probe::Options { program: itself(), ..probe::Options::default() };
        report = report.with(probe::run(&facts, &options));
    }
    show(args.json.as_deref(), || serde_json::to_string_pretty(&report), &report.text(args.all))?;
    Ok(report.exit_code(args.strict))
}

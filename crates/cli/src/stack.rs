//! `expertrail stack`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use expertrail_cluster::facts::Facts;
use expertrail_cluster::stack::{self, Judgement, Question, Transport};
use expertrail_cluster::{collect, userspace};

use crate::node::{Stop, check_output, collecting, finish, mapped, open, show};

/// Transport between nodes.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum TransportName {
    /// NVSHMEM's GPU-initiated transport over InfiniBand or RoCE.
    Ibgda,
    /// NVSHMEM's libfabric transport over EFA.
    Efa,
    /// One node only.
    None,
}

/// Arguments of `stack`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 known good, 1 known bad, 2 bad arguments, 3 unverified, 4 no access. What works and is slower, or fails DeepEP's\n\
    own tests only, is printed beside the verdict."
)]
pub(crate) struct StackArgs {
    /// A folder of Python packages (site-packages) to judge, instead of those of this machine.
    #[arg(long, value_name = "DIR", group = "what")]
    python_root: Option<PathBuf>,
    /// A source tree of DeepEP to judge, with the libraries of this machine.
    #[arg(long, value_name = "DIR", group = "what")]
    source_root: Option<PathBuf>,
    /// A running process to judge by what it has mapped.
    #[arg(long, value_name = "PID", group = "what")]
    pid: Option<u32>,
    /// An unpacked image to judge.
    #[arg(long, value_name = "DIR", group = "what")]
    image_root: Option<PathBuf>,
    /// Versions to judge, KEY=VALUE,...: commit, 564=yes|no, nvshmem, `nvshmem_device`, line=v1|hybrid-ep|v2, nccl, cuda, torch, sm, driver,
    /// gdrdrv and more (an unknown key lists them all).
    #[arg(long, value_name = "K=V,...", group = "what")]
    versions: Option<String>,
    /// Transport between nodes; by the rails' kind where none is given (mlx5: ibgda, EFA: efa).
    #[arg(long, value_enum)]
    transport: Option<TransportName>,
    /// Write the verdict as JSON here; - is standard output, and then nothing else goes there.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command; gives the exit code.
pub(crate) fn main(args: &StackArgs) -> u8 {
    finish(run(args))
}

fn run(args: &StackArgs) -> Result<u8, Stop> {
    check_output(args.json.as_deref())?;
    let transport = args.transport.map(|name| match name {
        TransportName::Ibgda => Transport::Ibgda,
        TransportName::Efa => Transport::Efa,
        TransportName::None => Transport::None,
    });
    let question = match &args.versions {
        Some(versions) => {
            let mut question =
                Question::parse(versions).map_err(|error| Stop::usage(format!("--versions: {error}")))?;
            if let (Some(given), Some(transport)) = (question.get("transport"), transport)
                && given != transport.name()
            {
                return Err(Stop::usage(format!(
                    "--versions says transport={given}, --transport {}",
                    transport.name()
                )));
            }
            question.set_transport(transport);
            question
        }
        None => read(args, transport)?,
    };
    let verdict = stack::judge(&question);
    show(args.json.as_deref(), || serde_json::to_string_pretty(&verdict), &stack::text(&verdict))?;
    Ok(match verdict.judgement {
        Judgement::KnownGood => 0,
        Judgement::KnownBad => 1,
        Judgement::Unverified => 3,
    })
}

/// What is on the disk, or mapped.
fn read(args: &StackArgs, transport: Option<Transport>) -> Result<Question, Stop> {
    for folder in [&args.python_root, &args.source_root, &args.image_root].into_iter().flatten() {
        if !folder.is_dir() {
            return Err(Stop::usage(format!("{}: no such folder", folder.display())));
        }
    }
    let root = open(args.image_root.as_deref())?;
    if let Some(pid) = args.pid {
        mapped(&root, pid)?;
    }
    let options = userspace::Options {
        pid: args.pid,
        python_roots: args.python_root.iter().cloned().collect(),
        source_root: args.source_root.clone(),
    };
    let collected = collect::Options { userspace: options, ..collecting() };
    let facts: Facts = collect::facts(&root, &collected);
    if let Some(folder) = args.source_root.as_ref().filter(|_| facts.userspace.deep_ep.is_empty()) {
        return Err(Stop::usage(format!(
            "--source-root {}: no source tree of DeepEP (it has neither setup.py nor csrc)",
            folder.display()
        )));
    }
    Ok(Question::of(&facts.userspace, Some(&facts), transport))
}

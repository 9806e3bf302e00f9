//! `expertrail facts`.

use std::path::PathBuf;

use clap::Args;
use expertrail_cluster::collect;
use expertrail_cluster::facts::{Facts, Reading};

use crate::node::{Stop, check_output, collecting, finish, mapped, open, print, write_output};

/// Arguments of `facts`.
#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 written, 2 bad arguments, 4 no access, or nothing could be read.")]
pub(crate) struct FactsArgs {
    /// Read this captured tree (a folder with proc, sys, etc of a node) instead of this machine.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Write the document here instead of to standard output; an old one is replaced.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Libraries that this process has mapped, instead of those that would load.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// A folder of Python packages (site-packages), instead of those that are found. May be given several times.
    #[arg(long, value_name = "DIR")]
    python_root: Vec<PathBuf>,
}

/// Runs the command; gives the exit code.
pub(crate) fn main(args: &FactsArgs) -> u8 {
    finish(run(args))
}

fn run(args: &FactsArgs) -> Result<u8, Stop> {
    check_output(args.output.as_deref())?;
    let mut options = collecting();
    options.userspace.pid = args.pid;
    options.userspace.python_roots.clone_from(&args.python_root);
    let root = open(args.root.as_deref())?;
    if let Some(pid) = args.pid {
        mapped(&root, pid)?;
    }
    let facts = collect::facts(&root, &options);
    let mut text = serde_json::to_string_pretty(&facts).map_err(|error| Stop::access(error.to_string()))?;
    text.push('\n');
    match &args.output {
        None => print(&text)?,
        Some(file) => {
            write_output(file, &text)?;
            eprintln!("{}: {}", file.display(), summary(&facts));
        }
    }
    if nothing(&facts) {
        return Err(Stop::access("nothing could be read: neither /proc nor /sys is there"));
    }
    Ok(0)
}

/// Whether neither kernel nor devices were there to read.
fn nothing(facts: &Facts) -> bool {
    let no_kernel = facts.kernel.release.value().is_none() && facts.kernel.cpu.value().is_none();
    no_kernel
        && facts.modules.loaded.value().is_none()
        && facts.modules.present.value().is_none()
        && facts.pci.devices.value().is_none()
}

/// One line of what was found.
fn summary(facts: &Facts) -> String {
    let driver = match facts.driver.version.reading() {
        Reading::Value(version) => format!("NVIDIA driver {}", version.version),
        Reading::Absent => "no NVIDIA driver".to_owned(),
        Reading::Unreadable(_) | Reading::NotLooked => "NVIDIA driver unknown".to_owned(),
    };
    let node = facts.node.value().map_or("unnamed node", String::as_str);
    format!(
        "{node}: {} GPUs, {} RDMA devices, {driver}",
        facts.pci.gpus().len(),
        facts.rdma.value().map_or(0, Vec::len)
    )
}

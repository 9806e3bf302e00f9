//! `expertrail topo`.

use std::fmt::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use expertrail_cluster::check::Target;
use expertrail_cluster::finding::{Finding, Status};
use expertrail_cluster::profile::{self, Profile};
use expertrail_cluster::{render, topo};

use crate::node::{Source, Stop, check_output, collecting, finish, print, write_output};

/// What is printed.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Emit {
    /// Shell lines that pin each local rank.
    Env,
    /// The mapping as JSON (expertrail.topology/1).
    Json,
    /// A topology file for `NCCL_TOPO_FILE`.
    NcclXml,
}

/// Arguments of `topo`.
#[derive(Debug, Args)]
pub(crate) struct TopoArgs {
    #[command(flatten)]
    source: Source,
    /// Print pins or a document instead of the table.
    #[arg(long, value_enum)]
    emit: Option<Emit>,
    /// The rails, where you know them: NAME,NAME,... (ports as in NAME:1 and a leading = are accepted).
    #[arg(long, value_name = "LIST")]
    hca: Option<String>,
    /// Provider profile to cross-check with: auto, none, an id (crusoe-b200, aws-p5en, ...) or a file.
    #[arg(long, value_name = "PROFILE", default_value = "auto")]
    profile: String,
    /// Write here instead of to standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs the command; gives the exit code.
pub(crate) fn main(args: &TopoArgs) -> u8 {
    let result = run(args);
    if let (Err(stop), Some(Emit::Env), None) = (&result, args.emit, &args.output) {
        // `eval "$(...)"` of nothing succeeds: what is printed must fail. What cannot be printed has its message below.
        let _ = print(&topo::refusal(stop.message()));
    }
    finish(result)
}

/// The profile that `name` asks for, and how it was chosen.
pub(crate) fn profile(
    name: &str,
    facts: &expertrail_cluster::facts::Facts,
) -> Result<Option<(Profile, String)>, Stop> {
    match name {
        "auto" => Ok(profile::detect(facts)),
        "none" => Ok(None),
        name => {
            let chosen = profile::get(name).map_err(|error| Stop::usage(error.to_string()))?;
            Ok(Some((chosen, "--profile".to_owned())))
        }
    }
}

fn run(args: &TopoArgs) -> Result<u8, Stop> {
    check_output(args.output.as_deref())?;
    let named = args.hca.as_deref().map(named).transpose()?;
    let rails: Option<Vec<String>> =
        named.as_ref().map(|named| named.iter().map(|(name, _)| name.clone()).collect());
    // In a container only NVML tells which GPUs of the bus this process has.
    let facts = args.source.read(&collecting())?;
    let profile = profile(&args.profile, &facts)?;
    let topology = topo::map_with(&facts, rails.as_deref());
    ports(named.as_deref().unwrap_or_default(), &topology)?;
    let findings =
        topo::findings(&topology, &facts, profile.as_ref().map(|(profile, _)| profile), Target::default());
    let bad: Vec<Finding> = findings
        .into_iter()
        .filter(|finding| matches!(finding.status, Status::Fail | Status::Warn))
        .collect();
    let code = match (bad.iter().any(|finding| finding.status == Status::Fail), &topology.inconclusive) {
        (true, _) => 1,
        (false, Some(_)) => 3,
        (false, None) => 0,
    };
    let reason = || topology.inconclusive.as_deref().unwrap_or_default();
    let text = match args.emit {
        None => {
            let mut text = topo::text(&topology);
            if let Some((profile, why)) = &profile {
                let _ = writeln!(text, "\nprofile {} (by {why}): cross-check only", profile.id);
            }
            if !bad.is_empty() {
                text.push('\n');
                text.push_str(&render::findings(&bad));
            }
            text
        }
        Some(Emit::Env) => match (topo::env(&topology), topo::unpinned(&topology)) {
            (Some(pins), None) => pins,
            (_, reason) => {
                let reason = reason.unwrap_or_default();
                if let Some(file) = &args.output {
                    // Pins of an earlier run must not stay there, to be sourced.
                    write_output(file, &topo::refusal(&reason))?;
                }
                return Err(Stop::inconclusive(reason));
            }
        },
        Some(Emit::NcclXml) => topo::nccl_xml(&topology, &facts).ok_or_else(|| {
            let hint = if topology.all_down() { "" } else { "; name the rails with --hca LIST" };
            Stop::inconclusive(format!("no topology file: INCONCLUSIVE: {}{hint}", reason()))
        })?,
        Some(Emit::Json) => {
            let json =
                serde_json::to_string_pretty(&topology).map_err(|error| Stop::access(error.to_string()))?;
            json + "\n"
        }
    };
    if args.emit.is_some() {
        // What is sourced or parsed has no room for them.
        for finding in &bad {
            eprintln!("{}", render::line(finding));
        }
    }
    match &args.output {
        Some(file) => write_output(file, &text)?,
        None => print(&text)?,
    }
    Ok(code)
}

/// Refuses a port of `--hca` that is not the one that is pinned.
fn ports(named: &[(String, Option<u32>)], topology: &topo::Topology) -> Result<(), Stop> {
    for (name, port) in named {
        if let (Some(port), Some(nic)) = (port, topology.device(name))
            && nic.port != *port
        {
            return Err(Stop::usage(format!(
                "--hca: port {port} of {name}: its port with a link is {}",
                nic.port
            )));
        }
    }
    Ok(())
}

/// The rails that `--hca` names, for a mapping of `facts`.
pub(crate) fn rails(list: &str, facts: &expertrail_cluster::facts::Facts) -> Result<Vec<String>, Stop> {
    let named = named(list)?;
    let names: Vec<String> = named.iter().map(|(name, _)| name.clone()).collect();
    ports(&named, &topo::map_with(facts, Some(&names)))?;
    Ok(names)
}

/// Device names of `--hca`, with their ports where given.
fn named(list: &str) -> Result<Vec<(String, Option<u32>)>, Stop> {
    if list.starts_with('^') {
        return Err(Stop::usage(
            "--hca: name the rails; a list of what to leave out (`^`) is not known here",
        ));
    }
    let mut named = Vec::new();
    for entry in list.trim_start_matches('=').split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let (name, port) = match entry.split_once(':') {
            None => (entry, None),
            Some((name, port)) => match port.parse() {
                Ok(port) => (name, Some(port)),
                Err(_) => {
                    return Err(Stop::usage(format!("--hca: `{entry}`: a port is a number, as in mlx5_0:1")));
                }
            },
        };
        named.push((name.to_owned(), port));
    }
    if named.is_empty() {
        return Err(Stop::usage("--hca: an empty list"));
    }
    Ok(named)
}

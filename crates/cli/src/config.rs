//! `expertrail config`: every setting, its value and where it came from.

use std::fmt::Write;
use std::time::Duration;

use clap::Args;
use expertrail::config::{self, Source};
use serde_json::json;

use crate::args::seconds;
use crate::node::{Stop, finish, print};
use crate::rails::FabricArgs;

/// Arguments of `config`.
#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0, 2 when a value cannot be.")]
pub(crate) struct ConfigArgs {
    #[command(flatten)]
    fabric: FabricArgs,
    /// How long any wait for another rank may take, seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    deadline: Option<Duration>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command; gives the exit code.
pub(crate) fn main(args: &ConfigArgs) -> u8 {
    finish(run(args))
}

fn run(args: &ConfigArgs) -> Result<u8, Stop> {
    let config = args.fabric.config(args.deadline).map_err(|error| Stop::usage(error.to_string()))?;
    let of = |variable: &str| std::env::var(variable).ok().filter(|value| !value.is_empty());
    let mut lines: Vec<[String; 4]> = Vec::new();
    for row in config.rows() {
        let by = row.flag.map_or_else(|| row.variable.to_owned(), |flag| format!("{flag}, {}", row.variable));
        lines.push([row.name.to_owned(), row.value, row.source.to_string(), by]);
    }
    // What launchers say of a rank is shown where it is set; settings always.
    for other in config::ELSEWHERE {
        let name = other.variable.trim_start_matches("EXPERTRAIL_").to_lowercase();
        match (of(other.variable), other.default) {
            (Some(value), _) => {
                // The job's secret is nobody's business.
                let value = if other.variable.ends_with("TOKEN") { "(set)".to_owned() } else { value };
                let source = Source::Environment(other.variable).to_string();
                lines.push([name, value, source, other.variable.to_owned()]);
            }
            (None, "") => {}
            (None, default) => {
                let source = Source::Default.to_string();
                lines.push([name, default.to_owned(), source, other.variable.to_owned()]);
            }
        }
    }
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    let unknown = config::unknown(names);
    if args.json {
        let settings: Vec<_> = lines
            .iter()
            .map(|[name, value, source, by]| json!({"name": name, "value": value, "source": source, "set_by": by}))
            .collect();
        let unknown: Vec<_> = unknown.iter().map(|u| json!({"name": u.name, "nearest": u.nearest})).collect();
        let document = json!({"settings": settings, "unknown": unknown});
        let text =
            serde_json::to_string_pretty(&document).map_err(|error| Stop::access(error.to_string()))?;
        print(&(text + "\n"))?;
        return Ok(0);
    }
    lines.insert(0, ["setting", "value", "source", "set by"].map(str::to_owned));
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let (a, b, c) = (width(0), width(1), width(2));
    let mut text = String::new();
    for [name, value, source, by] in &lines {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<a$}  {value:<b$}  {source:<c$}  {by}");
    }
    for unknown in &unknown {
        let hint = unknown.nearest.map_or_else(String::new, |nearest| format!("; did you mean {nearest}?"));
        let _ = writeln!(text, "unknown variable {}: nothing reads it{hint}", unknown.name);
    }
    print(&text)?;
    Ok(0)
}

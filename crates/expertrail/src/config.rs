//! Everything that the environment and flags set for the communicator and the network between nodes, in one struct: each
//! setting with its value and with where it came from.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use expertrail_core::hop::Limits;
use expertrail_core::hop::limits::{MAX_CHUNK_BYTES, MIN_CHUNK_BYTES};
use expertrail_fabric::ofi::Provider;
use expertrail_host::{RailConfig, Simd};
use thiserror::Error;

mod known;

pub use known::{ELSEWHERE, Elsewhere, Unknown, unknown};

/// Names libfabric's file, or its folder.
pub const LIBFABRIC: &str = expertrail_fabric::ofi::VARIABLE;
/// Chooses the transport between nodes.
pub const FABRIC: &str = "EXPERTRAIL_FABRIC";
/// Chooses the domains (NICs), by local rank.
pub const DOMAIN: &str = "EXPERTRAIL_FABRIC_DOMAIN";
/// Bytes of a chunk between nodes.
pub const CHUNK: &str = "EXPERTRAIL_CHUNK";
/// Chunks on their way between two ranks.
pub const WINDOW: &str = "EXPERTRAIL_WINDOW";
/// Forces the row kernels' instruction set.
pub const SIMD: &str = expertrail_host::simd::SIMD_VARIABLE;
/// How long any wait for another rank may take.
pub const DEADLINE: &str = "EXPERTRAIL_DEADLINE";

/// Where a value came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// Nobody set it.
    #[default]
    Default,
    /// This environment variable.
    Environment(&'static str),
    /// This flag.
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// A value and its source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting<T> {
    /// The effective value.
    pub value: T,
    /// Where it came from.
    pub source: Source,
}

/// The transport between nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FabricName {
    /// The best provider of libfabric that reaches other machines.
    Auto,
    /// The network simulated in memory, between threads of one process.
    Sim,
    /// A provider of libfabric.
    Named(String),
}

impl FabricName {
    /// `auto`, `sim`, or a provider's name.
    pub fn parse(text: &str) -> Self {
        match text {
            "auto" => Self::Auto,
            "sim" => Self::Sim,
            name => Self::Named(name.to_owned()),
        }
    }

    /// What libfabric is asked for; `None` for the simulated network.
    pub fn provider(&self) -> Option<Provider> {
        match self {
            Self::Auto => Some(Provider::Auto),
            Self::Sim => None,
            Self::Named(name) => Some(Provider::Named(name.clone())),
        }
    }
}

impl fmt::Display for FabricName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Sim => "sim",
            Self::Named(name) => name,
        })
    }
}

/// What a command line set; `None` leaves it to the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--fabric`
    pub fabric: Option<String>,
    /// `--domain`, a list by local rank with commas.
    pub domain: Option<String>,
    /// `--chunk`, bytes.
    pub chunk_bytes: Option<u64>,
    /// `--window`, chunks.
    pub window: Option<usize>,
    /// `--deadline`
    pub deadline: Option<Duration>,
}

/// A value that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{from}: `{value}` is not {wanted}")]
pub struct ConfigError {
    /// The variable or flag.
    pub from: Box<str>,
    /// What was given.
    pub value: Box<str>,
    /// What is allowed.
    pub wanted: Box<str>,
}

/// The settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// libfabric's file or folder; `None` searches for it.
    pub libfabric: Setting<Option<PathBuf>>,
    /// The transport between nodes; `None` where declared nodes share memory.
    pub fabric: Setting<Option<FabricName>>,
    /// Domains (NICs) by local rank, starting again after the last; empty where the rule chooses.
    pub domains: Setting<Vec<String>>,
    /// Bytes of a chunk between nodes.
    pub chunk_bytes: Setting<usize>,
    /// Chunks on their way between two ranks in one operation.
    pub window: Setting<usize>,
    /// Instruction set of the row kernels.
    pub simd: Setting<Simd>,
    /// How long any wait for another rank may take.
    pub deadline: Setting<Duration>,
}

/// One line of [`Config::rows`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The setting's name.
    pub name: &'static str,
    /// Its effective value.
    pub value: String,
    /// Where that came from.
    pub source: Source,
    /// The variable that sets it.
    pub variable: &'static str,
    /// The flag that does.
    pub flag: Option<&'static str>,
}

impl Config {
    /// What this process's environment and `flags` say.
    ///
    /// # Errors
    /// [`ConfigError`], naming the variable or flag, its value and what is allowed.
    pub fn from_env(flags: &Flags) -> Result<Self, ConfigError> {
        Self::read(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()), flags)
    }

    /// What the environment that `lookup` reads and `flags` say. An empty variable counts as absent.
    ///
    /// # Errors
    /// As [`Config::from_env`].
    pub fn read(lookup: impl Fn(&str) -> Option<String>, flags: &Flags) -> Result<Self, ConfigError> {
        let read = Reader { lookup: &|name| lookup(name).filter(|value| !value.is_empty()) };
        let limits = Limits::default();
        let chunk = flags.chunk_bytes.map(|bytes| bytes.to_string());
        let window = flags.window.map(|window| window.to_string());
        let deadline = flags.deadline.map(|deadline| deadline.as_secs_f64().to_string());
        Ok(Self {
            libfabric: read.setting((LIBFABRIC, ""), None, None, |path| Ok(Some(PathBuf::from(path))))?,
            fabric: read.setting((FABRIC, "--fabric"), flags.fabric.clone(), None, fabric)?,
            domains: read.setting((DOMAIN, "--domain"), flags.domain.clone(), Vec::new(), domains)?,
            chunk_bytes: read.setting((CHUNK, "--chunk"), chunk, limits.chunk_bytes, chunk_bytes)?,
            window: read.setting((WINDOW, "--window"), window, limits.window, window_of)?,
            simd: read.setting((SIMD, ""), None, Simd::widest(), |name| {
                Simd::named(name).map_err(|_| {
                    let sets: Vec<String> = Simd::available().map(|set| set.to_string()).collect();
                    format!("an instruction set of this CPU ({})", sets.join(", "))
                })
            })?,
            deadline: read.setting((DEADLINE, "--deadline"), deadline, Duration::from_mins(1), seconds)?,
        })
    }

    /// Sizes of what crosses between nodes.
    pub fn rail_config(&self) -> RailConfig {
        let window = self.window.value;
        let limits = Limits { chunk_bytes: self.chunk_bytes.value, window, ..Limits::default() };
        // Two windows: packing goes on while one is in flight.
        RailConfig { limits, outgoing: 2 * window, ..RailConfig::default() }
    }

    /// Every setting as a line.
    pub fn rows(&self) -> Vec<Row> {
        let row = |name, value: String, source, variable, flag: &'static str| Row {
            name,
            value,
            source,
            variable,
            flag: (!flag.is_empty()).then_some(flag),
        };
        let searched = || "searched for".to_owned();
        let (libfabric, fabric) = (&self.libfabric, &self.fabric);
        vec![
            row(
                "libfabric",
                libfabric.value.as_ref().map_or_else(searched, |path| path.display().to_string()),
                libfabric.source,
                LIBFABRIC,
                "",
            ),
            row(
                "fabric",
                fabric
                    .value
                    .as_ref()
                    .map_or_else(|| "none: declared nodes share memory".to_owned(), ToString::to_string),
                fabric.source,
                FABRIC,
                "--fabric",
            ),
            row(
                "domain",
                if self.domains.value.is_empty() {
                    "by the GPU's nearest NIC, else in turn".to_owned()
                } else {
                    self.domains.value.join(",")
                },
                self.domains.source,
                DOMAIN,
                "--domain",
            ),
            row(
                "chunk",
                format!("{} bytes", self.chunk_bytes.value),
                self.chunk_bytes.source,
                CHUNK,
                "--chunk",
            ),
            row("window", format!("{} chunks", self.window.value), self.window.source, WINDOW, "--window"),
            row("simd", self.simd.value.to_string(), self.simd.source, SIMD, ""),
            row(
                "deadline",
                format!("{} s", self.deadline.value.as_secs_f64()),
                self.deadline.source,
                DEADLINE,
                "--deadline",
            ),
        ]
    }
}

struct Reader<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl Reader<'_> {
    /// The flag's value, else the variable's, else the default.
    fn setting<T>(
        &self,
        (variable, flag): (&'static str, &'static str),
        given: Option<String>,
        default: T,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Setting<T>, ConfigError> {
        let (text, source) = match (given, (self.lookup)(variable)) {
            (Some(text), _) => (text, Source::Flag(flag)),
            (None, Some(text)) => (text, Source::Environment(variable)),
            (None, None) => return Ok(Setting { value: default, source: Source::Default }),
        };
        let from = if matches!(source, Source::Flag(_)) { flag } else { variable };
        match parse(&text) {
            Ok(value) => Ok(Setting { value, source }),
            Err(wanted) => Err(ConfigError { from: from.into(), value: text.into(), wanted: wanted.into() }),
        }
    }
}

fn fabric(text: &str) -> Result<Option<FabricName>, String> {
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("auto, sim, or a provider of libfabric such as tcp, shm, verbs, efa".to_owned());
    }
    Ok(Some(FabricName::parse(text)))
}

fn domains(text: &str) -> Result<Vec<String>, String> {
    let all: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    if all.iter().any(String::is_empty) {
        return Err("a list of domains with commas, one for each local rank, as mlx5_0,mlx5_1".to_owned());
    }
    Ok(all)
}

fn chunk_bytes(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match text[digits.len()..].trim() {
        "" | "B" => Some(1usize),
        "K" | "KiB" => Some(1 << 10),
        "M" | "MiB" => Some(1 << 20),
        _ => None,
    };
    unit.and_then(|unit| digits.trim().parse::<usize>().ok()?.checked_mul(unit))
        .filter(|bytes| (MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(bytes))
        .ok_or_else(|| format!("a chunk between {MIN_CHUNK_BYTES} and {MAX_CHUNK_BYTES} bytes, as 256KiB"))
}

fn window_of(text: &str) -> Result<usize, String> {
    const MOST: usize = expertrail_core::hop::stream::MAX_WINDOW;
    text.trim()
        .parse()
        .ok()
        .filter(|window| (1..=MOST).contains(window))
        .ok_or_else(|| format!("a number of chunks between 1 and {MOST}"))
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.trim().trim_end_matches('s').parse::<f64>() {
        Ok(s) if s > 0.0 && s <= 86_400.0 => Ok(Duration::from_secs_f64(s)),
        _ => Err("seconds between 0 and 86400, as 60 or 0.5".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)], flags: &Flags) -> Result<Config, ConfigError> {
        let lookup = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        Config::read(lookup, flags)
    }

    #[test]
    fn defaults_are_said_to_be_defaults() {
        let config = read(&[("EXPERTRAIL_WINDOW", "")], &Flags::default()).unwrap();
        assert!(config.rows().iter().all(|row| row.source == Source::Default), "{:?}", config.rows());
        assert_eq!((config.chunk_bytes.value, config.window.value), (131_072, 8));
        assert_eq!((config.fabric.value, config.deadline.value), (None, Duration::from_mins(1)));
    }

    #[test]
    fn a_flag_wins_over_the_environment() {
        let flags = Flags { window: Some(3), domain: Some("a, b".to_owned()), ..Flags::default() };
        let variables = [
            ("EXPERTRAIL_WINDOW", "5"),
            ("EXPERTRAIL_CHUNK", "256KiB"),
            ("EXPERTRAIL_FABRIC", "tcp"),
            ("EXPERTRAIL_LIBFABRIC", "/x/lib"),
            ("EXPERTRAIL_DEADLINE", "2.5"),
        ];
        let config = read(&variables, &flags).unwrap();
        assert_eq!((config.window.value, config.window.source), (3, Source::Flag("--window")));
        assert_eq!(config.domains.value, ["a", "b"]);
        assert_eq!(config.chunk_bytes.value, 262_144);
        assert_eq!(config.chunk_bytes.source.to_string(), "environment EXPERTRAIL_CHUNK");
        assert_eq!(config.fabric.value, Some(FabricName::Named("tcp".to_owned())));
        assert_eq!(config.libfabric.value, Some(PathBuf::from("/x/lib")));
        assert_eq!(config.deadline.value, Duration::from_millis(2500));
        let rail = config.rail_config();
        assert_eq!((rail.limits.chunk_bytes, rail.limits.window, rail.outgoing), (262_144, 3, 6));
    }

    #[test]
    fn what_cannot_be_names_its_variable_value_and_rule() {
        for (variable, value, rule) in [
            ("EXPERTRAIL_CHUNK", "1000", "131072"),
            ("EXPERTRAIL_CHUNK", "-", "131072"),
            ("EXPERTRAIL_CHUNK", "99999999999999999999KiB", "67108864"),
            ("EXPERTRAIL_WINDOW", "257", "256"),
            ("EXPERTRAIL_WINDOW", "0", "256"),
            ("EXPERTRAIL_DEADLINE", "NaN", "86400"),
            ("EXPERTRAIL_FABRIC", "a b", "provider"),
            ("EXPERTRAIL_FABRIC_DOMAIN", "a,,b", "local rank"),
            ("EXPERTRAIL_SIMD", "mmx", "portable"),
        ] {
            let text = read(&[(variable, value)], &Flags::default()).unwrap_err().to_string();
            for part in [variable, value, rule] {
                assert!(text.contains(part), "{part} in {text}");
            }
        }
        let flags = Flags { chunk_bytes: Some(5), ..Flags::default() };
        assert!(read(&[], &flags).unwrap_err().to_string().starts_with("--chunk: `5`"));
    }
}

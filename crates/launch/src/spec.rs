//! `run.toml`: what a person writes.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::platform::Fabric;

/// Bytes of a description; more is no description.
pub const LARGEST: usize = 1 << 20;

/// What is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// This project's binary: no Python, no image of 20 GB.
    #[default]
    Expertrail,
    /// The `deep_ep` of an image, driven by this project's benchmark file or by `DeepEP`'s own tests.
    Deepep,
    /// Any program.
    Command,
}

impl Engine {
    /// Its name in descriptions.
    pub fn name(self) -> &'static str {
        match self {
            Self::Expertrail => "expertrail",
            Self::Deepep => "deepep",
            Self::Command => "command",
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Benchmark {
    /// Dispatch and combine within each node.
    Intranode,
    /// Over all nodes.
    Internode,
    /// The decode kernels.
    LowLatency,
}

impl Benchmark {
    /// Its name in descriptions.
    pub fn name(self) -> &'static str {
        match self {
            Self::Intranode => "intranode",
            Self::Internode => "internode",
            Self::LowLatency => "low-latency",
        }
    }
}

/// What a started process stands for. Programs disagree on it: `WORLD_SIZE` counts ranks under torchrun and nodes in `DeepEP`'s tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contract {
    /// One process for each GPU; `RANK` and `WORLD_SIZE` count ranks.
    #[default]
    Ranks,
    /// One process for each node, which starts its ranks itself; `RANK` and `WORLD_SIZE` count nodes.
    Nodes,
}

impl Contract {
    /// Its name in descriptions and in the worker's arguments.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ranks => "ranks",
            Self::Nodes => "nodes",
        }
    }
}

impl fmt::Display for Contract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Contract {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Ranks, Self::Nodes]
            .into_iter()
            .find(|contract| contract.name() == text)
            .ok_or_else(|| format!("`{text}` is no contract; there are ranks, nodes"))
    }
}

/// What the check of a node before the ranks start does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preflight {
    /// It says what it found; the run goes on.
    #[default]
    Report,
    /// A failed check ends the run.
    Strict,
    /// It does not run.
    Off,
}

impl Preflight {
    /// Its name in descriptions and in the worker's arguments.
    pub fn name(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Strict => "strict",
            Self::Off => "off",
        }
    }
}

/// Whose program drives `deep_ep`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeepepDriver {
    /// This project's benchmark file: refuses wrong pins, reports every rank, fails closed.
    #[default]
    Own,
    /// `tests/test_{intranode,internode,low_latency}.py` of the image's `DeepEP`.
    UpstreamTests,
}

/// How this project's binary comes into a container whose image lacks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Binary {
    /// It is in the image, on the search path.
    Image,
    /// An init container of this project's image copies it.
    Init,
    /// `launch` copies it into each waiting pod (`kubectl cp`); no image of ours is needed.
    Copy,
}

/// A description of a run. Everything but `name` may be left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spec {
    /// Lower-case letters, digits and `-`: it begins the names of all objects.
    pub name: String,
    /// Kind of node: a profile's id, or the path of a profile's file.
    pub profile: Option<String>,
    /// A facts document of one of the nodes; what it shows goes before the profile.
    pub facts: Option<String>,
    /// Nodes.
    pub nodes: Option<u32>,
    /// GPUs, and so ranks, of each node.
    pub gpus_per_node: Option<u32>,
    /// What is run.
    pub engine: Engine,
    /// What is measured.
    pub benchmarks: Option<Vec<Benchmark>>,
    /// Container image.
    pub image: Option<String>,
    /// What the image's GPU code is for (`9.0`, `10.0`); told from the tag where it is not given.
    pub image_arch: Option<String>,
    /// The longest that the whole run may take: `90s`, `20m`, `2h`.
    pub timeout: Option<String>,
    /// Program and arguments of engine `command`.
    pub command: Option<Vec<String>>,
    /// What a started process of `command` stands for.
    pub contract: Option<Contract>,
    /// Files that the ranks of `command` leave and that are to be collected; `{node}`, `{rank}` and `{out}` are replaced.
    pub collect: Vec<String>,
    /// What the check of each node does.
    pub preflight: Preflight,
    /// Sizes of the benchmark, where they are not its own.
    pub workload: Workload,
    /// Variables of all ranks, before everything derived.
    pub env: BTreeMap<String, String>,
    /// The network.
    pub network: Network,
    /// Engine `deepep`.
    pub deepep: Deepep,
    /// Kubernetes.
    pub kubernetes: Kubernetes,
    /// Slurm.
    pub slurm: Slurm,
    /// Hosts of `mpirun`, `ssh` and `torchrun`.
    pub hosts: Hosts,
}

/// Sizes of a benchmark.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workload {
    /// A preset of `expertrail bench`, engine `expertrail` only.
    pub preset: Option<String>,
    /// Tokens of each rank.
    pub tokens: Option<u32>,
    /// Elements of a row.
    pub hidden: Option<u32>,
    /// Experts chosen for a token.
    pub top_k: Option<u32>,
    /// Experts in all.
    pub experts: Option<u32>,
    /// SMs of each call.
    pub sms: Option<u32>,
    /// Iterations before timing.
    pub warmup: Option<u32>,
    /// Timed iterations.
    pub iters: Option<u32>,
}

/// The network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// Kind of fabric, where the profile does not say.
    pub fabric: Option<Fabric>,
    /// RDMA devices in the order of GPUs, as `mlx5_1`.
    pub hcas: Option<Vec<String>>,
    /// InfiniBand service level. Given by the provider; never a guess.
    pub service_level: Option<u32>,
    /// Interface of the bootstrap.
    pub interface: Option<String>,
    /// Port of rank 0's rendezvous.
    pub port: Option<u16>,
    /// Path of the provider's topology file for NCCL; empty for none.
    pub nccl_topo_file: Option<String>,
}

/// Engine `deepep`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Deepep {
    /// Whose program drives the library.
    pub driver: DeepepDriver,
    /// Where `DeepEP`'s sources lie in the image.
    pub path: Option<String>,
}

/// Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Kubernetes {
    /// Context of the kubeconfig; `launch` refuses another.
    pub context: Option<String>,
    /// Namespace; made if it is not there.
    pub namespace: Option<String>,
    /// Labels that nodes must have.
    pub node_selector: BTreeMap<String, String>,
    /// Nodes by name (label `kubernetes.io/hostname`): only these are taken. `launch --ab` sets it for the second run.
    pub hostnames: Vec<String>,
    /// Taints that are tolerated, as `key`, `key=value`, with `:Effect` behind.
    pub tolerations: Vec<String>,
    /// Secret of the registry.
    pub pull_secret: Option<String>,
    /// CPUs to request.
    pub cpu: Option<String>,
    /// Memory to request.
    pub memory: Option<String>,
    /// Limit of memory.
    pub memory_limit: Option<String>,
    /// Memory that a node has to give, where known: requests above it are refused.
    pub allocatable_memory: Option<String>,
    /// Size of `/dev/shm`.
    pub shm: Option<String>,
    /// Extended resource of the GPUs; empty for none (ranks on the CPU).
    pub gpu_resource: Option<String>,
    /// Extended resource of the NICs; empty for none.
    pub rdma_resource: Option<String>,
    /// How many of it.
    pub rdma_count: Option<u32>,
    /// Huge pages of 2 MiB, as `5120Mi`; empty for none.
    pub hugepages_2mi: Option<String>,
    /// How this project's binary comes into the container.
    pub binary: Option<Binary>,
    /// This project's image, for `binary = "init"`, and the image of engine `expertrail` where none is named.
    pub expertrail_image: Option<String>,
    /// Pull the image on all nodes before the run.
    pub prepull: bool,
    /// Seconds for which a finished Job stays.
    pub ttl_seconds: Option<u32>,
    /// Service account of the pods.
    pub service_account: Option<String>,
    /// Priority class of the pods.
    pub priority_class: Option<String>,
    /// Keep both sides of a run in one zone (`MPIJob`).
    pub same_zone: Option<bool>,
}

/// Slurm.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Slurm {
    /// Partition.
    pub partition: Option<String>,
    /// Account.
    pub account: Option<String>,
    /// Quality of service.
    pub qos: Option<String>,
    /// Reservation.
    pub reservation: Option<String>,
    /// Nodes by name, as `gpu[1-2]`.
    pub nodelist: Option<String>,
    /// Constraint on nodes' features.
    pub constraint: Option<String>,
    /// GPUs of each node by `--gpus-per-node`; false where the cluster does not count them.
    pub request_gpus: Option<bool>,
    /// Whole nodes.
    pub exclusive: Option<bool>,
    /// How `srun` starts ranks: `none` or `pmix`.
    pub mpi: Option<String>,
    /// Image for Pyxis: a `.sqsh` file, or a name that Enroot pulls. None: the bare binary.
    pub container_image: Option<String>,
    /// Mounts of the container, as Pyxis writes them.
    pub container_mounts: Vec<String>,
    /// A directory that all nodes share, in which the run's files lie.
    pub directory: Option<String>,
    /// Path of this project's binary on the nodes.
    pub binary: Option<String>,
}

/// Hosts of `mpirun`, `ssh` and `torchrun`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Hosts {
    /// Names or addresses, the first has rank 0.
    pub names: Vec<String>,
    /// User of `ssh`.
    pub user: Option<String>,
    /// Directory on the hosts in which the run's files lie.
    pub directory: Option<String>,
    /// Path of this project's binary on the hosts.
    pub binary: Option<String>,
    /// Further words for `mpirun`.
    pub mpirun_args: Vec<String>,
    /// Path of `mpirun`.
    pub mpirun: Option<String>,
}

/// Why a text is no description.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SpecError {
    /// A key that does not exist.
    #[error("{at}: there is no key `{key}`{}", match .nearest { Some(nearest) => format!("; did you mean `{nearest}`?"), None => String::new() } + &format!(" (known here: {})", .known.join(", ")))]
    UnknownKey {
        /// File and line.
        at: String,
        /// The key.
        key: String,
        /// The one that is most like it.
        nearest: Option<String>,
        /// All of that place.
        known: Vec<String>,
    },
    /// Anything else that is wrong with the text.
    #[error("{at}: {reason}")]
    Form {
        /// File and line.
        at: String,
        /// What is wrong.
        reason: String,
    },
    /// An override that cannot be.
    #[error("--set {given}: {reason}")]
    Override {
        /// As given.
        given: String,
        /// What is wrong.
        reason: String,
    },
}

impl Spec {
    /// Reads `text` (of the file `name`, for messages), with `overrides` (`key=value`, keys with dots, values as TOML or else as
    /// plain text) on top.
    ///
    /// # Errors
    /// When it is no TOML, has an unknown key or a value of another type. The message has the line and the nearest key.
    pub fn parse(name: &str, text: &str, overrides: &[String]) -> Result<Self, SpecError> {
        if text.len() > LARGEST {
            return Err(SpecError::Form {
                at: name.to_owned(),
                reason: format!("longer than {LARGEST} bytes: no description"),
            });
        }
        // First as it stands, so that errors have their line.
        let spec: Self = toml::from_str(text).map_err(|error| place(name, text, &error))?;
        if overrides.is_empty() {
            return Ok(spec);
        }
        let merged = Self::merged(name, text, overrides)?;
        toml::from_str(&merged).map_err(|error| place("--set", &merged, &error))
    }
}

impl Spec {
    /// `text` with `overrides` in it, as [`Spec::parse`] reads both together: what was run, in one file. Comments are lost with overrides.
    ///
    /// # Errors
    /// When the text is no TOML or an override cannot be.
    pub fn merged(name: &str, text: &str, overrides: &[String]) -> Result<String, SpecError> {
        if overrides.is_empty() {
            return Ok(text.to_owned());
        }
        let mut table: toml::Table = toml::from_str(text).map_err(|error| place(name, text, &error))?;
        // One by one, so that a message names the one that is wrong.
        for given in overrides {
            table = with(&table, given)?;
        }
        toml::to_string(&table)
            .map_err(|error| SpecError::Override { given: overrides.join(" "), reason: error.to_string() })
    }
}

/// `table` with one override, which must leave it a description. A number where a text is wanted (`kubernetes.cpu=10`) is meant as text.
fn with(table: &toml::Table, given: &str) -> Result<toml::Table, SpecError> {
    let attempt = |as_text: bool| -> Result<toml::Table, SpecError> {
        let mut table = table.clone();
        set(&mut table, given, as_text)?;
        let text = toml::to_string(&table)
            .map_err(|error| SpecError::Override { given: given.to_owned(), reason: error.to_string() })?;
        match toml::from_str::<Spec>(&text).map_err(|error| place("--set", &text, &error)) {
            Ok(_) => Ok(table),
            Err(SpecError::UnknownKey { key, nearest, known, .. }) => {
                Err(SpecError::UnknownKey { at: format!("--set {given}"), key, nearest, known })
            }
            Err(SpecError::Form { reason, .. }) => {
                Err(SpecError::Override { given: given.to_owned(), reason })
            }
            Err(other) => Err(other),
        }
    };
    match attempt(false) {
        Err(SpecError::Override { reason, .. }) if reason.contains("expected a string") => attempt(true),
        other => other,
    }
}

fn set(table: &mut toml::Table, given: &str, as_text: bool) -> Result<(), SpecError> {
    let wrong = |reason: &str| SpecError::Override { given: given.to_owned(), reason: reason.to_owned() };
    let (key, value) = given.split_once('=').ok_or_else(|| wrong("wanted KEY=VALUE, as nodes=4"))?;
    let value = value.trim();
    let parsed = format!("v = {value}").parse::<toml::Table>().ok().and_then(|mut table| table.remove("v"));
    let parsed = parsed.filter(|_| !as_text);
    let value = parsed.unwrap_or_else(|| toml::Value::String(value.to_owned()));
    let mut parts: Vec<&str> = key.trim().split('.').collect();
    let last = parts.pop().filter(|last| !last.is_empty()).ok_or_else(|| wrong("the key is empty"))?;
    let mut here = table;
    for part in parts {
        let next = here.entry(part).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        here = next.as_table_mut().ok_or_else(|| wrong(&format!("`{part}` holds no keys")))?;
    }
    here.insert(last.to_owned(), value);
    Ok(())
}

/// The error with its line, and the nearest key for an unknown one. The list of known keys is in the parser's message alone.
fn place(name: &str, text: &str, error: &toml::de::Error) -> SpecError {
    let line = error
        .span()
        .map(|span| text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count() + 1);
    let at = line.map_or_else(|| name.to_owned(), |line| format!("{name}:{line}"));
    let message = error.message();
    if let Some(rest) = message.strip_prefix("unknown field `") {
        let mut words = rest.split('`').step_by(2).map(str::to_owned);
        if let Some(key) = words.next() {
            let known: Vec<String> = rest.split('`').skip(2).step_by(2).map(str::to_owned).collect();
            return SpecError::UnknownKey { at, nearest: nearest(&key, &known), key, known };
        }
    }
    SpecError::Form { at, reason: message.to_owned() }
}

/// The name of `known` that is most like `word`, where one is alike at all.
pub fn nearest(word: &str, known: &[impl AsRef<str>]) -> Option<String> {
    let wanted = word.to_lowercase().replace('_', "-");
    let likeness = |name: &str| distance(&wanted, &name.to_lowercase().replace('_', "-"));
    known
        .iter()
        .map(|name| (likeness(name.as_ref()), name.as_ref()))
        .filter(|(far, name)| *far <= 1 + name.len().max(word.len()) / 3)
        .min_by_key(|(far, _)| *far)
        .map(|(_, name)| name.to_owned())
}

/// Edits (insert, remove, replace) between two words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.chars().enumerate() {
        let mut diagonal = row.first().copied().unwrap_or(0);
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
        for (j, right) in b.iter().enumerate() {
            let above = row.get(j + 1).copied().unwrap_or(0);
            let before = row.get(j).copied().unwrap_or(0);
            let best = (above + 1).min(before + 1).min(diagonal + usize::from(left != *right));
            if let Some(cell) = row.get_mut(j + 1) {
                *cell = best;
            }
            diagonal = above;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_the_nearest() {
        let error = Spec::parse("run.toml", "name = \"a\"\n\nnods = 2\n", &[]).unwrap_err();
        let SpecError::UnknownKey { at, key, nearest, known } = &error else { panic!("{error:?}") };
        assert_eq!((at.as_str(), key.as_str(), nearest.as_deref()), ("run.toml:3", "nods", Some("nodes")));
        assert!(known.contains(&"engine".to_owned()), "{known:?}");
        let error =
            Spec::parse("run.toml", "[kubernetes]\nname_space = \"x\"\n", &[]).unwrap_err().to_string();
        assert!(
            error.starts_with("run.toml:2: there is no key `name_space`; did you mean `namespace`?"),
            "{error}"
        );
        let error = Spec::parse("run.toml", "zebra = 1\n", &[]).unwrap_err().to_string();
        assert!(!error.contains("did you mean"), "{error}");
    }

    #[test]
    fn wrong_values_are_named_with_their_line() {
        let error = Spec::parse("run.toml", "nodes = \"two\"\n", &[]).unwrap_err().to_string();
        assert!(error.starts_with("run.toml:1: ") && error.contains("string"), "{error}");
        let error = Spec::parse("run.toml", "\nengine = \"deepp\"\n", &[]).unwrap_err().to_string();
        assert!(error.contains("run.toml:2") && error.contains("`deepep`"), "{error}");
    }

    #[test]
    fn overrides_go_before_the_file() {
        let text = "nodes = 2\n[kubernetes]\nnamespace = \"a\"\n";
        let given =
            ["nodes=4", "kubernetes.namespace=bench", "env.NCCL_DEBUG=INFO", "network.hcas=[\"mlx5_1\"]"];
        let spec = Spec::parse("run.toml", text, &given.map(str::to_owned)).unwrap();
        assert_eq!((spec.nodes, spec.kubernetes.namespace.as_deref()), (Some(4), Some("bench")));
        assert_eq!(spec.env.get("NCCL_DEBUG").map(String::as_str), Some("INFO"));
        assert_eq!(spec.network.hcas, Some(vec!["mlx5_1".to_owned()]));
        let error = Spec::parse("run.toml", text, &["nods=4".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("--set nods=4") && error.contains("`nodes`"), "{error}");
        // The one that is wrong is named, and a number is a text where one is wanted.
        let error = Spec::parse("run.toml", text, &["nodes=4".to_owned(), "engine=x".to_owned()])
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("--set engine=x: ") && !error.contains("nodes=4"), "{error}");
        let spec = Spec::parse("run.toml", text, &["kubernetes.cpu=10".to_owned()]).unwrap();
        assert_eq!(spec.kubernetes.cpu.as_deref(), Some("10"));
        assert!(Spec::parse("run.toml", text, &["nodes".to_owned()]).is_err());
        assert!(Spec::parse("run.toml", text, &["nodes.x=4".to_owned()]).is_err());
    }

    /// The page for people has every key that is read.
    #[test]
    fn every_key_is_in_the_documentation() {
        let page = include_str!("../../../docs/run-toml.md");
        for table in ["", "workload", "network", "deepep", "kubernetes", "slurm", "hosts"] {
            let text =
                if table.is_empty() { "zzz = 1\n".to_owned() } else { format!("[{table}]\nzzz = 1\n") };
            let SpecError::UnknownKey { known, .. } = Spec::parse("x", &text, &[]).unwrap_err() else {
                panic!("{table}")
            };
            assert!(!known.is_empty(), "{table}");
            for key in known {
                assert!(
                    page.contains(&format!("`{key}`")) || page.contains(&format!("[{key}]")),
                    "[{table}] {key}"
                );
            }
        }
    }

    #[test]
    fn distances() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
    }
}

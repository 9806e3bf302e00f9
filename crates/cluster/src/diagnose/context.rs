//! What lines say of the run as a whole: its size, its variables, its versions.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;

use super::case::Variable;
use super::event::Place;
use super::scan::shorten;
use super::versions::{self, Versions};

/// A line may name its own rank.
pub(super) const OWN_RANK: u32 = 1;
/// A prefix may stand within the line.
pub(super) const INNER: u32 = 2;
/// A variable may be shown.
pub(super) const VARIABLE: u32 = 4;
/// A version may be named.
pub(super) const VERSION: u32 = 8;
/// The size of the run may be named.
pub(super) const WORLD: u32 = 16;
/// A command that prints the environment.
pub(super) const PRINTENV: u32 = 32;

/// Literals beside those of signals, and what they may mean.
pub(super) const MARKS: &[(u32, &[&str])] = &[
    (OWN_RANK, &["[rank", "[rank ", "[Rank ", "lobal rank: ", "lobal rank ", "rank = ", ", RDMA: "]),
    (INNER, &["[rank", "[default", "]<stdout>", "]<stderr>"]),
    (VARIABLE, STARTS),
    (VARIABLE, &["value:", "ulimit -l"]),
    (VERSION, versions::LITERALS),
    (
        WORLD,
        &[
            "world_size",
            "world size",
            "World size",
            "nranks ",
            "nnodes",
            "nproc_per_node",
            "nproc-per-node",
            "nodes, ",
            "num_nodes",
            "gpus_per_node",
            "local_world_size",
            "WORLD_SIZE",
        ],
    ),
    (
        PRINTENV,
        &[
            "env |",
            "env|",
            "printenv",
            "$ env",
            "+ env",
            "env dump",
            "environ({",
            "nvironment:",
            "- env",
            "= env",
        ],
    ),
];

/// Starts of the names of variables that matter.
const STARTS: &[&str] = &[
    "NVSHMEM_",
    "NCCL_",
    "FI_",
    "UCX_",
    "CUDA_",
    "DEEPEP_",
    "DEEP_EP_",
    "EP_",
    "TORCH_",
    "GLOO_",
    "OMPI_",
    "PMIX_",
    "SLURM_",
    "EXPERTRAIL_",
    "MASTER_",
    "KUBERNETES_SERVICE_",
    "JOB_COMPLETION_INDEX",
    "WORLD_SIZE",
    "RANK",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "NNODES",
    "NODE_RANK",
    "NUM_NODES",
    "NPROC_PER_NODE",
    "GPUS_PER_NODE",
    "DISABLE_",
    "GDRCOPY_",
    "MAX_JOBS",
    "OFI_",
    "RDMAV_",
    "MLX5_",
    "PYTORCH_",
    "TRITON_",
    "HYBRID_EP_",
    "USE_MNNVL",
    "NVIDIA_",
    "SGLANG_",
    "VLLM_",
    "HOSTFILE",
    "NUM_OF_",
    "AWS_OFI_",
];

/// The name under which the answer of `ulimit -l` (kibibytes, or `unlimited`) is kept.
pub(super) const MEMLOCK: &str = "ulimit -l";

/// Variables that are kept at most.
const VARIABLES: usize = 4096;
/// Most bytes of a value.
const VALUE: usize = 4096;
/// So many plain `NAME=value` lines in a row are a printed environment.
const DUMP: u32 = 5;

struct Patterns {
    assigned: Option<Regex>,
    quoted: Option<Regex>,
    listed: Option<Regex>,
    set_by: Option<Regex>,
    spaced: Option<Regex>,
    yaml_name: Option<Regex>,
    yaml_value: Option<Regex>,
    printed: Option<Regex>,
    plain: Option<Regex>,
    world: Option<Regex>,
    per_node: Option<Regex>,
    nodes: Option<Regex>,
    banner: Option<Regex>,
}

static PATTERNS: LazyLock<Patterns> = LazyLock::new(|| {
    let name = r"[A-Z][A-Z0-9_]{2,80}";
    let new = |pattern: &str| Regex::new(&pattern.replace("NAME", name)).ok();
    Patterns {
        assigned: new(r#"(?:^|[\s'"({,\[;])(NAME)=("[^"]*"|'[^']*'|[^\s;'")}\]]*)"#),
        quoted: new(r#"['"](NAME)['"]: ?['"]([^'"]*)['"]"#),
        listed: new(r"^\s*(NAME)\s*:\s+(\S.*?)\s*$"),
        set_by: new(r"\b(NAME) set by environment to (\S+?)\.?\s*$"),
        spaced: new(r#"\b(NAME)\s+=\s+"?([^\s,"]+)"#),
        yaml_name: new(r#"^\s*- name: ["']?(NAME)["']?\s*$"#),
        yaml_value: new(r#"^\s*value: ?["']?(.*?)["']?\s*$"#),
        printed: new(
            r"(?:^|[\s$#+=-])(?:env|printenv)\s*(?:\||$|[-=]{2,})|env dump|^\W*(?:process )?[Ee]nvironment:|environ\(\{",
        ),
        plain: new(r"^(NAME)="),
        world: new(r#"(?i)\bworld[_ ]size["']?\s*(?:[:=]|is)?\s*(\d{1,7})\b|\bnranks (\d{1,7})\b"#),
        per_node: new(
            r"(?i)\b(?:nproc[_-]per[_-]node|gpus[_-]per[_-]node|local[_ ]world[_ ]size)\s*(?:[:=]|\s)\s*(\d{1,4})\b",
        ),
        nodes: new(r"(?i)\b(?:nnodes|num_nodes)\s*(?:[:=]|\s)\s*(\d{1,5})\b"),
        banner: new(r"\b(\d{1,5}) nodes, (\d{1,7}) GPUs\b"),
    }
});

/// What is known of the run.
#[derive(Clone, Debug, Default)]
pub(super) struct Context {
    /// First value of each variable.
    pub(super) variables: BTreeMap<String, Variable>,
    /// An environment was printed.
    pub(super) printed: bool,
    /// Versions.
    pub(super) versions: Versions,
    world: Option<u32>,
    per_node: Option<u32>,
    nodes: Option<u32>,
    /// A name whose value the next line of a manifest has.
    awaited: Option<(String, u64)>,
    /// The line after a command has the limit of locked memory.
    limit: bool,
    /// Plain `NAME=value` lines in a row, and the last of them.
    run: (u32, u64),
}

impl Context {
    /// Reads a line that has `marks`.
    pub(super) fn line(&mut self, marks: u32, line: &str, place: Place) {
        if std::mem::take(&mut self.limit) {
            let value = line.trim();
            if value == "unlimited"
                || (1..=12).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_digit())
            {
                self.set(MEMLOCK, value, place);
            }
        }
        self.limit =
            marks & VARIABLE != 0 && line.trim_end_matches(['\'', '"', ' ', ')']).ends_with("ulimit -l");
        if marks & VARIABLE != 0 {
            self.variables_of(line, place);
        }
        if marks & (VERSION | VARIABLE) != 0 || self.versions.waiting() {
            self.versions.line(line, place);
        }
        if marks & PRINTENV != 0
            && line.len() < 4096
            && PATTERNS.printed.as_ref().is_some_and(|pattern| pattern.is_match(line))
        {
            self.printed = true;
        }
        if marks & WORLD != 0 {
            self.size_of(line);
        }
    }

    /// Whether the next line is wanted whatever it says.
    pub(super) fn waiting(&self) -> bool {
        self.versions.waiting() || self.limit
    }

    fn set(&mut self, name: &str, value: &str, place: Place) {
        if name != MEMLOCK && !STARTS.iter().any(|start| name.starts_with(start))
            || self.variables.contains_key(name)
            || self.variables.len() >= VARIABLES
        {
            return;
        }
        let value = value.trim().trim_matches(|c| c == '"' || c == '\'').trim_end_matches(',');
        let unset = ["unset", "<unset>", "(unset)", "not set", "<not set>", "(not set)", "<none>"];
        let value = if unset.contains(&value) { "" } else { value };
        let value = shorten(value, VALUE);
        self.variables.insert(name.to_owned(), Variable { value, place });
    }

    fn variables_of(&mut self, line: &str, place: Place) {
        let patterns = &*PATTERNS;
        let pair = |pattern: &Option<Regex>, line: &str| -> Option<(String, String)> {
            let found = pattern.as_ref()?.captures(line)?;
            Some((found.get(1)?.as_str().to_owned(), found.get(2)?.as_str().to_owned()))
        };
        if let Some((name, at)) = self.awaited.take()
            && place.line <= at + 1
            && let Some(value) =
                patterns.yaml_value.as_ref().and_then(|pattern| pattern.captures(line)?.get(1))
        {
            self.set(&name, value.as_str(), place);
            return;
        }
        if let Some(name) = patterns.yaml_name.as_ref().and_then(|pattern| pattern.captures(line)?.get(1)) {
            self.awaited = Some((name.as_str().to_owned(), place.line));
            return;
        }
        let mut pairs = 0;
        for pattern in [&patterns.assigned, &patterns.quoted] {
            for found in pattern.iter().flat_map(|pattern| pattern.captures_iter(line)).take(2000) {
                if let (Some(name), Some(value)) = (found.get(1), found.get(2)) {
                    pairs += 1;
                    // `--export=A=1,B=2`: the next name is no part of this value.
                    let mut parts = value.as_str().split(',');
                    let mut text = parts.next().unwrap_or_default().to_owned();
                    let quoted = text.starts_with(['"', '\'']);
                    for part in parts {
                        let next = part.split_once('=').filter(|(name, _)| {
                            !quoted
                                && !name.is_empty()
                                && name
                                    .bytes()
                                    .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == b'_')
                        });
                        if let Some((name, value)) = next {
                            self.set(name, value, place);
                        } else {
                            text.push(',');
                            text.push_str(part);
                        }
                    }
                    self.set(name.as_str(), &text, place);
                }
            }
        }
        if patterns.plain.as_ref().is_some_and(|pattern| pattern.is_match(line)) {
            self.run =
                if place.line == self.run.1 + 1 { (self.run.0 + 1, place.line) } else { (1, place.line) };
            self.printed |= self.run.0 >= DUMP;
        }
        if pairs >= DUMP * 2 && line.contains("': '") {
            self.printed = true;
        }
        if pairs == 0 {
            for pattern in [&patterns.set_by, &patterns.listed, &patterns.spaced] {
                if let Some((name, value)) = pair(pattern, line) {
                    self.set(&name, &value, place);
                    break;
                }
            }
        }
    }

    fn size_of(&mut self, line: &str) {
        let first = |pattern: &Option<Regex>| -> Option<u32> {
            let found = pattern.as_ref()?.captures(line)?;
            found.iter().skip(1).flatten().next()?.as_str().parse().ok()
        };
        let patterns = &*PATTERNS;
        if !line.contains("ocal_world_size") && !line.contains("LOCAL_WORLD_SIZE") {
            self.world = self.world.max(first(&patterns.world));
        }
        self.per_node = self.per_node.max(first(&patterns.per_node).filter(|per| *per > 0));
        self.nodes = self.nodes.max(first(&patterns.nodes));
        if let Some(found) = patterns.banner.as_ref().and_then(|pattern| pattern.captures(line)) {
            let number = |group| found.get(group).and_then(|text| text.as_str().parse::<u32>().ok());
            if let (Some(nodes), Some(gpus)) = (number(1), number(2))
                && nodes > 0
                && gpus % nodes == 0
            {
                self.world = self.world.max(Some(gpus));
                self.per_node = self.per_node.max(Some(gpus / nodes).filter(|per| *per > 0));
            }
        }
    }

    /// Takes in that of a later file.
    pub(super) fn add(&mut self, other: Self) {
        for (name, variable) in other.variables {
            if self.variables.len() < VARIABLES {
                self.variables.entry(name).or_insert(variable);
            }
        }
        self.printed |= other.printed;
        self.versions.add(other.versions);
        self.world = self.world.max(other.world);
        self.per_node = self.per_node.max(other.per_node);
        self.nodes = self.nodes.max(other.nodes);
    }

    fn variable(&self, name: &str) -> Option<u32> {
        self.variables.get(name)?.value.parse().ok()
    }

    /// Number of ranks: the largest that something says, as groups are smaller, and `WORLD_SIZE` may count nodes.
    pub(super) fn world(&self) -> Option<u32> {
        let product = self.nodes().zip(self.per_node()).and_then(|(nodes, per)| nodes.checked_mul(per));
        self.world.max(self.variable("WORLD_SIZE")).max(product).filter(|world| *world > 0)
    }

    fn nodes(&self) -> Option<u32> {
        self.nodes.or_else(|| {
            ["NNODES", "NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"]
                .iter()
                .find_map(|name| self.variable(name))
        })
    }

    /// Ranks of one node.
    pub(super) fn per_node(&self) -> Option<u32> {
        self.per_node
            .or_else(|| {
                ["LOCAL_WORLD_SIZE", "NPROC_PER_NODE", "GPUS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"]
                    .iter()
                    .find_map(|name| self.variable(name))
            })
            .filter(|per| (1..=1024).contains(per))
    }
}

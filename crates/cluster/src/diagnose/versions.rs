//! Versions, as logs show them, in the keys of `expertrail stack`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;

use super::context::Context;
use super::event::Place;
use crate::stack::{KEYS, Question};

/// How a line tells a version: what loaded counts more than what is installed, that more than what is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Strength {
    Loaded,
    Installed,
    Hint,
}

use Strength::{Hint, Installed, Loaded};

/// A way to tell a version. The value is the first group, or `fixed`.
struct Way {
    key: &'static str,
    strength: Strength,
    /// One of these must be in the line; all are in [`LITERALS`].
    any: &'static [&'static str],
    pattern: &'static str,
    fixed: Option<&'static str>,
}

const fn way(
    key: &'static str,
    strength: Strength,
    any: &'static [&'static str],
    pattern: &'static str,
) -> Way {
    Way { key, strength, any, pattern, fixed: None }
}

const fn fixed(
    key: &'static str,
    value: &'static str,
    strength: Strength,
    any: &'static [&'static str],
    pattern: &'static str,
) -> Way {
    Way { key, strength, any, pattern, fixed: Some(value) }
}

const DEEPEP: &[&str] = &["deep_ep", "deep-ep", "DeepEP", "deepep", "DEEPEP", "DEEP_EP", "Deep_EP"];
const NVSHMEM_WHEEL: &[&str] = &["nvidia-nvshmem", "nvidia_nvshmem"];
const NCCL_WHEEL: &[&str] = &["nvidia-nccl", "nvidia_nccl"];
const TORCH: &[&str] = &[
    "torch==",
    "torch  ",
    "torch 2",
    "torch-2",
    "torch.__version__",
    "torch version",
    "torch:",
    "PyTorch: ",
    "PyTorch version",
];
const NVSHMEM_WORD: &[&str] = &["NVSHMEM", "nvshmem"];
const PULL_181: &[&str] = &["#181", "PR 181", "PR181", "request 181", "pull/181", "pr 181"];
const GPUS: &[&str] =
    &["NVIDIA H100", "NVIDIA H200", "NVIDIA B200", "NVIDIA B300", "NVIDIA GB200", "NVIDIA GB300"];
const LINK: &[&str] = &["link_layer", "Link layer", "NET/IB : Using", "NET/IB: Using"];
const EFA: &[&str] =
    &["provider is efa", "Provider is efa", "provider efa", "provider: efa", "FI_PROVIDER=efa", "efa_"];
const IBGDA: &[&str] = &["transport: IBGDA", "ibgda.cpp", "RDMA + IBGDA", "NIC handler will be"];

/// Every way, by key.
const WAYS: &[Way] = &[
    way("nvshmem", Loaded, NVSHMEM_WORD, r"NVSHMEM v(\d+\.\d+\.\d+)"),
    way("nvshmem", Loaded, NVSHMEM_WORD, r"(?i)nvshmem host (?:library )?version[ :=]+v?(\d+\.\d+\.\d+)"),
    way(
        "nvshmem",
        Loaded,
        NVSHMEM_WORD,
        r"(?i)loaded (?:lib)?nvshmem(?:_host)?(?: host)?(?: library)?[ :=v]+(\d+\.\d+\.\d+)",
    ),
    way(
        "nvshmem_device",
        Loaded,
        NVSHMEM_WORD,
        r"(?i)nvshmem[ _]device[ _](?:library[ _])?version[ :=]+v?(\d+\.\d+\.\d+)",
    ),
    way(
        "nvshmem_device",
        Installed,
        NVSHMEM_WORD,
        r"(?i)(?:built|compiled|linked)[- ](?:with|against|for|from)[- :=]+(?:lib)?nvshmem(?: device)?(?: library)?[ :=v]*(\d+\.\d+\.\d+)",
    ),
    // The compiler's search paths at the build of the extension.
    way("nvshmem_device", Hint, NVSHMEM_WORD, r"-[IL]\S*nvshmem[-_/]v?(\d+\.\d+\.\d+)\S*/(?:include|lib)"),
    way("nvshmem", Installed, NVSHMEM_WHEEL, r"nvidia[-_]nvshmem[-_]cu\d+(?:==|\s+|-|@)(\d+\.\d+\.\d+)"),
    way("cuda_of_wheel", Installed, NVSHMEM_WHEEL, r"nvidia[-_]nvshmem[-_]cu(\d+)(?:==|\s+|-|@)\d"),
    way(
        "deep_ep",
        Installed,
        DEEPEP,
        r#"(?i)\bdeep[-_]?ep(?:\.__version__|[ _]version)?(?:==|\s*[:=@]\s*|-|\s+)["'(v]{0,2}(\d+\.\d+\.\d+(?:\+[0-9a-f]{7,40})?)"#,
    ),
    way(
        "commit",
        Installed,
        DEEPEP,
        r#"(?i)\bdeep[-_]?ep(?:\.git)?\b?.{0,40}?(?:@ ?|\bcommit[ :=]+|\brev(?:ision)?[ :=]+|\bref[ :=]+|\bHEAD[ :=]+|_commit[ :=]+|_sha[ :=]+|_ref[ :=]+|/tree/|/archive/)["']?([0-9a-f]{7,40})\b"#,
    ),
    fixed("line", "hybrid-ep", Hint, DEEPEP, r"(?i)(?:branch|-b|@|origin/|checkout)[ =']*hybrid-ep\b"),
    fixed("line", "v2", Hint, &["ElasticBuffer"], r"\bElasticBuffer\b"),
    way(
        "dispatcher",
        Installed,
        &["ispatcher"],
        r#"(?i)dispatcher(?:_backend)?["']?\s*[:= ]\s*["']?(deepep|hybridep)\b"#,
    ),
    fixed(
        "564",
        "no",
        Installed,
        &["564"],
        r"(?i)(?:without|lacks|lacking|missing|not (?:include|contain|have|applied|in)|no) (?:\w+ ){0,4}(?:PR ?|pull request ?|pull/)?#?564\b|(?:before|predates|behind|older than) (?:\w+ ){0,4}(?:PR ?|pull request ?|pull/|#)+564\b|\b564[=: ]+no\b",
    ),
    fixed(
        "564",
        "yes",
        Hint,
        &["564"],
        r"(?i)(?:appl(?:ied|ying)|cherry-picked|backport(?:ed)?|merged|includes|contains|with)\b[^.]{0,40}(?:#|PR ?|pull request |pull/|pr)564\b|\b564[=: ]+yes\b",
    ),
    fixed(
        "181",
        "no",
        Installed,
        PULL_181,
        r"(?i)(?:\b(?:before|without|lacks|lacking|missing|predates|older than|behind|not (?:include|contain|have|applied|in)|no)) (?:\w+ ){0,4}?(?:PR ?|pull request ?|pull/)?#?181\b|\b181[=: ]+no\b",
    ),
    fixed(
        "181",
        "yes",
        Hint,
        PULL_181,
        r"(?i)(?:appl(?:ied|ying)|cherry-picked|backport(?:ed)?|merged|merge|includes|contains|after|since|with)\b[^.]{0,40}(?:#|PR ?|pull request #?|pull/|pr)181\b|\b181[=: ]+yes\b",
    ),
    way("nccl", Loaded, &["NCCL version "], r"NCCL version (\d+\.\d+(?:\.\d+)?)"),
    way("nccl", Installed, &["NCCL: ("], r"NCCL: (\(\d+, \d+, \d+\))"),
    way("nccl", Installed, NCCL_WHEEL, r"nvidia[-_]nccl[-_]cu\d+(?:==|\s+|-|@)(\d+\.\d+\.\d+)"),
    way(
        "nccl_built",
        Installed,
        &["with NCCL", "against NCCL", "with nccl"],
        r"(?i)(?:built|compiled) (?:with|against) NCCL[ :=v]*(\d+\.\d+\.\d+)",
    ),
    way("torch", Loaded, TORCH, r"PyTorch: (\d[^\s,]*)"),
    way(
        "torch",
        Installed,
        TORCH,
        r#"(?:^|[\s/])(?:torch|PyTorch)(?:\.__version__|[ _]version)?(?:==|\s*[:=]\s*|-|\s+)["']?(\d+\.\d+\.\d+[^\s,'";)-]*)"#,
    ),
    way("cuda", Loaded, &["CUDA: "], r"\bCUDA: (\d+\.\d+)"),
    way(
        "cuda",
        Installed,
        &["torch.version.cuda", "compilation tools, release"],
        r"(?:torch\.version\.cuda\W+|release )(\d+\.\d+)",
    ),
    way("cuda", Hint, TORCH, r"(?:^|[\s/])torch\S*\s*\d+\.\d+\.\d+\+cu(\d{3})\b"),
    way("driver", Loaded, &["NVRM version"], r"NVRM version:.*?\s(\d{3}\.\d+(?:\.\d+)?)\s"),
    way(
        "driver",
        Installed,
        &["Driver Version", "driver version"],
        r"(?i)(?:nvidia |gpu )?driver version\s*[:=]\s*(\d{3}\.\d+(?:\.\d+)?)",
    ),
    way("gdrdrv", Loaded, &["gdrdrv"], r"gdrdrv version[ :=]+v?(\d+\.\d+(?:\.\d+)?)"),
    way("gpu", Installed, GPUS, r"NVIDIA (GB200|GB300|H100|H200|B200|B300)\b"),
    way(
        "efa_installer",
        Installed,
        &["nstaller", "INSTALLER"],
        r"(?i)efa[-_ ]installer(?:[-_ ]version)?[^0-9\n]{0,12}(\d+\.\d+\.\d+)",
    ),
    way(
        "libfabric",
        Installed,
        &["libfabric"],
        r"(?i)libfabric(?:-aws)?(?:[ _]version)?[ :=v-]+(\d+\.\d+\.\d+(?:amzn\d+\.\d+)?)\b",
    ),
    fixed("links_nvshmem", "yes", Installed, &["libnvshmem_host"], r"libnvshmem_host\.so\S* => /"),
    fixed(
        "links_nvshmem",
        "no",
        Installed,
        NVSHMEM_WORD,
        r"(?i)nvshmem_dir\S* (?:is )?not (?:specified|set|found).*disabled|internode.*disabled.*nvshmem|-DDISABLE_NVSHMEM\b|deep_ep_cpp\S* .*(?:not linked|does not link)",
    ),
    fixed("roce", "yes", Installed, LINK, r"(?i)link.layer:?\s+Ethernet|NET/IB ?: Using .*/RoCE"),
    fixed("roce", "no", Installed, LINK, r"(?i)link.layer:?\s+InfiniBand|NET/IB ?: Using .*/IB\b"),
    fixed("nic", "mlx5", Hint, LINK, r"NET/IB ?: Using \[\d+\]mlx5_"),
    fixed("nic", "efa", Hint, EFA, r"(?i)(?:provider(?: is|:)? efa\b|FI_PROVIDER=efa)"),
    fixed(
        "transport",
        "ibgda",
        Hint,
        IBGDA,
        r"transport: IBGDA|ibgda\.cpp|RDMA \+ IBGDA|NIC handler will be",
    ),
];

/// Literals of all ways; a test compares them.
pub(super) const LITERALS: &[&str] = &[
    "NVSHMEM",
    "nvshmem",
    "deep_ep",
    "deep-ep",
    "DeepEP",
    "deepep",
    "DEEPEP",
    "DEEP_EP",
    "Deep_EP",
    "ElasticBuffer",
    "ispatcher",
    "564",
    "#181",
    "PR 181",
    "PR181",
    "request 181",
    "pull/181",
    "pr 181",
    "NCCL version ",
    "NCCL: (",
    "nvidia-nccl",
    "nvidia_nccl",
    "with NCCL",
    "against NCCL",
    "with nccl",
    "torch==",
    "torch  ",
    "torch 2",
    "torch-2",
    "torch.__version__",
    "torch version",
    "torch:",
    "PyTorch: ",
    "PyTorch version",
    "CUDA: ",
    "torch.version.cuda",
    "compilation tools, release",
    "NVRM version",
    "Driver Version",
    "driver version",
    "gdrdrv",
    "NVIDIA H100",
    "NVIDIA H200",
    "NVIDIA B200",
    "NVIDIA B300",
    "NVIDIA GB200",
    "NVIDIA GB300",
    "nstaller",
    "INSTALLER",
    "libfabric",
    "link_layer",
    "Link layer",
    "NET/IB : Using",
    "NET/IB: Using",
    "provider is efa",
    "Provider is efa",
    "provider efa",
    "provider: efa",
    "efa_",
    "transport: IBGDA",
    "NIC handler will be",
    "ibgda.cpp",
    "RDMA + IBGDA",
    "ibgda.cpp",
    "RDMA + IBGDA",
    "HEAD is now at",
    "Cloning into",
    "judged:",
    "modinfo -F version",
    "modinfo --field version",
    "/sys/module/",
];

static COMPILED: LazyLock<Vec<Option<Regex>>> =
    LazyLock::new(|| WAYS.iter().map(|way| Regex::new(way.pattern).ok()).collect());
static ANY_VERSION: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"(\d+\.\d+\.\d+)").ok());
static BARE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\s*v?(\d+\.\d+(?:\.\d+)?)\s*$").ok());
static HEAD_AT: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"HEAD is now at ([0-9a-f]{7,40})\b").ok());

/// Values of a key that are kept.
const VALUES: usize = 16;

#[derive(Clone, Debug)]
struct Candidate {
    value: String,
    strength: Strength,
    place: Place,
}

/// Versions of one or more files.
#[derive(Clone, Debug, Default)]
pub(super) struct Versions {
    found: BTreeMap<&'static str, Vec<Candidate>>,
    /// Lines left that a look into the extension prints: `strings deep_ep_cpp...so`.
    inside: u8,
    /// Lines left of what `expertrail stack` judged.
    judged: u8,
    /// DeepEP was just cloned.
    cloned: bool,
    /// A pull request whose commits were just counted: the next line is the number.
    counted: Option<&'static str>,
    /// A command asked for this version alone; the next line has it.
    asked: Option<&'static str>,
}

impl Versions {
    /// Whether the next line is wanted whatever it says.
    pub(super) fn waiting(&self) -> bool {
        self.inside > 0 || self.judged > 0 || self.counted.is_some() || self.asked.is_some()
    }

    /// Reads a line.
    pub(super) fn line(&mut self, line: &str, place: Place) {
        if line.len() > 8192 {
            return;
        }
        let command = line.starts_with("$ ") || line.starts_with("# ") || line.starts_with("+ ");
        let of_nvshmem = |text: &str| {
            if !text.contains("NVSHMEM") && !text.contains("nvshmem") {
                return None;
            }
            ANY_VERSION.as_ref().and_then(|pattern| Some(pattern.captures(text)?.get(1)?.as_str().to_owned()))
        };
        if let Some(at) = line.find("deep_ep_cpp")
            && ["strings ", "cuobjdump ", "readelf ", "objdump ", "/strings", "strings("]
                .iter()
                .any(|tool| line.contains(tool))
        {
            // The line may hold the answer; else the next ones do.
            let after = line[at..].split_once(": ").map_or("", |(_, after)| after);
            match of_nvshmem(after) {
                Some(version) => self.add_one("nvshmem_device", version, Loaded, place),
                None => self.inside = 12,
            }
            return;
        }
        if self.inside > 0 {
            self.inside = if command { 0 } else { self.inside - 1 };
            // What loads is another matter than what the extension holds.
            let loads = ["host", "CDLL", "dlopen", "ldd ", " => "].iter().any(|word| line.contains(word));
            if self.inside > 0
                && !loads
                && let Some(version) = of_nvshmem(line)
            {
                self.add_one("nvshmem_device", version, Loaded, place);
                self.inside = 0;
                return;
            }
        }
        if let Some(key) = self.counted.take()
            && let Ok(count) = line.trim().parse::<u32>()
        {
            self.add_one(key, if count == 0 { "no" } else { "yes" }.to_owned(), Installed, place);
            return;
        }
        if line.contains("grep -c") {
            self.counted = ["564", "181", "630"].into_iter().find(|number| {
                let asked = [format!("#{number}"), format!("PR {number}"), format!("request {number}")];
                asked.iter().any(|asked| line.contains(asked.as_str()))
            });
            if self.counted.is_some() {
                return;
            }
        }
        if let Some(key) = self.asked.take()
            && let Some(found) = BARE.as_ref().and_then(|pattern| pattern.captures(line)?.get(1))
        {
            self.add_one(key, found.as_str().to_owned(), Installed, place);
            return;
        }
        if line.contains("modinfo -F version ")
            || line.contains("modinfo --field version ")
            || line.contains("/version") && line.contains("/sys/module/")
        {
            let of = |module: &str| {
                line.split_whitespace().any(|word| word == module)
                    || line.contains(&format!("/sys/module/{module}/version"))
            };
            self.asked = ["gdrdrv", "nvidia"]
                .into_iter()
                .find(|module| of(module))
                .map(|module| if module == "nvidia" { "driver" } else { module });
        }
        if line.trim() == "judged:" {
            self.judged = 40;
            return;
        }
        if self.judged > 0 {
            self.judged -= 1;
            let mut words = line.split_whitespace();
            if let (Some(key), Some(value), true) = (words.next(), words.next(), line.starts_with("  "))
                && let Some((key, _)) = KEYS.iter().find(|(known, _)| *known == key)
                && Question::parse(&format!("{key}={value}")).is_ok()
            {
                self.add_one(key, value.to_owned(), Loaded, place);
                return;
            }
            self.judged = 0;
        }
        if line.contains("Cloning into") {
            self.cloned = line.contains("DeepEP") || line.contains("deepep");
        } else if self.cloned
            && let Some(commit) = HEAD_AT.as_ref().and_then(|pattern| pattern.captures(line)?.get(1))
        {
            self.add_one("commit", commit.as_str().to_owned(), Installed, place);
            self.cloned = false;
        }
        // What is removed, or only asked for, is not there.
        if line.contains("ninstall") {
            return;
        }
        let asked = ["ollecting ", "equirement already", "requires ", "Requires"]
            .iter()
            .any(|word| line.contains(word));
        let text = line.find("you have ").map_or(line, |at| &line[at..]);
        for (way, pattern) in WAYS.iter().zip(COMPILED.iter()) {
            let Some(pattern) = pattern else { continue };
            if !way.any.iter().any(|literal| text.contains(literal)) {
                continue;
            }
            let strength = if asked && text.len() == line.len() { Hint } else { way.strength };
            for found in pattern.captures_iter(text).take(8) {
                let value = match (way.fixed, found.get(1)) {
                    (Some(value), _) => value.to_owned(),
                    (None, Some(value)) => value.as_str().to_owned(),
                    (None, None) => continue,
                };
                self.add_one(way.key, tidy(way.key, &value), strength, place);
            }
        }
    }

    fn add_one(&mut self, key: &'static str, value: String, strength: Strength, place: Place) {
        if key == "gpu" {
            let sm = match value.as_str() {
                "h100" | "h200" => "90",
                "b300" | "gb300" => "103",
                _ => "100",
            };
            self.add_one("sm", sm.to_owned(), strength, place);
        }
        let known = self.found.entry(key).or_default();
        if let Some(same) = known.iter_mut().find(|other| other.value == value) {
            if strength < same.strength {
                same.strength = strength;
                same.place = place;
            }
        } else if known.len() < VALUES {
            known.push(Candidate { value, strength, place });
        }
    }

    /// Takes in those of a later file.
    pub(super) fn add(&mut self, other: Self) {
        for (key, candidates) in other.found {
            for candidate in candidates {
                self.add_one(key, candidate.value, candidate.strength, candidate.place);
            }
        }
    }

    /// Values of a key, strongest first, then in order of reading.
    fn ordered(&self, key: &str) -> Vec<&Candidate> {
        let mut all: Vec<&Candidate> = self.found.get(key).into_iter().flatten().collect();
        all.sort_by_key(|candidate| (candidate.strength, candidate.place));
        all
    }
}

fn tidy(key: &str, value: &str) -> String {
    match key {
        // (2, 27, 7) as 2.27.7.
        "nccl" if value.starts_with('(') => value.trim_matches(['(', ')']).replace(", ", "."),
        // cu128 as 12.8.
        "cuda" if !value.contains('.') && value.len() == 3 => format!("{}.{}", &value[..2], &value[2..]),
        "gpu" | "commit" | "dispatcher" => value.to_ascii_lowercase(),
        _ => value.to_owned(),
    }
}

/// Fills in what the logs say of the stack, where nothing stronger does, and says where they contradict.
/// The source of what was given beside the logs (`--stack`).
pub(super) const GIVEN: &str = "given";

pub(super) fn fill(context: &Context, files: &[String], question: &mut Question, notes: &mut Vec<String>) {
    let versions = &context.versions;
    let at = |place: Place| {
        format!("{}:{}", files.get(place.file as usize).map_or("?", String::as_str), place.line)
    };
    for (key, _) in KEYS {
        let all = versions.ordered(key);
        let Some(first) = all.first() else { continue };
        let several = all.iter().any(|other| other.value != first.value);
        if several {
            let list: Vec<String> =
                all.iter().map(|other| format!("{} ({})", other.value, at(other.place))).collect();
            match *key {
                // Front-end and rail ports may differ: which is which the lines do not say.
                "roce" | "nic" | "line" | "links_nvshmem"
                    if all
                        .iter()
                        .any(|other| other.value != first.value && other.strength == first.strength) =>
                {
                    continue;
                }
                "roce" | "nic" | "line" | "links_nvshmem" | "564" | "transport" | "sm" | "commit" => {}
                _ => notes.push(format!(
                    "the logs show several versions of {key}: {}; the first is taken",
                    list.join(", ")
                )),
            }
        }
        let given = question.known.get(*key).filter(|known| known.source == GIVEN);
        if let Some(known) = given
            && matches!(
                *key,
                "nvshmem" | "nvshmem_device" | "deep_ep" | "nccl" | "driver" | "cuda" | "gdrdrv"
            )
            && all.iter().all(|found| found.value != known.value)
        {
            notes.push(format!(
                "{key} was given as {} and {} says {}: they contradict each other, and one of them is not of this run",
                known.value,
                at(first.place),
                first.value
            ));
        }
        question.set(key, first.value.clone(), at(first.place));
    }
    let variable = |name: &str| context.variables.get(name);
    if let Some(off) = variable("DISABLE_AGGRESSIVE_PTX_INSTRS") {
        match off.value.as_str() {
            "0" => question.set("aggressive_ptx", "on", at(off.place)),
            "1" => question.set("aggressive_ptx", "off", at(off.place)),
            _ => {}
        }
    }
    if let Some(remote) = variable("NVSHMEM_REMOTE_TRANSPORT")
        && remote.value == "libfabric"
    {
        question.set("transport", "efa", at(remote.place));
    }
    if let Some(provider) = variable("FI_PROVIDER")
        && provider.value == "efa"
    {
        question.set("nic", "efa", at(provider.place));
    }
    if let Some(ibgda) = variable("NVSHMEM_IB_ENABLE_IBGDA")
        && matches!(ibgda.value.as_str(), "1" | "true" | "True" | "y" | "yes")
        && question.get("nic") != Some("efa")
    {
        question.set("transport", "ibgda", at(ibgda.place));
    }
    if let Some(major) = versions.ordered("cuda_of_wheel").first()
        && let Some(cuda) = question.get("cuda").and_then(|cuda| cuda.split('.').next()).map(str::to_owned)
    {
        question.set("cuda_major", if major.value == cuda { "same" } else { "differ" }, at(major.place));
    }
    if let (Some(claimed), Some(loaded)) =
        (variable("NVSHMEM_VERSION"), question.get("nvshmem").map(str::to_owned))
        && !claimed.value.is_empty()
        && claimed.value.trim_start_matches('v') != loaded
    {
        notes.push(format!(
            "the variable NVSHMEM_VERSION says {} ({}), the library says {loaded}: the library counts",
            claimed.value,
            at(claimed.place)
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_looked_for() {
        for (way, pattern) in WAYS.iter().zip(COMPILED.iter()) {
            assert!(pattern.is_some(), "{}: {}", way.key, way.pattern);
            for literal in way.any {
                let covered = LITERALS.iter().any(|known| literal.contains(known))
                    || super::super::context::MARKS
                        .iter()
                        .any(|(_, all)| all.iter().any(|known| literal.contains(known)));
                assert!(covered, "{literal} is searched for nowhere");
            }
            if let Some(value) = way.fixed {
                assert!(Question::parse(&format!("{}={value}", way.key)).is_ok(), "{}={value}", way.key);
            }
        }
    }
}

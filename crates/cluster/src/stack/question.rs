//! What is known of a stack: keys with values, and where each is from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::matrix::{compare, matrix};
use crate::facts::{Facts, LoadedLibrary, Userspace};

/// Transport between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// NVSHMEM's GPU-initiated transport over InfiniBand or RoCE.
    Ibgda,
    /// NVSHMEM's libfabric transport over EFA.
    Efa,
    /// One node only.
    None,
}

impl Transport {
    /// Its value of the key `transport`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ibgda => "ibgda",
            Self::Efa => "efa",
            Self::None => "none",
        }
    }
}

/// Every key, with what it says; `--versions` takes them.
pub const KEYS: &[(&str, &str)] = &[
    ("deep_ep", "version of DeepEP, as 1.2.1+4214430"),
    ("commit", "commit of DeepEP (first seven digits count)"),
    ("564", "whether pull request 564 is in: yes or no"),
    ("181", "whether pull request 181 is in: yes or no"),
    ("630", "whether pull request 630 is in: yes or no"),
    ("line", "v1, hybrid-ep or v2"),
    ("links_nvshmem", "whether the extension was built with NVSHMEM: yes or no"),
    ("efa_patch", "whether AWS's patch for EFA is in: yes or no"),
    ("max_teams", "what buffer.py writes into NVSHMEM_MAX_TEAMS"),
    ("aggressive_ptx", "on or off, as built"),
    ("arch", "whether the extension has code for this GPU: ok or missing"),
    ("symbols", "whether NVSHMEM has the symbols the extension wants: ok or missing"),
    ("dispatcher", "deepep or hybridep"),
    ("nvshmem", "version of the NVSHMEM host library that loads"),
    ("nvshmem_device", "version of the NVSHMEM device library in the extension"),
    ("device_host", "whether both are the same: same or differ"),
    ("transport", "ibgda, efa or none"),
    ("nccl", "version of NCCL that loads, or none"),
    ("nccl_built", "version of NCCL the extension was compiled with"),
    ("cuda", "version of CUDA, as 13.0"),
    ("cuda_major", "whether NVSHMEM's wheel is for torch's CUDA: same or differ"),
    ("torch", "version of PyTorch"),
    ("sm", "architecture of the GPUs, as 90"),
    ("gdrdrv", "version of GDRCopy's module"),
    ("driver", "version of the NVIDIA driver"),
    ("roce", "whether the rails are Ethernet: yes or no"),
    ("nic", "kind of the rails: mlx5, efa or other"),
    ("libmlx5_1_25", "whether libmlx5 has the symbols of MLX5_1.25: yes or no"),
    ("rdma_core", "whether libmlx5 and libibverbs are of one build: ok or mixed"),
    ("libfabric", "version of libfabric, as 2.4.0amzn1.0"),
    ("efa_installer", "version of AWS's EFA installer in the image"),
    ("efa_module", "version of the host's efa module"),
    ("gpu", "kind of the GPUs: h100, h200, b200, b300, gb200 or gb300"),
    ("nccl_pair", "whether NCCL loads as it was compiled with: same or differ"),
    ("nvshmem_build", "wheel, or source where it was built on the spot"),
    ("rdc_guard", "whether DeepEP defines __CUDACC_RDC__ for NVSHMEM: yes or no"),
];

/// A value and where it is from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// The value.
    pub value: String,
    /// Where it is from.
    pub source: String,
}

/// What is known of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Question {
    /// By key.
    pub known: BTreeMap<String, Known>,
    /// 564 was judged by the commit alone, which a patch may have changed.
    pub commit_alone: bool,
    /// What else should be said: several copies, a false variable.
    pub notes: Vec<String>,
    /// GPU code of the extension: architecture, and whether it is PTX.
    pub archs: Vec<(u32, bool)>,
}

impl Question {
    /// Sets `key`, unless it is set by something stronger.
    pub fn set(&mut self, key: &str, value: impl Into<String>, source: impl Into<String>) {
        let known = Known { value: value.into(), source: source.into() };
        self.known.entry(key.to_owned()).or_insert(known);
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.known.get(key).map(|known| known.value.as_str())
    }

    /// From `key=value,key=value`.
    ///
    /// # Errors
    /// A key that is not known, or an entry without `=`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut question = Self::default();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (key, value) = entry.split_once('=').ok_or_else(|| format!("`{entry}` is not KEY=VALUE"))?;
            if !KEYS.iter().any(|(known, _)| *known == key) {
                let keys: Vec<&str> = KEYS.iter().map(|(key, _)| *key).collect();
                return Err(format!("`{key}` is no key; there are {}", keys.join(", ")));
            }
            let value = value.trim();
            if let Some(wanted) = misfit(key, value) {
                return Err(format!("`{entry}`: {key} takes {wanted}"));
            }
            if question.get(key).is_some_and(|other| other != value) {
                return Err(format!("`{key}` is given twice, and differently"));
            }
            question.set(key, value, "given");
        }
        question.derive();
        Ok(question)
    }

    /// From what was read of a node or an image.
    pub fn of(userspace: &Userspace, facts: Option<&Facts>, transport: Option<Transport>) -> Self {
        let mut question = Self::default();
        question.libraries(userspace);
        question.deep_ep(userspace);
        if let Some(facts) = facts {
            question.node(facts);
        }
        question.set_transport(transport);
        question.derive();
        question
    }

    /// Takes in weaker knowledge: what is known already stays, but for a 564 that was judged by the commit alone where `other` saw the code.
    pub fn merge(&mut self, other: Self) {
        if self.commit_alone && !other.commit_alone && other.known.contains_key("564") {
            self.known.remove("564");
            self.commit_alone = false;
        }
        for (key, known) in other.known {
            if key == "564" && other.commit_alone && !self.known.contains_key("564") {
                self.commit_alone = true;
            }
            self.known.entry(key).or_insert(known);
        }
        self.notes.extend(other.notes);
        if self.archs.is_empty() {
            self.archs = other.archs;
        }
    }

    /// What follows from what is known by now.
    pub fn conclude(&mut self) {
        self.derive();
    }

    /// Sets the transport that the caller names, unless one is known.
    pub fn set_transport(&mut self, transport: Option<Transport>) {
        if let Some(transport) = transport {
            self.set("transport", transport.name(), "--transport");
        }
    }

    fn libraries(&mut self, userspace: &Userspace) {
        for library in &userspace.libraries {
            let key = match library.name.as_str() {
                "libnvshmem_host.so.3" => "nvshmem",
                "libnccl.so.2" => "nccl",
                "libmlx5.so.1" => {
                    self.rdma_core(library);
                    continue;
                }
                _ => continue,
            };
            if let Some(chosen) = library.chosen.value().filter(|_| key == "nvshmem")
                && chosen.path.contains("/nvidia/nvshmem/lib/")
            {
                self.set("nvshmem_build", "wheel", chosen.path.clone());
            }
            if let Some(chosen) = library.chosen.value()
                && let Some(version) = &chosen.version
            {
                self.set(
                    key,
                    version.text.clone(),
                    format!("{} ({}; {})", chosen.path, version.how, library.how),
                );
            }
            let versions: Vec<String> = library
                .copies
                .iter()
                .map(|copy| {
                    format!(
                        "{} {}",
                        copy.version.as_ref().map_or("of unknown version", |v| v.text.as_str()),
                        copy.path
                    )
                })
                .collect();
            if versions.len() > 1 {
                self.notes.push(format!(
                    "{} copies of {}: {}",
                    versions.len(),
                    library.name,
                    versions.join("; ")
                ));
            }
        }
        if let Some(torch) = userspace.wheel("torch") {
            self.set("torch", torch.version.clone(), torch.path.clone());
        }
        if let Some(cuda) = userspace.cuda() {
            self.set("cuda", cuda.version, cuda.path);
        }
        if let Some(version) = userspace.efa_installer.value() {
            self.set("efa_installer", version.clone(), userspace.efa_installer.source.clone());
        }
        for wheel in userspace.wheels.value().into_iter().flatten() {
            for open in wheel
                .requires
                .iter()
                .filter(|line| line.contains("nvshmem") && line.contains(">=") && !line.contains('<'))
            {
                self.notes.push(format!("{} {} requires `{open}` without an upper bound: the next install may bring a version it does not serve", wheel.name, wheel.version));
            }
        }
        let major = userspace.wheel("nvidia-nvshmem-cu").and_then(|wheel| {
            Some((wheel.name.strip_prefix("nvidia-nvshmem-cu")?.to_owned(), wheel.path.clone()))
        });
        let cuda = self.get("cuda").and_then(|cuda| cuda.split('.').next()).map(str::to_owned);
        if let (Some((major, path)), Some(cuda)) = (major, cuda) {
            self.set("cuda_major", if major == cuda { "same" } else { "differ" }, path);
        }
    }

    /// What the versions of its symbols tell of the libmlx5 that loads.
    fn rdma_core(&mut self, library: &LoadedLibrary) {
        let Some(chosen) = library.chosen.value().filter(|_| !library.symbol_versions.is_empty()) else {
            return;
        };
        let new = library.symbol_versions.iter().any(|version| version == "MLX5_1.25");
        self.set("libmlx5_1_25", if new { "yes" } else { "no" }, chosen.path.clone());
        if library.unmet.is_empty() {
            self.set("rdma_core", "ok", chosen.path.clone());
        } else {
            self.set("rdma_core", "mixed", format!("{} wants {}", chosen.path, library.unmet.join(", ")));
        }
    }

    fn deep_ep(&mut self, userspace: &Userspace) {
        let Some(found) = userspace.deep_ep.first() else {
            self.notes.push(
                "no DeepEP was found there: a verdict over the other libraries says nothing of it".to_owned(),
            );
            return;
        };
        if userspace.deep_ep.len() > 1 {
            let paths: Vec<&str> = userspace.deep_ep.iter().map(|found| found.path.as_str()).collect();
            self.notes.push(format!(
                "{} installs of DeepEP: {}; the first is judged",
                paths.len(),
                paths.join(", ")
            ));
        }
        let source = found.path.as_str();
        let word = |flag: bool| if flag { "yes" } else { "no" };
        if let Some(version) = &found.version {
            self.set("deep_ep", version.clone(), source);
        }
        if let Some(commit) = &found.commit {
            self.set("commit", commit.clone(), source);
        }
        if let Some(line) = &found.line {
            self.set("line", line.clone(), source);
        }
        let extension = found.extension.as_deref().unwrap_or(source);
        if let Some(links) = found.links_nvshmem {
            self.set("links_nvshmem", word(links), extension);
        }
        if let Some(version) = &found.nvshmem_device {
            self.set("nvshmem_device", version.clone(), extension);
        }
        if let Some(teams) = found.max_teams {
            self.set("max_teams", teams.to_string(), format!("{source}/buffer.py"));
        }
        if let Some(off) = found.aggressive_ptx_disabled {
            self.set("aggressive_ptx", if off { "off" } else { "on" }, source);
        }
        if let Some(patch) = found.efa_patch {
            self.set("efa_patch", word(patch), source);
        }
        if let Some(guard) = found.rdc_guard {
            self.set("rdc_guard", word(guard), source);
        }
        if let Some(best) = found.indexing.iter().min_by_key(|evidence| strength(&evidence.kind)) {
            self.set("564", word(best.patched), best.evidence.clone());
        }
        if !found.missing_symbols.is_empty() {
            self.set("symbols", "missing", format!("{extension} wants {}", found.missing_symbols.join(", ")));
        }
        if !found.archs.is_empty() {
            self.archs = found.archs.iter().map(|arch| (arch.sm, arch.ptx)).collect();
        }
    }

    fn node(&mut self, facts: &Facts) {
        if let Some(gpu) = facts.nvml.value().and_then(|nvml| nvml.gpus.first())
            && let Some((major, minor)) = gpu.compute
        {
            self.set("sm", format!("{major}{minor}"), "NVML");
        }
        // Without NVML the PCI ids of the GPUs that the documents speak of.
        if let Some(id) = facts.pci.gpus().first().and_then(|gpu| gpu.device.as_deref()) {
            let known = match id {
                "0x2330" | "0x2331" => Some(("h100", "90")),
                "0x2335" => Some(("h200", "90")),
                "0x2901" => Some(("b200", "100")),
                "0x2941" => Some(("gb200", "100")),
                "0x3182" => Some(("b300", "103")),
                "0x31c2" => Some(("gb300", "103")),
                _ => None,
            };
            if let Some((gpu, sm)) = known {
                self.set("gpu", gpu, format!("PCI id {id}"));
                self.set("sm", sm, format!("PCI id {id}"));
            }
        }
        if let Some(version) = facts.driver.efa_version.value() {
            self.set("efa_module", version.clone(), facts.driver.efa_version.source.clone());
        }
        if let Some(version) = facts.driver.version.value() {
            self.set("driver", version.version.clone(), facts.driver.version.source.clone());
        }
        if let Some(version) = facts.driver.gdrdrv_version.value() {
            self.set("gdrdrv", version.clone(), facts.driver.gdrdrv_version.source.clone());
        }
        let topology = crate::topo::map(facts);
        let rails: Vec<_> = topology.with(crate::topo::Role::Rail).collect();
        if let Some(rail) = rails.first() {
            let driver = facts
                .rdma
                .value()
                .into_iter()
                .flatten()
                .find(|device| device.name == rail.name)
                .and_then(|device| device.driver.as_deref());
            let nic = match driver {
                Some("mlx5_core") | None if !rail.efa => "mlx5",
                _ if rail.efa => "efa",
                _ => "other",
            };
            self.set("nic", nic, format!("rail {}", rail.name));
            self.set(
                "roce",
                if !rail.efa && !rail.infiniband { "yes" } else { "no" },
                format!("rail {}", rail.name),
            );
        }
        if let Some(variables) = facts.environment.variables.value()
            && let Some(claimed) = variables.get("NVSHMEM_VERSION")
            && let Some(loaded) = self.get("nvshmem")
            && compare(claimed, loaded).is_ne()
        {
            self.notes.push(format!("the variable NVSHMEM_VERSION says {claimed}, the library that loads says {loaded}; the library counts"));
        }
    }

    /// What follows from what is known.
    fn derive(&mut self) {
        if let Some(version) = self.get("deep_ep").map(str::to_owned)
            && let Some((_, local)) = version.split_once('+')
        {
            self.set("commit", local, "version of deep_ep");
        }
        let matrix = matrix();
        let commit = self.get("commit").and_then(|commit| commit.get(..7)).map(str::to_owned);
        if let Some((short, known)) = commit.as_deref().and_then(|short| matrix.commits.get_key_value(short))
        {
            if let Some(known) = self.known.get_mut("commit") {
                known.value.clone_from(short);
            }
            self.set("line", known.line.clone(), format!("commit {short} ({})", known.note));
            if !self.known.contains_key("564") {
                self.commit_alone = true;
                self.set(
                    "564",
                    if known.patched { "yes" } else { "no" },
                    format!("commit {short} alone ({})", known.note),
                );
            }
        }
        if let (Some(device), Some(host)) = (self.get("nvshmem_device"), self.get("nvshmem")) {
            let word = if compare(device, host).is_eq() { "same" } else { "differ" };
            self.set("device_host", word, "device code of the extension against the library that loads");
        }
        if let (Some(built), Some(loaded)) =
            (self.get("nccl_built"), self.get("nccl").filter(|nccl| *nccl != "none"))
        {
            let word = if compare(built, loaded).is_eq() { "same" } else { "differ" };
            self.set("nccl_pair", word, "NCCL of the extension against the library that loads");
        }
        if let Some(sm) = self.get("sm").and_then(|sm| sm.parse::<u32>().ok())
            && !self.archs.is_empty()
        {
            // Code for another minor, and PTX, may be of a kind that runs on its own GPU only (sm_100a, compute_90a), which the file does
            // not tell: those are neither good nor bad.
            let may = self.archs.iter().any(|&(arch, ptx)| arch <= sm && (ptx || arch / 10 == sm / 10));
            let runs = self.archs.contains(&(sm, false));
            let list: Vec<String> = self
                .archs
                .iter()
                .map(|(arch, ptx)| format!("{}_{arch}", if *ptx { "compute" } else { "sm" }))
                .collect();
            let source = format!("the extension has {}, the GPU is sm_{sm}", list.join(", "));
            if runs || !may {
                self.set("arch", if runs { "ok" } else { "missing" }, source);
            } else {
                self.notes.push(format!("{source}: whether that code runs there cannot be told"));
            }
        }
        match self.get("nic") {
            Some("efa") => self.set("transport", "efa", "the rails are EFA"),
            Some("mlx5") => self.set("transport", "ibgda", "the rails are mlx5 devices"),
            _ => {}
        }
    }
}

/// What `key` takes, where `value` is no such thing.
fn misfit(key: &str, value: &str) -> Option<String> {
    let choices: &[&str] = match key {
        "564" | "181" | "630" | "links_nvshmem" | "efa_patch" | "roce" | "libmlx5_1_25" | "rdc_guard" => {
            &["yes", "no"]
        }
        "transport" => &["ibgda", "efa", "none"],
        "line" => &["v1", "hybrid-ep", "v2"],
        "aggressive_ptx" => &["on", "off"],
        "arch" | "symbols" => &["ok", "missing"],
        "dispatcher" => &["deepep", "hybridep"],
        "device_host" | "cuda_major" | "nccl_pair" => &["same", "differ"],
        "nic" => &["mlx5", "efa", "other"],
        "rdma_core" => &["ok", "mixed"],
        "gpu" => &["h100", "h200", "b200", "b300", "gb200", "gb300"],
        "nvshmem_build" => &["wheel", "source"],
        _ => &[],
    };
    if !choices.is_empty() {
        return (!choices.contains(&value)).then(|| choices.join(" or "));
    }
    let number = value.trim_start_matches('v').starts_with(|c: char| c.is_ascii_digit());
    match key {
        "nccl" if value == "none" => None,
        "commit" => {
            let hex = value.len() >= 7 && value.bytes().all(|c| c.is_ascii_hexdigit());
            (!hex).then(|| "seven or more digits of a commit".to_owned())
        }
        "sm" | "max_teams" => value.parse::<u32>().is_err().then(|| "a number".to_owned()),
        _ => (!number).then(|| "a version, as 3.4.5".to_owned()),
    }
}

/// Evidence of pull request 564, strongest first.
fn strength(kind: &str) -> u8 {
    match kind {
        "source" => 0,
        "device-code" => 1,
        "build-record" => 2,
        _ => 3,
    }
}

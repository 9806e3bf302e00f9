//! What every judgement of a cluster shares: who backs which node, and the commands that mend.

use std::collections::BTreeMap;

use super::Options;
use super::client::{Client, Refusal, clean, quoted};
use super::gather::{Cluster, DRIVER_LABELS};
use super::objects::{ConfigMap, DriverResource, Node, Pod};
use crate::causes::{self, CauseEntry};
use crate::check::Target;
use crate::facts::{RegistryDwords, Scope};
use crate::finding::{Finding, Remedy};

/// The `ConfigMap` that the guide creates, where the resource names none.
pub(super) const DEFAULT_CONFIG: &str = "nvidia-kernel-params";
/// The key in it that the driver container reads.
pub(super) const CONFIG_KEY: &str = "nvidia.conf";
/// GDRCopy's container as the guide has it.
const GDRCOPY: [(&str, &str); 3] =
    [("repository", "nvcr.io/nvidia/cloud-native"), ("image", "gdrdrv"), ("version", "v2.5.1")];

/// A cause of another part of this crate. That every id used here exists is tested.
pub(super) fn cause(id: &str) -> &'static CauseEntry {
    const NONE: CauseEntry = CauseEntry { id: "unknown", title: "unknown", text: "" };
    causes::get(id).unwrap_or(&NONE)
}

/// A cluster to be judged.
pub(super) struct Judge<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) client: &'a Client<'a>,
    pub(super) options: &'a Options,
    /// Seconds since 1970.
    pub(super) now: u64,
    /// Driver pods by the node they are on: a list of 1,000 is not searched 1,000 times.
    by_node: BTreeMap<&'a str, &'a Pod>,
    /// Nodes by name.
    nodes: BTreeMap<&'a str, &'a Node>,
}

impl<'a> Judge<'a> {
    /// A judge of `cluster`.
    pub(super) fn new(cluster: &'a Cluster, client: &'a Client<'a>, options: &'a Options, now: u64) -> Self {
        let pods = cluster.pods.iter().flatten();
        let by_node = pods.filter_map(|pod| Some((pod.node.as_deref()?, pod))).collect();
        let nodes = cluster.nodes.iter().flatten().map(|node| (node.name.as_str(), node)).collect();
        Self { cluster, client, options, now, by_node, nodes }
    }

    /// A finding of check `id`, with its title, seen by `kubectl WHAT`.
    #[allow(clippy::unused_self)] // reads as what it is at every use
    pub(super) fn finding(&self, id: &str, what: &str) -> Finding {
        super::titled(id).at(format!("kubectl {what}"), Scope::Unknown)
    }

    /// Name space of the driver.
    pub(super) fn namespace(&self) -> &'a str {
        &self.options.driver_namespace
    }

    /// Whether the target needs both driver keys.
    pub(super) fn wants_keys(&self) -> bool {
        self.options.target == Target::DeepepIbgda
    }

    /// Whether the target needs GDRCopy and `nvidia_peermem` loaded.
    pub(super) fn wants_modules(&self) -> bool {
        self.options.target == Target::DeepepIbgda
    }

    /// Nodes with GPUs, those with driver pods included.
    pub(super) fn gpu_nodes(&self) -> Result<Vec<&'a Node>, &'a Refusal> {
        let nodes = self.cluster.nodes.as_ref()?;
        let has_driver = |node: &Node| self.by_node.contains_key(node.name.as_str());
        Ok(nodes.iter().filter(|node| node.has_gpus() || has_driver(node)).collect())
    }

    /// Driver pods, as far as they could be listed.
    pub(super) fn pods(&self) -> &'a [Pod] {
        self.cluster.pods.as_ref().map_or(&[], Vec::as_slice)
    }

    /// The node of that name.
    pub(super) fn node(&self, name: &str) -> Option<&'a Node> {
        self.nodes.get(name).copied()
    }

    /// The driver pod on a node.
    pub(super) fn pod_on(&self, node: &str) -> Option<&'a Pod> {
        self.by_node.get(node).copied()
    }

    /// Resources that install drivers: `NVIDIADriver` resources, and a `ClusterPolicy` that does not leave drivers to them.
    pub(super) fn resources(&self) -> Vec<&'a DriverResource> {
        let policies = self.cluster.policies.iter().flatten().filter(|one| one.installs && !one.delegates);
        self.cluster.drivers.iter().flatten().chain(policies).collect()
    }

    /// Whether drivers are the operator's.
    pub(super) fn operator(&self) -> bool {
        !self.pods().is_empty() || !self.resources().is_empty()
    }

    /// Why the resources may be incomplete: what could not be listed.
    pub(super) fn resources_refused(&self) -> Option<&'a Refusal> {
        let refused = [self.cluster.drivers.as_ref().err(), self.cluster.policies.as_ref().err()];
        refused.into_iter().flatten().find(|refusal| !refusal.absent())
    }

    /// Resources for `node`: by its driver pod's `DaemonSet` where that tells, else by their selectors. None for one that brings
    /// its driver: no resource's `DaemonSet` puts a pod there.
    pub(super) fn backing(&self, node: &Node) -> Vec<&'a DriverResource> {
        let pod = self.by_node.get(node.name.as_str());
        if let Some(resource) = pod.and_then(|pod| self.maker(pod)) {
            return vec![resource];
        }
        if pod.is_none() && node.brings_driver() {
            return Vec::new();
        }
        self.resources().into_iter().filter(|resource| resource.selects(node)).collect()
    }

    /// The resource that a driver pod was made for.
    pub(super) fn maker(&self, pod: &Pod) -> Option<&'a DriverResource> {
        let set = pod.daemonset.as_deref()?;
        let sets = self.cluster.daemonsets.as_ref().ok()?;
        let owner = sets
            .iter()
            .find(|one| one.namespace == self.namespace() && one.name == set)?
            .driver
            .as_deref()?;
        self.resources().into_iter().find(|resource| !resource.policy && resource.name == owner)
    }

    /// The resource of a pod: its maker, or the only one there is, or the only one that selects its node.
    pub(super) fn resource_of(&self, pod: &Pod) -> Option<&'a DriverResource> {
        if let Some(resource) = self.maker(pod) {
            return Some(resource);
        }
        let node = pod.node.as_deref().and_then(|name| self.node(name));
        let all: Vec<_> = match node {
            Some(node) => self.resources().into_iter().filter(|one| one.selects(node)).collect(),
            None => self.resources(),
        };
        match all.as_slice() {
            [one] => Some(one),
            _ => None,
        }
    }

    /// Resources that back a node with GPUs. Where nodes cannot be listed, all that are not known to be idle.
    pub(super) fn in_use(&self) -> Vec<&'a DriverResource> {
        let Ok(nodes) = self.gpu_nodes() else { return self.resources() };
        let backing: Vec<&DriverResource> = nodes.iter().flat_map(|node| self.backing(node)).collect();
        let used = |one: &&DriverResource| backing.iter().any(|other| std::ptr::eq(*one, *other));
        self.resources().into_iter().filter(used).collect()
    }

    /// The text of the `ConfigMap` that both keys need: what is in it now stays, as far as the driver container can use it.
    pub(super) fn config_steps(&self, name: &str, now: Option<&ConfigMap>) -> Vec<String> {
        let text = now.and_then(|config| config.data.get(CONFIG_KEY)).map_or("", String::as_str);
        let (mut lines, left) = kept(text);
        let dwords = lines.iter().rev().find_map(|line| match line {
            Line::Parameter(key, value) if key == "NVreg_RegistryDwords" => Some(value.clone()),
            _ => None,
        });
        let ours = ["NVreg_EnableStreamMemOPs", "NVreg_RegistryDwords"];
        lines.retain(|line| !matches!(line, Line::Parameter(key, _) if ours.contains(&key.as_str())));
        let mut lines: Vec<String> = lines.iter().map(Line::text).collect();
        lines.push("NVreg_EnableStreamMemOPs=1".to_owned());
        let dwords = RegistryDwords::with_peer_mapping(&dwords.unwrap_or_default());
        lines.push(format!("NVreg_RegistryDwords=\"{dwords}\""));
        let lines: Vec<String> = lines.iter().map(|line| quoted(line)).collect();
        let note = match left.as_slice() {
            [] => String::new(),
            left => format!("      # without what is no parameter of nvidia: {}", some(left)),
        };
        let (namespace, name) = (quoted(self.namespace()), quoted(name));
        let create = format!(
            "-n {namespace} create configmap {name} --from-file={CONFIG_KEY} --dry-run=client -o yaml"
        );
        vec![
            format!("printf '%s\\n' {} > {CONFIG_KEY}{note}", lines.join(" ")),
            format!("{} | {}", self.client.typed(&create), self.client.typed("apply -f -")),
        ]
    }

    /// The single merge patch that turns on all three settings: what the resource names already is kept.
    pub(super) fn patch(&self, resource: &DriverResource) -> String {
        let now = &resource.gdrcopy;
        let current = [&now.repository, &now.image, &now.version];
        let mut gdrcopy = serde_json::Map::from_iter([("enabled".to_owned(), true.into())]);
        for ((key, fallback), value) in GDRCOPY.into_iter().zip(current) {
            let old =
                key == "version" && value.as_deref().is_some_and(|value| old_gdrcopy(value) == Some(true));
            let value = value.as_deref().filter(|value| !value.is_empty() && !old).unwrap_or(fallback);
            gdrcopy.insert(key.to_owned(), value.into());
        }
        let config = resource.config.as_deref().unwrap_or(DEFAULT_CONFIG);
        let driver = serde_json::json!({"kernelModuleConfig": {"name": config}, "rdma": {"enabled": true}});
        let spec = if resource.policy {
            serde_json::json!({"spec": {"driver": driver, "gdrcopy": gdrcopy}})
        } else {
            serde_json::json!({"spec": {"gdrcopy": gdrcopy, "kernelModuleConfig": driver["kernelModuleConfig"], "rdma": driver["rdma"]}})
        };
        let kind = if resource.policy { "clusterpolicy" } else { "nvidiadriver" };
        self.client.typed(&format!(
            "patch {kind} {} --type=merge -p {}",
            quoted(&resource.name),
            quoted(&spec.to_string())
        ))
    }

    /// Labels that select all driver pods there are: the newer one where that does, or none were found.
    fn labels(&self) -> Vec<&'static str> {
        let carried = |label: &&str| self.pods().iter().any(|pod| pod.label == Some(*label));
        let found: Vec<&str> = DRIVER_LABELS.into_iter().filter(carried).collect();
        if found.is_empty() { DRIVER_LABELS.into_iter().take(1).collect() } else { found }
    }

    /// The first of them.
    pub(super) fn label(&self) -> &'static str {
        self.labels().first().copied().unwrap_or_default()
    }

    /// Recycles all driver pods, or those named.
    pub(super) fn recycle(&self, pods: &[&str]) -> String {
        let namespace = quoted(self.namespace());
        if pods.is_empty() {
            let delete = |label: &str| self.client.typed(&format!("-n {namespace} delete pod -l {label}"));
            let all: Vec<String> = self.labels().into_iter().map(delete).collect();
            format!("{}      # only while no GPU workload runs on these nodes", all.join("; "))
        } else {
            let names: Vec<String> = pods.iter().map(|pod| quoted(pod)).collect();
            self.client.typed(&format!(
                "-n {namespace} delete pod {}      # only while no GPU workload runs on the node",
                names.join(" ")
            ))
        }
    }

    /// The whole way: `ConfigMap`, patch, recycle.
    pub(super) fn whole_way(&self, resource: &DriverResource) -> Remedy {
        let name = resource.config.as_deref().unwrap_or(DEFAULT_CONFIG);
        let config = self.cluster.configs.get(name);
        let right = config.and_then(|look| look.as_ref().ok()).is_some_and(|config| {
            config.data.get(CONFIG_KEY).is_some_and(|text| Parameters::read(text).wrong().is_empty())
        });
        let mut steps = Vec::new();
        if !right {
            steps.extend(self.config_steps(name, config.and_then(|look| look.as_ref().ok())));
        }
        steps.push(self.patch(resource));
        steps.push(self.recycle(&[]));
        steps.push(self.again("after 60 to 90 s: pods 3/3, params=2/2 modules=2/2"));
        Remedy {
            manager: None,
            text: "One single merge patch with all three settings, then recycle the driver pods: a running pod keeps its old configuration.".to_owned(),
            steps,
        }
    }

    /// This check once more.
    pub(super) fn again(&self, note: &str) -> String {
        let target = self.options.target;
        let context = self
            .options
            .context
            .as_ref()
            .map(|name| format!(" --context {}", quoted(name)))
            .unwrap_or_default();
        let file = self.client.kubeconfig();
        let usual = Options::default().driver_namespace == self.options.driver_namespace;
        let namespace =
            if usual { String::new() } else { format!(" --driver-namespace {}", quoted(self.namespace())) };
        format!("expertrail check --kube{file}{context}{namespace} --for {target}      # {note}")
    }
}

/// Why a driver pod is recycled: one text, so that the findings which it mends share one remedy.
pub(super) const RECYCLE: &str = "Recycle the driver pod: the driver reads its configuration when it loads. While it restarts nothing on the node can use GPUs.";

/// The reason why something is not known.
pub(super) fn reason(refusal: &Refusal) -> String {
    format!("not known: {}", refusal.message)
}

/// Names for a person: the first few and how many more.
pub(super) fn some<T: AsRef<str>>(names: &[T]) -> String {
    const SHOWN: usize = 4;
    let shown: Vec<&str> = names.iter().take(SHOWN).map(AsRef::as_ref).collect();
    let more = names.len().saturating_sub(SHOWN);
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}

/// Whether a version of GDRCopy is older than 2.5, the oldest that the documents accept; none where it is no version.
pub(super) fn old_gdrcopy(version: &str) -> Option<bool> {
    let mut numbers = version.trim_start_matches('v').split(['.', '-']).map(|part| part.parse::<u32>().ok());
    Some((numbers.next()??, numbers.next()??) < (2, 5))
}

/// A line of a driver configuration that is written again.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    Comment(String),
    Parameter(String, String),
}

impl Line {
    fn text(&self) -> String {
        match self {
            Self::Comment(text) => clean(text),
            // Whole, however long: a value that is cut is another value.
            Self::Parameter(key, value) if value.contains([' ', ';', '=']) => format!("{key}=\"{value}\""),
            Self::Parameter(key, value) => format!("{key}={value}"),
        }
    }
}

/// What of a driver configuration stays: comments, parameters, and those of lines `options nvidia`, as parameters; and what does
/// not.
fn kept(text: &str) -> (Vec<Line>, Vec<String>) {
    let (mut lines, mut left) = (Vec::new(), Vec::new());
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.starts_with('#') {
            lines.push(Line::Comment(line.to_owned()));
            continue;
        }
        let mut found = Parameters::read(line).entries;
        if found.is_empty() {
            let options = crate::collect::modprobe(line, CONFIG_KEY).into_iter();
            found.extend(options.filter(|one| one.module == "nvidia").map(|one| (one.key, one.value)));
        }
        found.retain(|(_, value)| !value.is_empty());
        if found.is_empty() {
            left.push(clean(line));
        }
        lines.extend(found.into_iter().map(|(key, value)| Line::Parameter(key, value)));
    }
    (lines, left)
}

/// The lines of a driver configuration: parameters, and lines that do not belong there.
#[derive(Clone, Debug, Default)]
pub(super) struct Parameters {
    /// In order; quotes removed.
    pub(super) entries: Vec<(String, String)>,
    /// Lines in the form of modprobe files: the operator wants the parameters alone.
    pub(super) prefixed: Vec<String>,
    /// Lines that are no parameters.
    pub(super) strange: Vec<String>,
}

impl Parameters {
    /// Takes a text apart.
    pub(super) fn read(text: &str) -> Self {
        let mut all = Self::default();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut words = line.split_whitespace();
            if words.next() == Some("options") {
                all.prefixed.push(clean(line));
                continue;
            }
            match line.split_once('=') {
                Some((key, value)) if key.starts_with("NVreg_") && !key.contains(char::is_whitespace) => {
                    let value = value.trim();
                    let bare =
                        value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value);
                    all.entries.push((key.to_owned(), bare.to_owned()));
                }
                _ => all.strange.push(clean(line)),
            }
        }
        all
    }

    /// The last value of a parameter.
    fn value(&self, key: &str) -> Option<&str> {
        self.entries.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Which of the two keys are missing or have another value.
    pub(super) fn wrong(&self) -> Vec<&'static str> {
        let stream =
            self.value("NVreg_EnableStreamMemOPs").and_then(|value| value.parse::<u64>().ok()) == Some(1);
        let peer = self
            .value("NVreg_RegistryDwords")
            .is_some_and(|value| RegistryDwords::parse(value).number("PeerMappingOverride") == Some(1));
        [(stream, "NVreg_EnableStreamMemOPs=1"), (peer, "NVreg_RegistryDwords=\"PeerMappingOverride=1;\"")]
            .into_iter()
            .filter(|(right, _)| !right)
            .map(|(_, key)| key)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_configuration() {
        let right = Parameters::read(
            "# ours\nNVreg_EnableStreamMemOPs=1\nNVreg_RegistryDwords=\"RMX=0;PeerMappingOverride=1;\"\n\n",
        );
        assert!(right.wrong().is_empty() && right.prefixed.is_empty() && right.strange.is_empty());
        let half = Parameters::read(
            "NVreg_EnableStreamMemOPs=10\nNVreg_RegistryDwords=PeerMappingOverride=1\nNVreg_X\n",
        );
        assert_eq!(half.wrong(), ["NVreg_EnableStreamMemOPs=1"]);
        assert_eq!(half.strange, ["NVreg_X"]);
        let modprobe = Parameters::read("options nvidia NVreg_EnableStreamMemOPs=1\n");
        assert_eq!(modprobe.prefixed.len(), 1);
        assert_eq!(modprobe.wrong().len(), 2);
    }

    #[test]
    fn lines_that_stay() {
        let text = "# site, 2025\noptions nvidia NVreg_NvLinkDisable=0 NVreg_RegistryDwords=\"RMX=2;RMY=3\"\n\n\
                    NVreg_OpenRmEnableUnsupportedGpus=1\noptions nvidia-drm modeset=1\nblacklist nouveau\n";
        let (lines, left) = kept(text);
        let lines: Vec<String> = lines.iter().map(Line::text).collect();
        assert_eq!(
            lines,
            [
                "# site, 2025",
                "NVreg_NvLinkDisable=0",
                "NVreg_RegistryDwords=\"RMX=2;RMY=3\"",
                "NVreg_OpenRmEnableUnsupportedGpus=1"
            ]
        );
        assert_eq!(left, ["options nvidia-drm modeset=1", "blacklist nouveau"]);
        // A long value is not cut.
        let long = format!("NVreg_RegistryDwords=\"{}\"", "RMX=1;".repeat(200));
        assert_eq!(kept(&long).0.iter().map(Line::text).collect::<Vec<_>>(), [long]);
    }

    #[test]
    fn versions_of_gdrcopy() {
        assert_eq!(old_gdrcopy("v2.5.1"), Some(false));
        assert_eq!(old_gdrcopy("v2.4.4"), Some(true));
        assert_eq!(old_gdrcopy("2.10-ubuntu22.04"), Some(false));
        assert_eq!(old_gdrcopy("latest"), None);
    }

    #[test]
    fn names_for_a_person() {
        assert_eq!(some(&["a", "b"]), "a, b");
        assert_eq!(some(&["a", "b", "c", "d", "e", "f"]), "a, b, c, d and 2 more");
    }
}

//! Python packages: distributions and DeepEP.

use std::path::Path;

use super::binary;
use super::indexing::{parse_indexing, parse_rdc_guard};
use crate::facts::{DeepEp, QpIndexing, Wheel};
use crate::root::Root;

/// A folder of Python packages, and how to show it.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    pub(super) root: Root,
    pub(super) path: String,
    /// What stands before a path of `root` when it is shown.
    pub(super) prefix: String,
}

impl Folder {
    /// A folder that the user named, outside of any root.
    pub(super) fn named(path: &Path) -> Self {
        let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        Self {
            prefix: whole.to_string_lossy().into_owned(),
            root: Root::captured(whole),
            path: String::new(),
        }
    }

    pub(super) fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    pub(super) fn shown(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }
}

/// Distributions that matter here.
fn matters(name: &str) -> bool {
    ["nvidia-nvshmem", "nvidia-nccl", "nvidia-cuda-runtime", "deep-ep"]
        .iter()
        .any(|start| name.starts_with(start))
        || name == "torch"
}

/// Distributions of a folder: those whose `*.dist-info` or `*.egg-info` names them.
pub(super) fn wheels(folder: &Folder) -> Vec<Wheel> {
    let names = folder.root.list(&folder.path);
    let infos = names.value().into_iter().flatten();
    if folder.path.strip_suffix(".egg").is_some() {
        return infos.filter(|name| *name == "EGG-INFO").map(|name| wheel(folder, name)).collect();
    }
    infos
        .filter(|name| name.strip_suffix(".dist-info").or_else(|| name.strip_suffix(".egg-info")).is_some())
        .filter(|name| matters(&normal(name.split('-').next().unwrap_or(name))))
        .map(|name| wheel(folder, name))
        .collect()
}

/// Folders outside of `folder` that it names as places of packages, as far as they hold `DeepEP`: eggs of `setup.py install`, and the source
/// trees of editable installs (`*.pth`, `direct_url.json`).
pub(super) fn elsewhere(folder: &Folder) -> Vec<Folder> {
    let names = folder.root.list(&folder.path);
    let mut paths: Vec<String> = Vec::new();
    for name in names.value().into_iter().flatten().take(16384) {
        let path = folder.at(name);
        if name.strip_suffix(".egg").is_some() {
            paths.push(path);
        } else if name.strip_suffix(".pth").is_some() {
            let text = folder.root.text(&path);
            let lines = text.value().map_or("", String::as_str).lines().take(64).map(str::trim);
            paths.extend(lines.filter_map(|line| match line.strip_prefix("./") {
                Some(inside) => Some(folder.at(inside)),
                None => line.starts_with('/').then(|| line.to_owned()),
            }));
        } else if name.starts_with("deep_ep") && name.strip_suffix(".dist-info").is_some() {
            let text = folder.root.text(&format!("{path}/direct_url.json"));
            let url = text.value().and_then(|text| parse_origin(text));
            paths.extend(url.and_then(|url| url.strip_prefix("file://").map(str::to_owned)));
        }
    }
    paths.sort_unstable();
    paths.dedup();
    paths
        .into_iter()
        .take(64)
        .map(|path| Folder { root: folder.root.clone(), path, prefix: folder.prefix.clone() })
        .filter(|place| {
            let names = folder.root.list(&place.path);
            names.value().is_some_and(|all| {
                all.iter().any(|name| name == "deep_ep" || name.starts_with("deep_ep_cpp"))
            })
        })
        .collect()
}

/// Names of distributions are the same in any case and with `-`, `_` or `.` (PEP 503).
fn normal(name: &str) -> String {
    name.to_ascii_lowercase().replace(['_', '.'], "-")
}

fn wheel(folder: &Folder, info: &str) -> Wheel {
    let base = folder.at(info);
    let metadata = folder.root.text(&format!("{base}/METADATA"));
    let metadata =
        if metadata.value().is_some() { metadata } else { folder.root.text(&format!("{base}/PKG-INFO")) };
    let mut wheel = metadata.value().map_or_else(Wheel::default, |text| parse_metadata(text));
    if wheel.name.is_empty() {
        // Only the folder's name is there to read.
        let mut parts = info.trim_end_matches(".dist-info").trim_end_matches(".egg-info").splitn(2, '-');
        wheel.name = normal(parts.next().unwrap_or_default());
        parts.next().unwrap_or_default().clone_into(&mut wheel.version);
    }
    wheel.origin =
        folder.root.text(&format!("{base}/direct_url.json")).value().and_then(|text| parse_origin(text));
    wheel.path = folder.shown(&base);
    wheel
}

/// Name, version and what is required of NVSHMEM, NCCL and torch.
pub fn parse_metadata(text: &str) -> Wheel {
    let mut wheel = Wheel::default();
    for line in text.lines().take_while(|line| !line.trim().is_empty()) {
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        match key {
            "Name" => wheel.name = normal(value),
            "Version" => value.clone_into(&mut wheel.version),
            "Requires-Dist" if ["nvshmem", "nccl", "torch"].iter().any(|word| value.contains(word)) => {
                wheel.requires.push(value.to_owned());
            }
            _ => {}
        }
    }
    wheel
}

/// URL and commit of `direct_url.json` (PEP 610).
pub fn parse_origin(text: &str) -> Option<String> {
    let json: serde_json::Value = serde_json::from_str(text).ok()?;
    let url = json.get("url")?.as_str()?;
    let commit = json.pointer("/vcs_info/commit_id").and_then(serde_json::Value::as_str);
    Some(commit.map_or(url.to_owned(), |commit| format!("{url}@{commit}")))
}

/// The installed DeepEP of a folder.
pub(super) fn deep_ep(folder: &Folder, wheels: &[Wheel]) -> Option<DeepEp> {
    let package = folder.at("deep_ep");
    let names = folder.root.list(&folder.path);
    let inside = folder.root.list(&package);
    let extension = |list: &crate::facts::Fact<Vec<String>>, base: &str| {
        let name =
            list.value()?.iter().find(|name| name.starts_with("deep_ep_cpp") && name.contains(".so"))?;
        Some(format!("{base}/{name}"))
    };
    let extension = extension(&names, &folder.path).or_else(|| extension(&inside, &package)).or_else(|| {
        let name = inside.value()?.iter().find(|name| name.starts_with("_C") && name.contains(".so"))?;
        Some(format!("{package}/{name}"))
    });
    if inside.value().is_none() && extension.is_none() {
        return None;
    }
    let wheel = wheels.iter().find(|wheel| wheel.name == "deep-ep");
    let mut found = DeepEp {
        path: folder.shown(&package),
        version: wheel.map(|wheel| wheel.version.clone()),
        extension: extension.as_ref().map(|path| folder.shown(path)),
        ..DeepEp::default()
    };
    let version = found
        .version
        .as_deref()
        .and_then(|version| version.split_once('+'))
        .map(|(_, local)| local.to_owned());
    let origin = wheel
        .and_then(|wheel| wheel.origin.as_deref())
        .and_then(|origin| origin.rsplit_once('@'))
        .map(|(_, commit)| commit.to_owned());
    found.commit = origin.or(version).filter(|commit| is_commit(commit));
    if let Some(path) = &extension
        && let Ok(binary) = folder.root.open(path).map_err(|error| error.to_string()).and_then(binary::read)
    {
        let needs = |name: &str| binary.needed.iter().any(|needed| needed.starts_with(name));
        // Code of the library may also be linked in whole, or come from torch; then its symbols are wanted.
        found.links_nvshmem =
            Some(needs("libnvshmem") || !binary.wants.is_empty() || binary.nvshmem_device.is_some());
        found.links_nccl = Some(needs("libnccl"));
        found.nvshmem_device.clone_from(&binary.nvshmem_device);
        found.archs = binary.archs.into_iter().collect();
    }
    source_parts(folder, &package, &mut found);
    record(folder, &mut found);
    // An editable install runs from its source tree, which tells more than any record.
    if let Some(tree) = source(folder).filter(|_| folder.root.exists(&folder.at("csrc"))) {
        found.indexing.extend(tree.indexing);
        found.commit = found.commit.or(tree.commit);
        found.line = tree.line.or(found.line);
        found.efa_patch = found.efa_patch.or(tree.efa_patch);
        found.rdc_guard = found.rdc_guard.or(tree.rdc_guard);
    }
    Some(found)
}

/// A build record: `expertrail-build.json` beside the package, which whoever builds an image may leave there:
/// `{"deepep_564": true, "aggressive_ptx_disabled": false, "efa_patch": false}`.
fn record(folder: &Folder, found: &mut DeepEp) {
    let path = folder.at("deep_ep/expertrail-build.json");
    let text = folder.root.text(&path);
    let Some(json) = text.value().and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok())
    else {
        return;
    };
    let flag = |name: &str| json.get(name).and_then(serde_json::Value::as_bool);
    if let Some(patched) = flag("deepep_564") {
        let evidence = format!("{}: deepep_564 is {patched}", folder.shown(&path));
        found.indexing.push(QpIndexing { patched, kind: "build-record".to_owned(), evidence });
    }
    found.aggressive_ptx_disabled = found.aggressive_ptx_disabled.or(flag("aggressive_ptx_disabled"));
    found.efa_patch = found.efa_patch.or(flag("efa_patch"));
}

/// A source tree of DeepEP.
pub(super) fn source(folder: &Folder) -> Option<DeepEp> {
    let setup = folder.root.text(&folder.at("setup.py"));
    if setup.value().is_none() && !folder.root.exists(&folder.at("csrc")) {
        return None;
    }
    let mut found = DeepEp { path: folder.shown(&folder.path), ..DeepEp::default() };
    let head = folder.root.word(&folder.at(".git/HEAD"));
    found.commit = head.value().and_then(|head| match head.strip_prefix("ref: ") {
        None => Some(head.clone()),
        Some(name) => {
            let loose = folder.root.word(&folder.at(&format!(".git/{name}"))).value().cloned();
            loose.or_else(|| packed(folder, name))
        }
    });
    found.commit = found.commit.filter(|commit| is_commit(commit));
    source_parts(folder, &folder.at("deep_ep"), &mut found);
    let device = "csrc/kernels/ibgda_device.cuh";
    for path in [
        device,
        "csrc/legacy/ibgda_device.cuh",
        "csrc/kernels/legacy/ibgda_device.cuh",
        "deep_ep/csrc/kernels/ibgda_device.cuh",
    ] {
        let text = folder.root.text(&folder.at(path));
        let Some(text) = text.value() else { continue };
        found.efa_patch = Some(text.contains("nvshmemx_qp_"));
        let configs = folder.at(&path.replace("ibgda_device.cuh", "configs.cuh"));
        let guard = folder.root.text(&configs).value().map(|text| parse_rdc_guard(text));
        found.rdc_guard = found.rdc_guard.or(guard);
        if let Some(patched) = parse_indexing(text) {
            let seen = if patched { "pe + npes * id" } else { "pe * num_rc_per_pe" };
            let guarded = guard == Some(true);
            let half = if patched && !guarded {
                "; but configs.cuh does not define __CUDACC_RDC__ for NVSHMEM, the other half of the patch"
            } else {
                ""
            };
            let evidence = format!("{}: ibgda_get_rc has `{seen}`{half}", folder.shown(&folder.at(path)));
            found.indexing.push(QpIndexing { patched, kind: "source".to_owned(), evidence });
        }
    }
    if folder.root.exists(&folder.at("csrc/hybrid_ep"))
        || folder.root.exists(&folder.at("deep_ep/hybrid_ep_buffer.py"))
    {
        found.line = Some("hybrid-ep".to_owned());
    } else if folder.root.exists(&folder.at("csrc/elastic"))
        || folder.root.exists(&folder.at("tests/elastic"))
    {
        found.line = Some("v2".to_owned());
    } else if found.line.is_none() && folder.root.exists(&folder.at(device)) {
        found.line = Some("v1".to_owned());
    }
    Some(found)
}

/// A branch that git keeps in its list of packed ones: `COMMIT refs/heads/NAME`.
fn packed(folder: &Folder, name: &str) -> Option<String> {
    let text = folder.root.text(&folder.at(".git/packed-refs"));
    let line = text.value()?.lines().find_map(|line| line.split_once(' ').filter(|(_, of)| *of == name))?;
    Some(line.0.to_owned())
}

/// What the Python files of a package or source tell.
fn source_parts(folder: &Folder, package: &str, found: &mut DeepEp) {
    let names = folder.root.list(package);
    let has = |name: &str| names.value().is_some_and(|all| all.iter().any(|file| file == name));
    if has("hybrid_ep_buffer.py") {
        found.line = Some("hybrid-ep".to_owned());
    } else if has("buffers") || has("elastic") {
        found.line = Some("v2".to_owned());
    } else if has("buffer.py") {
        found.line = Some("v1".to_owned());
    }
    found.max_teams =
        folder.root.text(&format!("{package}/buffer.py")).value().and_then(|text| parse_max_teams(text));
}

/// The number that `buffer.py` writes into `NVSHMEM_MAX_TEAMS`.
pub fn parse_max_teams(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once("NVSHMEM_MAX_TEAMS")?;
    let digits: String =
        rest.chars().take(40).skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

fn is_commit(text: &str) -> bool {
    (7..=40).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata() {
        let wheel = parse_metadata(
            "Metadata-Version: 2.1\nName: Deep_EP\nVersion: 1.2.1+4214430\nRequires-Dist: nvidia-nvshmem-cu13>=3.4\nRequires-Dist: numpy\n\nName: no\n",
        );
        assert_eq!((wheel.name.as_str(), wheel.version.as_str()), ("deep-ep", "1.2.1+4214430"));
        assert_eq!(wheel.requires, ["nvidia-nvshmem-cu13>=3.4"]);
        let url = r#"{"url":"https://x/y.git","vcs_info":{"vcs":"git","commit_id":"567632d0"}}"#;
        assert_eq!(parse_origin(url).as_deref(), Some("https://x/y.git@567632d0"));
        assert_eq!(parse_origin("{"), None);
    }

    #[test]
    fn teams() {
        assert_eq!(parse_max_teams("os.environ['NVSHMEM_MAX_TEAMS'] = '7'\n"), Some(7));
        assert_eq!(parse_max_teams("nothing"), None);
    }
}

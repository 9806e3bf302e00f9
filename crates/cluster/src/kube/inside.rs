//! What a driver pod shows of its node's kernel: driver parameters, modules, RDMA devices. One `exec` of a small loop that only
//! reads, and one of `nvidia-smi topo -m`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::client::{Client, Look, clean, understand};
use super::matrix::Matrix;
use super::objects::{DRIVER_CONTAINER, Pod};
use crate::facts::RegistryDwords;

/// Marks where a file begins, so that one answer can carry many.
const MARK: &str = "@@expertrail ";

/// Prints files, each after its mark. A file that cannot be read has the mark only, with `-`.
const SCRIPT: &str = r#"f() { if v=$(cat "$1" 2>/dev/null); then printf '\n@@expertrail + %s\n%s\n' "$1" "$v"; else printf '\n@@expertrail - %s\n' "$1"; fi; }
f /proc/driver/nvidia/params; f /proc/driver/nvidia/version; f /proc/modules
for d in /sys/class/infiniband/*; do [ -e "$d" ] || continue; f "$d/device/numa_node"; f "$d/fw_ver"
for p in "$d"/ports/*; do for a in state rate link_layer pkeys/0; do f "$p/$a"; done; done; done
printf '\n@@expertrail . end\n'"#;

/// What the kernel of a node runs with, as its driver pod sees it.
#[derive(Clone, Debug, Default)]
pub(super) struct Inside {
    /// Parameters of the loaded driver; none where the file could not be read (no driver is loaded).
    pub(super) params: Option<BTreeMap<String, String>>,
    /// The driver's version.
    pub(super) version: Option<String>,
    /// Names and states of the loaded modules.
    pub(super) modules: Option<BTreeMap<String, String>>,
    /// RDMA devices.
    pub(super) devices: Vec<Device>,
}

/// An RDMA device of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    /// `mlx5_0`.
    pub name: String,
    /// State of its first port: `4: ACTIVE`.
    pub state: Option<String>,
    /// `400 Gb/sec (4X NDR)`.
    pub rate: Option<String>,
    /// `InfiniBand`, `Ethernet`.
    pub link_layer: Option<String>,
    /// First partition key.
    pub pkey: Option<String>,
    /// NUMA node; none where the kernel says -1.
    pub numa: Option<u32>,
    /// Firmware.
    pub firmware: Option<String>,
}

impl Device {
    /// Gb/s.
    pub(super) fn gbits(&self) -> u64 {
        let word = self.rate.as_deref().and_then(|rate| rate.split_whitespace().next());
        word.and_then(|word| word.parse::<f64>().ok())
            .filter(|rate| rate.is_finite())
            .map_or(0, |rate| rate as u64)
    }

    /// Its port carries traffic; none where it has no state.
    pub(super) fn active(&self) -> Option<bool> {
        self.state.as_deref().map(|state| state.trim_start().starts_with("4:"))
    }
}

/// Modules that the guide's step 4 counts.
pub(super) const MODULES: [&str; 2] = ["nvidia_peermem", "gdrdrv"];

impl Inside {
    /// Takes the answer of [`SCRIPT`] apart.
    fn read(text: &str) -> Result<Self, String> {
        let mut inside = Self::default();
        let mut devices: BTreeMap<String, Device> = BTreeMap::new();
        let mut complete = false;
        for part in text.split(&format!("\n{MARK}")).skip(1) {
            let (head, body) = part.split_once('\n').unwrap_or((part, ""));
            let (sign, path) = head.split_once(' ').unwrap_or((head, ""));
            complete |= sign == ".";
            let read = sign == "+";
            match path {
                "/proc/driver/nvidia/params" if read => {
                    inside.params = crate::collect::params(body).ok();
                }
                "/proc/driver/nvidia/version" if read => {
                    inside.version = crate::collect::version(body).ok().map(|version| version.version);
                }
                "/proc/modules" if read => {
                    let modules = crate::collect::parse_modules(body).into_iter();
                    inside.modules = Some(modules.map(|module| (module.name, module.state)).collect());
                }
                _ => device(&mut devices, path, read.then_some(body.trim())),
            }
        }
        inside.devices = devices.into_values().collect();
        inside.devices.sort_by_key(|a| natural(&a.name));
        if complete { Ok(inside) } else { Err("the answer is cut off".to_owned()) }
    }

    /// How many of the two driver keys are active; none where that could not be read.
    pub(super) fn keys(&self) -> Option<u8> {
        let params = self.params.as_ref()?;
        let stream = params.get("EnableStreamMemOPs").and_then(|value| value.parse::<u64>().ok()) == Some(1);
        let peer = params
            .get("RegistryDwords")
            .is_some_and(|value| RegistryDwords::parse(value).number("PeerMappingOverride") == Some(1));
        Some(u8::from(stream) + u8::from(peer))
    }

    /// The keys as they are, for a person.
    pub(super) fn keys_text(&self) -> String {
        let value = |key: &str| self.params.as_ref().and_then(|params| params.get(key)).cloned();
        let shown = |value: Option<String>| value.map_or("missing".to_owned(), |value| clean(&value));
        format!(
            "EnableStreamMemOPs: {}, RegistryDwords: \"{}\"",
            shown(value("EnableStreamMemOPs")),
            shown(value("RegistryDwords"))
        )
    }

    /// Modules of step 4 that are not loaded; none where that could not be read.
    pub(super) fn missing(&self) -> Option<Vec<&'static str>> {
        let modules = self.modules.as_ref()?;
        // A module that is loading or unloading serves nobody yet.
        let live = |name: &str| modules.get(name).is_some_and(|state| state.is_empty() || state == "Live");
        Some(MODULES.into_iter().filter(|name| !live(name)).collect())
    }
}

/// Text and numbers of a name in turn: `mlx5_10` comes after `mlx5_9`.
pub(super) fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (text, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        let (number, tail) = tail.split_at(end);
        parts.push((text.to_owned(), number.parse().unwrap_or(u64::MAX)));
        rest = tail;
    }
    parts
}

/// One value of a device, from its path.
fn device(devices: &mut BTreeMap<String, Device>, path: &str, value: Option<&str>) {
    let Some((name, file)) =
        path.strip_prefix("/sys/class/infiniband/").and_then(|rest| rest.split_once('/'))
    else {
        return;
    };
    let device = devices.entry(name.to_owned()).or_default();
    device.name = clean(name);
    let text = value.filter(|value| !value.is_empty()).map(clean);
    match file {
        "device/numa_node" => device.numa = text.and_then(|text| text.parse().ok()),
        "fw_ver" => device.firmware = text,
        _ => {
            let Some((_, file)) = file.strip_prefix("ports/").and_then(|rest| rest.split_once('/')) else {
                return;
            };
            let field = match file {
                "state" => &mut device.state,
                "rate" => &mut device.rate,
                "link_layer" => &mut device.link_layer,
                "pkeys/0" => &mut device.pkey,
                _ => return,
            };
            // A device with several ports is rare; the first speaks for it.
            if field.is_none() {
                *field = text;
            }
        }
    }
}

/// The arguments that run `command` in the driver container of `pod`.
fn exec<'a>(namespace: &'a str, pod: &'a Pod, command: &[&'a str]) -> Vec<&'a str> {
    [&["exec", "-n", namespace, &pod.name, "-c", DRIVER_CONTAINER, "--"], command].concat()
}

/// Reads parameters, modules and devices in the driver container of `pod`.
pub(super) fn look(client: &Client<'_>, namespace: &str, pod: &Pod) -> Look<Inside> {
    let output = client.raw(&exec(namespace, pod, &["sh", "-c", SCRIPT]))?;
    if output.code != Some(0) {
        return Err(understand(&output));
    }
    Inside::read(&String::from_utf8_lossy(&output.stdout)).map_err(|reason| garbage(&reason))
}

/// Reads the matrix in the driver container of `pod`.
pub(super) fn matrix(client: &Client<'_>, namespace: &str, pod: &Pod) -> Look<Matrix> {
    let text = client.text(&exec(namespace, pod, &["nvidia-smi", "topo", "-m"]))?;
    Matrix::parse(&text)
        .map_err(|reason| garbage(&format!("`nvidia-smi topo -m` printed no matrix: {reason}")))
}

fn garbage(reason: &str) -> super::client::Refusal {
    super::client::Refusal { kind: super::client::Kind::Garbage, message: clean(reason) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the script against a tree that stands for `/`, with the real shell.
    fn run(files: &[(&str, &str)]) -> String {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = folder.path().to_str().unwrap();
        let script =
            SCRIPT.replace(" /proc/", &format!(" {root}/proc/")).replace(" /sys/", &format!(" {root}/sys/"));
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap().replace(root, "")
    }

    #[test]
    fn the_script_reads_what_is_there() {
        let text = run(&[
            (
                "proc/driver/nvidia/params",
                "EnableStreamMemOPs: 1\nRegistryDwords: \"PeerMappingOverride=1;\"\n",
            ),
            ("proc/modules", "nvidia_peermem 16384 0 - Live 0x0\ngdrdrv 32768 0 - Live 0x0 (OE)\n"),
            ("sys/class/infiniband/mlx5_10/ports/1/state", "4: ACTIVE\n"),
            ("sys/class/infiniband/mlx5_10/ports/1/rate", "400 Gb/sec (4X NDR)\n"),
            ("sys/class/infiniband/mlx5_10/ports/1/pkeys/0", "0xffff\n"),
            ("sys/class/infiniband/mlx5_2/ports/1/state", "1: DOWN\n"),
            ("sys/class/infiniband/mlx5_2/device/numa_node", "-1\n"),
        ]);
        let inside = Inside::read(&text).unwrap();
        assert_eq!(inside.keys(), Some(2));
        assert_eq!(inside.missing(), Some(vec![]));
        assert_eq!(inside.version, None);
        let names: Vec<&str> = inside.devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["mlx5_2", "mlx5_10"]);
        assert_eq!((inside.devices[1].gbits(), inside.devices[1].active()), (400, Some(true)));
        assert_eq!((inside.devices[0].numa, inside.devices[0].active()), (None, Some(false)));
        assert_eq!(inside.devices[1].pkey.as_deref(), Some("0xffff"));
    }

    #[test]
    fn names_of_devices_cannot_steer_a_terminal() {
        let text = "\n@@expertrail + /sys/class/infiniband/mlx5\u{1b}[2J/fw_ver\n28\n\n@@expertrail . end\n";
        assert_eq!(Inside::read(text).unwrap().devices[0].name, "mlx5 [2J");
    }

    #[test]
    fn nothing_there_is_not_nothing_loaded() {
        let inside = Inside::read(&run(&[])).unwrap();
        assert_eq!((inside.keys(), inside.missing()), (None, None));
        assert!(inside.devices.is_empty());
        assert!(Inside::read("\n@@expertrail + /proc/modules\ngdrdrv 1 0 - Live 0").is_err());
        assert!(Inside::read("garbage").is_err());
    }

    #[test]
    fn parameters_are_parsed_not_searched() {
        let keys = |text: &str| {
            let inside = Inside { params: crate::collect::params(text).ok(), ..Inside::default() };
            inside.keys()
        };
        assert_eq!(keys("EnableStreamMemOPs: 10\nRegistryDwords: \"PeerMappingOverride=0;\"\n"), Some(0));
        assert_eq!(
            keys("EnableStreamMemOPs: 1\nRegistryDwords: \"RMOther=2;PeerMappingOverride=0x1\"\n"),
            Some(2)
        );
        assert_eq!(keys("XEnableStreamMemOPs: 1\nRegistryDwords: \"\"\n"), Some(0));
        assert_eq!(
            keys("RegistryDwordsPerDevice: \"PeerMappingOverride=1\"\nEnableStreamMemOPs: 1\n"),
            Some(1)
        );
    }
}

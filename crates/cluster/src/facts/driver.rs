//! The NVIDIA driver and kernel modules.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Fact;

/// The NVIDIA driver as the kernel runs it, and as files ask for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Driver {
    /// `/proc/driver/nvidia/params`: what the loaded driver runs with. Values as printed, quotes removed.
    pub params: Fact<BTreeMap<String, String>>,
    /// `/proc/driver/nvidia/version`.
    pub version: Fact<DriverVersion>,
    /// `options` lines of `/etc/modprobe.d/*.conf` (and `/run`, `/usr/lib`) for `nvidia` and its modules: what the
    /// *next* load will run with. Lines that look meant for the driver but lack `options nvidia` are here too.
    pub configured: Fact<Vec<ModprobeOption>>,
    /// GDRCopy's kernel module: `/sys/module/gdrdrv/version`.
    pub gdrdrv_version: Fact<String>,
    /// The EFA module: `/sys/module/efa/version`.
    pub efa_version: Fact<String>,
    /// `/sys/module/nvidia_peermem/version`.
    pub peermem_version: Fact<String>,
}

/// Which kernel modules NVIDIA's driver is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flavour {
    /// The open kernel modules.
    Open,
    /// The proprietary kernel modules.
    Proprietary,
    /// The line has neither form.
    #[default]
    #[serde(other)]
    Unknown,
}

/// The first line of `/proc/driver/nvidia/version`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DriverVersion {
    /// `580.159.04`.
    pub version: String,
    /// Open or proprietary.
    pub flavour: Flavour,
    /// The whole line.
    pub line: String,
}

/// One `key=value` of a modprobe configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModprobeOption {
    /// File, without the root prefix.
    pub file: String,
    /// Line in it, from 1.
    pub line: u32,
    /// Module of the `options` line; empty where the line lacks `options MODULE` and so does nothing.
    pub module: String,
    /// `NVreg_EnableStreamMemOPs`.
    pub key: String,
    /// Value, quotes removed.
    pub value: String,
}

/// `RegistryDwords` taken apart: `PeerMappingOverride=1;RMOther=0x2`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistryDwords(pub BTreeMap<String, String>);

impl RegistryDwords {
    /// Takes `text` apart at `;`. Entries without `=` are kept with an empty value.
    pub fn parse(text: &str) -> Self {
        Self(
            text.split(';')
                .map(str::trim)
                .filter(|entry| !entry.is_empty())
                .map(|entry| {
                    let (key, value) = entry.split_once('=').unwrap_or((entry, ""));
                    (key.trim().to_owned(), value.trim().to_owned())
                })
                .collect(),
        )
    }

    /// `text` with the entry that lets the GPU map the doorbells of NICs, the others as they are: what remedies print.
    pub(crate) fn with_peer_mapping(text: &str) -> String {
        let mut entries = Self::parse(text).0;
        entries.insert("PeerMappingOverride".to_owned(), "1".to_owned());
        let entries: Vec<String> = entries.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
        entries.join(";") + ";"
    }

    /// The number that `key` has, decimal or hexadecimal.
    pub fn number(&self, key: &str) -> Option<u64> {
        let value = self.0.get(key)?;
        match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => value.parse().ok(),
        }
    }
}

/// Kernel modules: listed in `/proc/modules`, or built in and present under `/sys/module` only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Modules {
    /// `/proc/modules`.
    pub loaded: Fact<Vec<Module>>,
    /// Names under `/sys/module`.
    pub present: Fact<Vec<String>>,
}

impl Modules {
    /// Whether `name` is loaded or built in; none if no list tells. Folders of `/sys/module` prove that a module is there, but a capture
    /// may have only some of them, so that only `/proc/modules` proves the contrary. `-` and `_` are the same to the kernel.
    pub fn has(&self, name: &str) -> Option<bool> {
        let name = name.replace('-', "_");
        let loaded = self.loaded.value().map(|list| list.iter().any(|module| module.name == name));
        let present = self.present.value().map(|list| list.contains(&name));
        if present == Some(true) { Some(true) } else { loaded }
    }
}

/// A line of `/proc/modules`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Module {
    /// Name, with underscores.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Modules that use it.
    pub used_by: Vec<String>,
    /// `Live`, `Loading` or `Unloading`.
    pub state: String,
}

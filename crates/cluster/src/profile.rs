//! Provider profiles: what documents say of a kind of node. They cross-check what the hardware shows and never decide it, since the
//! documents contradict each other (one calls `mlx5_12` a rail, another a virtual device).

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::facts::Facts;

/// Bytes of a profile's file.
const LARGEST: u64 = 1 << 20;

/// A kind of node, as documents describe it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Profile {
    /// `crusoe-h200`.
    pub id: String,
    /// One line.
    pub title: String,
    /// Documents it is from.
    pub sources: Vec<String>,
    /// How such a node is recognised.
    pub detect: Detect,
    /// GPUs of a node.
    pub gpus: u32,
    /// Names of the rails in the order of GPUs; empty where names follow the PCI bus.
    pub rails: Vec<String>,
    /// Devices that are no rails.
    pub not_rails: Vec<String>,
    /// RDMA devices of each GPU.
    pub rails_per_gpu: u32,
    /// GB/s of NICs for each GPU.
    pub nic_gbytes_per_gpu: f64,
    /// GB/s of NVLink one way for each GPU.
    pub nvlink_gbytes: Option<f64>,
    /// EFA devices of a node.
    pub efa_devices: Option<u32>,
    /// The provider's topology file for NCCL.
    pub nccl_topo_file: Option<String>,
    /// Huge pages of 2 MiB that the provider's examples reserve.
    pub huge_pages_2mi: Option<u64>,
    /// InfiniBand service level of the provider's examples (`NCCL_IB_SL`, `NVSHMEM_IB_SL`).
    pub service_level: Option<u32>,
    /// Capabilities of the provider's examples.
    pub capabilities: Vec<String>,
    /// What else is said.
    pub notes: Vec<String>,
}

/// Signs of a kind of node. All that are given must be there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Detect {
    /// Part of the firmware's vendor.
    pub dmi_vendor: Option<String>,
    /// The firmware's product, whole.
    pub dmi_product: Option<String>,
    /// PCI device ids of the GPUs.
    pub gpu_ids: Vec<String>,
}

/// Why there is no such profile.
#[derive(Debug, Error)]
pub enum ProfileError {
    /// No profile and no file has that name.
    #[error("no profile `{name}`: there are {}; or give the path of a profile's JSON file", .known.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// The ids there are.
        known: Vec<&'static str>,
    },
    /// The file cannot be read.
    #[error("cannot read the profile {}: {error}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The file is no profile.
    #[error("{} is no profile: {error}", .path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: serde_json::Error,
    },
}

macro_rules! profiles {
    ($($id:literal),* $(,)?) => {
        /// Ids of the profiles that are built in, and their texts.
        const TEXTS: &[(&str, &str)] = &[$(($id, include_str!(concat!("../data/profiles/", $id, ".json")))),*];
    };
}

profiles! {
    "crusoe-h200", "crusoe-b200", "aws-p5", "aws-p5e", "aws-p5en", "aws-p6-b200", "aws-p6-b300", "nebius-h100", "nebius-h200",
    "nebius-b200", "nebius-b300", "gb200", "gb300", "generic",
}

/// Every profile that is built in. Their texts are tested, so none is missing here.
pub fn all() -> Vec<Profile> {
    TEXTS.iter().filter_map(|(_, text)| serde_json::from_str(text).ok()).collect()
}

/// The profile `name`, or the one in the file of that path.
///
/// # Errors
/// When there is neither, or the file is no profile.
pub fn get(name: &str) -> Result<Profile, ProfileError> {
    if let Some(profile) = all().into_iter().find(|profile| profile.id == name) {
        return Ok(profile);
    }
    let path = Path::new(name);
    if path.exists() {
        return load(path);
    }
    Err(ProfileError::Unknown { name: name.to_owned(), known: TEXTS.iter().map(|&(id, _)| id).collect() })
}

/// The profile in a file.
///
/// # Errors
/// When it cannot be read or is no profile.
pub fn load(path: &Path) -> Result<Profile, ProfileError> {
    let read = || {
        let mut text = String::new();
        // A profile is small; a device or a log of gigabytes is none.
        File::open(path)?.take(LARGEST).read_to_string(&mut text)?;
        Ok(text)
    };
    let text = read().map_err(|error| ProfileError::Read { path: path.to_owned(), error })?;
    serde_json::from_str(&text).map_err(|error| ProfileError::Form { path: path.to_owned(), error })
}

/// The profile whose signs the node has, and which signs those are. None where no provider's are there.
pub fn detect(facts: &Facts) -> Option<(Profile, String)> {
    let gpus = facts.pci.gpus();
    let gpu_id = gpus.first().and_then(|gpu| gpu.device.as_deref());
    let vendor = facts.kernel.dmi.vendor.value().map(String::as_str);
    let product = facts.kernel.dmi.product.value().map(String::as_str);
    all().into_iter().find_map(|profile| {
        let signs = &profile.detect;
        let mut reasons = Vec::new();
        if signs.gpu_ids.is_empty() || !signs.gpu_ids.iter().any(|id| Some(id.as_str()) == gpu_id) {
            return None;
        }
        reasons.push(format!("GPU {}", gpu_id.unwrap_or_default()));
        if let Some(wanted) = &signs.dmi_vendor {
            let found = vendor.filter(|vendor| vendor.contains(wanted.as_str()))?;
            reasons.push(format!("firmware of `{found}`"));
        }
        if let Some(wanted) = &signs.dmi_product {
            let found = product.filter(|product| product == wanted)?;
            reasons.push(format!("product `{found}`"));
        }
        Some((profile, reasons.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_a_profile_of_its_name_with_a_source() {
        for (id, text) in TEXTS {
            let profile: Profile = serde_json::from_str(text).unwrap_or_else(|error| panic!("{id}: {error}"));
            assert_eq!(profile.id, *id);
            assert!(!profile.sources.is_empty(), "{id}");
        }
        assert_eq!(all().len(), 14);
    }

    #[test]
    fn what_the_documents_say() {
        let b200 = get("crusoe-b200").unwrap();
        assert_eq!(b200.rails.first().map(String::as_str), Some("mlx5_5"));
        assert_eq!(b200.rails.last().map(String::as_str), Some("mlx5_12"));
        assert_eq!(get("aws-p5en").unwrap().efa_devices, Some(16));
        assert_eq!(get("aws-p5").unwrap().efa_devices, Some(32));
        // 5120 MiB of pages of 2 MiB.
        assert_eq!(get("aws-p5en").unwrap().huge_pages_2mi, Some(5120 / 2));
        let error = get("no-such").unwrap_err().to_string();
        assert!(error.contains("crusoe-h200") && error.contains("generic"), "{error}");
    }
}

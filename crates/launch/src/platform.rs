//! What a launch file needs to know of a kind of node beyond its hardware profile. Data with sources, as the documents give it; a
//! description of a run overrides any of it.

use serde::{Deserialize, Serialize};

/// How nodes reach each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fabric {
    /// InfiniBand: IBGDA, a list of HCAs, a pin for each rank.
    Infiniband,
    /// AWS EFA: libfabric, NVSHMEM pairs ranks and NICs itself.
    Efa,
    /// Not known.
    #[default]
    Unknown,
}

/// Whose settings of NCCL are taken. They were measured on one provider's fabric, so no other gets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tuning {
    /// The Kubernetes guide's.
    Guide,
}

/// A variable that the platform's document sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// What it is for, and the document.
    pub why: String,
}

/// A kind of node for launch files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Platform {
    /// The hardware profile (`expertrail_cluster::profile`) it belongs to.
    pub profile: String,
    /// The document.
    pub source: String,
    /// How nodes reach each other.
    pub kind: Fabric,
    /// Value of the label `nvidia.com/gpu.product`.
    pub gpu_product: Option<String>,
    /// Compute capability that images must be compiled for, as `TORCH_CUDA_ARCH_LIST` writes it.
    pub arch: Option<String>,
    /// Short name of the GPU, as tags of images carry it.
    pub gpu: Option<String>,
    /// The provider's image for DeepEP's benchmark.
    pub deepep_image: Option<String>,
    /// CPUs to request: just under what a node has to give.
    pub cpu: Option<String>,
    /// Memory to request, as a Kubernetes quantity.
    pub memory: Option<String>,
    /// Limit of memory.
    pub memory_limit: Option<String>,
    /// Size of `/dev/shm`.
    pub shm: String,
    /// Extended resource that gives a pod its NICs.
    pub rdma_resource: Option<String>,
    /// How many of it a node has.
    pub rdma_count: Option<u32>,
    /// Interface of the bootstrap on every system, as `NCCL_SOCKET_IFNAME` writes it.
    pub interface: Option<String>,
    /// Interface of the bootstrap in pods, whose names do not depend on the host's.
    pub pod_interface: Option<String>,
    /// Folder of the host in which the provider's topology file lies.
    pub topo_mount: Option<String>,
    /// Value of the label `node.kubernetes.io/instance-type`.
    pub instance_type: Option<String>,
    /// Whose settings of NCCL are taken; none: NCCL's own.
    pub tuning: Option<Tuning>,
    /// What the document sets beside those of all nodes with such a fabric.
    pub variables: Vec<Variable>,
}

const TEXT: &str = include_str!("../data/platforms.json");

/// All that are known. The text is tested, so it is never empty here.
pub fn all() -> Vec<Platform> {
    serde_json::from_str(TEXT).unwrap_or_default()
}

/// The one of hardware profile `profile`; for a profile of the user's own file, what is known of any machine.
pub fn of(profile: &str) -> Platform {
    let mut all = all();
    let place = all.iter().position(|platform| platform.profile == profile);
    let place = place.or_else(|| all.iter().position(|platform| platform.profile == "generic"));
    place.map(|place| all.swap_remove(place)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hardware_profile_has_its_platform() {
        let profiles: Vec<String> =
            expertrail_cluster::profile::all().into_iter().map(|profile| profile.id).collect();
        let platforms: Vec<String> = all().into_iter().map(|platform| platform.profile).collect();
        let mut left = profiles.clone();
        left.retain(|id| !platforms.contains(id));
        assert!(left.is_empty(), "no platform for {left:?}");
        assert_eq!(platforms.len(), profiles.len());
    }

    /// Section 2 of the facts: devices of an instance type.
    #[test]
    fn efa_counts_are_those_of_the_instance_types() {
        for (profile, instance, count) in [
            ("aws-p5", "p5.48xlarge", 32),
            ("aws-p5e", "p5e.48xlarge", 32),
            ("aws-p5en", "p5en.48xlarge", 16),
            ("aws-p6-b200", "p6-b200.48xlarge", 8),
            ("aws-p6-b300", "p6-b300.48xlarge", 16),
        ] {
            let platform = of(profile);
            assert_eq!(
                (platform.instance_type.as_deref(), platform.rdma_count),
                (Some(instance), Some(count))
            );
            let profile = expertrail_cluster::profile::get(profile).unwrap();
            assert_eq!(profile.efa_devices, Some(count));
        }
    }
}

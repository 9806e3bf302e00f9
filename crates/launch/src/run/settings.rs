//! Variables of the ranks. What is in the documents' manifests, each with its reason.

use expertrail_cluster::facts::Facts;
use expertrail_cluster::topo;

use super::{Run, Setting, Target};
use crate::platform::{Fabric, Tuning};
use crate::spec::{DeepepDriver, Engine, Spec};

/// Fills in the variables: the description's own last, so that they win.
pub(super) fn fill(run: &mut Run, spec: &Spec, facts: Option<&Facts>) {
    let mut list = List(Vec::new());
    if spec.engine != Engine::Expertrail {
        match run.fabric {
            Fabric::Infiniband => {
                let others = others(run, facts);
                infiniband(run, spec, &others, &mut list);
            }
            Fabric::Efa => efa(run, spec, &mut list),
            Fabric::Unknown => interface(run, spec, &mut list),
        }
        if spec.engine == Engine::Deepep
            && spec.deepep.driver == DeepepDriver::UpstreamTests
            && run.fabric == Fabric::Infiniband
            && run.nodes > 1
        {
            run.notes.push(
                "DeepEP's own tests start their ranks themselves, so nobody can pin each rank to its NIC: on InfiniBand all GPUs of a node \
                 may share one. deepep.driver = \"own\" pins them"
                    .to_owned(),
            );
        }
    }
    for (name, value) in &spec.env {
        list.replace(name, value, "[env] of run.toml");
    }
    run.env = list.0;
}

struct List(Vec<Setting>);

impl List {
    fn add(&mut self, name: &str, value: impl Into<String>, why: &str) {
        self.0.push(Setting { name: name.to_owned(), value: value.into(), why: why.to_owned() });
    }

    fn replace(&mut self, name: &str, value: &str, why: &str) {
        let new = Setting { name: name.to_owned(), value: value.to_owned(), why: why.to_owned() };
        match self.0.iter_mut().find(|setting| setting.name == name) {
            Some(old) => *old = new,
            None => self.0.push(new),
        }
    }
}

/// Devices of the nodes beside those of the ranks, as far as profile and facts know them.
fn others(run: &Run, facts: Option<&Facts>) -> Vec<String> {
    let seen = facts.map(|facts| topo::map(facts).devices).unwrap_or_default();
    let known = run.profile.rails.iter().chain(&run.profile.not_rails).cloned();
    known.chain(seen.into_iter().map(|nic| nic.name)).filter(|name| !run.hcas.contains(name)).collect()
}

/// The list for NCCL, which takes each name for the beginning of names: `mlx5_1` would also mean the excluded `mlx5_12`. A leading `=`
/// makes names exact. UCX and NVSHMEM always take whole names, and would not know the `=`.
fn exact(rails: &str, run: &Run, others: &[String]) -> String {
    let means_more = |name: &String| others.iter().any(|other| other.starts_with(name.as_str()));
    if run.hcas.iter().any(means_more) { format!("={rails}") } else { rails.to_owned() }
}

/// The guide's manifest (checklist 33), for any list of rails.
fn infiniband(run: &mut Run, spec: &Spec, others: &[String], list: &mut List) {
    let profile = run.profile.id.clone();
    if let Some(offset) = run.hca_offset {
        list.add(
            "NVSHMEM_HCA_OFFSET",
            offset.to_string(),
            &format!("GPU N uses {}: profile or facts", rail_name(run, offset)),
        );
    }
    list.add("NVSHMEM_IB_ENABLE_IBGDA", "1", "GPUs post to the NIC themselves");
    if !run.hcas.is_empty() {
        let rails = run.hcas.iter().map(|name| format!("{name}:1")).collect::<Vec<_>>().join(",");
        let why = format!("the rails, without the frontend ({profile})");
        let of_nccl = exact(&rails, run, others);
        let nccl =
            if of_nccl == rails { why.clone() } else { format!("{why}; with = a name means itself alone") };
        list.add("NCCL_IB_HCA", of_nccl, &nccl);
        list.add("UCX_NET_DEVICES", rails, &why);
    }
    list.add("NCCL_IB_DISABLE", "0", "never fall back to sockets unseen");
    list.add("NCCL_NVLS_ENABLE", "1", "NVLink SHARP within the node");
    if run.platform.tuning == Some(Tuning::Guide) {
        tuning(list);
    }
    let level = spec.network.service_level.or(run.profile.service_level);
    if let Some(level) = level {
        let why = "service level of this provider's fabric; another's differs";
        list.add("NCCL_IB_SL", level.to_string(), why);
        list.add("NVSHMEM_IB_SL", level.to_string(), why);
    }
    let file = spec
        .network
        .nccl_topo_file
        .clone()
        .or_else(|| run.profile.nccl_topo_file.clone())
        .filter(|file| !file.is_empty());
    if let Some(file) = file {
        run.topo_mount = folder(&file, run.platform.topo_mount.as_deref());
        list.add(
            "NCCL_TOPO_FILE",
            file,
            "the provider's file on every node; without it drop the variable and the mount",
        );
    }
    interface(run, spec, list);
    list.add("UCX_MEMTYPE_CACHE", "n", "guide");
    list.add("NVSHMEM_BOOTSTRAP", "UID", "no MPI needed");
    list.add("NVSHMEM_ENABLE_NIC_PE_MAPPING", "1", "without it NVSHMEM ignores the list of HCAs");
    for variable in &run.platform.variables {
        list.add(&variable.name, variable.value.clone(), &variable.why);
    }
}

/// The guide's settings of NCCL, which it gives for its provider's fabric.
fn tuning(list: &mut List) {
    for (name, value, why) in [
        ("NCCL_IB_PCI_RELAXED_ORDERING", "1", "guide"),
        ("NCCL_IB_SPLIT_DATA_ON_QPS", "0", "guide"),
        ("NCCL_IB_QPS_PER_CONNECTION", "2", "guide"),
        ("NCCL_IBEXT_DISABLE", "1", "guide"),
        ("NCCL_IB_MERGE_VFS", "0", "each rail stays a device of its own"),
        ("NCCL_MAX_CTAS", "32", "guide"),
        ("NCCL_MIN_CTAS", "32", "guide"),
    ] {
        list.add(name, value, why);
    }
}

/// The transport variables of the EFA images (checklist 27); ssh-started workers do not inherit an image's own.
fn efa(run: &mut Run, spec: &Spec, list: &mut List) {
    list.add("FI_PROVIDER", "efa", "libfabric's provider");
    list.add("NVSHMEM_REMOTE_TRANSPORT", "libfabric", "EFA has no IBGDA");
    list.add("NVSHMEM_LIBFABRIC_PROVIDER", "efa", "NVSHMEM's libfabric transport");
    list.add(
        "NVSHMEM_NETDEVS_POLICY",
        "EXTERNAL_SHARING_PCIE_SWITCH_NIC_EXCLUSIVE",
        "each rank takes the NIC under its PCIe switch",
    );
    list.add("NVIDIA_GDRCOPY", "enabled", "the container runtime hands in /dev/gdrdrv");
    interface(run, spec, list);
}

/// Interface of the bootstrap.
fn interface(run: &mut Run, spec: &Spec, list: &mut List) {
    let pods = matches!(run.target, Target::K8sJob | Target::Mpijob);
    let of_pods = run.platform.pod_interface.clone().filter(|_| pods);
    let named = spec.network.interface.clone().or(of_pods).or_else(|| run.platform.interface.clone());
    let Some(named) = named.filter(|named| !named.is_empty()) else {
        if run.nodes > 1 {
            run.notes.push(
                "no interface is named for the bootstrap: NCCL, Gloo and NVSHMEM each look for one. Where they find one that other nodes do \
                 not reach, set network.interface to that of the route between the nodes (on a node: ip route get ADDRESS-OF-ANOTHER)"
                    .to_owned(),
            );
        }
        return;
    };
    let why = "interface that nodes meet over, never a rail";
    list.add("NCCL_SOCKET_IFNAME", named.clone(), why);
    // `^a,b` (all but these) is NCCL's own writing.
    if named.starts_with(['^', '=']) {
        return;
    }
    let family = "AF_INET";
    list.add("NCCL_SOCKET_FAMILY", family, why);
    list.add("GLOO_SOCKET_IFNAME", named.clone(), why);
    list.add("GLOO_SOCKET_FAMILY", family, why);
    if run.fabric == Fabric::Infiniband {
        list.add("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", named, why);
        list.add("NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY", family, why);
    }
}

fn rail_name(run: &Run, offset: u32) -> String {
    let first = run.hcas.first().map_or("", String::as_str);
    let prefix = first.trim_end_matches(|c: char| c.is_ascii_digit());
    format!("{prefix}(N+{offset})")
}

/// The host's folder to mount: the platform's where the file lies in it, else the file's own.
fn folder(file: &str, known: Option<&str>) -> Option<String> {
    if let Some(known) = known.filter(|known| file.starts_with(&format!("{known}/"))) {
        return Some(known.to_owned());
    }
    file.rsplit_once('/').map(|(folder, _)| folder.to_owned()).filter(|folder| !folder.is_empty())
}

//! Container, scheduler, who manages the driver, and the variables that decide what runs.

use std::collections::BTreeMap;

use crate::facts::{CgroupHint, Environment, Fact, Scope, SlurmEnv};
use crate::root::Root;

/// Variables of these beginnings decide which library, NIC or transport is used.
const DECIDE: [&str; 17] = [
    "NCCL_",
    "NVSHMEM_",
    "NVSHMEMX_",
    "UCX_",
    "FI_",
    "EP_",
    "DEEPEP_",
    "DEEP_EP_",
    "CUDA_",
    "NVIDIA_",
    "OMPI_MCA_",
    "GLOO_",
    "MLX5_",
    "EXPERTRAIL_",
    "IBV_",
    "RDMAV_",
    "DISABLE_AGGRESSIVE_",
];

/// Variables of these names, too.
const DECIDE_WHOLE: [&str; 7] = [
    "NODE_NAME",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "TORCH_CUDA_ARCH_LIST",
    "GDRCOPY_USE_DMABUF_MMAP",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
];

/// Parts of names whose values are nobody's business.
const SECRET: [&str; 5] = ["TOKEN", "SECRET", "PASSW", "KEY", "CREDENTIAL"];

/// What the GPU Operator's driver, toolkit and validator containers make on a node.
const OPERATOR: [&str; 5] = [
    "/run/nvidia/driver",
    "/run/nvidia/validations",
    "/run/nvidia/mofed",
    "/run/nvidia/toolkit",
    "/usr/local/nvidia/toolkit",
];

/// Where the operator's validator says whose driver it found (`IS_HOST_DRIVER=true` or `false`).
const DRIVER_READY: &str = "/run/nvidia/validations/driver-ready";

/// A captured tree's variables.
const ENVIRON: &str = "/environ.txt";

/// Variables: of this process on a live machine, of `environ.txt` of a captured tree.
pub(super) fn variables(root: &Root) -> Fact<BTreeMap<String, String>> {
    if root.is_live() {
        let all = std::env::vars_os()
            .map(|(k, v)| (k.to_string_lossy().into_owned(), v.to_string_lossy().into_owned()));
        return Fact::read(all.collect(), "environment of this process", root.scope(ENVIRON));
    }
    root.text(ENVIRON).map(|text| {
        let lines = text.lines().filter_map(|line| line.split_once('='));
        lines.map(|(name, value)| (name.trim().to_owned(), value.to_owned())).collect()
    })
}

/// Variables are read before it is known whose they are.
pub(super) fn with_scope(
    mut variables: Fact<BTreeMap<String, String>>,
    scope: Scope,
) -> Fact<BTreeMap<String, String>> {
    variables.scope = scope;
    variables
}

/// Whether the reader is in a container, and by what sign.
pub(super) fn container(root: &Root, variables: &Fact<BTreeMap<String, String>>) -> Fact<CgroupHint> {
    let inside =
        |sign: String, source: &str| Fact::read(CgroupHint { inside: true, sign }, source, Scope::Container);
    for sign in ["/.dockerenv", "/run/.containerenv", "/run/systemd/container"] {
        if root.exists(sign) {
            return inside(format!("{sign} exists"), sign);
        }
    }
    let set = |name: &str| variables.value().and_then(|all| all.get(name));
    if let Some(kind) = set("container").filter(|kind| !kind.is_empty()) {
        return inside(format!("the variable `container` is `{kind}`"), &variables.source);
    }
    if set("KUBERNETES_SERVICE_HOST").is_some() {
        return inside("KUBERNETES_SERVICE_HOST is set".to_owned(), &variables.source);
    }
    let cgroup = root.text("/proc/1/cgroup");
    if let Some(sign) = cgroup.value().and_then(|text| cgroup_sign(text)) {
        return inside(sign, "/proc/1/cgroup");
    }
    let mounts = root.text("/proc/self/mountinfo");
    if let Some(sign) = mounts.value().and_then(|text| mount_sign(text)) {
        return inside(sign, "/proc/self/mountinfo");
    }
    // Without any of the places where a container shows itself nothing can be said.
    match (cgroup.value(), mounts.value()) {
        (None, None) => Fact::absent("/proc/self/mountinfo", Scope::Unknown),
        _ => Fact::read(CgroupHint::default(), "/proc/self/mountinfo", Scope::Host),
    }
}

/// The first process of a container is in a group of its runtime (control groups version 1).
pub fn cgroup_sign(text: &str) -> Option<String> {
    let names = ["docker", "kubepods", "containerd", "libpod", "lxc", "crio"];
    let line = text.lines().find(|line| names.iter().any(|name| line.contains(name)))?;
    Some(format!("process 1 is in the group {}", line.rsplit(':').next().unwrap_or(line)))
}

/// A container's root is an overlay, or (Enroot) a folder of a disk. A host's hardly ever: live images and diskless nodes have overlays
/// whose source names them, and btrfs and `OSTree` boot from a folder.
pub fn mount_sign(text: &str) -> Option<String> {
    // id parent major:minor ROOT MOUNT options... - TYPE SOURCE options; of several mounts over `/` the last is seen.
    let mounted = |line: &&str| line.split_whitespace().nth(4) == Some("/");
    let line = text.lines().rfind(mounted)?;
    let folder = line.split_whitespace().nth(3)?;
    let mut after = line.split_once(" - ")?.1.split_whitespace();
    let (kind, source) = (after.next()?, after.next().unwrap_or_default());
    if matches!(kind, "overlay" | "fuse.fuse-overlayfs" | "aufs") {
        let host = ["/cow", "overlayroot", "airootfs", "LiveOS_rootfs"].contains(&source);
        return (!host).then(|| "the root file system is an overlay".to_owned());
    }
    let boots_so = kind == "btrfs" || folder.contains("/ostree/");
    (folder != "/" && !boots_so).then(|| format!("the root file system is the folder {folder} of a disk"))
}

/// Whether the validator found a driver that the host installed, so that the operator does not manage it.
pub fn is_host_driver(text: &str) -> bool {
    text.lines().any(|line| line.trim().eq_ignore_ascii_case("IS_HOST_DRIVER=true"))
}

/// Signs that an operator manages the driver. An operator that found the host's own driver leaves its folders too, and manages none.
fn operator(root: &Root) -> Fact<Vec<String>> {
    let scope = root.scope("/run/nvidia");
    let ready = root.word(DRIVER_READY);
    if ready.value().is_some_and(|text| is_host_driver(text)) {
        return Fact::read(Vec::new(), DRIVER_READY, scope);
    }
    let signs: Vec<String> =
        OPERATOR.into_iter().filter(|path| root.exists(path)).map(str::to_owned).collect();
    if signs.is_empty() && !root.exists("/run") {
        // A captured tree without `/run` says nothing of it.
        return Fact::absent("/run", scope);
    }
    Fact::read(signs, "/run/nvidia", scope)
}

/// Reads the rest, from `variables` and `container` as read before.
pub(super) fn environment(
    root: &Root,
    variables: Fact<BTreeMap<String, String>>,
    container: Fact<CgroupHint>,
) -> Environment {
    let get =
        |all: &BTreeMap<String, String>, name: &str| all.get(name).filter(|value| !value.is_empty()).cloned();
    Environment {
        container,
        kubernetes: variables.clone().map(|all| all.contains_key("KUBERNETES_SERVICE_HOST")),
        slurm: variables
            .clone()
            .map(|all| SlurmEnv { job: get(&all, "SLURM_JOB_ID"), step: get(&all, "SLURM_STEP_ID") }),
        operator_signs: operator(root),
        enroot: variables.clone().map(|all| {
            all.into_keys().filter(|name| name.starts_with("ENROOT_") || name.starts_with("PYXIS_")).collect()
        }),
        variables: variables.map(kept),
    }
}

/// Those that decide what runs; of names that look like secrets the value is left out.
fn kept(all: BTreeMap<String, String>) -> BTreeMap<String, String> {
    all.into_iter()
        .filter(|(name, _)| {
            DECIDE.iter().any(|start| name.starts_with(start)) || DECIDE_WHOLE.contains(&name.as_str())
        })
        .map(|(name, value)| {
            // NCCL_IB_PKEY and its like name a partition of the fabric.
            let upper = name.to_ascii_uppercase().replace("IB_PKEY", "");
            let secret = SECRET.iter().any(|part| upper.contains(part));
            (name, if secret { "(not kept)".to_owned() } else { value })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_of_containers() {
        assert!(cgroup_sign("12:devices:/kubepods/burstable/pod1\n0::/\n").is_some());
        assert_eq!(cgroup_sign("0::/init.scope\n"), None);
        assert!(mount_sign("1 2 0:1 / / rw - overlay overlay rw,lowerdir=/a,upperdir=/b\n").is_some());
        assert_eq!(mount_sign("1 2 8:1 / / rw - ext4 /dev/sda1 rw\n"), None);
        assert_eq!(mount_sign("1 2 0:1 / / rw - overlay /cow rw\n"), None);
        assert_eq!(mount_sign("1 2 8:1 / /mnt rw - overlay overlay rw\n"), None);
        assert_eq!(mount_sign("1 2 0:1 / / rw - overlay overlayroot rw\n"), None);
        assert!(mount_sign("1 2 8:1 /enroot/data/pyxis_12.0 / rw - ext4 /dev/md0 rw\n").is_some());
        assert_eq!(mount_sign("1 2 0:30 /@ / rw - btrfs /dev/sda2 rw\n"), None);
        assert_eq!(mount_sign("1 2 8:4 /ostree/deploy/rhcos/deploy/1.0 / rw - xfs /dev/sda4 rw\n"), None);
        // The later mount hides the first.
        assert!(
            mount_sign("1 1 0:2 / / rw - rootfs rootfs rw\n2 1 0:9 / / rw - overlay overlay rw\n").is_some()
        );
        assert_eq!(mount_sign("1 2 8:1 / /"), None);
    }

    #[test]
    fn whose_driver_the_operator_found() {
        assert!(is_host_driver("IS_HOST_DRIVER=true\nNVIDIA_DRIVER_ROOT=/\n"));
        assert!(!is_host_driver("IS_HOST_DRIVER=false\nNVIDIA_DRIVER_ROOT=/run/nvidia/driver\n"));
    }

    #[test]
    fn secrets_stay_where_they_are() {
        let all = [
            ("NCCL_DEBUG", "WARN"),
            ("NVIDIA_API_KEY", "x"),
            ("EXPERTRAIL_TOKEN", "y"),
            ("HOME", "/root"),
            ("NCCL_IB_PKEY", "0x8005"),
            ("DISABLE_TELEMETRY", "1"),
        ];
        let kept = kept(all.map(|(a, b)| (a.to_owned(), b.to_owned())).into());
        assert_eq!(kept.len(), 4);
        assert_eq!(kept["NCCL_IB_PKEY"], "0x8005");
        assert_eq!(kept["NCCL_DEBUG"], "WARN");
        assert_eq!(kept["NVIDIA_API_KEY"], "(not kept)");
        assert_eq!(kept["EXPERTRAIL_TOKEN"], "(not kept)");
    }
}

//! Container, scheduler, who manages the driver, and the variables that decide what runs.

use std::collections::BTreeMap;

use crate::facts::{CgroupHint, Environment, Fact, Scope, SlurmEnv};
use crate::root::Root;

/// Variables of these beginnings decide which library, NIC or transport is used.
const DECIDE: [&str; 16] = [
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
    "DISABLE_",
];

/// Variables of these names, too.
const DECIDE_WHOLE: [&str; 6] = [
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "TORCH_CUDA_ARCH_LIST",
    "GDRCOPY_USE_DMABUF_MMAP",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
];

/// Parts of names whose values are nobody's business.
const SECRET: [&str; 5] = ["TOKEN", "SECRET", "PASSW", "KEY", "CREDENTIAL"];

/// Folders that the GPU Operator's driver and validator containers make on a node.
const OPERATOR: [&str; 4] =
    ["/run/nvidia/driver", "/run/nvidia/validations", "/run/nvidia/mofed", "/usr/local/nvidia/toolkit"];

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

/// Whether the reader is in a container, and by what sign.
pub(super) fn container(root: &Root, variables: &Fact<BTreeMap<String, String>>) -> Fact<CgroupHint> {
    let inside =
        |sign: String, source: &str| Fact::read(CgroupHint { inside: true, sign }, source, Scope::Container);
    for sign in ["/.dockerenv", "/run/.containerenv"] {
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

/// A container's root is an overlay; a live host's hardly ever (live images have one, of `/cow`, which is no container's).
pub fn mount_sign(text: &str) -> Option<String> {
    let root = text.lines().find(|line| line.split_whitespace().nth(4) == Some("/"))?;
    let (_, after) = root.split_once(" - ")?;
    let kind = after.split_whitespace().next()?;
    (kind == "overlay" && !after.contains("/cow")).then(|| "the root file system is an overlay".to_owned())
}

/// Reads the rest, from `variables` and `container` as read before.
pub(super) fn environment(
    root: &Root,
    variables: Fact<BTreeMap<String, String>>,
    container: Fact<CgroupHint>,
) -> Environment {
    let get =
        |all: &BTreeMap<String, String>, name: &str| all.get(name).filter(|value| !value.is_empty()).cloned();
    let signs: Vec<String> =
        OPERATOR.into_iter().filter(|path| root.exists(path)).map(str::to_owned).collect();
    Environment {
        container,
        kubernetes: variables.clone().map(|all| all.contains_key("KUBERNETES_SERVICE_HOST")),
        slurm: variables
            .clone()
            .map(|all| SlurmEnv { job: get(&all, "SLURM_JOB_ID"), step: get(&all, "SLURM_STEP_ID") }),
        operator_signs: Fact::read(signs, "/run/nvidia", root.scope("/run/nvidia")),
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
            let secret = SECRET.iter().any(|part| name.to_ascii_uppercase().contains(part));
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
    }

    #[test]
    fn secrets_stay_where_they_are() {
        let all =
            [("NCCL_DEBUG", "WARN"), ("NVIDIA_API_KEY", "x"), ("EXPERTRAIL_TOKEN", "y"), ("HOME", "/root")];
        let kept = kept(all.map(|(a, b)| (a.to_owned(), b.to_owned())).into());
        assert_eq!(kept.len(), 3);
        assert_eq!(kept["NCCL_DEBUG"], "WARN");
        assert_eq!(kept["NVIDIA_API_KEY"], "(not kept)");
        assert_eq!(kept["EXPERTRAIL_TOKEN"], "(not kept)");
    }
}

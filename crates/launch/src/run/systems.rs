//! What Kubernetes, Slurm and plain hosts need.

use std::collections::BTreeMap;

use expertrail_cluster::facts::Facts;
use expertrail_cluster::profile::Profile;
use serde::{Deserialize, Serialize};

use super::{Run, RunError, Target, place, quantity};
use crate::platform::{Fabric, Platform};
use crate::spec::{Binary, DeepepDriver, Engine, Spec};

/// A taint that is tolerated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Toleration {
    /// Key.
    pub key: String,
    /// Value; none tolerates any.
    pub value: Option<String>,
    /// Effect; none tolerates any.
    pub effect: Option<String>,
}

/// Kubernetes, decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kubernetes {
    /// The only context in which `launch` may apply the files; none: the one given at the launch.
    pub context: Option<String>,
    /// Namespace.
    pub namespace: String,
    /// Labels of nodes.
    pub node_selector: BTreeMap<String, String>,
    /// The only nodes that are taken, by the label `kubernetes.io/hostname`; empty: any that the selector allows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hostnames: Vec<String>,
    /// Taints.
    pub tolerations: Vec<Toleration>,
    /// Secret of the registry.
    pub pull_secret: Option<String>,
    /// CPUs to request.
    pub cpu: Option<String>,
    /// Memory to request.
    pub memory: Option<String>,
    /// Limit of memory.
    pub memory_limit: Option<String>,
    /// Size of `/dev/shm`.
    pub shm: String,
    /// Resource of the GPUs, of which each pod asks for as many as it has ranks; none for ranks on the CPU.
    pub gpu_resource: Option<String>,
    /// Resource of NICs and how many.
    pub rdma: Option<(String, u32)>,
    /// Huge pages of 2 MiB.
    pub hugepages_2mi: Option<String>,
    /// How this project's binary comes into the container.
    pub binary: Binary,
    /// This project's image.
    pub expertrail_image: Option<String>,
    /// Pull first.
    pub prepull: bool,
    /// Seconds for which a finished Job stays.
    pub ttl_seconds: u32,
    /// Service account.
    pub service_account: Option<String>,
    /// Priority class.
    pub priority_class: Option<String>,
    /// One zone.
    pub same_zone: bool,
    /// Capabilities of the containers.
    pub capabilities: Vec<String>,
}

/// Slurm, decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slurm {
    /// Partition.
    pub partition: Option<String>,
    /// Account.
    pub account: Option<String>,
    /// Quality of service.
    pub qos: Option<String>,
    /// Reservation.
    pub reservation: Option<String>,
    /// Nodes by name.
    pub nodelist: Option<String>,
    /// Constraint.
    pub constraint: Option<String>,
    /// Ask for GPUs.
    pub request_gpus: bool,
    /// Whole nodes.
    pub exclusive: bool,
    /// `none` or `pmix`.
    pub mpi: String,
    /// Image for Pyxis.
    pub container_image: Option<String>,
    /// Mounts of the container.
    pub container_mounts: Vec<String>,
    /// Shared directory; none: the one from which the script is submitted.
    pub directory: Option<String>,
    /// This project's binary on the nodes.
    pub binary: String,
}

/// Hosts, decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hosts {
    /// Names, the first has rank 0; placeholders `HOST0`, `HOST1` where none are given.
    pub names: Vec<String>,
    /// Whether the names are placeholders: such files are rendered, not launched.
    pub placeholders: bool,
    /// User of `ssh`.
    pub user: Option<String>,
    /// Directory on the hosts; none: the one the command runs in.
    pub directory: Option<String>,
    /// This project's binary on the hosts.
    pub binary: String,
    /// Further words for `mpirun`.
    pub mpirun_args: Vec<String>,
    /// `mpirun`.
    pub mpirun: String,
}

/// The image, refused where its name says another GPU than the nodes have.
pub(super) fn image(spec: &Spec, platform: &Platform, target: Target) -> Result<Option<String>, RunError> {
    let cluster = matches!(target, Target::K8sJob | Target::Mpijob);
    let image = spec.image.clone().or_else(|| match spec.engine {
        Engine::Deepep => platform.deepep_image.clone(),
        Engine::Expertrail => spec.kubernetes.expertrail_image.clone(),
        Engine::Command => None,
    });
    let Some(image) = image else {
        if !cluster {
            return Ok(None);
        }
        let reason = match spec.engine {
            Engine::Expertrail => {
                "an image with glibc 2.28 or newer. `expertrail render image --kind expertrail` writes a Containerfile for our own; with \
                 kubernetes.binary = \"copy\" any such image does (debian:bookworm-slim), and `launch` copies the binary into its pods"
            }
            Engine::Deepep => {
                "no image for DeepEP is known for this profile. `expertrail render image --kind deepep-infiniband` (or deepep-efa) writes \
                 a Containerfile"
            }
            Engine::Command => "the image that holds your command",
        };
        return Err(RunError::Missing { key: "image".to_owned(), reason: reason.to_owned() });
    };
    let fits_a_reference = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    if !image.starts_with(|c: char| c.is_ascii_alphanumeric()) || !image.chars().all(fits_a_reference) {
        let reason = "wanted a reference as registry/repository/image:tag".to_owned();
        return Err(RunError::Value { key: "image".to_owned(), given: format!("{image:?}"), reason });
    }
    fits(spec, platform, &image)?;
    Ok(Some(image))
}

/// GPUs that tags of images name, and what their code is for.
const TAGS: [(&str, &str); 9] = [
    ("gb300", "10.3"),
    ("gb200", "10.0"),
    ("b300", "10.3"),
    ("b200", "10.0"),
    ("h200", "9.0"),
    ("h100", "9.0"),
    ("h800", "9.0"),
    ("a100", "8.0"),
    ("a800", "8.0"),
];

fn fits(spec: &Spec, platform: &Platform, image: &str) -> Result<(), RunError> {
    // Code of this project's binary is for every GPU it knows.
    let Some(wanted) = platform.arch.as_deref().filter(|_| spec.engine != Engine::Expertrail) else {
        return Ok(());
    };
    if let Some(given) = &spec.image_arch {
        let list: Vec<&str> = given
            .split([';', ',', ' '])
            .map(|arch| arch.trim_end_matches("+PTX").trim_end_matches('a'))
            .collect();
        if list.contains(&wanted) {
            return Ok(());
        }
        return Err(RunError::Conflict(format!(
            "image_arch = \"{given}\", but {} needs GPU code for {wanted}: every kernel would fail with `no kernel image is available`. \
             Build with TORCH_CUDA_ARCH_LIST={wanted}, or correct profile",
            platform.profile
        )));
    }
    let tag = image.rsplit('/').next().unwrap_or(image).to_lowercase();
    let named =
        TAGS.iter().find(|(gpu, _)| tag.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == *gpu));
    match named {
        Some((gpu, arch)) if *arch != wanted => Err(RunError::Conflict(format!(
            "image {image} is built for {gpu} ({arch}), but {} needs {wanted}: every kernel would fail with `no kernel image is \
             available`. Take the image of the SKU{}, or say image_arch = \"{wanted}\" if its name misleads",
            platform.profile,
            platform.deepep_image.as_ref().map_or_else(String::new, |known| format!(" ({known})")),
        ))),
        _ => Ok(()),
    }
}

/// Kubernetes.
pub(super) fn kubernetes(
    spec: &Spec,
    platform: &Platform,
    profile: &Profile,
    target: Target,
) -> Result<Kubernetes, RunError> {
    let given = &spec.kubernetes;
    let namespace = given.namespace.clone().unwrap_or_else(|| "expertrail".to_owned());
    if matches!(namespace.as_str(), "default" | "kube-system" | "kube-public" | "kube-node-lease") {
        return Err(RunError::Value {
            key: "kubernetes.namespace".to_owned(),
            given: format!("{namespace:?}"),
            reason:
                "a namespace of its own is wanted: what a run leaves behind is then easy to see and to remove"
                    .to_owned(),
        });
    }
    place::name(&namespace, "kubernetes.namespace")?;
    let mut node_selector = given.node_selector.clone();
    if let (Some(instance), Target::Mpijob | Target::K8sJob) = (&platform.instance_type, target) {
        node_selector
            .entry("node.kubernetes.io/instance-type".to_owned())
            .or_insert_with(|| instance.clone());
    }
    let rdma = match (given.rdma_resource.as_deref(), &platform.rdma_resource) {
        (Some(""), _) | (None, None) => None,
        (Some(name), known) => {
            let count = given.rdma_count.or(platform.rdma_count.filter(|_| known.as_deref() == Some(name)));
            let count = count.ok_or_else(|| RunError::Missing {
                key: "kubernetes.rdma_count".to_owned(),
                reason: format!(
                    "how many {name} a node has: `kubectl describe node NODE`, under Allocatable"
                ),
            })?;
            Some((name.to_owned(), count))
        }
        (None, Some(name)) => given.rdma_count.or(platform.rdma_count).map(|count| (name.clone(), count)),
    };
    if let (Some((name, count)), Some(known)) = (&rdma, profile.efa_devices)
        && *count > known
    {
        return Err(RunError::Value {
            key: "kubernetes.rdma_count".to_owned(),
            given: count.to_string(),
            reason: format!(
                "{} has {known} of {name}: the pods would stay Pending",
                platform.instance_type.as_deref().unwrap_or("a node")
            ),
        });
    }
    // Within one node our binary needs no NIC.
    let rdma = rdma.filter(|_| spec.engine != Engine::Expertrail || given.rdma_resource.is_some());
    let hugepages = match given.hugepages_2mi.as_deref() {
        Some("") => None,
        Some(pages) => Some(pages.to_owned()),
        // What the provider's examples reserve; libfabric's efa provider uses them.
        None => profile.huge_pages_2mi.map(|pages| format!("{}Mi", pages * 2)),
    };
    let binary = given.binary.unwrap_or(match (spec.engine, &given.expertrail_image) {
        (Engine::Expertrail, _) => Binary::Image,
        (_, Some(_)) => Binary::Init,
        (_, None) => Binary::Copy,
    });
    if binary == Binary::Init && given.expertrail_image.is_none() {
        return Err(RunError::Missing {
            key: "kubernetes.expertrail_image".to_owned(),
            reason: "binary = \"init\" copies our binary out of it; binary = \"copy\" needs no image of ours"
                .to_owned(),
        });
    }
    Ok(Kubernetes {
        context: given.context.clone(),
        namespace,
        node_selector,
        hostnames: given.hostnames.clone(),
        tolerations: given.tolerations.iter().map(|text| toleration(text)).collect::<Result<_, _>>()?,
        pull_secret: given.pull_secret.clone(),
        cpu: given.cpu.clone().or_else(|| platform.cpu.clone()),
        memory: given.memory.clone().or_else(|| platform.memory.clone()),
        memory_limit: given
            .memory_limit
            .clone()
            .or_else(|| given.memory.clone())
            .or_else(|| platform.memory_limit.clone()),
        shm: given.shm.clone().unwrap_or_else(|| platform.shm.clone()),
        gpu_resource: match given.gpu_resource.as_deref() {
            Some("") => None,
            Some(name) => Some(name.to_owned()),
            None => Some("nvidia.com/gpu".to_owned()),
        },
        rdma,
        hugepages_2mi: hugepages,
        binary,
        expertrail_image: given.expertrail_image.clone(),
        prepull: given.prepull,
        ttl_seconds: given.ttl_seconds.unwrap_or(3600),
        service_account: given.service_account.clone(),
        priority_class: given.priority_class.clone(),
        same_zone: given.same_zone.unwrap_or(platform.kind == Fabric::Efa),
        capabilities: capabilities(spec, profile),
    })
}

/// What the provider's examples ask for. Our own binary traces nobody, and only `DeepEP`'s own tests take their times with a profiler,
/// for which `SYS_ADMIN` is there.
fn capabilities(spec: &Spec, profile: &Profile) -> Vec<String> {
    let mut capabilities = match spec.engine {
        Engine::Expertrail => vec!["IPC_LOCK".to_owned()],
        Engine::Deepep | Engine::Command if profile.capabilities.is_empty() => vec!["IPC_LOCK".to_owned()],
        Engine::Deepep | Engine::Command => profile.capabilities.clone(),
    };
    let profiled = spec.engine == Engine::Deepep && spec.deepep.driver == DeepepDriver::UpstreamTests;
    capabilities.retain(|name| name != "SYS_ADMIN" || profiled);
    capabilities.sort();
    capabilities
}

/// `key`, `key=value`, `key:Effect`, `key=value:Effect`.
fn toleration(text: &str) -> Result<Toleration, RunError> {
    let (rest, effect) = match text.rsplit_once(':') {
        Some((rest, effect)) => (rest, Some(effect)),
        None => (text, None),
    };
    let (key, value) = match rest.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (rest, None),
    };
    let known = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    if key.is_empty() || effect.is_some_and(|effect| !known.contains(&effect)) {
        return Err(RunError::Value {
            key: "kubernetes.tolerations".to_owned(),
            given: format!("{text:?}"),
            reason: format!(
                "wanted key, key=value, key:Effect or key=value:Effect; effects are {}",
                known.join(", ")
            ),
        });
    }
    Ok(Toleration { key: key.to_owned(), value: value.map(str::to_owned), effect: effect.map(str::to_owned) })
}

/// Slurm.
pub(super) fn slurm(spec: &Spec) -> Slurm {
    let given = &spec.slurm;
    Slurm {
        partition: given.partition.clone(),
        account: given.account.clone(),
        qos: given.qos.clone(),
        reservation: given.reservation.clone(),
        nodelist: given.nodelist.clone(),
        constraint: given.constraint.clone(),
        request_gpus: given.request_gpus.unwrap_or(true),
        exclusive: given.exclusive.unwrap_or(true),
        mpi: given
            .mpi
            .clone()
            .unwrap_or_else(|| if given.container_image.is_some() { "pmix" } else { "none" }.to_owned()),
        container_image: given.container_image.clone(),
        container_mounts: given.container_mounts.clone(),
        directory: given.directory.clone(),
        binary: given.binary.clone().unwrap_or_else(|| "expertrail".to_owned()),
    }
}

/// Hosts.
pub(super) fn hosts(spec: &Spec, target: Target, nodes: u32) -> Result<Hosts, RunError> {
    let given = &spec.hosts;
    let used = matches!(target, Target::Mpirun | Target::Ssh | Target::Torchrun);
    if used && !given.names.is_empty() && given.names.len() != nodes as usize {
        return Err(RunError::Conflict(format!(
            "hosts.names has {} names and nodes = {nodes}: name each node once, the first has rank 0",
            given.names.len()
        )));
    }
    let good = |name: &String| {
        !name.is_empty()
            && !name.starts_with('-')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || ".-_:".contains(c))
    };
    if let Some(bad) = given.names.iter().find(|name| !good(name)) {
        let reason = "wanted a host's name or address".to_owned();
        return Err(RunError::Value { key: "hosts.names".to_owned(), given: format!("{bad:?}"), reason });
    }
    // One node is this one, unless somebody says otherwise.
    let here = given.names.is_empty() && nodes == 1;
    let placeholders = given.names.is_empty() && !here;
    let names = match (here, placeholders) {
        (true, _) => vec!["localhost".to_owned()],
        (_, true) => (0..nodes).map(|node| format!("HOST{node}")).collect(),
        _ => given.names.clone(),
    };
    Ok(Hosts {
        names,
        placeholders,
        user: given.user.clone(),
        directory: given.directory.clone(),
        binary: given.binary.clone().unwrap_or_else(|| "expertrail".to_owned()),
        mpirun_args: given.mpirun_args.clone(),
        mpirun: given.mpirun.clone().unwrap_or_else(|| "mpirun".to_owned()),
    })
}

/// Sees that a node can give the memory.
pub(super) fn memory(run: &mut Run, spec: &Spec, facts: Option<&Facts>) -> Result<(), RunError> {
    let cluster = matches!(run.target, Target::K8sJob | Target::Mpijob);
    let kubernetes = &run.kubernetes;
    let shm = quantity(&kubernetes.shm, "kubernetes.shm")?;
    let request = kubernetes.memory.as_deref().map(|text| quantity(text, "kubernetes.memory")).transpose()?;
    let limit = kubernetes
        .memory_limit
        .as_deref()
        .map(|text| quantity(text, "kubernetes.memory_limit"))
        .transpose()?;
    if let (Some(request), Some(limit)) = (request, limit)
        && request > limit
    {
        return Err(RunError::Conflict(format!(
            "kubernetes.memory {} is above kubernetes.memory_limit {}: the API refuses such a pod",
            kubernetes.memory.as_deref().unwrap_or_default(),
            kubernetes.memory_limit.as_deref().unwrap_or_default()
        )));
    }
    // Of the providers' own values (both of AWS's examples) there is nothing to change.
    let given = spec.kubernetes.shm.is_some()
        || spec.kubernetes.memory_limit.is_some()
        || spec.kubernetes.memory.is_some();
    if let Some(limit) = limit
        && shm > limit
        && cluster
        && given
    {
        run.notes.push(format!(
            "/dev/shm of {} is above the memory limit {}: what lies in /dev/shm counts as the pod's memory, so it ends at the limit",
            run.kubernetes.shm,
            run.kubernetes.memory_limit.as_deref().unwrap_or_default()
        ));
    }
    let known = match &spec.kubernetes.allocatable_memory {
        Some(text) => {
            Some((quantity(text, "kubernetes.allocatable_memory")?, "kubernetes.allocatable_memory"))
        }
        None => facts
            .and_then(|facts| facts.memory.total.value())
            .map(|bytes| (*bytes, "the node's memory in the facts")),
    };
    if let (Some(request), Some((most, whose))) = (request, known)
        && request > most
        && cluster
    {
        return Err(RunError::Conflict(format!(
            "kubernetes.memory {} is above {whose} ({:.0} GiB): the pods would stay Pending; ask for a little less than Allocatable in \
             `kubectl describe node`",
            run.kubernetes.memory.as_deref().unwrap_or_default(),
            most as f64 / 1_073_741_824.0
        )));
    }
    Ok(())
}

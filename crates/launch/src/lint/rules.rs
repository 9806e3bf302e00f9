//! What each rule says, why, and who says so.

use std::fmt::Write as _;

use super::finding::Severity::{self, Fail, Note, Warn};

/// A rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// `N001`: stable, never used again for something else.
    pub id: &'static str,
    /// How bad a finding is, where nothing makes it better or worse.
    pub severity: Severity,
    /// What it looks for.
    pub title: &'static str,
    /// What happens if it stays.
    pub why: &'static str,
    /// Document or report.
    pub source: &'static str,
}

const GUIDE: &str = "Crusoe, guide to validating DeepEP on managed Kubernetes";
const AWS: &str = "AWS, DeepEP benchmarks on EFA";
const NVSHMEM: &str = "NVSHMEM, environment variables";
const NCCL: &str = "NCCL, environment variables";
const DEEPEP: &str = "DeepEP 567632d, deep_ep/buffer.py";
const TESTS: &str = "DeepEP 567632d, tests/utils.py";
const KUBE: &str = "Kubernetes documentation, Jobs";
const PODS: &str = "Kubernetes API, Pod";
const TORCH: &str = "PyTorch documentation, torchrun";
const SLURM: &str = "Slurm, sbatch and srun";
const OMPI: &str = "Open MPI, mpirun";

macro_rules! rules {
    ($($id:literal $severity:ident $title:literal, $why:literal, $source:expr;)*) => {
        /// All rules, by id.
        pub const RULES: &[Rule] =
            &[$(Rule { id: $id, severity: $severity, title: $title, why: $why, source: $source }),*];
    };
}

rules! {
    "N001" Fail "a list of NICs that NVSHMEM does not read",
        "NVSHMEM reads NVSHMEM_HCA_LIST only with NVSHMEM_ENABLE_NIC_PE_MAPPING=1 and otherwise chooses by itself: the list does nothing, and ranks may share a NIC.", NVSHMEM;
    "N002" Fail "one list of NICs for all ranks of a node",
        "DeepEP starts an NVSHMEM world for each rail, in which every process is number 0 of its node: with a common list all of them take its first NIC, and the run crawls without an error.", GUIDE;
    "N003" Fail "NVSHMEM_HCA_OFFSET is read and not set",
        "The script ends at once with `NVSHMEM_HCA_OFFSET must be set`.", GUIDE;
    "N004" Fail "an offset of other nodes",
        "Ranks are pinned to the frontend NIC or to devices that do not exist. Nothing reports it: the run reaches single-digit GB/s.", GUIDE;
    "N005" Fail "a list of rails that begins elsewhere than the offset",
        "NCCL or UCX and the pinned ranks use different devices: one of the two is not on the rails.", GUIDE;
    "N006" Fail "a prefix that only NCCL knows",
        "NCCL_IB_HCA takes a leading `=` for exact names. UCX and NVSHMEM take it for a part of the first name and find no such device.", "Nebius documentation, InfiniBand devices";
    "N007" Warn "a UCX device without its port",
        "UCX names RDMA devices with their port; without one it reports that the device is not available, or uses TCP.", "UCX, UCX_NET_DEVICES";
    "N008" Warn "a device twice in a list",
        "Two GPUs share a NIC and another stays idle.", GUIDE;
    "N009" Fail "device names that NVSHMEM passes over",
        "NVSHMEM looks only at devices whose names begin with NVSHMEM_HCA_PREFIX, mlx5 by default: `not enumerated as an mlx5 device`, and no transport.", NVSHMEM;
    "N010" Fail "a device that is no rail of these nodes",
        "A frontend or virtual device carries the traffic of a rank at a fraction of the bandwidth, or none.", GUIDE;
    "N011" Warn "not as many NICs as GPUs",
        "Each GPU has a rail of its own on these nodes; a list of another length leaves some unused or shared.", GUIDE;
    "N012" Note "names that NCCL takes for beginnings of names",
        "Without a leading `=` NCCL takes each name for the beginning of a name: mlx5_1 also means mlx5_10 and on, among them devices that are no rails.", NCCL;
    "N020" Fail "IBGDA beside libfabric",
        "EFA has no IBGDA, and InfiniBand needs no libfabric: NVSHMEM starts both, and one of them cannot come up.", AWS;
    "N021" Fail "a transport that NVSHMEM does not have",
        "Initialisation ends with an unknown transport.", NVSHMEM;
    "N022" Fail "half of EFA's variables",
        "Without NVSHMEM_REMOTE_TRANSPORT=libfabric and its provider NVSHMEM tries InfiniBand, finds none on EFA nodes, and the first dispatch ends in `CPU recv timeout`. (An image may have them built in.)", AWS;
    "N023" Fail "NCCL without RDMA",
        "NCCL then uses TCP sockets between nodes, at a small part of the bandwidth.", NCCL;
    "N024" Warn "a variable as a cure for the driver's settings",
        "It chooses where queues lie. It replaces neither the driver's parameters nor its modules, and hides which node is wrong.", GUIDE;
    "N025" Note "a variable that DeepEP sets itself",
        "DeepEP writes it before it starts NVSHMEM: the value here has no effect.", DEEPEP;
    "N026" Warn "two service levels",
        "The provider's fabric has one level for this traffic; NCCL and NVSHMEM on different ones are routed and slowed differently.", GUIDE;
    "N027" Warn "several interfaces for one exchange",
        "Where an interface is missing on a node its library waits or fails at the start, while the others come up.", GUIDE;
    "N028" Fail "address families that disagree",
        "The families are AF_INET and AF_INET6, and all ranks and libraries must use the one that the interface has: `No socket interface found`.", NVSHMEM;
    "N029" Warn "NVSHMEM's bootstrap without an interface",
        "NVSHMEM chooses an interface by itself, which may be one that other nodes cannot reach, though NCCL was told.", GUIDE;
    "N030" Fail "a variable that is not exported",
        "Only the script itself sees it: the programs that it starts run without it, and say nothing.", "POSIX shell, variables and export";
    "N031" Fail "queues that are too short for the low-latency kernels",
        "DeepEP asserts two entries for each token and one more, at the first low-latency dispatch.", "DeepEP 567632d, Buffer.low_latency_dispatch";
    "N040" Fail "completions and parallelism differ",
        "Pods that do not run at the same time cannot meet: the first ones wait for the rest until they time out.", GUIDE;
    "N041" Fail "numbers of nodes that disagree",
        "The rendezvous waits for nodes that nobody starts, or starts ranks that nobody waits for.", GUIDE;
    "N042" Fail "WORLD_SIZE is not nodes times GPUs",
        "Ranks wait for others that do not exist, or leave some out.", GUIDE;
    "N043" Fail "processes of a node and GPUs differ",
        "A rank without a GPU fails with `invalid device ordinal`; a GPU without a rank stays idle.", GUIDE;
    "N044" Fail "DeepEP's tests started as ranks",
        "DeepEP's own tests start 8 ranks themselves: they take RANK for the node's index and WORLD_SIZE for the number of nodes. Started for each GPU, they wait for ranks that nobody starts.", TESTS;
    "N045" Fail "WORLD_SIZE in nodes for a process of each rank",
        "Ranks get numbers beyond the world's size; NCCL refuses them or hangs.", TORCH;
    "N046" Fail "mpirun's processes and the workers' slots",
        "mpirun finds not enough slots and ends, or leaves workers without a process.", OMPI;
    "N047" Warn "two ports",
        "torchrun takes its own option; a program that reads MASTER_PORT before torchrun sets it meets nobody.", TORCH;
    "N048" Fail "experts that do not divide by ranks",
        "DeepEP asserts that experts divide evenly: `num_experts % num_ranks == 0`. The default of the low-latency test, 288, does not at 64 ranks.", TESTS;
    "N049" Fail "a shape that DeepEP refuses",
        "DeepEP is built for certain numbers of nodes, ranks, SMs and sizes, and asserts them: the benchmark ends at its first call, after all nodes have met.", "DeepEP 567632d, by the rules of `expertrail plan`";
    "N060" Fail "an index without completionMode Indexed",
        "Pods have no index: the variable is empty, or the pod is not created.", KUBE;
    "N061" Note "the index read from a label",
        "The label exists from Kubernetes 1.28 on. JOB_COMPLETION_INDEX is in every pod of an indexed Job, and the annotation of the same name is older too.", KUBE;
    "N062" Warn "a benchmark that is repeated by itself",
        "A pod that starts again meets peers that are gone, and the log of the failure is replaced.", GUIDE;
    "N063" Fail "a restart policy that Jobs do not have",
        "The API server refuses it: OnFailure and Never are the ones for Jobs.", KUBE;
    "N064" Note "logs that vanish",
        "Pods and their logs are deleted so many seconds after the Job has ended.", GUIDE;
    "N065" Note "a name that every run has",
        "The spec of a Job cannot be changed: a second apply over an old one fails.", GUIDE;
    "N066" Fail "a namespace that is not the run's",
        "Objects of a run among those of others or of the system are hard to delete without harm.", GUIDE;
    "N067" Warn "pods that may share a node",
        "Two pods on a node measure NVLink where the network was meant.", GUIDE;
    "N068" Fail "an image for other GPUs",
        "Images are compiled for one architecture: `named symbol not found` or `no kernel image is available` at the first kernel.", GUIDE;
    "N069" Note "an image for one kind of GPU and pods for all",
        "In clusters with several kinds of GPUs the pods may get nodes that the image was not built for.", GUIDE;
    "N070" Fail "the value of a variable is no string",
        "The API server refuses it: cannot unmarshal number into a field of type string.", PODS;
    "N071" Warn "a variable twice",
        "The last entry counts, and nothing tells that there was another.", PODS;
    "N072" Fail "a shell's variable where no shell is",
        "Without a shell $NAME is passed on as it stands. Kubernetes itself fills in $(NAME).", PODS;
    "N073" Fail "hostNetwork without the cluster's DNS",
        "Such a pod resolves names as its node does, and finds no Service: `Could not resolve hostname`.", "aws-samples/aws-do-eks#33";
    "N074" Warn "a private registry without a pull secret",
        "The pods stay in ImagePullBackOff: `no basic auth credentials`.", GUIDE;
    "N075" Warn "a registry URI without the project",
        "Repositories of this registry carry the first 8 characters of the project id; without them the pull is refused.", GUIDE;
    "N076" Note "an image without a version",
        "Nodes may run different images under one name.", GUIDE;
    "N080" Fail "/dev/shm is too small",
        "A container has 64 MiB: NCCL fails with `No space left on device` while it makes its segments.", "NVIDIA/nccl#525";
    "N081" Fail "no RDMA devices",
        "The pod sees no NIC of the rails: NCCL uses TCP and IBGDA does not come up.", GUIDE;
    "N082" Warn "no IPC_LOCK",
        "Without it registered memory is held to the limit of locked memory, which is small by default: `Cannot allocate memory` when buffers are registered.", GUIDE;
    "N083" Note "more rights than are needed",
        "RDMA needs IPC_LOCK and devices. SYS_ADMIN serves profilers only, where the driver keeps counters for administrators.", AWS;
    "N084" Fail "a topology file that the container does not have",
        "NCCL ends with `Could not open XML topology file`, or guesses the topology.", GUIDE;
    "N085" Note "a folder of the host that is made where it is missing",
        "An empty folder is mounted instead of an error; with type: Directory the pod says which node lacks it.", GUIDE;
    "N086" Fail "requests and limits that do not go together",
        "The API server refuses it: extended resources and huge pages need equal requests and limits, others no request above the limit.", PODS;
    "N087" Note "no memory is asked for",
        "The pod may land on a node without the memory for its buffers and be killed there.", GUIDE;
    "N088" Fail "not the EFA devices of this instance type",
        "With more than the node has the pod stays Pending; with fewer, or none, some GPUs have no NIC of their own.", AWS;
    "N089" Warn "EFA without huge pages",
        "libfabric's EFA provider takes huge pages for its buffers; the provider's examples ask for 5120Mi.", AWS;
    "N090" Warn "no Service for the pods' names",
        "Without a headless Service of the subdomain's name no pod's name resolves: the peers end before the first rank waits for them.", "meta-pytorch/torchx#541";
    "N091" Fail "a Service that hides its pods",
        "Pods have names of their own only under a headless Service.", GUIDE;
    "N092" Warn "names that come too late",
        "Names appear only when pods are ready; peers that ask before that fail, and the first rank waits in vain.", "meta-pytorch/torchx#541";
    "N093" Fail "subdomain and Service differ",
        "A pod has a name of its own only if its subdomain is the name of a headless Service.", GUIDE;
    "N094" Fail "a Service that selects other pods",
        "No name resolves: the Service has no endpoints.", GUIDE;
    "N095" Fail "Service and pods in different namespaces",
        "A Service knows the pods of its own namespace only.", GUIDE;
    "N096" Fail "an address that no first pod has",
        "Every rank waits for a host that does not exist, until the rendezvous times out.", GUIDE;
    "N097" Fail "torchrun does not know the first node",
        "torchrun takes the address from --master_addr, 127.0.0.1 by default, and not from MASTER_ADDR: each node waits for itself.", TORCH;
    "N098" Fail "torchrun does not know its node",
        "--node_rank is 0 by default: every node takes itself for the first.", TORCH;
    "N099" Note "the wait for other pods is the default one",
        "Image pulls differ by minutes; where the first pod gives up before the last arrives the run fails. The guide waits 900 s.", GUIDE;
    "N100" Fail "an MPIJob of another version",
        "The operator of today serves kubeflow.org/v2beta1; fields of v1 and v1alpha are elsewhere.", AWS;
    "N101" Fail "variables that the ranks do not get",
        "Workers are started by ssh and inherit neither the launcher's nor the image's variables: what -x does not name is not there.", AWS;
    "N102" Warn "workers that keep their GPUs",
        "Workers run on after the launcher has ended, until somebody deletes them.", AWS;
    "N103" Fail "a launcher that does not wait",
        "The launcher starts before the workers' names and ssh exist: `Could not resolve hostname`, and each try costs one of backoffLimit.", "kubeflow/mpi-operator#481";
    "N104" Fail "DeepEP's test without MASTER_ADDR",
        "The tests take 127.0.0.1 where it is not set: each node waits for itself.", TESTS;
    "N105" Fail "mpirun as root",
        "Open MPI refuses to run as root without it, and containers do by default.", OMPI;
    "N106" Warn "all ranks of a node on one core",
        "mpirun binds each process, and what it starts inherits that: 8 ranks share a core or a socket, and figures drop without an error.", AWS;
    "N120" Fail "a first host that is cut out of a folded list",
        "Slurm folds lists of hosts: of node[01-04] nothing before the comma is a name of a host. It works with hosts of unlike names only.", AWS;
    "N121" Fail "a torchrun for each rank",
        "Every task starts all ranks of the node: GPUs are taken several times.", TORCH;
    "N122" Note "nodes that others share",
        "Jobs of others on the nodes take NICs and memory bandwidth, and figures vary.", AWS;
    "N123" Fail "an #SBATCH line that is not read",
        "sbatch stops reading options at the first command: the line is a comment.", SLURM;
    "N124" Note "PMIx for a program without MPI",
        "It needs Slurm's PMIx plugin, and srun ends at once where that is missing; Python alone does not use it.", SLURM;
    "N125" Note "devices in the container",
        "enroot's hook mounts GPUs and, with MELLANOX_VISIBLE_DEVICES, InfiniBand; /dev/gdrdrv is mounted by GDRCopy's hook or not at all.", AWS;
    "N126" Warn "ranks that see one GPU each",
        "Ranks that see only their own GPU cannot open their neighbours' memory: `invalid device ordinal`, or peer access fails.", "CliMA/slurm-buildkite#54";
    "N127" Warn "mpirun inside srun's container",
        "mpirun looks for ssh in the container and does not use the allocation: `Host key verification failed`.", "NVIDIA/pyxis#164";
    "N128" Warn "an export list that drops the rest",
        "Only the named variables reach the tasks: HOME, PATH and all that the script exports are gone, and enroot ends with `HOME: unbound variable`.", "NVIDIA/pyxis#101";
    "N129" Warn "a job without GPUs",
        "Where Slurm hands out GPUs a job that asks for none sees none: `no CUDA-capable device is detected`.", SLURM;
    "N130" Fail "a script without an interpreter",
        "sbatch refuses it: `This does not look like a batch script`.", SLURM;
    "N140" Fail "driver parameters under another key",
        "The driver container reads the key nvidia.conf of the ConfigMap; another is passed over.", GUIDE;
    "N141" Fail "driver parameters are missing",
        "IBGDA needs both: without them `cudaHostRegister with IoMemory failed with error=800`.", GUIDE;
    "N142" Fail "a driver with a part of the settings",
        "gdrcopy, rdma and kernelModuleConfig go together: with a part of them the driver comes up and IBGDA fails at run time.", GUIDE;
    "N143" Fail "a ConfigMap that the driver does not find",
        "The driver loads without the parameters, or its pods do not start.", GUIDE;
    "N150" Warn "a variable that nobody reads",
        "Libraries pass over names that they do not know, and say nothing.", NVSHMEM;
    "N151" Note "quotes in a file of variables",
        "docker --env-file and podman keep quotes as a part of the value; a shell drops them.", "Docker documentation, docker run --env-file";
    "N160" Note "values that are filled in later",
        "Nothing can be said of them here.", "expertrail lint";
}

/// The rule with this id.
pub(super) fn find(id: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.id == id)
}

/// All rules for people.
pub fn text() -> String {
    let mut out = String::new();
    for rule in RULES {
        let _ = writeln!(
            out,
            "{} {:<4} {}\n     {} [{}]",
            rule.id, rule.severity, rule.title, rule.why, rule.source
        );
    }
    out
}

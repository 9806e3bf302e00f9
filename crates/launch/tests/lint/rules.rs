//! A case for each rule: edits of a launch file that is right, each `(text that is there, text in its place)`.

use expertrail_launch::lint::Severity::{self, Fail, Note, Warn};

pub(crate) type Edits = &'static [(&'static str, &'static str)];

/// A rule's case.
pub(crate) struct Case {
    pub(crate) id: &'static str,
    pub(crate) severity: Severity,
    /// The file.
    pub(crate) base: &'static str,
    /// What raises it.
    pub(crate) hit: Edits,
    /// A part of the line, after the edits, on which it is raised.
    pub(crate) line: &'static str,
    /// What comes near and is right as far as this rule goes.
    pub(crate) near: Edits,
    /// What looks like it and is another.
    pub(crate) alike: (Edits, &'static str),
}

const GUIDE: &str = "guide-b200.yaml";
const EKS: &str = "eks-internode.yaml";
const TEST: &str = "internode.sbatch";
const RANKS: &str = "ranks.sbatch";
const TORCH: &str = "torchrun.sbatch";
const SHELL: &str = "launch.sh";
const ENV: &str = "ranks.env";
const DRIVER: &str = "driver.yaml";

macro_rules! cases {
    ($($id:literal $severity:ident $base:ident on $line:literal
        hit [$($hit:expr),* $(,)?] near [$($near:expr),* $(,)?] alike $other:literal [$($alike:expr),* $(,)?];)*) => {
        /// All cases.
        pub(crate) fn cases() -> Vec<Case> {
            vec![$(Case {
                id: $id, severity: $severity, base: $base, line: $line,
                hit: &[$($hit),*], near: &[$($near),*], alike: (&[$($alike),*], $other),
            }),*]
        }
    };
}

const B200: &str = "\"mlx5_5:1,mlx5_6:1,mlx5_7:1,mlx5_8:1,mlx5_9:1,mlx5_10:1,mlx5_11:1,mlx5_12:1\"";
const H200: &str = "\"mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1,mlx5_8:1\"";
const MAPPING: &str = "NVSHMEM_ENABLE_NIC_PE_MAPPING=1";
const UCX: &str = "mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1";
const OFFSET: &str = "        - name: NVSHMEM_HCA_OFFSET\n          value: \"5\"\n";
const IMAGE: &str = "ghcr.io/crusoecloud/deepep-tests:b200-torch29-nvshmem345";
const JOB: &str = "kind: Job\nmetadata:\n  name: deepep-bench\n  namespace: deepep-test";
const SUBDOMAIN: &str = "      subdomain: deepep-bench\n";
const LIMITS: &str = "            memory: \"950Gi\"\n            nvidia.com/gpu: \"8\"\n            nvidia.com/hostdev: \"8\"\n";
const REQUESTS: &str =
    "            nvidia.com/gpu: \"8\"\n            nvidia.com/hostdev: \"8\"\n          limits";
const SHM: &str = "        - name: dshm\n          mountPath: /dev/shm\n";
const TOPO: &str = "        - name: topology\n          mountPath: /etc/crusoe\n          readOnly: true\n";
const EFA: &str = "                vpc.amazonaws.com/efa: 16\n";
const PAGES: &str = "                hugepages-2Mi: 5120Mi\n";
const LOOP: &str = "              for host in $hosts; do\n                until ssh -o BatchMode=yes -o ConnectTimeout=3 -o StrictHostKeyChecking=no $host true; do sleep 2; done\n              done\n";
const SRUN: &str = "srun --mpi=pmix --cpu-bind=none \\\n  --container-image ./deepep.sqsh \\\n  --container-mounts=/dev/gdrdrv:/dev/gdrdrv \\\n  bash";
const GPUS: &str = "#SBATCH --gpus-per-node=8\n";
const ALONE: &str = "#SBATCH --exclusive\n";

cases! {
    "N001" Fail ENV on "NVSHMEM_HCA_LIST" hit [(MAPPING, "NVSHMEM_HCA_LIST=mlx5_0:1,mlx5_1:1")]
        near [(MAPPING, "NVSHMEM_ENABLE_NIC_PE_MAPPING=0")]
        alike "N002" [(MAPPING, "NVSHMEM_ENABLE_NIC_PE_MAPPING=1\nNVSHMEM_HCA_LIST=mlx5_0:1,mlx5_1:1")];
    "N002" Warn ENV on "NVSHMEM_HCA_LIST" hit [(MAPPING, "NVSHMEM_ENABLE_NIC_PE_MAPPING=1\nNVSHMEM_HCA_LIST=mlx5_0:1")]
        near [(MAPPING, "NVSHMEM_ENABLE_NIC_PE_MAPPING=1\nNVSHMEM_HCA_LIST=mlx5_$LOCAL_RANK:1")]
        alike "N001" [(MAPPING, "NVSHMEM_ENABLE_NIC_PE_MAPPING=no\nNVSHMEM_HCA_LIST=mlx5_0:1,mlx5_1:1")];
    "N003" Fail GUIDE on "kind: Job" hit [(OFFSET, "")]
        near [(OFFSET, ""), ("os.environ.get('NVSHMEM_HCA_OFFSET')", "'5'")]
        alike "N004" [("value: \"5\"", "value: \"1\"")];
    "N004" Fail GUIDE on "value: \"1\"" hit [("value: \"5\"", "value: \"1\"")]
        near [("value: \"5\"", "value: \"1\""), ("b200-torch29", "torch29"), ("b200-180gb-sxm", "site")]
        alike "N005" [(B200, H200)];
    "N005" Fail GUIDE on "mlx5_1:1,mlx5_2:1" hit [(B200, H200)]
        near [(B200, "\"^mlx5_4\"")]
        alike "N004" [("value: \"5\"", "value: \"1\""), (B200, H200), (B200, H200)];
    "N006" Fail ENV on "UCX_NET" hit [("UCX_NET_DEVICES=", "UCX_NET_DEVICES==")]
        near []
        alike "N007" [("mlx5_0:1,", "mlx5_0,")];
    "N007" Warn ENV on "UCX_NET" hit [("mlx5_3:1,", "mlx5_3,")]
        near [(UCX, "eth0")]
        alike "N006" [("UCX_NET_DEVICES=", "UCX_NET_DEVICES=^")];
    "N008" Warn ENV on "UCX_NET" hit [("mlx5_2:1", "mlx5_1:1")]
        near [("mlx5_2:1", "mlx5_1:2")]
        alike "N007" [("mlx5_2:1", "mlx5_2")];
    "N009" Fail ENV on "NVSHMEM_HCA_LIST" hit [(MAPPING, "NVSHMEM_ENABLE_NIC_PE_MAPPING=1\nNVSHMEM_HCA_LIST=ibp0:1")]
        near [(MAPPING, "NVSHMEM_HCA_PREFIX=ibp\nNVSHMEM_HCA_LIST=ibp0:1")]
        alike "N002" [(MAPPING, "NVSHMEM_ENABLE_NIC_PE_MAPPING=1\nNVSHMEM_HCA_LIST=mlx5_0:1")];
    "N010" Fail GUIDE on "mlx5_4:1" hit [("mlx5_12:1", "mlx5_4:1")]
        near [("value: \"mlx5_5:1", "value: \"=mlx5_5:1")]
        alike "N011" [(",mlx5_12:1", "")];
    "N011" Warn GUIDE on "mlx5_11:1\"" hit [(",mlx5_12:1", "")]
        near [(B200, "\"mlx5\"")]
        alike "N010" [("mlx5_12:1", "mlx5_13:1")];
    "N012" Note ENV on "NCCL_IB_HCA" hit [("NCCL_IB_HCA==", "NCCL_IB_HCA=")]
        near [("NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7", "NCCL_IB_HCA=mlx5_10,mlx5_11")]
        alike "N006" [("UCX_NET_DEVICES=", "UCX_NET_DEVICES==")];
    "N020" Fail SHELL on "export NVSHMEM_IB_ENABLE_IBGDA" hit [("TRANSPORT=ibrc", "TRANSPORT=libfabric")]
        near [("TRANSPORT=ibrc", "TRANSPORT=libfabric"), ("IBGDA=1", "IBGDA=0")]
        alike "N021" [("TRANSPORT=ibrc", "TRANSPORT=ibgda")];
    "N021" Fail SHELL on "TRANSPORT=efa" hit [("TRANSPORT=ibrc", "TRANSPORT=efa")]
        near [("TRANSPORT=ibrc", "TRANSPORT=none")]
        alike "N020" [("TRANSPORT=ibrc", "TRANSPORT=libfabric")];
    "N022" Fail TEST on "FI_PROVIDER=efa" hit [("export NVSHMEM_REMOTE_TRANSPORT=libfabric\n", "")]
        near [("export NVSHMEM_REMOTE_TRANSPORT=libfabric\n", "source ./transport.sh\n")]
        alike "N021" [("TRANSPORT=libfabric", "TRANSPORT=efa")];
    "N023" Fail ENV on "NCCL_IB_DISABLE" hit [("NCCL_IB_TC=106", "NCCL_IB_DISABLE=1")]
        near [("NCCL_IB_TC=106", "NCCL_IB_DISABLE=0")]
        alike "N150" [("NCCL_IB_TC=106", "NCCL_IB_DISABEL=1")];
    "N024" Warn ENV on "NIC_HANDLER" hit [("NCCL_IB_TC=106", "NVSHMEM_IBGDA_NIC_HANDLER=cpu")]
        near [("NCCL_IB_TC=106", "NVSHMEM_DEBUG=INFO")]
        alike "N025" [("NCCL_IB_TC=106", "NVSHMEM_IBGDA_NUM_RC_PER_PE=8")];
    "N025" Note ENV on "NVSHMEM_MAX_TEAMS" hit [("NCCL_IB_TC=106", "NVSHMEM_MAX_TEAMS=8")]
        near [("NCCL_IB_TC=106", "NVSHMEM_QP_DEPTH=2048")]
        alike "N024" [("NCCL_IB_TC=106", "NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE=hostmem")];
    "N026" Warn TORCH on "NVSHMEM_IB_SL" hit [("NVSHMEM_IB_SL=1", "NVSHMEM_IB_SL=0")]
        near [("export NVSHMEM_IB_SL=1\n", "")]
        alike "N030" [("export NVSHMEM_IB_SL=1", "NVSHMEM_IB_SL=0")];
    "N027" Warn GUIDE on "value: \"ib0\"" hit [("GLOO_SOCKET_IFNAME\n          value: \"eth0\"", "GLOO_SOCKET_IFNAME\n          value: \"ib0\"")]
        near [("GLOO_SOCKET_IFNAME\n          value: \"eth0\"", "GLOO_SOCKET_IFNAME\n          value: \"^lo,docker\"")]
        alike "N028" [("GLOO_SOCKET_FAMILY\n          value: \"AF_INET\"", "GLOO_SOCKET_FAMILY\n          value: \"AF_INET6\"")];
    "N028" Fail GUIDE on "IPv4" hit [("GLOO_SOCKET_FAMILY\n          value: \"AF_INET\"", "GLOO_SOCKET_FAMILY\n          value: \"IPv4\"")]
        near [("        - name: GLOO_SOCKET_FAMILY\n          value: \"AF_INET\"\n", "")]
        alike "N027" [("UID_SOCK_IFNAME\n          value: \"eth0\"", "UID_SOCK_IFNAME\n          value: \"eth1\"")];
    "N029" Warn ENV on "NCCL_SOCKET_IFNAME" hit [("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=eth0\n", "")]
        near [("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=eth0\n", ""), ("NCCL_SOCKET_IFNAME=eth0\n", "")]
        alike "N027" [("UID_SOCK_IFNAME=eth0", "UID_SOCK_IFNAME=eth1")];
    "N030" Fail TEST on "FI_PROVIDER=efa" hit [("export FI_PROVIDER=efa", "FI_PROVIDER=efa")]
        near [("export FI_PROVIDER=efa", "FI_PROVIDER=efa\nexport FI_PROVIDER")]
        alike "N022" [("export NVSHMEM_LIBFABRIC_PROVIDER=efa\n", "")];
    "N031" Fail SHELL on "--num-tokens" hit [("test_low_latency.py", "test_low_latency.py --num-tokens 512")]
        near [("test_low_latency.py", "test_low_latency.py --num-tokens 511")]
        alike "N048" [("test_low_latency.py", "test_low_latency.py --num-experts 100")];
    "N040" Fail GUIDE on "parallelism: 1" hit [("parallelism: 2", "parallelism: 1")]
        near [("parallelism: 2", "parallelism: 4"), ("completions: 2", "completions: 4")]
        alike "N041" [("--nnodes=2", "--nnodes=4")];
    "N041" Fail GUIDE on "--nnodes" hit [("--nnodes=2", "--nnodes=4")]
        near [("--nnodes=2", "--nnodes=$NUM_NODES")]
        alike "N042" [("value: \"16\"", "value: \"8\"")];
    "N042" Fail GUIDE on "value: \"24\"" hit [("value: \"16\"", "value: \"24\"")]
        near [("value: \"16\"", "value: \"$(TOTAL)\"")]
        alike "N041" [("NUM_NODES\n          value: \"2\"", "NUM_NODES\n          value: \"4\"")];
    "N043" Fail GUIDE on "--nproc_per_node" hit [("--nproc_per_node=8", "--nproc_per_node=16")]
        near [("--nproc_per_node=8", "--nproc-per-node=gpu")]
        alike "N042" [("value: \"16\"", "value: \"24\"")];
    "N044" Fail TEST on "--ntasks-per-node" hit [("--ntasks-per-node=1", "--ntasks-per-node=8")]
        near [("WORLD_SIZE=$SLURM_NNODES", "WORLD_SIZE=2")]
        alike "N045" [("--ntasks-per-node=1", "--ntasks-per-node=8"), ("/DeepEP/tests/test_internode.py", "bench.py")];
    "N045" Fail RANKS on "SLURM_NNODES" hit [("WORLD_SIZE=$SLURM_NTASKS", "WORLD_SIZE=$SLURM_NNODES")]
        near [("WORLD_SIZE=$SLURM_NTASKS", "WORLD_SIZE=$((SLURM_NNODES * 8))")]
        alike "N044" [("train.py", "/DeepEP/tests/test_internode.py")];
    "N046" Fail EKS on "-np 16" hit [("-np 2", "-np 16")]
        near [("-np 2", "-np $NP")]
        alike "N044" [("-np 2 -N 1", "-np 16 -N 8"), ("slotsPerWorker: 1", "slotsPerWorker: 8")];
    "N047" Warn TORCH on "--master-port" hit [("HEAD_NODE=", "export MASTER_PORT=29500\nHEAD_NODE=")]
        near [("HEAD_NODE=", "export MASTER_PORT=29400\nHEAD_NODE=")]
        alike "N041" [("--nnodes=4", "--nnodes=2")];
    "N048" Fail SHELL on "--num-experts" hit [("test_low_latency.py", "test_low_latency.py --num-experts 100")]
        near [("test_low_latency.py", "test_low_latency.py --num-experts 320")]
        alike "N031" [("test_low_latency.py", "test_low_latency.py --num-tokens 4096")];
    "N049" Fail TEST on "test_internode.py" hit [("--nodes=2", "--nodes=5"), ("test_internode.py", "test_internode.py --num-experts 320")]
        near [("--nodes=2", "--nodes=4")]
        alike "N048" [("test_internode.py", "test_internode.py --num-experts 100")];
    "N060" Fail GUIDE on "completions: 2" hit [("  completionMode: Indexed\n", "")]
        near [("completionMode: Indexed", "completionMode: \"Indexed\"")]
        alike "N040" [("parallelism: 2", "parallelism: 1")];
    "N061" Note GUIDE on "fieldPath" hit []
        near [("metadata.labels", "metadata.annotations")]
        alike "N060" [("metadata.labels", "metadata.annotations"), ("completionMode: Indexed", "completionMode: NonIndexed")];
    "N062" Warn GUIDE on "backoffLimit" hit [("backoffLimit: 0", "backoffLimit: 3")]
        near [("backoffLimit: 0", "backoffLimit: $RETRIES")]
        alike "N063" [("restartPolicy: Never", "restartPolicy: Always")];
    "N063" Fail GUIDE on "restartPolicy" hit [("restartPolicy: Never", "restartPolicy: Always")]
        near [("restartPolicy: Never", "restartPolicy: \"Never\"")]
        alike "N062" [("restartPolicy: Never", "restartPolicy: OnFailure")];
    "N064" Note GUIDE on "ttlSeconds" hit []
        near [("  ttlSecondsAfterFinished: 3600\n", "")]
        alike "N062" [("ttlSecondsAfterFinished: 3600", "activeDeadlineSeconds: 3600"), ("backoffLimit: 0", "backoffLimit: 1")];
    "N065" Note GUIDE on "name: bench2" hit [(JOB, "kind: Job\nmetadata:\n  name: bench2\n  namespace: deepep-test")]
        near [(JOB, "kind: Job\nmetadata:\n  name: deepep-bench-3fa9c1\n  namespace: deepep-test")]
        alike "N096" [(JOB, "kind: Job\nmetadata:\n  generateName: deepep-bench-\n  namespace: deepep-test")];
    "N066" Fail GUIDE on "kube-system" hit [(JOB, "kind: Job\nmetadata:\n  name: deepep-bench\n  namespace: kube-system")]
        near [(JOB, "kind: Job\nmetadata:\n  name: deepep-bench\n  namespace: default-runs")]
        alike "N095" [(JOB, "kind: Job\nmetadata:\n  name: deepep-bench\n  namespace: other")];
    "N067" Warn GUIDE on "topologyKey" hit [("kubernetes.io/hostname", "topology.kubernetes.io/zone")]
        near [("matchLabels:\n                app: deepep-bench", "matchExpressions:\n              - {key: app, operator: In, values: [deepep-bench]}")]
        alike "N094" [("selector:\n    app: deepep-bench", "selector:\n    app: other")];
    "N068" Fail GUIDE on "image: " hit [(SUBDOMAIN, "      subdomain: deepep-bench\n      nodeSelector:\n        nvidia.com/gpu.product: NVIDIA-H200\n")]
        near [(SUBDOMAIN, "      subdomain: deepep-bench\n      nodeSelector:\n        nvidia.com/gpu.product: NVIDIA-B200\n")]
        alike "N069" [];
    "N069" Note GUIDE on "image: " hit []
        near [(SUBDOMAIN, "      subdomain: deepep-bench\n      nodeSelector:\n        nvidia.com/gpu.product: NVIDIA-B200\n")]
        alike "N068" [("nvidia.com/gpu.present", "nvidia.com/gpu.product"), ("\"true\"", "NVIDIA-H200")];
    "N070" Fail GUIDE on "value: 16" hit [("value: \"16\"", "value: 16")]
        near [("value: \"16\"", "value: '16'")]
        alike "N042" [("value: \"16\"", "value: \"24\"")];
    "N071" Warn GUIDE on "- name: NUM_NODES" hit [("- name: NODE_RANK", "- name: \"NUM_NODES\"\n          value: \"2\"\n        - name: NODE_RANK")]
        near [("- name: NODE_RANK", "- name: NUM_NODES_WANTED\n          value: \"2\"\n        - name: NODE_RANK")]
        alike "N150" [("NCCL_MIN_CTAS", "NCCL_MIN_CTSA")];
    "N072" Fail GUIDE on "set -euo pipefail" hit [("[\"/bin/bash\", \"-c\"]", "[\"torchrun\"]")]
        near [("[\"/bin/bash\", \"-c\"]", "[\"sh\", \"-ec\"]")]
        alike "N098" [("            --node_rank=$NODE_RANK \\\n", "")];
    "N073" Fail GUIDE on "hostNetwork" hit [(SUBDOMAIN, "      subdomain: deepep-bench\n      hostNetwork: true\n")]
        near [(SUBDOMAIN, "      subdomain: deepep-bench\n      hostNetwork: true\n      dnsPolicy: ClusterFirstWithHostNet\n")]
        alike "N093" [(SUBDOMAIN, "      subdomain: other\n")];
    "N074" Warn GUIDE on "image: " hit [(IMAGE, "registry.eu.ccr.crusoecloudcompute.com/deepep.1a2b3c4d/bench:b200")]
        near [(IMAGE, "registry.eu.ccr.crusoecloudcompute.com/deepep.1a2b3c4d/bench:b200"), (SUBDOMAIN, "      subdomain: deepep-bench\n      imagePullSecrets: [{name: deepep-pull}]\n")]
        alike "N075" [(IMAGE, "registry.eu.ccr.crusoecloudcompute.com/deepep/bench:b200"), (SUBDOMAIN, "      subdomain: deepep-bench\n      imagePullSecrets: [{name: deepep-pull}]\n")];
    "N075" Warn GUIDE on "image: " hit [(IMAGE, "registry.eu.ccr.crusoecloudcompute.com/deepep/bench:b200")]
        near [(IMAGE, "registry.eu.ccr.crusoecloudcompute.com/deepep.1a2b3c4d/bench:b200")]
        alike "N074" [(IMAGE, "registry.eu.ccr.crusoecloudcompute.com/deepep.1a2b3c4d/bench:b200")];
    "N076" Note GUIDE on "image: " hit [(IMAGE, "ghcr.io/crusoecloud/deepep-tests:latest")]
        near [(IMAGE, "ghcr.io/crusoecloud/deepep-tests@sha256:0123456789abcdef")]
        alike "N074" [(IMAGE, "registry.eu.ccr.crusoecloudcompute.com/deepep.1a2b3c4d/bench:b200")];
    "N080" Fail GUIDE on "- name: bench" hit [(SHM, "")]
        near [(SHM, ""), (SUBDOMAIN, "      subdomain: deepep-bench\n      hostIPC: true\n")]
        alike "N084" [(TOPO, "")];
    "N081" Fail GUIDE on "# here" hit [(REQUESTS, "            nvidia.com/gpu: \"8\"\n          limits"), (LIMITS, "            nvidia.com/gpu: \"8\" # here\n")]
        near [(REQUESTS, "            nvidia.com/gpu: \"8\"\n            rdma/shared: 1\n          limits"), (LIMITS, "            nvidia.com/gpu: \"8\"\n            rdma/shared: 1\n")]
        alike "N086" [(LIMITS, "            nvidia.com/gpu: \"8\"\n")];
    "N082" Warn GUIDE on "securityContext" hit [("[IPC_LOCK, SYS_PTRACE]", "[SYS_PTRACE]")]
        near [("capabilities:\n            add: [IPC_LOCK, SYS_PTRACE]", "privileged: true")]
        alike "N083" [("SYS_PTRACE", "SYS_ADMIN")];
    "N083" Note GUIDE on "SYS_ADMIN" hit [("SYS_PTRACE", "SYS_ADMIN")]
        near [("SYS_PTRACE", "SYS_RESOURCE")]
        alike "N082" [("IPC_LOCK, ", "")];
    "N084" Fail GUIDE on "/etc/crusoe/nccl_topo/" hit [(TOPO, "")]
        near [(TOPO, ""), ("/etc/crusoe/nccl_topo/", "/opt/topology/")]
        alike "N080" [(SHM, "")];
    "N085" Note GUIDE on "path: /etc/crusoe" hit [("          type: Directory\n", "")]
        near [("type: Directory", "type: \"Directory\"")]
        alike "N084" [("mountPath: /etc/crusoe", "mountPath: /etc/crusoe2")];
    "N086" Fail GUIDE on "hostdev: \"4\"" hit [("hostdev: \"8\"", "hostdev: \"4\"")]
        near [("memory: \"900Gi\"", "memory: \"950Gi\"")]
        alike "N081" [(REQUESTS, "            nvidia.com/gpu: \"8\"\n          limits"), (LIMITS, "            nvidia.com/gpu: \"8\"\n")];
    "N087" Note GUIDE on "        resources:" hit [("            memory: \"900Gi\"\n", ""), ("            memory: \"950Gi\"\n", "")]
        near [("            memory: \"900Gi\"\n", "")]
        alike "N086" [("memory: \"900Gi\"", "memory: \"960Gi\"")];
    "N088" Fail EKS on "efa: 32 # here" hit [(EFA, "                vpc.amazonaws.com/efa: 32\n"), (EFA, "                vpc.amazonaws.com/efa: 32 # here\n")]
        near [(EFA, "                vpc.amazonaws.com/efa: 32\n"), (EFA, "                vpc.amazonaws.com/efa: 32\n"), ("p5en.48xlarge", "p5.48xlarge"), ("p5en.48xlarge", "p5.48xlarge")]
        alike "N089" [(PAGES, ""), (PAGES, "")];
    "N089" Warn EKS on "efa: 16 # here" hit [(PAGES, ""), (PAGES, ""), (EFA, "                vpc.amazonaws.com/efa: \"16\"\n"), (EFA, "                vpc.amazonaws.com/efa: 16 # here\n")]
        near [(PAGES, "                hugepages-1Gi: 5Gi\n"), (PAGES, "                hugepages-1Gi: 5Gi\n")]
        alike "N088" [(EFA, "                vpc.amazonaws.com/efa: 8\n"), (EFA, "                vpc.amazonaws.com/efa: 8\n")];
    "N090" Warn GUIDE on "subdomain:" hit [("kind: Service", "kind: EndpointSlice")]
        near []
        alike "N093" [("name: deepep-bench", "name: other")];
    "N091" Fail GUIDE on "clusterIP" hit [("clusterIP: None", "clusterIP: 10.0.0.9")]
        near [("clusterIP: None", "clusterIP: \"None\"")]
        alike "N092" [("publishNotReadyAddresses: true", "publishNotReadyAddresses: false")];
    "N092" Warn GUIDE on "publishNotReadyAddresses" hit [("publishNotReadyAddresses: true", "publishNotReadyAddresses: false")]
        near []
        alike "N091" [("clusterIP: None", "type: ClusterIP")];
    "N093" Fail GUIDE on "subdomain:" hit [(SUBDOMAIN, "      subdomain: bench\n")]
        near [("name: deepep-bench", "name: rv"), (SUBDOMAIN, "      subdomain: rv\n"), ("-0.deepep-bench.", "-0.rv.")]
        alike "N096" [("-0.deepep-bench.", "-0.rv.")];
    "N094" Fail GUIDE on "app: other" hit [("selector:\n    app: deepep-bench", "selector:\n    app: other")]
        near [("selector:\n    app: deepep-bench", "selector:\n    batch.kubernetes.io/job-name: deepep-bench")]
        alike "N095" [("namespace: deepep-test", "namespace: other")];
    "N095" Fail GUIDE on "namespace: other" hit [("namespace: deepep-test", "namespace: other")]
        near []
        alike "N094" [("selector:\n    app: deepep-bench", "selector:\n    app: other")];
    "N096" Fail GUIDE on "MASTER_ADDR=" hit [("deepep-bench-0.", "deepep-bench-2.")]
        near [(".deepep-test.svc.cluster.local", "")]
        alike "N093" [("      subdomain: deepep-bench\n", "")];
    "N097" Fail TORCH on "torchrun" hit [("  --master-addr=$HEAD_NODE \\\n", "")]
        near [("  --master-addr=$HEAD_NODE \\\n", "  --rdzv-endpoint=$HEAD_NODE:29400 \\\n")]
        alike "N098" [("  --node-rank=\\$SLURM_NODEID \\\n", "")];
    "N098" Fail TORCH on "torchrun" hit [("  --node-rank=\\$SLURM_NODEID \\\n", "")]
        near [("  --node-rank=\\$SLURM_NODEID \\\n", "  --rdzv-backend=c10d --rdzv-endpoint=$HEAD_NODE:29400 \\\n")]
        alike "N097" [("  --master-addr=$HEAD_NODE \\\n", "")];
    "N099" Note GUIDE on "torchrun \\" hit [("            --rdzv_conf=timeout=900 \\\n", "")]
        near [("timeout=900", "join_timeout=900")]
        alike "N097" [("            --master_addr=$MASTER_ADDR \\\n", "")];
    "N100" Fail EKS on "apiVersion" hit [("kubeflow.org/v2beta1", "kubeflow.org/v1")]
        near []
        alike "N102" [("cleanPodPolicy: Running", "cleanPodPolicy: None")];
    "N101" Fail EKS on "openmpi/bin/mpirun" hit [("                -x FI_PROVIDER=efa \\\n", "")]
        near [("-x FI_PROVIDER=efa", "-x FI_PROVIDER")]
        alike "N104" [("-x MASTER_ADDR ", "")];
    "N102" Warn EKS on "cleanPodPolicy" hit [("cleanPodPolicy: Running", "cleanPodPolicy: None")]
        near [("cleanPodPolicy: Running", "cleanPodPolicy: All")]
        alike "N100" [("kubeflow.org/v2beta1", "kubeflow.org/v1alpha2")];
    "N103" Warn EKS on "openmpi/bin/mpirun" hit [(LOOP, "")]
        near [(LOOP, ""), ("  slotsPerWorker: 1", "  slotsPerWorker: 1\n  launcherCreationPolicy: WaitForWorkersReady")]
        alike "N105" [("--allow-run-as-root ", "")];
    "N104" Fail SHELL on "test_low_latency.py" hit [("  -x MASTER_ADDR=node-a \\\n", "")]
        near [("  -x MASTER_ADDR=node-a \\\n", ""), ("'RANK=", "'MASTER_ADDR=node-a RANK=")]
        alike "N096" [("MASTER_ADDR=node-a", "MASTER_ADDR=127.0.0.1")];
    "N105" Fail EKS on "openmpi/bin/mpirun" hit [("--allow-run-as-root ", "")]
        near [("--allow-run-as-root ", ""), ("export MASTER_ADDR", "export OMPI_ALLOW_RUN_AS_ROOT=1\n              export MASTER_ADDR")]
        alike "N103" [(LOOP, "")];
    "N106" Warn EKS on "openmpi/bin/mpirun" hit [(" --bind-to none", "")]
        near [(" --bind-to none", " --bind-to=none")]
        alike "N046" [("-np 2", "-np 16")];
    "N120" Fail TEST on "MASTER_ADDR" hit [("$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n1)", "${SLURM_NODELIST%%,*}")]
        near [("hostnames \"$SLURM_JOB_NODELIST\"", "hostname ${SLURM_NODELIST}")]
        alike "N104" [("export MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n1)\n", "")];
    "N121" Fail TORCH on "--ntasks-per-node" hit [("--ntasks-per-node=1", "--ntasks-per-node=8")]
        near [("--ntasks-per-node=1", "--ntasks-per-node=8"), ("srun --mpi=none", "srun --ntasks-per-node=1 --mpi=none")]
        alike "N126" [(GPUS, "#SBATCH --gpus-per-task=1\n")];
    "N122" Note TEST on "--job-name" hit [(ALONE, "")]
        near [(ALONE, "#SBATCH --exclusive=user\n")]
        alike "N123" [("#SBATCH --exclusive\nset -euo pipefail", "set -euo pipefail\n#SBATCH --exclusive")];
    "N123" Fail TEST on "--exclusive" hit [("#SBATCH --exclusive\nset -euo pipefail", "set -euo pipefail\n#SBATCH --exclusive")]
        near [(ALONE, "\n# Nobody else.\n#SBATCH --exclusive\n")]
        alike "N122" [(ALONE, "")];
    "N124" Note RANKS on "--mpi=pmix" hit [("--mpi=none", "--mpi=pmix")]
        near [("--mpi=none", "--mpi=pmix"), ("python3 train.py", "./train")]
        alike "N127" [("--mpi=none", "--mpi=none --container-image a.sqsh"), ("python3 train.py", "mpirun train")];
    "N125" Note TEST on "--container-image" hit [("  --container-mounts=/dev/gdrdrv:/dev/gdrdrv \\\n", "")]
        near [("/dev/gdrdrv:/dev/gdrdrv", "/dev:/dev,/data:/data")]
        alike "N127" [("RANK=$SLURM_PROCID python3", "mpirun python3")];
    "N126" Warn RANKS on "--gpus-per-task" hit [(GPUS, "#SBATCH --gpus-per-task=1\n")]
        near [(GPUS, "#SBATCH --gpus-per-task=8\n")]
        alike "N129" [(GPUS, ""), (ALONE, "")];
    "N127" Warn TEST on "srun" hit [("RANK=$SLURM_PROCID python3", "mpirun python3")]
        near [(SRUN, "mpirun -N 1 bash")]
        alike "N125" [("  --container-mounts=/dev/gdrdrv:/dev/gdrdrv \\\n", "")];
    "N128" Warn RANKS on "--export" hit [("srun --mpi", "srun --export=NCCL_DEBUG=INFO --mpi")]
        near [("srun --mpi", "srun --export=ALL,NCCL_DEBUG=INFO --mpi")]
        alike "N124" [("--mpi=none", "--mpi=pmi2")];
    "N129" Warn RANKS on "--job-name" hit [(GPUS, ""), (ALONE, "")]
        near [(GPUS, "#SBATCH --gres=gpu:8\n"), (ALONE, "")]
        alike "N122" [(ALONE, "")];
    "N130" Fail TEST on "--job-name" hit [("#!/bin/bash\n", "")]
        near [("#!/bin/bash", "#!/bin/sh")]
        alike "N123" [("#SBATCH --exclusive\nset -euo pipefail", "set -euo pipefail\n#SBATCH --exclusive")];
    "N140" Fail DRIVER on "params.conf" hit [("nvidia.conf:", "params.conf:")]
        near [("nvidia.conf: |", "nvidia.conf: |-")]
        alike "N141" [("    NVreg_EnableStreamMemOPs=1\n", "")];
    "N141" Fail DRIVER on "nvidia.conf" hit [("PeerMappingOverride=1", "PeerMappingOverride=0")]
        near [("PeerMappingOverride=1", "RMOther=2;PeerMappingOverride=1;")]
        alike "N140" [("nvidia.conf:", "kernel.conf:")];
    "N142" Fail DRIVER on "spec:" hit [("  rdma:\n    enabled: true\n", "")]
        near [("v2.5.1", "v2.5.2")]
        alike "N143" [("    name: nvidia-kernel-params", "    name: kernel-params")];
    "N143" Fail DRIVER on "    name: kernel-params" hit [("    name: nvidia-kernel-params", "    name: kernel-params")]
        near [("    name: nvidia-kernel-params", "    name: own"), ("  name: nvidia-kernel-params", "  name: own")]
        alike "N142" [("  gdrcopy:\n    enabled: true", "  gdrcopy:\n    enabled: false")];
    "N150" Warn ENV on "NCCL_IB_TCC" hit [("NCCL_IB_TC", "NCCL_IB_TCC")]
        near [("NCCL_IB_TC", "NCCL_SITE_PLUGIN_OPTION")]
        alike "N025" [("NCCL_IB_TC=106", "NVSHMEM_DISABLE_P2P=1")];
    "N151" Note ENV on "NCCL_IB_TC" hit [("NCCL_IB_TC=106", "NCCL_IB_TC=\"106\"")]
        near [("NCCL_IB_TC=106", "export NCCL_IB_TC=\"106\"")]
        alike "N150" [("NCCL_IB_TC=106", "NCCL_IB_TX=106")];
    "N160" Note ENV on "NCCL_IB_TC" hit [("NCCL_IB_TC=106", "NCCL_IB_TC=$TC")]
        near [("NCCL_IB_TC=106", "NCCL_IB_TC=105")]
        alike "N151" [("NCCL_IB_TC=106", "NCCL_IB_TC='106'")];
}

/// More ways in which a rule is raised: id, severity, file, edits, a part of the line.
pub(crate) const MORE: &[(&str, Severity, &str, Edits, &str)] = &[
    // A list that the program sets itself is as inert.
    (
        "N001",
        Fail,
        GUIDE,
        &[("NIC_PE_MAPPING\n          value: \"1\"", "NIC_PE_MAPPING\n          value: \"0\"")],
        "os.environ['NVSHMEM_HCA_LIST']",
    ),
    (
        "N002",
        Fail,
        EKS,
        &[("-x FI_PROVIDER=efa", "-x NVSHMEM_ENABLE_NIC_PE_MAPPING=1 -x NVSHMEM_HCA_LIST=mlx5_0:1")],
        "-x NVSHMEM_HCA_LIST",
    ),
    // The product alone says nothing certain of the numbering.
    (
        "N004",
        Warn,
        GUIDE,
        &[
            ("ghcr.io/crusoecloud", "ghcr.io/example"),
            ("/etc/crusoe/nccl_topo", "/opt/topo"),
            ("path: /etc/crusoe", "path: /etc/site"),
            ("value: \"5\"", "value: \"0\""),
        ],
        "value: \"0\"",
    ),
    (
        "N002",
        Fail,
        TEST,
        &[(
            "export FI_PROVIDER",
            "export NVSHMEM_ENABLE_NIC_PE_MAPPING=1\nexport NVSHMEM_HCA_LIST=${NVSHMEM_HCA_LIST:-mlx5_0,mlx5_1}\nexport FI_PROVIDER",
        )],
        "NVSHMEM_HCA_LIST",
    ),
    ("N022", Fail, TEST, &[("export NVSHMEM_LIBFABRIC_PROVIDER=efa\n", "")], "REMOTE_TRANSPORT"),
    ("N023", Fail, TEST, &[("export FI_PROVIDER=efa", "export NCCL_IB_DISABLE=1")], "NCCL_IB_DISABLE"),
    ("N024", Note, ENV, &[("NCCL_IB_TC=106", "NVSHMEM_IBGDA_NIC_HANDLER=gpu")], "NIC_HANDLER"),
    (
        "N031",
        Fail,
        SHELL,
        &[("export NCCL_SOCKET", "export NVSHMEM_QP_DEPTH=64\nexport NCCL_SOCKET")],
        "QP_DEPTH",
    ),
    ("N043", Warn, GUIDE, &[("--nproc_per_node=8", "--nproc_per_node=4")], "--nproc_per_node"),
    (
        "N043",
        Fail,
        GUIDE,
        &[("NUM_GPUS_PER_NODE\n          value: \"8\"", "NUM_GPUS_PER_NODE\n          value: \"10\"")],
        "value: \"10\"",
    ),
    // DeepEP's own test as the guide's script is started.
    (
        "N044",
        Fail,
        GUIDE,
        &[("            /tmp/rank.py", "            /DeepEP/tests/test_internode.py")],
        "--nproc_per_node",
    ),
    ("N044", Fail, TEST, &[("WORLD_SIZE=$SLURM_NNODES", "WORLD_SIZE=16")], "WORLD_SIZE=16"),
    ("N041", Fail, TEST, &[("srun --mpi", "srun -N 4 --mpi")], "srun -N 4"),
    ("N046", Fail, EKS, &[("-np 2 -N 1", "-np 4 -N 2")], "-np 4"),
    // The default of the low-latency test, 288, does not divide by 64.
    (
        "N048",
        Fail,
        TEST,
        &[("--nodes=2", "--nodes=8"), ("test_internode.py", "test_low_latency.py")],
        "test_low_latency.py",
    ),
    ("N062", Warn, GUIDE, &[("  backoffLimit: 0\n", "")], "  completions: 2"),
    ("N063", Fail, GUIDE, &[("      restartPolicy: Never\n", "")], "      subdomain"),
    ("N064", Warn, GUIDE, &[("ttlSecondsAfterFinished: 3600", "ttlSecondsAfterFinished: 60")], "ttlSeconds"),
    (
        "N066",
        Warn,
        GUIDE,
        &[(JOB, "kind: Job\nmetadata:\n  name: deepep-bench\n  namespace: default")],
        "namespace: default",
    ),
    ("N066", Note, EKS, &[("  namespace: deepep\n", "")], "name: deepep-internode"),
    (
        "N067",
        Warn,
        GUIDE,
        &[("matchLabels:\n                app: deepep-bench", "matchLabels:\n                app: bench")],
        "app: bench",
    ),
    (
        "N067",
        Warn,
        EKS,
        &[("nvidia.com/gpu: 8", "nvidia.com/gpu: 4"), ("nvidia.com/gpu: 8", "nvidia.com/gpu: 4")],
        "kind: MPIJob",
    ),
    ("N076", Warn, GUIDE, &[("imagePullPolicy: Always", "imagePullPolicy: Never")], "imagePullPolicy"),
    ("N080", Warn, GUIDE, &[("sizeLimit: 64Gi", "sizeLimit: 1Gi")], "sizeLimit"),
    ("N080", Fail, GUIDE, &[("          medium: Memory\n", "")], "mountPath: /dev/shm"),
    (
        "N083",
        Note,
        GUIDE,
        &[("capabilities:\n            add: [IPC_LOCK, SYS_PTRACE]", "privileged: true")],
        "privileged",
    ),
    ("N086", Fail, GUIDE, &[("memory: \"900Gi\"", "memory: \"960Gi\"")], "960Gi"),
    (
        "N088",
        Warn,
        EKS,
        &[
            (EFA, "                vpc.amazonaws.com/efa: \"8\"\n"),
            (EFA, "                vpc.amazonaws.com/efa: 8\n"),
        ],
        "efa: 8",
    ),
    ("N088", Fail, EKS, &[(EFA, ""), (EFA, "")], "instance-type"),
    ("N093", Fail, GUIDE, &[(SUBDOMAIN, "")], "    spec:"),
    (
        "N096",
        Fail,
        GUIDE,
        &[("deepep-test.svc.cluster.local\"", "other.svc.cluster.local\"")],
        "MASTER_ADDR=",
    ),
    ("N096", Warn, GUIDE, &[("deepep-bench-0.", "deepep-bench-1.")], "MASTER_ADDR="),
    ("N097", Fail, GUIDE, &[("            --master_addr=$MASTER_ADDR \\\n", "")], "torchrun \\"),
    // Ranks that ssh starts have nothing of what the script exports.
    ("N101", Fail, SHELL, &[("-x NVSHMEM_IB_ENABLE_IBGDA ", "")], "mpirun"),
    ("N101", Warn, SHELL, &[("-x LD_LIBRARY_PATH ", "")], "mpirun"),
    ("N103", Fail, EKS, &[(LOOP, ""), ("backoffLimit: 3", "backoffLimit: 0")], "openmpi/bin/mpirun"),
    ("N104", Fail, EKS, &[("-x MASTER_ADDR ", "")], "test_internode.py"),
    (
        "N120",
        Fail,
        TEST,
        &[(
            "$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n1)",
            "$(echo $SLURM_NODELIST | cut -d, -f1)",
        )],
        "MASTER_ADDR",
    ),
    ("N126", Warn, RANKS, &[("srun --mpi", "srun --gpus-per-task=1 --mpi")], "srun"),
    (
        "N143",
        Fail,
        DRIVER,
        &[("namespace: nvidia-gpu-operator", "namespace: gpu-operator")],
        "namespace: gpu-operator",
    ),
];

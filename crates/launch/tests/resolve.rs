//! A description becomes a run, or an error that says what to change.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use expertrail_launch::run::{Pins, Run, RunError, Target};
use expertrail_launch::spec::Spec;

fn resolve(text: &str, target: Target) -> Result<Run, RunError> {
    Run::resolve(&Spec::parse("run.toml", text, &[]).unwrap(), target, None, None)
}

fn error(text: &str, target: Target) -> String {
    resolve(text, target).unwrap_err().to_string()
}

const DEEPEP: &str = "name = \"a\"\nengine = \"deepep\"\n";

/// Checklist 16, 33, 35: six values differ between the two SKUs, and nothing else.
#[test]
fn checklist_35_h200_and_b200_differ_in_six_values() {
    let b200 = resolve(&format!("{DEEPEP}profile = \"crusoe-b200\"\n"), Target::K8sJob).unwrap();
    let h200 = resolve(&format!("{DEEPEP}profile = \"crusoe-h200\"\n"), Target::K8sJob).unwrap();
    assert_eq!(b200.image.as_deref(), Some("ghcr.io/crusoecloud/deepep-tests:b200-torch29-nvshmem345"));
    assert_eq!(h200.image.as_deref(), Some("ghcr.io/crusoecloud/deepep-tests:h200-torch29-nvshmem345"));
    assert_eq!((b200.hca_offset, h200.hca_offset), (Some(5), Some(1)));
    assert_eq!(
        (b200.kubernetes.memory.as_deref(), h200.kubernetes.memory.as_deref()),
        (Some("900Gi"), Some("1700Gi"))
    );
    let differing: Vec<&str> = b200
        .env
        .iter()
        .zip(&h200.env)
        .inspect(|(one, other)| assert_eq!(one.name, other.name))
        .filter(|(one, other)| one.value != other.value)
        .map(|(one, _)| one.name.as_str())
        .collect();
    assert_eq!(differing, ["NVSHMEM_HCA_OFFSET", "NCCL_IB_HCA", "UCX_NET_DEVICES", "NCCL_TOPO_FILE"]);
    assert_eq!(
        b200.variable("NCCL_IB_HCA"),
        Some("mlx5_5:1,mlx5_6:1,mlx5_7:1,mlx5_8:1,mlx5_9:1,mlx5_10:1,mlx5_11:1,mlx5_12:1")
    );
    assert_eq!(
        h200.variable("NCCL_TOPO_FILE"),
        Some("/etc/crusoe/nccl_topo/h200-141gb-sxm-ib-cloud-hypervisor.xml")
    );
    assert_eq!(h200.topo_mount.as_deref(), Some("/etc/crusoe"));
    let list: Vec<String> = (1..=8).map(|device| format!("mlx5_{device}:1")).collect();
    assert_eq!(h200.pins, Pins::List(list));
    assert_eq!((b200.ranks(), b200.port, b200.timeout_s), (16, 29_400, 1200));
}

#[test]
fn the_id_follows_from_the_description_alone() {
    let text = format!("{DEEPEP}profile = \"crusoe-h200\"\n");
    let one = resolve(&text, Target::K8sJob).unwrap().id;
    assert_eq!(one, resolve(&text, Target::K8sJob).unwrap().id);
    assert!(one.starts_with("a-") && one.len() == 8, "{one}");
    assert_ne!(
        one,
        resolve(&format!("{text}nodes = 3\nbenchmarks = [\"intranode\"]\n"), Target::K8sJob).unwrap().id
    );
}

/// Section 2: what EFA images need, and no HCA list.
#[test]
fn checklist_27_efa_has_four_transport_variables_and_no_pins() {
    let text = format!("{DEEPEP}profile = \"aws-p5en\"\nimage = \"x/deepep:efa1.48.0\"\n");
    let run = resolve(&text, Target::Mpijob).unwrap();
    for (name, value) in [
        ("FI_PROVIDER", "efa"),
        ("NVSHMEM_REMOTE_TRANSPORT", "libfabric"),
        ("NVSHMEM_LIBFABRIC_PROVIDER", "efa"),
        ("NVSHMEM_NETDEVS_POLICY", "EXTERNAL_SHARING_PCIE_SWITCH_NIC_EXCLUSIVE"),
        ("NCCL_SOCKET_IFNAME", "^docker,lo,veth"),
    ] {
        assert_eq!(run.variable(name), Some(value));
    }
    assert_eq!(run.variable("NVSHMEM_IB_ENABLE_IBGDA"), None);
    assert_eq!((run.pins, run.kubernetes.rdma), (Pins::None, Some(("vpc.amazonaws.com/efa".to_owned(), 16))));
    assert_eq!(run.kubernetes.hugepages_2mi.as_deref(), Some("5120Mi"));
}

#[test]
fn what_cannot_run_is_refused_with_what_to_write() {
    let b200 = format!("{DEEPEP}profile = \"crusoe-b200\"\n");
    for (text, words) in [
        (
            format!("{DEEPEP}profile = \"crusoe-h20\"\n"),
            &["no profile `crusoe-h20`", "did you mean `crusoe-h200`", "--facts", "aws-p5en"][..],
        ),
        (DEEPEP.to_owned(), &["profile is missing", "--facts"]),
        (format!("{b200}nodes = 1\nbenchmarks = [\"internode\"]\n"), &["at least two nodes", "nodes = 2"]),
        (format!("{b200}nodes = 3\n"), &["experts = 128 on 24 ranks", "144"]),
        // The decode test's own 288 experts do not divide by 64 ranks.
        (
            format!(
                "{b200}nodes = 8\nbenchmarks = [\"low-latency\"]\n[deepep]\ndriver = \"upstream-tests\"\n"
            ),
            &["experts = 288 on 64 ranks", "320", "L005"],
        ),
        (
            format!("{b200}gpus_per_node = 4\nbenchmarks = [\"internode\"]\n"),
            &["cannot run benchmark `internode`", "L002", "2 x 4 = 8 ranks"],
        ),
        // 40 ranks: no such number of nodes is built in, and no configuration is for them.
        (
            format!("{b200}nodes = 5\nbenchmarks = [\"internode\"]\n[workload]\nexperts = 160\n"),
            &["L003", "5 nodes (40 ranks)", "L021", "no entry for 40 ranks"],
        ),
        (
            format!("{b200}gpus_per_node = 3\nnodes = 1\n[workload]\nexperts = 129\n"),
            &["L001", "built for 2, 4 and 8"],
        ),
        (format!("{b200}[workload]\nsms = 7\n"), &["L006", "num_sms 7"]),
        // 24 queue pairs are the benchmark's: neither 13 (half of the SMs) nor 26.
        (format!("{b200}[workload]\nsms = 26\n"), &["L008", "num_qps_per_rank 24"]),
        (
            format!("{b200}benchmarks = [\"low-latency\"]\n[workload]\ntokens = 512\n"),
            &["L034", "NVSHMEM_QP_DEPTH 1024 < 2 x (512 + 1) = 1026"],
        ),
        (
            format!("{b200}benchmarks = [\"low-latency\"]\n[workload]\nhidden = 3584\n"),
            &["L031", "hidden 3584"],
        ),
        (format!("{b200}[network]\nport = 0\n"), &["network.port = 0"]),
        (
            format!("{b200}[deepep]\ndriver = \"upstream-tests\"\n[network]\nport = 65535\n"),
            &["network.port = 65535", "1 to 65534"],
        ),
        (
            format!("{DEEPEP}profile = \"generic\"\nimage = \"x/y\"\n"),
            &["which NICs", "--facts", "network.hcas", "network.fabric"],
        ),
        (format!("{b200}image = \"x/y:h200-torch\"\n"), &["built for h200 (9.0)", "needs 10.0"]),
        (format!("{b200}image = \"x/y:z\"\nimage_arch = \"9.0\"\n"), &["needs GPU code for 10.0"]),
        (
            format!("{b200}[kubernetes]\nmemory = \"900Gi\"\nallocatable_memory = \"800Gi\"\n"),
            &["above kubernetes.allocatable_memory", "Pending"],
        ),
        (format!("{b200}[kubernetes]\nnamespace = \"default\"\n"), &["namespace of its own"]),
        (format!("{b200}[network]\nhcas = [\"mlx5_5\"]\n"), &["1 devices for 8 GPUs"]),
        (format!("{b200}gpus_per_node = 1\n[network]\nhcas = [\"mlx5_4\"]\n"), &["mlx5_4 is no rail"]),
        (
            "name = \"a\"\nbenchmarks = [\"internode\"]\n[kubernetes]\nexpertrail_image = \"x\"\n".to_owned(),
            &["not built yet", "engine = \"deepep\""],
        ),
        ("name = \"a\"\n".to_owned(), &["image is missing", "glibc 2.28"]),
        ("name = \"A_b\"\n".to_owned(), &["lower-case"]),
        ("engine = \"command\"\n".to_owned(), &["name is missing"]),
        ("name = \"a\"\nengine = \"command\"\nimage = \"x\"\n".to_owned(), &["command is missing"]),
        (format!("{b200}timeout = \"20 minutes\"\n"), &["\"20m\""]),
    ] {
        let message = error(&text, Target::K8sJob);
        for word in words {
            assert!(message.contains(word), "{word:?} is not in: {message}");
        }
    }
    let message = error("name = \"a\"\n[hosts]\nnames = [\"x\"]\n", Target::Ssh);
    assert!(message.contains("1 names and nodes = 2"), "{message}");
    assert!(resolve("name = \"a\"\n", Target::Slurm).is_ok());
}

#[test]
fn efa_devices_above_the_instance_types_are_refused() {
    let text = format!("{DEEPEP}profile = \"aws-p6-b200\"\nimage = \"x/y\"\n[kubernetes]\nrdma_count = 16\n");
    let message = error(&text, Target::Mpijob);
    assert!(message.contains("p6-b200.48xlarge has 8"), "{message}");
}

/// Whatever a person writes: no shell, no batch script and no terminal takes it for words of its own.
#[test]
fn values_that_would_break_a_script_are_refused_from_descriptions_and_from_files() {
    for (text, word) in [
        ("[env]\n\"A;touch x;B\" = \"1\"\n", "variable's name"),
        ("[env]\n\"1A\" = \"1\"\n", "variable's name"),
        ("[slurm]\naccount = \"x\\n#SBATCH --uid=0\"\n", "account"),
        ("[slurm]\npartition = \"x\\u001b[2J\"\n", "partition"),
        ("[hosts]\ndirectory = \"/tmp/a\\nb\"\n", "directory"),
        ("[network]\nport = 0\n", "port"),
        ("[network]\nservice_level = 16\n[workload]\ntokens = 1\n", ""),
        ("[workload]\niters = 0\n", "workload.iters"),
        ("[workload]\nsms = 500\n", "workload.sms"),
        ("[workload]\ntop_k = 64\n", "workload.top_k"),
        ("[workload]\npreset = \"quik\"\n", "did you mean `quick`"),
        ("[kubernetes]\ncpu = \"lots\"\n", "kubernetes.cpu"),
        ("[kubernetes]\nhugepages_2mi = \"5121Mi\"\n", "multiple of 2Mi"),
        ("[kubernetes.node_selector]\n\"bad key!\" = \"v v\"\n", "node_selector"),
    ] {
        let text = format!("name = \"a\"\nprofile = \"crusoe-h200\"\nengine = \"deepep\"\n{text}");
        let text = if text.contains("preset") { text.replace("deepep", "expertrail") } else { text };
        let message = error(&text, Target::Slurm);
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
    // Arguments of a program may have lines.
    let text = "name = \"a\"\nengine = \"command\"\ncommand = [\"sh\", \"-c\", \"echo\\n\\techo\"]\n";
    let mut run = resolve(text, Target::Slurm).unwrap();
    for (break_it, word) in [
        ((|run: &mut Run| "-rf".clone_into(&mut run.id)) as fn(&mut Run), "id"),
        (|run| "a,b".clone_into(&mut run.id), "id"),
        (|run| run.nodes = 0, "nodes"),
        (|run| run.timeout_s = u64::MAX, "timeout"),
    ] {
        let whole = run.clone();
        break_it(&mut run);
        let message = run.sound().unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
        run = whole;
    }
    assert_eq!(run.sound(), Ok(()));
}

/// Every number of ranks between nodes that V1 has both kernels and a configuration for, by its table; and no other up to 24 nodes.
#[test]
fn deepep_runs_on_the_numbers_of_nodes_that_v1_is_built_for() {
    for nodes in 2..=24_u32 {
        let ranks = nodes * 8;
        let text = format!(
            "{DEEPEP}profile = \"crusoe-h200\"\nnodes = {nodes}\nbenchmarks = [\"internode\"]\n[workload]\nexperts = {}\nhidden = 2048\n",
            ranks * 2
        );
        let works = [16, 24, 32, 48, 64, 96, 128, 144, 160].contains(&ranks);
        let run = resolve(&text, Target::K8sJob);
        assert_eq!(run.is_ok(), works, "{ranks} ranks: {:?}", run.err());
    }
    // What is only a warning is said.
    let text = format!("{DEEPEP}profile = \"crusoe-h200\"\nnodes = 3\n[workload]\nexperts = 144\n");
    let run = resolve(&text, Target::K8sJob).unwrap();
    assert!(
        run.notes.iter().any(|note| note.contains("L004") && note.contains("older builds")),
        "{:?}",
        run.notes
    );
    // 64 ranks work on EFA's host proxy, 128 do not.
    let efa = |nodes: u32| {
        let text = format!(
            "{DEEPEP}profile = \"aws-p5en\"\nimage = \"x/y\"\nnodes = {nodes}\nbenchmarks = [\"low-latency\"]\n[workload]\nexperts = 384\n"
        );
        resolve(&text, Target::Mpijob)
    };
    assert!(efa(8).is_ok());
    assert!(efa(12).unwrap().notes.iter().any(|note| note.contains("L037")));
    assert!(efa(16).unwrap_err().to_string().contains("L037"));
    // With queues that are long enough the tokens fit.
    let deep = format!(
        "{DEEPEP}profile = \"crusoe-b200\"\nbenchmarks = [\"low-latency\"]\n[workload]\ntokens = 512\n[env]\nNVSHMEM_QP_DEPTH = \"2048\"\n"
    );
    assert!(resolve(&deep, Target::K8sJob).is_ok());
}

/// Checklist 21: other providers' ranges, and a `=` for NCCL alone where a name begins another device's.
#[test]
fn checklist_21_ranges_of_other_providers() {
    let list = |range: std::ops::RangeInclusive<u32>| -> Vec<String> {
        range.map(|device| format!("mlx5_{device}:1")).collect()
    };
    for (profile, range, exact) in [
        ("nebius-h100", 0..=7, true),
        ("nebius-h200", 0..=7, true),
        // mlx5_4 to mlx5_11 begin no other name: mlx5_12 is none of mlx5_1.
        ("nebius-b200", 4..=11, false),
        ("nebius-b300", 4..=11, false),
        // Their profiles know of no other device.
        ("gb200", 0..=3, false),
        ("gb300", 0..=3, false),
        ("crusoe-h200", 1..=8, false),
        ("crusoe-b200", 5..=12, false),
    ] {
        let text = format!(
            "name = \"a\"\nengine = \"command\"\ncommand = [\"x\"]\nimage = \"x/y\"\nprofile = \"{profile}\"\n"
        );
        let run = resolve(&text, Target::K8sJob).unwrap();
        let rails = list(range);
        let joined = rails.join(",");
        assert_eq!(run.pins, Pins::List(rails.clone()), "{profile}");
        // Without a port and without `=`: those are the names that NVSHMEM gets from the worker.
        assert_eq!(run.variable("UCX_NET_DEVICES"), Some(joined.as_str()), "{profile}");
        let nccl = if exact { format!("={joined}") } else { joined };
        assert_eq!(run.variable("NCCL_IB_HCA"), Some(nccl.as_str()), "{profile}");
        assert!(
            run.env.iter().all(|set| set.name == "NCCL_IB_HCA" || !set.value.starts_with('=')),
            "{profile}"
        );
        if !profile.starts_with("crusoe") {
            assert!(!rails.contains(&"mlx5_12:1".to_owned()), "{profile}");
            let named = format!("{text}gpus_per_node = 1\n[network]\nhcas = [\"mlx5_12\"]\n");
            if profile.starts_with("nebius") {
                assert!(error(&named, Target::K8sJob).contains("mlx5_12 is no rail"), "{profile}");
            }
        }
    }
}

/// Checklist 17: a run that crosses nodes on InfiniBand always says the offset, or which NIC each rank has.
#[test]
fn checklist_17_no_run_is_without_an_offset_or_pins() {
    for (profile, offset) in [
        ("crusoe-h200", "1"),
        ("crusoe-b200", "5"),
        ("nebius-h100", "0"),
        ("nebius-h200", "0"),
        ("nebius-b200", "4"),
        ("nebius-b300", "4"),
    ] {
        for target in Target::ALL {
            let text = format!("{DEEPEP}profile = \"{profile}\"\nimage = \"x/y\"\n");
            let run = resolve(&text, target).unwrap();
            assert_eq!(run.variable("NVSHMEM_HCA_OFFSET"), Some(offset), "{profile} {}", target.name());
            assert!(matches!(&run.pins, Pins::List(list) if list[0] == format!("mlx5_{offset}:1")));
        }
    }
    // Names that are no row have no offset: the list pins, and the variable is not there to be wrong.
    let scattered = "hcas = [\"mlx5_0\", \"mlx5_1\", \"mlx5_2\", \"mlx5_3\", \"mlx5_4\", \"mlx5_5\", \"mlx5_10\", \"mlx5_11\"]";
    let text = format!(
        "{DEEPEP}profile = \"generic\"\nimage = \"x/y\"\n[network]\nfabric = \"infiniband\"\n{scattered}\n"
    );
    let run = resolve(&text, Target::K8sJob).unwrap();
    assert_eq!((run.hca_offset, run.variable("NVSHMEM_HCA_OFFSET")), (None, None));
    assert!(matches!(&run.pins, Pins::List(list) if list[6] == "mlx5_10:1"));
    // Nothing is known of the devices: each node finds its own.
    let text =
        format!("{DEEPEP}profile = \"generic\"\nimage = \"x/y\"\n[network]\nfabric = \"infiniband\"\n");
    assert_eq!(resolve(&text, Target::K8sJob).unwrap().pins, Pins::Auto);
}

/// Checklist 28 is one provider's, and the guide's settings of NCCL are another's.
#[test]
fn checklist_28_settings_stay_with_their_provider() {
    const GUIDE: [&str; 7] = [
        "NCCL_IB_PCI_RELAXED_ORDERING",
        "NCCL_IB_SPLIT_DATA_ON_QPS",
        "NCCL_IB_QPS_PER_CONNECTION",
        "NCCL_IBEXT_DISABLE",
        "NCCL_IB_MERGE_VFS",
        "NCCL_MAX_CTAS",
        "NCCL_MIN_CTAS",
    ];
    let of = |profile: &str, more: &str, target| {
        resolve(&format!("{DEEPEP}profile = \"{profile}\"\nimage = \"x/y\"\n{more}"), target).unwrap()
    };
    for (profile, guide, handler) in [
        ("crusoe-h200", true, None),
        ("crusoe-b200", true, None),
        ("nebius-h100", false, Some("gpu")),
        ("nebius-h200", false, Some("gpu")),
        ("nebius-b200", false, Some("gpu")),
        ("nebius-b300", false, Some("gpu")),
        ("generic", false, None),
    ] {
        let fabric = if profile == "generic" { "[network]\nfabric = \"infiniband\"\n" } else { "" };
        let run = of(profile, fabric, Target::Slurm);
        for name in GUIDE {
            assert_eq!(run.variable(name).is_some(), guide, "{profile} {name}");
        }
        assert_eq!(run.variable("NVSHMEM_IBGDA_NIC_HANDLER"), handler, "{profile}");
        let transport = handler.map(|_| "ibrc");
        assert_eq!(run.variable("NVSHMEM_REMOTE_TRANSPORT"), transport, "{profile}");
        assert_eq!(run.variable("NVSHMEM_IB_ENABLE_IBGDA"), Some("1"), "{profile}");
    }
    // The interface of pods is none of hosts.
    let named = |run: &Run| {
        ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"]
            .map(|name| run.variable(name).map(str::to_owned))
    };
    let pods = of("crusoe-b200", "", Target::K8sJob);
    assert_eq!(named(&pods), ["eth0"; 3].map(|name| Some(name.to_owned())));
    for target in [Target::Slurm, Target::Mpirun, Target::Ssh, Target::Torchrun] {
        let run = of("crusoe-b200", "", target);
        assert_eq!(named(&run), [None, None, None], "{}", target.name());
        assert!(run.notes.iter().any(|note| note.contains("network.interface")), "{:?}", run.notes);
        let run = of("crusoe-b200", "[network]\ninterface = \"bond0\"\n", target);
        assert_eq!(run.variable("NCCL_SOCKET_IFNAME"), Some("bond0"));
        assert!(!run.notes.iter().any(|note| note.contains("network.interface")), "{:?}", run.notes);
    }
}

/// A manifest whose pods get no NIC, or no memory, says so and how to find both.
#[test]
fn pods_without_nics_or_memory_have_a_note() {
    let text = format!("{DEEPEP}profile = \"nebius-h200\"\nimage = \"x/y\"\n");
    let command = text.replace("deepep", "command") + "command = [\"x\"]\n";
    for text in [text.clone(), command] {
        let notes = resolve(&text, Target::K8sJob).unwrap().notes.join("\n");
        for words in [
            "kubernetes.rdma_resource",
            "kubernetes.rdma_count",
            "kubernetes.memory",
            "kubectl describe node",
        ] {
            assert!(notes.contains(words), "{words}: {notes}");
        }
    }
    let given = format!(
        "{text}[kubernetes]\nrdma_resource = \"nvidia.com/hostdev\"\nrdma_count = 8\nmemory = \"1000Gi\"\n"
    );
    assert_eq!(resolve(&given, Target::K8sJob).unwrap().notes, Vec::<String>::new());
    let none = format!("{text}[kubernetes]\nrdma_resource = \"\"\nmemory = \"1000Gi\"\n");
    assert_eq!(resolve(&none, Target::K8sJob).unwrap().notes, Vec::<String>::new());
    // Slurm's nodes have what they have.
    let slurm = resolve(&text, Target::Slurm).unwrap().notes.join("\n");
    assert!(!slurm.contains("rdma_resource") && !slurm.contains("kubernetes.memory"), "{slurm}");
    for profile in ["crusoe-h200", "aws-p5en"] {
        let text = format!("{DEEPEP}profile = \"{profile}\"\nimage = \"x/y\"\n");
        let notes = resolve(&text, Target::K8sJob).unwrap().notes.join("\n");
        assert!(
            !notes.contains("rdma_resource") && !notes.contains("kubernetes.memory a"),
            "{profile}: {notes}"
        );
    }
}

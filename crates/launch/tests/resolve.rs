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

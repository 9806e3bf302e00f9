//! What is printed: the table, shell lines, JSON and NCCL's file.

use std::process::Command;

use expertrail_cluster::topo;

use crate::build::{machine, whole};
use crate::mappings::facts;

/// What a shell has after it sourced `text` as the rank `rank`.
fn sourced(text: &str, rank: &str, variable: &str) -> (bool, String) {
    let script = format!("set -u; {text}\n rc=$?; printf %s \"${{{variable}-unset}}\"; exit $rc");
    let output =
        Command::new("sh").args(["-c", &script]).env_clear().env("LOCAL_RANK", rank).output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_shell_takes_the_pins() {
    let env = topo::env(&topo::map(&facts("b200-crusoe-vm"))).unwrap();
    for rank in 0..8 {
        let pin = format!("mlx5_{}:1", rank + 5);
        let rank = rank.to_string();
        assert_eq!(sourced(&env, &rank, "NVSHMEM_HCA_LIST"), (true, pin.clone()));
        assert_eq!(sourced(&env, &rank, "UCX_NET_DEVICES"), (true, pin));
        assert_eq!(sourced(&env, &rank, "NVSHMEM_ENABLE_NIC_PE_MAPPING"), (true, "1".into()));
    }
    let all = "=mlx5_5:1,mlx5_6:1,mlx5_7:1,mlx5_8:1,mlx5_9:1,mlx5_10:1,mlx5_11:1,mlx5_12:1";
    assert_eq!(sourced(&env, "0", "NCCL_IB_HCA"), (true, all.into()));
    // A rank that no GPU has.
    assert_eq!(sourced(&env, "8", "NVSHMEM_HCA_LIST"), (false, "unset".into()));
}

#[test]
fn a_rank_whose_rail_is_down_is_told() {
    let env = topo::env(&topo::map(&facts("rail-down"))).unwrap();
    assert_eq!(sourced(&env, "5", "NVSHMEM_HCA_LIST"), (false, "unset".into()));
    assert_eq!(sourced(&env, "6", "NVSHMEM_HCA_LIST"), (true, "ibp6:1".into()));
    assert!(!env.contains("ibp5:1"));
}

/// What `sh` has in `variable` after `text`, with only `variables` set.
fn shell(text: &str, variables: &[(&str, &str)], variable: &str) -> (bool, String) {
    let script = format!("set -u; {text}\n rc=$?; printf %s \"${{{variable}-unset}}\"; exit $rc");
    let output = Command::new("sh")
        .args(["-c", &script])
        .env_clear()
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_local_rank_is_taken_from_the_first_launcher_that_tells_it() {
    let env = topo::env(&topo::map(&whole(4).facts())).unwrap();
    let list = |variables: &[(&str, &str)]| shell(&env, variables, "NVSHMEM_HCA_LIST");
    assert_eq!(list(&[("SLURM_LOCALID", "2")]), (true, "mlx5_2:1".into()));
    assert_eq!(list(&[("OMPI_COMM_WORLD_LOCAL_RANK", "3")]), (true, "mlx5_3:1".into()));
    assert_eq!(list(&[("MPI_LOCALRANKID", "1")]), (true, "mlx5_1:1".into()));
    assert_eq!(list(&[("PMI_LOCAL_RANK", "0")]), (true, "mlx5_0:1".into()));
    assert_eq!(list(&[("SLURM_LOCALID", "2"), ("LOCAL_RANK", "1")]), (true, "mlx5_1:1".into()));
    // None, and none that means anything.
    assert_eq!(list(&[]), (false, "unset".into()));
    assert_eq!(list(&[("LOCAL_RANK", "")]), (false, "unset".into()));
    assert_eq!(list(&[("LOCAL_RANK", "4")]), (false, "unset".into()));
    assert_eq!(list(&[("LOCAL_RANK", "*")]), (false, "unset".into()));
}

#[test]
fn ranks_are_those_of_the_visible_gpus() {
    let map = |list: &str| topo::map(&whole(8).set("CUDA_VISIBLE_DEVICES", list).facts());
    let pin = |list: &str, rank: &str| sourced(&topo::env(&map(list)).unwrap(), rank, "NVSHMEM_HCA_LIST");
    assert_eq!(pin("4,5,6,7", "0"), (true, "mlx5_4:1".into()));
    assert_eq!(pin("4,5,6,7", "3"), (true, "mlx5_7:1".into()));
    assert_eq!(pin("4,5,6,7", "4"), (false, "unset".into()));
    assert_eq!(pin("7,6,5,4,3,2,1,0", "0"), (true, "mlx5_7:1".into()));
    // CUDA stops at the first index that no GPU has.
    assert_eq!(pin("1,0,9,2", "2"), (false, "unset".into()));
    // A rank that sees one GPU has that one.
    assert_eq!(pin("3", "3"), (true, "mlx5_3:1".into()));
    assert_eq!(pin("3", "0"), (true, "mlx5_3:1".into()));
    assert_eq!(pin("0,1,2,3,4,5,6,7", "5"), (true, "mlx5_5:1".into()));
    assert_eq!(map("0,1,2,3,4,5,6,7").limited_by, None);
    let text = topo::text(&map("4,5,6,7"));
    assert!(text.contains("visible by local rank: GPU 4,5,6,7 (CUDA_VISIBLE_DEVICES=4,5,6,7)"), "{text}");
    assert_eq!(text.matches("not visible").count(), 4, "{text}");
    assert!(text.contains("rank 0      NVSHMEM_HCA_LIST=mlx5_4:1"), "{text}");
    for list in ["GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "", "-1", "2,2", "MIG-x", "0;1"] {
        let map = map(list);
        assert_eq!((map.inconclusive.as_deref(), topo::env(&map)), (None, None), "{list}");
        let reason = topo::unpinned(&map).unwrap();
        assert!(reason.contains("CUDA_VISIBLE_DEVICES"), "{reason}");
        assert!(topo::text(&map).contains(&reason), "{reason}");
    }
}

#[test]
fn in_a_container_ranks_are_those_of_the_gpus_that_nvml_shows() {
    use expertrail_cluster::facts::{Fact, Nvml, NvmlGpu, Scope};
    let seen = |gpus: &[usize], variable: Option<&str>| {
        let machine = whole(8);
        let machine = variable.into_iter().fold(machine, |m, list| m.set("CUDA_VISIBLE_DEVICES", list));
        let shown =
            gpus.iter().map(|&gpu| NvmlGpu { pci: machine.pci[gpu].address.clone(), ..NvmlGpu::default() });
        let nvml = Nvml { gpus: shown.collect(), ..Nvml::default() };
        let mut facts = machine.facts();
        facts.nvml = Fact::read(nvml, "NVML", Scope::Container);
        topo::map(&facts)
    };
    let env = topo::env(&seen(&[4, 5, 6, 7], None)).unwrap();
    assert_eq!(sourced(&env, "0", "NVSHMEM_HCA_LIST"), (true, "mlx5_4:1".into()));
    assert_eq!(sourced(&env, "4", "NVSHMEM_HCA_LIST"), (false, "unset".into()));
    // Indexes count those that are shown.
    let env = topo::env(&seen(&[4, 5, 6, 7], Some("3,2"))).unwrap();
    assert_eq!(sourced(&env, "0", "NVSHMEM_HCA_LIST"), (true, "mlx5_7:1".into()));
    assert_eq!(sourced(&env, "1", "NVSHMEM_HCA_LIST"), (true, "mlx5_6:1".into()));
    assert_eq!(seen(&[0, 1, 2, 3, 4, 5, 6, 7], None).limited_by, None);
}

#[test]
fn without_pins_a_shell_fails_and_runs_nothing_of_the_reason() {
    let reason = "no pins: it's $(touch /tmp/pwned); `id` \\n \"x\" \u{1b}[2J\nfalse";
    let output = Command::new("sh")
        .args(["-c", "eval \"$SCRIPT\""])
        .env("SCRIPT", topo::refusal(reason))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "no pins: it's $(touch /tmp/pwned); `id` \\n \"x\"  [2J false\n"
    );
    let unclear = topo::unpinned(&topo::map(&facts("roce-unclear"))).unwrap();
    assert!(unclear.contains("INCONCLUSIVE") && unclear.contains("--hca LIST"), "{unclear}");
}

#[test]
fn named_rails_are_in_the_command_that_prints_them() {
    let names = ["mlx5_0".to_owned(), "mlx5_1".to_owned()];
    let env = topo::env(&topo::map_with(&whole(4).facts(), Some(&names))).unwrap();
    assert!(env.contains("eval \"$(expertrail topo --hca mlx5_0,mlx5_1 --emit env)\""), "{env}");
}

#[test]
fn efa_has_no_lists() {
    let env = topo::env(&topo::map(&facts("p5en-efa"))).unwrap();
    assert_eq!(sourced(&env, "0", "NVSHMEM_HCA_LIST"), (true, "unset".into()));
    assert_eq!(sourced(&env, "0", "NCCL_IB_HCA"), (true, "unset".into()));
    assert_eq!(sourced(&env, "3", "FI_PROVIDER"), (true, "efa".into()));
    let policy = "EXTERNAL_SHARING_PCIE_SWITCH_NIC_EXCLUSIVE";
    assert_eq!(sourced(&env, "3", "NVSHMEM_NETDEVS_POLICY"), (true, policy.into()));
    assert!(env.contains("rdmap68s0-rdm,rdmap69s0-rdm"));
}

#[test]
fn nothing_is_pinned_where_rails_are_unclear() {
    let facts = facts("roce-unclear");
    let map = topo::map(&facts);
    assert_eq!(topo::env(&map), None);
    assert_eq!(topo::nccl_xml(&map, &facts), None);
}

#[test]
fn names_that_a_shell_would_run_are_no_devices() {
    let facts = whole(2).near("x;touch /tmp/pwned", 0).near("$(id)", 1).facts();
    let map = topo::map(&facts);
    let env = topo::env(&map).unwrap();
    assert!(!env.contains("pwned") && !env.contains("$(id)"), "{env}");
    assert_eq!(map.rails(), ["mlx5_0", "mlx5_1"]);
    let names: Vec<String> = vec!["$(id)".into()];
    assert!(topo::map_with(&facts, Some(&names)).inconclusive.is_some());
}

#[test]
fn text_has_no_control_characters() {
    let map = topo::map(
        &whole(1).near("mlx5_9", 0).port(|port| port.link_layer = Some("\u{1b}[2JEvil".into())).facts(),
    );
    let text = topo::text(&map);
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    assert!(text.contains("Evil"));
}

#[test]
fn json_comes_back_as_it_was() {
    for name in ["p5-efa", "rail-down", "roce-unclear"] {
        let map = topo::map(&facts(name));
        let json = serde_json::to_string(&map).unwrap();
        assert!(json.contains("expertrail.topology/1"));
        assert_eq!(serde_json::from_str::<topo::Topology>(&json).unwrap(), map);
    }
}

/// Elements that are open at each `<pci busid=` of NCCL's file: addresses from the outside in. NCCL's reader knows no more than this:
/// elements, attributes after one blank each, comments.
fn tree(xml: &str) -> Vec<Vec<String>> {
    let mut open: Vec<String> = Vec::new();
    let mut all = Vec::new();
    for line in xml.lines().map(str::trim) {
        let value =
            |key: &str| line.split(&format!(" {key}=\"")).nth(1).and_then(|rest| rest.split('"').next());
        if line.starts_with("</") {
            open.pop().unwrap();
            continue;
        }
        let name = value("busid").or(value("numaid")).or(value("version")).unwrap();
        open.push(name.to_owned());
        all.push(open[1..].to_vec());
        let element = line.split(" <!--").next().unwrap();
        if element.ends_with("/>") {
            open.pop();
        }
    }
    assert!(open.is_empty(), "{open:?}");
    all
}

#[test]
fn nccls_file_has_each_gpu_and_rail_below_what_joins_them() {
    let facts = facts("renamed-rails");
    let xml = topo::nccl_xml(&topo::map(&facts), &facts).unwrap();
    let tree = tree(&xml);
    let path = |address: &str| {
        tree.iter().find(|path| path.last().is_some_and(|last| last == address)).unwrap().clone()
    };
    // The first switch: root port 10:01.0, upstream port 11:00.0; its downstream ports join nothing.
    assert_eq!(path("0000:13:00.0"), ["0", "0000:10:01.0", "0000:11:00.0", "0000:13:00.0"]);
    assert_eq!(path("0000:14:00.0"), ["0", "0000:10:01.0", "0000:11:00.0", "0000:14:00.0"]);
    assert_eq!(path("0000:c4:00.0")[0], "1");
    assert!(!xml.contains("0000:05:00.0"), "the storage card is no rail");
    assert!(xml.starts_with("<system version=\"1\">\n") && !xml.contains('\t'));
    // What is not known is left for NCCL to read.
    assert!(!xml.contains("link_width=\"0\"") && !xml.contains("link_speed=\"\""));
    // Two NUMA nodes, 16 functions, 8 pairs of bridges.
    assert_eq!(tree.len(), 1 + 2 + 16 + 16);
}

#[test]
fn a_name_ends_no_comment_of_nccls_file() {
    let facts = machine(1).near("rail---0--", 0).facts();
    let xml = topo::nccl_xml(&topo::map(&facts), &facts).unwrap();
    // XML has no `--` inside of a comment.
    assert!(xml.contains("<!-- rail__-0__ -->"), "{xml}");
}

#[test]
fn nccls_file_without_numa_nodes() {
    let facts = facts("vm-no-numa");
    let xml = topo::nccl_xml(&topo::map(&facts), &facts).unwrap();
    assert!(xml.contains("<cpu numaid=\"-1\">"));
    assert_eq!(tree(&xml).iter().filter(|path| path.len() == 2 && path[0] == "-1").count(), 16);
}

#[test]
fn the_table_as_it_is_printed() {
    let text = topo::text(&topo::map(&facts("gb200-tray")));
    let expected = "\
gb200-tray: 4 GPUs, 4 rails

GPU  PCI           NUMA  rail    distance  how
0    0008:01:00.0  0     mlx5_0  NODE      by order, 2 tied
1    0009:01:00.0  0     mlx5_1  NODE      by order, 2 tied
2    0018:01:00.0  1     mlx5_2  NODE      by order, 2 tied
3    0019:01:00.0  1     mlx5_3  NODE      by order, 2 tied

rails:
  mlx5_0  0000:01:00.0  NUMA 0  InfiniBand 400 Gb/s, NODE to GPUs 0 and 1
  mlx5_1  0002:01:00.0  NUMA 0  InfiniBand 400 Gb/s, NODE to GPUs 0 and 1
  mlx5_2  0010:01:00.0  NUMA 1  InfiniBand 400 Gb/s, NODE to GPUs 2 and 3
  mlx5_3  0012:01:00.0  NUMA 1  InfiniBand 400 Gb/s, NODE to GPUs 2 and 3

not rails:
  mlx5_4  0006:01:00.0  NUMA 0  Ethernet 200 Gb/s, while 4 devices have InfiniBand
  mlx5_5  0016:01:00.0  NUMA 1  Ethernet 200 Gb/s, while 4 devices have InfiniBand

pins (rank N of the node is GPU N; --emit env prints them as shell lines):
  every rank  NCCL_IB_HCA='=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1' NVSHMEM_ENABLE_NIC_PE_MAPPING=1
  rank 0      NVSHMEM_HCA_LIST=mlx5_0:1 UCX_NET_DEVICES=mlx5_0:1
  rank 1      NVSHMEM_HCA_LIST=mlx5_1:1 UCX_NET_DEVICES=mlx5_1:1
  rank 2      NVSHMEM_HCA_LIST=mlx5_2:1 UCX_NET_DEVICES=mlx5_2:1
  rank 3      NVSHMEM_HCA_LIST=mlx5_3:1 UCX_NET_DEVICES=mlx5_3:1
Where the order of the bus decided, equal distance says nothing more: confirm the pairs by the provider's topology file or a fabric test.
";
    assert_eq!(text, expected);
}

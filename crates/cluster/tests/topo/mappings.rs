//! Every mapping that the documents tell, from trees read as a node is read, without a profile.

use expertrail_cluster::collect;
use expertrail_cluster::facts::Facts;
use expertrail_cluster::root::Root;
use expertrail_cluster::topo::{self, Distance, Role, Topology};

use crate::tree;

/// The facts of a tree.
pub(crate) fn facts(name: &str) -> Facts {
    let place = tree::unpack(name);
    let options = collect::Options { without_nvml: true, ..collect::Options::default() };
    collect::facts(&Root::captured(place.path()), &options)
}

fn map(name: &str) -> Topology {
    let facts = facts(name);
    assert!(facts.rdma.value().is_some_and(|all| !all.is_empty()), "{name}: the tree's devices are read");
    topo::map(&facts)
}

/// Rails of each GPU, joined by `+`.
pub(crate) fn pairs(topology: &Topology) -> Vec<String> {
    let names =
        |gpu: &topo::Gpu| gpu.rails.iter().map(|pin| pin.device.clone()).collect::<Vec<_>>().join("+");
    topology.gpus.iter().map(names).collect()
}

fn distances(topology: &Topology) -> Vec<Distance> {
    let mut all: Vec<Distance> =
        topology.gpus.iter().flat_map(|gpu| gpu.rails.iter().map(|pin| pin.distance)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn tied(topology: &Topology) -> Vec<usize> {
    let mut all: Vec<usize> =
        topology.gpus.iter().flat_map(|gpu| gpu.rails.iter().map(|pin| pin.tied)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn others(topology: &Topology) -> Vec<&str> {
    let mut all: Vec<&str> = topology.with(Role::Other).map(|nic| nic.name.as_str()).collect();
    all.sort_unstable();
    all
}

/// `prefix` and each number.
fn named(prefix: &str, numbers: &[u32]) -> Vec<String> {
    numbers.iter().map(|number| format!("{prefix}{number}")).collect()
}

#[test]
fn a_dgx_whose_nics_are_a_switch_farther_has_pxb_and_leaves_its_bonded_frontend_out() {
    let map = map("dgx-pxb");
    assert_eq!(map.inconclusive, None);
    assert_eq!(pairs(&map), named("mlx5_", &[0, 1, 4, 5, 6, 7, 8, 9]));
    assert_eq!(distances(&map), [Distance::Pxb]);
    assert_eq!(others(&map), ["mlx5_bond_0"]);
}

#[test]
fn crusoe_h200_gpu_n_has_mlx5_n_plus_1() {
    let map = map("h200-crusoe-vm");
    assert_eq!(map.inconclusive, None);
    assert_eq!(pairs(&map), named("mlx5_", &[1, 2, 3, 4, 5, 6, 7, 8]));
    assert_eq!(distances(&map), [Distance::Phb]);
    // Four rails of each NUMA node are equally far.
    assert_eq!(tied(&map), [4]);
    assert_eq!(others(&map), ["mlx5_0"]);
}

#[test]
fn crusoe_b200_gpu_n_has_mlx5_n_plus_5() {
    let map = map("b200-crusoe-vm");
    assert_eq!(pairs(&map), named("mlx5_", &[5, 6, 7, 8, 9, 10, 11, 12]));
    assert_eq!(distances(&map), [Distance::Phb]);
    // The frontend and four functions that are down.
    assert_eq!(others(&map), ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4"]);
    let frontend = map.device("mlx5_4").unwrap();
    assert!(
        frontend.reason.contains("Ethernet 100 Gb/s") && frontend.reason.contains("InfiniBand"),
        "{}",
        frontend.reason
    );
}

#[test]
fn nebius_h200_mlx5_12_is_no_rail_though_as_fast() {
    let map = map("nebius-h200");
    assert_eq!(pairs(&map), named("mlx5_", &[0, 1, 2, 3, 4, 5, 6, 7]));
    assert_eq!(others(&map), ["mlx5_12"]);
}

#[test]
fn nebius_b200_has_mlx5_4_to_11() {
    let map = map("nebius-b200");
    assert_eq!(pairs(&map), named("mlx5_", &[4, 5, 6, 7, 8, 9, 10, 11]));
    assert_eq!(others(&map), ["mlx5_0", "mlx5_1", "mlx5_12", "mlx5_2", "mlx5_3"]);
}

#[test]
fn grace_blackwell_has_mlx5_0_to_3() {
    let map = map("gb200-tray");
    assert_eq!(pairs(&map), named("mlx5_", &[0, 1, 2, 3]));
    // Each function hangs below a host bridge of its own; two rails a NUMA node.
    assert_eq!(distances(&map), [Distance::Node]);
    assert_eq!(tied(&map), [2]);
    assert_eq!(others(&map), ["mlx5_4", "mlx5_5"]);
}

#[test]
fn a_host_of_the_dgx_shape_skips_two_and_three() {
    let map = map("h100-ib");
    assert_eq!(pairs(&map), named("mlx5_", &[0, 1, 4, 5, 6, 7, 8, 9]));
    assert_eq!(distances(&map), [Distance::Pix]);
    assert_eq!(tied(&map), [1]);
    assert_eq!(others(&map), ["mlx5_bond_0"]);
}

#[test]
fn names_of_azure_and_names_by_place() {
    let azure = map("azure-h100");
    assert_eq!(pairs(&azure), named("mlx5_ib", &[0, 1, 2, 3, 4, 5, 6, 7]));
    assert_eq!(distances(&azure), [Distance::Node]);
    assert_eq!(others(&azure), ["mlx5_an0"]);
    let renamed = map("renamed-rails");
    assert_eq!(pairs(&renamed), named("ibp", &[0, 1, 2, 3, 4, 5, 6, 7]));
    // InfiniBand too, with half of the rate.
    assert_eq!(others(&renamed), ["ibs9"]);
}

#[test]
fn rails_whose_numbers_have_gaps() {
    let map = map("b200-noncontiguous");
    assert_eq!(pairs(&map), named("mlx5_", &[0, 1, 2, 3, 4, 5, 10, 11]));
    // Two storage ports of InfiniBand and the same rate, two of Ethernet.
    assert_eq!(others(&map), ["mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9"]);
}

#[test]
fn two_nics_a_gpu_beyond_a_second_bridge() {
    let map = map("h100-two-nics");
    let expected: Vec<String> =
        (0..8).map(|gpu| format!("mlx5_{}+mlx5_{}", 18 + 2 * gpu, 19 + 2 * gpu)).collect();
    assert_eq!(pairs(&map), expected);
    assert_eq!(map.rails_per_gpu, 2);
    assert_eq!(distances(&map), [Distance::Pxb]);
    assert_eq!(others(&map), ["mlx5_0", "mlx5_1"]);
}

#[test]
fn two_planes_of_scattered_numbers() {
    let map = map("b300-cx8");
    let expected = [
        "mlx5_0+mlx5_3",
        "mlx5_4+mlx5_7",
        "mlx5_8+mlx5_11",
        "mlx5_12+mlx5_15",
        "mlx5_16+mlx5_19",
        "mlx5_20+mlx5_23",
        "mlx5_24+mlx5_27",
        "mlx5_28+mlx5_31",
    ];
    assert_eq!(pairs(&map), expected);
    assert_eq!(distances(&map), [Distance::Pix]);
}

#[test]
fn efa_has_two_or_four_functions_a_gpu() {
    let p5en = map("p5en-efa");
    assert_eq!(p5en.rails_per_gpu, 2);
    // Of bus 0x44 and 0x45 (68, 69) the tree's first GPU, 0x46, is the neighbour.
    assert_eq!(pairs(&p5en)[0], "rdmap68s0+rdmap69s0");
    assert_eq!(pairs(&p5en)[7], "rdmap187s0+rdmap188s0");
    let p5 = map("p5-efa");
    assert_eq!(p5.rails_per_gpu, 4);
    assert_eq!(pairs(&p5)[1], "rdmap85s0+rdmap86s0+rdmap87s0+rdmap88s0");
    assert_eq!(distances(&p5), [Distance::Pix]);
}

#[test]
fn no_numa_node_known() {
    let map = map("vm-no-numa");
    assert_eq!(pairs(&map), named("mlx5_", &[0, 1, 2, 3, 4, 5, 6, 7]));
    assert_eq!(distances(&map), [Distance::Phb]);
    assert_eq!(tied(&map), [8]);
    assert!(topo::text(&map).contains("by order, 8 tied"));
}

#[test]
fn ethernet_devices_that_nothing_sets_apart() {
    let map = map("roce-unclear");
    let reason = map.inconclusive.clone().unwrap();
    assert!(reason.contains("8 GPUs"), "{reason}");
    assert!(map.gpus.iter().all(|gpu| gpu.rails.is_empty()));
    let text = topo::text(&map);
    assert!(text.contains("INCONCLUSIVE") && text.contains("--hca"), "{text}");
}

#[test]
fn two_gpus_share_a_bonded_nic() {
    let map = map("two-gpus-a-nic");
    let expected = [0, 0, 1, 1, 2, 2, 3, 3].map(|nic| format!("mlx5_bond_{nic}"));
    assert_eq!(pairs(&map), expected);
    assert!(map.gpus.iter().all(|gpu| gpu.rails[0].shared));
    assert_eq!(others(&map), ["mlx5_4"]);
}

#[test]
fn two_gpus_and_two_nics_a_switch_share_none() {
    let map = map("two-by-two");
    assert_eq!(pairs(&map), named("mlx5_", &[0, 1, 2, 3, 4, 5, 6, 7]));
    assert!(map.gpus.iter().all(|gpu| !gpu.rails[0].shared && gpu.rails[0].tied == 2));
}

#[test]
fn a_rail_that_is_down_keeps_its_gpu() {
    let map = map("rail-down");
    let failed: Vec<(&str, &[usize])> =
        map.with(Role::FailedRail).map(|nic| (nic.name.as_str(), nic.gpus.as_slice())).collect();
    assert_eq!(failed, [("ibp5", [5].as_slice())]);
    let pairs = pairs(&map);
    assert_eq!((pairs[4].as_str(), pairs[5].as_str(), pairs[6].as_str()), ("ibp4", "", "ibp6"));
    assert_eq!(others(&map), ["ibs9"]);
    assert!(topo::text(&map).contains("ibp5 down"));
}

#[test]
fn nothing_to_map() {
    let no_nics = topo::map(&facts("no-nics"));
    assert!(no_nics.inconclusive.unwrap().contains("no RDMA device"));
    let no_gpus = topo::map(&facts("no-gpus"));
    assert!(no_gpus.inconclusive.unwrap().contains("no NVIDIA GPU"));
}

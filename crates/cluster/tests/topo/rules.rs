//! What makes a device a rail, and which GPU it serves.

use expertrail_cluster::topo::{self, Distance, Role, Topology};

use crate::build::{machine, whole};
use crate::mappings::pairs;

fn role(map: &Topology, name: &str) -> (Role, String) {
    let nic = map.device(name).unwrap();
    (nic.role, nic.reason.clone())
}

#[test]
fn another_partition_of_the_same_fabric_is_no_rail() {
    let map = topo::map(
        &whole(4).near("mlx5_9", 0).port(|port| port.pkeys = vec!["0x8002".into(), "0x7fff".into()]).facts(),
    );
    assert_eq!(pairs(&map), ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]);
    let (role, reason) = role(&map, "mlx5_9");
    assert_eq!(role, Role::Other);
    assert!(reason.contains("partition"), "{reason}");
    // Full and limited membership of one partition are the same partition: now five devices are alike.
    let map = topo::map(&whole(4).near("mlx5_9", 0).port(|port| port.pkeys = vec!["0x7fff".into()]).facts());
    assert!(map.inconclusive.is_some());
}

#[test]
fn virtual_functions_beside_their_physical_ones_are_no_rails() {
    let virtual_ones = (0..2).fold(whole(2), |machine, gpu| {
        machine
            .near(&format!("mlx5_{}", 10 + gpu), gpu)
            .but(|device| device.physfn = Some("0000:18:02.0".into()))
    });
    let map = topo::map(&virtual_ones.facts());
    assert_eq!(pairs(&map), ["mlx5_0", "mlx5_1"]);
    assert!(role(&map, "mlx5_10").1.contains("virtual function"));
    // In a guest all are virtual.
    let guest = (0..2).fold(machine(2), |machine, gpu| {
        machine.near(&format!("mlx5_{gpu}"), gpu).but(|device| device.physfn = Some("0000:18:02.0".into()))
    });
    assert_eq!(pairs(&topo::map(&guest.facts())), ["mlx5_0", "mlx5_1"]);
}

#[test]
fn software_devices_and_slow_links_are_no_rails() {
    let map = topo::map(&whole(2).near("rxe0", 0).but(|device| device.pci = None).facts());
    assert!(role(&map, "rxe0").1.contains("software"));
    let map = topo::map(&machine(2).near("mlx5_0", 0).ethernet("25 Gb/sec (1X EDR)").facts());
    assert!(map.inconclusive.is_some());
    assert!(role(&map, "mlx5_0").1.contains("25 Gb/s"));
}

#[test]
fn a_storage_set_as_large_as_the_rails_is_told_by_distance() {
    let storage = (0..4).fold(whole(4), |machine, i| machine.apart(&format!("mlx5_{}", 4 + i), 0x80 + i));
    assert_eq!(pairs(&topo::map(&storage.facts())), ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]);
}

#[test]
fn a_link_that_came_up_short_is_a_rail() {
    let map = topo::map(&whole(4).port(|port| port.rate = Some("200 Gb/sec (2X NDR)".into())).facts());
    assert_eq!(pairs(&map), ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]);
    assert!(role(&map, "mlx5_3").1.contains("200 Gb/s, while its siblings have 400 Gb/s"));
    // With a rail for every GPU the slower one is something else.
    let map = topo::map(
        &whole(4).near("mlx5_4", 1).port(|port| port.rate = Some("200 Gb/sec (2X NDR)".into())).facts(),
    );
    assert_eq!(role(&map, "mlx5_4").0, Role::Other);
}

#[test]
fn all_rails_down_leave_no_mapping_and_no_frontend_in_their_place() {
    let down = (0..4).fold(machine(4), |machine, gpu| machine.near(&format!("mlx5_{gpu}"), gpu).down());
    let map = topo::map(&down.apart("mlx5_8", 0x80).ethernet("100 Gb/sec (4X EDR)").facts());
    assert!(map.inconclusive.is_some());
    assert_eq!(map.with(Role::FailedRail).count(), 4);
    assert_eq!(role(&map, "mlx5_8").0, Role::Other);
}

#[test]
fn second_ports_that_nobody_uses_are_not_failed() {
    // Cards with two ports: the second of each is down.
    let cards = (0..4).fold(machine(4), |machine, gpu| {
        let path = |function: u32| format!("pci0000:{0:02x}/0000:{0:02x}:00.{function}", 0x90 + gpu);
        machine
            .at(&format!("mlx5_{}", 2 * gpu), &path(0), Some(0))
            .at(&format!("mlx5_{}", 2 * gpu + 1), &path(1), Some(0))
            .down()
    });
    let map = topo::map(&cards.facts());
    assert_eq!(map.with(Role::FailedRail).count(), 0);
    assert_eq!(map.rails(), ["mlx5_0", "mlx5_2", "mlx5_4", "mlx5_6"]);
    assert!(role(&map, "mlx5_1").1.contains("other port of its card"));
    // One first port down too: it is the failed one, by its function number.
    let cards = (0..4).fold(machine(4), |machine, gpu| {
        let path = |function: u32| format!("pci0000:{0:02x}/0000:{0:02x}:00.{function}", 0x90 + gpu);
        let machine = machine.at(&format!("mlx5_{}", 2 * gpu), &path(0), Some(0));
        let machine = if gpu == 2 { machine.down() } else { machine };
        machine.at(&format!("mlx5_{}", 2 * gpu + 1), &path(1), Some(0)).down()
    });
    let map = topo::map(&cards.facts());
    let failed: Vec<&str> = map.with(Role::FailedRail).map(|nic| nic.name.as_str()).collect();
    assert_eq!(failed, ["mlx5_4"]);
}

#[test]
fn of_two_that_are_down_the_one_by_the_gpu_failed() {
    let facts = (0..3)
        .fold(machine(4), |machine, gpu| machine.near(&format!("mlx5_{gpu}"), gpu))
        .apart("mlx5_7", 0x05)
        .down()
        .near("mlx5_3", 3)
        .down()
        .facts();
    let map = topo::map(&facts);
    let failed: Vec<(&str, &[usize])> =
        map.with(Role::FailedRail).map(|nic| (nic.name.as_str(), nic.gpus.as_slice())).collect();
    assert_eq!(failed, [("mlx5_3", [3].as_slice())]);
}

#[test]
fn one_ethernet_device_for_many_gpus_may_be_the_frontend() {
    let one = |gpus| machine(gpus).apart("mlx5_0", 0x05).ethernet("100 Gb/sec (4X EDR)").facts();
    assert!(topo::map(&one(8)).inconclusive.is_some());
    // For one GPU it is all there can be.
    assert_eq!(pairs(&topo::map(&one(1))), ["mlx5_0"]);
    // InfiniBand is believed.
    let map = topo::map(&machine(8).apart("mlx5_0", 0x05).facts());
    assert_eq!(pairs(&map), ["mlx5_0"; 8]);
}

#[test]
fn seven_rails_by_their_gpus_and_none_by_the_eighth() {
    let map =
        topo::map(&(0..7).fold(machine(8), |machine, gpu| machine.near(&format!("mlx5_{gpu}"), gpu)).facts());
    let pairs = pairs(&map);
    assert_eq!(pairs[..7], ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6"]);
    // Of the rails of its NUMA node one must serve two GPUs.
    assert!(["mlx5_4", "mlx5_5", "mlx5_6"].contains(&pairs[7].as_str()), "{pairs:?}");
}

#[test]
fn no_rail_is_free_while_two_gpus_share_one() {
    // Three rails near GPUs 0 and 1, one far from all: four GPUs must use all four.
    let facts = machine(4).near("a", 0).near("b", 0).near("c", 1).apart("d", 0x05).facts();
    let map = topo::map(&facts);
    let mut names = pairs(&map);
    names.sort();
    assert_eq!(names, ["a", "b", "c", "d"]);
    // Two rails for four GPUs, both near GPU 0: two GPUs each.
    let map = topo::map(&machine(4).near("a", 0).near("b", 0).facts());
    let mut names = pairs(&map);
    names.sort();
    assert_eq!(names, ["a", "a", "b", "b"]);
}

#[test]
fn the_port_that_is_up_is_pinned() {
    let facts = whole(1)
        .but(|device| {
            let mut second = device.ports[0].clone();
            second.number = 2;
            device.ports[0].state = Some("1: DOWN".into());
            device.ports.push(second);
        })
        .facts();
    let map = topo::map(&facts);
    assert_eq!(map.gpus[0].rails[0].port, 2);
    assert!(topo::env(&map).unwrap().contains("NVSHMEM_HCA_LIST=mlx5_0:2"));
}

#[test]
fn named_rails_are_taken_and_wrong_names_are_not() {
    let facts = whole(2).apart("mlx5_9", 0x80).ethernet("100 Gb/sec (4X EDR)").facts();
    let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let map = topo::map_with(&facts, Some(&names(&["mlx5_9"])));
    assert_eq!(pairs(&map), ["mlx5_9", "mlx5_9"]);
    assert_eq!(map.gpus[1].rails[0].distance, Distance::Sys);
    let map = topo::map_with(&facts, Some(&names(&["mlx5_0", "mlx5_77"])));
    assert!(map.inconclusive.unwrap().contains("mlx5_77"));
    // They settle what cannot be told.
    let unclear = whole(2).near("mlx5_2", 0).facts();
    assert!(topo::map(&unclear).inconclusive.is_some());
    assert_eq!(pairs(&topo::map_with(&unclear, Some(&names(&["mlx5_1", "mlx5_2"])))), ["mlx5_2", "mlx5_1"]);
}

#[test]
fn ranks_are_in_the_order_of_the_bus_whatever_the_order_of_the_document() {
    let mut facts = whole(4).facts();
    let mut pci = facts.pci.devices.value().unwrap().clone();
    pci.reverse();
    facts.pci.devices =
        expertrail_cluster::facts::Fact::read(pci, "", expertrail_cluster::facts::Scope::Unknown);
    let map = topo::map(&facts);
    assert_eq!(pairs(&map), ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]);
    // Bus 0x13 is the first GPU's.
    assert_eq!(map.gpus[0].pci, "0000:13:00.0");
}

#[test]
fn gpus_of_other_drivers_have_no_rank() {
    // A display card first on the bus.
    let mut machine = whole(4);
    let mut display = machine.pci[0].clone();
    display.address = "0000:02:00.0".into();
    display.path = "/sys/devices/pci0000:00/0000:00:02.0/0000:02:00.0".into();
    display.class = Some("0x030000".into());
    display.driver = Some("nouveau".into());
    machine.pci.push(display);
    for gpu in &mut machine.pci[..4] {
        gpu.driver = Some("nvidia".into());
    }
    let map = topo::map(&machine.facts());
    assert_eq!(pairs(&map), ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]);
    // Two GPUs that were given to virtual machines: rank 0 is the third on the bus.
    let mut machine = whole(4);
    for (gpu, driver) in machine.pci[..4].iter_mut().zip(["vfio-pci", "vfio-pci", "nvidia", "nvidia"]) {
        gpu.driver = Some(driver.into());
    }
    let map = topo::map(&machine.facts());
    assert_eq!(pairs(&map), ["mlx5_2", "mlx5_3"]);
    // All of them.
    let mut machine = whole(2);
    for gpu in &mut machine.pci[..2] {
        gpu.driver = Some("vfio-pci".into());
    }
    let unclear = topo::map(&machine.facts()).inconclusive.unwrap();
    assert!(unclear.contains("bound to the driver nvidia"), "{unclear}");
}

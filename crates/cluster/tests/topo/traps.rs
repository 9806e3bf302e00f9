//! Machines whose fastest, only or right-numbered devices are not the rails.

use expertrail_cluster::topo::{self, Role, Topology};

use crate::build::{machine, whole};
use crate::mappings::pairs;

fn reason(map: &Topology, name: &str) -> String {
    map.device(name).unwrap().reason.clone()
}

fn failed(map: &Topology) -> Vec<&str> {
    map.with(Role::FailedRail).map(|nic| nic.name.as_str()).collect()
}

#[test]
fn rails_of_ethernet_beside_storage_of_infiniband() {
    let roce = |count: usize| {
        (0..count).fold(machine(8), |machine, gpu| {
            machine.near(&format!("mlx5_{gpu}"), gpu).ethernet("400 Gb/sec (4X NDR)")
        })
    };
    let map = topo::map(&roce(8).apart("mlx5_8", 0x05).apart("mlx5_9", 0x06).facts());
    assert_eq!(map.inconclusive, None);
    assert_eq!(map.rails().len(), 8);
    assert_eq!(map.device("mlx5_8").unwrap().role, Role::Other);
    assert_eq!(map.device("mlx5_9").unwrap().role, Role::Other);
    // As many InfiniBand devices as GPUs are the rails, however near Ethernet is.
    let both = (0..8).fold(roce(8), |machine, i| machine.apart(&format!("ib{i}"), 0xa0 + i));
    let map = topo::map(&both.facts());
    assert!(map.rails().iter().all(|name| name.starts_with("ib")), "{:?}", map.rails());
    // One frontend of Ethernet does not make the two InfiniBand devices doubtful.
    let map = topo::map(
        &machine(8)
            .apart("ib0", 0x05)
            .apart("ib1", 0x06)
            .apart("eth0", 0x07)
            .ethernet("400 Gb/sec (4X NDR)")
            .facts(),
    );
    assert_eq!(map.inconclusive, None);
    assert_eq!(map.rails(), ["ib0", "ib1"]);
}

#[test]
fn where_neither_hangs_by_a_gpu_fewer_infiniband_devices_are_not_believed() {
    // Eight Ethernet devices of 400 Gb/s and one of InfiniBand, all as far.
    let far = (0..8).fold(machine(8), |machine, i| {
        machine.apart(&format!("eth{i}"), 0xa0 + i).ethernet("400 Gb/sec (4X NDR)")
    });
    let map = topo::map(&far.apart("ib0", 0x05).facts());
    let unclear = map.inconclusive.unwrap();
    assert!(unclear.contains("1 InfiniBand and 8 Ethernet"), "{unclear}");
    // Virtual functions of a frontend are no rails.
    let functions = (0..8).fold(machine(8), |machine, i| {
        machine
            .apart(&format!("eth{i}"), 0xa0 + i)
            .ethernet("400 Gb/sec (4X NDR)")
            .but(|device| device.physfn = Some("0000:9f:00.0".into()))
    });
    assert_eq!(topo::map(&functions.apart("ib0", 0x05).facts()).rails(), ["ib0"]);
}

#[test]
fn storage_that_is_faster_than_the_rails() {
    // Two HDR rails by every GPU, one NDR storage port below another host bridge.
    let hdr = (0..8).fold(machine(8), |machine, gpu| {
        let rate = || "200 Gb/sec (4X HDR)".to_owned();
        let machine = machine.near(&format!("a{gpu}"), gpu).port(|port| port.rate = Some(rate()));
        machine.near(&format!("b{gpu}"), gpu).port(|port| port.rate = Some(rate()))
    });
    let map = topo::map(&hdr.apart("storage", 0x05).facts());
    assert_eq!(map.inconclusive, None);
    assert_eq!(pairs(&map)[0], "a0+b0");
    assert_eq!(pairs(&map)[7], "a7+b7");
    let text = reason(&map, "storage");
    assert!(text.contains("400 Gb/s") && text.contains("16 devices have 200 Gb/s"), "{text}");
    // Nothing tells them apart: eight of 200 Gb/s carry more than one of 400, and none is nearer.
    let flat = (0..8).fold(machine(8), |machine, i| {
        machine.apart(&format!("a{i}"), 0xa0 + i).port(|port| port.rate = Some("200 Gb/sec (4X HDR)".into()))
    });
    assert!(topo::map(&flat.apart("storage", 0x05).facts()).inconclusive.is_some());
    // Two rails for four GPUs, and slow functions of a frontend: 2 x 400 carries more than 4 x 100.
    let few = (0..4).fold(machine(4).near("r0", 0).near("r1", 2), |machine, i| {
        machine.apart(&format!("v{i}"), 0xa0 + i).port(|port| port.rate = Some("100 Gb/sec (4X EDR)".into()))
    });
    assert_eq!(topo::map(&few.facts()).rails(), ["r0", "r1"]);
}

#[test]
fn a_frontend_does_not_stand_in_for_a_rail_that_is_down() {
    // Seven rails up, one down, and a frontend of InfiniBand and the same rate: eight are up.
    let rails = || {
        (0..8).fold(machine(8), |machine, gpu| {
            let machine = machine.near(&format!("mlx5_{gpu}"), gpu);
            if gpu == 5 { machine.down() } else { machine }
        })
    };
    let map = topo::map(&rails().apart("front", 0x05).facts());
    assert_eq!(failed(&map), ["mlx5_5"]);
    assert_eq!(map.device("mlx5_5").unwrap().gpus, [5]);
    assert_eq!(pairs(&map)[5], "");
    assert_eq!(map.device("front").unwrap().role, Role::Other);
    // Below the same switch, on another partition.
    let map = topo::map(&rails().near("front", 5).port(|port| port.pkeys = vec!["0x8002".into()]).facts());
    assert_eq!(failed(&map), ["mlx5_5"]);
    assert!(reason(&map, "front").contains("partition"));
    // A spare card that is down beside eight good rails failed for nobody.
    let map = topo::map(&whole(8).apart("spare", 0x05).down().facts());
    assert_eq!(failed(&map), Vec::<&str>::new());
    assert_eq!(map.rails().len(), 8);
}

#[test]
fn a_port_whose_state_nobody_knows_is_neither_up_nor_down() {
    for state in [None, Some("6: WAITING".to_owned()), Some("\u{fffd}".to_owned())] {
        let map = topo::map(&whole(4).port(|port| port.state.clone_from(&state)).facts());
        let unclear = map.inconclusive.clone().unwrap();
        assert!(unclear.contains("port state of mlx5_3"), "{unclear}");
        assert!(topo::env(&map).is_none());
    }
    // States below ACTIVE are known.
    for state in ["1: DOWN", "2: INIT", "3: ARMED", "5: ACTIVE_DEFER"] {
        let map = topo::map(&whole(4).port(|port| port.state = Some(state.into())).facts());
        assert_eq!(map.inconclusive, None);
        assert_eq!(failed(&map), ["mlx5_3"], "{state}");
    }
}

#[test]
fn a_named_device_that_is_down_is_a_failed_rail() {
    let facts = whole(2).down().facts();
    let names = ["mlx5_0".to_owned(), "mlx5_1".to_owned()];
    let map = topo::map_with(&facts, Some(&names));
    assert_eq!(map.inconclusive, None);
    assert_eq!(failed(&map), ["mlx5_1"]);
    assert_eq!(pairs(&map), ["mlx5_0", ""]);
}

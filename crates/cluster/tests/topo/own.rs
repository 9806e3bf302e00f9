//! Rails that are slow or down, and devices that would take their place.

use expertrail_cluster::check::Target;
use expertrail_cluster::finding::Status;
use expertrail_cluster::topo::{self, Role, Topology};

use crate::build::{Machine, machine};
use crate::mappings::pairs;

/// Eight GPUs with a NIC each below their switch; `change` makes some of them ill.
fn eight(change: impl Fn(usize, Machine) -> Machine) -> Machine {
    (0..8).fold(machine(8), |machine, gpu| change(gpu, machine.near(&format!("mlx5_{gpu}"), gpu)))
}

fn slow(machine: Machine) -> Machine {
    machine.port(|port| port.rate = Some("200 Gb/sec (4X HDR)".into()))
}

fn names() -> Vec<String> {
    (0..8).map(|gpu| format!("mlx5_{gpu}")).collect()
}

/// Subjects of the findings of check `id` that failed.
fn failed(facts: &expertrail_cluster::facts::Facts, id: &str) -> Vec<String> {
    topo::findings(&topo::map(facts), facts, None, Target::Nccl)
        .into_iter()
        .filter(|finding| finding.id == id && finding.status == Status::Fail)
        .map(|finding| finding.subject.unwrap_or_default())
        .collect()
}

fn role(map: &Topology, name: &str) -> Role {
    map.device(name).unwrap().role
}

#[test]
fn however_many_are_slow_each_gpu_keeps_its_own_rail() {
    for count in 1..8 {
        // The first ones slow, and the last ones.
        for first in [true, false] {
            let is_slow = |gpu: usize| if first { gpu < count } else { gpu >= 8 - count };
            let facts = eight(|gpu, machine| if is_slow(gpu) { slow(machine) } else { machine }).facts();
            let map = topo::map(&facts);
            assert_eq!(map.inconclusive, None, "{count} slow");
            assert_eq!(pairs(&map), names(), "{count} slow");
            let expected: Vec<String> =
                (0..8).filter(|&gpu| is_slow(gpu)).map(|gpu| format!("mlx5_{gpu}")).collect();
            assert_eq!(failed(&facts, "P113"), expected);
        }
    }
    // All slow alike: nobody is slower than another.
    let facts = eight(|_, machine| slow(machine)).facts();
    assert_eq!(pairs(&topo::map(&facts)), names());
    assert!(failed(&facts, "P113").is_empty());
}

#[test]
fn slow_rails_and_one_that_is_down() {
    let facts = eight(|gpu, machine| match gpu {
        5 => machine.down(),
        0..=3 => slow(machine),
        _ => machine,
    })
    .facts();
    let map = topo::map(&facts);
    let mut expected = names();
    expected[5] = String::new();
    assert_eq!(pairs(&map), expected);
    assert_eq!(failed(&facts, "P113"), ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]);
    assert_eq!(failed(&facts, "P102"), ["mlx5_5"]);
}

#[test]
fn shared_rails_of_two_rates() {
    // Two GPUs below each of four switches, and one NIC: GPUs 2n and 2n + 1 share it.
    let mut machine = (0..4).fold(machine(4), |machine, gpu| {
        let machine = machine.near(&format!("mlx5_{gpu}"), gpu);
        if gpu < 3 { slow(machine) } else { machine }
    });
    for gpu in 0..4 {
        let mut second = machine.pci[gpu].clone();
        second.address = second.address.replace(":00.0", ":01.0");
        second.path = second.path.replace(&machine.pci[gpu].address, &second.address);
        machine.pci.push(second);
    }
    let facts = machine.facts();
    let map = topo::map(&facts);
    assert_eq!(map.gpus.len(), 8);
    let expected: Vec<String> = (0..8).map(|gpu| format!("mlx5_{}", gpu / 2)).collect();
    assert_eq!(pairs(&map), expected);
    assert_eq!(failed(&facts, "P113"), ["mlx5_0", "mlx5_1", "mlx5_2"]);
}

#[test]
fn storage_does_not_take_the_place_of_a_rail_that_is_slow_or_down() {
    // A storage NIC of the same part and rate, far from every GPU.
    for down in [true, false] {
        let ill = |machine: Machine| if down { machine.down() } else { slow(machine) };
        let facts =
            eight(|gpu, machine| if gpu == 3 { ill(machine) } else { machine }).apart("mlx5_8", 0xe0).facts();
        let map = topo::map(&facts);
        assert_eq!(map.inconclusive, None);
        assert_eq!(role(&map, "mlx5_8"), Role::Other);
        assert_eq!(pairs(&map)[3], if down { "" } else { "mlx5_3" });
        assert_eq!(failed(&facts, if down { "P102" } else { "P113" }), ["mlx5_3"]);
    }
    // Two more, and of Ethernet.
    let facts = eight(|gpu, machine| {
        let machine = machine.ethernet("400 Gb/sec (4X NDR)");
        if gpu == 3 { machine.down() } else { machine }
    })
    .apart("mlx5_8", 0xe0)
    .ethernet("400 Gb/sec (4X NDR)")
    .apart("mlx5_9", 0xe1)
    .ethernet("400 Gb/sec (4X NDR)")
    .facts();
    let map = topo::map(&facts);
    assert_eq!((map.inconclusive.as_deref(), pairs(&map)[3].as_str()), (None, ""));
    assert_eq!(failed(&facts, "P102"), ["mlx5_3"]);
}

#[test]
fn storage_beside_another_gpu_leaves_that_gpu_unclear_and_not_the_failure() {
    // mlx5_3 is the only device by GPU 3; mlx5_0 and mlx5_8 hang by GPU 0 alike.
    let facts =
        eight(|gpu, machine| if gpu == 3 { machine.down() } else { machine }).near("mlx5_8", 0).facts();
    let map = topo::map(&facts);
    let unclear = map.inconclusive.clone().unwrap();
    assert!(unclear.contains("mlx5_0, mlx5_8"), "{unclear}");
    assert!(!unclear.contains("mlx5_1"), "{unclear}");
    assert_eq!(failed(&facts, "P102"), ["mlx5_3"]);
    // A slower one beside GPU 0 is no rail, and a spare one that is down failed for nobody.
    for spare in [slow as fn(Machine) -> Machine, Machine::down] {
        let machine = eight(|gpu, machine| if gpu == 3 { machine.down() } else { machine });
        let facts = spare(machine.near("mlx5_8", 0)).facts();
        let map = topo::map(&facts);
        assert_eq!(map.inconclusive, None);
        assert_eq!((pairs(&map)[0].as_str(), role(&map, "mlx5_8")), ("mlx5_0", Role::Other));
        assert_eq!(failed(&facts, "P102"), ["mlx5_3"]);
    }
}

#[test]
fn one_fast_device_among_slow_ones_is_not_believed_where_a_slow_one_hangs_by_its_gpu() {
    // Eight of 200 Gb/s and a ninth of 400 by GPU 0: it may be storage, or the rail.
    let facts = eight(|_, machine| slow(machine)).near("mlx5_8", 0).facts();
    assert!(topo::map(&facts).inconclusive.is_some());
}

#[test]
fn without_switches_two_rates_are_not_told_apart() {
    // As in a virtual machine: every function below a host bridge of its own.
    let flat = |slow_ones: usize| {
        (0..8_usize).fold(machine(8), |machine, i| {
            let bus = 0xa0 + u32::try_from(i).unwrap();
            let machine = machine.apart(&format!("mlx5_{i}"), bus);
            if i < slow_ones { slow(machine) } else { machine }
        })
    };
    for count in [4, 5, 7] {
        let unclear = topo::map(&flat(count).facts()).inconclusive.unwrap();
        let wanted = format!("{} devices have 400 Gb/s and {count} like ones 200 Gb/s", 8 - count);
        assert!(unclear.contains(&wanted), "{unclear}");
    }
    assert_eq!(topo::map(&flat(1).facts()).inconclusive, None);
}

#[test]
fn the_second_function_of_a_card_that_is_down_is_a_plane_where_others_are_up() {
    let planes = |down: fn(usize) -> bool| {
        (0..8).fold(machine(8), |machine, gpu| {
            let machine = machine.near(&format!("mlx5_{}", 2 * gpu), gpu);
            let first = machine.pci.last().unwrap().clone();
            let path = first.path.trim_start_matches("/sys/devices/").to_owned();
            let second = format!("{}.1", path.strip_suffix(".0").unwrap());
            let machine = machine.at(&format!("mlx5_{}", 2 * gpu + 1), &second, first.numa);
            if down(gpu) { machine.down() } else { machine }
        })
    };
    let facts = planes(|gpu| gpu == 3).facts();
    let map = topo::map(&facts);
    assert_eq!(map.rails_per_gpu, 2);
    assert_eq!(failed(&facts, "P102"), ["mlx5_7"]);
    assert_eq!((pairs(&map)[3].as_str(), pairs(&map)[4].as_str()), ("mlx5_6", "mlx5_8+mlx5_9"));
    // All of them down: second ports that nobody uses, as far as can be seen.
    let map = topo::map(&planes(|_| true).facts());
    assert_eq!((map.inconclusive.as_deref(), map.rails_per_gpu), (None, 1));
}

#[test]
fn rates_that_no_port_has_are_not_believed() {
    let facts = eight(|gpu, machine| {
        let rate = if gpu == 5 { "99999999999999999999999999999999 Gb/sec" } else { "400 Gb/sec (4X NDR)" };
        machine.port(|port| port.rate = Some(rate.into()))
    })
    .facts();
    let map = topo::map(&facts);
    assert_eq!(map.device("mlx5_5").unwrap().gbits, None);
    assert_eq!(pairs(&map), names());
}

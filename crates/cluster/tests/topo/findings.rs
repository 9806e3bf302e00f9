//! For every finding a machine that raises it and a near miss that does not.

use expertrail_cluster::check::Target;
use expertrail_cluster::facts::{Facts, Link};
use expertrail_cluster::finding::{Finding, Status};
use expertrail_cluster::{causes, profile, topo};

use crate::build::{machine, whole};
use crate::mappings::facts;

fn all(facts: &Facts, profile: Option<&str>, target: Target) -> Vec<Finding> {
    let profile = profile.map(|name| profile::get(name).unwrap());
    topo::findings(&topo::map(facts), facts, profile.as_ref(), target)
}

/// What is neither passed nor without a meaning here: id and subject.
fn raised(facts: &Facts, profile: Option<&str>, target: Target) -> Vec<(String, String)> {
    all(facts, profile, target)
        .into_iter()
        .filter(|finding| matches!(finding.status, Status::Fail | Status::Warn | Status::Unknown))
        .map(|finding| (finding.id, finding.subject.unwrap_or_default()))
        .collect()
}

fn of(facts: &Facts, id: &str, target: Target) -> Option<Finding> {
    all(facts, None, target).into_iter().find(|finding| finding.id == id && finding.status != Status::Pass)
}

fn pair(id: &str, subject: &str) -> (String, String) {
    (id.to_owned(), subject.to_owned())
}

const NONE: [(String, String); 0] = [];

#[test]
fn a_whole_machine_raises_nothing() {
    for target in [Target::Expertrail, Target::DeepepIbgda, Target::Nccl] {
        assert_eq!(raised(&whole(4).facts(), None, target), NONE, "{target}");
    }
    for name in ["h100-ib", "renamed-rails", "b200-noncontiguous", "p5en-efa", "h200-crusoe-vm", "two-by-two"]
    {
        assert_eq!(raised(&facts(name), None, Target::Expertrail), NONE, "{name}");
    }
}

#[test]
fn every_cause_is_registered_and_every_bad_finding_has_one_and_a_remedy() {
    let machines = [
        (facts("rail-down"), Target::Expertrail),
        (facts("roce-unclear"), Target::Expertrail),
        (facts("two-gpus-a-nic"), Target::DeepepIbgda),
        (facts("b300-cx8"), Target::DeepepIbgda),
        (facts("p5-efa"), Target::DeepepIbgda),
        (whole(2).set("NVSHMEM_HCA_LIST", "=mlx5_7").set("NCCL_IB_HCA", "^x").facts(), Target::Nccl),
    ];
    for (facts, target) in machines {
        for finding in all(&facts, Some("crusoe-b200"), target) {
            if matches!(finding.status, Status::Fail | Status::Warn | Status::Unknown) {
                let cause = finding.cause.clone().unwrap_or_else(|| panic!("{} has no cause", finding.id));
                assert!(causes::get(&cause).is_some(), "{cause}");
                assert!(!finding.remedies.is_empty(), "{}", finding.id);
                assert!(
                    !finding.why.is_empty() && !finding.observed.is_empty() && !finding.wanted.is_empty(),
                    "{finding:?}"
                );
            }
        }
    }
}

#[test]
fn p100_inconclusive() {
    let unclear = of(&facts("roce-unclear"), "P100", Target::Expertrail).unwrap();
    assert_eq!(unclear.status, Status::Unknown);
    assert!(unclear.observed.contains("inconclusive"), "{}", unclear.observed);
    // Without GPUs, or RDMA devices, there is nothing to be unclear about.
    for name in ["no-gpus", "no-nics"] {
        assert_eq!(
            of(&facts(name), "P100", Target::Expertrail).unwrap().status,
            Status::NotApplicable,
            "{name}"
        );
    }
}

#[test]
fn p101_fewer_rails_than_gpus_or_no_multiple() {
    assert_eq!(raised(&facts("two-gpus-a-nic"), None, Target::Nccl), [pair("P101", "")]);
    let two = |count: usize| {
        (0..count).fold(machine(2), |machine, i| machine.near(&format!("m{i}"), i % 2)).facts()
    };
    assert_eq!(raised(&two(4), None, Target::Nccl), NONE);
    // Three that the user names: one is left over.
    let facts = two(4);
    let names: Vec<String> = ["m0", "m1", "m2"].map(str::to_owned).to_vec();
    let found = topo::findings(&topo::map_with(&facts, Some(&names)), &facts, None, Target::Nccl);
    let left = found.iter().find(|finding| finding.id == "P101").unwrap();
    assert_eq!((left.status, left.observed.as_str()), (Status::Warn, "3 rails for 2 GPUs"));
}

#[test]
fn p102_and_p106_a_rail_that_is_down_and_a_link_of_half_the_width() {
    let raised_here = raised(&facts("rail-down"), None, Target::Expertrail);
    assert_eq!(raised_here, [pair("P102", "ibp5"), pair("P106", "ibp2")]);
    let down = of(&facts("rail-down"), "P102", Target::Expertrail).unwrap();
    assert_eq!(down.status, Status::Fail);
    assert!(down.observed.contains("GPU 5") && down.observed.contains("2: Polling"), "{}", down.observed);
    assert_eq!(down.evidence[0].source, "/sys/class/infiniband/ibp5/ports/1/state");
    let slow = of(&facts("rail-down"), "P106", Target::Expertrail).unwrap();
    assert_eq!((slow.observed.as_str(), slow.wanted.as_str()), ("32.0 GT/s PCIe x8", "32.0 GT/s PCIe x16"));
}

#[test]
fn p106_an_idle_gpu_lowers_its_speed_and_that_is_no_fault() {
    let link = |speed: &str, width: u32| Link {
        speed: Some(speed.into()),
        width: Some(width),
        max_speed: Some("32.0 GT/s PCIe".into()),
        max_width: Some(16),
    };
    let gpu = |speed: &str, width: u32| {
        let mut machine = whole(2);
        machine.pci[1].link = link(speed, width);
        machine.facts()
    };
    assert_eq!(raised(&gpu("2.5 GT/s PCIe", 16), None, Target::Nccl), NONE);
    assert_eq!(raised(&gpu("2.5 GT/s PCIe", 8), None, Target::Nccl), [pair("P106", "GPU 1")]);
    // What a guest prints where there is no link.
    assert_eq!(raised(&gpu("Unknown", 0), None, Target::Nccl), NONE);
    let nic = whole(2).link(link("16.0 GT/s PCIe", 16)).facts();
    assert_eq!(raised(&nic, None, Target::Nccl), [pair("P106", "mlx5_1")]);
}

#[test]
fn p103_and_p104_a_rail_across_the_sockets() {
    // The last GPU's NIC hangs by the other socket.
    let far = (0..3)
        .fold(machine(4), |machine, gpu| machine.near(&format!("m{gpu}"), gpu))
        .apart("m3", 0x05)
        .facts();
    assert_eq!(raised(&far, None, Target::Nccl), [pair("P103", "GPU 3"), pair("P104", "")]);
    let observed = of(&far, "P104", Target::Nccl).unwrap().observed;
    assert_eq!(observed, "NUMA 0: 2 GPUs, 3 rails; NUMA 1: 2 GPUs, 1 rail");
    // Where all are as far, there is no odd one.
    let even = (0..4u32).fold(machine(4), |machine, gpu| {
        let path = format!("pci0000:8{gpu}/0000:8{gpu}:00.0");
        machine.at(&format!("m{gpu}"), &path, Some(u32::from(gpu >= 2)))
    });
    assert_eq!(raised(&even.facts(), None, Target::Nccl), NONE);
}

#[test]
fn p105_profile_and_hardware() {
    assert_eq!(raised(&facts("b200-crusoe-vm"), Some("crusoe-b200"), Target::Nccl), NONE);
    assert_eq!(raised(&facts("h200-crusoe-vm"), Some("crusoe-h200"), Target::Nccl), NONE);
    assert_eq!(raised(&facts("nebius-h200"), Some("nebius-h200"), Target::Nccl), NONE);
    assert_eq!(raised(&facts("nebius-b200"), Some("nebius-b200"), Target::Nccl), NONE);
    assert_eq!(raised(&facts("gb200-tray"), Some("gb200"), Target::Nccl), NONE);
    assert_eq!(raised(&facts("p5-efa"), Some("aws-p5"), Target::Nccl), NONE);
    assert_eq!(raised(&facts("p5en-efa"), Some("aws-p5en"), Target::Nccl), NONE);
    // The documents contradict each other on the same SKU.
    let facts = facts("b200-crusoe-vm");
    let found = all(&facts, Some("nebius-b200"), Target::Nccl);
    let other = found.iter().find(|finding| finding.id == "P105").unwrap();
    assert_eq!(other.status, Status::Warn);
    for part in ["mlx5_4,mlx5_5", "mlx5_11,mlx5_12", "the profile says", "the hardware says"] {
        assert!(other.observed.contains(part), "{part}: {}", other.observed);
    }
    let p5 = crate::mappings::facts("p5-efa");
    let found = all(&p5, Some("aws-p5en"), Target::Nccl);
    let count = &found.iter().find(|finding| finding.id == "P105").unwrap().observed;
    assert_eq!(count, "EFA devices: the profile says 16, there are 32");
    assert!(!all(&facts, Some("generic"), Target::Nccl).iter().any(|finding| finding.id == "P105"));
}

#[test]
fn profiles_are_recognised_by_firmware_and_gpu() {
    let named = |name: &str| profile::detect(&facts(name)).map(|(profile, _)| profile.id);
    assert_eq!(named("h200-crusoe-vm").as_deref(), Some("crusoe-h200"));
    assert_eq!(named("b200-crusoe-vm").as_deref(), Some("crusoe-b200"));
    assert_eq!(named("nebius-b200").as_deref(), Some("nebius-b200"));
    assert_eq!(named("p5-efa").as_deref(), Some("aws-p5"));
    assert_eq!(named("p5en-efa").as_deref(), Some("aws-p5en"));
    assert_eq!(named("gb200-tray").as_deref(), Some("gb200"));
    // The same GPUs of another maker.
    assert_eq!(named("h100-ib"), None);
    assert_eq!(named("azure-h100"), None);
}

#[test]
fn p112_ibgda_on_other_nics() {
    let facts = facts("p5-efa");
    let found = of(&facts, "P112", Target::DeepepIbgda).unwrap();
    assert_eq!((found.status, found.cause.as_deref()), (Status::Fail, Some("non-mlx5-nic")));
    assert!(of(&facts, "P112", Target::DeepepEfa).is_none());
    assert!(of(&whole(2).facts(), "P112", Target::DeepepIbgda).is_none());
    let erdma = machine(1).near("erdma_0", 0).but(|device| device.driver = Some("erdma".into())).facts();
    assert!(of(&erdma, "P112", Target::DeepepIbgda).unwrap().observed.contains("erdma_0 (erdma)"));
}

#[test]
fn p113_a_rail_of_half_the_rate() {
    let facts = whole(4).port(|port| port.rate = Some("200 Gb/sec (2X NDR)".into())).facts();
    assert_eq!(raised(&facts, None, Target::Nccl), [pair("P113", "mlx5_3")]);
    let found = of(&facts, "P113", Target::Nccl).unwrap();
    assert_eq!((found.observed.as_str(), found.wanted.as_str()), ("200 Gb/s; the rail of GPU 3", "400 Gb/s"));
}

#[test]
fn p114_nvshmem_left_to_itself() {
    let tied = facts("two-by-two");
    let found = of(&tied, "P114", Target::DeepepIbgda).unwrap();
    assert_eq!(found.cause.as_deref(), Some("nic-shared-by-two-gpus"));
    assert!(found.observed.contains("0, 1, 2, 3, 4, 5, 6, 7"), "{}", found.observed);
    assert!(of(&tied, "P114", Target::Nccl).is_none());
    assert!(of(&whole(2).facts(), "P114", Target::DeepepIbgda).is_none());
    let pinned = machine(2)
        .near("a", 0)
        .near("b", 0)
        .set("NVSHMEM_HCA_LIST", "a:1")
        .set("NVSHMEM_ENABLE_NIC_PE_MAPPING", "1");
    assert!(of(&pinned.facts(), "P114", Target::DeepepIbgda).is_none());
}

#[test]
fn p115_two_planes() {
    let planes = facts("b300-cx8");
    assert_eq!(
        of(&planes, "P115", Target::DeepepIbgda).unwrap().cause.as_deref(),
        Some("multi-plane-unused")
    );
    assert!(of(&planes, "P115", Target::Nccl).is_none());
    assert!(of(&facts("h100-ib"), "P115", Target::DeepepIbgda).is_none());
}

fn all_of(facts: &Facts, id: &str) -> Vec<Finding> {
    all(facts, None, Target::Nccl).into_iter().filter(|finding| finding.id == id).collect()
}

#[test]
fn all_rails_down_is_eight_failures_and_no_riddle() {
    for ethernet in [false, true] {
        let facts = (0..8).fold(machine(8), |machine, gpu| {
            let machine = machine.near(&format!("mlx5_{gpu}"), gpu).down();
            if ethernet { machine.ethernet("400 Gb/sec (4X NDR)") } else { machine }
        });
        let facts = facts.facts();
        let down = all_of(&facts, "P102");
        assert_eq!(down.iter().filter(|finding| finding.status == Status::Fail).count(), 8);
        assert!(down[3].observed.contains("the rail of GPU 3"), "{}", down[3].observed);
        let mapped = &all_of(&facts, "P100")[0];
        assert_eq!(mapped.status, Status::Pass);
        assert_eq!(mapped.observed, "8 rails for 8 GPUs, none of them up");
        let map = topo::map(&facts);
        assert!(!topo::text(&map).contains("--hca"), "{}", topo::text(&map));
        assert_eq!(topo::unpinned(&map).unwrap(), "no pins: INCONCLUSIVE: all 8 rails are down");
    }
}

#[test]
fn a_link_that_is_up_without_a_subnet_manager_is_not_the_cables_fault() {
    let in_state = |state: &str, physical: &str| {
        let facts = (0..4).fold(machine(4), |machine, gpu| {
            machine.near(&format!("mlx5_{gpu}"), gpu).port(|port| {
                port.state = Some(state.into());
                port.phys_state = Some(physical.into());
            })
        });
        all_of(&facts.facts(), "P102")
    };
    for (state, physical, manager) in [
        ("2: INIT", "5: LinkUp", true),
        ("3: ARMED", "5: LinkUp", true),
        ("1: DOWN", "2: Polling", false),
        ("2: INIT", "2: Polling", false),
    ] {
        let found = in_state(state, physical);
        assert_eq!(found.len(), 4);
        let text = &found[0].remedies[0].text;
        assert_eq!(text.starts_with("The link is up"), manager, "{state}: {text}");
        assert_eq!(text.contains("cable"), !manager, "{state}: {text}");
        // Printed once.
        assert!(found.iter().all(|finding| finding.remedies == found[0].remedies));
    }
}

#[test]
fn remedies_of_several_rails_are_one() {
    let facts = (0..4)
        .fold(machine(4), |machine, gpu| {
            let machine = machine.near(&format!("mlx5_{gpu}"), gpu).link(Link {
                speed: Some("32.0 GT/s PCIe".into()),
                width: Some(8),
                max_speed: Some("32.0 GT/s PCIe".into()),
                max_width: Some(16),
            });
            let rate = if gpu < 2 { "200 Gb/sec (2X NDR)" } else { "400 Gb/sec (4X NDR)" };
            machine.port(|port| port.rate = Some(rate.into()))
        })
        .facts();
    for (id, count) in [("P113", 2), ("P106", 4)] {
        let found = all_of(&facts, id);
        assert_eq!(found.len(), count, "{id}");
        assert!(found.iter().all(|finding| finding.remedies == found[0].remedies), "{id}");
    }
}

#[test]
fn p102_a_whole_plane_that_is_down_is_a_warning() {
    let planes = |down: usize| {
        (0..4_usize).fold(machine(4), |machine, gpu| {
            let machine = machine.near(&format!("mlx5_{}", 2 * gpu), gpu);
            let first = machine.pci.last().unwrap().clone();
            let path = first.path.trim_start_matches("/sys/devices/").to_owned();
            let second = format!("{}.1", path.strip_suffix(".0").unwrap());
            let machine = machine.at(&format!("mlx5_{}", 2 * gpu + 1), &second, first.numa);
            if gpu < down { machine.down() } else { machine }
        })
    };
    let found = of(&planes(4).facts(), "P102", Target::Nccl).unwrap();
    assert_eq!((found.status, found.cause.as_deref()), (Status::Warn, Some("plane-down")));
    assert!(found.observed.ends_with("mlx5_1, mlx5_3, mlx5_5, mlx5_7"), "{}", found.observed);
    assert!(of(&planes(0).facts(), "P102", Target::Nccl).is_none());
    // Physical functions that are down, and the virtual ones are the rails.
    let mut made = planes(4);
    for device in made.rdma.iter_mut().step_by(2) {
        device.physfn = Some("0000:18:00.1".into());
    }
    let made = made.facts();
    assert_eq!(topo::map(&made).rails(), ["mlx5_0", "mlx5_2", "mlx5_4", "mlx5_6"]);
    assert!(of(&made, "P102", Target::Nccl).is_none());
    assert_eq!(of(&planes(1).facts(), "P102", Target::Nccl).unwrap().status, Status::Fail);
}

#[test]
fn check_takes_named_rails_as_topo_does() {
    use expertrail_cluster::check;
    let facts = facts("roce-unclear");
    let mapped = |rails: Option<Vec<String>>| {
        let report = check::run(&facts, &check::Options { rails, ..check::Options::default() });
        report.findings.into_iter().find(|finding| finding.id == "P100").unwrap()
    };
    assert_eq!(mapped(None).status, Status::Unknown);
    let named = mapped(Some((0..8).map(|rail| format!("mlx5_{rail}")).collect()));
    assert_eq!((named.status, named.observed.as_str()), (Status::Pass, "8 rails for 8 GPUs"));
}

#[test]
fn compare_shows_the_rail_that_is_down_and_no_other_difference_of_place() {
    use expertrail_cluster::compare;
    let healthy = || whole(4).facts();
    let ill = (0..4).fold(machine(4), |machine, gpu| {
        let machine = machine.near(&format!("mlx5_{gpu}"), gpu);
        if gpu == 1 { machine.down() } else { machine }
    });
    let nodes: Vec<compare::Node> = [healthy(), healthy(), ill.facts()]
        .iter()
        .enumerate()
        .map(|(index, facts)| compare::Node::new(facts, format!("{index}.json")))
        .collect();
    let report = serde_json::to_string(&compare::run(&nodes, Vec::new())).unwrap();
    assert!(report.contains("mlx5_0 PIX, mlx5_1 down, mlx5_2 PIX, mlx5_3 PIX"), "{report}");
    assert!(!report.contains("NUMA nodes of rails"), "{report}");
}

#[test]
fn counts_of_one_are_said_as_one() {
    let facts = whole(1).facts();
    assert!(topo::text(&topo::map(&facts)).starts_with("node: 1 GPU, 1 rail\n"));
    assert_eq!(all_of(&facts, "P101")[0].observed, "1 rail for 1 GPU");
}

#[test]
fn p110_ports_that_are_not_there() {
    let raises = |name: &str, value: &str| lint(&[(name, value)]).contains(&pair("P110", name));
    assert!(raises("NCCL_IB_HCA", "=mlx5_0:2"));
    assert!(!raises("NCCL_IB_HCA", "=mlx5_0:1"));
    assert!(raises("NCCL_IB_HCA", "mlx5:2"));
    assert!(!raises("NCCL_IB_HCA", "mlx5:1"));
    assert!(raises("UCX_NET_DEVICES", "mlx5_0:1,mlx5_1:x"));
    assert!(raises("NVSHMEM_HCA_LIST", "mlx5_0:9"));
    let facts = whole(2).set("NVSHMEM_HCA_LIST", "mlx5_0:9").facts();
    let found = of(&facts, "P110", Target::Nccl).unwrap();
    assert_eq!(found.observed, "mlx5_0:9: mlx5_0 has no port 9");
    // A second port that is there and down.
    let facts = whole(2)
        .but(|device| {
            let mut second = device.ports[0].clone();
            (second.number, second.state) = (2, Some("1: DOWN".into()));
            device.ports.push(second);
        })
        .set("UCX_NET_DEVICES", "mlx5_1:2")
        .facts();
    let found = of(&facts, "P110", Target::Nccl).unwrap();
    assert_eq!(found.observed, "mlx5_1:2: port 2 of mlx5_1 is not active (1: DOWN)");
}

#[test]
fn commands_quote_what_captures_say() {
    let value = "=mlx5_0:1;touch /tmp/pwned 'x'";
    let machine = whole(2).set("UCX_NET_DEVICES", value).set("NCCL_IB_HCA", "mlx5_1,$(id)");
    let facts = machine.apart("mlx5_10", 6).facts();
    let step = |id: &str| of(&facts, id, Target::Nccl).unwrap().remedies[0].steps[0].clone();
    assert_eq!(step("P109"), r"export UCX_NET_DEVICES='mlx5_0:1;touch /tmp/pwned '\''x'\'''");
    assert_eq!(step("P111"), "export NCCL_IB_HCA='=mlx5_1,$(id)'");
    let plain = whole(2).set("UCX_NET_DEVICES", "=mlx5_0:1").facts();
    let step = &of(&plain, "P109", Target::Nccl).unwrap().remedies[0].steps[0];
    assert_eq!(step, "export UCX_NET_DEVICES=mlx5_0:1");
}

/// What the variables raise on a machine of eight rails `mlx5_0..7`, a frontend `mlx5_8` and a function `mlx5_10`.
fn lint(variables: &[(&str, &str)]) -> Vec<(String, String)> {
    let machine = whole(8).apart("mlx5_8", 0x05).ethernet("100 Gb/sec (4X EDR)");
    let machine = machine.apart("mlx5_10", 0x06).ethernet("25 Gb/sec (1X EDR)");
    let machine = variables.iter().fold(machine, |machine, (name, value)| machine.set(name, value));
    raised(&machine.facts(), None, Target::Nccl)
}

#[test]
fn p107_and_p108_the_switch_and_the_scope_of_nvshmems_list() {
    const LIST: &str = "NVSHMEM_HCA_LIST";
    const SWITCH: &str = "NVSHMEM_ENABLE_NIC_PE_MAPPING";
    assert_eq!(lint(&[(LIST, "mlx5_0:1")]), [pair("P107", LIST)]);
    assert_eq!(lint(&[(LIST, "mlx5_0:1"), (SWITCH, "0")]), [pair("P107", LIST)]);
    assert_eq!(lint(&[(LIST, "mlx5_0:1"), (SWITCH, "1")]), NONE);
    assert_eq!(lint(&[(LIST, "mlx5_0:1,mlx5_1:1"), (SWITCH, "1")]), [pair("P108", LIST)]);
    // The first half of the recipe alone.
    assert_eq!(lint(&[(SWITCH, "1")]), [pair("P108", SWITCH)]);
    assert_eq!(lint(&[(SWITCH, "0")]), NONE);
    assert_eq!(
        lint(&[("NVSHMEM_HCA_PE_MAPPING", "mlx5_0:1:1,mlx5_1:1:1"), (SWITCH, "true")]),
        [pair("P108", "NVSHMEM_HCA_PE_MAPPING")]
    );
}

#[test]
fn p109_prefixes_that_only_nccl_knows() {
    assert_eq!(lint(&[("UCX_NET_DEVICES", "=mlx5_0:1")]), [pair("P109", "UCX_NET_DEVICES")]);
    assert_eq!(lint(&[("NCCL_IB_HCA", "=mlx5_0:1")]), NONE);
    let on = ("NVSHMEM_ENABLE_NIC_PE_MAPPING", "1");
    assert_eq!(lint(&[("NVSHMEM_HCA_LIST", "=mlx5_0:1"), on]), [pair("P109", "NVSHMEM_HCA_LIST")]);
    assert_eq!(lint(&[("UCX_NET_DEVICES", "^mlx5_8:1")]), [pair("P109", "UCX_NET_DEVICES")]);
    // NVSHMEM's documentation (NVSHMEM_HCA_LIST): entries with `^` are left out. The rest is one list for all ranks.
    assert_eq!(lint(&[("NVSHMEM_HCA_LIST", "^mlx5_8"), on]), [pair("P108", "NVSHMEM_HCA_LIST")]);
}

#[test]
fn p110_devices_that_are_no_rails() {
    assert_eq!(lint(&[("UCX_NET_DEVICES", "mlx5_8:1")]), [pair("P110", "UCX_NET_DEVICES")]);
    assert_eq!(lint(&[("UCX_NET_DEVICES", "mlx5_77:1")]), [pair("P110", "UCX_NET_DEVICES")]);
    // A network interface, for TCP.
    assert_eq!(lint(&[("UCX_NET_DEVICES", "eth0")]), NONE);
    assert_eq!(lint(&[("UCX_NET_DEVICES", "all")]), NONE);
    assert_eq!(lint(&[("UCX_NET_DEVICES", "mlx5_0:1,mlx5_7:1")]), NONE);
    assert_eq!(lint(&[("NCCL_IB_HCA", "=mlx5_0,mlx5_8")]), [pair("P110", "NCCL_IB_HCA")]);
    assert_eq!(lint(&[("NCCL_IB_HCA", "^mlx5_8")]), NONE);
    // A family by its beginning.
    assert_eq!(lint(&[("NCCL_IB_HCA", "mlx5")]), NONE);
}

#[test]
fn p111_names_that_begin_other_names() {
    assert_eq!(lint(&[("NCCL_IB_HCA", "mlx5_1")]), [pair("P111", "NCCL_IB_HCA")]);
    assert_eq!(lint(&[("NCCL_IB_HCA", "=mlx5_1")]), NONE);
    assert_eq!(lint(&[("NCCL_IB_HCA", "mlx5_2,mlx5_3")]), NONE);
}

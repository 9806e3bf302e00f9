//! Facts that no machine has: never a panic, never a hang.

use std::time::Duration;

use expertrail_cluster::check::Target;
use expertrail_cluster::facts::{Fact, Facts, PciDevice, RdmaDevice, Scope};
use expertrail_cluster::{profile, topo};
use proptest::prelude::*;

use crate::build::whole;

/// Everything that this part does with facts.
fn all(facts: &Facts) {
    let map = topo::map(facts);
    for target in Target::ALL {
        for profile in [None, profile::get("crusoe-b200").ok(), profile::get("aws-p5").ok()] {
            topo::findings(&map, facts, profile.as_ref(), target);
        }
    }
    let _ = (topo::text(&map), topo::env(&map), topo::nccl_xml(&map, facts), profile::detect(facts));
    let names: Vec<String> = vec!["a".into(), "mlx5_0".into(), String::new()];
    topo::map_with(facts, Some(&names));
}

/// Time that this thread computed: a busy machine or disk does not lengthen it.
fn computed() -> Duration {
    rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).try_into().unwrap()
}

fn quick(what: &str, facts: &Facts) {
    let start = computed();
    all(facts);
    let took = computed().saturating_sub(start);
    assert!(took < Duration::from_secs(20), "{what}: {took:?}");
}

#[test]
fn documents_of_any_size() {
    let many = |count: usize| {
        let mut facts = whole(1).facts();
        let device = facts.rdma.value().unwrap()[0].clone();
        facts.rdma = Fact::read(vec![device; count], "", Scope::Unknown);
        facts
    };
    quick("as many devices as are taken, all alike", &many(512));
    let facts = many(200_000);
    quick("more devices than any node has", &facts);
    assert!(topo::map(&facts).inconclusive.unwrap().contains("200000"));

    let gpu = PciDevice {
        vendor: Some("0x10de".into()),
        class: Some("0x0302".into()),
        address: "0000:01:00.0".into(),
        ..PciDevice::default()
    };
    let mut facts = whole(8).facts();
    facts.pci.devices = Fact::read(vec![gpu; 90_000], "", Scope::Unknown);
    quick("GPUs of one address", &facts);

    let mut facts = whole(8).facts();
    let mut pci = facts.pci.devices.value().unwrap().clone();
    pci.iter_mut().for_each(|device| device.path = "/0000:00:00.0".repeat(700_000));
    facts.pci.devices = Fact::read(pci, "", Scope::Unknown);
    quick("paths of 9 MB", &facts);

    let list = "mlx5_1,".repeat(1_500_000);
    let names = ["NVSHMEM_HCA_LIST", "UCX_NET_DEVICES", "NCCL_IB_HCA"];
    let machine = names.into_iter().fold(whole(8), |machine, name| machine.set(name, &list));
    quick("lists of 10 MB", &machine.facts());

    let rdma = whole(8).facts().rdma.value().unwrap().clone();
    let mut facts = whole(8).facts();
    let twice: Vec<RdmaDevice> = rdma.iter().cloned().chain(rdma.iter().cloned()).collect();
    facts.rdma = Fact::read(twice, "", Scope::Unknown);
    quick("devices named twice", &facts);
}

fn word() -> impl Strategy<Value = Option<String>> {
    prop_oneof![
        Just(None),
        prop::sample::select(vec![
            "4: ACTIVE",
            "1: DOWN",
            "9: ODD",
            "",
            "InfiniBand",
            "Ethernet",
            "Unspecified",
            "400 Gb/sec (4X NDR)",
            "-1 Gb",
            "NaN",
            "1e400",
            "0xffff",
            "efa",
            "mlx5_core",
            "0x1d0f",
            "\u{0}\n\u{1b}",
            "é",
        ])
        .prop_map(|text| Some(text.to_owned())),
        any::<String>().prop_map(Some),
    ]
}

fn path() -> impl Strategy<Value = String> {
    let parts = prop::collection::vec(
        prop::sample::select(vec!["pci0000:00", "0000:01:00.0", "0000:02:00.0", "x", ""]),
        0..6,
    );
    prop_oneof![parts.prop_map(|parts| format!("/sys/devices/{}", parts.join("/"))), any::<String>()]
}

prop_compose! {
    fn pci()(address in "0000:0[0-9]:00.[0-3]|.{0,9}", path in path(), vendor in word(), gpu in any::<bool>(), numa in prop::option::of(0u32..3), width in prop::option::of(any::<u32>()), speed in word()) -> PciDevice {
        let mut device = PciDevice { address, path, vendor, numa, ..PciDevice::default() };
        device.link.width = width;
        device.link.max_width = Some(16);
        device.link.max_speed = speed;
        if gpu {
            device.vendor = Some("0x10de".into());
            device.class = Some("0x030200".into());
        }
        device
    }
}

prop_compose! {
    fn rdma()(name in "mlx5_[0-9]|.{0,5}", pci in prop::option::of("0000:0[0-9]:00.[0-3]"), words in prop::collection::vec(word(), 9), number in any::<u32>(), ports in 0usize..3) -> RdmaDevice {
        let word = |index: usize| words[index].clone();
        let port = expertrail_cluster::facts::Port {
            number,
            state: word(0),
            phys_state: word(1),
            rate: word(2),
            link_layer: word(3),
            pkeys: word(4).into_iter().collect(),
            gids: vec![expertrail_cluster::facts::Gid { gid: word(5).unwrap_or_default(), ..Default::default() }],
            ..Default::default()
        };
        RdmaDevice { name, pci, driver: word(6), hca_type: word(7), physfn: word(8), ports: vec![port; ports], ..RdmaDevice::default() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn anything(pci in prop::collection::vec(pci(), 0..24), rdma in prop::collection::vec(rdma(), 0..20), list in any::<String>()) {
        let mut facts = whole(0).set("NCCL_IB_HCA", &list).set("NVSHMEM_HCA_LIST", &list).set("UCX_NET_DEVICES", &list).facts();
        facts.pci.devices = Fact::read(pci, "", Scope::Unknown);
        facts.rdma = Fact::read(rdma, "", Scope::Unknown);
        all(&facts);
        let map = topo::map(&facts);
        // No rail is free while two GPUs share one.
        let free = map.with(topo::Role::Rail).any(|nic| nic.gpus.is_empty());
        let shared = map.gpus.iter().flat_map(|gpu| &gpu.rails).any(|pin| pin.shared);
        prop_assert!(map.inconclusive.is_some() || !(free && shared));
    }
}

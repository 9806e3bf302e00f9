//! Facts of a machine, built piece by piece.

use std::collections::BTreeMap;

use expertrail_cluster::facts::{Fact, Facts, Gid, Link, PciDevice, Port, RdmaDevice, Scope};

/// A machine of `gpus` GPUs, each below a switch of its own; half of them on each NUMA node.
pub(crate) fn machine(gpus: usize) -> Machine {
    Machine {
        pci: (0..gpus)
            .map(|gpu| PciDevice {
                vendor: Some("0x10de".into()),
                device: Some("0x2335".into()),
                class: Some("0x030200".into()),
                ..function(
                    &format!("{}/0000:{:02x}:00.0/0000:{:02x}:00.0", port(gpu), bus(gpu) + 2, bus(gpu) + 3),
                    node(gpu, gpus),
                )
            })
            .collect(),
        rdma: Vec::new(),
        variables: BTreeMap::new(),
        gpus,
    }
}

fn bus(gpu: usize) -> usize {
    0x10 + 0x10 * gpu
}

fn node(gpu: usize, gpus: usize) -> Option<u32> {
    Some(u32::from(gpu * 2 >= gpus))
}

/// The root port and the switch of a GPU.
fn port(gpu: usize) -> String {
    format!("pci0000:{0:02x}/0000:{0:02x}:01.0/0000:{1:02x}:00.0", bus(gpu), bus(gpu) + 1)
}

fn function(path: &str, numa: Option<u32>) -> PciDevice {
    PciDevice {
        address: path.rsplit('/').next().unwrap().to_owned(),
        path: format!("/sys/devices/{path}"),
        numa,
        ..PciDevice::default()
    }
}

/// Facts under construction.
pub(crate) struct Machine {
    pub(crate) pci: Vec<PciDevice>,
    pub(crate) rdma: Vec<RdmaDevice>,
    pub(crate) variables: BTreeMap<String, String>,
    gpus: usize,
}

impl Machine {
    /// An active InfiniBand device of 400 Gb/s below the switch of `gpu`.
    pub(crate) fn near(self, name: &str, gpu: usize) -> Self {
        let node = node(gpu, self.gpus);
        let count = self.pci.len();
        self.at(
            name,
            &format!("{}/0000:{:02x}:02.0/0000:{:02x}:{count:02x}.0", port(gpu), bus(gpu) + 2, bus(gpu) + 8),
            node,
        )
    }

    /// The same, at `path` and on `numa`.
    pub(crate) fn at(mut self, name: &str, path: &str, numa: Option<u32>) -> Self {
        let function = function(path, numa);
        self.rdma.push(RdmaDevice {
            name: name.into(),
            pci: Some(function.address.clone()),
            driver: Some("mlx5_core".into()),
            hca_type: Some("MT4129".into()),
            board_id: Some("MT_0000000838".into()),
            ports: vec![Port {
                number: 1,
                state: Some("4: ACTIVE".into()),
                phys_state: Some("5: LinkUp".into()),
                rate: Some("400 Gb/sec (4X NDR)".into()),
                link_layer: Some("InfiniBand".into()),
                pkeys: vec!["0xffff".into()],
                gids: vec![Gid { gid: "fe80:0000:0000:0000:a088:c203:0001:0000".into(), ..Gid::default() }],
                ..Port::default()
            }],
            ..RdmaDevice::default()
        });
        self.pci.push(function);
        self
    }

    /// Below a host bridge of its own on NUMA node 0.
    pub(crate) fn apart(self, name: &str, bus: u32) -> Self {
        self.at(name, &format!("pci0000:{bus:02x}/0000:{bus:02x}:00.0"), Some(0))
    }

    /// Changes the device that was added last.
    pub(crate) fn but(mut self, change: impl FnOnce(&mut RdmaDevice)) -> Self {
        change(self.rdma.last_mut().unwrap());
        self
    }

    /// Changes the first port of the device that was added last.
    pub(crate) fn port(self, change: impl FnOnce(&mut Port)) -> Self {
        self.but(|device| change(device.ports.first_mut().unwrap()))
    }

    pub(crate) fn ethernet(self, rate: &str) -> Self {
        self.port(|port| {
            port.link_layer = Some("Ethernet".into());
            port.rate = Some(rate.into());
        })
    }

    pub(crate) fn down(self) -> Self {
        self.port(|port| {
            port.state = Some("1: DOWN".into());
            port.phys_state = Some("3: Disabled".into());
            port.rate = Some("10 Gb/sec (1X SDR)".into());
        })
    }

    pub(crate) fn link(mut self, link: Link) -> Self {
        self.pci.last_mut().unwrap().link = link;
        self
    }

    pub(crate) fn set(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    pub(crate) fn facts(self) -> Facts {
        let mut facts = Facts::default();
        facts.pci.devices = Fact::read(self.pci, "/sys/bus/pci/devices", Scope::HostKernel);
        facts.rdma = Fact::read(self.rdma, "/sys/class/infiniband", Scope::HostKernel);
        facts.environment.variables = Fact::read(self.variables, "environ", Scope::Host);
        facts
    }
}

/// `count` GPUs with a rail each, `mlx5_0` and on.
pub(crate) fn whole(count: usize) -> Machine {
    (0..count).fold(machine(count), |machine, gpu| machine.near(&format!("mlx5_{gpu}"), gpu))
}

//! Checks: pure functions from facts to findings.

mod driver;
mod gpu;
mod host;
mod limits;
mod loaded;
mod modules;
mod nvml;
mod rdma;
pub(crate) mod remedies;
mod report;
mod target;
mod variables;

pub use report::{Counts, Report, Verdict};
pub use target::Target;

use crate::causes::CauseEntry;
use crate::environment::{self, Managed};
use crate::facts::{DeviceNode, Facts};
use crate::finding::{Finding, Manager};
use crate::profile::Profile;
use crate::{stack, topo};

/// What is checked.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What the node is wanted for.
    pub target: Target,
    /// Provider profile to cross-check with.
    pub profile: Option<Profile>,
    /// The rails, where the caller knows them.
    pub rails: Option<Vec<String>>,
}

/// Ids of the checks of this part with what each looks at. An id is never used again for something else.
pub const CHECKS: &[(&str, &str)] = &[
    ("P001", "driver key for stream memory operations"),
    ("P002", "driver key for peer mappings"),
    ("P003", "driver keys configured and active"),
    ("P004", "driver keys survive a reboot"),
    ("P005", "lines of modprobe.d"),
    ("P006", "NVIDIA driver"),
    ("P007", "GPU memory can be registered with NICs"),
    ("P008", "libcuda fits the driver"),
    ("P009", "the driver serves the CUDA of the packages"),
    ("P010", "module nvidia_peermem"),
    ("P011", "module gdrdrv"),
    ("P012", "device node /dev/gdrdrv"),
    ("P013", "gdrdrv serves this driver"),
    ("P014", "nvidia_peermem is in use by ib_core"),
    ("P015", "gdrdrv is bound to the driver"),
    ("P016", "nvidia_peermem is of the driver's version"),
    ("P017", "GDRCopy's library"),
    ("P018", "profiling by users who are not root"),
    ("P020", "RDMA devices"),
    ("P021", "verbs devices are visible"),
    ("P022", "firmware of the rails"),
    ("P023", "error counters of the rails"),
    ("P024", "addresses of RoCE ports"),
    ("P025", "EFA driver"),
    ("P026", "huge pages for EFA"),
    ("P027", "partitions of the rails"),
    ("P028", "libraries that reach the NICs"),
    ("P030", "locked memory"),
    ("P031", "locked memory of the daemons that start jobs"),
    ("P032", "locked memory configured and active"),
    ("P033", "size of /dev/shm"),
    ("P034", "open files"),
    ("P040", "GPUs"),
    ("P041", "NVLinks"),
    ("P042", "peer access over NVLink"),
    ("P043", "registration with the NVLink fabric"),
    ("P044", "fabric manager"),
    ("P045", "memory errors"),
    ("P046", "Xids of the kernel log"),
    ("P047", "clocks"),
    ("P048", "MIG and compute mode"),
    ("P049", "GPU memory in use"),
    ("P050", "IMEX channels"),
    ("P051", "persistence mode"),
    ("P060", "PCI access control"),
    ("P061", "IOMMU translation"),
    ("P062", "NUMA balancing"),
    ("P063", "CPU governor"),
    ("P064", "glibc"),
    ("P070", "NCCL_IB_DISABLE"),
    ("P071", "transport variables fit the NICs"),
    ("P072", "CUDA_VISIBLE_DEVICES"),
    ("P073", "variables that cannot replace driver keys"),
];

/// Causes of the checks.
pub const CAUSES: &[&[CauseEntry]] = &[
    driver::CAUSES,
    modules::CAUSES,
    loaded::CAUSES,
    rdma::CAUSES,
    limits::CAUSES,
    gpu::CAUSES,
    nvml::CAUSES,
    host::CAUSES,
    variables::CAUSES,
];

/// Whether a check has a cause of this id: the table of versions has rows for some of them.
pub(crate) fn has_cause(id: &str) -> bool {
    CAUSES.iter().copied().flatten().any(|cause| cause.id == id)
}

/// What a check may look at.
pub(crate) struct Context<'a> {
    facts: &'a Facts,
    target: Target,
    managed: Managed,
    topology: topo::Topology,
}

impl Context<'_> {
    /// A finding of check `id`, with its title.
    #[allow(clippy::unused_self)] // reads as what it is at every use
    fn finding(&self, id: &str) -> Finding {
        let title = CHECKS.iter().find(|(known, _)| *known == id).map_or("", |(_, title)| title);
        Finding::new(id, title)
    }

    /// Whether the node has rails, or devices that may be some.
    fn has_rdma(&self) -> bool {
        self.facts.rdma.value().is_some_and(|all| all.iter().any(|device| device.pci.is_some()))
    }

    /// Whether the mode of a device node keeps this reader from opening it. Who has `CAP_DAC_OVERRIDE` (bit 1) opens any; whether a
    /// reader of unknown capabilities can is not known.
    fn closed(&self, node: &DeviceNode) -> bool {
        let bound = self.facts.limits.capabilities.value().is_some_and(|bits| bits & 1 << 1 == 0);
        bound && node.mode & 0o006 != 0o006
    }

    /// Whether GPU memory can be registered by a dma-buf: an open driver and Linux 5.12 or newer. None where it cannot be told.
    fn dma_buf(&self) -> Option<bool> {
        use crate::facts::Flavour;
        let release = self.facts.kernel.release.value()?;
        let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
        let kernel = (numbers.next()?, numbers.next()?);
        match self.facts.driver.version.value()?.flavour {
            Flavour::Open => Some(kernel >= (5, 12)),
            Flavour::Proprietary => Some(false),
            Flavour::Unknown => None,
        }
    }
}

/// Every finding about the node, failures first, with remedies for who manages it.
pub fn run(facts: &Facts, options: &Options) -> Report {
    let context = Context {
        facts,
        target: options.target,
        managed: environment::manager(facts),
        topology: topo::map_with(facts, options.rails.as_deref()),
    };
    let parts: [fn(&Context<'_>) -> Vec<Finding>; 8] = [
        driver::check,
        modules::check,
        loaded::check,
        rdma::check,
        limits::check,
        gpu::check,
        host::check,
        variables::check,
    ];
    let mut findings: Vec<Finding> = parts.iter().flat_map(|part| part(&context)).collect();
    findings.extend(topo::findings(&context.topology, facts, options.profile.as_ref(), options.target));
    findings.extend(stack::findings(facts, options.target));
    for finding in &mut findings {
        narrow(finding, context.managed.manager);
    }
    Report::new(facts.node.value().cloned(), options.target, context.managed, findings)
}

/// Keeps the remedies of `manager`. Where nobody knows, or none is for it, all stay.
pub(crate) fn narrow(finding: &mut Finding, manager: Manager) {
    let serves =
        |remedy: &crate::finding::Remedy| remedy.manager.is_none() || remedy.manager == Some(manager);
    if manager != Manager::Unknown && finding.remedies.iter().any(serves) {
        finding.remedies.retain(serves);
    }
}

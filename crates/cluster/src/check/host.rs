//! The host: IOMMU, access control, CPU settings, C library.

use super::Context;
use super::driver::missing;
use super::modules::numbers;
use super::remedies::shell;
use crate::causes::CauseEntry;
use crate::finding::{Finding, Manager, Status};

const ACS: CauseEntry = CauseEntry {
    id: "acs-redirect",
    title: "PCI access control redirects peer traffic",
    text: "With request redirection on, transfers between a GPU and the NIC beside it go up to the root complex and back: GPUDirect RDMA at a part of its bandwidth, or hanging peer copies. In virtual machines it must stay on.",
};
const TRANSLATION: CauseEntry = CauseEntry {
    id: "iommu-translates",
    title: "the IOMMU translates the GPUs' or NICs' addresses",
    text: "On bare metal peer transfers through a translating IOMMU are slow or fail; `iommu=pt` (on Arm `iommu.passthrough=1`) passes addresses through.",
};
const BALANCING: CauseEntry = CauseEntry {
    id: "numa-balancing",
    title: "automatic NUMA balancing is on",
    text: "The kernel unmaps pages to see who uses them; proxy threads and CPU ranks stall for it.",
};
const GOVERNOR: CauseEntry = CauseEntry {
    id: "cpu-governor",
    title: "the CPU's governor lowers the clock",
    text: "Host threads that launch kernels and drive NICs then start at a low clock, and sleep between calls, which adds to every call.",
};
const GLIBC: CauseEntry = CauseEntry {
    id: "glibc-too-old",
    title: "the C library is older than this program's",
    text: "The release binary is built for glibc 2.28; PyTorch wheels want that, too.",
};

pub(super) const CAUSES: &[CauseEntry] = &[ACS, TRANSLATION, BALANCING, GOVERNOR, GLIBC];

pub(super) fn check(context: &Context<'_>) -> Vec<Finding> {
    vec![access_control(context), translation(context), balancing(context), governor(context), glibc(context)]
}

fn virtual_machine(context: &Context<'_>) -> bool {
    context.facts.kernel.hypervisor.value() == Some(&true)
}

fn access_control(context: &Context<'_>) -> Finding {
    let devices = &context.facts.pci.devices;
    let finding = context.finding("P060").from_fact(devices);
    if virtual_machine(context) {
        return finding.not_applicable("a virtual machine: access control must stay on there");
    }
    if !context.has_rdma() {
        return finding.not_applicable("no RDMA device");
    }
    let Some(all) = devices.value() else { return finding.unknown(missing(devices)).advisory() };
    let bridges: Vec<_> = all
        .iter()
        .filter(|device| device.class.as_deref().is_some_and(|class| class.starts_with("0x0604")))
        .collect();
    if bridges.iter().all(|bridge| bridge.acs.is_none()) {
        return finding.unknown("no bridge shows its access control; it is readable by root only").advisory();
    }
    let bad: Vec<&str> = bridges
        .iter()
        .filter(|bridge| bridge.acs.is_some_and(|acs| acs.request_redirect || acs.completion_redirect))
        .map(|bridge| bridge.address.as_str())
        .collect();
    if bad.is_empty() {
        return finding.saw("no bridge above a GPU or NIC redirects", "");
    }
    let some = if bad.len() > 6 {
        format!("{} and {} more", bad[..6].join(", "), bad.len() - 6)
    } else {
        bad.join(", ")
    };
    let list = bad.iter().take(64).map(|address| shell(address)).collect::<Vec<_>>().join(" ");
    finding
        .outcome(Status::Warn, &ACS)
        .saw(format!("redirection on {some}"), "off on the bridges above GPUs and NICs")
        .remedy(
            "Switch access control off in the BIOS, or on these bridges at each boot, on bare metal only.",
            &[&format!("for bridge in {list}; do sudo setpci -s \"$bridge\" ECAP_ACS+6.w=0000; done")],
        )
}

fn translation(context: &Context<'_>) -> Finding {
    let iommu = &context.facts.iommu;
    let finding = context.finding("P061").from_fact(&iommu.groups);
    if virtual_machine(context) {
        return finding.not_applicable("a virtual machine: its host's IOMMU is at work, as it must");
    }
    if !context.has_rdma() {
        return finding.not_applicable("no RDMA device");
    }
    let Some(groups) = iommu.groups.value() else { return finding.not_applicable("no IOMMU groups") };
    let facts = context.facts;
    let functions = facts.rdma.value().into_iter().flatten().filter_map(|device| device.pci.as_deref());
    let peers: Vec<&str> = functions
        .filter_map(|address| facts.pci.at(address))
        .chain(facts.pci.gpus())
        .filter_map(|device| device.iommu_group.as_deref())
        .collect();
    let translating = groups
        .iter()
        .filter(|group| peers.contains(&group.number.as_str()))
        .filter(|group| group.kind.as_deref().is_some_and(|kind| kind.starts_with("DMA")))
        .count();
    if translating == 0 {
        return finding.saw("addresses pass through, or no IOMMU is on", "");
    }
    let groups = if translating == 1 { "1 group" } else { &format!("{translating} groups") };
    // `iommu=pt` is x86's (kernel-parameters.txt).
    let word = if arm(context) { "iommu.passthrough=1" } else { "iommu=pt" };
    let seen = format!("{groups} of GPUs and RDMA devices translated (type DMA)");
    finding
        .outcome(Status::Warn, &TRANSLATION)
        .saw(seen, "identity")
        .remedy_for(Some(Manager::Machine), "Pass addresses through: kernel parameter, then reboot.", &[&format!("{word}      # in GRUB_CMDLINE_LINUX of /etc/default/grub, then: sudo update-grub && sudo reboot")])
        .remedy_for(Some(Manager::Operator), &format!("It is a kernel parameter of the node's image: {word}."), &[])
}

/// Whether the CPUs are Arm's: as the driver was built, else by a list of CPUs that has no flags of x86.
fn arm(context: &Context<'_>) -> bool {
    let facts = context.facts;
    match facts.driver.version.value() {
        Some(driver) if driver.line.contains("x86_64") => false,
        Some(driver) if driver.line.contains("aarch64") => true,
        _ => {
            facts.kernel.cpus.value().is_some_and(|count| *count > 0)
                && facts.kernel.hypervisor.value().is_none()
        }
    }
}

fn balancing(context: &Context<'_>) -> Finding {
    let fact = &context.facts.kernel.numa_balancing;
    let finding = context.finding("P062").from_fact(fact);
    let nodes = context.facts.kernel.numa.value().map_or(0, Vec::len);
    match fact.value() {
        None if fact.is_absent() && context.facts.root == "/" => {
            finding.not_applicable("the kernel has none")
        }
        None => finding.unknown(missing(fact)).advisory(),
        Some(0) => finding.saw("0", ""),
        Some(_) if nodes < 2 => finding.not_applicable("one NUMA node"),
        Some(value) => finding
            .outcome(Status::Warn, &BALANCING)
            .saw(value.to_string(), "0")
            .remedy("Switch it off.", &["sudo sysctl -w kernel.numa_balancing=0"]),
    }
}

fn governor(context: &Context<'_>) -> Finding {
    let fact = &context.facts.kernel.governor;
    let finding = context.finding("P063").from_fact(fact);
    match fact.value().map(String::as_str) {
        None => finding.not_applicable("no governor is shown (a virtual machine, or the firmware decides)"),
        // intel_pstate and amd-pstate-epp raise the clock by themselves under the name powersave.
        Some("powersave") if own_scaling(context) => {
            finding.saw("powersave of a driver that raises the clock itself", "")
        }
        Some(word @ ("powersave" | "conservative" | "ondemand" | "schedutil" | "userspace")) => finding
            .outcome(Status::Warn, &GOVERNOR)
            .saw(word, "performance")
            .remedy("Choose the governor for performance.", &["sudo cpupower frequency-set -g performance"]),
        Some(word) => finding.saw(word, ""),
    }
}

fn own_scaling(context: &Context<'_>) -> bool {
    let kernel = &context.facts.kernel;
    match kernel.scaling_driver.value().map(String::as_str) {
        Some(driver) => matches!(driver, "intel_pstate" | "amd-pstate-epp"),
        None => kernel.cmdline.value().is_some_and(|line| line.contains("intel_pstate=active")),
    }
}

fn glibc(context: &Context<'_>) -> Finding {
    let fact = &context.facts.kernel.glibc;
    let finding = context.finding("P064").from_fact(fact);
    match fact.value() {
        None if fact.is_absent() => finding.not_applicable("no C library of GNU's is here to read"),
        None => finding.unknown(missing(fact)).advisory(),
        Some(version) if numbers(version) < vec![2, 28] => finding
            .outcome(Status::Fail, &GLIBC)
            .saw(version.clone(), "2.28 or newer")
            .remedy("Use a newer image.", &[]),
        Some(version) => finding.saw(version.clone(), ""),
    }
}

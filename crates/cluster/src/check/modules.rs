//! Modules that let NICs and CPUs reach GPU memory.

use super::driver::missing;
use super::{Context, Target, remedies};
use crate::causes::CauseEntry;
use crate::facts::Facts;
use crate::finding::{Finding, Manager, Status};

const PEERMEM: CauseEntry = CauseEntry {
    id: "peermem-missing",
    title: "nvidia_peermem is not loaded",
    text: "Without a peer memory client the NIC cannot register GPU memory this way: `device mlx5_X cannot allocate buffer on the specified memory type. Skipping...`, then `init failed for transport: IBGDA`; or a dispatch that hangs with counters at -1.",
};
const UNREGISTERED: CauseEntry = CauseEntry {
    id: "peermem-not-registered",
    title: "nvidia_peermem is loaded but ib_core does not use it",
    text: "A module built against other RDMA symbols than those that run (RDMA stack replaced after the GPU driver) loads and registers nothing.",
};
const GDRCOPY: CauseEntry = CauseEntry {
    id: "gdrcopy-missing",
    title: "GDRCopy's kernel module or device is not there",
    text: "NVSHMEM needs it to map GPU memory for the CPU: `GDRCopy support not enabled. Unable to register gpu memory handle info`, or IBGDA does not start.",
};
const NODE: CauseEntry = CauseEntry {
    id: "gdrdrv-node-wrong",
    title: "/dev/gdrdrv does not lead to GDRCopy's module",
    text: "The node's major number is given anew at each load; a node of an older load, or one that its users may not open, fails when it is opened.",
};
const OLD: CauseEntry = CauseEntry {
    id: "gdrdrv-too-old",
    title: "GDRCopy is too old for this driver",
    text: "gdrdrv before 2.4.2 does not work with drivers from 560 on.",
};

const DUMMY: CauseEntry = CauseEntry {
    id: "gdrdrv-not-bound",
    title: "gdrdrv is not bound to the driver",
    text: "Built without the driver's symbols (against GDRCopy's stand-in for them) it loads and cannot pin any memory: gdrcopy_sanity fails, and so does NVSHMEM.",
};
const PEERMEM_VERSION: CauseEntry = CauseEntry {
    id: "peermem-version-differs",
    title: "nvidia_peermem is of another version than the driver",
    text: "It belongs to the driver's package; a left-over of an older driver registers with symbols that have changed.",
};

pub(super) const CAUSES: &[CauseEntry] = &[PEERMEM, UNREGISTERED, GDRCOPY, NODE, OLD, DUMMY, PEERMEM_VERSION];

const GDRCOPY_PACKAGE: &str = "build and install gdrdrv-dkms of GDRCopy 2.5.1 or newer, against this driver";

pub(super) fn check(context: &Context<'_>) -> Vec<Finding> {
    vec![
        peermem(context),
        gdrdrv(context),
        node(context),
        gdrdrv_version(context),
        registered(context),
        bound(context),
        peermem_version(context),
    ]
}

/// What GDRCopy is to the target.
pub(super) fn wants_gdrcopy(context: &Context<'_>) -> Option<Status> {
    match context.target {
        Target::DeepepIbgda => Some(Status::Fail),
        Target::DeepepEfa => Some(Status::Warn),
        Target::Expertrail | Target::Nccl => None,
    }
}

fn peermem(context: &Context<'_>) -> Finding {
    let modules = &context.facts.modules;
    let finding = context.finding("P010").from_fact(&modules.loaded);
    if context.target != Target::DeepepIbgda {
        return finding.not_applicable(format!(
            "{} does not demand it (P007 tells whether NICs reach GPU memory)",
            context.target
        ));
    }
    let found = ["nvidia_peermem", "nv_peer_mem"].map(|name| (name, modules.has(name)));
    if let Some((name, _)) = found.iter().find(|(_, found)| *found == Some(true)) {
        return finding.saw(format!("{name} loaded"), "");
    }
    if found.iter().any(|(_, found)| found.is_none()) {
        return finding.unknown(missing(&modules.loaded));
    }
    let note = if context.dma_buf() == Some(true) {
        " (a dma-buf would do for others, not for this recipe)"
    } else {
        ""
    };
    finding
        .outcome(Status::Fail, &PEERMEM)
        .saw(format!("not loaded{note}"), "nvidia_peermem loaded")
        .remedies(remedies::module(
            context.facts,
            "nvidia_peermem",
            "it comes with the driver; RDMA packages must be installed before it",
        ))
}

fn gdrdrv(context: &Context<'_>) -> Finding {
    let modules = &context.facts.modules;
    let finding = context.finding("P011").from_fact(&modules.loaded);
    let Some(status) = wants_gdrcopy(context) else {
        return finding.not_applicable(format!("{} does not use GDRCopy", context.target));
    };
    match modules.has("gdrdrv") {
        Some(true) => finding.saw(
            format!(
                "loaded, version {}",
                context.facts.driver.gdrdrv_version.value().map_or("unknown", String::as_str)
            ),
            "",
        ),
        None => finding.unknown(missing(&modules.loaded)),
        Some(false) => finding
            .outcome(status, &GDRCOPY)
            .saw("not loaded", "gdrdrv loaded")
            .remedies(remedies::module(context.facts, "gdrdrv", GDRCOPY_PACKAGE)),
    }
}

fn node(context: &Context<'_>) -> Finding {
    let facts = context.facts;
    let finding = context.finding("P012").from_fact(&facts.devices).from_fact(&facts.majors);
    let Some(status) = wants_gdrcopy(context) else {
        return finding.not_applicable(format!("{} does not use GDRCopy", context.target));
    };
    let Some(nodes) = facts.devices.value() else { return finding.unknown(missing(&facts.devices)) };
    if facts.modules.has("gdrdrv") == Some(false) {
        return finding.not_applicable("gdrdrv is not loaded (P011)");
    }
    let mend = |finding: Finding| {
        finding.remedy_for(
            Some(Manager::Machine),
            "Make the node anew, with the major number of the loaded module, and keep it by a udev rule.",
            &["sudo rm -f /dev/gdrdrv && sudo mknod -m 666 /dev/gdrdrv c $(awk '$2==\"gdrdrv\"{print $1}' /proc/devices) 0"],
        ).remedy_for(
            Some(Manager::Operator),
            "Pods get the node through the container toolkit: set NVIDIA_GDRCOPY=enabled in the pod, or mount /dev/gdrdrv; on the node recycle the driver pod.",
            &["env: [{name: NVIDIA_GDRCOPY, value: enabled}]"],
        ).remedy_for(
            Some(Manager::Container),
            "Give the container the node.",
            &["docker run --device /dev/gdrdrv ...      # or -e NVIDIA_GDRCOPY=enabled"],
        )
    };
    let Some(node) = nodes.iter().find(|node| node.path == "/dev/gdrdrv") else {
        return mend(finding.outcome(status, &GDRCOPY).saw("no /dev/gdrdrv", "a character device"));
    };
    let major = facts
        .majors
        .value()
        .and_then(|all| all.iter().find(|(_, name)| name == "gdrdrv"))
        .map(|&(major, _)| major);
    if !node.character || major.is_some_and(|major| major != node.major) {
        let wanted = major.map_or("a character device".to_owned(), |major| {
            format!("a character device of major {major}, as /proc/devices has it")
        });
        return mend(finding.outcome(status, &NODE).saw(format!("major {}", node.major), wanted));
    }
    if node.mode & 0o006 != 0o006 {
        return mend(
            finding
                .outcome(Status::Warn, &NODE)
                .saw(format!("mode {:04o}", node.mode), "0666, so that every user's process can open it"),
        );
    }
    finding.saw(format!("major {}, mode {:04o}", node.major, node.mode), "")
}

/// Numbers of a version, as far as they go.
pub(super) fn numbers(version: &str) -> Vec<u32> {
    version.split(['.', '-', '+']).map_while(|part| part.trim_start_matches('v').parse().ok()).collect()
}

fn gdrdrv_version(context: &Context<'_>) -> Finding {
    let driver = &context.facts.driver;
    let finding = context.finding("P013").from_fact(&driver.gdrdrv_version).from_fact(&driver.version);
    if wants_gdrcopy(context).is_none() {
        return finding.not_applicable(format!("{} does not use GDRCopy", context.target));
    }
    if context.facts.modules.has("gdrdrv") == Some(false) {
        return finding.not_applicable("gdrdrv is not loaded (P011)");
    }
    let (Some(module), Some(version)) = (driver.gdrdrv_version.value(), driver.version.value()) else {
        return finding.not_applicable("the module's version is not told");
    };
    let finding = finding.saw(
        format!("gdrdrv {module} with driver {}", version.version),
        "2.4.2 or newer with drivers from 560 on",
    );
    if numbers(module) < vec![2, 4, 2] && numbers(&version.version) >= vec![560] {
        return finding.outcome(Status::Fail, &OLD).remedies(remedies::gdrcopy(context.facts));
    }
    finding
}

fn registered(context: &Context<'_>) -> Finding {
    let loaded = &context.facts.modules.loaded;
    let finding = context.finding("P014").from_fact(loaded);
    if context.target != Target::DeepepIbgda || !has(context.facts, "nvidia_peermem") {
        return finding.not_applicable("nvidia_peermem is not demanded or not loaded");
    }
    let Some(core) = loaded.value().and_then(|all| all.iter().find(|module| module.name == "ib_core")) else {
        return finding.not_applicable("ib_core is not listed");
    };
    // Some kernels print no users at all.
    if core.used_by.is_empty() {
        return finding.not_applicable("the kernel lists no users of ib_core");
    }
    if core.used_by.iter().any(|user| user == "nvidia_peermem") {
        return finding.saw("ib_core is used by nvidia_peermem", "");
    }
    finding
        .outcome(Status::Warn, &UNREGISTERED)
        .saw(format!("ib_core is used by {}", core.used_by.join(",")), "nvidia_peermem among them")
        .remedy_for(Some(Manager::Machine), "Rebuild the GPU driver's modules against the RDMA stack that runs, and load nvidia_peermem anew.", &["sudo modprobe -r nvidia_peermem && sudo modprobe nvidia_peermem && dmesg | tail"])
        .remedy_for(Some(Manager::Operator), "Recycle the driver pod after the RDMA driver pod is ready.", &["kubectl -n nvidia-gpu-operator delete pod -l app.kubernetes.io/component=nvidia-driver"])
}

fn bound(context: &Context<'_>) -> Finding {
    let loaded = &context.facts.modules.loaded;
    let finding = context.finding("P015").from_fact(loaded);
    let Some(status) = wants_gdrcopy(context) else {
        return finding.not_applicable(format!("{} does not use GDRCopy", context.target));
    };
    if !has(context.facts, "gdrdrv") {
        return finding.not_applicable("gdrdrv is not loaded (P011)");
    }
    let Some(driver) = loaded.value().and_then(|all| all.iter().find(|module| module.name == "nvidia"))
    else {
        return finding.not_applicable("the driver's module is not listed");
    };
    // Some kernels print no users at all.
    if driver.used_by.is_empty() {
        return finding.not_applicable("the kernel lists no users of nvidia");
    }
    if driver.used_by.iter().any(|user| user == "gdrdrv") {
        return finding.saw("nvidia is used by gdrdrv", "");
    }
    finding
        .outcome(status, &DUMMY)
        .saw(format!("nvidia is used by {}", driver.used_by.join(",")), "gdrdrv among them")
        .remedies(remedies::gdrcopy(context.facts))
}

fn peermem_version(context: &Context<'_>) -> Finding {
    let driver = &context.facts.driver;
    let finding = context.finding("P016").from_fact(&driver.peermem_version).from_fact(&driver.version);
    if context.target != Target::DeepepIbgda || !has(context.facts, "nvidia_peermem") {
        return finding.not_applicable("nvidia_peermem is not demanded or not loaded");
    }
    let (Some(module), Some(version)) = (driver.peermem_version.value(), driver.version.value()) else {
        return finding.not_applicable("the module's version is not told");
    };
    let finding =
        finding.saw(format!("nvidia_peermem {module}, driver {}", version.version), "one version of both");
    if *module == version.version {
        return finding;
    }
    finding
        .outcome(Status::Warn, &PEERMEM_VERSION)
        .remedy_for(
            Some(Manager::Machine),
            "Take the old module away and load the driver's own.",
            &["modinfo -n nvidia_peermem; sudo modprobe -r nvidia_peermem && sudo modprobe nvidia_peermem"],
        )
        .remedy_for(
            Some(Manager::Operator),
            "Recycle the driver pod, so that its peermem container loads the module anew.",
            &["kubectl -n nvidia-gpu-operator delete pod -l app.kubernetes.io/component=nvidia-driver"],
        )
}

fn has(facts: &Facts, module: &str) -> bool {
    facts.modules.loaded.value().is_some_and(|all| all.iter().any(|found| found.name == module))
}

//! GPUs and NVLink, as NVML and the kernel log show them.

use super::driver::missing;
use super::nvml::{Judged, each};
use super::remedies::shell;
use super::{Context, Target};
use crate::causes::CauseEntry;
use crate::facts::{Fact, Nvml, Reading, Service, Xid};
use crate::finding::{Finding, Manager, Status};

const NO_GPU: CauseEntry = CauseEntry {
    id: "no-gpu",
    title: "no NVIDIA GPU, or fewer here than the node has",
    text: "Every rank needs one. A pod or a container sees those it was given; on a host one that is lost has fallen off its bus or failed.",
};
const GPU_NODE: CauseEntry = CauseEntry {
    id: "gpu-node-missing",
    title: "a GPU has no device node, or one that this user may not open",
    text: "A process opens a GPU through /dev/nvidiaN. Where it is missing and nvidia-modprobe is not installed, or where its mode forbids it, CUDA shows fewer GPUs or none.",
};
const LINK: CauseEntry = CauseEntry {
    id: "nvlink-down",
    title: "NVLinks are down, or carry errors",
    text: "Each link that is down takes its part of the bandwidth from every peer of this GPU; dispatch waits for the slowest.",
};
const PEER: CauseEntry = CauseEntry {
    id: "p2p-unavailable",
    title: "GPUs cannot reach each other over NVLink",
    text: "Dispatch inside a node stores straight into peers' memory. Without NVLink peer access DeepEP refuses to start and we cannot run.",
};
const FABRIC: CauseEntry = CauseEntry {
    id: "nvlink-fabric-incomplete",
    title: "a GPU is not registered with the NVLink fabric",
    text: "On machines with NVSwitch CUDA starts only after the fabric manager has set up the switches: `error 802: system not yet initialized`.",
};
const MANAGER: CauseEntry = CauseEntry {
    id: "fabric-manager",
    title: "the fabric manager does not run, or is of another version than the driver",
    text: "It sets up the NVSwitches and must be of exactly the driver's version; without it GPUs do not start or do not see each other.",
};
const XID: CauseEntry = CauseEntry {
    id: "xid",
    title: "the kernel log has Xids",
    text: "The driver reports hardware and software faults of a GPU by number. Some mean a broken GPU or link, some a program's own error.",
};
const IMEX: CauseEntry = CauseEntry {
    id: "imex-channel-missing",
    title: "no IMEX channel on a multi-node NVLink system",
    text: "Memory is shared between trays through an IMEX channel; without its device node fabric handles fail on import.",
};

pub(super) const CAUSES: &[CauseEntry] = &[NO_GPU, GPU_NODE, LINK, PEER, FABRIC, MANAGER, XID, IMEX];

/// Xids by what they ask for, after NVIDIA's catalogue of Xid errors and AWS's GPU health check: a reboot, a reset of the GPU.
const REBOOT: [u32; 2] = [79, 109];
const RESET: [u32; 8] = [48, 62, 63, 64, 74, 95, 119, 120];

pub(super) fn check(context: &Context<'_>) -> Vec<Finding> {
    let mut all = vec![present(context)];
    let fact = &context.facts.nvml;
    if let Some(nvml) = fact.value() {
        all.extend([links(context, nvml), peers(context, nvml), fabric(context, nvml)]);
        all.extend(super::nvml::check(context, nvml));
    } else {
        // One line for all of them.
        let finding = context.finding("P041").from_fact(fact);
        let none = context.facts.pci.devices.value().is_some() && context.facts.pci.gpus().is_empty();
        all.push(if none {
            finding.not_applicable("no GPU")
        } else {
            let what =
                "not known, nor are peer access, fabric, memory errors, clocks, modes and memory in use";
            let finding = finding.unknown(format!("{what}: {}", missing(fact)));
            // A capture may have been made without NVML. On the machine itself it is there where the driver is, and what it cannot
            // tell is what decides.
            if context.facts.root == "/" { finding } else { finding.advisory() }
        });
    }
    all.push(manager(context));
    all.extend(xids(context, &context.facts.xids));
    all.push(imex(context));
    all
}

fn present(context: &Context<'_>) -> Finding {
    let facts = context.facts;
    let finding = context.finding("P040").from_fact(&facts.pci.devices);
    let count = facts.pci.gpus().len();
    let shown = facts.nvml.value().map(|nvml| nvml.gpus.len());
    if facts.pci.devices.value().is_none() && shown.is_none() {
        return finding.unknown(missing(&facts.pci.devices));
    }
    let nvml = match facts.nvml.reading() {
        Reading::Value(nvml) => format!(", {} in NVML", nvml.gpus.len()),
        // With GPUs on the bus P041 says it.
        Reading::Unreadable(reason) if count == 0 => format!("; {reason}"),
        _ => String::new(),
    };
    let seen = format!("{count} on the PCI bus{nvml}");
    let refused: Vec<String> = facts
        .nvml
        .value()
        .into_iter()
        .flat_map(|nvml| &nvml.refused)
        .map(|(index, reason)| format!("NVML does not open GPU {index}: {reason}"))
        .collect();
    if count == 0 && shown.unwrap_or(0) == 0 && refused.is_empty() {
        return finding.outcome(Status::Fail, &NO_GPU).saw(seen, "a GPU for every rank").remedy(
            "Run it on a node with GPUs; a pod asks for nvidia.com/gpu, a container for --gpus all.",
            &[],
        );
    }
    // A container may be given some of the GPUs; one that NVML counts and does not open is broken anywhere.
    let lost: Vec<String> = facts
        .pci
        .gpus()
        .into_iter()
        .filter(|gpu| facts.nvml.value().is_some_and(|nvml| nvml.at(&gpu.address).is_none()))
        .map(|gpu| format!("{} is not in NVML", gpu.address))
        .collect();
    if !refused.is_empty() || (shown.is_some_and(|shown| shown < count) && !context.managed.container) {
        let named = if refused.is_empty() { lost } else { refused };
        return finding
            .outcome(Status::Fail, &NO_GPU)
            .saw(format!("{seen}: {}", named.join("; ")), "every GPU of the bus in NVML")
            .remedy(
                "A GPU that the bus has and the driver does not show has fallen off: look at the kernel log, reboot, have it replaced.",
                &["sudo dmesg | grep -i -E 'nvrm|xid'"],
            );
    }
    nodes(context, finding, &seen, shown)
}

/// The nodes through which a process opens the GPUs, where the listing of `/dev` has any of the driver.
fn nodes(context: &Context<'_>, finding: Finding, seen: &str, shown: Option<usize>) -> Finding {
    let facts = context.facts;
    let all = facts.devices.value().map(Vec::as_slice).unwrap_or_default();
    let number = |path: &str| path.strip_prefix("/dev/nvidia").and_then(|rest| rest.parse::<u32>().ok());
    let gpus: Vec<_> = all.iter().filter(|node| node.character && number(&node.path).is_some()).collect();
    // A container has nodes of the GPUs that it was given, which NVML tells and the bus does not.
    let count = match shown {
        Some(shown) => shown,
        None if context.managed.container => 0,
        None => facts.pci.gpus().len(),
    };
    let mend = |finding: Finding| {
        finding
            .from_fact(&facts.devices)
            .remedy_for(
                Some(Manager::Machine),
                "Make the nodes, open to every user.",
                &[
                    "sudo nvidia-modprobe -u -c 0 -c 1      # and so on, for each GPU",
                    "sudo chmod 666 /dev/nvidia*",
                ],
            )
            .remedy_for(
                Some(Manager::Operator),
                "A pod gets the nodes with the GPUs that it asks for.",
                &["resources: {limits: {nvidia.com/gpu: 8}}"],
            )
            .remedy_for(
                Some(Manager::Container),
                "Give the container the GPUs.",
                &["docker run --gpus all ..."],
            )
    };
    let closed: Vec<String> = gpus
        .iter()
        .filter(|node| context.closed(node))
        .map(|node| format!("{} has mode {:04o}", node.path, node.mode))
        .collect();
    if !closed.is_empty() {
        // A group may have what others have not; whether this user is in it is not known.
        let grouped = gpus.iter().filter(|node| context.closed(node)).all(|node| node.mode & 0o060 == 0o060);
        let status = if grouped { Status::Warn } else { Status::Fail };
        let finding = finding.outcome(status, &GPU_NODE);
        return mend(finding.saw(format!("{seen}; {}", closed.join(", ")), "nodes that this user can open"));
    }
    if all.iter().any(|node| node.path == "/dev/nvidiactl") && gpus.len() < count {
        let finding = finding.outcome(Status::Warn, &GPU_NODE);
        let seen = format!("{seen}, {} of them with a node /dev/nvidiaN", gpus.len());
        return mend(finding.saw(seen, "a node for each GPU"));
    }
    finding.saw(seen, "")
}

fn links(context: &Context<'_>, nvml: &Nvml) -> Finding {
    let most = nvml.gpus.iter().filter_map(|gpu| gpu.nvlinks_up).max().unwrap_or(0);
    let finding = context.finding("P041").from_fact(&context.facts.nvml);
    if let [only] = nvml.gpus.as_slice()
        && only.nvlinks_up.is_none()
    {
        return finding.not_applicable("one GPU, which tells no links");
    }
    if nvml.gpus.len() > 1 && most == 0 && nvml.gpus.iter().all(|gpu| gpu.nvlinks_up.is_some()) {
        return finding
            .outcome(Status::Fail, &LINK)
            .saw("no NVLink is up on any GPU", "NVLinks between the GPUs")
            .remedy(
                "Use GPUs joined by NVLink (SXM); on machines with NVSwitch see the fabric manager (P044).",
                &["nvidia-smi nvlink -s"],
            );
    }
    let (finding, worst) = each(context, "P041", nvml, "every link up, no errors", |gpu| {
        let Some(up) = gpu.nvlinks_up else {
            return if most > 0 {
                Judged::Bad(Status::Warn, format!("NVML tells no links, others have {most}"))
            } else {
                Judged::Untold
            };
        };
        if gpu.nvlinks.is_some_and(|all| up < all) || up < most {
            let all = gpu.nvlinks.unwrap_or(most).max(most);
            return Judged::Bad(Status::Fail, format!("{up} of {all} links up"));
        }
        match gpu.nvlink_errors {
            Some(errors @ 1..) => {
                Judged::Bad(Status::Warn, format!("{errors} link errors since the driver's load"))
            }
            _ => Judged::Good,
        }
    });
    let Some(status) = worst else { return finding };
    finding.outcome(status, &LINK).remedy(
        "Reset the GPUs or reboot; if a link stays down the board or the switch must be replaced.",
        &["nvidia-smi nvlink -s; nvidia-smi nvlink -e"],
    )
}

fn peers(context: &Context<'_>, nvml: &Nvml) -> Finding {
    let finding = context.finding("P042").from_fact(&context.facts.nvml);
    if nvml.gpus.len() < 2 {
        return finding.not_applicable("fewer than two GPUs");
    }
    if nvml.p2p.is_empty() {
        return finding.unknown("NVML tells no peer state").advisory();
    }
    let words =
        ["OK", "chipset", "GPU", "topology", "disabled by a registry key", "not supported", "unknown"];
    let told = |a: u32, b: u32| {
        nvml.p2p.iter().any(|pair| (pair.from, pair.to) == (a, b) || (pair.from, pair.to) == (b, a))
    };
    let indexes: Vec<u32> = nvml.gpus.iter().map(|gpu| gpu.index).collect();
    let untold: Vec<String> = indexes
        .iter()
        .flat_map(|&a| indexes.iter().filter(move |&&b| a < b).map(move |&b| (a, b)))
        .filter(|&(a, b)| !told(a, b))
        .map(|(a, b)| format!("GPU {a} to {b}: NVML does not tell"))
        .collect();
    let mut bad: Vec<String> = nvml
        .p2p
        .iter()
        .filter(|pair| pair.nvlink != 0 && pair.from != pair.to)
        .map(|pair| {
            format!(
                "GPU {} to {}: {}",
                pair.from,
                pair.to,
                words.get(pair.nvlink as usize).unwrap_or(&"unknown")
            )
        })
        .collect();
    let status = if bad.is_empty() { Status::Warn } else { Status::Fail };
    bad.extend(untold);
    if bad.is_empty() {
        return finding.saw("OK between all", "");
    }
    let some = if bad.len() > 8 {
        format!("{}; and {} more", bad[..8].join("; "), bad.len() - 8)
    } else {
        bad.join("; ")
    };
    finding.outcome(status, &PEER).saw(some, "OK between all").remedy(
        "Start the fabric manager, switch MIG off, and see that no registry key disables peer access.",
        &["nvidia-smi topo -p2p n"],
    )
}

fn fabric(context: &Context<'_>, nvml: &Nvml) -> Finding {
    let (finding, worst) = each(context, "P043", nvml, "completed, or not needed", |gpu| {
        let Some(fabric) = gpu.fabric.as_ref() else { return Judged::Untold };
        match (fabric.state, fabric.status) {
            (3, 0) => {
                fabric.health.and_then(unhealthy).map_or(Judged::Good, |what| Judged::Bad(Status::Warn, what))
            }
            (0, _) => Judged::Good,
            (3, status) => Judged::Bad(Status::Fail, format!("completed with NVML status {status}")),
            (1, _) => Judged::Bad(Status::Fail, "not started".to_owned()),
            (2, _) => Judged::Bad(Status::Fail, "in progress".to_owned()),
            (state, _) => Judged::Bad(Status::Warn, format!("state {state}, which nobody here knows")),
        }
    });
    let Some(status) = worst else { return finding };
    finding.outcome(status, &FABRIC).remedies(manager_remedies(context))
}

/// What the mask of health says, two bits for each of its parts, of which 1 is "true" (nvml.h, `NVML_GPU_FABRIC_HEALTH_MASK_*`).
fn unhealthy(mask: u32) -> Option<String> {
    let parts = [
        "bandwidth is degraded",
        "a route is recovering",
        "a route is unhealthy",
        "recovering from a timeout",
    ];
    let bad: Vec<&str> =
        parts.iter().enumerate().filter(|(at, _)| mask >> (2 * at) & 3 == 1).map(|(_, part)| *part).collect();
    (!bad.is_empty()).then(|| bad.join(", "))
}

fn manager_remedies(context: &Context<'_>) -> Vec<crate::finding::Remedy> {
    // Its package carries the driver's branch in its name.
    let version = context.facts.driver.version.value().map_or("", |driver| driver.version.as_str());
    let install = match version.split_once('.') {
        Some((branch, _)) => {
            let package = format!("nvidia-fabricmanager-{branch}={version}-1");
            format!("sudo apt-get install {}", shell(&package))
        }
        None => "sudo apt-get install nvidia-fabricmanager-BRANCH=VERSION_OF_THE_DRIVER-1".to_owned(),
    };
    let finding = Finding::new("", "")
        .remedy_for(
            Some(Manager::Machine),
            "Install the fabric manager of exactly the driver's version and start it.",
            &[&install, "sudo systemctl enable --now nvidia-fabricmanager; nvidia-smi -q | grep -A3 Fabric"],
        )
        .remedy_for(
            Some(Manager::Operator),
            "The operator runs it in the driver container: look at that pod's log and recycle the pod.",
            &["kubectl -n nvidia-gpu-operator logs POD -c nvidia-driver-ctr | grep -i fabric"],
        )
        .remedy_for(Some(Manager::Container), "The fabric manager belongs to the host.", &[]);
    finding.remedies
}

fn manager(context: &Context<'_>) -> Finding {
    let facts = context.facts;
    let finding = context.finding("P044");
    let switches = facts.pci.devices.value().is_some_and(|all| {
        all.iter().any(|device| {
            device.vendor.as_deref() == Some("0x10de")
                && device.class.as_deref().is_some_and(|class| class.starts_with("0x0680"))
        })
    });
    let done = facts.nvml.value().is_some_and(|nvml| {
        !nvml.gpus.is_empty()
            && nvml.gpus.iter().all(|gpu| {
                // Older GPUs behind NVSwitches, and older drivers, tell no registration; that is no proof.
                gpu.fabric.as_ref().is_some_and(|fabric| (fabric.state, fabric.status) == (3, 0))
            })
    });
    let service: Option<&Service> =
        facts.services.iter().find(|service| service.name == "nvidia-fabricmanager");
    let Some(service) = service.filter(|_| switches) else {
        return finding.not_applicable(
            "no NVSwitch on this PCI bus (a virtual machine's host runs the fabric manager)",
        );
    };
    let finding = finding.from_fact(&service.pid);
    if service.pid.value().is_none() {
        if done || context.managed.container {
            return finding.not_applicable("not seen here; the GPUs' registration (P043) decides");
        }
        // Processes that nobody sees may run.
        if !service.pid.is_absent() {
            let finding = finding.unknown(missing(&service.pid));
            return if facts.root == "/" { finding } else { finding.advisory() };
        }
        return finding
            .outcome(Status::Fail, &MANAGER)
            .saw("not running, with NVSwitches on the bus", "running")
            .remedies(manager_remedies(context));
    }
    let versions = service.version.value().zip(facts.driver.version.value());
    match versions {
        Some((found, driver)) if *found != driver.version && updated(context, found) => finding
            .from_fact(&service.version)
            .outcome(Status::Fail, &MANAGER)
            .saw(
                format!("version {found}, as libcuda; the loaded driver is {}", driver.version),
                "the driver's version",
            )
            .remedy("The driver was updated and is not loaded anew: reboot.", &["sudo reboot"]),
        Some((found, driver)) if *found != driver.version => finding
            .from_fact(&service.version)
            .outcome(Status::Fail, &MANAGER)
            .saw(format!("version {found}, driver {}", driver.version), "the driver's version")
            .remedies(manager_remedies(context)),
        Some((found, _)) => finding.saw(format!("running, version {found} as the driver"), ""),
        None => finding.saw("running, its version is not told", ""),
    }
}

/// Whether libcuda has this version, too: then the files are newer than the loaded module, and not the other way round.
fn updated(context: &Context<'_>, version: &str) -> bool {
    let libcuda = context.facts.userspace.library("libcuda.so.1");
    let chosen = libcuda.and_then(|library| library.chosen.value()?.version.as_ref());
    chosen.is_some_and(|found| found.text == version)
}

fn xids(context: &Context<'_>, fact: &Fact<Vec<Xid>>) -> Vec<Finding> {
    let finding = || context.finding("P046").from_fact(fact);
    let Some(all) = fact.value() else { return vec![finding().unknown(missing(fact)).advisory()] };
    let bad: Vec<&Xid> = all.iter().collect();
    if bad.is_empty() {
        return vec![finding().saw("none", "")];
    }
    bad.into_iter()
        .map(|xid| {
            let (status, text): (Status, &str) = if xid.nvswitch && !fatal(&xid.text) {
                (Status::Warn, "The NVSwitch went on after it. If it comes again and again look at the links (P041) and the fabric manager's log.")
            } else if xid.nvswitch {
                (Status::Fail, "A fault of an NVSwitch or of a link to it: reboot; if it comes back have the board replaced.")
            } else if REBOOT.contains(&xid.number) {
                (Status::Fail, "The GPU has fallen off the bus or hangs: reboot the node; if it comes back have the GPU replaced.")
            } else if RESET.contains(&xid.number) {
                (Status::Fail, "Reset the GPU or reboot; if it comes back have the GPU replaced.")
            } else {
                (Status::Warn, "Mostly a program's own fault (13, 31, 43, 45, 94: an illegal access or a killed process): look at what ran.")
            };
            let name = if xid.nvswitch { "SXid" } else { "Xid" };
            let times = if xid.count == 1 { String::new() } else { format!(", {} times", xid.count) };
            finding()
                .about(xid.pci.clone())
                .outcome(status, &XID)
                .saw(format!("{name} {}{times}: {}", xid.number, xid.text), "none since boot")
                .remedy(text, &[])
        })
        .collect()
}

/// Whether the line of an `SXid` says that it was fatal: `20034, Fatal, Link 30 LTSSM Fault Up`, and not `Non-fatal`.
fn fatal(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.contains("fatal") && !text.contains("non-fatal") && !text.contains("non fatal")
}

fn imex(context: &Context<'_>) -> Finding {
    let facts = context.facts;
    let finding = context.finding("P050").from_fact(&facts.devices);
    let multi = facts.nvml.value().is_some_and(|nvml| {
        nvml.gpus
            .iter()
            .filter_map(|gpu| gpu.fabric.as_ref())
            .any(|fabric| fabric.cluster.bytes().any(|c| c.is_ascii_hexdigit() && c != b'0'))
    });
    if !multi || context.target == Target::DeepepEfa {
        return finding.not_applicable("no NVLink domain of several hosts");
    }
    let Some(nodes) = facts.devices.value() else {
        return finding.unknown(missing(&facts.devices)).advisory();
    };
    let channel = |path: &str| path.starts_with("/dev/nvidia-caps-imex-channels/channel");
    let daemon = facts.services.iter().find(|service| service.name == "nvidia-imex");
    let stopped = daemon.is_some_and(|daemon| daemon.pid.is_absent()) && !context.managed.container;
    let has_channel = nodes.iter().any(|node| channel(&node.path));
    if has_channel && !stopped {
        return finding.saw("a channel is there", "");
    }
    let seen = match (has_channel, stopped) {
        (true, _) => "a channel, and nvidia-imex does not run",
        (false, true) => "no /dev/nvidia-caps-imex-channels/channelN, and nvidia-imex does not run",
        (false, false) => "no /dev/nvidia-caps-imex-channels/channelN",
    };
    finding
        .outcome(Status::Warn, &IMEX)
        .saw(seen, "a channel and the daemon, to share memory between trays")
        .remedy_for(
            Some(Manager::Machine),
            "Start the IMEX daemon with the list of nodes, and make a channel.",
            &["sudo systemctl enable --now nvidia-imex", "options nvidia NVreg_CreateImexChannel0=1"],
        )
        .remedy_for(
            Some(Manager::Operator),
            "Use a ComputeDomain of NVIDIA's DRA driver; it gives pods their channel.",
            &[],
        )
        .remedy_for(
            Some(Manager::Container),
            "Give the container the channel.",
            &["docker run --device /dev/nvidia-caps-imex-channels/channel0 ..."],
        )
}

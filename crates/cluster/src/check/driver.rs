//! The NVIDIA driver: its keys, its version, what it can register.

use super::{Context, Target, remedies};
use crate::causes::CauseEntry;
use crate::facts::{Fact, Flavour, Reading, RegistryDwords, Scope};
use crate::finding::{Finding, Manager, Status};

const KEY: CauseEntry = CauseEntry {
    id: "driver-key-missing",
    title: "the NVIDIA driver runs without a key that IBGDA needs",
    text: "A GPU that rings a NIC's doorbell needs both driver keys. Without them IBGDA fails to start (`cudaHostRegister with IoMemory failed with error=800`), or, with NVSHMEM 3.4.5 and newer, falls back to a CPU that helps, which is slower; DeepEP may hang in that mode. No environment variable replaces a key.",
};
const PENDING: CauseEntry = CauseEntry {
    id: "driver-key-not-active",
    title: "a driver key is configured but the loaded driver does not have it",
    text: "modprobe files are read when the module is loaded, often from the initramfs. Until the driver is loaded anew the old value holds.",
};
const LOST: CauseEntry = CauseEntry {
    id: "driver-key-not-kept",
    title: "a driver key is active but configured nowhere",
    text: "It was given by hand when the module was loaded; the next boot loads the driver without it.",
};
const LINE: CauseEntry = CauseEntry {
    id: "modprobe-line-inert",
    title: "a line of modprobe.d does nothing, or contradicts another",
    text: "modprobe takes driver keys only on lines that begin with `options nvidia`; of two values for one key one is lost.",
};
const NO_DRIVER: CauseEntry = CauseEntry {
    id: "driver-missing",
    title: "no NVIDIA driver, or one that is too old",
    text: "Without a driver there is no GPU to use. Our kernels for Hopper and Blackwell want driver 580 or newer (525 with NVRTC 12); CUDA 13 builds of others want 580.",
};
const NO_DIRECT: CauseEntry = CauseEntry {
    id: "no-gpudirect",
    title: "NICs cannot reach GPU memory",
    text: "Neither a dma-buf (open kernel modules and Linux 5.12) nor a peer memory module is there, so every transfer between nodes is staged through host memory: a fraction of the bandwidth, and none at all for transports that insist.",
};

const PROFILING: CauseEntry = CauseEntry {
    id: "profiling-restricted",
    title: "only administrators may profile",
    text: "DeepEP's own tests time kernels by the profiler (Kineto, CUPTI): without the right they stop with CUPTI_ERROR_INSUFFICIENT_PRIVILEGES or print no kernel times. What is measured by events, and training, do not mind.",
};

pub(super) const CAUSES: &[CauseEntry] = &[KEY, PENDING, LOST, LINE, NO_DRIVER, NO_DIRECT, PROFILING];

/// Bit of `CAP_SYS_ADMIN` (linux/capability.h), which the driver takes for an administrator.
const SYS_ADMIN: u64 = 1 << 21;

/// Oldest driver of CUDA 13, and of CUDA 12.0.
const CUDA13: u32 = 580;
const CUDA12: u32 = 525;

pub(super) fn check(context: &Context<'_>) -> Vec<Finding> {
    let mut all = vec![stream_mem_ops(context), peer_mapping(context)];
    all.push(pending(context));
    all.push(kept(context));
    all.extend(lines(context));
    all.push(version(context));
    all.push(direct(context));
    all.push(profiling(context));
    all
}

/// Whether this target wants the driver's keys.
pub(super) fn wants_keys(context: &Context<'_>) -> bool {
    context.target == Target::DeepepIbgda
}

fn key(
    context: &Context<'_>,
    id: &str,
    wanted: &str,
    judge: impl Fn(&std::collections::BTreeMap<String, String>) -> Result<String, String>,
) -> Finding {
    let params = &context.facts.driver.params;
    let finding = context.finding(id).from_fact(params);
    if !wants_keys(context) {
        return finding.not_applicable(format!("{} needs no driver keys", context.target));
    }
    match params.reading() {
        Reading::Value(params) => match judge(params) {
            Ok(seen) => finding.saw(seen, wanted),
            Err(seen) => finding
                .outcome(Status::Fail, &KEY)
                .saw(seen, wanted)
                .remedies(remedies::driver_keys(context.facts)),
        },
        _ => finding.unknown(missing(params)).remedy(
            "Run the check where /proc/driver/nvidia is visible: on the host, or in the driver container.",
            &["expertrail check --kube --for deepep-ibgda      # reads it in the driver pods of a cluster"],
        ),
    }
}

/// Why a fact has no value.
pub(super) fn missing<T>(fact: &Fact<T>) -> String {
    // Files that stand in a capture for what cannot be copied.
    let captured = match fact.source.as_str() {
        "/dev.txt" => Some("the capture has no listing of /dev (dev.txt, of ls -lR /dev)"),
        "/environ.txt" => Some("the capture has no variables (environ.txt)"),
        "/kmsg.txt" => Some("the capture holds no kernel log"),
        "/nvml.json" => Some("the capture holds nothing of NVML"),
        _ => None,
    };
    match fact.reading() {
        Reading::Absent => captured.map_or_else(|| format!("{} is not there", fact.source), str::to_owned),
        Reading::Unreadable(reason) => format!("{} cannot be read: {reason}", fact.source),
        Reading::Value(_) => String::new(),
        Reading::NotLooked => "not looked at".to_owned(),
    }
}

fn stream_mem_ops(context: &Context<'_>) -> Finding {
    key(context, "P001", "EnableStreamMemOPs: 1", |params| match params.get("EnableStreamMemOPs") {
        Some(value) if value.parse() == Ok(1) => Ok(format!("EnableStreamMemOPs: {value}")),
        Some(value) => Err(format!("EnableStreamMemOPs: {value}")),
        None => Err("no EnableStreamMemOPs among the parameters".to_owned()),
    })
}

fn peer_mapping(context: &Context<'_>) -> Finding {
    key(context, "P002", "RegistryDwords: \"PeerMappingOverride=1;\"", |params| {
        match params.get("RegistryDwords") {
            Some(value) if RegistryDwords::parse(value).number("PeerMappingOverride") == Some(1) => {
                Ok(format!("RegistryDwords: \"{value}\""))
            }
            Some(value) => Err(format!("RegistryDwords: \"{value}\"")),
            None => Err("no RegistryDwords among the parameters".to_owned()),
        }
    })
}

/// Whether the loaded driver has both keys.
pub(super) fn has_keys(params: &std::collections::BTreeMap<String, String>) -> bool {
    let dwords = params.get("RegistryDwords").map_or("", String::as_str);
    params.get("EnableStreamMemOPs").is_some_and(|value| value.parse() == Ok(1))
        && RegistryDwords::parse(dwords).number("PeerMappingOverride") == Some(1)
}

/// The two keys: in the loaded driver, and as files ask for them.
fn keys(context: &Context<'_>) -> [(&'static str, Option<u64>, Option<u64>); 2] {
    let driver = &context.facts.driver;
    let active = driver.params.value();
    let configured = |key: &str| {
        let options = driver.configured.value().into_iter().flatten();
        options
            .filter(|option| option.module == "nvidia" && option.key == key)
            .map(|option| option.value.clone())
            .next_back()
    };
    let dword = |text: &str| RegistryDwords::parse(text).number("PeerMappingOverride");
    [
        (
            "EnableStreamMemOPs",
            active.and_then(|params| params.get("EnableStreamMemOPs")?.parse().ok()),
            configured("NVreg_EnableStreamMemOPs").and_then(|value| value.parse().ok()),
        ),
        (
            "PeerMappingOverride",
            active.map(|params| params.get("RegistryDwords").and_then(|text| dword(text)).unwrap_or(0)),
            configured("NVreg_RegistryDwords").and_then(|value| dword(&value)),
        ),
    ]
}

fn pending(context: &Context<'_>) -> Finding {
    let driver = &context.facts.driver;
    let finding = context.finding("P003").from_fact(&driver.params).from_fact(&driver.configured);
    if driver.params.value().is_none() {
        return finding.not_applicable(format!("nothing to compare with: {}", missing(&driver.params)));
    }
    match driver.configured.reading() {
        Reading::Value(_) => {}
        Reading::Unreadable(_) => return finding.unknown(missing(&driver.configured)).advisory(),
        Reading::Absent | Reading::NotLooked => {
            return finding.not_applicable("no file of modprobe.d configures the driver");
        }
    }
    let waiting: Vec<String> = keys(context)
        .into_iter()
        .filter_map(|(key, active, configured)| {
            let configured = configured?;
            (active != Some(configured)).then(|| {
                format!(
                    "{key}={configured} is configured, {} is active",
                    active.map_or("nothing".to_owned(), |a| a.to_string())
                )
            })
        })
        .collect();
    if waiting.is_empty() {
        return finding.saw("what is configured is active", "");
    }
    let status = if wants_keys(context) { Status::Fail } else { Status::Warn };
    finding.outcome(status, &PENDING).saw(waiting.join("; "), "the same value in both").remedy_for(
        Some(Manager::Machine),
        "Put the file into the initramfs and reboot (of a virtual machine: stop and start).",
        &["sudo update-initramfs -u      # Debian, Ubuntu; on RHEL: sudo dracut -f", "sudo reboot"],
    ).remedy_for(
        Some(Manager::Operator),
        "Files of the host's modprobe.d do not reach the operator's driver; put the keys into the ConfigMap of its resource and recycle the driver pod.",
        &["kubectl -n nvidia-gpu-operator delete pod -l app.kubernetes.io/component=nvidia-driver"],
    )
}

fn kept(context: &Context<'_>) -> Finding {
    let driver = &context.facts.driver;
    let finding = context.finding("P004").from_fact(&driver.configured);
    if !wants_keys(context) {
        return finding.not_applicable(format!("{} needs no driver keys", context.target));
    }
    match context.managed.manager {
        Manager::Machine => {}
        Manager::Unknown => {
            return finding.not_applicable("who manages the node is not known, nor whether modprobe.d does");
        }
        Manager::Operator | Manager::Container => {
            return finding.not_applicable("only a machine of one's own keeps keys in modprobe.d");
        }
    }
    if driver.params.value().is_none()
        || matches!(driver.configured.reading(), Reading::Unreadable(_) | Reading::NotLooked)
    {
        return finding.not_applicable("the parameters or the files of modprobe.d are not there to compare");
    }
    if keys(context).iter().all(|&(_, active, _)| active != Some(1)) {
        return finding.not_applicable("no key is active that could be lost (P001, P002)");
    }
    let lost: Vec<&str> = keys(context)
        .into_iter()
        .filter(|&(_, active, configured)| active == Some(1) && configured != Some(1))
        .map(|(key, ..)| key)
        .collect();
    if lost.is_empty() {
        return finding.saw("active keys are configured too", "");
    }
    finding
        .outcome(Status::Warn, &LOST)
        .saw(format!("{} active, not in modprobe.d", lost.join(" and ")), "both keys in a file of modprobe.d")
        .remedies(remedies::driver_keys(context.facts))
}

fn lines(context: &Context<'_>) -> Vec<Finding> {
    let configured = &context.facts.driver.configured;
    let options: Vec<_> =
        configured.value().into_iter().flatten().filter(|o| o.key.starts_with("NVreg_")).collect();
    let inert = options.iter().filter(|option| option.module != "nvidia").map(|option| {
        let what = if option.module.is_empty() {
            "has no `options nvidia` before it"
        } else {
            "is given to another module"
        };
        (format!("{}:{}", option.file, option.line), format!("{} {what}", option.key))
    });
    let twice = options.iter().enumerate().filter_map(|(index, option)| {
        let earlier = options
            .iter()
            .take(index)
            .find(|earlier| earlier.module == option.module && earlier.key == option.key)?;
        (earlier.value != option.value && option.module == "nvidia").then(|| {
            (
                format!("{}:{}", option.file, option.line),
                format!("{}={} contradicts {}:{}", option.key, option.value, earlier.file, earlier.line),
            )
        })
    });
    inert
        .chain(twice)
        .map(|(place, observed)| {
            context
                .finding("P005")
                .about(place.clone())
                .outcome(Status::Warn, &LINE)
                .saw(observed, "options nvidia KEY=VALUE, each key once")
                .at(place, configured.scope)
                .remedy_for(Some(Manager::Machine), "Write the line as modprobe reads it, each key once, then rebuild the initramfs and reboot.", &["options nvidia NVreg_EnableStreamMemOPs=1 NVreg_RegistryDwords=\"PeerMappingOverride=1;\""])
        })
        .collect()
}

fn version(context: &Context<'_>) -> Finding {
    let fact = &context.facts.driver.version;
    let finding = context.finding("P006").from_fact(fact);
    let Some(driver) = fact.value() else {
        let proc_missing =
            context.facts.modules.loaded.value().is_none() && context.facts.modules.present.value().is_none();
        if fact.is_absent() && proc_missing && context.facts.root != "/" {
            return finding.unknown("the capture has neither /proc/driver/nvidia nor a list of modules");
        }
        if fact.is_absent() {
            let nodes = context
                .facts
                .devices
                .value()
                .is_some_and(|nodes| nodes.iter().any(|node| node.path == "/dev/nvidiactl"));
            let seen = if nodes {
                "device nodes, but no /proc/driver/nvidia"
            } else {
                "no /proc/driver/nvidia: the module is not loaded"
            };
            return finding.outcome(Status::Fail, &NO_DRIVER).saw(seen, "the NVIDIA driver").remedy(
                "Load the driver, or install it; a pod gets GPUs by asking for nvidia.com/gpu, a container by --gpus all.",
                &["sudo modprobe nvidia && nvidia-smi      # on the host"],
            );
        }
        return finding.unknown(missing(fact));
    };
    let major: Option<u32> = driver.version.split('.').next().and_then(|major| major.parse().ok());
    let flavour = match driver.flavour {
        Flavour::Open => ", open kernel modules",
        Flavour::Proprietary => ", proprietary kernel modules",
        Flavour::Unknown => "",
    };
    let finding = finding.saw(format!("{}{flavour}", driver.version), format!("{CUDA13} or newer"));
    match major {
        None => finding.unknown(format!("no version in `{}`", driver.line)),
        Some(major) if major < CUDA12 => {
            finding.outcome(Status::Fail, &NO_DRIVER).remedy("Install driver 580 or newer.", &[])
        }
        Some(major) if major < CUDA13 => finding.outcome(Status::Warn, &NO_DRIVER).remedy(
            "Install driver 580 or newer for anything built with CUDA 13, our embedded kernels among it.",
            &[],
        ),
        Some(_) => finding,
    }
}

fn direct(context: &Context<'_>) -> Finding {
    let finding = context
        .finding("P007")
        .from_fact(&context.facts.driver.version)
        .from_fact(&context.facts.kernel.release);
    if !context.has_rdma() {
        return finding.not_applicable("no RDMA device");
    }
    let modules = &context.facts.modules;
    let efa = context.target == Target::DeepepEfa;
    // Without either EFA's registration fails, too (ofiwg/libfabric issue 12019: a p5e without a peer memory module).
    let names: &[&str] = if efa {
        &["efa_nv_peermem", "nvidia_peermem", "nv_peer_mem"]
    } else {
        &["nvidia_peermem", "nv_peer_mem"]
    };
    let loaded = names.iter().find(|name| modules.has(name) == Some(true));
    let known = names.iter().all(|name| modules.has(name).is_some());
    let peer = if loaded.is_some() { Some(true) } else { known.then_some(false) };
    match (context.dma_buf(), peer) {
        (Some(true), _) => finding.saw("by dma-buf: open kernel modules and Linux 5.12 or newer", ""),
        (_, Some(true)) => finding.saw(format!("by {}", loaded.unwrap_or(&"a module")), ""),
        (Some(false), Some(false)) => {
            let status = match context.target {
                Target::Expertrail | Target::DeepepEfa => Status::Warn,
                Target::DeepepIbgda | Target::Nccl => Status::Fail,
            };
            let (module, package) = if efa {
                ("efa_nv_peermem", "it comes with AWS's EFA installer")
            } else {
                ("nvidia_peermem", "it comes with the driver; RDMA packages must be installed before it")
            };
            finding
                .outcome(status, &NO_DIRECT)
                .saw(
                    "no dma-buf (proprietary modules, or Linux before 5.12) and no peer memory module",
                    "one of the two",
                )
                .remedies(remedies::module(context.facts, module, package))
        }
        _ => finding
            .at("/proc/modules", Scope::HostKernel)
            .unknown("driver flavour, kernel release or modules are not known"),
    }
}

fn profiling(context: &Context<'_>) -> Finding {
    let (params, capabilities) = (&context.facts.driver.params, &context.facts.limits.capabilities);
    let finding = context.finding("P018").from_fact(params).from_fact(capabilities);
    if !matches!(context.target, Target::DeepepIbgda | Target::DeepepEfa) {
        return finding.not_applicable(format!("{} times itself by events", context.target));
    }
    let restricted = params.value().and_then(|params| params.get("RmProfilingAdminOnly"));
    let Some(restricted) = restricted else {
        return finding.not_applicable("the driver's RmProfilingAdminOnly is not told");
    };
    if restricted.parse() == Ok(0) {
        return finding.saw(format!("RmProfilingAdminOnly: {restricted}"), "");
    }
    let Some(bits) = capabilities.value() else { return finding.unknown(missing(capabilities)).advisory() };
    if bits & SYS_ADMIN != 0 {
        return finding
            .saw(format!("RmProfilingAdminOnly: {restricted}, and this process has CAP_SYS_ADMIN"), "");
    }
    finding
        .outcome(Status::Warn, &PROFILING)
        .saw(
            format!("RmProfilingAdminOnly: {restricted}, and this process has no CAP_SYS_ADMIN"),
            "the capability, or RmProfilingAdminOnly: 0",
        )
        .remedy_for(
            Some(Manager::Machine),
            "Run DeepEP's tests as root, or load the driver without the restriction.",
            &["options nvidia NVreg_RestrictProfilingToAdminUsers=0      # in modprobe.d, beside the other keys"],
        )
        .remedy_for(
            Some(Manager::Operator),
            "Give the pods of DeepEP's tests the capability.",
            &["securityContext: {capabilities: {add: [SYS_ADMIN, IPC_LOCK]}}"],
        )
        .remedy_for(
            Some(Manager::Container),
            "Give the container of DeepEP's tests the capability.",
            &["docker run --cap-add SYS_ADMIN ..."],
        )
}

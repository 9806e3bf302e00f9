//! What NVML tells of each GPU: memory errors, clocks, modes, memory in use. A value that no GPU tells is not known, never good.

use super::Context;
use crate::causes::CauseEntry;
use crate::facts::{Nvml, NvmlGpu};
use crate::finding::{Finding, Manager, Status};

const ECC: CauseEntry = CauseEntry {
    id: "gpu-memory-errors",
    title: "a GPU's memory has errors that were not corrected",
    text: "Processes that touch such memory are killed (Xid 48, 94, 95). A pending remapping needs a reset, a failed one a replacement.",
};
const CLOCKS: CauseEntry = CauseEntry {
    id: "clocks-held-down",
    title: "a GPU's clocks are held down by heat or power",
    text: "Hardware slowdown, a power brake or heat lowers the clocks: kernels, ours too, take longer on this rank and all others wait.",
};
const MIG: CauseEntry = CauseEntry {
    id: "mig-or-compute-mode",
    title: "MIG or an exclusive compute mode",
    text: "GPU instances of MIG have no peer access; a prohibited or exclusive mode lets no process, or one, use the GPU.",
};
const MEMORY: CauseEntry = CauseEntry {
    id: "gpu-memory-in-use",
    title: "a GPU's memory is in use",
    text: "Left-over processes hold memory: symmetric heaps then fail with CUDA_ERROR_OUT_OF_MEMORY in cuMemCreate.",
};
const PERSISTENCE: CauseEntry = CauseEntry {
    id: "persistence-off",
    title: "persistence mode is off",
    text: "The driver tears the GPU down when its last user ends: every job starts with seconds of set-up, and settings such as locked clocks are lost between jobs.",
};

/// Reasons of lowered clocks that are faults: hardware slowdown, software thermal, hardware thermal, hardware power brake
/// (nvml.h, `nvmlClocksEventReason*`). Idle, power cap and settings by the user are none.
const SLOW: [(u64, &str); 4] = [
    (0x8, "hardware slowdown"),
    (0x20, "software thermal slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "power brake"),
];

pub(super) const CAUSES: &[CauseEntry] = &[ECC, CLOCKS, MIG, MEMORY, PERSISTENCE];

pub(super) fn check(context: &Context<'_>, nvml: &Nvml) -> Vec<Finding> {
    vec![
        memory_errors(context, nvml),
        clocks(context, nvml),
        modes(context, nvml),
        in_use(context, nvml),
        persistence(context, nvml),
    ]
}

/// What a value of one GPU says.
pub(super) enum Judged {
    /// It is right.
    Good,
    /// NVML does not tell it.
    Untold,
    /// It is wrong.
    Bad(Status, String),
}

/// Checks that a live machine's verdict depends on: there NVML tells these where the driver is in order.
const DECIDING: [&str; 3] = ["P041", "P045", "P048"];

/// One finding about all GPUs: the worst of what `judge` says of each, if any is wrong. Unknown where no GPU tells the value.
pub(super) fn each(
    context: &Context<'_>,
    id: &str,
    nvml: &Nvml,
    good: &str,
    judge: impl Fn(&NvmlGpu) -> Judged,
) -> (Finding, Option<Status>) {
    let finding = context.finding(id).from_fact(&context.facts.nvml);
    if nvml.gpus.is_empty() {
        return (finding.not_applicable("NVML shows no GPU"), None);
    }
    let (mut texts, mut worst, mut untold) = (Vec::new(), None::<Status>, 0);
    for gpu in &nvml.gpus {
        match judge(gpu) {
            Judged::Good => {}
            Judged::Untold => untold += 1,
            Judged::Bad(status, text) => {
                texts.push(format!("GPU {}: {text}", gpu.index));
                worst = Some(
                    worst.map_or(status, |other| if status.order() < other.order() { status } else { other }),
                );
            }
        }
    }
    if untold == nvml.gpus.len() {
        let finding = finding.unknown("NVML tells it of no GPU");
        let decides = context.facts.root == "/" && DECIDING.contains(&id);
        return (if decides { finding } else { finding.advisory() }, None);
    }
    let rest = match untold {
        0 => None,
        count => Some(format!("NVML does not tell it of {count} of {} GPUs", nvml.gpus.len())),
    };
    if worst.is_some() {
        texts.extend(rest);
        (finding.saw(texts.join("; "), good), worst)
    } else {
        (finding.saw(rest.map_or(good.to_owned(), |rest| format!("{good}; {rest}")), ""), None)
    }
}

fn memory_errors(context: &Context<'_>, nvml: &Nvml) -> Finding {
    let (finding, worst) = each(context, "P045", nvml, "none", |gpu| {
        if gpu.remap_failed == Some(true) {
            return Judged::Bad(Status::Fail, "a row remapping failed: replace it".to_owned());
        }
        if gpu.remap_pending == Some(true) {
            return Judged::Bad(Status::Fail, "a row remapping waits for a reset".to_owned());
        }
        match (gpu.ecc_uncorrected, gpu.remap_pending, gpu.remap_failed) {
            (Some(errors @ 1..), ..) => {
                Judged::Bad(Status::Fail, format!("{errors} uncorrected ECC errors since the driver's load"))
            }
            (None, None, None) => Judged::Untold,
            _ => Judged::Good,
        }
    });
    let Some(status) = worst else { return finding };
    finding.outcome(status, &ECC).remedy(
        "Leave the node out, reset the GPU; if errors come back have it replaced.",
        &["nvidia-smi -q -d ECC,ROW_REMAPPER", "sudo nvidia-smi --gpu-reset -i INDEX"],
    )
}

fn clocks(context: &Context<'_>, nvml: &Nvml) -> Finding {
    let (finding, worst) = each(context, "P047", nvml, "not held down by heat or power", |gpu| {
        let Some(bits) = gpu.clock_reasons else { return Judged::Untold };
        let why: Vec<&str> = SLOW.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, word)| *word).collect();
        let heat = gpu.temperature.map_or(String::new(), |degrees| format!(" at {degrees} C"));
        if why.is_empty() {
            return Judged::Good;
        }
        Judged::Bad(Status::Warn, format!("{}{heat}", why.join(", ")))
    });
    let Some(status) = worst else { return finding };
    finding.outcome(status, &CLOCKS).remedy(
        "Look at cooling and power of the machine; leave the node out of measurements.",
        &["nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER"],
    )
}

fn modes(context: &Context<'_>, nvml: &Nvml) -> Finding {
    let (finding, worst) = each(context, "P048", nvml, "MIG off, default compute mode", |gpu| {
        // Most kinds of GPU have no MIG; each has a compute mode.
        match (gpu.mig, gpu.compute_mode) {
            (Some(true), _) => Judged::Bad(Status::Fail, "MIG is on".to_owned()),
            (_, Some(2)) => Judged::Bad(Status::Fail, "compute mode prohibited".to_owned()),
            (_, Some(1 | 3)) => {
                Judged::Bad(Status::Warn, "compute mode exclusive: one process or thread only".to_owned())
            }
            (_, Some(_)) => Judged::Good,
            (_, None) => Judged::Untold,
        }
    });
    let Some(status) = worst else { return finding };
    finding.outcome(status, &MIG).remedy(
        "Switch MIG off and set the default mode.",
        &["sudo nvidia-smi -mig 0; sudo nvidia-smi -c DEFAULT"],
    )
}

fn in_use(context: &Context<'_>, nvml: &Nvml) -> Finding {
    let (finding, worst) = each(context, "P049", nvml, "more than half is free on every GPU", |gpu| {
        let (Some(total), Some(free)) = (gpu.memory_total, gpu.memory_free) else { return Judged::Untold };
        if free >= total / 2 {
            return Judged::Good;
        }
        let pids: Vec<String> = gpu.processes.iter().take(8).map(ToString::to_string).collect();
        let by = if pids.is_empty() { String::new() } else { format!(", by processes {}", pids.join(", ")) };
        let used = (total - free.min(total)) >> 30;
        Judged::Bad(Status::Warn, format!("{used} of {} GiB in use{by}", total >> 30))
    });
    let Some(status) = worst else { return finding };
    finding.outcome(status, &MEMORY).remedy(
        "End left-over processes before a run.",
        &["nvidia-smi --query-compute-apps=pid,used_memory --format=csv"],
    )
}

fn persistence(context: &Context<'_>, nvml: &Nvml) -> Finding {
    let (finding, worst) = each(context, "P051", nvml, "on for every GPU", |gpu| match gpu.persistence {
        Some(true) => Judged::Good,
        Some(false) => Judged::Bad(Status::Warn, "off".to_owned()),
        None => Judged::Untold,
    });
    let Some(status) = worst else { return finding };
    finding
        .outcome(status, &PERSISTENCE)
        .remedy_for(
            Some(Manager::Machine),
            "Start NVIDIA's persistence daemon.",
            &["sudo systemctl enable --now nvidia-persistenced      # or: sudo nvidia-smi -pm 1"],
        )
        .remedy_for(Some(Manager::Operator), "The driver container starts the daemon; look at its log.", &[])
        .remedy_for(
            Some(Manager::Container),
            "It belongs to the host.",
            &["sudo nvidia-smi -pm 1      # on the host"],
        )
}

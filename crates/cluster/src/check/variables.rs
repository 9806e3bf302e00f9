//! Variables that decide what runs and cannot be right on this node.

use super::driver::has_keys;
use super::{Context, Target};
use crate::causes::CauseEntry;
use crate::finding::{Finding, Status};

const DISABLED: CauseEntry = CauseEntry {
    id: "nccl-ib-disabled",
    title: "NCCL_IB_DISABLE=1 beside RDMA devices",
    text: "NCCL then uses TCP sockets between nodes, at a small part of the bandwidth.",
};
const TRANSPORT: CauseEntry = CauseEntry {
    id: "transport-without-device",
    title: "variables choose a transport that this node has no device for",
    text: "NVSHMEM starts no other transport than the chosen one: with libfabric over EFA and no EFA device, or IBGDA on EFA, initialisation fails or the first dispatch never ends.",
};
const ONE_GPU: CauseEntry = CauseEntry {
    id: "one-gpu-visible",
    title: "the process sees one GPU of several",
    text: "Ranks that see only their own GPU cannot open their neighbours' memory where the library uses legacy IPC: `invalid device ordinal` or peer access fails. (Expertrail shares memory by file descriptor and does not mind.)",
};
const NO_GPU: CauseEntry = CauseEntry {
    id: "no-gpu-visible",
    title: "CUDA_VISIBLE_DEVICES leaves the process no GPU",
    text: "CUDA shows the devices before the first entry that is none: `no CUDA-capable device is detected` (100) where that is the first. Slurm sets NoDevFiles for steps that asked for no GPU.",
};
const TWEAKS: CauseEntry = CauseEntry {
    id: "tweaks-for-missing-keys",
    title: "NVSHMEM variables that stand in for missing driver keys",
    text: "NVSHMEM_IBGDA_NIC_HANDLER and NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE choose where queues lie; they cannot give the driver the keys it was loaded without, and hide which node is wrong.",
};

pub(super) const CAUSES: &[CauseEntry] = &[DISABLED, TRANSPORT, NO_GPU, ONE_GPU, TWEAKS];

pub(super) fn check(context: &Context<'_>) -> Vec<Finding> {
    let fact = &context.facts.environment.variables;
    let Some(variables) = fact.value() else { return Vec::new() };
    let set = |name: &str| variables.get(name).map(String::as_str);
    let get = |name: &str| set(name).filter(|value| !value.is_empty());
    let new = |id: &str, name: &str| context.finding(id).about(name).from_fact(fact);
    let efa = context
        .facts
        .rdma
        .value()
        .is_some_and(|all| all.iter().any(|device| device.driver.as_deref() == Some("efa")));
    let mut all = Vec::new();
    // NCCL reads a number, and any but 0 counts.
    let disabled = get("NCCL_IB_DISABLE").filter(|value| value.trim().parse::<i64>().is_ok_and(|n| n != 0));
    if let Some(value) = disabled.filter(|_| context.has_rdma() && !efa) {
        all.push(
            new("P070", "NCCL_IB_DISABLE")
                .outcome(Status::Warn, &DISABLED)
                .saw(format!("{value}, with RDMA devices there"), "0 or unset")
                .remedy("Unset it.", &["unset NCCL_IB_DISABLE"]),
        );
    }
    let status = if matches!(context.target, Target::DeepepIbgda | Target::DeepepEfa) {
        Status::Fail
    } else {
        Status::Warn
    };
    let transport = get("NVSHMEM_REMOTE_TRANSPORT");
    let wants_efa =
        ["NVSHMEM_LIBFABRIC_PROVIDER", "FI_PROVIDER"].into_iter().find(|name| get(name) == Some("efa"));
    if let Some(name) = wants_efa.filter(|_| !efa && context.facts.rdma.value().is_some()) {
        let and = transport.map_or(String::new(), |word| format!(", NVSHMEM_REMOTE_TRANSPORT={word}"));
        all.push(
            new("P071", name)
                .outcome(status, &TRANSPORT)
                .saw(format!("efa{and}, and no EFA device"), "efa only where EFA devices are")
                .remedy(
                    "Unset the variables of EFA (images for AWS have them built in).",
                    &["unset FI_PROVIDER NVSHMEM_REMOTE_TRANSPORT NVSHMEM_LIBFABRIC_PROVIDER"],
                ),
        );
    }
    let libfabric = "Use NVSHMEM's libfabric transport.";
    let on = get("NVSHMEM_IB_ENABLE_IBGDA").filter(|value| {
        !matches!(value.trim().to_ascii_lowercase().as_str(), "0" | "f" | "false" | "n" | "no")
    });
    if let Some(value) = on.filter(|_| efa) {
        all.push(
            new("P071", "NVSHMEM_IB_ENABLE_IBGDA")
                .outcome(status, &TRANSPORT)
                .saw(format!("{value} on a node whose NICs are EFA"), "unset: EFA has no IBGDA")
                .remedy(libfabric, &["unset NVSHMEM_IB_ENABLE_IBGDA; export NVSHMEM_REMOTE_TRANSPORT=libfabric FI_PROVIDER=efa"]),
        );
    }
    if let Some(word) =
        transport.filter(|word| efa && *word != "libfabric" && context.target == Target::DeepepEfa)
    {
        all.push(
            new("P071", "NVSHMEM_REMOTE_TRANSPORT")
                .outcome(status, &TRANSPORT)
                .saw(format!("{word} on a node whose NICs are EFA"), "libfabric")
                .remedy(libfabric, &["export NVSHMEM_REMOTE_TRANSPORT=libfabric NVSHMEM_LIBFABRIC_PROVIDER=efa FI_PROVIDER=efa"]),
        );
    }
    all.extend(visible(context));
    let handlers: Vec<&str> = ["NVSHMEM_IBGDA_NIC_HANDLER", "NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE"]
        .into_iter()
        .filter(|name| get(name).is_some())
        .collect();
    let keyless = context.facts.driver.params.value().is_some_and(|params| !has_keys(params));
    if context.target == Target::DeepepIbgda && keyless && !handlers.is_empty() {
        all.push(
            new("P073", handlers.first().copied().unwrap_or_default())
                .outcome(Status::Warn, &TWEAKS)
                .saw(
                    format!("{} set, driver keys missing", handlers.join(", ")),
                    "the keys (P001, P002), and the variables unset",
                )
                .remedy(
                    "Undo the variables and mend the driver.",
                    &[&format!("unset {}", handlers.join(" "))],
                ),
        );
    }
    all
}

/// How many devices CUDA shows of `count`: those before the first entry that names none. Whose UUID it is cannot be told, so that
/// one counts.
fn shown(entries: &str, count: Option<usize>) -> usize {
    let there = |entry: &str| match entry.parse::<usize>() {
        Ok(index) => count.is_none_or(|count| index < count),
        Err(_) => entry.starts_with("GPU-") || entry.starts_with("MIG-"),
    };
    entries.split(',').map(str::trim).take_while(|entry| there(entry)).count()
}

fn visible(context: &Context<'_>) -> Option<Finding> {
    let facts = context.facts;
    let fact = &facts.environment.variables;
    let visible = fact.value()?.get("CUDA_VISIBLE_DEVICES")?;
    let finding = context.finding("P072").about("CUDA_VISIBLE_DEVICES").from_fact(fact);
    let on_bus = facts.pci.gpus().len();
    // A container sees every GPU on the bus, and NVML only those it was given: these CUDA numbers. Without any P040 speaks.
    let count = facts.nvml.value().map_or(on_bus, |nvml| nvml.gpus.len() + nvml.refused.len());
    let shown = shown(visible, Some(count).filter(|count| *count > 0));
    let of = if count == 0 { String::new() } else { format!(", of {count} GPUs") };
    if shown == 0 {
        let what = if visible.trim().is_empty() { "empty" } else { visible };
        return Some(
            finding
                .outcome(Status::Fail, &NO_GPU)
                .saw(format!("{what}: it shows none{of}"), "unset, or indexes of GPUs that are there")
                .remedy(
                    "Unset it, or ask the scheduler for GPUs.",
                    &["unset CUDA_VISIBLE_DEVICES", "srun --gpus-per-node=8 ...      # in a step of Slurm"],
                ),
        );
    }
    if shown > 1 || on_bus < 2 || context.target == Target::Expertrail {
        return None;
    }
    Some(
        finding
            .outcome(Status::Warn, &ONE_GPU)
            .saw(format!("{visible}, of {on_bus} GPUs"), "every GPU visible, chosen by local rank")
            .remedy(
                "Let every rank see all GPUs of its node.",
                &["srun --gpus-per-node=8 ...      # not --gpus-per-task=1"],
            ),
    )
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn devices_before_the_first_that_is_none() {
        assert_eq!(shown("0,1,2", Some(8)), 3);
        assert_eq!(shown("0,8,1", Some(8)), 1);
        assert_eq!(shown("0, 1", Some(8)), 2);
        assert_eq!(shown("0,-1,1", Some(8)), 1);
        for none in ["", " ", "-1", "8", "NoDevFiles", "all"] {
            assert_eq!(shown(none, Some(8)), 0, "{none}");
        }
        assert_eq!(shown("GPU-1a2b,MIG-3c", Some(8)), 2);
        assert_eq!(shown("8", None), 1);
    }
}

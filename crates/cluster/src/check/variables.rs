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
const TWEAKS: CauseEntry = CauseEntry {
    id: "tweaks-for-missing-keys",
    title: "NVSHMEM variables that stand in for missing driver keys",
    text: "NVSHMEM_IBGDA_NIC_HANDLER and NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE choose where queues lie; they cannot give the driver the keys it was loaded without, and hide which node is wrong.",
};

pub(super) const CAUSES: &[CauseEntry] = &[DISABLED, TRANSPORT, ONE_GPU, TWEAKS];

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
    let gpus = context.facts.pci.gpus().len();
    if let Some(visible) = set("CUDA_VISIBLE_DEVICES")
        && !visible.contains(',')
        && gpus > 1
        && context.target != Target::Expertrail
    {
        all.push(
            new("P072", "CUDA_VISIBLE_DEVICES")
                .outcome(Status::Warn, &ONE_GPU)
                .saw(
                    format!("{}, of {gpus} GPUs", if visible.is_empty() { "none" } else { visible }),
                    "every GPU visible, chosen by local rank",
                )
                .remedy(
                    "Let every rank see all GPUs of its node.",
                    &["srun --gpus-per-node=8 ...      # not --gpus-per-task=1"],
                ),
        );
    }
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

//! Libraries that load here: whether they fit the driver and reach the NICs. They are those of this file system, so on a node whose
//! workloads bring their own image these checks say little; run them inside the image.

use super::driver::missing;
use super::modules::{numbers, wants_gdrcopy};
use super::{Context, Target};
use crate::causes::CauseEntry;
use crate::facts::LibraryFile;
use crate::finding::{Finding, Manager, Status};

const LIBCUDA: CauseEntry = CauseEntry {
    id: "libcuda-mismatch",
    title: "libcuda is not the one of the driver that runs",
    text: "The CUDA library and the kernel module must be of one version: CUDA then fails with `system has unsupported display driver / cuda driver combination` (803), NVML with `Driver/library version mismatch`; a stub library fails every call.",
};
const TOO_NEW: CauseEntry = CauseEntry {
    id: "cuda-newer-than-driver",
    title: "packages are built for a newer CUDA than the driver serves",
    text: "`CUDA driver version is insufficient for CUDA runtime version`. Within one major version older drivers serve, across majors they do not.",
};
const GDRAPI: CauseEntry = CauseEntry {
    id: "libgdrapi-missing",
    title: "GDRCopy's library is not installed beside NVSHMEM",
    text: "NVSHMEM opens libgdrapi.so.2 when it starts; without it `GDRCopy support not enabled. Unable to register gpu memory handle info`, though module and device node are right.",
};
const VERBS: CauseEntry = CauseEntry {
    id: "verbs-library-missing",
    title: "a library that reaches the NICs is not installed here",
    text: "Devices are found through libibverbs and the provider library of their kind; without them a process finds no NIC and fails, or falls back to TCP.",
};

pub(super) const CAUSES: &[CauseEntry] = &[LIBCUDA, TOO_NEW, GDRAPI, VERBS];

pub(super) fn check(context: &Context<'_>) -> Vec<Finding> {
    vec![libcuda(context), toolkit(context), gdrapi(context), nics(context)]
}

fn chosen<'a>(context: &Context<'a>, name: &str) -> Option<&'a LibraryFile> {
    context.facts.userspace.library(name)?.chosen.value()
}

/// Whether what runs is installed in this file system, rather than in an image that a job brings.
fn has_stack(context: &Context<'_>) -> bool {
    let userspace = &context.facts.userspace;
    match context.target {
        Target::DeepepIbgda | Target::DeepepEfa => {
            !userspace.deep_ep.is_empty() || userspace.library("libnvshmem_host.so.3").is_some()
        }
        Target::Nccl => userspace.library("libnccl.so.2").is_some(),
        Target::Expertrail => true,
    }
}

/// A captured tree may hold no libraries at all; then nothing is missing from it.
fn unseen(context: &Context<'_>) -> Option<String> {
    let glibc = &context.facts.kernel.glibc;
    glibc.value().is_none().then(|| format!("no libraries can be seen: {}", missing(glibc)))
}

fn libcuda(context: &Context<'_>) -> Finding {
    let version = &context.facts.driver.version;
    let finding = context.finding("P008").from_fact(version);
    let Some(found) = context.facts.userspace.library("libcuda.so.1") else {
        return finding.not_applicable("no libcuda is installed here");
    };
    let finding = finding.from_fact(&found.chosen);
    let Some(file) = found.chosen.value() else {
        return finding.not_applicable("no copy of libcuda is on the loader's path");
    };
    if file.path.contains("/stubs/") {
        return finding
            .outcome(Status::Fail, &LIBCUDA)
            .saw(format!("{} ({}), a stub to link with", file.path, found.how), "the driver's libcuda")
            .remedy(
                "Take the folder of stubs off the loader's path.",
                &["echo $LD_LIBRARY_PATH; ldconfig -p | grep libcuda.so.1"],
            );
    }
    let (Some(driver), Some(library)) = (version.value(), file.version.as_ref()) else {
        return finding.not_applicable("the driver's version or the library's is not told");
    };
    let finding = finding
        .saw(format!("{} of {}, driver {}", library.text, file.path, driver.version), "one version of both");
    let order = numbers(&library.text).cmp(&numbers(&driver.version));
    let compatible = file.path.contains("/compat");
    // Libraries of the compatibility package are newer than the driver by purpose.
    if order.is_eq() || (compatible && order.is_gt()) {
        return finding;
    }
    let finding = finding.outcome(Status::Fail, &LIBCUDA);
    if compatible {
        return finding.remedy(
            "The compatibility package is older than the driver: take its folder off the loader's path.",
            &["ldconfig -p | grep compat; echo $LD_LIBRARY_PATH"],
        );
    }
    finding
        .remedy_for(
            Some(Manager::Machine),
            "The driver was updated and is not loaded anew, or a package of another version was installed: reboot, and keep one version.",
            &["sudo reboot"],
        )
        .remedy_for(
            Some(Manager::Operator),
            "Take libcuda out of the image: the container toolkit mounts the driver's own.",
            &[],
        )
        .remedy_for(
            Some(Manager::Container),
            "Take libcuda out of the image and start it with the container toolkit, which mounts the driver's own.",
            &["docker run --gpus all ..."],
        )
}

fn toolkit(context: &Context<'_>) -> Finding {
    let facts = context.facts;
    let finding = context.finding("P009").from_fact(&facts.driver.version);
    let built = facts.userspace.cuda();
    let major = |version: &str| version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    let Some((wanted, source)) = built.and_then(|cuda| Some((major(&cuda.version)?, cuda.by))) else {
        return finding.not_applicable("neither PyTorch nor a CUDA toolkit is installed here");
    };
    let driver = facts.driver.version.value().and_then(|driver| numbers(&driver.version).first().copied());
    let serves = match (facts.nvml.value().and_then(|nvml| nvml.cuda), driver) {
        (Some(packed), _) => packed / 1000,
        // First drivers of CUDA 11, 12 and 13 (CUDA release notes, table of minimum driver versions).
        (None, Some(580..)) => 13,
        (None, Some(525..)) => 12,
        (None, Some(450..)) => 11,
        (None, Some(_)) => 10,
        (None, None) => return finding.not_applicable("the driver's version is not told"),
    };
    let finding = finding.saw(
        format!("{source}; the driver serves CUDA {serves}"),
        format!("a driver that serves CUDA {wanted}"),
    );
    if wanted <= serves {
        return finding;
    }
    if let Some(file) = chosen(context, "libcuda.so.1").filter(|file| file.path.contains("/compat")) {
        return finding.saw(
            format!("{source}; the driver serves CUDA {serves}, and {} makes up for it", file.path),
            "",
        );
    }
    finding.outcome(Status::Fail, &TOO_NEW).remedy(
        "Install a newer driver, or packages for the CUDA that it serves, or the compatibility package.",
        &["nvidia-smi      # prints the newest CUDA that the driver serves"],
    )
}

fn gdrapi(context: &Context<'_>) -> Finding {
    let finding = context.finding("P017");
    let Some(status) = wants_gdrcopy(context) else {
        return finding.not_applicable(format!("{} does not use GDRCopy", context.target));
    };
    if !has_stack(context) {
        return finding
            .not_applicable("neither DeepEP nor NVSHMEM is installed here (check inside the image)");
    }
    let scope = context.facts.userspace.wheels.scope;
    if let Some(found) = context.facts.userspace.library("libgdrapi.so.2")
        && let Some(file) = found.chosen.value()
    {
        return finding.saw(format!("{} ({})", file.path, found.how), "").from_fact(&found.chosen);
    }
    if let Some(reason) = unseen(context) {
        return finding.not_applicable(reason);
    }
    finding
        .at("loader's search", scope)
        .outcome(status, &GDRAPI)
        .saw("no libgdrapi.so.2 on the loader's path", "libgdrapi.so.2 of GDRCopy 2.5 or newer")
        .remedy(
            "Install GDRCopy's library in the image, beside NVSHMEM.",
            &["sudo apt-get install ./libgdrapi_*.deb      # built by GDRCopy's build-deb-packages.sh"],
        )
}

/// Libraries through which the target reaches NICs like those of this node.
fn needed(context: &Context<'_>) -> Vec<&'static str> {
    let rdma = context.facts.rdma.value().map(Vec::as_slice).unwrap_or_default();
    let has = |driver: &str| rdma.iter().any(|device| device.driver.as_deref() == Some(driver));
    match context.target {
        Target::Expertrail | Target::DeepepEfa => vec!["libfabric.so.1"],
        Target::DeepepIbgda | Target::Nccl if has("mlx5_core") => vec!["libibverbs.so.1", "libmlx5.so.1"],
        Target::DeepepIbgda | Target::Nccl => vec!["libibverbs.so.1"],
    }
}

fn nics(context: &Context<'_>) -> Finding {
    let finding = context.finding("P028").from_fact(&context.facts.rdma);
    if !context.has_rdma() {
        return finding.not_applicable("no RDMA device");
    }
    if !has_stack(context) {
        return finding.not_applicable(format!(
            "what {} runs is not installed here (check inside the image)",
            context.target
        ));
    }
    let wheels = &context.facts.userspace.wheels;
    if let Some(reason) = unseen(context) {
        return finding.not_applicable(reason);
    }
    let needed = needed(context);
    let gone: Vec<&str> = needed.iter().copied().filter(|name| chosen(context, name).is_none()).collect();
    if gone.is_empty() {
        return finding.saw(format!("{} load", needed.join(" and ")), "");
    }
    // One node of our own needs none, and NCCL falls back to sockets.
    let status = match context.target {
        Target::Expertrail | Target::Nccl => Status::Warn,
        Target::DeepepIbgda | Target::DeepepEfa => Status::Fail,
    };
    let step = if gone.contains(&"libfabric.so.1") {
        "sudo apt-get install libfabric1      # on EFA: the EFA installer's, in /opt/amazon/efa"
    } else {
        "sudo apt-get install rdma-core libibverbs1 ibverbs-providers"
    };
    finding
        .at("loader's search", wheels.scope)
        .outcome(status, &VERBS)
        .saw(
            format!("no {} on the loader's path", gone.join(" and no ")),
            format!("{}, for more than one node", needed.join(" and ")),
        )
        .remedy("Install it where the job runs (in its image).", &[step])
}

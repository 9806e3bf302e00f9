//! Builds of images and extensions, and code for another GPU.

use super::timeout::{saying, weigh};
use crate::diagnose::Case;
use crate::diagnose::event::{Role, Signal};
use crate::diagnose::rule::{Claim, Confidence, Rule};

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] = &[
    Signal {
        id: "no-kernel-image",
        any: &["no kernel image is available for execution on the device"],
        pattern: None,
        role: Role::Failure,
    },
    Signal {
        id: "named-symbol-not-found",
        any: &["named symbol not found"],
        pattern: Some(r"(?:(?P<file>\w+\.(?:cu|cuh|cpp)):\d+)?"),
        role: Role::Failure,
    },
    Signal {
        id: "named-symbol-not-found-early",
        any: &["layout.cu", "runtime.cu"],
        pattern: Some(r"(?P<file>layout|runtime)\.cu:\d+ .?named symbol not found"),
        role: Role::Failure,
    },
    Signal {
        id: "symbol-linked-binary",
        any: &["undefined symbol: __cudaRegisterLinkedBinary", "undefined symbol: __fatbinwrap"],
        pattern: None,
        role: Role::Failure,
    },
    Signal {
        id: "symbol-nvshmem",
        any: &["undefined symbol: nvshmem", "undefined symbol: _ZN7nvshmem"],
        pattern: Some(r"undefined symbol: (?P<symbol>\w+)"),
        role: Role::Failure,
    },
    Signal { id: "build-no-nccl", any: &["Cannot find package: nccl"], pattern: None, role: Role::Failure },
    Signal {
        id: "build-killed",
        any: &[
            "died due to signal 9",
            "Killed signal terminated program",
            "Killed (program",
            "Out of memory: Kill",
        ],
        pattern: Some(r"(?P<tool>cudafe\+\+|cicc|ptxas|nvcc|cc1plus|nvlink|fatbinary)"),
        role: Role::Failure,
    },
    Signal {
        id: "build-cannot-allocate",
        any: &["annot allocate memory", "virtual memory exhausted", "out of memory allocating"],
        pattern: Some(
            r"(?P<tool>cudafe\+\+|cicc|ptxas|nvcc|cc1plus|nvlink|fatbinary|g\+\+|gcc|c\+\+|ninja|virtual memory exhausted|out of memory allocating)",
        ),
        role: Role::Failure,
    },
    Signal {
        id: "build-exit-137",
        any: &["did not complete successfully: exit code: 137", "returned a non-zero code: 137"],
        pattern: None,
        role: Role::Failure,
    },
    Signal {
        id: "build-compiling",
        any: &[
            "ninja: build",
            "ninja: error",
            "Building wheel",
            "build_ext",
            "Building extension",
            "running build",
        ],
        pattern: None,
        role: Role::Context,
    },
    Signal {
        id: "cannot-allocate-memory",
        any: &["annot allocate memory"],
        pattern: None,
        role: Role::Warning,
    },
    Signal {
        id: "arch-list",
        any: &["TORCH_CUDA_ARCH_LIST", "arch=compute_"],
        pattern: Some(r"TORCH_CUDA_ARCH_LIST\W{1,4}(?P<list>[0-9][0-9a.;+PTX ]*)|code=sm_(?P<sm>\d+)"),
        role: Role::Context,
    },
    Signal {
        id: "guide-image",
        any: &["deepep-tests:", "torch29-nvshmem345"],
        pattern: Some(r"(?P<gpu>b200|h200)-torch\d+-nvshmem"),
        role: Role::Context,
    },
    Signal {
        id: "cupti-invalid-device",
        any: &["CUPTI_ERROR_INVALID_DEVICE"],
        pattern: None,
        role: Role::Failure,
    },
    Signal {
        id: "hca-offset-unset",
        any: &["NVSHMEM_HCA_OFFSET must be set"],
        pattern: Some("AssertionError"),
        role: Role::Failure,
    },
];

/// Rules.
pub(super) const RULES: &[Rule] = &[
    Rule {
        rules_out: &["A driver that is too old: that says `CUDA driver version is insufficient` instead."],
        ..Rule::plain(
            "gpu-arch-missing",
            &["no-kernel-image"],
            "A kernel was launched for which the extension holds no code for this GPU.",
        )
    },
    Rule {
        confidence: Confidence::Likely,
        refine: Some(symbol),
        ..Rule::plain(
            "gpu-arch-missing",
            &["named-symbol-not-found"],
            "CUDA does not find a kernel of the extension on this GPU.",
        )
    },
    Rule {
        rules_out: &["NVSHMEM: its symbols begin with nvshmem; this one is made by nvcc's device link."],
        ..Rule::plain(
            "deepep-build-arch-or-rdc",
            &["symbol-linked-binary"],
            "The extension was linked without its device link step: it wants a registration function that nvcc would have made.",
        )
    },
    Rule {
        rules_out: &[
            "A build for another GPU: the loader stops at a host symbol before any kernel is looked up.",
        ],
        ..Rule::plain(
            "nvshmem-symbols-missing",
            &["symbol-nvshmem"],
            "The extension wants {symbol}, which the NVSHMEM library that loads does not have.",
        )
    },
    Rule {
        rules_out: &["A missing NVSHMEM: V1 and hybrid-ep ask for no NCCL package when they are built."],
        ..Rule::plain(
            "deepep-wrong-branch",
            &["build-no-nccl"],
            "The build asks for an NCCL package, as DeepEP V2 (its main branch) does.",
        )
    },
    Rule {
        rules_out: &["A fault of the source: the compiler was killed, it reported no error."],
        ..Rule::plain(
            "build-out-of-memory",
            &["build-killed", "build-cannot-allocate"],
            "A compiler process ({tool}) was killed or got no memory: the build host ran out of it.",
        )
    },
    Rule {
        unless: &["build-killed", "build-cannot-allocate", "cannot-allocate-memory"],
        confidence: Confidence::Likely,
        ..Rule::plain(
            "build-out-of-memory",
            &["build-exit-137"],
            "A step of the image build was killed (137 is signal 9): most often the build host ran out of memory.",
        )
    },
    Rule {
        needs: &["cannot-allocate-memory", "build-compiling"],
        unless: &["build-killed", "build-cannot-allocate"],
        confidence: Confidence::Likely,
        // Ranks of a run that cannot allocate are another matter.
        refine: Some(|case, claim| case.ranks_seen.is_empty().then_some(claim)),
        ..Rule::plain(
            "build-out-of-memory",
            &[],
            "Memory could not be allocated while the extension was compiled.",
        )
    },
    Rule {
        rules_out: &["The network and the kernels: CUPTI only profiles, and the tests fail in tuning alone."],
        ..Rule::plain(
            "cupti-too-old",
            &["cupti-invalid-device"],
            "CUPTI does not know this GPU, so what profiles kernels (the tuning part of DeepEP's tests) stops.",
        )
    },
    Rule::plain(
        "hca-offset-unset",
        &["hca-offset-unset"],
        "The benchmark stopped since NVSHMEM_HCA_OFFSET is not set: it does not know which NIC belongs to which GPU.",
    ),
    Rule {
        refine: Some(|case, claim| judged(case, claim, "aggressive-ptx-off")),
        ..Rule::plain("aggressive-ptx-off", &[], "")
    },
    Rule { refine: Some(wrong_device), ..Rule::plain("hca-list-wrong-device", &[], "") },
];

/// Benchmark figures that `judge` reads as a cause.
fn judged(case: &Case, mut claim: Claim, cause: &str) -> Option<Claim> {
    let (_, why, place) = case.judged.iter().find(|(known, ..)| *known == cause)?;
    claim.because.clone_from(why);
    claim.evidence = vec![*place];
    claim.confidence = Confidence::Likely;
    Some(claim)
}

/// Single digits of GB/s: the NIC of another GPU, if something shows which NIC ranks take; alone they may be a link or a route as well.
fn wrong_device(case: &Case, claim: Claim) -> Option<Claim> {
    let claim = judged(case, claim, "hca-list-wrong-device")?;
    let shown = case.has_any(&[
        "nvshmem-hca-per-rank",
        "nvshmem-hca-list",
        "nvshmem-hca-parsed",
        "nvshmem-nic-choice",
    ]) || ["NVSHMEM_HCA_LIST", "NVSHMEM_HCA_OFFSET", "NVSHMEM_HCA_PE_MAPPING"]
        .iter()
        .any(|name| case.variable(name).is_some_and(|value| !value.is_empty()))
        || claim.because.contains("NVSHMEM says device");
    if shown {
        return Some(claim);
    }
    Some(weigh(claim, Confidence::Possible).next(
        "Which NIC each rank takes: NVSHMEM_HCA_LIST of every rank (or NVSHMEM_DEBUG=INFO) beside `nvidia-smi topo -m` of the node.",
    ))
}

/// `named symbol not found` at the first kernels that any run launches tells of the architecture; elsewhere only with what was built and where
/// it runs.
fn symbol(case: &Case, mut claim: Claim) -> Option<Claim> {
    if case.has("no-kernel-image") {
        return None;
    }
    let files: Vec<&str> =
        case.events("named-symbol-not-found").filter_map(|event| event.field("file")).collect();
    if case.has("named-symbol-not-found-early") {
        claim = saying(
            claim,
            "CUDA does not find the first kernels that DeepEP launches (layout.cu, runtime.cu): the extension holds no code for this GPU.",
        );
        return Some(claim);
    }
    if case.version("arch") == Some("missing") {
        return Some(
            claim.not("A faulty download or a name clash: the extension holds no code for this GPU."),
        );
    }
    if let Some((built, gpu)) = mismatch(case) {
        claim.because = format!(
            "CUDA does not find a kernel of the extension; it was built for {built}, and the GPU is {gpu}."
        );
        claim
            .evidence
            .extend(case.first("arch-list").or_else(|| case.first("guide-image")).map(|at| at.place));
        return Some(claim);
    }
    let at = files.first().copied().unwrap_or("a later kernel");
    claim.because = format!(
        "CUDA does not find a kernel ({at}). Code for another GPU is one reason; what the extension was built for, and the GPU, are not in these logs."
    );
    Some(
        weigh(claim, Confidence::Possible)
            .next("`cuobjdump --list-elf` of deep_ep_cpp*.so against the compute capability in `nvidia-smi --query-gpu=name,compute_cap --format=csv`."),
    )
}

/// What was built, and the GPU it does not fit, where the log says both.
fn mismatch(case: &Case) -> Option<(String, &'static str)> {
    let (gpu, major) = super::deepep::gpu(case)?;
    if let Some(image) = case.first("guide-image").and_then(|event| event.field("gpu")) {
        let built = if image == "b200" { 10 } else { 9 };
        return (built != major).then(|| (format!("{} (by the image's tag)", image.to_uppercase()), gpu));
    }
    let lists: Vec<&str> = case.events("arch-list").filter_map(|event| event.field("list")).collect();
    let sms: Vec<u32> =
        case.events("arch-list").filter_map(|event| event.field("sm")?.parse().ok()).collect();
    let majors: Vec<u32> = lists
        .iter()
        .flat_map(|list| list.split([';', ' ']))
        .filter_map(|arch| arch.split('.').next()?.parse().ok())
        .chain(sms.iter().map(|sm| sm / 10))
        .collect();
    if majors.is_empty() || majors.contains(&major) || lists.iter().any(|list| list.contains("PTX")) {
        return None;
    }
    let built: Vec<String> = majors.iter().map(|major| format!("sm_{major}x")).collect();
    Some((built.join(", "), gpu))
}

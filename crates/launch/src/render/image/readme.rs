//! What `README.txt` and `build.sh --help` say of each image.

use super::kind::{Kind, SETUP_COMMIT};

/// What an image is, after its name and a colon.
pub(super) fn about(kind: Kind) -> &'static str {
    match kind {
        Kind::Expertrail => "this project's binary on a plain base, without PyTorch or CUDA.",
        Kind::DeepepInfiniband => {
            "DeepEP's hybrid-ep line with NVSHMEM 3.4.5 over InfiniBand, for GPUs of architecture @ARCH@ alone."
        }
        Kind::DeepepEfa => {
            "DeepEP V1 (567632d) in /DeepEP with NVSHMEM 3.7.0 over EFA, for GPUs of architectures @ARCH@."
        }
        Kind::Deepep564 => {
            "DeepEP 4214430 with NVSHMEM 3.6.5 and the change of its pull request 564 over InfiniBand, for GPUs of architecture @ARCH@ alone."
        }
    }
}

/// What the machine needs beside a builder.
pub(super) fn needs(kind: Kind) -> &'static str {
    match kind {
        Kind::Expertrail => " that can pull its base",
        _ => " that reaches registries, GitHub and PyPI, with tens of GB of disk",
    }
}

/// Settings before `./build.sh` in the example.
pub(super) fn settings(kind: Kind) -> &'static str {
    match kind {
        Kind::DeepepEfa => "SETUP_SHA256=SUM EXPERTRAIL_BINARY=FILE ",
        _ => "EXPERTRAIL_BINARY=FILE ",
    }
}

/// The variable that only EFA's image has.
pub(super) fn setup(kind: Kind) -> String {
    if kind != Kind::DeepepEfa {
        return String::new();
    }
    let indent = "                     ";
    format!(
        "  SETUP_SHA256       sha256 of the setup_deepep_efa.sh that you have read. It has no default: nobody has made one from the file as\n\
         {indent}GitHub serves it. The build fetches it at the same commit and runs nothing else:\n\
         {indent}  curl -fsSLO https://raw.githubusercontent.com/awslabs/awsome-distributed-ai/{SETUP_COMMIT}/\\\n\
         micro-benchmarks/expert-parallelism/deepep-benchmark/setup_deepep_efa.sh\n\
         {indent}  wc -l setup_deepep_efa.sh    (1351 lines; read them)\n\
         {indent}  sha256sum setup_deepep_efa.sh\n"
    )
}

/// What may follow as more arguments.
pub(super) fn build_arguments(kind: Kind) -> &'static str {
    match kind {
        Kind::Expertrail => ", such as --build-arg BASE=IMAGE (glibc 2.28 or newer)",
        _ => {
            ", such as --build-arg MAX_JOBS=4 where memory is short (`cudafe++ died due to signal 9`);\n                     \
             every ARG of Containerfile is one"
        }
    }
}

/// What earlier steps of the build look at, a list with its last line ended.
pub(super) fn checked(kind: Kind) -> &'static str {
    match kind {
        Kind::Expertrail => "",
        Kind::DeepepInfiniband => {
            "- The host's compiler finds CUDA 13's cuda/std/tuple, setup.py has the gate for aggressive PTX that is taken out, and the built\n  \
             library links libnvshmem_host with nothing missing.\n"
        }
        Kind::DeepepEfa => {
            "- ssh and sshd have the settings that the MPI operator's keys need, the set-up script has your checksum, DeepEP's three tests are\n  \
             in /DeepEP/tests, no NVSHMEM wheel is left, and the built library links libnvshmem_host with nothing missing.\n"
        }
        Kind::Deepep564 => {
            "- The host's compiler finds CUDA 13's cuda/std/tuple, the change has the hash of its commit and changes both files, setup.py has the\n  \
             gate for aggressive PTX that is taken out, and the built library links libnvshmem_host with nothing missing.\n"
        }
    }
}

/// What nobody has tried, after a dash.
pub(super) fn not_run(kind: Kind) -> &'static str {
    match kind {
        Kind::Expertrail => {
            "The build itself. Tests start the binary in a chroot that has what the image has, and run the last step there."
        }
        Kind::DeepepInfiniband | Kind::Deepep564 => {
            "The build itself, and the image on GPUs. Tests lint Containerfile, run its steps that fetch and patch on stand-ins, and ask the\n  \
             table of versions about this combination."
        }
        Kind::DeepepEfa => {
            "The build itself, the set-up script, and the image on GPUs. Tests lint Containerfile, run the step that fetches the script with a\n  \
             stand-in for it, compare the arguments with those that the script takes, and ask the table of versions about this combination."
        }
    }
}

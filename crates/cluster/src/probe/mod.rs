//! What a file cannot show: probes that run. Each is reported as run, with what came of it, or as not run, with the reason.
//!
//! A probe calls the driver, which can hang on broken hardware and crash on broken installs; so each runs apart from this (see
//! [`crate::isolate`]) with a deadline, and one that does not answer is ended, or left behind, and reported as a failure.

mod cuda;
mod gdrcopy;
mod gpu;
mod memory;
mod verbs;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::causes::CauseEntry;
use crate::facts::{Facts, Scope};
use crate::finding::{Finding, Status};
use crate::isolate::{self, Answer, Failure};

/// Where libraries are, for tests and for unusual installs. None is the loader's own.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `libcuda.so.1`; also `EXPERTRAIL_LIBCUDA`.
    pub libcuda: Option<PathBuf>,
    /// `libibverbs.so.1`.
    pub libibverbs: Option<PathBuf>,
    /// `libgdrapi.so.2`.
    pub libgdrapi: Option<PathBuf>,
    /// `gdrcopy_sanity`; none: the one on `PATH`.
    pub gdrcopy_sanity: Option<PathBuf>,
    /// Deadline of each probe; none: 30 s.
    pub limit: Option<Duration>,
    /// The program that runs each in a process of its own (see [`isolate`]); none: a thread of this process.
    pub program: Option<PathBuf>,
}

const LOCK: CauseEntry = CauseEntry {
    id: "probe-lock-failed",
    title: "1 GiB cannot be locked",
    text: "NICs need locked memory; what the limits say and what the kernel grants differ here.",
};
const GDRCOPY: CauseEntry = CauseEntry {
    id: "probe-gdrcopy-failed",
    title: "GDRCopy does not work",
    text: "The module is built for another driver flavour, the device node is wrong, or library and module do not fit.",
};
const DMA_BUF: CauseEntry = CauseEntry {
    id: "probe-dma-buf-failed",
    title: "GPU memory cannot be exported as a dma-buf",
    text: "NICs then need nvidia_peermem to reach GPU memory.",
};
const VERBS: CauseEntry = CauseEntry {
    id: "probe-verbs-failed",
    title: "an RDMA device cannot be opened",
    text: "The device node is missing or not permitted, or the user-space driver in this image is older than the kernel's.",
};
const COPY: CauseEntry = CauseEntry {
    id: "probe-peer-copy-failed",
    title: "GPUs cannot copy to each other, or copy wrong bytes",
    text: "Dispatch inside a node stores into peers' memory; a copy that fails or alters bytes means broken NVLink, access control that redirects, or a missing fabric manager.",
};

/// Ids of the probes with what each tries. An id is never used again for something else.
pub const CHECKS: &[(&str, &str)] = &[
    ("P400", "1 GiB can be locked"),
    ("P401", "GDRCopy maps GPU memory"),
    ("P402", "GPU memory can be exported as a dma-buf"),
    ("P403", "RDMA devices open"),
    ("P404", "GPUs copy to each other"),
];

/// Causes of this part.
pub const CAUSES: &[&[CauseEntry]] = &[&[LOCK, GDRCOPY, DMA_BUF, VERBS, COPY]];

/// A probe with what it needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Task {
    /// Lock 1 GiB of memory.
    Lock { available: Option<u64> },
    /// Run `gdrcopy_sanity`, or pin and map GPU memory.
    Gdrcopy {
        libcuda: Option<PathBuf>,
        libgdrapi: Option<PathBuf>,
        gdrcopy_sanity: Option<PathBuf>,
        limit: Duration,
    },
    /// Export GPU memory.
    DmaBuf { libcuda: Option<PathBuf> },
    /// Open RDMA devices, and compare with the names that the kernel has.
    Verbs { libibverbs: Option<PathBuf>, expected: Vec<String> },
    /// Copy between GPUs.
    PeerCopy { libcuda: Option<PathBuf> },
}

impl Task {
    /// Runs it here.
    pub(crate) fn run(self) -> Outcome {
        match self {
            Self::Lock { available } => memory::lock(available),
            Self::Gdrcopy { libcuda, libgdrapi, gdrcopy_sanity, limit } => {
                gdrcopy::run(gdrcopy_sanity, libgdrapi, libcuda, limit)
            }
            Self::DmaBuf { libcuda } => gpu::export(libcuda),
            Self::Verbs { libibverbs, expected } => verbs::open(libibverbs, &expected),
            Self::PeerCopy { libcuda } => gpu::copy(libcuda),
        }
    }
}

/// What came of a probe.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// It did what it should.
    Works(String),
    /// It did not.
    Fails(String),
    /// It could not run here.
    NotRun(String),
}

/// Runs every probe.
pub fn run(facts: &Facts, options: &Options) -> Vec<Finding> {
    let limit = options.limit.unwrap_or(Duration::from_secs(30));
    let expected = facts.rdma.value().into_iter().flatten().filter(|device| device.pci.is_some());
    let expected = expected.map(|device| device.name.clone()).collect();
    let libcuda = || options.libcuda.clone();
    let run = |task| probe(options.program.as_deref(), task, limit).unwrap_or_else(Outcome::Fails);
    // A driver that does not answer once will not the next time; each wait is as long as the limit.
    let hung = Cell::new(false);
    let driver = |task| {
        if hung.get() {
            return Outcome::NotRun("the driver did not answer the probe before".to_owned());
        }
        probe(options.program.as_deref(), task, limit).unwrap_or_else(|why| {
            hung.set(true);
            Outcome::Fails(why)
        })
    };
    let lock = run(Task::Lock { available: facts.memory.available.value().copied() });
    let gdrcopy = driver(Task::Gdrcopy {
        libcuda: libcuda(),
        libgdrapi: options.libgdrapi.clone(),
        gdrcopy_sanity: options.gdrcopy_sanity.clone(),
        limit,
    });
    let export = driver(Task::DmaBuf { libcuda: libcuda() });
    let copy = driver(Task::PeerCopy { libcuda: libcuda() });
    let open = run(Task::Verbs { libibverbs: options.libibverbs.clone(), expected });
    vec![
        finding("P400", lock, &LOCK, "mlock of this process")
            .remedy_if("Lift the limit of locked memory (P030 says how).", &["ulimit -l unlimited"]),
        finding("P401", gdrcopy, &GDRCOPY, "gdrcopy_sanity, libgdrapi")
            .remedy_if("Rebuild gdrdrv against the driver that runs, load it, and see that /dev/gdrdrv is there (P011 to P013).", &["gdrcopy_sanity"]),
        finding("P402", export, &DMA_BUF, "libcuda")
            .remedy_if("Use the open kernel modules with Linux 5.12 or newer, or load nvidia_peermem.", &[]),
        finding("P403", open, &VERBS, "libibverbs")
            .remedy_if("Give the process the device nodes, and install the rdma-core that fits the kernel's driver.", &["ibv_devinfo"]),
        finding("P404", copy, &COPY, "libcuda")
            .remedy_if("See NVLinks, peer access and fabric manager (P041 to P044), and access control (P060).", &["nvidia-smi topo -p2p n"]),
    ]
}

impl Finding {
    /// A remedy, where the finding is a failure.
    fn remedy_if(self, text: &str, steps: &[&str]) -> Self {
        if self.status == Status::Fail { self.remedy(text, steps) } else { self }
    }
}

fn finding(id: &str, outcome: Outcome, cause: &CauseEntry, source: &str) -> Finding {
    let title = CHECKS.iter().find(|(known, _)| *known == id).map_or("", |(_, title)| title);
    let finding = Finding::new(id, title).at(format!("probe: {source}"), Scope::Container);
    match outcome {
        Outcome::Works(seen) => finding.saw(format!("run: {seen}"), ""),
        Outcome::Fails(seen) => finding.outcome(Status::Fail, cause).saw(format!("run: {seen}"), "success"),
        Outcome::NotRun(reason) => finding.unknown(format!("not run: {reason}")).advisory(),
    }
}

/// Runs `task` apart from this, at most for `limit`.
///
/// # Errors
/// It hangs.
fn probe(program: Option<&Path>, task: Task, limit: Duration) -> Result<Outcome, String> {
    Ok(match isolate::ask(program, isolate::Task::Probe(task), limit) {
        Ok(reply) => match reply.answer {
            // What a library complains of is often the reason.
            Answer::Probe(Outcome::Fails(reason)) if !reply.said.is_empty() => {
                Outcome::Fails(format!("{reason}; on standard error: {}", reply.said))
            }
            Answer::Probe(outcome) => outcome,
            Answer::Nvml(_) => Outcome::NotRun("NVML answered instead of it".to_owned()),
        },
        Err(Failure::NotRun(error)) => Outcome::NotRun(format!("no thread for it: {error}")),
        Err(failure @ Failure::Hangs(_)) => return Err(format!("it {failure}")),
        Err(failure) => Outcome::Fails(format!("it {failure}")),
    })
}

/// Opens a library. The error says where it was looked for.
pub(crate) fn open(path: &std::path::Path) -> Result<libloading::Library, String> {
    use std::error::Error;
    // SAFETY: this runs the library's initialisers. It is a library of the driver or of the RDMA stack, or what the user named.
    unsafe { libloading::Library::new(path) }
        .map_err(|error| error.source().map_or_else(|| error.to_string(), ToString::to_string))
}

/// An entry point of a library.
///
/// # Safety
/// `T` must be its type, and it must not be used after the library was closed.
pub(crate) unsafe fn symbol<T: Copy>(library: &libloading::Library, name: &str) -> Result<T, String> {
    // SAFETY: the caller answers for the type.
    unsafe { library.get::<T>(name) }.map(|symbol| *symbol).map_err(|_| format!("the library has no {name}"))
}

//! What a file cannot show: probes that run. Each is reported as run, with what came of it, or as not run, with the reason.
//!
//! A probe calls the driver, which can hang on broken hardware; so each runs in a thread of its own with a deadline, and one that does not
//! answer is left behind and reported as a failure. Nothing of a probe outlives the process.

mod cuda;
mod gdrcopy;
mod gpu;
mod memory;
mod verbs;

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use crate::causes::CauseEntry;
use crate::facts::{Facts, Scope};
use crate::finding::{Finding, Status};

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
/// Ids of the probes with what each tries. An id is never used again for something else.
pub const CHECKS: &[(&str, &str)] = &[
    ("P400", "1 GiB can be locked"),
    ("P401", "GDRCopy maps GPU memory"),
    ("P402", "GPU memory can be exported as a dma-buf"),
    ("P403", "RDMA devices open"),
    ("P404", "GPUs copy to each other"),
];

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

/// Causes of this part.
pub const CAUSES: &[&[CauseEntry]] = &[&[LOCK, GDRCOPY, DMA_BUF, VERBS, COPY]];

/// What came of a probe.
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
    let available = facts.memory.available.value().copied();
    let lock = probe(limit, move || memory::lock(available));
    let sanity = options.clone();
    let gdrcopy = probe(limit, move || gdrcopy::run(&sanity, limit));
    let libcuda = options.libcuda.clone();
    let export = probe(limit, move || gpu::export(libcuda));
    let libcuda = options.libcuda.clone();
    let copy = probe(limit, move || gpu::copy(libcuda));
    let libibverbs = options.libibverbs.clone();
    let expected: Vec<String> = facts
        .rdma
        .value()
        .into_iter()
        .flatten()
        .filter(|device| device.pci.is_some())
        .map(|device| device.name.clone())
        .collect();
    let open = probe(limit, move || verbs::open(libibverbs, &expected));
    vec![
        finding("P400", "1 GiB can be locked", lock, &LOCK, "mlock of this process")
            .remedy_if("Lift the limit of locked memory (P030 says how).", &["ulimit -l unlimited"]),
        finding("P401", "GDRCopy maps GPU memory", gdrcopy, &GDRCOPY, "gdrcopy_sanity, libgdrapi")
            .remedy_if("Rebuild gdrdrv against the driver that runs, load it, and see that /dev/gdrdrv is there (P011 to P013).", &["gdrcopy_sanity"]),
        finding("P402", "GPU memory can be exported as a dma-buf", export, &DMA_BUF, "libcuda")
            .remedy_if("Use the open kernel modules with Linux 5.12 or newer, or load nvidia_peermem.", &[]),
        finding("P403", "RDMA devices open", open, &VERBS, "libibverbs")
            .remedy_if("Give the process the device nodes, and install the rdma-core that fits the kernel's driver.", &["ibv_devinfo"]),
        finding("P404", "GPUs copy to each other", copy, &COPY, "libcuda")
            .remedy_if("See NVLinks, peer access and fabric manager (P041 to P044), and access control (P060).", &["nvidia-smi topo -p2p n"]),
    ]
}

impl Finding {
    /// A remedy, where the finding is a failure.
    fn remedy_if(self, text: &str, steps: &[&str]) -> Self {
        if self.status == Status::Fail { self.remedy(text, steps) } else { self }
    }
}

fn finding(id: &str, title: &str, outcome: Outcome, cause: &CauseEntry, source: &str) -> Finding {
    let finding = Finding::new(id, title).at(format!("probe: {source}"), Scope::Container);
    match outcome {
        Outcome::Works(seen) => finding.saw(format!("run: {seen}"), ""),
        Outcome::Fails(seen) => finding.outcome(Status::Fail, cause).saw(format!("run: {seen}"), "success"),
        Outcome::NotRun(reason) => finding.unknown(format!("not run: {reason}")).advisory(),
    }
}

/// Runs `probe` in a thread, at most for `limit`.
fn probe(limit: Duration, probe: impl FnOnce() -> Outcome + Send + 'static) -> Outcome {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::Builder::new().name("probe".to_owned()).spawn(move || {
        // The receiver may have gone.
        let _ = sender.send(probe());
    });
    if let Err(error) = thread {
        return Outcome::NotRun(format!("no thread for it: {error}"));
    }
    match receiver.recv_timeout(limit) {
        Ok(outcome) => outcome,
        Err(mpsc::RecvTimeoutError::Timeout) => Outcome::Fails(format!(
            "no answer within {} s: the driver or the device hangs",
            limit.as_secs_f64()
        )),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            Outcome::Fails("the probe ended without an answer".to_owned())
        }
    }
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

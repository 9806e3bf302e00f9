//! Reading GPUs through NVML, opened at run time.
//!
//! Every entry point is looked up by itself: an older driver lacks some, and then that figure is not known. Results and enumerations are
//! plain integers, since a newer driver may return values that no header here has.

mod library;

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use crate::facts::{Fact, Nvml, Scope};
use library::Library;

/// Where the library is, and how long it may take.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Its path; none: `EXPERTRAIL_NVML`, or the loader's `libnvidia-ml.so.1`.
    pub library: Option<PathBuf>,
    /// How long to wait for it; none: 5 s. A GPU that has fallen off its bus can hold a call for ever.
    pub limit: Option<Duration>,
}

const NAME: &str = "libnvidia-ml.so.1";
const LIMIT: Duration = Duration::from_secs(5);

/// Reads everything, in a thread of its own that is left behind where it does not answer.
pub fn read(options: &Options) -> Fact<Nvml> {
    let path = options.library.clone().or_else(|| std::env::var_os("EXPERTRAIL_NVML").map(PathBuf::from));
    let path = path.unwrap_or_else(|| PathBuf::from(NAME));
    let source = path.to_string_lossy().into_owned();
    let limit = options.limit.unwrap_or(LIMIT);
    let (sender, receiver) = mpsc::channel();
    let reader = std::thread::Builder::new().name("nvml".to_owned()).spawn(move || {
        // The receiver may have gone.
        let _ = sender.send(
            Library::open(&path)
                .and_then(|library| library.map_or(Ok(None), |library| library.read().map(Some))),
        );
    });
    if let Err(error) = reader {
        return Fact::unreadable(format!("no thread to ask NVML: {error}"), source, Scope::HostKernel);
    }
    match receiver.recv_timeout(limit) {
        Ok(Ok(Some(nvml))) => Fact::read(nvml, source, Scope::HostKernel),
        Ok(Ok(None)) => Fact::absent(source, Scope::HostKernel),
        Ok(Err(reason)) => Fact::unreadable(reason, source, Scope::HostKernel),
        Err(_) => Fact::unreadable(
            format!(
                "NVML did not answer within {} s: a GPU or the driver hangs (see dmesg)",
                limit.as_secs_f64()
            ),
            source,
            Scope::HostKernel,
        ),
    }
}

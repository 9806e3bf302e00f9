//! Reading GPUs through NVML, opened at run time.
//!
//! Every entry point is looked up by itself: an older driver lacks some, and then that figure is not known. Results and enumerations are
//! plain integers, since a newer driver may return values that no header here has.

mod library;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::facts::{Fact, Nvml, Scope};
use crate::isolate::{self, Answer, Task};
use library::Library;

/// Where the library is, and how long it may take.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Its path; none: `EXPERTRAIL_NVML`, or the loader's `libnvidia-ml.so.1`.
    pub library: Option<PathBuf>,
    /// How long to wait for it; none: 5 s. A GPU that has fallen off its bus can hold a call for ever.
    pub limit: Option<Duration>,
    /// The program that calls it in a process of its own (see [`isolate`]); none: a thread of this process.
    pub program: Option<PathBuf>,
}

const NAME: &str = "libnvidia-ml.so.1";
const LIMIT: Duration = Duration::from_secs(5);

/// Reads everything. NVML is called apart from this, since a call may not come back.
pub fn read(options: &Options) -> Fact<Nvml> {
    let path = options.library.clone().or_else(|| std::env::var_os("EXPERTRAIL_NVML").map(PathBuf::from));
    let path = path.unwrap_or_else(|| PathBuf::from(NAME));
    let source = path.to_string_lossy().into_owned();
    let limit = options.limit.unwrap_or(LIMIT);
    let task = Task::Nvml { library: path };
    match isolate::ask(options.program.as_deref(), task, limit).map(|reply| reply.answer) {
        Ok(Answer::Nvml(answer)) => match *answer {
            Ok(Some(nvml)) => Fact::read(nvml, source, Scope::HostKernel),
            Ok(None) => Fact::absent(source, Scope::HostKernel),
            Err(reason) => Fact::unreadable(reason, source, Scope::HostKernel),
        },
        Ok(Answer::Probe(_)) => {
            Fact::unreadable("NVML was asked and a probe answered", source, Scope::HostKernel)
        }
        Err(failure) => Fact::unreadable(format!("NVML {failure}"), source, Scope::HostKernel),
    }
}

/// Reads everything here. None where there is no such library.
pub(crate) fn ask(library: &Path) -> Result<Option<Nvml>, String> {
    Library::open(library)?.map(|library| library.read()).transpose()
}

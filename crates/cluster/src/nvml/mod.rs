//! Reading GPUs through NVML.

use std::path::PathBuf;

use crate::facts::{Fact, Nvml};

/// Where the library is.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Its path; none: the loader's `libnvidia-ml.so.1`, or `EXPERTRAIL_NVML`.
    pub library: Option<PathBuf>,
}

/// Reads everything.
pub fn read(_options: &Options) -> Fact<Nvml> {
    Fact::default()
}

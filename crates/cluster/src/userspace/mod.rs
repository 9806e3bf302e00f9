//! Reading libraries and Python packages.

use std::path::PathBuf;

use crate::facts::Userspace;
use crate::root::Root;

/// Where to look.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A process whose mapped libraries are wanted.
    pub pid: Option<u32>,
    /// Folders of Python packages (`site-packages`), beside those that are found.
    pub python_roots: Vec<PathBuf>,
}

/// Reads libraries and packages of `root`.
pub fn collect(_root: &Root, _options: &Options) -> Userspace {
    Userspace::default()
}

//! Where libraries are looked for.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

const DRIVER: &str = "libcuda.so.1";
const NVRTC: [&str; 2] = ["libnvrtc.so.13", "libnvrtc.so.12"];
/// Folders of a toolkit that hold its libraries.
const TOOLKIT: [&str; 3] = ["lib64", "targets/x86_64-linux/lib", "lib"];

/// Places for a library, the first that opens being taken. A bare name stands for the loader's own search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    /// In order.
    pub places: Vec<PathBuf>,
}

impl Search {
    /// One place only.
    pub fn only(path: impl Into<PathBuf>) -> Self {
        Self { places: vec![path.into()] }
    }

    /// For the driver: `EXPERTRAIL_LIBCUDA` and nothing else when that is set, or else the loader's own search.
    pub fn driver() -> Self {
        Self::driver_in(|name| std::env::var_os(name))
    }

    /// As [`Search::driver`], with the environment given by `variable`.
    pub fn driver_in(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        Self::only(set(&variable, "EXPERTRAIL_LIBCUDA").unwrap_or_else(|| DRIVER.into()))
    }

    /// For NVRTC: `EXPERTRAIL_NVRTC` (the library or its folder) and nothing else when that is set, or else
    /// `CUDA_HOME` and `CUDA_PATH`, the NVIDIA packages of the active Python environment (`VIRTUAL_ENV`,
    /// `CONDA_PREFIX`), the loader's own search, and `/usr/local/cuda`.
    pub fn nvrtc() -> Self {
        Self::nvrtc_in(|name| std::env::var_os(name))
    }

    /// As [`Search::nvrtc`], with the environment given by `variable`.
    pub fn nvrtc_in(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        if let Some(explicit) = set(&variable, "EXPERTRAIL_NVRTC") {
            return if explicit.is_dir() { Self { places: named(&explicit) } } else { Self::only(explicit) };
        }
        let mut places = Vec::new();
        for home in ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|name| set(&variable, name)) {
            places.extend(toolkit(&home));
        }
        for prefix in ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| set(&variable, name)) {
            places.extend(python(&prefix));
        }
        places.extend(NVRTC.iter().map(PathBuf::from));
        places.extend(toolkit(Path::new("/usr/local/cuda")));
        let mut seen = std::collections::HashSet::new();
        places.retain(|place| seen.insert(place.clone()));
        Self { places }
    }
}

fn set(variable: &impl Fn(&str) -> Option<OsString>, name: &str) -> Option<PathBuf> {
    variable(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// NVRTC by its known names in `folder`, whether it is there or not, so that an error shows the place.
fn named(folder: &Path) -> Vec<PathBuf> {
    NVRTC.iter().map(|name| folder.join(name)).collect()
}

fn toolkit(home: &Path) -> Vec<PathBuf> {
    let there: Vec<PathBuf> = TOOLKIT.iter().map(|folder| home.join(folder)).filter(|f| f.is_dir()).collect();
    if there.is_empty() {
        named(&home.join(TOOLKIT[0]))
    } else {
        there.iter().flat_map(|f| named(f)).collect()
    }
}

/// NVRTC in the packages of a Python environment, newest first. Where there is none the pattern itself is the place,
/// so that an error shows it.
fn python(prefix: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for lib in ["lib", "lib64"] {
        for interpreter in folders(&prefix.join(lib)) {
            if !interpreter.file_name().is_some_and(|n| n.to_string_lossy().starts_with("python")) {
                continue;
            }
            for package in folders(&interpreter.join("site-packages/nvidia")) {
                found.extend(named(&package.join("lib")).into_iter().filter(|path| path.is_file()));
            }
        }
    }
    // A conda toolkit lies in the environment's own lib.
    found.extend(named(&prefix.join("lib")).into_iter().filter(|path| path.is_file()));
    found.sort_by_key(|path| NVRTC.iter().position(|name| path.ends_with(name)));
    if found.is_empty() {
        found.push(prefix.join("lib/python*/site-packages/nvidia/*/lib/libnvrtc.so.*"));
    }
    found
}

/// The folders in `of`, by name.
fn folders(of: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(of).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    paths.sort();
    paths
}

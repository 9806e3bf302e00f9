//! Libraries and Python packages: what would load, what is mapped, what lies about.

use serde::{Deserialize, Serialize};

use super::Fact;

/// Userspace of one file system: the reader's, an image's, or that of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Userspace {
    /// Libraries by the name they are asked for. Each is the copy that the loader would take or, for a process, has mapped.
    pub libraries: Vec<LoadedLibrary>,
    /// Python packages that matter, from `*.dist-info` of every root searched.
    pub wheels: Fact<Vec<Wheel>>,
    /// DeepEP, where its package or extension was found. Several installs are several entries.
    pub deep_ep: Vec<DeepEp>,
    /// `NVSHMEM_` variables that are set and that neither the NVSHMEM library which loads nor its plugins have a name for.
    pub ignored_variables: Fact<Vec<String>>,
    /// `/usr/local/cuda/version.json` or the toolkit's folder name.
    pub cuda_toolkit: Fact<String>,
    /// Version of AWS's EFA installer: `/opt/amazon/efa_installed_packages`.
    pub efa_installer: Fact<String>,
}

impl Userspace {
    /// The library that is asked for by `name`.
    pub fn library(&self, name: &str) -> Option<&LoadedLibrary> {
        self.libraries.iter().find(|library| library.name == name)
    }

    /// The distribution whose normalised name begins with `start`.
    pub fn wheel(&self, start: &str) -> Option<&Wheel> {
        self.wheels.value()?.iter().find(|wheel| wheel.name.starts_with(start))
    }

    /// The CUDA that the packages are built for: `PyTorch`'s by its version, by the wheel of its run-time library (`PyTorch` of the index for
    /// the newest CUDA has no suffix), else the toolkit's.
    pub fn cuda(&self) -> Option<Cuda> {
        let torch = self.wheel("torch").and_then(|wheel| {
            let (_, digits) = wheel.version.split_once("+cu")?;
            // cu128 is 12.8, cu130 is 13.0.
            let (major, minor) = digits.split_at_checked(digits.len().checked_sub(1)?)?;
            let version = [major, minor].map(|part| part.parse::<u32>().ok());
            let [Some(major), Some(minor)] = version else { return None };
            Some(Cuda::of(format!("{major}.{minor}"), format!("torch {}", wheel.version), &wheel.path))
        });
        let runtime = || {
            let wheel = self.wheel("nvidia-cuda-runtime")?;
            let mut numbers = wheel.version.split('.');
            let version = format!("{}.{}", numbers.next()?, numbers.next()?);
            Some(Cuda::of(version, format!("{} {}", wheel.name, wheel.version), &wheel.path))
        };
        let toolkit = || {
            let version = self.cuda_toolkit.value()?;
            Some(Cuda::of(version.clone(), format!("CUDA toolkit {version}"), &self.cuda_toolkit.source))
        };
        torch.or_else(runtime).or_else(toolkit)
    }
}

/// A version of CUDA, and what tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cuda {
    /// `13.0`.
    pub version: String,
    /// `torch 2.9.0+cu130`.
    pub by: String,
    /// Its path.
    pub path: String,
}

impl Cuda {
    fn of(version: String, by: String, path: &str) -> Self {
        Self { version, by, path: path.to_owned() }
    }
}

/// One library name and its copies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadedLibrary {
    /// `libnvshmem_host.so.3`.
    pub name: String,
    /// The copy that is mapped, or would load.
    pub chosen: Fact<LibraryFile>,
    /// How it was chosen: `mapped by pid 12`, `RPATH of …/deep_ep_cpp.so`, `LD_LIBRARY_PATH`, `ld.so.cache`, `default folder`.
    pub how: String,
    /// Every copy found, the chosen one too.
    pub copies: Vec<LibraryFile>,
    /// Versions of symbols that the chosen copy has (`MLX5_1.25`); of libibverbs, libmlx5 and libfabric only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub symbol_versions: Vec<String>,
    /// Versions that the chosen copy wants of another chosen library and that library does not have: `libibverbs.so.1
    /// IBVERBS_PRIVATE_34`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unmet: Vec<String>,
}

/// A file that holds a library.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LibraryFile {
    /// Path without the root prefix, links resolved.
    pub path: String,
    /// Its version, and how it is known.
    pub version: Option<LibraryVersion>,
    /// Bytes.
    pub size: u64,
}

/// A version and where it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LibraryVersion {
    /// `3.4.5`.
    pub text: String,
    /// `text inside the library`, `wheel nvidia-nvshmem-cu13`, `file name`, `Debian package`, `given`: strongest first.
    pub how: String,
}

/// A Python distribution.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wheel {
    /// Normalised name: `nvidia-nvshmem-cu13`.
    pub name: String,
    /// Version of its metadata.
    pub version: String,
    /// Its `dist-info` (or `egg-info`) folder.
    pub path: String,
    /// `Requires-Dist` lines about NVSHMEM, NCCL or torch.
    pub requires: Vec<String>,
    /// Local or VCS origin of `direct_url.json`: URL and commit.
    pub origin: Option<String>,
}

/// An installed DeepEP (or a fork that keeps its name), or its source tree.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeepEp {
    /// Folder of the package or source.
    pub path: String,
    /// `1.2.1+4214430`.
    pub version: Option<String>,
    /// Commit: the version's suffix, `direct_url.json`, or the source tree's HEAD.
    pub commit: Option<String>,
    /// The branch or generation it is: `v1`, `hybrid-ep`, `v2`; from its files.
    pub line: Option<String>,
    /// The extension module's file.
    pub extension: Option<String>,
    /// Whether the extension needs `libnvshmem_host`; none where there is no extension to look at.
    pub links_nvshmem: Option<bool>,
    /// Whether it needs `libnccl`.
    pub links_nccl: Option<bool>,
    /// Version of the NVSHMEM device library compiled into it, where it can be told.
    pub nvshmem_device: Option<String>,
    /// GPU code inside the extension.
    pub archs: Vec<CubinArch>,
    /// `DISABLE_AGGRESSIVE_PTX_INSTRS` as built, where it can be told: true is disabled.
    pub aggressive_ptx_disabled: Option<bool>,
    /// How queue pairs are indexed (DeepEP pull request 564), strongest evidence first.
    pub indexing: Vec<QpIndexing>,
    /// Whether `configs.cuh` of a source tree defines `__CUDACC_RDC__` for NVSHMEM, the other half of pull request 564.
    pub rdc_guard: Option<bool>,
    /// `NVSHMEM_MAX_TEAMS` that its `buffer.py` writes.
    pub max_teams: Option<u32>,
    /// Symbols of NVSHMEM that the extension wants and the library that loads does not have.
    pub missing_symbols: Vec<String>,
    /// It has the host-proxy patch for EFA (`nvshmemx_qp_*` calls).
    pub efa_patch: Option<bool>,
}

/// GPU code of one architecture.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct CubinArch {
    /// 90 for `sm_90` and `sm_90a`.
    pub sm: u32,
    /// It is PTX, which newer GPUs can compile.
    pub ptx: bool,
    /// `a` or `f` where it can be told.
    pub suffix: String,
}

/// One piece of evidence whether pull request 564 is in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QpIndexing {
    /// 564 is in.
    pub patched: bool,
    /// `source`, `device-code`, `build-record`, `commit`.
    pub kind: String,
    /// File and what was seen there.
    pub evidence: String,
}

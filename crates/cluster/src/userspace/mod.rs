//! Reading libraries and Python packages: what would load, what a process has mapped, what else lies about.
//!
//! What would load is found in the loader's order: `LD_PRELOAD`, `DT_RPATH` of DeepEP's extension, `LD_LIBRARY_PATH`, `DT_RUNPATH`, what
//! PyTorch loads of its own wheels, `ld.so.cache` (where there is none, the folders of `ld.so.conf`), the default folders. A process is asked
//! by its maps instead, in its own file system.

mod binary;
mod cache;
mod fatbin;
mod indexing;
mod libraries;
mod process;
mod python;

use std::path::PathBuf;

pub use binary::{Binary, read as read_binary};
pub use cache::parse_cache;
pub use fatbin::fatbin;
pub use indexing::{parse_indexing, parse_rdc_guard};
pub use libraries::parse_maps;
pub use python::{parse_max_teams, parse_metadata, parse_origin};

use crate::facts::{DeepEp, Fact, LoadedLibrary, Userspace, Wheel};
use crate::root::Root;
use libraries::Search;
use process::Place;
use python::Folder;

/// Where to look.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A process whose mapped libraries are wanted.
    pub pid: Option<u32>,
    /// Folders of Python packages (`site-packages`); with any given, no others are searched.
    pub python_roots: Vec<PathBuf>,
    /// A source tree of DeepEP.
    pub source_root: Option<PathBuf>,
}

/// Folders that hold `lib/pythonX.Y/site-packages`.
const PREFIXES: [&str; 7] =
    ["/usr/local", "/usr", "/opt/venv", "/opt/conda", "/venv", "/workspace/.venv", "/root/.venv"];

/// More folders of packages than a machine has.
const FOLDERS: usize = 64;

/// More bytes than a loader's cache has: some hundred KB on a machine with all of CUDA.
const CACHE: u64 = 64 << 20;

/// Libraries whose symbols have versions that matter here.
const VERSIONED: [&str; 3] = ["libibverbs.so.1", "libmlx5.so.1", "libfabric.so.1"];

/// Reads libraries and packages of `root`.
pub fn collect(root: &Root, options: &Options) -> Userspace {
    let maps = options.pid.map(|pid| root.text(&format!("/proc/{pid}/maps")).map(|text| parse_maps(&text)));
    let place = process::place(root, options.pid);
    let root = &place.root;
    let folders = folders(&place, options, maps.as_ref());
    let wheels: Vec<Wheel> = folders.iter().flat_map(python::wheels).collect();
    let mut deep_ep: Vec<DeepEp> =
        folders.iter().filter_map(|folder| python::deep_ep(folder, &wheels_of(folder, &wheels))).collect();
    deep_ep.extend(options.source_root.as_deref().and_then(|path| python::source(&Folder::named(path))));
    let split = |name: &str| {
        let parts = place.variable(name).split([':', ' ']).filter(|part| part.starts_with('/'));
        parts.map(str::to_owned).collect::<Vec<_>>()
    };
    let (rpath, runpath) = search_paths(root, &folders, &deep_ep);
    let search = Search {
        root,
        folders: &folders,
        wheels: &wheels,
        mapped: maps.as_ref(),
        rpath,
        runpath,
        preload: split("LD_PRELOAD"),
        library_path: split("LD_LIBRARY_PATH"),
        cache: root.bytes("/etc/ld.so.cache", CACHE).value().map(|bytes| parse_cache(bytes)),
    };
    let mut libraries = search.all();
    symbol_versions(root, &folders, &mut libraries);
    let (source, scope) = ("*.dist-info", root.scope("/usr"));
    let wheels =
        if folders.is_empty() { Fact::absent(source, scope) } else { Fact::read(wheels, source, scope) };
    missing_symbols(root, &folders, &libraries, &mut deep_ep);
    let ignored_variables = ignored(&place, &folders, &libraries);
    let efa_installer =
        root.text("/opt/amazon/efa_installed_packages").parse(|text| parse_efa_installer(&text));
    Userspace { libraries, wheels, deep_ep, ignored_variables, cuda_toolkit: toolkit(root), efa_installer }
}

/// `# EFA installer version: 1.48.0`.
///
/// # Errors
/// Without such a line.
pub fn parse_efa_installer(text: &str) -> Result<String, String> {
    let version = text.lines().find_map(|line| line.split_once("EFA installer version:"));
    let version = version.map(|(_, version)| version.trim().to_owned()).filter(|version| !version.is_empty());
    version.ok_or_else(|| "it names no version of the installer".to_owned())
}

/// The file of the copy that loads, as a path outside of any prefix.
fn loads(root: &Root, folders: &[Folder], library: &LoadedLibrary) -> Option<PathBuf> {
    let path = &library.chosen.value()?.path;
    let folder = folders.iter().find(|folder| !folder.prefix.is_empty() && path.starts_with(&folder.prefix));
    match folder {
        Some(folder) => folder.root.real(&path[folder.prefix.len()..]).ok(),
        None => root.real(path).ok(),
    }
}

/// Versions of symbols, which tell what the libraries of rdma-core and libfabric can do and whether they are of one build.
fn symbol_versions(root: &Root, folders: &[Folder], libraries: &mut [LoadedLibrary]) {
    let mut wants: Vec<(usize, String, String)> = Vec::new();
    for (index, library) in libraries.iter_mut().enumerate() {
        if !VERSIONED.contains(&library.name.as_str()) {
            continue;
        }
        let file = loads(root, folders, library).and_then(|path| std::fs::File::open(path).ok());
        let Some(binary) = file.and_then(|file| binary::read(file).ok()) else { continue };
        library.symbol_versions = binary.defines.into_iter().collect();
        wants.extend(binary.requires.into_iter().map(|(of, version)| (index, of, version)));
    }
    for (index, of, version) in wants {
        let has = libraries
            .iter()
            .find(|library| library.name == of && !library.symbol_versions.is_empty())
            .is_none_or(|library| library.symbol_versions.contains(&version));
        if let Some(library) = libraries.get_mut(index).filter(|_| !has) {
            library.unmet.push(format!("{of} {version}"));
        }
    }
}

/// The NVSHMEM library that loads, as a path outside of any prefix.
fn nvshmem(root: &Root, folders: &[Folder], libraries: &[LoadedLibrary]) -> Option<PathBuf> {
    loads(root, folders, libraries.iter().find(|library| library.name.starts_with("libnvshmem_host"))?)
}

/// Names of NVSHMEM that an extension wants and the library that loads does not have.
fn missing_symbols(root: &Root, folders: &[Folder], libraries: &[LoadedLibrary], deep_ep: &mut [DeepEp]) {
    let Some(library) = nvshmem(root, folders, libraries) else { return };
    let Ok(has) = std::fs::File::open(library).map_err(|error| error.to_string()).and_then(binary::read)
    else {
        return;
    };
    for found in deep_ep {
        let Some(extension) = &found.extension else { continue };
        let file = folders
            .iter()
            .find_map(|folder| folder.root.open(extension.strip_prefix(folder.prefix.as_str())?).ok());
        let Some(wants) = file.and_then(|file| binary::read(file).ok()) else { continue };
        found.missing_symbols = wants.wants.difference(&has.offers).take(16).cloned().collect();
    }
}

fn ignored(place: &Place, folders: &[Folder], libraries: &[LoadedLibrary]) -> Fact<Vec<String>> {
    let root = &place.root;
    // NVSHMEM_VERSION is no setting: images carry it as a label.
    let names: Vec<String> = place
        .names()
        .filter(|name| {
            name.starts_with("NVSHMEM_")
                && !["NVSHMEM_VERSION", "NVSHMEM_DIR", "NVSHMEM_HOME", "NVSHMEM_HCA_OFFSET"].contains(name)
        })
        .map(str::to_owned)
        .collect();
    let Some(library) = nvshmem(root, folders, libraries).filter(|_| !names.is_empty()) else {
        return Fact::default();
    };
    let source = library.to_string_lossy().into_owned();
    match unknown_variables(&library, &names) {
        Some(unknown) => Fact::read(unknown, source, root.scope("/usr")),
        None => Fact::unreadable("the library could not be searched", source, root.scope("/usr")),
    }
}

fn wheels_of(folder: &Folder, wheels: &[Wheel]) -> Vec<Wheel> {
    let base = format!("{}/", folder.shown(&folder.path));
    wheels.iter().filter(|wheel| wheel.path.starts_with(&base)).cloned().collect()
}

/// Folders of Python packages: those named, or those of a process's files, of the active environment and of usual places.
fn folders(place: &Place, options: &Options, process: Option<&Fact<Vec<String>>>) -> Vec<Folder> {
    let root = &place.root;
    if !options.python_roots.is_empty() {
        let mut folders: Vec<Folder> = options.python_roots.iter().map(|path| Folder::named(path)).collect();
        let more: Vec<Folder> = folders.iter().flat_map(python::elsewhere).collect();
        folders.extend(more.into_iter().take(FOLDERS));
        return folders;
    }
    let mut paths: Vec<String> = Vec::new();
    for file in process.and_then(Fact::value).into_iter().flatten() {
        for mark in ["/site-packages/", "/dist-packages/"] {
            if let Some((before, _)) = file.split_once(mark) {
                paths.push(format!("{before}{}", mark.trim_end_matches('/')));
            }
        }
    }
    if process.is_none() {
        let mut prefixes: Vec<String> = Vec::new();
        if root.is_live() {
            let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].map(|name| place.variable(name));
            prefixes.extend(active.into_iter().filter(|path| !path.is_empty()).map(str::to_owned));
            // The interpreter that `python3` means belongs to the folder above its `bin`.
            let python =
                std::env::split_paths(place.variable("PATH")).find(|folder| folder.join("python3").exists());
            prefixes.extend(python.and_then(|folder| Some(folder.parent()?.to_string_lossy().into_owned())));
        }
        prefixes.extend(PREFIXES.into_iter().map(str::to_owned));
        for name in root.list("/opt").value().into_iter().flatten().take(FOLDERS) {
            prefixes.extend([format!("/opt/{name}"), format!("/opt/{name}/.venv")]);
        }
        for prefix in prefixes {
            let names = root.list(&format!("{prefix}/lib"));
            for python in names.value().into_iter().flatten().filter(|name| name.starts_with("python3")) {
                paths.extend(
                    ["site-packages", "dist-packages"].map(|kind| format!("{prefix}/lib/{python}/{kind}")),
                );
            }
        }
    }
    paths.retain(|path| root.exists(path));
    // One folder may have several names.
    let mut seen = Vec::new();
    paths.retain(|path| {
        let real = root.resolve(path).value().cloned().unwrap_or_else(|| path.clone());
        let new = !seen.contains(&real);
        seen.push(real);
        new
    });
    let mut folders: Vec<Folder> = paths
        .into_iter()
        .take(FOLDERS)
        .map(|path| Folder { root: root.clone(), path, prefix: String::new() })
        .collect();
    let more: Vec<Folder> = folders.iter().flat_map(python::elsewhere).collect();
    folders.extend(more.into_iter().take(FOLDERS));
    folders
}

/// `DT_RPATH` and `DT_RUNPATH` of DeepEP's extension, `$ORIGIN` put in.
fn search_paths(root: &Root, folders: &[Folder], deep_ep: &[DeepEp]) -> (Vec<String>, Vec<String>) {
    let Some(extension) = deep_ep.iter().find_map(|found| found.extension.as_deref()) else {
        return Default::default();
    };
    let file = folders.iter().find_map(|folder| {
        let inside = extension.strip_prefix(folder.prefix.as_str())?;
        folder.root.open(inside).ok()
    });
    let Some(binary) = file.or_else(|| root.open(extension).ok()).and_then(|file| binary::read(file).ok())
    else {
        return Default::default();
    };
    let origin = extension.rsplit_once('/').map_or("", |(folder, _)| folder);
    let put = |paths: Vec<String>| -> Vec<String> {
        paths
            .into_iter()
            .take(64)
            .map(|path| path.replace("$ORIGIN", origin).replace("${ORIGIN}", origin))
            .collect()
    };
    // With DT_RUNPATH there, the loader does not look at DT_RPATH.
    if binary.runpath.is_empty() {
        (put(binary.rpath), Vec::new())
    } else {
        (Vec::new(), put(binary.runpath))
    }
}

/// `"cuda": {"version": "13.0.2"}` of the toolkit's version file.
fn toolkit(root: &Root) -> Fact<String> {
    root.text("/usr/local/cuda/version.json").parse(|text| {
        let json: serde_json::Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let version = json.pointer("/cuda/version").and_then(serde_json::Value::as_str);
        version.map(str::to_owned).ok_or_else(|| "it names no version of CUDA".to_owned())
    })
}

/// NVSHMEM variables that the library and its plugins in the same folder do not know, as far as their text tells. None where the
/// library cannot be read.
pub fn unknown_variables(library: &std::path::Path, variables: &[String]) -> Option<Vec<String>> {
    let folder = library.parent()?;
    // The library stores names with or without their beginning.
    let mut names: Vec<String> =
        variables.iter().filter_map(|name| name.strip_prefix("NVSHMEM_").map(str::to_owned)).collect();
    let mut read = false;
    let whole = folder.canonicalize().ok()?;
    for entry in std::fs::read_dir(folder).ok()?.flatten().take(1024) {
        let name = entry.file_name().to_string_lossy().into_owned();
        // A link may lead anywhere, a device or a pipe among it: files of this folder only.
        let real = entry
            .path()
            .canonicalize()
            .ok()
            .filter(|real| real.parent() == Some(whole.as_path()) && real.is_file());
        let Some(real) = real else { continue };
        if (name.starts_with("libnvshmem_host") || name.starts_with("nvshmem_")) && name.contains(".so") {
            let mut file = std::fs::File::open(real).ok()?;
            binary::mentions(&mut file, &mut names)?;
            read = true;
        }
    }
    read.then(|| names.into_iter().map(|name| format!("NVSHMEM_{name}")).collect())
}

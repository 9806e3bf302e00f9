//! Which copy of a library would load, or is mapped, and which others lie about.

use super::binary;
use super::python::Folder;
use crate::facts::{Fact, LibraryFile, LibraryVersion, LoadedLibrary, Scope, Wheel};
use crate::root::Root;

/// A library that is looked for.
struct Wanted {
    /// The name it is asked for.
    name: &'static str,
    /// Text in it before its version.
    mark: Option<&'static [u8]>,
    /// Its folder in a folder of Python packages, and the beginning of its wheel's name.
    wheel: Option<(&'static str, &'static str)>,
}

impl Wanted {
    /// `libcudart.so` stands for whichever version is there.
    fn any_version(&self) -> bool {
        self.name.strip_suffix(".so").is_some()
    }
}

const WANTED: [Wanted; 9] = [
    Wanted {
        name: "libnvshmem_host.so.3",
        mark: Some(b"NVSHMEM v"),
        wheel: Some(("nvidia/nvshmem/lib", "nvidia-nvshmem")),
    },
    Wanted {
        name: "libnccl.so.2",
        mark: Some(b"NCCL version "),
        wheel: Some(("nvidia/nccl/lib", "nvidia-nccl")),
    },
    Wanted { name: "libfabric.so.1", mark: None, wheel: None },
    Wanted { name: "libcuda.so.1", mark: None, wheel: None },
    Wanted { name: "libnvidia-ml.so.1", mark: None, wheel: None },
    Wanted { name: "libgdrapi.so.2", mark: None, wheel: None },
    Wanted { name: "libibverbs.so.1", mark: None, wheel: None },
    Wanted { name: "libmlx5.so.1", mark: None, wheel: None },
    Wanted { name: "libcudart.so", mark: None, wheel: None },
];

/// Folders outside of the loader's own, where installers put these libraries.
const INSTALLED: [&str; 11] = [
    "/opt/amazon/nvshmem/lib",
    "/opt/nvshmem/lib",
    "/usr/local/nvshmem/lib",
    "/usr/lib/x86_64-linux-gnu/nvshmem/12",
    "/usr/lib/x86_64-linux-gnu/nvshmem/13",
    "/usr/local/cuda/lib64",
    "/opt/nccl/build/lib",
    "/opt/amazon/efa/lib",
    "/opt/amazon/efa/lib64",
    "/opt/gdrcopy/lib",
    "/opt/hpcx/nvshmem/lib",
];

/// Folders that the loader searches last.
const DEFAULT: [&str; 8] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

/// Where to look, in the loader's order.
pub(super) struct Search<'a> {
    pub(super) root: &'a Root,
    pub(super) folders: &'a [Folder],
    pub(super) wheels: &'a [Wheel],
    /// Files that a process has mapped; none without a process.
    pub(super) mapped: Option<&'a Fact<Vec<String>>>,
    pub(super) rpath: Vec<String>,
    pub(super) runpath: Vec<String>,
    pub(super) preload: Vec<String>,
    pub(super) library_path: Vec<String>,
    /// Names and files of the loader's cache; none where there is no cache.
    pub(super) cache: Option<Vec<(String, String)>>,
}

impl Search<'_> {
    /// Every library that is found anywhere.
    pub(super) fn all(&self) -> Vec<LoadedLibrary> {
        WANTED.iter().filter_map(|wanted| self.one(wanted)).collect()
    }

    fn one(&self, wanted: &Wanted) -> Option<LoadedLibrary> {
        let mut copies: Vec<LibraryFile> = Vec::new();
        let mut chosen: Option<(String, String)> = None;
        let mut take = |file: LibraryFile, how: Option<&str>| {
            if let (Some(how), None) = (how, &chosen) {
                chosen = Some((file.path.clone(), how.to_owned()));
            }
            if !copies.iter().any(|copy| copy.path == file.path) {
                copies.push(file);
            }
        };
        let stem = wanted.name.split(".so").next().unwrap_or(wanted.name);
        if let Some(mapped) = self.mapped {
            let is = |path: &&String| {
                path.rsplit('/')
                    .next()
                    .is_some_and(|name| name.starts_with(stem) && name[stem.len()..].starts_with(".so"))
            };
            for path in mapped.value().into_iter().flatten().filter(is) {
                // What was replaced under a running process is mapped, and no longer there to read.
                let gone = || LibraryFile { path: path.clone(), ..LibraryFile::default() };
                take(self.file(self.root, path, path, wanted).unwrap_or_else(gone), Some("mapped"));
            }
        }
        let loader = self.mapped.is_none();
        for path in self.preload.iter().filter(|path| {
            let name = path.rsplit('/').next().and_then(|name| name.strip_prefix(stem));
            name.is_some_and(|rest| rest.starts_with(".so"))
        }) {
            // The loader warns of a file that is not there, and goes on.
            if let Some(file) = self.file(self.root, path, path, wanted) {
                take(file, loader.then_some("LD_PRELOAD"));
            }
        }
        let steps = [
            (&self.rpath, "RPATH of the extension"),
            (&self.library_path, "LD_LIBRARY_PATH"),
            (&self.runpath, "RUNPATH of the extension"),
        ];
        for (folders, how) in steps {
            for (file, named) in
                folders.iter().flat_map(|folder| self.in_folder(self.root, folder, "", wanted))
            {
                take(file, (loader && named).then_some(how));
            }
        }
        // PyTorch opens the libraries of its own wheels when it is imported, which is before any extension.
        for folder in self.folders {
            let Some((place, _)) = wanted.wheel else { break };
            let torch = folder.root.exists(&folder.at("torch/lib"));
            for (file, named) in self.in_folder(&folder.root, &folder.at(place), &folder.prefix, wanted) {
                take(file, (loader && torch && named).then_some("PyTorch's wheels"));
            }
        }
        for (_, path) in self.cache.iter().flatten().filter(|(name, _)| {
            // `libcudart.so` stands for whichever version is there.
            name == wanted.name || (wanted.name.as_bytes().ends_with(b".so") && name.starts_with(wanted.name))
        }) {
            let real = self.root.resolve(path).value().cloned().unwrap_or_else(|| path.clone());
            if let Some(file) = self.file(self.root, &real, &real, wanted) {
                take(file, loader.then_some("ld.so.cache"));
            }
        }
        // With a cache the loader does not look into these folders: what was put there since `ldconfig` ran is not found.
        let how = (loader && self.cache.is_none()).then_some("ld.so.conf");
        let configured = self.configured();
        for (file, named) in
            configured.iter().flat_map(|folder| self.in_folder(self.root, folder, "", wanted))
        {
            take(file, how.filter(|_| named));
        }
        for (file, named) in DEFAULT.iter().flat_map(|folder| self.in_folder(self.root, folder, "", wanted)) {
            take(file, (loader && named).then_some("default folder"));
        }
        for (file, _) in INSTALLED.iter().flat_map(|folder| self.in_folder(self.root, folder, "", wanted)) {
            take(file, None);
        }
        let how = match (&chosen, copies.as_slice()) {
            (Some((_, how)), _) => how.clone(),
            (None, []) => return None,
            (None, [only]) if loader && self.leads(wanted, only) => {
                chosen = Some((only.path.clone(), String::new()));
                "the only copy; the loader finds it by a path of its own only".to_owned()
            }
            (None, _) if !loader => "not mapped".to_owned(),
            (None, _) => "none of the copies is on the loader's path".to_owned(),
        };
        let source = if loader { "loader's search" } else { "maps of the process" };
        let chosen = match chosen.and_then(|(path, _)| copies.iter().find(|copy| copy.path == path).cloned())
        {
            Some(file) => Fact::read(file, source, self.root.scope("/lib")),
            None => Fact::absent(source, Scope::Unknown),
        };
        Some(LoadedLibrary { name: wanted.name.to_owned(), chosen, how, copies, ..LoadedLibrary::default() })
    }

    /// Files of the library in one folder, whatever follows `.so`, and whether the name that is asked for leads to them: those first.
    fn in_folder(
        &self,
        root: &Root,
        folder: &str,
        prefix: &str,
        wanted: &Wanted,
    ) -> Vec<(LibraryFile, bool)> {
        let stem = wanted.name.split(".so").next().unwrap_or(wanted.name);
        let names = root.list(folder);
        let ours = |name: &&String| {
            name.strip_prefix(stem).is_some_and(|rest| rest.starts_with(".so") && !rest.contains(".so.debug"))
        };
        // `libcudart.so` stands for whichever version is there.
        let asked = |name: &str| name == wanted.name || wanted.any_version();
        let mut files: Vec<(LibraryFile, bool)> = names
            .value()
            .into_iter()
            .flatten()
            .filter(ours)
            .filter_map(|name| {
                let path = format!("{folder}/{name}");
                let real = root.resolve(&path).value().cloned().unwrap_or(path);
                Some((self.file(root, &real, &format!("{prefix}{real}"), wanted)?, asked(name)))
            })
            .collect();
        files.sort_by_key(|(_, asked)| !asked);
        files
    }

    /// Whether the name that is asked for leads to this copy.
    fn leads(&self, wanted: &Wanted, copy: &LibraryFile) -> bool {
        let Some((folder, name)) = copy.path.rsplit_once('/') else { return false };
        let path = format!("{folder}/{}", wanted.name);
        wanted.any_version() || name == wanted.name || self.root.resolve(&path).value() == Some(&copy.path)
    }

    fn file(&self, root: &Root, path: &str, shown: &str, wanted: &Wanted) -> Option<LibraryFile> {
        let mut file = root.open(path).ok()?;
        let size = file.metadata().ok()?.len();
        let inside = wanted
            .mark
            .and_then(|mark| binary::text_after(&mut file, mark))
            .map(|text| (text, "text inside the library"));
        let wheel = || {
            let (place, name) = wanted.wheel?;
            let base = shown.split(&format!("/{place}/")).next().filter(|base| *base != shown)?;
            let wheel = self
                .wheels
                .iter()
                .find(|wheel| wheel.name.starts_with(name) && wheel.path.starts_with(base))?;
            Some((wheel.version.clone(), "its wheel"))
        };
        let named = || {
            let (_, rest) = path.rsplit('/').next()?.split_once(".so.")?;
            rest.contains('.').then(|| (rest.to_owned(), "file name"))
        };
        let version = inside.or_else(wheel).or_else(named);
        let version = version.map(|(text, how)| LibraryVersion { text, how: how.to_owned() });
        Some(LibraryFile { path: shown.to_owned(), version, size })
    }

    /// Folders of `ld.so.conf` and what it includes. (The loader reads a cache made of them; the cache may be older.)
    fn configured(&self) -> Vec<String> {
        let mut folders = Vec::new();
        let names = self.root.list("/etc/ld.so.conf.d");
        let files = names.value().into_iter().flatten().filter(|name| name.strip_suffix(".conf").is_some());
        for name in files.take(256) {
            let text = self.root.text(&format!("/etc/ld.so.conf.d/{name}"));
            let lines = text
                .value()
                .map_or("", String::as_str)
                .lines()
                .map(str::trim)
                .filter(|line| line.starts_with('/'));
            folders.extend(lines.take(64).map(str::to_owned));
        }
        folders
    }
}

/// Files that `/proc/PID/maps` names.
pub fn parse_maps(text: &str) -> Vec<String> {
    let mut files: Vec<String> = text
        .lines()
        .filter_map(|line| line.find('/').map(|at| line[at..].trim_end_matches(" (deleted)").to_owned()))
        .filter(|path| path.contains(".so"))
        .collect();
    files.sort();
    files.dedup();
    files
}

//! Compiled kernels on disk.
//!
//! An entry's file is named by a hash of everything that the kernels were compiled from, and holds all of that again
//! beside the kernels: a hash that two share, a cut file or a flipped bit is no hit. Entries are written aside and
//! renamed, so readers and any number of writers need no lock. Who writes also removes the entries used longest ago
//! beyond the folder's bounds; a reader that has one of them open keeps it, and one that comes later compiles again.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use thiserror::Error;

use crate::arch::Arch;
use crate::cubin::Cubin;
use crate::fnv::Fnv;
use crate::nvrtc::Program;
use crate::version::Version;

/// Names the format: a change of it must change this.
const MAGIC: &[u8; 16] = b"expertrail-cub1\n";
/// Magic, lengths of key and kernels, hash of both.
const HEADER: usize = 16 + 8 + 8 + 16;
/// What a folder may hold before its oldest entries go: hundreds of versions of all kernels for a device.
const MOST_BYTES: u64 = 256 << 20;
const MOST_FILES: usize = 512;
/// How long after its last change a file aside is one that nobody will rename any more.
const ABANDONED: Duration = Duration::from_hours(1);
/// No entry is larger; a file that claims so is not read.
const LARGEST: u64 = 256 << 20;

/// Why an entry could not be kept.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "compiled kernels cannot be kept in {}: {reason}; make the folder writable, or set EXPERTRAIL_CACHE to another \
     (or to `off`)", .path.display()
)]
pub struct CacheError {
    /// The folder or file.
    pub path: PathBuf,
    /// What the system said.
    pub reason: String,
}

/// What compiled kernels depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    bytes: Vec<u8>,
}

impl Key {
    /// The key of `program`, compiled for `arch` with `options` by NVRTC `version`.
    pub fn new(program: &Program<'_>, options: &[String], arch: Arch, version: Version) -> Self {
        let mut key = Self { bytes: Vec::new() };
        key.part(&version.to_string());
        key.part(&arch.to_string());
        key.list(options.iter().map(String::as_str));
        key.part(program.name);
        key.part(program.source);
        key.list(program.headers.iter().flat_map(|(name, source)| [*name, *source]));
        key
    }

    /// Each part with its length before it, so that no two lists of parts give the same bytes.
    fn part(&mut self, text: &str) {
        self.bytes.extend((text.len() as u64).to_le_bytes());
        self.bytes.extend(text.as_bytes());
    }

    fn list<'a>(&mut self, texts: impl Iterator<Item = &'a str> + Clone) {
        self.bytes.extend((texts.clone().count() as u64).to_le_bytes());
        texts.for_each(|text| self.part(text));
    }

    fn file_name(&self) -> String {
        format!("{:032x}.cubin", Fnv::new().bytes(&self.bytes).sum())
    }
}

/// A folder of compiled kernels, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    folder: Option<PathBuf>,
    most_bytes: u64,
    most_files: usize,
}

impl Cache {
    /// The cache in `folder`, which is made when first written to.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self::in_folder(Some(folder.into()))
    }

    fn in_folder(folder: Option<PathBuf>) -> Self {
        Self { folder, most_bytes: MOST_BYTES, most_files: MOST_FILES }
    }

    /// This cache with other bounds: 256 MiB and 512 entries unless set here. The entry written last always stays.
    #[must_use]
    pub fn bounded(self, bytes: u64, files: usize) -> Self {
        Self { most_bytes: bytes, most_files: files, ..self }
    }

    /// No cache: nothing is found and nothing kept.
    pub fn off() -> Self {
        Self::in_folder(None)
    }

    /// Where the environment says: `EXPERTRAIL_CACHE` (a folder, or `off`), or else `expertrail` in `XDG_CACHE_HOME`,
    /// or else in `~/.cache`; none where neither is known.
    pub fn from_env() -> Self {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// As [`Cache::from_env`], with the environment given by `variable`.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        if let Some(folder) = set("EXPERTRAIL_CACHE") {
            return if folder == "off" { Self::off() } else { Self::at(folder) };
        }
        // The XDG rules: a relative path is to be ignored.
        let absolute = |name: &str| set(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let caches = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
        Self::in_folder(caches.map(|folder| folder.join("expertrail")))
    }

    /// The folder.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The kernels kept under `key`; none when there are none, or they are damaged.
    pub fn get(&self, key: &Key) -> Option<Cubin> {
        let file = File::open(self.folder.as_ref()?.join(key.file_name())).ok()?;
        let size = file.metadata().ok().filter(std::fs::Metadata::is_file)?.len();
        if size > LARGEST {
            return None;
        }
        let mut bytes = Vec::with_capacity(size as usize);
        (&file).take(LARGEST).read_to_end(&mut bytes).ok()?;
        let cubin = Cubin::new(body(&bytes, key)?.to_vec()).ok()?;
        // Its age counts from its last use. Where the folder cannot be written, nothing is removed from it either.
        let _ = file.set_modified(SystemTime::now());
        Some(cubin)
    }

    /// Keeps `cubin` under `key`, in place of what was there.
    ///
    /// # Errors
    /// When the folder cannot be made or written.
    pub fn put(&self, key: &Key, cubin: &Cubin) -> Result<(), CacheError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let Some(folder) = &self.folder else { return Ok(()) };
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error: std::io::Error| CacheError { path, reason: error.to_string() }
        };
        // Only this user: whoever can write here chooses what runs on the device.
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed(folder))?;
        let name = key.file_name();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // Ranks of one job may be in containers with equal process ids on one file system, hence the time.
        let time = std::time::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_nanos());
        let aside = folder.join(format!(".{name}.{}.{number}.{time}", std::process::id()));
        let result = write(&aside, key, cubin).and_then(|()| std::fs::rename(&aside, folder.join(&name)));
        result.map_err(|error| {
            let _ = std::fs::remove_file(&aside);
            failed(folder)(error)
        })?;
        self.sweep(folder, &name);
        Ok(())
    }

    /// Removes what was used longest ago until the folder is within its bounds, and what dead writers left aside. An
    /// entry that cannot be removed stays: that is no reason to fail, and the next writer tries again.
    fn sweep(&self, folder: &Path, newest: &str) {
        let now = SystemTime::now();
        let mut entries = Vec::new();
        for file in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            // Only what this cache made: the user may have chosen a folder that holds other files.
            let Some(kind) = made_here(&name) else { continue };
            let Some(data) = file.metadata().ok().filter(std::fs::Metadata::is_file) else { continue };
            let Ok(used) = data.modified() else { continue };
            match kind {
                Made::Entry => entries.push((name != newest, used, name, data.len())),
                Made::Aside if now.duration_since(used).is_ok_and(|age| age > ABANDONED) => {
                    let _ = std::fs::remove_file(file.path());
                }
                Made::Aside => {}
            }
        }
        // The newest first, whatever the clock says of it, then by last use.
        entries.sort_by(|a, b| (a.0, std::cmp::Reverse(a.1), &a.2).cmp(&(b.0, std::cmp::Reverse(b.1), &b.2)));
        let mut bytes = 0;
        for (index, (removable, _, name, length)) in entries.iter().enumerate() {
            bytes += length;
            if *removable && (bytes > self.most_bytes || index >= self.most_files) {
                let _ = std::fs::remove_file(folder.join(name));
            }
        }
    }
}

/// The two kinds of files that a cache makes.
enum Made {
    Entry,
    Aside,
}

fn made_here(name: &str) -> Option<Made> {
    let hashed = |name: &str| name.len() == 32 && name.bytes().all(|b| b.is_ascii_hexdigit());
    match name.strip_prefix('.') {
        None => hashed(name.strip_suffix(".cubin")?).then_some(Made::Entry),
        Some(aside) => hashed(aside.split_once(".cubin.")?.0).then_some(Made::Aside),
    }
}

fn write(path: &Path, key: &Key, cubin: &Cubin) -> std::io::Result<()> {
    let mut file = File::create_new(path)?;
    let mut header = Vec::with_capacity(HEADER);
    header.extend(MAGIC);
    header.extend((key.bytes.len() as u64).to_le_bytes());
    header.extend((cubin.bytes().len() as u64).to_le_bytes());
    header.extend(Fnv::new().bytes(&key.bytes).bytes(cubin.bytes()).sum().to_le_bytes());
    for part in [&header, &key.bytes, cubin.bytes()] {
        file.write_all(part)?;
    }
    Ok(())
}

/// The kernels in an entry, if it is whole and `key`'s.
fn body<'a>(entry: &'a [u8], key: &Key) -> Option<&'a [u8]> {
    let (header, rest) = entry.split_at_checked(HEADER)?;
    let number = |at: usize| Some(u64::from_le_bytes(header.get(at..at + 8)?.try_into().ok()?));
    if !header.starts_with(MAGIC) || number(16)? != key.bytes.len() as u64 {
        return None;
    }
    let (kept, cubin) = rest.split_at_checked(key.bytes.len())?;
    let sum = u128::from_le_bytes(header.get(32..HEADER)?.try_into().ok()?);
    let whole = number(24)? == cubin.len() as u64
        && kept == key.bytes
        && Fnv::new().bytes(kept).bytes(cubin).sum() == sum;
    whole.then_some(cubin)
}

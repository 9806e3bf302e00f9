//! Compiled kernels on disk.
//!
//! An entry's file is named by a hash of everything that the kernels were compiled from, and holds all of that again
//! beside the kernels: a hash that two share, a cut file or a flipped bit is no hit. Entries are written aside and
//! renamed, so readers and any number of writers need no lock.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

use crate::arch::Arch;
use crate::cubin::Cubin;
use crate::nvrtc::Program;
use crate::version::Version;

/// Names the format: a change of it must change this.
const MAGIC: &[u8; 16] = b"expertrail-cub1\n";
/// Magic, lengths of key and kernels, hash of both.
const HEADER: usize = 16 + 8 + 8 + 16;
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
        format!("{:032x}.cubin", hash(&[&self.bytes]))
    }
}

/// A folder of compiled kernels, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// The cache in `folder`, which is made when first written to.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()) }
    }

    /// No cache: nothing is found and nothing kept.
    pub fn off() -> Self {
        Self { folder: None }
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
        Self { folder: caches.map(|folder| folder.join("expertrail")) }
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
        file.take(LARGEST).read_to_end(&mut bytes).ok()?;
        Cubin::new(body(&bytes, key)?.to_vec()).ok()
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
        let result = write(&aside, key, cubin).and_then(|()| std::fs::rename(&aside, folder.join(name)));
        result.map_err(|error| {
            let _ = std::fs::remove_file(&aside);
            failed(folder)(error)
        })
    }
}

fn write(path: &Path, key: &Key, cubin: &Cubin) -> std::io::Result<()> {
    let mut file = File::create_new(path)?;
    let mut header = Vec::with_capacity(HEADER);
    header.extend(MAGIC);
    header.extend((key.bytes.len() as u64).to_le_bytes());
    header.extend((cubin.bytes().len() as u64).to_le_bytes());
    header.extend(hash(&[&key.bytes, cubin.bytes()]).to_le_bytes());
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
    let whole = number(24)? == cubin.len() as u64 && kept == key.bytes && hash(&[kept, cubin]) == sum;
    whole.then_some(cubin)
}

/// FNV-1a of 128 bits over `parts`, one after the other.
fn hash(parts: &[&[u8]]) -> u128 {
    const START: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = (1 << 88) + 0x13b;
    parts
        .iter()
        .flat_map(|part| part.iter())
        .fold(START, |sum, byte| (sum ^ u128::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        // From the specification's list of test vectors.
        assert_eq!(hash(&[]), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(hash(&[b"a"]), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        assert_eq!(hash(&[b"foo", b"bar"]), hash(&[b"foobar"]));
    }
}

//! Reading under a prefix: `/` of a live machine, or a captured tree that stands for one.
//!
//! Links are followed inside the prefix only, so that an absolute link of a captured tree leads into the tree and a hostile
//! one nowhere else. Every read is bounded, never blocks on a pipe, and answers with a [`Fact`].

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::OFlags;

use crate::facts::{Fact, Scope};

/// No file of `/proc` or `/sys`, and no configuration file, is near this; a larger one is not what it should be.
pub const TEXT_LIMIT: u64 = 16 << 20;

/// A file of one value is a page at most (`sysfs` gives no more), and so is a kernel's command line.
const WORD_LIMIT: u64 = 64 << 10;

/// More entries than any folder that is listed here has.
const LIST_LIMIT: usize = 1 << 16;

/// As many links in one path as Linux follows (`MAXSYMLINKS`).
const LINK_LIMIT: u32 = 40;

/// A file system, live or captured.
#[derive(Clone, Debug)]
pub struct Root {
    prefix: PathBuf,
    file_scope: Scope,
}

impl Root {
    /// The machine itself. `file_scope` is the scope of ordinary files and of processes: a container's or the host's.
    pub fn live(file_scope: Scope) -> Self {
        Self { prefix: PathBuf::from("/"), file_scope }
    }

    /// The tree under `prefix`. Whose files it has is unknown until its own facts tell; see [`Root::with_file_scope`].
    pub fn captured(prefix: impl Into<PathBuf>) -> Self {
        Self { prefix: prefix.into(), file_scope: Scope::Unknown }
    }

    /// The same tree, with `scope` for ordinary files.
    #[must_use]
    pub fn with_file_scope(mut self, scope: Scope) -> Self {
        self.file_scope = scope;
        self
    }

    /// Whether this is the running machine, whose processes, variables and libraries are those of this process.
    pub fn is_live(&self) -> bool {
        self.prefix == Path::new("/")
    }

    /// The prefix.
    pub fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// Scope of what is read at `path`: files of the kernel are the same everywhere, others are of a container or a host.
    pub fn scope(&self, path: &str) -> Scope {
        let kernel = [
            "/proc/driver",
            "/proc/modules",
            "/proc/devices",
            "/proc/cmdline",
            "/proc/cpuinfo",
            "/sys/",
            "/proc/sys/vm",
        ];
        if kernel.iter().any(|start| path.starts_with(start)) { Scope::HostKernel } else { self.file_scope }
    }

    /// A text file, at most [`TEXT_LIMIT`] long. Bytes that are not UTF-8 become U+FFFD.
    pub fn text(&self, path: &str) -> Fact<String> {
        self.text_up_to(path, TEXT_LIMIT)
    }

    /// A file of one value, without the white space around it.
    pub fn word(&self, path: &str) -> Fact<String> {
        self.text_up_to(path, WORD_LIMIT).map(|text| text.trim().to_owned())
    }

    /// A text file of at most `limit` bytes. Bytes that are not UTF-8 become U+FFFD.
    pub fn text_up_to(&self, path: &str, limit: u64) -> Fact<String> {
        self.bytes(path, limit).map(|bytes| match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }

    /// A file's bytes, of which there may be at most `limit`.
    pub fn bytes(&self, path: &str, limit: u64) -> Fact<Vec<u8>> {
        let scope = self.scope(path);
        match self.open(path) {
            Ok(file) => {
                let mut bytes = Vec::new();
                match file.take(limit + 1).read_to_end(&mut bytes) {
                    Ok(_) if bytes.len() as u64 > limit => {
                        Fact::unreadable(format!("larger than {limit} bytes"), path, scope)
                    }
                    Ok(_) => Fact::read(bytes, path, scope),
                    Err(error) => Fact::unreadable(error.to_string(), path, scope),
                }
            }
            Err(error) => Self::refused(&error, path, scope),
        }
    }

    /// Opens a regular file for reading, without ever waiting for it.
    ///
    /// # Errors
    /// The operating system's, and one for what is no regular file.
    pub fn open(&self, path: &str) -> std::io::Result<File> {
        let real = self.real(path)?;
        let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(real)?;
        if file.metadata()?.is_file() { Ok(file) } else { Err(std::io::Error::other("not a regular file")) }
    }

    /// Names in a folder, sorted; names that are not UTF-8 have U+FFFD.
    pub fn list(&self, path: &str) -> Fact<Vec<String>> {
        let scope = self.scope(path);
        let entries = match self.real(path).and_then(std::fs::read_dir) {
            Ok(entries) => entries,
            Err(error) => return Self::refused(&error, path, scope),
        };
        let mut names = Vec::new();
        for entry in entries {
            match entry {
                Ok(entry) => names.push(entry.file_name().to_string_lossy().into_owned()),
                Err(error) => return Fact::unreadable(error.to_string(), path, scope),
            }
            if names.len() > LIST_LIMIT {
                return Fact::unreadable(format!("more than {LIST_LIMIT} entries"), path, scope);
            }
        }
        // Git keeps no empty folder; captured trees have this file in them.
        names.retain(|name| self.is_live() || name != ".keep");
        names.sort();
        Fact::read(names, path, scope)
    }

    /// Whether something is at `path`, links followed.
    pub fn exists(&self, path: &str) -> bool {
        self.real(path).is_ok_and(|real| real.symlink_metadata().is_ok())
    }

    /// The last name of the link at `path`: a device's driver, its physical function.
    pub fn link_name(&self, path: &str) -> Option<String> {
        let (folder, name) = path.rsplit_once('/')?;
        let target = self.link(&self.real(folder).ok()?.join(name)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// `path` with all links resolved, as a path from the root, without the prefix.
    pub fn resolve(&self, path: &str) -> Fact<String> {
        let scope = self.scope(path);
        let real = match self.real(path) {
            Ok(real) => real,
            Err(error) => return Self::refused(&error, path, scope),
        };
        if let Err(error) = real.symlink_metadata() {
            return Self::refused(&error, path, scope);
        }
        let inside = real.strip_prefix(&self.prefix).unwrap_or(&real);
        Fact::read(format!("/{}", inside.to_string_lossy()), path, scope)
    }

    /// The path outside: prefix and `path` with links resolved inside the prefix. What does not exist resolves to where it
    /// would be.
    ///
    /// # Errors
    /// Too many links, or a link that cannot be read.
    pub fn real(&self, path: &str) -> std::io::Result<PathBuf> {
        let mut links = 0;
        let mut rest: Vec<OsString> = Self::parts(Path::new(path));
        rest.reverse();
        let mut inside: Vec<OsString> = Vec::new();
        while let Some(name) = rest.pop() {
            if name == ".." {
                inside.pop();
                continue;
            }
            let mut here = self.prefix.clone();
            here.extend(&inside);
            here.push(&name);
            match self.link(&here) {
                Ok(target) => {
                    links += 1;
                    if links > LINK_LIMIT {
                        return Err(std::io::Error::other("too many links"));
                    }
                    if self.is_live() && target.to_string_lossy().contains(":[") {
                        // Links of /proc such as `net:[4026531833]` name no path.
                        inside.push(name);
                        continue;
                    }
                    if target.is_absolute() {
                        inside.clear();
                    }
                    rest.extend(Self::parts(&target).into_iter().rev());
                }
                // EINVAL: there, and no link.
                Err(error) if error.kind() == ErrorKind::InvalidInput || error.raw_os_error() == Some(22) => {
                    inside.push(name);
                }
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                    inside.push(name);
                    inside.extend(rest.drain(..).rev());
                }
                Err(error) => return Err(error),
            }
        }
        let mut real = self.prefix.clone();
        real.extend(inside);
        Ok(real)
    }

    /// The target of the link at `here`. Archives and version control on systems without links keep a link of `/sys` as a small file
    /// with its target as text; in a captured tree such a file is taken for the link.
    fn link(&self, here: &Path) -> std::io::Result<PathBuf> {
        let link = std::fs::read_link(here);
        if self.is_live() || !here.strip_prefix(&self.prefix).is_ok_and(|inside| inside.starts_with("sys")) {
            return link;
        }
        match link {
            Err(error) if error.raw_os_error() == Some(22) => {
                let found = here.symlink_metadata()?;
                let text = (found.is_file() && found.len() < 512)
                    .then(|| std::fs::read_to_string(here).ok())
                    .flatten();
                text.filter(|text| text.starts_with("../") && !text.trim_end().contains(char::is_whitespace))
                    .map(|text| PathBuf::from(text.trim_end()))
                    .ok_or(error)
            }
            other => other,
        }
    }

    fn parts(path: &Path) -> Vec<OsString> {
        path.components()
            .filter_map(|component| match component {
                Component::Normal(name) => Some(name.to_owned()),
                Component::ParentDir => Some(OsString::from("..")),
                _ => None,
            })
            .collect()
    }

    fn refused<T>(error: &std::io::Error, path: &str, scope: Scope) -> Fact<T> {
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => Fact::absent(path, scope),
            _ => Fact::unreadable(error.to_string(), path, scope),
        }
    }
}

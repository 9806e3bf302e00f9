//! Whose files and variables are meant: the reader's, those of a captured tree, or those of a process.

use std::collections::BTreeMap;
use std::path::Path;

use crate::root::Root;

/// Bytes of variables: a process may have some hundred KB.
const LIMIT: u64 = 16 << 20;

/// Files and variables.
pub(super) struct Place {
    /// Its file system.
    pub(super) root: Root,
    variables: BTreeMap<String, String>,
}

impl Place {
    /// The value of a variable; empty where it is not set.
    pub(super) fn variable(&self, name: &str) -> &str {
        self.variables.get(name).map_or("", String::as_str)
    }

    /// Names of all variables.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.variables.keys().map(String::as_str)
    }
}

/// The place of process `pid` of this machine; without one, that of `root`.
///
/// A process in a container has another file system: its mapped libraries and packages are read through `/proc/PID/root`, as far as the
/// reader may (root, or the same user).
pub(super) fn place(root: &Root, pid: Option<u32>) -> Place {
    let Some(pid) = pid.filter(|_| root.is_live()) else {
        let variables = if root.is_live() {
            // Names and values that are no UTF-8 name no library.
            std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                .collect()
        } else {
            let text = root.text("/environ.txt");
            pairs(text.value().map_or("", String::as_str).lines())
        };
        return Place { root: root.clone(), variables };
    };
    let bytes = root.bytes(&format!("/proc/{pid}/environ"), LIMIT);
    let text = bytes.value().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default();
    let variables = pairs(text.split('\0'));
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let (theirs, ours) = (namespace(&pid.to_string()), namespace("self"));
    let inside = format!("/proc/{pid}/root");
    let other = theirs.is_some() && theirs != ours && Path::new(&inside).join("etc").is_dir();
    let root = if other {
        Root::captured(&inside).with_file_scope(crate::facts::Scope::Container)
    } else {
        root.clone()
    };
    Place { root, variables }
}

fn pairs<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeMap<String, String> {
    let pairs = lines.filter_map(|line| line.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

//! Trees of fixtures, written as one text file each and unpacked into a temporary folder.
//!
//! ```text
//! # a comment
//! include dgx-h100.tree              take everything of another tree of the same folder first
//! sys/module/gdrdrv/version: 2.5.1   a file of one line
//! dev/empty:                         an empty file
//! proc/driver/nvidia/params <<<      a file of the lines up to >>>
//! EnableStreamMemOPs: 1
//! >>>
//! sys/class/infiniband/mlx5_0 -> ../../devices/pci0000:15/0000:18:00.0/infiniband/mlx5_0
//! sys/.../config bytes 4096 106:0c00 a file of so many bytes, all zero but those after an offset; all in hexadecimal, the size not
//! run/nvidia/                        an empty folder
//! remove proc/modules                takes away what came before, folders with all they hold
//! ```

#![allow(dead_code)]
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Where the trees lie.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(
        if Path::new(env!("CARGO_MANIFEST_DIR")).ends_with("cluster") {
            "tests/trees"
        } else {
            "../cluster/tests/trees"
        },
    )
}

/// The tree of file `name` (below `tests/trees`, `.tree` added), unpacked.
pub(crate) fn unpack(name: &str) -> TempDir {
    let text = fs::read_to_string(folder().join(format!("{name}.tree")))
        .unwrap_or_else(|error| panic!("{name}.tree: {error}"));
    unpack_text(&text)
}

/// The tree that `text` describes, unpacked.
pub(crate) fn unpack_text(text: &str) -> TempDir {
    // In memory where there is such a place: hundreds of trees of 700 small files, each made where one was just deleted, take ext4
    // minutes.
    let place = tempfile::tempdir_in("/dev/shm").or_else(|_| TempDir::new()).unwrap();
    apply(place.path(), text);
    place
}

/// Adds what `text` describes to the tree at `place`.
pub(crate) fn apply(place: &Path, text: &str) {
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(other) = line.strip_prefix("include ") {
            let path = folder().join(other.trim());
            apply(
                place,
                &fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
            );
        } else if let Some(gone) = line.strip_prefix("remove ") {
            let path = place.join(gone.trim());
            let kind = fs::symlink_metadata(&path).unwrap_or_else(|error| panic!("remove {gone}: {error}"));
            if kind.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }.unwrap();
        } else if let Some(path) = line.strip_suffix("<<<") {
            let content: Vec<&str> = lines.by_ref().take_while(|line| *line != ">>>").collect();
            write(&place.join(path.trim()), format!("{}\n", content.join("\n")));
        } else if let Some((path, content)) = line.split_once(" bytes ") {
            write(&place.join(path), bytes(content));
        } else if let Some((path, target)) = line.split_once(" -> ") {
            let path = place.join(path.trim());
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let _ = fs::remove_file(&path);
            symlink(target.trim(), path).unwrap();
        } else if let Some((path, value)) = line.split_once(": ") {
            write(&place.join(path), format!("{value}\n"));
        } else if let Some(path) = line.strip_suffix(':') {
            write(&place.join(path), "");
        } else if let Some(path) = line.strip_suffix('/') {
            fs::create_dir_all(place.join(path)).unwrap();
        } else {
            panic!("a tree has no such line: {line}");
        }
    }
}

fn bytes(text: &str) -> Vec<u8> {
    let mut words = text.split_whitespace();
    let mut bytes = vec![0; words.next().unwrap().parse().unwrap()];
    for word in words {
        let (at, digits) = word.split_once(':').unwrap();
        let at = usize::from_str_radix(at, 16).unwrap();
        for (index, start) in (0..digits.len()).step_by(2).enumerate() {
            bytes[at + index] = u8::from_str_radix(&digits[start..start + 2], 16).unwrap();
        }
    }
    bytes
}

fn write(path: &Path, content: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

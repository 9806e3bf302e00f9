//! Libraries that stand for CUDA's, compiled when a test wants them.
#![allow(dead_code, reason = "every test program uses a part")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder of this test's own, empty.
pub(crate) fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder for the test");
    folder
}

/// Compiles `tests/fake/{source}` with `defines` to `folder/name`.
pub(crate) fn fake(folder: &Path, name: &str, source: &str, defines: &[&str]) -> PathBuf {
    let library = folder.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake").join(source);
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .args(defines.iter().map(|define| format!("-D{define}")))
        .arg(source)
        .status()
        .expect("cc, which Rust links with");
    assert!(status.success());
    library
}

/// The smallest thing that passes for compiled kernels, with `tail` behind it.
pub(crate) fn cubin(tail: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    bytes[18] = 190;
    bytes.extend(tail);
    bytes
}

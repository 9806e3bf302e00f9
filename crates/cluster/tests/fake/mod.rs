//! Libraries that stand for the driver's, written in C and compiled when a test asks.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Compiles `source` of this folder with `defines`.
pub(crate) fn library(source: &str, defines: &[&str]) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fake-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join(format!("{}-{source}.so", NUMBER.fetch_add(1, Ordering::Relaxed)));
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&file)
        .args(defines.iter().map(|define| format!("-D{define}")))
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../cluster/tests/fake").join(format!("{source}.c")))
        .status()
        .expect("cc, which Rust links with");
    assert!(status.success(), "{source} {defines:?}");
    file
}

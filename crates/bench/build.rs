//! Notes the commit that is built, for results: `EXPERTRAIL_COMMIT`. Without git, or outside a checkout, there is none.

use std::path::Path;
use std::process::Command;

fn main() {
    let root = Path::new("../..");
    // A new commit moves one of these; without them the note would go stale.
    for file in [".git/HEAD", ".git/logs/HEAD"] {
        if root.join(file).exists() {
            println!("cargo::rerun-if-changed={}", root.join(file).display());
        }
    }
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).current_dir(root).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    if let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]).filter(|commit| !commit.is_empty()) {
        println!("cargo::rustc-env=EXPERTRAIL_COMMIT={commit}");
    }
}

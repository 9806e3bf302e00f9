//! Embeds compiled kernels: with `EXPERTRAIL_EMBED=FOLDER` those that `examples/cuda_compile.rs` left there, or else
//! none. `scripts/build-release` does both.
//!
//! What is generated also compares, while this crate compiles, each kernel's fingerprint with that of the sources
//! that are compiled in (`src/kernel_source.rs`): kernels of other sources stop the build.

#[allow(dead_code, unreachable_pub, reason = "the crate uses the rest")]
#[path = "src/fnv.rs"]
mod fnv;
#[allow(dead_code, unreachable_pub, reason = "the crate uses the rest")]
#[path = "src/manifest.rs"]
mod manifest;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use fnv::Fnv;
use manifest::{MANIFEST, ManifestEntry, read_manifest};

const VARIABLE: &str = "EXPERTRAIL_EMBED";
const REMEDY: &str = "run scripts/build-release, which compiles them again";

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/fnv.rs");
    println!("cargo::rerun-if-changed=src/manifest.rs");
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    match generate() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            println!("cargo::error={message}");
            ExitCode::FAILURE
        }
    }
}

fn generate() -> Result<(), String> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let out =
        set("OUT_DIR").ok_or("OUT_DIR is not set: this program is for cargo to run")?.join("embedded.rs");
    let code = match set(VARIABLE) {
        None => code(Path::new(""), &[]),
        Some(folder) => {
            // Compiled code refers to the files by their whole path, whichever folder the compiler runs in.
            if !folder.is_absolute() {
                return Err(format!("{VARIABLE}={} is not an absolute path; give one", folder.display()));
            }
            println!("cargo::rerun-if-changed={}", folder.display());
            code(&folder, &entries(&folder)?)
        }
    };
    std::fs::write(&out, code).map_err(|error| format!("{} cannot be written: {error}", out.display()))
}

/// The entries of the folder's list, every file checked.
fn entries(folder: &Path) -> Result<Vec<ManifestEntry>, String> {
    let list = folder.join(MANIFEST);
    println!("cargo::rerun-if-changed={}", list.display());
    let refuse = |path: &Path, reason: &str| format!("{VARIABLE}: {}: {reason}; {REMEDY}", path.display());
    let text = std::fs::read_to_string(&list).map_err(|error| refuse(&list, &error.to_string()))?;
    let entries = read_manifest(&text).map_err(|reason| refuse(&list, &reason))?;
    if entries.is_empty() {
        return Err(refuse(&list, "it lists no kernels"));
    }
    for entry in &entries {
        let path = folder.join(entry.file_name());
        println!("cargo::rerun-if-changed={}", path.display());
        let bytes = std::fs::read(&path).map_err(|error| refuse(&path, &error.to_string()))?;
        if Fnv::new().bytes(&bytes).sum() != entry.hash {
            return Err(refuse(&path, &format!("it is not the file that {MANIFEST} lists")));
        }
    }
    let there = std::fs::read_dir(folder).map_err(|error| refuse(folder, &error.to_string()))?;
    for path in there
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "cubin"))
    {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !entries.iter().any(|entry| entry.file_name() == name) {
            return Err(refuse(&path, &format!("{MANIFEST} does not list it")));
        }
    }
    Ok(entries)
}

/// The table, and the comparison of each entry with the sources.
fn code(folder: &Path, entries: &[ManifestEntry]) -> String {
    let mut code = format!("static EMBEDDED: [Embedded; {}] = [\n", entries.len());
    for entry in entries {
        let path = folder.join(entry.file_name());
        // `{:?}` of a text is a literal with everything escaped.
        let _ = writeln!(
            code,
            "    Embedded {{ program: {:?}, arch: Arch {{ number: {} }}, fingerprint: Fingerprint(0x{:x}), \
             cubin: include_bytes!({:?}) }},",
            entry.program,
            entry.arch,
            entry.fingerprint,
            path.to_string_lossy(),
        );
    }
    code.push_str("];\n");
    for entry in entries {
        let message = format!(
            "EXPERTRAIL_EMBED: {} was compiled from other sources or options than those of this build; {REMEDY}",
            folder.join(entry.file_name()).display()
        );
        let _ = writeln!(
            code,
            "const _: () = assert!(current({:?}, Arch {{ number: {} }}, Fingerprint(0x{:x})), \"{{}}\", {message:?});",
            entry.program, entry.arch, entry.fingerprint,
        );
    }
    let mut archs: Vec<&str> = entries.iter().map(|entry| entry.arch_name.as_str()).collect();
    archs.sort_unstable();
    archs.dedup();
    for arch in archs {
        let names: Vec<&str> = entries
            .iter()
            .filter(|entry| entry.arch_name == arch)
            .map(|entry| entry.program.as_str())
            .collect();
        let message = format!(
            "EXPERTRAIL_EMBED: {} holds some programs for {arch} but not all of this build's; {REMEDY}",
            folder.display()
        );
        let _ = writeln!(code, "const _: () = assert!(complete(&{names:?}), \"{{}}\", {message:?});");
    }
    code
}

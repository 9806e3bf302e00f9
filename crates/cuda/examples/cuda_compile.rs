//! Compiles every program for every architecture that releases embed, into a folder for `EXPERTRAIL_EMBED`: `cargo
//! run -p expertrail-cuda --example cuda_compile -- FOLDER`. Needs NVRTC, and no GPU.
//!
//! Ends with 0, 2 for wrong arguments or a folder that cannot be written, or the error's exit code (4 without NVRTC).

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use expertrail_cuda::kernels::ALL;
use expertrail_cuda::{
    Arch, Fingerprint, MANIFEST, ManifestEntry, Nvrtc, Search, read_manifest, write_manifest,
};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(folder), None) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: cuda_compile FOLDER");
        return ExitCode::from(2);
    };
    match run(&PathBuf::from(folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, message)) => {
            eprintln!("error: {message}");
            ExitCode::from(code)
        }
    }
}

fn run(folder: &Path) -> Result<(), (u8, String)> {
    let start = Instant::now();
    let nvrtc = Nvrtc::load(&Search::nvrtc()).map_err(|error| (4, error.to_string()))?;
    println!("NVRTC {} from {}", nvrtc.version(), nvrtc.path().display());
    clear(folder)?;
    let mut entries = Vec::new();
    for program in &ALL {
        for arch in Arch::GATED {
            let measured = nvrtc
                .compile_measured(program, arch)
                .map_err(|error| (error.exit_code(), error.to_string()))?;
            let bytes = measured.cubin.bytes();
            let entry = ManifestEntry {
                program: program.name.to_owned(),
                arch: arch.number,
                arch_name: arch.to_string(),
                fingerprint: Fingerprint::new(program, arch).number(),
                hash: Fingerprint::of_file(bytes),
            };
            write(&folder.join(entry.file_name()), bytes)?;
            println!("{}: {} bytes", entry.file_name(), bytes.len());
            for taken in measured.resources {
                let registers = taken.registers.map_or_else(String::new, |n| format!("{n} registers, "));
                let (shared, spilled) = (taken.shared, taken.spilled());
                println!("    {}: {registers}{shared} bytes shared, {spilled} spilled", taken.name);
            }
            entries.push(entry);
        }
    }
    let list = write_manifest(&entries);
    // What the build would refuse is found here: a program's name that is no file's, or that two share.
    read_manifest(&list).map_err(|reason| (1, format!("the list of compiled kernels is wrong: {reason}")))?;
    write(&folder.join(MANIFEST), list.as_bytes())?;
    println!("{} files in {} ({:.1?})", entries.len(), folder.display(), start.elapsed());
    Ok(())
}

/// Makes the folder and removes what an earlier run left, the list first: without it the build takes nothing.
fn clear(folder: &Path) -> Result<(), (u8, String)> {
    std::fs::create_dir_all(folder).map_err(|error| denied(folder, &error))?;
    let there = std::fs::read_dir(folder).map_err(|error| denied(folder, &error))?;
    let mut old: Vec<PathBuf> = there.flatten().map(|entry| entry.path()).collect();
    old.retain(|path| path.ends_with(MANIFEST) || path.extension().is_some_and(|e| e == "cubin"));
    old.sort_by_key(|path| !path.ends_with(MANIFEST));
    old.iter().try_for_each(|path| std::fs::remove_file(path).map_err(|error| denied(path, &error)))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), (u8, String)> {
    std::fs::write(path, bytes).map_err(|error| denied(path, &error))
}

fn denied(path: &Path, error: &std::io::Error) -> (u8, String) {
    (2, format!("{}: {error}; give a folder that can be written", path.display()))
}

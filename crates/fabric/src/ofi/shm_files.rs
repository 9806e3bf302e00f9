//! Files that libfabric's shm provider leaves in shared memory when a process dies.
//!
//! Each endpoint maps a file of 13 to 17 MB, `PID:DOMAIN:ENDPOINT`, and sometimes one for a large message, with `_NUMBER`
//! behind that. Closing removes them; a process that is killed leaves them, until memory is full.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, geteuid, test_kill_process};

use crate::error::{FabricError, Result};

/// What a sweep did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Names of the files removed, sorted.
    pub removed: Vec<String>,
    /// Their lengths together, in bytes.
    pub bytes: u64,
}

/// Removes from `/dev/shm` what endpoints of the shm provider left there: files of this user whose process has ended.
///
/// All processes that share the folder must share the numbers of processes, too: do not call it in a container that has
/// the host's `/dev/shm` without the host's processes.
///
/// # Errors
/// When the folder cannot be read. A file that cannot be removed stays.
pub fn sweep_shm() -> Result<Swept> {
    sweep_shm_in(Path::new("/dev/shm"))
}

/// As [`sweep_shm`], of another folder.
///
/// # Errors
/// As there.
pub fn sweep_shm_in(folder: &Path) -> Result<Swept> {
    let entries = fs::read_dir(folder).map_err(|error| FabricError::System {
        what: format!("cannot read {}", folder.display()),
        reason: error.to_string(),
    })?;
    let mut swept = Swept::default();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(process) = process_of(&name) else { continue };
        let Ok(file) = entry.metadata() else { continue };
        if !file.is_file() || file.uid() != geteuid().as_raw() || is_alive(process) {
            continue;
        }
        if fs::remove_file(entry.path()).is_ok() {
            swept.bytes += file.len();
            swept.removed.push(name);
        }
    }
    swept.removed.sort();
    Ok(swept)
}

/// The process of a file that has the provider's form of a name.
fn process_of(name: &str) -> Option<Pid> {
    let (name, message) = name.split_once('_').unwrap_or((name, "0"));
    let numbers: Vec<&str> = name.split(':').collect();
    let digits = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if numbers.len() != 3 || !numbers.iter().all(digits) || !digits(&message) {
        return None;
    }
    Pid::from_raw(numbers[0].parse().ok()?)
}

fn is_alive(process: Pid) -> bool {
    if test_kill_process(process) == Err(Errno::SRCH) {
        return false;
    }
    // One that has ended and that nobody has collected is still there, but maps nothing.
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    !matches!(state, Some('Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn only_files_of_dead_processes_with_the_right_name_go() {
        let folder = tempfile::tempdir().unwrap();
        let mut dead = Command::new("true").spawn().unwrap();
        let (own, gone) = (std::process::id(), dead.id());
        // Ended, and not collected yet.
        let stat = format!("/proc/{gone}/stat");
        while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
        let goes = [format!("{gone}:0:0"), format!("{gone}:12:3"), format!("{gone}:0:0_17")];
        let stays = [
            format!("{own}:0:0"),
            format!("{gone}"),
            format!("{gone}:0"),
            format!("{gone}:0:0:0"),
            format!("{gone}:0:x"),
            format!("{gone}:0:0_"),
            format!("x{gone}:0:0"),
            "0:0:0".to_owned(),
            "99999999999:0:0".to_owned(),
            "sem.other".to_owned(),
        ];
        for name in goes.iter().chain(&stays) {
            fs::write(folder.path().join(name), "1234567").unwrap();
        }
        fs::create_dir(folder.path().join(format!("{gone}:1:1"))).unwrap();
        let swept = sweep_shm_in(folder.path()).unwrap();
        dead.wait().unwrap();
        let mut goes = goes.to_vec();
        goes.sort();
        assert_eq!(swept, Swept { removed: goes, bytes: 21 });
        for name in &stays {
            assert!(folder.path().join(name).exists(), "{name}");
        }
        assert_eq!(sweep_shm_in(folder.path()).unwrap(), Swept::default());
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = sweep_shm_in(Path::new("/nowhere/shm")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/shm") && error.contains("No such file"), "{error}");
    }
}

//! A rank's life is bound to its launcher's.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::{
    Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal, test_kill_process,
};

use crate::error::{GroupError, Result};
use crate::watch::DeathWatch;

/// What ends a rank with its launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bond {
    /// There is no launcher.
    None,
    /// The kernel: it holds when the process becomes another program.
    Kernel,
    /// A thread of this process.
    Thread,
}

/// Names the launcher's process.
pub(crate) const PARENT_PID: &str = "EXPERTRAIL_PARENT_PID";

/// Makes this process end when its launcher does, even if that is killed outright. Does nothing where
/// `EXPERTRAIL_PARENT_PID` is not set.
///
/// A direct child asks the kernel for it; that request is tied to the launcher's *thread* that started it,
/// so [`LocalLaunch::run`](crate::spawn::LocalLaunch::run) starts its children from the thread that waits
/// for them. A grandchild (a rank behind a shell script) watches the launcher from a thread.
///
/// # Errors
/// When the launcher is already gone, or the variable is no process id.
pub fn bind_to_parent() -> Result<Bond> {
    let Some(value) = std::env::var_os(PARENT_PID).filter(|value| !value.is_empty()) else {
        return Ok(Bond::None);
    };
    let parsed = value
        .to_str()
        .and_then(|text| text.parse::<i32>().ok())
        .filter(|pid| *pid > 0)
        .and_then(Pid::from_raw);
    let Some(launcher) = parsed else {
        let text = format!("{PARENT_PID}={} is not usable: wanted a process id", value.display());
        return Err(GroupError::Argument(text));
    };
    if getppid() == Some(launcher) {
        set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|error| GroupError::system("binding this rank to its launcher", error))?;
        // The launcher may have ended between the question and the request.
        if getppid() == Some(launcher) {
            return Ok(Bond::Kernel);
        }
    } else if test_kill_process(launcher).is_ok() {
        return watch_from_afar(launcher);
    }
    Err(GroupError::System {
        what: format!("binding this rank to its launcher (pid {})", launcher.as_raw_nonzero()),
        reason: "the launcher has already ended".to_owned(),
    })
}

fn watch_from_afar(launcher: Pid) -> Result<Bond> {
    // One for the life of the process.
    static WATCH: OnceLock<DeathWatch> = OnceLock::new();
    if WATCH.get().is_some() {
        return Ok(Bond::Thread);
    }
    let pid = launcher.as_raw_nonzero().get().unsigned_abs();
    let watch = DeathWatch::new(vec![(0, pid)], |_| {
        let _ = kill_process(getpid(), Signal::KILL);
    });
    match watch {
        Ok(watch) => {
            let _ = WATCH.set(watch);
            Ok(Bond::Thread)
        }
        Err(error) => Err(GroupError::system("binding this rank to its launcher", error)),
    }
}

/// Binds this process to its launcher and becomes `program`, which keeps the bond. Returns only if that
/// fails.
///
/// It is for a launcher's hidden subcommand: programs that never join a group (a shell script, `sleep`)
/// then also end with the launcher. Only a direct child of the launcher can do it: what binds a grandchild is a
/// thread, and `program` would take that thread's place.
pub fn exec_bound(program: &OsStr, args: impl IntoIterator<Item = OsString>) -> GroupError {
    match bind_to_parent() {
        Ok(Bond::Kernel | Bond::None) => {}
        Ok(Bond::Thread) => {
            return GroupError::Argument(format!(
                "{} would outlive its launcher: only a direct child of the launcher can become another program and \
                 stay bound to it",
                program.display()
            ));
        }
        Err(error) => return error,
    }
    let error = Command::new(program).args(args).exec();
    GroupError::system(format!("cannot start {}", program.display()), error)
}

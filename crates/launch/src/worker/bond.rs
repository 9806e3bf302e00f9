//! A worker's life is bound to what started it: `mpirun` that was killed, an `ssh` session that was cut.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, getpid, getppid, kill_process};

use super::Lookup;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(250);

/// From now on this process gets SIGTERM when its parent is gone, or when its `ssh` session is. Its ranks are then stopped as for any
/// SIGTERM.
///
/// It looks, rather than asking the kernel for a signal: that one would come with the end of the *thread* that started this process, and
/// launchers start processes from threads that end.
pub(super) fn watch(vars: Lookup<'_>) {
    let Some(parent) = getppid().filter(|parent| *parent != Pid::INIT) else { return };
    // Several sessions may share one connection: the process that holds it then outlives this session, and only the pipe tells.
    let session = vars("SSH_CONNECTION").is_some();
    let name = "expertrail-bond".to_owned();
    let watcher = std::thread::Builder::new().name(name).spawn(move || {
        while getppid() == Some(parent) && !(session && cut()) {
            std::thread::sleep(EVERY);
        }
        let _ = kill_process(getpid(), Signal::TERM);
    });
    // Without the watch the run still ends by its own rules; only this safeguard is missing.
    if let Err(error) = watcher {
        super::say(&format!("what started this worker is not watched: {error}"));
    }
}

/// Whether nobody reads standard output any more.
fn cut() -> bool {
    let out = std::io::stdout();
    let mut fds = [PollFd::new(&out, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&now)), Ok(1..))
        && fds.iter().any(|fd| fd.revents().intersects(PollFlags::ERR | PollFlags::HUP))
}

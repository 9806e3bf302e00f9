//! Ranks that are threads of the test.
#![allow(dead_code, reason = "every test program uses a part")]

use std::path::Path;

use expertrail_cuda::Driver;
use expertrail_group::{Group, JoinOptions};

/// Runs `rank` in a thread for each rank and gives their results in order of rank.
pub(crate) fn ranks<T: Send>(count: usize, rank: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let options = JoinOptions { deadline: std::time::Duration::from_secs(20), ..JoinOptions::default() };
    let groups = Group::local_threads_with(count, &options).expect("groups");
    std::thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || rank(group))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}

/// A fake driver compiled with `defines`, of whose path `look` sees the library.
pub(crate) fn driver<T>(test: &str, defines: &[&str], look: impl FnOnce(Driver, &Path) -> T) -> T {
    let folder = crate::support::folder(test);
    let path = crate::support::fake(&folder, "libcuda.so.1", "driver.c", defines);
    let driver = Driver::load(&expertrail_cuda::Search::only(&path)).expect("a fake driver");
    let result = look(driver, &path);
    std::fs::remove_dir_all(folder).expect("the test's folder");
    result
}

/// How many objects of the driver at `path` are alive.
pub(crate) fn alive(path: &Path) -> i32 {
    // SAFETY: our own fake, with this function.
    unsafe {
        let library = libloading::Library::new(path).expect("the fake again");
        library.get::<unsafe extern "C" fn() -> i32>("fake_alive").expect("fake_alive")()
    }
}

/// The text of `error`, which must have every one of `parts`.
pub(crate) fn says(error: &impl ToString, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

//! Which GPUs count, and what `auto` stands for, with drivers that stand for CUDA's
//! (`crates/cuda/tests/fake/driver.c`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

use expertrail::cuda::Search;
use expertrail::{Backend, Group, Layout};
use expertrail_bench::run::{Gpus, choose};

/// Compiles a driver with `defines`.
fn driver(name: &str, defines: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gpu-detect-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let library = folder.join(name);
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .args(defines.iter().map(|define| format!("-D{define}")))
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../cuda/tests/fake/driver.c"))
        .status()
        .expect("cc, which Rust links with");
    assert!(status.success());
    library
}

fn look(name: &str, defines: &[&str]) -> Gpus {
    Gpus::look(&Search::only(driver(name, defines))).expect("a driver")
}

#[test]
fn devices_that_cannot_serve_are_named() {
    let both = look("two.so", &["COUNT=2"]);
    assert_eq!((both.usable.len(), both.visible(), both.driver.as_str()), (2, 2, "13.0"));
    assert!(both.enough_for(2).is_ok());
    for (name, define, why) in [
        ("old.so", "MAJOR=8", "capability 8"),
        ("vmm.so", "VMM=0", "virtual memory"),
        ("coop.so", "COOP=0", "cooperative"),
        ("mode.so", "MODE=2", "prohibited"),
        ("mig.so", "NAME=\"NVIDIA H200 MIG 1g.18gb\"", "MIG slice"),
    ] {
        let one = look(name, &["COUNT=2", "ODD=1", define]);
        assert_eq!((one.usable.len(), one.visible()), (1, 2), "{define}");
        let text = one.enough_for(2).expect_err("one is too few").to_string();
        assert!(text.contains("1 usable of 2 visible (device 1") && text.contains(why), "{text}");
    }
}

#[test]
fn no_driver_says_what_was_looked_for() {
    let error = Gpus::look(&Search::only("/nonexistent/libcuda.so.1")).expect_err("none");
    assert!(error.to_string().contains("/nonexistent/libcuda.so.1"), "{error}");
    assert_eq!(error.exit_code(), 4);
}

/// What two ranks of this host agree on.
fn chosen(search: &Search, layout: Layout) -> Vec<Backend> {
    let groups = Group::local_threads(2).expect("two ranks");
    std::thread::scope(|scope| {
        let threads: Vec<_> = groups
            .iter()
            .map(|group| scope.spawn(move || choose(group, layout, search).expect("a choice")))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn auto_is_cuda_when_each_rank_has_a_gpu() {
    let two = Search::only(driver("auto-two.so", &["COUNT=2"]));
    assert_eq!(chosen(&two, Layout::BySource), [Backend::Cuda; 2]);
    // Not built for GPUs.
    assert_eq!(chosen(&two, Layout::ExpertMajor { alignment: 128 }), [Backend::Host; 2]);
    // Both ranks see the same one.
    let one = Search::only(driver("auto-one.so", &["COUNT=1"]));
    assert_eq!(chosen(&one, Layout::BySource), [Backend::Host; 2]);
    let old = Search::only(driver("auto-old.so", &["COUNT=2", "MAJOR=8"]));
    assert_eq!(chosen(&old, Layout::BySource), [Backend::Host; 2]);
    assert_eq!(chosen(&Search::only("/nonexistent/libcuda.so.1"), Layout::BySource), [Backend::Host; 2]);
}

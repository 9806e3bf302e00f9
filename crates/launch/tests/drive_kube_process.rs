//! A launch through a process that stands for kubectl, with the real clock.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

#[path = "drive_kube/case.rs"]
mod case;
#[path = "drive_kube/folder.rs"]
mod folder;
#[path = "drive_kube/world.rs"]
mod world;

use std::time::{Duration, Instant};

use expertrail_cluster::kube::Process;
use expertrail_launch::drive::kube::{KubeSystem, Options, RealClock};
use expertrail_launch::drive::{Ending, Stop, System};

use case::{Case, has};
use folder::Folder;
use world::{Bundle, Main, Shown, node, pod};

struct Never;

impl Stop for Never {
    fn cancelled(&self) -> bool {
        false
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

fn folder(binary: bool) -> Folder {
    let run = "bringup-abc123";
    let first = if binary { Main::Binary } else { Main::Runs };
    Folder::new(
        &[pod(run, 0, first), pod(run, 1, first)],
        &[pod(run, 0, Main::Ended(0, "Completed", 9)), pod(run, 1, Main::Ended(0, "Completed", 9))],
        &[node("gpu-1", 2000), node("gpu-2", 2000)],
    )
}

#[test]
fn a_launch_through_a_process() {
    let case = Case::new("[kubernetes]\nbinary = \"copy\"\n");
    let cluster = folder(true);
    let kubectl = Process::new(cluster.program());
    let options = Options { interval: Duration::from_millis(50), ..case.options() };
    let mut system = KubeSystem::new(&kubectl, &RealClock, &case.run, case.folder.path(), options);
    let mut shown = Shown::default();
    let lines = system.describe().unwrap().join("\n");
    has(
        &lines,
        &["context: script-context, the current one", "namespace: expertrail\n", "copied into each pod"],
    );
    system.ready(&mut shown).unwrap();
    system.start(&mut shown).unwrap();
    // What was applied is the file's own text, without the namespace, which was there.
    let applied = cluster.read("applied");
    has(&applied, &["kind: Job", "              echo a\n              ---\n", "# head"]);
    assert!(!applied.contains("kind: Namespace"));
    let ending = system.watch(&mut shown, &Never, Instant::now() + Duration::from_mins(2)).unwrap();
    assert_eq!(ending, Ending::Succeeded, "{:#?}", shown.0);
    assert_eq!(cluster.read("copied").len(), 1000, "the binary went through standard input");
    assert_eq!(
        shown.lines(),
        [
            "worker: node 0 of 2: starting ranks as true",
            "[rank 0] dispatch 100 us",
            "worker: node 0: all ranks passed"
        ]
    );
    let mut bundle = Bundle::default();
    system.collect(&mut bundle).unwrap();
    has(&bundle.logs["bringup-abc123-1-abcde"], &["worker: node 1: all ranks passed", "::expertrail-file"]);
    assert_eq!(bundle.states["describe.txt"], "described\n");
    system.clean(&mut shown).unwrap();
    assert_eq!(cluster.read("applied"), "");
    system.clean(&mut shown).unwrap();
    for call in cluster.read("calls").lines().filter(|call| !call.contains("config current-context")) {
        assert!(call.starts_with("--context=script-context "), "{call}");
    }
}

#[test]
fn no_kubectl() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\n");
    let kubectl = Process::new("/nowhere/kubectl");
    let mut system = KubeSystem::new(&kubectl, &RealClock, &case.run, case.folder.path(), case.options());
    let error = system.describe().unwrap_err();
    has(
        &error.to_string(),
        &["there is no program `/nowhere/kubectl`", "install kubectl", "EXPERTRAIL_KUBECTL"],
    );
    assert_eq!(error.exit_code(), 4);
}

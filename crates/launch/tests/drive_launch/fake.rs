//! A system in memory, and keys that a test presses.
#![allow(dead_code)]

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use expertrail_launch::drive::{Collect, DriveError, Ending, Event, Show, Stop, System};
use expertrail_launch::files::FileSet;
use expertrail_launch::run::{Run, Target};
use expertrail_launch::spec::Spec;

/// A part of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Ready,
    Start,
    Watch,
    Collect,
    Clean,
}

/// Ctrl-C, counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys(Rc<Cell<usize>>);

impl Keys {
    pub(crate) fn press(&self) {
        self.0.set(self.0.get() + 1);
    }
}

impl Stop for Keys {
    fn cancelled(&self) -> bool {
        self.0.get() > 0
    }
    fn hurried(&self) -> bool {
        self.0.get() > 1
    }
    fn pause(&self, _: Duration) {}
}

/// Nobody looks.
#[derive(Default)]
pub(crate) struct Silent(pub(crate) Vec<Event>);

impl Show for Silent {
    fn show(&mut self, event: Event) {
        self.0.push(event);
    }
}

/// The system.
pub(crate) struct Fake {
    pub(crate) ending: Ending,
    pub(crate) fail: Option<Phase>,
    pub(crate) press: Vec<(Phase, Keys)>,
    pub(crate) logs: Vec<(String, Vec<u8>)>,
    pub(crate) state: Vec<(String, Vec<u8>)>,
    pub(crate) files: Vec<(String, Vec<u8>)>,
    pub(crate) hosts: Vec<String>,
    pub(crate) calls: Vec<&'static str>,
    /// Another launch of the run came first.
    pub(crate) beaten: bool,
}

impl Fake {
    pub(crate) fn ending(ending: Ending) -> Self {
        let log = |name: &str| (name.to_owned(), b"a line\n".to_vec());
        Self {
            ending,
            fail: None,
            press: Vec::new(),
            logs: vec![log("a"), log("b")],
            state: Vec::new(),
            files: vec![Self::a_rank_that_ended_well()],
            hosts: vec!["gpu-1".to_owned(), "gpu-2".to_owned()],
            calls: Vec::new(),
            beaten: false,
        }
    }

    /// What the worker leaves of a rank.
    fn a_rank_that_ended_well() -> (String, Vec<u8>) {
        let text = r#"{"schema":"expertrail.exit/1","rank":0,"host":"gpu-1","code":0,"seconds":1.5,"stopped":false}"#;
        ("exit/rank-0.json".to_owned(), text.as_bytes().to_vec())
    }

    fn enter(&mut self, phase: Phase, name: &'static str) -> bool {
        self.calls.push(name);
        for (at, keys) in &self.press {
            if *at == phase {
                keys.press();
            }
        }
        self.fail == Some(phase)
    }
}

impl System for Fake {
    fn describe(&mut self) -> Result<Vec<String>, DriveError> {
        Ok(vec!["in memory".to_owned()])
    }

    fn ready(&mut self, _: &mut dyn Show) -> Result<(), DriveError> {
        if self.enter(Phase::Ready, "ready") {
            return Err(DriveError::Access("jobs.batch is forbidden".to_owned()));
        }
        Ok(())
    }

    fn start(&mut self, show: &mut dyn Show) -> Result<(), DriveError> {
        show.show(Event::Step("applying".to_owned()));
        if self.enter(Phase::Start, "start") {
            return Err(DriveError::Refused("an invalid object".to_owned()));
        }
        Ok(())
    }

    fn untouched(&self) -> bool {
        self.beaten
    }

    fn watch(&mut self, show: &mut dyn Show, stop: &dyn Stop, _: Instant) -> Result<Ending, DriveError> {
        show.show(Event::State("1 of 2 nodes at rendezvous".to_owned()));
        show.show(Event::Line("a line".to_owned()));
        if self.enter(Phase::Watch, "watch") {
            return Err(DriveError::System("the connection was cut".to_owned()));
        }
        if stop.cancelled() {
            return Ok(Ending::Interrupted);
        }
        Ok(self.ending.clone())
    }

    fn nodes(&mut self) -> Vec<String> {
        self.hosts.clone()
    }

    fn collect(&mut self, to: &mut dyn Collect) -> Result<(), DriveError> {
        for (name, log) in self.logs.iter().take(1) {
            // The first is there before anything happens.
            if self.press.iter().all(|(at, _)| *at != Phase::Collect) {
                to.log(name, log)?;
            }
        }
        if self.enter(Phase::Collect, "collect") {
            return Err(DriveError::System("the disk is full".to_owned()));
        }
        for (name, log) in &self.logs {
            to.log(name, log)?;
        }
        for (name, text) in &self.state {
            to.state(name, text)?;
        }
        for (name, bytes) in &self.files {
            to.file(name, bytes)?;
        }
        Ok(())
    }

    fn clean(&mut self, _: &mut dyn Show) -> Result<(), DriveError> {
        if self.enter(Phase::Clean, "clean") {
            return Err(DriveError::System("job a is left: kubectl delete job a".to_owned()));
        }
        Ok(())
    }
}

/// A rendered directory of a command on two nodes.
pub(crate) fn rendered() -> (tempfile::TempDir, PathBuf) {
    rendered_for(Target::Mpirun)
}

/// The same for another system.
pub(crate) fn rendered_for(target: Target) -> (tempfile::TempDir, PathBuf) {
    rendered_of(
        "name = \"a\"\nengine = \"command\"\ncommand = [\"true\"]\npreflight = \"off\"\ngpus_per_node = 2\n[hosts]\nnames = [\"gpu-1\", \"gpu-2\"]\n",
        target,
    )
}

/// A rendered directory of any description, for mpirun.
pub(crate) fn rendered_with(text: &str) -> (tempfile::TempDir, PathBuf) {
    rendered_of(text, Target::Mpirun)
}

fn rendered_of(text: &str, target: Target) -> (tempfile::TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("run");
    let spec = Spec::parse("run.toml", text, &[]).unwrap();
    let run = Run::resolve(&spec, target, None, None).unwrap();
    let mut files = FileSet::default();
    files.text("run.json", run.to_json().unwrap());
    files.text("run.toml", text);
    files.text("manifest.yaml", "kind: Job\n");
    files.write(&folder).unwrap();
    (root, folder)
}

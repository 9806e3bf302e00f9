//! A machine in a folder: its root, the scripts in `/setup`, and stand-ins for commands in `/stand-ins`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use expertrail_launch::render::host_setup::{Options, render};
use tempfile::TempDir;

use crate::scripts::Done;

/// How scripts run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a chroot, as on a machine.
    Chroot,
    /// On this machine with `ROOT` in front of every path, and commands from the stand-ins.
    Prefix,
}

/// Programs of a small system: what the scripts may take for granted.
const PROGRAMS: [&str; 34] = [
    "awk", "basename", "bash", "cat", "chmod", "cksum", "cut", "date", "dirname", "echo", "env", "find",
    "grep", "head", "id", "ln", "ls", "mkdir", "mv", "printf", "readlink", "rm", "sed", "sh", "sleep",
    "sort", "tail", "touch", "tr", "true", "uname", "wc", "xargs", "mknod",
];

pub(crate) struct Machine {
    root: TempDir,
    place: Place,
    variables: Vec<(String, String)>,
}

/// Runs `test` on a machine of each kind that can be had.
pub(crate) fn each(test: impl Fn(Machine)) {
    test(Machine::new(Place::Prefix));
    if rustix::process::geteuid().is_root() {
        test(Machine::new(Place::Chroot));
    } else {
        println!("not run: scripts in a chroot (it takes root)");
    }
}

impl Machine {
    pub(crate) fn new(place: Place) -> Self {
        let machine = Self { root: TempDir::new().unwrap(), place, variables: Vec::new() };
        for folder in ["setup", "stand-ins", "stand-in-state", "etc", "proc", "dev", "usr/bin", "tmp"] {
            fs::create_dir_all(machine.at(folder)).unwrap();
        }
        let mut files = render(&Options::default());
        files.text("run.json", "{}\n");
        files.write(&machine.at("setup")).unwrap();
        if place == Place::Chroot {
            for program in PROGRAMS {
                machine.install(program);
            }
            symlink("usr/bin", machine.at("bin")).unwrap();
            Done::of(Command::new("mknod").arg(machine.at("dev/null")).args(["c", "1", "3"])).ended(0);
            fs::set_permissions(machine.at("dev/null"), fs::Permissions::from_mode(0o666)).unwrap();
        }
        machine
    }

    /// Copies a program of this machine with the libraries that it needs.
    fn install(&self, program: &str) {
        let found = ["/usr/bin", "/bin", "/usr/sbin"]
            .iter()
            .map(|folder| Path::new(folder).join(program))
            .find(|path| path.exists());
        let found = found.unwrap_or_else(|| panic!("no {program} on this machine"));
        fs::copy(&found, self.at("usr/bin").join(program)).unwrap();
        let libraries = Command::new("ldd").arg(&found).output().unwrap();
        for word in
            String::from_utf8_lossy(&libraries.stdout).split_whitespace().filter(|word| word.starts_with('/'))
        {
            let target = self.at(word.trim_start_matches('/'));
            if !target.exists() {
                fs::create_dir_all(target.parent().unwrap()).unwrap();
                fs::copy(word, target).unwrap();
            }
        }
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// A path of the machine, as this one sees it.
    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    pub(crate) fn remove(&self, path: &str) {
        fs::remove_file(self.at(path)).unwrap();
    }

    /// A command in place of the machine's own. `$STATE_DIR` is a folder for what it remembers; `$ROOT` is in front of paths.
    pub(crate) fn command(&self, name: &str, text: &str) {
        let path = self.at("stand-ins").join(name);
        let shell = if self.place == Place::Chroot { "/usr/bin/bash" } else { "/bin/bash" };
        fs::write(&path, format!("#!{shell}\nprintf '%s\\n' \"{name} $*\" >>\"$STATE_DIR/calls\"\n{text}\n"))
            .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Commands that were called, each a line.
    pub(crate) fn calls(&self) -> Vec<String> {
        fs::read_to_string(self.at("stand-in-state/calls"))
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    /// A character device at `path`: the machine's own null device.
    pub(crate) fn device(&self, path: &str) {
        match self.place {
            Place::Chroot => {
                Done::of(Command::new("mknod").arg(self.at(path)).args(["c", "1", "3"])).ended(0);
            }
            Place::Prefix => symlink("/dev/null", self.at(path)).unwrap(),
        }
    }

    /// Runs a script of the set-up; `words` are its arguments.
    pub(crate) fn run(&self, script: &str, words: &str) -> Done {
        let mut command;
        match self.place {
            Place::Chroot => {
                command = Command::new("/usr/sbin/chroot");
                command.arg(self.root.path()).arg("/usr/bin/bash").arg(format!("/setup/{script}"));
                command.env_clear().env("PATH", "/stand-ins:/usr/bin").env("STATE_DIR", "/stand-in-state");
            }
            Place::Prefix => {
                command = Command::new("/bin/bash");
                command.arg(self.at("setup").join(script)).env_clear();
                // The stand-ins first; of this machine's own only what the small system has, too.
                command.env("PATH", format!("{}:{}", self.at("stand-ins").display(), self.own().display()));
                command
                    .env("STATE_DIR", self.at("stand-in-state"))
                    .env("ROOT", self.root.path())
                    .env("STAND_INS", "yes");
            }
        }
        command.args(words.split_whitespace());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        Done::of(&mut command)
    }

    /// A folder with links to this machine's programs.
    fn own(&self) -> PathBuf {
        let folder = self.at("own");
        if !folder.exists() {
            fs::create_dir_all(&folder).unwrap();
            for program in PROGRAMS {
                let found = ["/usr/bin", "/bin"]
                    .iter()
                    .map(|folder| Path::new(folder).join(program))
                    .find(|path| path.exists());
                symlink(found.unwrap(), folder.join(program)).unwrap();
            }
        }
        folder
    }

    /// `apply` must change something the first time and nothing the second: no file, and no command of `changing`.
    #[track_caller]
    pub(crate) fn applies_once(&self, script: &str, changing: &[&str]) {
        self.run(script, "apply").ended(0).says(": applied");
        let (files, calls) = (self.everything(), self.calls());
        self.run(script, "apply").ended(0).says(": unchanged: nothing to do");
        assert_eq!(self.everything(), files, "{script} apply, twice");
        let later = self.calls();
        let later = &later[calls.len()..];
        assert!(!later.iter().any(|call| changing.iter().any(|word| call.starts_with(word))), "{later:?}");
    }

    /// Files of the machine, without what stand-ins remember.
    fn everything(&self) -> Vec<(PathBuf, String)> {
        let all = crate::scripts::everything(&self.at("etc"))
            .into_iter()
            .chain(crate::scripts::everything(&self.at("tmp")));
        let state = self.at("var/lib");
        let state = if state.exists() {
            crate::scripts::everything(&state)
        } else {
            std::collections::BTreeMap::new()
        };
        all.chain(state).collect()
    }
}

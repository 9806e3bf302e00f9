//! What the tests of rendered scripts share.
#![allow(dead_code)] // each test uses a part of it

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use expertrail_launch::files::FileSet;

/// What a script did.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Done {
    /// Runs `command` to its end.
    pub(crate) fn of(command: &mut Command) -> Self {
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            code: output.status.code().unwrap_or(-1),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }

    /// The exit code must be this.
    #[track_caller]
    pub(crate) fn ended(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// Both streams must have it between them.
    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        let whole = self.out.clone() + &self.err;
        assert!(whole.contains(text), "no `{text}` in\nstdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// Neither stream may have it.
    #[track_caller]
    pub(crate) fn lacks(self, text: &str) -> Self {
        let whole = self.out.clone() + &self.err;
        assert!(!whole.contains(text), "`{text}` in\nstdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }
}

/// `text` must be the golden file `folder/name`. `EXPERTRAIL_WRITE_GOLDEN=1` writes it anew.
#[track_caller]
pub(crate) fn golden(folder: &str, name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(folder).join(name);
    if std::env::var_os("EXPERTRAIL_WRITE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(
        text,
        kept,
        "{}: EXPERTRAIL_WRITE_GOLDEN=1 writes it anew; read the difference first",
        path.display()
    );
}

/// The text of a file of the set.
#[track_caller]
pub(crate) fn text<'a>(files: &'a FileSet, path: &str) -> &'a str {
    &files.get(path).unwrap_or_else(|| panic!("no {path}")).text
}

/// All files of a folder and below with their texts.
pub(crate) fn everything(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut todo = vec![folder.to_owned()];
    while let Some(folder) = todo.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let kind = path.symlink_metadata().unwrap().file_type();
            if kind.is_dir() {
                todo.push(path);
            } else if kind.is_symlink() {
                all.insert(path.clone(), format!("-> {}", fs::read_link(&path).unwrap().display()));
            } else if kind.is_file() {
                all.insert(path.clone(), String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned());
            }
        }
    }
    all
}

/// bash must be able to read every script of the folder, and shellcheck must have nothing to say, where there is one
/// (`EXPERTRAIL_SHELLCHECK`, which `scripts/shellcheck` prints).
pub(crate) fn shellcheck(folder: &Path) {
    let mut scripts: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    scripts.retain(|path| path.extension().is_some_and(|ending| ending == "sh"));
    scripts.sort();
    assert!(scripts.len() >= 3, "{scripts:?}");
    for script in &scripts {
        Done::of(Command::new("bash").arg("-n").arg(script)).ended(0);
    }
    let Some(program) = std::env::var_os("EXPERTRAIL_SHELLCHECK") else {
        println!("not run: shellcheck (EXPERTRAIL_SHELLCHECK is not set; scripts/shellcheck prints it)");
        return;
    };
    let done = Done::of(Command::new(program).args(["-x", "-P", "SCRIPTDIR"]).args(&scripts));
    done.ended(0);
}

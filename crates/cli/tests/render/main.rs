//! `expertrail render`: what it writes, what it refuses, and its scripts for plain hosts with stand-ins for `torchrun` and `ssh`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod command;
mod hosts;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The binary under test.
fn binary() -> PathBuf {
    assert_cmd::cargo::cargo_bin!("expertrail").to_owned()
}

/// Runs `expertrail render` in `folder`.
fn render<I: AsRef<OsStr>>(folder: &Path, args: impl IntoIterator<Item = I>) -> Output {
    Command::new(binary()).arg("render").args(args).current_dir(folder).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Writes a program.
fn program(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

//! Rendered images, taken apart.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use expertrail_launch::files::FileSet;
use expertrail_launch::render::image::{Image, Kind, render};

pub(crate) fn folder_of(kind: Kind, architectures: &[&str]) -> FileSet {
    let architectures = architectures.iter().map(|&one| one.to_owned()).collect();
    render(&Image { architectures, ..Image::new(kind) }).unwrap()
}

pub(crate) fn rendered(kind: Kind, architectures: &[&str]) -> (String, String) {
    let files = folder_of(kind, architectures);
    (files.get("Containerfile").unwrap().text.clone(), files.get("build.sh").unwrap().text.clone())
}

pub(crate) fn readme(kind: Kind) -> String {
    folder_of(kind, &[]).get("README.txt").unwrap().text.clone()
}

/// The shell text of the `RUN` that has `part` in it.
pub(crate) fn step(text: &str, part: &str) -> String {
    let all = instructions(text).into_iter();
    let mut steps = all.filter(|(word, rest)| word == "RUN" && rest.contains(part)).map(|(_, rest)| rest);
    steps.next().unwrap_or_else(|| panic!("no RUN with {part}"))
}

/// `step` as the image's `SHELL` runs it, with `folder` first on the search path.
pub(crate) fn shell(step: &str, folder: &Path) -> Command {
    let mut command = Command::new("bash");
    command.args(["-o", "pipefail", "-c", step]).current_dir(folder);
    command.env("PATH", format!("{}:{}", folder.display(), std::env::var("PATH").unwrap()));
    command
}

/// Instructions with continued lines joined, comments left out.
pub(crate) fn instructions(text: &str) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    let mut open = false;
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#') && !line.trim().is_empty()) {
        let (part, more) =
            line.trim().strip_suffix('\\').map_or((line.trim(), false), |part| (part.trim(), true));
        if open {
            let last = &mut all.last_mut().unwrap().1;
            last.push(' ');
            last.push_str(part);
        } else {
            let (word, rest) = part.split_once(' ').unwrap_or((part, ""));
            all.push((word.to_owned(), rest.to_owned()));
        }
        open = more;
    }
    all
}

/// Build arguments with their defaults.
pub(crate) fn arguments(text: &str) -> BTreeMap<String, String> {
    let args = instructions(text).into_iter().filter(|(word, _)| word == "ARG");
    args.map(|(_, rest)| {
        let (name, value) = rest.split_once('=').unwrap_or((&rest, ""));
        (name.to_owned(), value.trim_matches('"').to_owned())
    })
    .collect()
}

pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

pub(crate) fn program(folder: &Path, name: &str, body: &str) {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{body}")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

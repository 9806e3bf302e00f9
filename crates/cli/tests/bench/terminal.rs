//! What shows on a terminal, and what does not show elsewhere.

use std::process::Command;

use crate::common::{Run, bench, finish, run};

const SHAPE: &str = "--ranks 2 --tokens 8 --hidden 8 --iters 3";

#[test]
fn nothing_but_text_goes_into_a_pipe() {
    let args: Vec<&str> = SHAPE.split(' ').collect();
    let run = run(&args).exits(0);
    // Neither colours nor a bar nor the marks that ranks send for one.
    assert!(!run.out.chars().any(|c| c.is_control() && c != '\n'), "{:?}", run.out);
    assert_eq!(run.err, "");
}

#[test]
fn a_failure_in_a_pipe_is_plain_text_too() {
    let mut command = bench(&SHAPE.split(' ').collect::<Vec<_>>());
    command.args(["--shm-limit", "1MiB"]);
    let run = finish(command).exits(2);
    assert!(!run.err.chars().any(|c| c.is_control() && c != '\n'), "{:?}", run.err);
}

/// Runs on a terminal of 120 columns, or gives nothing where there is no `script` to make one.
fn on_a_terminal(no_color: Option<&str>) -> Option<Run> {
    let inside = format!("stty cols 120; exec {} bench {SHAPE}", env!("CARGO_BIN_EXE_expertrail"));
    let available = Command::new("script").arg("--version").output().is_ok_and(|o| o.status.success());
    if !available {
        eprintln!("skipped: no `script` from util-linux here");
        return None;
    }
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &inside, "/dev/null"]).env_remove("NO_COLOR");
    command.env("TERM", "xterm");
    if let Some(value) = no_color {
        command.env("NO_COLOR", value);
    }
    Some(finish(command).exits(0))
}

#[test]
fn a_terminal_gets_a_bar_and_a_green_verdict() {
    let Some(run) = on_a_terminal(None) else { return };
    assert!(run.out.contains("\x1b[1;32mPASS\x1b[0m"), "{:?}", run.out);
    assert!(run.out.contains("iterations"), "{:?}", run.out);
    // The ranks' marks were for the launcher.
    assert!(!run.out.contains('\x1e') && !run.out.contains("progress"), "{:?}", run.out);
}

#[test]
fn no_color_is_honoured() {
    let Some(run) = on_a_terminal(Some("1")) else { return };
    assert!(run.out.contains("verdict: PASS"), "{:?}", run.out);
    // A bar may move the cursor; nothing may be coloured.
    let coloured = run.out.split("\x1b[").skip(1).any(|rest| {
        let code: String = rest.chars().take_while(|c| !c.is_ascii_alphabetic()).collect();
        rest[code.len()..].starts_with('m')
    });
    assert!(!coloured, "{:?}", run.out);
}

//! Arguments, files, refusals.

use std::fs;

use super::{render, text};

const RUN: &str = "# by hand\nname = \"bringup\"\nnodes = 2\nengine = \"command\"\ncommand = [\"true\"]\n";

#[test]
fn files_of_a_run_are_written_and_the_next_step_is_said() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.toml"), RUN).unwrap();
    let out = render(folder.path(), ["slurm", "run.toml", "-o", "out"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let said = text(&out.stdout);
    for file in ["run.json", "run.toml", "run.sbatch", "README.txt"] {
        assert!(folder.path().join("out").join(file).is_file(), "{file}");
        assert!(said.contains(file), "{said}");
    }
    assert!(said.contains("next: expertrail launch out"), "{said}");
    // Without options the description is kept as it was written.
    assert_eq!(fs::read_to_string(folder.path().join("out/run.toml")).unwrap(), RUN);
    // The same again gives the same, byte for byte; ./run.toml is the default.
    let first = fs::read(folder.path().join("out/run.sbatch")).unwrap();
    assert_eq!(render(folder.path(), ["slurm", "-o", "out"]).status.code(), Some(0));
    assert_eq!(fs::read(folder.path().join("out/run.sbatch")).unwrap(), first);
    // Another system's files do not come beside them.
    let out = render(folder.path(), ["ssh", "-o", "out"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("rendered for slurm"), "{}", text(&out.stderr));
}

#[test]
fn options_alone_describe_a_run_and_go_before_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let args = [
        "slurm",
        "--name",
        "flags",
        "--profile",
        "crusoe-h200",
        "--nodes",
        "3",
        "--gpus-per-node",
        "4",
        "-o",
        "out",
    ];
    let out = render(folder.path(), args);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let script = fs::read_to_string(folder.path().join("out/run.sbatch")).unwrap();
    assert!(
        script.contains("#SBATCH --nodes=3\n") && script.contains("#SBATCH --ntasks-per-node=4\n"),
        "{script}"
    );
    // What is kept gives the same run again.
    let kept = folder.path().join("out/run.toml");
    let again = render(folder.path(), ["slurm".as_ref(), kept.as_os_str(), "-o".as_ref(), "again".as_ref()]);
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));
    assert_eq!(fs::read_to_string(folder.path().join("again/run.sbatch")).unwrap(), script);

    fs::write(folder.path().join("run.toml"), RUN).unwrap();
    let out = render(
        folder.path(),
        ["slurm", "--set", "nodes=5", "--set", "env.NCCL_DEBUG=INFO", "--run-id", "mine", "-o", "-"],
    );
    let said = text(&out.stdout);
    assert!(said.starts_with("#!/usr/bin/env bash\n"), "{said}");
    for line in ["#SBATCH --nodes=5", "#SBATCH --job-name=mine", "export NCCL_DEBUG=INFO # [env] of run.toml"]
    {
        assert!(said.lines().any(|found| found == line), "{line}:\n{said}");
    }
}

#[test]
fn bad_input_ends_with_two_and_a_foreign_folder_stays() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.toml"), "name = \"a\"\nnods = 2\n").unwrap();
    for (args, code, words) in [
        (&["slurm", "-o", "x"][..], 2, &["run.toml:2", "`nods`", "`nodes`"][..]),
        (&["slurm", "absent.toml", "-o", "x"], 4, &["cannot read absent.toml"]),
        (&["slurm", "--set", "nods=2", "-o", "x"], 2, &["`nods`"]),
        (&["slum", "-o", "x"], 2, &["slurm"]),
    ] {
        let out = render(folder.path(), args);
        assert_eq!(out.status.code(), Some(code), "{args:?}: {}", text(&out.stderr));
        for word in words {
            assert!(text(&out.stderr).contains(word), "{args:?}: no {word} in {}", text(&out.stderr));
        }
        assert!(!folder.path().join("x").exists(), "{args:?}");
    }
    fs::write(folder.path().join("run.toml"), RUN).unwrap();
    let out = render(folder.path(), ["slurm", "--set", "nodes", "-o", "x"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("KEY=VALUE"), "{}", text(&out.stderr));
    fs::create_dir(folder.path().join("mine")).unwrap();
    fs::write(folder.path().join("mine/thesis.txt"), "x").unwrap();
    let out = render(folder.path(), ["slurm", "-o", "mine"]);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("no .rendered"), "{}", text(&out.stderr));
    let none = render(tempfile::tempdir().unwrap().path(), ["slurm", "-o", "x"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(text(&none.stderr).contains("no description"), "{}", text(&none.stderr));
}

#[test]
fn all_renders_what_fits_and_says_why_the_rest_does_not() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.toml"), format!("{RUN}contract = \"nodes\"\n")).unwrap();
    let out = render(folder.path(), ["all", "-o", "all"]);
    let said = text(&out.stdout);
    assert_eq!(out.status.code(), Some(0), "{said}{}", text(&out.stderr));
    for target in ["slurm", "mpirun", "ssh"] {
        assert!(folder.path().join("all").join(target).join("run.json").is_file(), "{said}");
    }
    for (target, reason) in [("k8s-job", "image is missing"), ("torchrun", "counts nodes")] {
        assert!(!folder.path().join("all").join(target).exists());
        let line = said.lines().find(|line| line.starts_with(target)).unwrap();
        assert!(line.contains("not rendered") && line.contains(reason), "{line}");
    }
}

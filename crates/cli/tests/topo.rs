//! `expertrail topo` as it is typed.

#![allow(
    clippy::format_collect,
    clippy::format_push_string,
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used
)]

#[path = "../../cluster/tests/tree/mod.rs"]
mod tree;

use std::path::Path;
use std::process::Command;

/// Exit code, standard output, standard error.
fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_expertrail")).arg("topo").args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// The same on a tree of the fixtures.
fn on(name: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let place = tree::unpack(name);
    let mut all = vec!["--root", place.path().to_str().unwrap()];
    all.extend(arguments);
    run(&all)
}

#[test]
fn a_mapping_that_stands_exits_with_0() {
    let (code, out, err) = on("b200-crusoe-vm", &[]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    for words in [
        "cmk-b200-a: 8 GPUs, 8 rails",
        "by order, 4 tied",
        "NVSHMEM_HCA_LIST=mlx5_12:1",
        "profile crusoe-b200",
    ] {
        assert!(out.contains(words), "{words} is missing in\n{out}");
    }
}

#[test]
fn a_rail_that_is_down_exits_with_1_and_names_the_gpu() {
    let (code, out, _) = on("rail-down", &[]);
    assert_eq!(code, Some(1));
    assert!(out.contains("FAIL    P102 ibp5") && out.contains("GPU 5"), "{out}");
    // Lines for a shell stay lines for a shell.
    let (code, out, err) = on("rail-down", &["--emit", "env"]);
    assert_eq!(code, Some(1));
    assert!(!out.contains("P102") && err.contains("P102 ibp5"), "{out}\n{err}");
}

#[test]
fn rails_that_cannot_be_told_exit_with_3_and_without_pins() {
    let (code, out, _) = on("roce-unclear", &[]);
    assert_eq!(code, Some(3));
    assert!(out.contains("INCONCLUSIVE") && out.contains("--hca LIST"), "{out}");
    assert!(!out.contains("NVSHMEM_HCA_LIST"), "{out}");
    for emit in ["env", "nccl-xml"] {
        let (code, out, err) = on("roce-unclear", &["--emit", emit]);
        assert_eq!((code, out.is_empty()), (Some(3), emit == "nccl-xml"), "{emit}");
        assert!(err.contains("INCONCLUSIVE") && err.contains("--hca LIST"), "{err}");
    }
    // What is given to `eval` fails there, and so does what a shell sources.
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("pins.sh");
    let written = on("roce-unclear", &["--emit", "env", "-o", file.to_str().unwrap()]);
    assert_eq!((written.0, written.1.as_str()), (Some(3), ""));
    for script in [on("roce-unclear", &["--emit", "env"]).1, std::fs::read_to_string(&file).unwrap()] {
        let shell = Command::new("sh").args(["-c", "eval \"$1\"", "sh", &script]).output().unwrap();
        assert_eq!(shell.status.code(), Some(1), "{script}");
        let told = String::from_utf8(shell.stderr).unwrap();
        assert!(told.contains("INCONCLUSIVE"), "{told}");
    }
    // The document says it too.
    let (code, out, _) = on("roce-unclear", &["--emit", "json"]);
    assert_eq!(code, Some(3));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["schema"], "expertrail.topology/1");
    assert!(json["inconclusive"].as_str().unwrap().contains("10 devices"));
    assert_eq!(json["gpus"][0]["rails"], serde_json::json!([]));
    for tree in ["no-nics", "no-gpus"] {
        let (code, out, _) = on(tree, &[]);
        assert_eq!(code, Some(3), "{tree}");
        assert!(out.contains("INCONCLUSIVE"), "{out}");
    }
}

#[test]
fn named_rails_settle_it() {
    let list = "=mlx5_0:1,mlx5_1:1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7";
    let (code, out, err) = on("roce-unclear", &["--hca", list, "--emit", "env"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.contains("7) export NVSHMEM_HCA_LIST=mlx5_7:1"), "{out}");
    assert!(!out.contains("mlx5_8"), "{out}");
    let (code, _, err) = on("roce-unclear", &["--hca", "mlx5_0,mlx5_77", "--emit", "env"]);
    assert_eq!(code, Some(3));
    assert!(err.contains("no RDMA device has the name mlx5_77"), "{err}");
}

#[test]
fn wrong_arguments_exit_with_2() {
    let cases: [(&[&str], &str); 6] = [
        (&["--hca", "^mlx5_0"], "^"),
        (&["--hca", " , "], "empty"),
        (&["--hca", "mlx5_0:one"], "a port is a number"),
        (&["--hca", "mlx5_0:2"], "port 2 of mlx5_0"),
        (&["--profile", "no-such"], "crusoe-h200"),
        (&["--emit", "yaml"], "nccl-xml"),
    ];
    for (arguments, words) in cases {
        let (code, out, err) = on("roce-unclear", arguments);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments:?}: {err}");
        assert!(err.contains(words), "{words} is missing in {err}");
    }
    assert_eq!(run(&["--root", "/no/such/folder"]).0, Some(2));
    assert_eq!(run(&["--facts", "/no/such/file"]).0, Some(4));
}

#[test]
fn a_profile_is_checked_against_and_decides_nothing() {
    let (code, out, _) = on("nebius-b200", &["--profile", "crusoe-b200"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("WARN    P105 crusoe-b200"), "{out}");
    assert!(out.contains("rank 0      NVSHMEM_HCA_LIST=mlx5_4:1"), "{out}");
    let (_, out, _) = on("nebius-b200", &["--profile", "none"]);
    assert!(!out.contains("profile"), "{out}");
    // A file of the user's.
    let text = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../cluster/data/profiles/nebius-b200.json"),
    );
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("mine.json");
    std::fs::write(&file, text.unwrap().replace("\"id\": \"nebius-b200\"", "\"id\": \"mine\"")).unwrap();
    let (code, out, _) = on("nebius-b200", &["--profile", file.to_str().unwrap()]);
    assert_eq!(code, Some(0));
    assert!(out.contains("profile mine (by --profile)") && !out.contains("P105"), "{out}");
    std::fs::write(&file, "{\"id\": 1}").unwrap();
    assert_eq!(on("nebius-b200", &["--profile", file.to_str().unwrap()]).0, Some(2));
}

#[test]
fn written_to_a_file_it_is_the_same() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("topo.xml");
    let (code, out, _) = on("renamed-rails", &["--emit", "nccl-xml", "-o", file.to_str().unwrap()]);
    assert_eq!((code, out.as_str()), (Some(0), ""));
    let printed = on("renamed-rails", &["--emit", "nccl-xml"]).1;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), printed);
    assert!(printed.starts_with("<system version=\"1\">"));
    assert_eq!(on("renamed-rails", &["-o", "/no/such/folder/x"]).0, Some(4));
}

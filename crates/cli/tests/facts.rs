//! `expertrail facts` as its user runs it: documents, errors, and trees that try to break it.

#![allow(
    clippy::format_collect,
    clippy::format_push_string,
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used
)]

#[path = "../../cluster/tests/tree/mod.rs"]
mod tree;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use assert_cmd::Command;
use serde_json::Value;

/// Runs `expertrail` with `args`; no variable of this process reaches it.
fn expertrail(args: &[&str]) -> Output {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("expertrail"));
    command.env_clear().args(args).timeout(Duration::from_mins(1)).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The document of the tree at `place`, which must end with exit code 0 and without a word of error.
#[track_caller]
fn document(place: &Path) -> Value {
    let output = expertrail(&["facts", "--root", place.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["schema"], "expertrail.facts/1");
    json
}

/// What is wrong with one file must cost no other fact: all parts of the documents are the same but `but`, the time and the place.
#[track_caller]
fn rest_is_unchanged(before: &Value, after: &Value, but: &[&str]) {
    for (key, value) in before.as_object().unwrap() {
        if !but.contains(&key.as_str()) && !["captured_at", "root"].contains(&key.as_str()) {
            assert_eq!(after[key], *value, "{key}");
        }
    }
}

/// Every `source` in the document.
fn sources(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            found.extend(map.get("source").and_then(Value::as_str).map(str::to_owned));
            map.values().for_each(|value| sources(value, found));
        }
        Value::Array(all) => all.iter().for_each(|value| sources(value, found)),
        _ => {}
    }
}

#[test]
fn a_tree_to_standard_output_and_to_a_file() {
    let place = tree::unpack("healthy");
    let root = place.path().to_str().unwrap();
    let json = document(place.path());
    assert_eq!(json["tool"], env!("CARGO_PKG_VERSION"));
    assert_eq!(json["root"], place.path().canonicalize().unwrap().to_str().unwrap());
    assert_eq!(json["node"]["value"], "h100-node-17");
    assert_eq!(json["node"]["source"], "/proc/sys/kernel/hostname");
    assert_eq!(json["driver"]["params"]["value"]["RegistryDwords"], "PeerMappingOverride=1;");
    assert_eq!(json["driver"]["params"]["source"], "/proc/driver/nvidia/params");
    assert_eq!(json["driver"]["params"]["scope"], "host-kernel");
    assert_eq!(json["rdma"]["value"].as_array().unwrap().len(), 9);
    // Paths are those of the node, wherever its tree lies here.
    let mut all = Vec::new();
    sources(&json, &mut all);
    assert!(all.len() > 40, "{all:?}");
    assert!(all.iter().all(|source| !source.contains(root)), "{all:?}");

    let file = place.path().join("facts.json");
    fs::write(&file, "an old one").unwrap();
    let output = expertrail(&["facts", "--root", root, "-o", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(output.stdout.is_empty());
    let words = "facts.json: h100-node-17: 8 GPUs, 9 RDMA devices, NVIDIA driver 580.105.08";
    assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    let written: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    rest_is_unchanged(&json, &written, &[]);
    // Nothing else is left beside it.
    let names = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.filter(|name| name.to_string_lossy().contains("json")).count(), 1);
}

#[test]
fn what_is_not_there_and_what_cannot_be_understood_are_facts() {
    let place = tree::unpack("healthy");
    let json = document(place.path());
    // Nothing of systemd is in the tree; nobody can say what it limits.
    assert_eq!(json["limits"]["configured"]["absent"], true);
    assert_eq!(json["driver"]["efa_version"]["absent"], true);
    assert_eq!(json["driver"]["efa_version"]["source"], "/sys/module/efa/version");
    fs::write(place.path().join("proc/driver/nvidia/params"), "nothing of that form\n").unwrap();
    let after = document(place.path());
    assert_eq!(
        after["driver"]["params"],
        serde_json::json!({
            "unreadable": "no line has the form `Key: value`",
            "source": "/proc/driver/nvidia/params",
            "scope": "host-kernel",
        })
    );
    rest_is_unchanged(&json, &after, &["driver"]);
}

#[test]
fn arguments_that_cannot_be_served() {
    let output = expertrail(&["facts", "--root", "/no/such/folder"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--root /no/such/folder: no such folder"));
    assert!(output.stdout.is_empty());
    // A file is no tree.
    let place = tree::unpack("healthy");
    let file = place.path().join("kmsg.txt");
    let output = expertrail(&["facts", "--root", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    // A document that cannot be written: in a folder that does not exist, and in the place of a folder.
    let root = place.path().to_str().unwrap();
    let folder = place.path().join("etc");
    for wrong in ["/no/such/folder/facts.json", folder.to_str().unwrap()] {
        let output = expertrail(&["facts", "--root", root, "-o", wrong]);
        assert_eq!(output.status.code(), Some(4), "{wrong}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(wrong), "{}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
    // An empty folder has nothing that could be read; its document says so of each fact.
    let empty = tempfile::tempdir().unwrap();
    let output = expertrail(&["facts", "--root", empty.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(4));
    assert!(text(&output.stderr).contains("neither /proc nor /sys"));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["kernel"]["release"]["absent"], true);
}

#[test]
fn a_document_is_checked_as_its_tree_is() {
    let fixture = tree::folder().join("../fixtures/h200-vm-x2").canonicalize().unwrap();
    let healthy = tree::unpack("healthy");
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("facts.json");
    let file = file.to_str().unwrap();
    for root in [fixture.to_str().unwrap(), healthy.path().to_str().unwrap()] {
        assert_eq!(expertrail(&["facts", "--root", root, "-o", file]).status.code(), Some(0));
        for target in ["expertrail", "deepep-ibgda", "deepep-efa", "nccl"] {
            let of_tree = expertrail(&["check", "--root", root, "--for", target, "--all"]);
            let of_file = expertrail(&["check", "--facts", file, "--for", target, "--all"]);
            assert_eq!(text(&of_file.stdout), text(&of_tree.stdout));
            assert!(of_tree.stdout.len() > 1000, "{}", text(&of_tree.stderr));
            assert_eq!(of_file.status.code(), of_tree.status.code());
        }
    }
}

#[test]
fn a_line_of_ten_megabytes() {
    let place = tree::unpack("healthy");
    let before = document(place.path());
    let line = format!("{} 1 0 - Live 0x0\n", "m".repeat(10_000_000));
    fs::write(place.path().join("proc/modules"), line).unwrap();
    let start = Instant::now();
    let after = document(place.path());
    // A part of a second; the rest is for machines that do other things too.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let loaded = &after["modules"]["loaded"];
    assert_eq!(loaded["source"], "/proc/modules");
    // Either it was read or it was too much, and that is said.
    assert!(loaded["value"].is_array() != loaded["unreadable"].is_string(), "{}", loaded["unreadable"]);
    rest_is_unchanged(&before, &after, &["modules"]);
}

#[test]
fn links_that_lead_to_themselves() {
    let place = tree::unpack("healthy");
    let before = document(place.path());
    let at = |path: &str| place.path().join(path);
    fs::remove_file(at("proc/modules")).unwrap();
    symlink("modules", at("proc/modules")).unwrap();
    fs::remove_file(at("etc/modprobe.d/nvidia.conf")).unwrap();
    symlink("b.conf", at("etc/modprobe.d/a.conf")).unwrap();
    symlink("a.conf", at("etc/modprobe.d/b.conf")).unwrap();
    symlink(".", at("sys/devices/again")).unwrap();
    symlink("../..", at("sys/bus/pci/devices/0000:ff:00.0")).unwrap();
    symlink("mlx5_99", at("sys/class/infiniband/mlx5_99")).unwrap();
    let after = document(place.path());
    let reason = &after["modules"]["loaded"]["unreadable"];
    assert_eq!(reason, "too many links");
    assert!(after["driver"]["configured"]["unreadable"].is_string(), "{}", after["driver"]["configured"]);
    // The other devices are there as before.
    let names = |json: &Value| -> Vec<String> {
        let all = json["rdma"]["value"].as_array().unwrap().iter();
        all.map(|device| device["name"].as_str().unwrap().to_owned())
            .filter(|name| name != "mlx5_99")
            .collect()
    };
    assert_eq!(names(&after), names(&before));
    rest_is_unchanged(&before, &after, &["modules", "driver", "rdma"]);
}

#[test]
fn bytes_that_are_no_text() {
    let place = tree::unpack("healthy");
    let before = document(place.path());
    fs::write(place.path().join("proc/sys/kernel/osrelease"), b"5.15\xff\xfe\x00-x\n").unwrap();
    fs::write(place.path().join("proc/driver/nvidia/params"), b"Enable\xc3: \xff\nEnableMSI: 1\n").unwrap();
    let after = document(place.path());
    assert_eq!(after["kernel"]["release"]["value"], "5.15\u{fffd}\u{fffd}\0-x");
    assert_eq!(after["driver"]["params"]["value"]["EnableMSI"], "1");
    rest_is_unchanged(&before, &after, &["kernel", "driver"]);
}

#[test]
fn states_and_nodes_that_nobody_knows() {
    let place = tree::unpack("healthy");
    let nic = "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0";
    fs::write(place.path().join(nic).join("infiniband/mlx5_0/ports/1/state"), "9: FOO\n").unwrap();
    fs::write(place.path().join(nic).join("numa_node"), "-1\n").unwrap();
    let json = document(place.path());
    let find = |list: &Value, key: &str, name: &str| {
        let all = list["value"].as_array().unwrap();
        all.iter().find(|entry| entry[key] == name).unwrap().clone()
    };
    // The kernel's words are kept, and -1 is no node.
    assert_eq!(find(&json["rdma"], "name", "mlx5_0")["ports"][0]["state"], "9: FOO");
    assert_eq!(find(&json["pci"]["devices"], "address", "0000:19:00.0")["numa"], Value::Null);
    // A port in a state that nobody knows carries no traffic that anyone could promise.
    let output = expertrail(&["check", "--root", place.path().to_str().unwrap()]);
    assert_ne!(output.status.code(), Some(0), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("9: FOO"), "{}", text(&output.stdout));
}

#[test]
fn folders_in_the_place_of_files_and_files_in_that_of_folders() {
    let place = tree::unpack("healthy");
    let before = document(place.path());
    let at = |path: &str| place.path().join(path);
    for file in ["proc/modules", "proc/driver/nvidia/version", "proc/cmdline"] {
        fs::remove_file(at(file)).unwrap();
        fs::create_dir(at(file)).unwrap();
    }
    for folder in ["sys/class/infiniband_verbs", "sys/class/iommu"] {
        fs::remove_dir_all(at(folder)).unwrap();
        fs::write(at(folder), "a file\n").unwrap();
    }
    let after = document(place.path());
    for (fact, source) in [
        (&after["modules"]["loaded"], "/proc/modules"),
        (&after["driver"]["version"], "/proc/driver/nvidia/version"),
        (&after["kernel"]["cmdline"], "/proc/cmdline"),
    ] {
        assert!(fact["unreadable"].is_string() && fact["value"].is_null(), "{fact}");
        assert_eq!(fact["source"], source);
    }
    assert!(after["iommu"]["units"]["value"].is_null(), "{}", after["iommu"]["units"]);
    assert_eq!(after["driver"]["params"], before["driver"]["params"]);
    rest_is_unchanged(&before, &after, &["modules", "driver", "kernel", "iommu", "rdma"]);
}

//! `expertrail plan` as its user runs it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod conforming;

use std::fs;
use std::process::Output;

use assert_cmd::Command;
use expertrail_cluster::plan;
use serde_json::Value;

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("expertrail"));
    command.env_clear().arg("plan").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[track_caller]
fn ok(args: &[&str], code: i32) -> String {
    let output = run(args);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "{args:?}");
    text(&output.stdout).to_owned()
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// `deepseek-v3` on two H200 nodes with DeepEP V1.
const V3: [&str; 10] =
    ["--preset", "deepseek-v3", "--nodes", "2", "--gpu", "h200", "--nic", "cx7-400", "--engine", "deepep-v1"];

#[track_caller]
fn conforms(document: &Value) {
    conforming::conforms(plan::JSON_SCHEMA, document);
}

#[test]
fn a_plan_as_text() {
    let out = ok(&V3, 0);
    let line = |start: &str| {
        words(
            out.lines()
                .find(|line| line.trim_start().starts_with(start))
                .unwrap_or_else(|| panic!("{start}\n{out}")),
        )
    };
    assert!(
        out.starts_with("2 nodes x 8 GPUs = 16 ranks; 4096 tokens x 7168, top-8 of 256, uniform\n"),
        "{out}"
    );
    // 16 (1 - C(240,8)/C(256,8)).
    assert!(out.contains("A token goes to 6.5233 ranks and 1.9930 nodes"), "{out}");
    // 4096 x 7392 x 1.9930 / 2 = 30.17 MB over 50 GB/s.
    assert_eq!(line("dispatch")[6..], ["30.17", "603.4", "µs", "NIC"]);
    let rdma = line("DeepEP V1 (RDMA)");
    assert_eq!(rdma[3..7], ["dispatch,", "combine", "100.0", "65.0-90.0"]);
    assert!(out.contains("all 8 ranks of a node on one rail") && out.contains("12.5 GB/s printed"), "{out}");
    assert!(
        out.contains("Memory of each GPU: ") && out.ends_with("No rule of the engine is broken.\n"),
        "{out}"
    );
    // A pipe gets no colours.
    assert!(!out.contains('\u{1b}'));
}

#[test]
fn presets_and_what_overrides_them() {
    let first = |args: &[&str]| ok(args, 0).lines().next().unwrap().to_owned();
    let h200 = ["--gpu", "h200"];
    let intra = first(&[&["--preset", "guide-intranode"], &h200[..]].concat());
    assert_eq!(
        intra,
        "1 node x 8 GPUs = 8 ranks; 65536 tokens x 3072, top-16 of 128, uniform with replacement"
    );
    let changed =
        ["--preset", "guide-intranode", "--tokens", "100", "--top-k", "4", "--with-replacement", "false"];
    let changed = first(&[&changed, &h200[..]].concat());
    assert_eq!(changed, "1 node x 8 GPUs = 8 ranks; 100 tokens x 3072, top-4 of 128, uniform");
    // The guide's inter-node run is of two nodes, with 20 SMs.
    let inter = ["--preset", "guide-internode", "--gpu", "h200", "--nic", "cx7-400", "--engine", "deepep-v1"];
    let out = ok(&inter, 0);
    assert!(out.starts_with("2 nodes x 8 GPUs"), "{out}");
    assert!(out.contains(", 20 SMs\n") && out.contains("1.00 GiB") && out.contains("512.0 MiB"), "{out}");
    // decode is LL, which DeepEP V1 has and we do not have yet.
    let out = ok(&["--preset", "decode", "--gpu", "h200", "--engine", "deepep-v1"], 0);
    assert!(out.contains("low latency") && out.contains("DeepEP V1 LL"), "{out}");
    let out = ok(&["--preset", "decode", "--gpu", "h200"], 1);
    assert!(out.contains("REFUSE  L075"), "{out}");
    // A profile has both rates.
    let out = ok(
        &["--preset", "deepseek-v3", "--nodes", "2", "--profile", "aws-p6-b300", "--engine", "deepep-v2"],
        0,
    );
    assert!(
        out.contains("900.0 GB/s") && out.contains("100.0 GB/s") && out.contains("assumed: profile"),
        "{out}"
    );
}

#[test]
fn exit_codes() {
    // 128 ranks: DeepEP's own test fails there.
    let sixteen: Vec<&str> = V3.iter().map(|arg| if *arg == "2" { "16" } else { arg }).collect();
    assert!(ok(&sixteen, 0).contains("WARN    L016"));
    ok(&[&sixteen[..], &["--strict"]].concat(), 5);
    let refused = ok(&[&V3[..], &["--sms", "23"]].concat(), 1);
    assert!(refused.contains("REFUSE  L006 SMs are even: num_sms 23"), "{refused}");
    assert!(refused.contains("Cannot work as planned: "), "{refused}");
    // 512 / 16 nodes is not above the RDMA chunk of 32, 720 / 16 is.
    ok(&[&sixteen[..], &["--chunks", "7,512,32,128"]].concat(), 1);
    ok(&[&sixteen[..], &["--chunks", "7,720,32,128"]].concat(), 0);
}

#[test]
fn documents() {
    let json = |args: &[&str], code: i32| -> Value {
        serde_json::from_str(&ok(&[args, &["--json", "-"]].concat(), code)).unwrap()
    };
    let document = json(&V3, 0);
    conforms(&document);
    assert_eq!((document["schema"].as_str(), document["sweep"].is_null()), (Some("expertrail.plan/1"), true));
    let figures = document["plans"][0]["figures"].as_array().unwrap();
    let rdma = figures.iter().find(|f| f["id"] == "deepep-v1-rdma" && f["operation"] == "combine").unwrap();
    assert!((rdma["ceiling_gb_s"].as_f64().unwrap() - 100.0).abs() < 1e-9);
    assert_eq!(
        (rdma["binds"].as_str(), rdma["scale_out_per_printed"].as_f64()),
        (Some("scale-out"), Some(0.5))
    );

    let groups = ["--groups", "8", "--top-groups", "4", "--sweep", "nodes=1,2,16"];
    let swept = json(&[&V3[..], &groups].concat(), 0);
    conforms(&swept);
    assert_eq!(swept["sweep"]["values"], serde_json::json!([1, 2, 16]));
    assert_eq!(
        swept["plans"][0]["workload"]["routing"],
        serde_json::json!({"groups": {"groups": 8, "chosen": 4}})
    );
    // Every variant of the other fields.
    conforms(&json(
        &[
            "--preset",
            "decode",
            "--gpu",
            "b200",
            "--combine-dtype",
            "logfmt",
            "--no-ll-nvlink",
            "--nic",
            "cx7-400",
            "--engine",
            "deepep-v1",
        ],
        0,
    ));
    conforms(&json(&["--preset", "guide-intranode", "--gpu", "h200", "--gpus-per-node", "1"], 0));
    conforms(&json(&[&V3[..], &["--chunks", "4,288,12,128", "--sms", "24"]].concat(), 0));
    conforms(&json(&[&V3[..8], &["--engine", "expertrail"]].concat(), 1));
}

#[test]
fn a_sweep_as_table_and_page() {
    let place = tempfile::tempdir().unwrap();
    let (page, json) = (place.path().join("plan.html"), place.path().join("plan.json"));
    let files = ["--html", page.to_str().unwrap(), "--json", json.to_str().unwrap()];
    let out = ok(&[&V3[..], &["--sweep", "nodes=2,4,8,16"], &files].concat(), 0);
    let row = words(out.lines().find(|line| line.contains("DeepEP V1 (RDMA)")).unwrap());
    // "At N=2 a 50 GB/s NIC can print up to 100; 4 nodes 66.7; 8 nodes 57.1", 16 nodes 53.3.
    let ceilings: Vec<&str> = row.iter().copied().filter(|word| word.parse::<f64>().is_ok()).collect();
    assert_eq!(ceilings, ["100.0", "66.7", "57.1", "53.3"]);
    assert!(out.contains("WARN    L016 nodes 16: "), "{out}");
    let page = fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    assert!(
        page.matches("<svg").count() >= 5
            && page.contains("<polygon")
            && page.contains("prefers-color-scheme")
    );
    for outside in ["http:", "https:", "src=", "href=", "<script", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    conforms(&serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap());
    // The page alone on standard output.
    assert!(ok(&[&V3[..], &["--html", "-"]].concat(), 0).starts_with("<!DOCTYPE html>"));
    // Other parameters.
    let out = ok(&["--preset", "deepseek-v3", "--gpu", "h200", "--sweep", "tokens=128,4096"], 0);
    assert!(out.contains("tokens") && out.contains("4096"), "{out}");
}

#[test]
fn printed_numbers_are_read() {
    // README of DeepEP, EP16: 43 is 21.5 on the wire, and 76 % of an NVLink of 160.
    let more = ["--nvlink-gb-s", "160", "--printed", "deepep-v1-rdma/dispatch=43"];
    let out = ok(&[&V3[..], &more].concat(), 0);
    let line = out.lines().last().unwrap();
    assert!(line.contains("NIC 21.50 GB/s (43.0 %)"), "{line}");
    assert!(line.contains("77 % of the ceiling"), "{line}");
    let out = ok(&[&V3[..], &["--printed", "deepep-v1-rdma/dispatch=120"]].concat(), 0);
    assert!(out.contains("120 % of the ceiling: the measurement or its accounting is wrong"), "{out}");
}

#[test]
fn a_profile_with_a_rate_that_is_none() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("profile.json");
    fs::write(&file, r#"{"id":"own","nvlink_gbytes":-450,"nic_gbytes_per_gpu":50}"#).unwrap();
    let output = run(&["--preset", "deepseek-v3", "--profile", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("nvlink_gbytes of the profile: -450"), "{}", text(&output.stderr));
}

#[test]
fn the_guides_own_setting_is_no_warning() {
    // 256 MiB at 40 SMs hold top-k 16: only the hint, which provides for 128 choices, is larger.
    let out = ok(&["--preset", "guide-intranode", "--gpu", "b200", "--engine", "deepep-v1", "--strict"], 0);
    assert!(out.contains("NOTE    L013"), "{out}");
    // Its figures of four nodes are those of two.
    let four = ["--preset", "guide-internode", "--nodes", "4", "--gpu", "b200", "--nic", "cx7-400"];
    let out = ok(&[&four[..], &["--engine", "deepep-v1", "--alpha-us", "30"]].concat(), 0);
    assert!(out.contains("50.5-61.7") && out.contains("45.9-56.1"), "{out}");
    assert!(out.contains("ceilings of figures have none"), "{out}");
}

#[test]
fn bad_arguments() {
    let h200 = ["--preset", "deepseek-v3", "--gpu", "h200"];
    let with = |more: &[&'static str]| [&h200[..], more].concat();
    for (args, says) in [
        (vec!["--gpu", "h200"], "--tokens, --hidden, --top-k, --experts wanted, or a --preset: quick"),
        (vec!["--preset", "deepseek-v3"], "--gpu"),
        (vec!["--preset", "deepseek"], "deepseek-v3"),
        (vec!["--preset", "deepseek-v3", "--gpu", "h20"], "known: a100, h100"),
        (with(&["--nodes", "2"]), "--nic"),
        (with(&["--nodes", "2", "--nic", "ib"]), "cx7-400"),
        (with(&["--nodes", "0"]), "0"),
        (with(&["--nodes", "2", "--nic-gb-s", "-5"]), "--nic-gb-s -5: a positive number"),
        (with(&["--nvlink-gb-s", "nan"]), "--nvlink-gb-s"),
        (with(&["--frontend-gb-s", "0"]), "--frontend-gb-s"),
        (with(&["--alpha-us", "-1"]), "--alpha-us"),
        (with(&["--alpha-us", "1e308"]), "--alpha-us 1e308: 0 to 1000000000 microseconds wanted"),
        (with(&["--nvlink-gb-s", "1e-300"]), "--nvlink-gb-s 1e-300: a positive number wanted, 0.001 to"),
        (with(&["--tokens", "0"]), "tokens 0: 1 to 16777216 wanted"),
        (with(&["--groups", "8", "--top-groups", "9"]), "--groups 8 --top-groups 9: "),
        (with(&["--groups", "7", "--top-groups", "4"]), "256 experts divide into evenly"),
        (with(&["--groups", "0", "--top-groups", "4"]), "--groups 0 --top-groups 4: 1 or more groups"),
        (with(&["--hidden", "7100"]), "128"),
        (with(&["--top-k", "33"]), "32"),
        (with(&["--groups", "8"]), "--top-groups"),
        (with(&["--groups", "8", "--top-groups", "4", "--with-replacement"]), "cannot be used with"),
        (with(&["--combine-dtype", "logfmt"]), "--mode ll"),
        (with(&["--dtype", "fp4"]), "bf16, fp8"),
        (with(&["--engine", "nccl"]), "deepep-v1"),
        (with(&["--chunks", "1,2,3"]), "36,288,20,128"),
        (with(&["--sweep", "gpus=1,2"]), "gpus-per-node"),
        (with(&["--sweep", "nodes=1,x"]), "nodes=2,4,8,16"),
        (with(&["--sweep", "nodes=1,2"]), "nodes 2: "),
        (with(&["--printed", "deepep-v1-nvl"]), "FIGURE/OPERATION"),
        (with(&["--printed", "deepep-v1-rdma/dispatch=43"]), "deepep-v1-nvl/dispatch"),
        (with(&["--profile", "no-such-cloud"]), "no-such-cloud"),
        (vec!["--preset", "guide-intranode", "--gpu", "h200", "--sweep", "nodes=2,4"], "gpus-per-node"),
    ] {
        let output = run(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(says), "{args:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty(), "{args:?}");
    }
    let output = run(&with(&["--json", "/no/such/folder/plan.json"]));
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    assert!(output.stdout.is_empty());
}

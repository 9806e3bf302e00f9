//! `expertrail worker` as launch files start it: real processes, two nodes as two workers of this machine.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, clippy::format_collect)]

#[path = "../../cluster/tests/tree/mod.rs"]
mod tree;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use expertrail_launch::worker::frame;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// `worker SUBCOMMAND ARGS` with an environment of nothing but a path.
fn worker(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_expertrail"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).arg("worker").args(args);
    command
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The variables that each rank printed with `env`.
fn variables(text: &str) -> BTreeMap<usize, BTreeMap<String, String>> {
    let mut all: BTreeMap<usize, BTreeMap<String, String>> = BTreeMap::new();
    for line in text.lines() {
        let Some((rank, rest)) = line.strip_prefix("[rank ").and_then(|rest| rest.split_once("] ")) else {
            continue;
        };
        if let Some((name, value)) = rest.split_once('=') {
            all.entry(rank.parse().unwrap()).or_default().insert(name.to_owned(), value.to_owned());
        }
    }
    all
}

fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn two_nodes_with_a_process_for_each_gpu() {
    let mut seen = BTreeMap::new();
    for node in ["0", "1"] {
        let args =
            ["node", "--nodes", "2", "--ranks-per-node", "2", "--node-rank", node, "--preflight", "off"];
        let more =
            ["--master", "run-0.run", "--run-id", "demo-1a2b3c", "--pins", "mlx5_1,mlx5_2:1", "--", "env"];
        let output = worker(&args).args(more).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}{}", out(&output), err(&output));
        seen.extend(variables(&out(&output)));
    }
    assert_eq!(seen.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3]);
    for (rank, vars) in &seen {
        let wanted = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", "4".to_owned()),
            ("LOCAL_RANK", (rank % 2).to_string()),
            ("LOCAL_WORLD_SIZE", "2".to_owned()),
            ("NODE_RANK", (rank / 2).to_string()),
            ("GROUP_RANK", (rank / 2).to_string()),
            ("MASTER_ADDR", "run-0.run".to_owned()),
            ("MASTER_PORT", "29400".to_owned()),
            ("EXPERTRAIL_JOB", "demo-1a2b3c".to_owned()),
            ("NVSHMEM_HCA_LIST", format!("mlx5_{}:1", rank % 2 + 1)),
            ("NVSHMEM_ENABLE_NIC_PE_MAPPING", "1".to_owned()),
        ];
        for (name, value) in wanted {
            assert_eq!(vars.get(name), Some(&value), "{name} of rank {rank}");
        }
        assert_eq!(vars.get("CUDA_VISIBLE_DEVICES"), None);
    }
}

#[test]
fn two_nodes_with_a_process_each() {
    let mut seen = BTreeMap::new();
    for node in ["0", "1"] {
        let args =
            ["node", "--nodes", "2", "--ranks-per-node", "8", "--contract", "nodes", "--preflight", "off"];
        // An indexed Job says which node it is; a pod-wide LOCAL_RANK would be read as a GPU's.
        let output = worker(&args)
            .args(["--master", "h:8361", "--", "sh", "-c", "env; echo {rank} {ranks} {ranks_per_node}"])
            .envs([("JOB_COMPLETION_INDEX", node), ("WORLD_SIZE", "16"), ("LOCAL_RANK", "0")])
            .output()
            .unwrap();
        let text = out(&output);
        assert_eq!(output.status.code(), Some(0), "{text}{}", err(&output));
        assert!(text.contains(&format!("[rank {node}] {node} 16 8")), "{text}");
        assert!(text.contains("WORLD_SIZE=16 becomes 2: it counts nodes"), "{text}");
        assert!(text.contains("LOCAL_RANK=0 is taken away"), "{text}");
        seen.extend(variables(&text));
    }
    assert_eq!(seen.len(), 2);
    for (rank, vars) in &seen {
        let get = |name: &str| vars.get(name).map(String::as_str);
        assert_eq!((get("RANK"), get("WORLD_SIZE")), (Some(rank.to_string().as_str()), Some("2")));
        assert_eq!(
            (get("LOCAL_RANK"), get("LOCAL_WORLD_SIZE"), get("MASTER_PORT")),
            (None, None, Some("8361"))
        );
    }
}

#[test]
fn a_pod_wide_list_is_replaced_in_each_rank() {
    let args = ["node", "--ranks-per-node", "2", "--preflight", "off", "--pins", "mlx5_5:1,mlx5_6:1"];
    let output =
        worker(&args).args(["--", "env"]).env("NVSHMEM_HCA_LIST", "mlx5_5:1,mlx5_6:1").output().unwrap();
    let seen = variables(&out(&output));
    assert_eq!(seen[&0]["NVSHMEM_HCA_LIST"], "mlx5_5:1");
    assert_eq!(seen[&1]["NVSHMEM_HCA_LIST"], "mlx5_6:1");
    assert!(out(&output).contains("which would all use its first device"), "{}", out(&output));
}

#[test]
fn the_first_failure_decides() {
    let place = TempDir::new().unwrap();
    let folder = place.path().to_str().unwrap();
    let script = "case $RANK in 9) sleep 0.3; echo gone >&2; exit 7;; *) sleep 60;; esac";
    let args = ["node", "--nodes", "2", "--ranks-per-node", "8", "--node-rank", "1", "--master", "h"];
    let output = worker(&args)
        .args(["--preflight", "off", "--grace", "0.2", "--out", folder, "--", "sh", "-c", script])
        .output()
        .unwrap();
    let text = out(&output);
    assert_eq!(output.status.code(), Some(7), "{text}");
    assert!(err(&output).contains("[rank 9] gone"), "{}", err(&output));
    assert!(text.contains("worker: node 1: rank 9 ended with exit code 7 after "), "{text}");
    assert!(text.contains("worker: node 1: first failure: rank 9, exit code 7 after "), "{text}");
    assert!(text.contains("worker: node 1: rank 15 was killed by SIGTERM after "), "{text}");
    let exit = json(&place.path().join("exit/rank-9.json"));
    assert_eq!((&exit["code"], &exit["node"], &exit["stopped"]), (&7.into(), &1.into(), &false.into()));
    let exit = json(&place.path().join("exit/rank-8.json"));
    assert_eq!((&exit["code"], &exit["signal"], &exit["stopped"]), (&Value::Null, &15.into(), &true.into()));
    assert_eq!(exit["signal_name"], "SIGTERM");
}

#[test]
fn a_killed_rank_is_128_and_the_signal() {
    let output = worker(&["node", "--preflight", "off", "--", "sh", "-c", "kill -9 $$"]).output().unwrap();
    assert_eq!(output.status.code(), Some(137));
    assert!(out(&output).contains("rank 0 was killed by SIGKILL after "), "{}", out(&output));
    let output = worker(&["node", "--preflight", "off", "--", "/no/such/program"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(err(&output).contains("[rank 0] error: cannot start /no/such/program"), "{}", err(&output));
}

#[test]
fn the_deadline_is_124() {
    let begun = Instant::now();
    let args = ["node", "--preflight", "off", "--timeout", "1", "--", "sleep", "60"];
    let output = worker(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(124), "{}", out(&output));
    assert!(out(&output).contains("the deadline passed"), "{}", out(&output));
    assert!(begun.elapsed() < Duration::from_secs(20));
}

/// Starts a worker of two ranks that print `pid N` and wait; gives it and the ranks' pids.
fn waiting(script: &str) -> (Child, Vec<Pid>, BufReader<std::process::ChildStdout>) {
    let args = ["node", "--ranks-per-node", "2", "--preflight", "off", "--", "sh", "-c", script];
    let mut child = worker(&args).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut pids = Vec::new();
    while pids.len() < 2 {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the worker ended early");
        if let Some((_, pid)) = line.split_once("] pid ") {
            pids.push(Pid::from_raw(pid.trim().parse().unwrap()).unwrap());
        }
    }
    (child, pids, lines)
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
}

/// Whether all are gone within five seconds; a zombie is gone.
fn gone(pids: &[Pid]) -> bool {
    let zombie = |pid: &Pid| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
    };
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        if pids.iter().all(|pid| test_kill_process(*pid).is_err() || zombie(pid)) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

#[test]
fn sigterm_reaches_the_ranks() {
    let script = "trap 'echo caught; exit 3' TERM; echo pid $$; while :; do sleep 0.1; done";
    let (mut child, pids, lines) = waiting(script);
    kill_process(pid(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(gone(&pids));
    let rest: Vec<String> = lines.lines().map(|line| line.unwrap()).collect();
    for rank in [0, 1] {
        assert!(rest.contains(&format!("[rank {rank}] caught")), "{rest:?}");
    }
    assert!(rest.iter().any(|line| line.contains("interrupted")), "{rest:?}");
}

#[test]
fn no_rank_outlives_a_worker_that_is_killed() {
    let (mut child, pids, _lines) = waiting("echo pid $$; exec sleep 60");
    kill_process(pid(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
    assert!(gone(&pids), "{pids:?}");
}

#[test]
fn files_come_through_the_log_without_secrets() {
    let place = TempDir::new().unwrap();
    let folder = place.path().to_str().unwrap();
    let script = format!(
        "echo '{{\"rank\": '$RANK', \"HF_TOKEN\": \"abcdef\"}}' > {folder}/result-$RANK.json; echo working"
    );
    let pattern = format!("{folder}/result-{{rank}}.json");
    let missing = format!("{folder}/missing.json");
    let args =
        ["node", "--nodes", "2", "--ranks-per-node", "2", "--node-rank", "1", "--master", "h", "--frames"];
    let output = worker(&args)
        .args(["--collect", &pattern, &missing, "--", "sh", "-c", &script])
        .env("NVSHMEM_SECRET", "abcdef")
        .env("NCCL_IB_PKEY", "0x8005")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let (rest, collected) = frame::split(&out(&output));
    assert_eq!(collected.problems, []);
    let names: Vec<&str> = collected.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "collected/node-1/result-2.json",
            "collected/node-1/result-3.json",
            "exit/rank-2.json",
            "exit/rank-3.json",
            "facts/node-1.json",
            "findings/node-1.json",
        ]
    );
    assert!(rest.contains("[rank 2] working") && !rest.contains("::expertrail-file"), "{rest}");
    assert!(rest.contains(&format!("{missing} is not collected: there is no such file")), "{rest}");
    assert!(rest.contains("preflight of node 1 ("), "{rest}");
    let text = |at: usize| String::from_utf8(collected.files[at].bytes.clone()).unwrap();
    assert_eq!(text(0), "{\"rank\": 2, \"HF_TOKEN\": \"[redacted]\"}\n");
    let facts: Value = serde_json::from_str(&text(4)).unwrap();
    assert_eq!(facts["schema"], "expertrail.facts/1");
    assert_eq!(facts["environment"]["variables"]["value"]["NCCL_IB_PKEY"], "0x8005");
    assert!(collected.files.iter().all(|file| !String::from_utf8_lossy(&file.bytes).contains("abcdef")));
}

#[test]
fn a_strict_preflight_starts_no_rank() {
    let place = tree::unpack("rail-down");
    let root = place.path().to_str().unwrap();
    let args = ["node", "--root", root, "--for", "deepep-ibgda", "--preflight"];
    let output = worker(&args).args(["strict", "--", "echo", "started"]).output().unwrap();
    let text = out(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(!text.contains("[rank 0]"), "{text}");
    assert!(text.contains("FAIL    P102 ibp5"), "{text}");
    assert!(err(&output).contains("no rank was started"), "{}", err(&output));
    // The same node, reported only.
    let output = worker(&args).args(["report", "--", "echo", "started"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(out(&output).contains("[rank 0] started"));
}

#[test]
fn pins_of_the_topology() {
    // Eight GPUs of a B200 virtual machine: GPU N has mlx5_(N+5), and mlx5_4 is the frontend (checklist 16).
    let place = tree::unpack("b200-crusoe-vm");
    let args =
        ["node", "--root", place.path().to_str().unwrap(), "--ranks-per-node", "8", "--preflight", "off"];
    let output =
        worker(&args).args(["--pins", "auto", "--require-hca-active", "--", "env"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let seen = variables(&out(&output));
    let pins: Vec<String> = seen.values().map(|vars| vars["NVSHMEM_HCA_LIST"].clone()).collect();
    let wanted: Vec<String> = (5..=12).map(|device| format!("mlx5_{device}:1")).collect();
    assert_eq!(pins, wanted);
}

#[test]
fn no_pins_no_start() {
    let on = |name: &str, more: &[&str]| {
        let place = tree::unpack(name);
        let mut command = worker(&["node", "--root", place.path().to_str().unwrap(), "--preflight", "off"]);
        let output = command.args(more).args(["--", "echo", "started"]).output().unwrap();
        assert!(!out(&output).contains("[rank 0] started"), "{}", out(&output));
        (output.status.code(), err(&output))
    };
    // Which ports are rails cannot be told, or there are none.
    for name in ["roce-unclear", "no-nics"] {
        let (code, error) = on(name, &["--ranks-per-node", "8", "--pins", "auto"]);
        assert_eq!(code, Some(3), "{name}: {error}");
        assert!(error.contains("--pins mlx5_1:1"), "{error}");
    }
    let (code, error) = on("rail-down", &["--ranks-per-node", "8", "--pins", "auto"]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("ibp5"), "{error}");
    let (code, error) = on("rail-down", &["--pins", "ibp5:1", "--require-hca-active"]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("ibp5 port 1 is not active: its state is 1: DOWN"), "{error}");
    let (code, error) = on("rail-down", &["--pins", "mlx5_99:1", "--require-hca-active"]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("mlx5_99 is not there"), "{error}");
    assert_eq!(on("rail-down", &["--require-hca-active"]).0, Some(1));
    // A list that does not fit is a wrong argument.
    let (code, error) = on("rail-down", &["--ranks-per-node", "2", "--pins", "a:1"]);
    assert_eq!(code, Some(2), "{error}");
}

#[test]
fn contradictions_and_missing_words() {
    let run = |args: &[&str], vars: &[(&str, &str)]| {
        let output = worker(args).envs(vars.iter().copied()).output().unwrap();
        (output.status.code(), err(&output))
    };
    let two = ["node", "--nodes", "2", "--node-rank", "0", "--", "true"];
    let (code, error) = run(&two, &[("JOB_COMPLETION_INDEX", "1")]);
    assert_eq!(code, Some(2));
    assert!(error.contains("--node-rank 0 contradicts JOB_COMPLETION_INDEX=1"), "{error}");
    let (code, error) = run(&two, &[]);
    assert_eq!(code, Some(2));
    assert!(error.contains("--master HOST"), "{error}");
    let (code, error) = run(&["node", "--nodes", "2", "--", "true"], &[]);
    assert_eq!(code, Some(2));
    assert!(error.contains("--node-rank"), "{error}");
    assert_eq!(run(&["node"], &[]).0, Some(2));
    assert_eq!(run(&["node", "--ranks-per-node", "0", "--", "true"], &[]).0, Some(2));
}

#[test]
fn preflight_alone() {
    let tree = tree::unpack("healthy-nvml");
    let place = TempDir::new().unwrap();
    let output = worker(&["preflight", "--nodes", "2", "--root", tree.path().to_str().unwrap()])
        .args(["--out", place.path().to_str().unwrap()])
        .envs([("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0"), ("SLURM_NODEID", "1"), ("SLURM_LOCALID", "0")])
        .output()
        .unwrap();
    let text = out(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", err(&output));
    let findings = json(&place.path().join("findings/node-1.json"));
    let counts = &findings["counts"];
    let line = format!("): {} pass, {} warn, {} fail", counts["pass"], counts["warn"], counts["fail"]);
    assert!(text.starts_with("worker: preflight of node 1 (") && text.contains(&line), "{text}");
    assert_eq!(json(&place.path().join("facts/node-1.json"))["schema"], "expertrail.facts/1");
}

const STEP: [(&str, &str); 8] = [
    ("SLURM_JOB_ID", "7"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_PROCID", "3"),
    ("SLURM_STEP_NUM_TASKS", "4"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_NODEID", "1"),
    ("SLURM_STEP_TASKS_PER_NODE", "2(x2)"),
    ("SLURM_STEP_NODELIST", "gpu-[07-08]"),
];

#[test]
fn a_rank_of_srun_becomes_its_program() {
    let args = ["rank", "--pins", "mlx5_1:1,mlx5_2:1", "--", "sh", "-c", "echo pid $$; env; exit 5"];
    let mut child = worker(&args).envs(STEP).stdout(Stdio::piped()).spawn().unwrap();
    let own = child.id();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let text: Vec<String> = lines.map(|line| line.unwrap()).collect();
    assert_eq!(child.wait().unwrap().code(), Some(5));
    // The same process.
    assert!(text.contains(&format!("pid {own}")), "{text:?}");
    for line in [
        "RANK=3",
        "WORLD_SIZE=4",
        "LOCAL_RANK=1",
        "LOCAL_WORLD_SIZE=2",
        "NODE_RANK=1",
        "MASTER_ADDR=gpu-07",
        "MASTER_PORT=29400",
        "NVSHMEM_HCA_LIST=mlx5_2:1",
    ] {
        assert!(text.iter().any(|known| known == line), "{line} is missing in {text:?}");
    }
}

#[test]
fn a_rank_that_sees_one_gpu_of_eight_has_the_rail_of_that_one() {
    let place = tree::unpack("b200-crusoe-vm");
    let args =
        ["rank", "--root", place.path().to_str().unwrap(), "--pins", "auto", "--master", "h", "--", "env"];
    let vars = [
        ("OMPI_COMM_WORLD_RANK", "6"),
        ("OMPI_COMM_WORLD_SIZE", "8"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "6"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "8"),
    ];
    let output = worker(&args).envs(vars).output().unwrap();
    assert!(out(&output).contains("\nNVSHMEM_HCA_LIST=mlx5_11:1\n"), "{}{}", out(&output), err(&output));
    // A launcher that shows each rank its own GPU only; a captured tree has its variables in a file.
    fs::write(place.path().join("environ.txt"), "CUDA_VISIBLE_DEVICES=6\n").unwrap();
    let output = worker(&args).envs(vars).output().unwrap();
    assert!(out(&output).contains("\nNVSHMEM_HCA_LIST=mlx5_11:1\n"), "{}{}", out(&output), err(&output));
}

#[test]
fn a_recorded_rank_of_mpirun() {
    let place = TempDir::new().unwrap();
    let folder = place.path().to_str().unwrap();
    let vars = [
        ("OMPI_COMM_WORLD_RANK", "2"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ];
    let args = ["rank", "--master", "h", "--record", folder, "--", "sh", "-c"];
    let output = worker(&args).arg("echo {rank} of {ranks}; kill -SEGV $$").envs(vars).output().unwrap();
    assert_eq!(output.status.code(), Some(139), "{}", err(&output));
    // Not marked: the launcher does that.
    assert!(out(&output).lines().any(|line| line == "2 of 4"), "{}", out(&output));
    let exit = json(&place.path().join("exit/rank-2.json"));
    assert_eq!((&exit["rank"], &exit["node"], &exit["signal"]), (&2.into(), &1.into(), &11.into()));
    assert!(exit["seconds"].as_f64().unwrap() < 30.0 && !exit["host"].as_str().unwrap().is_empty());

    // A signal to the worker reaches the rank.
    let script = "trap 'exit 3' TERM; echo ready; while :; do sleep 0.1; done";
    let mut child = worker(&args).arg(script).envs(vars).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    assert!(lines.any(|line| line == "ready"));
    kill_process(pid(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(json(&place.path().join("exit/rank-2.json"))["code"], 3);
}

#[test]
fn ranks_of_the_real_mpirun() {
    let mpirun = |ranks: &str, args: &[&str]| {
        let mut command = Command::new("mpirun");
        command.args([
            "--allow-run-as-root",
            "--oversubscribe",
            "-np",
            ranks,
            env!("CARGO_BIN_EXE_expertrail"),
            "worker",
        ]);
        command.args(args).stdin(Stdio::null()).output()
    };
    let script =
        "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $NODE_RANK $MASTER_ADDR $NVSHMEM_HCA_LIST";
    let pins = ["rank", "--master", "127.0.0.1:29411", "--pins", "a:1,b:1,c:1,d:1", "--", "sh", "-c", script];
    let output = match mpirun("4", &pins) {
        Ok(output) => output,
        Err(error) => {
            println!("not run: mpirun does not start ({error}); Debian has it in openmpi-bin");
            return;
        }
    };
    let text = out(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", err(&output));
    for (rank, pin) in ["a:1", "b:1", "c:1", "d:1"].iter().enumerate() {
        let line = format!("{rank}/4 {rank}/4 0 127.0.0.1 {pin}");
        assert!(text.lines().any(|known| known == line), "{line} is missing in {text}");
    }
    // Four workers of a node that should have one.
    let output = mpirun("4", &["node", "--nodes", "4", "--master", "h", "--", "true"]).unwrap();
    assert_ne!(output.status.code(), Some(0));
    assert!(err(&output).contains("start one a node, with mpirun -N 1"), "{}", err(&output));
}

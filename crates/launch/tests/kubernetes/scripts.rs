//! The scripts in rendered files, run by a shell with stand-ins for the programs that they start.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use expertrail_launch::run::Target;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::cases::{CPU, all, aws, files, guide, is, mounted, object, upstream};

/// A folder with programs and scripts of a test.
struct Stage {
    folder: TempDir,
}

impl Stage {
    fn new() -> Self {
        let stage = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(stage.path("bin")).unwrap();
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A program on the search path that does `body`.
    fn program(&self, name: &str, body: &str) {
        executable(&self.path("bin").join(name), &format!("#!/bin/sh\n{body}\n"));
    }

    /// A stand-in for `expertrail`: one line for each start, with the node's rank and the arguments in brackets.
    fn expertrail(&self, body: &str) {
        let record = self.path("record");
        self.program(
            "expertrail",
            &format!(
                "{{ printf 'node %s:' \"$NODE_RANK\"; printf ' [%s]' \"$@\"; echo; }} >>'{}'\n{body}",
                record.display()
            ),
        );
    }

    fn record(&self) -> Vec<String> {
        fs::read_to_string(self.path("record")).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn command(&self, script: &str) -> Command {
        let file = self.path("script.sh");
        fs::write(&file, script).unwrap();
        let mut command = Command::new("sh");
        command
            .arg(file)
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", self.path("bin").display()))
            .env("EXPERTRAIL_HOLD_S", "0")
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    fn node(&self, script: &str, rank: u32) -> Output {
        self.command(script).env("JOB_COMPLETION_INDEX", rank.to_string()).output().unwrap()
    }
}

fn executable(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{output:?}"))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// What a record says of the worker's part and the program: `node intranode: worker node ... test_intranode.py`.
fn programs(record: &[String]) -> Vec<(String, String)> {
    let short = |line: &String| {
        let words: Vec<&str> = line.split(' ').collect();
        let last = words.last().unwrap().trim_matches(['[', ']']).rsplit('/').next().unwrap().to_owned();
        (words[3].trim_matches(['[', ']']).to_owned(), last)
    };
    record.iter().map(short).collect()
}

fn two_steps() -> String {
    mounted(&files(&upstream(), Target::K8sJob), "run.sh")
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(one, other)| ((*one).to_owned(), (*other).to_owned())).collect()
}

#[test]
fn steps_run_in_turn_on_the_nodes_that_they_have() {
    let (script, stage) = (two_steps(), Stage::new());
    stage.expertrail("exit 0");
    let first = stage.node(&script, 0);
    assert_eq!(code(&first), 0, "{}", said(&first));
    assert!(said(&first).starts_with("=== node 0 of 2: run bringup on "), "{}", said(&first));
    let record = stage.record();
    assert_eq!(
        programs(&record),
        pairs(&[("preflight", "--frames"), ("node", "test_intranode.py"), ("node", "test_internode.py")])
    );
    assert!(record.iter().all(|line| line.starts_with("node 0:")), "{record:?}");
    // One node for NVLink, both for the network; each with the contract of programs that count nodes.
    assert!(record[1].contains("[--nodes] [1]") && record[2].contains("[--nodes] [2]"), "{record:?}");
    assert!(
        record[1..]
            .iter()
            .all(|line| line.contains("[--contract] [nodes]") && line.contains("[--preflight] [off]"))
    );

    let stage = Stage::new();
    stage.expertrail("exit 0");
    let second = stage.node(&script, 1);
    assert_eq!(code(&second), 0, "{}", said(&second));
    assert_eq!(programs(&stage.record()), pairs(&[("preflight", "--frames"), ("node", "test_internode.py")]));
    assert!(stage.record().iter().all(|line| line.starts_with("node 1:")));
}

#[test]
fn the_first_failure_is_the_exit_code_and_later_steps_still_run() {
    let (script, stage) = (two_steps(), Stage::new());
    stage.expertrail("case \"$*\" in *test_intranode*) exit 7 ;; *test_internode*) exit 9 ;; esac");
    let output = stage.node(&script, 0);
    assert_eq!(code(&output), 7, "{}", said(&output));
    assert_eq!(stage.record().len(), 3);
    assert!(said(&output).contains("step intranode on node 0: exit code 7"), "{}", said(&output));
}

#[test]
fn a_failed_check_ends_the_node_before_any_step() {
    let (script, stage) = (two_steps(), Stage::new());
    stage.expertrail("case \"$*\" in *preflight*--frames) exit 1 ;; esac");
    let output = stage.node(&script, 1);
    assert_eq!((code(&output), stage.record().len()), (1, 1), "{}", said(&output));
}

#[test]
fn what_is_missing_is_said() {
    let (script, stage) = (two_steps(), Stage::new());
    let output = stage.node(&script, 0);
    assert_eq!(code(&output), 3);
    assert!(
        said(&output).contains("no program expertrail") && said(&output).contains("kubernetes.binary"),
        "{}",
        said(&output)
    );
    stage.expertrail("exit 0");
    let output = stage.command(&script).output().unwrap();
    assert_eq!(code(&output), 2);
    assert!(said(&output).contains("no pod of an indexed Job"), "{}", said(&output));
    assert!(stage.record().is_empty());
}

/// The Job controller deletes the other pods once one has failed.
#[test]
fn a_failed_node_stays_until_the_others_can_be_read() {
    let (script, stage) = (two_steps(), Stage::new());
    stage.expertrail("exit 5");
    let begin = Instant::now();
    let output = stage
        .command(&script)
        .env("JOB_COMPLETION_INDEX", "0")
        .env("EXPERTRAIL_HOLD_S", "1")
        .output()
        .unwrap();
    assert_eq!(code(&output), 5);
    assert!(
        begin.elapsed() >= Duration::from_secs(1) && said(&output).contains("stays for 1 s"),
        "{}",
        said(&output)
    );
}

/// A shell that is the first process of a container must hand on the end of the pod.
#[test]
fn the_end_of_the_pod_reaches_the_worker() {
    let (script, stage) = (two_steps(), Stage::new());
    stage.expertrail("trap 'echo told; exit 130' TERM; echo up; while :; do sleep 0.05; done");
    let mut child =
        stage.command(&script).env("JOB_COMPLETION_INDEX", "0").stdout(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    while stage.record().is_empty() && begin.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(300));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "still there");
        std::thread::sleep(Duration::from_millis(20));
    };
    let mut text = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut text).unwrap();
    assert_eq!(status.code(), Some(130), "{text}");
    assert!(text.contains("told"), "{text}");
    // No further step was started.
    assert_eq!(stage.record().len(), 1);
}

/// The words of a command reach the program as they are in run.toml.
#[test]
fn words_reach_the_program_as_they_are_written() {
    let words = ["two words", "$HOME", "it's", "a;b", "{rank}", "*", "--x=\"y\"", "back\\slash", ""];
    let list = words.map(|word| serde_json::to_string(word).unwrap()).join(", ");
    let text = format!(
        "name = \"bringup\"\nengine = \"command\"\nimage = \"x\"\nnodes = 1\npreflight = \"off\"\ncommand = [\"train\", {list}]\n\
         [kubernetes]\nbinary = \"image\"\n"
    );
    let (script, stage) = (mounted(&files(&text, Target::K8sJob), "run.sh"), Stage::new());
    stage.expertrail("exit 0");
    let output = stage.node(&script, 0);
    assert_eq!(code(&output), 0, "{}", said(&output));
    let wanted = format!(" [{}]", words.join("] ["));
    let record = stage.record().join("\n");
    assert!(record.ends_with(&format!("[--] [train]{wanted}")), "{record}");
}

fn wait_for_binary(stage: &Stage) -> Output {
    let script = mounted(&files(CPU, Target::K8sJob), "wait-for-binary.sh");
    let folder = stage.path("binary");
    stage.command(&script).env("EXPERTRAIL_FOLDER", folder).env("EXPERTRAIL_COPY_S", "2").output().unwrap()
}

#[test]
fn the_waiting_container_takes_a_good_copy_alone() {
    let stage = Stage::new();
    fs::create_dir(stage.path("binary")).unwrap();
    let output = wait_for_binary(&stage);
    assert_eq!(code(&output), 3);
    assert!(
        said(&output).contains("waiting for the binary") && said(&output).contains("README.txt"),
        "{}",
        said(&output)
    );

    let binary = stage.path("binary/expertrail");
    fs::write(&binary, "#!/bin/sh\necho expertrail 0.1.0\n").unwrap();
    let sum = Command::new("sha256sum").arg(&binary).output().unwrap();
    let sum = String::from_utf8(sum.stdout).unwrap();
    for ready in ["", sum.as_str(), sum.split(' ').next().unwrap()] {
        fs::write(stage.path("binary/ready"), ready).unwrap();
        let output = wait_for_binary(&stage);
        assert_eq!(code(&output), 0, "{}", said(&output));
        assert!(said(&output).contains("binary in place: expertrail 0.1.0"), "{}", said(&output));
    }
    fs::write(stage.path("binary/ready"), "0".repeat(64)).unwrap();
    let output = wait_for_binary(&stage);
    assert_eq!(code(&output), 3);
    assert!(said(&output).contains("the copy broke off"), "{}", said(&output));

    fs::write(stage.path("binary/ready"), "").unwrap();
    fs::write(&binary, "#!/bin/sh\necho version GLIBC_2.28 not found >&2\nexit 1\n").unwrap();
    let output = wait_for_binary(&stage);
    assert_eq!(code(&output), 3);
    assert!(
        said(&output).contains("GLIBC_2.28") && said(&output).contains("glibc 2.28 or newer"),
        "{}",
        said(&output)
    );
}

fn launcher(stage: &Stage, script: &str, hosts: &str) -> Command {
    fs::write(stage.path("hostfile"), hosts).unwrap();
    let mut command = stage.command(script);
    command.env("EXPERTRAIL_HOSTFILE", stage.path("hostfile")).env("LD_LIBRARY_PATH", "/opt/nccl/lib");
    command
}

const HOSTS: &str = "bringup-internode-worker-0.bringup-internode.expertrail.svc slots=1\nbringup-internode-worker-1.x slots=1\n";

#[test]
fn the_launcher_waits_for_sshd_on_all_nodes() {
    let script = mounted(&files(&aws("aws-p5en"), Target::Mpijob), "launcher-internode.sh");
    let stage = Stage::new();
    // Each node answers from the third try on.
    stage.program("ssh", "echo x >>tries\n[ \"$(wc -l <tries)\" -ge 3 ] || { echo refused >&2; exit 255; }");
    stage.program("mpirun", "printf '[%s]\\n' \"$MASTER_ADDR\" \"$@\" >args; exit 6");
    let output = launcher(&stage, &script, HOSTS).output().unwrap();
    assert_eq!(code(&output), 6, "{}", said(&output));
    assert!(
        said(&output).contains("0 of 2 nodes answer; waiting for bringup-internode-worker-0"),
        "{}",
        said(&output)
    );
    assert!(said(&output).contains("launcher: 2 of 2 nodes answer"), "{}", said(&output));
    let args = fs::read_to_string(stage.path("args")).unwrap();
    let args: Vec<&str> = args.lines().collect();
    assert_eq!(args[0], "[bringup-internode-worker-0.bringup-internode.expertrail.svc]");
    for wanted in [
        ["[-np]", "[2]"],
        ["[-N]", "[1]"],
        ["[-x]", "[LD_LIBRARY_PATH]"],
        ["[-x]", "[NCCL_SOCKET_IFNAME=^docker,lo,veth]"],
    ] {
        assert!(args.windows(2).any(|pair| pair == wanted), "{wanted:?} is not in {args:?}");
    }
    // Not set here, so not passed on: mpirun would complain.
    assert!(!args.contains(&"[LD_PRELOAD]"));
    assert_eq!(
        args[args.len() - 3..],
        [
            "[sh]",
            "[-c]",
            "[RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE python3 /DeepEP/tests/test_internode.py]"
        ]
    );
}

#[test]
fn a_node_that_never_answers_is_named() {
    let script = mounted(&files(&aws("aws-p5en"), Target::Mpijob), "launcher-internode.sh");
    let stage = Stage::new();
    stage.program("ssh", "case \"$*\" in *worker-1*) echo 'connection refused' >&2; exit 255 ;; esac");
    stage.program("mpirun", "touch started");
    let output = launcher(&stage, &script, HOSTS).env("EXPERTRAIL_SSH_S", "1").output().unwrap();
    assert_eq!(code(&output), 3);
    for words in ["bringup-internode-worker-1.x does not answer", "1 of 2 nodes do", "connection refused"] {
        assert!(said(&output).contains(words), "{}", said(&output));
    }
    assert!(!stage.path("started").exists());
    // As many nodes as the run has, or none.
    let output = launcher(&stage, &script, "one slots=1\n").output().unwrap();
    assert_eq!(code(&output), 2);
    assert!(said(&output).contains("names 1 nodes and the run has 2"), "{}", said(&output));
}

/// The rendered line under Open MPI itself: values arrive whole, and the program knows its place.
#[test]
fn open_mpi_takes_the_line() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        println!("not run: no mpirun here");
        return;
    }
    let text = aws("aws-p5en") + "[env]\nODD = \"a b;c=d,$HOME ^x\"\n";
    let script = mounted(&files(&text, Target::Mpijob), "launcher-intranode.sh");
    let stage = Stage::new();
    stage.program("ssh", "exit 0");
    stage.program(
        "python3",
        "printf '%s\\n' \"$RANK\" \"$WORLD_SIZE\" \"$MASTER_ADDR\" \"$MASTER_PORT\" \"$NCCL_SOCKET_IFNAME\" \"$ODD\" \"$LD_LIBRARY_PATH\" \"$@\" >seen",
    );
    let output =
        launcher(&stage, &script, "localhost slots=1\n").env("HOME", stage.path("")).output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
    let seen = fs::read_to_string(stage.path("seen")).unwrap();
    assert_eq!(
        seen.lines().collect::<Vec<_>>(),
        [
            "0",
            "1",
            "localhost",
            "29400",
            "^docker,lo,veth",
            "a b;c=d,$HOME ^x",
            "/opt/nccl/lib",
            "/DeepEP/tests/test_intranode.py"
        ]
    );
    // And its exit code is the program's.
    stage.program("python3", "exit 4");
    let output =
        launcher(&stage, &script, "localhost slots=1\n").env("HOME", stage.path("")).output().unwrap();
    assert_eq!(code(&output), 4, "{}", said(&output));
}

/// Open MPI's own ssh takes hosts that it has never seen, and needs no file to note them in: the operator's keys are mounted read-only, and
/// an image need not be configured for it. The operator's variables are set as it sets them.
#[test]
fn open_mpi_calls_ssh_with_the_options() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        println!("not run: no mpirun here");
        return;
    }
    let script = mounted(&files(&aws("aws-p5en"), Target::Mpijob), "launcher-internode.sh");
    let stage = Stage::new();
    // A node that answers, and then refuses mpirun's daemon.
    stage.program(
        "ssh",
        "printf '[%s]' \"$@\" >>calls; echo >>calls; case \"$*\" in *' true') exit 0 ;; esac; exit 255",
    );
    let hosts = "bringup-internode-worker-0.invalid slots=1\nbringup-internode-worker-1.invalid slots=1\n";
    let output = launcher(&stage, &script, hosts)
        .env("HOME", stage.path(""))
        .env("OMPI_MCA_orte_default_hostfile", stage.path("hostfile"))
        .env("OMPI_MCA_orte_keep_fqdn_hostnames", "true")
        .env("OMPI_MCA_plm_rsh_args", "-o ConnectionAttempts=10")
        .output()
        .unwrap();
    assert_ne!(code(&output), 0, "{}", said(&output));
    let calls = fs::read_to_string(stage.path("calls")).unwrap();
    let (probes, daemons): (Vec<&str>, Vec<&str>) = calls.lines().partition(|line| line.ends_with("[true]"));
    assert!(probes.len() == 2 && !daemons.is_empty(), "{calls}");
    for call in calls.lines() {
        for wanted in ["[-o][StrictHostKeyChecking=no]", "[-o][UserKnownHostsFile=/dev/null]"] {
            assert!(call.contains(wanted), "{wanted} is not in {call}");
        }
    }
    assert!(daemons.iter().all(|call| call.contains("[-o][ConnectionAttempts=10]")), "{calls}");
    // Open MPI 5 has another name for it.
    assert!(script.contains("export PRTE_MCA_plm_ssh_args=\"$ssh_options\"\n"), "{script}");
}

/// All scripts of all cases: the shell's own check, and shellcheck where `EXPERTRAIL_SHELLCHECK` names it.
#[test]
fn scripts_are_sound() {
    let folder = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    for (index, case) in all().iter().enumerate() {
        let map = object(&case.files(), "ConfigMap", "");
        for (name, text) in map["data"].as_object().unwrap() {
            if is(name, "sh") {
                let path = folder.path().join(format!("{index}-{name}"));
                fs::write(&path, text.as_str().unwrap()).unwrap();
                paths.push(path);
            }
        }
    }
    assert!(paths.len() > 20);
    for path in &paths {
        let output = Command::new("sh").arg("-n").arg(path).output().unwrap();
        assert!(output.status.success(), "{}: {}", path.display(), said(&output));
    }
    match std::env::var_os("EXPERTRAIL_SHELLCHECK") {
        Some(program) => {
            let output = Command::new(program)
                .args(["--shell", "sh", "--severity", "style"])
                .args(&paths)
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", said(&output));
        }
        None => println!("not run: EXPERTRAIL_SHELLCHECK names no shellcheck"),
    }
    std::io::stdout().flush().unwrap();
}

/// The guide's case as well: one step, which is the worker with the guide's pins.
#[test]
fn one_step_checks_its_node_itself() {
    let text = guide("deepep", "crusoe-b200", 2) + "[kubernetes]\nbinary = \"image\"\n";
    let (script, stage) = (mounted(&files(&text, Target::K8sJob), "run.sh"), Stage::new());
    stage.expertrail("exit 0");
    let output = stage.node(&script, 1);
    assert_eq!(code(&output), 0, "{}", said(&output));
    let record = stage.record();
    assert_eq!(record.len(), 1, "{record:?}");
    for part in [
        "[worker] [node]",
        "[--preflight] [report]",
        "[--pins] [mlx5_5:1,mlx5_6:1,mlx5_7:1,mlx5_8:1,mlx5_9:1,mlx5_10:1,mlx5_11:1,mlx5_12:1]",
        "[--require-hca-active]",
        "[--out] [/tmp/expertrail]",
        "[--frames]",
        "[--] [python3] [/etc/expertrail/deepep_bench.py]",
    ] {
        assert!(record[0].contains(part), "{part} is not in {record:?}");
    }
}

//! `torchrun.sh` and `ssh.sh` for real, but for `torchrun` and `ssh` themselves, which are not on this machine: stand-ins take exactly the
//! options that the real ones know and start the processes here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use super::{binary, program, render, text};

/// Starts ranks as torchrun does: its variables, a process for each rank, the first failure's exit code.
const TORCHRUN: &str = r#"#!/usr/bin/env bash
set -u
program=
while [ $# -gt 0 ]; do
    case $1 in
        --nnodes=*) nodes=${1#*=} ;;
        --nproc_per_node=*) ranks=${1#*=} ;;
        --node_rank=*) node=${1#*=} ;;
        --master_addr=*) export MASTER_ADDR=${1#*=} ;;
        --master_port=*) export MASTER_PORT=${1#*=} ;;
        --rdzv_id=*) export TORCHELASTIC_RUN_ID=${1#*=} ;;
        --rdzv_conf=timeout=900 | --tee=3) ;;
        --log_dir=*) mkdir -p "${1#*=}" || exit 2 ;;
        --no-python) program=yes ;;
        --) separated=yes; shift; break ;;
        -*) echo "torchrun: error: unrecognized arguments: $1" >&2; exit 2 ;;
        *) break ;;
    esac
    shift
done
[ "$program" = yes ] || { echo "not a Python file: $1" >&2; exit 2; }
# Python's reader of options looks at the words behind the program too, unless `--` stands before it: on real GPUs torchrun 2.11 took the
# worker's --master for a shortened option of its own and refused it.
if [ -z "${separated:-}" ]; then
    for word in "$@"; do
        [ "$word" != --master ] || { echo "torchrun: error: ambiguous option: --master could match --master-addr, --master-port" >&2; exit 2; }
    done
fi
export WORLD_SIZE=$((nodes * ranks)) LOCAL_WORLD_SIZE=$ranks GROUP_RANK=$node GROUP_WORLD_SIZE=$nodes
pids=()
for ((local = 0; local < ranks; local++)); do
    RANK=$((node * ranks + local)) LOCAL_RANK=$local "$@" &
    pids+=($!)
done
first=0
for pid in "${pids[@]}"; do wait "$pid" || first=1; done
exit $first
"#;

/// Runs the command here, as the other end would: by a shell, in another directory, without the variables of this end.
const SSH: &str = r#"#!/usr/bin/env bash
options=()
while [ $# -gt 0 ]; do
    case $1 in
        -o) options+=("$2"); shift 2 ;;
        *) break ;;
    esac
done
host=$1
shift
[ "$host" != down ] || { echo "ssh: connect to host down port 22: Connection refused" >&2; exit 255; }
[ "${options[0]}" = BatchMode=yes ] || { echo "would ask for a password" >&2; exit 255; }
cd / && exec env -i PATH="$PATH" HOME=/root SSH_CONNECTION=yes sh -c "$*"
"#;

const SCP: &str = r#"#!/usr/bin/env bash
files=()
while [ $# -gt 0 ]; do
    case $1 in -q) shift ;; -o) shift 2 ;; *) files+=("$1"); shift ;; esac
done
last=${files[-1]}
unset 'files[-1]'
exec cp -- "${files[@]}" "${last#*:}"
"#;

fn description(engine: &str) -> String {
    format!(
        "name = \"hosts\"\nnodes = 2\ngpus_per_node = 2\ntimeout = \"300s\"\nengine = \"command\"\n{engine}\n[network]\nport = 29733\n[env]\nODD = \"it's $HOME; a b\"\n[hosts]\nnames = [\"127.0.0.1\", \"127.0.0.2\"]\nbinary = \"{}\"\n",
        binary().display()
    )
}

/// Renders `description` for `target` into `folder/run`.
fn rendered(folder: &Path, target: &str, description: &str) {
    fs::write(folder.join("run.toml"), description).unwrap();
    let out = render(folder, [target, "-o", "run"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    for (name, body) in [("torchrun", TORCHRUN), ("ssh", SSH), ("scp", SCP)] {
        program(&folder.join("bin").join(name), body);
    }
}

/// A program that is expertrail on a node with the active rails `mlx5_3` and `mlx5_7`, of which this machine has none.
fn with_rails(folder: &Path) -> PathBuf {
    for device in ["mlx5_3", "mlx5_7"] {
        let port = folder.join("tree/sys/class/infiniband").join(device).join("ports/1");
        fs::create_dir_all(&port).unwrap();
        for (name, value) in [
            ("state", "4: ACTIVE"),
            ("phys_state", "5: LinkUp"),
            ("rate", "400 Gb/sec (4X NDR)"),
            ("link_layer", "InfiniBand"),
        ] {
            fs::write(port.join(name), format!("{value}\n")).unwrap();
        }
    }
    let path = folder.join("bin/with-rails");
    let real = binary();
    program(
        &path,
        &format!(
            "#!/usr/bin/env bash\nexec '{}' \"$1\" \"$2\" --root '{}' \"${{@:3}}\"\n",
            real.display(),
            folder.join("tree").display()
        ),
    );
    path
}

/// `description` with two NICs to pin to, and the program that sees them.
fn pinned(folder: &Path, description: &str) -> String {
    let rails = with_rails(folder);
    description
        .replace("[network]", "[network]\nhcas = [\"mlx5_3\", \"mlx5_7\"]")
        .replace(&binary().display().to_string(), &rails.display().to_string())
}

fn script(folder: &Path, name: &str, args: &[&str], vars: &[(&str, &str)]) -> Command {
    let mut command = Command::new(folder.join("run").join(name));
    let path = format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap());
    command.args(args).env("PATH", path).env("EXPERTRAIL_OUT", folder.join("out")).envs(vars.iter().copied());
    for name in ["RANK", "WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "SLURM_JOB_ID"] {
        if !vars.iter().any(|(given, _)| *given == name) {
            command.env_remove(name);
        }
    }
    command
}

/// A line for each rank: what a program of torchrun reads.
const SHOW: &str = r#"command = ["sh", "-c", 'echo "r=$RANK/$WORLD_SIZE l=$LOCAL_RANK/$LOCAL_WORLD_SIZE n=$NODE_RANK m=$MASTER_ADDR:$MASTER_PORT h=$NVSHMEM_HCA_LIST o=$ODD w={rank}"']"#;

fn expect(out: &Output, code: i32) -> String {
    let said = text(&out.stdout) + &text(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{said}");
    said
}

#[test]
fn torchrun_on_two_nodes_pins_each_rank() {
    let folder = tempfile::tempdir().unwrap();
    rendered(folder.path(), "torchrun", &pinned(folder.path(), &description(SHOW)));
    for node in ["0", "1"] {
        let said =
            expect(&script(folder.path(), "torchrun.sh", &[], &[("NODE_RANK", node)]).output().unwrap(), 0);
        for local in 0..2 {
            let rank = local + if node == "1" { 2 } else { 0 };
            let hca = ["mlx5_3:1", "mlx5_7:1"][local];
            let line = format!(
                "r={rank}/4 l={local}/2 n={node} m=127.0.0.1:29733 h={hca} o=it's $HOME; a b w={rank}"
            );
            assert!(said.contains(&line), "no {line} in {said}");
        }
        assert!(folder.path().join(format!("out/logs/command-node{node}.log")).is_file());
        assert!(folder.path().join(format!("out/findings/node-{node}.json")).is_file(), "{said}");
    }
    for rank in 0..4 {
        let exit = fs::read_to_string(folder.path().join(format!("out/exit/rank-{rank}.json"))).unwrap();
        assert!(exit.contains("\"code\": 0"), "{exit}");
    }
    // A second start would leave exit codes of the first beside its own.
    let said = expect(&script(folder.path(), "torchrun.sh", &[], &[("NODE_RANK", "0")]).output().unwrap(), 2);
    assert!(said.contains("earlier start"), "{said}");
    let said = expect(&script(folder.path(), "torchrun.sh", &[], &[("NODE_RANK", "2")]).output().unwrap(), 2);
    assert!(said.contains("the run has 2 nodes"), "{said}");
}

#[test]
fn a_rank_whose_nic_is_absent_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    rendered(folder.path(), "torchrun", &pinned(folder.path(), &description(SHOW)));
    fs::remove_dir_all(folder.path().join("tree/sys/class/infiniband/mlx5_7")).unwrap();
    let said = expect(&script(folder.path(), "torchrun.sh", &[], &[("NODE_RANK", "0")]).output().unwrap(), 1);
    assert!(said.contains("mlx5_7 is not there"), "{said}");
    assert!(!said.contains("r=1/4"), "{said}");
}

#[test]
fn torchrun_gives_a_failing_ranks_code() {
    let folder = tempfile::tempdir().unwrap();
    let description = description(r#"command = ["sh", "-c", "[ $RANK != 1 ] || exit 7"]"#);
    rendered(folder.path(), "torchrun", &description);
    let said = expect(&script(folder.path(), "torchrun.sh", &[], &[("NODE_RANK", "0")]).output().unwrap(), 7);
    assert!(said.contains("the first to fail was rank 1, with exit code 7"), "{said}");
    let exit = fs::read_to_string(folder.path().join("out/exit/rank-1.json")).unwrap();
    assert!(exit.contains("\"code\": 7"), "{exit}");
}

#[test]
fn ssh_starts_a_worker_on_each_host_and_brings_files_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut description = description(&format!("{SHOW}\ncollect = [\"/proc/sys/kernel/ostype\"]"))
        .replace("[hosts]", "[hosts]\nuser = \"me\"");
    description.push_str("directory = \"THERE\"\n");
    let there = folder.path().join("there it's");
    let description = description.replace("THERE", &there.display().to_string());
    rendered(folder.path(), "ssh", &pinned(folder.path(), &description));
    let rails = folder.path().join("bin/with-rails");
    let vars = [("EXPERTRAIL_BINARY", rails.to_str().unwrap())];
    let said = expect(&script(folder.path(), "ssh.sh", &["--copy"], &vars).output().unwrap(), 0);
    assert!(folder.path().join("there it's/expertrail").is_file(), "{said}");
    for node in 0..2 {
        for local in 0..2 {
            let rank = node * 2 + local;
            let hca = ["mlx5_3:1", "mlx5_7:1"][local];
            let line = format!(
                "[node {node}] [rank {rank}] r={rank}/4 l={local}/2 n={node} m=127.0.0.1:29733 h={hca} o=it's $HOME; a b w={rank}"
            );
            assert!(said.contains(&line), "no {line} in {said}");
        }
        // Files cross in the log, and are not shown.
        let log = fs::read_to_string(folder.path().join(format!("out/logs/command-node{node}.log"))).unwrap();
        assert!(log.lines().any(|line| line.starts_with("::expertrail-file ")), "{log}");
        let preflight =
            fs::read_to_string(folder.path().join(format!("out/logs/preflight-node{node}.log"))).unwrap();
        assert!(preflight.contains(&format!("preflight of node {node}")), "{preflight}");
    }
    assert!(!said.contains("::expertrail-file"), "{said}");
}

#[test]
fn ssh_ends_with_the_first_failure_and_names_the_host() {
    let folder = tempfile::tempdir().unwrap();
    rendered(folder.path(), "ssh", &description(r#"command = ["sh", "-c", "[ $RANK != 3 ] || exit 9"]"#));
    let said = expect(&script(folder.path(), "ssh.sh", &[], &[]).output().unwrap(), 9);
    assert!(
        said.contains("node 1 (127.0.0.2): exit code 9") && said.contains("first failure is that of node 1"),
        "{said}"
    );
    assert!(said.contains("node 0 (127.0.0.1): exit code 0"), "{said}");

    let hostfile = folder.path().join("run/hostfile");
    let hosts = fs::read_to_string(&hostfile).unwrap();
    fs::write(&hostfile, hosts.replace("127.0.0.2", "down")).unwrap();
    fs::remove_dir_all(folder.path().join("out")).unwrap();
    let said = expect(&script(folder.path(), "ssh.sh", &[], &[]).output().unwrap(), 255);
    assert!(said.contains("ssh to down failed"), "{said}");
    assert!(!said.contains("=== step command"), "no rank starts where a host is missing: {said}");

    fs::write(&hostfile, hosts.replace("127.0.0.2", "HOST1")).unwrap();
    fs::remove_dir_all(folder.path().join("out")).unwrap();
    let said = expect(&script(folder.path(), "ssh.sh", &[], &[]).output().unwrap(), 2);
    assert!(said.contains("placeholder HOST1"), "{said}");
}

#[test]
fn ssh_stops_all_workers_when_told_to() {
    let folder = tempfile::tempdir().unwrap();
    // A length that nobody else sleeps, to find them again.
    let sleep = format!("{}.25", 4000 + std::process::id() % 1000);
    rendered(
        folder.path(),
        "ssh",
        &description(&format!("command = [\"sleep\", \"{sleep}\"]\npreflight = \"off\"")),
    );
    let child = script(folder.path(), "ssh.sh", &[], &[])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let sleeping = || {
        let all = Command::new("ps").args(["-eo", "args"]).output().unwrap();
        text(&all.stdout).lines().filter(|line| *line == format!("sleep {sleep}")).count()
    };
    let begun = Instant::now();
    while sleeping() < 4 {
        assert!(begun.elapsed() < Duration::from_mins(1), "the ranks did not start");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let said = expect(&child.wait_with_output().unwrap(), 130);
    assert_eq!(sleeping(), 0, "{said}");
    assert!(said.contains("told to stop"), "{said}");
}

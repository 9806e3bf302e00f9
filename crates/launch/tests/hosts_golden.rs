//! Golden files of the scripts for Slurm and for plain hosts, and what the documents say about them.
//!
//! `EXPERTRAIL_WRITE_GOLDEN=1` writes the golden files anew; `EXPERTRAIL_SHELLCHECK` names a shellcheck that then reads every script.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use expertrail_launch::files::FileSet;
use expertrail_launch::render;
use expertrail_launch::run::{Run, Target};
use expertrail_launch::spec::Spec;

const NATIVE: &str = "name = \"bringup\"\nprofile = \"crusoe-h200\"\n";
const B200: &str = "name = \"bringup\"\nprofile = \"crusoe-b200\"\nengine = \"deepep\"\n[hosts]\nnames = [\"gpu-a\", \"gpu-b\"]\n";
const EFA: &str = "name = \"efa\"\nprofile = \"aws-p5en\"\nengine = \"deepep\"\nbenchmarks = [\"intranode\", \"internode\", \"low-latency\"]\n\
                   [deepep]\ndriver = \"upstream-tests\"\n[slurm]\ncontainer_image = \"./deepep.sqsh\"\n[hosts]\nnames = [\"ip-10-0-0-1\", \"ip-10-0-0-2\"]\n";
/// The training reproducer of the fourth document: 16 nodes of 8 H100.
const REPRODUCER: &str = "name = \"dsv32\"\nprofile = \"nebius-h100\"\nengine = \"command\"\nnodes = 16\ntimeout = \"30m\"\n\
    command = [\"python3\", \"-m\", \"nemo_automodel.recipes.llm.benchmark\", \"--benchmark.json_output_path\", \"/tmp/summary-{node}.json\"]\n\
    collect = [\"/tmp/summary-{node}.json\"]\n[slurm]\npartition = \"gpu\"\naccount = \"moe\"\ndirectory = \"/shared/dsv32\"\nbinary = \"/shared/bin/expertrail\"\n\
    [env]\nNOTE = \"it's $HOME; \\\"quoted\\\"\"\n";

fn run(text: &str, target: Target) -> Run {
    Run::resolve(&Spec::parse("run.toml", text, &[]).unwrap(), target, None, Some("bringup")).unwrap()
}

fn files(text: &str, target: Target) -> FileSet {
    render::run(&run(text, target)).unwrap()
}

fn script(text: &str, target: Target) -> String {
    let name = match target {
        Target::Slurm => "run.sbatch",
        Target::Torchrun => "torchrun.sh",
        Target::Mpirun => "mpirun.sh",
        _ => "node.sh",
    };
    let file = files(text, target);
    let file = file.get(name).unwrap();
    assert_eq!(file.executable, name != "node.sh", "{name}");
    file.text.clone()
}

/// Every description on every target that takes it.
fn cases() -> Vec<(&'static str, Target, FileSet)> {
    let mut cases = Vec::new();
    for (name, text) in [("native", NATIVE), ("b200", B200), ("efa", EFA), ("reproducer", REPRODUCER)] {
        for target in [Target::Slurm, Target::Torchrun, Target::Mpirun, Target::Ssh] {
            if !(name == "efa" && target == Target::Torchrun) {
                cases.push((name, target, files(text, target)));
            }
        }
    }
    cases
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

#[test]
fn golden() {
    let write = std::env::var_os("EXPERTRAIL_WRITE_GOLDEN").is_some();
    for (name, target, files) in cases() {
        let folder = tests().join("golden").join(target.name()).join(name);
        // run.json is the input and is tested where it is made; the benchmark file is the same everywhere.
        for file in
            files.files.iter().filter(|file| !["run.json", "deepep_bench.py"].contains(&file.path.as_str()))
        {
            let path = folder.join(&file.path);
            if write {
                fs::create_dir_all(&folder).unwrap();
                fs::write(&path, &file.text).unwrap();
            }
            let wanted = fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(
                file.text,
                wanted,
                "{} differs: EXPERTRAIL_WRITE_GOLDEN=1 writes it anew",
                path.display()
            );
        }
    }
}

#[test]
fn every_script_is_sound_shell() {
    let folder = tempfile::tempdir().unwrap();
    let shellcheck = std::env::var_os("EXPERTRAIL_SHELLCHECK");
    if shellcheck.is_none() {
        println!("shellcheck: not run (EXPERTRAIL_SHELLCHECK is not set)");
    }
    let mut checked = 0;
    for (name, target, files) in cases() {
        let folder = folder.path().join(format!("{name}-{}", target.name()));
        files.write(&folder).unwrap();
        for file in files.files.iter().filter(|file| file.text.starts_with("#!")) {
            let path = folder.join(&file.path);
            let shell = if file.text.starts_with("#!/bin/sh") { "sh" } else { "bash" };
            let out = Command::new(shell).arg("-n").arg(&path).output().unwrap();
            assert!(
                out.status.success(),
                "{name} {}: {}",
                target.name(),
                String::from_utf8_lossy(&out.stderr)
            );
            if let Some(shellcheck) = &shellcheck {
                let out = Command::new(shellcheck).args(["--shell", shell]).arg(&path).output().unwrap();
                assert!(
                    out.status.success(),
                    "{name} {}:\n{}",
                    target.name(),
                    String::from_utf8_lossy(&out.stdout)
                );
            }
            checked += 1;
        }
    }
    // One a target, and node.sh beside ssh.sh.
    assert_eq!(checked, 4 + 3 + 4 + 2 * 4);
}

/// Whether `text` has `wanted` as a whole line or as the beginning of a line that goes on with a space or a backslash.
fn has(text: &str, wanted: &str) -> bool {
    text.lines().any(|line| line.trim() == wanted || line.trim().starts_with(&format!("{wanted} ")))
}

#[test]
fn slurm_asks_for_what_the_run_needs() {
    let text = script(REPRODUCER, Target::Slurm);
    for line in [
        "#SBATCH --nodes=16",
        "#SBATCH --ntasks-per-node=8",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --exclusive",
        "#SBATCH --wait-all-nodes=1",
        "#SBATCH --partition=gpu",
        "#SBATCH --account=moe",
        "#SBATCH --signal=B:TERM@30",
        // 30 minutes for the run, two to start and to stop.
        "#SBATCH --time=00:32:00",
        "#SBATCH --chdir=/shared/dsv32",
        "#SBATCH --output=/shared/dsv32/%x-%j.log",
        "binary=/shared/bin/expertrail",
    ] {
        assert!(text.lines().any(|found| found.ends_with(line)), "no {line} in\n{text}");
    }
    let id = run(REPRODUCER, Target::Slurm).id;
    assert!(has(&text, &format!("#SBATCH --job-name={id}")), "{text}");
    // All of #SBATCH stands before the first command, or Slurm does not read it.
    let first = text.lines().position(|line| !line.starts_with('#')).unwrap();
    assert!(!text.lines().skip(first).any(|line| line.starts_with("#SBATCH")), "{text}");
    // 16 x 8 ranks (checklist 6), one process each.
    assert!(text.contains("srun --nodes=16 --ntasks=128 --ntasks-per-node=8 \\\n"), "{text}");
    assert!(text.contains("--mpi=none --cpu-bind=none --kill-on-bad-exit=1"), "{text}");
    let unset = script(&format!("{NATIVE}[slurm]\nrequest_gpus = false\nexclusive = false\n"), Target::Slurm);
    assert!(!unset.contains("--gpus-per-node") && !unset.contains("--exclusive"), "{unset}");
}

/// Section 2: the upstream line cuts the compressed list of nodes at its first comma.
#[test]
fn the_first_node_is_asked_of_slurm() {
    let text = script(EFA, Target::Slurm);
    assert!(
        text.contains("MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n1)"),
        "{text}"
    );
    assert!(!text.contains("%%,"), "{text}");
}

/// Section 2, Slurm: one task a node, `RANK` and `WORLD_SIZE` count nodes, the image by Pyxis, `PMIx`, no binding.
#[test]
fn deepep_tests_get_one_process_a_node() {
    let text = script(EFA, Target::Slurm);
    // The intranode test takes one node of the two: the first, which MASTER_ADDR names.
    assert!(
        text.contains("ranks intranode srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --relative=0 \\\n"),
        "{text}"
    );
    for step in ["internode", "low-latency"] {
        assert!(
            text.contains(&format!("ranks {step} srun --nodes=2 --ntasks=2 --ntasks-per-node=1 \\\n")),
            "{text}"
        );
    }
    assert_eq!(text.matches("--contract nodes").count(), 3, "{text}");
    assert_eq!(
        text.matches("--mpi=pmix --cpu-bind=none --kill-on-bad-exit=1 \"${container[@]}\"").count(),
        3,
        "{text}"
    );
    assert!(text.contains("--container-image=./deepep.sqsh"), "{text}");
    assert!(text.contains("-- python3 /DeepEP/tests/test_low_latency.py"), "{text}");
    // An image's own variables would go before what srun hands on.
    let kept = text.lines().find(|line| line.starts_with("container+=(--container-env=")).unwrap();
    for (name, value) in [
        ("FI_PROVIDER", "efa"),
        ("NVSHMEM_REMOTE_TRANSPORT", "libfabric"),
        ("NVSHMEM_LIBFABRIC_PROVIDER", "efa"),
        ("NVSHMEM_NETDEVS_POLICY", "EXTERNAL_SHARING_PCIE_SWITCH_NIC_EXCLUSIVE"),
    ] {
        assert!(has(&text, &format!("export {name}={value}")), "checklist 27: {name}\n{text}");
        assert!(kept.contains(name), "{kept}");
    }
    let mpi = script(EFA, Target::Mpirun);
    assert!(
        mpi.contains("ranks internode kept internode \"${mpi[@]}\" -np 2 --map-by ppr:1:node \\\n"),
        "{mpi}"
    );
    assert!(
        mpi.contains("ranks intranode kept intranode \"${mpi[@]}\" -np 1 --map-by ppr:1:node \\\n"),
        "{mpi}"
    );
}

/// Checklist 34: two nodes of eight, port 29400, 900 s for all nodes to come.
#[test]
fn checklist_34_torchrun() {
    let text = script(B200, Target::Torchrun);
    for words in [
        "--nnodes=2 --nproc_per_node=8 --node_rank=\"$NODE_RANK\"",
        "--master_addr=\"$MASTER_ADDR\" --master_port=29400",
        "--rdzv_conf=timeout=900",
        "--no-python",
        "hosts=(gpu-a gpu-b)",
        "-- python3 \"$files\"/deepep_bench.py",
    ] {
        assert!(text.contains(words), "no {words} in\n{text}");
    }
    let reproducer = script(REPRODUCER, Target::Torchrun);
    assert!(reproducer.contains("--nnodes=16 --nproc_per_node=8"), "{reproducer}");
    assert!(!text.contains("c10d \\"), "{text}");
}

/// Section 1I: `WORLD_SIZE` counts nodes in `DeepEP`'s tests and ranks under torchrun.
#[test]
fn torchrun_refuses_programs_that_count_nodes() {
    let error = render::run(&run(EFA, Target::Torchrun)).unwrap_err().to_string();
    for word in ["step `intranode` counts nodes", "deepep.driver = \"own\"", "mpirun, slurm or ssh"] {
        assert!(error.contains(word), "{error}");
    }
}

/// Checklist 18 and 33: the NIC of a rank is set in its process; a list for all would give all of them the first device.
#[test]
fn checklist_18_no_list_of_hcas_is_set_for_all() {
    let pins = "--pins mlx5_5:1,mlx5_6:1,mlx5_7:1,mlx5_8:1,mlx5_9:1,mlx5_10:1,mlx5_11:1,mlx5_12:1";
    for target in [Target::Slurm, Target::Torchrun, Target::Mpirun, Target::Ssh] {
        let text = script(B200, target);
        assert!(!text.contains("NVSHMEM_HCA_LIST"), "{text}");
        assert_eq!(text.matches(pins).count(), 1, "{}:\n{text}", target.name());
        assert_eq!(text.matches("--require-hca-active").count(), 1, "{text}");
        for pair in [
            "NVSHMEM_HCA_OFFSET=5",
            "NVSHMEM_IB_ENABLE_IBGDA=1",
            "NCCL_SOCKET_IFNAME=eth0",
            "NVSHMEM_BOOTSTRAP=UID",
        ] {
            assert!(text.contains(pair), "{}: {pair}", target.name());
        }
    }
}

/// Section 2: workers started over ssh inherit no variable, so mpirun is given each by name and value.
#[test]
fn mpirun_is_given_every_variable() {
    for text in [B200, EFA, REPRODUCER] {
        let run = run(text, Target::Mpirun);
        let script = script(text, Target::Mpirun);
        assert!(!run.env.is_empty());
        for setting in &run.env {
            let plain = format!("mpi+=(-x {}={})", setting.name, setting.value);
            let quoted = format!("mpi+=(-x '{}=", setting.name);
            assert!(script.contains(&plain) || script.contains(&quoted), "{}\n{script}", setting.name);
            assert!(!script.contains(&format!("export {}", setting.name)), "{script}");
        }
        assert!(script.contains("-x PATH)") && script.contains("mpi+=(-x LD_LIBRARY_PATH)"), "{script}");
        assert!(script.contains("[ \"$(id -u)\" != 0 ] || mpi+=(--allow-run-as-root)"), "{script}");
        assert!(script.contains("--bind-to none --tag-output"), "{script}");
    }
    let hostfile = files(B200, Target::Mpirun).get("hostfile").unwrap().text.clone();
    assert!(has(&hostfile, "gpu-a slots=8") && has(&hostfile, "gpu-b slots=8"), "{hostfile}");
}

/// Nodes, ranks, processes and the hostfile move together.
#[test]
fn numbers_move_together() {
    for nodes in [2_u32, 3, 4] {
        let text = format!(
            "name = \"a\"\nengine = \"command\"\ncommand = [\"true\"]\nnodes = {nodes}\ngpus_per_node = 4\n"
        );
        let ranks = nodes * 4;
        let slurm = script(&text, Target::Slurm);
        assert!(
            has(&slurm, &format!("#SBATCH --nodes={nodes}")) && has(&slurm, "#SBATCH --ntasks-per-node=4"),
            "{slurm}"
        );
        assert!(
            slurm.contains(&format!(
                "ranks command srun --nodes={nodes} --ntasks={ranks} --ntasks-per-node=4"
            )),
            "{slurm}"
        );
        assert!(slurm.contains(&format!("[ \"${{SLURM_JOB_NUM_NODES:-}}\" = {nodes} ]")), "{slurm}");
        let mpi = script(&text, Target::Mpirun);
        assert!(mpi.contains(&format!("-np {ranks} --map-by ppr:4:node")), "{mpi}");
        assert!(mpi.contains(&format!("-np {nodes} --map-by ppr:1:node")), "{mpi}");
        assert!(script(&text, Target::Torchrun).contains(&format!("--nnodes={nodes} --nproc_per_node=4")));
        let node = script(&text, Target::Ssh);
        assert_eq!(node.matches(&format!("--nodes {nodes} \\\n")).count(), 2, "{node}");
        let hostfile = files(&text, Target::Ssh).get("hostfile").unwrap().text.clone();
        assert_eq!(hostfile.matches("slots=4").count(), nodes as usize, "{hostfile}");
    }
}

/// The summary of the reproducer is written to /tmp of a node; without it there is no acceptance.
#[test]
fn files_of_a_command_are_fetched_from_each_node() {
    for target in [Target::Slurm, Target::Torchrun, Target::Mpirun] {
        let text = script(REPRODUCER, target);
        assert!(text.contains("for file in /tmp/summary-$"), "{}:\n{text}", target.name());
    }
    let node = script(REPRODUCER, Target::Ssh);
    assert!(node.contains("--collect '/tmp/summary-{node}.json'"), "{node}");
    let inside =
        format!("{REPRODUCER}[kubernetes]\n").replace("partition = \"gpu\"", "container_image = \"x.sqsh\"");
    let error = render::run(&run(&inside, Target::Slurm)).unwrap_err().to_string();
    assert!(error.contains("/tmp/summary-{node}.json") && error.contains("{out}/NAME"), "{error}");
}

#[test]
fn the_page_says_how_to_submit_watch_and_cancel() {
    let id = run(REPRODUCER, Target::Slurm).id;
    let page = files(REPRODUCER, Target::Slurm).get("README.txt").unwrap().text.clone();
    for words in [
        "sbatch run.sbatch",
        &format!("scancel --name={id}"),
        &format!("squeue --name={id}"),
        "cp -r . /shared/dsv32",
    ] {
        assert!(page.contains(words), "{words}:\n{page}");
    }
    let bare = files(&B200.replace("[hosts]", "[network]\nport = 29401\n[hosts]"), Target::Slurm);
    let page = &bare.get("README.txt").unwrap().text;
    assert!(page.contains("docker://ghcr.io#crusoecloud/deepep-tests:b200-torch29-nvshmem345"), "{page}");
    assert!(bare.get("deepep_bench.py").is_some());
}

/// What the shell has of the loader's variables goes on, once each; `mpirun` would complain about one that is not set, and about one given
/// twice with different values.
#[test]
fn mpirun_hands_on_the_loaders_variables() {
    let lines = |text: &str| {
        let text = script(text, Target::Mpirun);
        let wanted = |line: &&str| line.starts_with("mpi=(") || line.contains("mpi+=(-x ");
        text.lines().filter(wanted).map(|line| format!("{line}\n")).collect::<String>()
    };
    let words = |lines: &str, preload: Option<&str>| {
        let text = format!("set -u; dir=.\n{lines}printf '%s\\n' \"${{mpi[@]}}\"");
        let mut command = Command::new("bash");
        command.args(["-c", &text]).env_remove("LD_LIBRARY_PATH").env_remove("LD_PRELOAD");
        let done = command.envs(preload.map(|value| ("LD_PRELOAD", value))).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let count = |words: &[String], name: &str| words.iter().filter(|word| word.starts_with(name)).count();
    // A library that every system has and that does nothing here.
    let library = Some("libm.so.6");
    for text in [EFA, NATIVE, REPRODUCER] {
        let lines = lines(text);
        assert_eq!(count(&words(&lines, library), "LD_PRELOAD"), 1);
        assert_eq!(count(&words(&lines, None), "LD_PRELOAD"), 0);
    }
    let own = REPRODUCER.replace("[env]\n", "[env]\nLD_PRELOAD = \"/opt/nccl/build/lib/libnccl.so\"\n");
    assert!(words(&lines(&own), library).contains(&"LD_PRELOAD=/opt/nccl/build/lib/libnccl.so".to_owned()));
    assert_eq!(count(&words(&lines(&own), library), "LD_PRELOAD"), 1);
}

//! Steps of Containerfiles, run here with stand-ins for what they fetch.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use expertrail_launch::render::image::Kind;

use crate::common::{instructions, program, rendered, said, shell, step};

/// The patch of setup.py is run on a gate of the known form, and on one of another form, where it must stop.
#[test]
fn checklist_23_the_gate_is_taken_out_or_the_build_stops() {
    for kind in [Kind::DeepepInfiniband, Kind::Deepep564] {
        let (text, _) = rendered(kind, &[]);
        let patch = instructions(&text).into_iter().find(|(_, rest)| rest.starts_with("sed -i")).unwrap().1;
        let folder = tempfile::TempDir::new().unwrap();
        let run = |content: &str| {
            fs::write(folder.path().join("setup.py"), content).unwrap();
            Command::new("bash")
                .args(["-o", "pipefail", "-c", &patch])
                .current_dir(folder.path())
                .output()
                .unwrap()
        };
        let known = run(
            "import os\nif os.environ['TORCH_CUDA_ARCH_LIST'].strip() != '9.0':\n    os.environ['X'] = '1'\n",
        );
        assert!(known.status.success(), "{known:?}");
        let left = fs::read_to_string(folder.path().join("setup.py")).unwrap();
        assert_eq!(left, "import os\nif False:\n    os.environ['X'] = '1'\n");
        let other = run("import os\nif os.environ['TORCH_CUDA_ARCH_LIST'] not in ('9.0',):\n    pass\n");
        assert!(!other.status.success() && said(&other).contains("another gate"), "{other:?}");
    }
}

/// The options of the set-up script at its commit, with whether each takes a value.
const SETUP_OPTIONS: [(&str, bool); 16] = [
    ("nvshmem-version", true),
    ("nvshmem-prefix", true),
    ("nvshmem-src", true),
    ("deepep-commit", true),
    ("deepep-prefix", true),
    ("deepep-src", true),
    ("wheel-only", false),
    ("wheel-output-dir", true),
    ("libfabric-home", true),
    ("gdrcopy-home", true),
    ("cuda-home", true),
    ("python", true),
    ("pip", true),
    ("gen-ldconfig", false),
    ("force", false),
    ("skip-checks", false),
];

/// A script that takes those and nothing else, and leaves `DeepEP`'s tests where it was told.
fn setup_script() -> String {
    let mut text = "echo ran \"$@\"\nwhile [ $# -gt 0 ]; do case $1 in\n".to_owned();
    for (name, value) in SETUP_OPTIONS {
        let put = if name == "deepep-prefix" { "prefix=$2; " } else { "" };
        writeln!(text, "--{name}) {put}shift{} ;;", if value { " 2" } else { "" }).unwrap();
    }
    text + "*) echo \"no option $1\" >&2; exit 1 ;; esac; done\n\
            mkdir -p \"$prefix/tests\" && cd \"$prefix/tests\" && touch test_intranode.py test_internode.py test_low_latency.py\n"
}

/// The step runs here with a `curl` that brings another file.
#[test]
fn checklist_25_the_setup_script_needs_its_checksum() {
    let (text, _) = rendered(Kind::DeepepEfa, &[]);
    let folder = tempfile::TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let step = step(&text, "setup_deepep_efa.sh")
        .replace("/tmp/setup_deepep_efa.sh", &at("setup.sh"))
        .replace("/DeepEP", &at("DeepEP"));
    let run = |step: &str, sum: &str| {
        let names = [("SETUP_SHA256", sum), ("SETUP_COMMIT", "61b67c2"), ("NVSHMEM_VERSION", "3.7.0")];
        let more = [("DEEPEP_COMMIT", "567632d"), ("NVSHMEM_DIR", "/opt/amazon/nvshmem")];
        shell(step, folder.path()).envs(names).envs(more).output().unwrap()
    };
    // What `curl -fsSL -o FILE URL` leaves behind.
    fs::write(at("brought"), setup_script()).unwrap();
    program(folder.path(), "curl", &format!("cp '{}' \"$3\"\n", at("brought")));
    let none = run(&step, "");
    assert!(!none.status.success() && said(&none).contains("SETUP_SHA256 is empty"), "{none:?}");
    let wrong = run(&step, "a4c94a8ea3fb6e5a2d1d5a3f1ec5a8b7a0b6b7e2d3c4f5061728394a5b6c7d8e");
    assert!(
        !wrong.status.success() && said(&wrong).contains("is not the file whose sha256 you gave"),
        "{wrong:?}"
    );
    assert!(!said(&wrong).contains("ran "), "an unchecked script ran");
    let sum = Command::new("sha256sum").arg(at("brought")).output().unwrap();
    let sum = said(&sum).split(' ').next().unwrap().to_owned();
    let good = run(&step, &sum);
    assert!(good.status.success(), "{good:?}");
    let wanted = format!(
        "ran --nvshmem-version 3.7.0 --nvshmem-prefix /opt/amazon/nvshmem --deepep-commit 567632d --deepep-prefix {} ",
        at("DeepEP")
    );
    assert!(said(&good).contains(&wanted), "{good:?}");
    // An option that the script does not know ends the build, and so does a DeepEP without its tests.
    let other = run(&step.replace("--nvshmem-prefix", "--gpu-arch"), &sum);
    assert!(!other.status.success() && said(&other).contains("no option --gpu-arch"), "{other:?}");
    fs::remove_dir_all(at("DeepEP")).unwrap();
    let elsewhere = run(&step.replace("--deepep-prefix ", "--deepep-prefix ./other"), &sum);
    assert!(
        !elsewhere.status.success() && said(&elsewhere).contains("test_intranode.py is not there"),
        "{elsewhere:?}"
    );
}

/// The MPI operator's keys are mounted read-only. `ssh` is asked as the step asks it; `sshd` is a stand-in that prints what it would read.
#[test]
fn section_2_ssh_takes_new_hosts_and_the_operators_keys() {
    let (text, _) = rendered(Kind::DeepepEfa, &[]);
    let run = |ssh: &str, sshd: &str| {
        let folder = tempfile::TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        for name in ["ssh_config.d", "sshd_config.d"] {
            fs::create_dir(at(name)).unwrap();
        }
        program(folder.path(), "ssh", &ssh.replace("FILE", &at("ssh_config.d/10-mpi.conf")));
        program(folder.path(), "sshd", &sshd.replace("FILE", &at("sshd_config.d/10-mpi.conf")));
        let step = step(&text, "StrictModes").replace("/etc/ssh/", &at("")).replace("/usr/sbin/", &at(""));
        shell(&step, folder.path()).output().unwrap()
    };
    let real = Path::new("/usr/bin/ssh").exists();
    if !real {
        eprintln!("NOT RUN: no /usr/bin/ssh");
    }
    let ssh = if real { "exec /usr/bin/ssh -F FILE \"$@\"\n" } else { "sed 's/^ *//' FILE\n" };
    let good = run(ssh, "cat FILE\n");
    assert!(good.status.success(), "{good:?}");
    for (ssh, sshd) in
        [("exec /usr/bin/ssh -F /dev/null \"$@\"\n", "cat FILE\n"), (ssh, "echo strictmodes yes\n")]
    {
        let deaf = run(ssh, sshd);
        assert!(!deaf.status.success() && said(&deaf).contains("of this BASE does not read"), "{deaf:?}");
    }
}

/// `DeepEP` issue 568: `nvshmem.h` wants a header that CUDA 13 moved to a folder of its own. The step runs with the variable of the image on
/// a tree that has the header there and nowhere else.
#[test]
fn issue_568_the_hosts_compiler_finds_the_headers_that_cuda_13_moved() {
    for kind in [Kind::DeepepInfiniband, Kind::Deepep564] {
        let (text, _) = rendered(kind, &[]);
        let folder = tempfile::TempDir::new().unwrap();
        let include = folder.path().join("include");
        fs::create_dir_all(include.join("cccl/cuda/std")).unwrap();
        fs::write(include.join("cccl/cuda/std/tuple"), "\n").unwrap();
        let cuda = |text: &str| text.replace("/usr/local/cuda/include", include.to_str().unwrap());
        let set =
            instructions(&text).into_iter().find(|(word, rest)| word == "ENV" && rest.starts_with("CPATH="));
        let set = cuda(&set.expect("ENV CPATH").1);
        let step = cuda(&step(&text, "cuda/std/tuple"));
        for before in [None, Some("/opt/a:/opt/b")] {
            let run = |step: &str| {
                let mut command = shell(step, folder.path());
                command.env_remove("CPATH");
                command.envs(before.map(|value| ("CPATH", value)));
                command.output().unwrap()
            };
            // A shell reads `${CPATH:+...}` as a builder does.
            let good = run(&format!("export {set}; printf '%s\n' \"$CPATH\"; {step}"));
            assert!(good.status.success(), "{kind}: {good:?}");
            let mut wanted = include.join("cccl").display().to_string();
            wanted.extend(before.map(|value| format!(":{value}")));
            assert_eq!(said(&good).trim(), wanted, "{kind}: an empty entry would be the working directory");
            let without = run(&step);
            assert!(
                !without.status.success() && said(&without).contains("does not find cuda/std/tuple"),
                "{kind}: {without:?}"
            );
        }
    }
}

/// The step that fetches the change, on repositories made here: one where the commit changes both files, one where it changes one.
#[test]
fn the_change_of_564_is_applied_alone() {
    let (text, _) = rendered(Kind::Deepep564, &[]);
    let step =
        instructions(&text).into_iter().find(|(_, rest)| rest.starts_with("git clone --branch")).unwrap().1;
    let apply = |files: &[&str]| {
        let folder = tempfile::TempDir::new().unwrap();
        let (upstream, tree) = (folder.path().join("upstream"), folder.path().join("tree"));
        fs::create_dir_all(upstream.join("csrc/kernels")).unwrap();
        fs::create_dir(&tree).unwrap();
        let git = |args: &[&str]| {
            let done = Command::new("git")
                .args([
                    "-c",
                    "user.name=t",
                    "-c",
                    "user.email=t@example.org",
                    "-c",
                    "init.defaultBranch=main",
                ])
                .args(args)
                .current_dir(&upstream)
                .output()
                .unwrap();
            assert!(done.status.success(), "{done:?}");
            String::from_utf8(done.stdout).unwrap().trim().to_owned()
        };
        let write = |name: &str, text: &str| fs::write(upstream.join(name), text).unwrap();
        git(&["init", "-q"]);
        for name in ["csrc/kernels/configs.cuh", "csrc/kernels/ibgda_device.cuh", "setup.py"] {
            write(name, "one\ntwo\nthree\n");
        }
        git(&["add", "-A"]);
        git(&["commit", "-qm", "base"]);
        git(&["branch", "hybrid-ep"]);
        let base = git(&["rev-parse", "HEAD"]);
        for name in files {
            write(name, "one\ntwo __CUDACC_RDC__\nthree\n");
        }
        write("setup.py", "not wanted\n");
        git(&["commit", "-qam", "change"]);
        let change = git(&["rev-parse", "HEAD"]);
        let step = step.replace("https://github.com/deepseek-ai/DeepEP.git", upstream.to_str().unwrap());
        let step = step.replace("/tmp/change.patch", folder.path().join("change.patch").to_str().unwrap());
        let done = Command::new("bash")
            .args(["-o", "pipefail", "-c", &step])
            .current_dir(&tree)
            .envs([
                ("DEEPEP_BRANCH", "hybrid-ep"),
                ("DEEPEP_COMMIT", &base),
                ("CHANGE_COMMIT", &change),
                ("CHANGE_PULL", "564"),
            ])
            .output()
            .unwrap();
        let now = |name: &str| fs::read_to_string(tree.join(name)).unwrap();
        (done, now("csrc/kernels/ibgda_device.cuh"), now("setup.py"))
    };
    let (both, device, setup) = apply(&["csrc/kernels/configs.cuh", "csrc/kernels/ibgda_device.cuh"]);
    assert!(both.status.success(), "{both:?}");
    assert_eq!((device.as_str(), setup.as_str()), ("one\ntwo __CUDACC_RDC__\nthree\n", "one\ntwo\nthree\n"));
    let (one, ..) = apply(&["csrc/kernels/configs.cuh"]);
    assert!(
        !one.status.success() && said(&one).contains("does not change csrc/kernels/ibgda_device.cuh"),
        "{one:?}"
    );
}

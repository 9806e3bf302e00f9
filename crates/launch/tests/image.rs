//! Containerfiles: the facts they fix, golden files, the linter, and our own image's tree started in a chroot.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use expertrail_cluster::stack::{self, Judgement, Question};
use expertrail_launch::render::image::{Image, ImageError, Kind, render};

fn rendered(kind: Kind, architectures: &[&str]) -> (String, String) {
    let image = Image {
        architectures: architectures.iter().map(|&one| one.to_owned()).collect(),
        ..Image::new(kind)
    };
    let files = render(&image).unwrap();
    (files.get("Containerfile").unwrap().text.clone(), files.get("build.sh").unwrap().text.clone())
}

/// Instructions with continued lines joined, comments left out.
fn instructions(text: &str) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    let mut open = false;
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#') && !line.trim().is_empty()) {
        let (part, more) =
            line.trim().strip_suffix('\\').map_or((line.trim(), false), |part| (part.trim(), true));
        if open {
            let last = &mut all.last_mut().unwrap().1;
            last.push(' ');
            last.push_str(part);
        } else {
            let (word, rest) = part.split_once(' ').unwrap_or((part, ""));
            all.push((word.to_owned(), rest.to_owned()));
        }
        open = more;
    }
    all
}

/// Build arguments with their defaults.
fn arguments(text: &str) -> BTreeMap<String, String> {
    let args = instructions(text).into_iter().filter(|(word, _)| word == "ARG");
    args.map(|(_, rest)| {
        let (name, value) = rest.split_once('=').unwrap_or((&rest, ""));
        (name.to_owned(), value.trim_matches('"').to_owned())
    })
    .collect()
}

fn variables(text: &str) -> String {
    instructions(text).into_iter().filter(|(word, _)| word == "ENV").map(|(_, rest)| rest + " ").collect()
}

fn has(number: &str, text: &str, wanted: &str) {
    let joined: Vec<String> = instructions(text).into_iter().map(|(word, rest)| word + " " + &rest).collect();
    let joined = joined.join("\n");
    let squeezed = joined.split(' ').filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
    assert!(squeezed.contains(wanted), "checklist {number}: `{wanted}` is not in\n{squeezed}");
}

#[test]
fn checklist_22_an_image_is_of_one_architecture_and_named_after_it() {
    for (arch, name) in [("9.0", "deepep:sm90-nvshmem345"), ("10.0", "deepep:sm100-nvshmem345")] {
        let (text, build) = rendered(Kind::DeepepInfiniband, &[arch]);
        assert_eq!(arguments(&text)["TORCH_CUDA_ARCH_LIST"], arch, "checklist 22, 23");
        assert!(build.contains(&format!("tag=${{TAG:-{name}}}\n")), "checklist 22: {build}");
    }
    let two = Image {
        architectures: vec!["9.0".to_owned(), "10.0".to_owned()],
        ..Image::new(Kind::DeepepInfiniband)
    };
    let error = render(&two).unwrap_err();
    assert!(
        matches!(error, ImageError::OneArchitecture { .. })
            && error.to_string().contains("render one image for each")
    );
}

#[test]
fn checklist_23_hybrid_ep_with_its_three_details() {
    let (text, _) = rendered(Kind::DeepepInfiniband, &["10.0"]);
    let args = arguments(&text);
    assert_eq!(args["DEEPEP_BRANCH"], "hybrid-ep", "checklist 23: the branch");
    assert_eq!(args["NVSHMEM_VERSION"], "3.4.5", "checklist 23: the pin");
    assert_eq!(args["BASE"], "nvcr.io/nvidia/pytorch:25.10-py3", "checklist 4, 23: nv25.10, CUDA 13.0");
    assert!(args.contains_key("MAX_JOBS"), "checklist 23: memory");
    has("23", &text, r#"git clone --branch "${DEEPEP_BRANCH}" https://github.com/deepseek-ai/DeepEP.git"#);
    has("23", &text, r#"pip install "nvidia-nvshmem-cu13==${NVSHMEM_VERSION}""#);
    has("23", &text, "DISABLE_AGGRESSIVE_PTX_INSTRS=0");
    has("23", &text, "python3 setup.py build_ext --inplace");
    has("23", &text, "gdrcopy prefix=/opt/gdrcopy lib lib_install");
    assert_eq!(args["GDRCOPY_VERSION"], "v2.5.1", "checklist 4");
    has("15", &text, "ln -sf libnvshmem_host.so.3 /opt/nvshmem/lib/libnvshmem_host.so");
}

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

#[test]
fn checklist_24_private_registries() {
    let (_, build) = rendered(Kind::DeepepInfiniband, &[]);
    assert!(
        build.contains("registry.REGION.ccr.crusoecloudcompute.com/REPOSITORY.PROJECT/IMAGE:TAG"),
        "checklist 24"
    );
    assert!(build.contains("first 8 characters") && build.contains("registry token"), "checklist 24");
    assert!(build.contains("deepep-pull"), "checklist 24");
}

#[test]
fn checklist_25_v1_for_efa() {
    let (text, build) = rendered(Kind::DeepepEfa, &[]);
    let args = arguments(&text);
    assert_eq!(args["DEEPEP_COMMIT"], "567632d", "checklist 25");
    assert_eq!(args["NVSHMEM_VERSION"], "3.7.0", "checklist 25");
    assert!(args["BASE"].contains("cuda:13."), "checklist 25: CUDA 13");
    has("25", &text, "https://download.pytorch.org/whl/cu130");
    has("25", &text, "pip3 uninstall -y nvidia-nvshmem-cu13");
    has("25", &text, r#"--deepep-commit "${DEEPEP_COMMIT}""#);
    assert_eq!(args["SETUP_SHA256"], "", "the checksum has no default");
    assert_eq!(args["SETUP_COMMIT"].len(), 40);
    assert!(build.contains("SETUP_SHA256 is not set"));
}

/// The step runs here with a `curl` that brings another file, up to the check.
#[test]
fn checklist_25_the_setup_script_needs_its_checksum() {
    let (text, _) = rendered(Kind::DeepepEfa, &[]);
    let step =
        instructions(&text).into_iter().find(|(_, rest)| rest.contains("setup_deepep_efa.sh")).unwrap().1;
    let folder = tempfile::TempDir::new().unwrap();
    let step = step.replace("/tmp/setup_deepep_efa.sh", folder.path().join("setup.sh").to_str().unwrap());
    // What `curl -fsSL -o FILE URL` leaves behind, and what the script says it was given.
    program(folder.path(), "curl", "echo 'echo ran \"$@\"' > \"$3\"\n");
    let sum = "a4c94a8ea3fb6e5a2d1d5a3f1ec5a8b7a0b6b7e2d3c4f5061728394a5b6c7d8e";
    let run = |sum: &str| {
        Command::new("bash")
            .args(["-o", "pipefail", "-c", &step])
            .env("PATH", format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap()))
            .envs([
                ("SETUP_SHA256", sum),
                ("SETUP_COMMIT", "e8c0765"),
                ("NVSHMEM_VERSION", "3.7.0"),
                ("DEEPEP_COMMIT", "567632d"),
            ])
            .output()
            .unwrap()
    };
    let none = run("");
    assert!(!none.status.success() && said(&none).contains("SETUP_SHA256 is empty"), "{none:?}");
    let wrong = run(sum);
    assert!(
        !wrong.status.success() && said(&wrong).contains("is not the file whose sha256 you gave"),
        "{wrong:?}"
    );
    assert!(!said(&wrong).contains("ran "), "an unchecked script ran");
    fs::write(folder.path().join("same"), "echo ran \"$@\"\n").unwrap();
    let right = Command::new("sha256sum").arg(folder.path().join("same")).output().unwrap();
    let good = run(said(&right).split(' ').next().unwrap());
    assert!(good.status.success(), "{good:?}");
    assert!(
        said(&good).contains("ran --nvshmem-version 3.7.0 ")
            && said(&good).contains("--deepep-commit 567632d"),
        "{good:?}"
    );
}

#[test]
fn checklist_26_build_arguments() {
    let (text, build) = rendered(Kind::DeepepEfa, &[]);
    let args = arguments(&text);
    for (name, wanted) in [
        ("GDRCOPY_VERSION", "v2.5.2"),
        ("EFA_INSTALLER_VERSION", "1.48.0"),
        ("TORCH_CUDA_ARCH_LIST", "9.0;10.0;10.3"),
        (
            "NVCC_GENCODE",
            "-gencode=arch=compute_90,code=sm_90 -gencode=arch=compute_100,code=sm_100 -gencode=arch=compute_103,code=sm_103",
        ),
    ] {
        assert_eq!(args[name], wanted, "checklist 26: {name}");
    }
    assert!(
        build.contains("tag=${TAG:-deepep:efa1.48.0}\n") && build.contains("export DOCKER_BUILDKIT=1\n"),
        "checklist 26"
    );
    has("26", &text, "RUN --mount=type=cache");
    has("section 2", &text, "set -- -y --skip-kmod --skip-limit-conf --no-verify");
    has("section 2", &text, r#"set -- "$@" --disable-build-ngc --disable-ngc"#);
    let (single, _) = rendered(Kind::DeepepEfa, &["9.0"]);
    let single = arguments(&single);
    assert_eq!(single["TORCH_CUDA_ARCH_LIST"], "9.0", "checklist 26: one architecture");
    assert_eq!(
        single["NVCC_GENCODE"], "-gencode=arch=compute_90,code=sm_90",
        "checklist 26: the two go together"
    );
}

#[test]
fn checklist_27_and_28_run_time_variables() {
    let efa = variables(&rendered(Kind::DeepepEfa, &[]).0);
    for wanted in [
        "FI_PROVIDER=efa ",
        "NVSHMEM_REMOTE_TRANSPORT=libfabric ",
        "NVSHMEM_LIBFABRIC_PROVIDER=efa ",
        "NVSHMEM_NETDEVS_POLICY=EXTERNAL_SHARING_PCIE_SWITCH_NIC_EXCLUSIVE ",
    ] {
        assert!(efa.contains(wanted), "checklist 27: {wanted}");
    }
    assert!(!efa.contains("IBGDA"), "checklist 27");
    for kind in [Kind::DeepepInfiniband, Kind::Deepep564] {
        let ib = variables(&rendered(kind, &[]).0);
        for wanted in
            ["NVSHMEM_REMOTE_TRANSPORT=ibrc ", "NVSHMEM_IB_ENABLE_IBGDA=1 ", "NVSHMEM_IBGDA_NIC_HANDLER=gpu "]
        {
            assert!(ib.contains(wanted), "checklist 28: {wanted}");
        }
        // Of a rank and a cluster: an image must not pin.
        assert!(!ib.contains("HCA_LIST") && !ib.contains("UCX_NET_DEVICES"), "checklist 18, 28");
    }
}

#[test]
fn checklist_47_the_change_comes_by_hash_and_nvshmem_stays_linked() {
    let (text, _) = rendered(Kind::Deepep564, &[]);
    let args = arguments(&text);
    assert!(args["DEEPEP_COMMIT"].starts_with("4214430"), "checklist 6");
    assert_eq!(args["NVSHMEM_VERSION"], "3.6.5", "checklist 6");
    assert!(args["CHANGE_COMMIT"].starts_with("29d31c0") && args["CHANGE_COMMIT"].len() == 40, "section 1I");
    has("D20", &text, "-- csrc/kernels/configs.cuh csrc/kernels/ibgda_device.cuh > /tmp/change.patch");
    has("D20", &text, r#"[ "$(git rev-parse FETCH_HEAD)" = "${CHANGE_COMMIT}" ]"#);
    // Fetched, never a copy of ours.
    assert!(!text.contains("npes") && !text.contains("+++"));
    for kind in [Kind::DeepepInfiniband, Kind::DeepepEfa, Kind::Deepep564] {
        has("47", &rendered(kind, &[]).0, r#"readelf -d "$library" | grep -q 'NEEDED.*libnvshmem_host'"#);
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

/// The versions of each image, judged by the table that the image's last step asks.
#[test]
fn the_pinned_combinations_are_known_good_and_their_neighbours_are_not() {
    let judged = |versions: &str| stack::judge(&Question::parse(versions).unwrap()).judgement;
    let pin = |kind: Kind, name: &str| arguments(&rendered(kind, &[]).0)[name].clone();
    let nvshmem = |kind| pin(kind, "NVSHMEM_VERSION");
    let ib = |nvshmem: &str, has_564: &str| {
        judged(&format!("line=hybrid-ep,564={has_564},nvshmem={nvshmem},transport=ibgda,sm=90"))
    };
    assert_eq!(ib(&nvshmem(Kind::DeepepInfiniband), "no"), Judgement::KnownGood);
    assert_eq!(ib(&nvshmem(Kind::Deepep564), "yes"), Judgement::KnownGood);
    assert_eq!(
        ib(&nvshmem(Kind::Deepep564), "no"),
        Judgement::KnownBad,
        "without the change its last step fails the build"
    );
    let efa = |nvshmem: &str| {
        let commit = pin(Kind::DeepepEfa, "DEEPEP_COMMIT");
        judged(&format!("commit={commit},nvshmem={nvshmem},transport=efa,efa_patch=yes"))
    };
    assert_eq!(efa(&nvshmem(Kind::DeepepEfa)), Judgement::KnownGood);
    assert_eq!(efa("3.6.5"), Judgement::KnownBad);
}

/// The last step of every image asks the table, fails on "known bad" and on a table that could not be asked, and passes what is unverified.
#[test]
fn the_last_step_is_the_table_of_versions() {
    for kind in Kind::ALL {
        let (text, _) = rendered(kind, &[]);
        let all = instructions(&text);
        let (word, gate) = all.last().unwrap();
        assert_eq!(word, "RUN", "{kind}");
        let transport = match kind {
            Kind::Expertrail => "expertrail stack --transport none",
            Kind::DeepepEfa => "expertrail stack --source-root /opt/DeepEP --transport efa",
            _ => "expertrail stack --source-root /opt/DeepEP --transport ibgda",
        };
        assert!(gate.contains(transport), "{kind}: {gate}");
        for (code, passes) in [(0, true), (3, true), (1, false), (2, false), (4, false), (127, false)] {
            let folder = tempfile::TempDir::new().unwrap();
            program(folder.path(), "expertrail", &format!("exit {code}\n"));
            let done =
                Command::new("/bin/sh").args(["-c", gate]).env("PATH", folder.path()).output().unwrap();
            assert_eq!(done.status.success(), passes, "{kind}, exit code {code}: {done:?}");
        }
        // The base's entry point is taken away, and there is none of ours.
        assert!(
            all.iter().all(|(word, rest)| (word != "ENTRYPOINT" || rest == "[]") && word != "CMD"),
            "{kind}"
        );
    }
}

#[test]
fn what_cannot_be_rendered_is_said() {
    let image = |kind, arch: &str, tag: Option<&str>| {
        let architectures = if arch.is_empty() { Vec::new() } else { vec![arch.to_owned()] };
        render(&Image { kind, architectures, tag: tag.map(str::to_owned) })
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    assert!(image(Kind::DeepepEfa, "8.0", None).unwrap_err().contains("9.0 is Hopper"));
    assert!(image(Kind::Expertrail, "9.0", None).unwrap_err().contains("takes no architecture"));
    for tag in ["a b", "$(reboot)", "", "-f"] {
        assert!(image(Kind::Expertrail, "", Some(tag)).unwrap_err().contains("is no image name"), "{tag}");
    }
    assert_eq!(image(Kind::Expertrail, "", Some("registry.example:5000/a/expertrail@sha256:0")), Ok(()));
    assert!("deepep".parse::<Kind>().unwrap_err().contains("deepep-infiniband, deepep-efa, deepep-564"));
}

/// `EXPERTRAIL_WRITE_GOLDEN=1` writes them anew; read the difference before it is committed.
#[test]
fn golden_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/image");
    let cases: [(&str, Kind, &[&str]); 5] = [
        ("expertrail", Kind::Expertrail, &[]),
        ("deepep-infiniband-h200", Kind::DeepepInfiniband, &["9.0"]),
        ("deepep-infiniband-b200", Kind::DeepepInfiniband, &["10.0"]),
        ("deepep-efa", Kind::DeepepEfa, &[]),
        ("deepep-564", Kind::Deepep564, &[]),
    ];
    for (name, kind, architectures) in cases {
        let (text, build) = rendered(kind, architectures);
        for (file, text) in [("Containerfile", text), ("build.sh", build)] {
            let path = folder.join(name).join(file);
            if std::env::var_os("EXPERTRAIL_WRITE_GOLDEN").is_some() {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, &text).unwrap();
            }
            assert_eq!(fs::read_to_string(&path).unwrap_or_default(), text, "{}", path.display());
        }
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn program(folder: &Path, name: &str, body: &str) {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{body}")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn linters() {
    let folder = tempfile::TempDir::new().unwrap();
    let hadolint = std::env::var_os("EXPERTRAIL_HADOLINT");
    for kind in Kind::ALL {
        let (text, build) = rendered(kind, &[]);
        let at = |name: &str| folder.path().join(name);
        fs::write(at("Containerfile"), &text).unwrap();
        fs::write(at("build.sh"), build).unwrap();
        match Command::new("shellcheck").arg(at("build.sh")).output() {
            Ok(done) => assert!(done.status.success(), "{kind}: {}", said(&done)),
            Err(error) => eprintln!("NOT RUN: shellcheck on build.sh of {kind}: {error}"),
        }
        let Some(hadolint) = &hadolint else {
            eprintln!(
                "NOT RUN: hadolint on {kind}: EXPERTRAIL_HADOLINT does not name it (scripts/hadolint installs it)"
            );
            continue;
        };
        let lint = |text: &str| {
            fs::write(at("Containerfile"), text).unwrap();
            Command::new(hadolint).arg("--no-color").arg(at("Containerfile")).output().unwrap()
        };
        let done = lint(&text);
        assert!(done.status.success(), "{kind}: {}", said(&done));
        // It can fail.
        assert!(!lint(&text.replace("RUN ", "RUM ")).status.success(), "{kind}");
    }
}

/// `build.sh` with a docker that prints what it is given.
#[test]
fn the_building_script() {
    let folder = tempfile::TempDir::new().unwrap();
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    program(&bin, "docker", "echo \"kit $DOCKER_BUILDKIT:\" \"$@\"\n");
    program(folder.path(), "binary", "exit 0\n");
    let run = |kind: Kind, env: &[(&str, &str)]| {
        let place = folder.path().join(kind.name());
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("build.sh"), rendered(kind, &[]).1).unwrap();
        let path = format!("{}:/usr/bin:/bin", bin.display());
        let mut command = Command::new("/bin/bash");
        command.arg(place.join("build.sh")).args(["--build-arg", "MAX_JOBS=4"]).env_clear().env("PATH", path);
        command.envs(env.iter().copied()).output().unwrap()
    };
    let binary = folder.path().join("binary").display().to_string();
    let none = run(Kind::Expertrail, &[]);
    assert_eq!(none.status.code(), Some(2), "{none:?}");
    assert!(said(&none).contains("no expertrail binary: name it with EXPERTRAIL_BINARY"), "{none:?}");
    let gone = run(Kind::Expertrail, &[("EXPERTRAIL_BINARY", "/nonexistent")]);
    assert!(said(&gone).contains("no expertrail binary at /nonexistent"), "{gone:?}");
    let good = run(Kind::Expertrail, &[("EXPERTRAIL_BINARY", &binary), ("TAG", "me/e:1")]);
    assert_eq!(said(&good).trim(), "kit 1: build -f Containerfile -t me/e:1 --build-arg MAX_JOBS=4 .");
    assert!(folder.path().join("expertrail/expertrail").exists());
    let efa = run(Kind::DeepepEfa, &[("EXPERTRAIL_BINARY", &binary)]);
    assert_eq!(efa.status.code(), Some(2), "{efa:?}");
    assert!(said(&efa).contains("SETUP_SHA256 is not set"), "{efa:?}");
    let sum = run(Kind::DeepepEfa, &[("EXPERTRAIL_BINARY", &binary), ("SETUP_SHA256", "12ab")]);
    assert!(
        said(&sum).contains("-t deepep:efa1.48.0 --build-arg SETUP_SHA256=12ab --build-arg MAX_JOBS=4 ."),
        "{sum:?}"
    );
}

/// Our own image's tree: what its Containerfile copies, on nothing but a shell and the C library that the binary asks for.
/// `EXPERTRAIL_BINARY` names the binary; needs root for chroot.
#[test]
fn our_own_image_starts_in_a_chroot() {
    let Some(binary) = std::env::var_os("EXPERTRAIL_BINARY").map(PathBuf::from) else {
        eprintln!("NOT RUN: EXPERTRAIL_BINARY does not name a binary of expertrail");
        return;
    };
    let root = tempfile::TempDir::new().unwrap();
    let copy = |from: &Path, to: &str| {
        let to = root.path().join(to.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, &to).unwrap();
    };
    let (text, _) = rendered(Kind::Expertrail, &[]);
    let all = instructions(&text);
    let copies: Vec<(&str, &str)> =
        all.iter().filter(|(word, _)| word == "COPY").filter_map(|(_, rest)| rest.split_once(' ')).collect();
    assert_eq!(copies, [("expertrail", "/usr/local/bin/expertrail")], "one binary, nothing else");
    copy(&binary, copies[0].1);
    // The base: a shell, and the loader and libraries of both.
    copy(Path::new("/bin/sh"), "/bin/sh");
    for program in [binary.as_path(), Path::new("/bin/sh")] {
        let listed = Command::new("ldd").arg(program).output().unwrap();
        for library in said(&listed).split_whitespace().filter(|word| word.starts_with('/')) {
            // Only the C library's own: anything else the base would not have.
            let name = Path::new(library).file_name().unwrap().to_str().unwrap();
            let known = ["libc.", "libm.", "libdl.", "libpthread.", "librt.", "libgcc_s.", "ld-linux"];
            assert!(
                known.iter().any(|known| name.starts_with(known)),
                "{} needs {library}",
                program.display()
            );
            copy(Path::new(library), library);
        }
    }
    let inside =
        |argv: &[&str]| Command::new("/usr/sbin/chroot").arg(root.path()).args(argv).env_clear().output();
    let version = match inside(&["/usr/local/bin/expertrail", "--version"]) {
        Ok(done) if said(&done).contains("Operation not permitted") => {
            eprintln!("NOT RUN: chroot needs root");
            return;
        }
        done => done.unwrap(),
    };
    assert!(version.status.success() && said(&version).starts_with("expertrail "), "{version:?}");
    // The image's own last step, as its builder would run it.
    let gate = &all.last().unwrap().1;
    let done = inside(&["/bin/sh", "-c", &format!("PATH=/usr/local/bin; {gate}")]).unwrap();
    assert!(done.status.success() && said(&done).contains("UNVERIFIED"), "{done:?}");
}

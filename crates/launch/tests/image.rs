//! Containerfiles: the facts they fix, golden files, the linter, and our own image's tree started in a chroot.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

#[path = "image/building.rs"]
mod building;
#[path = "image/common.rs"]
mod common;
#[path = "image/steps.rs"]
mod steps;

use std::fs;
use std::path::Path;
use std::process::Command;

use expertrail_cluster::stack::{self, Judgement, Question};
use expertrail_launch::render::image::{Image, ImageError, Kind, render};

use common::{arguments, folder_of, instructions, program, readme, rendered, said};

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

#[test]
fn checklist_24_private_registries() {
    let build = readme(Kind::DeepepInfiniband);
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
    // The commit whose script takes the arguments below; at e8c0765 a script of the same name takes others.
    assert_eq!(args["SETUP_COMMIT"], "61b67c2849bc45d5d2afbf842c1cac75f44816e0");
    // Where a run with `driver = "upstream-tests"` looks for them.
    has("section 2", &text, "--deepep-prefix /DeepEP ");
    assert!(build.contains("SETUP_SHA256 is not set"));
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
        has(
            "47",
            &rendered(kind, &[]).0,
            r#"readelf -d "$library" | grep 'NEEDED.*libnvshmem_host' > /dev/null"#,
        );
    }
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
            Kind::DeepepEfa => "expertrail stack --source-root /DeepEP --transport efa",
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
        let files = folder_of(kind, architectures);
        for file in ["README.txt", "Containerfile", "build.sh"] {
            let text = files.get(file).unwrap().text.clone();
            let path = folder.join(name).join(file);
            if std::env::var_os("EXPERTRAIL_WRITE_GOLDEN").is_some() {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, &text).unwrap();
            }
            assert_eq!(fs::read_to_string(&path).unwrap_or_default(), text, "{}", path.display());
        }
    }
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

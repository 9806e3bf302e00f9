//! What is rendered, and what all scripts share.

use expertrail_launch::render::host_setup::{Options, render};
use tempfile::TempDir;

use crate::machine::{Place, each};
use crate::scripts::{golden, shellcheck, text};

#[test]
fn golden_files() {
    let files = render(&Options::default());
    for file in ["README.md", "settings.sh"] {
        golden("host-setup/default", file, text(&files, file));
    }
    let options = Options {
        cuda: "/opt/cuda 13".to_owned(),
        arch: Some("10.0".to_owned()),
        nvshmem: None,
        gdrcopy_commit: Some("0123456789abcdef0123456789abcdef01234567".to_owned()),
        ..Options::default()
    };
    golden("host-setup/blackwell", "settings.sh", text(&render(&options), "settings.sh"));
}

#[test]
fn scripts_are_numbered_and_pass_shellcheck() {
    let files = render(&Options::default());
    let programs: Vec<&str> =
        files.files.iter().filter(|file| file.executable).map(|file| file.path.as_str()).collect();
    assert_eq!(
        programs,
        [
            "10-driver-options.sh",
            "20-gdrcopy.sh",
            "30-nvshmem.sh",
            "40-nvshmem-link.sh",
            "50-arch.sh",
            "60-memlock.sh",
            "70-runtime-restart.sh",
            "all.sh"
        ]
    );
    let folder = TempDir::new().unwrap();
    files.write(folder.path()).unwrap();
    shellcheck(folder.path());
}

#[test]
fn usage_and_absent_commands() {
    each(|machine| {
        for script in ["10-driver-options.sh", "20-gdrcopy.sh", "60-memlock.sh", "all.sh"] {
            machine.run(script, "").ended(2).says("apply|verify");
            machine.run(script, "remove").ended(2).says("apply|verify");
        }
        machine.run("60-memlock.sh", "apply --force").ended(2).says("unknown argument --force");
        // A bare machine: each says in a sentence what it lacks.
        machine.run("10-driver-options.sh", "apply").ended(3).says("neither update-initramfs nor dracut");
        machine
            .run("20-gdrcopy.sh", "apply")
            .ended(3)
            .says("there is no command nvcc on this machine: install the CUDA toolkit");
        machine.run("30-nvshmem.sh", "verify").ended(3).says("there is no command nvcc");
        machine.run("40-nvshmem-link.sh", "apply").ended(3).says("there is no command python3");
        machine.run("50-arch.sh", "apply").ended(3).says("give ARCH=9.0 (Hopper) or ARCH=10.0 (Blackwell)");
        machine.run("70-runtime-restart.sh", "apply --yes").ended(3).says("there is no command systemctl");
        // `all` stops at the first.
        machine
            .run("all.sh", "apply")
            .ended(3)
            .says("10-driver-options.sh ended with exit code 3; the scripts after it were not run");
        machine
            .run("all.sh", "verify")
            .ended(1)
            .says("not in order: 10-driver-options.sh 20-gdrcopy.sh 30-nvshmem.sh");
    });
}

/// Without root nothing is attempted.
#[test]
fn apply_wants_root() {
    each(|machine| {
        if machine.place() == Place::Chroot {
            machine.command("id", "echo 1000");
            machine.run("50-arch.sh", "apply").ended(4).says("must run as root");
            assert!(!machine.at("etc/profile.d").exists());
        }
    });
}

//! Driver options and `GDRCopy`.

use crate::machine::{Machine, each};

const CONF: &str = "/etc/modprobe.d/zz-nvidia-expertrail.conf";
const LINE: &str =
    "options nvidia NVreg_EnableStreamMemOPs=1 NVreg_RegistryDwords=\"PeerMappingOverride=1;\"";

fn active(machine: &Machine, stream: &str, dwords: &str) {
    machine.write(
        "/proc/driver/nvidia/params",
        &format!("EnableMSI: 1\nEnableStreamMemOPs: {stream}\nRegistryDwords: \"{dwords}\"\n"),
    );
}

/// Checklist 8 and 13: the line of modprobe.d with `options nvidia` in front, the initramfs, once.
#[test]
fn checklist_13_driver_options() {
    each(|machine| {
        machine.command("update-initramfs", "exit 0");
        machine.applies_once("10-driver-options.sh", &["update-initramfs"]);
        assert!(machine.read(CONF).lines().any(|line| line == LINE), "{}", machine.read(CONF));
        assert_eq!(machine.read("/etc/modules-load.d/expertrail-gpudirect.conf"), "nvidia_peermem\n");
        assert_eq!(machine.calls(), ["update-initramfs -u -k all"]);
        // Its own file is read last, so that its values stand.
        assert!(CONF.rsplit('/').next().unwrap() > "nvidia.conf");
    });
}

#[test]
fn checklist_13_dracut_on_the_red_hat_family_and_a_failed_initramfs_is_made_again() {
    each(|machine| {
        machine.command("dracut", "[ -e \"$STATE_DIR/works\" ]");
        machine.run("10-driver-options.sh", "apply").ended(1).says("dracut failed");
        machine.write("/stand-in-state/works", "");
        // The files are there already; the initramfs is not.
        machine
            .run("10-driver-options.sh", "apply")
            .ended(0)
            .says("made the initramfs anew")
            .says("STOP AND START");
        assert_eq!(machine.calls(), ["dracut -f --regenerate-all", "dracut -f --regenerate-all"]);
    });
}

/// Checklist 13: a full restart: configured is not active.
#[test]
fn checklist_13_configured_but_not_active() {
    each(|machine| {
        machine.command("update-initramfs", "exit 0");
        machine.run("10-driver-options.sh", "verify").ended(1).says("does not have the options");
        machine.run("10-driver-options.sh", "apply").ended(0).says("NOW STOP AND START THE MACHINE");
        machine.write(
            "/proc/modules",
            "nvidia_peermem 16384 0 - Live 0x0\nnvidia 1 1 nvidia_peermem, Live 0x0\n",
        );
        machine.run("10-driver-options.sh", "verify").ended(1).says("no NVIDIA driver is loaded");
        active(&machine, "0", "");
        machine
            .run("10-driver-options.sh", "verify")
            .ended(1)
            .says("configured but not active: EnableStreamMemOPs PeerMappingOverride. The loaded driver has the old options: stop and start the machine");
        active(&machine, "10", "RMX=1;PeerMappingOverride=1");
        machine
            .run("10-driver-options.sh", "verify")
            .ended(1)
            .says("configured but not active: EnableStreamMemOPs. ");
        active(&machine, "1", "PeerMappingOverride=10");
        machine
            .run("10-driver-options.sh", "verify")
            .ended(1)
            .says("configured but not active: PeerMappingOverride. ");
        active(&machine, "1", "RMX=1;PeerMappingOverride=1");
        machine.run("10-driver-options.sh", "verify").ended(0).says("10-driver-options: ok");
        machine.write("/proc/modules", "nvidia 1 1 nvidia_peermem, Live 0x0\n");
        machine.run("10-driver-options.sh", "verify").ended(1).says("nvidia_peermem is not loaded");
    });
}

/// Options of other files: what would be hidden or would hide ours is named with its line, and nothing is written.
#[test]
fn options_of_other_files() {
    each(|mut machine| {
        machine.command("update-initramfs", "exit 0");
        machine.write(
            "/etc/modprobe.d/site.conf",
            "# ours\noptions nvidia-drm modeset=1\noptions nvidia NVreg_EnableStreamMemOPs=0\n",
        );
        machine
            .run("10-driver-options.sh", "apply")
            .ended(1)
            .says("/etc/modprobe.d/site.conf:3 sets another value");
        machine.write("/etc/modprobe.d/site.conf", "options nvidia NVreg_RegistryDwords=\"RMX=2;\"\n");
        machine
            .run("10-driver-options.sh", "apply")
            .ended(1)
            .says("/etc/modprobe.d/site.conf:1 has other RegistryDwords");
        assert!(!machine.at(CONF).exists());
        // The same values are no conflict; a line without `options nvidia` does nothing, and that is said.
        machine.write("/etc/modprobe.d/site.conf", "options nvidia NVreg_EnableStreamMemOPs=1 NVreg_RegistryDwords=PeerMappingOverride=1\nNVreg_EnableStreamMemOPs=0\n");
        machine
            .run("10-driver-options.sh", "apply")
            .ended(0)
            .says("WARNING: /etc/modprobe.d/site.conf:2 has no `options nvidia` in front");
        // Entries that must stay are in the one value that the driver takes.
        machine.write("/etc/modprobe.d/site.conf", "options nvidia NVreg_RegistryDwords=\"RMX=2;\"\n");
        machine.set("DWORDS", "RMX=2");
        machine.run("10-driver-options.sh", "apply").ended(0);
        assert!(
            machine.read(CONF).contains("NVreg_RegistryDwords=\"PeerMappingOverride=1;RMX=2;\""),
            "{}",
            machine.read(CONF)
        );
    });
}

const COMMIT: &str = "1111111111111111111111111111111111111111";

/// A machine on which GDRCopy can be built: git, the build script, dpkg.
fn builds(machine: &Machine) {
    machine.command("nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.88'");
    machine.command("debuild", "exit 0");
    machine.command(
        "git",
        &format!(
            r#"case "$*" in
*clone*) for last; do :; done; mkdir -p "$last/packages"
    printf '#!/bin/bash\n[ -n "$CUDA" ] || exit 9\nfor p in gdrdrv-dkms libgdrapi gdrcopy-tests gdrcopy; do : >"${{p}}_2.5.1-1_amd64.deb"; done\n' >"$last/packages/build-deb-packages.sh"
    chmod +x "$last/packages/build-deb-packages.sh" ;;
*rev-parse*) cat "$STATE_DIR/commit" 2>/dev/null || echo {COMMIT} ;;
*describe*) cat "$STATE_DIR/tag" 2>/dev/null || echo v2.5.1 ;;
esac"#
        ),
    );
    machine.command(
        "dpkg",
        r#"for file in "$@"; do case $file in *.deb) [ -f "$file" ] || exit 1; name=${file##*/}; echo 2.5.1-1 >"$STATE_DIR/package-${name%%_*}" ;; esac; done"#,
    );
    machine.command(
        "dpkg-query",
        r#"for last; do :; done; [ -f "$STATE_DIR/package-$last" ] || exit 1; echo "install ok installed|$(cat "$STATE_DIR/package-$last")""#,
    );
    machine.command("modprobe", r#"[ ! -e "$STATE_DIR/modprobe-fails" ]"#);
    machine.command(
        "gdrcopy_sanity",
        r#"cat "$STATE_DIR/sanity"; exit "$(cat "$STATE_DIR/sanity-code" 2>/dev/null || echo 0)""#,
    );
}

/// Checklist 13: clone by tag, build with CUDA, install four packages, load gdrdrv.
#[test]
fn checklist_13_gdrcopy_is_built_and_installed() {
    each(|machine| {
        builds(&machine);
        machine.run("20-gdrcopy.sh", "apply").ended(0).says("built and installed v2.5.1").says(COMMIT);
        let calls = machine.calls();
        let clone = calls.iter().find(|call| call.contains("clone")).unwrap();
        assert!(clone.contains("--branch v2.5.1 https://github.com/NVIDIA/gdrcopy.git "), "{clone}");
        let install = calls.iter().find(|call| call.starts_with("dpkg -i ")).unwrap();
        let names: Vec<&str> =
            install.split_whitespace().skip(2).map(|file| file.rsplit('/').next().unwrap()).collect();
        assert_eq!(
            names,
            [
                "gdrdrv-dkms_2.5.1-1_amd64.deb",
                "libgdrapi_2.5.1-1_amd64.deb",
                "gdrcopy-tests_2.5.1-1_amd64.deb",
                "gdrcopy_2.5.1-1_amd64.deb"
            ]
        );
        assert!(calls.contains(&"modprobe gdrdrv".to_owned()));
        assert_eq!(machine.read("/etc/modules-load.d/expertrail-gdrdrv.conf"), "gdrdrv\n");
        // Once the device is there, nothing is left to do.
        machine.device("/dev/gdrdrv");
        machine.run("20-gdrcopy.sh", "apply").ended(0).says("unchanged: nothing to do");
        assert!(
            !machine.calls()[calls.len()..]
                .iter()
                .any(|call| ["git", "dpkg ", "modprobe"].iter().any(|word| call.starts_with(word)))
        );
    });
}

/// The tag must be a tag, and the commit that it was.
#[test]
fn gdrcopys_commit_is_checked() {
    each(|mut machine| {
        builds(&machine);
        machine.write("/stand-in-state/tag", "v2.5.1-3-gabcdef\n");
        machine.run("20-gdrcopy.sh", "apply").ended(1).says("is not the tag v2.5.1");
        machine.remove("/stand-in-state/tag");
        machine.set("GDRCOPY_COMMIT", "2222222222222222222222222222222222222222");
        machine.run("20-gdrcopy.sh", "apply").ended(1).says("it must be 2222").says("Nothing was built");
        assert!(!machine.calls().iter().any(|call| call.starts_with("dpkg -i")));
        machine.set("GDRCOPY_COMMIT", "");
        machine.run("20-gdrcopy.sh", "apply").ended(0).says("held to it from now on");
        // A tag that was moved since.
        machine.remove("/stand-in-state/package-gdrcopy");
        machine.write("/stand-in-state/commit", "3333333333333333333333333333333333333333\n");
        machine.run("20-gdrcopy.sh", "apply").ended(1).says("the tag was moved");
        machine.write("/stand-in-state/modprobe-fails", "");
        machine.write("/stand-in-state/commit", COMMIT);
        machine.run("20-gdrcopy.sh", "apply").ended(1).says("modprobe gdrdrv failed");
    });
}

/// Checklist 13: /dev/gdrdrv exists and `gdrcopy_sanity` passes.
#[test]
fn checklist_13_gdrcopy_sanity() {
    each(|machine| {
        builds(&machine);
        machine
            .run("20-gdrcopy.sh", "verify")
            .ended(1)
            .says("not installed in version 2.5 or newer: gdrdrv-dkms libgdrapi gdrcopy-tests gdrcopy");
        machine.run("20-gdrcopy.sh", "apply").ended(0);
        machine.run("20-gdrcopy.sh", "verify").ended(1).says("/dev/gdrdrv is not there");
        machine.write("/dev/gdrdrv", "");
        machine.write("/stand-in-state/sanity", "Total: 28, Passed: 28, Failed: 0, Waived: 0\n");
        machine.run("20-gdrcopy.sh", "verify").ended(1).says("/dev/gdrdrv is no character device");
        machine.remove("/dev/gdrdrv");
        machine.device("/dev/gdrdrv");
        machine.run("20-gdrcopy.sh", "verify").ended(0).says("Total: 28, Passed: 28, Failed: 0, Waived: 0");
        // A line that was published for a pair of versions that does not work.
        machine.write("/stand-in-state/sanity", "Total: 28, Passed: 24, Failed: 2, Waived: 2\n");
        machine.run("20-gdrcopy.sh", "verify").ended(1).says("2 of 28 failed");
        machine.write("/stand-in-state/sanity", "Total: 28, Passed: 26, Failed: 0, Waived: 2\n");
        machine.run("20-gdrcopy.sh", "verify").ended(0);
        machine.write("/stand-in-state/sanity", "Total: 28, Passed: 0, Failed: 0, Waived: 28\n");
        machine.run("20-gdrcopy.sh", "verify").ended(1);
        machine.write("/stand-in-state/sanity", "gdr_open error: is gdrdrv installed and loaded?\n");
        machine.run("20-gdrcopy.sh", "verify").ended(1).says("printed no summary");
        machine.write("/stand-in-state/sanity", "Total: 28, Passed: 28, Failed: 0, Waived: 0\n");
        machine.write("/stand-in-state/sanity-code", "139");
        machine.run("20-gdrcopy.sh", "verify").ended(1).says("exit code 139");
        machine.write("/stand-in-state/sanity-code", "0");
        machine.write("/stand-in-state/package-gdrdrv-dkms", "2.4.4-1\n");
        machine
            .run("20-gdrcopy.sh", "verify")
            .ended(1)
            .says("not installed in version 2.5 or newer: gdrdrv-dkms (");
        machine.write("/stand-in-state/package-gdrdrv-dkms", "2.10-1\n");
        machine.run("20-gdrcopy.sh", "verify").ended(0);
        // Built for the proprietary driver beside the open one.
        machine.write(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n",
        );
        machine.command("modinfo", "echo nv-p2p-dummy");
        machine.run("20-gdrcopy.sh", "verify").ended(1).says("built for the proprietary driver");
        machine.command("modinfo", "echo nvidia");
        machine.run("20-gdrcopy.sh", "verify").ended(0);
    });
}

//! Locked memory, and the restart of the container runtime.

use expertrail_launch::render::driver_config::{Managed, Options, render};

use crate::machine::{Machine, each};

const DROP_IN: &str = "/etc/systemd/system/containerd.service.d/expertrail-memlock.conf";

/// systemd with units; what it says of containerd comes from files. A restart gives the process the limit that is configured.
fn systemd(machine: &Machine, units: &str) {
    machine.command(
        "systemctl",
        &format!(
            r#"R=${{ROOT:-}}
case $1 in
cat) case " {units} " in *" ${{2%.service}} "*) ;; *) exit 1 ;; esac ;;
show) case $4 in
    LimitMEMLOCK) if [ -e "$STATE_DIR/reloaded" ] && [ -f "$R/etc/systemd/system/$2.d/expertrail-memlock.conf" ]; then echo LimitMEMLOCK=infinity; else echo LimitMEMLOCK=8388608; fi ;;
    MainPID) echo MainPID=777 ;;
    esac ;;
daemon-reload) : >"$STATE_DIR/reloaded" ;;
restart) [ ! -e "$STATE_DIR/restart-fails" ] || exit 1
    [ ! -e "$STATE_DIR/reloaded" ] || cp "$STATE_DIR/new-limits" "$R/proc/777/limits" 2>/dev/null || cat "$STATE_DIR/new-limits" >"$R/proc/777/limits" ;;
is-active) echo active ;;
esac"#
        ),
    );
    machine.write("/proc/777/limits", "Limit                     Soft Limit           Hard Limit           Units\nMax locked memory         8388608              8388608              bytes\n");
    machine.write(
        "/stand-in-state/new-limits",
        "Max locked memory         unlimited            unlimited            bytes\n",
    );
}

/// A cluster with this machine as node-1; pods on it are the lines of `pods`.
fn cluster(machine: &Machine) {
    machine.command("hostname", "echo node-1");
    machine.command(
        "kubectl",
        r#"case "$*" in
*'get node '*Ready*) echo "$(cat "$STATE_DIR/cordoned" 2>/dev/null)|True" ;;
*'get node '*) cat "$STATE_DIR/cordoned" 2>/dev/null || true ;;
*'get pods'*) cat "$STATE_DIR/pods" 2>/dev/null || true ;;
*--dry-run*) echo "evicting pod jobs/web (dry run)" ;;
*drain*) printf true >"$STATE_DIR/cordoned"; [ ! -e "$STATE_DIR/drain-fails" ] || { echo "cannot delete Pods with local storage" >&2; exit 1; } ;;
*uncordon*) rm -f "$STATE_DIR/cordoned" ;;
esac"#,
    );
}

/// Calls that change something, in order.
fn changing(machine: &Machine) -> Vec<String> {
    let words = ["kubectl drain", "kubectl uncordon", "systemctl daemon-reload", "systemctl restart"];
    let mut calls = machine.calls();
    calls.retain(|call| words.iter().any(|word| call.starts_with(word)) && !call.contains("--dry-run"));
    calls
}

/// Checklist 14: unlimited, for logins and for the daemons that this machine has.
#[test]
fn checklist_14_limits_and_drop_ins() {
    each(|machine| {
        systemd(&machine, "containerd slurmd");
        machine
            .run("60-memlock.sh", "verify")
            .ended(1)
            .says("90-expertrail-memlock.conf does not lift the limit");
        machine.applies_once("60-memlock.sh", &["systemctl daemon-reload"]);
        let limits = machine.read("/etc/security/limits.d/90-expertrail-memlock.conf");
        for line in [
            "* soft memlock unlimited",
            "* hard memlock unlimited",
            "root soft memlock unlimited",
            "root hard memlock unlimited",
        ] {
            assert!(limits.lines().any(|one| one == line), "{limits}");
        }
        assert_eq!(machine.read(DROP_IN), "[Service]\nLimitMEMLOCK=infinity\n");
        assert_eq!(
            machine.read("/etc/systemd/system/slurmd.service.d/expertrail-memlock.conf"),
            "[Service]\nLimitMEMLOCK=infinity\n"
        );
        // The running daemon has the old limit until it is restarted.
        machine
            .run("60-memlock.sh", "verify")
            .ended(1)
            .says("the running containerd (process 777) has another limit")
            .says("configured but not active");
        machine.write("/proc/777/limits", &machine.read("/stand-in-state/new-limits"));
        let done = machine.run("60-memlock.sh", "verify").lacks("running containerd");
        // Whether this very process may lock memory is this machine's matter.
        assert!(done.code == 0 || done.err.contains("ulimit -l is"), "{}", done.err);
    });
    each(|machine| {
        systemd(&machine, "containerd");
        machine.run("60-memlock.sh", "apply").ended(0);
        assert!(!machine.at("/etc/systemd/system/slurmd.service.d").exists());
    });
}

/// Checklist 14: drain -> drop-in -> restart -> uncordon, with --yes only.
#[test]
fn checklist_14_the_runtime_is_restarted_on_a_drained_node() {
    each(|machine| {
        systemd(&machine, "containerd");
        cluster(&machine);
        machine.run("70-runtime-restart.sh", "verify").ended(1).says("has another limit");
        machine
            .run("70-runtime-restart.sh", "apply")
            .ended(3)
            .says("would drain node-1")
            .says("evicting pod jobs/web")
            .says("nothing was changed");
        assert!(changing(&machine).is_empty());
        assert!(!machine.at(DROP_IN).exists());
        machine.run("70-runtime-restart.sh", "apply --yes").ended(0).says("restarted containerd");
        assert_eq!(
            changing(&machine),
            [
                "kubectl drain node-1 --ignore-daemonsets --timeout=600s",
                "systemctl daemon-reload",
                "systemctl restart containerd.service",
                "kubectl uncordon node-1"
            ]
        );
        assert_eq!(machine.read(DROP_IN), "[Service]\nLimitMEMLOCK=infinity\n");
        machine.run("70-runtime-restart.sh", "verify").ended(0);
        // A second time: nothing to do, and no drain.
        machine.run("70-runtime-restart.sh", "apply --yes").ended(0).says("unchanged: nothing to do");
        assert_eq!(changing(&machine).len(), 4);
    });
}

#[test]
fn checklist_14_what_stops_the_restart() {
    each(|machine| {
        systemd(&machine, "containerd");
        cluster(&machine);
        // A qualification test is never ended.
        machine.write("/stand-in-state/pods", "jobs/web\nplatform/node-burn-in-7\n");
        machine
            .run("70-runtime-restart.sh", "apply --yes")
            .ended(1)
            .says("a qualification test runs on node-1")
            .says("platform/node-burn-in-7");
        assert!(changing(&machine).is_empty());
        machine.write("/stand-in-state/pods", "jobs/web\n");
        // A drain that is refused: nothing is restarted, and the node takes pods again.
        machine.write("/stand-in-state/drain-fails", "");
        machine
            .run("70-runtime-restart.sh", "apply --yes")
            .ended(1)
            .says("cannot delete Pods with local storage")
            .says("the node takes pods again");
        assert!(!machine.calls().iter().any(|call| call.starts_with("systemctl restart")));
        assert!(!machine.at("/stand-in-state/cordoned").exists());
        machine.remove("/stand-in-state/drain-fails");
        // A restart that fails: the node stays drained, and that is said.
        machine.write("/stand-in-state/restart-fails", "");
        machine
            .run("70-runtime-restart.sh", "apply --yes")
            .ended(1)
            .says("did not restart; the node is still drained");
        machine.run("70-runtime-restart.sh", "verify").ended(1).says("node node-1 is cordoned");
        machine.remove("/stand-in-state/restart-fails");
        // It was cordoned before: it is not uncordoned.
        machine.run("70-runtime-restart.sh", "apply --yes").ended(0).says("was cordoned before and stays so");
        assert!(!changing(&machine).last().unwrap().contains("uncordon"));
    });
    each(|machine| {
        systemd(&machine, "containerd");
        machine
            .run("70-runtime-restart.sh", "apply --yes")
            .ended(3)
            .says("there is no command kubectl")
            .says("--drained");
        machine.run("70-runtime-restart.sh", "apply --drained").ended(3).says("nothing was changed");
        machine
            .run("70-runtime-restart.sh", "apply --drained --yes")
            .ended(0)
            .says("the node can be uncordoned now");
        assert_eq!(changing(&machine), ["systemctl daemon-reload", "systemctl restart containerd.service"]);
        // Another drop-in that wins: the restart does not give what was wanted.
        machine.write(
            "/proc/777/limits",
            "Max locked memory         65536                65536                bytes\n",
        );
        machine.write(
            "/stand-in-state/new-limits",
            "Max locked memory         65536                65536                bytes\n",
        );
        machine
            .run("70-runtime-restart.sh", "apply --drained --yes")
            .ended(1)
            .says("still has another limit");
    });
    each(|machine| {
        systemd(&machine, "crio");
        machine
            .run("70-runtime-restart.sh", "apply --yes")
            .ended(1)
            .says("systemd knows no containerd.service: give RUNTIME=");
    });
}

/// All scripts together: nothing drains by itself, and a second round changes nothing.
#[test]
fn all_scripts_in_order() {
    each(|mut machine| {
        systemd(&machine, "containerd");
        machine.set("ARCH", "9.0");
        machine.command("update-initramfs", "exit 0");
        machine.command("dpkg-query", "echo 'install ok installed|2.5.1-1'");
        machine.command("nvcc", "echo 'release 13.0, V13.0.88'");
        machine.command("ldconfig", "[ \"${1:-}\" != -p ] || printf '\\tlibnvshmem_host.so.3 (libc6,x86-64) => /n/lib/libnvshmem_host.so.3\\n'");
        machine.command("python3", "case $2 in *metadata*) [ \"$3\" != nvidia-nvshmem-cu13 ] || echo 3.4.5 ;; *'\"lib\"'*) printf /n/lib ;; *) printf /n ;; esac");
        machine.write("/n/lib/libnvshmem_host.so.3", "");
        machine.device("/dev/gdrdrv");
        machine
            .run("all.sh", "apply")
            .ended(0)
            .says("70-runtime-restart.sh is left out")
            .says("Stop and start the machine");
        assert!(changing(&machine).iter().all(|call| call == "systemctl daemon-reload"));
        machine.run("all.sh", "apply").ended(0).lacks("applied\n").lacks("wrote ");
        // What driver-config gives as files for a host is what the scripts have written.
        let options = Options { managed: Managed::Host, ..Options::default() };
        let files = render(&options).unwrap().files;
        let files: Vec<_> =
            files.iter().filter_map(|file| Some((file.path.strip_prefix("files")?, &file.text))).collect();
        assert_eq!(files.len(), 5);
        for (path, text) in files {
            assert_eq!(&machine.read(path), text, "{path}");
        }
    });
}

//! NVSHMEM's package, the linker, the link, and the architecture.

use std::fs;
use std::process::Command;

use crate::machine::{Machine, Place, each};
use crate::scripts::Done;

const HOME: &str = "/opt/py/lib/nvidia/nvshmem";

/// A machine with CUDA of a major version, a Python whose packages are files, and a linker that reads ld.so.conf.d.
fn machine_with(machine: &Machine, release: &str) {
    machine.command("nvcc", &format!("echo 'nvcc: NVIDIA (R) Cuda compiler driver'; echo 'Cuda compilation tools, release {release}, V{release}.88'"));
    machine.command(
        "python3",
        &format!(
            r#"R=${{ROOT:-}}
case "$1 $3" in
"-m install"*) name=$5; version=${{name#*==}}; [ "$version" != "$name" ] || version=3.8.0
    [ ! -e "$STATE_DIR/pip-fails" ] || exit 1
    echo "$version" >"$STATE_DIR/wheel-${{name%%==*}}"; mkdir -p "$R{HOME}/lib"; : >"$R{HOME}/lib/libnvshmem_host.so.3" ;;
*)  case $2 in
    *metadata*) [ ! -f "$STATE_DIR/wheel-$3" ] || cat "$STATE_DIR/wheel-$3" ;;
    *'"lib"'*) [ ! -d "$R{HOME}" ] || printf '%s' '{HOME}/lib' ;;
    *) [ ! -d "$R{HOME}" ] || printf '%s' '{HOME}' ;;
    esac ;;
esac"#
        ),
    );
    machine.command(
        "ldconfig",
        r#"R=${ROOT:-}
if [ "${1:-}" = -p ]; then
    while read -r folder; do [ ! -e "$R$folder/libnvshmem_host.so.3" ] || printf '\tlibnvshmem_host.so.3 (libc6,x86-64) => %s/libnvshmem_host.so.3\n' "$folder"; done <"$STATE_DIR/cache"
else
    cat "$R"/etc/ld.so.conf.d/*.conf >"$STATE_DIR/cache"
fi"#,
    );
    machine.write("/stand-in-state/cache", "");
}

/// Checklist 15: the package of the CUDA major, and the linker finds it.
#[test]
fn checklist_15_the_package_matches_the_cuda_major() {
    for (release, package) in [("12.9", "nvidia-nvshmem-cu12"), ("13.0", "nvidia-nvshmem-cu13")] {
        each(|machine| {
            machine_with(&machine, release);
            machine.run("30-nvshmem.sh", "verify").ended(1).says(&format!("{package} is not installed"));
            machine.applies_once("30-nvshmem.sh", &["python3 -m pip", "ldconfig"]);
            let calls = machine.calls();
            let pip = calls.iter().find(|call| call.starts_with("python3 -m pip")).unwrap();
            assert_eq!(pip, &format!("python3 -m pip install --quiet {package}==3.4.5"));
            assert_eq!(machine.read("/etc/ld.so.conf.d/expertrail-nvshmem.conf"), format!("{HOME}/lib\n"));
            machine.run("30-nvshmem.sh", "verify").ended(0).says(&format!("{package} 3.4.5 in {HOME}/lib"));
        });
    }
}

#[test]
fn checklist_15_other_packages_and_other_copies() {
    each(|mut machine| {
        machine_with(&machine, "13.0");
        machine.write("/stand-in-state/wheel-nvidia-nvshmem-cu12", "3.4.5\n");
        machine.run("30-nvshmem.sh", "apply").ended(1).says("nvidia-nvshmem-cu12 is installed, CUDA is 13");
        machine.remove("/stand-in-state/wheel-nvidia-nvshmem-cu12");
        machine.write("/stand-in-state/pip-fails", "");
        machine.run("30-nvshmem.sh", "apply").ended(1).says("give PYTHON= of a virtual environment");
        machine.remove("/stand-in-state/pip-fails");
        machine.run("30-nvshmem.sh", "apply").ended(0);
        machine.write("/stand-in-state/wheel-nvidia-nvshmem-cu12", "3.4.5\n");
        machine.run("30-nvshmem.sh", "verify").ended(1).says("nvidia-nvshmem-cu12 is installed as well");
        machine.remove("/stand-in-state/wheel-nvidia-nvshmem-cu12");
        machine.write("/stand-in-state/wheel-nvidia-nvshmem-cu13", "3.7.0\n");
        machine.run("30-nvshmem.sh", "verify").ended(1).says("nvidia-nvshmem-cu13 is 3.7.0, wanted 3.4.5");
        machine.write("/stand-in-state/wheel-nvidia-nvshmem-cu13", "3.4.5\n");
        // The linker: nothing, another copy in front, another copy by LD_LIBRARY_PATH.
        machine.write("/stand-in-state/cache", "");
        machine
            .run("30-nvshmem.sh", "verify")
            .ended(1)
            .says("the dynamic linker does not find libnvshmem_host.so.3");
        machine.write("/usr/local/nvshmem/libnvshmem_host.so.3", "");
        machine.write("/stand-in-state/cache", &format!("/usr/local/nvshmem\n{HOME}/lib\n"));
        machine
            .run("30-nvshmem.sh", "verify")
            .ended(1)
            .says("finds another copy first: /usr/local/nvshmem/libnvshmem_host.so.3");
        machine.write("/stand-in-state/cache", &format!("{HOME}/lib\n/usr/local/nvshmem\n"));
        machine.run("30-nvshmem.sh", "verify").ended(0);
        machine.set("LD_LIBRARY_PATH", &format!("{HOME}/lib:/usr/local/nvshmem"));
        machine.run("30-nvshmem.sh", "verify").ended(0);
        machine.set("LD_LIBRARY_PATH", "/usr/local/nvshmem");
        machine.run("30-nvshmem.sh", "verify").ended(1).says("LD_LIBRARY_PATH has another copy in front");
        machine.set("LD_LIBRARY_PATH", "");
        machine.remove(&format!("{HOME}/lib/libnvshmem_host.so.3"));
        machine.run("30-nvshmem.sh", "verify").ended(1).says("no libnvshmem_host.so.3 in");
    });
}

/// Checklist 15: `NVSHMEM_DIR` (what DeepEP reads), `NVSHMEM_HOME` (what documents say), and the host library's link.
#[test]
fn checklist_15_directories_and_the_host_librarys_link() {
    each(|mut machine| {
        machine_with(&machine, "13.0");
        machine.run("40-nvshmem-link.sh", "apply").ended(1).says("run 30-nvshmem.sh apply first");
        machine.run("30-nvshmem.sh", "apply").ended(0);
        machine
            .run("40-nvshmem-link.sh", "verify")
            .ended(1)
            .says("is no link to libnvshmem_host.so.3")
            .says("does not set NVSHMEM_DIR");
        machine.applies_once("40-nvshmem-link.sh", &[]);
        let link = machine.at(HOME).join("lib/libnvshmem_host.so");
        assert_eq!(fs::read_link(&link).unwrap().to_str().unwrap(), "libnvshmem_host.so.3");
        assert_eq!(
            machine.read("/etc/profile.d/expertrail-nvshmem.sh"),
            format!("export NVSHMEM_DIR='{HOME}'\nexport NVSHMEM_HOME='{HOME}'\n")
        );
        machine.run("40-nvshmem-link.sh", "verify").ended(0);
        machine.set("NVSHMEM_HOME", "/usr/local/nvshmem");
        machine
            .run("40-nvshmem-link.sh", "verify")
            .ended(1)
            .says("NVSHMEM_HOME is /usr/local/nvshmem in this shell");
        machine.set("NVSHMEM_HOME", HOME);
        machine.remove(&format!("{HOME}/lib/libnvshmem_host.so.3"));
        machine.run("40-nvshmem-link.sh", "verify").ended(1).says("leads nowhere");
        machine.run("40-nvshmem-link.sh", "apply").ended(1).says("another version of NVSHMEM?");
        machine.write(&format!("{HOME}/lib/libnvshmem_host.so.3"), "");
        machine.remove(&format!("{HOME}/lib/libnvshmem_host.so"));
        machine.write(&format!("{HOME}/lib/libnvshmem_host.so"), "a library of its own");
        machine.run("40-nvshmem-link.sh", "apply").ended(1).says("it is not replaced");
    });
}

/// Checklist 15: 9.0 Hopper, 10.0 Blackwell.
#[test]
fn checklist_15_the_architecture() {
    for arch in ["9.0", "10.0"] {
        each(|mut machine| {
            machine.command("nvidia-smi", &format!("for gpu in 1 2 3; do echo {arch}; done"));
            machine
                .run("50-arch.sh", "verify")
                .ended(1)
                .says(&format!("does not set TORCH_CUDA_ARCH_LIST={arch}"));
            machine.applies_once("50-arch.sh", &[]);
            assert_eq!(
                machine.read("/etc/profile.d/expertrail-arch.sh"),
                format!("export TORCH_CUDA_ARCH_LIST='{arch}'\n")
            );
            machine.run("50-arch.sh", "verify").ended(0);
            machine.set("TORCH_CUDA_ARCH_LIST", "8.0");
            machine.run("50-arch.sh", "verify").ended(1).says("is 8.0 in this shell");
            machine.set("TORCH_CUDA_ARCH_LIST", "");
            machine.set("ARCH", "8.0");
            machine.run("50-arch.sh", "apply").ended(0);
            machine
                .run("50-arch.sh", "verify")
                .ended(1)
                .says(&format!("TORCH_CUDA_ARCH_LIST is 8.0, the GPUs are {arch}"));
            machine.set("ARCH", "");
            machine.command("nvidia-smi", "printf '9.0\\n10.0\\n'");
            machine.run("50-arch.sh", "apply").ended(1).says("GPUs of several kinds (10.0 9.0)");
        });
    }
}

/// What the scripts ask Python means the same to a real one.
#[test]
fn a_real_python_finds_the_package() {
    let machine = Machine::new(Place::Prefix);
    let packages = machine.at("/site");
    let home = packages.join("nvidia/nvshmem");
    fs::create_dir_all(packages.join("nvidia_nvshmem_cu13-3.4.5.dist-info")).unwrap();
    fs::write(
        packages.join("nvidia_nvshmem_cu13-3.4.5.dist-info/METADATA"),
        "Metadata-Version: 2.1\nName: nvidia-nvshmem-cu13\nVersion: 3.4.5\n",
    )
    .unwrap();
    machine_with(&machine, "13.0");
    machine.command(
        "python3",
        &format!(
            "PYTHONPATH='{}' exec /usr/bin/env -i PYTHONPATH='{}' PATH=/usr/bin:/bin python3 \"$@\"",
            packages.display(),
            packages.display()
        ),
    );
    if Done::of(Command::new("/usr/bin/env").args(["-i", "PATH=/usr/bin:/bin", "python3", "-c", "pass"])).code
        != 0
    {
        println!("not run: a real Python (there is none in /usr/bin)");
        return;
    }
    // Of a package without its folder there is none; with it, it is where the link goes.
    machine.run("40-nvshmem-link.sh", "apply").ended(1).says("has no NVSHMEM");
    fs::create_dir_all(home.join("lib")).unwrap();
    let inside = machine.at(home.to_str().unwrap()).join("lib");
    fs::create_dir_all(&inside).unwrap();
    fs::write(inside.join("libnvshmem_host.so.3"), "").unwrap();
    machine
        .run("30-nvshmem.sh", "apply")
        .ended(0)
        .says("unchanged nvidia-nvshmem-cu13 3.4.5")
        .says("wrote /etc/ld.so.conf.d");
    machine.run("40-nvshmem-link.sh", "apply").ended(0).says("libnvshmem_host.so -> libnvshmem_host.so.3");
    assert_eq!(
        machine.read("/etc/ld.so.conf.d/expertrail-nvshmem.conf"),
        format!("{}/lib\n", home.display())
    );
}

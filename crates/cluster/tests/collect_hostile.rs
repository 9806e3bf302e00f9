//! Trees and documents that nobody sane made: the answer is a valid document, soon, and never a panic.

#![allow(
    clippy::format_collect,
    clippy::format_push_string,
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used
)]

mod tree;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use expertrail_cluster::collect::{self, LoadError, Options};
use expertrail_cluster::facts::{Facts, Reading};
use expertrail_cluster::root::Root;
use tempfile::TempDir;

/// Far more than any of these takes.
const SOON: Duration = Duration::from_secs(20);

/// Time that this thread computed: a busy machine or disk does not lengthen it.
fn computed() -> Duration {
    rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).try_into().unwrap()
}

#[track_caller]
fn read(place: &Path) -> Facts {
    let started = computed();
    let facts = collect::facts(&Root::captured(place), &Options::default());
    let took = computed().saturating_sub(started);
    assert!(took < SOON, "{took:?}");
    // Whatever was read can be written and read again.
    let text = serde_json::to_vec(&facts).unwrap();
    assert_eq!(collect::parse(&text).unwrap(), facts);
    facts
}

fn put(place: &Path, path: &str, content: &[u8]) {
    let path = place.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Files that a parser reads.
const FILES: [&str; 22] = [
    "proc/driver/nvidia/params",
    "proc/driver/nvidia/version",
    "proc/modules",
    "proc/devices",
    "proc/cpuinfo",
    "proc/meminfo",
    "proc/cmdline",
    "proc/self/limits",
    "proc/self/status",
    "proc/self/mountinfo",
    "proc/1/cgroup",
    "proc/sys/kernel/osrelease",
    "etc/os-release",
    "etc/modprobe.d/a.conf",
    "etc/systemd/system/containerd.service",
    "etc/nvidia-imex/nodes_config.cfg",
    "var/lib/dpkg/status",
    "var/log/fabricmanager.log",
    "dev.txt",
    "environ.txt",
    "kmsg.txt",
    "nvml.json",
];

/// Files with one value.
const VALUES: [&str; 9] = [
    "sys/class/infiniband/mlx5_0/fw_ver",
    "sys/class/infiniband/mlx5_0/ports/1/rate",
    "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error",
    "sys/class/infiniband/mlx5_0/ports/1/gids/0",
    "sys/bus/pci/devices/0000:18:00.0/class",
    "sys/bus/pci/devices/0000:18:00.0/numa_node",
    "sys/module/gdrdrv/version",
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
    "sys/devices/system/node/node0/cpulist",
];

#[test]
fn an_empty_tree() {
    let place = TempDir::new().unwrap();
    let facts = read(place.path());
    assert_eq!(facts.schema, "expertrail.facts/1");
    assert!(facts.node.is_absent() && facts.driver.params.is_absent() && facts.driver.configured.is_absent());
    assert!(facts.modules.loaded.is_absent() && facts.modules.present.is_absent());
    assert!(facts.pci.devices.is_absent() && facts.rdma.is_absent() && facts.nvml.is_absent());
    assert!(facts.devices.is_absent() && facts.majors.is_absent() && facts.xids.is_absent());
    assert!(facts.limits.memlock.is_absent() && facts.limits.daemons.is_absent());
    assert!(
        facts.memory.total.is_absent() && facts.memory.huge_pages.is_absent() && facts.memory.shm.is_absent()
    );
    assert!(facts.iommu.units.is_absent() && facts.environment.variables.is_absent());
    assert!(facts.environment.container.is_absent() && facts.environment.operator_signs.is_absent());
    assert_eq!(facts.modules.has("nvidia"), None);
    // A place that is not there at all reads as an empty one.
    assert!(read(&place.path().join("gone")).pci.devices.is_absent());
}

#[test]
fn a_file_of_ten_megabytes_in_one_line() {
    for byte in [b'a', b' ', b':', b'=', b'"', b';', b'\\', b'0', b',', 0xff] {
        let place = TempDir::new().unwrap();
        let line = vec![byte; 10 << 20];
        for file in FILES {
            put(place.path(), file, &line);
        }
        let facts = read(place.path());
        assert!(facts.driver.params.value().is_none_or(|all| all.len() <= 1));
        assert_eq!(facts.devices.value().map(Vec::len), Some(0));
    }
}

#[test]
fn a_file_of_ten_megabytes_of_short_lines() {
    for line in [
        "a: 1\n",
        "[x] NVRM: Xid (PCI:0000:18:00): 79, a\n",
        "options nvidia NVreg_A=1\n",
        "m 1 1 - Live 0x0\n",
        "\n\n",
        "1\n",
    ] {
        let place = TempDir::new().unwrap();
        let text = line.repeat((10 << 20) / line.len());
        for file in FILES {
            put(place.path(), file, text.as_bytes());
        }
        let facts = read(place.path());
        assert!(matches!(facts.driver.params.reading(), Reading::Unreadable(_)));
        if line.contains("Xid") {
            let xids = facts.xids.value().unwrap();
            assert_eq!((xids.len(), xids[0].count), (1, (10 << 20) / line.len() as u64));
        }
    }
}

#[test]
fn values_that_are_far_too_long_are_unreadable() {
    let place = TempDir::new().unwrap();
    for file in VALUES {
        put(place.path(), file, &vec![b'7'; 10 << 20]);
    }
    let facts = read(place.path());
    let device = &facts.rdma.value().unwrap()[0];
    assert!(device.firmware.is_none() && device.ports[0].rate.is_none());
    assert!(device.unreadable.contains_key("fw_ver") && device.unreadable.contains_key("ports/1/rate"));
    assert!(matches!(facts.driver.gdrdrv_version.reading(), Reading::Unreadable(_)));
}

#[test]
fn bytes_that_are_no_text() {
    let place = TempDir::new().unwrap();
    for file in FILES.iter().chain(&VALUES) {
        put(place.path(), file, b"\xff\xfe\x00\x80 \xc3\x28: \xf0\x28\x8c\xbc\n\xed\xa0\x80=\n");
    }
    let name = std::ffi::OsStr::from_bytes(b"mlx5_\xff");
    fs::create_dir_all(place.path().join("sys/class/infiniband").join(name).join("ports/1")).unwrap();
    let facts = read(place.path());
    assert!(facts.rdma.value().unwrap().iter().any(|device| device.name == "mlx5_\u{fffd}"));
}

#[test]
fn truncated_files() {
    let source = tree::unpack("healthy");
    for keep in [0, 1, 7, 40] {
        let place = TempDir::new().unwrap();
        for file in FILES {
            if let Ok(bytes) = fs::read(source.path().join(file)) {
                put(place.path(), file, &bytes[..bytes.len().min(keep)]);
            }
        }
        let facts = read(place.path());
        assert!(matches!(facts.driver.version.reading(), Reading::Unreadable(_)) || keep == 40);
        assert!(facts.limits.memlock.value().is_none());
    }
}

#[test]
fn folders_pipes_and_loops_in_the_place_of_files() {
    let place = TempDir::new().unwrap();
    for (number, file) in FILES.iter().chain(&VALUES).enumerate() {
        let path = place.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match number % 3 {
            0 => fs::create_dir(&path).unwrap(),
            1 => {
                let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
                assert!(made.success());
            }
            _ => symlink(path.file_name().unwrap(), &path).unwrap(),
        }
    }
    let facts = read(place.path());
    assert!(matches!(facts.driver.params.reading(), Reading::Unreadable(_)));
    assert!(matches!(facts.driver.version.reading(), Reading::Unreadable(_)));
    assert!(matches!(facts.modules.loaded.reading(), Reading::Unreadable(_)));
    assert!(facts.limits.memlock.value().is_none() && facts.xids.value().is_none());
}

#[test]
fn links_that_lead_round_and_out() {
    let place = TempDir::new().unwrap();
    let root = place.path();
    for folder in ["sys/class/infiniband", "sys/bus/pci/devices", "proc", "sys/kernel/mm/hugepages"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    symlink("../../../class/infiniband", root.join("sys/bus/pci/devices/0000:18:00.0")).unwrap();
    symlink("../../bus/pci/devices/0000:18:00.0", root.join("sys/class/infiniband/mlx5_0")).unwrap();
    symlink(".", root.join("sys/class/infiniband/ports")).unwrap();
    symlink(".", root.join("sys/class/infiniband/1")).unwrap();
    symlink("mlx5_1", root.join("sys/class/infiniband/mlx5_1")).unwrap();
    symlink("mlx5_3", root.join("sys/class/infiniband/mlx5_2")).unwrap();
    symlink("mlx5_2", root.join("sys/class/infiniband/mlx5_3")).unwrap();
    symlink("../../../../../../../../../../../../etc/passwd", root.join("proc/cmdline")).unwrap();
    symlink("/etc/hostname", root.join("proc/modules")).unwrap();
    symlink("self", root.join("proc/self")).unwrap();
    let facts = read(root);
    // `/etc/passwd` inside the tree, where there is none: never the machine's own.
    assert!(facts.kernel.cmdline.is_absent() && facts.modules.loaded.is_absent());
    assert!(matches!(facts.limits.memlock.reading(), Reading::Unreadable(_)));
    assert!(facts.rdma.value().is_some());
}

#[test]
fn more_devices_than_there_can_be() {
    let place = TempDir::new().unwrap();
    let root = place.path();
    for number in 0..600 {
        fs::create_dir_all(root.join(format!("sys/class/infiniband/mlx5_{number}"))).unwrap();
    }
    for number in 0..5000 {
        let folder = format!("sys/bus/pci/devices/{:04x}:{:02x}:00.0", number / 256, number % 256);
        put(root, &format!("{folder}/class"), b"0x020000\n");
    }
    for pid in 0..3000 {
        put(root, &format!("proc/{pid}/comm"), b"containerd\n");
        put(root, &format!("proc/{pid}/limits"), b"Max locked memory 1 1 bytes\n");
    }
    let facts = read(root);
    assert!(matches!(facts.rdma.reading(), Reading::Unreadable(reason) if reason.contains("600")));
    assert!(matches!(facts.pci.devices.reading(), Reading::Unreadable(_)));
    assert!(facts.limits.daemons.value().is_some());
}

#[test]
fn one_file_that_stands_for_thousands_of_counters() {
    let place = TempDir::new().unwrap();
    let root = place.path();
    put(root, "sys/big", &vec![b'1'; 10 << 20]);
    fs::create_dir_all(root.join("sys/ports/1/counters")).unwrap();
    for number in 0..256 {
        symlink("/sys/big", root.join(format!("sys/ports/1/counters/c{number}"))).unwrap();
    }
    for port in 2..=16 {
        symlink("1", root.join(format!("sys/ports/{port}"))).unwrap();
    }
    for number in 0..512 {
        let device = root.join(format!("sys/class/infiniband/mlx5_{number}"));
        fs::create_dir_all(&device).unwrap();
        symlink("/sys/ports", device.join("ports")).unwrap();
    }
    let facts = read(root);
    let devices = facts.rdma.value().unwrap();
    assert_eq!(devices.len(), 512);
    // Two million files: reading stops, and says so.
    assert!(devices[511].unreadable["."].contains("more than"));
}

#[test]
fn documents_that_are_none() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str, content: &[u8]| {
        put(folder.path(), name, content);
        collect::load(&folder.path().join(name))
    };
    let form = |result: Result<Facts, LoadError>, part: &str| match result {
        Err(error @ LoadError::Form { .. }) => assert!(error.to_string().contains(part), "{error}"),
        other => panic!("{other:?}"),
    };
    form(file("a", b""), "EOF");
    form(file("b", b"{}"), "no `schema`");
    form(file("c", br#"{"schema":"expertrail.facts/2"}"#), "expertrail.facts/2");
    form(file("d", br#"{"schema":7}"#), "invalid type");
    form(file("e", br#"{"schema":"expertrail.facts/1","pci":[]"#), "EOF");
    form(file("f", br#"{"schema":"expertrail.facts/1","rdma":{"value":7}}"#), "invalid type");
    form(file("g", b"\xff\xfe"), "column");
    form(file("h", "[".repeat(100_000).as_bytes()), "");
    assert!(matches!(collect::load(&folder.path().join("gone")), Err(LoadError::Read { .. })));
    assert!(matches!(collect::load(folder.path()), Err(LoadError::Read { .. })));
    let large = fs::File::create(folder.path().join("large")).unwrap();
    large.set_len(65 << 20).unwrap();
    assert!(matches!(collect::load(&folder.path().join("large")), Err(LoadError::TooLarge { .. })));
    // Fields that a newer version adds, and states that it knows, do not hinder an older one.
    let newer = br#"{"schema":"expertrail.facts/1","new":{"a":1},"node":{"value":"n","source":"s","scope":"galaxy"}}"#;
    assert_eq!(file("i", newer).unwrap().node.value().map(String::as_str), Some("n"));
}

#[test]
fn many_large_files_of_one_kind() {
    // 15 MiB each: four are 60 MiB and read, five are more than 64.
    for (count, read_all) in [(4, true), (5, false)] {
        let place = TempDir::new().unwrap();
        let root = place.path();
        let line = b"# nothing of matter\n";
        put(root, "big", &line.repeat((15 << 20) / line.len()));
        for folder in ["etc/modprobe.d", "etc/systemd/system/containerd.service.d"] {
            fs::create_dir_all(root.join(folder)).unwrap();
            for number in 0..count {
                symlink("/big", root.join(format!("{folder}/{number}.conf"))).unwrap();
            }
        }
        let facts = read(root);
        assert_eq!(facts.driver.configured.value().is_some(), read_all);
        assert_eq!(facts.limits.configured.value().is_some(), read_all);
        if !read_all {
            assert!(
                matches!(facts.driver.configured.reading(), Reading::Unreadable(reason) if reason.contains("4.conf"))
            );
            assert!(matches!(facts.limits.configured.reading(), Reading::Unreadable(_)));
        }
    }
}

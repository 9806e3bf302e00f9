//! NVML and probes over libraries that stand for the driver's (`tests/fake`), in threads of this process.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod fake;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use expertrail_cluster::facts::{FabricState, Fact, Facts, Nvml, NvmlGpu, P2p, RdmaDevice, Reading, Scope};
use expertrail_cluster::finding::{Finding, Status};
use expertrail_cluster::{nvml, probe};

fn read(library: PathBuf) -> Fact<Nvml> {
    nvml::read(&nvml::Options { library: Some(library), ..nvml::Options::default() })
}

fn reason<T>(fact: &Fact<T>) -> &str {
    let Reading::Unreadable(reason) = fact.reading() else { panic!("it was read, or is absent") };
    reason
}

/// The GPU of `index` as `fake/nvml.c` describes it.
fn expected(index: u32) -> NvmlGpu {
    let second = index == 1;
    NvmlGpu {
        index,
        name: format!("NVIDIA Test {index}"),
        // Domain, bus and device number of nvmlPciInfo_t, in the kernel's form.
        pci: if second { "10000:19:1f.0" } else { "0000:18:1f.0" }.to_owned(),
        compute: Some((10, index)),
        nvlinks_up: Some(if second { 17 } else { 18 }),
        nvlinks: Some(18),
        // Replays and recoveries; the 5 of another counter do not count.
        nvlink_errors: Some(if second { 2 } else { 0 }),
        fabric: Some(FabricState {
            state: 3,
            status: 0,
            health: Some(0x5a),
            clique: Some(30 + index),
            cluster: "01112131415161718191a1b1c1d1e1f1".to_owned(),
        }),
        ecc_uncorrected: Some(6 + u64::from(index)),
        remap_pending: Some(second),
        remap_failed: Some(false),
        clock_reasons: Some(if second { 0x80_0000_0040 } else { 1 }),
        temperature: Some(41 + index),
        persistence: Some(!second),
        mig: Some(second),
        compute_mode: Some(3 * index),
        pcie_generation: Some((4 + index, 5)),
        pcie_width: Some((8 + 8 * index, 16)),
        bar1_total: Some(256 << 30),
        memory_total: Some(150 << 30),
        memory_free: Some((100 + u64::from(index)) << 30),
        processes: if second { vec![4000, 4001] } else { Vec::new() },
    }
}

#[test]
fn everything_of_two_gpus() {
    let library = fake::library("nvml", &[]);
    let fact = read(library.clone());
    assert_eq!((fact.source.as_str(), fact.scope), (library.to_str().unwrap(), Scope::HostKernel));
    let nvml = fact.value().unwrap();
    assert_eq!((nvml.driver.as_deref(), nvml.cuda), (Some("580.95.05"), Some(13000)));
    assert_eq!(nvml.gpus, [expected(0), expected(1)]);
    assert_eq!(nvml.p2p, [P2p { from: 0, to: 1, nvlink: 0 }, P2p { from: 1, to: 0, nvlink: 5 }]);
    assert!(nvml.refused.is_empty());
}

#[test]
fn an_older_driver_lacks_entry_points() {
    // The name of the throttle reasons is the older one of the event reasons.
    let names = [
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetGpuFabricInfo",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetMaxPcieLinkWidth",
        "nvmlDeviceGetP2PStatus",
        "nvmlSystemGetCudaDriverVersion_v2",
    ];
    let gone = names.map(|name| format!("{name}=gone_{name}"));
    let fact = read(fake::library("nvml", &gone.each_ref().map(String::as_str)));
    let nvml = fact.value().unwrap();
    let old = |index| NvmlGpu {
        clock_reasons: Some(4 + u64::from(index)),
        fabric: None,
        remap_pending: None,
        remap_failed: None,
        processes: Vec::new(),
        pcie_width: None,
        ..expected(index)
    };
    assert_eq!(nvml.gpus, [old(0), old(1)]);
    assert_eq!((nvml.p2p.as_slice(), nvml.cuda), ([].as_slice(), None));
    assert_eq!(nvml.driver.as_deref(), Some("580.95.05"));
}

#[test]
fn nvml_that_does_not_start() {
    let fact = read(fake::library("nvml", &["INIT=18"]));
    assert_eq!(reason(&fact), "nvmlInit_v2 failed: Driver/library version mismatch (18)");
    let fact = read(fake::library("nvml", &["INIT=9", "nvmlErrorString=gone"]));
    assert_eq!(reason(&fact), "nvmlInit_v2 failed: code 9");
    let fact = read(fake::library("nvml", &["INIT=77"]));
    assert_eq!(reason(&fact), "nvmlInit_v2 failed: code 77");
    let fact = read(fake::library("nvml", &["nvmlDeviceGetCount_v2=gone"]));
    assert!(reason(&fact).contains("too old"), "{}", reason(&fact));
    // Another library is no NVML, no library is none, and a file that is no library is neither.
    let fact = read(fake::library("verbs", &[]));
    assert!(reason(&fact).contains("nvmlInit_v2"), "{}", reason(&fact));
    assert!(read("/no/such/libnvidia-ml.so.1".into()).is_absent());
    assert!(!reason(&read("/proc/version".into())).is_empty());
}

#[test]
fn nvml_that_hangs_is_left_behind() {
    let library = Some(fake::library("nvml", &["HANG"]));
    let started = Instant::now();
    let limit = Some(Duration::from_millis(400));
    let fact = nvml::read(&nvml::Options { library, limit, program: None });
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(400) && took < Duration::from_secs(3), "{took:?}");
    assert_eq!(reason(&fact), "NVML did not answer within 0.4 s: the driver or a device hangs (see dmesg)");
}

#[test]
fn gpus_and_links_that_fell_off() {
    let nvml = read(fake::library("nvml", &["LOST=0"]));
    let nvml = nvml.value().unwrap();
    assert_eq!(nvml.gpus, [expected(1)]);
    assert_eq!(nvml.refused.iter().collect::<Vec<_>>(), [(&0, &"GPU is lost (15)".to_owned())]);
    assert!(nvml.p2p.is_empty(), "{:?}", nvml.p2p);

    // A link that cannot be asked is not up, and is no end of the links: 18 less one, and on GPU 1 less another.
    let nvml = read(fake::library("nvml", &["LINK_LOST=5"]));
    let links: Vec<_> = nvml.value().unwrap().gpus.iter().map(|gpu| (gpu.nvlinks_up, gpu.nvlinks)).collect();
    assert_eq!(links, [(Some(17), Some(18)), (Some(16), Some(18))]);

    // A GPU without NVLink has none; that is not "0 up".
    let nvml = read(fake::library("nvml", &["NO_LINKS"]));
    assert!(nvml.value().unwrap().gpus.iter().all(|gpu| gpu.nvlinks_up.is_none() && gpu.nvlinks.is_none()));
}

/// Facts of a node whose kernel has `devices`; "soft" ones have no PCI function. Too little memory is free to lock any.
fn node(devices: &[&str]) -> Facts {
    let device = |name: &&str| RdmaDevice {
        name: (*name).to_owned(),
        pci: (!name.starts_with("soft")).then(|| "0000:9b:00.0".to_owned()),
        ..RdmaDevice::default()
    };
    let rdma = devices.iter().map(device).collect();
    let rdma = Fact::read(rdma, "/sys/class/infiniband", Scope::HostKernel);
    let mut facts = Facts { rdma, ..Facts::default() };
    facts.memory.available = Fact::read(1 << 30, "/proc/meminfo", Scope::HostKernel);
    facts
}

/// Nothing is there, not even what this machine may have.
fn nothing() -> probe::Options {
    let none = || Some(PathBuf::from("/no/such/library"));
    probe::Options { libcuda: none(), libibverbs: none(), libgdrapi: none(), ..probe::Options::default() }
}

/// Status and what was seen of the finding `id`.
fn seen(findings: &[Finding], id: &str) -> (Status, String) {
    let finding = findings.iter().find(|finding| finding.id == id).unwrap();
    // A failure has a cause and a remedy; what could not run leaves the verdict as it is.
    assert_eq!(
        finding.status == Status::Fail,
        finding.cause.is_some() && !finding.remedies.is_empty(),
        "{id}"
    );
    assert_eq!(finding.status == Status::Unknown, finding.advisory, "{id}");
    (finding.status, finding.observed.clone())
}

#[track_caller]
fn is(findings: &[Finding], id: &str, status: Status, says: &str) {
    let (found, observed) = seen(findings, id);
    assert!(found == status && observed.contains(says), "{id}: {found:?}: {observed}");
}

#[test]
fn probes_of_a_node_without_anything_are_not_run() {
    let findings = probe::run(&node(&["soft0"]), &nothing());
    for id in ["P400", "P401", "P402", "P403", "P404"] {
        is(&findings, id, Status::Unknown, "not run: ");
    }
    is(&findings, "P400", Status::Unknown, "1024 MiB");
    assert_eq!(findings.len(), 5);
}

#[test]
fn probes_of_a_healthy_node_pass() {
    let options = probe::Options {
        libcuda: Some(fake::library("cuda", &[])),
        libibverbs: Some(fake::library("verbs", &[])),
        libgdrapi: Some(fake::library("gdr", &[])),
        ..nothing()
    };
    let findings = probe::run(&node(&["mlx5_0", "mlx5_1", "soft0"]), &options);
    is(&findings, "P401", Status::Pass, "written and read back");
    is(&findings, "P402", Status::Pass, "run: 2 GPUs");
    is(&findings, "P403", Status::Pass, "run: 2 devices opened");
    is(&findings, "P404", Status::Pass, "0 to 1 ");
    is(&findings, "P404", Status::Pass, ", 1 to 0 ");
}

#[test]
fn gpu_memory_that_is_not_exported() {
    for (defines, status, says) in [
        (
            vec!["COUNT=1", "EXPORT=800"],
            Status::Fail,
            "GPU 0: cuMemGetHandleForAddressRange: CUDA_ERROR_NOT_PERMITTED (800)",
        ),
        (vec!["COUNT=1", "DMABUF=0"], Status::Fail, "GPU 0: the driver says it is not supported"),
        (vec!["COUNT=1", "NO_DESCRIPTOR"], Status::Fail, "gave no descriptor"),
        (vec!["COUNT=1", "ALLOC=2"], Status::Fail, "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)"),
        (vec!["COUNT=1", "cuMemGetHandleForAddressRange=gone"], Status::Fail, "has no cuMemGetHandle"),
        // One of two.
        (
            vec!["RETAIN=2", "CONTEXT_ODD=1", "PEER=0"],
            Status::Fail,
            "run: GPU 1: cuDevicePrimaryCtxRetain: CUDA",
        ),
        (vec!["INIT=802"], Status::Fail, "cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802)"),
        (vec!["INIT=999"], Status::Fail, "cuInit: code 999"),
        // CUDA_ERROR_NO_DEVICE.
        (vec!["INIT=100"], Status::Unknown, "not run: the driver finds no device"),
    ] {
        let options = probe::Options { libcuda: Some(fake::library("cuda", &defines)), ..nothing() };
        is(&probe::run(&node(&[]), &options), "P402", status, says);
    }
}

#[test]
fn copies_that_go_wrong() {
    for (defines, status, says) in [
        (vec!["COUNT=1"], Status::Unknown, "not run: 1 GPU is visible"),
        (vec!["PEER=0"], Status::Fail, "GPU 0 to 1: no peer access"),
        (vec!["CORRUPT=1234567"], Status::Fail, "GPU 0 to 1: byte 1234567 arrived as 0x"),
        (vec!["NOCOPY"], Status::Fail, "arrived as 0x00 instead of 0x"),
        (vec!["ALLOC=2"], Status::Fail, "GPU 0 to 1: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)"),
        (vec!["cuMemcpyPeer=gone"], Status::Fail, "has no cuMemcpyPeer"),
    ] {
        let options = probe::Options { libcuda: Some(fake::library("cuda", &defines)), ..nothing() };
        is(&probe::run(&node(&[]), &options), "P404", status, says);
    }
}

#[test]
fn rdma_devices_that_do_not_open() {
    let both = ["mlx5_0", "mlx5_1"];
    for (defines, kernel, status, says) in [
        (vec!["SHUT=1"], both.as_slice(), Status::Fail, "run: mlx5_1: Permission denied (os error 13)"),
        (vec!["SHUT=0", "ERROR=19"], &both, Status::Fail, "run: mlx5_0: No such device (os error 19)"),
        (vec!["COUNT=1"], &both, Status::Fail, "run: not listed by libibverbs: mlx5_1"),
        (vec!["COUNT=1", "SHUT=0"], &both, Status::Fail, "(os error 13); not listed by libibverbs: mlx5_1"),
        (vec!["COUNT=0"], &both, Status::Fail, "not listed by libibverbs: mlx5_0, mlx5_1"),
        (vec!["COUNT=0"], &[], Status::Unknown, "not run: there is no RDMA device"),
        (vec!["NO_LIST"], &both, Status::Fail, "ibv_get_device_list: Function not implemented"),
        (vec!["NO_LIST"], &["soft0"], Status::Unknown, "not run: ibv_get_device_list"),
        (vec!["ibv_open_device=gone"], &both, Status::Fail, "has no ibv_open_device"),
        // More than the kernel's PCI devices is no fault.
        (vec!["COUNT=3"], &both, Status::Pass, "run: 3 devices opened"),
    ] {
        let options = probe::Options { libibverbs: Some(fake::library("verbs", &defines)), ..nothing() };
        is(&probe::run(&node(kernel), &options), "P403", status, says);
    }
    is(&probe::run(&node(&both), &nothing()), "P403", Status::Fail, "the kernel has 2 devices");
}

#[test]
fn gdrcopy_that_does_not_work() {
    let cuda = fake::library("cuda", &["COUNT=1"]);
    for (defines, status, says) in [
        (vec![], Status::Pass, "written and read back"),
        (vec!["SHUT"], Status::Fail, "gdr_open: No such file or directory (os error 2) (/dev/gdrdrv)"),
        (vec!["PIN=22"], Status::Fail, "gdr_pin_buffer: Invalid argument"),
        (vec!["MAP=1"], Status::Fail, "gdr_map: Operation not permitted"),
        (vec!["ELSEWHERE"], Status::Fail, "where the mapping was written"),
        (vec!["gdr_map=gone"], Status::Fail, "has no gdr_map"),
    ] {
        let libgdrapi = Some(fake::library("gdr", &defines));
        let options = probe::Options { libcuda: Some(cuda.clone()), libgdrapi, ..nothing() };
        is(&probe::run(&node(&[]), &options), "P401", status, says);
    }
    let options = probe::Options { libgdrapi: Some(fake::library("gdr", &[])), ..nothing() };
    is(&probe::run(&node(&[]), &options), "P401", Status::Unknown, "not run: ");
}

#[test]
fn gdrcopys_own_test() {
    let place = tempfile::tempdir().unwrap();
    let run = |name: &str, script: &str, limit: u64| {
        let program = place.path().join(name);
        // Written by a shell: a program that another thread's child still holds open for writing could not be started.
        let write = "printf '#!/bin/sh\n%s\n' \"$1\" >\"$2\" && chmod +x \"$2\"";
        let shell = Command::new("sh").args(["-c", write, "sh", script]).arg(&program).status();
        assert!(shell.unwrap().success());
        let limit = Some(Duration::from_secs(limit));
        probe::run(&node(&[]), &probe::Options { gdrcopy_sanity: Some(program), limit, ..nothing() })
    };
    let total =
        |passed, failed| format!("echo x; echo 'Total: 28, Passed: {passed}, Failed: {failed}, Waived: 0'");
    is(&run("good", &total(28, 0), 20), "P401", Status::Pass, "gdrcopy_sanity: 28 of 28 passed");
    is(&run("bad", &(total(27, 1) + "; exit 1"), 20), "P401", Status::Fail, "1 of 28 failed, 27 passed");
    is(&run("odd", "echo nothing", 20), "P401", Status::Fail, "printed no total");
    is(&run("code", &(total(28, 0) + "; exit 3"), 20), "P401", Status::Fail, "exit status: 3");
    let started = Instant::now();
    is(&run("slow", "exec sleep 60", 4), "P401", Status::Fail, "did not end within 4 s");
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
}

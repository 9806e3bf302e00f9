//! Facts of trees in the shape of real nodes. What is expected comes from the published facts that the trees were written after, not
//! from what the code printed.

#![allow(
    clippy::format_collect,
    clippy::format_push_string,
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used
)]

mod tree;

use std::path::Path;

use expertrail_cluster::collect::{self, Options};
use expertrail_cluster::facts::{Facts, Flavour, Limit, Reading, Scope};
use expertrail_cluster::root::Root;

fn read(place: &Path) -> Facts {
    collect::facts(&Root::captured(place), &Options::default())
}

fn of(name: &str) -> Facts {
    read(tree::unpack(name).path())
}

fn of_text(text: &str) -> Facts {
    read(tree::unpack_text(text).path())
}

fn names(facts: &Facts) -> Vec<&str> {
    facts.rdma.value().unwrap().iter().map(|device| device.name.as_str()).collect()
}

#[test]
fn the_captured_virtual_machine_of_two_h200() {
    let facts = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/h200-vm-x2"));
    assert_eq!(facts.schema, "expertrail.facts/1");
    let params = facts.driver.params.value().unwrap();
    assert_eq!(params.len(), 42);
    assert_eq!((params["EnableStreamMemOPs"].as_str(), params["RegistryDwords"].as_str()), ("0", ""));
    assert_eq!(params["S0ixPowerManagementVideoMemoryThreshold"], "256");
    assert_eq!(facts.driver.params.scope, Scope::HostKernel);
    assert_eq!(facts.driver.version.value().unwrap().flavour, Flavour::Open);
    assert_eq!(facts.kernel.hypervisor.value(), Some(&true));
    assert_eq!(facts.kernel.cpu.value().map(String::as_str), Some("Intel(R) Xeon(R) Processor"));
    let has = |module| facts.modules.has(module);
    assert_eq!((has("nvidia"), has("nvidia-uvm"), has("mlx5_core")), (Some(true), Some(true), Some(true)));
    assert_eq!((has("nvidia_peermem"), has("gdrdrv")), (Some(false), Some(false)));
    let gpus = facts.pci.gpus();
    assert_eq!(
        gpus.iter().map(|gpu| gpu.address.as_str()).collect::<Vec<_>>(),
        ["0000:00:06.0", "0000:00:07.0"]
    );
    assert!(gpus.iter().all(|gpu| gpu.numa.is_none() && gpu.device.as_deref() == Some("0x2335")));
    assert_eq!(gpus[0].path, "/sys/devices/pci0000:00/0000:00:06.0");
    assert_eq!(gpus[0].link.width, Some(16));
    // The virtio network function is the one other that matters.
    assert_eq!(facts.pci.devices.value().unwrap().len(), 3);
    assert_eq!(facts.rdma.value().map(Vec::len), Some(0));
    let devices = facts.devices.value().unwrap();
    let node = |path: &str| devices.iter().find(|node| node.path == path);
    let uvm = node("/dev/nvidia-uvm").unwrap();
    assert_eq!((uvm.character, uvm.major, uvm.minor, uvm.mode), (true, 238, 0, 0o666));
    assert!(node("/dev/gdrdrv").is_none());
    assert!(!node("/dev/infiniband").unwrap().character);
    assert!(facts.majors.value().unwrap().contains(&(195, "nvidiactl".to_owned())));
    assert_eq!(facts.limits.memlock.value(), Some(&Limit::default()));
    assert_eq!(facts.limits.nofile.value(), Some(&Limit { soft: Some(20_000), hard: Some(20_000) }));
    // Nothing of these was captured: not there, which is not the same as "none".
    assert!(facts.environment.container.is_absent() && facts.environment.operator_signs.is_absent());
    assert!(facts.driver.configured.is_absent() && facts.nvml.is_absent() && facts.xids.is_absent());
    assert!(facts.limits.capabilities.is_absent() && facts.memory.shm.is_absent());
    assert!(facts.services.iter().all(|service| service.installed.is_absent()));
}

#[test]
fn a_host_that_has_all() {
    let facts = of("healthy");
    let params = facts.driver.params.value().unwrap();
    assert_eq!(
        (params["EnableStreamMemOPs"].as_str(), params["RegistryDwords"].as_str()),
        ("1", "PeerMappingOverride=1;")
    );
    let configured = facts.driver.configured.value().unwrap();
    let pairs: Vec<_> =
        configured.iter().map(|option| (option.key.as_str(), option.value.as_str())).collect();
    assert_eq!(
        pairs,
        [("NVreg_EnableStreamMemOPs", "1"), ("NVreg_RegistryDwords", "PeerMappingOverride=1;")]
    );
    assert_eq!(facts.driver.version.value().unwrap().version, "580.105.08");
    assert_eq!(facts.driver.gdrdrv_version.value().map(String::as_str), Some("2.5.1"));
    for module in ["nvidia_peermem", "gdrdrv", "mlx5_ib", "ib_uverbs"] {
        assert_eq!(facts.modules.has(module), Some(true), "{module}");
    }
    let gdrdrv = facts.devices.value().unwrap().iter().find(|node| node.path == "/dev/gdrdrv").unwrap();
    assert_eq!((gdrdrv.character, gdrdrv.major, gdrdrv.mode), (true, 510, 0o666));
    assert_eq!(facts.limits.capabilities.value().map(|bits| bits >> 14 & 1), Some(1));
    assert_eq!(facts.environment.container.value().map(|hint| hint.inside), Some(false));
    assert_eq!(facts.limits.memlock.scope, Scope::Host);
    let manager = facts.services.iter().find(|service| service.name == "nvidia-fabricmanager").unwrap();
    assert_eq!(manager.pid.value(), Some(&2001));
    assert_eq!(manager.version.value().map(String::as_str), Some("580.105.08"));
    assert_eq!(manager.installed.value(), Some(&true));
    assert_eq!(facts.kernel.dmi.product.value().map(String::as_str), Some("DGXH100"));
    assert_eq!(facts.kernel.numa.value().unwrap().len(), 2);
    // 2,113,536,000 kB; a tmpfs without a size has half of it.
    assert_eq!(facts.memory.total.value(), Some(&(2_113_536_000 << 10)));
    assert_eq!(facts.memory.shm.value().map(|shm| shm.total), Some(2_113_536_000 << 9));
}

#[test]
fn an_h100_host_with_eight_rails_and_a_bonded_frontend() {
    let facts = of("h100-ib");
    assert_eq!(facts.driver.params.value().unwrap()["EnableStreamMemOPs"], "0");
    assert!(facts.driver.gdrdrv_version.is_absent() && facts.driver.configured.is_absent());
    assert_eq!(facts.modules.has("nvidia_peermem"), Some(false));
    assert_eq!(facts.pci.gpus().len(), 8);
    let rails = ["mlx5_0", "mlx5_1", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9"];
    let devices = facts.rdma.value().unwrap();
    assert_eq!(devices.len(), 9);
    for name in rails {
        let device = devices.iter().find(|device| device.name == name).unwrap();
        let port = &device.ports[0];
        assert_eq!((port.number, port.gbits(), port.active()), (1, Some(400.0), Some(true)), "{name}");
        assert_eq!(port.link_layer.as_deref(), Some("InfiniBand"));
        assert_eq!((port.pkeys.as_slice(), port.gids.len()), (["0xffff".to_owned()].as_slice(), 1));
        assert_eq!(device.driver.as_deref(), Some("mlx5_core"));
        assert!(device.unreadable.is_empty() && device.uverbs.is_some() && device.netdevs.len() == 1);
        // Its function is known, and below a bridge that is known.
        let function = facts.pci.at(device.pci.as_deref().unwrap()).unwrap();
        assert_eq!(function.class.as_deref(), Some("0x020700"));
        assert!(function.path.ends_with(&function.address));
    }
    let bond = devices.iter().find(|device| device.name == "mlx5_bond_0").unwrap();
    assert_eq!(bond.ports[0].link_layer.as_deref(), Some("Ethernet"));
    assert_eq!(bond.ports[0].gids[0].kind.as_deref(), Some("RoCE v2"));
    assert_eq!(
        (bond.netdevs.as_slice(), bond.hca_type.as_deref()),
        (["bond0".to_owned()].as_slice(), Some("MT41692"))
    );
    // Root port, upstream and two downstream ports for each of eight pairs, and one root port of the frontend.
    let bridges = facts.pci.devices.value().unwrap().iter();
    let bridges =
        bridges.filter(|device| device.class.as_deref().is_some_and(|class| class.starts_with("0x0604")));
    assert_eq!(bridges.count(), 8 * 4 + 1);
    let switches = facts.pci.devices.value().unwrap().iter();
    assert_eq!(switches.filter(|device| device.class.as_deref() == Some("0x068000")).count(), 4);
}

#[test]
fn virtual_machines_that_an_operator_manages() {
    for (name, gpu, frontend, rails) in
        [("h200-crusoe-vm", "0x2335", "mlx5_0", 1..=8), ("b200-crusoe-vm", "0x2901", "mlx5_4", 5..=12)]
    {
        let facts = of(name);
        assert_eq!(facts.pci.gpus().len(), 8, "{name}");
        assert!(facts.pci.gpus().iter().all(|device| device.device.as_deref() == Some(gpu)));
        let signs = facts.environment.operator_signs.value().unwrap();
        assert_eq!(signs, &["/run/nvidia/driver", "/run/nvidia/validations"]);
        let devices = facts.rdma.value().unwrap();
        let get = |name: &str| devices.iter().find(|device| device.name == name).unwrap();
        assert_eq!(get(frontend).ports[0].link_layer.as_deref(), Some("Ethernet"));
        for rail in rails {
            let device = get(&format!("mlx5_{rail}"));
            assert_eq!(device.ports[0].gbits(), Some(400.0));
            assert_eq!(device.ports[0].pkeys, ["0x8005", "0x7fff"]);
        }
        assert_eq!(facts.kernel.hypervisor.value(), Some(&true));
    }
    let facts = of("b200-crusoe-vm");
    let down = facts.rdma.value().unwrap().iter().find(|device| device.name == "mlx5_2").unwrap();
    assert_eq!(down.ports[0].active(), Some(false));
}

#[test]
fn hosts_with_efa() {
    for (name, product, count, gbits) in
        [("p5en-efa", "p5en.48xlarge", 16, 200.0), ("p5-efa", "p5.48xlarge", 32, 100.0)]
    {
        let facts = of(name);
        assert_eq!(names(&facts).len(), count, "{name}");
        for device in facts.rdma.value().unwrap() {
            assert!(device.name.starts_with("rdmap"), "{}", device.name);
            assert_eq!(device.driver.as_deref(), Some("efa"));
            assert_eq!(device.ports[0].link_layer.as_deref(), Some("Unspecified"));
            assert_eq!(device.ports[0].gbits(), Some(gbits));
            let function = facts.pci.at(device.pci.as_deref().unwrap()).unwrap();
            assert_eq!(function.vendor.as_deref(), Some("0x1d0f"));
        }
        assert_eq!(facts.kernel.dmi.vendor.value().map(String::as_str), Some("Amazon EC2"));
        assert_eq!(facts.kernel.dmi.product.value().map(String::as_str), Some(product));
        assert_eq!(facts.modules.has("efa"), Some(true));
        assert!(facts.driver.efa_version.value().is_some());
        let pages = &facts.memory.huge_pages.value().unwrap()[0];
        assert_eq!((pages.size, pages.total, pages.free), (2 << 20, 5128, 5128));
    }
}

#[test]
fn a_document_has_the_facts_that_were_written() {
    let folder = tempfile::TempDir::new().unwrap();
    for name in ["healthy", "h200-crusoe-vm", "p5en-efa"] {
        let facts = of(name);
        let file = folder.path().join(name);
        std::fs::write(&file, serde_json::to_string_pretty(&facts).unwrap()).unwrap();
        assert_eq!(collect::load(&file).unwrap(), facts);
    }
}

#[test]
fn daemons_and_what_their_units_ask_for() {
    let facts = of_text(
        "proc/700/comm: containerd\nproc/700/limits: Max locked memory  65536  65536  bytes\nproc/701/comm: kubelet\n\
         proc/701/limits: Max locked memory  unlimited  unlimited  bytes\nproc/702/comm: bash\n\
         etc/systemd/system/containerd.service.d/10-limits.conf: LimitMEMLOCK=8M\n\
         etc/systemd/system/containerd.service.d/90-memlock.conf: LimitMEMLOCK=infinity\n\
         usr/lib/systemd/system/containerd.service.d/90-memlock.conf: LimitMEMLOCK=1K\n\
         usr/lib/systemd/system/containerd.service: LimitMEMLOCK=16M\n\
         lib/systemd/system/containerd.service: LimitMEMLOCK=32M\n\
         etc/systemd/system/containerd.service.d/note.txt: LimitMEMLOCK=1G\n",
    );
    let daemons = facts.limits.daemons.value().unwrap();
    let short: Vec<_> = daemons.iter().map(|d| (d.name.as_str(), d.pid, d.memlock.soft)).collect();
    assert_eq!(short, [("containerd", Some(700), Some(65_536)), ("kubelet", Some(701), None)]);
    // What counts stands first: of drop-ins the last by name, of one name that of the stronger folder, then the unit itself.
    let configured: Vec<_> =
        facts.limits.configured.value().unwrap().iter().map(|d| d.memlock.soft).collect();
    assert_eq!(configured, [None, Some(8 << 20), Some(16 << 20)]);
}

#[test]
fn variables_and_containers() {
    let facts = of_text(
        "environ.txt <<<\nNVSHMEM_IB_ENABLE_IBGDA=1\nLD_LIBRARY_PATH=/opt/a:/opt/b=c\nHF_TOKEN=hf_x\nNCCL_SECRET=abc\n\
         SLURM_JOB_ID=77\nSLURM_STEP_ID=0\nENROOT_TEMP_PATH=/tmp\nKUBERNETES_SERVICE_HOST=10.0.0.1\nNODE_NAME=node-a\nnonsense\n>>>\n\
         proc/self/limits: Max locked memory 8388608 8388608 bytes\nproc/sys/kernel/hostname: pod-7\n",
    );
    let environment = &facts.environment;
    let kept = environment.variables.value().unwrap();
    assert_eq!(kept["LD_LIBRARY_PATH"], "/opt/a:/opt/b=c");
    assert_eq!(kept["NVSHMEM_IB_ENABLE_IBGDA"], "1");
    assert!(!kept.contains_key("HF_TOKEN") && !serde_json::to_string(&facts).unwrap().contains("abc"));
    assert_eq!(environment.kubernetes.value(), Some(&true));
    let slurm = environment.slurm.value().unwrap();
    assert_eq!((slurm.job.as_deref(), slurm.step.as_deref()), (Some("77"), Some("0")));
    assert_eq!(environment.enroot.value().unwrap(), &["ENROOT_TEMP_PATH"]);
    assert!(environment.container.value().unwrap().inside);
    assert_eq!(environment.variables.scope, Scope::Container);
    assert_eq!(facts.limits.memlock.scope, Scope::Container);
    assert_eq!(facts.limits.memlock.value(), Some(&Limit { soft: Some(8 << 20), hard: Some(8 << 20) }));
    // The kernel's state is the host's whoever reads it.
    assert_eq!(facts.driver.params.scope, Scope::HostKernel);
    assert_eq!(facts.node.value().map(String::as_str), Some("node-a"));
}

#[test]
fn an_operator_that_found_the_hosts_own_driver_manages_none() {
    let tree = "run/nvidia/driver/\nrun/nvidia/validations/driver-ready: IS_HOST_DRIVER=";
    assert_eq!(of_text(&format!("{tree}true\n")).environment.operator_signs.value().map(Vec::len), Some(0));
    assert_eq!(of_text(&format!("{tree}false\n")).environment.operator_signs.value().map(Vec::len), Some(2));
}

#[test]
fn files_that_are_there_but_make_no_sense() {
    let facts = of_text(
        "proc/driver/nvidia/params: nothing of the kind\nproc/self/limits: Max locked memory many many bytes\n\
         sys/class/infiniband/mlx5_0/ports/1/state/\nsys/class/infiniband/mlx5_0/ports/1/rate: fast\n\
         sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error: N/A (no PMA)\n\
         sys/class/infiniband/mlx5_0/ports/1/counters/link_downed: 3\n\
         sys/class/infiniband/rxe0/ports/1/state: 4: ACTIVE\n",
    );
    assert!(matches!(facts.driver.params.reading(), Reading::Unreadable(_)));
    assert!(matches!(facts.limits.memlock.reading(), Reading::Unreadable(_)));
    let devices = facts.rdma.value().unwrap();
    let (mlx, rxe) = (&devices[0], &devices[1]);
    assert_eq!(mlx.unreadable.keys().collect::<Vec<_>>(), ["ports/1/counters/symbol_error", "ports/1/state"]);
    assert_eq!(mlx.ports[0].counters["link_downed"], 3);
    assert_eq!((mlx.ports[0].active(), mlx.ports[0].gbits()), (None, None));
    // A software device has no function.
    assert_eq!((rxe.pci.as_ref(), rxe.ports[0].active()), (None, Some(true)));
}

#[test]
fn access_control_groups_and_virtual_functions() {
    let facts = of_text(
        "sys/bus/pci/devices/0000:15:01.0 -> ../../../devices/pci0000:15/0000:15:01.0\n\
         sys/bus/pci/devices/0000:16:00.2 -> ../../../devices/pci0000:15/0000:15:01.0/0000:16:00.2\n\
         sys/devices/pci0000:15/0000:15:01.0/class: 0x060400\n\
         sys/devices/pci0000:15/0000:15:01.0/config bytes 4096 100:0d000100 106:1d00\n\
         sys/devices/pci0000:15/0000:15:01.0/0000:16:00.2/class: 0x020000\n\
         sys/devices/pci0000:15/0000:15:01.0/0000:16:00.2/numa_node: -1\n\
         sys/devices/pci0000:15/0000:15:01.0/0000:16:00.2/current_link_speed: Unknown\n\
         sys/devices/pci0000:15/0000:15:01.0/0000:16:00.2/current_link_width: 255\n\
         sys/devices/pci0000:15/0000:15:01.0/0000:16:00.2/physfn -> ../0000:16:00.0\n\
         sys/devices/pci0000:15/0000:15:01.0/0000:16:00.2/iommu_group -> ../../../../kernel/iommu_groups/9\n\
         sys/kernel/iommu_groups/9/type: DMA-FQ\nsys/kernel/iommu_groups/10/type: identity\n",
    );
    let devices = facts.pci.devices.value().unwrap();
    assert_eq!(devices.len(), 2);
    let acs = devices[0].acs.unwrap();
    assert!(
        acs.source_validation && acs.request_redirect && acs.completion_redirect && acs.upstream_forwarding
    );
    let function = &devices[1];
    assert_eq!((function.numa, function.link.width, function.link.speed.as_ref()), (None, None, None));
    assert_eq!(function.physfn.as_deref(), Some("0000:16:00.0"));
    let groups = facts.iommu.groups.value().unwrap();
    assert_eq!(
        (groups.len(), groups[0].number.as_str(), groups[0].kind.as_deref()),
        (1, "9", Some("DMA-FQ"))
    );
}

#[test]
fn this_machine_in_well_under_two_seconds() {
    // Time that this thread computed: a busy machine or disk does not lengthen it.
    let computed = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let started = computed();
    let facts =
        collect::facts(&Root::live(Scope::Unknown), &Options { without_nvml: true, ..Options::default() });
    let took = std::time::Duration::try_from(computed() - started).unwrap();
    assert!(took.as_secs_f64() < 2.0, "{took:?}");
    assert!(facts.kernel.release.value().is_some() && facts.limits.memlock.value().is_some());
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(facts.kernel.release.value().map(String::as_str), Some(release.trim()));
    assert!(facts.environment.container.value().is_some());
}

#[test]
fn files_of_modprobe_in_the_order_of_their_names() {
    let of = |tree: &str| -> Vec<(String, String)> {
        let facts = of_text(tree);
        let options = facts.driver.configured.value().cloned().unwrap();
        options.into_iter().map(|option| (option.file, option.value)).collect()
    };
    // By name, not by folder: what is in 90-b of /usr/lib is read last and counts.
    let found = of("usr/lib/modprobe.d/90-b.conf: options nvidia NVreg_A=3\n\
         etc/modprobe.d/50-a.conf: options nvidia NVreg_A=1\n\
         run/modprobe.d/70-c.conf: options nvidia NVreg_A=2\n\
         etc/modprobe.d/95-d.conf -> /dev/null\n\
         lib/modprobe.d/95-d.conf: options nvidia NVreg_A=5\n\
         usr/lib/modprobe.d/50-a.conf: options nvidia NVreg_A=4\n");
    let wanted = [
        ("/etc/modprobe.d/50-a.conf", "1"),
        ("/run/modprobe.d/70-c.conf", "2"),
        ("/usr/lib/modprobe.d/90-b.conf", "3"),
    ];
    assert_eq!(found, wanted.map(|(file, value)| (file.to_owned(), value.to_owned())));
}

#[test]
fn processes_that_are_kept_from_the_reader() {
    let mounts = |options: &str, uid: u32| {
        format!(
            "proc/self/mountinfo <<<\n22 1 252:1 / / rw - ext4 /dev/vda1 rw\n23 22 0:5 / /proc rw - proc proc {options}\n>>>\n\
             proc/self/status <<<\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n>>>\nproc/4000/comm: bash\n"
        )
    };
    let manager = |tree: &str| {
        let mut services = of_text(tree).services.into_iter();
        services.find(|service| service.name == "nvidia-fabricmanager").unwrap().pid
    };
    for (options, uid, unseen) in [
        ("rw,hidepid=2", 1000, true),
        ("rw,hidepid=invisible", 1000, true),
        ("rw,hidepid=2", 0, false),
        ("rw", 1000, false),
    ] {
        let tree = mounts(options, uid);
        assert_eq!(matches!(manager(&tree).reading(), Reading::Unreadable(_)), unseen, "{options} {uid}");
        let daemons = of_text(&tree).limits.daemons;
        assert_eq!(matches!(daemons.reading(), Reading::Unreadable(_)), unseen, "{options} {uid}");
    }
    // A member of the group that `gid=` names sees the first process, and so all.
    let sees = mounts("rw,hidepid=2,gid=4", 1000) + "proc/1/comm: systemd\n";
    assert!(manager(&sees).is_absent());
    // A capture without any process says nothing of what runs, and one with them does.
    assert!(matches!(manager("proc/driver/\n").reading(), Reading::Unreadable(_)));
    assert!(manager("proc/1/comm: systemd\n").is_absent());
    let limits = |tree: &str| of_text(tree).limits.daemons;
    assert_eq!(limits("proc/driver/\n").value().map(Vec::len), Some(0));
    assert!(matches!(limits("proc/7/comm: containerd\n").reading(), Reading::Unreadable(_)));
    assert!(matches!(limits("proc/7/comm/\nproc/8/comm: bash\n").reading(), Reading::Unreadable(_)));
}

//! Driver, modules, limits, libraries.

use std::collections::BTreeMap;

use super::{Group, Seen, Sheet, tally};
use crate::facts::{Facts, Flavour, Limit, RegistryDwords};

/// Modules that decide what a job can do. Others differ for reasons of their own.
const MODULES: [&str; 12] = [
    "nvidia",
    "nvidia_uvm",
    "nvidia_peermem",
    "nv_peer_mem",
    "gdrdrv",
    "ib_core",
    "ib_uverbs",
    "rdma_ucm",
    "mlx5_ib",
    "irdma",
    "bnxt_re",
    "efa",
];

/// Words of the kernel command line that matter; the rest names disks and consoles.
const BOOT: [&str; 9] = [
    "iommu",
    "intel_iommu",
    "amd_iommu",
    "pci",
    "pcie_acs_override",
    "numa_balancing",
    "hugepages",
    "transparent_hugepage",
    "mitigations",
];

/// Variables that each process or node has for itself.
const OWN: [&str; 5] =
    ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_NAME"];

pub(super) fn fill(sheet: &mut Sheet, facts: &Facts) {
    driver(sheet, facts);
    kernel(sheet, facts);
    limits(sheet, facts);
    services(sheet, facts);
    userspace(sheet, facts);
}

fn driver(sheet: &mut Sheet, facts: &Facts) {
    let driver = &facts.driver;
    sheet.fact(Group::Driver, "version", &driver.version, |version| version.version.clone());
    sheet.fact(Group::Driver, "kernel modules", &driver.version, |version| {
        match version.flavour {
            Flavour::Open => "open",
            Flavour::Proprietary => "proprietary",
            Flavour::Unknown => "of unknown kind",
        }
        .to_owned()
    });
    sheet.list(Group::Parameter, &driver.params, |params| {
        let value = |(key, value): (&String, &String)| {
            // The order of its entries means nothing.
            let value = if key == "RegistryDwords" { dwords(value) } else { value.clone() };
            (key.clone(), value)
        };
        params.iter().map(value).collect()
    });
    sheet.list(Group::Modprobe, &driver.configured, |options| {
        let mut all: BTreeMap<String, String> = BTreeMap::new();
        for option in options {
            let module = if option.module.is_empty() { "(no module)" } else { &option.module };
            all.insert(format!("{module} {}", option.key), option.value.clone());
        }
        all.into_iter().collect()
    });
    for (module, version) in [
        ("gdrdrv", &driver.gdrdrv_version),
        ("efa", &driver.efa_version),
        ("nvidia_peermem", &driver.peermem_version),
    ] {
        sheet.fact(Group::Module, &format!("{module}, version"), version, Clone::clone);
    }
    for module in MODULES {
        let seen = match facts.modules.has(module) {
            Some(true) => Seen::Value("loaded".to_owned()),
            Some(false) => Seen::Absent,
            None => match Seen::of(&facts.modules.loaded, |_| String::new()) {
                // No list is no proof that nothing is loaded.
                Seen::Absent => Seen::Unknown("no list of modules".to_owned()),
                other => other,
            },
        };
        sheet.set(Group::Module, module, seen);
    }
}

fn dwords(text: &str) -> String {
    let entries: Vec<String> =
        RegistryDwords::parse(text).0.into_iter().map(|(key, value)| format!("{key}={value};")).collect();
    entries.concat()
}

fn kernel(sheet: &mut Sheet, facts: &Facts) {
    let kernel = &facts.kernel;
    for (name, fact) in [
        ("kernel", &kernel.release),
        ("system", &kernel.os),
        ("glibc", &kernel.glibc),
        ("CPU", &kernel.cpu),
        ("CPU governor", &kernel.governor),
        ("maker", &kernel.dmi.vendor),
        ("product", &kernel.dmi.product),
    ] {
        sheet.fact(Group::Host, name, fact, Clone::clone);
    }
    sheet.fact(Group::Host, "logical CPUs", &kernel.cpus, ToString::to_string);
    sheet.fact(Group::Host, "NUMA balancing", &kernel.numa_balancing, ToString::to_string);
    sheet.fact(Group::Host, "NUMA nodes", &kernel.numa, |nodes| {
        let nodes: Vec<String> = nodes.iter().map(|node| format!("{}: {}", node.node, node.cpus)).collect();
        nodes.join("; ")
    });
    sheet.list(Group::Boot, &kernel.cmdline, |line| {
        let mut words: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for word in line.split_whitespace() {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let module = key.split_once('.').map_or("", |(module, _)| module);
            if BOOT.contains(&key) || module.starts_with("nvidia") || module.starts_with("mlx5") {
                words.entry(key.to_owned()).or_default().push(value);
            }
        }
        words.into_iter().map(|(key, values)| (key, values.join(","))).collect()
    });
}

fn size(limit: Limit) -> String {
    limit.soft.map_or("unlimited".to_owned(), |bytes| format!("{} KiB", bytes >> 10))
}

fn limits(sheet: &mut Sheet, facts: &Facts) {
    let limits = &facts.limits;
    sheet.fact(Group::Limit, "locked memory", &limits.memlock, |limit| size(*limit));
    sheet.fact(Group::Limit, "open files", &limits.nofile, |limit| {
        limit.soft.map_or("unlimited".to_owned(), |files| files.to_string())
    });
    sheet.list(Group::Limit, &limits.daemons, |daemons| {
        let locked = |name: &str| format!("locked memory of {name}");
        daemons.iter().map(|daemon| (locked(&daemon.name), size(daemon.memlock))).collect()
    });
    for pages in facts.memory.huge_pages.value().into_iter().flatten() {
        let name = format!("huge pages of {} KiB", pages.size >> 10);
        sheet.set(Group::Limit, name, Seen::Value(pages.total.to_string()));
    }
    let shared = Seen::amount(&facts.memory.shm.clone().map(|shm| shm.total));
    sheet.set(Group::Limit, "/dev/shm", shared);
    sheet.set(Group::Host, "memory", Seen::amount(&facts.memory.total));
}

fn services(sheet: &mut Sheet, facts: &Facts) {
    if facts.services.is_empty() {
        sheet.rest.insert(Group::Service, Seen::Unknown("not looked at".to_owned()));
    }
    for service in &facts.services {
        sheet.fact(Group::Service, &service.name, &service.pid, |_| "running".to_owned());
        sheet.fact(Group::Service, &format!("{}, version", service.name), &service.version, Clone::clone);
    }
}

fn userspace(sheet: &mut Sheet, facts: &Facts) {
    let userspace = &facts.userspace;
    for library in &userspace.libraries {
        sheet.fact(Group::Library, &library.name, &library.chosen, |file| {
            file.version
                .as_ref()
                .map_or_else(|| format!("of unknown version, {}", file.path), |v| v.text.clone())
        });
    }
    if userspace.libraries.is_empty() {
        sheet.rest.insert(Group::Library, Seen::Unknown("not looked at".to_owned()));
    }
    sheet.list(Group::Wheel, &userspace.wheels, |wheels| {
        let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for wheel in wheels {
            versions.entry(&wheel.name).or_default().push(&wheel.version);
        }
        let list = |mut all: Vec<&str>| {
            all.sort_unstable();
            all.join(" and ")
        };
        versions.into_iter().map(|(name, all)| (name.to_owned(), list(all))).collect()
    });
    sheet.fact(Group::Library, "CUDA toolkit", &userspace.cuda_toolkit, Clone::clone);
    let installs = userspace.deep_ep.iter().map(|install| {
        let commit = install.commit.as_deref().unwrap_or("of unknown commit");
        format!("{} {commit}", install.version.as_deref().unwrap_or("of unknown version"))
    });
    let installs: Vec<String> = installs.collect();
    let seen = match (installs.is_empty(), &userspace.wheels) {
        (false, _) => Seen::Value(tally(installs)),
        (true, wheels) if wheels.value().is_some() => Seen::Absent,
        (true, wheels) => Seen::of(wheels, |_| String::new()),
    };
    sheet.set(Group::DeepEp, "installs", seen);
    sheet.list(Group::Variable, &facts.environment.variables, |variables| {
        let kept = variables.iter().filter(|(name, _)| !OWN.contains(&name.as_str()));
        kept.map(|(name, value)| (name.clone(), value.clone())).collect()
    });
}

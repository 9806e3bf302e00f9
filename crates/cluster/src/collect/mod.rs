//! Reading facts of a live machine or a captured tree.
//!
//! A captured tree is a folder with `proc`, `sys`, `etc` and so on as copied from a node. What cannot be copied has a file at the top:
//!
//! | file | stands for |
//! |---|---|
//! | `dev.txt` | `/dev`: what `ls -l /dev` or `ls -lR /dev` printed (device nodes need root to copy); a folder `dev` is read too |
//! | `environ.txt` | variables, `NAME=value` a line |
//! | `kmsg.txt` | the kernel log, as `dmesg` prints it; else `var/log/dmesg` is read |
//! | `nvml.json` | what NVML said: the part `nvml` of a facts document |
//!
//! Empty folders may hold a file `.keep`, which is not seen.

mod devices;
mod driver;
mod environment;
mod kernel;
mod kmsg;
mod limits;
mod load;
mod memory;
mod modules;
mod pci;
mod rdma;
mod services;

use std::time::{SystemTime, UNIX_EPOCH};

pub use devices::parse_listing;
pub use driver::{cmdline, modprobe, params, version};
pub use environment::{cgroup_sign, is_host_driver, mount_sign};
pub use kernel::{parse_hypervisor, parse_os};
pub use kmsg::parse as parse_xids;
pub use limits::{parse_capabilities, parse_limit, parse_unit};
pub use load::{LoadError, load, parse};
pub use memory::{parse_meminfo, parse_shm};
pub use modules::{parse_majors, parse_modules};
pub use pci::access_control;
pub use services::{log_version, package};

use crate::facts::{Fact, Facts, Nvml, Reading, SCHEMA, Scope};
use crate::nvml;
use crate::root::{Root, TEXT_LIMIT};
use crate::userspace;

/// What is read beside the machine's own files.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Libraries and Python packages.
    pub userspace: userspace::Options,
    /// Where NVML is.
    pub nvml: nvml::Options,
    /// NVML is not asked: it starts the driver, which takes up to seconds where no persistence daemon runs.
    pub without_nvml: bool,
}

/// All files of one kind together: a folder may hold thousands, each below the limit of one.
const KIND: u64 = 64 << 20;

/// What may still be read of files of one kind.
struct Budget {
    left: u64,
}

impl Budget {
    fn new() -> Self {
        Self { left: KIND }
    }

    /// A text file. What is beyond the total is unreadable.
    fn text(&mut self, root: &Root, path: &str) -> Fact<String> {
        let limit = self.left.min(TEXT_LIMIT);
        if limit == 0 {
            let reason = format!("the files before it have more than {KIND} bytes");
            return Fact::unreadable(reason, path, root.scope(path));
        }
        let read = root.bytes(path, limit);
        // Of a file that is too large as much was read.
        let spent = match read.reading() {
            Reading::Value(bytes) => bytes.len() as u64,
            Reading::Unreadable(reason) if reason.starts_with("larger") => limit,
            _ => 0,
        };
        self.left = self.left.saturating_sub(spent);
        read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Whether `path` is a link to `/dev/null`, by which modprobe's files and systemd's units are switched off.
fn masked(root: &Root, path: &str) -> bool {
    root.real(path).is_ok_and(|real| real == root.prefix().join("dev/null"))
}

/// Reads everything.
pub fn facts(root: &Root, options: &Options) -> Facts {
    let variables = environment::variables(root);
    let container = environment::container(root, &variables);
    let scope = match container.value() {
        Some(hint) if hint.inside => Scope::Container,
        Some(_) => Scope::Host,
        None => Scope::Unknown,
    };
    let root = &root.clone().with_file_scope(scope);
    let variables = environment::with_scope(variables, scope);
    let rdma = rdma::rdma(root);
    let pci = pci::pci(root, &rdma);
    let processes = limits::processes(root);
    Facts {
        schema: SCHEMA.to_owned(),
        tool: env!("CARGO_PKG_VERSION").to_owned(),
        captured_at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        root: root.prefix().to_string_lossy().into_owned(),
        node: node(root, &variables),
        kernel: kernel::kernel(root),
        driver: driver::driver(root),
        modules: modules::modules(root),
        iommu: kernel::iommu(root, &pci),
        pci,
        rdma,
        nvml: nvml_of(root, options),
        xids: kmsg::xids(root),
        devices: devices::devices(root),
        majors: modules::majors(root),
        limits: limits::limits(root, &processes),
        memory: memory::memory(root),
        services: services::services(root, &processes),
        userspace: userspace::collect(root, &options.userspace),
        environment: environment::environment(root, variables, container),
    }
}

/// A pod's name of its node is `NODE_NAME` where its manifest gives it; the host name of a pod is its own.
fn node(root: &Root, variables: &Fact<std::collections::BTreeMap<String, String>>) -> Fact<String> {
    if let Some(name) = variables.value().and_then(|all| all.get("NODE_NAME")).filter(|name| !name.is_empty())
    {
        Fact::read(name.clone(), "NODE_NAME", Scope::Host)
    } else {
        let name = root.word("/proc/sys/kernel/hostname");
        let file = root.word("/etc/hostname");
        if name.is_absent() && file.value().is_some_and(|name| !name.is_empty()) { file } else { name }
    }
}

fn nvml_of(root: &Root, options: &Options) -> Fact<Nvml> {
    if root.is_live() {
        return if options.without_nvml { Fact::default() } else { nvml::read(&options.nvml) };
    }
    let captured = root.text("/nvml.json");
    captured.parse(|text| {
        serde_json::from_str::<Nvml>(&text)
            .map_err(|error| format!("not NVML's part of a facts document: {error}"))
    })
}

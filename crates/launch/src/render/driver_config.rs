//! The NVIDIA driver's parameters: through the GPU Operator, or on a host.
//!
//! IBGDA needs two parameters of the driver (`NVreg_EnableStreamMemOPs=1`, and `PeerMappingOverride=1` in `NVreg_RegistryDwords`) and two
//! modules (`nvidia_peermem`, `gdrdrv`). Where the GPU Operator owns the driver they come from a `ConfigMap` and one merge patch, and
//! running driver pods must be recycled; on a virtual machine or a bare host they come from files below `/etc`, and the machine must be
//! stopped and started. One way does not work in place of the other, so the target says which.
//!
//! Everything here is text: nothing is applied. The scripts show what they would do and do it with `--yes` only.

mod facts;
mod operator;
mod parameters;

use serde_json::Value;
use thiserror::Error;

pub use facts::{ClusterFacts, ConfigMapFacts, DriverFacts, FactsError};

use super::host_setup;
use crate::files::FileSet;

/// Who loads the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Managed {
    /// The GPU Operator.
    #[default]
    Operator,
    /// The machine itself.
    Host,
}

/// The resource by which an operator is told how to install drivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// `NVIDIADriver`: one for each kind of node.
    #[default]
    NvidiaDriver,
    /// `ClusterPolicy`: one for the cluster, with the same fields under `spec.driver`.
    ClusterPolicy,
}

/// What is rendered.
#[derive(Clone, Debug)]
pub struct Options {
    /// Who loads the driver.
    pub managed: Managed,
    /// Which resource the operator reads. Where `cluster` is given, its resources decide.
    pub kind: Kind,
    /// Name space of the driver pods.
    pub namespace: String,
    /// Context of the kubeconfig the scripts are for; none: it must be given to each script.
    pub context: Option<String>,
    /// Name of the driver resource; none: chosen by its state and by `sku`.
    pub resource: Option<String>,
    /// Kind of GPU, as in names of driver resources: `h200`, `b200`.
    pub sku: Option<String>,
    /// What the cluster has now: names and lines that must stay.
    pub cluster: Option<ClusterFacts>,
    /// Settings of a host, where the machine loads the driver.
    pub host: host_setup::Options,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            managed: Managed::default(),
            kind: Kind::default(),
            namespace: "nvidia-gpu-operator".to_owned(),
            context: None,
            resource: None,
            sku: None,
            cluster: None,
            host: host_setup::Options::default(),
        }
    }
}

/// Why nothing was rendered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DriverConfigError {
    /// The driver resource is not clear.
    #[error("{message}: {listing}; name the one that backs your nodes with --resource")]
    Resource {
        /// What was wanted.
        message: String,
        /// What there is.
        listing: String,
    },
    /// The `ConfigMap` has lines that the driver container cannot use.
    #[error(
        "the ConfigMap {name} has lines that are no parameters of the driver: {lines}; take them out, or they would be lost without a word"
    )]
    Lines {
        /// Its name.
        name: String,
        /// The lines.
        lines: String,
    },
    /// A name cannot be one of Kubernetes.
    #[error("{what} `{name}` cannot be a name in Kubernetes: letters, digits, `-` and `.` only")]
    Name {
        /// What it names.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The YAML writer refused.
    #[error("cannot write YAML: {0}")]
    Yaml(String),
}

/// The files: `ConfigMap`, patch and numbered scripts, or the files and scripts of a host.
///
/// # Errors
/// When it is not clear which driver resource is meant, or what is in the cluster cannot be kept.
pub fn render(options: &Options) -> Result<FileSet, DriverConfigError> {
    match options.managed {
        Managed::Operator => operator::render(options),
        Managed::Host => Ok(host_setup::driver_only(&options.host)),
    }
}

/// Text of `value`, as JSON with line ends.
fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

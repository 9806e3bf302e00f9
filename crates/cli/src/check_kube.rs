//! `expertrail check --kube`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use expertrail_cluster::check::Target;
use expertrail_cluster::kube::{self, Options, ProbeHost, Process, Report};
use expertrail_cluster::profile::{self, Profile};

use crate::node::Stop;

/// On which nodes the provider's topology file is looked for.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ProbeHostName {
    /// On every node with GPUs.
    All,
    /// On one node of each product.
    One,
}

/// Arguments of `check` for a cluster.
#[derive(Clone, Debug, Args)]
pub(crate) struct KubeArgs {
    /// Check a Kubernetes cluster through kubectl (or the program that `EXPERTRAIL_KUBECTL` names) instead of this machine. Only reads.
    #[arg(long, conflicts_with_all = ["facts", "root"])]
    kube: bool,
    /// With --kube: context of the kubeconfig. The current one where none is given.
    #[arg(long, value_name = "CONTEXT", requires = "kube")]
    context: Option<String>,
    /// With --kube: the kubeconfig, where it is not the usual one.
    #[arg(long, value_name = "FILE", requires = "kube")]
    kubeconfig: Option<PathBuf>,
    /// With --kube: name space of the driver pods.
    #[arg(long, value_name = "NAMESPACE", requires = "kube", default_value = "nvidia-gpu-operator")]
    driver_namespace: String,
    /// With --kube: also look for the provider's NCCL topology file on the hosts, on all GPU nodes or one of each product. This
    /// makes a node debug pod for each and deletes it again.
    #[arg(long, value_enum, value_name = "WHERE", requires = "kube", num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    probe_host: Option<ProbeHostName>,
    /// With --kube: seconds for everything. What was not looked at by then is not judged.
    #[arg(long, value_name = "SECONDS", requires = "kube", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    kube_timeout: u64,
}

impl KubeArgs {
    /// A cluster is to be checked.
    pub(crate) fn wanted(&self) -> bool {
        self.kube
    }

    /// Checks the cluster for `target`, with the profile of that name.
    pub(crate) fn run(&self, target: Target, profile: &str) -> Result<Report, Stop> {
        if let Some(file) = self.kubeconfig.as_ref().filter(|file| !file.is_file()) {
            return Err(Stop::access(format!("--kubeconfig {}: no such file", file.display())));
        }
        let mut kubectl = Process::from_env();
        kubectl.kubeconfig.clone_from(&self.kubeconfig);
        let options = Options {
            context: self.context.clone(),
            kubeconfig: self.kubeconfig.clone(),
            driver_namespace: self.driver_namespace.clone(),
            target,
            probe_host: match self.probe_host {
                None => ProbeHost::No,
                Some(ProbeHostName::All) => ProbeHost::EveryNode,
                Some(ProbeHostName::One) => ProbeHost::OnePerProduct,
            },
            profile: named(profile)?,
            deadline: Duration::from_secs(self.kube_timeout),
            ..Options::default()
        };
        let terminal = std::io::stderr().is_terminal();
        let step = |what: &str| {
            if terminal {
                eprintln!("{what} ...");
            }
        };
        kube::check_with(&options, &kubectl, &step).map_err(|error| Stop::access(error.to_string()))
    }
}

/// The profile that is named. `auto` leaves the choice to each node's provider and product; `none` is one that names no file.
fn named(name: &str) -> Result<Option<Profile>, Stop> {
    match name {
        "auto" => Ok(None),
        "none" => Ok(Some(Profile::default())),
        _ => profile::get(name).map(Some).map_err(|error| Stop::usage(error.to_string())),
    }
}

//! `expertrail render driver-config`, `host-setup` and `image`: files that set nodes and images up.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use expertrail_cluster::kube::{Kubectl, KubectlError, Process};
use expertrail_launch::files::FileSet;
use expertrail_launch::render::{driver_config, host_setup, image};
use serde_json::Value;

use super::{on_paper, written};
use crate::node::{Stop, print};

/// The longest that the cluster may take for an answer.
const ANSWER: Duration = Duration::from_secs(30);

/// Who loads the driver.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Manager {
    /// The GPU Operator of a cluster.
    Operator,
    /// The machine itself: a virtual machine or a bare host.
    Host,
}

/// Arguments of `render driver-config`.
#[derive(Debug, Args)]
pub(crate) struct DriverConfigArgs {
    /// Who loads the driver.
    #[arg(long, value_enum, default_value = "operator")]
    managed: Manager,
    /// Read the driver resources and their `ConfigMap`s through kubectl: names and lines that are there stay. Only reads.
    #[arg(long)]
    kube: bool,
    /// Context of the kubeconfig that the files are for; without it each script must be given one.
    #[arg(long, value_name = "CONTEXT")]
    context: Option<String>,
    /// The driver's name space.
    #[arg(long, value_name = "NAMESPACE", default_value = "nvidia-gpu-operator")]
    driver_namespace: String,
    /// Name of the driver resource, where there are several.
    #[arg(long, value_name = "NAME")]
    resource: Option<String>,
    /// Kind of GPU as in names of driver resources: h200, b200.
    #[arg(long, value_name = "GPU")]
    sku: Option<String>,
    /// A cluster that has a `ClusterPolicy` and no driver resources (with --kube this is seen).
    #[arg(long)]
    cluster_policy: bool,
    /// Directory for the files, new, empty or of an earlier render; - prints them.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
}

/// Arguments of `render host-setup`.
#[derive(Debug, Args)]
pub(crate) struct HostSetupArgs {
    /// Folder of the CUDA toolkit.
    #[arg(long, value_name = "DIR", default_value = "/usr/local/cuda")]
    cuda: String,
    /// Python into which NVSHMEM's package goes.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: String,
    /// Version of NVSHMEM's package; `newest` for the newest.
    #[arg(long, value_name = "VERSION", default_value = "3.4.5")]
    nvshmem: String,
    /// `TORCH_CUDA_ARCH_LIST`: 9.0 for Hopper, 10.0 for Blackwell [default: what the GPUs say].
    #[arg(long)]
    arch: Option<String>,
    /// Tag of `GDRCopy`.
    #[arg(long, value_name = "TAG", default_value = "v2.5.1")]
    gdrcopy: String,
    /// The whole commit that the tag must be [default: the one found, which is then held to].
    #[arg(long, value_name = "COMMIT")]
    gdrcopy_commit: Option<String>,
    /// systemd unit of the container runtime.
    #[arg(long, value_name = "UNIT", default_value = "containerd")]
    runtime: String,
    /// Directory for the files, new, empty or of an earlier render; - prints them.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
}

/// Arguments of `render image`.
#[derive(Debug, Args)]
pub(crate) struct ImageArgs {
    /// Which: expertrail, deepep-infiniband, deepep-efa, deepep-564.
    #[arg(long, value_parser = |text: &str| text.parse::<image::Kind>())]
    kind: image::Kind,
    /// GPUs' architectures as `TORCH_CUDA_ARCH_LIST` writes them: 9.0, 10.0, 10.3 [default: the kind's own].
    #[arg(long, value_delimiter = ',')]
    arch: Vec<String>,
    /// Name and tag of the image [default: the kind's own].
    #[arg(long)]
    tag: Option<String>,
    /// Directory for the files, new, empty or of an earlier render; - prints them.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
}

/// `render driver-config`.
pub(crate) fn driver_config(args: &DriverConfigArgs) -> Result<u8, Stop> {
    let kind = if args.cluster_policy {
        driver_config::Kind::ClusterPolicy
    } else {
        driver_config::Kind::NvidiaDriver
    };
    let managed = match args.managed {
        Manager::Operator => driver_config::Managed::Operator,
        Manager::Host => driver_config::Managed::Host,
    };
    if matches!(args.managed, Manager::Host) && (args.kube || args.context.is_some()) {
        return Err(Stop::usage(
            "--managed host is for a machine without an operator: leave --kube and --context out",
        ));
    }
    let cluster = if args.kube { Some(look(args)?) } else { None };
    let options = driver_config::Options {
        managed,
        kind,
        namespace: args.driver_namespace.clone(),
        context: args.context.clone(),
        resource: args.resource.clone(),
        sku: args.sku.clone(),
        cluster,
        host: host_setup::Options::default(),
    };
    let files = driver_config::render(&options).map_err(|error| Stop::usage(error.to_string()))?;
    put(&files, &args.output, "README.md")
}

/// The driver resources and `ConfigMap`s of the cluster.
fn look(args: &DriverConfigArgs) -> Result<driver_config::ClusterFacts, Stop> {
    let kubectl = Process::from_env();
    let mut context = Vec::new();
    if let Some(name) = &args.context {
        context.extend(["--context", name.as_str()]);
    }
    let ask = |words: &[&str]| -> Result<Option<Value>, Stop> {
        let words: Vec<&str> = context.iter().copied().chain(words.iter().copied()).collect();
        let answer =
            kubectl.run(&words, ANSWER).map_err(|error: KubectlError| Stop::access(error.to_string()))?;
        let said = String::from_utf8_lossy(&answer.stderr);
        if answer.code != Some(0) {
            // A cluster has the one kind of resource or the other.
            if said.contains("the server doesn't have a resource type") {
                return Ok(None);
            }
            return Err(Stop::access(format!("kubectl {}: {}", words.join(" "), said.trim())));
        }
        serde_json::from_slice(&answer.stdout).map(Some).map_err(|error| {
            Stop::access(format!("kubectl {}: its answer is no JSON: {error}", words.join(" ")))
        })
    };
    let mut drivers = Vec::new();
    for kind in ["nvidiadrivers.nvidia.com", "clusterpolicies.nvidia.com"] {
        let list = ask(&["get", kind, "-o", "json"])?;
        drivers.extend(
            list.and_then(|list| list.get("items").and_then(Value::as_array).cloned()).unwrap_or_default(),
        );
    }
    let configs =
        ask(&["-n", &args.driver_namespace, "get", "configmaps", "-o", "json"])?.unwrap_or_default();
    let list = serde_json::json!({ "kind": "List", "items": drivers });
    driver_config::ClusterFacts::from_json(&list, &configs).map_err(|error| Stop::access(error.to_string()))
}

/// `render host-setup`.
pub(crate) fn host_setup(args: &HostSetupArgs) -> Result<u8, Stop> {
    let options = host_setup::Options {
        cuda: args.cuda.clone(),
        python: args.python.clone(),
        nvshmem: Some(args.nvshmem.clone()).filter(|version| version != "newest"),
        arch: args.arch.clone(),
        gdrcopy: args.gdrcopy.clone(),
        gdrcopy_commit: args.gdrcopy_commit.clone(),
        runtime: args.runtime.clone(),
    };
    put(&host_setup::render(&options), &args.output, "all.sh verify")
}

/// `render image`.
pub(crate) fn image(args: &ImageArgs) -> Result<u8, Stop> {
    let image = image::Image { kind: args.kind, architectures: args.arch.clone(), tag: args.tag.clone() };
    let files = image::render(&image).map_err(|error| Stop::usage(error.to_string()))?;
    put(&files, &args.output, "README.txt")
}

fn put(files: &FileSet, output: &Path, next: &str) -> Result<u8, Stop> {
    if output == Path::new("-") {
        print(&on_paper(files))?;
        return Ok(0);
    }
    files.write(output)?;
    print(&format!("{}nothing was applied; next: {}/{next}\n", written(files, output), output.display()))?;
    Ok(0)
}

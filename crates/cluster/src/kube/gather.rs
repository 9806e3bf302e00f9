//! Everything that is looked up before it is judged: one list for each kind of object.

use std::collections::BTreeMap;

use serde_json::Value;

use super::client::{Client, Kind, Look, Refusal, clean, without_credentials};
use super::inside::{self, Inside};
use super::matrix::Matrix;
use super::objects::{ConfigMap, DaemonSet, Deployment, DriverResource, Node, Pod, USAGE_TEMPLATE, Usage};
use super::{KubeError, Options, Step};
use crate::render;

/// Labels of driver pods: those that an `NVIDIADriver` makes (and newer releases' `ClusterPolicy`), and those of older ones.
pub(super) const DRIVER_LABELS: [&str; 2] =
    ["app.kubernetes.io/component=nvidia-driver", "app=nvidia-driver-daemonset"];

/// Definitions that are looked for.
pub(super) const DEFINITIONS: [&str; 4] = [
    "clusterpolicies.nvidia.com",
    "nvidiadrivers.nvidia.com",
    "nicclusterpolicies.mellanox.com",
    "mpijobs.kubeflow.org",
];

/// Logs of this many pods are read; the rest of a cluster in the same state says the same.
const LOGS: usize = 16;

/// What a cluster says of itself.
pub(super) struct Cluster {
    pub(super) nodes: Look<Vec<Node>>,
    pub(super) usage: Look<Vec<Usage>>,
    pub(super) drivers: Look<Vec<DriverResource>>,
    pub(super) policies: Look<Vec<DriverResource>>,
    /// States of the `NicClusterPolicy` resources, by name.
    pub(super) network: Look<Vec<(String, Option<String>)>>,
    pub(super) configs: BTreeMap<String, Look<ConfigMap>>,
    pub(super) pods: Look<Vec<Pod>>,
    pub(super) daemonsets: Look<Vec<DaemonSet>>,
    pub(super) deployments: Look<Vec<Deployment>>,
    /// Names of the [`DEFINITIONS`] that exist.
    pub(super) definitions: Look<Vec<String>>,
    /// By name of the pod: what its node's kernel shows.
    pub(super) inside: BTreeMap<String, Look<Inside>>,
    /// By name of the pod.
    pub(super) matrices: BTreeMap<String, Look<Matrix>>,
    /// By name of the pod: what containers that do not come up wrote last, by container.
    pub(super) logs: BTreeMap<String, Vec<(String, Look<String>)>>,
}

/// The cluster's address and version.
#[derive(Clone, Debug, Default)]
pub(super) struct Identity {
    pub(super) context: Option<String>,
    pub(super) server: Option<String>,
    pub(super) version: Option<String>,
}

/// Names the context for all later calls, and sees whether a server answers.
pub(super) fn identity(client: &mut Client<'_>, options: &Options) -> Result<Identity, KubeError> {
    let context = match &options.context {
        Some(context) => Some(context.clone()),
        None => match client.text(&["config", "current-context"]) {
            Ok(text) => Some(text.trim().to_owned()).filter(|context| !context.is_empty()),
            Err(refusal) if refusal.kind == Kind::NoKubectl => {
                return Err(KubeError::Kubectl { message: refusal.message });
            }
            Err(refusal) if refusal.kind == Kind::Deadline => {
                return Err(KubeError::Kubectl {
                    message: format!("{}: it hangs before it asks any server", refusal.message),
                });
            }
            // Inside a pod there is no kubeconfig: kubectl then uses the pod's service account.
            Err(_) => None,
        },
    };
    client.set_context(context.clone());
    let address = |view: Value| {
        let server = view["clusters"][0]["cluster"]["server"].as_str().map(str::to_owned);
        server.filter(|server| !server.is_empty()).map(|server| clean(&without_credentials(&server)))
    };
    let server = client.json(&["config", "view", "--minify", "-o", "json"]).ok().and_then(address);
    let version = client.json(&["version", "-o", "json"]);
    let error = |refusal: Refusal| KubeError::Cluster {
        context: context.as_deref().map_or_else(|| "none is set".to_owned(), clean),
        server: server.clone().unwrap_or_else(|| "unknown".to_owned()),
        message: refusal.message,
    };
    let version = match version {
        Ok(value) => value["serverVersion"]["gitVersion"].as_str().map(clean),
        Err(refusal) if refusal.kind == Kind::NoKubectl => {
            return Err(KubeError::Kubectl { message: refusal.message });
        }
        Err(refusal) if refusal.kind == Kind::Deadline => {
            let context = context.as_deref().map_or_else(|| "without a context".to_owned(), clean);
            let server = server.as_deref().unwrap_or("unknown");
            let message = format!(
                "the cluster of context `{context}` (server {server}): {}: the server does not answer, or a credential plugin of the kubeconfig waits for a login",
                refusal.message
            );
            return Err(KubeError::Kubectl { message });
        }
        Err(refusal) if refusal.fatal() => return Err(error(refusal)),
        // A server that keeps its version to itself still answers other questions.
        Err(_) => None,
    };
    Ok(Identity { context, server, version })
}

/// Reads everything.
pub(super) fn gather(client: &Client<'_>, options: &Options, step: Step<'_>) -> Cluster {
    let namespace = options.driver_namespace.as_str();
    step("listing nodes, pods and driver resources");
    let nodes = client.list(&["get", "nodes", "-o", "json"], Node::read);
    let running = "--field-selector=status.phase!=Succeeded,status.phase!=Failed";
    let usage = client
        .text(&["get", "pods", "--all-namespaces", running, "-o", USAGE_TEMPLATE])
        .map(|text| text.lines().filter_map(Usage::read).collect());
    let drivers = client.list(
        &["get", "nvidiadrivers.nvidia.com", "--show-managed-fields", "-o", "json"],
        DriverResource::driver,
    );
    let policies = client.list(
        &["get", "clusterpolicies.nvidia.com", "--show-managed-fields", "-o", "json"],
        DriverResource::policy,
    );
    let network = client.list(&["get", "nicclusterpolicies.mellanox.com", "-o", "json"], |value| {
        let name = value["metadata"]["name"].as_str()?.to_owned();
        Some((name, value["status"]["state"].as_str().map(str::to_owned)))
    });
    let definitions = definitions(client);
    let daemonsets = client.list(&["get", "daemonsets", "--all-namespaces", "-o", "json"], DaemonSet::read);
    let deployments =
        client.list(&["get", "deployments", "--all-namespaces", "-o", "json"], Deployment::read);
    let pods = pods(client, namespace);
    let resources = drivers.iter().chain(&policies).flatten();
    let names: std::collections::BTreeSet<String> =
        resources.filter_map(|resource| resource.config.clone()).collect();
    let configs = names.into_iter().map(|name| {
        let value =
            client.json(&["get", "configmap", &name, "-n", namespace, "--show-managed-fields", "-o", "json"]);
        let config = value.and_then(|value| {
            ConfigMap::read(&value).ok_or_else(|| Refusal {
                kind: Kind::Garbage,
                message: "the answer is no ConfigMap".to_owned(),
            })
        });
        (name, config)
    });
    let configs = configs.collect();
    let mut cluster = Cluster {
        nodes,
        usage,
        drivers,
        policies,
        network,
        configs,
        pods,
        daemonsets,
        deployments,
        definitions,
        inside: BTreeMap::new(),
        matrices: BTreeMap::new(),
        logs: BTreeMap::new(),
    };
    exec(client, namespace, &mut cluster, step);
    cluster
}

fn definitions(client: &Client<'_>) -> Look<Vec<String>> {
    let mut args = vec!["get", "customresourcedefinitions"];
    args.extend(DEFINITIONS);
    args.extend(["--ignore-not-found", "-o", "name"]);
    let text = client.text(&args)?;
    let name = |line: &str| Some(line.trim().rsplit_once('/')?.1.to_owned());
    Ok(text.lines().filter_map(name).collect())
}

/// Driver pods by their names; of both labels, since each release of the operator has one or both.
fn pods(client: &Client<'_>, namespace: &str) -> Look<Vec<Pod>> {
    let mut all: BTreeMap<String, Pod> = BTreeMap::new();
    for label in DRIVER_LABELS {
        let found = client.list(&["get", "pods", "-n", namespace, "-l", label, "-o", "json"], Pod::read)?;
        for pod in found {
            all.entry(pod.name.clone()).or_insert(Pod { label: Some(label), ..pod });
        }
    }
    Ok(all.into_values().collect())
}

/// Looks inside every driver pod whose driver container runs, and at the logs of those that do not come up.
fn exec(client: &Client<'_>, namespace: &str, cluster: &mut Cluster, step: Step<'_>) {
    let Ok(pods) = &cluster.pods else { return };
    let runs = |pod: &&Pod| {
        !pod.leaving
            && pod.containers.iter().any(|one| one.name == super::objects::DRIVER_CONTAINER && one.runs())
    };
    let running: Vec<&Pod> = pods.iter().filter(runs).collect();
    step(&format!("reading driver state in {}", render::count(running.len(), "driver pod")));
    let inside = client.each(&running, |pod| inside::look(client, namespace, pod));
    cluster.inside = running.iter().map(|pod| pod.name.clone()).zip(inside).collect();
    let troubled: Vec<(&Pod, String)> = pods.iter().flat_map(troubled).take(LOGS).collect();
    let logs = client.each(&troubled, |(pod, container)| log(client, namespace, pod, container));
    for ((pod, container), log) in troubled.into_iter().zip(logs) {
        cluster.logs.entry(pod.name.clone()).or_default().push((container, log));
    }
    step(&format!("reading topology in {}", render::count(running.len(), "driver pod")));
    let matrices = client.each(&running, |pod| inside::matrix(client, namespace, pod));
    cluster.matrices = running.iter().map(|pod| pod.name.clone()).zip(matrices).collect();
}

/// Containers of a pod that failed, or keep failing.
fn troubled(pod: &Pod) -> Vec<(&Pod, String)> {
    let failing = |one: &&super::objects::Container| {
        one.waiting.as_deref().is_some_and(|reason| reason.contains("BackOff") || reason.contains("Error"))
            || one.ended.is_some_and(|code| code != 0)
            || (!one.ready && one.restarts > 0)
    };
    let init = pod.init.iter().filter(|one| one.ended != Some(0)).find(failing);
    let main = pod.containers.iter().filter(failing);
    init.into_iter().chain(main).map(|one| (pod, one.name.clone())).collect()
}

/// The last lines of the container's attempt before this one, or of this one where there was none.
fn log(client: &Client<'_>, namespace: &str, pod: &Pod, container: &str) -> Look<String> {
    let args = ["logs", &pod.name, "-n", namespace, "-c", container, "--tail=200"];
    let mut previous = args.to_vec();
    previous.push("--previous");
    client.text(&previous).or_else(|_| client.text(&args))
}

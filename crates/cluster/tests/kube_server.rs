//! The real kubectl against an API server that the test makes: the options, selectors and templates that the check uses are
//! kubectl's own. `exec` needs a streaming protocol and is left to the stand-ins. Without kubectl these tests say so and end.
#![allow(clippy::unwrap_used)] // what a helper does not expect is the test's failure

#[path = "kube/world.rs"]
mod world;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};

use expertrail_cluster::finding::Status;
use expertrail_cluster::kube::{self, KubeError, Options, ProbeHost, Process};
use serde_json::{Value, json};
use tempfile::TempDir;
use world::{NAMESPACE, World, one, options, worst};

/// What the server has and was asked.
struct Server {
    world: World,
    /// All pods of the cluster.
    pods: Vec<Value>,
    /// Pods that kubectl made.
    made: Mutex<Vec<Value>>,
    asked: Mutex<Vec<String>>,
    /// Paths that are refused.
    forbidden: &'static str,
}

fn resource(name: &str, kind: &str, namespaced: bool) -> Value {
    json!({"name": name, "singularName": kind.to_lowercase(), "namespaced": namespaced, "kind": kind, "verbs": ["get", "list", "create", "delete"]})
}

fn list(version: &str, kind: &str, items: &[Value]) -> Value {
    let typed = |item: &Value| {
        let mut item = item.clone();
        item["apiVersion"] = json!(version);
        item["kind"] = json!(kind);
        item
    };
    json!({"apiVersion": version, "kind": format!("{kind}List"), "metadata": {}, "items": items.iter().map(typed).collect::<Vec<_>>()})
}

impl Server {
    fn answer(&self, method: &str, path: &str, query: &str, body: &str) -> (u16, Value) {
        let groups = [
            "apps/v1",
            "nvidia.com/v1",
            "nvidia.com/v1alpha1",
            "mellanox.com/v1alpha1",
            "apiextensions.k8s.io/v1",
            "authorization.k8s.io/v1",
        ];
        if !self.forbidden.is_empty() && path.ends_with(self.forbidden) {
            let message = format!("{} is forbidden: User \"me\" cannot list resource", self.forbidden);
            return (
                403,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": message}),
            );
        }
        let resources = |version: &str, all: Vec<Value>| {
            (
                200,
                json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": all}),
            )
        };
        let items = |kind: &str| self.world.lists[kind].as_slice();
        let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        match (method, path) {
            ("GET", "/version") => (200, json!({"major": "1", "minor": "32", "gitVersion": "v1.32.4"})),
            ("GET", "/api") => (200, json!({"kind": "APIVersions", "versions": ["v1"]})),
            ("GET", "/apis") => {
                let mut names: Vec<&str> = groups.iter().map(|one| one.split_once('/').unwrap().0).collect();
                names.dedup();
                let group = |name: &&str| {
                    let versions: Vec<Value> = groups
                        .iter()
                        .filter(|one| one.split_once('/').unwrap().0 == *name)
                        .map(|one| json!({"groupVersion": one, "version": one.split_once('/').unwrap().1}))
                        .collect();
                    json!({"name": name, "versions": versions, "preferredVersion": versions[0]})
                };
                (
                    200,
                    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": names.iter().map(group).collect::<Vec<_>>()}),
                )
            }
            ("GET", "/api/v1") => resources(
                "v1",
                vec![
                    resource("nodes", "Node", false),
                    resource("pods", "Pod", true),
                    resource("configmaps", "ConfigMap", true),
                ],
            ),
            ("GET", "/apis/apps/v1") => resources(
                "apps/v1",
                vec![resource("daemonsets", "DaemonSet", true), resource("deployments", "Deployment", true)],
            ),
            ("GET", "/apis/nvidia.com/v1") => {
                resources("nvidia.com/v1", vec![resource("clusterpolicies", "ClusterPolicy", false)])
            }
            ("GET", "/apis/nvidia.com/v1alpha1") => {
                resources("nvidia.com/v1alpha1", vec![resource("nvidiadrivers", "NVIDIADriver", false)])
            }
            ("GET", "/apis/mellanox.com/v1alpha1") => resources(
                "mellanox.com/v1alpha1",
                vec![resource("nicclusterpolicies", "NicClusterPolicy", false)],
            ),
            ("GET", "/apis/apiextensions.k8s.io/v1") => resources(
                "apiextensions.k8s.io/v1",
                vec![resource("customresourcedefinitions", "CustomResourceDefinition", false)],
            ),
            ("GET", "/apis/authorization.k8s.io/v1") => resources(
                "authorization.k8s.io/v1",
                vec![resource("selfsubjectaccessreviews", "SelfSubjectAccessReview", false)],
            ),
            ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews") => {
                // kubectl writes protobuf here: a string is its length and its bytes. It reads JSON all the same.
                let denied = body.contains("\u{3}log");
                self.asked.lock().unwrap().push(format!("review {body:?}"));
                let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                    "status": {"allowed": !denied, "reason": if denied { "no RBAC policy matched" } else { "" }}});
                (201, review)
            }
            ("GET", "/api/v1/nodes") => (200, list("v1", "Node", items("nodes"))),
            ("GET", "/api/v1/pods") => (200, list("v1", "Pod", &self.pods)),
            ("GET", "/apis/apps/v1/daemonsets") => (200, list("apps/v1", "DaemonSet", items("daemonsets"))),
            ("GET", "/apis/apps/v1/deployments") => {
                (200, list("apps/v1", "Deployment", items("deployments")))
            }
            ("GET", "/apis/nvidia.com/v1alpha1/nvidiadrivers") => {
                (200, list("nvidia.com/v1alpha1", "NVIDIADriver", items("nvidiadrivers")))
            }
            ("GET", "/apis/nvidia.com/v1/clusterpolicies") => {
                (200, list("nvidia.com/v1", "ClusterPolicy", items("clusterpolicies")))
            }
            ("GET", "/apis/mellanox.com/v1alpha1/nicclusterpolicies") => {
                (200, list("mellanox.com/v1alpha1", "NicClusterPolicy", items("nicclusterpolicies")))
            }
            ("GET", one) if one.starts_with("/api/v1/nodes/") => {
                let found = items("nodes")
                    .iter()
                    .find(|node| one.ends_with(node["metadata"]["name"].as_str().unwrap()));
                found.map_or_else(
                    || missing(one),
                    |node| (200, list("v1", "Node", std::slice::from_ref(node))["items"][0].clone()),
                )
            }
            ("GET", one) if one.starts_with("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/") => {
                let name = one.rsplit('/').next().unwrap();
                if self.world.definitions.contains(&name) {
                    (
                        200,
                        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": name}}),
                    )
                } else {
                    missing(one)
                }
            }
            ("GET", one) if one.starts_with(&format!("/api/v1/namespaces/{NAMESPACE}/configmaps/")) => {
                match self.world.configs.get(one.rsplit('/').next().unwrap()) {
                    Some(config) => {
                        (200, list("v1", "ConfigMap", std::slice::from_ref(config))["items"][0].clone())
                    }
                    None => missing(one),
                }
            }
            ("GET", one)
                if one == pods
                    && query.contains("labelSelector=app.kubernetes.io%2Fcomponent%3Dnvidia-driver") =>
            {
                (200, list("v1", "Pod", items("driver-pods")))
            }
            ("GET", one) if one == pods => {
                let made = self.made.lock().unwrap();
                let on = |pod: &&Value| {
                    query.contains(&format!(
                        "spec.nodeName%3D{}",
                        pod["spec"]["nodeName"].as_str().unwrap_or("?")
                    ))
                };
                (200, list("v1", "Pod", &made.iter().filter(on).cloned().collect::<Vec<_>>()))
            }
            ("POST", one) if one == pods => {
                let name = word(body, "node-debugger-");
                let node = name.trim_start_matches("node-debugger-").rsplit_once('-').unwrap().0.to_owned();
                let command = [word(body, "expertrail-")];
                let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE},
                    "spec": {"nodeName": node, "containers": [{"name": "debugger", "command": command}]},
                    "status": {"phase": "Succeeded"}});
                self.made.lock().unwrap().push(pod.clone());
                (201, pod)
            }
            ("GET", one) if one.starts_with(&pods) => {
                let name = one.rsplit('/').next().unwrap();
                let all = self.made.lock().unwrap();
                all.iter()
                    .find(|pod| pod["metadata"]["name"] == name)
                    .map_or_else(|| missing(one), |pod| (200, pod.clone()))
            }
            ("DELETE", one) if one.starts_with(&pods) => {
                let name = one.rsplit('/').next().unwrap();
                self.made.lock().unwrap().retain(|pod| pod["metadata"]["name"] != name);
                (200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
            }
            (_, other) => missing(other),
        }
    }

    fn serve(&self, stream: &TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let mut words = line.split_whitespace();
        let (method, target) =
            (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default().to_owned());
        let mut length = 0;
        loop {
            let mut header = String::new();
            if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
                break;
            }
            if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        self.asked.lock().unwrap().push(format!("{method} {target}"));
        let log = path.ends_with("/log");
        let (code, answer) = if log {
            (200, json!("h200-141gb-sxm-ib-cloud-hypervisor.xml\n"))
        } else {
            self.answer(&method, path, query, &String::from_utf8_lossy(&body))
        };
        let text = if log { answer.as_str().unwrap().to_owned() } else { answer.to_string() };
        let kind = if log { "text/plain" } else { "application/json" };
        let mut out = stream;
        write!(
            out,
            "HTTP/1.1 {code} X\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
            text.len()
        )
    }
}

/// The name in a message that begins with `start`.
fn word(body: &str, start: &str) -> String {
    let from = &body[body.find(start).unwrap()..];
    from.chars().take_while(|c| c.is_ascii_alphanumeric() || "-.".contains(*c)).collect()
}

fn missing(path: &str) -> (u16, Value) {
    let name = path.rsplit('/').next().unwrap_or_default();
    let message = format!("\"{name}\" not found");
    (
        404,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404, "message": message, "details": {"name": name}}),
    )
}

/// kubectl with a home and a kubeconfig of its own; none where it is not installed.
fn kubectl(address: &str) -> Option<(TempDir, Process)> {
    let there = std::process::Command::new("kubectl").args(["version", "--client"]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        eprintln!("not run: there is no kubectl here");
        return None;
    }
    let home = tempfile::tempdir().unwrap();
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "lab", "clusters": [{"name": "c", "cluster": {"server": address}}],
        "users": [{"name": "u", "user": {"token": "hunter2"}}], "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}]});
    std::fs::write(home.path().join("config"), config.to_string()).unwrap();
    // Its cache of the server's resources must not fill the home of whoever runs the tests.
    let program = home.path().join("kubectl");
    let script = format!("#!/bin/sh\nHOME={} exec kubectl \"$@\"\n", home.path().display());
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut process = Process::new(program);
    process.kubeconfig = Some(home.path().join("config"));
    Some((home, process))
}

fn start(world: World, pods: Vec<Value>, forbidden: &'static str) -> (String, Arc<Server>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let server = Arc::new(Server { world, pods, made: Mutex::default(), asked: Mutex::default(), forbidden });
    let shared = Arc::clone(&server);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let server = Arc::clone(&shared);
            std::thread::spawn(move || server.serve(&stream));
        }
    });
    (address, server)
}

fn user(name: &str, node: &str, owner: &str, gpus: &[&str]) -> Value {
    let containers: Vec<Value> = gpus
        .iter()
        .map(|count| json!({"name": format!("c{count}"), "resources": {"requests": {"cpu": "500m", "nvidia.com/gpu": count}}}))
        .collect();
    json!({"metadata": {"name": name, "namespace": "team", "ownerReferences": [{"kind": owner, "name": "o"}]},
        "spec": {"nodeName": node, "containers": containers, "volumes": [{"name": "config"}, {"name": "tmp", "emptyDir": {}}]},
        "status": {"phase": "Running"}})
}

#[test]
fn kubectl_itself_takes_these_calls() {
    let pods = vec![
        user("train-0", "gpu-a", "Job", &["1", "1"]),
        json!({"metadata": {"name": "bare", "namespace": "team"}, "spec": {"containers": [{"name": "c"}]}, "status": {"phase": "Pending"}}),
        json!({"metadata": {"name": "agent", "namespace": "mon"}, "spec": {"nodeName": "gpu-b", "containers": [{"name": "c", "resources": {}}]}}),
    ];
    let (address, server) = start(World::healthy(), pods, "");
    let Some((_home, kubectl)) = kubectl(&address) else { return };
    let report = kube::check(&options(), &kubectl).unwrap();
    let text = report.text(true);
    assert_eq!(report.context.as_deref(), Some("lab"), "{text}");
    assert_eq!(report.server_version.as_deref(), Some("v1.32.4"));
    assert_eq!(report.server.as_deref(), Some(address.as_str()));
    assert!(!text.contains("hunter2"));
    // The template for pods in use: two containers of one GPU each.
    assert_eq!(report.capacities[0].gpus.free, Some(0), "{text}");
    assert_eq!(report.capacities[0].used_by, ["team/train-0"]);
    assert_eq!(report.capacities[1].gpus.free, Some(2));
    assert_eq!(
        one(&report, "P318").observed,
        "1 of 2 GPU nodes are free: gpu-a 0/2 GPUs free, used by team/train-0"
    );
    // Lists, selectors, single objects, kinds that are not there.
    for id in ["P301", "P302", "P303", "P304", "P305", "P306", "P307", "P308", "P310"] {
        assert_eq!(worst(&report, id), Status::Pass, "{id}: {text}");
    }
    // The answers of `auth can-i`, a refusal with a reason among them.
    assert_eq!(one(&report, "P300").observed, "not permitted: get pods/log in nvidia-gpu-operator");
    // exec is not served: what depends on it is unknown.
    assert_eq!(worst(&report, "P312"), Status::Unknown);
    let asked = server.asked.lock().unwrap().join("\n");
    assert!(
        asked.contains(
            "GET /api/v1/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"
        ),
        "{asked}"
    );
    assert!(asked.contains("labelSelector=app%3Dnvidia-driver-daemonset"), "{asked}");
    assert!(!asked.contains("PATCH") && !asked.contains("DELETE") && !asked.contains("PUT"), "{asked}");
}

#[test]
fn kubectl_itself_probes_the_host() {
    let (address, server) = start(World::healthy(), Vec::new(), "");
    let Some((_home, kubectl)) = kubectl(&address) else { return };
    let report = kube::check(&Options { probe_host: ProbeHost::EveryNode, ..options() }, &kubectl).unwrap();
    let finding = one(&report, "P324");
    assert_eq!(finding.status, Status::Pass, "{}", report.text(true));
    assert!(server.made.lock().unwrap().is_empty(), "the debug pods are deleted");
    let asked = server.asked.lock().unwrap();
    let count = |start: &str| asked.iter().filter(|line| line.starts_with(start)).count();
    assert_eq!(count(&format!("POST /api/v1/namespaces/{NAMESPACE}/pods")), 2, "{asked:#?}");
    assert_eq!(
        count(&format!("DELETE /api/v1/namespaces/{NAMESPACE}/pods/node-debugger-gpu-")),
        2,
        "{asked:#?}"
    );
    assert_eq!(one(&report, "P325").observed, "no pod of ours is left");
}

#[test]
fn kubectl_itself_is_refused() {
    let (address, _server) = start(World::healthy(), Vec::new(), "/nodes");
    let Some((_home, kubectl)) = kubectl(&address) else { return };
    let report = kube::check(&options(), &kubectl).unwrap();
    let finding = one(&report, "P318");
    assert_eq!(finding.status, Status::Unknown);
    assert!(finding.observed.contains("forbidden"), "{}", finding.observed);
}

#[test]
fn kubectl_itself_finds_no_cluster() {
    // A port that was free a moment ago: nobody listens there.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let Some((_home, kubectl)) = kubectl(&format!("http://{free}")) else { return };
    let error = kube::check(&options(), &kubectl).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, KubeError::Cluster { .. }), "{text}");
    assert!(
        text.contains("context `lab`") && text.contains(&free.to_string()) && text.contains("refused"),
        "{text}"
    );
    // A context that the kubeconfig does not have.
    let error =
        kube::check(&Options { context: Some("nope".to_owned()), ..options() }, &kubectl).unwrap_err();
    assert!(error.to_string().contains("context `nope`"), "{error}");
}

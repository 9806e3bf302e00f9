//! `--probe-host`: the provider's topology file on the host, through a node debug pod that is deleted again.
//!
//! The only part that creates anything. The pod's command carries a word of our own, so that it is found whatever kubectl
//! printed, and no other pod is ever deleted.

use std::path::Path;
use std::time::Duration;

use super::client::{Client, Kind, Look, Refusal, clean, quoted};
use super::judge::{Judge, reason, some};
use super::objects::{Node, Pod};
use super::{ProbeHost, Step};
use crate::causes::CauseEntry;
use crate::finding::{Finding, Status};
use crate::profile::{self, Profile};
use crate::render;

const NO_FILE: CauseEntry = CauseEntry {
    id: "kube-nccl-topo-file-missing",
    title: "the provider's topology file is not on the host",
    text: "A job whose NCCL_TOPO_FILE or hostPath volume names it does not start (hostPath type check failed), or NCCL goes on with the wrong topology.",
};
const LEFT: CauseEntry = CauseEntry {
    id: "kube-debug-pod-left",
    title: "the node debug pod could not be deleted",
    text: "It has ended, or will, and holds no GPU; it stays in the list until somebody deletes it.",
};

pub(super) const CAUSES: &[CauseEntry] = &[NO_FILE, LEFT];

/// What the guide uses.
const IMAGE: &str = "busybox:1.36";
/// Longest wait for the pod: an image pull on a slow registry is part of it.
const PATIENCE: Duration = Duration::from_secs(90);
/// Time for the deletion, which also runs after the deadline of everything else.
const DELETE: Duration = Duration::from_secs(20);

/// A node and the file that its kind should have.
struct Question<'a> {
    node: &'a Node,
    file: String,
}

/// What one node said.
struct Answer {
    files: Look<Vec<String>>,
    /// kubectl said that it made the pod.
    made: bool,
    /// The pod, where it could not be deleted.
    left: Option<(String, String)>,
}

pub(super) fn check(judge: &Judge<'_>, step: Step<'_>) -> Vec<Finding> {
    let which = judge.options.probe_host;
    if which == ProbeHost::No {
        return Vec::new();
    }
    let Ok(mut nodes) = judge.gpu_nodes() else {
        return vec![judge.finding("P324", "debug node").unknown("nodes cannot be listed")];
    };
    if which == ProbeHost::OnePerProduct {
        nodes.sort_by_key(|node| (node.product(), node.ready != Some(true)));
        nodes.dedup_by_key(|node| node.product());
    }
    let mut findings = Vec::new();
    let mut questions = Vec::new();
    for node in nodes {
        match file(judge.options.profile.as_ref(), node) {
            Ok(file) => questions.push(Question { node, file }),
            Err(why) => {
                findings
                    .push(judge.finding("P324", "get nodes").about(clean(&node.name)).not_applicable(why));
            }
        }
    }
    step(&format!(
        "looking for topology files on {} (debug pods, deleted afterwards)",
        render::count(questions.len(), "node")
    ));
    let stamp = stamp();
    let answers = judge.client.each(&questions, |question| {
        let mark = format!("expertrail-{stamp}-{}", question.node.name);
        ask(judge.client, judge.namespace(), question, &mark)
    });
    for (question, answer) in questions.iter().zip(answers) {
        findings.extend(judged(judge, question, answer));
    }
    findings
}

/// The file that a profile names: the given one, or that of the node's provider and kind of GPU. Else why none is looked for.
fn file(given: Option<&Profile>, node: &Node) -> Result<String, String> {
    if let Some(profile) = given {
        return profile
            .nccl_topo_file
            .clone()
            .ok_or_else(|| "no topology file is named by the profile".to_owned());
    }
    let product = node.product().unwrap_or_default().to_ascii_lowercase();
    let words: Vec<&str> = product.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    // `crusoe-h200`: provider and kind. Others have the same GPUs, and no such file.
    let mut other = None;
    for profile in profile::all() {
        let (Some(file), Some((provider, kind))) = (&profile.nccl_topo_file, profile.id.rsplit_once('-'))
        else {
            continue;
        };
        if !words.contains(&kind) {
            continue;
        }
        if node.is_of(provider) {
            return Ok(file.clone());
        }
        other.get_or_insert_with(|| {
            format!(
                "neither provider id nor labels name a provider with a topology file; with --profile {} {file} is looked for",
                profile.id
            )
        });
    }
    Err(other.unwrap_or_else(|| "no profile of this kind of node names a topology file".to_owned()))
}

/// A word that no other run has.
fn stamp() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{:x}", now.as_nanos(), std::process::id())
}

/// Lists the folder of the file on the node's host.
fn ask(client: &Client<'_>, namespace: &str, question: &Question<'_>, mark: &str) -> Answer {
    let folder = Path::new(&question.file).parent().unwrap_or(Path::new("/"));
    let target = format!("node/{}", question.node.name);
    let image = format!("--image={IMAGE}");
    let host = format!("/host{}", folder.display());
    // The mark is the shell's own name ($0): it changes nothing of what runs.
    let created = client.raw(&[
        "debug",
        &target,
        "-n",
        namespace,
        &image,
        "--",
        "sh",
        "-c",
        "ls -1 \"$1\"",
        mark,
        &host,
    ]);
    let made = created.as_ref().is_ok_and(|output| output.code == Some(0));
    let files = match created {
        Err(refusal) => Err(refusal),
        Ok(output) if output.code != Some(0) => Err(super::client::understand(&output)),
        Ok(_) => finish(client, namespace, &question.node.name, mark),
    };
    // Also when creating it seemed to fail: an answer that was lost leaves a pod behind all the same.
    Answer { files, made, left: delete(client, namespace, &question.node.name, mark) }
}

/// Pods on the node whose command carries the mark: ours.
fn ours(client: &Client<'_>, namespace: &str, node: &str, mark: &str) -> Look<Option<Pod>> {
    let selector = format!("--field-selector=spec.nodeName={node}");
    let args = ["get", "pods", "-n", namespace, &selector, "-o", "json"];
    let output = client.raw_within(&args, DELETE)?;
    if output.code != Some(0) {
        return Err(super::client::understand(&output));
    }
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).map_err(|error| Refusal {
        kind: Kind::Garbage,
        message: format!("the list of pods is no JSON: {error}"),
    })?;
    let items = value["items"].as_array().map_or(&[][..], Vec::as_slice);
    Ok(items.iter().filter_map(Pod::read).find(|pod| pod.commands.iter().any(|word| word == mark)))
}

/// Waits until the pod has ended and reads what it printed.
fn finish(client: &Client<'_>, namespace: &str, node: &str, mark: &str) -> Look<Vec<String>> {
    let patience = std::time::Instant::now() + PATIENCE.min(client.left());
    let mut pause = Duration::from_millis(50);
    loop {
        let Some(pod) = ours(client, namespace, node, mark)? else {
            return Err(Refusal {
                kind: Kind::NotFound,
                message: "the debug pod is not there any more".to_owned(),
            });
        };
        if pod.phase == "Succeeded" {
            let text = client.text(&["logs", &pod.name, "-n", namespace])?;
            return Ok(text.lines().map(clean).filter(|line| !line.is_empty()).collect());
        }
        if pod.phase == "Failed" {
            // ls ends with 1 where there is no such folder: that is an answer.
            let text = client.text(&["logs", &pod.name, "-n", namespace])?;
            return if text.contains("No such file or directory") {
                Ok(Vec::new())
            } else {
                Err(Refusal { kind: Kind::Other, message: clean(&format!("ls failed: {text}")) })
            };
        }
        if std::time::Instant::now() >= patience {
            let state = clean(&pod.state());
            return Err(Refusal {
                kind: Kind::Deadline,
                message: format!("the debug pod did not end in time: {state}"),
            });
        }
        std::thread::sleep(pause.min(client.left()));
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// Deletes our pod, by its exact name. What is left behind: its name and why.
fn delete(client: &Client<'_>, namespace: &str, node: &str, mark: &str) -> Option<(String, String)> {
    match ours(client, namespace, node, mark) {
        Ok(None) => None,
        Ok(Some(pod)) => {
            match client.raw_within(&["delete", "pod", &pod.name, "-n", namespace, "--wait=false"], DELETE) {
                Ok(output) if output.code == Some(0) => None,
                Ok(output) => {
                    let refusal = super::client::understand(&output);
                    (!refusal.absent()).then_some((pod.name, refusal.message))
                }
                Err(refusal) => Some((pod.name, refusal.message)),
            }
        }
        Err(refusal) => Some((format!("node-debugger-{node}-*"), refusal.message)),
    }
}

fn judged(judge: &Judge<'_>, question: &Question<'_>, answer: Answer) -> Vec<Finding> {
    let node = &question.node.name;
    let find = |id: &str| judge.finding(id, &format!("debug node/{} -- ls", clean(node))).about(clean(node));
    let folder =
        Path::new(&question.file).parent().map(|folder| folder.display().to_string()).unwrap_or_default();
    let wanted_name = Path::new(&question.file).file_name().map(|name| name.to_string_lossy().into_owned());
    let finding = find("P324");
    let mut all = vec![match answer.files {
        Err(refusal) => finding.unknown(reason(&refusal)).advisory(),
        Ok(files) if wanted_name.as_ref().is_some_and(|name| files.contains(name)) => {
            finding.saw(format!("NCCL_TOPO_FILE={}", question.file), "")
        }
        Ok(files) if files.is_empty() => finding
            .outcome(Status::Warn, &NO_FILE)
            .saw(format!("{folder} is empty or not there"), &question.file)
            .remedy("Leave NCCL_TOPO_FILE out of the job, and the hostPath volume with its mount too.", &[]),
        Ok(files) => finding
            .outcome(Status::Warn, &NO_FILE)
            .saw(format!("{folder} has {}", some(&files)), &question.file)
            .remedy(
                "Let NCCL_TOPO_FILE name the file that is there, if it is of this kind of node.",
                &[&format!("NCCL_TOPO_FILE={folder}/{}", files.first().map_or("", String::as_str))],
            ),
    }];
    if let Some((pod, why)) = answer.left {
        let namespace = quoted(judge.namespace());
        let steps = if pod.ends_with('*') {
            judge.client.typed(&format!("-n {namespace} get pods --field-selector spec.nodeName={}      # then delete the one named {}", quoted(node), clean(&pod)))
        } else {
            judge.client.typed(&format!("-n {namespace} delete pod {}", quoted(&pod)))
        };
        all.push(
            find("P325")
                .outcome(Status::Warn, &LEFT)
                .saw(format!("{}: {}", clean(&pod), clean(&why)), "no pod of ours left")
                .remedy("Delete it.", &[&steps]),
        );
    } else if answer.made {
        all.push(find("P325").saw("no pod of ours is left", ""));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_by_the_kind_of_gpu() {
        let node = |product: &str| Node {
            labels: [("nvidia.com/gpu.product".to_owned(), product.to_owned())].into(),
            provider: Some("crusoe://6a1c".to_owned()),
            ..Node::default()
        };
        let h200 = "/etc/crusoe/nccl_topo/h200-141gb-sxm-ib-cloud-hypervisor.xml";
        assert_eq!(file(None, &node("NVIDIA-H200")).as_deref(), Ok(h200));
        let b200 = "/etc/crusoe/nccl_topo/b200-180gb-sxm-ib-cloud-hypervisor.xml";
        assert_eq!(file(None, &node("NVIDIA-B200")).as_deref(), Ok(b200));
        assert!(file(None, &node("NVIDIA-GB200")).is_err());
        assert!(file(None, &Node::default()).is_err());
        let given = profile::get("crusoe-h200").unwrap();
        assert_eq!(file(Some(&given), &Node::default()).as_deref(), Ok(h200));
        // The same GPUs of somebody else, and of nobody known.
        for provider in [Some("aws:///us-east-2a/i-0123"), Some("crusoeish://x"), None] {
            let other = Node { provider: provider.map(str::to_owned), ..node("NVIDIA-H200") };
            let why = file(None, &other).unwrap_err();
            assert!(why.contains("--profile crusoe-h200") && why.contains(h200), "{why}");
        }
        // A label tells as well.
        let mut labelled = Node { provider: None, ..node("NVIDIA-H200") };
        labelled.labels.insert("crusoe.ai/pod.id".to_owned(), "p1".to_owned());
        assert_eq!(file(None, &labelled).as_deref(), Ok(h200));
    }
}

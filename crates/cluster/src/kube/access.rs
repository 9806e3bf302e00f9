//! What the caller may do, and a Role for what is missing.

use std::fmt::Write;

use super::client::{Client, Refusal, clean};
use crate::causes::CauseEntry;
use crate::facts::Scope;
use crate::finding::Finding;

/// What a permission is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Nodes, pods and resources of the cluster.
    Cluster,
    /// The driver's name space.
    Driver,
    /// The node debug pod of `--probe-host`, in the driver's name space.
    Probe,
}

/// A verb on a kind of object.
#[derive(Clone, Copy, Debug)]
struct Permission {
    need: Need,
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
}

const fn may(need: Need, verb: &'static str, group: &'static str, resource: &'static str) -> Permission {
    Permission { need, verb, group, resource, subresource: "" }
}

/// Every permission that the check uses.
const ALL: &[Permission] = &[
    may(Need::Cluster, "list", "", "nodes"),
    may(Need::Cluster, "list", "", "pods"),
    may(Need::Cluster, "list", "apps", "daemonsets"),
    may(Need::Cluster, "list", "apps", "deployments"),
    may(Need::Cluster, "get", "apiextensions.k8s.io", "customresourcedefinitions"),
    may(Need::Cluster, "list", "nvidia.com", "nvidiadrivers"),
    may(Need::Cluster, "list", "nvidia.com", "clusterpolicies"),
    may(Need::Cluster, "list", "mellanox.com", "nicclusterpolicies"),
    may(Need::Driver, "list", "", "pods"),
    may(Need::Driver, "get", "", "pods"),
    may(Need::Driver, "get", "", "configmaps"),
    Permission { need: Need::Driver, verb: "get", group: "", resource: "pods", subresource: "log" },
    Permission { need: Need::Driver, verb: "create", group: "", resource: "pods", subresource: "exec" },
    may(Need::Probe, "get", "", "nodes"),
    may(Need::Probe, "create", "", "pods"),
    may(Need::Probe, "delete", "", "pods"),
];

impl Permission {
    /// `nvidiadrivers.nvidia.com`, `pods`.
    fn kind(&self) -> String {
        if self.group.is_empty() {
            self.resource.to_owned()
        } else {
            format!("{}.{}", self.resource, self.group)
        }
    }

    /// Nodes are of the whole cluster, whatever they are needed for.
    fn wide(&self) -> bool {
        self.need == Need::Cluster || self.resource == "nodes"
    }

    /// `list pods in all name spaces`, `create pods/exec in nvidia-gpu-operator`.
    fn title(&self, namespace: &str) -> String {
        let part = if self.subresource.is_empty() { String::new() } else { format!("/{}", self.subresource) };
        let place = match (self.wide(), self.resource) {
            (true, "pods" | "daemonsets" | "deployments") => " in all namespaces".to_owned(),
            (true, _) => String::new(),
            (false, _) => format!(" in {namespace}"),
        };
        format!("{} {}{part}{place}", self.verb, self.kind())
    }

    /// What a Role calls it.
    fn rule(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.to_owned()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }
}

/// The answer for one permission.
#[derive(Clone, Debug)]
struct Answer {
    permission: Permission,
    allowed: Result<bool, Refusal>,
}

/// Asks for every permission that is needed.
pub(super) fn check(client: &Client<'_>, namespace: &str, probe: bool) -> Finding {
    let wanted: Vec<Permission> =
        ALL.iter().copied().filter(|permission| probe || permission.need != Need::Probe).collect();
    let answers = client.each(&wanted, |permission| Answer {
        permission: *permission,
        allowed: ask(client, permission, namespace),
    });
    finding(client, namespace, &answers)
}

fn ask(client: &Client<'_>, permission: &Permission, namespace: &str) -> Result<bool, Refusal> {
    let kind = permission.kind();
    let mut args = vec!["auth", "can-i", permission.verb, &kind];
    let subresource = format!("--subresource={}", permission.subresource);
    if !permission.subresource.is_empty() {
        args.push(&subresource);
    }
    match (permission.wide(), permission.resource) {
        (true, "pods" | "daemonsets" | "deployments") => args.push("--all-namespaces"),
        (true, _) => {}
        (false, _) => args.extend(["-n", namespace]),
    }
    let output = client.raw(&args)?;
    // The answer is the first word; a reason may follow it. The exit status is 1 for "no" and for errors alike.
    match String::from_utf8_lossy(&output.stdout).split_whitespace().next() {
        Some("yes") => Ok(true),
        Some("no") => Ok(false),
        _ => Err(super::client::understand(&output)),
    }
}

fn finding(client: &Client<'_>, namespace: &str, answers: &[Answer]) -> Finding {
    let finding = super::titled("P300").at("kubectl auth can-i", Scope::Unknown);
    let denied: Vec<&Permission> =
        answers.iter().filter(|one| one.allowed == Ok(false)).map(|one| &one.permission).collect();
    let unsure: Vec<String> = answers
        .iter()
        .filter_map(|one| Some((one, one.allowed.as_ref().err()?)))
        .map(|(one, refusal)| format!("{} ({})", one.permission.title(namespace), clean(&refusal.message)))
        .collect();
    if denied.is_empty() && unsure.is_empty() {
        return finding.saw(format!("all {} that are used", answers.len()), "");
    }
    let mut observed = Vec::new();
    if !denied.is_empty() {
        let titles: Vec<String> = denied.iter().map(|one| one.title(namespace)).collect();
        observed.push(format!("not permitted: {}", titles.join("; ")));
    }
    if let Some(first) = unsure.first() {
        observed.push(format!("no answer for {} of {}, the first: {first}", unsure.len(), answers.len()));
    }
    // Advisory: each finding that lacks something says so itself.
    let finding = finding.unknown(observed.join("; ")).advisory();
    if denied.is_empty() {
        return finding;
    }
    let finding = Finding { cause: Some(CAUSE.id.to_owned()), why: CAUSE.text.to_owned(), ..finding };
    // Lines of a step that is a text stand at the margin, so that it can be pasted whole.
    let apply = client.typed("apply -f - <<'EOF'");
    let step = format!("{apply}\n{}EOF", manifest(namespace, answers));
    finding.remedy(
        "Have somebody who administers the cluster apply this, with the user in place of USER; what is listed is all that the check uses.",
        &[&step],
    )
}

/// `ClusterRole`, Role and bindings for everything that was asked for.
fn manifest(namespace: &str, answers: &[Answer]) -> String {
    let of = |wide: bool| answers.iter().map(|one| &one.permission).filter(move |one| one.wide() == wide);
    let mut out = String::new();
    let cluster: Vec<&Permission> = of(true).collect();
    let local: Vec<&Permission> = of(false).collect();
    let namespace = yaml_string(namespace);
    for (kind, rules, place) in
        [("ClusterRole", cluster, String::new()), ("Role", local, format!(", namespace: {namespace}"))]
    {
        let _ = writeln!(
            out,
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata: {{name: expertrail-check{place}}}\nrules:"
        );
        for (group, resource, verbs) in grouped(&rules) {
            let _ = writeln!(
                out,
                "- {{apiGroups: [\"{group}\"], resources: [{resource}], verbs: [{}]}}",
                verbs.join(", ")
            );
        }
        let _ = writeln!(
            out,
            "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}Binding\nmetadata: {{name: expertrail-check{place}}}\n\
             roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: {kind}, name: expertrail-check}}\n\
             subjects:\n- {{apiGroup: rbac.authorization.k8s.io, kind: User, name: USER}}\n---"
        );
    }
    out.trim_end_matches("---\n").to_owned()
}

/// Rules: group, resource and all verbs on it, in the order of the table.
fn grouped(permissions: &[&Permission]) -> Vec<(&'static str, String, Vec<&'static str>)> {
    let mut rules: Vec<(&'static str, String, Vec<&'static str>)> = Vec::new();
    for permission in permissions {
        let name = permission.rule();
        match rules.iter_mut().find(|(group, resource, _)| *group == permission.group && *resource == name) {
            Some((_, _, verbs)) => verbs.push(permission.verb),
            None => rules.push((permission.group, name, vec![permission.verb])),
        }
    }
    rules
}

/// A name as YAML takes it whatever it holds.
fn yaml_string(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if text.chars().all(plain) && text.chars().any(|c| c.is_ascii_alphabetic()) {
        text.to_owned()
    } else {
        serde_json::Value::from(text).to_string()
    }
}

pub(super) const CAUSE: CauseEntry = CauseEntry {
    id: "kube-permission-missing",
    title: "the caller may not read a part of the cluster",
    text: "What may not be read cannot be judged: findings that depend on it say so, the others stand.",
};

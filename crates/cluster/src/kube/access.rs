//! What the caller may do, and a Role for what is missing.

use super::client::{Client, Refusal, clean};
use super::rights::{Right, Subject, roles};
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

/// A right, and what for.
#[derive(Clone, Copy, Debug)]
struct Permission {
    need: Need,
    right: Right,
}

const fn may(need: Need, verb: &'static str, group: &'static str, resource: &'static str) -> Permission {
    let right = Right { verb, group, resource, subresource: "", wide: matches!(need, Need::Cluster) };
    Permission { need, right }
}

const fn part(verb: &'static str, resource: &'static str, subresource: &'static str) -> Permission {
    Permission { need: Need::Driver, right: Right { verb, group: "", resource, subresource, wide: false } }
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
    part("get", "pods", "log"),
    part("create", "pods", "exec"),
    // Nodes are of the whole cluster, whatever they are needed for.
    Permission {
        need: Need::Probe,
        right: Right { verb: "get", group: "", resource: "nodes", subresource: "", wide: true },
    },
    may(Need::Probe, "create", "", "pods"),
    may(Need::Probe, "delete", "", "pods"),
];

/// The answer for one right.
#[derive(Clone, Debug)]
struct Answer {
    right: Right,
    allowed: Result<bool, Refusal>,
}

/// Asks for every permission that is needed.
pub(super) fn check(client: &Client<'_>, namespace: &str, probe: bool) -> Finding {
    let wanted: Vec<Right> = ALL
        .iter()
        .filter(|permission| probe || permission.need != Need::Probe)
        .map(|permission| permission.right)
        .collect();
    let answers =
        client.each(&wanted, |right| Answer { right: *right, allowed: right.ask(client, namespace) });
    finding(client, namespace, &answers)
}

fn finding(client: &Client<'_>, namespace: &str, answers: &[Answer]) -> Finding {
    let finding = super::titled("P300").at("kubectl auth can-i", Scope::Unknown);
    let denied: Vec<&Right> =
        answers.iter().filter(|one| one.allowed == Ok(false)).map(|one| &one.right).collect();
    let unsure: Vec<String> = answers
        .iter()
        .filter_map(|one| Some((one, one.allowed.as_ref().err()?)))
        .map(|(one, refusal)| format!("{} ({})", one.right.title(namespace), clean(&refusal.message)))
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
    let rights: Vec<Right> = answers.iter().map(|one| one.right).collect();
    let step = format!(
        "{apply}\n{}EOF",
        roles("expertrail-check", namespace, &rights, &Subject::User("USER".to_owned()))
    );
    finding.remedy(
        "Have somebody who administers the cluster apply this, with the user in place of USER; what is listed is all that the check uses.",
        &[&step],
    )
}

pub(super) const CAUSE: CauseEntry = CauseEntry {
    id: "kube-permission-missing",
    title: "the caller may not read a part of the cluster",
    text: "What may not be read cannot be judged: findings that depend on it say so, the others stand.",
};

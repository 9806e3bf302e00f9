//! The rights that a launch needs, whether the caller has them, and the Roles that give them.

use expertrail_cluster::kube::client::{Kind, Look};
use expertrail_cluster::kube::rights::{Right, Subject, roles};

use super::site::Site;
use crate::drive::{DriveError, Event, Show};
use crate::run::{Run, Target};
use crate::spec::Binary;

/// Name of the Roles.
const NAME: &str = "expertrail-launch";

/// What runs need beyond what all need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // each is independent of the others
pub struct Uses {
    /// `MPIJob`s.
    pub mpi: bool,
    /// Our binary is copied into pods.
    pub copies: bool,
    /// The image is pulled before.
    pub pulls: bool,
    /// The namespace has to be made.
    pub makes_namespace: bool,
}

impl Uses {
    /// Everything that any run may need.
    pub const ALL: Self = Self { mpi: true, copies: true, pulls: true, makes_namespace: true };

    /// What `run` needs.
    pub fn of(run: &Run, makes_namespace: bool) -> Self {
        Self {
            mpi: run.target == Target::Mpijob,
            copies: run.kubernetes.binary == Binary::Copy,
            pulls: run.kubernetes.prepull,
            makes_namespace,
        }
    }
}

/// A right, and what is lost without it; none where nothing goes without it.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    right: Right,
    without: Option<&'static str>,
}

const fn right(verb: &'static str, group: &'static str, resource: &'static str) -> Right {
    Right { verb, group, resource, subresource: "", wide: false }
}

/// All rights that are used.
fn wanted(uses: Uses) -> Vec<Wanted> {
    let mut all = Vec::new();
    let mut must = |right: Right| all.push(Wanted { right, without: None });
    let make = ["create", "get", "list", "delete"];
    for (group, resource, wanted) in [
        ("batch", "jobs", true),
        ("kubeflow.org", "mpijobs", uses.mpi),
        ("apps", "daemonsets", uses.pulls),
        ("", "services", true),
        ("", "configmaps", true),
    ] {
        if wanted {
            for verb in make {
                must(right(verb, group, resource));
            }
        }
    }
    for verb in ["get", "list", "delete"] {
        must(right(verb, "", "pods"));
    }
    must(Right { subresource: "log", ..right("get", "", "pods") });
    if uses.copies {
        must(Right { subresource: "exec", ..right("create", "", "pods") });
    }
    if uses.makes_namespace {
        must(Right { wide: true, ..right("create", "", "namespaces") });
    }
    let mut may = |right: Right, without| all.push(Wanted { right, without: Some(without) });
    if uses.copies {
        let without = "kubectl then falls back from WebSocket to SPDY";
        may(Right { subresource: "exec", ..right("get", "", "pods") }, without);
    }
    may(right("list", "", "events"), "it cannot be said why pods wait");
    let wide = |verb, group, resource| Right { wide: true, ..right(verb, group, resource) };
    may(
        wide("get", "", "namespaces"),
        "it cannot be seen whether the namespace exists, and it is not removed at the end",
    );
    if uses.makes_namespace {
        may(wide("delete", "", "namespaces"), "the namespace stays at the end");
    }
    may(wide("list", "", "nodes"), "it cannot be seen whether nodes can hold the pods");
    if uses.mpi {
        let without = "it cannot be seen whether the cluster knows MPIJobs";
        may(wide("get", "apiextensions.k8s.io", "customresourcedefinitions"), without);
    }
    all
}

/// `ClusterRole`, Role and bindings with all that `uses` needs.
pub fn manifest(namespace: &str, uses: Uses, subject: &Subject) -> String {
    let rights: Vec<Right> = wanted(uses).into_iter().map(|one| one.right).collect();
    roles(NAME, namespace, &rights, subject)
}

/// Asks for all rights. What is missing and merely useful is a warning.
///
/// # Errors
/// When a right is denied that nothing goes without: with the Roles that give it. When the server does not answer.
pub(super) fn review(site: &Site<'_>, uses: Uses, show: &mut dyn Show) -> Result<(), DriveError> {
    let wanted = wanted(uses);
    let answers: Vec<Look<bool>> =
        site.client.each(&wanted, |one| one.right.ask(&site.client, &site.namespace));
    let mut denied = Vec::new();
    for (one, answer) in wanted.iter().zip(&answers) {
        let title = one.right.title(&site.namespace);
        match (answer, one.without) {
            (Ok(true), _) => {}
            (Ok(false), None) => denied.push(title),
            (Ok(false), Some(without)) => {
                show.show(Event::Warning(format!("not permitted: {title}; without it {without}")));
            }
            // A cluster without the review's API (or a proxy before it) still may allow everything.
            (Err(refusal), _) if matches!(refusal.kind, Kind::Forbidden | Kind::Other | Kind::Garbage) => {
                let said = &refusal.message;
                show.show(Event::Warning(format!(
                    "it cannot be asked whether this is permitted: {title} ({said})"
                )));
            }
            // The server has no such kind: what needs it says so by itself.
            (Err(refusal), _) if refusal.absent() => {}
            (Err(refusal), _) => return Err(site.error(refusal)),
        }
    }
    if denied.is_empty() {
        return Ok(());
    }
    let who = site.user.as_deref().map(|user| format!(" (kubeconfig user {user})")).unwrap_or_default();
    let subject = Subject::User("USER".to_owned());
    Err(DriveError::Access(format!(
        "not permitted in the cluster{who}: {}. Have somebody who administers it apply this, with the name that `{}` prints in place of USER; \
         it is all that this run uses:\n{}",
        denied.join("; "),
        site.client.typed("auth whoami"),
        manifest(&site.namespace, uses, &subject)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_have_what_is_used_and_nothing_more() {
        let subject = Subject::Account("ep".to_owned(), "bench".to_owned());
        let least = Uses { mpi: false, copies: false, pulls: false, makes_namespace: false };
        let text = manifest("ep", least, &subject);
        for line in [
            "- {apiGroups: [\"batch\"], resources: [jobs], verbs: [create, get, list, delete]}",
            "- {apiGroups: [\"\"], resources: [pods/log], verbs: [get]}",
            "- {apiGroups: [\"\"], resources: [events], verbs: [list]}",
            "- {apiGroups: [\"\"], resources: [nodes], verbs: [list]}",
            "metadata: {name: expertrail-launch, namespace: ep}",
            "- {kind: ServiceAccount, namespace: ep, name: bench}",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} is not in\n{text}");
        }
        for word in ["mpijobs", "exec", "daemonsets", "secrets", "\"*\"", "patch"] {
            assert!(!text.contains(word), "{word} is in\n{text}");
        }
        let most = manifest("ep", Uses::ALL, &subject);
        for word in ["mpijobs", "pods/exec", "daemonsets", "customresourcedefinitions"] {
            assert!(most.contains(word), "{word} is not in\n{most}");
        }
        // Four documents, which YAML reads.
        let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(&most).unwrap();
        let kinds: Vec<&str> = documents.iter().map(|one| one["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]);
    }
}

//! Rights: asking whether the caller has them, and the Roles that give them.

use std::fmt::Write;

use super::answer::message;
use super::client::{Client, Kind, Look, Refusal, understand};

/// A verb on a kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// `get`, `list`, `create`.
    pub verb: &'static str,
    /// API group; empty for the core.
    pub group: &'static str,
    /// `pods`.
    pub resource: &'static str,
    /// `log` of `pods/log`; empty for none.
    pub subresource: &'static str,
    /// In the whole cluster, not in one name space.
    pub wide: bool,
}

/// Kinds that are in name spaces, and are nevertheless wanted in all of them where a right is wide.
const NAMESPACED: [&str; 3] = ["pods", "daemonsets", "deployments"];

impl Right {
    /// `nvidiadrivers.nvidia.com`, `pods`.
    fn kind(&self) -> String {
        if self.group.is_empty() {
            self.resource.to_owned()
        } else {
            format!("{}.{}", self.resource, self.group)
        }
    }

    /// `list pods in all name spaces`, `create pods/exec in nvidia-gpu-operator`.
    pub fn title(&self, namespace: &str) -> String {
        let part = if self.subresource.is_empty() { String::new() } else { format!("/{}", self.subresource) };
        let place = match (self.wide, NAMESPACED.contains(&self.resource)) {
            (true, true) => " in all namespaces".to_owned(),
            (true, false) => String::new(),
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

    /// Whether the caller has it.
    ///
    /// # Errors
    /// When the server gives no answer.
    pub fn ask(&self, client: &Client<'_>, namespace: &str) -> Look<bool> {
        let kind = self.kind();
        let mut args = vec!["auth", "can-i", self.verb, &kind];
        let subresource = format!("--subresource={}", self.subresource);
        if !self.subresource.is_empty() {
            args.push(&subresource);
        }
        match (self.wide, NAMESPACED.contains(&self.resource)) {
            (true, true) => args.push("--all-namespaces"),
            (true, false) => {}
            (false, _) => args.extend(["-n", namespace]),
        }
        let output = client.raw(&args)?;
        // The answer is the first word; a reason may follow it. The exit status is 1 for "no" and for errors alike.
        match String::from_utf8_lossy(&output.stdout).split_whitespace().next() {
            Some("yes") => Ok(true),
            Some("no") => Ok(false),
            Some(_) => Err(Refusal {
                kind: Kind::Garbage,
                message: message(&args, "it is neither yes nor no", &output.stdout),
            }),
            _ => Err(understand(&output)),
        }
    }
}

/// Whom rights are given to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A user, by the name that the server knows.
    User(String),
    /// A group of users.
    Group(String),
    /// A service account: its name space and name.
    Account(String, String),
}

impl Subject {
    fn yaml(&self) -> String {
        let rbac = "apiGroup: rbac.authorization.k8s.io, kind:";
        match self {
            Self::User(name) => format!("{{{rbac} User, name: {}}}", yaml_string(name)),
            Self::Group(name) => format!("{{{rbac} Group, name: {}}}", yaml_string(name)),
            Self::Account(namespace, name) => {
                format!(
                    "{{kind: ServiceAccount, namespace: {}, name: {}}}",
                    yaml_string(namespace),
                    yaml_string(name)
                )
            }
        }
    }
}

/// `ClusterRole`, Role and bindings of that name for `rights`. A kind that would have no rule is left out.
pub fn roles(name: &str, namespace: &str, rights: &[Right], subject: &Subject) -> String {
    let of = |wide: bool| rights.iter().filter(move |right| right.wide == wide);
    let mut out = String::new();
    let cluster: Vec<&Right> = of(true).collect();
    let local: Vec<&Right> = of(false).collect();
    let (namespace, subject) = (yaml_string(namespace), subject.yaml());
    for (kind, rules, place) in
        [("ClusterRole", cluster, String::new()), ("Role", local, format!(", namespace: {namespace}"))]
    {
        if rules.is_empty() {
            continue;
        }
        let _ = writeln!(
            out,
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata: {{name: {name}{place}}}\nrules:"
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
            "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}Binding\nmetadata: {{name: {name}{place}}}\n\
             roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: {kind}, name: {name}}}\n\
             subjects:\n- {subject}\n---"
        );
    }
    out.trim_end_matches("---\n").to_owned()
}

/// Rules: group, resource and all verbs on it, in the order of the table.
fn grouped(rights: &[&Right]) -> Vec<(&'static str, String, Vec<&'static str>)> {
    let mut rules: Vec<(&'static str, String, Vec<&'static str>)> = Vec::new();
    for right in rights {
        let name = right.rule();
        match rules.iter_mut().find(|(group, resource, _)| *group == right.group && *resource == name) {
            Some((_, _, verbs)) => verbs.push(right.verb),
            None => rules.push((right.group, name, vec![right.verb])),
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

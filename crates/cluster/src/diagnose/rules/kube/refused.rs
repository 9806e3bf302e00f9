//! Objects that the API server does not take: not valid, against a rule of admission, above a quota.
//!
//! `kubectl apply` shows it at once; of the pods that a controller makes, its event `FailedCreate` says it.

use crate::diagnose::Case;
use crate::diagnose::event::{Role, Signal};
use crate::diagnose::rule::{Claim, Rule};
use crate::diagnose::rules::process::story::{about, line, unless_fine};

/// Kinds of lines. A controller tries again where a quota is used up: that may heal, and is a warning.
pub(super) const SIGNALS: &[Signal] = &[
    line(
        "kube-object-invalid",
        Role::Failure,
        &["\" is invalid: ", "strict decoding error: ", "error validating ", "cannot be handled as a"],
        r#"\b(?P<object>[A-Z][A-Za-z]+ "[^"]+") is invalid: |strict decoding error: (?:unknown field "(?P<field>[^"]+)")?|error validating (?:"|data)|in version "[^"]+" cannot be handled as an? "#,
    ),
    line(
        "kube-admission-denied",
        Role::Failure,
        &["denied the request", "violates PodSecurity"],
        r#"admission webhook "(?P<rule>[^"]+)" denied the request|\bviolates (?P<level>PodSecurity "[^"]+")"#,
    ),
    line(
        "kube-quota-exceeded",
        Role::Warning,
        &["exceeded quota: "],
        r"exceeded quota: (?P<quota>[\w.-]*\w)",
    ),
];

/// Rules.
pub(super) const RULES: &[Rule] = &[
    Rule {
        cause: "kube-manifest-invalid",
        needs: &["kube-object-invalid"],
        because: "the API server does not take the object: a field is unknown to it, or has a value that it does not allow",
        rules_out: &[
            "rights are not the matter: who may not is told that it is forbidden, and no field is named",
        ],
        refine: Some(invalid),
        ..Rule::CERTAIN
    },
    Rule {
        cause: "kube-admission-denied",
        needs: &["kube-admission-denied"],
        because: "a rule of admission of the cluster does not let the object in",
        rules_out: &["the object is valid, and the caller may make it: the rule comes after both"],
        refine: Some(denied),
        ..Rule::CERTAIN
    },
    Rule {
        cause: "kube-quota-exceeded",
        needs: &["kube-quota-exceeded"],
        because: "the namespace's quota {quota} is used up, so the object is not made",
        rules_out: &["nodes are not the matter: the scheduler was not asked yet"],
        refine: Some(quota),
        ..Rule::CERTAIN
    },
];

fn invalid(case: &Case, claim: Claim) -> Option<Claim> {
    let claim = about(case, claim, "object");
    let claim = if claim.subject.is_none() { about(case, claim, "field") } else { claim };
    unless_fine(case, claim)
}

fn denied(case: &Case, claim: Claim) -> Option<Claim> {
    let claim = about(case, claim, "rule");
    let claim = if claim.subject.is_none() { about(case, claim, "level") } else { claim };
    unless_fine(case, claim)
}

fn quota(case: &Case, claim: Claim) -> Option<Claim> {
    // A controller that was refused and then made its pods has room by now.
    let last = case.events("kube-quota-exceeded").last();
    if last.is_some_and(|last| case.events("kube-pod-came-up").any(|up| last.before(up) == Some(true))) {
        return None;
    }
    unless_fine(case, about(case, claim, "quota"))
}

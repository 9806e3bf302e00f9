//! Making the run's objects, and handing them this project's binary.

use std::fs;
use std::path::Path;
use std::time::Duration;

use expertrail_cluster::kube::client::{Kind, clean, quoted};

use super::look::{BINARY_CONTAINER, Pod, RUN_LABEL};
use super::manifest::{Document, joined};
use super::site::Site;
use crate::drive::{DriveError, Event, Show};

/// The longest that an apply may take: admission webhooks may be slow.
const APPLY: Duration = Duration::from_secs(90);

/// The longest that the copy of the binary into a pod may take.
const COPY: Duration = Duration::from_mins(5);

/// Where pods find the binary.
const BINARY: &str = "/opt/expertrail/expertrail";

/// What pods wait for.
const READY: &str = "/opt/expertrail/ready";

/// What the API server makes of the documents, without making them.
///
/// # Errors
/// When it refuses one.
pub(super) fn rehearse(site: &Site<'_>, documents: &[&Document]) -> Result<(), DriveError> {
    let args = ["apply", "-n", &site.namespace, "--dry-run=server", "-o", "name", "-f", "-"];
    send(site, &args, documents).map(|_| ())
}

/// Makes the documents' objects; gives their names as kubectl says them.
///
/// # Errors
/// When the server refuses one.
pub(super) fn apply(site: &Site<'_>, documents: &[&Document]) -> Result<Vec<String>, DriveError> {
    let args = ["apply", "-n", &site.namespace, "-o", "name", "-f", "-"];
    let text = send(site, &args, documents)?;
    let made: Vec<String> = text.lines().map(clean).filter(|line| !line.is_empty()).collect();
    let sent = |line: &String| {
        let Some((kind, name)) = line.split_once('/') else { return false };
        let kind = kind.split('.').next().unwrap_or(kind);
        documents.iter().any(|one| one.kind().eq_ignore_ascii_case(kind) && one.name() == name)
    };
    // What stands for kubectl may end well and have made nothing.
    if made.is_empty() || !made.iter().all(sent) {
        return Err(DriveError::System(format!(
            "`{}` ended well and did not name the objects that it was given ({}): {}",
            site.client.typed(&args.join(" ")),
            documents
                .iter()
                .map(|one| format!("{}/{}", one.kind(), one.name()))
                .collect::<Vec<_>>()
                .join(", "),
            if made.is_empty() {
                "it said nothing".to_owned()
            } else {
                format!("it said {}", clean(&made.join("; ")))
            }
        )));
    }
    Ok(made)
}

fn send(site: &Site<'_>, args: &[&str], documents: &[&Document]) -> Result<String, DriveError> {
    let text = joined(documents.iter().copied());
    match site.client.raw_with(args, text.as_bytes(), APPLY) {
        // All of what kubectl says: with several documents there are several errors.
        Ok(output) if output.code != Some(0) => {
            let refusal = expertrail_cluster::kube::client::understand(&output);
            if matches!(refusal.kind, Kind::Unauthorized | Kind::Unreachable | Kind::NoContext) {
                return Err(site.error(&refusal));
            }
            let said = String::from_utf8_lossy(&output.stderr);
            let lines: Vec<String> =
                said.lines().filter(|line| !line.trim().is_empty()).take(8).map(clean).collect();
            let message = format!("the API server refuses the manifest: {}", lines.join("; "));
            Err(match refusal.kind {
                Kind::Forbidden => DriveError::Access(format!("{message}{}", policy(&said))),
                Kind::Quota => DriveError::Full(format!("{message}{}", site.quota(&said))),
                Kind::Rejected => DriveError::Refused(format!(
                    "{message}. Change what it names: in run.toml, and render again, or in the manifest where that was edited by hand"
                )),
                Kind::NoSuchKind => DriveError::Refused(format!(
                    "{message}. For MPIJobs the MPI Operator must be installed: `{}` shows whether it is",
                    site.client.typed("get crd mpijobs.kubeflow.org")
                )),
                _ => DriveError::System(message),
            })
        }
        answer => site.done(answer),
    }
}

/// What refusals of pods mean that are no matter of rights.
fn policy(said: &str) -> &'static str {
    if said.contains("violates PodSecurity") {
        ". The namespace's Pod Security level forbids it (IPC_LOCK and host paths need `privileged`): label the namespace \
         pod-security.kubernetes.io/enforce=privileged, or use another"
    } else {
        ""
    }
}

/// Makes the namespace if it is not there. One that is there is left as it is: its labels are somebody else's.
///
/// # Errors
/// When it cannot be made.
pub(super) fn namespace(
    site: &Site<'_>,
    document: Option<&Document>,
    show: &mut dyn Show,
) -> Result<(), DriveError> {
    let name = &site.namespace;
    match exists(site) {
        Ok(true) => return Ok(()),
        Ok(false) => {}
        Err(refusal) if refusal.kind == Kind::Forbidden => {
            // It may be there without our being able to see it; what is applied into it will tell.
            return Ok(());
        }
        Err(refusal) => return Err(site.error(&refusal)),
    }
    let Some(document) = document else {
        return Err(DriveError::Refused(format!(
            "there is no namespace {name}, and the manifest has none: `{}`",
            site.client.typed(&format!("create namespace {name}"))
        )));
    };
    show.show(Event::Step(format!("making namespace {name}")));
    let text = joined([document]);
    let answer = site.client.raw_with(&["apply", "-o", "name", "-f", "-"], text.as_bytes(), APPLY);
    site.done(answer).map(|_| ())
}

/// Whether the namespace exists.
pub(super) fn exists(site: &Site<'_>) -> expertrail_cluster::kube::client::Look<bool> {
    match site.client.text(&["get", "namespace", &site.namespace, "-o", "name"]) {
        Ok(_) => Ok(true),
        Err(refusal) if refusal.kind == Kind::NotFound => Ok(false),
        Err(refusal) => Err(refusal),
    }
}

/// Refuses where something of that run, or of its names, is there already.
///
/// # Errors
/// When there is; the message has the command that removes it.
pub(super) fn absent(site: &Site<'_>, run: &str, documents: &[&Document]) -> Result<(), DriveError> {
    let there = super::clean::left(site, run);
    if let Some((_, refusal)) = there.unseen.iter().find(|(_, refusal)| refusal.fatal()) {
        return Err(site.error(refusal));
    }
    if !there.names.is_empty() {
        return Err(DriveError::Refused(format!(
            "run {run} exists already in namespace {}: {}. `expertrail clean {run}{}` removes it, `expertrail status {run}{}` shows it; or render \
             with another --run-id",
            site.namespace,
            there.names.join(", "),
            site.options(),
            site.options()
        )));
    }
    let names: Vec<String> = documents
        .iter()
        .filter(|one| one.kind() != "MPIJob")
        .map(|one| format!("{}/{}", one.kind().to_lowercase(), one.name()))
        .collect();
    let mut args = vec!["get", "-n", &site.namespace, "--ignore-not-found", "-o", "name"];
    args.extend(names.iter().map(String::as_str));
    match site.client.text(&args) {
        Ok(text) if text.trim().is_empty() => Ok(()),
        Ok(text) => Err(DriveError::Refused(format!(
            "namespace {} has objects of these names that are not of this run (no label {RUN_LABEL}={run}): {}. They would be overwritten: \
             render with another --run-id, or remove them by hand",
            site.namespace,
            text.lines().map(clean).collect::<Vec<_>>().join(", ")
        ))),
        Err(refusal) if refusal.kind == Kind::Forbidden => Ok(()),
        Err(refusal) if refusal.absent() => Ok(()),
        Err(refusal) => Err(site.error(&refusal)),
    }
}

/// Sees that the registry's secrets are there. Who may not look is not stopped.
///
/// # Errors
/// When one is missing.
pub(super) fn secrets(site: &Site<'_>, names: &[String]) -> Result<(), DriveError> {
    for name in names {
        match site.client.text(&["get", "secret", name, "-n", &site.namespace, "-o", "name"]) {
            Err(refusal) if refusal.kind == Kind::NotFound => {
                return Err(DriveError::Refused(format!(
                    "there is no pull secret {name} in namespace {}: make it first, or drop kubernetes.pull_secret: `{}`",
                    site.namespace,
                    site.typed(&format!(
                        "create secret docker-registry {} --docker-server=REGISTRY --docker-username=USER --docker-password=TOKEN",
                        quoted(name)
                    ))
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The binary that is copied.
pub(super) fn binary(path: &Path) -> Result<Vec<u8>, DriveError> {
    fs::read(path).map_err(|error| {
        DriveError::Refused(format!("cannot read the binary for the pods, {}: {error}", path.display()))
    })
}

/// Copies the binary into a pod that waits for it, and lets it go on. The size is compared within the pod: a connection that breaks
/// gives a short file and no error.
///
/// # Errors
/// When it cannot be copied: why, for a person.
pub(super) fn copy(site: &Site<'_>, pod: &Pod, bytes: &[u8]) -> Result<(), String> {
    let script = format!(
        "cat > {BINARY}.part && test \"$(wc -c < {BINARY}.part)\" -eq {} && chmod 755 {BINARY}.part && mv {BINARY}.part {BINARY} && : > {READY}",
        bytes.len()
    );
    let args =
        ["exec", "-i", "-n", &site.namespace, &pod.name, "-c", BINARY_CONTAINER, "--", "sh", "-c", &script];
    match site.client.raw_with(&args, bytes, COPY) {
        Ok(output) if output.code == Some(0) => Ok(()),
        Ok(output) => Err(expertrail_cluster::kube::client::understand(&output).message),
        Err(refusal) => Err(refusal.message),
    }
}

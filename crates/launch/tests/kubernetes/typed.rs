//! Rendered objects through the API's own types: what a type does not know is lost on the way, and seen.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PodTemplateSpec, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cases::{ID, all, all_documents, files, guide, object};
use expertrail_launch::run::Target;

/// `kubeflow.org/v2beta1`, as far as its definition goes in release 0.6 of the operator.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MpiJob {
    api_version: String,
    kind: String,
    metadata: ObjectMeta,
    spec: MpiJobSpec,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MpiJobSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    slots_per_worker: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_launcher_as_worker: Option<bool>,
    run_policy: RunPolicy,
    mpi_replica_specs: BTreeMap<Replica, ReplicaSpec>,
    #[serde(rename = "sshAuthMountPath", skip_serializing_if = "Option::is_none")]
    ssh_auth_mount_path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    launcher_creation_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mpi_implementation: Option<String>,
}

#[derive(Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
enum Replica {
    Launcher,
    Worker,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RunPolicy {
    clean_pod_policy: CleanPodPolicy,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_seconds_after_finished: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    active_deadline_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff_limit: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    suspend: Option<bool>,
}

#[derive(Deserialize, Serialize)]
enum CleanPodPolicy {
    None,
    Running,
    All,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ReplicaSpec {
    replicas: i32,
    restart_policy: RestartPolicy,
    template: PodTemplateSpec,
}

#[derive(Deserialize, Serialize)]
enum RestartPolicy {
    Never,
    OnFailure,
}

fn through<T: DeserializeOwned + Serialize>(value: &Value) -> Result<Value, String> {
    let typed: T = serde_json::from_value(value.clone()).map_err(|error| error.to_string())?;
    serde_json::to_value(typed).map_err(|error| error.to_string())
}

/// Places in `given` that are not in `back`.
fn lost(given: &Value, back: &Value, place: &str, found: &mut Vec<String>) {
    match (given, back) {
        (Value::Object(given), Value::Object(back)) => {
            for (key, value) in given {
                match back.get(key) {
                    Some(other) => lost(value, other, &format!("{place}/{key}"), found),
                    None => found.push(format!("{place}/{key}")),
                }
            }
        }
        (Value::Array(given), Value::Array(back)) if given.len() == back.len() => {
            for (index, (value, other)) in given.iter().zip(back).enumerate() {
                lost(value, other, &format!("{place}/{index}"), found);
            }
        }
        _ if given == back => {}
        _ => found.push(place.to_owned()),
    }
}

/// What an object loses on its way through its type; an error where it is none of that type at all.
pub(crate) fn losses(value: &Value) -> Result<Vec<String>, String> {
    let back = match (value["apiVersion"].as_str(), value["kind"].as_str()) {
        (Some("v1"), Some("Namespace")) => through::<Namespace>(value),
        (Some("v1"), Some("Service")) => through::<Service>(value),
        (Some("v1"), Some("ConfigMap")) => through::<ConfigMap>(value),
        (Some("batch/v1"), Some("Job")) => through::<Job>(value),
        (Some("apps/v1"), Some("DaemonSet")) => through::<DaemonSet>(value),
        (Some("kubeflow.org/v2beta1"), Some("MPIJob")) => through::<MpiJob>(value),
        other => Err(format!("no type for {other:?}")),
    }?;
    let mut found = Vec::new();
    lost(value, &back, "", &mut found);
    Ok(found)
}

#[test]
fn objects_lose_nothing_on_their_way_through_the_apis_types() {
    let mut kinds = BTreeMap::new();
    for case in all() {
        for document in all_documents(&case.files()) {
            let found = losses(&document).unwrap_or_else(|error| panic!("{}: {error}", case.folder));
            assert!(found.is_empty(), "{}: {} loses {found:?}", case.folder, document["kind"]);
            *kinds.entry(document["kind"].as_str().unwrap().to_owned()).or_insert(0) += 1;
        }
    }
    // 12 Jobs, 4 descriptions of MPIJobs of which 2 have three steps.
    let count = |kind: &str| kinds.get(kind).copied().unwrap_or_default();
    assert_eq!((count("Job"), count("MPIJob"), count("ConfigMap"), count("DaemonSet")), (12, 8, 16, 1));
}

/// A mistake in a rendered object: a key that has another name, at a place.
pub(crate) struct Typo {
    pub(crate) parent: &'static str,
    pub(crate) key: &'static str,
    pub(crate) written: &'static str,
}

pub(crate) const JOB_TYPOS: [Typo; 9] = [
    Typo { parent: "/spec", key: "completionMode", written: "completionmode" },
    Typo { parent: "/spec", key: "backoffLimit", written: "backOffLimit" },
    Typo { parent: "/spec", key: "ttlSecondsAfterFinished", written: "ttlSecondsAfterFinish" },
    Typo { parent: "/spec/template/spec", key: "subdomain", written: "subDomain" },
    Typo { parent: "/spec/template/spec/containers/0", key: "resources", written: "resource" },
    Typo {
        parent: "/spec/template/spec/containers/0/securityContext/capabilities",
        key: "add",
        written: "adds",
    },
    Typo { parent: "/spec/template/spec/containers/0/env/0", key: "value", written: "val" },
    Typo { parent: "/spec/template/spec/volumes/0/emptyDir", key: "sizeLimit", written: "size" },
    Typo { parent: "/spec/template/spec/affinity", key: "podAntiAffinity", written: "podAntiaffinity" },
];

pub(crate) const SERVICE_TYPOS: [Typo; 2] = [
    Typo { parent: "/spec", key: "publishNotReadyAddresses", written: "publishNotReadyAddress" },
    Typo { parent: "/spec", key: "clusterIP", written: "clusterIp" },
];

const MPI_TYPOS: [Typo; 6] = [
    Typo { parent: "/spec", key: "slotsPerWorker", written: "slotsPerWorkers" },
    Typo { parent: "/spec/runPolicy", key: "cleanPodPolicy", written: "cleanPodsPolicy" },
    Typo { parent: "/spec/runPolicy", key: "backoffLimit", written: "backoffLimits" },
    Typo { parent: "/spec/mpiReplicaSpecs", key: "Worker", written: "Workers" },
    Typo { parent: "/spec/mpiReplicaSpecs/Launcher", key: "restartPolicy", written: "restartpolicy" },
    Typo { parent: "/spec/mpiReplicaSpecs/Worker/template/spec", key: "tolerations", written: "toleration" },
];

/// `value` with the mistake in it.
pub(crate) fn planted(value: &Value, typo: &Typo) -> Value {
    let mut value = value.clone();
    let parent = value.pointer_mut(typo.parent).unwrap_or_else(|| panic!("nothing at {}", typo.parent));
    let parent = parent.as_object_mut().unwrap();
    let moved = parent.remove(typo.key).unwrap_or_else(|| panic!("no {} at {}", typo.key, typo.parent));
    parent.insert(typo.written.to_owned(), moved);
    value
}

#[test]
fn a_planted_typo_is_lost_or_refused() {
    let guide = files(&guide("deepep", "crusoe-b200", 2), Target::K8sJob);
    let aws = files(&super::cases::aws("aws-p5en"), Target::Mpijob);
    let all = [
        (object(&guide, "Job", ID), &JOB_TYPOS[..]),
        (object(&guide, "Service", ID), &SERVICE_TYPOS[..]),
        (object(&aws, "MPIJob", "internode"), &MPI_TYPOS[..]),
    ];
    for (good, typos) in all {
        assert_eq!(losses(&good), Ok(Vec::new()));
        for typo in typos {
            let found = losses(&planted(&good, typo));
            let place = format!("{}/{}", typo.parent, typo.written);
            assert!(found.is_err() || found == Ok(vec![place]), "{} passes: {found:?}", typo.written);
        }
    }
    // Values of another type as well.
    for (pointer, value) in [("/spec/completions", "two"), ("/spec/backoffLimit", "0")] {
        let mut job = object(&guide, "Job", ID);
        *job.pointer_mut(pointer).unwrap() = Value::from(value);
        assert!(losses(&job).is_err(), "{pointer}");
    }
}

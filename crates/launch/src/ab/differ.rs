//! What differs between two descriptions, and whether it is only what was declared.

use expertrail_cluster::facts::Facts;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::run::{Run, RunError, Target};
use crate::spec::{Spec, nearest};

/// Keys that say where a run is: they must be the same, or the two runs are no comparison.
pub const PLACE: [&str; 8] =
    ["nodes", "gpus_per_node", "profile", "facts", "kubernetes", "slurm", "hosts", "network.fabric"];

/// Keys that `engine` moves with it: what an engine runs, and how.
const ENGINE: [&str; 8] =
    ["engine", "command", "contract", "collect", "benchmarks", "workload", "deepep", "image_arch"];

/// Keys inside [`PLACE`] that belong to the software after all.
const SOFTWARE: [&str; 5] = [
    "slurm.container_image",
    "slurm.container_mounts",
    "kubernetes.expertrail_image",
    "kubernetes.binary",
    "kubernetes.pull_secret",
];

/// One value that differs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Its place: `image`, `env.NCCL_DEBUG`, `steps.0.argv`.
    pub key: String,
    /// In A; none where it is not there.
    pub a: Option<String>,
    /// In B.
    pub b: Option<String>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let side = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".to_owned());
        write!(f, "{}: A {}, B {}", self.key, side(&self.a), side(&self.b))
    }
}

/// Why two descriptions are no comparison.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum VariableError {
    /// More differs than was declared.
    #[error(
        "more than --variable {} differs, and whatever comes of it would have several explanations: {}. Make them the same, or declare them",
        .declared.join(" --variable "), list(.others)
    )]
    More {
        /// What was declared.
        declared: Vec<String>,
        /// What differs beside it.
        others: Vec<Difference>,
    },
    /// Nothing differs.
    #[error("A and B are the same in --variable {}: there is nothing to compare", .0.join(" --variable "))]
    Nothing(Vec<String>),
    /// The nodes may not differ.
    #[error(
        "--variable {0} says where the runs are, and an A/B on other nodes decides nothing: it must be the same in both"
    )]
    Place(String),
    /// No such key.
    #[error("--variable {given}: there is no such key{}", match .nearest { Some(nearest) => format!("; did you mean `{nearest}`?"), None => String::new() })]
    Unknown {
        /// As given.
        given: String,
        /// The key that is most like it.
        nearest: Option<String>,
    },
    /// A with the variables of B is no run.
    #[error("with the variables of B, A cannot be resolved: {0}")]
    Run(String),
}

fn list(differences: &[Difference]) -> String {
    differences.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Sees that only `variables` differ: A with the variables of B must resolve to what B resolves to. Gives all values that differ between the
/// two resolved runs, which then follow from the variables.
///
/// # Errors
/// When more differs, nothing does, or a variable may not differ.
pub fn check(
    (a, b): (&Spec, &Spec),
    target: Target,
    facts: Option<&Facts>,
    variables: &[String],
) -> Result<Vec<Difference>, VariableError> {
    let (left, right) = (tree(a), tree(b));
    for variable in variables {
        declared(variable, &left)?;
    }
    let mut mixed = left.clone();
    let mut moved = false;
    for key in variables.iter().flat_map(|variable| group(variable)) {
        let value = at(&right, &key).cloned().unwrap_or(Value::Null);
        moved |= at(&left, &key).unwrap_or(&Value::Null) != &value;
        put(&mut mixed, &key, value);
    }
    if !moved {
        return Err(VariableError::Nothing(variables.to_vec()));
    }
    // The name may differ: it begins the names of objects and changes nothing else.
    put(&mut mixed, "name", Value::String(b.name.clone()));
    let mixed: Spec =
        serde_json::from_value(strip(mixed)).map_err(|error| VariableError::Run(error.to_string()))?;
    let run = |spec: &Spec| Run::resolve(spec, target, facts, None);
    let failed = |error: RunError| VariableError::Run(error.to_string());
    let (resolved_a, resolved_b) = (run(a).map_err(failed)?, run(b).map_err(failed)?);
    // First the descriptions: a value that was written in one alone is easier to find than what follows from it.
    let mut others = flat_differences(&tree(&mixed), &right);
    if others.is_empty() {
        others = differences(&run(&mixed).map_err(failed)?, &resolved_b);
    }
    if !others.is_empty() {
        return Err(VariableError::More { declared: variables.to_vec(), others });
    }
    Ok(differences(&resolved_a, &resolved_b))
}

/// All values that differ between two resolved runs, but for their names and reasons.
pub fn differences(a: &Run, b: &Run) -> Vec<Difference> {
    let plain = |run: &Run| {
        let mut value = serde_json::to_value(run).unwrap_or_default();
        if let Some(map) = value.as_object_mut() {
            map.retain(|key, _| !matches!(key.as_str(), "id" | "name" | "notes" | "schema"));
            let env =
                run.env.iter().map(|one| (one.name.clone(), Value::String(one.value.clone()))).collect();
            map.insert("env".to_owned(), Value::Object(env));
        }
        value
    };
    flat_differences(&plain(a), &plain(b))
}

fn declared(variable: &str, tree: &Value) -> Result<(), VariableError> {
    let place = PLACE.iter().any(|place| variable == *place || variable.starts_with(&format!("{place}.")));
    let software = SOFTWARE.contains(&variable);
    if place && !software {
        return Err(VariableError::Place(variable.to_owned()));
    }
    // Tables of the user's own keys take any.
    if variable.starts_with("env.") || software || at(tree, variable).is_some() && variable != "name" {
        return Ok(());
    }
    let mut known: Vec<String> = Vec::new();
    for (key, value) in tree.as_object().into_iter().flatten() {
        known.push(key.clone());
        known.extend(value.as_object().into_iter().flatten().map(|(inner, _)| format!("{key}.{inner}")));
    }
    known.retain(|key| !PLACE.contains(&key.as_str()) && key != "name");
    Err(VariableError::Unknown { given: variable.to_owned(), nearest: nearest(variable, &known) })
}

/// The keys that move with a variable.
fn group(variable: &str) -> Vec<String> {
    match variable {
        "engine" => ENGINE.iter().map(|key| (*key).to_owned()).collect(),
        "command" => ["command", "contract", "collect"].map(str::to_owned).to_vec(),
        "image" => ["image", "image_arch"].map(str::to_owned).to_vec(),
        other => vec![other.to_owned()],
    }
}

/// A description as a tree; values that are not given are null.
fn tree(spec: &Spec) -> Value {
    serde_json::to_value(spec).unwrap_or_default()
}

fn at<'a>(tree: &'a Value, key: &str) -> Option<&'a Value> {
    let mut here = tree;
    // Names of variables hold no points.
    for part in key.split('.') {
        here = here.get(part)?;
    }
    Some(here)
}

fn put(tree: &mut Value, key: &str, value: Value) {
    let (first, rest) = match key.split_once('.') {
        Some((first, rest)) => (first, Some(rest)),
        None => (key, None),
    };
    let Some(map) = tree.as_object_mut() else { return };
    match rest {
        None if value.is_null() => {
            map.remove(first);
        }
        None => {
            map.insert(first.to_owned(), value);
        }
        Some(rest) => {
            put(map.entry(first).or_insert_with(|| Value::Object(serde_json::Map::new())), rest, value);
        }
    }
}

/// Without nulls, which stand for values that are not given.
fn strip(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(key, value)| (key, strip(value)))
                .collect(),
        ),
        other => other,
    }
}

fn flat_differences(a: &Value, b: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    walk("", a, b, &mut found);
    found
}

fn walk(key: &str, a: &Value, b: &Value, found: &mut Vec<Difference>) {
    if a == b {
        return;
    }
    if let (Value::Object(left), Value::Object(right)) = (a, b) {
        let mut keys: Vec<&String> = left.keys().chain(right.keys()).collect();
        keys.sort();
        keys.dedup();
        for inner in keys {
            let whole = if key.is_empty() { inner.clone() } else { format!("{key}.{inner}") };
            let side = |map: &serde_json::Map<String, Value>| map.get(inner).cloned().unwrap_or_default();
            walk(&whole, &side(left), &side(right), found);
        }
        return;
    }
    if let (Value::Array(left), Value::Array(right)) = (a, b)
        && left.len() == right.len()
        && left.iter().any(Value::is_object)
    {
        for (index, (left, right)) in left.iter().zip(right).enumerate() {
            walk(&format!("{key}.{index}"), left, right, found);
        }
        return;
    }
    let shown = |value: &Value| match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    found.push(Difference { key: key.to_owned(), a: shown(a), b: shown(b) });
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str =
        "profile = \"crusoe-b200\"\nengine = \"command\"\ncommand = [\"python3\", \"train.py\"]\n";

    fn spec(text: &str) -> Spec {
        Spec::parse("run.toml", text, &[]).unwrap()
    }

    fn one(a: &str, b: &str, variables: &[&str]) -> Result<Vec<Difference>, VariableError> {
        let a = spec(&format!("name = \"a\"\n{a}"));
        let b = spec(&format!("name = \"b\"\n{b}"));
        let variables: Vec<String> = variables.iter().map(|one| (*one).to_owned()).collect();
        check((&a, &b), Target::K8sJob, None, &variables)
    }

    #[test]
    fn one_declared_variable_may_differ_and_nothing_beside_it() {
        let a = format!("image = \"x/y:new\"\n{BASE}");
        let b = format!("image = \"x/y:old\"\n{BASE}");
        let found = one(&a, &b, &["image"]).unwrap();
        assert_eq!(
            found,
            [Difference { key: "image".into(), a: Some("x/y:new".into()), b: Some("x/y:old".into()) }]
        );
        let error = one(&a, &b, &["env.NCCL_DEBUG"]).unwrap_err();
        assert_eq!(error, VariableError::Nothing(vec!["env.NCCL_DEBUG".into()]));
        let more = format!("{b}timeout = \"5m\"\n[env]\nNCCL_DEBUG = \"INFO\"\n");
        let error = one(&a, &more, &["image"]).unwrap_err().to_string();
        assert!(error.contains("env.NCCL_DEBUG: A not set, B INFO") && error.contains("timeout"), "{error}");
        assert!(!error.contains("image:"), "{error}");
        let variables = format!("{a}[env]\nNCCL_DEBUG = \"INFO\"\n");
        let found = one(&a, &variables, &["env.NCCL_DEBUG"]).unwrap();
        assert_eq!(
            (found[0].key.as_str(), found[0].b.as_deref(), found.len()),
            ("env.NCCL_DEBUG", Some("INFO"), 1)
        );
    }

    /// The guide's third use case: the training, and the benchmark as its reproducer.
    #[test]
    fn an_engine_moves_what_it_runs_and_lists_what_follows() {
        let a = format!("image = \"x/y:z\"\n{BASE}");
        let b = "image = \"x/y:z\"\nprofile = \"crusoe-b200\"\nengine = \"deepep\"\n";
        let found = one(&a, b, &["engine"]).unwrap();
        let keys: Vec<&str> = found.iter().map(|one| one.key.as_str()).collect();
        assert!(
            keys.contains(&"engine") && keys.contains(&"benchmarks") && !keys.contains(&"image"),
            "{keys:?}"
        );
        let other = b.replace("y:z", "y:other");
        assert!(
            matches!(one(&a, &other, &["engine"]), Err(VariableError::More { others, .. }) if others[0].key == "image")
        );
    }

    #[test]
    fn where_the_runs_are_may_not_differ() {
        let a = format!("image = \"x/y:z\"\n{BASE}");
        for place in ["nodes", "kubernetes.namespace", "slurm.nodelist", "hosts.names"] {
            assert_eq!(one(&a, &a, &[place]), Err(VariableError::Place(place.to_owned())));
        }
        let error = one(&a, &a, &["imag"]).unwrap_err().to_string();
        assert!(error.contains("did you mean `image`"), "{error}");
    }
}

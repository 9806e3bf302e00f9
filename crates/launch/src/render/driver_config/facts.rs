//! What a cluster has now, as far as it must be kept.

use std::collections::BTreeMap;

use serde_json::Value;
use thiserror::Error;

use super::Kind;

/// Driver resources and the `ConfigMap`s they name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterFacts {
    /// Driver resources.
    pub drivers: Vec<DriverFacts>,
    /// `ConfigMap`s of the driver's name space.
    pub configs: Vec<ConfigMapFacts>,
}

/// A resource that says how a driver is installed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DriverFacts {
    /// What it is.
    pub kind: Kind,
    /// Name.
    pub name: String,
    /// `status.state`: `ready`, `notReady`.
    pub state: Option<String>,
    /// Name of the `ConfigMap` of driver parameters.
    pub config: Option<String>,
    /// `spec.gdrcopy`: repository, image and version, where they are set.
    pub gdrcopy: BTreeMap<String, String>,
    /// Labels of the nodes it is for; empty: all.
    pub selector: BTreeMap<String, String>,
    /// The driver manager's environment, as it is.
    pub env: Vec<Value>,
}

/// A `ConfigMap`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigMapFacts {
    /// Name.
    pub name: String,
    /// Keys and texts.
    pub data: BTreeMap<String, String>,
}

/// Why an answer of the cluster cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FactsError {
    /// It is of another kind.
    #[error(
        "expected {wanted}, found kind {found}: give what `kubectl get nvidiadriver,clusterpolicy -o json` and `kubectl get configmap -o json` print"
    )]
    Kind {
        /// What is needed here.
        wanted: &'static str,
        /// What it is.
        found: String,
    },
    /// An object has no name.
    #[error("an object of kind {0} has no metadata.name: the answer is incomplete")]
    Nameless(String),
}

impl ClusterFacts {
    /// Reads what kubectl prints with `-o json`: `drivers` is a list of `NVIDIADriver` and `ClusterPolicy` resources or one of them,
    /// `configs` a list of `ConfigMap`s, one of them, or null.
    ///
    /// A `ClusterPolicy` that leaves drivers to `NVIDIADriver` resources, or installs none, is left out.
    ///
    /// # Errors
    /// When an object is of another kind or has no name.
    pub fn from_json(drivers: &Value, configs: &Value) -> Result<Self, FactsError> {
        let mut facts = Self::default();
        for value in objects(drivers) {
            let driver = match value["kind"].as_str().unwrap_or_default() {
                "NVIDIADriver" => DriverFacts::read(value, Kind::NvidiaDriver)?,
                "ClusterPolicy" => {
                    let driver = &value["spec"]["driver"];
                    if driver["enabled"] == false || driver["useNvidiaDriverCRD"] == true {
                        continue;
                    }
                    DriverFacts::read(value, Kind::ClusterPolicy)?
                }
                found => {
                    return Err(FactsError::Kind {
                        wanted: "NVIDIADriver or ClusterPolicy",
                        found: found.to_owned(),
                    });
                }
            };
            facts.drivers.push(driver);
        }
        for value in objects(configs) {
            match value["kind"].as_str().unwrap_or_default() {
                "ConfigMap" => {
                    facts.configs.push(ConfigMapFacts { name: name(value)?, data: texts(&value["data"]) });
                }
                found => return Err(FactsError::Kind { wanted: "ConfigMap", found: found.to_owned() }),
            }
        }
        Ok(facts)
    }

    /// The `ConfigMap` of that name.
    pub(super) fn config(&self, name: &str) -> Option<&ConfigMapFacts> {
        self.configs.iter().find(|config| config.name == name)
    }
}

impl DriverFacts {
    fn read(value: &Value, kind: Kind) -> Result<Self, FactsError> {
        let spec = &value["spec"];
        let driver = match kind {
            Kind::NvidiaDriver => spec,
            Kind::ClusterPolicy => &spec["driver"],
        };
        let mut gdrcopy = texts(&spec["gdrcopy"]);
        gdrcopy.retain(|key, text| {
            ["repository", "image", "version"].contains(&key.as_str()) && !text.is_empty()
        });
        Ok(Self {
            kind,
            name: name(value)?,
            state: value["status"]["state"].as_str().map(str::to_owned),
            config: driver["kernelModuleConfig"]["name"]
                .as_str()
                .filter(|name| !name.is_empty())
                .map(str::to_owned),
            gdrcopy,
            selector: texts(&driver["nodeSelector"]),
            env: driver["manager"]["env"].as_array().cloned().unwrap_or_default(),
        })
    }

    /// Whether its state is ready.
    pub(super) fn ready(&self) -> bool {
        self.state.as_deref().is_some_and(|state| state.eq_ignore_ascii_case("ready"))
    }

    /// Whether it is for GPUs of kind `sku`: by the product its nodes have where it says so, else by its name.
    pub(super) fn fits(&self, sku: &str) -> bool {
        match self.selector.get("nvidia.com/gpu.product") {
            Some(product) => names(product, sku),
            None => names(&self.name, sku),
        }
    }

    /// For a person: name, state, and which nodes.
    pub(super) fn line(&self) -> String {
        let selector: Vec<String> =
            self.selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let nodes = if selector.is_empty() { String::new() } else { format!(", {}", selector.join(" ")) };
        format!("{} ({}{nodes})", self.name, self.state.as_deref().unwrap_or("no state"))
    }
}

/// Whether `text` names GPUs of kind `sku`, as a word: `h20` is not in `h200`, nor `b200` in `gb200`.
fn names(text: &str, sku: &str) -> bool {
    let (text, sku) = (text.to_ascii_lowercase(), sku.to_ascii_lowercase());
    if sku.is_empty() {
        return false;
    }
    text.match_indices(&sku).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + sku.len()..].chars().next();
        !before.is_some_and(|c| c.is_ascii_alphanumeric()) && !after.is_some_and(|c| c.is_ascii_digit())
    })
}

/// The objects of a list, or the object itself.
fn objects(value: &Value) -> Vec<&Value> {
    match value["items"].as_array() {
        Some(items) => items.iter().collect(),
        None if value.is_null() => Vec::new(),
        None => vec![value],
    }
}

fn name(value: &Value) -> Result<String, FactsError> {
    let kind = || FactsError::Nameless(value["kind"].as_str().unwrap_or("unknown").to_owned());
    value["metadata"]["name"].as_str().filter(|name| !name.is_empty()).map(str::to_owned).ok_or_else(kind)
}

fn texts(value: &Value) -> BTreeMap<String, String> {
    let entries = value.as_object().into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn kinds_of_gpus_are_words() {
        assert!(
            names("NVIDIA-H200", "h200") && names("h200-driver", "H200") && names("NVIDIA-B200SXM", "b200")
        );
        assert!(!names("NVIDIA-GB200", "b200") && !names("NVIDIA-H200", "h20") && !names("default", "h200"));
    }
}

//! Who manages a node's driver, limits and modules: the remedy depends on it.

use serde::{Deserialize, Serialize};

use crate::facts::Facts;
use crate::finding::Manager;

/// Who manages a node, and by what sign.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Managed {
    /// Who.
    pub manager: Manager,
    /// The sign, or what is missing.
    pub evidence: String,
    /// The reader was inside a container.
    pub container: bool,
}

/// Who manages the node of `facts`.
pub fn manager(facts: &Facts) -> Managed {
    let environment = &facts.environment;
    let container = environment.container.value();
    let inside = container.is_some_and(|hint| hint.inside);
    let managed = |manager, evidence: String| Managed { manager, evidence, container: inside };
    if let Some(sign) = environment.operator_signs.value().and_then(|signs| signs.first()) {
        return managed(
            Manager::Operator,
            format!("{sign} exists: a driver container of the GPU Operator made it"),
        );
    }
    if environment.kubernetes.value() == Some(&true) {
        return managed(
            Manager::Unknown,
            "a Kubernetes pod: who manages the node's driver cannot be told from inside (expertrail check --kube can)".to_owned(),
        );
    }
    if let Some(hint) = container.filter(|hint| hint.inside) {
        return managed(Manager::Container, hint.sign.clone());
    }
    let hypervisor = facts.kernel.hypervisor.value();
    match (container, hypervisor) {
        (Some(_), Some(true)) => managed(
            Manager::Machine,
            "a virtual machine (CPU flag hypervisor), no sign of a container".to_owned(),
        ),
        (Some(_), _) => managed(Manager::Machine, "no sign of a container or of an operator".to_owned()),
        (None, Some(true)) => managed(
            Manager::Machine,
            "a virtual machine (CPU flag hypervisor); no sign of a container or of an operator".to_owned(),
        ),
        (None, _) => managed(Manager::Unknown, "nothing tells who manages the node".to_owned()),
    }
}

//! What every run must be, whoever wrote it: a description that was resolved, or a `run.json` that came from a file.

use serde_json::Value;

use super::{Run, RunError, place};

/// Presets of `expertrail bench`.
pub const PRESETS: [&str; 5] = ["quick", "deepseek-v3", "decode", "guide-intranode", "guide-internode"];

/// InfiniBand has four bits for the service level.
const SERVICE_LEVELS: u32 = 16;

impl Run {
    /// Sees that nothing of the run can break a script, a name or an API's rule.
    ///
    /// # Errors
    /// When a value can; the message has its key.
    pub fn sound(&self) -> Result<(), RunError> {
        place::name(&self.name, "name")?;
        place::name(&self.id, "id")?;
        place::name(&self.kubernetes.namespace, "kubernetes.namespace")?;
        place::count(self.nodes, "nodes", place::NODES)?;
        place::count(self.gpus_per_node, "gpus_per_node", place::GPUS)?;
        place::seconds(self.timeout_s)?;
        if self.port == 0 {
            return Err(value("network.port", "0", "wanted a port from 1 to 65535"));
        }
        for setting in &self.env {
            variable(&setting.name)?;
        }
        for name in ["NCCL_IB_SL", "NVSHMEM_IB_SL"] {
            if let Some(level) = self
                .variable(name)
                .filter(|level| level.parse::<u32>().is_ok_and(|level| level >= SERVICE_LEVELS))
            {
                return Err(value("network.service_level", level, "InfiniBand has the levels 0 to 15"));
            }
        }
        self.quantities()?;
        for (key, wanted) in &self.kubernetes.node_selector {
            label(key, wanted)?;
        }
        let all = serde_json::to_value(self).map_err(|error| RunError::Conflict(error.to_string()))?;
        printable(&all, "run", false)
    }

    fn quantities(&self) -> Result<(), RunError> {
        let kubernetes = &self.kubernetes;
        if let Some(cpu) = &kubernetes.cpu {
            let digits = cpu.strip_suffix('m').unwrap_or(cpu);
            if !digits.parse::<f64>().is_ok_and(|number| number > 0.0 && number < 1e6)
                || !digits.starts_with(|c: char| c.is_ascii_digit())
            {
                return Err(value("kubernetes.cpu", cpu, "wanted CPUs as \"158\" or \"500m\""));
            }
        }
        if let Some(pages) = &kubernetes.hugepages_2mi {
            let bytes = place::quantity(pages, "kubernetes.hugepages_2mi")?;
            if !bytes.is_multiple_of(2 << 20) {
                return Err(value(
                    "kubernetes.hugepages_2mi",
                    pages,
                    "wanted a multiple of 2Mi, the size of such a page",
                ));
            }
        }
        Ok(())
    }
}

fn value(key: &str, given: &str, reason: &str) -> RunError {
    RunError::Value { key: key.to_owned(), given: format!("{given:?}"), reason: reason.to_owned() }
}

/// A variable's name: anything else would be words of a shell.
fn variable(name: &str) -> Result<(), RunError> {
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if begins && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Ok(());
    }
    Err(value("env", name, "wanted a variable's name: letters, digits and `_`, no digit first"))
}

/// A label as Kubernetes takes it.
fn label(key: &str, wanted: &str) -> Result<(), RunError> {
    let (prefix, name) = key.rsplit_once('/').unwrap_or(("", key));
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let word = |text: &str| {
        text.len() <= 63
            && text.chars().all(inner)
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    if word(name) && prefix.chars().all(inner) && (wanted.is_empty() || word(wanted)) {
        return Ok(());
    }
    let reason = "wanted a label and its value: at most 63 letters, digits, `-`, `_`, `.`, as \"nvidia.com/gpu.product\" = \"NVIDIA-H200\"";
    Err(value("kubernetes.node_selector", &format!("{key} = {wanted}"), reason))
}

/// No control characters: they would end a line of a script or speak to a terminal. Arguments and values may have several lines.
fn printable(part: &Value, key: &str, lines: bool) -> Result<(), RunError> {
    match part {
        Value::String(text) => {
            let bad = text.chars().find(|c| c.is_control() && !(lines && matches!(c, '\n' | '\t')));
            match bad {
                Some(bad) => {
                    Err(value(key, text, &format!("the control character {bad:?} cannot stand here")))
                }
                None => Ok(()),
            }
        }
        Value::Array(items) => items.iter().try_for_each(|item| printable(item, key, lines)),
        Value::Object(entries) => entries.iter().try_for_each(|(name, item)| {
            printable(&Value::String(name.clone()), key, false)?;
            printable(item, name, lines || matches!(name.as_str(), "argv" | "value" | "notes"))
        }),
        _ => Ok(()),
    }
}

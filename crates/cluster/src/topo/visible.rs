//! Which GPUs the process sees, and so which local rank has which.

use crate::facts::{Facts, PciDevice};

/// GPUs by local rank, and what hides the others.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Visible {
    /// Positions on the bus, in the order of the local ranks.
    pub(super) gpus: Vec<usize>,
    /// What hides or reorders GPUs; none where all are seen in the order of the bus.
    pub(super) by: Option<String>,
}

/// The GPUs that are seen, from NVML's list and `CUDA_VISIBLE_DEVICES`; or why ranks have no numbers.
pub(super) fn visible(facts: &Facts, gpus: &[&PciDevice]) -> Result<Visible, String> {
    let shown = of_nvml(facts, gpus);
    let mut by = (shown.len() < gpus.len()).then(|| format!("NVML shows {} of {}", shown.len(), gpus.len()));
    let variables = facts.environment.variables.value();
    let Some(list) = variables.and_then(|all| all.get("CUDA_VISIBLE_DEVICES")) else {
        return Ok(Visible { gpus: shown, by });
    };
    let chosen = named(list, &shown)?;
    if chosen != shown {
        let list = super::lint::short(list);
        by = Some(by.map_or(String::new(), |by| by + ", ") + "CUDA_VISIBLE_DEVICES=" + &list);
    }
    Ok(Visible { gpus: chosen, by })
}

/// Those that NVML shows: in a container the bus has GPUs that the process must not use. All, where NVML says nothing, names functions that
/// are not on the bus, or counts GPUs that it does not open: then the list is not what the container was given.
fn of_nvml(facts: &Facts, gpus: &[&PciDevice]) -> Vec<usize> {
    let all = || (0..gpus.len()).collect();
    let Some(nvml) = facts.nvml.value().filter(|nvml| !nvml.gpus.is_empty() && nvml.refused.is_empty())
    else {
        return all();
    };
    let is_shown = |gpu: &PciDevice| nvml.gpus.iter().any(|one| one.pci.eq_ignore_ascii_case(&gpu.address));
    let shown: Vec<usize> =
        (0..gpus.len()).filter(|&at| gpus.get(at).is_some_and(|gpu| is_shown(gpu))).collect();
    if shown.len() == nvml.gpus.len() { shown } else { all() }
}

/// The GPUs of `list`, as CUDA reads it: indexes among those that are there, up to the first that none has.
fn named(list: &str, shown: &[usize]) -> Result<Vec<usize>, String> {
    let mut chosen = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let index: i64 = entry.parse().map_err(|_| {
            if entry.is_empty() && list.trim().is_empty() {
                "CUDA_VISIBLE_DEVICES is empty: this process sees no GPU".to_owned()
            } else {
                format!(
                    "CUDA_VISIBLE_DEVICES={}: local ranks can be numbered by a list of indexes only",
                    super::lint::short(list)
                )
            }
        })?;
        let Some(&gpu) = usize::try_from(index).ok().and_then(|index| shown.get(index)) else { break };
        if chosen.contains(&gpu) {
            return Err(format!("CUDA_VISIBLE_DEVICES={} names a GPU twice", super::lint::short(list)));
        }
        chosen.push(gpu);
    }
    if chosen.is_empty() {
        return Err(format!("CUDA_VISIBLE_DEVICES={}: this process sees no GPU", super::lint::short(list)));
    }
    Ok(chosen)
}

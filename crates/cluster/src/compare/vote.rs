//! Counting: the majority of each property, and who differs.

use std::collections::{BTreeMap, BTreeSet};

use super::sheet::{Group, Seen, Sheet};
use super::{Difference, NotKnown, Share};

/// Amounts of equal machines (memory, which firmware and kernels take a part of) are within this part of each other.
const ALIKE: u64 = 20;

pub(super) struct Outcome {
    pub(super) properties: usize,
    pub(super) differences: Vec<Difference>,
    pub(super) unknown: Vec<NotKnown>,
}

pub(super) fn count(sheets: &[&Sheet], labels: &[String]) -> Outcome {
    let keys: BTreeSet<&(Group, String)> = sheets.iter().flat_map(|sheet| sheet.keys()).collect();
    let mut outcome = Outcome { properties: keys.len(), differences: Vec::new(), unknown: Vec::new() };
    for key in keys {
        let property = format!("{} {}", key.0.name(), key.1);
        let seen: Vec<(&Seen, &String)> = sheets.iter().map(|sheet| sheet.get(key)).zip(labels).collect();
        let middle = middle(&seen);
        let mut values: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut unknown: Option<NotKnown> = None;
        for (seen, label) in seen {
            let value = match seen {
                Seen::Value(value) => value.clone(),
                Seen::Amount(amount) => shown(*amount, middle),
                Seen::Absent => "not there".to_owned(),
                Seen::Unknown(reason) => {
                    let new =
                        || NotKnown { property: property.clone(), reason: reason.clone(), nodes: Vec::new() };
                    unknown.get_or_insert_with(new).nodes.push(label.clone());
                    continue;
                }
            };
            values.entry(value).or_default().push(label.clone());
        }
        if let Some(unknown) = unknown
            && !values.is_empty()
        {
            outcome.unknown.push(unknown);
        }
        if values.len() > 1 {
            outcome.differences.push(difference(property, values));
        }
    }
    // Outliers first; what is split says less.
    outcome.differences.sort_by_key(|difference| difference.majority.is_none());
    outcome
}

fn difference(property: String, values: BTreeMap<String, Vec<String>>) -> Difference {
    let known: usize = values.values().map(Vec::len).sum();
    let mut shares: Vec<Share> = values.into_iter().map(|(value, nodes)| Share { value, nodes }).collect();
    shares.sort_by(|a, b| b.nodes.len().cmp(&a.nodes.len()).then_with(|| a.value.cmp(&b.value)));
    let most = shares.first().map_or(0, |share| share.nodes.len());
    let majority = (most * 2 > known).then(|| shares.remove(0).value);
    let with_majority = if majority.is_some() { most } else { 0 };
    Difference { property, majority, with_majority, known, others: shares }
}

/// The amount in the middle.
fn middle(seen: &[(&Seen, &String)]) -> u64 {
    let mut amounts: Vec<u64> = seen
        .iter()
        .filter_map(|(seen, _)| if let Seen::Amount(amount) = seen { Some(*amount) } else { None })
        .collect();
    amounts.sort_unstable();
    amounts.get(amounts.len() / 2).copied().unwrap_or(0)
}

/// An amount as text: that of the middle, if it is near.
fn shown(amount: u64, middle: u64) -> String {
    let near = amount.abs_diff(middle) <= middle / ALIKE;
    let amount = if near { middle } else { amount };
    if amount >= 10 << 30 { format!("{} GiB", amount >> 30) } else { format!("{} MiB", amount >> 20) }
}

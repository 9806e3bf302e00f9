//! Names of variables, and what is left open.

use super::finding::{At, Severity, Sink};
use super::unit::{Kind, Scope, Unit};

/// Variables that NCCL and NVSHMEM document or read, one a line.
const KNOWN: &str = include_str!("../../data/variables.txt");

fn known() -> impl Iterator<Item = &'static str> {
    KNOWN.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

pub(crate) fn check(unit: &Unit<'_>, text: &str, sink: &mut Sink<'_>) {
    let mut seen: Vec<&str> = Vec::new();
    for setting in &unit.settings {
        let name = setting.name.as_str();
        let stem = ["NCCL_", "NVSHMEM_", "NVSHMEN_", "NVSMEM_"].iter().any(|stem| name.starts_with(stem));
        if !stem || name.len() > 80 || seen.contains(&name) || known().any(|known| known == name) {
            continue;
        }
        seen.push(name);
        let near = known().map(|known| (distance(name, known), known)).min();
        if let Some((_, near)) = near.filter(|(distance, _)| *distance <= 2) {
            sink.add("N150", setting.at, format!("no variable {name} is known; {near} is"))
                .fix(format!("{near}={}", setting.value));
        }
    }
    quotes(unit, text, sink);
    open(unit, sink);
}

/// Quotes in a file of `NAME=value` lines: docker keeps them.
fn quotes(unit: &Unit<'_>, text: &str, sink: &mut Sink<'_>) {
    if unit.kind != Kind::Variables || text.lines().any(|line| line.trim_start().starts_with("export ")) {
        return;
    }
    for (index, line) in text.lines().enumerate() {
        let Some((name, value)) = line.split_once('=').filter(|_| !line.trim_start().starts_with('#')) else {
            continue;
        };
        if value.trim().starts_with(['"', '\'']) {
            sink.add("N151", unit.at(index + 1), format!("the value of {} is in quotes", name.trim()))
                .fix(format!("{}={}", name.trim(), value.trim().trim_matches(['"', '\''])));
            return;
        }
    }
}

/// Values that are filled in later.
fn open(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    let blank = |value: &str| {
        let envsubst = value.contains("$TEMPLATE") || value.contains("{{");
        let placeholder = value.contains('<') && value.contains('>') && !value.contains("<<");
        envsubst || placeholder
    };
    let mut places: Vec<(String, At)> = Vec::new();
    for setting in &unit.settings {
        let pod = matches!(setting.scope, Scope::Pod | Scope::File)
            && setting.value.contains('$')
            && !setting.value.contains("$(");
        if blank(&setting.value) || pod {
            places.push((setting.name.clone(), setting.at));
        }
    }
    for pod in &unit.pods {
        templates(pod.template, unit.file, &mut places);
        for key in ["replicas", "completions", "parallelism"] {
            if pod.owner.text_at(key).is_some_and(|value| value.contains('$')) {
                places.push((key.to_owned(), unit.at(pod.owner.line_of(key))));
            }
        }
    }
    if let Some((_, at)) = places.iter().min_by_key(|(_, at)| at.line) {
        let mut names: Vec<&str> = places.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        sink.add("N160", *at, format!("not decided: {}", names.join(", ")))
            .weigh(Severity::Note)
            .fix("lint the file that the template makes: envsubst < FILE | expertrail lint -");
    }
}

/// Scalars of a pod template that stand for something else, commands and variables apart.
fn templates(value: &super::tree::Value, file: usize, places: &mut Vec<(String, At)>) {
    for entry in value.entries() {
        if matches!(entry.key.as_str(), "command" | "args" | "env") {
            continue;
        }
        if entry.value.text().is_some_and(|text| text.contains('$')) {
            places.push((entry.key.clone(), At { file, line: entry.line }));
        }
        templates(&entry.value, file, places);
    }
    for item in value.items() {
        templates(item, file, places);
    }
}

/// Letters to add, drop, change or swap, up to 3.
fn distance(a: &str, b: &str) -> usize {
    if a.len().abs_diff(b.len()) > 2 {
        return 3;
    }
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, right) in b.iter().enumerate() {
            let change = row[j] + usize::from(left != right);
            let mut least = change.min(row[j + 1] + 1).min(next[j] + 1);
            if i > 0 && j > 0 && a[i - 1] == *right && b[j - 1] == *left {
                least = least.min(before[j - 1] + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut row, next);
    }
    row.last().copied().unwrap_or(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(distance("NCCL_IB_HCA", "NCCL_IB_HCA"), 0);
        assert_eq!(distance("NCCL_IB_HAC", "NCCL_IB_HCA"), 1);
        assert_eq!(distance("NCCL_DEBUGS", "NCCL_DEBUG"), 1);
        assert_eq!(distance("NCCL_X", "NVSHMEM_HCA_LIST"), 3);
    }

    #[test]
    fn known_names_are_no_typing_errors_of_each_other() {
        let all: Vec<&str> = known().collect();
        assert!(all.len() > 150, "{}", all.len());
        let mut sorted = all.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), all.len());
        assert!(all.iter().all(|name| name.starts_with("NCCL_") || name.starts_with("NVSHMEM_")));
    }
}

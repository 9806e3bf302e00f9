//! Limits and capabilities, of this process and of the daemons that start jobs.

use std::collections::BTreeMap;

use crate::facts::{Fact, Limit, Limits, ProcessLimit};
use crate::root::Root;

use super::driver::has_extension;

/// Daemons whose limits a job inherits.
const DAEMONS: [&str; 5] = ["containerd", "kubelet", "slurmd", "crio", "dockerd"];

/// Folders of systemd units, strongest first (systemd.unit(5)).
const UNITS: [&str; 4] =
    ["/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];

/// More files than any unit has beside it.
const DROP_INS: usize = 256;

/// More processes than a node has: a listing beyond is hostile.
const PROCESSES: usize = 1 << 16;

/// Reads all limits. `processes` is `/proc`.
pub(super) fn limits(root: &Root, processes: &Fact<Vec<(u32, String)>>) -> Limits {
    let limits = root.text("/proc/self/limits");
    let status = root.text("/proc/self/status");
    Limits {
        memlock: limits.clone().parse(|text| parse_limit(&text, "Max locked memory")),
        nofile: limits.parse(|text| parse_limit(&text, "Max open files")),
        capabilities: status.parse(|text| parse_capabilities(&text)),
        daemons: daemons(root, processes),
        configured: configured(root),
    }
}

/// Soft and hard value of the row `name` of `/proc/PID/limits`.
///
/// # Errors
/// When there is no such row, or its values are neither numbers nor `unlimited`.
pub fn parse_limit(text: &str, name: &str) -> Result<Limit, String> {
    let rest =
        text.lines().find_map(|line| line.strip_prefix(name)).ok_or_else(|| format!("no row `{name}`"))?;
    let mut words = rest.split_whitespace();
    let mut next = || match words.next() {
        Some("unlimited") => Ok(None),
        Some(word) => word.parse().map(Some).map_err(|_| format!("`{word}` in row `{name}` is no limit")),
        None => Err(format!("row `{name}` has no values")),
    };
    Ok(Limit { soft: next()?, hard: next()? })
}

/// The bits of `CapEff`.
///
/// # Errors
/// When there is no such row or it is not hexadecimal.
pub fn parse_capabilities(text: &str) -> Result<u64, String> {
    let bits = text.lines().find_map(|line| line.strip_prefix("CapEff:")).ok_or("no row `CapEff`")?.trim();
    u64::from_str_radix(bits, 16).map_err(|_| format!("CapEff `{bits}` is not hexadecimal"))
}

/// The numbered folders of `/proc` with the name of their process.
pub(super) fn processes(root: &Root) -> Fact<Vec<(u32, String)>> {
    root.list("/proc").map(|names| {
        let pids = names.iter().filter_map(|name| name.parse().ok()).take(PROCESSES);
        pids.filter_map(|pid: u32| Some((pid, root.word(&format!("/proc/{pid}/comm")).value()?.clone())))
            .collect()
    })
}

fn daemons(root: &Root, processes: &Fact<Vec<(u32, String)>>) -> Fact<Vec<ProcessLimit>> {
    processes.clone().map(|all| {
        all.into_iter()
            .filter(|(_, name)| DAEMONS.contains(&name.as_str()))
            .filter_map(|(pid, name)| {
                let source = format!("/proc/{pid}/limits");
                let memlock = root.text(&source).parse(|text| parse_limit(&text, "Max locked memory"));
                Some(ProcessLimit { name, pid: Some(pid), memlock: *memlock.value()?, source })
            })
            .collect()
    })
}

fn configured(root: &Root) -> Fact<Vec<ProcessLimit>> {
    let mut found = Vec::new();
    let mut units = 0;
    for daemon in DAEMONS {
        // Drop-ins of one name hide each other, of different names the last counts, and all of them before the unit's own file.
        let mut drop_ins: BTreeMap<String, String> = BTreeMap::new();
        for folder in UNITS.map(|folder| format!("{folder}/{daemon}.service.d")) {
            let names = root.list(&folder);
            for name in names.value().into_iter().flatten().filter(|name| has_extension(name)).take(DROP_INS)
            {
                drop_ins.entry(name.clone()).or_insert_with(|| format!("{folder}/{name}"));
            }
        }
        let own = UNITS
            .map(|folder| format!("{folder}/{daemon}.service"))
            .into_iter()
            .find(|path| root.exists(path));
        let files = drop_ins.into_values().rev().chain(own);
        for source in files {
            let text = root.text(&source);
            let Some(text) = text.value() else { continue };
            units += 1;
            if let Some(memlock) = parse_unit(text) {
                found.push(ProcessLimit { name: daemon.to_owned(), pid: None, memlock, source });
            }
        }
    }
    let (source, scope) = (UNITS[0], root.scope(UNITS[0]));
    if units == 0 { Fact::absent(source, scope) } else { Fact::read(found, source, scope) }
}

/// `LimitMEMLOCK=` of a unit file: the last one counts. `infinity`, bytes, or with K, M, G, T; one value or `soft:hard`.
pub fn parse_unit(text: &str) -> Option<Limit> {
    let value = text.lines().filter_map(|line| line.trim().strip_prefix("LimitMEMLOCK=")).next_back()?.trim();
    let (soft, hard) = value.split_once(':').unwrap_or((value, value));
    Some(Limit { soft: parse_size(soft)?, hard: parse_size(hard)? })
}

/// Bytes; the outer none is not a size, the inner one `infinity`.
#[allow(clippy::option_option)]
fn parse_size(text: &str) -> Option<Option<u64>> {
    let text = text.trim();
    if text == "infinity" {
        return Some(None);
    }
    let (digits, shift) = match text.chars().last()? {
        'K' => (&text[..text.len() - 1], 10),
        'M' => (&text[..text.len() - 1], 20),
        'G' => (&text[..text.len() - 1], 30),
        'T' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = "Limit                     Soft Limit           Hard Limit           Units     \n\
                       Max locked memory         8388608              unlimited            bytes     \n";

    #[test]
    fn rows() {
        let limit = parse_limit(ROW, "Max locked memory").unwrap();
        assert_eq!(limit, Limit { soft: Some(8 << 20), hard: None });
        assert!(parse_limit(ROW, "Max open files").is_err());
        assert!(parse_limit("Max locked memory many few bytes", "Max locked memory").is_err());
        // CAP_IPC_LOCK is bit 14.
        assert_eq!(parse_capabilities("CapPrm:\t0\nCapEff:\t0000000000004000\n"), Ok(1 << 14));
        assert!(parse_capabilities("CapEff:\tzz\n").is_err());
    }

    #[test]
    fn units() {
        assert_eq!(
            parse_unit("[Service]\nLimitMEMLOCK=64K\nLimitMEMLOCK=infinity\n"),
            Some(Limit::default())
        );
        assert_eq!(
            parse_unit("LimitMEMLOCK=8M:1G"),
            Some(Limit { soft: Some(8 << 20), hard: Some(1 << 30) })
        );
        assert_eq!(parse_unit("LimitMEMLOCK=lots"), None);
        assert_eq!(parse_unit("[Service]\n"), None);
        assert_eq!(parse_unit("LimitMEMLOCK=99999999999T"), None);
    }
}

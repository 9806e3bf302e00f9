//! Limits and capabilities, of this process and of the daemons that start jobs.

use std::collections::BTreeMap;

use crate::facts::{Fact, Limit, Limits, ProcessLimit, Reading, Scope};
use crate::root::Root;

use super::driver::has_extension;
use super::{Budget, masked};

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
pub(super) fn limits(root: &Root, processes: &Processes) -> Limits {
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

/// Processes that can be seen.
pub(super) struct Processes {
    /// The numbered folders of `/proc` with the name of their process.
    pub(super) seen: Fact<Vec<(u32, String)>>,
    /// Why there may be others.
    pub(super) hidden: Option<String>,
    /// They are kept from the reader, not only left out of a capture.
    concealed: bool,
}

impl Processes {
    /// No process of a name was seen at `/proc`: what that says.
    pub(super) fn none<T>(&self, source: &str, scope: Scope) -> Fact<T> {
        match &self.hidden {
            Some(reason) => Fact::unreadable(reason, source, scope),
            None => Fact::absent(source, scope),
        }
    }
}

/// Reads the processes.
pub(super) fn processes(root: &Root) -> Processes {
    let mut hidden = None;
    let seen = root.list("/proc").map(|names| {
        let pids = names.iter().filter_map(|name| name.parse().ok()).take(PROCESSES);
        let mut seen = Vec::new();
        for pid in pids {
            let path = format!("/proc/{pid}/comm");
            let comm = root.word(&path);
            match comm.reading() {
                Reading::Value(name) => seen.push((pid, name.clone())),
                Reading::Unreadable(reason) => hidden = Some(format!("{path} cannot be read: {reason}")),
                // It has ended meanwhile.
                Reading::Absent | Reading::NotLooked => {}
            }
        }
        seen
    });
    let all = seen.value().map(Vec::as_slice).unwrap_or_default();
    // Who sees the first process sees all: it is root's.
    let first = all.iter().any(|(pid, _)| *pid == 1);
    let mounts = root.text("/proc/self/mountinfo");
    let status = root.text("/proc/self/status");
    if !first
        && mounts.value().is_some_and(|text| parse_hidepid(text))
        && !status.value().is_some_and(|text| is_root(text))
    {
        hidden = Some("/proc is mounted with hidepid: processes of other users are not seen".to_owned());
    } else if all.is_empty() && !root.is_live() && seen.value().is_some() {
        let hidden = Some("the capture holds no processes".to_owned());
        return Processes { seen, hidden, concealed: false };
    }
    Processes { concealed: hidden.is_some(), seen, hidden }
}

/// Whether `/proc` is mounted so that users do not see each other's processes: 1 or `noaccess`, 2 or `invisible`, 4 or `ptraceable`.
fn parse_hidepid(mountinfo: &str) -> bool {
    let mounted = |line: &&str| line.split_whitespace().nth(4) == Some("/proc");
    let Some(line) = mountinfo.lines().rfind(mounted) else { return false };
    line.split([' ', ','])
        .filter_map(|option| option.strip_prefix("hidepid="))
        .any(|value| !matches!(value, "0" | "off"))
}

/// Whether the effective user of `/proc/self/status` is root.
fn is_root(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    line.and_then(|line| line.split_whitespace().nth(1)) == Some("0")
}

fn daemons(root: &Root, processes: &Processes) -> Fact<Vec<ProcessLimit>> {
    let mut untold = None;
    let daemons = processes.seen.clone().map(|all| {
        let mut found = Vec::new();
        for (pid, name) in all.into_iter().filter(|(_, name)| DAEMONS.contains(&name.as_str())) {
            let source = format!("/proc/{pid}/limits");
            let memlock = root.text(&source).parse(|text| parse_limit(&text, "Max locked memory"));
            match memlock.reading() {
                Reading::Value(&memlock) => {
                    found.push(ProcessLimit { name, pid: Some(pid), memlock, source });
                }
                // It has ended meanwhile.
                Reading::Absent if root.is_live() => {}
                Reading::Unreadable(reason) => {
                    untold = Some((format!("the limits of {name} cannot be read: {reason}"), source));
                }
                _ => untold = Some((format!("the limits of {name} are not in the capture"), source)),
            }
        }
        found
    });
    let all = daemons.value().map(Vec::as_slice).unwrap_or_default();
    // One that is limited says enough. That the others are not does not tell of what nobody saw.
    if all.iter().any(|daemon| daemon.memlock.soft.is_some()) {
        return daemons;
    }
    match (untold, &processes.hidden) {
        (Some((reason, source)), _) => Fact::unreadable(reason, source, daemons.scope),
        (None, Some(reason)) if all.is_empty() && processes.concealed => {
            Fact::unreadable(reason, "/proc/*/comm", daemons.scope)
        }
        _ => daemons,
    }
}

fn configured(root: &Root) -> Fact<Vec<ProcessLimit>> {
    let (place, scope) = (UNITS[0], root.scope(UNITS[0]));
    let mut found = Vec::new();
    let mut units = 0;
    let mut budget = Budget::new();
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
        for source in files.filter(|source| !masked(root, source)) {
            let text = budget.text(root, &source);
            match text.reading() {
                Reading::Value(text) => {
                    units += 1;
                    if let Some(memlock) = parse_unit(text) {
                        found.push(ProcessLimit { name: daemon.to_owned(), pid: None, memlock, source });
                    }
                }
                // It may override all else.
                Reading::Unreadable(reason) => {
                    return Fact::unreadable(format!("{source} could not be read: {reason}"), place, scope);
                }
                Reading::Absent | Reading::NotLooked => {}
            }
        }
    }
    if units == 0 { Fact::absent(place, scope) } else { Fact::read(found, place, scope) }
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
    fn processes_of_others() {
        let mount = |options: &str| format!("25 1 0:5 / /proc rw,nosuid shared:13 - proc proc {options}\n");
        for hides in ["rw,hidepid=2", "rw,gid=4,hidepid=invisible", "rw,hidepid=1", "rw,hidepid=ptraceable"] {
            assert!(parse_hidepid(&mount(hides)), "{hides}");
        }
        assert!(!parse_hidepid(&mount("rw")) && !parse_hidepid(&mount("rw,hidepid=off")));
        // Of two mounts the later is seen; another place does not count.
        assert!(!parse_hidepid(&(mount("rw,hidepid=2") + &mount("rw"))));
        assert!(!parse_hidepid("25 1 0:5 / /chroot/proc rw - proc proc rw,hidepid=2\n"));
        assert!(is_root("Name:\tx\nUid:\t1000\t0\t0\t0\n") && !is_root("Uid:\t0\t1000\t0\t0\n"));
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

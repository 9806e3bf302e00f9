//! RDMA devices of `/sys/class/infiniband`.

use std::cell::Cell;
use std::collections::BTreeMap;

use crate::facts::{Fact, Gid, Port, RdmaDevice, Reading};
use crate::root::Root;

const CLASS: &str = "/sys/class/infiniband";
const VERBS: &str = "/sys/class/infiniband_verbs";

/// More devices, ports and table entries than hardware has; a hostile tree may claim any number.
const DEVICES: usize = 512;
const PORTS: usize = 16;
const ENTRIES: usize = 256;
/// Files of all devices together: a host with 256 virtual functions has some 20,000. One costs some 10 us.
const READS: u32 = 100_000;
/// Empty entries at which reading of a GID or partition table stops: tables are filled from the front, and a file of sysfs costs
/// microseconds. Mellanox tables have 16 to 256 GIDs and 128 partition keys.
const EMPTY: usize = 8;

/// Reads every device.
pub(super) fn rdma(root: &Root) -> Fact<Vec<RdmaDevice>> {
    let uverbs = uverbs(root);
    let reads = Cell::new(READS);
    root.list(CLASS).parse(|names| {
        if names.len() > DEVICES {
            return Err(format!("{} RDMA devices, more than {DEVICES}", names.len()));
        }
        Ok(names.iter().map(|name| device(root, name, &uverbs, &reads)).collect())
    })
}

/// Which character device belongs to which RDMA device.
fn uverbs(root: &Root) -> BTreeMap<String, String> {
    let names = root.list(VERBS);
    names
        .value()
        .into_iter()
        .flatten()
        .filter(|name| name.starts_with("uverbs"))
        .take(DEVICES)
        .filter_map(|name| Some((root.word(&format!("{VERBS}/{name}/ibdev")).value()?.clone(), name.clone())))
        .collect()
}

/// Reads one-value files below a folder and remembers those that are there but cannot be read.
struct Files<'a> {
    root: &'a Root,
    /// Files that may still be read.
    reads: &'a Cell<u32>,
    folder: String,
    unreadable: BTreeMap<String, String>,
}

impl Files<'_> {
    fn word(&mut self, name: &str) -> Option<String> {
        let Some(left) = self.reads.get().checked_sub(1) else {
            self.unreadable.insert(
                ".".to_owned(),
                format!("more than {READS} files of RDMA devices: the rest was not read"),
            );
            return None;
        };
        self.reads.set(left);
        let fact = self.root.word(&format!("{}/{name}", self.folder));
        match fact.reading() {
            Reading::Value(value) if value.is_empty() => None,
            Reading::Value(value) => Some(value.clone()),
            Reading::Unreadable(reason) => {
                self.unreadable.insert(name.to_owned(), reason.to_owned());
                None
            }
            Reading::Absent | Reading::NotLooked => None,
        }
    }

    fn list(&mut self, name: &str) -> Vec<String> {
        let fact = self.root.list(&format!("{}/{name}", self.folder));
        if let Reading::Unreadable(reason) = fact.reading() {
            self.unreadable.insert(name.to_owned(), reason.to_owned());
        }
        fact.value().cloned().unwrap_or_default()
    }

    /// Counters: a file that is no number is noted.
    fn counters(&mut self, name: &str) -> BTreeMap<String, u64> {
        let mut counters = BTreeMap::new();
        for counter in self.list(name).into_iter().take(ENTRIES).filter(|counter| counter != "lifespan") {
            let path = format!("{name}/{counter}");
            if let Some(word) = self.word(&path) {
                match word.parse() {
                    Ok(value) => {
                        counters.insert(counter, value);
                    }
                    Err(_) => {
                        self.unreadable.insert(
                            path,
                            format!("`{}` is no number", word.chars().take(40).collect::<String>()),
                        );
                    }
                }
            }
        }
        counters
    }
}

fn device(root: &Root, name: &str, uverbs: &BTreeMap<String, String>, reads: &Cell<u32>) -> RdmaDevice {
    let mut files = Files { root, reads, folder: format!("{CLASS}/{name}"), unreadable: BTreeMap::new() };
    // `device` of a software device leads to no PCI function.
    let function = root.resolve(&format!("{CLASS}/{name}/device"));
    let pci = function
        .value()
        .and_then(|path| path.rsplit('/').next())
        .filter(|last| is_address(last))
        .map(str::to_owned);
    let mut numbers: Vec<u32> =
        files.list("ports").iter().filter_map(|port| port.parse().ok()).take(PORTS).collect();
    numbers.sort_unstable();
    let ports = numbers.into_iter().map(|number| port(&mut files, number)).collect();
    RdmaDevice {
        pci,
        driver: root.link_name(&format!("{CLASS}/{name}/device/driver")),
        physfn: root.link_name(&format!("{CLASS}/{name}/device/physfn")),
        firmware: files.word("fw_ver"),
        hca_type: files.word("hca_type"),
        board_id: files.word("board_id"),
        node_type: files.word("node_type"),
        node_guid: files.word("node_guid"),
        netdevs: files.list("device/net"),
        uverbs: uverbs.get(name).cloned(),
        ports,
        name: name.to_owned(),
        unreadable: files.unreadable,
    }
}

fn port(files: &mut Files<'_>, number: u32) -> Port {
    let base = format!("ports/{number}");
    let gids = table(files, &format!("{base}/gids"), |gid| gid.bytes().any(|c| c != b'0' && c != b':'));
    // An unused entry of the table of a RoCE port reads as an error (EINVAL); that says nothing.
    files.unreadable.retain(|path, _| !path.starts_with(&format!("{base}/gids/")));
    Port {
        number,
        state: files.word(&format!("{base}/state")),
        phys_state: files.word(&format!("{base}/phys_state")),
        rate: files.word(&format!("{base}/rate")),
        link_layer: files.word(&format!("{base}/link_layer")),
        lid: files.word(&format!("{base}/lid")),
        sm_lid: files.word(&format!("{base}/sm_lid")),
        pkeys: table(files, &format!("{base}/pkeys"), |key| key != "0x0000")
            .into_iter()
            .map(|(_, key)| key)
            .collect(),
        gids: gids
            .into_iter()
            .map(|(index, gid)| Gid {
                index,
                gid,
                kind: files.word(&format!("{base}/gid_attrs/types/{index}")),
                netdev: files.word(&format!("{base}/gid_attrs/ndevs/{index}")),
            })
            .collect(),
        counters: files.counters(&format!("{base}/counters")),
        hw_counters: files.counters(&format!("{base}/hw_counters")),
    }
}

/// Numbered files of a folder whose value `keep` takes, with their index.
fn table(files: &mut Files<'_>, folder: &str, keep: impl Fn(&str) -> bool) -> Vec<(u32, String)> {
    let mut indexes: Vec<u32> =
        files.list(folder).iter().filter_map(|name| name.parse().ok()).take(ENTRIES).collect();
    indexes.sort_unstable();
    let mut kept = Vec::new();
    let mut empty = 0;
    for index in indexes {
        match files.word(&format!("{folder}/{index}")) {
            Some(value) if keep(&value) => kept.push((index, value)),
            _ => empty += 1,
        }
        if empty == EMPTY {
            break;
        }
    }
    kept
}

/// Whether `text` is `dddd:bb:dd.f`, domain of four digits or more.
pub(super) fn is_address(text: &str) -> bool {
    let mut parts = text.split([':', '.']);
    let mut hex = |len: std::ops::RangeInclusive<usize>| {
        parts
            .next()
            .is_some_and(|part| len.contains(&part.len()) && part.bytes().all(|c| c.is_ascii_hexdigit()))
    };
    hex(4..=8) && hex(2..=2) && hex(2..=2) && hex(1..=1) && parts.next().is_none() && text.contains('.')
}

#[cfg(test)]
mod tests {
    use super::is_address;

    #[test]
    fn addresses() {
        assert!(is_address("0000:18:00.0"));
        assert!(is_address("10000:e1:00.1"));
        assert!(!is_address("pci0000:15"));
        assert!(!is_address("0000:18:00"));
        assert!(!is_address("0000:18:00.0.0"));
        assert!(!is_address("0000:1g:00.0"));
        assert!(!is_address(""));
    }
}

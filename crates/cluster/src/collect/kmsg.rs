//! Xids of the kernel log.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;

use crate::facts::{Fact, Xid};
use crate::root::Root;

/// The ring buffer of a kernel is a few MiB at most.
const LIMIT: usize = 32 << 20;

/// As many records as fit into the largest ring buffer; a log that grows as fast as it is read must not hold the reader.
const RECORDS: usize = 1 << 20;

/// Reads the kernel log: of a live machine `/dev/kmsg`, of a captured tree `kmsg.txt` (what `dmesg` prints) or `var/log/dmesg`.
pub(super) fn xids(root: &Root) -> Fact<Vec<Xid>> {
    let text = if root.is_live() { live(root) } else { captured(root) };
    text.map(|text| parse(&text))
}

fn captured(root: &Root) -> Fact<String> {
    let given = root.text_up_to("/kmsg.txt", LIMIT as u64);
    let boot = root.text_up_to("/var/log/dmesg", LIMIT as u64);
    if given.is_absent() && boot.value().is_some() { boot } else { given }
}

/// A read of `/dev/kmsg` gives one record, and would wait at the end.
fn live(root: &Root) -> Fact<String> {
    let (source, scope) = ("/dev/kmsg", crate::facts::Scope::HostKernel);
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(source);
    let mut file = match file {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Fact::absent(source, root.scope(source)),
        Err(error) => return Fact::unreadable(error.to_string(), source, scope),
    };
    let mut text = String::new();
    let mut record = vec![0; 8192];
    for _ in 0..RECORDS {
        if text.len() >= LIMIT {
            break;
        }
        match file.read(&mut record) {
            Ok(0) => break,
            Ok(count) => text.push_str(&String::from_utf8_lossy(record.get(..count).unwrap_or_default())),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // EPIPE: records were overwritten while this read; the next ones are there.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) => {}
            Err(error) => return Fact::unreadable(error.to_string(), source, scope),
        }
    }
    Fact::read(text, source, scope)
}

/// `NVRM: Xid (PCI:0000:18:00): 79, ...` and `nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 20034, ...`, counted by device and number.
pub fn parse(text: &str) -> Vec<Xid> {
    let mut found: BTreeMap<(bool, String, u32), Xid> = BTreeMap::new();
    for line in text.lines() {
        let Some((before, rest)) = line.split_once("Xid (PCI:") else { continue };
        let Some((pci, rest)) = rest.split_once("):") else { continue };
        let rest = rest.trim_start();
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let Ok(number) = rest[..digits].parse() else { continue };
        let nvswitch = before.ends_with('S');
        let entry = found.entry((nvswitch, pci.to_owned(), number)).or_default();
        let count = entry.count + 1;
        *entry = Xid {
            pci: pci.to_owned(),
            number,
            nvswitch,
            count,
            text: rest[digits..].trim_start_matches([',', ' ']).chars().take(200).collect(),
        };
        // As many kinds as a broken node shows; a hostile log must not fill memory.
        if found.len() > 1000 {
            break;
        }
    }
    found.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xids_and_sxids_are_counted() {
        let log = "3,1,2,-;NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n\
                   [ 12.3] NVRM: Xid (PCI:0000:18:00): 79, again\n\
                   nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n\
                   Xid (PCI:0000:18:00\nXid (PCI:x): y\n";
        let found = parse(log);
        assert_eq!(found.len(), 2);
        let xid = found.iter().find(|xid| !xid.nvswitch).unwrap();
        assert_eq!(
            (xid.pci.as_str(), xid.number, xid.count, xid.text.as_str()),
            ("0000:18:00", 79, 2, "again")
        );
        let switch = found.iter().find(|xid| xid.nvswitch).unwrap();
        assert_eq!((switch.number, switch.text.as_str()), (20034, "Fatal, Link 30 LTSSM Fault Up"));
    }
}

//! Memory, huge pages and `/dev/shm`.

use crate::facts::{Fact, HugePages, Memory, Shm};
use crate::root::Root;

use super::kernel::number;

/// Reads everything of memory.
pub(super) fn memory(root: &Root) -> Memory {
    let meminfo = root.text("/proc/meminfo");
    let row = |name: &'static str| meminfo.clone().parse(move |text| parse_meminfo(&text, name));
    Memory {
        total: row("MemTotal"),
        available: row("MemAvailable"),
        huge_pages: huge_pages(root),
        shm: shm(root),
        max_map_count: root.word("/proc/sys/vm/max_map_count").parse(|word| number(&word)),
    }
}

/// Bytes of the row `name` (kB there).
///
/// # Errors
/// When there is no such row or it is no number.
pub fn parse_meminfo(text: &str, name: &str) -> Result<u64, String> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .and_then(|rest| rest.split_whitespace().next())
        .ok_or_else(|| format!("no row `{name}`"))?;
    let kilobytes: u64 = number(value)?;
    kilobytes.checked_mul(1024).ok_or_else(|| format!("`{value}` kB is too many"))
}

fn huge_pages(root: &Root) -> Fact<Vec<HugePages>> {
    let folder = "/sys/kernel/mm/hugepages";
    root.list(folder).map(|names| {
        names
            .iter()
            .filter_map(|name| {
                let kilobytes: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
                let count =
                    |file: &str| root.word(&format!("{folder}/{name}/{file}")).value()?.parse::<u64>().ok();
                let total = count("nr_hugepages")?;
                let size = kilobytes.checked_mul(1024)?;
                Some(HugePages { size, total, free: count("free_hugepages").unwrap_or(total) })
            })
            .collect()
    })
}

/// A live machine is asked; a captured tree has the mount's options.
fn shm(root: &Root) -> Fact<Shm> {
    if root.is_live() {
        let (source, scope) = ("/dev/shm", root.scope("/dev/shm"));
        return match rustix::fs::statvfs(source) {
            Ok(stat) => Fact::read(
                Shm {
                    total: stat.f_blocks.saturating_mul(stat.f_frsize),
                    free: Some(stat.f_bavail.saturating_mul(stat.f_frsize)),
                },
                source,
                scope,
            ),
            Err(rustix::io::Errno::NOENT) => Fact::absent(source, scope),
            Err(error) => Fact::unreadable(error.to_string(), source, scope),
        };
    }
    let total = parse_meminfo(root.text("/proc/meminfo").value().map_or("", String::as_str), "MemTotal").ok();
    root.text("/proc/self/mountinfo").parse(|text| {
        parse_shm(&text, total).ok_or_else(|| "no mount of /dev/shm whose size can be told".to_owned())
    })
}

/// The size of the file system at `/dev/shm`. A tmpfs without `size=` has half of all memory (tmpfs(5)).
pub fn parse_shm(mountinfo: &str, total_memory: Option<u64>) -> Option<Shm> {
    // The last mount over a place is the one seen. Fields: id parent major:minor root MOUNT options... - type source superoptions
    let line = mountinfo.lines().rfind(|line| line.split_whitespace().nth(4) == Some("/dev/shm"))?;
    let (_, after) = line.split_once(" - ")?;
    let mut fields = after.split_whitespace();
    if fields.next()? != "tmpfs" {
        return None;
    }
    let options = fields.nth(1).unwrap_or_default();
    let total = match options.split(',').find_map(|option| option.strip_prefix("size=")) {
        None => total_memory? / 2,
        Some(size) => match size.strip_suffix('%') {
            Some(percent) => total_memory?.checked_mul(percent.parse().ok()?)? / 100,
            None => match size.as_bytes().last()? {
                b'k' | b'K' => size[..size.len() - 1].parse::<u64>().ok()?.checked_mul(1 << 10)?,
                b'm' | b'M' => size[..size.len() - 1].parse::<u64>().ok()?.checked_mul(1 << 20)?,
                b'g' | b'G' => size[..size.len() - 1].parse::<u64>().ok()?.checked_mul(1 << 30)?,
                _ => size.parse().ok()?,
            },
        },
    };
    Some(Shm { total, free: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_meminfo() {
        let text = "MemTotal:       131072 kB\nMemAvailable:   x kB\n";
        assert_eq!(parse_meminfo(text, "MemTotal"), Ok(128 << 20));
        assert!(parse_meminfo(text, "MemAvailable").is_err());
        assert!(parse_meminfo(text, "Mem").is_err());
        assert!(parse_meminfo("MemTotal: 18446744073709551615 kB\n", "MemTotal").is_err());
    }

    #[test]
    fn sizes_of_shm() {
        let docker = "702 690 0:62 / /dev/shm rw,nosuid - tmpfs shm rw,size=65536k,inode64\n";
        assert_eq!(parse_shm(docker, None), Some(Shm { total: 64 << 20, free: None }));
        let twice = format!("{docker}703 690 0:63 / /dev/shm rw - tmpfs tmpfs rw\n");
        assert_eq!(parse_shm(&twice, Some(8 << 30)), Some(Shm { total: 4 << 30, free: None }));
        assert_eq!(parse_shm("1 2 0:1 / /dev/shm rw - overlay o rw\n", Some(1)), None);
        assert_eq!(parse_shm("", Some(1)), None);
    }
}

//! How much memory there is for shared segments.

/// A limit and where it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) bytes: u64,
    pub(crate) source: String,
}

/// The smallest of what the system has available, what this process's control group still allows, and
/// `set_limit`. Shared pages are charged to the group that touches them first.
pub(crate) fn limit(set_limit: Option<u64>) -> Option<Limit> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let mut limits = Vec::new();
    if let Some(bytes) = set_limit {
        limits.push(Limit { bytes, source: "the limit set for shared memory".to_owned() });
    }
    if let Some(bytes) = read("/proc/meminfo").and_then(|text| mem_available(&text)) {
        limits.push(Limit { bytes, source: "MemAvailable in /proc/meminfo".to_owned() });
    }
    for (limit, used) in [
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ] {
        let number = |path: &str| read(path)?.trim().parse::<u64>().ok();
        if let (Some(max), Some(used)) = (number(limit), number(used)) {
            limits.push(Limit { bytes: max.saturating_sub(used), source: limit.to_owned() });
        }
    }
    limits.into_iter().min_by_key(|limit| limit.bytes)
}

/// Bytes that the system and this process's control group still allow; `None` where neither can be read.
pub fn available_memory() -> Option<u64> {
    limit(None).map(|limit| limit.bytes)
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_meminfo() {
        let text = "MemTotal:       24000000 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(mem_available(text), Some(20_480_000_000));
        assert_eq!(mem_available("MemAvailable: x kB"), None);
        assert_eq!(mem_available(""), None);
    }

    #[test]
    fn the_set_limit_wins_when_smallest() {
        assert_eq!(limit(Some(5)).map(|l| l.bytes), Some(5));
    }
}

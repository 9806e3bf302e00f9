//! What this machine is: read from the kernel, for the result and for sizing.

use std::collections::HashSet;
use std::fs;

use crate::schema::Machine;

/// Reads the machine.
pub fn read() -> Machine {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    Machine {
        cpu: cpu_model(&cpuinfo),
        cores: std::thread::available_parallelism().ok().map(|n| n.get() as u64),
        llc_bytes: llc_bytes(),
        memory_bytes: meminfo_bytes(&meminfo, "MemTotal:"),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease").ok().map(|text| text.trim().to_owned()),
    }
}

/// Bytes of all last-level caches together; `None` where the kernel does not tell.
pub fn llc_bytes() -> Option<u64> {
    Some(last_level_cache()).filter(|&bytes| bytes > 0)
}

/// Bytes of private memory of this process that are resident now (`RssAnon`).
pub fn private_bytes() -> u64 {
    fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|text| meminfo_bytes(&text, "RssAnon:"))
        .unwrap_or(0)
}

fn cpu_model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn meminfo_bytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(key))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

/// All last-level caches together: the largest level that the kernel lists, each instance counted once.
fn last_level_cache() -> u64 {
    let mut best = (0, 0);
    let mut seen = HashSet::new();
    for cpu in 0..std::thread::available_parallelism().map_or(1, usize::from) {
        for index in 0..8 {
            let read = |file: &str| {
                fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/cache/index{index}/{file}")).ok()
            };
            let (Some(level), Some(size), Some(shared)) =
                (read("level"), read("size"), read("shared_cpu_list"))
            else {
                break;
            };
            if read("type").is_some_and(|kind| kind.trim() == "Instruction") {
                continue;
            }
            let level: u32 = level.trim().parse().unwrap_or(0);
            if level > best.0 {
                best = (level, 0);
            }
            if level == best.0 && seen.insert((level, shared)) {
                best.1 += cache_bytes(size.trim());
            }
        }
    }
    best.1
}

fn cache_bytes(size: &str) -> u64 {
    let digits = size.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match size[digits.len()..].trim() {
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => 1,
    };
    digits.parse::<u64>().unwrap_or(0).saturating_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_texts() {
        assert_eq!(cache_bytes("307200K"), 300 << 20);
        assert_eq!((cache_bytes("32M"), cache_bytes(""), cache_bytes("x")), (32 << 20, 0, 0));
        assert_eq!(meminfo_bytes("Name: x\nRssAnon:\t  12 kB\n", "RssAnon:"), Some(12_288));
        assert_eq!(cpu_model("processor : 0\nmodel name\t: A B\n"), Some("A B".to_owned()));
    }
}

//! Kernel modules and character device majors.

use crate::facts::{Fact, Module, Modules};
use crate::root::Root;

/// More lines than a kernel prints of modules or of majors (it has 4,096 majors).
const LINES: usize = 8192;

/// Reads both lists of modules.
pub(super) fn modules(root: &Root) -> Modules {
    Modules {
        loaded: root.text("/proc/modules").map(|text| parse_modules(&text)),
        present: root.list("/sys/module"),
    }
}

/// Reads the majors.
pub(super) fn majors(root: &Root) -> Fact<Vec<(u32, String)>> {
    root.text("/proc/devices").map(|text| parse_majors(&text))
}

/// `name size refs users state address` lines; users are joined by commas, or `-`.
pub fn parse_modules(text: &str) -> Vec<Module> {
    text.lines()
        .take(LINES)
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let name = words.next()?.replace('-', "_");
            let size = words.next()?.parse().ok()?;
            let users = words.nth(1).unwrap_or("-");
            let used_by =
                users.split(',').filter(|user| !user.is_empty() && *user != "-").map(str::to_owned).collect();
            Some(Module { name, size, used_by, state: words.next().unwrap_or_default().to_owned() })
        })
        .collect()
}

/// The part `Character devices:` of `/proc/devices`.
pub fn parse_majors(text: &str) -> Vec<(u32, String)> {
    text.lines()
        .skip_while(|line| !line.starts_with("Character devices"))
        .skip(1)
        .take_while(|line| !line.starts_with("Block devices"))
        .take(LINES)
        .filter_map(|line| {
            let (major, name) = line.trim().split_once(char::is_whitespace)?;
            Some((major.parse().ok()?, name.trim().to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_modules() {
        let read = parse_modules(
            "ib_core 450560 3 rdma_cm,nvidia_peermem,mlx5_ib, Live 0xffffffffc1\nnvidia-uvm 1830912 - - Live 0x0 (O)\nbroken\nx y 1 - Live\n",
        );
        assert_eq!(read.len(), 2);
        assert_eq!(read[0].used_by, ["rdma_cm", "nvidia_peermem", "mlx5_ib"]);
        assert_eq!((read[0].size, read[0].state.as_str()), (450_560, "Live"));
        assert_eq!(read[1].name, "nvidia_uvm");
        assert!(read[1].used_by.is_empty());
    }

    #[test]
    fn majors_of_character_devices_only() {
        let read = parse_majors(
            "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n511 gdrdrv\n\nBlock devices:\n  7 loop\n",
        );
        let expected = [(1, "mem"), (195, "nvidia"), (195, "nvidiactl"), (511, "gdrdrv")];
        assert_eq!(read, expected.map(|(major, name)| (major, name.to_owned())));
    }
}

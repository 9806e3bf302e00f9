//! Kernel, machine and IOMMU.

use crate::facts::{Dmi, Fact, Iommu, IommuGroup, Kernel, NumaNode, Pci};
use crate::root::Root;

/// Reads everything of the kernel and the machine.
pub(super) fn kernel(root: &Root) -> Kernel {
    let cpuinfo = root.text("/proc/cpuinfo");
    let dmi = |name: &str| root.word(&format!("/sys/class/dmi/id/{name}"));
    Kernel {
        release: root.word("/proc/sys/kernel/osrelease"),
        cmdline: root.word("/proc/cmdline"),
        hypervisor: cpuinfo.clone().parse(|text| parse_hypervisor(&text)),
        cpu: cpuinfo
            .clone()
            .parse(|text| cpu_field(&text, "model name").ok_or_else(|| "no `model name`".to_owned())),
        cpus: cpuinfo.map(|text| text.lines().filter(|line| line.starts_with("processor")).count() as u32),
        dmi: Dmi {
            vendor: dmi("sys_vendor"),
            product: dmi("product_name"),
            asset_tag: dmi("board_asset_tag"),
        },
        numa: numa(root),
        numa_balancing: root.word("/proc/sys/kernel/numa_balancing").parse(|word| number(&word)),
        governor: root.word("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        scaling_driver: root.word("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver"),
        os: root
            .text("/etc/os-release")
            .parse(|text| parse_os(&text).ok_or_else(|| "no `PRETTY_NAME`".to_owned())),
        glibc: glibc(root),
    }
}

/// A whole file as one number.
pub(super) fn number<T: std::str::FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("`{}` is no number", word.chars().take(40).collect::<String>()))
}

fn cpu_field(text: &str, name: &str) -> Option<String> {
    let (_, value) = text.lines().find(|line| line.starts_with(name))?.split_once(':')?;
    Some(value.trim().to_owned())
}

/// Whether the first processor has the flag `hypervisor`.
///
/// # Errors
/// When there is no line of flags.
pub fn parse_hypervisor(text: &str) -> Result<bool, String> {
    // Arm has `Features` and no such flag: nothing can be said there.
    let flags = cpu_field(text, "flags").ok_or("no line `flags`")?;
    Ok(flags.split_whitespace().any(|flag| flag == "hypervisor"))
}

/// `PRETTY_NAME` of os-release.
pub fn parse_os(text: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim().trim_matches(['"', '\'']).to_owned())
}

fn numa(root: &Root) -> Fact<Vec<NumaNode>> {
    let folder = "/sys/devices/system/node";
    root.list(folder).map(|names| {
        let mut nodes: Vec<NumaNode> = names
            .iter()
            .filter_map(|name| name.strip_prefix("node")?.parse().ok())
            .take(1024)
            .map(|node: u32| NumaNode {
                node,
                cpus: root.word(&format!("{folder}/node{node}/cpulist")).value().cloned().unwrap_or_default(),
            })
            .collect();
        nodes.sort_by_key(|node| node.node);
        nodes
    })
}

/// The version of glibc is in the text of `libc.so.6` itself, after `stable release version`.
fn glibc(root: &Root) -> Fact<String> {
    let places = [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib64/libc.so.6",
        "/usr/lib64/libc.so.6",
        "/lib/aarch64-linux-gnu/libc.so.6",
    ];
    let place = places.into_iter().find(|place| root.exists(place)).unwrap_or(places[0]);
    root.bytes(place, 64 << 20).parse(|bytes| {
        let mark = b"GNU C Library";
        let at = bytes
            .windows(mark.len())
            .position(|window| window == mark)
            .ok_or("it does not name its version")?;
        let line: String =
            bytes[at..].iter().take(200).take_while(|&&c| c != b'\n').map(|&c| char::from(c)).collect();
        let version = line.split("version ").nth(1).ok_or("it does not name its version")?;
        Ok(version.trim_end_matches('.').to_owned())
    })
}

/// Reads the IOMMU's units, and the groups that hold a device of `pci`.
pub(super) fn iommu(root: &Root, pci: &Pci) -> Iommu {
    let units = root.list("/sys/class/iommu");
    let folder = "/sys/kernel/iommu_groups";
    let mut numbers: Vec<String> =
        pci.devices.value().into_iter().flatten().filter_map(|device| device.iommu_group.clone()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let groups = root.list(folder).map(|_| {
        let kind = |number: &String| root.word(&format!("{folder}/{number}/type")).value().cloned();
        numbers.iter().map(|number| IommuGroup { number: number.clone(), kind: kind(number) }).collect()
    });
    Iommu { units, groups }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_words() {
        assert_eq!(parse_hypervisor("processor\t: 0\nflags\t\t: fpu hypervisor lm\n"), Ok(true));
        assert_eq!(parse_hypervisor("flags\t: fpu hypervisorish\n"), Ok(false));
        assert!(parse_hypervisor("Features : fp asimd\n").is_err());
    }

    #[test]
    fn names_of_systems() {
        assert_eq!(
            parse_os("NAME=x\nPRETTY_NAME=\"Ubuntu 22.04.5 LTS\"\n").as_deref(),
            Some("Ubuntu 22.04.5 LTS")
        );
        assert_eq!(parse_os("NAME=x\n"), None);
    }

    #[test]
    fn the_version_of_this_machines_glibc() {
        let fact = glibc(&Root::live(crate::facts::Scope::Host));
        let expected = std::process::Command::new("getconf").arg("GNU_LIBC_VERSION").output().unwrap();
        let expected = String::from_utf8(expected.stdout).unwrap();
        assert_eq!(format!("glibc {}", fact.value().unwrap()), expected.trim());
    }
}

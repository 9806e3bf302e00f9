//! No text makes a parser panic, and what a parser says of a well-formed text is what was put in.

#![allow(
    clippy::format_collect,
    clippy::format_push_string,
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used
)]

use expertrail_cluster::collect;
use proptest::prelude::*;

/// Runs every parser of text.
fn all(text: &str) {
    let _ = collect::params(text);
    let _ = collect::version(text);
    let _ = collect::modprobe(text, "/etc/modprobe.d/a.conf");
    let _ = collect::cmdline(text);
    let _ = collect::parse_modules(text);
    let _ = collect::parse_majors(text);
    let _ = collect::parse_listing(text);
    let _ = collect::parse_limit(text, "Max locked memory");
    let _ = collect::parse_capabilities(text);
    let _ = collect::parse_unit(text);
    let _ = collect::parse_hypervisor(text);
    let _ = collect::parse_os(text);
    let _ = collect::parse_meminfo(text, "MemTotal");
    let _ = collect::parse_shm(text, Some(u64::MAX));
    let _ = collect::cgroup_sign(text);
    let _ = collect::mount_sign(text);
    let _ = collect::is_host_driver(text);
    let _ = collect::parse_xids(text);
    let _ = collect::package(text, "nvidia-imex");
    let _ = collect::log_version(text);
    let _ = collect::parse(text.as_bytes());
}

/// Lines made of what the formats are made of, so that parsers get past their first test.
fn lines() -> impl Strategy<Value = String> {
    let words = [
        "options",
        "nvidia",
        "NVreg_A=1",
        "\"",
        "\\\n",
        ":",
        ": ",
        "=",
        "Xid (PCI:",
        "): ",
        "79",
        "\n",
        " ",
        "\t",
        "Max locked memory",
        "unlimited",
        "CapEff:",
        "ffffffffffffffffffff",
        "LimitMEMLOCK=",
        "infinity",
        "18446744073709551616",
        "9K",
        "é",
        " - ",
        "tmpfs",
        "size=",
        "%",
        "/dev/shm",
        "crw-rw-rw- 1 a b 195, 0 Jan 1 1:00 nvidia0",
        "/dev/infiniband:",
        "/",
        "overlay",
        "MemTotal:",
        "kB",
        "Package: nvidia-imex",
        "Status: install ok installed",
        "Version: ",
        "NVRM version:",
        "580.1",
        "flags",
        "Character devices:",
        "Block devices:",
        "Fabric Manager version ",
        "PRETTY_NAME=",
        "#",
        ",",
        "-",
    ];
    prop::collection::vec(prop::sample::select(words.to_vec()), 0..60).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn any_text(text in any::<String>()) {
        all(&text);
    }

    #[test]
    fn text_in_the_shape_of_the_formats(text in lines()) {
        all(&text);
    }

    #[test]
    fn any_configuration_space(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
        let _ = collect::access_control(&bytes);
    }

    #[test]
    fn parameters_are_what_was_printed(map in prop::collection::btree_map("[A-Za-z]{1,20}", "[a-z0-9;=]{0,20}", 1..40), quoted: bool) {
        let line = |(key, value): (&String, &String)| if quoted { format!("{key}: \"{value}\"\n") } else { format!("{key}: {value}\n") };
        let text: String = map.iter().map(line).collect();
        prop_assert_eq!(collect::params(&text).unwrap(), map);
    }

    #[test]
    fn limits_are_what_was_printed(soft: Option<u64>, hard: Option<u64>) {
        let word = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
        let text = format!("Max open files  1 1 files\nMax locked memory         {:20} {:20} bytes\n", word(soft), word(hard));
        let read = collect::parse_limit(&text, "Max locked memory").unwrap();
        prop_assert_eq!((read.soft, read.hard), (soft, hard));
    }

    #[test]
    fn modules_are_what_was_printed(modules in prop::collection::vec(("[a-z_]{1,12}", any::<u64>(), prop::collection::vec("[a-z_]{1,8}", 0..4)), 0..30)) {
        let text: String = modules.iter().map(|(name, size, users)| {
            let users = if users.is_empty() { "-".to_owned() } else { format!("{},", users.join(",")) };
            format!("{name} {size} 1 {users} Live 0xffffffffc0\n")
        }).collect();
        let read = collect::parse_modules(&text);
        let read: Vec<_> = read.into_iter().map(|module| (module.name, module.size, module.used_by)).collect();
        prop_assert_eq!(read, modules);
    }

    #[test]
    fn nodes_are_what_was_listed(nodes in prop::collection::vec((0_u32..512, 0_u32..1_048_576, 0_u32..512), 0..30)) {
        let text: String = nodes.iter().enumerate().map(|(at, (major, minor, mode))| {
            let bits: String = (0..9).rev().zip("rwxrwxrwx".chars()).map(|(bit, c)| if mode >> bit & 1 == 1 { c } else { '-' }).collect();
            format!("c{bits} 1 root root {major:3}, {minor:3} Nov 29 20:58 nvidia{at}\n")
        }).collect();
        let read: Vec<_> = collect::parse_listing(&text).into_iter().map(|node| (node.major, node.minor, node.mode)).collect();
        prop_assert_eq!(read, nodes);
    }

    #[test]
    fn xids_are_counted(numbers in prop::collection::vec(1_u32..5, 0..50)) {
        let text: String = numbers.iter().map(|number| format!("[1.0] NVRM: Xid (PCI:0000:18:00): {number}, text\n")).collect();
        let read = collect::parse_xids(&text);
        for number in 1..5 {
            let count = numbers.iter().filter(|other| **other == number).count() as u64;
            let found = read.iter().find(|xid| xid.number == number).map_or(0, |xid| xid.count);
            prop_assert_eq!(found, count);
        }
    }
}

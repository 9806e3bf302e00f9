//! Any text of a node gives facts no larger than itself or an error, never a panic.
//!
//! The first byte picks the parser, from '0' on so that seeds can be written by hand; the rest is the text.
#![no_main]

use expertrail_cluster::check::Target;
use expertrail_cluster::facts::ModprobeOption;
use expertrail_cluster::{collect, stack, userspace};
use libfuzzer_sys::fuzz_target;

/// What text a parser gives is a part of what it read, with at most a few words of its own.
const OWN_WORDS: usize = 128;

fuzz_target!(|data: &[u8]| {
    let Some((pick, bytes)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(bytes);
    match pick.wrapping_sub(b'0') % 20 {
        0 => devices(&text),
        1 => options(&collect::cmdline(&text), "/proc/cmdline", &text),
        2 => options(&collect::modprobe(&text, "file"), "file", &text),
        3 => params(&text),
        4 => version(&text),
        5 => sign(collect::cgroup_sign(&text), &text),
        6 => sign(collect::mount_sign(&text), &text),
        7 => kernel(&text),
        8 => xids(&text),
        9 => numbers(&text),
        10 => unit(&text),
        11 => shared_memory(&text),
        12 => modules(&text),
        13 => access_control(bytes),
        14 => packages(&text),
        15 => indexing(&text),
        16 => maps(&text),
        17 => wheel(&text),
        18 => stack(&text),
        _ => target(&text),
    }
});

fn devices(text: &str) {
    let nodes = collect::parse_listing(text);
    assert!(nodes.len() <= text.lines().count());
    for node in nodes {
        assert!(node.path.starts_with("/dev/") && node.path.len() > "/dev/".len(), "{node:?}");
        assert!(node.path.len() <= text.len() + "/dev/".len());
        assert!(!node.path.contains(char::is_whitespace), "{node:?}");
        assert!(node.mode <= 0o777, "{node:?}");
        assert!(node.character || (node.major, node.minor) == (0, 0), "{node:?}");
    }
}

fn options(found: &[ModprobeOption], file: &str, text: &str) {
    let (mut size, lines) = (0, text.lines().count().max(1));
    for option in found {
        assert!(option.file == file && (1..=lines).contains(&(option.line as usize)), "{option:?}");
        assert!(!option.module.contains('-') && !option.key.contains('='), "{option:?}");
        size += option.key.len() + option.value.len();
    }
    assert!(size <= text.len() && found.len() <= 4096);
}

fn params(text: &str) {
    match collect::params(text) {
        Ok(all) => {
            assert!(!all.is_empty() && all.len() <= text.lines().count());
            let mut size = 0;
            for (key, value) in all {
                assert!(!key.is_empty() && !key.contains(':') && key.trim() == key, "{key:?}");
                size += key.len() + value.len();
            }
            assert!(size <= text.len());
        }
        Err(reason) => assert!(!reason.is_empty() && reason.len() <= OWN_WORDS),
    }
}

fn version(text: &str) {
    match collect::version(text) {
        Ok(read) => {
            assert!(read.line.starts_with("NVRM version") && text.contains(&read.line));
            assert!(read.line.contains(&read.version));
            assert!(read.version.chars().all(|c| c.is_ascii_digit() || c == '.'), "{read:?}");
        }
        Err(reason) => assert!(!text.contains("\nNVRM version") && !reason.is_empty()),
    }
}

fn sign(found: Option<String>, text: &str) {
    if let Some(sign) = found {
        assert!(!sign.is_empty() && sign.len() <= text.len() + OWN_WORDS && !sign.contains('\n'));
    }
}

fn kernel(text: &str) {
    let _ = collect::is_host_driver(text);
    match collect::parse_hypervisor(text) {
        Ok(virtual_machine) => assert!(!virtual_machine || text.contains("hypervisor")),
        Err(reason) => assert!(!reason.is_empty()),
    }
    if let Some(os) = collect::parse_os(text) {
        assert!(text.contains(&os) && !os.contains('\n'));
    }
}

fn xids(text: &str) {
    let found = collect::parse_xids(text);
    let lines = text.lines().count() as u64;
    assert!(found.iter().map(|xid| xid.count).sum::<u64>() <= lines);
    for xid in found {
        assert!(xid.count > 0 && text.contains(&xid.pci) && text.contains(&xid.text), "{xid:?}");
        assert!(xid.text.chars().count() <= 200);
    }
}

fn numbers(text: &str) {
    for name in ["Max locked memory", "Max open files"] {
        match collect::parse_limit(text, name) {
            Ok(_) => assert!(text.contains(name)),
            Err(reason) => assert!(reason.contains(name) && reason.len() <= text.len() + OWN_WORDS),
        }
    }
    if let Ok(bits) = collect::parse_capabilities(text) {
        assert!(text.to_lowercase().contains(&format!("{bits:x}")));
    }
    if let Ok(bytes) = collect::parse_meminfo(text, "MemTotal") {
        assert!(bytes % 1024 == 0 && text.contains(&(bytes / 1024).to_string()));
    }
}

fn unit(text: &str) {
    if let Some(limit) = collect::parse_unit(text) {
        assert!(text.contains("LimitMEMLOCK="));
        let unlimited = limit.soft.is_none() || limit.hard.is_none();
        assert!(!unlimited || text.contains("infinity"), "{limit:?}");
    }
}

fn shared_memory(text: &str) {
    for total in [None, Some(0), Some(1 << 40), Some(u64::MAX)] {
        if let Some(shm) = collect::parse_shm(text, total) {
            assert!(text.contains("/dev/shm") && shm.free.is_none());
        }
    }
}

fn modules(text: &str) {
    let (mut size, lines) = (0, text.lines().count());
    let modules = collect::parse_modules(text);
    assert!(modules.len() <= lines);
    for module in modules {
        assert!(!module.name.is_empty() && !module.name.contains('-'), "{module:?}");
        assert!(module.used_by.iter().all(|user| !user.is_empty() && user != "-"), "{module:?}");
        size += module.name.len() + module.used_by.iter().map(String::len).sum::<usize>();
    }
    assert!(size <= text.len());
    let majors = collect::parse_majors(text);
    assert!(majors.len() <= lines && majors.iter().all(|(_, name)| name.trim() == name));
    assert!(majors.iter().all(|(_, name)| !name.is_empty()), "{majors:?}");
}

fn access_control(config: &[u8]) {
    // Inputs are short, the part in question begins at 0x100: it is looked for with and without the part before it.
    let mut whole = vec![0; 0x100];
    whole.extend(config);
    for config in [config, &whole] {
        if collect::access_control(config).is_some() {
            assert!(config.len() >= 0x108);
        }
    }
}

fn packages(text: &str) {
    if let Some(version) = collect::log_version(text) {
        assert!(text.contains(&version) && version.contains('.') && version.len() < 32);
        assert!(version.bytes().all(|c| c.is_ascii_digit() || c == b'.'));
    }
    for name in ["nvidia-fabricmanager", "nvidia-imex"] {
        if let Some(version) = collect::package(text, name) {
            assert!(text.contains(&version) && text.contains(name));
            assert!(!version.contains(['-', '~', '+', '\n']));
        }
    }
}

fn indexing(text: &str) {
    if userspace::parse_indexing(text).is_some() {
        assert!(text.contains("ibgda_get_rc"));
    }
    if userspace::parse_rdc_guard(text) {
        assert!(text.contains("__CUDACC_RDC__"));
    }
    if let Some(teams) = userspace::parse_max_teams(text) {
        assert!(text.contains("NVSHMEM_MAX_TEAMS"));
        assert!(text.contains(&teams.to_string()));
    }
}

fn maps(text: &str) {
    let files = userspace::parse_maps(text);
    assert!(files.len() <= text.lines().count());
    assert!(files.windows(2).all(|pair| pair[0] < pair[1]));
    for file in files {
        assert!(file.starts_with('/') && file.contains(".so") && text.contains(&file), "{file:?}");
    }
}

fn wheel(text: &str) {
    let wheel = userspace::parse_metadata(text);
    let size = wheel.name.len() + wheel.version.len() + wheel.requires.iter().map(String::len).sum::<usize>();
    assert!(size <= text.len() && wheel.path.is_empty() && wheel.origin.is_none());
    assert!(wheel.requires.iter().all(|line| !line.is_empty() && !line.contains('\n')));
    assert!(!wheel.name.contains(|c: char| c.is_ascii_uppercase() || c == '_' || c == '.'), "{wheel:?}");
    if let Some(origin) = userspace::parse_origin(text) {
        assert!(origin.len() <= text.len());
    }
}

fn stack(text: &str) {
    match stack::Question::parse(text) {
        Ok(question) => {
            let verdict = stack::judge(&question);
            assert_eq!(verdict.question, question);
            assert!(verdict.applies.iter().all(|found| found.open.is_empty()));
            assert!(verdict.possible.iter().all(|found| !found.open.is_empty()));
            if verdict.judgement == stack::Judgement::KnownGood {
                assert!(verdict.possible.is_empty());
            }
            let shown = stack::text(&verdict);
            assert!(shown.ends_with('\n') && shown.contains("\njudged:\n"));
            plain(&shown);
        }
        Err(reason) => assert!(!reason.is_empty()),
    }
}

/// Nothing of an input may steer a terminal.
fn plain(text: &str) {
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
}

fn target(text: &str) {
    match text.parse::<Target>() {
        Ok(target) => assert_eq!(target.name(), text),
        Err(reason) => assert!(Target::ALL.iter().all(|target| reason.contains(target.name()))),
    }
}

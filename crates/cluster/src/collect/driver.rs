//! The NVIDIA driver's parameters, version and modprobe options.

use std::collections::BTreeMap;

use super::{Budget, masked};
use crate::facts::{Driver, DriverVersion, Fact, Flavour, ModprobeOption, Reading};
use crate::root::Root;

/// Folders that modprobe reads, first one wins for files of one name (modprobe.d(5)). The files of all are then read in the order of
/// their names, whatever their folder.
const MODPROBE: [&str; 5] = [
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
];

/// The driver prints some 45 parameters.
const PARAMS: usize = 1024;

/// More files and options than any configuration has.
const FILES: usize = 1024;
const OPTIONS: usize = 4096;

/// Reads everything of the driver.
pub(super) fn driver(root: &Root) -> Driver {
    Driver {
        params: root.text("/proc/driver/nvidia/params").parse(|text| params(&text)),
        version: root.text("/proc/driver/nvidia/version").parse(|text| version(&text)),
        configured: configured(root),
        gdrdrv_version: root.word("/sys/module/gdrdrv/version"),
        efa_version: root.word("/sys/module/efa/version"),
        peermem_version: root.word("/sys/module/nvidia_peermem/version"),
    }
}

/// `Key: value` lines; quotes around a value are removed.
///
/// # Errors
/// When no line has that form, or far too many have it.
pub fn params(text: &str) -> Result<BTreeMap<String, String>, String> {
    if text.lines().nth(PARAMS).is_some() {
        return Err(format!("more than {PARAMS} lines: not what the driver prints"));
    }
    let all: BTreeMap<String, String> = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key.trim().to_owned(), unquote(value.trim()).to_owned()))
        .filter(|(key, _)| !key.is_empty())
        .collect();
    if all.is_empty() { Err("no line has the form `Key: value`".to_owned()) } else { Ok(all) }
}

/// The version's first line, and the driver's flavour as it names it.
///
/// # Errors
/// When there is no line that begins with `NVRM version`.
pub fn version(text: &str) -> Result<DriverVersion, String> {
    let line = text
        .lines()
        .find(|line| line.trim_start().starts_with("NVRM version"))
        .ok_or("no line begins with `NVRM version`")?
        .trim();
    let flavour = if line.contains("Open Kernel Module") {
        Flavour::Open
    } else if line.contains("Kernel Module") {
        Flavour::Proprietary
    } else {
        Flavour::Unknown
    };
    // The version is the first word of digits and at least one point: `580.159.04`.
    let version = line
        .split_whitespace()
        .find(|word| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.'))
        .unwrap_or_default();
    Ok(DriverVersion { version: version.to_owned(), flavour, line: line.to_owned() })
}

/// Both modprobe and systemd read `*.conf` only, in lower case.
pub(super) fn has_extension(name: &str) -> bool {
    name.strip_suffix(".conf").is_some()
}

fn unquote(text: &str) -> &str {
    text.strip_prefix('"').map_or(text, |rest| rest.strip_suffix('"').unwrap_or(rest))
}

fn configured(root: &Root) -> Fact<Vec<ModprobeOption>> {
    let (source, scope) = (MODPROBE[0], root.scope(MODPROBE[0]));
    let mut files: BTreeMap<String, &str> = BTreeMap::new();
    for folder in MODPROBE {
        let names = root.list(folder);
        if let Reading::Unreadable(reason) = names.reading() {
            return Fact::unreadable(format!("{folder} could not be read: {reason}"), source, scope);
        }
        for name in names.value().into_iter().flatten().filter(|name| has_extension(name)) {
            // The first folder's file of a name hides the others'.
            files.entry(name.clone()).or_insert(folder);
        }
    }
    if files.len() > FILES {
        return Fact::unreadable(format!("more than {FILES} files"), source, scope);
    }
    let mut options = Vec::new();
    let mut budget = Budget::new();
    for (name, folder) in &files {
        let path = format!("{folder}/{name}");
        if masked(root, &path) {
            continue;
        }
        let text = budget.text(root, &path);
        match text.reading() {
            Reading::Value(text) => options.extend(modprobe(text, &path)),
            // What is in it may override all else; half of a configuration is none.
            Reading::Unreadable(reason) => {
                return Fact::unreadable(format!("{path} could not be read: {reason}"), source, scope);
            }
            // A link that leads nowhere, which modprobe passes over. In a capture its target was only not copied.
            _ if root.is_live() => {}
            _ => return Fact::unreadable(format!("{path} leads to what was not copied"), source, scope),
        }
        if options.len() >= OPTIONS {
            return Fact::unreadable(format!("more than {OPTIONS} options"), source, scope);
        }
    }
    let command = root.word("/proc/cmdline");
    options.extend(cmdline(command.value().map_or("", String::as_str)));
    if files.is_empty() && options.is_empty() {
        Fact::absent(source, scope)
    } else {
        Fact::read(options, source, scope)
    }
}

/// Options that the kernel's command line has for the driver: `nvidia.NVreg_EnableStreamMemOPs=1`.
pub fn cmdline(text: &str) -> Vec<ModprobeOption> {
    let options = words(text).into_iter().filter_map(|word| {
        let (module, option) = word.split_once('.').filter(|(module, _)| module.starts_with("nvidia"))?;
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        Some(ModprobeOption {
            file: "/proc/cmdline".to_owned(),
            line: 1,
            module: module.replace('-', "_"),
            key: key.to_owned(),
            value: value.to_owned(),
        })
    });
    options.take(OPTIONS).collect()
}

/// Options for `nvidia` and its modules; also lines that name the driver's keys without `options nvidia`.
pub fn modprobe(text: &str, file: &str) -> Vec<ModprobeOption> {
    let mut found = Vec::new();
    for (number, line) in logical_lines(text) {
        let words = words(&line);
        let (module, rest) = match words.as_slice() {
            [first, module, rest @ ..] if first == "options" => (module.replace('-', "_"), rest),
            [first, ..] if first.starts_with("NVreg_") => (String::new(), words.as_slice()),
            _ => continue,
        };
        let ours = module.is_empty()
            || module.starts_with("nvidia")
            || ["gdrdrv", "efa", "mlx5_core"].contains(&module.as_str());
        for word in rest.iter().filter(|_| ours).take(OPTIONS.saturating_sub(found.len())) {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            found.push(ModprobeOption {
                file: file.to_owned(),
                line: number,
                module: module.clone(),
                key: key.to_owned(),
                value: value.to_owned(),
            });
        }
    }
    found
}

/// Lines with their first line's number: a backslash at the end joins the next, then comments are dropped. So one that ends in a
/// backslash takes the next line with it, as modprobe does.
fn logical_lines(text: &str) -> Vec<(u32, String)> {
    let mut lines = Vec::new();
    let mut open: Option<(u32, String)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let (first, mut joined) = open.take().unwrap_or((number, String::new()));
        if let Some(part) = line.strip_suffix('\\') {
            joined.push_str(part);
            joined.push(' ');
            open = Some((first, joined));
        } else {
            joined.push_str(line);
            lines.push((first, joined));
        }
    }
    lines.extend(open);
    lines.retain(|(_, line)| !line.trim_start().starts_with('#'));
    lines
}

/// Words at white space; quotes group, and are removed wherever they stand (`NVreg_RegistryDwords="A=1;B=2"`).
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            c if c.is_whitespace() && !quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_whole_not_parts_of_text() {
        let read = params(
            "EnableStreamMemOPs: 10\nRegistryDwords: \"PeerMappingOverride=1;\"\nTemporaryFilePath: \"/var/tmp\"\n",
        );
        let read = read.unwrap();
        assert_eq!(read["EnableStreamMemOPs"], "10");
        assert_eq!(read["RegistryDwords"], "PeerMappingOverride=1;");
        assert_eq!(read["TemporaryFilePath"], "/var/tmp");
        assert!(params("nothing\n").is_err());
    }

    #[test]
    fn flavours() {
        let open = version(
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (a@b)  \nGCC version: 15\n",
        );
        let open = open.unwrap();
        assert_eq!((open.version.as_str(), open.flavour), ("580.159.04", Flavour::Open));
        let closed = version(
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n",
        )
        .unwrap();
        assert_eq!((closed.version.as_str(), closed.flavour), ("550.54.15", Flavour::Proprietary));
        assert!(version("").is_err());
    }

    #[test]
    fn options_of_the_command_line() {
        let found =
            cmdline("BOOT_IMAGE=/v ro nvidia.NVreg_EnableStreamMemOPs=1 nvidia-drm.modeset=1 x.nvidia=2");
        let short: Vec<_> =
            found.iter().map(|o| (o.module.as_str(), o.key.as_str(), o.value.as_str())).collect();
        assert_eq!(short, [("nvidia", "NVreg_EnableStreamMemOPs", "1"), ("nvidia_drm", "modeset", "1")]);
    }

    #[test]
    fn a_comment_takes_the_line_that_its_backslash_joins() {
        let text = "# was: \\\noptions nvidia NVreg_A=1\noptions nvidia NVreg_B=2\n  # x\noptions nvidia NVreg_C=3\n";
        let found = modprobe(text, "/etc/modprobe.d/a.conf");
        let short: Vec<_> = found.iter().map(|o| (o.line, o.key.as_str())).collect();
        assert_eq!(short, [(3, "NVreg_B"), (5, "NVreg_C")]);
    }

    #[test]
    fn options_of_the_driver_and_lines_that_do_nothing() {
        let text = "# options nvidia NVreg_A=1\noptions nvidia NVreg_EnableStreamMemOPs=1 \\\n  NVreg_RegistryDwords=\"PeerMappingOverride=1;RMOther=0x2\"\n\
                    options snd power_save=1\nNVreg_EnableStreamMemOPs=1\noptions nvidia-drm modeset=1\n";
        let found = modprobe(text, "/etc/modprobe.d/nvidia.conf");
        let short: Vec<_> =
            found.iter().map(|o| (o.line, o.module.as_str(), o.key.as_str(), o.value.as_str())).collect();
        assert_eq!(
            short,
            [
                (2, "nvidia", "NVreg_EnableStreamMemOPs", "1"),
                (2, "nvidia", "NVreg_RegistryDwords", "PeerMappingOverride=1;RMOther=0x2"),
                (5, "", "NVreg_EnableStreamMemOPs", "1"),
                (6, "nvidia_drm", "modeset", "1"),
            ]
        );
    }
}

//! Fabric manager, IMEX and the other daemons of NVIDIA.

use super::limits::Processes;
use crate::facts::{Fact, Service};
use crate::root::Root;

/// Name of the unit, of its process (the kernel keeps 15 characters), and its configuration.
const SERVICES: [(&str, &[&str], Option<&str>); 3] = [
    (
        "nvidia-fabricmanager",
        &["nv-fabricmanager", "nv-fabricmanage"],
        Some("/usr/share/nvidia/nvswitch/fabricmanager.cfg"),
    ),
    ("nvidia-imex", &["nvidia-imex"], Some("/etc/nvidia-imex/nodes_config.cfg")),
    ("nvidia-persistenced", &["nvidia-persistenced", "nvidia-persiste"], None),
];

const UNITS: [&str; 3] = ["/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];

/// Where dpkg keeps what is installed.
const DPKG: &str = "/var/lib/dpkg/status";

/// The fabric manager's log (`LOG_FILE_NAME` of its configuration has this value by default).
const LOG: &str = "/var/log/fabricmanager.log";

/// Reads each of them. `processes` are those of `/proc`.
pub(super) fn services(root: &Root, processes: &Processes) -> Vec<Service> {
    let dpkg = root.bytes(DPKG, 64 << 20).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    SERVICES
        .into_iter()
        .map(|(name, commands, config)| {
            let scope = root.scope("/proc");
            let pid = match processes.seen.value() {
                None => processes.seen.clone().map(|_| 0),
                Some(all) => match all.iter().find(|(_, comm)| commands.contains(&comm.as_str())) {
                    Some(&(pid, _)) => Fact::read(pid, format!("/proc/{pid}/comm"), scope),
                    None => processes.none("/proc/*/comm", scope),
                },
            };
            let unit = UNITS
                .map(|folder| format!("{folder}/{name}.service"))
                .into_iter()
                .find(|path| root.exists(path));
            let installed = match unit {
                Some(unit) => Fact::read(true, unit, root.scope(UNITS[1])),
                None if UNITS.iter().any(|folder| root.exists(folder)) => {
                    Fact::read(false, UNITS[1], root.scope(UNITS[1]))
                }
                // A captured tree or a container without systemd says nothing of units.
                None => Fact::absent(UNITS[1], root.scope(UNITS[1])),
            };
            let package = || {
                dpkg.clone()
                    .parse(|text| package(&text, name).ok_or_else(|| format!("dpkg knows no package {name}")))
            };
            let version = match name {
                // What its own log says ran last counts for more than what is installed.
                "nvidia-fabricmanager" => {
                    let log = logged(root);
                    if log.value().is_some() { log } else { package() }
                }
                _ => package(),
            };
            let config =
                config.map_or_else(Fact::default, |path| root.text(path).map(|text| settings(&text)));
            Service { name: name.to_owned(), pid, version, installed, config }
        })
        .collect()
}

fn logged(root: &Root) -> Fact<String> {
    let log = root.text_up_to(LOG, 64 << 20);
    log.parse(|text| log_version(&text).ok_or_else(|| "it names no version".to_owned()))
}

/// The version of the fabric manager that wrote `log` last: `Fabric Manager version 580.105.08 is running with ...`.
pub fn log_version(log: &str) -> Option<String> {
    let (_, rest) = log.rsplit_once("Fabric Manager version ")?;
    let word = rest.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    let ours = word.len() < 32 && word.contains('.') && word.bytes().all(|c| c.is_ascii_digit() || c == b'.');
    ours.then(|| word.to_owned())
}

/// The upstream version of an installed package: `nvidia-fabricmanager`, or `nvidia-fabricmanager-580`.
pub fn package(status: &str, name: &str) -> Option<String> {
    status.split("\n\n").find_map(|entry| {
        let field = |key: &str| entry.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let package = field("Package:")?;
        let number = package.strip_prefix(name)?;
        let ours = number.is_empty()
            || number.strip_prefix('-').is_some_and(|n| n.bytes().all(|c| c.is_ascii_digit()));
        if !ours || !field("Status:")?.ends_with(" installed") {
            return None;
        }
        let version = field("Version:")?;
        let version = version.split_once(':').map_or(version, |(_, rest)| rest);
        Some(version.split(['-', '~', '+']).next().unwrap_or(version).to_owned())
    })
}

/// Lines that are neither empty nor comments.
fn settings(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.take(1024).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_packages() {
        let status = "Package: nvidia-fabricmanager-dev-580\nStatus: install ok installed\nVersion: 1\n\n\
                      Package: nvidia-fabricmanager-570\nStatus: deinstall ok config-files\nVersion: 570.1-1\n\n\
                      Package: nvidia-fabricmanager-580\nStatus: install ok installed\nVersion: 1:580.159.04-0ubuntu1\n";
        assert_eq!(package(status, "nvidia-fabricmanager").as_deref(), Some("580.159.04"));
        assert_eq!(package(status, "nvidia-imex"), None);
    }

    #[test]
    fn versions_of_the_log() {
        let log = "[Jan 1] [INFO] Fabric Manager version 570.1.2 is running with the following configuration options\n\
                   [Jan 2] [INFO] Fabric Manager version 580.105.08 is running with the following configuration options\n";
        assert_eq!(log_version(log).as_deref(), Some("580.105.08"));
        assert_eq!(log_version("Fabric Manager version is unknown"), None);
        assert_eq!(log_version(""), None);
    }

    #[test]
    fn comments_are_no_settings() {
        assert_eq!(settings("# c\n\n10.0.0.1\n 10.0.0.2 \n"), ["10.0.0.1", "10.0.0.2"]);
    }
}

//! The text of `nvidia.conf`: one parameter of the driver a line.

use expertrail_cluster::collect;

const STREAM: &str = "NVreg_EnableStreamMemOPs";
const DWORDS: &str = "NVreg_RegistryDwords";
const PEER: &str = "PeerMappingOverride";

/// `RegistryDwords` with the entry that lets a GPU map the doorbells of NICs, in front; the others in their order. The driver takes
/// one such parameter, so what is set for other reasons must be in the same one.
pub(super) fn dwords(now: &str) -> String {
    let others = now.split(';').map(str::trim).filter(|entry| !entry.is_empty());
    let others = others.filter(|entry| entry.split('=').next().is_none_or(|key| key.trim() != PEER));
    let mut text = format!("{PEER}=1;");
    for entry in others {
        text.push_str(entry);
        text.push(';');
    }
    text
}

/// `now` with both parameters: its comments and other parameters stay in their order, lines of modprobe.d (`options nvidia ...`) become
/// parameters. Second: lines that are neither.
pub(super) fn merged(now: &str) -> (String, Vec<String>) {
    let (mut lines, mut strange, mut old) = (Vec::new(), Vec::new(), String::new());
    for line in now.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.starts_with('#') {
            lines.push(line.to_owned());
            continue;
        }
        let found = parameters(line);
        if found.is_empty() {
            strange.push(line.to_owned());
        }
        for (key, value) in found {
            match key.as_str() {
                STREAM => {}
                // Of two values the driver takes the last.
                DWORDS => old = value,
                _ if value.contains([' ', ';', '=']) => lines.push(format!("{key}=\"{value}\"")),
                _ => lines.push(format!("{key}={value}")),
            }
        }
    }
    lines.push(format!("{STREAM}=1"));
    lines.push(format!("{DWORDS}=\"{}\"", dwords(&old)));
    (lines.join("\n") + "\n", strange)
}

/// Parameters of a line: `NVreg_NAME=VALUE`, or a line of modprobe.d of module nvidia. Quotes are removed.
fn parameters(line: &str) -> Vec<(String, String)> {
    if line.split_whitespace().next() == Some("options") {
        let options = collect::modprobe(line, "nvidia.conf").into_iter();
        return options.filter(|one| one.module == "nvidia").map(|one| (one.key, one.value)).collect();
    }
    let Some((key, value)) = line.split_once('=') else { return Vec::new() };
    if !key.starts_with("NVreg_") || !key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Vec::new();
    }
    let value = value.trim();
    let bare = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value);
    vec![(key.to_owned(), bare.to_owned())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_others_stay() {
        assert_eq!(dwords(""), "PeerMappingOverride=1;");
        assert_eq!(dwords("RMX=2; PeerMappingOverride=0;RMA=0x3"), "PeerMappingOverride=1;RMX=2;RMA=0x3;");
    }

    #[test]
    fn lines_of_others_stay() {
        let now = "# site\nNVreg_EnableStreamMemOPs=0\noptions nvidia NVreg_NvLinkDisable=0 NVreg_RegistryDwords=\"RMX=2\"\nblacklist nouveau\n";
        let (text, strange) = merged(now);
        assert_eq!(
            text,
            "# site\nNVreg_NvLinkDisable=0\nNVreg_EnableStreamMemOPs=1\nNVreg_RegistryDwords=\"PeerMappingOverride=1;RMX=2;\"\n"
        );
        assert_eq!(strange, ["blacklist nouveau"]);
        // Merging again changes nothing.
        assert_eq!(merged(&text).0, text);
    }
}

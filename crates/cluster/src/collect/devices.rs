//! Device nodes that matter.

use std::os::unix::fs::{FileTypeExt, MetadataExt};

use crate::facts::{DeviceNode, Fact};
use crate::root::Root;

/// Folders below `/dev` that matter as a whole.
const FOLDERS: [&str; 3] = ["/dev/infiniband", "/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels"];

/// IMEX has up to 2,048 channels of which one is used; hostile folders hold any number.
const NODES: usize = 4096;

/// Reads device nodes: of a live machine from `/dev`; a captured tree cannot hold any, and has `dev.txt`, what `ls -l` (or
/// `ls -lR`, or `ls -l` with whole paths) printed.
pub(super) fn devices(root: &Root) -> Fact<Vec<DeviceNode>> {
    if !root.is_live() {
        return root.text("/dev.txt").map(|text| parse_listing(&text));
    }
    let top = root.list("/dev");
    let names =
        top.value().into_iter().flatten().filter(|name| name.starts_with("nvidia") || *name == "gdrdrv");
    let mut paths: Vec<String> = names.map(|name| format!("/dev/{name}")).collect();
    for folder in FOLDERS {
        let inside = root.list(folder);
        if inside.value().is_some() {
            paths.push(folder.to_owned());
        }
        paths.extend(inside.value().into_iter().flatten().map(|name| format!("{folder}/{name}")));
    }
    paths.sort();
    paths.dedup();
    top.map(|_| paths.iter().take(NODES).filter_map(|path| node(path)).collect())
}

fn node(path: &str) -> Option<DeviceNode> {
    let found = std::fs::metadata(path).ok()?;
    Some(DeviceNode {
        path: path.to_owned(),
        character: found.file_type().is_char_device(),
        major: rustix::fs::major(found.rdev()),
        minor: rustix::fs::minor(found.rdev()),
        mode: found.mode() & 0o7777,
    })
}

/// Lines of `ls -l` about character devices and folders; `NAME:` lines of `ls -lR` begin a folder.
pub fn parse_listing(text: &str) -> Vec<DeviceNode> {
    let mut folder = "/dev".to_owned();
    let mut nodes = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_suffix(':').filter(|name| !name.contains(' ') && !name.is_empty()) {
            folder = if name.starts_with('/') { name.to_owned() } else { format!("/dev/{name}") };
            continue;
        }
        if nodes.len() == NODES {
            break;
        }
        nodes.extend(listed(line, &folder));
    }
    nodes
}

/// `crw-rw-rw- 1 root root 195, 0 Nov 29 20:58 nvidia0`
fn listed(line: &str, folder: &str) -> Option<DeviceNode> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mode = words.first()?;
    let character = mode.starts_with('c');
    if !character && !mode.starts_with('d') || mode.len() < 10 {
        return None;
    }
    let name = words.last().filter(|_| words.len() >= 8)?;
    let (major, minor) = if character {
        (words.get(4)?.trim_end_matches(',').parse().ok()?, words.get(5)?.parse().ok()?)
    } else {
        (0, 0)
    };
    let path = if name.starts_with('/') { (*name).to_owned() } else { format!("{folder}/{name}") };
    Some(DeviceNode { path, character, major, minor, mode: bits(mode) })
}

/// `crw-rw-rw-` as 0o666.
fn bits(mode: &str) -> u32 {
    mode.chars().skip(1).take(9).fold(0, |bits, c| bits << 1 | u32::from(!matches!(c, '-' | 'S' | 'T')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings() {
        let text = "total 0\ndrwxr-xr-x  2 root root       60 Nov 29 20:57 infiniband\ncrw-rw-rw-  1 root root 195,   0 Nov 29 20:58 nvidia0\n\
                    crw-------  1 root root 511, 0 Nov 29 20:58 /dev/gdrdrv\n\n/dev/infiniband:\ncrw-rw-rw- 1 root root 231, 192 Nov 29 20:57 uverbs0\n\
                    crw-rw-rw- 1 root root x, 192 Nov 29 20:57 uverbs1\nlrwxrwxrwx 1 root root 3 Nov 29 20:57 a -> b\nc\n";
        let nodes = parse_listing(text);
        let short: Vec<_> =
            nodes.iter().map(|n| (n.path.as_str(), n.character, n.major, n.minor, n.mode)).collect();
        assert_eq!(
            short,
            [
                ("/dev/infiniband", false, 0, 0, 0o755),
                ("/dev/nvidia0", true, 195, 0, 0o666),
                ("/dev/gdrdrv", true, 511, 0, 0o600),
                ("/dev/infiniband/uverbs0", true, 231, 192, 0o666),
            ]
        );
    }
}

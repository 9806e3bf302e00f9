//! Device nodes that matter.

use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use crate::facts::{DeviceNode, Fact};
use crate::root::Root;

/// Folders below `/dev` that matter as a whole.
const FOLDERS: [&str; 3] = ["/dev/infiniband", "/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels"];

/// IMEX has up to 2,048 channels of which one is used; hostile folders hold any number.
const NODES: usize = 4096;

/// Longer than any line of `ls -l` about a device.
const LINE: usize = 1024;

/// Reads device nodes: of a live machine from `/dev`. A captured tree has `dev.txt`, what `ls -l` (or `ls -lR`, or `ls -l` with whole
/// paths) printed, since making nodes needs root; a folder `dev` is read too.
pub(super) fn devices(root: &Root) -> Fact<Vec<DeviceNode>> {
    let there = present(root);
    if root.is_live() {
        return there;
    }
    let mut listed = root.text("/dev.txt").map(|text| parse_listing(&text));
    let Some(nodes) = listed.value_mut() else {
        return if there.value().is_some() { there } else { listed };
    };
    let known: BTreeSet<String> = nodes.iter().map(|node| node.path.clone()).collect();
    let more = there.value().into_iter().flatten().filter(|node| !known.contains(&node.path));
    nodes.extend(more.cloned());
    listed
}

/// What is in `/dev`.
fn present(root: &Root) -> Fact<Vec<DeviceNode>> {
    let top = root.list("/dev");
    let mut paths: Vec<String> =
        top.value().into_iter().flatten().map(|name| format!("/dev/{name}")).collect();
    for folder in FOLDERS {
        let inside = root.list(folder);
        paths.extend(inside.value().into_iter().flatten().map(|name| format!("{folder}/{name}")));
    }
    paths.retain(|path| matters(path));
    paths.sort();
    top.map(|_| paths.iter().take(NODES).filter_map(|path| node(root, path)).collect())
}

fn matters(path: &str) -> bool {
    path == "/dev/gdrdrv"
        || path.starts_with("/dev/nvidia")
        || path == FOLDERS[0]
        || path.starts_with("/dev/infiniband/")
}

fn node(root: &Root, path: &str) -> Option<DeviceNode> {
    let found = root.real(path).and_then(std::fs::symlink_metadata).ok()?;
    Some(DeviceNode {
        path: path.to_owned(),
        character: found.file_type().is_char_device(),
        major: rustix::fs::major(found.rdev()),
        minor: rustix::fs::minor(found.rdev()),
        mode: found.mode() & 0o7777,
    })
}

/// Lines of `ls -l` about what matters here; `NAME:` lines of `ls -lR` begin a folder.
pub fn parse_listing(text: &str) -> Vec<DeviceNode> {
    let mut folder = "/dev".to_owned();
    let mut nodes = Vec::new();
    for line in text.lines().filter(|line| line.len() <= LINE) {
        if let Some(name) =
            line.strip_suffix(':').filter(|name| !name.contains(char::is_whitespace) && !name.is_empty())
        {
            folder = whole(name);
            continue;
        }
        if nodes.len() == NODES {
            break;
        }
        nodes.extend(listed(line, &folder).filter(|node| matters(&node.path)));
    }
    nodes
}

/// A folder of a listing: `ls -lR /dev`, `ls -lR .` in `/dev`, or a name there.
fn whole(name: &str) -> String {
    match name.strip_prefix("./").unwrap_or(name).trim_end_matches('/') {
        "." | "" => "/dev".to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("/dev/{path}"),
    }
}

/// `crw-rw-rw- 1 root root 195, 0 Nov 29 20:58 nvidia0`
fn listed(line: &str, folder: &str) -> Option<DeviceNode> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mode = words.first().filter(|mode| mode.len() >= 10 && words.len() >= 8)?;
    let (major, minor) = match mode.as_bytes().first()? {
        b'c' => (words.get(4)?.trim_end_matches(',').parse().ok()?, words.get(5)?.parse().ok()?),
        // Where a device should be there may be a file or a folder: a bind mount of what did not exist.
        b'd' | b'-' => (0, 0),
        _ => return None,
    };
    let name = words.last()?;
    let path = if name.starts_with('/') { (*name).to_owned() } else { format!("{folder}/{name}") };
    Some(DeviceNode { path, character: mode.starts_with('c'), major, minor, mode: bits(mode) })
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
                    -rw-r--r-- 1 root root 0 Nov 29 20:57 uverbs3\ncrw-rw-rw- 1 root tty 5, 0 Nov 29 20:57 /dev/tty\n\
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
                ("/dev/infiniband/uverbs3", false, 0, 0, 0o644),
            ]
        );
        for (text, path) in [
            (".:\nc--------- 1 r r 195, 1 Jan 1 2026 nvidia1\n", "/dev/nvidia1"),
            (
                "./nvidia-caps:\ncr--r--r-- 1 r r 241, 2 2026-01-01 10:00 nvidia-cap2\n",
                "/dev/nvidia-caps/nvidia-cap2",
            ),
            (
                "/dev/nvidia-caps-imex-channels/:\ncrw-rw-rw-. 1 r r 242, 0 Jan 1 1:00 channel0\n",
                "/dev/nvidia-caps-imex-channels/channel0",
            ),
        ] {
            assert_eq!(parse_listing(text).iter().map(|n| n.path.as_str()).collect::<Vec<_>>(), [path]);
        }
        // No folder that matters has white space in its name; the node stays where it was.
        let nodes = parse_listing("/dev/nvidia\tx:\ncr--r--r-- 1 r r 241, 2 2026-01-01 10:00 nvidia0\n");
        assert_eq!(nodes.iter().map(|n| n.path.as_str()).collect::<Vec<_>>(), ["/dev/nvidia0"]);
    }
}

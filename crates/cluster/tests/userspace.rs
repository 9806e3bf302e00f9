//! Libraries as a loader or a process has them, in places where they are not what they seem.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod tree;

use std::os::unix::fs::symlink;
use std::sync::mpsc;
use std::time::Duration;

use expertrail_cluster::facts::{LoadedLibrary, Userspace};
use expertrail_cluster::root::Root;
use expertrail_cluster::userspace::{self, Options, unknown_variables};
use tempfile::TempDir;

const SITE: &str = "usr/lib/python3.12/site-packages";

fn read(text: &str) -> Userspace {
    let place = tree::unpack_text(text);
    userspace::collect(&Root::captured(place.path()), &Options::default())
}

fn library<'a>(userspace: &'a Userspace, name: &str) -> &'a LoadedLibrary {
    userspace.libraries.iter().find(|library| library.name == name).unwrap()
}

/// A pipe without a writer and a device without an end, under names that NVSHMEM's plugins have.
#[test]
fn pipes_and_devices_among_plugins_are_passed_over() {
    let place = TempDir::new().unwrap();
    let library = place.path().join("libnvshmem_host.so.3");
    std::fs::write(&library, "NVSHMEM v3.6.5 HCA_LIST").unwrap();
    let pipe = place.path().join("nvshmem_transport_ibrc.so.3");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    symlink("/dev/zero", place.path().join("nvshmem_zero.so")).unwrap();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let names = ["NVSHMEM_HCA_LIST", "NVSHMEM_NOTHING"].map(str::to_owned);
        sender.send(unknown_variables(&library, &names)).unwrap();
    });
    let unknown = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(unknown.unwrap(), ["NVSHMEM_NOTHING"]);
}

#[test]
fn a_preloaded_plugin_is_not_the_library_that_it_is_named_after() {
    let found = read(
        "environ.txt: LD_PRELOAD=/opt/p/libnccl-net.so:/opt/p/libnccl.so.2:/opt/p/gone/libnccl.so.2\n\
         opt/p/libnccl-net.so: plugin\n\
         opt/p/libnccl.so.2: NCCL version 2.30.4\n",
    );
    let nccl = library(&found, "libnccl.so.2");
    assert_eq!(nccl.how, "LD_PRELOAD");
    let chosen = nccl.chosen.value().unwrap();
    assert_eq!(chosen.path, "/opt/p/libnccl.so.2");
    assert_eq!(chosen.version.as_ref().unwrap().text, "2.30.4");
}

#[test]
fn a_preload_that_is_not_there_hides_no_other_copy() {
    let found = read(
        "environ.txt: LD_PRELOAD=/opt/gone/libnccl.so.2\n\
         usr/lib/x86_64-linux-gnu/libnccl.so.2: NCCL version 2.28.9\n",
    );
    assert_eq!(
        library(&found, "libnccl.so.2").chosen.value().unwrap().version.as_ref().unwrap().text,
        "2.28.9"
    );
}

#[test]
fn one_folder_with_two_names_is_one_install() {
    let found =
        read(&format!("{SITE}/deep_ep/buffer.py: pass\nusr/local/lib/python3.12 -> /usr/lib/python3.12\n"));
    assert_eq!(found.deep_ep.len(), 1, "{:?}", found.deep_ep);
}

#[test]
fn packed_branches_tell_the_commit() {
    let place = tree::unpack_text(
        "setup.py: setup()\n.git/HEAD: ref: refs/heads/main\n\
         .git/packed-refs <<<\n# pack-refs with: peeled\n4214430aabbccddeeff00112233445566778899a refs/heads/main\n>>>\n",
    );
    let options = Options { source_root: Some(place.path().to_owned()), ..Options::default() };
    let nothing = TempDir::new().unwrap();
    let found = userspace::collect(&Root::captured(nothing.path()), &options);
    assert!(found.deep_ep[0].commit.as_deref().unwrap().starts_with("4214430"));
}

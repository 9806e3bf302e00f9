//! The sockets between ranks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/ranks.rs"]
mod ranks;
mod support;

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use expertrail_cuda::{BuildError, Ended, Mesh, MeshWatch};
use expertrail_group::{Group, Identity};
use ranks::{ranks, says};
use rustix::fs::MemfdFlags;
use rustix::io::FdFlags;
use support::folder;

const LONG: Duration = Duration::from_secs(20);

fn mesh(group: &Group) -> Mesh {
    Mesh::connect_in(group, LONG, None).unwrap()
}

/// A file in memory with `text`.
fn file(text: &str) -> OwnedFd {
    let fd = rustix::fs::memfd_create("mesh-test", MemfdFlags::CLOEXEC).unwrap();
    let mut file = File::from(fd);
    file.write_all(text.as_bytes()).unwrap();
    file.into()
}

fn text(fd: OwnedFd) -> String {
    // All copies of a descriptor share one position: read without it.
    let mut bytes = [0; 64];
    let count = File::from(fd).read_at(&mut bytes, 0).unwrap();
    String::from_utf8_lossy(&bytes[..count]).into_owned()
}

/// Exchanges files twice and checks whose are whose.
fn exchanges(group: &Group, mesh: &Mesh) {
    for round in 0..2 {
        let own = file(&format!("rank {} round {round}", group.rank()));
        for (peer, fd) in mesh.exchange(own.as_fd()).unwrap().into_iter().enumerate() {
            assert_eq!(fd.is_none(), peer == group.rank());
            let Some(fd) = fd else { continue };
            assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(FdFlags::CLOEXEC));
            assert_eq!(text(fd), format!("rank {peer} round {round}"));
        }
    }
}

fn watched(mesh: Mesh) -> (MeshWatch, Receiver<(usize, Ended)>) {
    let (tell, told) = channel();
    (mesh.watch(move |peer, end| tell.send((peer, end)).unwrap()).unwrap(), told)
}

#[test]
fn descriptors_reach_every_rank() {
    for count in [1, 2, 5] {
        ranks(count, |group| exchanges(&group, &mesh(&group)));
    }
}

#[test]
fn a_folder_holds_the_sockets_while_ranks_connect() {
    let folder = folder("sockets");
    ranks(3, |group| {
        // One rank of them has no setting: every rank says where it listens.
        let own = (group.rank() != 1).then_some(folder.as_path());
        let mesh = Mesh::connect_in(&group, LONG, own).unwrap();
        exchanges(&group, &mesh);
    });
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_folder_that_is_no_good_is_told_to_all() {
    let long = format!("/tmp/{}", "long".repeat(30));
    for (folder, reason, code) in
        [("/nowhere/at/all", "No such file", 4), (long.as_str(), "a shorter path", 2)]
    {
        let errors = ranks(2, |group| {
            let own = (group.rank() == 1).then_some(Path::new(folder));
            Mesh::connect_in(&group, LONG, own).unwrap_err()
        });
        for error in &errors {
            says(error, &["EXPERTRAIL_SOCKET_DIR", folder, reason]);
        }
        assert!(matches!(errors[0], BuildError::PeerBuild { rank: 0, peer: 1, .. }), "{}", errors[0]);
        assert_eq!(errors[1].exit_code(), code);
    }
}

#[test]
fn a_goodbye_is_told_once_and_as_such() {
    ranks(3, |group| {
        let (watch, told) = watched(mesh(&group));
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
        group.barrier("quiet").unwrap();
        if group.rank() == 1 {
            drop(watch);
            group.barrier("gone").unwrap();
            return;
        }
        assert_eq!(told.recv_timeout(LONG), Ok((1, Ended::Left)));
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
        group.barrier("gone").unwrap();
        group.barrier("gone").unwrap_err();
    });
}

#[test]
fn a_mesh_never_watched_says_goodbye_too() {
    ranks(2, |group| {
        let mesh = mesh(&group);
        if group.rank() == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
        // It ended before the watch began.
        let (_watch, told) = watched(mesh);
        assert_eq!(told.recv_timeout(LONG), Ok((0, Ended::Left)));
    });
}

#[test]
fn a_hang_up_without_a_word_is_a_death_and_fast() {
    let died = std::sync::Mutex::new(None);
    ranks(3, |group| {
        let (watch, told) = watched(mesh(&group));
        group.barrier("all watch").unwrap();
        if group.rank() == 2 {
            // A panic, like a killed process, closes the sockets and says nothing.
            let panicked = std::thread::spawn(move || {
                let _watch = watch;
                std::panic::panic_any("the test's own");
            });
            *died.lock().unwrap() = Some(Instant::now());
            assert!(panicked.join().is_err());
            group.barrier("told").unwrap();
            return;
        }
        assert_eq!(told.recv_timeout(LONG), Ok((2, Ended::Died)));
        let since = died.lock().unwrap().unwrap().elapsed();
        assert!(since < Duration::from_secs(2), "{since:?}");
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
        group.barrier("told").unwrap();
    });
}

#[test]
fn a_killed_process_is_a_death() {
    const CHILD: &str = "EXPERTRAIL_TEST_MESH_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let group = Group::from_env().unwrap();
        let _watch = watched(mesh(&group));
        group.barrier("all watch").unwrap();
        std::thread::sleep(LONG * 3);
        return;
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_killed_process_is_a_death", "--nocapture"])
        .envs([(CHILD, "1".to_owned()), ("EXPERTRAIL_RANK", "1".to_owned())])
        .envs([("EXPERTRAIL_WORLD_SIZE", "2".to_owned()), ("EXPERTRAIL_ROOT", format!("127.0.0.1:{port}"))])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let vars = move |name: &str| match name {
        "EXPERTRAIL_RANK" => Some("0".to_owned()),
        "EXPERTRAIL_WORLD_SIZE" => Some("2".to_owned()),
        "EXPERTRAIL_ROOT" => Some(format!("127.0.0.1:{port}")),
        _ => None,
    };
    let identity = Identity::from_vars(vars).unwrap();
    let group = Group::join(&identity, &expertrail_group::JoinOptions::default()).unwrap();
    let (_watch, told) = watched(mesh(&group));
    group.barrier("all watch").unwrap();
    let killed = Instant::now();
    child.kill().unwrap();
    assert_eq!(told.recv_timeout(LONG), Ok((1, Ended::Died)));
    assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
    child.wait().unwrap();
}

#[test]
fn a_watch_may_be_dropped_by_its_own_callback() {
    ranks(2, |group| {
        let mesh = mesh(&group);
        if group.rank() == 0 {
            group.barrier("watched").unwrap();
            return;
        }
        let held = std::sync::Arc::new(std::sync::Mutex::new(None));
        let (tell, told) = channel();
        let inside = std::sync::Arc::clone(&held);
        let watch = mesh
            .watch(move |_, _| {
                drop(inside.lock().unwrap().take());
                tell.send(()).unwrap();
            })
            .unwrap();
        *held.lock().unwrap() = Some(watch);
        group.barrier("watched").unwrap();
        told.recv_timeout(LONG).unwrap();
    });
}

#[test]
fn a_rank_that_does_not_exchange_is_named() {
    ranks(3, |group| {
        let mesh = Mesh::connect_in(&group, Duration::from_millis(300), None).unwrap();
        if group.rank() != 1 {
            let error = mesh.exchange(file("x").as_fd()).unwrap_err();
            assert!(matches!(&error, BuildError::Deadline { missing, .. } if *missing == [1]), "{error}");
            says(&error, &["exchange of descriptors", "0.3 s", "ranks [1]"]);
            assert_eq!(error.exit_code(), 124);
        }
        group.barrier("end").unwrap();
    });
}

#[test]
fn a_rank_that_ended_is_named_by_the_exchange() {
    ranks(2, |group| {
        let mesh = mesh(&group);
        if group.rank() == 1 {
            drop(mesh);
            group.barrier("end").unwrap();
            return;
        }
        group.barrier("end").unwrap();
        let error = mesh.exchange(file("x").as_fd()).unwrap_err();
        assert!(matches!(error, BuildError::PeerEnded { rank: 0, peer: 1, .. }), "{error}");
        assert_eq!(error.exit_code(), 1);
    });
}

#[test]
fn a_cancelled_exchange_ends_soon() {
    ranks(2, |group| {
        let mesh = mesh(&group);
        if group.rank() == 1 {
            group.barrier("end").unwrap_err();
            return;
        }
        group.cancel_token().cancel();
        let since = Instant::now();
        let error = mesh.exchange(file("x").as_fd()).unwrap_err();
        assert_eq!(error.exit_code(), 130);
        assert!(since.elapsed() < Duration::from_secs(5));
    });
}

/// A thread that leaves the network namespace stands for a container with a network of its own: the group's
/// connections, made before, go on.
fn in_own_network() -> bool {
    // SAFETY: only this thread's network namespace changes, and it makes no new network connection.
    let left = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) };
    left.inspect_err(|error| eprintln!("not run: a network namespace of its own: {error}")).is_ok()
}

#[test]
fn abstract_names_across_network_namespaces_are_explained() {
    let errors = ranks(2, |group| {
        let alone = group.rank() == 1 && in_own_network();
        if group.broadcast("may unshare", 1, &[alone.into()]).unwrap() != [1] {
            return None;
        }
        Some(Mesh::connect_in(&group, LONG, None).unwrap_err())
    });
    let [Some(told), Some(own)] = errors.as_slice() else { return };
    assert!(matches!(own, BuildError::Connect { rank: 1, peer: 0, .. }), "{own}");
    assert!(matches!(told, BuildError::PeerBuild { rank: 0, peer: 1, .. }), "{told}");
    for error in [told, own] {
        says(error, &["rank 1 cannot connect to the socket of rank 0 at the abstract name expertrail/"]);
        says(error, &["/0: Connection refused", "one network namespace", "hostNetwork", "one pod"]);
        says(error, &["EXPERTRAIL_SOCKET_DIR", "mount that all their containers share"]);
    }
}

#[test]
fn a_shared_folder_joins_network_namespaces() {
    let folder = folder("namespaces");
    ranks(2, |group| {
        let alone = group.rank() == 1 && in_own_network();
        if group.broadcast("may unshare", 1, &[alone.into()]).unwrap() == [1] {
            exchanges(&group, &Mesh::connect_in(&group, LONG, Some(&folder)).unwrap());
        }
    });
    std::fs::remove_dir_all(folder).unwrap();
}

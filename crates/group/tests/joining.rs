//! Joining over real sockets: strangers, late, missing and contradictory ranks.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking, as tests do")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use expertrail_group::{CancelToken, Endpoint, Group, GroupError, Identity, JobToken, JoinOptions, Notice};

const SECOND: Duration = Duration::from_secs(1);

/// A port that nobody listens on. Another process could take it before the test does; that is rare enough
/// on the ports below the ephemeral range, and each test starts at its own.
fn free_port() -> u16 {
    static NEXT: Mutex<u16> = Mutex::new(0);
    let mut next = NEXT.lock().unwrap();
    loop {
        let port = 10_000 + (*next + (std::process::id() % 10_000) as u16 * 2) % 10_000;
        *next += 1;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn identity(rank: usize, world_size: usize, port: u16) -> Identity {
    Identity {
        rank,
        world_size,
        local_rank: None,
        local_size: None,
        node: None,
        host: "h".into(),
        job: JobToken::from_parts(["this job"]),
        root: Endpoint::loopback(port),
        ..Identity::single()
    }
}

fn options(deadline: Duration) -> JoinOptions {
    JoinOptions { join_deadline: deadline, deadline, ..JoinOptions::default() }
}

/// A greeting written out by hand, as the wire format says.
fn greeting(version: u16, rank: u32, world_size: u32, job: JobToken) -> Vec<u8> {
    let mut bytes = b"XPTRLGRP".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(0_u16.to_le_bytes());
    for word in [rank, world_size, 4711, 60_000, u32::MAX, u32::MAX, u32::MAX] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(job.as_bytes());
    bytes.extend(5_u16.to_le_bytes());
    bytes.extend(b"stray");
    bytes
}

/// Sends bytes and gives the reason in the refusal.
fn refusal(port: u16, bytes: &[u8]) -> String {
    let mut stream = connect(port);
    stream.write_all(bytes).unwrap();
    stream.set_read_timeout(Some(5 * SECOND)).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(&answer[..8], b"XPTRLGRP");
    assert_eq!(answer[10..12], [1, 0], "not a refusal");
    String::from_utf8(answer[14..].to_vec()).unwrap()
}

fn connect(port: u16) -> TcpStream {
    let until = Instant::now() + 5 * SECOND;
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn strangers_are_refused_in_words_and_stop_nothing() {
    let port = free_port();
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    let notice = Notice::new(move |line| sink.lock().unwrap().push(line.to_owned()));
    let root_options = JoinOptions { notice: Some(notice), ..options(20 * SECOND) };
    let root = thread::spawn(move || Group::join(&identity(0, 3, port), &root_options).unwrap());
    let job = JobToken::from_parts(["this job"]);

    // Silent, slow and broken-off ones stay open beside the rest.
    let _silent = connect(port);
    let mut slow = connect(port);
    slow.write_all(&greeting(1, 2, 3, job)[..20]).unwrap();
    drop(connect(port));

    let first = thread::spawn(move || Group::join(&identity(1, 3, port), &options(20 * SECOND)).unwrap());
    let taken = refusal(port, &greeting(1, 0, 3, job));
    assert!(taken.contains("rank 0 is already taken by rank 0 (host h, pid "), "{taken}");
    for (bytes, wanted) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "it is no Expertrail rank (it sent \"GET / HTTP/1.1"),
        (vec![0; 3000], "it is no Expertrail rank"),
        (
            greeting(1, 2, 3, JobToken::from_parts(["another job"])),
            "it belongs to another job or an earlier run",
        ),
        (greeting(0, 2, 3, job), "it speaks version 0 of the group protocol, this job 1"),
        (greeting(7, 2, 3, job)[..10].to_vec(), "it speaks version 7 of the group protocol"),
        (greeting(1, 2, 4, job), "it was started for 4 ranks, this job has 3"),
        (greeting(1, 3, 3, job), "it says it is rank 3 of 3"),
    ] {
        let reason = refusal(port, &bytes);
        assert!(reason.contains(wanted), "{reason:?} should contain {wanted:?}");
    }
    let last = thread::spawn(move || Group::join(&identity(2, 3, port), &options(20 * SECOND)).unwrap());
    let groups = [root, first, last].map(|thread| thread.join().unwrap());
    // Who comes after the group is complete is told so as well.
    let late = refusal(port, &greeting(1, 2, 3, job));
    assert!(late.contains("two processes were given the same rank"), "{late}");
    // The same process may want the job's next group: it is put off, not turned away.
    let same = Group::join(&identity(2, 3, port), &options(SECOND / 2)).unwrap_err();
    assert!(matches!(&same, GroupError::Unreachable { rank: 2, .. }), "{same}");
    assert!(same.to_string().contains("rank 2 was already in this group"), "{same}");

    thread::scope(|scope| {
        for group in &groups {
            scope.spawn(move || {
                let blobs = group.all_gather("g", &[group.rank() as u8]).unwrap();
                assert_eq!(blobs, [[0], [1], [2]]);
            });
        }
    });
    let lines = lines.lock().unwrap();
    assert!(lines.iter().any(|line| line.contains("refused a connection from 127.0.0.1:")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("version 0")), "{lines:?}");
    assert_eq!(groups[0].refusals().len(), 8, "remembered up to a limit");
    assert!(groups[1].refusals().is_empty());
}

#[test]
fn a_crowd_of_silent_connections_does_not_keep_the_ranks_out() {
    let port = free_port();
    let root = thread::spawn(move || Group::join(&identity(0, 2, port), &options(20 * SECOND)).unwrap());
    let crowd: Vec<TcpStream> = (0..200).map(|_| connect(port)).collect();
    let begun = Instant::now();
    let member = Group::join(&identity(1, 2, port), &options(20 * SECOND)).unwrap();
    assert!(begun.elapsed() < 5 * SECOND);
    drop((root.join().unwrap(), member, crowd));
}

#[test]
fn a_silent_connection_is_closed_in_time() {
    let port = free_port();
    let quick = JoinOptions { greeting_deadline: SECOND / 5, ..options(20 * SECOND) };
    let root = thread::spawn(move || Group::join(&identity(0, 2, port), &quick).unwrap());
    let reason = refusal(port, b"XPTR");
    assert!(reason.contains("did not say who it is in time"), "{reason}");
    let member = Group::join(&identity(1, 2, port), &options(20 * SECOND)).unwrap();
    drop((root.join().unwrap(), member));
}

#[test]
fn missing_ranks_are_named_with_their_hosts_on_every_rank_that_came() {
    let port = free_port();
    let hosts: Vec<String> = ["n1", "n1", "n1", "n1", "n1", "n2", "n2", "n2"].map(str::to_owned).into();
    let came = [0, 1, 2, 3, 4, 7];
    let threads = came.map(|rank| {
        let identity = Identity { expected_hosts: hosts.clone(), ..identity(rank, 8, port) };
        thread::spawn(move || Group::join(&identity, &options(SECOND)).unwrap_err())
    });
    let mut stray = connect(port);
    stray.write_all(b"SSH-2.0-OpenSSH\r\n").unwrap();
    for error in threads.map(|thread| thread.join().unwrap()) {
        assert_eq!(error.culprits(), [5, 6], "{error}");
        assert_eq!(error.exit_code(), 124);
        let text = error.to_string();
        assert!(text.starts_with("ranks [5, 6] (host n2) did not join within "), "{text}");
        assert!(text.contains("refused meanwhile: connection from 127.0.0.1:"), "{text}");
    }
}

#[test]
fn the_shortest_patience_counts_and_names_the_missing() {
    let port = free_port();
    let root = thread::spawn(move || Group::join(&identity(0, 3, port), &options(30 * SECOND)).unwrap_err());
    let begun = Instant::now();
    let error = Group::join(&identity(1, 3, port), &options(SECOND / 2)).unwrap_err();
    assert!(begun.elapsed() < 3 * SECOND);
    assert_eq!((error.culprits(), root.join().unwrap().culprits()), (vec![2], vec![2]));
}

#[test]
fn an_absent_rank_0_is_reported_with_its_address() {
    let port = free_port();
    let begun = Instant::now();
    let error = Group::join(&identity(1, 2, port), &options(SECOND / 2)).unwrap_err();
    assert!(begun.elapsed() < 3 * SECOND);
    let text = error.to_string();
    assert!(matches!(error, GroupError::Unreachable { rank: 1, .. }), "{text}");
    assert!(text.contains(&format!("rank 0 at 127.0.0.1:{port} within 0.5 s")), "{text}");
    assert!(text.contains("refused"), "{text}");
}

#[test]
fn a_name_that_does_not_resolve_is_said() {
    let root = Endpoint { host: "no-such-host.invalid".into(), port: 1 };
    let identity = Identity { root, ..identity(1, 2, 1) };
    let text = Group::join(&identity, &options(SECOND / 2)).unwrap_err().to_string();
    assert!(text.contains("no-such-host.invalid does not resolve"), "{text}");
}

#[test]
fn rank_0_may_come_late() {
    let port = free_port();
    let member = thread::spawn(move || Group::join(&identity(1, 2, port), &options(20 * SECOND)).unwrap());
    thread::sleep(SECOND / 2);
    let root = Group::join(&identity(0, 2, port), &options(20 * SECOND)).unwrap();
    drop((root, member.join().unwrap()));
}

#[test]
fn another_service_on_the_port_is_recognised() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let service = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    });
    let error = Group::join(&identity(1, 2, port), &options(5 * SECOND)).unwrap_err();
    assert!(matches!(error, GroupError::NotRoot { .. }), "{error}");
    assert!(error.to_string().contains("SSH-2.0-OpenSSH"), "{error}");
    service.join().unwrap();
}

#[test]
fn a_port_in_use_is_reported_by_rank_0() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let error = Group::join(&identity(0, 2, port), &options(SECOND)).unwrap_err();
    assert!(matches!(error, GroupError::Bind { .. }), "{error}");
    assert!(error.to_string().contains("EXPERTRAIL_PORT"), "{error}");
}

#[test]
fn another_world_size_is_refused_at_both_ends() {
    let port = free_port();
    let root = thread::spawn(move || Group::join(&identity(0, 2, port), &options(SECOND)).unwrap_err());
    let error = Group::join(&identity(1, 3, port), &options(5 * SECOND)).unwrap_err();
    assert!(error.to_string().contains("it was started for 3 ranks, this job has 2"), "{error}");
    let root = root.join().unwrap().to_string();
    assert!(root.contains("rank 1 did not join") && root.contains("started for 3 ranks"), "{root}");
}

#[test]
fn contradictory_places_are_refused_on_all_ranks() {
    let port = free_port();
    let threads = [0, 1].map(|rank| {
        let identity = Identity { local_size: Some(4), node: Some(0), ..identity(rank, 2, port) };
        thread::spawn(move || Group::join(&identity, &options(20 * SECOND)).unwrap_err())
    });
    for error in threads.map(|thread| thread.join().unwrap()) {
        assert!(
            error.to_string().contains("rank 0 says 4 ranks run on node 0 (host h), but 2 joined"),
            "{error}"
        );
    }
}

#[test]
fn declared_nodes_make_a_topology() {
    let port = free_port();
    let threads = [0, 1, 2, 3].map(|rank| {
        let identity = Identity { node: Some(rank / 2), ..identity(rank, 4, port) };
        thread::spawn(move || {
            let group = Group::join(&identity, &options(20 * SECOND)).unwrap();
            let node = group.node_group("node").unwrap();
            let inside = node.all_gather("inside", &[rank as u8]).unwrap();
            group.barrier("end").unwrap();
            (group.node(), group.local_rank(), group.nodes(), inside)
        })
    });
    let places = threads.map(|thread| thread.join().unwrap());
    let (low, high) = (vec![vec![0], vec![1]], vec![vec![2], vec![3]]);
    assert_eq!(places, [(0, 0, 2, low.clone()), (0, 1, 2, low), (1, 0, 2, high.clone()), (1, 1, 2, high)]);
}

#[test]
fn a_rank_that_dies_while_others_are_awaited_fails_the_join_at_once() {
    let port = free_port();
    let root = thread::spawn(move || Group::join(&identity(0, 3, port), &options(20 * SECOND)).unwrap_err());
    let mut dying = connect(port);
    dying.write_all(&greeting(1, 1, 3, JobToken::from_parts(["this job"]))).unwrap();
    let mut answer = [0; 14];
    dying.read_exact(&mut answer).unwrap();
    drop(dying);
    let error = root.join().unwrap();
    assert!(matches!(error, GroupError::Died { .. }), "{error}");
    assert!(error.to_string().contains("rank 1 (host stray, pid 4711)"), "{error}");
    assert!(error.to_string().contains("during joining"), "{error}");
}

#[test]
fn garbage_after_the_greeting_names_its_rank() {
    let port = free_port();
    let root = thread::spawn(move || {
        let group = Group::join(&identity(0, 2, port), &options(20 * SECOND)).unwrap();
        group.barrier("b").unwrap_err()
    });
    let mut broken = connect(port);
    broken.write_all(&greeting(1, 1, 2, JobToken::from_parts(["this job"]))).unwrap();
    broken.write_all(&[0xee; 64]).unwrap();
    let error = root.join().unwrap();
    assert!(matches!(&error, GroupError::Protocol { peer, .. } if peer.rank == 1), "{error}");
}

#[test]
fn a_cancel_stops_joining() {
    let port = free_port();
    for rank in [0, 1] {
        let cancel = CancelToken::new();
        let given = JoinOptions { cancel: cancel.clone(), ..options(20 * SECOND) };
        let thread = thread::spawn(move || Group::join(&identity(rank, 2, port), &given).unwrap_err());
        thread::sleep(SECOND / 5);
        let begun = Instant::now();
        cancel.cancel();
        let error = thread.join().unwrap();
        assert!(matches!(error, GroupError::Cancelled { .. }), "{error}");
        assert!(begun.elapsed() < SECOND);
    }
}

#[test]
fn the_port_is_free_again_when_rank_0_has_left() {
    let port = free_port();
    for _ in 0..3 {
        let root = thread::spawn(move || Group::join(&identity(0, 2, port), &options(20 * SECOND)).unwrap());
        let member = Group::join(&identity(1, 2, port), &options(20 * SECOND)).unwrap();
        drop((root.join().unwrap(), member));
    }
}

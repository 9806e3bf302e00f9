//! `--launched`: ranks that something else started.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;

use expertrail::group::identity::MASTER_PORT_OFFSET;

use crate::common::{Folder, Run, bench, finish, read_result};

const SHAPE: [&str; 11] =
    ["--launched", "--experts", "2", "--top-k", "2", "--tokens", "32", "--hidden", "64", "--iters", "3"];

/// A port that is free now.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// Starts the ranks' commands at once and waits for all.
fn ranks(commands: impl IntoIterator<Item = Command>) -> Vec<Run> {
    let threads: Vec<_> =
        commands.into_iter().map(|command| std::thread::spawn(move || finish(command))).collect();
    threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
}

/// One of 2 ranks with our own variables.
fn explicit(rank: usize, port: u16, args: &[&str]) -> Command {
    let mut command = bench(args);
    command
        .env("EXPERTRAIL_RANK", rank.to_string())
        .env("EXPERTRAIL_WORLD_SIZE", "2")
        .env("EXPERTRAIL_ROOT", format!("127.0.0.1:{port}"));
    command
}

#[test]
fn under_our_own_variables() {
    let folder = Folder::new();
    let port = free_port();
    let json = folder.arg("r.json");
    let args = [&SHAPE[..], &["--json", &json]].concat();
    let runs = ranks([0, 1].map(|rank| explicit(rank, port, &args)));
    let [zero, one] = <[Run; 2]>::try_from(runs).ok().expect("two").map(|run| run.exits(0));
    assert!(zero.out.contains("2 ranks on 1 node") && zero.out.contains("verdict: PASS"), "{}", zero.out);
    assert_eq!((&*one.out, &*one.err), ("", ""), "rank 0 alone reports");
    let result = read_result(&folder.path("r.json"));
    assert_eq!(result.received.rows_per_rank, [64, 64]);
}

#[test]
fn under_torchrun_whose_port_is_left_alone() {
    // torchrun's store listens there, so it is taken; ours is to be another, which must be free.
    let free = |store: &TcpListener| {
        let port = store.local_addr().expect("an address").port().checked_add(MASTER_PORT_OFFSET);
        port.is_some_and(|port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok())
    };
    let stores = (0..50).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port"));
    let store = stores.into_iter().find(free).expect("two free ports at their distance");
    store.set_nonblocking(true).expect("a socket option");
    let port = store.local_addr().expect("an address").port();
    let torchrun = |rank: usize| {
        let mut command = bench(&SHAPE);
        let rank = rank.to_string();
        command.env("RANK", &rank).env("LOCAL_RANK", &rank).env("GROUP_RANK", "0");
        command.env("WORLD_SIZE", "2").env("LOCAL_WORLD_SIZE", "2");
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command
    };
    let runs = ranks([1, 0].map(torchrun));
    let [one, zero] = <[Run; 2]>::try_from(runs).ok().expect("two").map(|run| run.exits(0));
    assert!(zero.out.contains("verdict: PASS"), "{}", zero.out);
    assert_eq!(one.out, "");
    // Nobody so much as called there.
    assert_eq!(store.accept().expect_err("no caller").kind(), ErrorKind::WouldBlock);
}

/// Every rank of a launcher that is not recognised would otherwise be a passing world of its own.
#[test]
fn without_a_launcher_nothing_is_run() {
    let unknown: [&[(&str, &str)]; 3] =
        [&[], &[("PMI_RANK", "0"), ("PMI_SIZE", "2")], &[("MV2_COMM_WORLD_RANK", "1")]];
    for variables in unknown {
        let mut command = bench(&SHAPE);
        command.envs(variables.iter().copied());
        let run = finish(command).exits(2).says(&["--launched", "EXPERTRAIL_WORLD_SIZE"]);
        assert_eq!(run.out, "");
    }
}

#[test]
fn a_world_of_one_is_said_to_be_one() {
    let mut command = bench(&SHAPE);
    command.env("EXPERTRAIL_RANK", "0").env("EXPERTRAIL_WORLD_SIZE", "1");
    let run = finish(command).exits(0);
    assert!(run.out.contains("1 rank on 1 node") && run.out.contains("verdict: PASS"), "{}", run.out);
}

#[test]
fn another_number_of_ranks_than_were_launched() {
    let port = free_port();
    let args = [&SHAPE[..], &["--ranks", "3"]].concat();
    for run in ranks([0, 1].map(|rank| explicit(rank, port, &args))) {
        let run = run.exits(2).says(&["--ranks 3", "started 2"]);
        assert_eq!(run.out, "");
    }
}

#[test]
fn a_rank_of_another_shape_is_refused_by_all() {
    let port = free_port();
    let wider = SHAPE.map(|arg| if arg == "64" { "128" } else { arg });
    for run in ranks([explicit(0, port, &SHAPE), explicit(1, port, &wider)]) {
        let run = run.exits(2).says(&["rank 0", "rank 1", "64 hidden", "128 hidden"]);
        assert_eq!(run.out, "");
    }
}

#[test]
fn half_of_the_variables_is_an_error_not_a_world_of_one() {
    let mut command = bench(&SHAPE);
    command.env("RANK", "1");
    finish(command).exits(2).started_nothing().says(&["RANK", "WORLD_SIZE"]);
    let mut command = bench(&SHAPE);
    command.env("EXPERTRAIL_RANK", "2").env("EXPERTRAIL_WORLD_SIZE", "2");
    finish(command).exits(2).started_nothing().says(&["rank 2 of 2"]);
    let mut command = bench(&SHAPE);
    command.env("EXPERTRAIL_RANK", "x").env("EXPERTRAIL_WORLD_SIZE", "2");
    finish(command).exits(2).started_nothing().says(&["EXPERTRAIL_RANK", "\"x\""]);
}

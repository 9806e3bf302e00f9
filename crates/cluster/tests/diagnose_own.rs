//! Our own errors, formatted by the types that print them and diagnosed: a message that changes is noticed here.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::path::PathBuf;
use std::time::Duration;

use expertrail_cluster::diagnose::rule::Confidence;
use expertrail_cluster::diagnose::{self, Diagnosed, Evidence, Input, Outcome};
use expertrail_core::failure::{Cause, Failure, Phase};
use expertrail_cuda::{BuildError, CudaError, LoadError, NvrtcError, Tried};
use expertrail_group::{GroupError, InCall, Peer};
use expertrail_host::HostError;

/// What is concluded from one line, as the command line prints errors.
fn conclude(error: impl std::fmt::Display) -> diagnose::Diagnosis {
    let text = format!("some output before\nerror: {error}\n");
    let input = Input::Text { name: "run.log".to_owned(), bytes: text.into_bytes() };
    diagnose::conclude(&diagnose::read(vec![input], Evidence::default()).unwrap())
}

/// The one cause that is found, which must be `cause` and certain.
fn found(error: impl std::fmt::Display, cause: &str) -> Diagnosed {
    let text = error.to_string();
    let diagnosis = conclude(error);
    assert_eq!(diagnosis.outcome, Outcome::CauseFound, "{text}");
    assert_eq!(diagnosis.findings[0].cause, cause, "{text}");
    assert_eq!(diagnosis.findings[0].confidence, Some(Confidence::Certain), "{text}");
    assert_eq!(diagnosis.findings[0].evidence[0].line, 2, "{text}");
    diagnosis.findings[0].clone()
}

fn failure(cause: Cause) -> Failure {
    Failure { cause, culprit: 31, reporter: 7, phase: Phase::CombineStaging, epoch: 907 }
}

fn peer(rank: usize, host: Option<&str>, pid: Option<u32>) -> Peer {
    Peer { rank, host: host.map(str::to_owned), pid }
}

#[test]
fn failures_of_a_communicator_name_the_culprit() {
    for (cause, id) in [
        (Cause::Died, "expertrail-rank-died"),
        (Cause::Deadline, "expertrail-rank-late"),
        (Cause::Left, "expertrail-calls-differ"),
        (Cause::Protocol, "expertrail-calls-differ"),
    ] {
        let failure = failure(cause);
        let host = HostError::Failed { rank: 7, failure, way: String::new() };
        let cuda = CudaError::Failed { rank: 7, failure, expected: 3, seen: 2 };
        for text in [failure.to_string(), host.to_string(), cuda.to_string()] {
            assert_eq!(found(&text, id).subject.as_deref(), Some("rank 31"), "{text}");
        }
    }
    assert!(found(failure(Cause::Deadline), "expertrail-rank-late").because.contains("combine: staged rows"));
    // Nobody is at fault when a user cancels.
    assert_ne!(conclude(failure(Cause::Cancelled)).outcome, Outcome::CauseFound);
}

#[test]
fn every_phase_is_read() {
    for phase in [
        Phase::Idle,
        Phase::DispatchNotify,
        Phase::DispatchData,
        Phase::CombineNotify,
        Phase::CombineStaging,
        Phase::CombineDone,
        Phase::Barrier,
    ] {
        let failure = Failure { phase, ..failure(Cause::Died) };
        assert!(found(failure, "expertrail-rank-died").because.contains(&phase.to_string()));
    }
}

#[test]
fn groups_that_lose_or_miss_a_rank() {
    for (host, pid, subject) in [
        (Some("n1"), Some(4711), "rank 3 (host n1)"),
        (Some("n1"), None, "rank 3 (host n1)"),
        (None, Some(4711), "rank 3"),
        (None, None, "rank 3"),
    ] {
        for phase in ["barrier \"start\"", ""] {
            let died = GroupError::Died { peer: peer(3, host, pid), phase: phase.into() };
            assert_eq!(found(died, "expertrail-rank-died").subject.as_deref(), Some(subject));
        }
    }
    let late = GroupError::Deadline {
        call: "barrier \"warm-up\"".into(),
        waited: Duration::from_millis(1500),
        missing: vec![peer(5, Some("n2"), None), peer(6, Some("n2"), None), peer(9, None, None)],
    };
    let late = found(late, "expertrail-rank-late");
    assert_eq!(late.subject.as_deref(), Some("ranks [5, 6] (host n2), rank 9"));
    assert!(
        late.because.contains("barrier \"warm-up\"") && !late.because.contains("error"),
        "{}",
        late.because
    );
    let silent = GroupError::RootSilent {
        peer: peer(0, Some("head"), Some(9)),
        call: "gather \"layout\"".into(),
        waited: Duration::from_mins(1),
    };
    assert_eq!(found(silent, "expertrail-rank-late").subject.as_deref(), Some("rank 0 (host head)"));
    let missing = GroupError::Missing {
        ranks: vec![peer(5, Some("n2"), None)],
        waited: Duration::from_mins(1),
        refused: vec!["a port scanner".into()],
    };
    assert_eq!(found(missing, "expertrail-rank-not-joined").subject.as_deref(), Some("rank 5 (host n2)"));
}

#[test]
fn groups_that_do_not_meet() {
    let unreachable = GroupError::Unreachable {
        rank: 6,
        addr: "192.0.2.5:29411".into(),
        waited: Duration::from_mins(1),
        last: "Connection refused (os error 111)".into(),
    };
    let unreachable = found(unreachable, "expertrail-rank0-unreachable");
    assert!(unreachable.because.contains("192.0.2.5:29411") && unreachable.because.contains("60 s"));
    let other =
        GroupError::NotRoot { rank: 2, addr: "head:6006".into(), found: "\"HTTP/1.1 400 Bad\"".into() };
    assert_eq!(found(other, "expertrail-port-taken").subject.as_deref(), Some("head:6006"));
    let bind = GroupError::Bind { addr: "0.0.0.0:29400".into(), reason: "Address already in use".into() };
    assert_eq!(found(bind, "expertrail-port-taken").subject.as_deref(), Some("0.0.0.0:29400"));
}

#[test]
fn calls_that_differ() {
    let left = GroupError::Left { peer: peer(2, Some("n0"), Some(88)), phase: "barrier \"end\"".into() };
    assert_eq!(found(left, "expertrail-calls-differ").subject.as_deref(), Some("rank 2"));
    let in_call =
        |rank, call: &str| Box::new(InCall { peer: peer(rank, Some("n0"), Some(5)), call: call.into() });
    let mismatch =
        GroupError::Mismatch { first: in_call(1, "barrier \"a\""), second: in_call(4, "gather \"b\"") };
    assert_eq!(found(mismatch, "expertrail-calls-differ").subject.as_deref(), Some("rank 1"));
    let host =
        HostError::Mismatch { epoch: 4, a: 0, a_call: "dispatch".into(), b: 2, b_call: "combine".into() };
    found(host, "expertrail-calls-differ");
    let cuda = CudaError::Mismatch {
        epoch: 4,
        rank: 0,
        call: "dispatch".into(),
        peer: 2,
        peer_call: "combine".into(),
    };
    found(cuda, "expertrail-calls-differ");
}

#[test]
fn libraries_that_are_missing() {
    let tried = || {
        vec![Tried { place: PathBuf::from("libcuda.so.1"), reason: "cannot open shared object file".into() }]
    };
    for library in ["the CUDA driver (libcuda.so.1)", "NVRTC (libnvrtc.so.13, libnvrtc.so.12)"] {
        let missing =
            LoadError::Missing { library: library.into(), tried: tried(), install: "install it".into() };
        assert_eq!(found(missing, "expertrail-library-missing").subject.as_deref(), Some(library));
        let none =
            LoadError::NoneServes { library: library.into(), tried: tried(), install: "install it".into() };
        assert_eq!(found(none, "expertrail-library-missing").subject.as_deref(), Some(library));
    }
    let symbol = LoadError::Symbol {
        path: PathBuf::from("/usr/lib64/libcuda.so.1"),
        symbol: "cuMemCreate",
        since: "CUDA 10.2",
        reason: "undefined symbol".into(),
        install: "install a newer driver".into(),
    };
    found(symbol, "expertrail-library-missing");
}

#[test]
fn setting_up_gpus() {
    let late = BuildError::Deadline {
        rank: 1,
        what: "exchange of handles",
        missing: vec![3, 4],
        waited: Duration::from_secs(30),
    };
    assert_eq!(found(late, "expertrail-rank-late").subject.as_deref(), Some("ranks 3, 4"));
    let ended = BuildError::PeerEnded { rank: 1, peer: 3, what: "exchange of handles" };
    assert_eq!(found(ended, "expertrail-rank-died").subject.as_deref(), Some("rank 3"));
    // A rank that only repeats another's reason has no cause of its own.
    let other = BuildError::PeerBuild { rank: 1, peer: 3, reason: "no room".into() };
    assert_ne!(conclude(other).outcome, Outcome::CauseFound);
    // A program that does not compile is no missing library.
    let zero = NvrtcError::ZeroByte { what: "the source".into() };
    assert_eq!(conclude(zero).outcome, Outcome::NothingFound);
}

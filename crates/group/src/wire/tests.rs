use super::*;
use crate::error::{InCall, Peer};
use crate::layout::Claim;
use crate::token::JobToken;
use proptest::prelude::*;

fn hello() -> Hello {
    Hello {
        job: JobToken::from_parts(["x"]),
        rank: 3,
        world_size: 8,
        pid: 77,
        patience: Duration::from_secs(9),
        claim: Claim { host: "n1".into(), node: Some(1), local_rank: None, local_size: Some(4) },
    }
}

#[test]
fn a_greeting_survives_and_every_prefix_asks_for_more() {
    let bytes = hello().encode();
    assert_eq!(read_hello(&bytes), Ok((Greeting::Hello(Box::new(hello())), bytes.len())));
    for end in 0..bytes.len() {
        assert_eq!(read_hello(&bytes[..end]), Err(NeedMore), "{end}");
    }
}

#[test]
fn strangers_and_other_versions_are_told_apart() {
    assert!(
        matches!(read_hello(b"GET / HTTP/1.1"), Ok((Greeting::Stranger(text), _)) if text.starts_with("GET /"))
    );
    let mut bytes = hello().encode();
    bytes[8] = 9;
    assert!(matches!(read_hello(&bytes[..10]), Ok((Greeting::Version(9), _))));
}

#[test]
fn answers_survive() {
    for answer in [Answer::Accepted, Answer::Refused("no: é".into()), Answer::Later("soon".into())] {
        let bytes = answer.encode();
        assert_eq!(read_answer(&bytes), Ok((answer, bytes.len())));
        assert_eq!(read_answer(&bytes[..bytes.len() - 1]), Err(NeedMore));
    }
    assert!(matches!(read_answer(b"SSH-2.0-x"), Ok((Answer::Stranger(_), _))));
}

#[test]
fn causes_survive() {
    let peer = Peer { rank: 5, host: Some("n2".into()), pid: Some(9) };
    let call = |call: &str| InCall { peer: Peer::unknown(1), call: call.into() };
    let causes = [
        Cause::Died(peer.clone()),
        Cause::Left(Peer::unknown(0)),
        Cause::Failed { peer: peer.clone(), message: "GPU 3 fell off the bus".into() },
        Cause::Cancelled(peer.clone()),
        Cause::Deadline {
            call: "barrier".into(),
            waited: Duration::from_millis(1500),
            missing: vec![peer.clone()],
        },
        Cause::Mismatch { first: call("barrier \"x\""), second: call("all_gather \"y\"") },
        Cause::Missing {
            ranks: vec![peer.clone()],
            waited: Duration::from_secs(1),
            refused: vec!["a".into()],
        },
        Cause::Layout("odd".into()),
        Cause::TooLarge { call: "c".into(), bytes: 9, limit: 8 },
        Cause::Protocol { peer, what: "noise".into() },
    ];
    for cause in causes {
        let bytes = fail(&cause);
        assert_eq!(read_frame(&bytes, 0), Ok(Some((Frame::Fail(cause), bytes.len()))));
    }
}

#[test]
fn frames_over_the_limit_are_refused_before_they_are_held() {
    let call = Call { op: Op::AllGather, phase: "p".into(), source: 0 };
    let mut bytes = enter(&call, 1, Duration::from_secs(1), b"abc");
    assert!(read_frame(&bytes, 16).unwrap().is_some());
    bytes[24..32].copy_from_slice(&(u64::MAX).to_le_bytes());
    assert!(read_frame(&bytes[..HEADER], 16).unwrap_err().contains("more than"));
}

#[test]
fn packing() {
    let blobs = vec![b"a".to_vec(), vec![], b"ccc".to_vec()];
    let bytes = pack(&blobs);
    assert_eq!(unpack(&bytes, 3), Some(blobs));
    assert_eq!(unpack(&bytes, 2), None);
    assert_eq!(unpack(&bytes[..bytes.len() - 1], 3), None);
    assert_eq!(unpack(&[0xff; 8], 1), None);
    assert_eq!(unpack(&[], usize::MAX), None);
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 1_u8..7) {
        let _ = read_frame(&bytes, 64);
        let _ = read_hello(&bytes);
        let _ = read_answer(&bytes);
        let _ = unpack(&bytes, 3);
        // A well-formed header around a garbage body.
        let _ = read_frame(&seal(&plain(kind), "", &bytes), 1000);
        let framed = [hello().encode()[..12].to_vec(), bytes].concat();
        let _ = read_hello(&framed);
    }
}

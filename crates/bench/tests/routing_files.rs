//! Routing files on disk: how they map to ranks, and what is said when they do not fit.
#![allow(clippy::unwrap_used, reason = "the helpers of tests")]

use std::path::PathBuf;

use expertrail_bench::routing_file::{Replay, Wanted, write_npy_i32};

/// A folder that is removed at the end of its test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("expertrail-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const ANY: Wanted = Wanted { tokens: None, top_k: None, experts: 8 };

fn error(specs: &[String], ranks: usize, want: &Wanted) -> String {
    Replay::new(specs, ranks).and_then(|replay| replay.load_all(want)).unwrap_err().to_string()
}

#[test]
fn one_file_is_split_or_shared() {
    let folder = Folder::new("shared");
    let file = folder.write("batch.npy", &write_npy_i32(&[0, 1, 2, 3, 4, 5, 6], 1));
    let replay = Replay::new(&[file], 3).unwrap();
    let split = replay.load_all(&ANY).unwrap();
    assert_eq!([split[0].ids(), split[1].ids(), split[2].ids()], [&[0, 1, 2][..], &[3, 4], &[5, 6]]);
    assert_eq!(replay.load_rank(1, &ANY).unwrap(), split[1]);
    let whole = replay.load_all(&Wanted { tokens: Some(7), ..ANY }).unwrap();
    assert!(whole.iter().all(|r| r.tokens() == 7));

    let file = folder.write("even.npy", &write_npy_i32(&[0, 1, 2, 3, 4, 5], 1));
    let even = Replay::new(&[file], 3).unwrap().load_all(&Wanted { tokens: Some(2), ..ANY }).unwrap();
    assert_eq!(even[2].ids(), [4, 5]);
}

#[test]
fn more_ranks_than_rows_leaves_some_empty() {
    let folder = Folder::new("few");
    let file = folder.write("two.npy", &write_npy_i32(&[3, 4], 1));
    let tokens: Vec<usize> = Replay::new(&[file], 4)
        .unwrap()
        .load_all(&ANY)
        .unwrap()
        .iter()
        .map(expertrail_core::Routing::tokens)
        .collect();
    assert_eq!(tokens, [1, 1, 0, 0]);
}

#[test]
fn one_file_per_rank_by_list_or_pattern() {
    let folder = Folder::new("per-rank");
    let files: Vec<String> =
        (0..2).map(|r| folder.write(&format!("r{r}.npy"), &write_npy_i32(&[r, r, 7, -1], 2))).collect();
    let by_list = Replay::new(&files, 2).unwrap().load_all(&ANY).unwrap();
    let pattern = vec![folder.0.join("r{rank}.npy").to_str().unwrap().to_owned()];
    assert_eq!(Replay::new(&pattern, 2).unwrap().load_all(&ANY).unwrap(), by_list);
    assert_eq!(by_list[1].ids(), [1, 1, 7, -1]);

    let text = error(&pattern, 3, &ANY);
    assert!(text.contains("r2.npy") && text.contains("No such file"), "{text}");
    assert!(error(&files, 3, &ANY).contains("2 routing files for 3 ranks"));
    let narrow = folder.write("r1.npy", &write_npy_i32(&[1], 1));
    let text = error(&[files[0].clone(), narrow], 2, &ANY);
    assert!(text.contains("r1.npy") && text.contains("2 columns"), "{text}");
}

#[test]
fn messages_name_file_wanted_and_found() {
    let folder = Folder::new("messages");
    let file = vec![folder.write("ids.npy", &write_npy_i32(&[0, 1, 2, 9], 2))];
    for (want, parts) in [
        (ANY, &["token 1, choice 1", "expert 9", "0 to 7", "--experts 10"][..]),
        (Wanted { top_k: Some(4), ..ANY }, &["4 columns", "has 2", "--top-k 2"]),
        (Wanted { tokens: Some(3), ..ANY }, &["6 (to split over 2 ranks) or 3", "has 2", "--tokens"]),
    ] {
        let text = error(&file, 2, &want);
        assert!(text.contains("ids.npy"), "{text}");
        for part in parts {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
    }
    let cut = write_npy_i32(&[0, 1, 2, 3], 2);
    let cut = folder.write("cut.npy", &cut[..cut.len() - 1]);
    assert!(error(&[cut], 1, &ANY).contains("cut.npy: the header wants 16 bytes of data, the file has 15"));
    let text = folder.write("ids.txt", b"0 1 2 3");
    assert!(error(&[text], 1, &ANY).contains("not a .npy file"));
    assert!(error(&[folder.0.to_str().unwrap().to_owned()], 1, &ANY).contains("cannot read"));
}

#[test]
fn safetensors_by_extension_and_name() {
    let folder = Folder::new("safetensors");
    let header = r#"{"a":{"dtype":"U8","shape":[2,1],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1,2],"data_offsets":[2,4]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend([1, 2, 3, 4]);
    let file = folder.write("r.safetensors", &bytes);
    assert!(error(std::slice::from_ref(&file), 1, &ANY).contains("FILE#NAME"));
    let named = Replay::new(&[format!("{file}#b")], 1).unwrap().load_all(&ANY).unwrap();
    assert_eq!(named[0].ids(), [3, 4]);
}

fn fixture(name: &str) -> Vec<String> {
    vec![format!("{}/tests/fixtures/routing/{name}", env!("CARGO_MANIFEST_DIR"))]
}

#[test]
fn a_trained_routers_decisions_are_replayed() {
    let replay = Replay::new(&fixture("aeacus-gate-1024x1-of-2.npy"), 4).unwrap();
    let all = replay.load_all(&Wanted { tokens: None, top_k: None, experts: 2 }).unwrap();
    assert!(all.iter().all(|r| (r.tokens(), r.top_k()) == (256, 1)));
    let to_one: usize = all.iter().map(|r| r.ids().iter().filter(|&&e| e == 1).count()).sum();
    assert_eq!(to_one, 599);
}

#[test]
fn a_recorded_skew_is_replayed() {
    let replay = Replay::new(&fixture("skewed-1024x8-of-64.npy"), 2).unwrap();
    let all = replay.load_all(&Wanted { tokens: Some(512), top_k: Some(8), experts: 64 }).unwrap();
    let to_hottest: usize = all.iter().map(|r| r.ids().iter().filter(|&&e| e == 0).count()).sum();
    assert_eq!(to_hottest, 1003);
    assert!(error(&fixture("skewed-1024x8-of-64.npy"), 2, &ANY).contains("--experts 64"));
}

//! Replayed router decisions, and files that are none.

use crate::common::{Folder, Run, bench, finish, passes};

/// The bytes of a `.npy` file, written out here so that reader and writer under test do not agree by chance.
fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend_from_slice(&(header.len() as u16).to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

fn ids(rows: usize, cols: usize, values: &[i32]) -> Vec<u8> {
    assert_eq!(values.len(), rows * cols);
    let data: Vec<u8> = values.iter().flat_map(|id| id.to_le_bytes()).collect();
    npy("<i4", &format!("({rows}, {cols})"), &data)
}

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/tests/fixtures/routing/");

#[test]
fn a_trained_gates_decisions() {
    let file = format!("{FIXTURES}aeacus-gate-1024x1-of-2.npy");
    let result = passes(&["--ranks", "2", "--experts", "2", "--hidden", "64", "--routing", &file]);
    // Its README: 425 of the 1024 tokens go to expert 0, 599 to expert 1.
    assert_eq!(result.received.rows_per_rank, [425, 599]);
    assert_eq!(result.received.tokens_per_expert, [425, 599]);
    let s = &result.settings;
    assert_eq!((s.tokens, s.top_k, &*s.routing, &*s.routing_files), (512, 1, "file", &[file][..]));
    assert_eq!(result.verification.rows_total, 3 * (2 * 1024 + 1024));
}

#[test]
fn a_skewed_routing() {
    let file = format!("{FIXTURES}skewed-1024x8-of-64.npy");
    let bytes = std::fs::read(&file).expect("the fixture");
    let rows: Vec<Vec<usize>> = bytes[bytes.len() - 1024 * 8 * 4..]
        .chunks_exact(32)
        .map(|row| row.chunks_exact(4).map(|id| usize::from(id[0])).collect())
        .collect();
    let result = passes(&["--ranks", "4", "--hidden", "64", "--routing", &file]);
    // 16 experts a rank; a token is sent to a rank once.
    let to = |rank: usize| rows.iter().filter(|row| row.iter().any(|e| e / 16 == rank)).count() as u64;
    assert_eq!(result.received.rows_per_rank, [to(0), to(1), to(2), to(3)]);
    let of = |expert: usize| rows.iter().flatten().filter(|e| **e == expert).count() as u64;
    assert_eq!(result.received.tokens_per_expert, (0..64).map(of).collect::<Vec<_>>());
    let counts = &result.received.tokens_per_expert;
    assert_eq!((counts.iter().max(), counts.iter().min()), (Some(&1003), Some(&21)), "the README's numbers");
}

#[test]
fn a_file_for_each_rank() {
    let folder = Folder::new();
    // Ranks 0 to 2 hold experts 0-1, 2-3 and 4-5. Rank 1 has no tokens, -1 goes nowhere, 4 twice counts twice.
    folder.write("r0.npy", ids(3, 2, &[0, 5, 1, -1, -1, -1]));
    folder.write("r1.npy", ids(0, 2, &[]));
    folder.write("r2.npy", ids(2, 2, &[4, 4, 2, 3]));
    let shape = ["--ranks", "3", "--experts", "6", "--top-k", "2", "--hidden", "64"];
    let pattern = folder.arg("r{rank}.npy");
    let result = passes(&[&shape[..], &["--routing", &pattern]].concat());
    assert_eq!(result.received.rows_per_rank, [2, 1, 2]);
    assert_eq!(result.received.tokens_per_expert, [1, 1, 1, 1, 2, 1]);
    assert_eq!(result.settings.tokens, 3, "those of the rank that has most");
    assert_eq!(result.verification.rows_total, 3 * (2 * 5 + 5));
    let files = ["r0.npy", "r1.npy", "r2.npy"].map(|name| folder.arg(name));
    let listed = files.each_ref().map(|file| ["--routing", file]).concat();
    let again = passes(&[&shape[..], &listed].concat());
    assert_eq!(again.received, result.received);
}

#[test]
fn a_tensor_of_a_safetensors_file() {
    let folder = Folder::new();
    let header = r#"{"topk":{"dtype":"I64","shape":[2,2],"data_offsets":[0,32]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend([0i64, 1, 1, 7].iter().flat_map(|id| id.to_le_bytes()));
    let file = format!("{}#topk", folder.write("r.safetensors", bytes));
    let result = passes(&["--ranks", "2", "--experts", "8", "--hidden", "64", "--routing", &file]);
    // Experts 0-3 are rank 0's: the first token stays with it, the second goes to both.
    assert_eq!(result.received.rows_per_rank, [2, 1]);
    assert_eq!(result.received.tokens_per_expert, [1, 2, 0, 0, 0, 0, 0, 1]);
}

/// Replays a file that will not do, for 2 ranks and 8 experts.
#[track_caller]
fn refused(file: &str, more: &[&str]) -> Run {
    let mut command = bench(&["--ranks", "2", "--experts", "8", "--hidden", "64", "--routing", file]);
    command.args(more);
    // Every message names the file.
    finish(command).exits(2).started_nothing().says(&["error: ", file.split('#').next().expect("a name")])
}

#[test]
fn files_that_are_no_routing() {
    let folder = Folder::new();
    let good = ids(4, 1, &[0, 1, 2, 3]);
    let cases: [(&str, Vec<u8>, &[&str]); 9] = [
        ("floats.npy", npy("<f4", "(4, 1)", &[0; 16]), &["integer", "<f4"]),
        ("bigendian.npy", npy(">i4", "(4, 1)", &[0; 16]), &["little-endian", ">i4"]),
        ("flat.npy", npy("<i4", "(4,)", &[0; 16]), &["2 dimensions", "[4]"]),
        ("deep.npy", npy("<i4", "(2, 2, 1)", &[0; 16]), &["2 dimensions", "[2, 2, 1]"]),
        ("high.npy", ids(4, 1, &[0, 1, 8, 3]), &["expert 8 is out of range", "0 to 7", "--experts 9"]),
        ("low.npy", ids(4, 1, &[0, 1, -2, 3]), &["expert -2 is out of range", "0 to 7"]),
        ("cut.npy", good[..good.len() - 3].to_vec(), &["16", "13", "cut off"]),
        ("image.npy", b"\x89PNG\r\n\x1a\n".to_vec(), &["not a .npy file", "PNG"]),
        ("empty.npy", Vec::new(), &["not a .npy file", "empty"]),
    ];
    for (name, bytes, parts) in cases {
        refused(&folder.write(name, bytes), &[]).says(parts);
    }
    refused(&folder.arg("missing.npy"), &[]).says(&["No such file"]);
}

#[test]
fn files_that_do_not_fit_the_run() {
    let folder = Folder::new();
    let file = folder.write("four.npy", ids(4, 1, &[0, 1, 2, 3]));
    // 4 rows are 2 for each rank, or 4 for each.
    refused(&file, &["--tokens", "3"]).says(&["6", "3", "it has 4"]);
    refused(&file, &["--top-k", "2"]).says(&["2 columns are wanted", "it has 1"]);

    folder.write("r0.npy", ids(1, 1, &[0]));
    let mut command = bench(&["--ranks", "2", "--experts", "8", "--hidden", "64"]);
    command.arg("--routing").arg(folder.path("r{rank}.npy"));
    finish(command).exits(2).started_nothing().says(&["r1.npy", "No such file"]);
    let mut command = bench(&["--ranks", "3", "--experts", "8", "--routing", &file, "--routing", &file]);
    command.args(["--hidden", "64"]);
    finish(command).exits(2).started_nothing().says(&["2 routing files for 3 ranks"]);
}

//! The GPU's row generator (`crates/cuda/kernels/rows.cuh`) gives the CPU's bits: compiled for the CPU and compared. What
//! a GPU makes of the same source is compared at the start of every run there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

use expertrail_bench::workload::{RowKey, Tensor, fill_row, fill_row_fp8};
use expertrail_core::Bf16;

const HIDDEN: usize = 1536;

/// Prints the words of rows by name, in hexadecimal, and roundings of f32.
const PROGRAM: &str = r#"
#define __device__
#include "rows.cuh"
#include <cstdio>
#include <cstdlib>
using namespace expertrail;
int main(int count, char** args) {
    const char* what = args[1];
    if (what[0] == 'r') {
        for (unsigned long long bits = 0; bits < 1ull << 32; bits += 9973)
            printf("%04x\n", round_bits(static_cast<unsigned>(bits)));
        return 0;
    }
    const unsigned hidden = atoi(args[6]);
    const bool fp8 = what[0] == 'f';
    const LaneKeys keys = lane_keys(strtoull(args[2], 0, 10), atoi(args[3]), strtoul(args[4], 0, 10), strtoull(args[5], 0, 10));
    for (unsigned i = 0; i < (fp8 ? hidden / 2 : hidden); i++) printf("%04x\n", row_word(i, keys, fp8));
    for (unsigned b = 0; fp8 && b < hidden / 128; b++) printf("%08x\n", scale_bits(b, keys));
    return count == 0;
}
"#;

fn compiled() -> std::path::PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gpu-rows-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (source, program) = (folder.join("rows.cpp"), folder.join("rows"));
    std::fs::write(&source, PROGRAM).expect("a source");
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cuda/kernels");
    let status = Command::new("c++")
        .args([
            "-std=c++17",
            "-O1",
            "-Wall",
            "-Werror",
            "-fsanitize=undefined",
            "-fno-sanitize-recover",
            "-I",
        ])
        .arg(headers)
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .status()
        .expect("c++, which comes with cc");
    assert!(status.success());
    program
}

fn words(program: &Path, args: &[String]) -> Vec<u32> {
    let output = Command::new(program).args(args).output().expect("the program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| u32::from_str_radix(line, 16).expect("hexadecimal")).collect()
}

fn name(kind: &str, key: RowKey) -> Vec<String> {
    [
        kind.to_owned(),
        key.seed.to_string(),
        (key.tensor as u32).to_string(),
        key.rank.to_string(),
        key.index.to_string(),
        HIDDEN.to_string(),
    ]
    .to_vec()
}

#[test]
fn rows_and_roundings_are_the_cpus() {
    let program = compiled();
    let keys = [
        RowKey { seed: 1, tensor: Tensor::Tokens, rank: 0, index: 0 },
        RowKey { seed: u64::MAX, tensor: Tensor::ExpertOutput, rank: 1, index: 3 << 32 | 4095 },
        RowKey { seed: 42, tensor: Tensor::Bias, rank: u32::MAX, index: u64::MAX },
    ];
    for key in keys {
        let mut row = vec![Bf16(0); HIDDEN];
        fill_row(key, &mut row);
        let want: Vec<u32> = row.iter().map(|value| u32::from(value.0)).collect();
        assert_eq!(words(&program, &name("bf16", key)), want, "{key:?}");

        let (mut codes, mut scales) = (vec![0u8; HIDDEN], vec![0f32; HIDDEN / 128]);
        fill_row_fp8(key, &mut codes, &mut scales);
        let pairs = codes.as_chunks::<2>().0.iter().map(|pair| u32::from(u16::from_le_bytes(*pair)));
        let want: Vec<u32> = pairs.chain(scales.iter().map(|scale| scale.to_bits())).collect();
        assert_eq!(words(&program, &name("fp8", key)), want, "{key:?}");
    }
    let roundings = words(&program, &["round".to_owned()]);
    let bits = (0..1u64 << 32).step_by(9973).map(|bits| f32::from_bits(bits as u32));
    assert_eq!(roundings, bits.map(|value| u32::from(Bf16::from_f32(value).0)).collect::<Vec<_>>());
}

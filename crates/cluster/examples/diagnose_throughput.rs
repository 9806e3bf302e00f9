//! How fast logs are read: writes logs of 128 ranks into a folder, reads them into a case, and prints time, rate and peak memory.
//!
//! `cargo run --release -p expertrail-cluster --example diagnose_throughput -- FOLDER [MiB [ranks|one]]`

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::error::Error;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use expertrail_cluster::diagnose::{Evidence, Input, read};

const RANKS: u64 = 128;

/// One line of a rank: what training logs are full of, a scary line now and then, and the failure at the end.
fn line(text: &mut String, rank: u64, number: u64) {
    text.clear();
    let second = number / 20;
    let (hour, minute, rest) = (second / 3600 % 24, second / 60 % 60, second % 60);
    let _ = match number % 23 {
        0 => writeln!(
            text,
            "[rank{rank}]: 2026-11-29 {hour:02}:{minute:02}:{rest:02},123 INFO iteration {number:8}/  900000 | consumed samples: {} | elapsed time per iteration (ms): 3711.4 | lm loss: 1.2253E+01 |",
            number * 512
        ),
        1 | 2 => writeln!(
            text,
            "gpu-{}:{}:{} [{}] NCCL INFO Channel {:02}/0 : {rank}[{}] -> {}[0] [send] via NET/IB/{}/GDRDMA",
            rank / 8,
            900 + rank,
            1900 + rank,
            rank % 8,
            number % 16,
            rank % 8,
            (rank + 8) % RANKS,
            rank % 8
        ),
        3 => writeln!(
            text,
            "[rank{rank}]: /opt/venv/lib/python3.12/site-packages/torch/utils/checkpoint.py:295: FutureWarning: `torch.cpu.amp.autocast(args...)` is deprecated."
        ),
        4 => writeln!(text, "DeepGEMM warmup:  {}%|####      | {number}/16384", number % 100),
        5 => writeln!(
            text,
            "[{hour:02}:{minute:02}:{rest:02} DP{rank} TP{rank} EP{rank}] Decode batch. #running-req: 12, #token: 40211, token usage: 0.31, gen throughput (token/s): 512.40"
        ),
        6 => writeln!(
            text,
            "[rank{rank}]: NCCL WARN NET/IB : retrying after completion with nothing to do, attempt {number}"
        ),
        _ => writeln!(
            text,
            "[rank{rank}]: 2026-11-29 {hour:02}:{minute:02}:{rest:02},456 DEBUG trainer.py:{} microbatch {number} grad norm 0.{:03} learning rate 1.0e-05 tokens {}",
            number % 900,
            number % 1000,
            number * 4096
        ),
    };
}

fn write(folder: &Path, bytes: u64, one: bool) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    fs::create_dir_all(folder)?;
    let mut text = String::new();
    let mut paths = Vec::new();
    let files = if one { 1 } else { RANKS };
    for file in 0..files {
        let path = folder.join(if one { "all.log".to_owned() } else { format!("rank-{file}.log") });
        let mut out = BufWriter::new(File::create(&path)?);
        let (mut written, mut number) = (0, 0);
        while written < bytes / files {
            line(
                &mut text,
                if one { number % RANKS } else { file },
                if one { number / RANKS } else { number },
            );
            out.write_all(text.as_bytes())?;
            written += text.len() as u64;
            number += 1;
        }
        writeln!(out, "[rank{file}]: RuntimeError: DeepEP error: timeout (dispatch CPU)")?;
        paths.push(path);
    }
    Ok(paths)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(args.next().ok_or("a folder is needed")?);
    let mib: u64 = args.next().unwrap_or_else(|| "1024".to_owned()).parse()?;
    let one = args.next().is_some_and(|word| word == "one");
    let paths = write(&folder, mib << 20, one)?;
    let bytes: u64 = paths.iter().filter_map(|path| fs::metadata(path).ok()).map(|meta| meta.len()).sum();
    let start = Instant::now();
    let case = read(vec![Input::Path(folder)], Evidence::default())?;
    let seconds = start.elapsed().as_secs_f64();
    let status = fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("VmHWM: ?");
    println!(
        "{:.2} GB in {seconds:.2} s ({:.0} MB/s), {} ranks, {} events, {peak}",
        bytes as f64 / 1e9,
        bytes as f64 / 1e6 / seconds,
        case.ranks_seen.len(),
        case.events.len()
    );
    Ok(())
}

//! One Mixture-of-Experts layer on four ranks: router, dispatch, experts, combine, checked.
//!
//! `cargo run --release --example moe_layer`
//!
//! Started plainly, the program starts itself four times, one process for each rank. Under torchrun, srun or mpirun it
//! would find its place in the environment just the same.

use std::error::Error;
use std::process::ExitCode;

use expertrail::group::spawn::{LocalLaunch, Prefix};
use expertrail::{Bf16, Combine, Communicator, Dispatch, Group, Layout, Payload, Routing};

const RANKS: usize = 4;
const TOKENS: usize = 512;
const HIDDEN: usize = 1024;
const EXPERTS: usize = 32;
const TOP_K: usize = 4;

fn main() -> ExitCode {
    let result = if std::env::var_os("EXPERTRAIL_RANK").is_some() { rank() } else { launch() };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn launch() -> Result<(), Box<dyn Error>> {
    let outcome = LocalLaunch::new(std::env::current_exe()?, RANKS).prefix(Prefix::AllBut(0)).run()?;
    if outcome.is_success() { Ok(()) } else { Err("a rank failed".into()) }
}

fn rank() -> Result<(), Box<dyn Error>> {
    let group = Group::from_env()?;
    let comm = Communicator::builder(&group)
        .experts(EXPERTS)
        .top_k(TOP_K)
        .hidden(HIDDEN)
        .max_tokens(TOKENS)
        .build()?;

    let x = tokens(comm.rank());
    let (routing, weights) = router(&x)?;

    // Expert-major rows are what a grouped GEMM wants: all rows of expert 0, then of expert 1, ...
    let args = Dispatch::new(Payload::Bf16(&x), &routing)
        .weights(&weights)
        .layout(Layout::ExpertMajor { alignment: 16 });
    let received = comm.dispatch_with(&args)?;

    // The experts: expert e multiplies by 1 + e / 8.
    let first_expert = comm.rank() * EXPERTS / RANKS;
    let mut made = comm.alloc_rows(received.rows())?;
    let rows = received.bf16().ok_or("BF16 was sent")?;
    let mut at = 0;
    for (local, &count) in received.expert_counts().iter().enumerate() {
        for row in at..at + count as usize {
            let range = row * HIDDEN..(row + 1) * HIDDEN;
            expert(first_expert + local, &rows[range.clone()], &mut made.as_mut_slice()[range]);
        }
        at += (count as usize).next_multiple_of(16);
    }

    // Combine multiplies every row by its token's weight for that expert, which came along with the dispatch.
    let row_weights = row_weights(&received);
    let out =
        comm.combine_with(&Combine::new(made.as_slice(), received.handle()).row_weights(&row_weights))?;

    check(&x, (&routing, &weights), out.rows())?;
    comm.barrier()?;
    if comm.rank() == 0 {
        println!(
            "moe_layer: {RANKS} ranks, {TOKENS} tokens each, every element of the output as computed locally"
        );
    }
    Ok(())
}

/// This rank's tokens.
fn tokens(rank: usize) -> Vec<Bf16> {
    (0..TOKENS * HIDDEN).map(|i| Bf16::from_f32(((i * 31 + rank * 7) % 257) as f32 / 128.0 - 1.0)).collect()
}

/// Scores every expert with a fixed projection and takes the best `TOP_K`; weights are a softmax over those.
fn router(x: &[Bf16]) -> Result<(Routing, Vec<f32>), Box<dyn Error>> {
    let (mut ids, mut weights) = (Vec::new(), Vec::new());
    for token in x.chunks(HIDDEN) {
        let mut scores: Vec<(f32, i32)> = (0..EXPERTS)
            .map(|e| {
                let dot = |(i, v): (usize, &Bf16)| v.to_f32() * ((i * (e + 3)) % 17) as f32;
                (token.iter().enumerate().step_by(8).map(dot).sum::<f32>() / 64.0, e as i32)
            })
            .collect();
        scores.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let best = &scores[..TOP_K];
        let sum: f32 = best.iter().map(|s| (s.0 - best[0].0).exp()).sum();
        for &(score, id) in best {
            ids.push(id);
            weights.push((score - best[0].0).exp() / sum);
        }
    }
    Ok((Routing::new(ids, TOP_K, EXPERTS)?, weights))
}

fn expert(expert: usize, row: &[Bf16], out: &mut [Bf16]) {
    for (out, value) in out.iter_mut().zip(row) {
        *out = Bf16::from_f32(value.to_f32() * (1.0 + expert as f32 / 8.0));
    }
}

/// The weight of every output row, found through the handle: arrival and choice to row.
fn row_weights(received: &expertrail::Received) -> Vec<f32> {
    let mut by_row = vec![0.0; received.rows()];
    let carried = received.weights().unwrap_or_default();
    for arrival in 0..received.arrivals() {
        for (choice, row) in received.handle().arrivals().rows_of(arrival, TOP_K) {
            by_row[row] = carried[arrival * TOP_K + choice];
        }
    }
    by_row
}

/// Computes the layer without any communication, with the same roundings: experts' rows of one rank are summed by
/// fused multiply-add and rounded, the ranks' partial sums are added and rounded.
fn check(x: &[Bf16], (routing, weights): (&Routing, &[f32]), got: &[Bf16]) -> Result<(), Box<dyn Error>> {
    for (token, row) in x.chunks(HIDDEN).enumerate() {
        for (i, value) in row.iter().enumerate() {
            let mut sum = 0f32;
            for rank in 0..RANKS {
                let mut partial = 0f32;
                for (k, &id) in routing.row(token).iter().enumerate() {
                    if id as usize * RANKS / EXPERTS == rank {
                        let made = Bf16::from_f32(value.to_f32() * (1.0 + id as f32 / 8.0));
                        partial = weights[token * TOP_K + k].mul_add(made.to_f32(), partial);
                    }
                }
                sum += Bf16::from_f32(partial).to_f32();
            }
            let (got, want) = (got[token * HIDDEN + i], Bf16::from_f32(sum));
            if got != want {
                return Err(format!(
                    "token {token}, element {i}: {} instead of {}",
                    got.to_f32(),
                    want.to_f32()
                )
                .into());
            }
        }
    }
    Ok(())
}

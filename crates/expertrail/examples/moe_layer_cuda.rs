//! One Mixture-of-Experts layer on two GPUs: dispatch, experts, combine, checked.
//!
//! `cargo run --release --example moe_layer_cuda`
//!
//! It needs two GPUs of one host that reach each other, and NVRTC unless kernels were embedded (`scripts/build-release`).
//! Started plainly, the program starts itself twice, one process for each GPU.
//!
//! The experts run on the CPU here, so that the example needs no kernels of its own. A real layer launches them on the
//! communicator's stream, behind the dispatch, and the host waits for nothing but the counts.

use std::error::Error;
use std::process::ExitCode;

use expertrail::cuda::{
    CudaCombine, CudaDispatch, DeviceIds, DeviceMemory, DevicePayload, DeviceRows, DeviceSlice,
};
use expertrail::group::spawn::{LocalLaunch, Prefix};
use expertrail::{Bf16, Communicator, CudaCommunicator, Group};

const RANKS: usize = 2;
const TOKENS: usize = 512;
const HIDDEN: usize = 1024;
const EXPERTS: usize = 32;
const TOP_K: usize = 4;
/// Experts of a rank: contiguous blocks.
const LOCAL: usize = EXPERTS / RANKS;

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
        .build_cuda()?;

    // This rank's tokens, their experts and weights, in memory of its GPU.
    let x = tokens(comm.rank());
    let (ids, weights) = router(comm.rank());
    let x_device = upload(&comm, &bf16_bytes(&x))?;
    let ids_device = upload(&comm, &ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>())?;
    let weights_device = upload(&comm, &weights.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>())?;

    let payload = DevicePayload::Bf16(DeviceRows::new(DeviceSlice::of(&x_device)));
    let args = CudaDispatch::new(payload, TOKENS, DeviceIds::I32(DeviceSlice::of(&ids_device)))
        .weights(DeviceSlice::of(&weights_device));
    let received = comm.dispatch(&args)?;

    // The experts. A row comes once, however many of its experts are here: their rows are summed, weighted.
    let rows = words(&download(&comm, received.data())?, |b| Bf16(u16::from_le_bytes(b)));
    let local = words(&download(&comm, received.local_ids().ok_or("ids travel")?)?, i32::from_le_bytes);
    let carried =
        words(&download(&comm, received.weights().ok_or("weights were sent")?)?, f32::from_le_bytes);
    let first_expert = comm.rank() * LOCAL;
    let choices = |row: usize| {
        let all = row * TOP_K..(row + 1) * TOP_K;
        let here = local[all.clone()].iter().zip(&carried[all]).filter(|(local, _)| **local >= 0);
        here.map(|(local, weight)| (first_expert + *local as usize, *weight)).collect::<Vec<_>>()
    };
    let made: Vec<Bf16> =
        rows.chunks(HIDDEN).enumerate().flat_map(|(row, x)| experts(x, &choices(row))).collect();

    // Rows in memory of the caller's own are pushed. Those in memory of `alloc_rows` would be read where they lie.
    let made_device = upload(&comm, &bf16_bytes(&made))?;
    let made_rows = DeviceRows::new(DeviceSlice::of(&made_device));
    let combine = CudaCombine::new(made_rows, received.handle());
    let combined = comm.combine(&combine)?;

    let out = words(&download(&comm, combined.rows().ok_or("no rows came back")?)?, |b| {
        Bf16(u16::from_le_bytes(b))
    });
    check(&x, (&ids, &weights), &out)?;
    comm.barrier()?;
    if comm.rank() == 0 {
        println!(
            "moe_layer_cuda: {RANKS} GPUs, {TOKENS} tokens each, every element of the output as computed locally"
        );
    }
    Ok(())
}

/// Memory of this rank's GPU that holds `bytes`.
fn upload(comm: &CudaCommunicator, bytes: &[u8]) -> Result<DeviceMemory, Box<dyn Error>> {
    let mut memory = DeviceMemory::new(comm.context(), bytes.len())?;
    memory.write(0, bytes)?;
    Ok(memory)
}

/// What lies in `slice` once all calls so far are done.
fn download(comm: &CudaCommunicator, slice: DeviceSlice<'_>) -> Result<Vec<u8>, Box<dyn Error>> {
    let copy = DeviceMemory::new(comm.context(), slice.bytes())?;
    // SAFETY: both are as long as the copy and outlive it, since it is awaited below; nobody writes to the slice.
    unsafe { comm.stream().copy(copy.address(), slice.address(), slice.bytes()) }?;
    comm.stream().synchronize()?;
    // What went wrong in the calls before the copy is told here.
    comm.synchronize()?;
    let mut bytes = vec![0; slice.bytes()];
    copy.read(0, &mut bytes)?;
    Ok(bytes)
}

fn words<T, const N: usize>(bytes: &[u8], word: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|bytes| word(*bytes)).collect()
}

fn bf16_bytes(values: &[Bf16]) -> Vec<u8> {
    values.iter().flat_map(|value| value.0.to_le_bytes()).collect()
}

/// A rank's tokens.
fn tokens(rank: usize) -> Vec<Bf16> {
    (0..TOKENS * HIDDEN).map(|i| Bf16::from_f32(((i * 31 + rank * 7) % 257) as f32 / 128.0 - 1.0)).collect()
}

/// Experts and weights of a rank's tokens. Every fifth token has one expert only; -1 is none.
fn router(rank: usize) -> (Vec<i32>, Vec<f32>) {
    let choices = (0..TOKENS).flat_map(|token| (0..TOP_K).map(move |k| (token, k)));
    let chosen = choices.map(|(token, k)| {
        let id = (token * 7 + rank * 5 + k * 11) % EXPERTS;
        let id = if token % 5 == 0 && k > 0 { -1 } else { id as i32 };
        (id, 0.4 - 0.1 * k as f32)
    });
    chosen.unzip()
}

/// Expert e multiplies by 1 + e / 8; what several experts of one rank make of a row is summed by fused multiply-add,
/// in the order of the token's choices, and rounded once.
fn experts(row: &[Bf16], choices: &[(usize, f32)]) -> Vec<Bf16> {
    let sum = |value: &Bf16| {
        choices.iter().fold(0f32, |sum, &(expert, weight)| {
            let made = Bf16::from_f32(value.to_f32() * (1.0 + expert as f32 / 8.0));
            weight.mul_add(made.to_f32(), sum)
        })
    };
    row.iter().map(|value| Bf16::from_f32(sum(value))).collect()
}

/// Computes the layer without any communication: the ranks' rows are added in f32, ascending, and rounded.
fn check(x: &[Bf16], (ids, weights): (&[i32], &[f32]), got: &[Bf16]) -> Result<(), Box<dyn Error>> {
    if got.len() != x.len() {
        return Err(format!("{} elements instead of {}", got.len(), x.len()).into());
    }
    for (token, row) in x.chunks(HIDDEN).enumerate() {
        let own = token * TOP_K..(token + 1) * TOP_K;
        let chosen = || ids[own.clone()].iter().zip(&weights[own.clone()]);
        let mut sums = vec![0f32; HIDDEN];
        for rank in 0..RANKS {
            let of_rank = |id: i32| usize::try_from(id).is_ok_and(|id| id / LOCAL == rank);
            let choices: Vec<(usize, f32)> = chosen()
                .filter(|(id, _)| of_rank(**id))
                .map(|(id, weight)| (*id as usize, *weight))
                .collect();
            for (sum, partial) in sums.iter_mut().zip(experts(row, &choices)) {
                *sum += partial.to_f32();
            }
        }
        for (i, (sum, got)) in sums.iter().zip(&got[token * HIDDEN..]).enumerate() {
            let want = Bf16::from_f32(*sum);
            if *got != want {
                let (got, want) = (got.to_f32(), want.to_f32());
                return Err(format!("token {token}, element {i}: {got} instead of {want}").into());
            }
        }
    }
    Ok(())
}

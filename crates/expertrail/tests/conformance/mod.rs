//! One list of cases for every backend: what a communicator moves is compared bit for bit with the oracle.
//!
//! A rank knows the routing, payload and expert output of all ranks (all are functions of a seed), so that each
//! rank checks everything it gets by itself.
//!
//! `cases` and `world` are used by the GPU suite (`crates/cuda/examples/gpu_suite`) too: they name the core's types
//! through this module's `core`, and know no backend.

#![allow(unreachable_pub, missing_docs, reason = "shared by two test programs")]

mod cases;
mod world;

pub use cases::{Case, Experts, Inputs, Routes, cases};
use expertrail::core;
use expertrail::core::oracle::{self, Expected};
use expertrail::core::plan::NO_ROW;
use expertrail::fabric::FabricError;
use expertrail::{
    Bf16, Combine, Communicator, Crossing, Dispatch, Dtype, Group, Handle, Payload, Received, Simd,
};
use world::{Owned, World};

/// Runs one case on one rank, with nodes joined by `crossing` if there is one, else by shared memory; the error says what
/// differed.
pub fn run(
    group: &Group,
    case: &Case,
    simd: Simd,
    crossing: Option<Result<Crossing, FabricError>>,
) -> Result<(), String> {
    let builder = Communicator::builder(group)
        .shape(case.shape())
        .ranks_per_node(case.ranks_per_node)
        .live_outputs(case.live_outputs)
        .deadline(std::time::Duration::from_mins(1))
        .simd(simd);
    let comm = match crossing {
        Some(crossing) => builder.build_across(crossing),
        None => builder.build(),
    }
    .map_err(|e| format!("build: {e}"))?;
    for round in 0..case.rounds {
        let world = World::new(case, round);
        round_trip(&comm, &world)
            .map_err(|e| format!("{} [{simd}] round {round} rank {}: {e}", case.name, comm.rank()))?;
    }
    Ok(())
}

fn round_trip(comm: &Communicator, world: &World) -> Result<(), String> {
    let (case, rank) = (world.case, comm.rank());
    let expected: Vec<Expected> = (0..case.ranks)
        .map(|r| oracle::dispatch(&world.placement(), case.layout, r, |s| &world.routings[s]))
        .collect();

    let weights = world.weights(rank);
    let payload = world.payload(rank, 0);
    let mut args = Dispatch::new(payload.borrow(), &world.routings[rank]).layout(case.layout);
    if case.weights {
        args = args.weights(&weights);
    }
    if let Some(spare) = case.worst_case_spare {
        args = args.worst_case_rows(expected[rank].rows.len() + spare);
    }
    let received = comm.dispatch_with(&args).map_err(|e| format!("dispatch: {e}"))?;
    check_rows(world, (rank, case.worst_case_spare.unwrap_or(0)), &received, &expected[rank], 0)?;
    check_carried(world, &received, &expected[rank])?;
    check_handle(world, received.handle(), &expected[rank])?;
    check_combine(comm, world, received, &expected)
}

fn check_rows(
    world: &World,
    (rank, spare): (usize, usize),
    got: &Received,
    want: &Expected,
    version: u32,
) -> Result<(), String> {
    let case = world.case;
    let rows = want.rows.len() + spare;
    if got.rows() != rows {
        return Err(format!("{} rows at rank {rank}, {rows} wanted", got.rows()));
    }
    for (row, origin) in want.rows.iter().enumerate() {
        let (mut data, mut scales) = (vec![0u8; case.dtype.row_bytes(case.hidden)], Vec::new());
        scales.resize(case.dtype.scales_per_row(case.hidden), 0f32);
        if let Some(origin) = origin {
            world.fill(origin.source as usize, origin.token as usize, version, &mut data, &mut scales);
        }
        let same = match case.dtype {
            Dtype::Bf16 => {
                let got = &got.bf16().ok_or("no BF16 rows")?[row * case.hidden..(row + 1) * case.hidden];
                got.iter().flat_map(|v| v.0.to_le_bytes()).eq(data.iter().copied())
            }
            Dtype::Fp8E4m3 => {
                let codes = &got.codes().ok_or("no codes")?[row * case.hidden..(row + 1) * case.hidden];
                let got_scales =
                    &got.scales().ok_or("no scales")?[row * scales.len()..(row + 1) * scales.len()];
                codes == data && got_scales.iter().map(|s| s.to_bits()).eq(scales.iter().map(|s| s.to_bits()))
            }
        };
        if !same {
            return Err(format!("row {row} ({origin:?}) differs"));
        }
    }
    Ok(())
}

fn check_carried(world: &World, got: &Received, want: &Expected) -> Result<(), String> {
    let case = world.case;
    let ids = got.local_ids().ok_or("no ids")?;
    if ids[..want.local_ids.len()] != want.local_ids[..]
        || ids[want.local_ids.len()..].iter().any(|&id| id != -1)
    {
        return Err(format!("ids {ids:?}, wanted {:?} and then -1", want.local_ids));
    }
    if got.weights().is_some() != case.weights {
        return Err("weights came along or not, against the request".to_owned());
    }
    if let Some(weights) = got.weights() {
        for (i, &(source, token)) in want.arrivals.iter().enumerate() {
            let sent = world.weights(source as usize);
            for k in 0..case.top_k {
                let here = want.local_ids[i * case.top_k + k] >= 0;
                let wanted = if here { sent[token as usize * case.top_k + k] } else { 0.0 };
                if weights[i * case.top_k + k].to_bits() != wanted.to_bits() {
                    return Err(format!("weight of arrival {i}, choice {k}"));
                }
            }
        }
    }
    if got.expert_counts() != want.expert_counts {
        return Err(format!("expert counts {:?}, wanted {:?}", got.expert_counts(), want.expert_counts));
    }
    Ok(())
}

fn check_handle(world: &World, handle: &Handle, want: &Expected) -> Result<(), String> {
    let arrivals = handle.arrivals();
    let tokens: Vec<u32> = want.arrivals.iter().map(|a| a.1).collect();
    if arrivals.source_tokens != tokens {
        return Err("source tokens differ".to_owned());
    }
    for (i, &(source, _)) in want.arrivals.iter().enumerate() {
        let (start, end) =
            (arrivals.source_starts[source as usize], arrivals.source_starts[source as usize + 1]);
        if !(start..end).contains(&(i as u32)) {
            return Err(format!("arrival {i} is not among source {source}'s"));
        }
    }
    for (i, row) in arrivals.choice_rows.iter().enumerate().filter(|&(_, &row)| row != NO_ROW) {
        let origin = want.rows[*row as usize].ok_or("a choice points at padding")?;
        let (source, token) = want.arrivals[i / world.case.top_k];
        if (origin.source, origin.token, origin.choice)
            != (source, token, Some((i % world.case.top_k) as u32))
        {
            return Err(format!("choice row {i} points at {origin:?}"));
        }
    }
    Ok(())
}

/// Combines once from each kind of memory, then dispatches another payload with the handle and combines again.
fn check_combine(
    comm: &Communicator,
    world: &World,
    mut received: Received,
    expected: &[Expected],
) -> Result<(), String> {
    let (case, rank) = (world.case, comm.rank());
    let handle = received.handle().clone();
    for (version, inputs) in case.inputs.iter().enumerate() {
        let version = version as u32;
        match inputs {
            Inputs::Private => {
                let rows = world.expert_rows(rank, handle.rows(), version);
                combine_and_check(comm, world, &rows, &handle, (expected, version))?;
            }
            Inputs::Shared => {
                let mut rows = comm.alloc_rows(handle.rows()).map_err(|e| e.to_string())?;
                rows.as_mut_slice().copy_from_slice(&world.expert_rows(rank, handle.rows(), version));
                combine_and_check(comm, world, rows.as_slice(), &handle, (expected, version))?;
            }
            Inputs::InPlace => {
                let made = world.expert_rows(rank, handle.rows(), version);
                let Some(rows) = received.bf16_mut() else { continue };
                rows[..made.len()].copy_from_slice(&made);
                let rows = received.bf16().ok_or("no BF16 rows")?;
                combine_and_check(comm, world, rows, &handle, (expected, version))?;
            }
            // Owners differ: a source reads some rows in place and gets others through staging.
            Inputs::Mixed => {
                let made = world.expert_rows(rank, handle.rows(), version);
                let mut shared = comm.alloc_rows(handle.rows()).map_err(|e| e.to_string())?;
                shared.as_mut_slice().copy_from_slice(&made);
                let rows = if rank.is_multiple_of(2) { &made[..] } else { shared.as_slice() };
                combine_and_check(comm, world, rows, &handle, (expected, version))?;
            }
        }
    }
    let payload = world.payload(rank, 1);
    let again = comm.dispatch_with(&Dispatch::cached(payload.borrow(), &handle));
    let again = again.map_err(|e| format!("cached dispatch: {e}"))?;
    if again.local_ids().is_some() || again.weights().is_some() {
        return Err("a cached dispatch gives the same rows and carries nothing".to_owned());
    }
    check_rows(world, (rank, 0), &again, &expected[rank], 1)?;
    drop(received);
    let rows = world.expert_rows(rank, handle.rows(), 9);
    combine_and_check(comm, world, &rows, again.handle(), (expected, 9))
}

fn combine_and_check(
    comm: &Communicator,
    world: &World,
    rows: &[Bf16],
    handle: &Handle,
    (expected, version): (&[Expected], u32),
) -> Result<(), String> {
    let (case, rank) = (world.case, comm.rank());
    let biases: Vec<Vec<Bf16>> = (0..case.biases).map(|b| world.bias(rank, b)).collect();
    let biases: Vec<&[Bf16]> = biases.iter().map(|b| &b[..]).collect();
    let row_weights = world.row_weights(rank, handle.rows());
    let topk_weights = world.topk_gradients(rank, expected[rank].arrivals.len());
    let mut args = Combine::new(rows, handle).biases(&biases);
    if case.experts_do == Experts::WeightedRows {
        args = args.row_weights(&row_weights);
    }
    if case.weights {
        args = args.topk_weights(&topk_weights);
    }
    let combined = comm.combine_with(&args).map_err(|e| format!("combine: {e}"))?;
    let want = world.combined(rank, expected, (&biases, version));
    for (token, (got, want)) in combined.rows().chunks(case.hidden).zip(want.chunks(case.hidden)).enumerate()
    {
        if got != want {
            let at = got.iter().zip(want).position(|(a, b)| a != b).unwrap_or(0);
            return Err(format!(
                "combine version {version}: token {token} element {at} is {:#06x}, wanted {:#06x}",
                got[at].0, want[at].0
            ));
        }
    }
    if combined.rows().len() != want.len() {
        return Err("combine gave another number of rows".to_owned());
    }
    if case.weights {
        let got = combined.weights().ok_or("no weights came back")?;
        let want = world.combined_weights(rank, expected);
        if !got.iter().map(|w| w.to_bits()).eq(want.iter().map(|w| w.to_bits())) {
            return Err("the weights that came back differ".to_owned());
        }
    }
    Ok(())
}

impl Owned {
    fn borrow(&self) -> Payload<'_> {
        match self {
            Self::Bf16(rows) => Payload::Bf16(rows),
            Self::Fp8(codes, scales) => Payload::Fp8 { codes, scales },
        }
    }
}

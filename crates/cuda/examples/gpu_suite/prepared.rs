//! Inputs in device memory, and the hashes of what must come of them: made once, used for thousands of calls.

use expertrail_core::oracle::{self, Expected};
use expertrail_core::{Bf16, Dtype, Layout, Shape};
use expertrail_cuda::{Context, DeviceMemory, DeviceSlice};

use crate::check::hash;
use crate::gpu::{Ids, Payload, ScaleOrder, bf16_bytes, f32_bytes, upload};
use crate::random::Random;
use crate::shared::{Case, Routes, World, base};
use crate::wanted::{Wanted, bytes};

/// Payloads of one routing, and rows that its experts make.
pub(crate) const VERSIONS: usize = 2;

/// One rank's part of one routing.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) case: &'static Case,
    pub(crate) tokens: usize,
    pub(crate) arrivals: usize,
    pub(crate) local_experts: usize,
    /// Rows of the worst-case form.
    pub(crate) worst: usize,
    pub(crate) payloads: Vec<Payload>,
    pub(crate) ids: Ids,
    pub(crate) weights: DeviceMemory,
    /// `[worst, hidden]`, for each version.
    pub(crate) expert_rows: Vec<DeviceMemory>,
    /// `[worst, top_k]`, NaN behind the last arrival.
    pub(crate) gradients: DeviceMemory,
    pub(crate) biases: Vec<DeviceMemory>,
    pub(crate) hashes: Hashes,
}

/// Hashes of everything that a rank must get.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hashes {
    pub(crate) rows: Vec<u64>,
    pub(crate) scales: Vec<u64>,
    /// Of the exact form and of the worst-case form.
    pub(crate) ids: [u64; 2],
    pub(crate) weights: [u64; 2],
    pub(crate) source_tokens: u64,
    pub(crate) expert_counts: u64,
    pub(crate) combined: Vec<u64>,
    pub(crate) combined_weights: u64,
}

impl Prepared {
    /// The routing and data of `key` at `rank`, with so many rows in the worst-case form (or a few more than arrive).
    pub(crate) fn new(
        context: &Context,
        (case, key): (&'static Case, u64),
        rank: usize,
        worst: Option<usize>,
    ) -> Result<Self, String> {
        let world = World::new(case, key);
        let expected: Vec<Expected> = (0..case.ranks)
            .map(|r| oracle::dispatch(&world.placement(), Layout::BySource, r, |s| &world.routings[s]))
            .collect();
        let (tokens, arrivals) = (world.tokens(rank), expected[rank].arrivals.len());
        let most = (0..case.ranks).map(|r| world.tokens(r)).sum::<usize>();
        let worst = worst.unwrap_or_else(|| most.min(arrivals + (key as usize + 5 * rank) % 20));
        let biases: Vec<Vec<Bf16>> = (0..case.biases).map(|bias| world.bias(rank, bias)).collect();
        let biases: Vec<&[Bf16]> = biases.iter().map(|bias| &bias[..]).collect();
        let mut gradients = world.topk_gradients(rank, arrivals);
        gradients.resize(worst * case.top_k, f32::NAN);

        let row_words = Wanted::row_words(case.dtype, case.hidden);
        let mut prepared = Self {
            case,
            tokens,
            arrivals,
            local_experts: expected[rank].expert_counts.len(),
            worst,
            payloads: Vec::new(),
            ids: Ids::upload(context, world.routings[rank].ids())?,
            weights: upload(context, &f32_bytes(&world.weights(rank)))?,
            expert_rows: Vec::new(),
            gradients: upload(context, &f32_bytes(&gradients))?,
            biases: Vec::new(),
            hashes: Hashes::default(),
        };
        let hashes = &mut prepared.hashes;
        for version in 0..VERSIONS as u32 {
            let wanted = Wanted::new(&world, &expected[rank], version, worst);
            hashes.rows.push(hash(&wanted.rows, row_words));
            hashes.scales.push(hash(&wanted.scales, case.dtype.scales_per_row(case.hidden)));
            if version == 0 {
                let exact = 4 * arrivals * case.top_k;
                hashes.ids = [hash(&wanted.ids[..exact], case.top_k), hash(&wanted.ids, case.top_k)];
                hashes.weights =
                    [hash(&wanted.weights[..exact], case.top_k), hash(&wanted.weights, case.top_k)];
                hashes.source_tokens = hash(&wanted.source_tokens, 1);
            }
            let combined = world.combined(rank, &expected, (&biases, version));
            hashes.combined.push(hash(&bf16_bytes(&combined), Wanted::row_words(Dtype::Bf16, case.hidden)));
            let order = ScaleOrder::of(key + u64::from(version));
            let payload = world.payload(rank, version);
            prepared.payloads.push(Payload::upload(context, &payload, tokens, order)?);
            let made = world.expert_rows(rank, worst, version);
            prepared.expert_rows.push(upload(context, &bf16_bytes(&made))?);
        }
        let counts = bytes(&expected[rank].expert_counts, u32::to_le_bytes);
        hashes.expert_counts = hash(&counts, 1);
        hashes.combined_weights = hash(&f32_bytes(&world.combined_weights(rank, &expected)), case.top_k);
        for bias in biases {
            prepared.biases.push(upload(context, &bf16_bytes(bias))?);
        }
        Ok(prepared)
    }

    /// `many` routings of random shapes up to the limits of `shape`, the same on every rank.
    pub(crate) fn many(
        context: &Context,
        shape: Shape,
        (ranks, rank): (usize, usize),
        (many, seed): (usize, u64),
    ) -> Result<Vec<Self>, String> {
        let mut random = Random::new(seed);
        (0..many)
            .map(|number| {
                let case = random_case(shape, ranks, number, &mut random);
                // The process ends with its routings.
                Self::new(context, (Box::leak(Box::new(case)), random.next() >> 20), rank, None)
            })
            .collect()
    }

    /// The first rows that `version`'s experts made.
    pub(crate) fn made(&self, version: usize, rows: usize) -> Result<DeviceSlice<'_>, String> {
        let bytes = rows * Dtype::Bf16.row_bytes(self.case.hidden);
        DeviceSlice::of(&self.expert_rows[version])
            .part(0, bytes)
            .ok_or("the suite made too few rows".to_owned())
    }
}

fn random_case(shape: Shape, ranks: usize, number: usize, random: &mut Random) -> Case {
    let most = shape.max_tokens;
    let tokens: Vec<usize> = (0..ranks)
        .map(|_| match (number, random.below(8)) {
            (0, _) | (_, 0) => most,
            (_, 1) => 0,
            (_, 2) => random.below(4),
            _ => random.below(most + 1),
        })
        .collect();
    let routes =
        [Routes::Any, Routes::Any, Routes::Distinct, Routes::OneExpert, Routes::Nowhere, Routes::FirstRank];
    Case {
        name: "stress",
        ranks,
        ranks_per_node: ranks,
        tokens: Vec::leak(tokens),
        hidden: shape.hidden,
        top_k: shape.top_k,
        experts: shape.experts,
        dtype: if random.once_in(3) { Dtype::Fp8E4m3 } else { Dtype::Bf16 },
        routes: if number == 0 { Routes::Distinct } else { random.pick(&routes).unwrap_or(Routes::Any) },
        weights: !random.once_in(4),
        biases: random.below(3),
        ..base()
    }
}

//! Every row of every timed call against rows made anew on the GPU, and those against the CPU's.

use std::collections::HashSet;

use expertrail::core::oracle;
use expertrail::cuda::{CudaError, CudaReceived, DeviceMemory, DeviceSlice};
use expertrail::{Bf16, Dtype};

use super::inputs::Inputs;
use super::kernels::{BenchKernels, Differences, Named};
use super::{Case, GpuTeam, Options};
use crate::run::BenchError;
use crate::run::verify::{SAMPLE, Tally};
use crate::schema::{Op, VerifyMode};
use crate::workload::{self, RowKey, Tensor};

/// Rows of a case's first call that the CPU compares too.
const AUDITED: usize = 32;

/// Compares the calls of one rank.
pub(super) struct Checker<'a> {
    options: &'a Options,
    team: &'a GpuTeam<'a>,
    inputs: &'a Inputs,
    pub(super) kernels: BenchKernels,
    pub(super) tally: Tally,
    audited: HashSet<Case>,
}

/// Which call it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) case: Case,
    pub(super) set: usize,
    pub(super) iteration: usize,
}

impl<'a> Checker<'a> {
    pub(super) fn new(
        options: &'a Options,
        team: &'a GpuTeam<'a>,
        inputs: &'a Inputs,
        kernels: BenchKernels,
    ) -> Self {
        Self { options, team, inputs, kernels, tally: Tally::default(), audited: HashSet::new() }
    }

    /// A checker that finds nothing proves nothing: it must make the CPU's rows, and see one bit.
    pub(super) fn prove(&mut self) -> Result<(), BenchError> {
        let context = self.team.comm.context();
        let hidden = self.options.resolved.shape.hidden;
        let rank = self.team.comm.rank();
        for &dtype in &self.options.gpu.dtypes {
            let named = Named {
                seed: self.options.seed,
                tensor: Tensor::Tokens,
                rank: self.team.ranks[rank],
                set: 5,
                count: 3,
                hidden,
                dtype,
            };
            let (row, words) = (dtype.row_bytes(hidden), dtype.scales_per_row(hidden));
            let mut rows = DeviceMemory::new(context, 3 * row)?;
            let scales = DeviceMemory::new(context, 12 * words)?;
            let on_device = (dtype == Dtype::Fp8E4m3).then(|| DeviceSlice::of(&scales));
            self.kernels.fill(DeviceSlice::of(&rows), on_device, &named)?;
            let mut origins = DeviceMemory::new(context, 24)?;
            let names: Vec<u8> =
                (0..3u64).flat_map(|token| ((named.rank as u64) << 32 | token).to_ne_bytes()).collect();
            origins.write(0, &names)?;
            let key = |token| key(&named, named.rank, token);
            for token in 0..3 {
                let got = self.kernels.download(DeviceSlice::of(&rows), token * row, row)?;
                let got_scales =
                    self.kernels.download(DeviceSlice::of(&scales), 4 * token * words, 4 * words)?;
                if let Some(element) = cpu_mismatch(key(token), dtype, &got, &got_scales) {
                    return Err(unproven(format!("row {token}, element {element} is not the CPU's")));
                }
            }
            let clean = self.kernels.check_rows(DeviceSlice::of(&rows), on_device, &origins, &named)?;
            let mut byte = self.kernels.download(DeviceSlice::of(&rows), row + 7, 1)?;
            byte[0] ^= 0x10;
            rows.write(row + 7, &byte)?;
            let dirty = self.kernels.check_rows(DeviceSlice::of(&rows), on_device, &origins, &named)?;
            let element = if dtype == Dtype::Bf16 { 3 } else { 7 };
            let want = Differences { rows: 1, first: Some((1, element)) };
            if clean != Differences::default() || dirty != want {
                return Err(unproven(format!(
                    "{clean:?} in right rows, {dirty:?} after one bit was turned over"
                )));
            }
        }
        self.prove_sums()
    }

    /// The same for sums, of what the CPU's oracle sums, and for words.
    fn prove_sums(&mut self) -> Result<(), BenchError> {
        let context = self.team.comm.context();
        let (hidden, ranks) = (self.options.resolved.shape.hidden, self.team.topology.ranks());
        let named = Named {
            seed: self.options.seed,
            tensor: Tensor::ExpertOutput,
            rank: self.team.ranks.first().copied().unwrap_or(0),
            set: 3,
            count: 2,
            hidden,
            dtype: Dtype::Bf16,
        };
        // The first token went to every rank, where it is row 9 and up; the second to the last rank only.
        let mut places: Vec<u32> = (9..9 + ranks as u32).collect();
        places.extend((1..ranks).map(|_| u32::MAX));
        places.push(4);
        let bytes: Vec<u8> = (0..2)
            .flat_map(|token| self.summed(&named, &places[token * ranks..(token + 1) * ranks]))
            .flat_map(|value| value.0.to_ne_bytes())
            .collect();
        let names: Vec<u8> = places.iter().flat_map(|place| place.to_ne_bytes()).collect();
        let upload = |bytes: &[u8]| -> Result<DeviceMemory, CudaError> {
            let mut memory = DeviceMemory::new(context, bytes.len())?;
            memory.write(0, bytes)?;
            Ok(memory)
        };
        let (mut rows, on_device) = (upload(&bytes)?, upload(&names)?);
        let shape = (ranks, self.team.topology.ranks_per_node());
        let clean = self.kernels.check_sums(DeviceSlice::of(&rows), &on_device, &named, shape)?;
        let at = 2 * hidden + 6;
        rows.write(at, &[bytes[at] ^ 1])?;
        let dirty = self.kernels.check_sums(DeviceSlice::of(&rows), &on_device, &named, shape)?;
        let want = Differences { rows: 1, first: Some((1, 3)) };
        if clean != Differences::default() || dirty != want {
            return Err(unproven(format!(
                "{clean:?} in right sums, {dirty:?} after one bit was turned over"
            )));
        }
        let words = upload(&bytes)?;
        let count = (2, hidden / 2);
        let same = self.kernels.check_words(DeviceSlice::of(&words), &words, count)?;
        let other = self.kernels.check_words(DeviceSlice::of(&rows), &words, count)?;
        if same != Differences::default() || other != (Differences { rows: 1, first: Some((1, 1)) }) {
            return Err(unproven(format!(
                "{same:?} in equal words, {other:?} after one bit was turned over"
            )));
        }
        Ok(())
    }

    /// What the CPU's oracle sums for a token that is at `places` of the ranks.
    fn summed(&self, named: &Named, places: &[u32]) -> Vec<Bf16> {
        let rows: Vec<(usize, Vec<Bf16>)> = places
            .iter()
            .enumerate()
            .filter(|(_, row)| **row != u32::MAX)
            .map(|(owner, &row)| {
                let mut made = vec![Bf16(0); named.hidden];
                workload::fill_row(key(named, self.team.ranks[owner], row as usize), &mut made);
                (owner, made)
            })
            .collect();
        let partials: Vec<(usize, &[Bf16])> = rows.iter().map(|(owner, row)| (*owner, &row[..])).collect();
        let mut sum = vec![Bf16(0); named.hidden];
        oracle::combine_token(&self.team.topology, &[], &partials, &mut sum);
        sum
    }

    fn picks(&self, iteration: usize) -> bool {
        match self.options.verify {
            VerifyMode::Full => true,
            VerifyMode::Sample => iteration.is_multiple_of(SAMPLE),
            VerifyMode::Off => false,
        }
    }

    /// Compares everything that a dispatch gave, then makes its memory useless.
    pub(super) fn dispatch(&mut self, got: &CudaReceived, call: Call) -> Result<(), BenchError> {
        let want = self.inputs.expected(call.set);
        let count = want.arrivals.len();
        self.tally.total += count as u64;
        let cached = call.case.op == Op::DispatchCached;
        let name = self.name(call);
        if self.picks(call.iteration) {
            let counts_right = cached || got.expert_counts() == want.expert_counts;
            if got.rows() != count || !counts_right {
                self.tally
                    .row(false, || format!("{name}: {} rows, {count} wanted, or other counts", got.rows()));
                return Ok(());
            }
            let named = self.named(call, Tensor::Tokens, count);
            let found = self.kernels.check_rows(got.data(), got.scales(), &want.origins, &named)?;
            self.count(&name, count, found);
            if !cached {
                self.beside(got, call, &name)?;
            }
            if self.audited.insert(call.case) {
                self.audit_dispatch(got, call, &name)?;
            }
        }
        let parts = [Some(got.data()), got.scales(), got.local_ids(), got.weights(), got.source_tokens()];
        for part in parts.into_iter().flatten() {
            self.kernels.poison(part)?;
        }
        Ok(())
    }

    /// Ids, weights and source tokens.
    fn beside(&mut self, got: &CudaReceived, call: Call, name: &str) -> Result<(), BenchError> {
        let want = self.inputs.expected(call.set);
        let (count, top_k) = (want.arrivals.len(), self.options.resolved.shape.top_k);
        let parts = [
            ("ids", got.local_ids(), &want.ids, top_k),
            ("weights", got.weights(), &want.weights, top_k),
            ("source tokens", got.source_tokens(), &want.source_tokens, 1),
        ];
        for (what, slice, want, words) in parts {
            let Some(slice) = slice else {
                self.tally.row(false, || format!("{name}: no {what} came"));
                continue;
            };
            let found = self.kernels.check_words(slice, want, (count, words))?;
            if let Some((row, word)) = found.first {
                self.tally.row(false, || format!("{name}, row {row}: {what} {word} differ"));
            }
        }
        Ok(())
    }

    /// Compares combined rows.
    pub(super) fn combine(&mut self, got: DeviceSlice<'_>, call: Call) -> Result<(), BenchError> {
        let count = self.inputs.token_count(call.set);
        self.tally.total += count as u64;
        if !self.picks(call.iteration) {
            return Ok(());
        }
        let name = self.name(call);
        let want = self.inputs.expected(call.set);
        let named = self.expert_rows(call, count);
        let ranks = (self.team.topology.ranks(), self.team.topology.ranks_per_node());
        let found = self.kernels.check_sums(got, &want.places_on_device, &named, ranks)?;
        self.count(&name, count, found);
        if self.audited.insert(call.case) {
            self.audit_combine(got, call, &name)?;
        }
        Ok(())
    }

    fn count(&mut self, name: &str, rows: usize, found: Differences) {
        self.tally.checked += rows as u64;
        self.tally.mismatches += found.rows;
        if let Some((row, element)) = found.first {
            self.tally.first.get_or_insert_with(|| format!("{name}, row {row}: element {element} differs"));
        }
    }

    fn audit_dispatch(&mut self, got: &CudaReceived, call: Call, name: &str) -> Result<(), BenchError> {
        let want = self.inputs.expected(call.set);
        let (dtype, hidden) = (call.case.dtype(), self.options.resolved.shape.hidden);
        let (bytes, words) = (dtype.row_bytes(hidden), dtype.scales_per_row(hidden));
        let named = self.named(call, Tensor::Tokens, 0);
        for row in sample(want.arrivals.len()) {
            let (source, token) = want.arrivals[row];
            let data = self.kernels.download(got.data(), row * bytes, bytes)?;
            let scales = match got.scales() {
                Some(scales) => self.kernels.download(scales, 4 * row * words, 4 * words)?,
                None => Vec::new(),
            };
            let key = key(&named, self.team.ranks[source as usize], token as usize);
            if let Some(element) = cpu_mismatch(key, dtype, &data, &scales) {
                self.tally
                    .row(false, || format!("{name}, row {row}: element {element} differs (by the CPU)"));
            }
        }
        Ok(())
    }

    fn audit_combine(&mut self, got: DeviceSlice<'_>, call: Call, name: &str) -> Result<(), BenchError> {
        let want = self.inputs.expected(call.set);
        let (hidden, ranks) = (self.options.resolved.shape.hidden, self.team.topology.ranks());
        let named = self.expert_rows(call, 0);
        for token in sample(self.inputs.token_count(call.set)) {
            let data = self.kernels.download(got, token * 2 * hidden, 2 * hidden)?;
            let sum = self.summed(&named, &want.places[token * ranks..(token + 1) * ranks]);
            if let Some(element) = bf16(&data).iter().zip(&sum).position(|(got, want)| got != want) {
                self.tally.row(false, || {
                    format!("{name}, token {token}: element {element} differs (by the CPU's oracle)")
                });
            }
        }
        Ok(())
    }

    fn named(&self, call: Call, tensor: Tensor, count: usize) -> Named {
        Named {
            seed: self.options.seed,
            tensor,
            rank: 0,
            set: call.set,
            count,
            hidden: self.options.resolved.shape.hidden,
            dtype: call.case.dtype(),
        }
    }

    fn expert_rows(&self, call: Call, count: usize) -> Named {
        Named {
            // The team's ranks are contiguous.
            rank: self.team.ranks.first().copied().unwrap_or(0),
            set: self.inputs.expert_set(call.set),
            dtype: Dtype::Bf16,
            ..self.named(call, Tensor::ExpertOutput, count)
        }
    }

    fn name(&self, call: Call) -> String {
        let Call { case, iteration, .. } = call;
        format!("{case}, rank {}, iteration {iteration}", self.team.ranks[self.team.comm.rank()])
    }
}

/// Rows spread over `count`.
fn sample(count: usize) -> impl Iterator<Item = usize> {
    let step = (count / AUDITED).max(1);
    (0..count).step_by(step)
}

fn key(named: &Named, rank: usize, row: usize) -> RowKey {
    RowKey {
        seed: named.seed,
        tensor: named.tensor,
        rank: rank as u32,
        index: (named.set as u64) << 32 | row as u64,
    }
}

fn bf16(bytes: &[u8]) -> Vec<Bf16> {
    bytes.as_chunks::<2>().0.iter().map(|pair| Bf16(u16::from_ne_bytes(*pair))).collect()
}

/// The first element of a downloaded row that is not what the CPU makes.
fn cpu_mismatch(key: RowKey, dtype: Dtype, row: &[u8], scales: &[u8]) -> Option<usize> {
    match dtype {
        Dtype::Bf16 => workload::first_mismatch(key, &bf16(row)),
        Dtype::Fp8E4m3 => {
            let words: Vec<f32> =
                scales.as_chunks::<4>().0.iter().map(|word| f32::from_ne_bytes(*word)).collect();
            workload::first_mismatch_fp8(key, row, &words)
        }
    }
}

fn unproven(reason: String) -> BenchError {
    BenchError::Checker { reason }
}

impl From<CudaError> for BenchError {
    fn from(error: CudaError) -> Self {
        Self::Library(error.into())
    }
}

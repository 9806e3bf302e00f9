//! Every row against the oracle. Rows are made anew from their keys; places are found from the routings alone,
//! never from the plan or the handle under test.

use expertrail::core::oracle::{self, RowOrigin};
use expertrail::{Bf16, Dtype, Layout, Placement, Received, Routing};
use serde::{Deserialize, Serialize};

use super::inputs::Inputs;
use super::{Options, Team};
use crate::schema::VerifyMode;
use crate::workload;

/// With `--verify sample` one row in this many is compared, others in each iteration; on GPUs all rows of one call in as
/// many.
pub(super) const SAMPLE: usize = 16;

/// What has been compared so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) checked: u64,
    pub(crate) total: u64,
    pub(crate) mismatches: u64,
    pub(crate) first: Option<String>,
}

impl Tally {
    pub(super) fn row(&mut self, good: bool, what: impl FnOnce() -> String) {
        self.checked += 1;
        if !good {
            self.mismatches += 1;
            self.first.get_or_insert_with(what);
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.checked += other.checked;
        self.total += other.total;
        self.mismatches += other.mismatches;
        if self.first.is_none() {
            self.first.clone_from(&other.first);
        }
    }
}

/// Compares the calls of one rank.
pub(crate) struct Verifier<'a> {
    options: &'a Options,
    team: &'a Team,
    inputs: &'a Inputs,
    tally: Tally,
    /// Rows made anew, kept from token to token.
    made: Vec<Vec<Bf16>>,
}

impl<'a> Verifier<'a> {
    pub(crate) fn new(options: &'a Options, team: &'a Team, inputs: &'a Inputs) -> Self {
        Self { options, team, inputs, tally: Tally::default(), made: Vec::new() }
    }

    pub(crate) fn into_tally(self) -> Tally {
        self.tally
    }

    fn picks(&self, iteration: usize, row: usize) -> bool {
        match self.options.verify {
            VerifyMode::Full => true,
            VerifyMode::Sample => (row + 7 * iteration).is_multiple_of(SAMPLE),
            VerifyMode::Off => false,
        }
    }

    /// Compares everything a dispatch of `set` gave: rows, padding, ids, weights, counts. A row counts as wrong
    /// when anything that belongs to it is.
    pub(crate) fn dispatch(&mut self, received: &Received, set: usize, iteration: usize) {
        let me = self.team.me();
        if self.options.verify == VerifyMode::Off {
            self.tally.total += received.rows() as u64;
            return;
        }
        let routings = self.inputs.routing(set);
        let want = oracle::dispatch(&self.team.placement, self.options.layout, me, |s| &routings[s]);
        self.tally.total += want.rows.len() as u64;
        let rank = self.team.ranks[me];
        if received.rows() != want.rows.len() || received.expert_counts() != want.expert_counts {
            let got = received.rows();
            self.tally
                .row(false, || format!("dispatch, rank {rank}: {got} rows, {} wanted", want.rows.len()));
            return;
        }
        for (row, origin) in want.rows.iter().enumerate() {
            if self.picks(iteration, row) {
                let bad = self.row_mismatch(received, row, origin.as_ref(), set);
                self.tally.row(bad.is_none(), || {
                    format!(
                        "dispatch, rank {rank}, iteration {iteration}, row {row} ({origin:?}): {}",
                        bad.unwrap_or_default()
                    )
                });
            }
        }
        // Carried along: cheap, so compared whole.
        if let (Some(ids), Some(weights)) = (received.local_ids(), received.weights()) {
            let sent = self.inputs.weights(set);
            let top_k = self.options.resolved.shape.top_k;
            let good =
                |arrival: usize| {
                    let (source, token) = want.arrivals[arrival];
                    let part = arrival * top_k..(arrival + 1) * top_k;
                    let from = &sent[source as usize][token as usize * top_k..(token as usize + 1) * top_k];
                    ids[part.clone()] == want.local_ids[part.clone()]
                        && weights[part.clone()].iter().zip(&want.local_ids[part]).zip(from).all(
                            |((&got, &id), &sent)| got.to_bits() == if id >= 0 { sent.to_bits() } else { 0 },
                        )
                };
            if let Some(bad) = (0..want.arrivals.len()).find(|&arrival| !good(arrival)) {
                self.tally.row(false, || format!("dispatch, rank {rank}: ids or weights of arrival {bad}"));
            }
        }
    }

    fn row_mismatch(
        &self,
        got: &Received,
        row: usize,
        origin: Option<&RowOrigin>,
        set: usize,
    ) -> Option<String> {
        let hidden = self.options.resolved.shape.hidden;
        let element = match (got.bf16(), got.codes(), got.scales()) {
            (Some(rows), _, _) => {
                let got = &rows[row * hidden..(row + 1) * hidden];
                match origin {
                    None => got.iter().position(|&v| v != Bf16(0)),
                    Some(o) => workload::first_mismatch(self.key(o, set), got),
                }
            }
            (_, Some(codes), Some(scales)) => {
                let per_row = Dtype::Fp8E4m3.scales_per_row(hidden);
                let (q, s) =
                    (&codes[row * hidden..(row + 1) * hidden], &scales[row * per_row..(row + 1) * per_row]);
                match origin {
                    None => {
                        q.iter().position(|&v| v != 0).or_else(|| s.iter().position(|&v| v.to_bits() != 0))
                    }
                    Some(o) => workload::first_mismatch_fp8(self.key(o, set), q, s),
                }
            }
            _ => Some(0),
        };
        element.map(|element| format!("element {element} differs"))
    }

    fn key(&self, origin: &RowOrigin, set: usize) -> workload::RowKey {
        self.inputs.token_key(self.team.ranks[origin.source as usize], set, origin.token as usize)
    }

    /// Compares what a combine of `set` gave.
    pub(crate) fn combine(&mut self, got: &[Bf16], set: usize, iteration: usize) {
        let me = self.team.me();
        let hidden = self.options.resolved.shape.hidden;
        let routings = self.inputs.routing(set);
        self.tally.total += routings[me].tokens() as u64;
        if self.options.verify == VerifyMode::Off {
            return;
        }
        let rank = self.team.ranks[me];
        if got.len() != routings[me].tokens() * hidden {
            self.tally.row(false, || format!("combine, rank {rank}: {} elements came back", got.len()));
            return;
        }
        let mut places = Places::new(&self.team.placement, me, self.options.layout, routings);
        let mut want = vec![Bf16(0); hidden];
        for (token, got) in got.chunks_exact(hidden).enumerate() {
            let partials = places.next(&self.team.placement, routings[me].row(token));
            if !self.picks(iteration, token) {
                continue;
            }
            while self.made.len() < partials.len() {
                self.made.push(vec![Bf16(0); hidden]);
            }
            let mut made = std::mem::take(&mut self.made);
            for (row, (owner, rows)) in made.iter_mut().zip(&partials) {
                self.partial(*owner, rows, set, row);
            }
            let partials: Vec<(usize, &[Bf16])> =
                partials.iter().zip(&made).map(|((owner, _), row)| (*owner, &row[..])).collect();
            oracle::combine_token(&self.team.topology, &[], &partials, &mut want);
            self.made = made;
            let bad = got.iter().zip(&want).position(|(a, b)| a != b);
            self.tally.row(bad.is_none(), || {
                format!(
                    "combine, rank {rank}, iteration {iteration}, token {token}: element {} differs",
                    bad.unwrap_or(0)
                )
            });
        }
    }

    /// Writes what `owner` sends back for a token whose rows there are `rows`.
    fn partial(&self, owner: usize, rows: &[usize], set: usize, out: &mut [Bf16]) {
        let key = |row| self.inputs.expert_key(self.team.ranks[owner], self.inputs.expert_set(set), row);
        if let (Layout::BySource, Some(&row)) = (self.options.layout, rows.first()) {
            workload::fill_row(key(row), out);
            return;
        }
        let made: Vec<Vec<Bf16>> = rows
            .iter()
            .map(|&row| {
                let mut data = vec![Bf16(0); out.len()];
                workload::fill_row(key(row), &mut data);
                data
            })
            .collect();
        let rows: Vec<(Option<f32>, &[Bf16])> = made.iter().map(|row| (None, &row[..])).collect();
        oracle::expert_partial(&rows, out);
    }
}

/// Rows that the calling rank receives.
pub(crate) fn rows_received(team: &Team, layout: Layout, routings: &[Routing]) -> usize {
    oracle::dispatch(&team.placement, layout, team.me(), |s| &routings[s]).rows.len()
}

/// Walks this rank's tokens and tells at which rows of each owner they arrived, by counting alone.
pub(super) struct Places {
    layout: Layout,
    /// By source: this rank's next arrival at each owner. Expert-major: its next row of each expert.
    next: Vec<usize>,
}

impl Places {
    pub(super) fn new(placement: &Placement, me: usize, layout: Layout, routings: &[Routing]) -> Self {
        let mut next;
        match layout {
            Layout::BySource => {
                next = vec![0; placement.ranks()];
                for routing in &routings[..me] {
                    for token in 0..routing.tokens() {
                        for owner in owners(placement, routing.row(token)) {
                            next[owner] += 1;
                        }
                    }
                }
            }
            Layout::ExpertMajor { alignment } => {
                let mut earlier = vec![0usize; placement.experts()];
                let mut all = vec![0usize; placement.experts()];
                for (source, routing) in routings.iter().enumerate() {
                    for &id in routing.ids().iter().filter(|&&id| id >= 0) {
                        all[id as usize] += 1;
                        earlier[id as usize] += usize::from(source < me);
                    }
                }
                next = vec![0; placement.experts()];
                for rank in 0..placement.ranks() {
                    let mut start = 0;
                    for expert in placement.experts_of(rank) {
                        next[expert] = start + earlier[expert];
                        start += all[expert].next_multiple_of(alignment);
                    }
                }
            }
        }
        Self { layout, next }
    }

    /// Each owner of the next token, ascending, with its rows in ascending choice.
    pub(super) fn next(&mut self, placement: &Placement, choices: &[i32]) -> Vec<(usize, Vec<usize>)> {
        let mut take = |slot: usize| {
            self.next[slot] += 1;
            self.next[slot] - 1
        };
        let owners = owners(placement, choices);
        match self.layout {
            Layout::BySource => owners.into_iter().map(|owner| (owner, vec![take(owner)])).collect(),
            Layout::ExpertMajor { .. } => {
                let mut rows: Vec<(usize, Vec<usize>)> =
                    owners.into_iter().map(|owner| (owner, Vec::new())).collect();
                for &id in choices.iter().filter(|&&id| id >= 0) {
                    let row = take(id as usize);
                    let owner = placement.rank_of(id as usize);
                    if let Some((_, rows)) = rows.iter_mut().find(|(rank, _)| *rank == owner) {
                        rows.push(row);
                    }
                }
                rows
            }
        }
    }
}

/// The ranks of a token's experts, each once, ascending.
fn owners(placement: &Placement, choices: &[i32]) -> Vec<usize> {
    let mut owners: Vec<usize> =
        choices.iter().filter(|&&id| id >= 0).map(|&id| placement.rank_of(id as usize)).collect();
    owners.sort_unstable();
    owners.dedup();
    owners
}

//! From the ranks' reports to one result.

use std::collections::BTreeMap;

use expertrail::core::shape::Dtype;
use expertrail::{Group, Layout};
use serde::{Deserialize, Serialize};

use super::ceiling::Measured;
use super::inputs::{CallBytes, Inputs};
use super::measure::{Samples, Samples1};
use super::rails::{RailCardOf, RawRates, fabric_run};
use super::verify::Tally;
use super::{BenchError, Options, Team};
use crate::guide::{self, Banner, Sums};
use crate::machine;
use crate::preset::Scope;
use crate::schema::{
    Backend, Host, Memory, Op, OpKey, OpRun, RankRun, Received, ResultFile, SCHEMA_ID, Settings, Span,
    Status, Tool, TopologyInfo, Verification, VerifyMode,
};

/// What the library may use beyond inputs and outputs.
const MEMORY_ALLOWANCE: u64 = 96 << 20;

/// What one rank tells rank 0.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Card {
    samples: Samples,
    /// logical, wire and row bytes of a dispatch and of a combine.
    bytes: [[f64; 3]; 2],
    input_bytes: u64,
    simd: String,
    guide: GuideTokens,
    hot: bool,
    pub(super) rail: Option<RailCardOf>,
}

impl Card {
    /// The most memory this rank should need.
    fn budget_bytes(&self) -> u64 {
        let network = self.rail.as_ref().map_or(0, RailCardOf::memory_bytes);
        self.input_bytes + self.samples.output_bytes + network + MEMORY_ALLOWANCE
    }
}

/// Tokens as the guide counts them, over all timed iterations.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct GuideTokens {
    intra: u64,
    inter: u64,
}

/// A run's result, and what the guide's format needs beside it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The result.
    pub result: ResultFile,
    pub(super) guide: Vec<Sums>,
    pub(super) inter: Sums,
}

pub(crate) fn card(
    options: &Options,
    team: &Team,
    inputs: &Inputs,
    (mut samples, raw): (Samples, Option<RawRates>),
) -> Vec<u8> {
    let bytes = inputs.mean_bytes(options).map(|CallBytes { logical, wire, rows }| [logical, wire, rows]);
    let mut guide = GuideTokens::default();
    for (set, &times) in samples.iterations_by_set.iter().enumerate() {
        let routing = &inputs.routing(set)[team.me()];
        guide.intra += times * guide::intra_tokens(routing, &team.placement, team.me());
        guide.inter += times * guide::inter_tokens(routing, &team.placement, &team.topology);
    }
    let report = team.comm.host().rail_stats();
    let rail = options.across.as_ref().zip(report.as_ref()).zip(raw).map(|(crossed, raw)| {
        let crossing = std::mem::take(&mut samples.rail);
        RailCardOf::new(crossed, raw, inputs.mean_crossing(options), crossing)
    });
    let card = Card {
        samples,
        bytes,
        input_bytes: inputs.bytes(),
        simd: team.comm.host().simd().to_string(),
        guide,
        hot: inputs.rotation.hot,
        rail,
    };
    // Plain numbers, maps with text keys and text: always serialisable. An empty card is refused by the reader.
    serde_json::to_vec(&card).unwrap_or_default()
}

/// Everything rank 0 knows beside the cards.
pub(crate) struct Run<'a> {
    pub(crate) world: &'a Group,
    pub(crate) options: Options,
    pub(crate) inputs: &'a Inputs,
    pub(crate) ceiling: Measured,
    pub(crate) started_at: String,
}

/// What the ranks sent, each as `C`.
pub(crate) fn read_cards<C: serde::de::DeserializeOwned>(cards: &[Vec<u8>]) -> Result<Vec<C>, BenchError> {
    let read = |(rank, bytes): (usize, &Vec<u8>)| {
        serde_json::from_slice(bytes).map_err(|e| BenchError::Report { rank, reason: e.to_string() })
    };
    cards.iter().enumerate().map(read).collect()
}

pub(crate) fn outcome(run: &Run<'_>, cards: &[Vec<u8>]) -> Result<Outcome, BenchError> {
    let cards: Vec<Card> = read_cards(cards)?;
    let options = &run.options;
    let verification = verification(options.verify, &cards);
    let mut verdict = verification.verdict();
    let memory = Memory {
        peak_bytes_per_rank: cards.iter().map(|c| c.samples.peak_bytes).collect(),
        budget_bytes: cards.iter().map(Card::budget_bytes).max(),
    };
    let warnings = warnings(run, &cards);
    let ops = ops(run, &cards)?;
    if verdict.status == Status::Pass && ops.iter().any(|op| op.time_us.p50 <= 0.0) {
        verdict.status = Status::Inconclusive;
        verdict.reasons.push("a median time of zero: the clock cannot resolve this shape".to_owned());
    }
    let fabric = fabric_run(run, &cards, &ops);
    let mut versions = BTreeMap::from([("expertrail".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    if let Some(rail) = cards.first().and_then(|card| card.rail.as_ref()) {
        versions.insert("fabric".to_owned(), rail.library().to_owned());
    }
    let hosts = run.world.hosts();
    let result = ResultFile {
        schema: SCHEMA_ID.to_owned(),
        tool: Tool {
            name: "expertrail".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: option_env!("EXPERTRAIL_COMMIT").map(str::to_owned),
        },
        started_at: run.started_at.clone(),
        command: options.command.clone(),
        settings: settings(
            options,
            &Timing {
                hot: cards.iter().any(|c| c.hot),
                rotation_sets: run.inputs.rotation.token_sets as u64,
                spans: vec![Span::Isolated, Span::Chained],
                sms: Vec::new(),
            },
        ),
        topology: TopologyInfo {
            ranks: options.resolved.topology.ranks() as u64,
            ranks_per_node: options.resolved.topology.ranks_per_node() as u64,
            nodes: options.resolved.topology.nodes() as u64,
            scope: options.resolved.scope,
        },
        hosts: by_host(&hosts),
        backend: Backend {
            name: "host".to_owned(),
            simd: cards.first().map(|c| c.simd.clone()),
            copy: Some("by size".to_owned()),
            details: BTreeMap::from([
                ("segment".to_owned(), "memfd".to_owned()),
                ("combine_input".to_owned(), options.combine_input.to_string()),
            ]),
        },
        versions,
        machine: machine::read(),
        ceiling: Some(run.ceiling.ceiling),
        link_ceiling: None,
        fabric,
        ops,
        received: received(
            options,
            cards.iter().map(|c| c.samples.rows).collect(),
            &cards.iter().map(|c| &c.samples.expert_counts[..]).collect::<Vec<_>>(),
        ),
        verification,
        memory: Some(memory),
        warnings,
        rails: Vec::new(),
        parts: Vec::new(),
        verdict,
    };
    let sums = |rank: usize, tokens: u64| guide_sums(options, &cards[rank], tokens);
    let per_node = options.resolved.topology.ranks_per_node();
    let guide = (0..cards.len()).step_by(per_node).map(|rank| sums(rank, cards[rank].guide.intra)).collect();
    Ok(Outcome { result, guide, inter: sums(0, cards[0].guide.inter) })
}

fn verification(mode: VerifyMode, cards: &[Card]) -> Verification {
    let mut tally = Tally::default();
    for card in cards {
        tally.add(&card.samples.tally);
    }
    Verification {
        mode,
        rows_checked: tally.checked,
        rows_total: tally.total,
        mismatches: tally.mismatches,
        first_mismatch: tally.first,
    }
}

fn warnings(run: &Run<'_>, cards: &[Card]) -> Vec<String> {
    let mut warnings = run.options.resolved.warnings.clone();
    if !run.ceiling.beyond_cache {
        warnings.push(
            "the ceiling was measured within 4 x the last-level cache, for want of memory: it may be too high".to_owned(),
        );
    }
    let fallbacks: u64 = cards.iter().map(|c| c.samples.fallbacks).sum();
    if fallbacks > 0 {
        warnings.push(format!(
            "{fallbacks} dispatches did not fit their reserved output and were copied out of the fallback (counts \
             grew by more than a quarter from call to call)"
        ));
    }
    if run.options.across.as_ref().is_some_and(|across| across.simulated) {
        warnings.push(
            "the network is simulated: ranks are threads of one process, and no rate says anything of a network".to_owned(),
        );
    }
    for (rank, card) in cards.iter().enumerate() {
        let budget = card.budget_bytes();
        if card.samples.peak_bytes > budget {
            warnings.push(format!(
                "rank {rank} peaked at {} MiB, more than its inputs, outputs and 96 MiB ({} MiB)",
                card.samples.peak_bytes >> 20,
                budget >> 20
            ));
        }
    }
    warnings
}

fn ops(run: &Run<'_>, cards: &[Card]) -> Result<Vec<crate::schema::OpResult>, BenchError> {
    let dispatch_dtype = run.options.resolved.dispatch_dtype;
    let mut ops = Vec::new();
    for (op, name, dtype, bytes) in [
        (Op::Dispatch, "dispatch", dispatch_dtype, 0),
        (Op::DispatchCached, "dispatch_cached", dispatch_dtype, 0),
        (Op::Combine, "combine", Dtype::Bf16, 1),
    ] {
        for span in [Span::Isolated, Span::Chained] {
            let ranks: Vec<RankRun> = cards
                .iter()
                .enumerate()
                .filter_map(|(rank, card)| {
                    let samples = match span {
                        Span::Chained => {
                            let us = card.samples.chained.get(name)?.clone();
                            Samples1 { us, ..Samples1::default() }
                        }
                        _ => card.samples.isolated.get(name)?.clone(),
                    };
                    let [logical_bytes, wire_bytes, ceiling_bytes] = card.bytes[bytes];
                    Some(RankRun {
                        rank,
                        times_us: samples.us,
                        logical_bytes,
                        wire_bytes,
                        ceiling_bytes,
                        phases_us: samples.phases_us,
                    })
                })
                .collect();
            if ranks.is_empty() {
                continue;
            }
            let run_of = OpRun { key: OpKey { op, dtype, span }, ranks, sms: None };
            ops.push(run_of.summarise(Some(&run.ceiling.ceiling))?);
        }
    }
    Ok(ops)
}

/// How a backend timed.
pub(super) struct Timing {
    pub(super) hot: bool,
    pub(super) rotation_sets: u64,
    pub(super) spans: Vec<Span>,
    pub(super) sms: Vec<u64>,
}

pub(super) fn settings(options: &Options, timing: &Timing) -> Settings {
    let resolved = &options.resolved;
    let routing = match (options.routing_files.is_empty(), options.skew > 0.0, resolved.with_replacement) {
        (false, _, _) => "file",
        (_, true, true) => "zipf-with-replacement",
        (_, true, false) => "zipf",
        (_, false, true) => "uniform-with-replacement",
        (_, false, false) => "uniform",
    };
    let (layout, alignment) = match options.layout {
        Layout::BySource => ("by_source", 1),
        Layout::ExpertMajor { alignment } => ("expert_major", alignment as u64),
    };
    Settings {
        preset: resolved.preset.to_owned(),
        tokens: resolved.shape.max_tokens as u64,
        hidden: resolved.shape.hidden as u64,
        top_k: resolved.shape.top_k as u64,
        experts: resolved.shape.experts as u64,
        dispatch_dtype: resolved.dispatch_dtype.to_string(),
        combine_dtype: resolved.combine_dtype.to_string(),
        mode: resolved.mode,
        routing: routing.to_owned(),
        routing_skew: options.skew,
        routing_files: options.routing_files.clone(),
        seed: options.seed,
        layout: layout.to_owned(),
        alignment,
        warmup: resolved.warmup as u64,
        iters: resolved.iters as u64,
        sms: timing.sms.clone(),
        spans: timing.spans.clone(),
        verify: options.verify,
        hot: timing.hot,
        rotation_sets: timing.rotation_sets,
        deadline_s: Some(options.deadline.as_secs_f64()),
    }
}

/// Rows that arrived at each rank, and the choices of its experts, by rank.
pub(super) fn received(options: &Options, rows_per_rank: Vec<u64>, expert_counts: &[&[u64]]) -> Received {
    let mut tokens_per_expert: Vec<u64> = Vec::new();
    match options.resolved.scope {
        Scope::World => tokens_per_expert.extend(expert_counts.iter().copied().flatten()),
        // Every node has all experts: their counts are added.
        Scope::Node => {
            tokens_per_expert.resize(options.resolved.shape.experts, 0);
            for node in expert_counts.chunks(options.resolved.topology.ranks_per_node()) {
                let counts = node.iter().copied().flatten();
                for (sum, count) in tokens_per_expert.iter_mut().zip(counts) {
                    *sum += count;
                }
            }
        }
    }
    Received { rows_per_rank, tokens_per_expert }
}

pub(super) fn by_host(hosts: &[String]) -> Vec<Host> {
    let mut all: Vec<Host> = Vec::new();
    for (rank, name) in hosts.iter().enumerate() {
        match all.iter_mut().find(|host| &host.name == name) {
            Some(host) => host.ranks.push(rank as u64),
            None => all.push(Host { name: name.clone(), ranks: vec![rank as u64] }),
        }
    }
    all
}

fn guide_sums(options: &Options, card: &Card, tokens: u64) -> Sums {
    let sum = |op: &str| card.samples.isolated.get(op).map_or(0.0, |s| s.us.iter().sum::<f64>()) / 1e3;
    let plan = card
        .samples
        .isolated
        .get("dispatch")
        .and_then(|s| s.phases_us.get("plan"))
        .map_or(0.0, |us| us.iter().sum::<f64>() / 1e3);
    Sums {
        tokens,
        bytes_per_token: options.resolved.dispatch_dtype.row_bytes(options.resolved.shape.hidden) as u64,
        layout_ms: plan,
        // The guide times the layout by itself; here it is the first phase of dispatch.
        dispatch_ms: sum("dispatch") - plan,
        combine_ms: sum("combine"),
    }
}

/// The run in the Kubernetes guide's format.
pub fn guide_text(outcome: &Outcome) -> String {
    let result = &outcome.result;
    let gpus = result.backend.name == "cuda";
    let driver = if gpus {
        // The guide's script prints the GPU's name there.
        result.backend.details.get("gpu 0").cloned().unwrap_or_else(|| "unknown GPU".to_owned())
    } else {
        let cpu = result.machine.cpu.as_deref().unwrap_or("unknown CPU");
        let simd = result.backend.simd.as_deref().unwrap_or("portable");
        format!("expertrail host backend ({simd}), {cpu}")
    };
    let mut text = guide::banner(&Banner {
        nodes: result.topology.nodes as usize,
        ranks: result.topology.ranks as usize,
        unit: if gpus { "GPUs" } else { "ranks" },
        driver,
        details: vec![
            format!(
                "Expertrail: {}, kernel {}",
                result.tool.version,
                result.machine.kernel.as_deref().unwrap_or("?")
            ),
            format!(
                "Settings: {} tokens x {} hidden, top-{} of {}, {}, {} iterations, verification {}: {}",
                result.settings.tokens,
                result.settings.hidden,
                result.settings.top_k,
                result.settings.experts,
                result.settings.dispatch_dtype,
                result.settings.iters,
                result.settings.verify,
                result.verdict.status.label()
            ),
        ],
    });
    if result.topology.scope == Scope::Node || result.topology.nodes == 1 {
        text += &guide::intra_section(if gpus { "NVLink" } else { "shared memory" }, &outcome.guide);
    } else {
        let crossed = result.fabric.as_ref().and_then(|fabric| fabric.rails.first());
        let way = match crossed {
            Some(rail) => format!("{} on {}", rail.provider, rail.domain),
            None if gpus => "NVLink of one host".to_owned(),
            None => "shared memory of one host".to_owned(),
        };
        text += &guide::inter_section(&way, &outcome.inter);
    }
    text + &guide::closing()
}

/// The time now, UTC, as RFC 3339.
pub fn now_rfc3339() -> String {
    let seconds =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    rfc3339(seconds)
}

/// Days to a civil date as in the Gregorian calendar's 400-year cycle of 146,097 days.
fn rfc3339(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970 + days / 146_097 * 400;
    let mut left = days % 146_097;
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    loop {
        let length = if leap(year) { 366 } else { 365 };
        if left < length {
            break;
        }
        left -= length;
        year += 1;
    }
    let mut month = 0;
    for (i, length) in
        [31, if leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31].iter().enumerate()
    {
        if left < *length {
            month = i + 1;
            break;
        }
        left -= length;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_date_prints_them() {
        // date -u -d @N +%FT%TZ
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_795_991_312), "2026-11-29T22:28:32Z");
        assert_eq!(rfc3339(4_102_444_799), "2099-12-31T23:59:59Z");
    }

    #[test]
    fn ranks_are_listed_under_their_host() {
        let hosts = ["a", "a", "b"].map(str::to_owned);
        let all = by_host(&hosts);
        assert_eq!((all[0].ranks.clone(), all[1].name.as_str()), (vec![0, 1], "b"));
    }
}

//! From the ranks' reports to one result.

use std::collections::BTreeMap;

use expertrail::Group;
use expertrail::cuda::Attribute;
use serde::{Deserialize, Serialize};

use super::inputs::Inputs;
use super::measure::{CaseSamples, Samples};
use super::{Case, GpuTeam, Options};
use crate::guide::{self, Sums};
use crate::machine;
use crate::run::inputs::{CallBytes, mean_bytes};
use crate::run::report::{Timing, by_host, read_cards, received, settings};
use crate::run::verify::Tally;
use crate::run::{BenchError, Outcome};
use crate::schema::{
    Backend, LinkCeiling, Op, OpKey, OpResult, OpRun, RankRun, ResultFile, SCHEMA_ID, Span, Status, Tool,
    TopologyInfo, Verification,
};
use crate::stats::Times;

/// What was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Facts {
    /// Where the kernels came from.
    pub(super) origin: String,
    /// NVRTC's version, if it was opened.
    pub(super) nvrtc: Option<String>,
    /// The driver's CUDA version.
    pub(super) driver: String,
}

/// What one rank tells rank 0.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Card {
    samples: Samples,
    /// Logical and wire bytes of a BF16 dispatch, an FP8 one, and a combine.
    bytes: [[f64; 2]; 3],
    link: Option<LinkCeiling>,
    facts: Facts,
    gpu: String,
    heap_bytes: u64,
    hot: bool,
    rotation_sets: u64,
    warnings: Vec<String>,
    /// Tokens as the guide counts them, over the timed isolated iterations of the first SM count.
    guide: [u64; 2],
}

impl Card {
    fn bytes_of(&self, case: Case) -> [f64; 2] {
        match (case.op, case.fp8) {
            (Op::Combine, _) => self.bytes[2],
            (_, fp8) => self.bytes[usize::from(fp8)],
        }
    }
}

pub(super) fn card(
    options: &Options,
    team: &GpuTeam<'_>,
    inputs: &Inputs,
    samples: Samples,
    link: Option<LinkCeiling>,
    facts: Facts,
) -> Result<Vec<u8>, BenchError> {
    let shape = options.resolved.shape;
    let [bf16, combine] = mean_bytes(&inputs.traffic, shape, expertrail::Dtype::Bf16);
    let [fp8, _] = mean_bytes(&inputs.traffic, shape, expertrail::Dtype::Fp8E4m3);
    let mut guide = [0; 2];
    for (set, &times) in samples.iterations_by_set.iter().enumerate() {
        let routing = &inputs.routing(set)[team.comm.rank()];
        guide[0] += times * guide::intra_tokens(routing, &team.placement, team.comm.rank());
        guide[1] += times * guide::inter_tokens(routing, &team.placement, &team.topology);
    }
    let device = team.comm.context().device();
    let card = Card {
        samples,
        bytes: [bf16, fp8, combine].map(|CallBytes { logical, wire, .. }| [logical, wire]),
        link,
        facts,
        gpu: format!("{}, {} SMs", device.identity()?, device.attribute(Attribute::SMS)?),
        heap_bytes: team.comm.heap_bytes() as u64,
        hot: inputs.rotation.hot,
        rotation_sets: inputs.rotation.token_sets as u64,
        warnings: inputs.warnings.clone(),
        guide,
    };
    // Plain numbers and text: always serialisable. An empty card is refused by the reader.
    Ok(serde_json::to_vec(&card).unwrap_or_default())
}

pub(super) fn outcome(
    world: &Group,
    options: &Options,
    cards: &[Vec<u8>],
    started_at: String,
) -> Result<Outcome, BenchError> {
    let cards: Vec<Card> = read_cards(cards)?;
    assemble(options, &cards, &world.hosts(), started_at)
}

fn assemble(
    options: &Options,
    cards: &[Card],
    hosts: &[String],
    started_at: String,
) -> Result<Outcome, BenchError> {
    let mut tally = Tally::default();
    for card in cards {
        tally.add(&card.samples.tally);
    }
    let verification = Verification {
        mode: options.verify,
        rows_checked: tally.checked,
        rows_total: tally.total,
        mismatches: tally.mismatches,
        first_mismatch: tally.first,
    };
    let mut verdict = verification.verdict();
    let ops = ops(cards)?;
    if verdict.status == Status::Pass && ops.iter().any(|op| op.time_us.p50 <= 0.0) {
        verdict.status = Status::Inconclusive;
        verdict.reasons.push("a median time of zero: the clock cannot resolve this shape".to_owned());
    }
    let mut spans: Vec<Span> = Vec::new();
    for op in &ops {
        if !spans.contains(&op.span) {
            spans.push(op.span);
        }
    }
    let first = cards.first();
    let timing = Timing {
        hot: cards.iter().any(|card| card.hot),
        rotation_sets: first.map_or(0, |card| card.rotation_sets),
        spans,
        sms: options.gpu.sms.iter().map(|&sms| u64::from(sms)).collect(),
    };
    let topology = options.resolved.topology;
    let result = ResultFile {
        schema: SCHEMA_ID.to_owned(),
        tool: Tool {
            name: "expertrail".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: option_env!("EXPERTRAIL_COMMIT").map(str::to_owned),
        },
        started_at,
        command: options.command.clone(),
        settings: settings(options, &timing),
        topology: TopologyInfo {
            ranks: topology.ranks() as u64,
            ranks_per_node: topology.ranks_per_node() as u64,
            nodes: topology.nodes() as u64,
            scope: options.resolved.scope,
        },
        hosts: by_host(hosts),
        backend: Backend { name: "cuda".to_owned(), simd: None, copy: None, details: details(cards) },
        versions: versions(first.map(|card| &card.facts)),
        machine: machine::read(),
        ceiling: None,
        fabric: None,
        link_ceiling: first.and_then(|card| card.link.clone()),
        received: received(
            options,
            cards.iter().map(|card| card.samples.rows).collect(),
            &cards.iter().map(|card| &card.samples.expert_counts[..]).collect::<Vec<_>>(),
        ),
        warnings: warnings(options, cards),
        rails: Vec::new(),
        parts: Vec::new(),
        ops,
        verification,
        memory: None,
        verdict,
    };
    let per_node = topology.ranks_per_node();
    let sums = |card: &Card, tokens| guide_sums(options, card, tokens);
    let guide = cards.iter().step_by(per_node).map(|card| sums(card, card.guide[0])).collect();
    let inter = first.map_or_else(Sums::default, |card| sums(card, card.guide[1]));
    Ok(Outcome { result, guide, inter })
}

fn details(cards: &[Card]) -> BTreeMap<String, String> {
    let mut details: BTreeMap<String, String> =
        cards.iter().enumerate().map(|(rank, card)| (format!("gpu {rank}"), card.gpu.clone())).collect();
    let most = |of: fn(&Card) -> u64| cards.iter().map(of).max().unwrap_or(0).to_string();
    details.insert("heap_bytes".to_owned(), most(|card| card.heap_bytes));
    details
        .insert("fallbacks".to_owned(), cards.iter().map(|c| c.samples.fallbacks).sum::<u64>().to_string());
    if let Some(card) = cards.first() {
        details.insert("kernels".to_owned(), card.facts.origin.clone());
    }
    details.insert("expert_ids".to_owned(), "64-bit".to_owned());
    details.insert("phases".to_owned(), "of the kernel alone, by the device's clock".to_owned());
    details
}

fn versions(facts: Option<&Facts>) -> BTreeMap<String, String> {
    let mut versions = BTreeMap::from([("expertrail".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    if let Some(facts) = facts {
        versions.insert("cuda_driver".to_owned(), facts.driver.clone());
        versions.extend(facts.nvrtc.clone().map(|version| ("nvrtc".to_owned(), version)));
    }
    versions
}

fn warnings(options: &Options, cards: &[Card]) -> Vec<String> {
    let mut warnings = options.resolved.warnings.clone();
    let fallbacks: u64 = cards.iter().map(|card| card.samples.fallbacks).sum();
    if fallbacks > 0 {
        warnings.push(format!(
            "{fallbacks} dispatches found no room in the pool and were copied out of the fallback, so their times are too \
             long (counts grew by more than a quarter from call to call)"
        ));
    }
    if cards.len() > 1 && cards.iter().any(|card| card.link.is_none()) {
        warnings.push("the link ceiling was not measured: the pool had no room for it".to_owned());
    }
    for card in cards {
        for warning in &card.warnings {
            if !warnings.contains(warning) {
                warnings.push(warning.clone());
            }
        }
    }
    warnings
}

/// Every case in every span. The ceilings are those of rank 0, which are the slowest rank's.
fn ops(cards: &[Card]) -> Result<Vec<OpResult>, BenchError> {
    let Some(first) = cards.first() else { return Ok(Vec::new()) };
    first.samples.cases.iter().map(|one| op(cards, one, first.link.as_ref())).collect()
}

fn op(cards: &[Card], one: &CaseSamples, link: Option<&LinkCeiling>) -> Result<OpResult, BenchError> {
    let (case, span) = (one.case, one.span);
    let mut ranks = Vec::with_capacity(cards.len());
    let mut hosts: Vec<(usize, &[f64])> = Vec::with_capacity(cards.len());
    for (rank, card) in cards.iter().enumerate() {
        let samples = card.samples.cases.iter().find(|other| other.case == case && other.span == span);
        let Some(samples) = samples else {
            return Err(BenchError::Report { rank, reason: format!("it did not measure {case}, {span}") });
        };
        let [logical_bytes, wire_bytes] = card.bytes_of(case);
        ranks.push(RankRun {
            rank,
            times_us: samples.us.clone(),
            logical_bytes,
            wire_bytes,
            ceiling_bytes: wire_bytes,
            phases_us: samples.phases_us.clone(),
        });
        hosts.push((rank, &samples.host_us));
    }
    let key = OpKey { op: case.op, dtype: case.dtype(), span };
    let mut result = OpRun { key, ranks, sms: Some(u64::from(case.sms)) }.summarise(None)?;
    let of = |gbps: f64| (gbps > 0.0).then(|| result.wire_gbps / gbps);
    let (ceiling_ratio, push_ratio) = (
        link.and_then(|link| of(link.gbps())),
        link.and_then(|link| link.pushed_by(u64::from(case.sms))).and_then(of),
    );
    result.ceiling_ratio = ceiling_ratio;
    result.push_ratio = push_ratio;
    result.input = case.input;
    result.carries = Some(case.carries());
    if hosts.iter().all(|(_, us)| !us.is_empty()) {
        result.host_return_us = Some(Times::of(&crate::stats::max_over_ranks(&hosts)?)?);
    }
    Ok(result)
}

/// Sums of the workload's own type and the first of combine's inputs, at the first SM count. There is no layout step:
/// it is part of dispatch.
fn guide_sums(options: &Options, card: &Card, tokens: u64) -> Sums {
    let fp8 = options.resolved.dispatch_dtype == expertrail::Dtype::Fp8E4m3;
    let sum = |op: Op| {
        let mut isolated = card.samples.cases.iter().filter(|one| one.span == Span::Isolated);
        let one = isolated.find(|one| one.case.op == op && (op == Op::Combine || one.case.fp8 == fp8));
        one.map_or(0.0, |one| one.us.iter().sum::<f64>() / 1e3)
    };
    Sums {
        tokens,
        bytes_per_token: options.resolved.dispatch_dtype.row_bytes(options.resolved.shape.hidden) as u64,
        layout_ms: 0.0,
        dispatch_ms: sum(Op::Dispatch),
        combine_ms: sum(Op::Combine),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use expertrail::{Dtype, Layout};

    use super::super::{GpuOptions, cases};
    use super::*;
    use crate::export::{Format, render};
    use crate::preset::{Overrides, Preset};
    use crate::schema::conform::result_violations;
    use crate::schema::{PushCeiling, RowsIn, VerifyMode};
    use crate::table::{self, Style};

    fn options() -> Options {
        let preset: Preset = "deepseek-v3".parse().unwrap();
        let over = Overrides { ranks: Some(2), iters: Some(3), ..Overrides::default() };
        let inputs = vec![RowsIn::Private, RowsIn::Shared];
        Options {
            resolved: preset.resolve(&over).unwrap(),
            replayed: None,
            routing_files: Vec::new(),
            skew: 0.0,
            seed: 1,
            verify: VerifyMode::Full,
            deadline: Duration::from_mins(1),
            backend: expertrail::Backend::Cuda,
            gpu: GpuOptions::new(vec![8, 16], Dtype::Fp8E4m3, false, inputs),
            across: None,
            layout: Layout::BySource,
            combine_input: RowsIn::Shared,
            memory_limit: None,
            command: vec!["expertrail".to_owned(), "bench".to_owned()],
        }
    }

    /// A rank whose isolated calls take `us` and a little, by case.
    fn rank(options: &Options, us: f64) -> Card {
        let mut samples = Samples { rows: 4080, expert_counts: vec![64; 128], ..Samples::default() };
        for case in [8, 16].into_iter().flat_map(|sms| cases(&options.gpu, Some(sms), 2)) {
            for span in [Span::Isolated, Span::Aligned, Span::Chained] {
                let host_us = if span == Span::Isolated { vec![9.0, 11.0, 10.0] } else { Vec::new() };
                let us = vec![us, us + 2.0, us + 1.0];
                let phases_us = match span {
                    Span::Chained => BTreeMap::new(),
                    _ => BTreeMap::from([("kernel".to_owned(), us.iter().map(|us| us - 6.0).collect())]),
                };
                samples.cases.push(CaseSamples { case, span, us, host_us, phases_us });
            }
        }
        samples.tally = Tally { checked: 1000, total: 1000, ..Tally::default() };
        let push = vec![PushCeiling { sms: 8, gbps: 300.0 }, PushCeiling { sms: 16, gbps: 320.0 }];
        Card {
            samples,
            bytes: [[117.0e6, 60.0e6], [61.0e6, 31.0e6], [117.0e6, 58.0e6]],
            link: Some(LinkCeiling { copy_engine_gbps: 400.0, push, bytes: 134_217_728, gpus: 2 }),
            facts: Facts { origin: "embedded".to_owned(), nvrtc: None, driver: "13.0".to_owned() },
            gpu: "device 0 (NVIDIA H200, GPU-0), 132 SMs".to_owned(),
            heap_bytes: 3 << 30,
            hot: false,
            rotation_sets: 2,
            warnings: Vec::new(),
            guide: [6000, 3000],
        }
    }

    fn outcome() -> Outcome {
        let options = options();
        let cards = [rank(&options, 198.0), rank(&options, 199.0)];
        let hosts = ["node-a", "node-a"].map(str::to_owned);
        assemble(&options, &cards, &hosts, "2026-11-30T02:00:00Z".to_owned()).unwrap()
    }

    #[test]
    fn a_result_of_gpus_conforms_and_reads_back() {
        let result = outcome().result;
        let text = render(&result, Format::Json).unwrap();
        assert_eq!(result_violations(&serde_json::from_str(&text).unwrap()), Vec::<String>::new());
        let read = ResultFile::from_json(&text).unwrap();
        assert_eq!((read.ops.len(), &read.link_ceiling), (result.ops.len(), &result.link_ceiling));
        assert_eq!((&read.settings, &read.ops[0]), (&result.settings, &result.ops[0]));
        assert_eq!((result.verdict.status, result.backend.name.as_str()), (Status::Pass, "cuda"));
        assert_eq!(result.settings.sms, [8, 16]);
        assert_eq!(result.settings.spans, [Span::Isolated, Span::Aligned, Span::Chained]);
        assert_eq!(result.versions["cuda_driver"], "13.0");
        // Every field of an operation on GPUs stands in the schema.
        let schema: serde_json::Value = serde_json::from_str(crate::schema::JSON_SCHEMA).unwrap();
        let document = serde_json::to_value(&result).unwrap();
        for name in document["ops"][0].as_object().unwrap().keys() {
            assert!(schema["$defs"]["op"]["properties"].get(name).is_some(), "{name}");
        }
        for name in document.as_object().unwrap().keys() {
            assert!(schema["properties"].get(name).is_some(), "{name}");
        }
    }

    #[test]
    fn a_sweep_has_a_row_for_each_case_span_and_sm_count() {
        let ops = outcome().result.ops;
        // 2 dispatches, 1 cached, 2 combines; 3 spans; 2 SM counts.
        assert_eq!(ops.len(), 5 * 3 * 2);
        let of_16: Vec<&OpResult> = ops.iter().filter(|op| op.sms == Some(16)).collect();
        assert_eq!(of_16.len(), 15);
        let first = of_16[0];
        assert_eq!((first.op, first.dtype.as_str(), first.span), (Op::Dispatch, "bf16", Span::Isolated));
        // The slower rank takes 199, 201 and 200 us: 60 MB of wire bytes in 200 us are 300 GB/s.
        assert_eq!((first.time_us.p50, first.wire_gbps), (200.0, 300.0));
        assert_eq!((first.ceiling_ratio, first.push_ratio), (Some(0.75), Some(300.0 / 320.0)));
        assert_eq!(first.host_return_us.unwrap().p50, 10.0);
        assert_eq!(first.carries.as_deref().unwrap(), ["ids", "weights"]);
        assert_eq!(ops[0].push_ratio, Some(1.0));
        assert_eq!(of_16[1].host_return_us, None);
        let fp8 = of_16.iter().find(|op| op.dtype == "fp8").unwrap();
        assert_eq!((fp8.wire_gbps, fp8.carries.as_ref().unwrap().len()), (155.0, 3));
        let inputs: Vec<_> = of_16.iter().filter(|op| op.op == Op::Combine).map(|op| op.input).collect();
        assert_eq!((inputs[0], inputs[5]), (Some(RowsIn::Private), Some(RowsIn::Shared)));
    }

    #[test]
    fn every_report_shows_sms_inputs_and_the_link() {
        let outcome = outcome();
        let result = &outcome.result;
        let plain = table::render(result, Style { color: false, width: None });
        for part in [
            "cuda backend",
            "dispatch fp8, 16 SMs",
            "combine bf16, private, 8 SMs",
            "aligned bf16",
            "link ceiling: 400.0 GB/s sent by each GPU (copy engine 400.0, push by 8 SMs 300.0, push by 16 SMs 320.0; \
             2 GPUs sending at once, 128 MiB each)",
            "dispatch bf16, 16 SMs 94 %",
            "the call gave the host back after (p50): dispatch bf16, 8 SMs 10.00 µs",
            "dispatch_cached bf16, 8 SMs nothing",
            "the kernel alone took (p50): dispatch bf16, 8 SMs 194.0 µs",
            "dispatch fp8, 8 SMs scales + ids + weights",
        ] {
            assert!(plain.contains(part), "{part} in\n{plain}");
        }
        let csv = render(result, Format::Csv).unwrap();
        let lines: Vec<&str> = csv.split_terminator("\r\n").collect();
        let header: Vec<&str> = lines[0].split(',').collect();
        let at = |name| header.iter().position(|column| *column == name).unwrap();
        let row: Vec<&str> = lines[1].split(',').collect();
        assert_eq!(row.len(), header.len());
        assert_eq!((row[at("sms")], row[at("carries")], row[at("input")]), ("8", "ids+weights", ""));
        assert_eq!((row[at("push_ratio")], row[at("host_return_p50_us")]), ("1", "10"));
        for format in [Format::Markdown, Format::Html] {
            let text = render(result, format).unwrap();
            for part in ["combine, shared, 16 SMs", "link ceiling: 400.0 GB/s", "NVIDIA H200"] {
                assert!(text.contains(part), "{part} in\n{text}");
            }
        }
        let guide = crate::run::guide_text(&outcome);
        assert!(guide.contains("2 GPUs") && guide.contains("(NVLink)"), "{guide}");
        assert!(guide.contains("Driver: device 0 (NVIDIA H200"), "{guide}");
    }

    #[test]
    fn what_could_not_be_measured_is_said() {
        let options = options();
        let mut cards = [rank(&options, 198.0), rank(&options, 199.0)];
        for card in &mut cards {
            card.link = None;
            card.samples.fallbacks = 2;
        }
        let hosts = ["node-a", "node-a"].map(str::to_owned);
        let result = assemble(&options, &cards, &hosts, "2026-11-30T02:00:00Z".to_owned()).unwrap().result;
        let warnings = result.warnings.join("\n");
        for part in ["link ceiling was not measured", "4 dispatches found no room"] {
            assert!(warnings.contains(part), "{warnings}");
        }
        assert!(result.ops.iter().all(|op| op.ceiling_ratio.is_none() && op.push_ratio.is_none()));
        assert_eq!(result_violations(&serde_json::to_value(result).unwrap()), Vec::<String>::new());
    }

    #[test]
    fn ranks_that_measured_other_things_are_an_error() {
        let options = options();
        let mut cards = [rank(&options, 198.0), rank(&options, 199.0)];
        cards[1].samples.cases.pop();
        let hosts = ["node-a", "node-a"].map(str::to_owned);
        let error = assemble(&options, &cards, &hosts, String::new()).unwrap_err().to_string();
        assert!(
            error.contains("rank 1")
                && error.contains("did not measure combine bf16, shared, 16 SMs, chained"),
            "{error}"
        );
    }

    #[test]
    fn wrong_rows_fail_the_verdict() {
        let options = options();
        let mut cards = [rank(&options, 198.0), rank(&options, 199.0)];
        cards[1].samples.tally.mismatches = 3;
        cards[1].samples.tally.first = Some("dispatch bf16, 16 SMs, rank 1, row 7".to_owned());
        let hosts = ["node-a", "node-a"].map(str::to_owned);
        let result = assemble(&options, &cards, &hosts, String::new()).unwrap().result;
        assert_eq!(result.verdict.status, Status::Fail);
        assert!(result.verdict.reasons.concat().contains("rank 1, row 7"));
    }
}

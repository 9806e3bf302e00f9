//! JSON documents: results of `expertrail bench`, nccl-tests' `-J` and summaries of training benchmarks.
//!
//! The structures here are small and forgive: what is absent is not known.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::super::lines::short;
use super::super::model::{Counts, Figure, KEPT, Kind, Mark, Place, Run, Said, Section, Settings, Training};
use super::generic;

/// The runs of a document; none: it is no JSON.
pub(super) fn read(file: &str, bytes: &[u8]) -> Option<Vec<Run>> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let place = Place { file: file.to_owned(), line: 0 };
    let schema = value.get("schema").and_then(Value::as_str).unwrap_or_default();
    if schema.starts_with("expertrail.result/") {
        return Some(results(&value, schema, &place));
    }
    let run = if !schema.is_empty() {
        let mut run = Run { place, ..Run::default() };
        run.note(format!(
            "a document of schema {schema}: expertrail.result/1 is wanted (a verdict goes to --baseline)"
        ));
        run
    } else if value.get("results").is_some_and(Value::is_array) {
        alltoall(&value, &place)
    } else if value.get("total_steps").is_some() || value.get("avg_iter_time_seconds").is_some() {
        summary(&value, &place)
    } else {
        let mut run = Run { place, ..Run::default() };
        run.note("JSON of no form that is known".to_owned());
        run
    };
    Some(vec![run])
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResultFile {
    settings: ResultSettings,
    topology: Topology,
    hosts: Vec<Host>,
    backend: Backend,
    versions: BTreeMap<String, String>,
    received: Received,
    ceiling: Option<Copies>,
    link_ceiling: Option<Links>,
    ops: Vec<Op>,
    verification: Verification,
    warnings: Vec<String>,
    verdict: Verdict,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResultSettings {
    tokens: Option<u64>,
    hidden: Option<u64>,
    top_k: Option<u64>,
    experts: Option<u64>,
    routing: String,
    mode: String,
    hot: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Topology {
    ranks: Option<u64>,
    ranks_per_node: Option<u64>,
    nodes: Option<u64>,
    scope: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Received {
    rows_per_rank: Vec<u64>,
}

/// Of one rank.
#[derive(Default, Deserialize)]
#[serde(default)]
struct OfRank {
    rank: u32,
    time_us: Times,
}

/// Of all ranks.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Bytes {
    mean: Option<f64>,
    max: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Host {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Backend {
    name: String,
    details: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Copies {
    memcpy_gbps: f64,
    non_temporal_gbps: f64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Links {
    copy_engine_gbps: f64,
    push: Vec<Push>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Push {
    sms: u64,
    gbps: f64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Op {
    #[serde(rename = "op")]
    name: String,
    dtype: String,
    span: String,
    time_us: Times,
    per_rank: Vec<Value>,
    iterations: Option<u64>,
    wire_bytes: Bytes,
    wire_gbps: Option<f64>,
    ceiling_bytes_gbps: Option<f64>,
    logical_gbps: Option<f64>,
    sms: Option<u64>,
    input: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Times {
    p50: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Verification {
    mode: String,
    rows_checked: u64,
    rows_total: Option<u64>,
    mismatches: u64,
    first_mismatch: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Verdict {
    status: String,
    reasons: Vec<String>,
}

/// The run at the top of a document, and one for each further part: a part is the document with some fields of its own.
fn results(value: &Value, schema: &str, place: &Place) -> Vec<Run> {
    /// Parts that are read: benchmarks of one run are a handful.
    const PARTS: usize = 16;
    let mut runs = vec![result(value, schema, place)];
    let Some(parts) = value.get("parts").and_then(Value::as_array) else { return runs };
    let mut common = value.clone();
    if let Some(fields) = common.as_object_mut() {
        fields.retain(|name, _| name != "parts" && name != "ops" && name != "received");
    }
    for part in parts.iter().take(PARTS).filter_map(Value::as_object) {
        let mut document = common.clone();
        if let Some(fields) = document.as_object_mut() {
            fields.extend(part.iter().map(|(name, field)| (name.clone(), field.clone())));
        }
        runs.push(result(&document, schema, place));
    }
    runs
}

fn result(value: &Value, schema: &str, place: &Place) -> Run {
    let mut run = Run { kind: Kind::Expertrail, place: place.clone(), ..Run::default() };
    if schema != "expertrail.result/1" {
        run.kind = Kind::Unknown;
        run.note(format!(
            "{schema}: this program reads expertrail.result/1; use the newer expertrail that wrote it"
        ));
        return run;
    }
    let file: ResultFile = match serde_json::from_value(value.clone()) {
        Ok(file) => file,
        Err(error) => {
            run.kind = Kind::Unknown;
            run.note(format!("a damaged result: {error}"));
            return run;
        }
    };
    let said = |text: String| Said { text, place: place.clone() };
    run.settings = Settings {
        nodes: file.topology.nodes,
        ranks: file.topology.ranks,
        ranks_per_node: file.topology.ranks_per_node,
        tokens: file.settings.tokens,
        hidden: file.settings.hidden,
        top_k: file.settings.top_k,
        experts: file.settings.experts,
        with_replacement: file.settings.routing.contains("with-replacement"),
        ..Settings::default()
    };
    run.gpu =
        file.backend.details.values().find_map(|text| generic::gpu(text)).map(|gpu| said(gpu.to_owned()));
    run.versions = file.versions.iter().map(|(name, text)| (name.clone(), said(text.clone()))).collect();
    run.origins = file.hosts.iter().map(|host| host.name.clone()).collect();
    run.tests.verified = (file.verification.mode != "off" && !file.verification.mode.is_empty())
        .then_some(file.verification.rows_checked);
    if file.verification.mismatches > 0 {
        let first = file.verification.first_mismatch.clone().unwrap_or_default();
        run.tests.wrong.push(said(short(&format!("{} rows differ: {first}", file.verification.mismatches))));
    }
    let checked = &file.verification;
    let received: u64 = file.received.rows_per_rank.iter().fold(0, |sum, rows| sum.saturating_add(*rows));
    let total = checked.rows_total.unwrap_or(0).max(if checked.mode == "full" { received } else { 0 });
    if run.tests.verified.is_none() {
        run.tests.unverified = Some(said("verification is off".to_owned()));
    } else if checked.rows_checked == 0 || (checked.mode == "full" && checked.rows_checked < total) {
        run.tests.verified = None;
        run.tests.partly = Some(said(format!(
            "verification is {}, and {} of {total} rows were compared",
            checked.mode, checked.rows_checked
        )));
    }
    if !file.received.rows_per_rank.is_empty() && received == 0 {
        run.tests.partly = Some(said("no rank received a row".to_owned()));
    }
    run.warned =
        file.warnings.iter().take(super::super::model::MARKS).map(|text| said(short(text))).collect();
    let fallbacks = file.backend.details.get("fallbacks").and_then(|count| count.trim().parse::<u64>().ok());
    if let Some(count) = fallbacks.filter(|count| *count > 0) {
        run.warned.push(said(format!("{count} calls fell back to another path")));
    }
    run.own_verdict = Some(said(if file.verdict.reasons.is_empty() {
        file.verdict.status.clone()
    } else {
        format!("{}: {}", file.verdict.status, short(&file.verdict.reasons.join("; ")))
    }));
    for warning in file.warnings.iter().take(super::super::model::MARKS) {
        run.note(short(warning));
    }
    if file.settings.hot {
        run.note("the inputs fit the last-level cache: the times flatter the memory".to_owned());
    }
    let host = file.backend.name == "host";
    let section = if file.settings.mode == "ll" {
        Section::LowLatency
    } else if file.topology.nodes.is_some_and(|nodes| nodes > 1) && file.topology.scope != "node" {
        Section::Internode
    } else {
        Section::Intranode
    };
    run.sections.insert(section, place.clone());
    let ceiling = if host {
        file.ceiling.map(|copies| copies.memcpy_gbps.max(copies.non_temporal_gbps))
    } else {
        file.link_ceiling
            .as_ref()
            .map(|links| links.push.iter().map(|push| push.gbps).fold(links.copy_engine_gbps, f64::max))
    };
    // Measured inside one node: what crosses NICs has another.
    let ceiling = ceiling.filter(|ceiling| *ceiling > 0.0 && section == Section::Intranode);
    let pushes = file.link_ceiling.map(|links| links.push).unwrap_or_default();
    for op in file.ops.iter().take(KEPT) {
        let name = op.name.replace('_', "-");
        if file.topology.ranks.is_some_and(|ranks| ranks != op.per_rank.len() as u64) {
            run.mark(Mark {
                section: Some(section),
                text: format!(
                    "{name}: times of {} ranks, {} ran",
                    op.per_rank.len(),
                    file.topology.ranks.unwrap_or(0)
                ),
                place: place.clone(),
                ..Mark::default()
            });
        }
        if op.iterations == Some(0) {
            run.mark(Mark {
                section: Some(section),
                text: format!("{name}: 0 iterations"),
                place: place.clone(),
                ..Mark::default()
            });
            continue;
        }
        let Some(wire) = op.wire_gbps else {
            run.mark(Mark {
                section: Some(section),
                text: format!("{name}: no wire_gbps"),
                place: place.clone(),
                ..Mark::default()
            });
            continue;
        };
        let mut details = BTreeMap::from([("span".to_owned(), op.span.clone())]);
        if let Some(input) = &op.input {
            details.insert("rows_in".to_owned(), input.clone());
        }
        if host {
            details.insert("backend".to_owned(), "host".to_owned());
        }
        run.figure(Figure {
            section,
            op: name,
            dtype: op.dtype.clone(),
            counts: Counts::Wire,
            value: wire,
            wire_gb_s: Some(wire),
            memory_gb_s: op.ceiling_bytes_gbps.filter(|_| host),
            beside_gb_s: op.logical_gbps,
            time_us: op.time_us.p50,
            bytes: [op.wire_bytes.mean, op.wire_bytes.max].into_iter().flatten().collect(),
            rank_times_us: op
                .per_rank
                .iter()
                .filter_map(|rank| OfRank::deserialize(rank).ok())
                .filter_map(|of| Some((of.rank, of.time_us.p50?)))
                .collect(),
            sms: op.sms,
            details,
            measured_ceiling: ceiling,
            measured_push: op
                .sms
                .and_then(|sms| pushes.iter().find(|push| push.sms == sms))
                .map(|push| push.gbps),
            place: place.clone(),
            ..Figure::default()
        });
    }
    run
}

/// nccl-tests `-J`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Nccl {
    args: Value,
    #[serde(rename = "nccl_version")]
    version: Value,
    devices: Vec<Device>,
    results: Vec<NcclRow>,
    out_of_bounds: Checked,
    average_bus_bandwidth: Checked,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Device {
    rank: Option<u64>,
    hostname: String,
    #[serde(rename = "device_info")]
    info: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NcclRow {
    size: Value,
    out_of_place: NcclHalf,
    in_place: NcclHalf,
}

/// Numbers may be texts: no number is written as "nan".
#[derive(Default, Deserialize)]
#[serde(default)]
struct NcclHalf {
    time: Value,
    bus_bw: Value,
    nwrong: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Checked {
    okay: Value,
}

fn plain(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn alltoall(value: &Value, place: &Place) -> Run {
    let mut run = Run { kind: Kind::Alltoall, place: place.clone(), ..Run::default() };
    let nccl: Nccl = match serde_json::from_value(value.clone()) {
        Ok(nccl) => nccl,
        Err(error) => {
            run.kind = Kind::Unknown;
            run.note(format!("a damaged result of nccl-tests: {error}"));
            return run;
        }
    };
    let said = |text: String| Said { text, place: place.clone() };
    let args = nccl.args.to_string();
    for name in ["alltoall", "all_reduce", "all_gather", "reduce_scatter", "sendrecv", "broadcast"] {
        if args.contains(&format!("{name}_perf")) {
            run.versions.insert("collective".to_owned(), said(name.to_owned()));
        }
    }
    if let Some(version) = nccl.version.as_str() {
        run.versions.insert("nccl".to_owned(), said(short(version)));
    }
    run.origins =
        nccl.devices.iter().map(|device| device.hostname.clone()).filter(|name| !name.is_empty()).collect();
    run.gpu =
        nccl.devices.iter().find_map(|device| generic::gpu(&device.info)).map(|gpu| said(gpu.to_owned()));
    run.settings.nodes = (!run.origins.is_empty()).then_some(run.origins.len() as u64);
    run.settings.ranks =
        nccl.devices.iter().filter_map(|device| device.rank).max().map(|rank| rank.saturating_add(1));
    let no = |checked: &Checked| checked.okay == Value::Bool(false) || checked.okay.as_str() == Some("false");
    for (checked, what) in [
        (&nccl.out_of_bounds, "values out of bounds"),
        (&nccl.average_bus_bandwidth, "average bus bandwidth not okay"),
    ] {
        if no(checked) {
            run.tests.wrong.push(said(what.to_owned()));
        }
    }
    let yes =
        nccl.out_of_bounds.okay == Value::Bool(true) || nccl.out_of_bounds.okay.as_str() == Some("true");
    if yes {
        run.tests.verified = Some(nccl.results.len() as u64);
    }
    if !nccl.average_bus_bandwidth.okay.is_null() {
        run.ended = Some(place.clone());
    }
    for row in nccl.results.iter().take(KEPT) {
        if [&row.out_of_place, &row.in_place]
            .iter()
            .any(|half| plain(&half.nwrong).is_some_and(|wrong| wrong > 0.0))
        {
            run.tests.wrong.push(said(format!("wrong values at size {}", row.size)));
        }
        run.tests.begun += 1;
        run.tests.passed += u64::from(plain(&row.out_of_place.nwrong) == Some(0.0));
        let Some(value) = plain(&row.out_of_place.bus_bw) else { continue };
        run.figure(Figure {
            section: Section::Collective,
            op: "alltoall".to_owned(),
            counts: Counts::Bus,
            value,
            time_us: plain(&row.out_of_place.time),
            details: [(
                "size".to_owned(),
                plain(&row.size).map_or_else(String::new, |size| format!("{size:.0}")),
            )]
            .into(),
            place: place.clone(),
            ..Figure::default()
        });
    }
    run
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TrainingSummary {
    total_steps: Option<u64>,
    warmup_steps: Option<u64>,
    setup_time_seconds: Option<f64>,
    warmup_time_seconds: Option<f64>,
    training_time_seconds: Option<f64>,
    avg_iter_time_seconds: Option<f64>,
    avg_mfu_percent: Option<f64>,
    world_size: Option<u64>,
}

fn summary(value: &Value, place: &Place) -> Run {
    let mut run = Run { kind: Kind::Summary, place: place.clone(), ..Run::default() };
    match serde_json::from_value::<TrainingSummary>(value.clone()) {
        Ok(read) => {
            run.settings.ranks = read.world_size;
            run.training = Some(Training {
                steps: read.total_steps,
                warmup: read.warmup_steps,
                setup_s: read.setup_time_seconds,
                warmup_s: read.warmup_time_seconds,
                measured_s: read.training_time_seconds,
                step_s: read.avg_iter_time_seconds,
                step_of_summary: true,
                mfu_percent: read.avg_mfu_percent,
                summarised: true,
                summary_steps: read.total_steps,
                summary_ranks: read.world_size,
                summary_file: Some(place.clone()),
                place: place.clone(),
                ..Training::default()
            });
        }
        Err(error) => {
            run.kind = Kind::Unknown;
            run.note(format!("a damaged summary: {error}"));
        }
    }
    run
}

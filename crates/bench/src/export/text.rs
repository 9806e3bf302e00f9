//! Numbers as people read them, and the settings as lines; shared by every report.

use crate::schema::{FabricRun, LinkCeiling, Op, OpResult, RailRun, ResultFile, Span};

/// Microseconds with three or four significant digits.
pub(crate) fn time_text(us: f64) -> String {
    match us {
        us if us >= 1000.0 => format!("{us:.0}"),
        us if us >= 100.0 => format!("{us:.1}"),
        us => format!("{us:.2}"),
    }
}

/// GB/s.
pub(crate) fn rate_text(gbps: f64) -> String {
    if gbps >= 100.0 { format!("{gbps:.1}") } else { format!("{gbps:.2}") }
}

/// A ratio as a percentage; a dash when there is none.
pub(crate) fn percent_text(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |r| format!("{:.0} %", r * 100.0))
}

/// A count with its thousands apart.
pub(crate) fn count_text(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// What tells an operation from others of its name and payload: where combine's rows lay, and the SMs.
pub(crate) fn variant_text(op: &OpResult) -> String {
    let input = op.input.map_or_else(String::new, |input| format!(", {input}"));
    let sms = op.sms.map_or_else(String::new, |sms| format!(", {}", plural(sms, "SM")));
    format!("{input}{sms}")
}

/// What is known of a result beyond its tables, one line each.
pub(crate) fn notes(result: &ResultFile) -> Vec<String> {
    let mut notes: Vec<String> = result.link_ceiling.iter().map(link_text).collect();
    let isolated = |text: &dyn Fn(&OpResult) -> Option<String>| {
        let ops = result.ops.iter().filter(|op| op.span == Span::Isolated);
        let parts: Vec<String> = ops
            .filter_map(|op| Some(format!("{} {}{} {}", op.op, op.dtype, variant_text(op), text(op)?)))
            .collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    };
    let pushed = isolated(&|op| op.push_ratio.map(|_| percent_text(op.push_ratio)));
    notes.extend(pushed.map(|text| format!("of what as many SMs push plainly: {text}")));
    let returned = isolated(&|op| op.host_return_us.map(|times| format!("{} µs", time_text(times.p50))));
    notes.extend(returned.map(|text| format!("the call gave the host back after (p50): {text}")));
    let kernels = isolated(&|op| {
        let us = op.phases_us.get("kernel").filter(|_| op.sms.is_some())?;
        Some(format!("{} µs", time_text(*us)))
    });
    notes.extend(kernels.map(|text| format!("the kernel alone took (p50): {text}")));
    let carried = isolated(&|op| {
        let carries = op.carries.as_ref()?;
        Some(if carries.is_empty() { "nothing".to_owned() } else { carries.join(" + ") })
    });
    notes.extend(carried.map(|text| format!("carried beside the rows: {text}")));
    notes.extend(result.fabric.iter().flat_map(fabric_text));
    let detail = |name: &str| result.backend.details.get(name);
    let heap = detail("heap_bytes").and_then(|bytes| bytes.parse().ok()).map(bytes_text);
    notes.extend(heap.map(|heap| {
        let other = |name: &str| detail(name).map_or("unknown", String::as_str);
        let (kernels, fallbacks) = (other("kernels"), other("fallbacks"));
        format!("each GPU: {heap} of symmetric memory; kernels {kernels}; {fallbacks} outputs found no room in the pool")
    }));
    notes
}

fn link_text(link: &LinkCeiling) -> String {
    let mut parts = vec![format!("copy engine {}", rate_text(link.copy_engine_gbps))];
    let pushes = link.push.iter();
    parts.extend(pushes.map(|push| format!("push by {} {}", plural(push.sms, "SM"), rate_text(push.gbps))));
    format!(
        "link ceiling: {} GB/s sent by each GPU ({}; {} sending at once, {} each)",
        rate_text(link.gbps()),
        parts.join(", "),
        plural(link.gpus, "GPU"),
        bytes_text(link.bytes)
    )
}

/// More rails than this are only in the result's JSON.
const RAILS_SHOWN: usize = 16;

fn fabric_text(fabric: &FabricRun) -> Vec<String> {
    let of = |name: &Op| fabric.ops.iter().find(|op| op.op == *name && op.span == Span::Isolated);
    let reached: Vec<String> = [Op::Dispatch, Op::DispatchCached, Op::Combine]
        .iter()
        .filter_map(of)
        .map(|op| {
            let (rate, part) = (rate_text(op.wire_gbps), percent_text(op.raw_ratio));
            format!("{} {rate} GB/s ({part} of raw)", op.op)
        })
        .collect();
    let mut lines = vec![
        format!(
            "between nodes ({}): {}, wire bytes of each rank",
            if fabric.simulated { "simulated" } else { &fabric.asked },
            reached.join("; ")
        ),
        format!(
            "raw rate: {} GB/s from each rank to its rail peers, all at once ({} a write, {} in flight to each, {} s); chunks of {}",
            rate_text(fabric.raw_gbps),
            bytes_text(fabric.raw_message_bytes),
            fabric.window,
            fabric.raw_seconds,
            bytes_text(fabric.chunk_bytes)
        ),
    ];
    lines.extend(fabric.rails.iter().take(RAILS_SHOWN).map(rail_text));
    if fabric.rails.len() > RAILS_SHOWN {
        lines.push(format!("{} more rails: see the result's JSON", fabric.rails.len() - RAILS_SHOWN));
    }
    lines
}

/// `1.5 MB`: rates are in powers of ten, and so is what they are made of.
fn megabytes(bytes: Option<&f64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{:.2}", bytes / 1e6))
}

fn rail_text(rail: &RailRun) -> String {
    let moved: Vec<String> = [Op::Dispatch, Op::Combine]
        .iter()
        .map(|op| {
            let name = op.to_string();
            let (logical, wire) = (rail.logical_bytes.get(&name), rail.wire_bytes.get(&name));
            format!("{op} {} MB logical, {} wire", megabytes(logical), megabytes(wire))
        })
        .collect();
    let events = [
        (rail.sleeps, "sleep"),
        (rail.busy, "busy queue"),
        (rail.ring_stalls, "ring stall"),
        (rail.call_stalls, "call stall"),
        (rail.duplicates, "duplicate"),
        (rail.failed, "failed write"),
    ]
    .map(|(count, noun)| plural(count, noun));
    format!(
        "rank {} (node {}, rail {}): {} on {} ({}; {}), raw {} GB/s; {}; proxy busy in {:.0} % of its turns, {}",
        rail.rank,
        rail.node,
        rail.local_rank,
        rail.provider,
        rail.domain,
        rail.library,
        rail.chosen,
        rate_text(rail.raw_gbps),
        moved.join("; "),
        rail.utilisation * 100.0,
        events.join(", ")
    )
}

/// A number and its noun.
pub(crate) fn plural(n: u64, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{} {noun}s", count_text(n)) }
}

/// Bytes in binary units.
pub(crate) fn bytes_text(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 {
        format!("{value:.0} {}", units[unit])
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

/// Settings and environment, as (name, value) lines.
pub(crate) fn settings_rows(result: &ResultFile) -> Vec<(&'static str, String)> {
    let (s, t) = (&result.settings, &result.topology);
    let mut rows = vec![
        ("Preset", s.preset.clone()),
        (
            "Shape",
            format!(
                "{} tokens x {} hidden per rank, top-{} of {} experts",
                count_text(s.tokens),
                count_text(s.hidden),
                s.top_k,
                s.experts
            ),
        ),
        ("Payload", format!("dispatch {}, combine {}", s.dispatch_dtype, s.combine_dtype)),
        (
            "Topology",
            format!("{} on {}, scope {}", plural(t.ranks, "rank"), plural(t.nodes, "node"), t.scope),
        ),
        ("Mode", format!("{}, layout {}, alignment {}", s.mode, s.layout, s.alignment)),
        ("Routing", routing_text(result)),
        ("SMs", sms_text(result)),
        ("Iterations", format!("{} timed after {} warm-up", s.iters, s.warmup)),
        ("Timing", timing_text(result)),
        ("Verification", verification_text(result)),
        ("Ceiling", ceiling_text(result)),
        ("Backend", backend_text(result)),
    ];
    rows.retain(|(_, value)| !value.is_empty());
    let m = &result.machine;
    let facts = [
        m.cpu.clone(),
        m.cores.map(|n| format!("{n} cores")),
        m.llc_bytes.map(|b| format!("{} last-level cache", bytes_text(b))),
        m.memory_bytes.map(|b| format!("{} memory", bytes_text(b))),
        m.kernel.as_ref().map(|k| format!("kernel {k}")),
    ];
    rows.push(("Machine", facts.into_iter().flatten().collect::<Vec<_>>().join(", ")));
    rows.push(("Hosts", result.hosts.iter().map(|h| h.name.as_str()).collect::<Vec<_>>().join(", ")));
    if let Some(memory) = &result.memory {
        let peak = memory.peak_bytes_per_rank.iter().max().copied().unwrap_or(0);
        let budget = memory.budget_bytes.map_or_else(String::new, |b| format!(", budget {}", bytes_text(b)));
        rows.push(("Memory", format!("peak {} per rank{budget}", bytes_text(peak))));
    }
    for (name, version) in &result.versions {
        rows.push(("Version", format!("{name} {version}")));
    }
    let commit = result.tool.commit.as_ref().map_or_else(String::new, |c| format!(" ({c})"));
    rows.push(("Tool", format!("{} {}{commit}", result.tool.name, result.tool.version)));
    rows.push(("Started", result.started_at.clone()));
    rows.push(("Command", result.command.join(" ")));
    rows
}

/// The SM counts asked for; empty on the CPU.
fn sms_text(result: &ResultFile) -> String {
    let sms = &result.settings.sms;
    match (sms.as_slice(), result.backend.name.as_str()) {
        ([], "cuda") => "the library's rule".to_owned(),
        _ => sms.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

fn routing_text(result: &ResultFile) -> String {
    let s = &result.settings;
    match s.routing_files.as_slice() {
        [] if s.routing_skew > 0.0 => {
            format!("{}, Zipf exponent {}, seed {}", s.routing, s.routing_skew, s.seed)
        }
        [] => format!("{}, seed {}", s.routing, s.seed),
        [file] => format!("replayed from {file}"),
        files => format!("replayed from {} files, {} first", files.len(), files[0]),
    }
}

fn timing_text(result: &ResultFile) -> String {
    let s = &result.settings;
    let spans = s.spans.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let cache =
        if s.hot { "hot: inputs fit the last-level cache" } else { "inputs beyond the last-level cache" };
    format!("{spans}; maximum over ranks, then percentiles; {} input sets, {cache}", s.rotation_sets)
}

/// What was verified, in words.
pub(crate) fn verification_text(result: &ResultFile) -> String {
    let v = &result.verification;
    format!(
        "{}: {} of {} rows checked, {} wrong",
        v.mode,
        count_text(v.rows_checked),
        count_text(v.rows_total),
        count_text(v.mismatches)
    )
}

/// The machine's ceiling, in words.
pub(crate) fn ceiling_text(result: &ResultFile) -> String {
    result.ceiling.as_ref().map_or_else(
        || result.link_ceiling.as_ref().map_or_else(|| "not measured".to_owned(), link_text),
        |c| {
            format!(
                "memcpy {} GB/s, non-temporal {} GB/s per rank, {} processes, {} each",
                rate_text(c.memcpy_gbps),
                rate_text(c.non_temporal_gbps),
                c.processes,
                bytes_text(c.working_set_bytes)
            )
        },
    )
}

fn backend_text(result: &ResultFile) -> String {
    let b = &result.backend;
    let mut parts = vec![b.name.clone()];
    parts.extend(b.simd.clone());
    parts.extend(b.copy.clone());
    parts.extend(b.details.iter().map(|(name, value)| format!("{name} {value}")));
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_people_read_them() {
        assert_eq!([time_text(0.5), time_text(312.44), time_text(41_234.6)], ["0.50", "312.4", "41235"]);
        assert_eq!([count_text(0), count_text(999), count_text(1_234_567)], ["0", "999", "1,234,567"]);
        assert_eq!([bytes_text(512), bytes_text(1536), bytes_text(1 << 30)], ["512 B", "1.5 KiB", "1 GiB"]);
        assert_eq!([percent_text(Some(0.804)), percent_text(None)], ["80 %", "-"]);
        assert_eq!([rate_text(9.876), rate_text(312.34)], ["9.88", "312.3"]);
        assert_eq!([plural(1, "node"), plural(4096, "rank")], ["1 node", "4,096 ranks"]);
    }
}

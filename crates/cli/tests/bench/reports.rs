//! What a passing run prints and writes, its numbers worked out again here.

use expertrail_bench::schema::{Op, OpResult, ResultFile, Span};

use crate::common::{Folder, SMALL, bench, finish, passes, read_result, result_of, run};

/// Full fan-out: as many experts and choices as ranks, drawn without replacement, send every token everywhere.
const RANKS: u64 = 2;
const TOKENS: u64 = 48;
const HIDDEN: u64 = 64;
const FULL: [&str; 10] =
    ["--ranks", "2", "--experts", "2", "--top-k", "2", "--tokens", "48", "--hidden", "64"];

fn isolated(result: &ResultFile, op: Op) -> &OpResult {
    result.ops_named(op).find(|op| op.span == Span::Isolated).expect("measured")
}

#[test]
fn a_plain_run_prints_a_table_and_passes() {
    // The shape alone is smaller than the default's: preset, ranks and iterations are the default ones.
    let run = run(&["--tokens", "64", "--hidden", "64"]).exits(0);
    assert!(
        run.out.starts_with("quick: 64 tokens x 64, top-8 of 64, 4 ranks on 1 node, host backend\n"),
        "{}",
        run.out
    );
    for part in ["dispatch bf16", "combine bf16", "p50", "p95", "max", "GB/s", "ceiling", "every row"] {
        assert!(run.out.contains(part), "{part} in\n{}", run.out);
    }
    // 20 iterations: 64 tokens come back to each of 4 ranks; what dispatch gave depends on the draw.
    let verdict = run.out.lines().last().expect("a verdict");
    assert!(verdict.starts_with("verdict: PASS - "), "{verdict}");
    let rows: Vec<u64> = verdict.split(' ').filter_map(|word| word.parse().ok()).collect();
    assert!(rows.len() == 2 && rows[0] == rows[1] && rows[0] > 20 * 4 * 64, "{verdict}");
    assert_eq!(run.err, "");
}

#[test]
fn every_report_is_written_and_tells_the_same() {
    let folder = Folder::new();
    let names = ["r.csv", "r.html", "r.json", "r.md"];
    let mut command = bench(&FULL);
    command.args(SMALL);
    for (option, name) in ["--csv", "--html", "--json", "--markdown"].into_iter().zip(names) {
        command.arg(option).arg(folder.path(name));
    }
    finish(command).exits(0);
    assert_eq!(folder.names(), names, "nothing else stays in the folder");
    let result = read_result(&folder.path("r.json"));
    let read = |name: &str| std::fs::read_to_string(folder.path(name)).expect("a report");

    csv_tells(&read("r.csv"), &result);
    let markdown = read("r.md");
    assert!(markdown.starts_with("## Expertrail benchmark: PASS\n"), "{markdown}");
    let rows =
        markdown.lines().filter(|l| l.starts_with("| dispatch ") || l.starts_with("| combine ")).count();
    let wanted = result.ops.iter().filter(|op| op.op != Op::DispatchCached).count();
    assert_eq!(rows, wanted, "{markdown}");
    html_stands_alone(&read("r.html"));
}

/// One record for each operation and one for each of its ranks, with the numbers of the JSON.
fn csv_tells(csv: &str, result: &ResultFile) {
    let lines: Vec<Vec<&str>> = csv.split_terminator("\r\n").map(|line| line.split(',').collect()).collect();
    let column = |name: &str| lines[0].iter().position(|head| *head == name).expect("a column");
    assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{csv}");
    assert_eq!(lines.len(), 1 + result.ops.len() * (1 + RANKS as usize), "{csv}");
    let of_ops: Vec<_> = lines.iter().filter(|line| line[column("record")] == "op").collect();
    assert_eq!(of_ops.len(), result.ops.len());
    for (line, op) in of_ops.iter().zip(&result.ops) {
        let number = |name| line[column(name)].parse::<f64>().expect("a number");
        assert_eq!(line[column("op")], op.op.to_string());
        assert_eq!((number("p50_us"), number("max_us")), (op.time_us.p50, op.time_us.max));
        assert_eq!((number("wire_bytes"), line[column("verdict")]), (op.wire_bytes.mean, "pass"));
    }
}

/// Nothing in the page makes a browser fetch anything. (`http:` in a namespace is a name, not an address.)
fn html_stands_alone(html: &str) {
    assert!(html.to_lowercase().starts_with("<!doctype html>"), "{}", &html[..60.min(html.len())]);
    assert!(html.contains("<svg") && html.trim_end().ends_with("</html>"));
    let lower = html.to_lowercase();
    for fetches in ["<link", "<script src", "@import", "<iframe", "<img", "<object", "<embed", "<base"] {
        assert!(!lower.contains(fetches), "{fetches}");
    }
    for attribute in ["src=", "href=", "url(", "srcset=", "action=", "data="] {
        for (at, _) in lower.match_indices(attribute) {
            let value = lower[at + attribute.len()..].trim_start_matches(['"', '\'', ' ']);
            assert!(
                value.starts_with('#') || value.starts_with("data:"),
                "{attribute}{}",
                &value[..40.min(value.len())]
            );
        }
    }
    for word in ["pass", "dispatch", "combine", "bit-exact"] {
        assert!(lower.contains(word), "{word}");
    }
}

#[test]
fn bytes_and_rows_are_those_of_arithmetic() {
    let result = passes(&FULL);
    let row = HIDDEN * 2;
    for op in &result.ops {
        let (logical, wire) = (TOKENS * RANKS * row, TOKENS * (RANKS - 1) * row);
        assert_eq!((op.logical_bytes.mean, op.logical_bytes.max), (logical as f64, logical as f64), "{op:?}");
        assert_eq!((op.wire_bytes.mean, op.wire_bytes.max), (wire as f64, wire as f64), "{op:?}");
        for (rank, of_rank) in op.per_rank.iter().enumerate() {
            assert_eq!(of_rank.rank, rank as u64);
            assert_eq!((of_rank.logical_bytes, of_rank.wire_bytes), (logical as f64, wire as f64));
            // Own rows are written, or read, like any others.
            assert_eq!(of_rank.ceiling_bytes, logical as f64);
        }
    }
    assert_eq!(result.received.rows_per_rank, [TOKENS * RANKS; RANKS as usize]);
    assert_eq!(result.received.tokens_per_expert, [TOKENS * RANKS; 2]);
    // In each of 3 iterations: two dispatches give each rank every token, a combine its own tokens.
    let rows = 3 * (2 * RANKS * TOKENS * RANKS + RANKS * TOKENS);
    assert_eq!((result.verification.rows_checked, result.verification.rows_total), (rows, rows));
    let s = &result.settings;
    assert_eq!(
        (s.tokens, s.hidden, s.top_k, s.experts, s.iters, s.warmup),
        (TOKENS, HIDDEN, RANKS, RANKS, 3, 1)
    );
    assert_eq!(result.hosts.iter().flat_map(|h| &h.ranks).copied().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(result.command[1..3], ["bench", "--ranks"]);
    assert!(!result.command.iter().any(|arg| arg == "--launched"), "{:?}", result.command);
}

#[test]
fn times_and_rates_follow_from_the_samples() {
    let folder = Folder::new();
    let mut command = bench(&FULL);
    let file = folder.path("r.json");
    command.args(["--iters", "21", "--json"]).arg(&file);
    finish(command).exits(0);
    let result = read_result(&file);
    let ceiling = result.ceiling.expect("a ceiling");
    let best = ceiling.memcpy_gbps.max(ceiling.non_temporal_gbps);
    assert!(best > 0.0 && ceiling.processes == RANKS, "{ceiling:?}");
    for op in [Op::Dispatch, Op::DispatchCached, Op::Combine].map(|op| isolated(&result, op)) {
        assert_eq!((op.samples_us.len(), op.iterations), (21, 21));
        let mut sorted = op.samples_us.clone();
        sorted.sort_by(f64::total_cmp);
        // 21 samples: the median is the 11th, 95 % lies at the 20th, with nothing to interpolate.
        let t = &op.time_us;
        assert_eq!((t.min, t.p50, t.p95, t.max), (sorted[0], sorted[10], sorted[19], sorted[20]));
        assert!(t.p50 <= t.p95 && t.p95 <= t.p99 && t.p99 <= t.max, "{t:?}");
        // The slowest call of all is some rank's slowest call.
        let slowest = op.per_rank.iter().map(|rank| rank.time_us.max).fold(0.0, f64::max);
        assert_eq!(t.max, slowest);
        assert!(op.per_rank.iter().all(|rank| rank.time_us.p50 <= t.p50 && rank.time_us.min <= t.min));
        let rate = |bytes: u64| bytes as f64 / t.p50 / 1e3;
        close(op.logical_gbps, rate(TOKENS * RANKS * HIDDEN * 2));
        close(op.wire_gbps, rate(TOKENS * (RANKS - 1) * HIDDEN * 2));
        close(op.ceiling_ratio.expect("a ratio"), op.logical_gbps / best);
        // Phases are parts of the call. Each is a median of its own, so that only one at a time is bounded.
        assert!(!op.phases_us.is_empty() && op.phases_us.values().all(|&phase| phase <= t.max), "{op:?}");
    }
}

fn close(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-9 * b.abs(), "{a} against {b}");
}

#[test]
fn the_guides_format_has_its_lines_and_formulas() {
    let folder = Folder::new();
    let file = folder.path("r.json");
    // Rows wide enough for rates well above the 0.1 GB/s that are printed.
    let shape = ["--ranks", "2", "--experts", "2", "--top-k", "2", "--tokens", "512", "--hidden", "1024"];
    let mut command = bench(&shape);
    command.args(SMALL).args(["--format", "guide", "--json"]).arg(&file);
    let out = finish(command).exits(0).out;
    let rule = "=".repeat(70);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!((lines[0], lines[1]), (&*rule, "Expertrail Benchmark: 1 nodes, 2 ranks"), "{out}");
    assert!(lines[2].starts_with("Driver: "), "{out}");
    let at = lines.iter().position(|line| line.starts_with("--- Intra-node")).expect("the section");
    let [dispatch, combine, total] = rates(lines[at + 1].strip_prefix("  Node 0: ").expect("node 0's line"));
    assert!(lines.contains(&"Expertrail benchmark complete."), "{out}");
    // total = 2 bytes / (dispatch + combine): the harmonic mean, as far as one decimal tells.
    let mean = |d: f64, c: f64| 2.0 / (1.0 / d + 1.0 / c);
    let (low, high) = (mean(dispatch - 0.05, combine - 0.05), mean(dispatch + 0.05, combine + 0.05));
    assert!(low - 0.051 <= total && total <= high + 0.051, "{out}");
    // Own rank left out: 512 tokens to one other rank in each iteration, over rank 0's own mean time.
    let result = read_result(&file);
    let rank_0 = &isolated(&result, Op::Combine).per_rank[0];
    let rate = 512.0 * 2048.0 / rank_0.time_us.mean / 1e3;
    assert!((combine - rate).abs() <= 0.051, "{combine} against {rate}");
}

#[test]
fn across_nodes_the_guides_total_counts_the_layout() {
    let folder = Folder::new();
    let file = folder.path("r.json");
    let shape = ["--ranks", "4", "--nodes", "2", "--experts", "4", "--top-k", "4", "--tokens", "512"];
    let mut command = bench(&shape);
    command.args(SMALL).args(["--hidden", "1024", "--format", "guide", "--json"]).arg(&file);
    let out = finish(command).exits(0).out;
    assert!(out.contains("Expertrail Benchmark: 2 nodes, 4 ranks\n"), "{out}");
    let lines: Vec<&str> = out.lines().collect();
    let at = lines.iter().position(|line| line.starts_with("--- Inter-node")).expect("the section");
    let [dispatch, combine, total] = rates(lines[at + 1].trim_start());
    let times: Vec<f64> = lines[at + 2]
        .split(", ")
        .zip(["  layout=", "dispatch=", "combine="])
        .map(|(text, name)| text.strip_prefix(name).and_then(|t| t.strip_suffix("ms")).expect("a time"))
        .map(|text| text.parse().expect("milliseconds"))
        .collect();
    // Own node counts: 512 tokens to 2 nodes in each of 3 iterations, 2 KiB each.
    let megabytes = 3.0 * 512.0 * 2.0 * 2048.0 / 1e6;
    let within = |rate: f64, bytes: f64, ms: f64, slack: f64| {
        let (low, high) = (bytes / (ms + slack), bytes / (ms - slack).max(1e-3));
        assert!(low - 0.051 <= rate && rate <= high + 0.051, "{rate}: {low} to {high} in\n{out}");
    };
    within(dispatch, megabytes, times[1], 0.05);
    within(combine, megabytes, times[2], 0.05);
    within(total, 2.0 * megabytes, times[0] + times[1] + times[2], 0.15);
    // Layout and dispatch together are rank 0's dispatch calls.
    let calls = 3.0 * isolated(&read_result(&file), Op::Dispatch).per_rank[0].time_us.mean / 1e3;
    assert!((times[0] + times[1] - calls).abs() <= 0.101, "{calls} ms in\n{out}");
}

/// `dispatch=1.0 GB/s, combine=2.0 GB/s, total=1.3 GB/s`, each with one decimal.
fn rates(text: &str) -> [f64; 3] {
    let mut parts = text.split(", ");
    let rates = ["dispatch", "combine", "total"].map(|name| {
        let part = parts.next().unwrap_or_else(|| panic!("{name} in {text}"));
        let number =
            part.strip_prefix(name).and_then(|p| p.strip_prefix('=')).and_then(|p| p.strip_suffix(" GB/s"));
        let number = number.unwrap_or_else(|| panic!("{name} in {text}"));
        assert!(number.split_once('.').is_some_and(|(_, decimals)| decimals.len() == 1), "{text}");
        number.parse().expect("a number")
    });
    assert_eq!(parts.next(), None, "{text}");
    rates
}

#[test]
fn an_old_report_gives_way_only_to_a_finished_one() {
    let folder = Folder::new();
    let file = folder.path("result.json");
    std::fs::write(&file, "old").expect("writing");
    // The ranks find this out, after the launcher found the path writable.
    let mut command = bench(&FULL);
    command.args(["--shm-limit", "1MiB", "--json"]).arg(&file);
    finish(command).exits(2);
    assert_eq!(std::fs::read_to_string(&file).expect("still there"), "old");
    assert_eq!(folder.names(), ["result.json"]);
    result_of(&FULL, &folder, 0, |_| {});
    assert_eq!(folder.names(), ["result.json"]);
}

//! CSV as RFC 4180 has it: a header line, commas, CRLF, quotes where needed.

use crate::schema::{ResultFile, Status};
use crate::stats::Times;

const HEADER: [&str; 27] = [
    "record",
    "op",
    "dtype",
    "span",
    "rank",
    "iterations",
    "p50_us",
    "p95_us",
    "p99_us",
    "max_us",
    "min_us",
    "mean_us",
    "logical_bytes",
    "wire_bytes",
    "logical_gbps",
    "wire_gbps",
    "ceiling_ratio",
    "sms",
    "input",
    "carries",
    "push_ratio",
    "host_return_p50_us",
    "fabric_wire_gbps",
    "fabric_raw_ratio",
    "verify",
    "verdict",
    "preset",
];

/// One `op` record for each operation (the maximum over ranks), each followed by one `rank` record for each
/// of its ranks (that rank by itself). `_gbps` is GB/s per rank; a rank's rate uses its own p50.
pub fn to_csv(result: &ResultFile) -> String {
    let mut out = String::new();
    line(&mut out, &HEADER.map(str::to_owned));
    for op in &result.ops {
        let common = [op.op.to_string(), op.dtype.clone(), op.span.to_string()];
        let crossed = result
            .fabric
            .as_ref()
            .and_then(|fabric| fabric.ops.iter().find(|of| (of.op, of.span) == (op.op, op.span)));
        let optional = |value: Option<String>| value.unwrap_or_default();
        let end = [
            optional(op.sms.map(|sms| sms.to_string())),
            optional(op.input.map(|input| input.to_string())),
            optional(op.carries.as_ref().map(|carries| carries.join("+"))),
            optional(op.push_ratio.map(|ratio| ratio.to_string())),
            optional(op.host_return_us.map(|times| times.p50.to_string())),
            optional(crossed.map(|op| op.wire_gbps.to_string())),
            optional(crossed.and_then(|op| op.raw_ratio).map(|ratio| ratio.to_string())),
            result.verification.mode.to_string(),
            status(result.verdict.status).to_owned(),
            result.settings.preset.clone(),
        ];
        let record = |kind: &str, rank: String, times: &Times, values: [f64; 4], ratio: String| {
            let mut fields = vec![kind.to_owned()];
            fields.extend(common.clone());
            fields.push(rank);
            fields.push(op.iterations.to_string());
            let t = times;
            fields.extend([t.p50, t.p95, t.p99, t.max, t.min, t.mean].map(|v| v.to_string()));
            fields.extend(values.map(|v| v.to_string()));
            fields.push(ratio);
            fields.extend(end.clone());
            fields
        };
        let values = [op.logical_bytes.mean, op.wire_bytes.mean, op.logical_gbps, op.wire_gbps];
        let ratio = op.ceiling_ratio.map_or_else(String::new, |r| r.to_string());
        line(&mut out, &record("op", String::new(), &op.time_us, values, ratio));
        for rank in &op.per_rank {
            let rate = |bytes| crate::stats::gbps(bytes, rank.time_us.p50);
            let values =
                [rank.logical_bytes, rank.wire_bytes, rate(rank.logical_bytes), rate(rank.wire_bytes)];
            line(&mut out, &record("rank", rank.rank.to_string(), &rank.time_us, values, String::new()));
        }
    }
    out
}

fn status(status: Status) -> &'static str {
    match status {
        Status::Pass => "pass",
        Status::Fail => "fail",
        Status::NotVerified => "not_verified",
        Status::Inconclusive => "inconclusive",
        Status::NotRun => "not_run",
    }
}

fn line(out: &mut String, fields: &[String]) {
    for (i, field) in fields.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        if field.contains([',', '"', '\r', '\n']) {
            out.push('"');
            out.push_str(&field.replace('"', "\"\""));
            out.push('"');
        } else {
            out.push_str(field);
        }
    }
    out.push_str("\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn one_record_per_operation_and_rank() {
        let text = to_csv(&sample::result(3));
        let lines: Vec<&str> = text.split_terminator("\r\n").collect();
        assert_eq!(lines.len(), 1 + 2 * (1 + 3));
        assert!(lines.iter().all(|l| l.split(',').count() == HEADER.len()), "{text}");
        assert!(lines[1].starts_with("op,dispatch,bf16,isolated,,40,"), "{}", lines[1]);
        assert!(lines[4].starts_with("rank,dispatch,bf16,isolated,2,40,"), "{}", lines[4]);
        assert!(lines[1].ends_with(",full,pass,quick"));
    }

    #[test]
    fn awkward_text_is_quoted() {
        let mut result = sample::result(1);
        result.settings.preset = "a,\"b\"\nc".to_owned();
        assert!(to_csv(&result).contains(",pass,\"a,\"\"b\"\"\nc\"\r\n"));
    }
}

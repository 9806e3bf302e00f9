//! The schema file, the structs and the reader agree, and the check can fail.

use serde_json::{Value, json};

use super::conform::result_violations;
use super::{Part, RailBytes, ReadError, ResultFile, SCHEMA_ID, Status};
use crate::sample;

fn document() -> Value {
    serde_json::to_value(sample::result(8)).unwrap()
}

#[test]
fn what_is_written_conforms_and_reads_back() {
    assert_eq!(result_violations(&document()), Vec::<String>::new());
    let text = serde_json::to_string(&sample::result(3)).unwrap();
    assert_eq!(ResultFile::from_json(&text).unwrap(), sample::result(3));
}

fn rail() -> RailBytes {
    RailBytes {
        rank: 1,
        host: "node-a".to_owned(),
        device: "mlx5_2".to_owned(),
        port: 1,
        sent_bytes: 3_000_000,
    }
}

fn part(of: &ResultFile) -> Part {
    Part {
        settings: of.settings.clone(),
        topology: of.topology.clone(),
        ops: of.ops.clone(),
        received: of.received.clone(),
        verification: of.verification.clone(),
        rails: vec![rail()],
        verdict: of.verdict.clone(),
    }
}

#[test]
fn further_benchmarks_of_a_run_read_back_and_are_checked() {
    let mut result = sample::result(2);
    result.parts = vec![part(&result)];
    let document = serde_json::to_value(&result).unwrap();
    assert_eq!(result_violations(&document), Vec::<String>::new());
    assert_eq!(ResultFile::from_json(&document.to_string()).unwrap(), result);
    for place in ["/parts/0/settings/hidden", "/parts/0/ops/0/time_us/p50", "/parts/0/rails/0/sent_bytes"] {
        let mut broken = document.clone();
        *broken.pointer_mut(place).unwrap() = json!("none");
        assert_eq!(result_violations(&broken).len(), 1, "{place}");
    }
}

#[test]
fn what_crossed_a_network_reads_back_and_is_checked() {
    let mut result = sample::result(2);
    result.fabric = Some(sample::fabric());
    let document = serde_json::to_value(&result).unwrap();
    assert_eq!(result_violations(&document), Vec::<String>::new());
    assert_eq!(ResultFile::from_json(&document.to_string()).unwrap(), result);
    for place in [
        "/fabric/rails/1/busy",
        "/fabric/rails/0/wire_bytes/dispatch",
        "/fabric/ops/0/raw_ratio",
        "/fabric/raw_gbps",
    ] {
        let mut broken = document.clone();
        *broken.pointer_mut(place).unwrap() = json!("none");
        assert_eq!(result_violations(&broken).len(), 1, "{place}");
    }
}

#[test]
fn the_smallest_result_conforms_too() {
    let mut result = sample::result(1);
    result.ceiling = None;
    result.memory = None;
    result.ops.clear();
    result.verdict.status = Status::NotRun;
    result.machine = super::Machine::default();
    let document = serde_json::to_value(result).unwrap();
    assert_eq!(result_violations(&document), Vec::<String>::new());
}

/// Every struct field stands in the schema, so that a new field cannot be forgotten there.
#[test]
fn every_written_field_is_described() {
    let mut result = sample::result(2);
    result.ops[0].sms = Some(16);
    result.ops[0].host_return_us = Some(result.ops[0].time_us);
    result.verification.first_mismatch = Some("x".to_owned());
    result.rails = vec![rail()];
    result.parts = vec![part(&result)];
    result.fabric = Some(sample::fabric());
    let document = serde_json::to_value(result).unwrap();
    let schema: Value = serde_json::from_str(super::JSON_SCHEMA).unwrap();
    let mut strict = schema.clone();
    close(&mut strict);
    assert_eq!(super::conform::violations(&strict, &document), Vec::<String>::new());
}

/// Sets `additionalProperties: false` where properties are listed.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            map.values_mut().for_each(close);
            if map.get("type") == Some(&json!("object")) && map.contains_key("properties") {
                map.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
        }
        Value::Array(all) => all.iter_mut().for_each(close),
        _ => {}
    }
}

#[test]
fn broken_documents_are_rejected() {
    let breaks: [(&str, Value); 12] = [
        ("/schema", json!("expertrail.result/2")),
        ("/started_at", json!("yesterday")),
        ("/settings/hidden", json!(0)),
        ("/settings/tokens", json!("many")),
        ("/settings/tokens", json!(1.5)),
        ("/settings/mode", json!("fast")),
        ("/ops/0/time_us/p50", json!(null)),
        ("/ops/1/samples_us", json!([])),
        ("/ops/0/per_rank/3/rank", json!(-1)),
        ("/hosts", json!({})),
        ("/versions/kernel", json!(6)),
        ("/verdict/status", json!("PASS")),
    ];
    for (place, value) in breaks {
        let mut document = document();
        *document.pointer_mut(place).unwrap() = value;
        let found = result_violations(&document);
        assert!(found.iter().any(|line| line.starts_with(place)), "{place}: {found:?}");
    }
    let required: Value = serde_json::from_str(super::JSON_SCHEMA).unwrap();
    for name in required["required"].as_array().unwrap() {
        let mut document = document();
        document.as_object_mut().unwrap().remove(name.as_str().unwrap());
        assert_eq!(result_violations(&document).len(), 1, "{name}");
    }
}

#[test]
fn unknown_fields_are_ignored_and_optional_ones_may_be_absent() {
    let mut document = document();
    document["future"] = json!({"a": 1});
    document["settings"]["future"] = json!(true);
    document["ops"][0]["per_rank"][0]["future"] = json!([]);
    for optional in ["ceiling", "memory", "warnings", "versions", "received"] {
        document.as_object_mut().unwrap().remove(optional);
    }
    assert_eq!(result_violations(&document), Vec::<String>::new());
    let read = ResultFile::from_json(&document.to_string()).unwrap();
    assert!(read.ceiling.is_none() && read.warnings.is_empty());
}

#[test]
fn the_reader_says_what_it_was_given() {
    let error = |text: &str| ResultFile::from_json(text).unwrap_err();
    assert!(matches!(error("{"), ReadError::Json(_)));
    assert!(matches!(error("{}"), ReadError::NoSchema));
    let newer = error(r#"{"schema":"expertrail.result/2"}"#);
    assert!(newer.to_string().contains("newer expertrail"), "{newer}");
    let other = error(r#"{"schema":"expertrail.facts/1"}"#);
    assert!(matches!(other, ReadError::OtherSchema(_)) && other.to_string().contains("facts"), "{other}");
    let missing = error(&format!(r#"{{"schema":"{SCHEMA_ID}"}}"#)).to_string();
    assert!(missing.contains("missing field `tool`"), "{missing}");
}

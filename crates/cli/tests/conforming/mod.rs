//! Documents against their schemas, for the tests of every command.

use expertrail_bench::schema::conform::violations;
use serde_json::Value;

/// `schema` with no field allowed that it does not list.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            map.values_mut().for_each(close);
            if map.contains_key("properties") {
                map.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
        }
        Value::Array(all) => all.iter_mut().for_each(close),
        _ => {}
    }
}

/// Asserts that `document` is as `schema` says, and has no field that the schema does not list.
#[track_caller]
pub(crate) fn conforms(schema: &str, document: &Value) {
    let mut schema: Value = serde_json::from_str(schema).unwrap();
    assert_eq!(violations(&schema, document), Vec::<String>::new());
    close(&mut schema);
    assert_eq!(violations(&schema, document), Vec::<String>::new(), "a field that the schema does not list");
}

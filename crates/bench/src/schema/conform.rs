//! Checks a JSON document against a JSON Schema, for the keywords that this crate's schema uses.
//!
//! A full validator costs some sixty crates; this one knows a dozen keywords and refuses a schema that uses
//! any other, so that nothing written there goes unchecked. The one `pattern` it knows is the one of
//! RFC 3339 times.

use serde_json::{Map, Value};

use super::JSON_SCHEMA;

/// Everything in `document` that breaks `expertrail.result/1`, one line each; empty when it conforms.
pub fn result_violations(document: &Value) -> Vec<String> {
    match serde_json::from_str(JSON_SCHEMA) {
        Ok(schema) => violations(&schema, document),
        Err(err) => vec![format!("the schema itself is damaged: {err}")],
    }
}

/// Everything in `document` that breaks `schema`, one line each, with the place as a JSON pointer.
pub fn violations(schema: &Value, document: &Value) -> Vec<String> {
    let mut check = Check { root: schema, found: Vec::new() };
    check.value(schema, document, &Place { path: String::new(), depth: 0 });
    check.found
}

/// References followed inside each other before the schema counts as circular.
const MAX_DEPTH: usize = 64;

struct Place {
    path: String,
    depth: usize,
}

impl Place {
    fn down(&self, step: &str) -> Self {
        let step = step.replace('~', "~0").replace('/', "~1");
        Self { path: format!("{}/{step}", self.path), depth: self.depth + 1 }
    }
}

struct Check<'a> {
    root: &'a Value,
    found: Vec<String>,
}

impl Check<'_> {
    fn report(&mut self, place: &Place, text: &str) {
        let path = if place.path.is_empty() { "the document" } else { &place.path };
        self.found.push(format!("{path}: {text}"));
    }

    fn value(&mut self, schema: &Value, value: &Value, place: &Place) {
        if place.depth > MAX_DEPTH {
            self.report(place, "the schema refers to itself");
            return;
        }
        match schema {
            Value::Bool(true) => {}
            Value::Object(keywords) => {
                for (keyword, rule) in keywords {
                    self.keyword((keyword, rule), keywords, value, place);
                }
            }
            _ => self.report(place, "nothing is allowed here"),
        }
    }

    fn keyword(
        &mut self,
        (keyword, rule): (&str, &Value),
        all: &Map<String, Value>,
        value: &Value,
        place: &Place,
    ) {
        match keyword {
            "$schema" | "$id" | "$defs" | "title" | "description" => {}
            "$ref" => self.reference(rule, value, place),
            "type" => {
                let one_of = rule.as_array().map_or(std::slice::from_ref(rule), Vec::as_slice);
                if !one_of.iter().any(|rule| rule.as_str().is_some_and(|name| is_type(name, value))) {
                    let names: Vec<&str> =
                        one_of.iter().map(|rule| rule.as_str().unwrap_or("a type not known here")).collect();
                    self.report(place, &format!("{} wanted, {} found", names.join(" or "), kind(value)));
                }
            }
            "const" => {
                if rule != value {
                    self.report(place, &format!("{rule} wanted, {value} found"));
                }
            }
            "enum" => {
                if !rule.as_array().is_some_and(|all| all.contains(value)) {
                    self.report(place, &format!("one of {rule} wanted, {value} found"));
                }
            }
            "minimum" => {
                if value.as_f64().zip(rule.as_f64()).is_some_and(|(value, least)| value < least) {
                    self.report(place, &format!("at least {rule} wanted, {value} found"));
                }
            }
            "minItems" => {
                let too_few = value.as_array().zip(rule.as_u64()).is_some_and(|(v, n)| (v.len() as u64) < n);
                if too_few {
                    self.report(place, &format!("at least {rule} entries wanted"));
                }
            }
            "pattern" => {
                if value.as_str().is_some_and(|text| !is_rfc3339(text)) {
                    self.report(place, &format!("a time as 2026-11-29T22:30:00Z wanted, {value} found"));
                }
            }
            "required" => {
                for name in rule.as_array().into_iter().flatten().filter_map(Value::as_str) {
                    if value.as_object().is_some_and(|fields| !fields.contains_key(name)) {
                        self.report(place, &format!("`{name}` is missing"));
                    }
                }
            }
            "properties" => {
                for (name, field) in value.as_object().into_iter().flatten() {
                    if let Some(rule) = rule.get(name) {
                        self.value(rule, field, &place.down(name));
                    }
                }
            }
            "additionalProperties" => {
                for (name, field) in value.as_object().into_iter().flatten() {
                    if all.get("properties").is_none_or(|known| known.get(name).is_none()) {
                        self.value(rule, field, &place.down(name));
                    }
                }
            }
            "items" => {
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    self.value(rule, item, &place.down(&i.to_string()));
                }
            }
            _ => self.report(place, &format!("the schema uses `{keyword}`, which this check does not know")),
        }
    }

    fn reference(&mut self, rule: &Value, value: &Value, place: &Place) {
        let target = rule.as_str().and_then(|r| r.strip_prefix('#')).and_then(|at| self.root.pointer(at));
        match target {
            Some(target) => {
                let place = Place { path: place.path.clone(), depth: place.depth + 1 };
                self.value(target, value, &place);
            }
            None => self.report(place, &format!("the schema refers to {rule}, which does not exist")),
        }
    }
}

fn is_type(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        // A float without a fraction is an integer too, says the standard.
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|v| v.fract() == 0.0),
        _ => false,
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Whether `text` looks like `2026-11-29T22:30:00.5+01:00` (digits in their places, no calendar).
pub fn is_rfc3339(text: &str) -> bool {
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    let Some(rest) = shape.strip_prefix("0000-00-00T00:00:00") else {
        return false;
    };
    let offset = match rest.strip_prefix('.') {
        Some(fraction) => {
            let offset = fraction.trim_start_matches('0');
            if offset.len() == fraction.len() {
                return false;
            }
            offset
        }
        None => rest,
    };
    matches!(offset, "Z" | "+00:00" | "-00:00")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unknown_keywords_and_references_are_reported() {
        assert!(violations(&json!({"oneOf": []}), &json!(1))[0].contains("oneOf"));
        assert!(violations(&json!({"$ref": "#/$defs/none"}), &json!(1))[0].contains("does not exist"));
        assert!(violations(&json!({"$ref": "#"}), &json!(1))[0].contains("itself"));
        assert_eq!(violations(&json!(true), &json!(1)), Vec::<String>::new());
        assert_eq!(violations(&json!(false), &json!(1)).len(), 1);
    }

    #[test]
    fn one_of_several_types() {
        let schema = json!({"type": ["string", "null"]});
        assert_eq!(violations(&schema, &json!("a")), Vec::<String>::new());
        assert_eq!(violations(&schema, &json!(null)), Vec::<String>::new());
        assert_eq!(violations(&schema, &json!(1)), ["the document: string or null wanted, number found"]);
        assert_eq!(violations(&json!({"type": ["text"]}), &json!("a")).len(), 1);
    }

    #[test]
    fn times() {
        for good in ["2026-11-29T22:30:00Z", "2026-11-29T22:30:00.123+01:00"] {
            assert!(is_rfc3339(good), "{good}");
        }
        for bad in ["2026-11-29", "2026-11-29T22:30:00", "2026-11-29T22:30:00.Z", "29/11/2026", ""] {
            assert!(!is_rfc3339(bad), "{bad}");
        }
    }
}

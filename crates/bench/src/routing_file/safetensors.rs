//! Hugging Face's `.safetensors`: a JSON header with the place of each tensor, and the raw tensors.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::ParseError;
use super::matrix::{Element, IdMatrix, decode, two_dimensions};

/// The longest header read. A header of this size names tens of thousands of tensors.
const MAX_HEADER: u64 = 8 * 1024 * 1024;

/// Tensors named in an error.
const LISTED: usize = 12;

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// Reads a `[tokens, k]` integer tensor from the bytes of a `.safetensors` file: the one named `tensor`, or
/// else the only integer tensor with two dimensions. Memory used is in proportion to `bytes`.
///
/// # Errors
/// [`ParseError`] that says what was wanted and found; when no tensor or several fit, it lists them.
pub fn parse_safetensors(bytes: &[u8], tensor: Option<&str>) -> Result<IdMatrix, ParseError> {
    let length = bytes.first_chunk::<8>().map(|raw| u64::from_le_bytes(*raw)).ok_or(ParseError::HeaderCut)?;
    if length > MAX_HEADER {
        return Err(ParseError::Header(format!(
            "it claims {length} bytes, at most {MAX_HEADER} are read; is this a .safetensors file?"
        )));
    }
    let data_start = 8 + length as usize;
    let header = bytes.get(8..data_start).ok_or(ParseError::HeaderCut)?;
    let data = &bytes[data_start..];
    let entries = entries(header)?;
    check_cover(&entries, data.len())?;
    let (name, entry) = select(&entries, tensor)?;
    let element = element_of(&entry.dtype).ok_or_else(|| ParseError::Dtype { found: entry.dtype.clone() })?;
    let (rows, cols, wanted) = two_dimensions(&entry.shape, element)?;
    let [begin, end] = entry.data_offsets.map(|at| at as usize);
    if end - begin != wanted {
        return Err(ParseError::Header(format!(
            "tensor `{}` of {} {:?} needs {wanted} bytes, its offsets give {}",
            name.escape_debug(),
            entry.dtype,
            entry.shape,
            end - begin
        )));
    }
    decode(&data[begin..end], (rows, cols), element, false)
}

fn entries(header: &[u8]) -> Result<BTreeMap<String, Entry>, ParseError> {
    let bad_json = |err: serde_json::Error| {
        ParseError::Header(format!("it is not the JSON of a .safetensors file: {err}"))
    };
    let all: BTreeMap<String, Value> = serde_json::from_slice(header).map_err(bad_json)?;
    all.into_iter()
        .filter(|(name, _)| name != "__metadata__")
        .map(|(name, value)| match Entry::deserialize(value) {
            Ok(entry) => Ok((name, entry)),
            Err(err) => Err(ParseError::Header(format!("tensor `{}`: {err}", name.escape_debug()))),
        })
        .collect()
}

/// The tensors must cover the data without gap or overlap, as the format says; then a file cut short, with
/// something behind it, or with a wrong header is seen whichever tensor is read.
fn check_cover(entries: &BTreeMap<String, Entry>, available: usize) -> Result<(), ParseError> {
    let mut places: Vec<([u64; 2], &String)> =
        entries.iter().map(|(name, e)| (e.data_offsets, name)).collect();
    places.sort_unstable();
    let mut next = 0;
    for ([begin, end], name) in places {
        if begin != next || end < begin {
            return Err(ParseError::Header(format!(
                "tensor `{}` lies at bytes {begin} to {end}, where {next} was to be the start",
                name.escape_debug()
            )));
        }
        next = end;
    }
    match usize::try_from(next) {
        Ok(wanted) if wanted == available => Ok(()),
        Ok(wanted) => Err(ParseError::DataSize { wanted, found: available }),
        Err(_) => Err(ParseError::Header(format!("its tensors end at byte {next}"))),
    }
}

fn select<'a>(
    entries: &'a BTreeMap<String, Entry>,
    tensor: Option<&str>,
) -> Result<(&'a String, &'a Entry), ParseError> {
    if let Some(wanted) = tensor {
        return entries
            .get_key_value(wanted)
            .ok_or_else(|| ParseError::NoTensor { wanted: format!("`{wanted}`"), list: list(entries) });
    }
    let mut fitting = entries.iter().filter(|(_, e)| element_of(&e.dtype).is_some() && e.shape.len() == 2);
    match (fitting.next(), fitting.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(ParseError::NoTensor {
            wanted: "an integer tensor with 2 dimensions".to_owned(),
            list: list(entries),
        }),
        (Some(_), Some(_)) => Err(ParseError::SeveralTensors { list: list(entries) }),
    }
}

fn list(entries: &BTreeMap<String, Entry>) -> String {
    if entries.is_empty() {
        return "no tensor at all".to_owned();
    }
    let mut text: Vec<String> = entries
        .iter()
        .take(LISTED)
        .map(|(name, e)| format!("`{}` {} {:?}", name.escape_debug(), e.dtype, e.shape))
        .collect();
    if entries.len() > LISTED {
        text.push(format!("and {} more", entries.len() - LISTED));
    }
    text.join(", ")
}

fn element_of(dtype: &str) -> Option<Element> {
    Some(match dtype {
        "I8" => Element::I8,
        "I16" => Element::I16,
        "I32" => Element::I32,
        "I64" => Element::I64,
        "U8" => Element::U8,
        "U16" => Element::U16,
        "U32" => Element::U32,
        "U64" => Element::U64,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut out = (header.len() as u64).to_le_bytes().to_vec();
        out.extend(header.bytes());
        out.extend(data);
        out
    }

    const TWO: &str = r#"{"__metadata__":{"model":"x"},
        "layer0.topk":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]},
        "layer0.weights":{"dtype":"F32","shape":[2,2],"data_offsets":[16,32]}}"#;

    fn data() -> Vec<u8> {
        (0..8i32).flat_map(i32::to_le_bytes).collect()
    }

    #[test]
    fn picks_the_only_integer_matrix() {
        let m = parse_safetensors(&file(TWO, &data()), None).unwrap();
        assert_eq!((m.rows, m.cols, m.ids, m.dtype), (2, 2, vec![0, 1, 2, 3], "i32"));
    }

    #[test]
    fn takes_the_named_one_of_several() {
        let header = r#"{"a":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]},
            "b":{"dtype":"I64","shape":[1,1],"data_offsets":[4,12]}}"#;
        let bytes = file(header, &[1, 2, 3, 4, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]);
        assert_eq!(parse_safetensors(&bytes, Some("b")).unwrap().ids, [-1]);
        let several = parse_safetensors(&bytes, None).unwrap_err().to_string();
        assert!(several.contains("`a` U8 [2, 2]") && several.contains("FILE#NAME"), "{several}");
        let missing = parse_safetensors(&bytes, Some("c")).unwrap_err().to_string();
        assert!(missing.contains("`c`") && missing.contains("`b` I64 [1, 1]"), "{missing}");
    }

    #[test]
    fn what_is_wrong_is_said() {
        let entry = |text: &str| format!(r#"{{"t":{text}}}"#);
        let message = |header: &str, data: &[u8]| {
            parse_safetensors(&file(header, data), Some("t")).unwrap_err().to_string()
        };
        for (header, length, part) in [
            (entry(r#"{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]}"#), 8, "F16"),
            (entry(r#"{"dtype":"I32","shape":[4],"data_offsets":[0,16]}"#), 16, "[4]"),
            (entry(r#"{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}"#), 15, "cut off"),
            (entry(r#"{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}"#), 17, "too many"),
            (entry(r#"{"dtype":"I32","shape":[2,3],"data_offsets":[0,16]}"#), 16, "needs 24"),
            (entry(r#"{"dtype":"I32","shape":[2,2],"data_offsets":[8,0]}"#), 16, "bytes 8 to 0"),
            (entry(r#"{"dtype":"I32","shape":[2,2],"data_offsets":[4,20]}"#), 20, "bytes 4 to 20"),
            (entry(r#"{"dtype":"I32","shape":[2,-2],"data_offsets":[0,16]}"#), 16, "tensor `t`"),
            (entry(r#"{"dtype":"I32","shape":[2,2]}"#), 16, "data_offsets"),
            (
                entry(r#"{"dtype":"I32","shape":[9000000000,9000000000],"data_offsets":[0,16]}"#),
                16,
                "9000000000",
            ),
            ("{}".to_owned(), 0, "no tensor at all"),
            ("[]".to_owned(), 0, "JSON"),
            ("{".to_owned(), 0, "JSON"),
        ] {
            let text = message(&header, &vec![0; length]);
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
        assert!(parse_safetensors(b"short", None).unwrap_err().to_string().contains("cut off"));
        let npy = super::super::write_npy_i32(&[1, 2], 2);
        assert!(parse_safetensors(&npy, None).unwrap_err().to_string().contains("is this a .safetensors"));
    }

    #[test]
    fn a_header_of_deep_brackets_is_only_an_error() {
        let deep = format!("{{\"t\":{}", "[".repeat(100_000));
        assert!(parse_safetensors(&file(&deep, &[]), None).is_err());
    }

    proptest! {
        #[test]
        fn no_damage_panics(at in 0usize..400, to in any::<u8>(), cut in 0usize..400) {
            let mut bytes = file(TWO, &data());
            let at = at % bytes.len();
            bytes[at] = to;
            let _ = parse_safetensors(&bytes, None);
            bytes.truncate(cut);
            let _ = parse_safetensors(&bytes, None);
        }

        #[test]
        fn no_input_panics(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse_safetensors(&bytes, None);
            let mut sized = (bytes.len() as u64).to_le_bytes().to_vec();
            sized.extend(&bytes);
            let _ = parse_safetensors(&sized, Some("t"));
        }
    }
}

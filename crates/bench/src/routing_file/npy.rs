//! `NumPy`'s `.npy`: a magic, a version, a header that is a Python dictionary, and the raw array.

use super::ParseError;
use super::matrix::{Element, IdMatrix, decode, two_dimensions};

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// The longest header read. `NumPy` itself refuses more than 10,000 bytes by default.
const MAX_HEADER: usize = 64 * 1024;

/// Reads a `[tokens, k]` integer array from the bytes of a `.npy` file (versions 1, 2 and 3, little endian,
/// C or Fortran order). Memory used is in proportion to `bytes`, whatever the header says.
///
/// # Errors
/// [`ParseError`] that says what was wanted and found.
pub fn parse_npy(bytes: &[u8]) -> Result<IdMatrix, ParseError> {
    if !bytes.starts_with(MAGIC) {
        return Err(ParseError::NotNpy { starts: first_bytes(bytes) });
    }
    let &[major, minor] = bytes.get(6..8).and_then(|v| v.first_chunk::<2>()).ok_or(ParseError::HeaderCut)?;
    let (length, start) = match major {
        1 => {
            let raw = bytes.get(8..10).and_then(|v| v.first_chunk::<2>()).ok_or(ParseError::HeaderCut)?;
            (usize::from(u16::from_le_bytes(*raw)), 10)
        }
        2 | 3 => {
            let raw = bytes.get(8..12).and_then(|v| v.first_chunk::<4>()).ok_or(ParseError::HeaderCut)?;
            (u32::from_le_bytes(*raw) as usize, 12)
        }
        _ => return Err(ParseError::NpyVersion { major, minor }),
    };
    if length > MAX_HEADER {
        return Err(ParseError::Header(format!("it claims {length} bytes; at most {MAX_HEADER} are read")));
    }
    let header = bytes.get(start..start + length).ok_or(ParseError::HeaderCut)?;
    let header = Header::parse(header)?;
    let element = element_of(&header.descr)?;
    let (rows, cols, wanted) = two_dimensions(&header.shape, element)?;
    let data = &bytes[start + length..];
    if data.len() != wanted {
        return Err(ParseError::DataSize { wanted, found: data.len() });
    }
    decode(data, (rows, cols), element, header.fortran_order)
}

/// The bytes of a version 1 `.npy` file with `ids` as `<i4` of `[ids.len() / cols, cols]`. Trailing ids that
/// fill no row are left out.
pub fn write_npy_i32(ids: &[i32], cols: usize) -> Vec<u8> {
    let rows = ids.len() / cols.max(1);
    let dictionary = format!("{{'descr': '<i4', 'fortran_order': False, 'shape': ({rows}, {cols}), }}");
    // The data starts at a multiple of 64 bytes, as NumPy aligns it; the header ends in a line feed.
    let total = (10 + dictionary.len() + 1).next_multiple_of(64);
    let mut out = Vec::with_capacity(total + ids.len() * 4);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[1, 0]);
    out.extend_from_slice(&((total - 10) as u16).to_le_bytes());
    out.extend_from_slice(dictionary.as_bytes());
    out.resize(total - 1, b' ');
    out.push(b'\n');
    for id in &ids[..rows * cols] {
        out.extend_from_slice(&id.to_le_bytes());
    }
    out
}

fn first_bytes(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "nothing (the file is empty)".to_owned();
    }
    format!("`{}`", bytes[..bytes.len().min(8)].escape_ascii())
}

fn element_of(descr: &str) -> Result<Element, ParseError> {
    let dtype_error = || ParseError::Dtype { found: descr.to_owned() };
    let order = descr.chars().next().ok_or_else(dtype_error)?;
    let element = match descr.get(1..).ok_or_else(dtype_error)? {
        "i1" => Element::I8,
        "i2" => Element::I16,
        "i4" => Element::I32,
        "i8" => Element::I64,
        "u1" => Element::U8,
        "u2" => Element::U16,
        "u4" => Element::U32,
        "u8" => Element::U64,
        _ => return Err(dtype_error()),
    };
    match order {
        '<' => Ok(element),
        '|' if element.bytes() == 1 => Ok(element),
        '>' if element.bytes() > 1 => Err(ParseError::BigEndian { found: descr.to_owned() }),
        _ => Err(dtype_error()),
    }
}

/// The three entries of a header.
struct Header {
    descr: String,
    fortran_order: bool,
    shape: Vec<u64>,
}

impl Header {
    fn parse(text: &[u8]) -> Result<Self, ParseError> {
        let mut scan = Scan { text, at: 0 };
        let (mut descr, mut order, mut shape) = (None, None, None);
        scan.want(b'{')?;
        while !scan.take(b'}') {
            let key = scan.string()?;
            scan.want(b':')?;
            let again = match key.as_str() {
                "descr" if scan.peek() == Some(b'[') => {
                    return Err(ParseError::Dtype { found: "a structured type".to_owned() });
                }
                "descr" => descr.replace(scan.string()?).is_some(),
                "fortran_order" => order.replace(scan.boolean()?).is_some(),
                "shape" => shape.replace(scan.tuple()?).is_some(),
                _ => return Err(ParseError::Header(format!("unknown entry `{}`", key.escape_debug()))),
            };
            if again {
                return Err(ParseError::Header(format!("`{key}` stands there twice")));
            }
            if !scan.take(b',') {
                scan.want(b'}')?;
                break;
            }
        }
        if scan.peek().is_some() {
            return Err(scan.error("the end of the header"));
        }
        let missing = |what: &str| ParseError::Header(format!("`{what}` is missing"));
        Ok(Self {
            descr: descr.ok_or_else(|| missing("descr"))?,
            fortran_order: order.ok_or_else(|| missing("fortran_order"))?,
            shape: shape.ok_or_else(|| missing("shape"))?,
        })
    }
}

/// A cursor over the header's Python literal.
struct Scan<'a> {
    text: &'a [u8],
    at: usize,
}

impl Scan<'_> {
    fn peek(&mut self) -> Option<u8> {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn want(&mut self, byte: u8) -> Result<(), ParseError> {
        if self.take(byte) { Ok(()) } else { Err(self.error(&format!("`{}`", byte as char))) }
    }

    fn error(&self, wanted: &str) -> ParseError {
        let rest = &self.text[self.at.min(self.text.len())..];
        let found = rest[..rest.len().min(16)].escape_ascii();
        ParseError::Header(format!("at byte {}: {wanted} wanted, `{found}` found", self.at))
    }

    fn string(&mut self) -> Result<String, ParseError> {
        let Some(quote @ (b'\'' | b'"')) = self.peek() else {
            return Err(self.error("a string"));
        };
        let start = self.at + 1;
        let rest = &self.text[start..];
        let length = rest.iter().position(|&b| b == quote).ok_or_else(|| self.error("a closed string"))?;
        self.at = start + length + 1;
        Ok(String::from_utf8_lossy(&rest[..length]).into_owned())
    }

    fn boolean(&mut self) -> Result<bool, ParseError> {
        self.peek();
        for (word, value) in [(&b"True"[..], true), (b"False", false)] {
            if self.text[self.at..].starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.error("True or False"))
    }

    fn tuple(&mut self) -> Result<Vec<u64>, ParseError> {
        self.want(b'(')?;
        let mut values = Vec::new();
        while !self.take(b')') {
            values.push(self.number()?);
            if !self.take(b',') {
                self.want(b')')?;
                break;
            }
        }
        Ok(values)
    }

    fn number(&mut self) -> Result<u64, ParseError> {
        self.peek();
        let digits = self.text[self.at..].iter().take_while(|b| b.is_ascii_digit()).count();
        let text = std::str::from_utf8(&self.text[self.at..self.at + digits]).unwrap_or_default();
        let value = text.parse().map_err(|_| self.error("a number of 64 bits"))?;
        self.at += digits;
        // Python 2 wrote long integers with a suffix.
        if self.text.get(self.at) == Some(&b'L') {
            self.at += 1;
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn npy(version: u8, dictionary: &str, data: &[u8]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend([version, 0]);
        match version {
            1 => out.extend((dictionary.len() as u16).to_le_bytes()),
            _ => out.extend((dictionary.len() as u32).to_le_bytes()),
        }
        out.extend(dictionary.bytes());
        out.extend(data);
        out
    }

    fn header(descr: &str, fortran: bool, shape: &str) -> String {
        let order = if fortran { "True" } else { "False" };
        format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}   \n")
    }

    #[test]
    fn a_file_that_numpy_wrote() {
        // numpy.save of np.array([[1, -1], [300, 4]], dtype='<i2'), version 1.
        let bytes = b"\x93NUMPY\x01\x00\x76\x00{'descr': '<i2', 'fortran_order': False, 'shape': (2, 2), }\
            \x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\
            \x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\
            \x20\x20\x20\x20\x20\x20\x20\x20\x20\x20\n\x01\x00\xff\xff\x2c\x01\x04\x00";
        let m = parse_npy(bytes).unwrap();
        assert_eq!((m.rows, m.cols, m.dtype, m.ids), (2, 2, "i16", vec![1, -1, 300, 4]));
    }

    #[test]
    fn every_version_type_and_order() {
        for version in [1, 2, 3] {
            let m = parse_npy(&npy(version, &header("|u1", true, "(2, 3)"), &[1, 2, 3, 4, 5, 6])).unwrap();
            assert_eq!((m.rows, m.cols, m.ids), (2, 3, vec![1, 3, 5, 2, 4, 6]));
        }
        let minus_one = [0xFF; 8];
        for (descr, bytes) in [("|i1", 1), ("<i2", 2), ("<i4", 4), ("<i8", 8)] {
            let m = parse_npy(&npy(1, &header(descr, false, "(1, 1)"), &minus_one[..bytes])).unwrap();
            assert_eq!(m.ids, [-1], "{descr}");
        }
        for (descr, bytes) in [("<u2", 2), ("<u4", 4), ("<u8", 8)] {
            let mut data = [0; 8];
            data[0] = 9;
            let m = parse_npy(&npy(1, &header(descr, false, "(1, 1L)"), &data[..bytes])).unwrap();
            assert_eq!(m.ids, [9], "{descr}");
        }
        assert_eq!(parse_npy(&npy(1, &header("<i4", false, "(0, 8)"), &[])).unwrap().rows, 0);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let data = [0; 16];
        let message = |bytes: &[u8]| parse_npy(bytes).unwrap_err().to_string();
        let with = |descr: &str, shape: &str| message(&npy(1, &header(descr, false, shape), &data));
        for (text, parts) in [
            (message(b""), &["empty"][..]),
            (message(b"PK\x03\x04rest"), &["not a .npy", "PK\\x03\\x04"]),
            (message(b"\x93NUMPY\x01"), &["cut off"]),
            (message(&npy(9, "", &[])), &["version 9.0"]),
            (with("<f4", "(2, 2)"), &["integer", "<f4"]),
            (with(">i4", "(2, 2)"), &["big-endian", "astype('<i4')"]),
            (with("<i4", "(4,)"), &["[4]", "2 dimensions"]),
            (with("<i4", "()"), &["[]"]),
            (with("<i4", "(1, 2, 2)"), &["[1, 2, 2]"]),
            (with("<i4", "(4, 0)"), &["[4, 0]"]),
            (with("<i4", "(2, 3)"), &["24", "16", "cut off"]),
            (with("<i4", "(1, 3)"), &["12", "16", "too many"]),
            (with("<i4", "(4294967296, 4294967296)"), &["4294967296"]),
            (with("<i4", "(99999999999999999999, 1)"), &["number"]),
            (with("<i4", "(-1, 4)"), &["number"]),
        ] {
            for part in parts {
                assert!(text.contains(part), "{part:?} in {text:?}");
            }
        }
    }

    #[test]
    fn headers_that_lie_or_repeat() {
        let bad = [
            "{'descr': '<i4', 'fortran_order': False}",
            "{'descr': '<i4', 'descr': '<i4', 'fortran_order': False, 'shape': (1, 1)}",
            "{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1, 1)}",
            "{'descr': '<i4', 'fortran_order': 0, 'shape': (1, 1)}",
            "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 1)} x",
            "{'descr': '<i4', 'evil': 'x', 'fortran_order': False, 'shape': (1, 1)}",
            "{'descr': '<i4",
            "",
            "[]",
        ];
        for dictionary in bad {
            assert!(parse_npy(&npy(1, dictionary, &[0; 4])).is_err(), "{dictionary}");
        }
        let mut claims = npy(2, "", &[]);
        claims[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(parse_npy(&claims).unwrap_err().to_string().contains("4294967295"));
        let wide = npy(1, &header("<i8", false, "(1, 1)"), &(1i64 << 40).to_le_bytes());
        assert!(parse_npy(&wide).unwrap_err().to_string().contains("1099511627776"));
        let unsigned = npy(1, &header("<u8", false, "(1, 1)"), &[0xFF; 8]);
        assert!(parse_npy(&unsigned).is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(rows in 0usize..50, cols in 1usize..33, seed in any::<i32>()) {
            let ids: Vec<i32> = (0..(rows * cols) as i32).map(|i| i.wrapping_mul(seed)).collect();
            let bytes = write_npy_i32(&ids, cols);
            prop_assert_eq!((bytes.len() - ids.len() * 4) % 64, 0);
            let m = parse_npy(&bytes).unwrap();
            prop_assert_eq!((m.rows, m.cols, m.ids), (rows, cols, ids));
        }

        #[test]
        fn no_input_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_npy(&bytes);
            let mut with_magic = MAGIC.to_vec();
            with_magic.extend([1, 0, bytes.len().min(120) as u8, 0]);
            with_magic.extend(&bytes);
            let _ = parse_npy(&with_magic);
        }

        #[test]
        fn no_damage_panics(at in 0usize..200, to in any::<u8>(), cut in 0usize..200) {
            let mut bytes = write_npy_i32(&[1, 2, 3, 4, 5, 6, 7, 8], 4);
            let at = at % bytes.len();
            bytes[at] = to;
            let _ = parse_npy(&bytes);
            bytes.truncate(cut);
            let _ = parse_npy(&bytes);
        }
    }
}

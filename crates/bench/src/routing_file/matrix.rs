//! Expert ids as a file holds them, before the shape of the run is known.

use super::ParseError;

/// `[rows, cols]` expert ids read from a file, row-major, as 32-bit integers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdMatrix {
    /// Tokens.
    pub rows: usize,
    /// Choices per token.
    pub cols: usize,
    /// `rows * cols` ids.
    pub ids: Vec<i32>,
    /// The file's element type, for messages (`i64`).
    pub dtype: &'static str,
}

/// Integer element types that a file may hold, little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
}

impl Element {
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 => 4,
            Self::I64 | Self::U64 => 8,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
        }
    }

    /// The value as i64; `None` for a u64 above its range.
    fn value(self, raw: &[u8]) -> Option<i64> {
        let mut wide = [0; 8];
        wide[..raw.len()].copy_from_slice(raw);
        let bits = u64::from_le_bytes(wide);
        match self {
            Self::I8 => Some(i64::from(bits as i8)),
            Self::I16 => Some(i64::from(bits as i16)),
            Self::I32 => Some(i64::from(bits as i32)),
            Self::I64 => Some(bits as i64),
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => i64::try_from(bits).ok(),
        }
    }
}

/// Rows and columns of a tensor that must have two dimensions, and the bytes it must fill.
pub(super) fn two_dimensions(shape: &[u64], element: Element) -> Result<(usize, usize, usize), ParseError> {
    let &[rows, cols] = shape else {
        return Err(ParseError::Dimensions { shape: shape.to_vec() });
    };
    let too_large = || ParseError::TooLarge { shape: shape.to_vec() };
    let (rows, cols) =
        (usize::try_from(rows).map_err(|_| too_large())?, usize::try_from(cols).map_err(|_| too_large())?);
    let bytes = rows.checked_mul(cols).and_then(|n| n.checked_mul(element.bytes())).ok_or_else(too_large)?;
    if cols == 0 {
        return Err(ParseError::Dimensions { shape: shape.to_vec() });
    }
    Ok((rows, cols, bytes))
}

/// Converts `data`, whose length was checked against the shape, to 32-bit ids in row-major order.
pub(super) fn decode(
    data: &[u8],
    (rows, cols): (usize, usize),
    element: Element,
    column_major: bool,
) -> Result<IdMatrix, ParseError> {
    let size = element.bytes();
    let mut ids = Vec::with_capacity(data.len() / size);
    for row in 0..rows {
        for col in 0..cols {
            let at = if column_major { col * rows + row } else { row * cols + col };
            let value = element.value(&data[at * size..(at + 1) * size]);
            let Some(id) = value.and_then(|v| i32::try_from(v).ok()) else {
                let value = value.map_or_else(|| "a number of 2^63 or more".to_owned(), |v| v.to_string());
                return Err(ParseError::Id { row, col, value });
            };
            ids.push(id);
        }
    }
    Ok(IdMatrix { rows, cols, ids, dtype: element.name() })
}

//! What a rank must receive and get back, as the bytes that lie in device memory.

use expertrail_core::Dtype;
use expertrail_core::oracle::Expected;

use crate::shared::World;

/// A received output. Rows and scales are those of arrivals; ids and weights those of every row, also where a
/// worst-case output has more rows than arrivals.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) rows: Vec<u8>,
    pub(crate) scales: Vec<u8>,
    pub(crate) ids: Vec<u8>,
    pub(crate) weights: Vec<u8>,
    pub(crate) source_tokens: Vec<u8>,
}

impl Wanted {
    /// Of an output with `rows` rows at a rank that is to receive `expected`, when payload `version` was sent.
    pub(crate) fn new(world: &World, expected: &Expected, version: u32, rows: usize) -> Self {
        let case = world.case;
        let mut wanted = Self {
            rows: Vec::new(),
            scales: Vec::new(),
            ids: bytes(&expected.local_ids, i32::to_le_bytes),
            weights: Vec::new(),
            source_tokens: Vec::new(),
        };
        let sent: Vec<Vec<f32>> = (0..case.ranks).map(|rank| world.weights(rank)).collect();
        let mut row = vec![0; case.dtype.row_bytes(case.hidden)];
        let mut scales = vec![0.0; case.dtype.scales_per_row(case.hidden)];
        for (arrival, &(source, token)) in expected.arrivals.iter().enumerate() {
            let (source, token) = (source as usize, token as usize);
            world.fill(source, token, version, &mut row, &mut scales);
            wanted.rows.extend_from_slice(&row);
            wanted.scales.extend(bytes(&scales, |scale| scale.to_bits().to_le_bytes()));
            for k in 0..case.top_k {
                let here = expected.local_ids[arrival * case.top_k + k] >= 0;
                let weight = if here { sent[source][token * case.top_k + k] } else { 0.0 };
                wanted.weights.extend(weight.to_le_bytes());
            }
            wanted.source_tokens.extend((token as u32).to_le_bytes());
        }
        wanted.ids.resize(4 * rows * case.top_k, 0xff); // -1
        wanted.weights.resize(4 * rows * case.top_k, 0); // 0.0
        wanted
    }

    /// 32-bit words of a row.
    pub(crate) fn row_words(dtype: Dtype, hidden: usize) -> usize {
        dtype.row_bytes(hidden) / 4
    }
}

/// The bytes of values, in device order.
pub(crate) fn bytes<T: Copy, const N: usize>(values: &[T], to_bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| to_bytes(value)).collect()
}

/// Compares what came with what should have, element by element; more may have come.
pub(crate) fn same(
    what: &str,
    got: &[u8],
    want: &[u8],
    element: usize,
    per_row: usize,
) -> Result<(), String> {
    if got.len() < want.len() {
        return Err(format!("{what}: {} bytes came, {} wanted", got.len(), want.len()));
    }
    let Some(at) = got.iter().zip(want).position(|(a, b)| a != b) else { return Ok(()) };
    let (at, wrong) = (at / element, (0..want.len()).filter(|&i| got[i] != want[i]).count());
    let show = |all: &[u8]| {
        let digits = all[at * element..(at + 1) * element].iter().rev().map(|byte| format!("{byte:02x}"));
        digits.collect::<String>()
    };
    Err(format!(
        "{what}: row {}, element {} is 0x{}, wanted 0x{}; {wrong} of {} bytes differ",
        at / per_row.max(1),
        at % per_row.max(1),
        show(got),
        show(want),
        want.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_named() {
        let want = [1, 0, 2, 0, 3, 0, 4, 0];
        assert_eq!(same("rows", &[&want[..], &[9, 9]].concat(), &want, 2, 2), Ok(()));
        let text = same("rows", &[1, 0, 2, 0, 3, 7, 4, 0], &want, 2, 2).unwrap_err();
        assert_eq!(text, "rows: row 1, element 0 is 0x0703, wanted 0x0003; 1 of 8 bytes differ");
        assert!(same("rows", &want[..6], &want, 2, 2).is_err());
    }
}

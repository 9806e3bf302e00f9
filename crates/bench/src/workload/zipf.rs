//! Skewed choice of experts: weight of the i-th hottest expert is `i^-s`.

/// Walker's alias table: one draw costs one comparison, whatever the number of experts.
pub(super) struct Alias {
    /// Chance of keeping the slot itself, in units of 2^-32 (2^32 means always).
    keep: Vec<u64>,
    /// The other expert of the slot.
    other: Vec<u32>,
    /// The weights it was built from, for exact draws among a subset.
    weights: Vec<f64>,
}

impl Alias {
    /// Builds the table of `weights`, all positive and finite.
    pub(super) fn new(weights: Vec<f64>) -> Self {
        let n = weights.len();
        let total: f64 = weights.iter().sum();
        let mut share: Vec<f64> = weights.iter().map(|w| w / total * n as f64).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) = (0..n).partition(|&i| share[i] < 1.0);
        let mut keep = vec![1u64 << 32; n];
        let mut other: Vec<u32> = (0..n as u32).collect();
        while let (Some(low), Some(&high)) = (small.pop(), large.last()) {
            keep[low] = (share[low] * 4_294_967_296.0) as u64;
            other[low] = high as u32;
            share[high] -= 1.0 - share[low];
            if share[high] < 1.0 {
                large.pop();
                small.push(high);
            }
        }
        Self { keep, other, weights }
    }

    /// The expert that 64 random `bits` choose.
    #[inline]
    pub(super) fn pick(&self, bits: u64) -> u32 {
        let slot = (((bits >> 32) * self.keep.len() as u64) >> 32) as usize;
        if (bits & 0xFFFF_FFFF) < self.keep[slot] { slot as u32 } else { self.other[slot] }
    }

    /// One of the `allowed` experts with chances in proportion to their weights; `None` when none is.
    pub(super) fn pick_among(&self, bits: u64, allowed: impl Fn(usize) -> bool) -> Option<u32> {
        let total: f64 = (0..self.weights.len()).filter(|&e| allowed(e)).map(|e| self.weights[e]).sum();
        let mut left = (bits >> 11) as f64 / 9_007_199_254_740_992.0 * total;
        let mut last = None;
        for expert in (0..self.weights.len()).filter(|&e| allowed(e)) {
            last = Some(expert as u32);
            left -= self.weights[expert];
            if left < 0.0 {
                break;
            }
        }
        last
    }
}

/// `i^-s` for `i` of at least 1 and `s` from 0 to 16, without libm, so that every machine gets the same bits.
pub(super) fn inverse_power(i: u32, s: f64) -> f64 {
    exp(-s * ln(f64::from(i)))
}

const LN_2: f64 = std::f64::consts::LN_2;

/// Natural logarithm of `x` >= 1, by the series of artanh on the mantissa.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i64 - 1023;
    let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    // t is at most 1/3, so the 20th odd power is below 2^-60 of the first.
    let (mut power, mut sum) = (t, 0.0);
    for odd in (1..=39).step_by(2) {
        sum += power / f64::from(odd);
        power *= t * t;
    }
    exponent as f64 * LN_2 + 2.0 * sum
}

/// `e^x` for x from -710 to 0, by halving and the power series.
fn exp(x: f64) -> f64 {
    let halvings = (-x / LN_2) as i64;
    let rest = x + halvings as f64 * LN_2;
    let (mut term, mut sum) = (1.0, 1.0);
    for n in 1..=20 {
        term *= rest / f64::from(n);
        sum += term;
    }
    // 2^-halvings, built from its bits; within range since x is above -710.
    sum * f64::from_bits(((1023 - halvings).max(0) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_agree_with_libm() {
        for i in [1u32, 2, 3, 7, 100, 255, 4096, 65_536] {
            for s in [0.0, 0.5, 1.0, 1.3, 2.0, 16.0] {
                let (got, want) = (inverse_power(i, s), f64::from(i).powf(-s));
                assert!((got / want - 1.0).abs() < 1e-12, "{i}^-{s}: {got} {want}");
            }
        }
    }

    #[test]
    fn the_table_gives_back_the_weights() {
        // The exact chance of every expert, summed over slots, not a sample of it.
        let weights: Vec<f64> = (1..=37).map(|i| inverse_power(i, 1.2)).collect();
        let total: f64 = weights.iter().sum();
        let table = Alias::new(weights.clone());
        let mut chance = vec![0.0; 37];
        for slot in 0..37 {
            let keep = table.keep[slot] as f64 / 4_294_967_296.0;
            chance[slot] += keep / 37.0;
            chance[table.other[slot] as usize] += (1.0 - keep) / 37.0;
        }
        for (got, want) in chance.iter().zip(&weights) {
            assert!((got - want / total).abs() < 1e-8, "{got} {}", want / total);
        }
    }

    #[test]
    fn picks_among_the_allowed_only() {
        let table = Alias::new(vec![1000.0, 1.0, 2.0]);
        for bits in (0..200u64).map(|i| i << 56) {
            assert!(matches!(table.pick_among(bits, |e| e > 0), Some(1 | 2)));
        }
        assert_eq!(table.pick_among(u64::MAX, |_| false), None);
    }
}

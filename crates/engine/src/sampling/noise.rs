//! The noise of a draw: a function of seed, sample, position and token, so that nobody has to remember a state.

use glimmer_kernels::math::ln;

/// Gumbel noise for every (position, token) of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noise {
    key: [u32; 2],
    sample_index: u32,
}

impl Noise {
    /// The noise of one seed and sample.
    pub fn new(seed: u64, sample_index: u32) -> Self {
        Self { key: [seed as u32, (seed >> 32) as u32], sample_index }
    }

    /// The noise of `token` at absolute position `position` (its low 32 bits): -ln(-ln u).
    pub fn gumbel(&self, token: u32, position: u64) -> f64 {
        gumbel(self.bits(token, position))
    }

    /// The same, or `None` where it is certainly below `floor`: most tokens of a whole vocabulary cannot win a draw, and
    /// then the logarithms are saved.
    pub fn gumbel_above(&self, token: u32, position: u64, floor: f64) -> Option<f64> {
        let bits = self.bits(token, position);
        // -ln u >= 1 - u, and with fewer than m > 1 leading ones in the 53 bits 1 - u > 2^-m: the noise is below m ln 2.
        // One bit of slack is far more than the rounding of the logarithms. (A cast of a negative floor saturates at 0.)
        let needed = (floor * std::f64::consts::LOG2_E) as u32;
        let below = needed > 2 && (bits << 11).leading_ones() < needed - 1;
        (!below).then(|| gumbel(bits))
    }

    /// 53 random bits.
    fn bits(&self, token: u32, position: u64) -> u64 {
        let [x0, x1, ..] = philox4x32_10([token, position as u32, self.sample_index, 0], self.key);
        (x0 as u64) << 21 | (x1 as u64) >> 11
    }
}

/// -ln(-ln u) with u = (bits + 1) / (2^53 + 2), which lies strictly between 0 and 1 for all 53-bit numbers.
fn gumbel(bits: u64) -> f64 {
    let u = (bits + 1) as f64 / ((1u64 << 53) + 2) as f64;
    -ln(-ln(u))
}

/// Philox4x32 with ten rounds: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011).
fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut c0, mut c1, mut c2, mut c3], [mut k0, mut k1]) = (counter, key);
    for _ in 0..10 {
        let even = 0xd251_1f53u64 * c0 as u64;
        let odd = 0xcd9e_8d57u64 * c2 as u64;
        (c0, c1, c2, c3) = ((odd >> 32) as u32 ^ c1 ^ k0, odd as u32, (even >> 32) as u32 ^ c3 ^ k1, even as u32);
        k0 = k0.wrapping_add(0x9e37_79b9);
        k1 = k1.wrapping_add(0xbb67_ae85);
    }
    [c0, c1, c2, c3]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that Random123 publishes (`kat_vectors`, philox4x32 10).
    #[test]
    fn philox_known_answers() {
        let cases = [
            ([0; 4], [0; 2], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
            (
                [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
                [0xa4093822, 0x299f31d0],
                [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
            ),
        ];
        for (counter, key, answer) in cases {
            assert_eq!(philox4x32_10(counter, key), answer);
        }
    }

    #[test]
    fn words_of_the_counter_and_the_key() {
        let noise = Noise::new(0x299f31d0_a4093822, 0x13198a2e);
        let [x0, x1, ..] = philox4x32_10([7, 9, 0x13198a2e, 0], [0xa4093822, 0x299f31d0]);
        assert_eq!(noise.bits(7, 9), (x0 as u64 * (1 << 32) + x1 as u64) / 2048);
        assert_eq!(noise.bits(7, 9 + (5 << 32)), noise.bits(7, 9));
    }

    #[test]
    fn the_ends_of_the_unit_interval_are_finite() {
        let (low, high) = (gumbel(0), gumbel((1 << 53) - 1));
        assert!((low - -3.603_778_992_970).abs() < 1e-9, "{low}"); // -ln(53 ln 2)
        assert!((high - 36.043_653_389_117).abs() < 1e-9, "{high}"); // 52 ln 2
    }

    #[test]
    fn the_shortcut_agrees_with_the_noise() {
        let noise = Noise::new(3, 1);
        let (mut skipped, mut kept) = (0, 0);
        for token in 0..200_000 {
            let full = noise.gumbel(token, 17);
            for floor in [f64::NEG_INFINITY, -4.0, 0.0, 1.4, 2.2, 3.0, 7.5, 11.0, 40.0, 1e300, f64::INFINITY] {
                match noise.gumbel_above(token, 17, floor) {
                    Some(value) => {
                        assert_eq!(value.to_bits(), full.to_bits());
                        kept += 1;
                    }
                    None => {
                        assert!(full < floor);
                        skipped += 1;
                    }
                }
            }
            assert!(noise.gumbel_above(token, 17, full).is_some());
        }
        assert!(skipped > kept, "{skipped} skipped, {kept} computed");
        // The extreme words, where the bound is tightest.
        for ones in 1..=53 {
            let bits = ((1u64 << 53) - 1) ^ ((1u64 << (53 - ones)) - 1);
            assert!(gumbel(bits - 1) < ones as f64 * std::f64::consts::LN_2 + 1e-9);
        }
    }
}

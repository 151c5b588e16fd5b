//! MLX's affine encodings: w = scale * code + bias, with a scale and a bias for each group of a row.
//!
//! The codes of a row are one little-endian stream of bits, so that eight of them take `bits` whole bytes.

use crate::encode::{LANES, whole};
use crate::{EncodedRows, FloatType, Parts};

/// Whether MLX has such an encoding.
pub fn exists(bits: u8, group: u16) -> bool {
    matches!(bits, 2..=6 | 8) && matches!(group, 32 | 64 | 128)
}

/// Unpacks the codes of a stream of `bits` bits each (1 to 8), the lowest bits first.
///
/// # Panics
/// If `bits` is no number of bits, if `out` is no multiple of 8 long, or if `bytes` does not hold exactly its codes.
pub fn unpack_codes(bits: u8, bytes: &[u8], out: &mut [u8]) {
    assert!((1..=8).contains(&bits), "{bits} bits in a code");
    assert!(out.len().is_multiple_of(8) && bytes.len() == out.len() / 8 * usize::from(bits), "bytes of the codes");
    match bits {
        1 => unpack::<1>(bytes, out),
        2 => unpack::<2>(bytes, out),
        3 => unpack::<3>(bytes, out),
        4 => unpack::<4>(bytes, out),
        5 => unpack::<5>(bytes, out),
        6 => unpack::<6>(bytes, out),
        7 => unpack::<7>(bytes, out),
        _ => unpack::<8>(bytes, out),
    }
}

/// With shifts that are known, since all weights pass here as they are loaded.
fn unpack<const BITS: usize>(bytes: &[u8], out: &mut [u8]) {
    let (codes, _) = out.as_chunks_mut::<8>();
    for (codes, packed) in codes.iter_mut().zip(bytes.as_chunks::<BITS>().0) {
        let mut word = [0; 8];
        word[..BITS].copy_from_slice(packed);
        let word = u64::from_le_bytes(word);
        *codes = std::array::from_fn(|i| (word >> (i * BITS)) as u8 & mask(BITS as u8));
    }
}

/// The inverse of [`unpack_codes`], appended to `out`. Bits of a code above `bits` are cut off.
pub fn pack_codes(bits: u8, codes: &[u8], out: &mut Vec<u8>) {
    for codes in codes.chunks(8) {
        let word = codes
            .iter()
            .enumerate()
            .fold(0, |word, (i, &code)| word | u64::from(code & mask(bits)) << (i * usize::from(bits)));
        out.extend(&word.to_le_bytes()[..bits.into()]);
    }
}

fn mask(bits: u8) -> u8 {
    u8::MAX >> (8 - bits)
}

pub fn decode(bits: u8, group: u16, scale: FloatType, parts: Parts<'_>, out: &mut [f32]) {
    let group = usize::from(group);
    let mut codes = [0; 128];
    let codes = &mut codes[..group];
    let (mut s, mut b) = ([0.0], [0.0]);
    let groups = parts.codes.chunks_exact(group / 8 * usize::from(bits));
    let scales = parts.scales.chunks_exact(scale.size()).zip(parts.biases.chunks_exact(scale.size()));
    for ((out, packed), (scales, biases)) in out.chunks_exact_mut(group).zip(groups).zip(scales) {
        unpack_codes(bits, packed, codes);
        scale.decode(scales, &mut s);
        scale.decode(biases, &mut b);
        out.iter_mut().zip(&*codes).for_each(|(w, &code)| *w = s[0] * f32::from(code) + b[0]);
    }
}

/// The smallest value of a group is its bias, and the steps reach its largest. Codes are chosen for the scale and the
/// bias as stored, so that an error is at most half a step and what their rounding shifts.
pub fn encode(bits: u8, group: u16, scale: FloatType, row: &[f32], out: &mut EncodedRows) {
    let top = mask(bits);
    let mut codes = Vec::with_capacity(group.into());
    for values in row.chunks_exact(group.into()) {
        let (low, high) = values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), &v| (l.min(v), h.max(v)));
        let scales = scale.encode(&[(high - low) / f32::from(top)]);
        let biases = scale.encode(&[low]);
        let (mut s, mut b) = ([0.0], [0.0]);
        scale.decode(&scales, &mut s);
        scale.decode(&biases, &mut b);
        // A group of one value has no steps; the quotient is NaN or infinite then, and becomes a code all the same.
        let code = |&v: &f32| if s[0] == 0.0 { 0 } else { ((v - b[0]) / s[0]).round().clamp(0.0, top.into()) as u8 };
        codes.clear();
        codes.extend(values.iter().map(code));
        pack_codes(bits, &codes, &mut out.codes);
        out.scales.extend(scales);
        out.biases.extend(biases);
    }
}

/// A scale and a bias as they are stored, and what they lose.
#[derive(Clone, Copy)]
struct Fit {
    scale: f32,
    bias: f32,
    error: f32,
}

/// As [`encode`], with the scale and the bias of the least squared error among those that a search comes by. The range's own are
/// among them.
pub fn search(
    bits: u8,
    group: u16,
    float: FloatType,
    values: &[f32],
    importance: Option<&[f32]>,
    out: &mut EncodedRows,
) {
    // By how much the ends of the range move inward, and how often: the coarser the codes, the more it is worth.
    let (stride, times) = match bits {
        2 => (0.07, 7),
        3 => (0.05, 6),
        4 => (0.04, 5),
        5 => (0.03, 3),
        6 => (0.02, 2),
        _ => (0.005, 1),
    };
    let (top, len) = (f32::from(mask(bits)), usize::from(group));
    let alike = [1.0; 128];
    let (mut codes, mut bytes) = ([0.0; 128], Vec::with_capacity(len));
    let columns = importance.map_or(1, |weights| weights.len() / len);
    for (i, values) in values.chunks_exact(len).enumerate() {
        let weights = importance.map_or(&alike[..len], |weights| &weights[i % columns * len..][..len]);
        let codes = &mut codes[..len];
        let (low, high) = values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), &v| (l.min(v), h.max(v)));
        let totals = Totals::of(values, weights);
        let mut best: Option<Fit> = None;
        for step in 0..=times {
            let inset = (high - low) * stride * 0.5 * step as f32;
            let (scale, bias) = ((high - low - 2.0 * inset) / top, low + inset);
            let mut fit = measure(float, scale, bias, top, values, weights, codes);
            for _ in 0..2 {
                let Some((scale, bias)) = refit(float, values, weights, codes, totals) else { break };
                let next = measure(float, scale, bias, top, values, weights, codes);
                if next.error >= fit.error {
                    break;
                }
                fit = next;
            }
            if best.is_none_or(|best| fit.error < best.error) {
                best = Some(fit);
            }
        }
        let best = best.expect("there is a first step");
        measure(float, best.scale, best.bias, top, values, weights, codes);
        bytes.clear();
        bytes.extend(codes.iter().map(|&code| code as u8));
        pack_codes(bits, &bytes, &mut out.codes);
        out.scales.extend(float.encode(&[best.scale]));
        out.biases.extend(float.encode(&[best.bias]));
    }
}

/// Rounds scale and bias to what is stored, chooses the codes, and adds up what is lost.
#[inline]
fn measure(
    float: FloatType,
    scale: f32,
    bias: f32,
    top: f32,
    values: &[f32],
    weights: &[f32],
    codes: &mut [f32],
) -> Fit {
    let (scale, bias) = (float.round(scale), float.round(bias));
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut errors = [0.0; LANES];
    let (values, weights) = (values.as_chunks::<LANES>().0, weights.as_chunks::<LANES>().0);
    for ((values, weights), codes) in values.iter().zip(weights).zip(codes.as_chunks_mut::<LANES>().0) {
        for i in 0..LANES {
            let code = whole(((values[i] - bias) * inverse).max(0.0).min(top));
            let lost = scale * code + bias - values[i];
            codes[i] = code;
            errors[i] += weights[i] * lost * lost;
        }
    }
    Fit { scale, bias, error: errors.iter().sum() }
}

/// What sums over a group are whatever its codes.
#[derive(Clone, Copy)]
struct Totals {
    weights: f32,
    values: f32,
}

impl Totals {
    fn of(values: &[f32], weights: &[f32]) -> Self {
        let mut sums = [[0.0; LANES]; 2];
        for (values, weights) in values.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
            for i in 0..LANES {
                sums[0][i] += weights[i];
                sums[1][i] += weights[i] * values[i];
            }
        }
        let [weights, values] = sums.map(|lanes| lanes.iter().sum());
        Self { weights, values }
    }
}

/// The scale and the bias that suit these codes best; the bias is that for the scale as stored. `None` where all codes are one.
#[inline]
fn refit(float: FloatType, values: &[f32], weights: &[f32], codes: &[f32], totals: Totals) -> Option<(f32, f32)> {
    let mut sums = [[0.0; LANES]; 3];
    let (values, weights) = (values.as_chunks::<LANES>().0, weights.as_chunks::<LANES>().0);
    for ((values, weights), codes) in values.iter().zip(weights).zip(codes.as_chunks::<LANES>().0) {
        for i in 0..LANES {
            let weighted = weights[i] * codes[i];
            sums[0][i] += weighted;
            sums[1][i] += weighted * codes[i];
            sums[2][i] += weighted * values[i];
        }
    }
    let [c, cc, vc] = sums.map(|lanes| lanes.iter().sum::<f32>());
    let Totals { weights: n, values: v } = totals;
    let spread = cc * n - c * c;
    let scale = float.round((vc * n - v * c) / spread);
    (spread > 0.0 && scale.is_finite()).then(|| (scale, (v - scale * c) / n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_one_stream_of_bits() {
        let mut codes = [0; 8];
        unpack_codes(3, &[0b1000_1000, 0b1100_0110, 0b1111_1010], &mut codes);
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7]);
        for bits in 1..=8 {
            let codes: Vec<u8> = (0..64u8).map(|i| i.wrapping_mul(37) & mask(bits)).collect();
            let (mut packed, mut back) = (Vec::new(), vec![0; 64]);
            pack_codes(bits, &codes, &mut packed);
            unpack_codes(bits, &packed, &mut back);
            assert_eq!(back, codes, "{bits} bits");
        }
    }

    /// Numbers like weights: nearly normal, with some that stand out.
    fn weights(count: usize) -> Vec<f32> {
        let mut state = 1u32;
        let mut unit = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..count).map(|i| (unit() + unit() + unit()) * if i % 97 == 0 { 0.1 } else { 0.03 } + 0.002).collect()
    }

    fn errors(bits: u8, group: u16, float: FloatType, values: &[f32], rows: &EncodedRows, weights: &[f32]) -> Vec<f64> {
        let mut back = vec![0.0; values.len()];
        decode(bits, group, float, rows.parts(), &mut back);
        let lost =
            |(i, (v, b)): (usize, (&f32, &f32))| f64::from(weights[i % weights.len()]) * f64::from(v - b).powi(2);
        let lost: Vec<f64> = values.iter().zip(&back).enumerate().map(lost).collect();
        lost.chunks(group.into()).map(|group| group.iter().sum()).collect()
    }

    #[test]
    fn a_search_is_never_worse_than_the_range() {
        let values = weights(128 * 64);
        for (bits, least) in [(2, 0.75), (3, 0.85), (4, 0.92), (5, 0.97), (6, 1.0), (8, 1.0)] {
            for (group, float) in
                [(32, FloatType::BF16), (64, FloatType::F16), (128, FloatType::BF16), (64, FloatType::F32)]
            {
                for weights in [vec![1.0], (0..128).map(|i| 1.0 + (i * 7 % 13) as f32).collect()] {
                    let (mut plain, mut found) = (EncodedRows::default(), EncodedRows::default());
                    encode(bits, group, float, &values, &mut plain);
                    let importance = (weights.len() > 1).then_some(&weights[..]);
                    search(bits, group, float, &values, importance, &mut found);
                    assert_eq!(plain.parts().sizes(), found.parts().sizes());
                    let [plain, found] =
                        [&plain, &found].map(|rows| errors(bits, group, float, &values, rows, &weights));
                    let what = format!("{bits} bits, groups of {group}, {float}");
                    assert!(plain.iter().zip(&found).all(|(p, f)| *f <= p * (1.0 + 1e-4) + 1e-18), "{what}");
                    let (plain, found): (f64, f64) = (plain.iter().sum(), found.iter().sum());
                    println!("{what}: {:.3} of the error", found / plain);
                    assert!(found <= least * plain, "{what}: {found} of {plain}");
                }
            }
        }
    }

    #[test]
    fn groups_of_one_value_survive_a_search() {
        for value in [0.0, 1.0, -2.5, 1e-30] {
            let mut rows = EncodedRows::default();
            search(4, 32, FloatType::BF16, &[value; 64], None, &mut rows);
            let mut back = [9.0; 64];
            decode(4, 32, FloatType::BF16, rows.parts(), &mut back);
            assert!(back.iter().all(|b| (b - value).abs() <= value.abs() / 256.0), "{value}: {back:?}");
        }
    }
}

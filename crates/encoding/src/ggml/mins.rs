//! What q2_k, q4_k and q5_k share: a scale and a minimum for each sub-block, both small integers times an f16 for each kind.
//! w = d * scale * code - dmin * min.

use super::{Unpack, decode_groups, half, inverse, range, set_half};
use crate::encode::{lost, whole};

/// Decodes a block of sub-blocks of `sub` elements. d and dmin are the f16 at `halves`, `pair` has a sub-block's scale and minimum.
pub fn decode(
    codes: Unpack,
    sub: usize,
    halves: [usize; 2],
    block: &[u8],
    out: &mut [f32],
    pair: impl Fn(usize) -> (u8, u8),
) {
    let [d, dmin] = halves.map(|at| half(block, at));
    decode_groups(codes, sub, block, out, |i| {
        let (scale, min) = pair(i);
        let (step, offset) = (d * f32::from(scale), dmin * f32::from(min));
        move |code| step * f32::from(code) - offset
    });
}

/// Sets the f16 at `halves` and returns scales and minimums, from 0 to `most`, for SUBS sub-blocks, and the codes, from 0 to `top`.
///
/// d and dmin follow from the ranges of the sub-blocks; then each sub-block takes, of a few pairs around its own range,
/// the one with the smallest squared error, each error multiplied with its weight. The pair of its range is among them, so a search never does worse.
pub fn encode<const SUBS: usize>(
    values: &[f32],
    weights: &[f32],
    top: u8,
    most: u8,
    halves: [usize; 2],
    block: &mut [u8],
) -> ([(u8, u8); SUBS], [u8; 256]) {
    let (sub, top) = (256 / SUBS, f32::from(top));
    let ranges: [(f32, f32); SUBS] = std::array::from_fn(|i| {
        let (low, high) = range(&values[i * sub..(i + 1) * sub]);
        let (low, high) = (low.min(0.0), high.max(0.0));
        ((high - low) / top, -low)
    });
    let (scale, min) = ranges.iter().fold((0f32, 0f32), |(s, m), r| (s.max(r.0), m.max(r.1)));
    let d = set_half(block, halves[0], scale / f32::from(most));
    let dmin = set_half(block, halves[1], min / f32::from(most));
    let (per_d, per_dmin) = (inverse(d), inverse(dmin));
    let (mut pairs, mut codes) = ([(0, 0); SUBS], [0; 256]);
    for (i, &(scale, min)) in ranges.iter().enumerate() {
        let (values, weights) = (&values[i * sub..(i + 1) * sub], &weights[i * sub..(i + 1) * sub]);
        let (scale, min) = ((scale * per_d).round() as i32, (min * per_dmin).round() as i32);
        let mut best = (f32::INFINITY, 0, 0);
        for (scale, min) in [0, -1, -2, 1].into_iter().flat_map(|s| [0, -1, 1].map(|m| (scale + s, min + m))) {
            let within = 0..=i32::from(most);
            if !within.contains(&scale) || !within.contains(&min) {
                continue;
            }
            let (step, offset) = (d * scale as f32, dmin * min as f32);
            let per_step = inverse(step);
            let error = lost(values, weights, |v| step * code(v, per_step, offset, top) - offset);
            if error < best.0 {
                best = (error, scale as u8, min as u8);
            }
        }
        let (_, scale, min) = best;
        pairs[i] = (scale, min);
        let (step, offset) = (d * f32::from(scale), dmin * f32::from(min));
        let (per_step, codes) = (inverse(step), codes[i * sub..(i + 1) * sub].iter_mut());
        codes.zip(values).for_each(|(c, &v)| *c = code(v, per_step, offset, top) as u8);
    }
    (pairs, codes)
}

#[inline]
fn code(value: f32, per_step: f32, offset: f32, top: f32) -> f32 {
    whole(((value + offset) * per_step).max(0.0).min(top))
}

/// How q4_k and q5_k have eight scales and eight minimums of 6 bits in 12 bytes, behind their two f16.
pub mod six {
    /// Elements that share a scale and a minimum.
    pub const SUB: usize = 32;
    /// Where d and dmin are.
    pub const HALVES: [usize; 2] = [0, 2];
    /// Where the packed scales lie.
    pub const AT: std::ops::Range<usize> = 4..16;

    /// Scale and minimum of sub-block `i`.
    ///
    /// The first four have their low 6 bits in bytes 0 to 3 (scales) and 4 to 7 (minimums); the last four have 4 bits in
    /// the halves of bytes 8 to 11 and their upper 2 on top of the first eight bytes.
    pub fn unpack(packed: &[u8], i: usize) -> (u8, u8) {
        match i {
            0..4 => (packed[i] & 63, packed[i + 4] & 63),
            _ => (packed[i + 4] & 15 | packed[i - 4] >> 6 << 4, packed[i + 4] >> 4 | packed[i] >> 6 << 4),
        }
    }

    /// The inverse of [`unpack`], of all of them, over zeros.
    pub fn pack(packed: &mut [u8], pairs: [(u8, u8); 8]) {
        for (i, (scale, min)) in pairs.into_iter().enumerate() {
            match i {
                0..4 => {
                    packed[i] |= scale;
                    packed[i + 4] |= min;
                }
                _ => {
                    packed[i + 4] |= scale & 15 | min << 4;
                    packed[i - 4] |= scale >> 4 << 6;
                    packed[i] |= min >> 4 << 6;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::six::*;

    #[test]
    fn scales_survive_a_round_trip() {
        let pairs = std::array::from_fn(|i| ((i * 37 % 64) as u8, (63 - i * 29 % 64) as u8));
        let mut packed = [0; 12];
        pack(&mut packed, pairs);
        assert_eq!(std::array::from_fn(|i| unpack(&packed, i)), pairs);
    }
}

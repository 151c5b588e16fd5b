//! What q4_k and q5_k share: eight scales and eight minimums of 6 bits in 12 bytes, and how they are found.

use super::{inverse, set_half};

/// Elements that share a scale and a minimum.
pub const SUB: usize = 32;
/// Sub-blocks of a block.
pub const SUBS: usize = 8;
/// Where the packed scales lie in a block, behind the f16 scale of the scales and that of the minimums.
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

fn pack(packed: &mut [u8], i: usize, scale: u8, min: u8) {
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

/// Fills the first 16 bytes of `block` and returns the codes, from 0 to `top`: w = d * scale * code - dmin * min.
///
/// d and dmin follow from the ranges of the sub-blocks; then each sub-block takes, of a few pairs around its own range,
/// the one with the smallest squared error. The pair of its range is among them, so a search never does worse.
pub fn encode(values: &[f32], top: u8, block: &mut [u8]) -> [u8; SUB * SUBS] {
    let ranges: [(f32, f32); SUBS] = std::array::from_fn(|i| {
        let (low, high) = values[i * SUB..(i + 1) * SUB].iter().fold((0f32, 0f32), |(l, h), &v| (l.min(v), h.max(v)));
        ((high - low) / f32::from(top), -low)
    });
    let (scale, min) = ranges.iter().fold((0f32, 0f32), |(s, m), r| (s.max(r.0), m.max(r.1)));
    let d = set_half(block, 0, scale / 63.0);
    let dmin = set_half(block, 2, min / 63.0);
    let (per_d, per_dmin) = (inverse(d), inverse(dmin));
    let mut codes = [0; SUB * SUBS];
    for (i, &(scale, min)) in ranges.iter().enumerate() {
        let values = &values[i * SUB..(i + 1) * SUB];
        let (scale, min) = ((scale * per_d).round() as i32, (min * per_dmin).round() as i32);
        let mut best = (f32::INFINITY, 0, 0);
        for (scale, min) in [0, -1, -2, 1].into_iter().flat_map(|s| [0, -1, 1].map(|m| (scale + s, min + m))) {
            if !(0..=63).contains(&scale) || !(0..=63).contains(&min) {
                continue;
            }
            let (step, offset) = (d * scale as f32, dmin * min as f32);
            let error = |&v: &f32| (step * f32::from(code(v, step, offset, top)) - offset - v).powi(2);
            let error = values.iter().map(error).sum();
            if error < best.0 {
                best = (error, scale as u8, min as u8);
            }
        }
        let (_, scale, min) = best;
        pack(&mut block[AT], i, scale, min);
        let (step, offset) = (d * f32::from(scale), dmin * f32::from(min));
        let codes = codes[i * SUB..(i + 1) * SUB].iter_mut();
        codes.zip(values).for_each(|(c, &v)| *c = code(v, step, offset, top));
    }
    codes
}

fn code(value: f32, step: f32, offset: f32, top: u8) -> u8 {
    ((value + offset) * inverse(step)).round().clamp(0.0, top.into()) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_survive_a_round_trip() {
        let pairs: [(u8, u8); SUBS] = std::array::from_fn(|i| ((i * 37 % 64) as u8, (63 - i * 29 % 64) as u8));
        let mut packed = [0; 12];
        pairs.iter().enumerate().for_each(|(i, &(scale, min))| pack(&mut packed, i, scale, min));
        assert_eq!(std::array::from_fn(|i| unpack(&packed, i)), pairs);
    }
}

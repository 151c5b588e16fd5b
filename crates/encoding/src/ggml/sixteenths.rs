//! What many types of 256 elements share: a scale that is a small integer for each 16 elements, times one f16.

use super::{Unpack, decode_groups, extreme, inverse};
use crate::Codebook;
use crate::encode::{lost, whole};
use half::f16;

/// The scales of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sixteenths {
    /// An f16, by which all of them are multiplied.
    pub d: [u8; 2],
    /// One for each 16 elements.
    pub factors: [i8; 16],
}

/// Elements that share a scale.
pub const SUB: usize = 16;

impl Sixteenths {
    /// Of a block that has its f16 at `at`, the integer of each of its sixteenths from `factor`.
    pub fn new(block: &[u8], at: usize, factor: impl Fn(usize) -> i8) -> Self {
        Self { d: [block[at], block[at + 1]], factors: std::array::from_fn(factor) }
    }

    /// w = d * factor * (code - centre).
    pub fn decode_centred(&self, codes: Unpack, centre: u8, block: &[u8], out: &mut [f32]) {
        let d = f16::from_le_bytes(self.d).to_f32();
        decode_groups(codes, SUB, block, out, |sub| {
            let step = d * f32::from(self.factors[sub]);
            move |code| step * (f32::from(code) - f32::from(centre))
        });
    }

    /// w = d * factor * unit * value of the code.
    pub fn decode_book(&self, codes: Unpack, book: &'static Codebook, block: &[u8], out: &mut [f32]) {
        let d = f16::from_le_bytes(self.d).to_f32();
        decode_groups(codes, SUB, block, out, |sub| {
            let step = d * f32::from(self.factors[sub]) * book.unit;
            move |code| step * book.value(code)
        });
    }
}

/// Scales and codes for w = d * factor * (code - centre), codes below twice the centre, factors from -most to most - 1.
///
/// The extreme value of a sub-block becomes code 0; its factor is the one for that or a neighbour, whichever has the smallest
/// squared error, each error multiplied with its weight.
pub fn encode(values: &[f32], weights: &[f32], centre: u8, most: i32) -> (Sixteenths, [u8; 256]) {
    let top = f32::from(centre);
    // Counted from the centre.
    let code = |v: f32, per_step: f32| whole((v * per_step).max(-top).min(top - 1.0));
    let (subs, _) = values.as_chunks::<SUB>();
    let (weights, _) = weights.as_chunks::<SUB>();
    let steps: [f32; 16] = std::array::from_fn(|sub| extreme(&subs[sub]) / -top);
    let stored = f16::from_f32(extreme(&steps) / -most as f32);
    let d = stored.to_f32();
    let (mut factors, mut codes) = ([0; 16], [0; 256]);
    for (sub, (values, codes)) in subs.iter().zip(codes.as_chunks_mut::<SUB>().0).enumerate() {
        let own = (steps[sub] * inverse(d)).round().clamp(-most as f32, most as f32 - 1.0) as i32;
        let mut best = (f32::INFINITY, 0);
        for factor in [own, own - 1, own + 1, own - 2, own + 2] {
            if !(-most..most).contains(&factor) {
                continue;
            }
            let step = d * factor as f32;
            let per_step = inverse(step);
            let error = lost(values, &weights[sub], |v| step * code(v, per_step));
            if error < best.0 {
                best = (error, factor as i8);
            }
        }
        factors[sub] = best.1;
        let step = d * f32::from(best.1);
        let per_step = inverse(step);
        codes.iter_mut().zip(values).for_each(|(c, &v)| *c = (code(v, per_step) + top) as u8);
    }
    (Sixteenths { d: stored.to_le_bytes(), factors }, codes)
}

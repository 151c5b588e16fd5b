//! q6_k: 128 bytes of lower halves, 64 bytes of upper 2 bits, 16 signed scales of 8 bits, f16 scale of the scales.
//! w = d * scale * (code - 32).
//!
//! Each half of a block has 128 elements in four runs of 32. Runs 0 and 1 have their lower 4 bits in the low halves of
//! the 64 bytes, 2 and 3 in the high ones; run r has its upper bits in bits 2r and 2r + 1 of the 32 bytes.

use super::{Format, extreme, half, inverse, set_half};

pub const FORMAT: Format = Format { name: "q6_k", elements: 256, bytes: 210, decode, encode };

const HIGH: usize = 128;
const SCALES: usize = 192;
const D: usize = 208;
/// Elements that share a scale.
const SUB: usize = 16;

/// Of element `i` of a block: the byte with its lower bits and their shift, that with its upper bits and theirs.
fn place(i: usize) -> (usize, usize, usize, usize) {
    let (part, run, j) = (i / 128, i % 128 / 32, i % 32);
    (part * 64 + run % 2 * 32 + j, run / 2 * 4, HIGH + part * 32 + j, run * 2)
}

fn decode(block: &[u8], out: &mut [f32]) {
    let d = half(block, D);
    for (sub, out) in out.chunks_exact_mut(SUB).enumerate() {
        let step = d * f32::from(block[SCALES + sub] as i8);
        for (j, w) in out.iter_mut().enumerate() {
            let (low, low_shift, high, high_shift) = place(sub * SUB + j);
            let code = block[low] >> low_shift & 15 | (block[high] >> high_shift & 3) << 4;
            *w = step * (f32::from(code) - 32.0);
        }
    }
}

/// The extreme value of a sub-block becomes code 0, which is -32 steps; its scale is that or a neighbour, whichever has
/// the smallest squared error.
fn encode(values: &[f32], block: &mut [u8]) {
    let steps: [f32; 16] = std::array::from_fn(|sub| extreme(&values[sub * SUB..(sub + 1) * SUB]) / -32.0);
    let d = set_half(block, D, extreme(&steps) / -128.0);
    for (sub, &step) in steps.iter().enumerate() {
        let values = &values[sub * SUB..(sub + 1) * SUB];
        let own = (step * inverse(d)).round().clamp(-128.0, 127.0) as i32;
        let mut best = (f32::INFINITY, 0i8);
        for scale in [own, own - 1, own + 1, own - 2, own + 2] {
            let Ok(scale) = i8::try_from(scale) else { continue };
            let step = d * f32::from(scale);
            let error = |&v: &f32| (step * (f32::from(code(v, step)) - 32.0) - v).powi(2);
            let error = values.iter().map(error).sum();
            if error < best.0 {
                best = (error, scale);
            }
        }
        block[SCALES + sub] = best.1 as u8;
        let step = d * f32::from(best.1);
        for (j, &v) in values.iter().enumerate() {
            let (low, low_shift, high, high_shift) = place(sub * SUB + j);
            block[low] |= (code(v, step) & 15) << low_shift;
            block[high] |= code(v, step) >> 4 << high_shift;
        }
    }
}

fn code(value: f32, step: f32) -> u8 {
    ((value * inverse(step)).round() + 32.0).clamp(0.0, 63.0) as u8
}

//! q4_k: f16 scale of the scales, f16 scale of the minimums, 12 bytes of them, then 128 bytes of codes: 32 bytes hold two
//! sub-blocks, the first in the low halves. w = d * scale * code - dmin * min.

use super::k_scales::{AT, SUB, encode as encode_scales, unpack};
use super::{Format, half};

pub const FORMAT: Format = Format { name: "q4_k", elements: 256, bytes: 144, decode, encode };

fn decode(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    for (i, out) in out.chunks_exact_mut(SUB).enumerate() {
        let (scale, min) = unpack(&block[AT], i);
        let (step, offset) = (d * f32::from(scale), dmin * f32::from(min));
        let codes = &block[16 + i / 2 * SUB..][..SUB];
        let shift = i % 2 * 4;
        out.iter_mut().zip(codes).for_each(|(w, &byte)| *w = step * f32::from(byte >> shift & 15) - offset);
    }
}

fn encode(values: &[f32], block: &mut [u8]) {
    for (i, codes) in encode_scales(values, 15, block).chunks_exact(SUB).enumerate() {
        let bytes = block[16 + i / 2 * SUB..].iter_mut();
        bytes.zip(codes).for_each(|(byte, code)| *byte |= code << (i % 2 * 4));
    }
}

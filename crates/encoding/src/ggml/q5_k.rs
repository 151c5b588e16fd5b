//! q5_k: as q4_k, with 32 bytes between scales and codes that hold the fifth bits: bit i of byte j is that of element j
//! of sub-block i.

use super::k_scales::{AT, SUB, encode as encode_scales, unpack};
use super::{Format, half};

pub const FORMAT: Format = Format { name: "q5_k", elements: 256, bytes: 176, decode, encode };

fn decode(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    let high = &block[16..48];
    for (i, out) in out.chunks_exact_mut(SUB).enumerate() {
        let (scale, min) = unpack(&block[AT], i);
        let (step, offset) = (d * f32::from(scale), dmin * f32::from(min));
        let codes = &block[48 + i / 2 * SUB..][..SUB];
        for ((w, &byte), &high) in out.iter_mut().zip(codes).zip(high) {
            let code = byte >> (i % 2 * 4) & 15 | (high >> i & 1) << 4;
            *w = step * f32::from(code) - offset;
        }
    }
}

fn encode(values: &[f32], block: &mut [u8]) {
    for (i, codes) in encode_scales(values, 31, block).chunks_exact(SUB).enumerate() {
        for (j, code) in codes.iter().enumerate() {
            block[48 + i / 2 * SUB + j] |= (code & 15) << (i % 2 * 4);
            block[16 + j] |= code >> 4 << i;
        }
    }
}

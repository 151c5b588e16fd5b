//! q6_k: 128 bytes of lower halves, 64 bytes of upper 2 bits, 16 signed scales of 8 bits, f16 scale of the scales.
//! w = d * scale * (code - 32).
//!
//! 64 bytes hold the lower 4 bits of 128 elements, those of the first 64 in the low halves. Upper bits lie as in q2_k.

use super::sixteenths::{self, Sixteenths};
use super::unpack::{nibbles, pairs, set_nibbles, set_pairs};
use super::{Format, Pack};

pub const FORMAT: Format = Format {
    name: "q6_k",
    elements: 256,
    bytes: 210,
    halves: &[D],
    codes,
    decode,
    encode: Some(Pack::Searched(encode)),
    sixteenths: Some(scales),
};

const LOW: std::ops::Range<usize> = 0..128;
const HIGH: std::ops::Range<usize> = 128..192;
const SCALES: std::ops::Range<usize> = 192..208;
const D: usize = 208;

fn codes(block: &[u8], codes: &mut [u8]) {
    nibbles::<64>(&block[LOW], codes);
    pairs(&block[HIGH], codes, 4);
}

fn scales(block: &[u8]) -> Sixteenths {
    Sixteenths::new(block, D, |i| block[SCALES][i] as i8)
}

fn decode(block: &[u8], out: &mut [f32]) {
    scales(block).decode_centred(codes, 32, block, out);
}

fn encode(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let (scales, codes) = sixteenths::encode(values, weights, 32, 128);
    block[D..].copy_from_slice(&scales.d);
    block[SCALES].copy_from_slice(&scales.factors.map(|factor| factor as u8));
    set_nibbles::<64>(&mut block[LOW], &codes);
    set_pairs(&mut block[HIGH], &codes, 4);
}

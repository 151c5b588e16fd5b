//! q4_k: f16 scale of the scales, f16 scale of the minimums, 12 bytes of them, then 128 bytes of codes: 32 bytes hold two
//! sub-blocks, the first in the low halves. w = d * scale * code - dmin * min.

use super::mins::{self, six};
use super::unpack::{nibbles, set_nibbles};
use super::{Format, Pack};

pub const FORMAT: Format = Format {
    name: "q4_k",
    elements: 256,
    bytes: 144,
    halves: &six::HALVES,
    codes,
    decode,
    encode: Some(Pack::Searched(encode)),
    sixteenths: None,
};

fn codes(block: &[u8], codes: &mut [u8]) {
    nibbles::<32>(&block[16..], codes);
}

fn decode(block: &[u8], out: &mut [f32]) {
    mins::decode(codes, six::SUB, six::HALVES, block, out, |sub| six::unpack(&block[six::AT], sub));
}

fn encode(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let (pairs, codes) = mins::encode::<8, 32>(values, weights, 15, 63, six::HALVES, block);
    six::pack(&mut block[six::AT], pairs);
    set_nibbles::<32>(&mut block[16..], &codes);
}

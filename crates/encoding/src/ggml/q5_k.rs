//! q5_k: as q4_k, with 32 bytes between scales and codes that hold the fifth bits: bit i of byte j is that of element j
//! of sub-block i.

use super::mins::{self, six};
use super::unpack::{nibbles, ones, set_nibbles, set_ones};
use super::{Format, Pack};

pub const FORMAT: Format = Format {
    name: "q5_k",
    elements: 256,
    bytes: 176,
    halves: &six::HALVES,
    codes,
    decode,
    encode: Some(Pack::Searched(encode)),
    sixteenths: None,
};

const HIGH: std::ops::Range<usize> = 16..48;

fn codes(block: &[u8], codes: &mut [u8]) {
    nibbles::<32>(&block[HIGH.end..], codes);
    ones::<32>(&block[HIGH], codes, 4);
}

fn decode(block: &[u8], out: &mut [f32]) {
    mins::decode(codes, six::SUB, six::HALVES, block, out, |sub| six::unpack(&block[six::AT], sub));
}

fn encode(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let (pairs, codes) = mins::encode::<8, 32>(values, weights, 31, 63, six::HALVES, block);
    six::pack(&mut block[six::AT], pairs);
    set_ones::<32>(&mut block[HIGH], &codes, 4);
    set_nibbles::<32>(&mut block[HIGH.end..], &codes);
}

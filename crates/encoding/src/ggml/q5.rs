//! q5_0: f16 scale, 4 bytes with the fifth bits in order, then 16 bytes as in q4_0. w = d * (code - 16).
//! q5_1: the same with an f16 minimum behind the scale. w = d * code + m.

use super::unpack::{nibbles, set_nibbles};
use super::{Format, Pack, decode_groups, encode_centred, encode_ranged, half};

pub const Q5_0: Format = Format {
    name: "q5_0",
    elements: 32,
    bytes: 22,
    halves: &[0],
    codes: codes_0,
    decode: decode_0,
    encode: Some(Pack::Plain(encode_0)),
    sixteenths: None,
};

pub const Q5_1: Format = Format {
    name: "q5_1",
    elements: 32,
    bytes: 24,
    halves: &[0, 2],
    codes: codes_1,
    decode: decode_1,
    encode: Some(Pack::Plain(encode_1)),
    sixteenths: None,
};

/// Fifth bits and nibbles.
fn unpack(bytes: &[u8], codes: &mut [u8]) {
    let (high, low) = bytes.split_at(4);
    nibbles::<16>(low, codes);
    for (codes, high) in codes.as_chunks_mut::<8>().0.iter_mut().zip(high) {
        codes.iter_mut().enumerate().for_each(|(i, code)| *code |= (high >> i & 1) << 4);
    }
}

/// The inverse, over zeros.
fn pack(bytes: &mut [u8], codes: &[u8; 32]) {
    let (high, low) = bytes.split_at_mut(4);
    set_nibbles::<16>(low, codes);
    for (codes, high) in codes.as_chunks::<8>().0.iter().zip(high) {
        codes.iter().enumerate().for_each(|(i, code)| *high |= code >> 4 << i);
    }
}

fn codes_0(block: &[u8], codes: &mut [u8]) {
    unpack(&block[2..], codes);
}

fn codes_1(block: &[u8], codes: &mut [u8]) {
    unpack(&block[4..], codes);
}

fn decode_0(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    decode_groups(codes_0, 32, block, out, |_| move |code| d * (f32::from(code) - 16.0));
}

fn decode_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half(block, 0), half(block, 2));
    decode_groups(codes_1, 32, block, out, |_| move |code| d * f32::from(code) + m);
}

fn encode_0(values: &[f32], block: &mut [u8]) {
    let codes = encode_centred(values, 16, block);
    pack(&mut block[2..], &codes);
}

fn encode_1(values: &[f32], block: &mut [u8]) {
    let codes = encode_ranged(values, 31, block);
    pack(&mut block[4..], &codes);
}

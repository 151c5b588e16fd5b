//! q4_0: f16 scale, then 16 bytes: elements 0 to 15 in the low halves, 16 to 31 in the high ones. w = d * (code - 8).
//! q4_1: the same with an f16 minimum behind the scale. w = d * code + m.

use super::unpack::{nibbles, set_nibbles};
use super::{Format, Pack, decode_groups, encode_centred, encode_ranged, half};

pub const Q4_0: Format = Format {
    name: "q4_0",
    elements: 32,
    bytes: 18,
    halves: &[0],
    codes: codes_0,
    decode: decode_0,
    encode: Some(Pack::Plain(encode_0)),
    sixteenths: None,
};

pub const Q4_1: Format = Format {
    name: "q4_1",
    elements: 32,
    bytes: 20,
    halves: &[0, 2],
    codes: codes_1,
    decode: decode_1,
    encode: Some(Pack::Plain(encode_1)),
    sixteenths: None,
};

fn codes_0(block: &[u8], codes: &mut [u8]) {
    nibbles::<16>(&block[2..], codes);
}

fn codes_1(block: &[u8], codes: &mut [u8]) {
    nibbles::<16>(&block[4..], codes);
}

fn decode_0(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    decode_groups(codes_0, 32, block, out, |_| move |code| d * (f32::from(code) - 8.0));
}

fn decode_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half(block, 0), half(block, 2));
    decode_groups(codes_1, 32, block, out, |_| move |code| d * f32::from(code) + m);
}

fn encode_0(values: &[f32], block: &mut [u8]) {
    let codes = encode_centred(values, 8, block);
    set_nibbles::<16>(&mut block[2..], &codes);
}

fn encode_1(values: &[f32], block: &mut [u8]) {
    let codes = encode_ranged(values, 15, block);
    set_nibbles::<16>(&mut block[4..], &codes);
}

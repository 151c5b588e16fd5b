//! iq4_nl: f16 scale, then 16 bytes as the codes of q4_0. w = d * value. iq4_xs: f16 scale of the scales, 2 bytes with the upper
//! 2 bits of eight scales, 4 bytes with their lower 4, then 16 bytes for each. w = d * (scale - 32) * value.

use super::sixteenths::Sixteenths;
use super::unpack::{nibble, nibbles, set_nibbles, word};
use super::{Format, Pack, decode_groups, extreme, half, inverse, set_half};
use crate::Codebook;

pub const IQ4_NL: Format = Format {
    name: "iq4_nl",
    elements: 32,
    bytes: 18,
    halves: &[0],
    codes: codes_nl,
    decode: decode_nl,
    encode: Some(Pack::Plain(encode_nl)),
    sixteenths: None,
};

pub const IQ4_XS: Format = Format {
    name: "iq4_xs",
    elements: 256,
    bytes: 136,
    halves: &[0],
    codes: codes_xs,
    decode: |block, out| scales_xs(block).decode_book(codes_xs, &BOOK, block, out),
    encode: None,
    sixteenths: Some(scales_xs),
};

const BOOK: Codebook = Codebook::IQ4;

fn codes_nl(block: &[u8], codes: &mut [u8]) {
    nibbles::<16>(&block[2..], codes);
}

fn codes_xs(block: &[u8], codes: &mut [u8]) {
    nibbles::<16>(&block[8..], codes);
}

fn scales_xs(block: &[u8]) -> Sixteenths {
    let high = word(block, 1);
    Sixteenths::new(block, 0, |i| {
        let high = (high >> (i / 2 * 2) & 3) as u8;
        (nibble(&block[4..8], i / 2) | high << 4) as i8 - 32
    })
}

fn decode_nl(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    decode_groups(codes_nl, 32, block, out, |_| move |code| d * BOOK.value(code));
}

/// The extreme value becomes code 0, which has the largest magnitude.
fn encode_nl(values: &[f32], block: &mut [u8]) {
    let d = extreme(values) / BOOK.value(0);
    set_half(block, 0, d);
    let inverse = inverse(d);
    let codes: [u8; 32] = std::array::from_fn(|i| BOOK.nearest(values[i] * inverse));
    set_nibbles::<16>(&mut block[2..], &codes);
}

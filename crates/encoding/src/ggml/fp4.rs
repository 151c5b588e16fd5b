//! mxfp4: an e8m0 scale, then 16 bytes of e2m1 as the codes of q4_0. nvfp4: four e4m3 scales without a sign, then for each 8 bytes:
//! elements 0 to 7 of 16 in the low halves, 8 to 15 in the high ones. w = scale * code, where a zero has no sign.
//!
//! The names tell them from MLX's, which are other bytes.

use super::unpack::{nibbles, set_nibbles};
use super::{Format, Pack, decode_groups, inverse};
use crate::Codebook;
use crate::microscale::{absmax, e4m3, e8m0, to_e2m1, to_e4m3};

pub const MXFP4: Format = Format {
    name: "ggml_mxfp4",
    elements: 32,
    bytes: 17,
    halves: &[],
    codes: codes_mx,
    decode: decode_mx,
    encode: Some(Pack::Plain(encode_mx)),
    sixteenths: None,
};

pub const NVFP4: Format = Format {
    name: "ggml_nvfp4",
    elements: 64,
    bytes: 36,
    halves: &[],
    codes: codes_nv,
    decode: decode_nv,
    encode: Some(Pack::Plain(encode_nv)),
    sixteenths: None,
};

const BOOK: Codebook = Codebook::E2M1;

fn codes_mx(block: &[u8], codes: &mut [u8]) {
    nibbles::<16>(&block[1..], codes);
}

fn codes_nv(block: &[u8], codes: &mut [u8]) {
    nibbles::<8>(&block[4..], codes);
}

fn decode_mx(block: &[u8], out: &mut [f32]) {
    let step = e8m0(block[0]) * BOOK.unit;
    decode_groups(codes_mx, 32, block, out, |_| move |code| step * BOOK.value(code));
}

fn decode_nv(block: &[u8], out: &mut [f32]) {
    decode_groups(codes_nv, 16, block, out, |group| {
        let step = unsigned(block[group]) * BOOK.unit;
        move |code| step * BOOK.value(code)
    });
}

/// An e4m3 whose sign is ignored; what is not a number is 0, or, below a sign, one that goes on from the others.
fn unsigned(scale: u8) -> f32 {
    match scale {
        0x7f => 0.0,
        0xff => 480.0,
        _ => e4m3(scale & 0x7f),
    }
}

/// The scale is the power of two below the largest magnitude, by 4, so that what lies above 6 of it is cut, as ggml does it.
fn encode_mx(values: &[f32], block: &mut [u8]) {
    let exponent = absmax(values).to_bits() >> 23;
    block[0] = exponent.saturating_sub(2).min(254) as u8;
    let step = e8m0(block[0]) * BOOK.unit;
    let codes: [u8; 32] = std::array::from_fn(|i| BOOK.nearest(values[i] / step));
    set_nibbles::<16>(&mut block[1..], &codes);
}

fn encode_nv(values: &[f32], block: &mut [u8]) {
    let mut codes = [0; 64];
    for ((codes, values), scale) in codes.as_chunks_mut::<16>().0.iter_mut().zip(values.chunks_exact(16)).zip(0..4) {
        block[scale] = to_e4m3(absmax(values) / 6.0);
        let inverse = inverse(e4m3(block[scale]));
        codes.iter_mut().zip(values).for_each(|(code, v)| *code = to_e2m1(v * inverse));
    }
    set_nibbles::<8>(&mut block[4..], &codes);
}

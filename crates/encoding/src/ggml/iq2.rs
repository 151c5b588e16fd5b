//! Vectors of eight magnitudes, and their signs. w = d * (2 scale + 1) / 8 * value, all with an f16 scale of the scales first.
//!
//! iq2_xxs: for each 32 elements 4 bytes that are places in the grid, then 32 bits with four times seven signs and the scale.
//! iq2_xs: for each 8 elements 16 bits with a place of 9 bits and seven signs, then 8 bytes of scales. iq2_s: 32 bytes with the lower bits
//! of places, 32 bytes of signs, 8 bytes with the upper 2 bits of places, 8 bytes of scales.

use super::Format;
use super::grids::{IQ2_S as GRID_S, IQ2_XS as GRID_XS, IQ2_XXS as GRID_XXS};
use super::sixteenths::Sixteenths;
use super::unpack::{nibble, word};
use crate::Codebook;

pub const IQ2_XXS: Format = Format {
    name: "iq2_xxs",
    elements: 256,
    bytes: 66,
    halves: &[0],
    codes: codes_xxs,
    decode: |block, out| scales_xxs(block).decode_book(codes_xxs, &Codebook::IQ2, block, out),
    encode: None,
    sixteenths: Some(scales_xxs),
};

pub const IQ2_XS: Format = Format {
    name: "iq2_xs",
    elements: 256,
    bytes: 74,
    halves: &[0],
    codes: codes_xs,
    decode: |block, out| scales_xs(block).decode_book(codes_xs, &Codebook::IQ2, block, out),
    encode: None,
    sixteenths: Some(scales_xs),
};

pub const IQ2_S: Format = Format {
    name: "iq2_s",
    elements: 256,
    bytes: 82,
    halves: &[0],
    codes: codes_s,
    decode: |block, out| scales_s(block).decode_book(codes_s, &Codebook::IQ2, block, out),
    encode: None,
    sixteenths: Some(scales_s),
};

/// The codes of eight elements: a vector of places, and signs, which are the upper half of the table.
fn eight(codes: &mut [u8; 8], vector: u16, signs: u8) {
    for (i, code) in codes.iter_mut().enumerate() {
        *code = (vector >> (2 * i) & 3) as u8 | (signs >> i & 1) << 2;
    }
}

/// What a scale counts: an odd number.
pub fn scale_of(scale: u8) -> i8 {
    (2 * scale + 1) as i8
}

/// Seven signs and the one that makes the number of negative ones even.
fn signs_of(seven: u8) -> u8 {
    let seven = seven & 127;
    if seven.count_ones().is_multiple_of(2) { seven } else { seven | 128 }
}

/// The signs of elements 8 i to 8 i + 8, of 32 bits for each 32 elements, four times seven from the lowest.
pub fn signs_of_seven(bytes: &[u8], i: usize) -> u8 {
    let all = u32::from(word(bytes, i / 4 * 2 + 1)) << 16 | u32::from(word(bytes, i / 4 * 2));
    signs_of((all >> (i % 4 * 7)) as u8)
}

fn codes_xxs(block: &[u8], codes: &mut [u8]) {
    for (codes, bytes) in codes.as_chunks_mut::<32>().0.iter_mut().zip(block[2..].as_chunks::<8>().0) {
        let (places, rest) = bytes.split_at(4);
        for (i, (codes, &at)) in codes.as_chunks_mut::<8>().0.iter_mut().zip(places).enumerate() {
            eight(codes, GRID_XXS[usize::from(at)], signs_of_seven(rest, i));
        }
    }
}

fn scales_xxs(block: &[u8]) -> Sixteenths {
    Sixteenths::new(block, 0, |i| scale_of(block[2 + i / 2 * 8 + 7] >> 4))
}

fn codes_xs(block: &[u8], codes: &mut [u8]) {
    for (i, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = word(&block[2..], i);
        eight(codes, GRID_XS[usize::from(word & 511)], signs_of((word >> 9) as u8));
    }
}

fn scales_xs(block: &[u8]) -> Sixteenths {
    Sixteenths::new(block, 0, |i| scale_of(nibble(&block[66..], i)))
}

fn codes_s(block: &[u8], codes: &mut [u8]) {
    let (low, signs, high) = (&block[2..34], &block[34..66], &block[66..74]);
    for (i, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let at = u16::from(low[i]) | u16::from(high[i / 4] >> (i % 4 * 2) & 3) << 8;
        eight(codes, GRID_S[usize::from(at)], signs[i]);
    }
}

fn scales_s(block: &[u8]) -> Sixteenths {
    Sixteenths::new(block, 0, |i| scale_of(nibble(&block[74..], i)))
}

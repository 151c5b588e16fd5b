//! Vectors of four magnitudes, and their signs. iq3_xxs: f16 scale of the scales, 64 bytes that are places in the grid, then for each 32
//! elements signs and scale as in iq2_xxs. w = d * (2 scale + 1) / 4 * value.
//!
//! iq3_s: f16 scale of the scales, 64 bytes with the lower and 8 with the upper bit of places in the grid, 32 bytes of signs, 4 bytes
//! of scales. w = d * (2 scale + 1) * value.

use super::Format;
use super::grids::{IQ3_S as GRID_S, IQ3_XXS as GRID_XXS};
use super::iq2::{scale_of, signs_of_seven};
use super::sixteenths::Sixteenths;
use super::unpack::nibble;
use crate::Codebook;

pub const IQ3_XXS: Format = Format {
    name: "iq3_xxs",
    elements: 256,
    bytes: 98,
    halves: &[0],
    codes: codes_xxs,
    decode: |block, out| scales_xxs(block).decode_book(codes_xxs, &Codebook::IQ3_XXS, block, out),
    encode: None,
    sixteenths: Some(scales_xxs),
};

pub const IQ3_S: Format = Format {
    name: "iq3_s",
    elements: 256,
    bytes: 110,
    halves: &[0],
    codes: codes_s,
    decode: |block, out| scales_s(block).decode_book(codes_s, &Codebook::IQ3_S, block, out),
    encode: None,
    sixteenths: Some(scales_s),
};

/// The codes of eight elements: two vectors of places, and signs, which are the upper half of the table.
fn eight(codes: &mut [u8; 8], vectors: [u16; 2], signs: u8) {
    let places = u32::from(vectors[1]) << 16 | u32::from(vectors[0]);
    for (i, code) in codes.iter_mut().enumerate() {
        *code = (places >> (4 * i) & 7) as u8 | (signs >> i & 1) << 3;
    }
}

fn codes_xxs(block: &[u8], codes: &mut [u8]) {
    let (places, rest) = block[2..].split_at(64);
    for (i, (codes, places)) in codes.as_chunks_mut::<8>().0.iter_mut().zip(places.as_chunks::<2>().0).enumerate() {
        eight(codes, places.map(|at| GRID_XXS[usize::from(at)]), signs_of_seven(rest, i));
    }
}

fn scales_xxs(block: &[u8]) -> Sixteenths {
    Sixteenths::new(block, 0, |i| scale_of(block[66 + i / 2 * 4 + 3] >> 4))
}

fn codes_s(block: &[u8], codes: &mut [u8]) {
    let (low, high, signs) = (&block[2..66], &block[66..74], &block[74..106]);
    for (i, (codes, low)) in codes.as_chunks_mut::<8>().0.iter_mut().zip(low.as_chunks::<2>().0).enumerate() {
        let high = usize::from(high[i / 4] >> (i % 4 * 2));
        let [a, b] = [(low[0], high & 1), (low[1], high >> 1 & 1)].map(|(low, high)| usize::from(low) | high << 8);
        eight(codes, [GRID_S[a], GRID_S[b]], signs[i]);
    }
}

fn scales_s(block: &[u8]) -> Sixteenths {
    Sixteenths::new(block, 0, |i| scale_of(nibble(&block[106..], i / 2)))
}

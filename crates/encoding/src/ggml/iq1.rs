//! Vectors of eight of -1, 0 and 1, all of them moved by an eighth, up or down. w = d * (2 scale + 1) / 8 * value.
//!
//! iq1_s: f16 scale of the scales, 32 bytes with the lower bits of places in the grid, then 16 bits for each 32 elements: four times three
//! upper bits, the scale, the direction. iq1_m: 32 bytes of lower bits, 16 bytes with three upper bits and the direction in each half,
//! then 4 times 16 bits: four times three bits of a scale, and a quarter of the f16.

use super::Format;
use super::grids::IQ1 as GRID;
use super::iq2::scale_of;
use super::sixteenths::Sixteenths;
use super::unpack::{nibble, word};
use crate::Codebook;

pub const IQ1_S: Format = Format {
    name: "iq1_s",
    elements: 256,
    bytes: 50,
    halves: &[0],
    codes: codes_s,
    decode: |block, out| scales_s(block).decode_book(codes_s, &Codebook::IQ1, block, out),
    encode: None,
    sixteenths: Some(scales_s),
};

pub const IQ1_M: Format = Format {
    name: "iq1_m",
    elements: 256,
    bytes: 56,
    halves: &[],
    codes: codes_m,
    decode: |block, out| scales_m(block).decode_book(codes_m, &Codebook::IQ1, block, out),
    encode: None,
    sixteenths: Some(scales_m),
};

/// The codes of eight elements: a vector of places; where they move down, these are in the upper half of the table.
fn eight(codes: &mut [u8; 8], low: u8, high: u16, down: bool) {
    let vector = GRID[usize::from(u16::from(low) | (high & 7) << 8)];
    for (i, code) in codes.iter_mut().enumerate() {
        *code = (vector >> (2 * i) & 3) as u8 | u8::from(down) << 2;
    }
}

fn codes_s(block: &[u8], codes: &mut [u8]) {
    let (low, rest) = block[2..].split_at(32);
    for (i, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = word(rest, i / 4);
        eight(codes, low[i], word >> (i % 4 * 3), word >> 15 != 0);
    }
}

fn scales_s(block: &[u8]) -> Sixteenths {
    Sixteenths::new(block, 0, |i| scale_of((word(&block[34..], i / 2) >> 12 & 7) as u8))
}

fn codes_m(block: &[u8], codes: &mut [u8]) {
    let (low, rest) = block.split_at(32);
    for (i, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let high = nibble(rest, i);
        eight(codes, low[i], high.into(), high & 8 != 0);
    }
}

fn scales_m(block: &[u8]) -> Sixteenths {
    let scales = &block[48..];
    Sixteenths {
        d: scale_of_m(block),
        factors: std::array::from_fn(|i| scale_of((word(scales, i / 4) >> (i % 4 * 3) & 7) as u8)),
    }
}

/// The f16 of iq1_m.
pub fn scale_of_m(block: &[u8]) -> [u8; 2] {
    let quarter = |i: usize| word(&block[48..], i) >> 12 << (4 * i);
    (quarter(0) | quarter(1) | quarter(2) | quarter(3)).to_le_bytes()
}

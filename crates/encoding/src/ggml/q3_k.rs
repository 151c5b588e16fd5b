//! q3_k: 32 bytes of third bits, 64 bytes of lower 2 bits as in q2_k, 16 scales of 6 bits in 12 bytes, f16 scale of the scales.
//! w = d * (scale - 32) * (code - 4).

use super::sixteenths::{self, Sixteenths};
use super::unpack::{nibble, ones, pairs, set_ones, set_pairs};
use super::{Format, Pack};

pub const FORMAT: Format = Format {
    name: "q3_k",
    elements: 256,
    bytes: 110,
    halves: &[D],
    codes,
    decode,
    encode: Some(Pack::Searched(encode)),
    sixteenths: Some(scales),
};

const HIGH: std::ops::Range<usize> = 0..32;
const LOW: std::ops::Range<usize> = 32..96;
const SCALES: std::ops::Range<usize> = 96..108;
const D: usize = 108;

fn codes(block: &[u8], codes: &mut [u8]) {
    codes.fill(0);
    pairs(&block[LOW], codes, 0);
    ones::<32>(&block[HIGH], codes, 2);
}

/// Where scale `i` lies: its lower 4 bits, as a nibble, and the byte and shift of its upper 2.
fn place(i: usize) -> (usize, usize, usize) {
    (i % 8 * 2 + i / 8, 8 + i % 4, i / 4 * 2)
}

fn scales(block: &[u8]) -> Sixteenths {
    let packed = &block[SCALES];
    Sixteenths::new(block, D, |i| {
        let (low, high, shift) = place(i);
        (nibble(packed, low) | (packed[high] >> shift & 3) << 4) as i8 - 32
    })
}

fn decode(block: &[u8], out: &mut [f32]) {
    scales(block).decode_centred(codes, 4, block, out);
}

fn encode(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let (scales, codes) = sixteenths::encode(values, weights, 4, 32);
    block[D..].copy_from_slice(&scales.d);
    let packed = &mut block[SCALES];
    for (i, factor) in scales.factors.into_iter().enumerate() {
        let (low, high, shift) = place(i);
        let scale = (factor + 32) as u8;
        packed[low / 2] |= (scale & 15) << (4 * (low % 2));
        packed[high] |= scale >> 4 << shift;
    }
    set_pairs(&mut block[LOW], &codes, 0);
    set_ones::<32>(&mut block[HIGH], &codes, 2);
}

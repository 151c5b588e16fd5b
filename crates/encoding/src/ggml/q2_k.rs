//! q2_k: 16 bytes with a scale in the low and a minimum in the high half, 64 bytes of codes: the pairs of bits of 32 bytes hold
//! 128 elements; f16 scale of the scales, f16 scale of the minimums. w = d * scale * code - dmin * min.

use super::unpack::{pairs, set_pairs};
use super::{Format, Pack, mins};

pub const FORMAT: Format = Format {
    name: "q2_k",
    elements: 256,
    bytes: 84,
    halves: &HALVES,
    codes,
    decode,
    encode: Some(Pack::Searched(encode)),
    sixteenths: None,
};

const CODES: std::ops::Range<usize> = 16..80;
const HALVES: [usize; 2] = [80, 82];

fn codes(block: &[u8], codes: &mut [u8]) {
    codes.fill(0);
    pairs(&block[CODES], codes, 0);
}

fn decode(block: &[u8], out: &mut [f32]) {
    mins::decode(codes, 16, HALVES, block, out, |sub| (block[sub] & 15, block[sub] >> 4));
}

fn encode(values: &[f32], weights: &[f32], block: &mut [u8]) {
    let (scales, codes) = mins::encode::<16, 16>(values, weights, 3, 15, HALVES, block);
    block.iter_mut().zip(scales).for_each(|(byte, (scale, min))| *byte = scale | min << 4);
    set_pairs(&mut block[CODES], &codes, 0);
}

//! tq1_0: 48 bytes of five codes each and 4 of four, then an f16 scale. tq2_0: 64 bytes of codes as in q2_k, then an f16 scale.
//! w = d * (code - 1).

use super::unpack::pairs;
use super::{Format, decode_groups, half};

pub const TQ1_0: Format = Format {
    name: "tq1_0",
    elements: 256,
    bytes: 54,
    halves: &[52],
    codes: codes_1,
    decode: |block, out| decode(codes_1, half(block, 52), block, out),
    encode: None,
    sixteenths: None,
};

pub const TQ2_0: Format = Format {
    name: "tq2_0",
    elements: 256,
    bytes: 66,
    halves: &[64],
    codes: codes_2,
    decode: |block, out| decode(codes_2, half(block, 64), block, out),
    encode: None,
    sixteenths: None,
};

/// A byte is a fraction of 256; each code is the whole part of three times what the one before it left over. 32 bytes have the
/// first code of each, then the second, and so on; then 16 bytes; then 4.
fn codes_1(block: &[u8], codes: &mut [u8]) {
    let (codes, last) = codes.split_at_mut(240);
    let (first, second) = codes.split_at_mut(160);
    for (bytes, codes) in [(&block[..32], first), (&block[32..48], second), (&block[48..52], last)] {
        for (i, codes) in codes.chunks_exact_mut(bytes.len()).enumerate() {
            let left = 3u8.pow(i as u32);
            codes.iter_mut().zip(bytes).for_each(|(code, &byte)| {
                *code = (u16::from(byte.wrapping_mul(left)) * 3 / 256) as u8;
            });
        }
    }
}

fn codes_2(block: &[u8], codes: &mut [u8]) {
    codes.fill(0);
    pairs(&block[..64], codes, 0);
}

fn decode(codes: super::Unpack, d: f32, block: &[u8], out: &mut [f32]) {
    decode_groups(codes, 256, block, out, |_| move |code| d * (f32::from(code) - 1.0));
}

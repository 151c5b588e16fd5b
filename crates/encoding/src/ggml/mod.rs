//! The block formats of ggml. One file per type; a new one is a file and a row in each table here.

mod k_scales;
mod q4_0;
mod q4_k;
mod q5_k;
mod q6_k;
mod q8_0;

use half::f16;
use std::fmt;

/// A block format of ggml. A block is one run of bytes, scales included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GgmlType {
    /// 32 codes of 4 bits, a scale.
    Q4_0,
    /// 32 codes of 8 bits, a scale.
    Q8_0,
    /// 256 codes of 4 bits, scales and minimums of 6 bits per 32, a scale of each.
    Q4K,
    /// 256 codes of 5 bits, scales and minimums of 6 bits per 32, a scale of each.
    Q5K,
    /// 256 codes of 6 bits, scales of 8 bits per 16, a scale of those.
    Q6K,
}

/// What there is to know about a type.
struct Format {
    name: &'static str,
    /// Elements and bytes of a block.
    elements: usize,
    bytes: usize,
    /// Both lengths are right.
    decode: fn(block: &[u8], out: &mut [f32]),
    encode: fn(values: &[f32], block: &mut [u8]),
}

impl GgmlType {
    /// Every type there is.
    pub const ALL: [GgmlType; 5] = [Self::Q4_0, Self::Q8_0, Self::Q4K, Self::Q5K, Self::Q6K];

    fn format(self) -> &'static Format {
        match self {
            GgmlType::Q4_0 => &q4_0::FORMAT,
            GgmlType::Q8_0 => &q8_0::FORMAT,
            GgmlType::Q4K => &q4_k::FORMAT,
            GgmlType::Q5K => &q5_k::FORMAT,
            GgmlType::Q6K => &q6_k::FORMAT,
        }
    }

    /// Elements of a block.
    pub fn block(self) -> usize {
        self.format().elements
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.format().bytes
    }

    pub(crate) fn decode(self, blocks: &[u8], out: &mut [f32]) {
        let format = self.format();
        let blocks = blocks.chunks_exact(format.bytes).zip(out.chunks_exact_mut(format.elements));
        blocks.for_each(|(block, out)| (format.decode)(block, out));
    }

    pub(crate) fn encode(self, values: &[f32], out: &mut Vec<u8>) {
        let format = self.format();
        for values in values.chunks_exact(format.elements) {
            let at = out.len();
            out.resize(at + format.bytes, 0);
            (format.encode)(values, &mut out[at..]);
        }
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.format().name)
    }
}

/// The f16 at byte `at`.
fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Stores `value` as the f16 at byte `at`; returns what it is then.
fn set_half(block: &mut [u8], at: usize, value: f32) -> f32 {
    let stored = f16::from_f32(value);
    block[at..at + 2].copy_from_slice(&stored.to_le_bytes());
    stored.to_f32()
}

/// The value of the largest magnitude, with its sign; the first of several.
fn extreme(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |max: f32, &v| if v.abs() > max.abs() { v } else { max })
}

/// 1 / x, or 0 where there is nothing to divide by.
fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

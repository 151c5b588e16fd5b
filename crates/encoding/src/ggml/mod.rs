//! The block formats of ggml. One file per family; a new type is a row in each table here.

mod fp4;
mod grids;
mod iq1;
mod iq2;
mod iq3;
mod iq4;
mod mins;
mod q2_k;
mod q3_k;
mod q4;
mod q4_k;
mod q5;
mod q5_k;
mod q6_k;
mod q8_0;
mod sixteenths;
mod ternary;
mod unpack;

pub use sixteenths::Sixteenths;

use half::f16;
use std::fmt;

/// A block format of ggml. A block is one run of bytes, scales included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GgmlType {
    /// 32 codes of 4 bits, a scale.
    Q4_0,
    /// 32 codes of 4 bits, a scale and a minimum.
    Q4_1,
    /// 32 codes of 5 bits, a scale.
    Q5_0,
    /// 32 codes of 5 bits, a scale and a minimum.
    Q5_1,
    /// 32 codes of 8 bits, a scale.
    Q8_0,
    /// 256 codes of 2 bits, scales and minimums of 4 bits per 16, a scale of each.
    Q2K,
    /// 256 codes of 3 bits, scales of 6 bits per 16, a scale of those.
    Q3K,
    /// 256 codes of 4 bits, scales and minimums of 6 bits per 32, a scale of each.
    Q4K,
    /// 256 codes of 5 bits, scales and minimums of 6 bits per 32, a scale of each.
    Q5K,
    /// 256 codes of 6 bits, scales of 8 bits per 16, a scale of those.
    Q6K,
    /// 256 codes in vectors of eight, scales of 3 bits per 32, a scale of those.
    Iq1S,
    /// 256 codes in vectors of eight, scales of 3 bits per 16, a scale of those.
    Iq1M,
    /// 256 codes in vectors of eight, scales of 4 bits per 32, a scale of those.
    Iq2Xxs,
    /// 256 codes in vectors of eight, of more than iq2_xxs has, scales of 4 bits per 16, a scale of those.
    Iq2Xs,
    /// As iq2_xs, of yet more vectors and with all signs.
    Iq2S,
    /// 256 codes in vectors of four, scales of 4 bits per 32, a scale of those.
    Iq3Xxs,
    /// As iq3_xxs, of more vectors and with all signs.
    Iq3S,
    /// 32 codes of 4 bits that are places in a table, a scale.
    Iq4Nl,
    /// 256 codes of 4 bits that are places in a table, scales of 6 bits per 32, a scale of those.
    Iq4Xs,
    /// 256 codes of three values, five to a byte, a scale.
    Tq1_0,
    /// 256 codes of 2 bits, a scale.
    Tq2_0,
    /// 32 codes of e2m1, an e8m0 scale.
    MxFp4,
    /// 64 codes of e2m1, an e4m3 scale per 16.
    NvFp4,
}

/// What there is to know about a type.
struct Format {
    name: &'static str,
    /// Elements and bytes of a block.
    elements: usize,
    bytes: usize,
    /// Where the f16 scales lie in a block.
    halves: &'static [usize],
    /// Both lengths are right, here and below.
    codes: Unpack,
    decode: fn(block: &[u8], out: &mut [f32]),
    encode: Option<Pack>,
    sixteenths: Option<fn(block: &[u8]) -> Sixteenths>,
}

type Unpack = fn(block: &[u8], codes: &mut [u8]);

/// How a block is written, over zeros.
enum Pack {
    /// Everything follows from the largest values.
    Plain(fn(values: &[f32], block: &mut [u8])),
    /// Of several scales that with the least squared error, each error multiplied with its weight.
    Searched(fn(values: &[f32], weights: &[f32], block: &mut [u8])),
}

impl GgmlType {
    /// Every type there is.
    pub const ALL: [GgmlType; 23] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq1S,
        Self::Iq1M,
        Self::Iq2Xxs,
        Self::Iq2Xs,
        Self::Iq2S,
        Self::Iq3Xxs,
        Self::Iq3S,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Tq1_0,
        Self::Tq2_0,
        Self::MxFp4,
        Self::NvFp4,
    ];

    fn format(self) -> &'static Format {
        match self {
            GgmlType::Q4_0 => &q4::Q4_0,
            GgmlType::Q4_1 => &q4::Q4_1,
            GgmlType::Q5_0 => &q5::Q5_0,
            GgmlType::Q5_1 => &q5::Q5_1,
            GgmlType::Q8_0 => &q8_0::FORMAT,
            GgmlType::Q2K => &q2_k::FORMAT,
            GgmlType::Q3K => &q3_k::FORMAT,
            GgmlType::Q4K => &q4_k::FORMAT,
            GgmlType::Q5K => &q5_k::FORMAT,
            GgmlType::Q6K => &q6_k::FORMAT,
            GgmlType::Iq1S => &iq1::IQ1_S,
            GgmlType::Iq1M => &iq1::IQ1_M,
            GgmlType::Iq2Xxs => &iq2::IQ2_XXS,
            GgmlType::Iq2Xs => &iq2::IQ2_XS,
            GgmlType::Iq2S => &iq2::IQ2_S,
            GgmlType::Iq3Xxs => &iq3::IQ3_XXS,
            GgmlType::Iq3S => &iq3::IQ3_S,
            GgmlType::Iq4Nl => &iq4::IQ4_NL,
            GgmlType::Iq4Xs => &iq4::IQ4_XS,
            GgmlType::Tq1_0 => &ternary::TQ1_0,
            GgmlType::Tq2_0 => &ternary::TQ2_0,
            GgmlType::MxFp4 => &fp4::MXFP4,
            GgmlType::NvFp4 => &fp4::NVFP4,
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

    /// Where the f16 scales lie in a block, and behind each what goes with it: a scale, then what is added or, in the
    /// K-quants, the scale of what is taken away. Empty for scales of 8 bits and for the one of iq1_m, which is in pieces.
    pub fn halves(self) -> &'static [usize] {
        self.format().halves
    }

    /// Whether [`encode_rows`](crate::encode_rows) knows this type.
    pub fn has_encoder(self) -> bool {
        self.format().encode.is_some()
    }

    pub(crate) fn is_searched(self) -> bool {
        matches!(self.format().encode, Some(Pack::Searched(_)))
    }

    /// The codes of a block, a byte each, in the order of the elements.
    ///
    /// # Panics
    /// If the lengths are not those of a block.
    pub fn codes(self, block: &[u8], codes: &mut [u8]) {
        let format = self.format();
        assert_eq!((block.len(), codes.len()), (format.bytes, format.elements), "a block of {self}");
        (format.codes)(block, codes);
    }

    /// The scales of a block, where they are a small integer for each 16 elements, and one f16.
    ///
    /// # Panics
    /// If the length is not that of a block.
    pub fn sixteenths(self, block: &[u8]) -> Option<Sixteenths> {
        assert_eq!(block.len(), self.block_bytes(), "a block of {self}");
        self.format().sixteenths.map(|of| of(block))
    }

    pub(crate) fn decode(self, blocks: &[u8], out: &mut [f32]) {
        let format = self.format();
        let blocks = blocks.chunks_exact(format.bytes).zip(out.chunks_exact_mut(format.elements));
        blocks.for_each(|(block, out)| (format.decode)(block, out));
    }

    /// `None` where there is no encoder. `importance` has a weight for each column of the rows that `values` are.
    pub(crate) fn encode(self, values: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) -> Option<()> {
        let format = self.format();
        let encode = format.encode.as_ref()?;
        let alike = [1.0; 256];
        let mut weights = importance.unwrap_or(&alike[..format.elements]).chunks_exact(format.elements).cycle();
        for values in values.chunks_exact(format.elements) {
            let at = out.len();
            out.resize(at + format.bytes, 0);
            match encode {
                Pack::Plain(encode) => encode(values, &mut out[at..]),
                Pack::Searched(encode) => encode(values, weights.next()?, &mut out[at..]),
            }
        }
        Some(())
    }

    /// Whether the scales show that a block is finite.
    pub(crate) fn plainly_finite(self, block: &[u8]) -> bool {
        match self {
            // 2^64 is far from the largest f32.
            GgmlType::MxFp4 => block[0] < 127 + 64,
            GgmlType::NvFp4 => true,
            GgmlType::Iq1M => f16::from_le_bytes(iq1::scale_of_m(block)).is_finite(),
            _ => self.halves().iter().all(|&at| block[at + 1] & 0x7c != 0x7c),
        }
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.format().name)
    }
}

/// Decodes a block by its codes: `of_group` says what codes of a group stand for.
fn decode_groups<V: Fn(u8) -> f32>(
    codes: Unpack,
    group: usize,
    block: &[u8],
    out: &mut [f32],
    of_group: impl Fn(usize) -> V,
) {
    let mut all = [0; 256];
    let all = &mut all[..out.len()];
    codes(block, all);
    for (g, (out, codes)) in out.chunks_exact_mut(group).zip(all.chunks_exact(group)).enumerate() {
        let value = of_group(g);
        out.iter_mut().zip(codes).for_each(|(w, &code)| *w = value(code));
    }
}

/// Sets the f16 scale of 32 values at byte 0, and returns their codes below twice `centre`: w = d * (code - centre).
///
/// The extreme value becomes code 0; codes are chosen for the scale before it is rounded, as ggml does it.
fn encode_centred(values: &[f32], centre: u8, block: &mut [u8]) -> [u8; 32] {
    let d = extreme(values) / -f32::from(centre);
    set_half(block, 0, d);
    let inverse = inverse(d);
    std::array::from_fn(|i| ((values[i] * inverse + f32::from(centre) + 0.5) as u8).min(2 * centre - 1))
}

/// Sets the f16 scale and minimum of 32 values at bytes 0 and 2, and returns their codes up to `top`: w = d * code + m.
///
/// Codes are chosen for both before they are rounded, as ggml does it.
fn encode_ranged(values: &[f32], top: u8, block: &mut [u8]) -> [u8; 32] {
    let (low, high) = range(values);
    let d = (high - low) / f32::from(top);
    set_half(block, 0, d);
    set_half(block, 2, low);
    let inverse = inverse(d);
    std::array::from_fn(|i| (((values[i] - low) * inverse + 0.5) as u8).min(top))
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

/// Smallest and largest value.
fn range(values: &[f32]) -> (f32, f32) {
    values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), &v| (low.min(v), high.max(v)))
}

/// 1 / x, or 0 where there is nothing to divide by.
fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

//! The vocabulary of stored numbers: how a weight matrix lies in memory, and what its bytes mean.
//!
//! One file per family of encodings. An [`Encoding`] says nothing about the container (safetensors, GGUF, ...)
//! that the bytes came from; a [`WeightView`] is an encoding, a shape and exactly as many bytes as they need.
//! Everything above this crate may name its types.

#![forbid(unsafe_code)]

mod affine;
mod codebook;
mod dense;
mod encode;
mod finite;
mod ggml;
mod microscale;
mod rows;
mod view;

pub use affine::unpack_codes;
pub use codebook::Codebook;
pub use dense::FloatType;
pub use encode::{EncodedRows, encode_rows, quantize_rows};
pub use ggml::{GgmlType, Sixteenths};
pub use microscale::{e2m1, e4m3, e8m0};
pub use rows::{MemoryRows, RowOrder, RowSource, Scratch, SharedBytes};
pub use view::{Parts, ViewError, WeightView};

use std::fmt;

/// How the numbers of a tensor are stored. Groups and blocks lie along a row and never span two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// One IEEE-like float per element, little endian, row-major.
    Dense(FloatType),
    /// MLX affine: codes of `bits` bits packed into 32-bit words; w = scale * code + bias per group.
    Affine {
        /// Bits of a code: 2, 3, 4, 5, 6 or 8.
        bits: u8,
        /// Elements that share a scale and a bias: 32, 64 or 128.
        group: u16,
        /// Type of scales and biases.
        scale: FloatType,
    },
    /// MLX mxfp4: E2M1 codes, an E8M0 scale per 32.
    MxFp4,
    /// MLX mxfp8: E4M3 codes, an E8M0 scale per 32.
    MxFp8,
    /// MLX nvfp4: E2M1 codes, an E4M3 scale per 16, and possibly one more scale for the whole tensor.
    NvFp4,
    /// A block format of ggml.
    Ggml(GgmlType),
}

/// How many bytes a run of elements takes in each of the parts of a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Codes, or whole blocks, or floats.
    pub codes: usize,
    /// Scales that are kept apart.
    pub scales: usize,
    /// Biases that are kept apart.
    pub biases: usize,
}

impl Encoding {
    /// Elements that are stored together; a row has a multiple of it.
    pub fn block(self) -> usize {
        match self {
            Encoding::Dense(_) => 1,
            Encoding::Affine { group, .. } => group.into(),
            Encoding::MxFp4 | Encoding::MxFp8 => microscale::MX_GROUP,
            Encoding::NvFp4 => microscale::NV_GROUP,
            Encoding::Ggml(kind) => kind.block(),
        }
    }

    /// Bytes of a row of `cols` elements. `None` where `cols` is no multiple of [`block`](Self::block), where the
    /// bytes do not fit `usize`, and for an affine encoding of bits or a group that does not exist.
    pub fn sizes(self, cols: usize) -> Option<Sizes> {
        let groups = match self {
            Encoding::Affine { bits, group, .. } if !affine::exists(bits, group) => return None,
            _ => cols.is_multiple_of(self.block()).then(|| cols / self.block())?,
        };
        let sizes = |codes, scales, biases| Sizes { codes, scales, biases }.times(groups);
        match self {
            Encoding::Dense(float) => sizes(float.size(), 0, 0),
            Encoding::Affine { bits, group, scale } => {
                sizes(usize::from(group) / 8 * usize::from(bits), scale.size(), scale.size())
            }
            Encoding::MxFp4 => sizes(microscale::MX_GROUP / 2, 1, 0),
            Encoding::MxFp8 => sizes(microscale::MX_GROUP, 1, 0),
            Encoding::NvFp4 => sizes(microscale::NV_GROUP / 2, 1, 0),
            Encoding::Ggml(kind) => sizes(kind.block_bytes(), 0, 0),
        }
    }

    /// Bytes of a tensor of this shape; `None` as for [`sizes`](Self::sizes) of its rows.
    pub fn tensor_sizes(self, shape: &[usize]) -> Option<Sizes> {
        let (&cols, outer) = shape.split_last().unwrap_or((&1, &[]));
        let rows = outer.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
        self.sizes(cols)?.times(rows)
    }

    /// Whether a tensor may have one more scale, for all of it.
    pub fn has_global_scale(self) -> bool {
        matches!(self, Encoding::NvFp4 | Encoding::Ggml(GgmlType::NvFp4))
    }

    /// Whether [`quantize_rows`] chooses the parameters of a group by the error that they lead to, so that weights of columns count.
    pub fn is_searched(self) -> bool {
        match self {
            Encoding::Affine { .. } => true,
            Encoding::Ggml(kind) => kind.is_searched(),
            _ => false,
        }
    }

    /// Mean number of bits that an element takes in a file, scales and biases included.
    pub fn bits_per_weight(self) -> f64 {
        self.sizes(self.block()).map_or(0.0, |sizes| 8.0 * sizes.total() as f64 / self.block() as f64)
    }

    /// Decodes one row into f32. Every product and sum is one rounded f32 operation, none is fused:
    ///
    /// - dense: exact.
    /// - affine: `scale * code + bias`, scale and bias widened to f32. With scales of 16 bits the product is exact, so
    ///   the result is the exact one rounded once. (MLX itself rounds product and sum to the type of the scales.)
    /// - mxfp4, mxfp8: `code * scale`, exact but for subnormals; nvfp4: `code * (scale * global scale)`.
    /// - ggml: as ggml's own reference, in its order; but an e8m0 scale that is no number gives elements that are none.
    ///
    /// Any bits decode: scales that are infinite or NaN give elements that are.
    ///
    /// # Panics
    /// If the parts are not those of a row of `out.len()` elements.
    pub fn decode_row(self, parts: Parts<'_>, out: &mut [f32]) {
        assert_eq!(Some(parts.sizes()), self.sizes(out.len()), "parts of {} elements of {self}", out.len());
        match self {
            Encoding::Dense(float) => float.decode(parts.codes, out),
            Encoding::Affine { bits, group, scale } => affine::decode(bits, group, scale, parts, out),
            Encoding::MxFp4 => microscale::decode_mxfp4(parts, out),
            Encoding::MxFp8 => microscale::decode_mxfp8(parts, out),
            Encoding::NvFp4 => microscale::decode_nvfp4(parts, out),
            Encoding::Ggml(kind) => {
                kind.decode(parts.codes, out);
                if let Some(global) = parts.global_scale {
                    out.iter_mut().for_each(|w| *w *= global);
                }
            }
        }
    }
}

impl Sizes {
    /// As many bytes `n` times over, or `None` where they, all together, do not fit `usize`.
    fn times(self, n: usize) -> Option<Self> {
        let times = |bytes: usize| bytes.checked_mul(n);
        let sizes = Self { codes: times(self.codes)?, scales: times(self.scales)?, biases: times(self.biases)? };
        sizes.codes.checked_add(sizes.scales)?.checked_add(sizes.biases)?;
        Some(sizes)
    }

    /// All parts together.
    pub fn total(self) -> usize {
        self.codes + self.scales + self.biases
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Encoding::Dense(float) => float.fmt(f),
            Encoding::Affine { bits, group, scale } => write!(f, "affine {bits}-bit gs{group} {scale}"),
            Encoding::MxFp4 => f.write_str("mxfp4"),
            Encoding::MxFp8 => f.write_str("mxfp8"),
            Encoding::NvFp4 => f.write_str("nvfp4"),
            Encoding::Ggml(kind) => kind.fmt(f),
        }
    }
}

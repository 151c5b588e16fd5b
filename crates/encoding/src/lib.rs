//! The vocabulary of stored numbers: how a weight matrix lies in memory, and what its bytes mean.
//!
//! One file per family of encodings. An [`Encoding`] says nothing about the container (safetensors, GGUF, ...)
//! that the bytes came from; a [`WeightView`] is an encoding, a shape and exactly as many bytes as they need.
//! Everything above this crate may name its types.

#![forbid(unsafe_code)]

mod dense;
mod view;

pub use dense::FloatType;
pub use view::{ViewError, WeightView, byte_len};

use std::fmt;

/// How the numbers of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// One IEEE-like float per element, little endian, row-major.
    Dense(FloatType),
}

impl Encoding {
    /// Bytes of one row of `cols` elements, or `None` where that does not fit `usize`.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        match self {
            Encoding::Dense(float) => cols.checked_mul(float.size()),
        }
    }

    /// Mean number of bits that an element takes in a file.
    pub fn bits_per_weight(self) -> f64 {
        match self {
            Encoding::Dense(float) => 8.0 * float.size() as f64,
        }
    }

    /// Decodes one row (`bytes` as [`row_bytes`](Self::row_bytes) gives it) into f32, exactly.
    ///
    /// # Panics
    /// If `bytes` and `out` do not belong to the same number of elements.
    pub fn decode_row(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Encoding::Dense(float) => float.decode(bytes, out),
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Encoding::Dense(float) => float.fmt(f),
        }
    }
}

//! A borrowed weight: encoding, shape, bytes, checked against each other once.

use crate::{Encoding, FloatType, Sizes};
use thiserror::Error;

/// The bytes of a tensor, or of one of its rows. What an encoding does not keep apart is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parts<'a> {
    /// Codes, or whole blocks, or floats; row-major.
    pub codes: &'a [u8],
    /// A scale per group; row-major.
    pub scales: &'a [u8],
    /// A bias per group; row-major.
    pub biases: &'a [u8],
    /// What every scale is multiplied with (nvfp4 only, of MLX and of ggml).
    pub global_scale: Option<f32>,
}

impl<'a> Parts<'a> {
    /// Parts that are codes alone.
    pub fn of_codes(codes: &'a [u8]) -> Self {
        Self { codes, ..Self::default() }
    }

    /// Bytes of each part.
    pub fn sizes(&self) -> Sizes {
        Sizes { codes: self.codes.len(), scales: self.scales.len(), biases: self.biases.len() }
    }
}

/// The bytes of a tensor do not fit its shape and encoding.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ViewError {
    /// The element count or the byte count does not fit `usize`.
    #[error("shape {shape:?} of {encoding} is too large for this machine")]
    Overflow {
        /// Encoding of the tensor.
        encoding: Encoding,
        /// Shape of the tensor.
        shape: Vec<usize>,
    },
    /// Rows of this length cannot be stored in this encoding.
    #[error("shape {shape:?} cannot be stored as {encoding}, in blocks of {} along a row", encoding.block())]
    Columns {
        /// Encoding of the tensor.
        encoding: Encoding,
        /// Shape of the tensor.
        shape: Vec<usize>,
    },
    /// More or fewer bytes than shape and encoding need.
    #[error("shape {shape:?} of {encoding} needs {expected} bytes of {part}, found {found}")]
    Length {
        /// Encoding of the tensor.
        encoding: Encoding,
        /// Shape of the tensor.
        shape: Vec<usize>,
        /// Which part: codes, scales or biases.
        part: &'static str,
        /// Bytes that shape and encoding need.
        expected: usize,
        /// Bytes that are there.
        found: usize,
    },
    /// A scale for the whole tensor, which this encoding does not have.
    #[error("{encoding} has no global scale")]
    GlobalScale {
        /// Encoding of the tensor.
        encoding: Encoding,
    },
}

/// A tensor as stored: row-major, the last dimension contiguous.
#[derive(Clone, Copy, Debug)]
pub struct WeightView<'a> {
    encoding: Encoding,
    shape: &'a [usize],
    parts: Parts<'a>,
    row: Sizes,
}

impl<'a> WeightView<'a> {
    /// Checks that each part is exactly as long as `shape` in `encoding` needs.
    pub fn new(encoding: Encoding, shape: &'a [usize], parts: Parts<'a>) -> Result<Self, ViewError> {
        let cols = shape.last().copied().unwrap_or(1);
        let Some((row, expected)) = encoding.sizes(cols).zip(encoding.tensor_sizes(shape)) else {
            let shape = shape.to_vec();
            return Err(match encoding.sizes(encoding.block()) {
                Some(_) if cols.is_multiple_of(encoding.block()) => ViewError::Overflow { encoding, shape },
                _ => ViewError::Columns { encoding, shape },
            });
        };
        for (part, expected, found) in [
            ("codes", expected.codes, parts.codes.len()),
            ("scales", expected.scales, parts.scales.len()),
            ("biases", expected.biases, parts.biases.len()),
        ] {
            if found != expected {
                return Err(ViewError::Length { encoding, shape: shape.to_vec(), part, expected, found });
            }
        }
        if parts.global_scale.is_some() && !encoding.has_global_scale() {
            return Err(ViewError::GlobalScale { encoding });
        }
        Ok(Self { encoding, shape, parts, row })
    }

    /// A tensor of plain floats.
    pub fn dense(float: FloatType, shape: &'a [usize], bytes: &'a [u8]) -> Result<Self, ViewError> {
        Self::new(Encoding::Dense(float), shape, Parts::of_codes(bytes))
    }

    /// How the numbers are stored.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Dimensions, outermost first; empty for a scalar.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// The stored bytes.
    pub fn parts(&self) -> Parts<'a> {
        self.parts
    }

    /// Number of rows: the product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        self.shape.split_last().map_or(1, |(_, outer)| outer.iter().product())
    }

    /// Elements of a row: the last dimension (1 for a scalar).
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// The stored bytes of one row.
    ///
    /// # Panics
    /// If there are not that many rows.
    pub fn row(&self, index: usize) -> Parts<'a> {
        assert!(index < self.rows(), "row {index} of {}", self.rows());
        let part = |bytes: &'a [u8], len: usize| &bytes[index * len..(index + 1) * len];
        let Parts { codes, scales, biases, global_scale } = self.parts;
        let Sizes { codes: c, scales: s, biases: b } = self.row;
        Parts { codes: part(codes, c), scales: part(scales, s), biases: part(biases, b), global_scale }
    }

    /// Every element, decoded as [`Encoding::decode_row`] does.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows() * self.cols()];
        if !out.is_empty() {
            let rows = out.chunks_exact_mut(self.cols()).enumerate();
            rows.for_each(|(i, values)| self.encoding.decode_row(self.row(i), values));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GgmlType;

    #[test]
    fn lengths_are_checked() {
        let bytes = [0u8; 24];
        let view = WeightView::dense(FloatType::BF16, &[3, 4], &bytes).unwrap();
        assert_eq!((view.rows(), view.cols(), view.to_f32().len(), view.row(2).codes.len()), (3, 4, 12, 8));
        let error = |encoding, shape: &[usize], parts| WeightView::new(encoding, shape, parts).unwrap_err();
        let (bf16, plain) = (Encoding::Dense(FloatType::BF16), Parts::of_codes(&bytes));
        assert!(matches!(error(bf16, &[3, 5], plain), ViewError::Length { expected: 30, part: "codes", .. }));
        assert!(matches!(error(bf16, &[usize::MAX, 5], plain), ViewError::Overflow { .. }));
        assert!(WeightView::dense(FloatType::BF16, &[0, 5], &[]).unwrap().to_f32().is_empty());
        assert_eq!(WeightView::dense(FloatType::BF16, &[], &bytes[..2]).unwrap().to_f32(), [0.0]);

        let affine = Encoding::Affine { bits: 3, group: 64, scale: FloatType::BF16 };
        let parts = Parts { codes: &[0; 24], scales: &[0; 2], biases: &[0; 2], global_scale: None };
        assert_eq!(WeightView::new(affine, &[1, 64], parts).unwrap().to_f32(), [0.0; 64]);
        assert!(matches!(error(affine, &[1, 96], parts), ViewError::Columns { .. }));
        let without = Parts { biases: &[], ..parts };
        assert!(matches!(error(affine, &[1, 64], without), ViewError::Length { part: "biases", .. }));
        assert!(matches!(
            error(affine, &[1, 64], Parts { global_scale: Some(1.0), ..parts }),
            ViewError::GlobalScale { .. }
        ));
        let strange = Encoding::Affine { bits: 7, group: 64, scale: FloatType::BF16 };
        assert!(matches!(error(strange, &[1, 64], parts), ViewError::Columns { .. }));
        assert!(matches!(error(Encoding::Ggml(GgmlType::Q4K), &[2, 128], plain), ViewError::Columns { .. }));
    }
}

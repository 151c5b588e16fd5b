//! A borrowed weight: encoding, shape, bytes, checked against each other once.

use crate::Encoding;
use thiserror::Error;

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
    /// More or fewer bytes than shape and encoding need.
    #[error("shape {shape:?} of {encoding} needs {expected} bytes, found {found}")]
    Length {
        /// Encoding of the tensor.
        encoding: Encoding,
        /// Shape of the tensor.
        shape: Vec<usize>,
        /// Bytes that shape and encoding need.
        expected: usize,
        /// Bytes that are there.
        found: usize,
    },
}

/// A tensor as stored: row-major, the last dimension contiguous.
#[derive(Clone, Copy, Debug)]
pub struct WeightView<'a> {
    encoding: Encoding,
    shape: &'a [usize],
    bytes: &'a [u8],
}

impl<'a> WeightView<'a> {
    /// Checks that `bytes` is exactly as long as `shape` in `encoding` needs.
    pub fn new(encoding: Encoding, shape: &'a [usize], bytes: &'a [u8]) -> Result<Self, ViewError> {
        let expected =
            byte_len(encoding, shape).ok_or_else(|| ViewError::Overflow { encoding, shape: shape.to_vec() })?;
        if bytes.len() != expected {
            let shape = shape.to_vec();
            return Err(ViewError::Length { encoding, shape, expected, found: bytes.len() });
        }
        Ok(Self { encoding, shape, bytes })
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
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Number of rows: the product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        self.shape.split_last().map_or(1, |(_, outer)| outer.iter().product())
    }

    /// Elements of a row: the last dimension (1 for a scalar).
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Every element, widened to f32.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows() * self.cols()];
        if out.is_empty() {
            return out;
        }
        let row_bytes = self.bytes.len() / self.rows();
        for (row, values) in self.bytes.chunks_exact(row_bytes).zip(out.chunks_exact_mut(self.cols())) {
            self.encoding.decode_row(row, values);
        }
        out
    }
}

/// Bytes that a tensor of this shape takes, or `None` where that does not fit `usize`.
pub fn byte_len(encoding: Encoding, shape: &[usize]) -> Option<usize> {
    let (cols, outer) = match shape.split_last() {
        Some((&cols, outer)) => (cols, outer),
        None => (1, &[][..]),
    };
    let rows = outer.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
    encoding.row_bytes(cols)?.checked_mul(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FloatType;

    #[test]
    fn length_is_checked() {
        let bytes = [0u8; 24];
        let bf16 = Encoding::Dense(FloatType::BF16);
        let view = WeightView::new(bf16, &[3, 4], &bytes).unwrap();
        assert_eq!((view.rows(), view.cols(), view.to_f32().len()), (3, 4, 12));
        assert!(matches!(WeightView::new(bf16, &[3, 5], &bytes), Err(ViewError::Length { expected: 30, .. })));
        assert!(matches!(WeightView::new(bf16, &[usize::MAX, 5], &bytes), Err(ViewError::Overflow { .. })));
        assert!(WeightView::new(bf16, &[0, 5], &[]).unwrap().to_f32().is_empty());
        assert_eq!(WeightView::new(bf16, &[], &bytes[..2]).unwrap().to_f32(), [0.0]);
    }
}

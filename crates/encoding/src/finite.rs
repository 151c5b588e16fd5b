//! Finding weights that are infinite or not a number.

use crate::{Encoding, FloatType, Parts, WeightView};

impl WeightView<'_> {
    /// Row and column of the first element that does not decode to a finite number.
    pub fn first_non_finite(&self) -> Option<[usize; 2]> {
        let mut values = Vec::new();
        for row in 0..self.rows() {
            let parts = self.row(row);
            if plainly_finite(self.encoding(), parts) {
                continue;
            }
            values.resize(self.cols(), 0.0);
            self.encoding().decode_row(parts, &mut values);
            if let Some(col) = values.iter().position(|x| !x.is_finite()) {
                return Some([row, col]);
            }
        }
        None
    }
}

/// Whether a row is finite for a reason that shows without decoding it: scales below 2^64 keep every encoding's
/// elements far from the largest f32. Of floats the answer is exact.
fn plainly_finite(encoding: Encoding, parts: Parts<'_>) -> bool {
    match encoding {
        Encoding::Dense(float) => below(float, parts.codes, None),
        Encoding::Affine { scale, .. } => below(scale, parts.scales, Some(64)) && below(scale, parts.biases, Some(64)),
        Encoding::MxFp4 => parts.scales.iter().all(|&scale| scale < 127 + 64),
        Encoding::MxFp8 => {
            let nan = |&code: &u8| code & 0x7f == 0x7f;
            parts.scales.iter().all(|&scale| scale < 127 + 64) && !any(parts.codes, nan)
        }
        Encoding::NvFp4 => {
            let nan = |&code: &u8| code & 0x7f == 0x7f;
            parts.global_scale.is_none_or(|scale| scale.abs() < 2f32.powi(64)) && !any(parts.scales, nan)
        }
        Encoding::Ggml(_) if parts.global_scale.is_some_and(|scale| scale.abs() >= 2f32.powi(64)) => false,
        Encoding::Ggml(kind) => parts.codes.chunks_exact(kind.block_bytes()).all(|block| kind.plainly_finite(block)),
    }
}

/// Whether all floats are finite, and below 2^`exponent` where one is given.
fn below(float: FloatType, bytes: &[u8], exponent: Option<u32>) -> bool {
    match float {
        FloatType::F32 => {
            let limit = exponent.map_or(0xff, |e| 127 + e) << 23;
            !any(bytes.as_chunks::<4>().0, |&b| u32::from_le_bytes(b) & 0x7fff_ffff >= limit)
        }
        FloatType::BF16 => {
            let limit = (exponent.map_or(0xff, |e| 127 + e) << 7) as u16;
            !any(bytes.as_chunks::<2>().0, |&b| u16::from_le_bytes(b) & 0x7fff >= limit)
        }
        // Nothing finite reaches 2^16.
        FloatType::F16 => !any(bytes.as_chunks::<2>().0, |&b| u16::from_le_bytes(b) & 0x7fff >= 0x7c00),
    }
}

/// Without stopping at the first, which would keep it from looking at many at once.
fn any<T>(items: &[T], is: impl Fn(&T) -> bool) -> bool {
    items.iter().fold(false, |any, item| any | is(item))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EncodedRows, GgmlType, encode_rows};

    #[test]
    fn the_first_element_that_is_not_finite_is_found_in_every_encoding() {
        let values: Vec<f32> = (0..3 * 256).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
        let mut encodings = vec![Encoding::MxFp4, Encoding::MxFp8, Encoding::NvFp4];
        for float in [FloatType::F32, FloatType::F16, FloatType::BF16] {
            encodings.push(Encoding::Dense(float));
            encodings.extend([4, 8].map(|bits| Encoding::Affine { bits, group: 32, scale: float }));
        }
        encodings.extend(GgmlType::ALL.map(Encoding::Ggml));
        for encoding in encodings {
            // What cannot be encoded is any bytes with scales that are finite.
            let rows = encode_rows(encoding, &values, 3, 256).unwrap_or_else(|| EncodedRows {
                codes: vec![0xc0; encoding.tensor_sizes(&[3, 256]).unwrap().codes],
                ..EncodedRows::default()
            });
            let shape = [3, 256];
            assert_eq!(WeightView::new(encoding, &shape, rows.parts()).unwrap().first_non_finite(), None, "{encoding}");
            // Whatever bytes are set to ones, the answer is that of decoding.
            let mut found = 0;
            for part in 0..3 {
                for at in 1..[&rows.codes, &rows.scales, &rows.biases][part].len() {
                    let mut damaged = rows.clone();
                    let bytes = [&mut damaged.codes, &mut damaged.scales, &mut damaged.biases];
                    bytes.into_iter().nth(part).unwrap()[at - 1..=at].fill(0xff);
                    let view = WeightView::new(encoding, &shape, damaged.parts()).unwrap();
                    let expected = view.to_f32().iter().position(|x| !x.is_finite()).map(|at| [at / 256, at % 256]);
                    assert_eq!(view.first_non_finite(), expected, "{encoding}, byte {at} of part {part}");
                    found += usize::from(expected.is_some());
                }
            }
            assert!(found > 0 || encoding == Encoding::Ggml(GgmlType::NvFp4), "{encoding}");
        }
        let global =
            EncodedRows { global_scale: Some(f32::MAX), ..encode_rows(Encoding::NvFp4, &[448.0; 16], 1, 16).unwrap() };
        let view = WeightView::new(Encoding::NvFp4, &[1, 16], global.parts()).unwrap();
        assert_eq!(view.first_non_finite(), Some([0, 0]));
    }
}

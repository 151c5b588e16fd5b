//! Encoding f32 rows, for tests, for synthetic checkpoints, and for quantizing.

use crate::{Encoding, Parts, affine, microscale};

/// Rows in an encoding, and the parts they consist of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EncodedRows {
    /// As [`Parts::codes`].
    pub codes: Vec<u8>,
    /// As [`Parts::scales`].
    pub scales: Vec<u8>,
    /// As [`Parts::biases`].
    pub biases: Vec<u8>,
    /// As [`Parts::global_scale`].
    pub global_scale: Option<f32>,
}

impl EncodedRows {
    /// The parts, to make a view of.
    pub fn parts(&self) -> Parts<'_> {
        let Self { codes, scales, biases, global_scale } = self;
        Parts { codes, scales, biases, global_scale: *global_scale }
    }
}

/// Encodes `rows` rows of `cols` finite values each. `None` where rows of `cols` elements cannot be stored so,
/// and where there is no encoder ([`GgmlType::has_encoder`](crate::GgmlType::has_encoder)).
///
/// Each group is encoded on its own: with the range of its values for affine and ggml's asymmetric types, with the
/// largest magnitude for the others, and with a search of scales for the K-quants.
///
/// # Panics
/// If there are not `rows * cols` values.
pub fn encode_rows(encoding: Encoding, values: &[f32], rows: usize, cols: usize) -> Option<EncodedRows> {
    let mut out = room(encoding, values, rows, cols)?;
    // Groups divide rows, so the rows are one long one.
    match encoding {
        Encoding::Dense(float) => out.codes = float.encode(values),
        Encoding::Affine { bits, group, scale } => affine::encode(bits, group, scale, values, &mut out),
        Encoding::MxFp4 => microscale::encode_mxfp4(values, &mut out),
        Encoding::MxFp8 => microscale::encode_mxfp8(values, &mut out),
        Encoding::NvFp4 => microscale::encode_nvfp4(values, &mut out),
        Encoding::Ggml(kind) => kind.encode(values, None, &mut out.codes)?,
    }
    Some(out)
}

/// Sums over a group have so many parts, so that they are added side by side.
pub(crate) const LANES: usize = 8;

/// The nearest whole number of one below 2^22: added and taken away again, this leaves no more, without a call for each element.
#[inline]
pub(crate) fn whole(value: f32) -> f32 {
    const WHOLE: f32 = 12_582_912.0;
    (value + WHOLE) - WHOLE
}

/// The sum over a group of whole chunks of `LANES` of weight times the square of what `back` loses of a value.
#[inline]
pub(crate) fn lost(values: &[f32], weights: &[f32], back: impl Fn(f32) -> f32) -> f32 {
    let mut errors = [0.0; LANES];
    for (values, weights) in values.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
        for i in 0..LANES {
            let lost = back(values[i]) - values[i];
            errors[i] += weights[i] * lost * lost;
        }
    }
    errors.iter().sum()
}

/// Room for so many rows; `None` where they cannot be stored so.
fn room(encoding: Encoding, values: &[f32], rows: usize, cols: usize) -> Option<EncodedRows> {
    assert_eq!(Some(values.len()), rows.checked_mul(cols), "values of {rows} rows of {cols}");
    let sizes = encoding.tensor_sizes(&[rows, cols])?;
    Some(EncodedRows {
        codes: Vec::with_capacity(sizes.codes),
        scales: Vec::with_capacity(sizes.scales),
        biases: Vec::with_capacity(sizes.biases),
        global_scale: None,
    })
}

/// As [`encode_rows`], but parameters of affine groups are searched for: those of the range and a few narrower ones, each fitted to
/// the codes that it gives, compete as they are stored, and the one with the least squared error is taken. With
/// `importance`, a weight for each column, errors are multiplied with it, here and in the search of the K-quants. Of other
/// encodings, those that are not [searched](Encoding::is_searched), it is the same as [`encode_rows`].
///
/// # Panics
/// If there are not `rows * cols` values, or not `cols` weights.
pub fn quantize_rows(
    encoding: Encoding,
    values: &[f32],
    rows: usize,
    cols: usize,
    importance: Option<&[f32]>,
) -> Option<EncodedRows> {
    assert!(importance.is_none_or(|weights| weights.len() == cols), "a weight for each of {cols} columns");
    if !encoding.is_searched() {
        return encode_rows(encoding, values, rows, cols);
    }
    let mut out = room(encoding, values, rows, cols)?;
    match encoding {
        Encoding::Affine { bits, group, scale } => affine::search(bits, group, scale, values, importance, &mut out),
        Encoding::Ggml(kind) => kind.encode(values, importance, &mut out.codes)?,
        _ => return None,
    }
    Some(out)
}

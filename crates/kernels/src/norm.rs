//! Root mean square normalisation of one row.

use crate::lanes::{F32, LANES, Lanes, load_padded, map_lanes, zip_lanes};

/// x = x / sqrt(mean(x^2) + eps) * weight * scale, in f32; no `weight` means ones.
///
/// The squares are summed in sixteen lanes (element k in lane k mod 16, ascending), then by halves.
#[inline(always)]
pub(crate) fn rms_norm<L: Lanes>(l: L, x: &mut [f32], weight: Option<&[f32]>, eps: f32, scale: f32) {
    let (chunks, tail) = x.as_chunks::<LANES>();
    let mut squares = l.splat(0.0);
    for chunk in chunks {
        let v = l.load(chunk);
        squares = l.fma(v, v, squares);
    }
    if !tail.is_empty() {
        let v = load_padded::<L, F32>(l, tail);
        squares = l.fma(v, v, squares);
    }
    let mean = l.sum(squares) / x.len() as f32;
    // An infinite mean would make a row of zeros of what has to be seen.
    let inverse = if mean.is_finite() { 1.0 / (mean + eps).sqrt() } else { f32::NAN };
    let inverse = l.splat(inverse);
    match weight {
        Some(weight) => zip_lanes!(l, x, weight, (x, w) => l.mul(l.mul(x, inverse), w)),
        None => map_lanes!(l, x, x => l.mul(x, inverse)),
    }
    if scale != 1.0 {
        let scale = l.splat(scale);
        map_lanes!(l, x, x => l.mul(x, scale));
    }
}

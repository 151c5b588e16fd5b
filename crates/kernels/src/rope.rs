//! Rotary position embedding, half-split (NEOX) layout: element i of a head turns with element i + head_dim / 2.

use crate::lanes::{F32, LANES, Lanes, load_padded};
use crate::math;

/// Cosines and sines for some positions.
#[derive(Clone, Debug)]
pub struct Rotation {
    half: usize,
    cos: Vec<f32>, // (positions, head_dim / 2)
    sin: Vec<f32>, // (positions, head_dim / 2)
}

impl Rotation {
    /// Angles `position * theta^(-2j / head_dim)`.
    ///
    /// Frequencies and angles are rounded to f32 before the sine is taken, as transformers does: far from position 0 the
    /// rounding of the angle is the larger part of the result's digits, and models are trained with it.
    pub fn new(positions: impl IntoIterator<Item = usize>, head_dim: usize, theta: f64) -> Self {
        let half = head_dim / 2;
        let frequencies: Vec<f32> =
            (0..half).map(|j| 1.0 / math::pow(theta, (2 * j) as f64 / head_dim as f64) as f32).collect();
        let (cos, sin) = positions
            .into_iter()
            .flat_map(|position| frequencies.iter().map(move |f| position as f32 * f))
            .map(|angle| {
                let (sin, cos) = math::sin_cos(angle as f64);
                (cos as f32, sin as f32)
            })
            .unzip();
        Self { half, cos, sin }
    }

    /// Number of positions.
    pub fn rows(&self) -> usize {
        self.cos.len().checked_div(self.half).unwrap_or(0)
    }

    /// Elements of a head that it turns.
    pub fn head_dim(&self) -> usize {
        2 * self.half
    }

    /// Cosines and sines of row `row`.
    pub(crate) fn row(&self, row: usize) -> (&[f32], &[f32]) {
        let range = row * self.half..(row + 1) * self.half;
        (&self.cos[range.clone()], &self.sin[range])
    }
}

/// Turns every head of one row; `x.len()` is a multiple of `2 * cos.len()`.
#[inline(always)]
pub(crate) fn rotate<L: Lanes>(l: L, x: &mut [f32], cos: &[f32], sin: &[f32]) {
    for head in x.chunks_exact_mut(2 * cos.len()) {
        let (first, second) = head.split_at_mut(cos.len());
        let halves = first.chunks_mut(LANES).zip(second.chunks_mut(LANES));
        for ((a, b), (cos, sin)) in halves.zip(cos.chunks(LANES).zip(sin.chunks(LANES))) {
            let (va, vb) = (load_padded::<L, F32>(l, a), load_padded::<L, F32>(l, b));
            let (c, s) = (load_padded::<L, F32>(l, cos), load_padded::<L, F32>(l, sin));
            let (mut turned_a, mut turned_b) = ([0.0; LANES], [0.0; LANES]);
            l.store(l.sub(l.mul(va, c), l.mul(vb, s)), &mut turned_a);
            l.store(l.add(l.mul(vb, c), l.mul(va, s)), &mut turned_b);
            a.copy_from_slice(&turned_a[..a.len()]);
            b.copy_from_slice(&turned_b[..b.len()]);
        }
    }
}

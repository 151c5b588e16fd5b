//! What many types of 256 elements share: a scale that is a small integer for each 16 elements, times one f16.

use super::{Unpack, decode_groups, extreme, inverse};
use crate::Codebook;
use crate::encode::{LANES, lost, whole};
use half::f16;

/// The scales of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sixteenths {
    /// An f16, by which all of them are multiplied.
    pub d: [u8; 2],
    /// One for each 16 elements.
    pub factors: [i8; 16],
}

/// Elements that share a scale.
pub const SUB: usize = 16;

impl Sixteenths {
    /// Of a block that has its f16 at `at`, the integer of each of its sixteenths from `factor`.
    pub fn new(block: &[u8], at: usize, factor: impl Fn(usize) -> i8) -> Self {
        Self { d: [block[at], block[at + 1]], factors: std::array::from_fn(factor) }
    }

    /// w = d * factor * (code - centre).
    pub fn decode_centred(&self, codes: Unpack, centre: u8, block: &[u8], out: &mut [f32]) {
        let d = f16::from_le_bytes(self.d).to_f32();
        decode_groups(codes, SUB, block, out, |sub| {
            let step = d * f32::from(self.factors[sub]);
            move |code| step * (f32::from(code) - f32::from(centre))
        });
    }

    /// w = d * factor * unit * value of the code.
    pub fn decode_book(&self, codes: Unpack, book: &'static Codebook, block: &[u8], out: &mut [f32]) {
        let d = f16::from_le_bytes(self.d).to_f32();
        decode_groups(codes, SUB, block, out, |sub| {
            let step = d * f32::from(self.factors[sub]) * book.unit;
            move |code| step * book.value(code)
        });
    }
}

/// Scales and codes for w = d * factor * (code - centre), codes below twice the centre, factors from -most to most - 1.
///
/// Each sub-block has a step that suits it well; d follows from the largest. Of the factors around its step it takes the one with
/// the smallest squared error, each error multiplied with its weight. Then d is fitted to what was found, and factors are
/// searched for anew; what has the smaller error in the whole block is taken.
pub fn encode(values: &[f32], weights: &[f32], centre: u8, most: i32) -> (Sixteenths, [u8; 256]) {
    let top = f32::from(centre);
    let (values, weights) = (values.as_chunks::<SUB>().0, weights.as_chunks::<SUB>().0);
    let subs: [Sub<'_>; 16] = std::array::from_fn(|i| Sub { values: &values[i], weights: &weights[i], top });
    let steps = subs.each_ref().map(Sub::step);
    let within = [-most as f32, most as f32 - 1.0];
    let mut d = f16::from_f32(extreme(&steps) / -most as f32);
    let own = |step: f32| whole(step * inverse(d.to_f32())).clamp(within[0], within[1]);
    let mut fits: [Fit; 16] = std::array::from_fn(|i| subs[i].search(d.to_f32(), own(steps[i]), within));
    let (mut cv, mut cc) = (0.0, 0.0);
    for (sub, Fit { factor, .. }) in subs.iter().zip(&fits) {
        let sums = sub.sums(d.to_f32() * factor);
        cv += factor * sums.0;
        cc += factor * factor * sums.1;
    }
    let next = f16::from_f32(cv * inverse(cc));
    if next.is_finite() {
        let found: [Fit; 16] = std::array::from_fn(|i| subs[i].search(next.to_f32(), fits[i].factor, within));
        let [before, after] = [&fits, &found].map(|fits| fits.iter().map(|fit| fit.error).sum::<f32>());
        if after < before {
            (d, fits) = (next, found);
        }
    }
    let mut codes = [0; 256];
    for ((sub, fit), codes) in subs.iter().zip(&fits).zip(codes.as_chunks_mut::<SUB>().0) {
        let per_step = inverse(d.to_f32() * fit.factor);
        codes.iter_mut().zip(sub.values).for_each(|(c, &v)| *c = (sub.code(v * per_step) + top) as u8);
    }
    (Sixteenths { d: d.to_le_bytes(), factors: fits.map(|fit| fit.factor as i8) }, codes)
}

/// By how many steps the extreme value may lie beyond the last code.
const INSETS: [f32; 2] = [0.0, 1.0];

/// Sixteen values, with codes from -top to top - 1.
struct Sub<'a> {
    values: &'a [f32; SUB],
    weights: &'a [f32; SUB],
    top: f32,
}

/// A factor and the squared error.
#[derive(Clone, Copy)]
struct Fit {
    factor: f32,
    error: f32,
}

impl Sub<'_> {
    /// The code nearest to a value in steps.
    #[inline]
    fn code(&self, at: f32) -> f32 {
        let at = if at > -self.top { at } else { -self.top };
        whole(if at < self.top - 1.0 { at } else { self.top - 1.0 })
    }

    /// Weighted sums of the products of values and codes, and of the squares of the codes.
    #[inline]
    fn sums(&self, step: f32) -> (f32, f32) {
        let per_step = inverse(step);
        let mut sums = [[0.0; LANES]; 2];
        for (values, weights) in self.values.as_chunks::<LANES>().0.iter().zip(self.weights.as_chunks::<LANES>().0) {
            for i in 0..LANES {
                let code = self.code(values[i] * per_step);
                let weighted = weights[i] * code;
                sums[0][i] += weighted * values[i];
                sums[1][i] += weighted * code;
            }
        }
        let [cv, cc] = sums.map(|lanes| lanes.iter().sum());
        (cv, cc)
    }

    #[inline]
    fn error(&self, step: f32) -> f32 {
        let per_step = inverse(step);
        lost(self.values, self.weights, |v| step * self.code(v * per_step))
    }

    /// A step that suits the values well: the better of two that suit codes best, which the extreme value gives as the last code or
    /// as one beyond.
    fn step(&self) -> f32 {
        let extreme = extreme(self.values);
        let (mut best, mut most) = (extreme / -self.top, 0.0);
        for inset in INSETS {
            let (cv, cc) = self.sums(extreme / (inset - self.top));
            let taken = cv * cv * inverse(cc);
            if taken > most {
                (best, most) = (cv / cc, taken);
            }
        }
        best
    }

    /// The best factor of `start` and its neighbours.
    fn search(&self, d: f32, start: f32, [least, most]: [f32; 2]) -> Fit {
        let mut best = Fit { factor: start, error: self.error(d * start) };
        for factor in [start - 1.0, start + 1.0].into_iter().filter(|factor| (least..=most).contains(factor)) {
            let error = self.error(d * factor);
            if error < best.error {
                best = Fit { factor, error };
            }
        }
        best
    }
}

//! What q2_k, q4_k and q5_k share: a scale and a minimum for each sub-block, both small integers times an f16 for each kind.
//! w = d * scale * code - dmin * min.

use super::{Unpack, decode_groups, half, inverse, range, set_half};
use crate::encode::{LANES, whole};
use half::f16;

/// Decodes a block of sub-blocks of `sub` elements. d and dmin are the f16 at `halves`, `pair` has a sub-block's scale and minimum.
pub fn decode(
    codes: Unpack,
    sub: usize,
    halves: [usize; 2],
    block: &[u8],
    out: &mut [f32],
    pair: impl Fn(usize) -> (u8, u8),
) {
    let [d, dmin] = halves.map(|at| half(block, at));
    decode_groups(codes, sub, block, out, |i| {
        let (scale, min) = pair(i);
        let (step, offset) = (d * f32::from(scale), dmin * f32::from(min));
        move |code| step * f32::from(code) - offset
    });
}

/// Sets the f16 at `halves` and returns scales and minimums, from 0 to `most`, for SUBS sub-blocks of LEN, and the codes, from 0 to
/// `top`.
///
/// Each sub-block has a line that suits it well; d and dmin follow from the largest steps and offsets. Around its line it finds a pair
/// with a small squared error, each error multiplied with its weight. Then, in turns, d and dmin are fitted to what was found,
/// and pairs are searched for anew, as long as the error of the block shrinks noticeably.
pub fn encode<const SUBS: usize, const LEN: usize>(
    values: &[f32],
    weights: &[f32],
    top: u8,
    most: u8,
    halves: [usize; 2],
    block: &mut [u8],
) -> ([(u8, u8); SUBS], [u8; 256]) {
    let (top, most) = (f32::from(top), f32::from(most));
    let (values, weights) = (values.as_chunks::<LEN>().0, weights.as_chunks::<LEN>().0);
    let subs: [Sub<'_, LEN>; SUBS] = std::array::from_fn(|i| Sub::new(&values[i], &weights[i], top));
    let lines = subs.each_ref().map(Sub::line);
    let largest = lines.iter().fold([0f32; 2], |[s, o], line| [s.max(line.step), o.max(line.offset)]);
    let mut unit = Unit::new(largest.map(|x| x / most), most);
    let mut fits: [Fit; SUBS] = std::array::from_fn(|i| subs[i].search(unit, unit.round(lines[i])));
    for _ in 0..TURNS {
        let Some(next) = unit.refit(&subs, &fits.map(|fit| fit.pair)) else { break };
        let found: [Fit; SUBS] = std::array::from_fn(|i| subs[i].search(next, fits[i].pair));
        let [before, after] = [&fits, &found].map(|fits| fits.iter().map(|fit| fit.error).sum::<f32>());
        if after < before {
            (unit, fits) = (next, found);
        }
        if after > WORTHWHILE * before {
            break;
        }
    }
    set_half(block, halves[0], unit.d);
    set_half(block, halves[1], unit.dmin);
    let mut codes = [0; 256];
    for ((fit, values), codes) in fits.iter().zip(values).zip(codes.as_chunks_mut::<LEN>().0) {
        let scaled = unit.line(fit.pair).scaled();
        codes.iter_mut().zip(values).for_each(|(c, &v)| *c = whole(clamp(scaled.at(v), top)) as u8);
    }
    (fits.map(|fit| fit.pair.map(|x| x as u8).into()), codes)
}

/// How often d and dmin are fitted at most.
const TURNS: usize = 3;

/// What is left of the error of a block where another turn is worth its time.
const WORTHWHILE: f32 = 0.994;

/// By how many steps the range of a sub-block is narrowed at either end.
const INSET: f32 = 0.15;

/// w = step * code - offset.
#[derive(Clone, Copy)]
struct Line {
    step: f32,
    offset: f32,
}

impl Line {
    fn scaled(self) -> Scaled {
        let per_step = inverse(self.step);
        Scaled { per_step, offset: self.offset * per_step }
    }
}

/// Where values lie among the codes of a line.
#[derive(Clone, Copy)]
struct Scaled {
    per_step: f32,
    offset: f32,
}

impl Scaled {
    #[inline]
    fn at(self, value: f32) -> f32 {
        value * self.per_step + self.offset
    }
}

/// d, dmin, and the largest integer that they are multiplied with.
#[derive(Clone, Copy)]
struct Unit {
    d: f32,
    dmin: f32,
    most: f32,
}

impl Unit {
    fn new(units: [f32; 2], most: f32) -> Self {
        let [d, dmin] = units.map(|x| f16::from_f32(x).to_f32());
        Self { d, dmin, most }
    }

    fn line(self, [scale, min]: [f32; 2]) -> Line {
        Line { step: self.d * scale, offset: self.dmin * min }
    }

    /// The pair nearest to a line.
    fn round(self, line: Line) -> [f32; 2] {
        [line.step * inverse(self.d), line.offset * inverse(self.dmin)].map(|x| whole(clamp(x, self.most)))
    }

    /// Those that suit the pairs and their codes best.
    fn refit<const LEN: usize>(self, subs: &[Sub<'_, LEN>], pairs: &[[f32; 2]]) -> Option<Self> {
        let [mut ss, mut sm, mut mm, mut sv, mut mv] = [0.0; 5];
        for (sub, &[s, m]) in subs.iter().zip(pairs) {
            let Sums { c, cc, cv } = sub.sums(self.line([s, m]));
            ss += s * s * cc;
            sm += s * m * c;
            mm += m * m * sub.n;
            sv += s * cv;
            mv += m * sub.v;
        }
        let spread = ss * mm - sm * sm;
        let units = match spread > 1e-5 * ss * mm {
            true => [(sv * mm - mv * sm) / spread, (sv * sm - mv * ss) / spread],
            false => [(sv + self.dmin * sm) / ss, self.dmin],
        };
        // Neither negative nor NaN, and no more than an f16 holds.
        units.iter().all(|x| (0.0..65504.0).contains(x)).then(|| Self::new(units, self.most))
    }
}

/// A sub-block, and its sums of weights and of weighted values.
struct Sub<'a, const LEN: usize> {
    values: &'a [f32; LEN],
    weights: &'a [f32; LEN],
    top: f32,
    n: f32,
    v: f32,
}

/// Weighted sums over a sub-block of codes, of their squares, and of their products with the values.
#[derive(Clone, Copy)]
struct Sums {
    c: f32,
    cc: f32,
    cv: f32,
}

/// A scale and a minimum, and the squared error.
#[derive(Clone, Copy)]
struct Fit {
    pair: [f32; 2],
    error: f32,
}

impl<'a, const LEN: usize> Sub<'a, LEN> {
    fn new(values: &'a [f32; LEN], weights: &'a [f32; LEN], top: f32) -> Self {
        let mut sums = [[0.0; LANES]; 2];
        for at in (0..LEN).step_by(LANES) {
            for i in 0..LANES {
                sums[0][i] += weights[at + i];
                sums[1][i] += weights[at + i] * values[at + i];
            }
        }
        let [n, v] = sums.map(total);
        Self { values, weights, top, n, v }
    }

    #[inline]
    fn sums(&self, line: Line) -> Sums {
        let scaled = line.scaled();
        let mut sums = [[0.0; LANES]; 3];
        for (values, weights) in self.values.as_chunks::<LANES>().0.iter().zip(self.weights.as_chunks::<LANES>().0) {
            for i in 0..LANES {
                let (value, weight) = (values[i], weights[i]);
                let code = whole(clamp(scaled.at(value), self.top));
                let weighted = weight * code;
                sums[0][i] += weighted;
                sums[1][i] += weighted * code;
                sums[2][i] += weighted * value;
            }
        }
        let [c, cc, cv] = sums.map(total);
        Sums { c, cc, cv }
    }

    /// The squared error of a line.
    #[inline]
    fn error(&self, line: Line) -> f32 {
        // Without steps, any will do.
        let step = if line.step == 0.0 { 1.0 } else { line.step };
        let top = if line.step == 0.0 { 0.0 } else { self.top };
        let scaled = Line { step, ..line }.scaled();
        let mut errors = [0.0; LANES];
        for (values, weights) in self.values.as_chunks::<LANES>().0.iter().zip(self.weights.as_chunks::<LANES>().0) {
            for i in 0..LANES {
                let at = scaled.at(values[i]);
                let lost = whole(clamp(at, top)) - at;
                errors[i] += weights[i] * lost * lost;
            }
        }
        total(errors) * step * step
    }

    /// A line that suits the values well: the one that suits the codes best which the range, a little narrowed, gives.
    fn line(&self) -> Line {
        let (low, high) = range(self.values);
        let (low, high) = (low.min(0.0), high.max(0.0));
        let step = (high - low) / (self.top + 2.0 * INSET);
        let start = Line { step, offset: (-low - INSET * step).max(0.0) };
        let (Self { n, v, .. }, Sums { c, cc, cv }) = (self, self.sums(start));
        let step = (cv * n - v * c) * inverse(cc * n - c * c);
        let offset = (step * c - v) * inverse(*n);
        match offset > 0.0 {
            true if step > 0.0 => Line { step, offset },
            false if cv > 0.0 => Line { step: cv * inverse(cc), offset: 0.0 },
            // All codes are one, or would better fall where values rise.
            _ => Line { step: (high - low) / self.top, offset: -low },
        }
    }

    /// The pair that small moves from `start` lead to, one after the other, each made if the error shrinks.
    fn search(&self, unit: Unit, start: [f32; 2]) -> Fit {
        let mut best = Fit { pair: start, error: self.error(unit.line(start)) };
        for [s, m] in MOVES {
            let pair = [best.pair[0] + s, best.pair[1] + m];
            if pair.iter().all(|x| (0.0..=unit.most).contains(x)) {
                let error = self.error(unit.line(pair));
                if error < best.error {
                    best = Fit { pair, error };
                }
            }
        }
        best
    }
}

/// A larger step wants a larger offset.
const MOVES: [[f32; 2]; 6] = [[0.0, -1.0], [0.0, 1.0], [-1.0, -1.0], [1.0, 1.0], [-1.0, 0.0], [1.0, 0.0]];

#[inline]
fn total(lanes: [f32; LANES]) -> f32 {
    lanes.iter().sum()
}

/// From 0 to `most`; NaN becomes 0.
#[inline]
fn clamp(x: f32, most: f32) -> f32 {
    let x = if x > 0.0 { x } else { 0.0 };
    if x < most { x } else { most }
}

/// How q4_k and q5_k have eight scales and eight minimums of 6 bits in 12 bytes, behind their two f16.
pub mod six {
    /// Elements that share a scale and a minimum.
    pub const SUB: usize = 32;
    /// Where d and dmin are.
    pub const HALVES: [usize; 2] = [0, 2];
    /// Where the packed scales lie.
    pub const AT: std::ops::Range<usize> = 4..16;

    /// Scale and minimum of sub-block `i`.
    ///
    /// The first four have their low 6 bits in bytes 0 to 3 (scales) and 4 to 7 (minimums); the last four have 4 bits in
    /// the halves of bytes 8 to 11 and their upper 2 on top of the first eight bytes.
    pub fn unpack(packed: &[u8], i: usize) -> (u8, u8) {
        match i {
            0..4 => (packed[i] & 63, packed[i + 4] & 63),
            _ => (packed[i + 4] & 15 | packed[i - 4] >> 6 << 4, packed[i + 4] >> 4 | packed[i] >> 6 << 4),
        }
    }

    /// The inverse of [`unpack`], of all of them, over zeros.
    pub fn pack(packed: &mut [u8], pairs: [(u8, u8); 8]) {
        for (i, (scale, min)) in pairs.into_iter().enumerate() {
            match i {
                0..4 => {
                    packed[i] |= scale;
                    packed[i + 4] |= min;
                }
                _ => {
                    packed[i + 4] |= scale & 15 | min << 4;
                    packed[i - 4] |= scale >> 4 << 6;
                    packed[i] |= min >> 4 << 6;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::six::*;

    #[test]
    fn scales_survive_a_round_trip() {
        let pairs = std::array::from_fn(|i| ((i * 37 % 64) as u8, (63 - i * 29 % 64) as u8));
        let mut packed = [0; 12];
        pack(&mut packed, pairs);
        assert_eq!(std::array::from_fn(|i| unpack(&packed, i)), pairs);
    }
}

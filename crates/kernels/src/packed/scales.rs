//! What stands beside the codes of a block, and the value that it makes of their integer sums.

use super::activations::{Rounded, sums_at};
use super::layout::{BLOCK, SIXTEENTHS};
use super::read::{E2M1, Values, line};
use super::tile::{LINE, TILE_ROWS, Tile};
use std::marker::PhantomData;

/// Adds the value of a block, which is in codes of the activations, to a row of sums.
#[inline(always)]
pub(super) fn add_value<T: Tile>(t: T, x: &Rounded, value: T::Float, y: &mut [f32; TILE_ROWS], part: usize) {
    t.store(t.fma(t.splat(x.scale), value, t.load(y, part)), y, part);
}

/// Sixteen 16-bit floats at an offset.
#[inline(always)]
fn floats(block: &[u8], at: usize) -> &[u8; 2 * TILE_ROWS] {
    block[at..at + 2 * TILE_ROWS].as_array().unwrap_or(&[0; 2 * TILE_ROWS])
}

/// Sixteen bytes at an offset.
#[inline(always)]
fn bytes(block: &[u8], at: usize) -> &[u8; TILE_ROWS] {
    block[at..at + TILE_ROWS].as_array().unwrap_or(&[0; TILE_ROWS])
}

/// Scales that are integers below those of a whole block.
pub(super) trait Scales<T: Tile> {
    /// The value of a block, by the sum of its products, each times its scale.
    fn value(&self, t: T, sum: T::Int, x: &Rounded) -> T::Float;
}

/// Beside the codes of a K-quant.
pub(super) struct KScales<T: Tile> {
    /// For each 32 inputs.
    pub factors: [T::Factor; 8],
    mins: [T::Codes; 2],
    d: T::Float,
    dmin: T::Float,
}

impl<T: Tile> KScales<T> {
    /// Scales and mins are words of four bytes each for sub-blocks 0..4 and 4..8.
    #[inline(always)]
    pub fn read(t: T, header: &[u8], part: usize) -> Self {
        let at = 4 * TILE_ROWS;
        let a = t.line(line(header, at), part);
        let b = t.line(line(header, at + LINE), part);
        let c = t.line(line(header, at + 2 * LINE), part);
        let (low, high) = (t.six_low(a), t.six_split(c, a));
        let factors = [
            t.factor::<0>(low),
            t.factor::<1>(low),
            t.factor::<2>(low),
            t.factor::<3>(low),
            t.factor::<0>(high),
            t.factor::<1>(high),
            t.factor::<2>(high),
            t.factor::<3>(high),
        ];
        let mins = [t.six_low(b), t.six_split(t.high(c), b)];
        Self {
            factors,
            mins,
            d: t.halves(floats(header, 0), part),
            dmin: t.halves(floats(header, 2 * TILE_ROWS), part),
        }
    }
}

impl<T: Tile> Scales<T> for KScales<T> {
    /// d * (sum of scale * dot) - dmin * (sum of min * sum of x): one rounding for the second product, one for the whole.
    #[inline(always)]
    fn value(&self, t: T, sum: T::Int, x: &Rounded) -> T::Float {
        let (pairs, _) = x.sums32.as_chunks::<2>();
        let mut min = t.dot_pair::<0>(t.zero(), self.mins[0], &pairs[0]);
        min = t.dot_pair::<2>(min, self.mins[0], &pairs[1]);
        min = t.dot_pair::<0>(min, self.mins[1], &pairs[2]);
        min = t.dot_pair::<2>(min, self.mins[1], &pairs[3]);
        t.fms(self.d, t.to_float(sum), t.mul(self.dmin, t.to_float(min)))
    }
}

/// Beside the codes of a block that has scales for each 16 inputs, and MINS.
pub(super) struct SixteenthScales<T: Tile, const MINS: bool> {
    /// For each 16 inputs.
    pub factors: [[T::Factor; 2]; 8],
    mins: [T::Codes; 4],
    d: T::Float,
    dmin: T::Float,
}

impl<T: Tile, const MINS: bool> SixteenthScales<T, MINS> {
    /// Scales are words of four bytes each, their low nibbles where the high ones are mins.
    #[inline(always)]
    pub fn read(t: T, header: &[u8], part: usize) -> Self {
        let words = [
            t.line(line(header, LINE), part),
            t.line(line(header, 2 * LINE), part),
            t.line(line(header, 3 * LINE), part),
            t.line(line(header, 4 * LINE), part),
        ];
        let [a, b, c, d] = match MINS {
            true => [t.low(words[0]), t.low(words[1]), t.low(words[2]), t.low(words[3])],
            false => words,
        };
        let factors = [
            [t.signed_factor::<0>(a), t.signed_factor::<1>(a)],
            [t.signed_factor::<2>(a), t.signed_factor::<3>(a)],
            [t.signed_factor::<0>(b), t.signed_factor::<1>(b)],
            [t.signed_factor::<2>(b), t.signed_factor::<3>(b)],
            [t.signed_factor::<0>(c), t.signed_factor::<1>(c)],
            [t.signed_factor::<2>(c), t.signed_factor::<3>(c)],
            [t.signed_factor::<0>(d), t.signed_factor::<1>(d)],
            [t.signed_factor::<2>(d), t.signed_factor::<3>(d)],
        ];
        let mins = [t.high(words[0]), t.high(words[1]), t.high(words[2]), t.high(words[3])];
        Self {
            factors,
            mins,
            d: t.halves(floats(header, 0), part),
            dmin: t.halves(floats(header, 2 * TILE_ROWS), part),
        }
    }
}

impl<T: Tile, const MINS: bool> Scales<T> for SixteenthScales<T, MINS> {
    /// d * (sum of scale * dot), codes being centred; or, where there are MINS, that less dmin * (sum of min * sum of x), rounded as in
    /// [`KScales`].
    #[inline(always)]
    fn value(&self, t: T, sum: T::Int, x: &Rounded) -> T::Float {
        let sum = t.to_float(sum);
        if MINS {
            let mut min = t.zero();
            for (&word, pairs) in self.mins.iter().zip(x.sums16.as_chunks::<4>().0) {
                min = t.dot_pair::<0>(min, word, &[pairs[0], pairs[1]]);
                min = t.dot_pair::<2>(min, word, &[pairs[2], pairs[3]]);
            }
            t.fms(self.d, sum, t.mul(self.dmin, t.to_float(min)))
        } else {
            t.mul(self.d, sum)
        }
    }
}

/// What stands beside the codes of a group.
pub(super) trait Group {
    /// Inputs of a group.
    const GROUP: usize;
    /// Bytes of scales and biases of a group of a tile.
    const BYTES: usize;
    /// Bytes of all of them.
    const HEADER: usize = BLOCK / Self::GROUP * Self::BYTES;
    /// Whether there is a bias; codes without one have a centre.
    const BIASED: bool;
    /// The scale, and the bias or minus the centre.
    fn beside<T: Tile>(t: T, brain: bool, header: &[u8], group: usize, part: usize) -> (T::Float, T::Float);

    /// `value` and what a group adds to it, by the integer sum of its products and by the sum of its activations: scale * dot + value, then
    /// bias * sum + that; or, where codes have a centre, scale * (dot - centre * sum) + value, the parenthesis being exact.
    #[inline(always)]
    fn add<T: Tile>(
        t: T,
        (scale, bias): (T::Float, T::Float),
        dot: T::Int,
        x: &Rounded,
        group: usize,
        value: T::Float,
    ) -> T::Float {
        let (dot, sum) = (t.to_float(dot), t.splat(x.sums[sums_at(Self::GROUP) + group]));
        if Self::BIASED {
            t.fma(bias, sum, t.fma(scale, dot, value))
        } else {
            t.fma(scale, t.fma(bias, sum, dot), value)
        }
    }
}

/// A 16-bit scale and bias.
pub(super) struct Biased<const GROUP: usize>;
/// A scale in f16, codes relative to CENTRE.
pub(super) struct F16Centred<const GROUP: usize, const CENTRE: u8>;
/// A power of two, for values of [`E2M1`].
pub(super) struct Powers;
/// An 8-bit float, for values of [`E2M1`].
pub(super) struct Minifloats;
/// An f16 for all inputs times a small integer for each 16, for values of V.
pub(super) struct Factors<V>(PhantomData<V>);

impl<const GROUP: usize> Group for Biased<GROUP> {
    const GROUP: usize = GROUP;
    const BYTES: usize = 4 * TILE_ROWS;
    const BIASED: bool = true;
    #[inline(always)]
    fn beside<T: Tile>(t: T, brain: bool, header: &[u8], group: usize, part: usize) -> (T::Float, T::Float) {
        let at = Self::BYTES * group;
        let (scale, bias) = (floats(header, at), floats(header, at + 2 * TILE_ROWS));
        if brain {
            (t.brains(scale, part), t.brains(bias, part))
        } else {
            (t.halves(scale, part), t.halves(bias, part))
        }
    }
}

impl<const GROUP: usize, const CENTRE: u8> Group for F16Centred<GROUP, CENTRE> {
    const GROUP: usize = GROUP;
    const BYTES: usize = 2 * TILE_ROWS;
    const BIASED: bool = false;
    #[inline(always)]
    fn beside<T: Tile>(t: T, _: bool, header: &[u8], group: usize, part: usize) -> (T::Float, T::Float) {
        (t.halves(floats(header, Self::BYTES * group), part), t.splat(-f32::from(CENTRE)))
    }
}

impl Group for Powers {
    const GROUP: usize = 32;
    const BYTES: usize = TILE_ROWS;
    const BIASED: bool = false;
    #[inline(always)]
    fn beside<T: Tile>(t: T, _: bool, header: &[u8], group: usize, part: usize) -> (T::Float, T::Float) {
        let scale = t.powers(bytes(header, Self::BYTES * group), part);
        (t.mul(scale, t.splat(E2M1::BOOK.unit)), t.splat(-f32::from(E2M1::CENTRE)))
    }
}

impl Group for Minifloats {
    const GROUP: usize = 16;
    const BYTES: usize = TILE_ROWS;
    const BIASED: bool = false;
    #[inline(always)]
    fn beside<T: Tile>(t: T, _: bool, header: &[u8], group: usize, part: usize) -> (T::Float, T::Float) {
        let scale = t.minifloats(bytes(header, Self::BYTES * group), part);
        (t.mul(scale, t.splat(E2M1::BOOK.unit)), t.splat(-f32::from(E2M1::CENTRE)))
    }
}

impl<V: Values> Group for Factors<V> {
    const GROUP: usize = 16;
    const BYTES: usize = TILE_ROWS;
    const HEADER: usize = SIXTEENTHS;
    const BIASED: bool = false;
    #[inline(always)]
    fn beside<T: Tile>(t: T, _: bool, header: &[u8], group: usize, part: usize) -> (T::Float, T::Float) {
        let words = t.line(line(header, (1 + group / 4) * LINE), part);
        // One of two bytes of each word.
        let one = if group.is_multiple_of(2) { [1, 0] } else { [0, 1] };
        let raised = match group % 4 {
            0 | 1 => t.dot_pair::<0>(t.zero(), words, &one),
            _ => t.dot_pair::<2>(t.zero(), words, &one),
        };
        let factor = t.fma(t.to_float(raised), t.splat(V::BOOK.unit), t.splat(-128.0 * V::BOOK.unit));
        (t.mul(t.halves(floats(header, 0), part), factor), t.splat(-f32::from(V::CENTRE)))
    }
}

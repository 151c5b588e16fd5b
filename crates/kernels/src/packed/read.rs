//! Codes of a block, as bytes.

use super::layout::{Codes, NIBBLES, PAIRS};
use super::tile::{LINE, Tile};

/// One way that codes lie in a block ([`Codes`]).
pub(super) trait Read {
    /// How they lie.
    const CODES: Codes;
    /// Bytes of the codes of a block of a tile.
    const BYTES: usize = Self::CODES.bytes();
    /// Bits of a code.
    const BITS: u32;
    /// The codes of inputs 32 s .. 32 s + 32: eight inputs of the two halves of the rows by turns.
    fn read<T: Tile>(t: T, area: &[u8], s: usize, part: usize) -> [T::Codes; 8];
}

pub(super) struct Two;
pub(super) struct Three;
pub(super) struct Four;
pub(super) struct Five;
pub(super) struct Six;
pub(super) struct Eight;
pub(super) struct Fp4;

/// The line at an offset.
#[inline(always)]
pub(super) fn line(bytes: &[u8], at: usize) -> &[u8; LINE] {
    const ZEROS: &[u8; LINE] = &[0; LINE];
    bytes[at..at + LINE].as_array().unwrap_or(ZEROS)
}

impl Read for Two {
    const CODES: Codes = Codes::Two;
    const BITS: u32 = 2;
    #[inline(always)]
    fn read<T: Tile>(t: T, area: &[u8], s: usize, part: usize) -> [T::Codes; 8] {
        let a = t.line(line(area, 2 * s * LINE), part);
        let b = t.line(line(area, (2 * s + 1) * LINE), part);
        [
            t.two::<0>(a),
            t.two::<1>(a),
            t.two::<2>(a),
            t.two::<3>(a),
            t.two::<0>(b),
            t.two::<1>(b),
            t.two::<2>(b),
            t.two::<3>(b),
        ]
    }
}

/// `low` with the bits of a line of ones as bit TO of each.
#[inline(always)]
fn with_ones<T: Tile, const TO: i32>(t: T, low: [T::Codes; 8], ones: T::Codes) -> [T::Codes; 8] {
    [
        t.with_one::<0, TO>(low[0], ones),
        t.with_one::<1, TO>(low[1], ones),
        t.with_one::<2, TO>(low[2], ones),
        t.with_one::<3, TO>(low[3], ones),
        t.with_one::<4, TO>(low[4], ones),
        t.with_one::<5, TO>(low[5], ones),
        t.with_one::<6, TO>(low[6], ones),
        t.with_one::<7, TO>(low[7], ones),
    ]
}

impl Read for Three {
    const CODES: Codes = Codes::Three;
    const BITS: u32 = 3;
    #[inline(always)]
    fn read<T: Tile>(t: T, area: &[u8], s: usize, part: usize) -> [T::Codes; 8] {
        with_ones::<T, 2>(t, Two::read(t, area, s, part), t.line(line(area, PAIRS + s * LINE), part))
    }
}

impl Read for Four {
    const CODES: Codes = Codes::Four;
    const BITS: u32 = 4;
    #[inline(always)]
    fn read<T: Tile>(t: T, area: &[u8], s: usize, part: usize) -> [T::Codes; 8] {
        let a = t.line(line(area, 4 * s * LINE), part);
        let b = t.line(line(area, (4 * s + 1) * LINE), part);
        let c = t.line(line(area, (4 * s + 2) * LINE), part);
        let d = t.line(line(area, (4 * s + 3) * LINE), part);
        [t.low(a), t.high(a), t.low(b), t.high(b), t.low(c), t.high(c), t.low(d), t.high(d)]
    }
}

impl Read for Five {
    const CODES: Codes = Codes::Five;
    const BITS: u32 = 5;
    #[inline(always)]
    fn read<T: Tile>(t: T, area: &[u8], s: usize, part: usize) -> [T::Codes; 8] {
        with_ones::<T, 4>(t, Four::read(t, area, s, part), t.line(line(area, NIBBLES + s * LINE), part))
    }
}

impl Read for Six {
    const CODES: Codes = Codes::Six;
    const BITS: u32 = 6;
    #[inline(always)]
    fn read<T: Tile>(t: T, area: &[u8], s: usize, part: usize) -> [T::Codes; 8] {
        let low = Four::read(t, area, s, part);
        let a = t.line(line(area, NIBBLES + 2 * s * LINE), part);
        let b = t.line(line(area, NIBBLES + (2 * s + 1) * LINE), part);
        [
            t.with_two::<0>(low[0], a),
            t.with_two::<1>(low[1], a),
            t.with_two::<2>(low[2], a),
            t.with_two::<3>(low[3], a),
            t.with_two::<0>(low[4], b),
            t.with_two::<1>(low[5], b),
            t.with_two::<2>(low[6], b),
            t.with_two::<3>(low[7], b),
        ]
    }
}

impl Read for Eight {
    const CODES: Codes = Codes::Eight;
    const BITS: u32 = 8;
    #[inline(always)]
    fn read<T: Tile>(t: T, area: &[u8], s: usize, part: usize) -> [T::Codes; 8] {
        [
            t.line(line(area, 8 * s * LINE), part),
            t.line(line(area, (8 * s + 1) * LINE), part),
            t.line(line(area, (8 * s + 2) * LINE), part),
            t.line(line(area, (8 * s + 3) * LINE), part),
            t.line(line(area, (8 * s + 4) * LINE), part),
            t.line(line(area, (8 * s + 5) * LINE), part),
            t.line(line(area, (8 * s + 6) * LINE), part),
            t.line(line(area, (8 * s + 7) * LINE), part),
        ]
    }
}

impl Read for Fp4 {
    const CODES: Codes = Codes::Fp4;
    const BITS: u32 = 5;
    #[inline(always)]
    fn read<T: Tile>(t: T, area: &[u8], s: usize, part: usize) -> [T::Codes; 8] {
        /// Twice the value, plus 12: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and their negatives.
        const TABLE: &[u8; 16] = &[12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];
        let [a, b, c, d, e, f, g, h] = Four::read(t, area, s, part);
        [
            t.lookup(a, TABLE),
            t.lookup(b, TABLE),
            t.lookup(c, TABLE),
            t.lookup(d, TABLE),
            t.lookup(e, TABLE),
            t.lookup(f, TABLE),
            t.lookup(g, TABLE),
            t.lookup(h, TABLE),
        ]
    }
}

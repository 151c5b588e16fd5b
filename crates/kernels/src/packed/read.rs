//! Codes of a block, as bytes.

use super::layout::Codes;
use super::tile::{LINE, Tile};
use glimmer_encoding::Codebook;
use std::marker::PhantomData;

/// One way that codes lie in a block ([`Codes`]).
pub(super) trait Read {
    /// How they lie.
    const CODES: Codes;
    /// Bytes of the codes of a block of a tile.
    const BYTES: usize = Self::CODES.bytes();
    /// Bits of a code.
    const BITS: u32;
    /// The codes of 32 inputs, by the lines that begin with theirs: eight inputs of the two halves of the rows by turns.
    fn read<T: Tile>(t: T, lines: &[u8], part: usize) -> [T::Codes; 8];
    /// The codes of inputs 32 s .. 32 s + 32 of a block.
    #[inline(always)]
    fn of_block<T: Tile>(t: T, area: &[u8], s: usize, part: usize) -> [T::Codes; 8] {
        Self::read(t, &area[s * Self::BYTES / 8..][..Self::BYTES / 8], part)
    }
}

pub(super) struct Two;
pub(super) struct Three;
pub(super) struct Four;
pub(super) struct Five;
pub(super) struct Six;
pub(super) struct Eight;
/// Places, read as R says, in the table of V.
pub(super) struct Looked<R, V>(PhantomData<(R, V)>);

/// What is read for a place: its value plus a centre, which makes it a byte without a sign.
pub(super) trait Values {
    /// The values.
    const BOOK: Codebook;
    /// What is added.
    const CENTRE: u8 = centre(Self::BOOK);
    /// Both together.
    const TABLE: &[u8; 16] = &raised(Self::BOOK, Self::CENTRE);
}

/// Minus the smallest value.
const fn centre(book: Codebook) -> u8 {
    let (mut i, mut centre) = (0, 0);
    while i < 16 {
        if -(book.values[i] as i32) > centre {
            centre = -(book.values[i] as i32);
        }
        i += 1;
    }
    centre as u8
}

const fn raised(book: Codebook, by: u8) -> [u8; 16] {
    let (mut i, mut table) = (0, [0; 16]);
    while i < 16 {
        table[i] = (book.values[i] as i32 + by as i32) as u8;
        i += 1;
    }
    table
}

const fn bits(table: &[u8; 16]) -> u32 {
    let (mut i, mut all) = (0, 0);
    while i < 16 {
        all |= table[i];
        i += 1;
    }
    u8::BITS - all.leading_zeros()
}

pub(super) struct E2M1;
pub(super) struct Iq4;
pub(super) struct Iq3Xxs;
pub(super) struct Iq3S;
pub(super) struct Iq2;
pub(super) struct Iq1;
/// The codes of q2_k, as they are, and of q3_k, less 4; centred as those of q6_k, since they meet the same sums.
pub(super) struct Q2;
pub(super) struct Q3;

impl Values for E2M1 {
    const BOOK: Codebook = Codebook::E2M1;
}
impl Values for Iq4 {
    const BOOK: Codebook = Codebook::IQ4;
}
impl Values for Iq3Xxs {
    const BOOK: Codebook = Codebook::IQ3_XXS;
}
impl Values for Iq3S {
    const BOOK: Codebook = Codebook::IQ3_S;
}
impl Values for Iq2 {
    const BOOK: Codebook = Codebook::IQ2;
}
impl Values for Iq1 {
    const BOOK: Codebook = Codebook::IQ1;
}
impl Values for Q2 {
    const BOOK: Codebook = Codebook { values: [0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], unit: 1.0 };
    const CENTRE: u8 = 32;
}
impl Values for Q3 {
    const BOOK: Codebook = Codebook { values: [-4, -3, -2, -1, 0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0], unit: 1.0 };
    const CENTRE: u8 = 32;
}

/// The line of a number.
#[inline(always)]
fn nth<T: Tile>(t: T, lines: &[u8], number: usize, part: usize) -> T::Codes {
    t.line(line(lines, number * LINE), part)
}

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
    fn read<T: Tile>(t: T, lines: &[u8], part: usize) -> [T::Codes; 8] {
        let a = nth(t, lines, 0, part);
        let b = nth(t, lines, 1, part);
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
    fn read<T: Tile>(t: T, lines: &[u8], part: usize) -> [T::Codes; 8] {
        with_ones::<T, 2>(t, Two::read(t, lines, part), nth(t, lines, 2, part))
    }
}

impl Read for Four {
    const CODES: Codes = Codes::Four;
    const BITS: u32 = 4;
    #[inline(always)]
    fn read<T: Tile>(t: T, lines: &[u8], part: usize) -> [T::Codes; 8] {
        let a = nth(t, lines, 0, part);
        let b = nth(t, lines, 1, part);
        let c = nth(t, lines, 2, part);
        let d = nth(t, lines, 3, part);
        [t.low(a), t.high(a), t.low(b), t.high(b), t.low(c), t.high(c), t.low(d), t.high(d)]
    }
}

impl Read for Five {
    const CODES: Codes = Codes::Five;
    const BITS: u32 = 5;
    #[inline(always)]
    fn read<T: Tile>(t: T, lines: &[u8], part: usize) -> [T::Codes; 8] {
        with_ones::<T, 4>(t, Four::read(t, lines, part), nth(t, lines, 4, part))
    }
}

impl Read for Six {
    const CODES: Codes = Codes::Six;
    const BITS: u32 = 6;
    #[inline(always)]
    fn read<T: Tile>(t: T, lines: &[u8], part: usize) -> [T::Codes; 8] {
        let low = Four::read(t, lines, part);
        let a = nth(t, lines, 4, part);
        let b = nth(t, lines, 5, part);
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
    fn read<T: Tile>(t: T, lines: &[u8], part: usize) -> [T::Codes; 8] {
        [
            nth(t, lines, 0, part),
            nth(t, lines, 1, part),
            nth(t, lines, 2, part),
            nth(t, lines, 3, part),
            nth(t, lines, 4, part),
            nth(t, lines, 5, part),
            nth(t, lines, 6, part),
            nth(t, lines, 7, part),
        ]
    }
}

impl<R: Read, V: Values> Read for Looked<R, V> {
    const CODES: Codes = R::CODES;
    const BITS: u32 = bits(V::TABLE);
    #[inline(always)]
    fn read<T: Tile>(t: T, lines: &[u8], part: usize) -> [T::Codes; 8] {
        let [a, b, c, d, e, f, g, h] = R::read(t, lines, part);
        [
            t.lookup(a, V::TABLE),
            t.lookup(b, V::TABLE),
            t.lookup(c, V::TABLE),
            t.lookup(d, V::TABLE),
            t.lookup(e, V::TABLE),
            t.lookup(f, V::TABLE),
            t.lookup(g, V::TABLE),
            t.lookup(h, V::TABLE),
        ]
    }
}

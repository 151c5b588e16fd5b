//! The products themselves, one tile against rows of activations, written over [`Tile`].
//!
//! Block by block of 256 inputs, ascending: the codes are read once, as bytes, and all rows pass by them. Per row, the integer
//! sums are exact; how they become a `value` is said at each kind; then y = scale * value + y by fused multiply-add,
//! the scale being that of the activations. Rows are taken together to reuse what was read; each is computed as if it were alone.

use super::TileProduct;
use super::activations::{Rounded, sums_at};
use super::layout::{BLOCK, Book, Codes, K_HEADER, Kind, SIXTEENTHS, Scale};
use super::read::{E2M1, Iq1, Iq2, Iq3S, Iq3Xxs, Iq4, Looked, Q2, Q3, Values};
use super::read::{Eight, Five, Four, Read, Six, Three, Two, line};
use super::tile::{LINE, TILE_ROWS, Tile};
use std::marker::PhantomData;

/// The most rows that [`product`] is made for exactly.
#[inline(always)]
pub(crate) fn together<T: Tile>(_: T, rows: &mut usize) {
    *rows = T::TOGETHER;
}

/// Any number of rows.
pub(crate) const ANY: usize = 0;

/// One tile against exactly ROWS rows of activations, at most as many as the instruction set takes together, or against any
/// number of them, where that is [`ANY`]: adds to `out[r]` the sixteen sums of row r.
///
/// Each number of rows is a function of its own, so that the compiler looks after the registers of one loop at a time.
#[inline(always)]
pub(crate) fn product<T: Tile, const ROWS: usize>(t: T, product: &TileProduct<'_>, out: &mut [[f32; TILE_ROWS]]) {
    if ROWS > T::TOGETHER {
        unreachable!("{ROWS} rows, where {} are taken together", T::TOGETHER);
    }
    match product.kind {
        Kind::KQuant(Codes::Five) => k_quant::<T, Five, ROWS>(t, product, out),
        Kind::KQuant(_) => k_quant::<T, Four, ROWS>(t, product, out),
        Kind::Q2K => sixteenths::<T, Looked<Two, Q2>, true, ROWS>(t, product, out),
        Kind::Q3K => sixteenths::<T, Looked<Three, Q3>, false, ROWS>(t, product, out),
        Kind::Q6K => sixteenths::<T, Six, false, ROWS>(t, product, out),
        Kind::Book(Book::Iq1) => grouped::<T, Looked<Three, Iq1>, Factors<Iq1>, ROWS>(t, product, out),
        Kind::Book(Book::Iq2) => grouped::<T, Looked<Three, Iq2>, Factors<Iq2>, ROWS>(t, product, out),
        Kind::Book(Book::Iq3Xxs) => grouped::<T, Looked<Four, Iq3Xxs>, Factors<Iq3Xxs>, ROWS>(t, product, out),
        Kind::Book(Book::Iq3S) => grouped::<T, Looked<Four, Iq3S>, Factors<Iq3S>, ROWS>(t, product, out),
        Kind::Book(Book::Iq4 | Book::E2M1) => grouped::<T, Looked<Four, Iq4>, Factors<Iq4>, ROWS>(t, product, out),
        Kind::Grouped { codes, group, scale } => match (scale, group) {
            (Scale::F16 { .. }, _) => match codes {
                Codes::Two => grouped::<T, Two, F16Centred<128, 1>, ROWS>(t, product, out),
                Codes::Five => grouped::<T, Five, F16Centred<32, 16>, ROWS>(t, product, out),
                Codes::Eight => grouped::<T, Eight, F16Centred<32, 128>, ROWS>(t, product, out),
                _ => grouped::<T, Four, F16Centred<32, 8>, ROWS>(t, product, out),
            },
            (Scale::BookF16, _) => {
                grouped::<T, Looked<Four, Iq4>, F16Centred<32, { Iq4::CENTRE }>, ROWS>(t, product, out)
            }
            (Scale::E8M0, _) => grouped::<T, Looked<Four, E2M1>, Powers, ROWS>(t, product, out),
            (Scale::E4M3, _) => grouped::<T, Looked<Four, E2M1>, Minifloats, ROWS>(t, product, out),
            (Scale::BiasedF16 | Scale::BiasedBF16, 32) => affine::<T, Biased<32>, ROWS>(t, product, codes, out),
            (Scale::BiasedF16 | Scale::BiasedBF16, 64) => affine::<T, Biased<64>, ROWS>(t, product, codes, out),
            (Scale::BiasedF16 | Scale::BiasedBF16, _) => affine::<T, Biased<128>, ROWS>(t, product, codes, out),
        },
    }
}

#[inline(always)]
fn affine<T: Tile, G: Group, const ROWS: usize>(
    t: T,
    product: &TileProduct<'_>,
    codes: Codes,
    out: &mut [[f32; TILE_ROWS]],
) {
    match codes {
        Codes::Two => grouped::<T, Two, G, ROWS>(t, product, out),
        Codes::Three => grouped::<T, Three, G, ROWS>(t, product, out),
        Codes::Five => grouped::<T, Five, G, ROWS>(t, product, out),
        Codes::Six => grouped::<T, Six, G, ROWS>(t, product, out),
        Codes::Eight => grouped::<T, Eight, G, ROWS>(t, product, out),
        Codes::Four | Codes::Book(_) => grouped::<T, Four, G, ROWS>(t, product, out),
    }
}

/// Where a kernel takes the codes of a block from.
trait Lines<T: Tile>: Copy {
    /// The codes of inputs 32 s .. 32 s + 32.
    fn codes(self, t: T, s: usize) -> [T::Codes; 8];
}

/// From the block itself, each once.
struct Fresh<'a, R> {
    area: &'a [u8],
    part: usize,
    read: PhantomData<R>,
}

impl<R> Clone for Fresh<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for Fresh<'_, R> {}

impl<T: Tile, R: Read> Lines<T> for Fresh<'_, R> {
    #[inline(always)]
    fn codes(self, t: T, s: usize) -> [T::Codes; 8] {
        R::read(t, self.area, s, self.part)
    }
}

/// Read before, since many rows will pass by them.
type Ready<T> = [[<T as Tile>::Codes; 8]; 8];

impl<T: Tile> Lines<T> for &Ready<T> {
    #[inline(always)]
    fn codes(self, _: T, s: usize) -> [T::Codes; 8] {
        self[s]
    }
}

#[inline(always)]
fn read<T: Tile, R: Read>(t: T, area: &[u8], part: usize) -> Ready<T> {
    [
        R::read(t, area, 0, part),
        R::read(t, area, 1, part),
        R::read(t, area, 2, part),
        R::read(t, area, 3, part),
        R::read(t, area, 4, part),
        R::read(t, area, 5, part),
        R::read(t, area, 6, part),
        R::read(t, area, 7, part),
    ]
}

/// What is asked for while rows are multiplied: the lines four blocks on, which is about the time that memory takes. Evenly
/// between the rows, since a burst of requests would hold up the loads behind it.
#[derive(Clone, Copy)]
struct Ahead(Option<*const u8>);

impl Ahead {
    #[inline(always)]
    fn of(product: &TileProduct<'_>, block: &[u8], part: usize) -> Self {
        Self((part == 0 && product.ask).then(|| block.as_ptr().wrapping_add(4 * block.len())))
    }

    /// Asks for one of `shares` shares of an eighth of a block of so many bytes.
    #[inline(always)]
    fn ask<T: Tile>(self, t: T, bytes: usize, eighth: usize, share: usize, shares: usize) {
        let lines = bytes.div_ceil(8 * LINE);
        if let Self(Some(at)) = self {
            // As often for every share, so that the compiler sees no loop whose length it does not know.
            for i in 0..lines.div_ceil(shares) {
                let line = lines * share / shares + i;
                if line < lines * (share + 1) / shares {
                    t.prefetch(at.wrapping_add((eighth * lines + line) * LINE));
                }
            }
        }
    }
}

/// Calls a kernel for the rows of a block: for all of them where their number is known, else for as many together as the instruction
/// set likes.
macro_rules! by_rows {
    ($t:ident: $tile:ty, $read:ty, ($area:ident, $part:ident), $ahead:ident, $xs:ident, $out:ident,
     |$lines:ident, $x:ident, $y:ident| $call:expr) => {
        if ROWS == ANY {
            let $lines = &read::<$tile, $read>($t, $area, $part);
            let (mut xs, mut out): (&[Rounded], &mut [[f32; TILE_ROWS]]) = ($xs, &mut *$out);
            by_rows!(@each $tile, $ahead, xs, out, (8 4 2 1), |$x, $y| $call);
            let _ = (xs, out);
        } else {
            let $lines = Fresh { area: $area, part: $part, read: PhantomData::<$read> };
            if let (Some($x), Some($y)) = ($xs.as_array::<ROWS>(), $out.as_mut_array::<ROWS>()) {
                $call;
            }
        }
    };
    // Kernels for so many rows as often as it goes.
    (@each $tile:ty, $ahead:ident, $xs:ident, $out:ident, ($($together:literal)*), |$x:ident, $y:ident| $call:expr) => {
        $(if <$tile>::TOGETHER >= $together {
            while let Some(($x, xs)) = $xs.split_first_chunk::<$together>()
                && let Some(($y, out)) = std::mem::take(&mut $out).split_first_chunk_mut::<$together>()
            {
                $call;
                $ahead = Ahead(None);
                ($xs, $out) = (xs, out);
            }
        })*
    };
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

/// Scales and mins of a K-quant block: words of four bytes each for sub-blocks 0..4 and 4..8.
#[inline(always)]
fn k_scales<T: Tile>(t: T, block: &[u8], part: usize) -> ([T::Codes; 2], [T::Codes; 2]) {
    let at = 4 * TILE_ROWS;
    let a = t.line(line(block, at), part);
    let b = t.line(line(block, at + LINE), part);
    let c = t.line(line(block, at + 2 * LINE), part);
    ([t.six_low(a), t.six_split(c, a)], [t.six_low(b), t.six_split(t.high(c), b)])
}

/// value = d * (sum of scale * dot) - dmin * (sum of min * sum of x): one rounding for the second product, one for the whole.
#[inline(always)]
fn k_quant<T: Tile, R: Read, const ROWS: usize>(t: T, product: &TileProduct<'_>, out: &mut [[f32; TILE_ROWS]]) {
    for part in 0..T::PARTS {
        for (number, block) in product.blocks.chunks_exact(K_HEADER + R::BYTES).enumerate() {
            let (header, area) = block.split_at(K_HEADER);
            let (scales, mins) = k_scales(t, header, part);
            let factors = [
                t.factor::<0>(scales[0]),
                t.factor::<1>(scales[0]),
                t.factor::<2>(scales[0]),
                t.factor::<3>(scales[0]),
                t.factor::<0>(scales[1]),
                t.factor::<1>(scales[1]),
                t.factor::<2>(scales[1]),
                t.factor::<3>(scales[1]),
            ];
            let (d, dmin) = (t.halves(floats(header, 0), part), t.halves(floats(header, 2 * TILE_ROWS), part));
            let xs = &product.x.of_rows(number)[product.rows.clone()];
            let mut ahead = Ahead::of(product, block, part);
            by_rows!(t: T, R, (area, part), ahead, xs, out, |lines, x, y| k_rows::<T, R, _>(
                t,
                ahead,
                lines,
                &factors,
                &mins,
                (d, dmin),
                part,
                x,
                y
            ));
        }
    }
}

#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "a block, taken apart")]
fn k_rows<T: Tile, R: Read, const N: usize>(
    t: T,
    ahead: Ahead,
    lines: impl Lines<T>,
    factors: &[T::Factor; 8],
    mins: &[T::Codes; 2],
    (d, dmin): (T::Float, T::Float),
    part: usize,
    x: &[Rounded; N],
    y: &mut [[f32; TILE_ROWS]; N],
) {
    let mut sums = [t.no_sums(); N];
    for (s, &factor) in factors.iter().enumerate() {
        let codes = lines.codes(t, s);
        let ask = |r| ahead.ask(t, K_HEADER + R::BYTES, s, r, N);
        if R::BITS == 4 {
            t.dot32_rows::<4, N>(&mut sums, &codes, x, 32 * s, factor, ask);
        } else {
            t.dot32_rows::<5, N>(&mut sums, &codes, x, 32 * s, factor, ask);
        }
    }
    for r in 0..N {
        let (pairs, _) = x[r].sums32.as_chunks::<2>();
        let mut min = t.dot_pair::<0>(t.zero(), mins[0], &pairs[0]);
        min = t.dot_pair::<2>(min, mins[0], &pairs[1]);
        min = t.dot_pair::<0>(min, mins[1], &pairs[2]);
        min = t.dot_pair::<2>(min, mins[1], &pairs[3]);
        let value = t.fms(d, t.to_float(t.scaled_row(&sums, r)), t.mul(dmin, t.to_float(min)));
        t.store(t.fma(t.splat(x[r].scale), value, t.load(&y[r], part)), &mut y[r], part);
    }
}

/// value = d * (sum of scale * dot), codes minus 32; or, where there are MINS, that less dmin * (sum of min * sum of x), rounded as in
/// [`k_quant`].
#[inline(always)]
fn sixteenths<T: Tile, R: Read, const MINS: bool, const ROWS: usize>(
    t: T,
    product: &TileProduct<'_>,
    out: &mut [[f32; TILE_ROWS]],
) {
    for part in 0..T::PARTS {
        for (number, block) in product.blocks.chunks_exact(SIXTEENTHS + R::BYTES).enumerate() {
            let (header, area) = block.split_at(SIXTEENTHS);
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
            let (d, dmin) = (t.halves(floats(header, 0), part), t.halves(floats(header, 2 * TILE_ROWS), part));
            let xs = &product.x.of_rows(number)[product.rows.clone()];
            let mut ahead = Ahead::of(product, block, part);
            by_rows!(t: T, R, (area, part), ahead, xs, out, |lines, x, y| sixteenths_rows::<T, R, MINS, _>(
                t,
                ahead,
                lines,
                &factors,
                &mins,
                (d, dmin),
                part,
                x,
                y
            ));
        }
    }
}

#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "a block, taken apart")]
fn sixteenths_rows<T: Tile, R: Read, const MINS: bool, const N: usize>(
    t: T,
    ahead: Ahead,
    lines: impl Lines<T>,
    factors: &[[T::Factor; 2]; 8],
    mins: &[T::Codes; 4],
    (d, dmin): (T::Float, T::Float),
    part: usize,
    x: &[Rounded; N],
    y: &mut [[f32; TILE_ROWS]; N],
) {
    let mut sums = [t.no_sums(); N];
    for (s, &[first, second]) in factors.iter().enumerate() {
        let [a, b, c, d, e, f, g, h] = lines.codes(t, s);
        let ask = |share| ahead.ask(t, SIXTEENTHS + R::BYTES, s, share, 2 * N);
        t.dot16_centred_rows(&mut sums, &[a, b, c, d], x, 32 * s, first, ask);
        t.dot16_centred_rows(&mut sums, &[e, f, g, h], x, 32 * s + 16, second, |r| ask(N + r));
    }
    for r in 0..N {
        let sum = t.to_float(t.scaled_row(&sums, r));
        let value = if MINS {
            let mut min = t.zero();
            for (&word, pairs) in mins.iter().zip(x[r].sums16.as_chunks::<4>().0) {
                min = t.dot_pair::<0>(min, word, &[pairs[0], pairs[1]]);
                min = t.dot_pair::<2>(min, word, &[pairs[2], pairs[3]]);
            }
            t.fms(d, sum, t.mul(dmin, t.to_float(min)))
        } else {
            t.mul(d, sum)
        };
        t.store(t.fma(t.splat(x[r].scale), value, t.load(&y[r], part)), &mut y[r], part);
    }
}

/// What stands beside the codes of a group.
trait Group {
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
}

/// A 16-bit scale and bias.
struct Biased<const GROUP: usize>;
/// A scale in f16, codes relative to CENTRE.
struct F16Centred<const GROUP: usize, const CENTRE: u8>;
/// A power of two, for values of [`E2M1`].
struct Powers;
/// An 8-bit float, for values of [`E2M1`].
struct Minifloats;
/// An f16 for all inputs times a small integer for each 16, for values of V.
struct Factors<V>(PhantomData<V>);

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

/// Per group, ascending: value = scale * dot + value, then bias * (sum of x) + value; or, where codes have a centre, value = scale *
/// (dot - centre * sum of x) + value, the parenthesis being exact.
#[inline(always)]
fn grouped<T: Tile, R: Read, G: Group, const ROWS: usize>(
    t: T,
    product: &TileProduct<'_>,
    out: &mut [[f32; TILE_ROWS]],
) {
    let brain = matches!(product.kind, Kind::Grouped { scale: Scale::BiasedBF16, .. });
    for part in 0..T::PARTS {
        for (number, block) in product.blocks.chunks_exact(G::HEADER + R::BYTES).enumerate() {
            let (header, area) = block.split_at(G::HEADER);
            let beside = Beside { header, brain, part };
            let xs = &product.x.of_rows(number)[product.rows.clone()];
            let mut ahead = Ahead::of(product, block, part);
            by_rows!(t: T, R, (area, part), ahead, xs, out, |lines, x, y| grouped_rows::<T, R, G, _>(
                t, ahead, lines, beside, x, y
            ));
        }
    }
}

/// Where scales and biases are taken from.
#[derive(Clone, Copy)]
struct Beside<'a> {
    header: &'a [u8],
    brain: bool,
    part: usize,
}

impl Beside<'_> {
    /// Adds what a group gives to the values of N rows, and begins its sums anew.
    #[inline(always)]
    fn add<T: Tile, G: Group, const N: usize>(
        self,
        t: T,
        group: usize,
        x: &[Rounded; N],
        sums: &mut [T::Sums; N],
        values: &mut [T::Float; N],
    ) {
        let (scale, bias) = G::beside(t, self.brain, self.header, group, self.part);
        for r in 0..N {
            let dot = t.to_float(t.plain_row(sums, r));
            let sum = t.splat(x[r].sums[sums_at(G::GROUP) + group]);
            values[r] = if G::BIASED {
                t.fma(bias, sum, t.fma(scale, dot, values[r]))
            } else {
                t.fma(scale, t.fma(bias, sum, dot), values[r])
            };
        }
        *sums = [t.no_sums(); N];
    }
}

#[inline(always)]
fn grouped_rows<T: Tile, R: Read, G: Group, const N: usize>(
    t: T,
    ahead: Ahead,
    lines: impl Lines<T>,
    beside: Beside<'_>,
    x: &[Rounded; N],
    y: &mut [[f32; TILE_ROWS]; N],
) {
    let mut values = [t.splat(0.0); N];
    let mut sums = [t.no_sums(); N];
    for s in 0..8 {
        let [a, b, c, d, e, f, g, h] = lines.codes(t, s);
        let ask = |share| ahead.ask(t, G::HEADER + R::BYTES, s, share, 2 * N);
        dot16_rows::<T, R, N>(t, &mut sums, [a, b, c, d], x, 32 * s, ask);
        if G::GROUP == 16 {
            beside.add::<T, G, N>(t, 2 * s, x, &mut sums, &mut values);
        }
        dot16_rows::<T, R, N>(t, &mut sums, [e, f, g, h], x, 32 * s + 16, |r| ask(N + r));
        if (32 * (s + 1)).is_multiple_of(G::GROUP) {
            beside.add::<T, G, N>(t, 32 * (s + 1) / G::GROUP - 1, x, &mut sums, &mut values);
        }
    }
    for r in 0..N {
        let sum = t.fma(t.splat(x[r].scale), values[r], t.load(&y[r], beside.part));
        t.store(sum, &mut y[r], beside.part);
    }
}

/// [`Tile::dot16_rows`] for the bits that R reads.
#[inline(always)]
fn dot16_rows<T: Tile, R: Read, const N: usize>(
    t: T,
    sums: &mut [T::Sums; N],
    codes: [T::Codes; 4],
    x: &[Rounded; N],
    at: usize,
    meanwhile: impl Fn(usize),
) {
    if R::BITS > 6 {
        t.dot16_rows::<8, N>(sums, &codes, x, at, meanwhile);
    } else {
        t.dot16_rows::<6, N>(sums, &codes, x, at, meanwhile);
    }
}

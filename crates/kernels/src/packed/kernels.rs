//! The products themselves, tiles against rows of activations, written over [`Tile`].
//!
//! Block by block of 256 inputs, ascending, of each tile by turns: the codes are read once, as bytes, and all rows pass by them. Per row, the integer
//! sums are exact; how they become a `value` is said at each kind; then y = scale * value + y by fused multiply-add,
//! the scale being that of the activations. Rows are taken together to reuse what was read; each is computed as if it were alone.

use super::activations::Rounded;
use super::kinds::{ByKind, by_kind};
use super::layout::{K_HEADER, Kind, SIXTEENTHS};
use super::read::Read;
use super::scales::{Group, KScales, Scales, SixteenthScales, add_value};
use super::tile::{LINE, TILE_ROWS, Tile};
use super::{Rows, TileProduct};
use std::marker::PhantomData;

/// How [`product`] likes rows.
#[inline(always)]
pub(crate) fn rows<T: Tile>(_: T, _: Kind, rows: &mut Rows) {
    *rows = Rows {
        exactly: T::TOGETHER,
        many: 2 * T::TOGETHER + 1,
        panel: 32..256,
        step: 8,
        streams: STREAMS,
        turns: TURNS,
        bytes: size_of::<Rounded>(),
    };
}

/// Tiles that pass by few rows by turns, block by block: a processor sends for what follows a stream by itself, but only so far, and so for more
/// where there are more streams.
pub(super) const STREAMS: usize = 4;
/// Tiles that pass by many rows by turns: a block of those stays in a near cache meanwhile.
const TURNS: usize = 8;
/// Blocks, of all tiles together, that memory is asked ahead for.
const AHEAD: usize = 4;

/// Any number of rows.
pub(crate) const ANY: usize = 0;

/// Tiles against exactly ROWS rows of activations, at most as many as the instruction set takes together, or against any
/// number of them, where that is [`ANY`]: adds to `out[r]` the sixteen sums of row r, for each tile after the other.
///
/// Each number of rows is a function of its own, so that the compiler looks after the registers of one loop at a time.
#[inline(always)]
pub(crate) fn product<T: Tile, const ROWS: usize>(t: T, product: &TileProduct<'_>, out: &mut [[f32; TILE_ROWS]]) {
    if ROWS > T::TOGETHER {
        unreachable!("{ROWS} rows, where {} are taken together", T::TOGETHER);
    }
    by_kind(product.kind, Exactly::<T, ROWS> { t, product, out });
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
        R::of_block(t, self.area, s, self.part)
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
        R::of_block(t, area, 0, part),
        R::of_block(t, area, 1, part),
        R::of_block(t, area, 2, part),
        R::of_block(t, area, 3, part),
        R::of_block(t, area, 4, part),
        R::of_block(t, area, 5, part),
        R::of_block(t, area, 6, part),
        R::of_block(t, area, 7, part),
    ]
}

/// What is asked for while rows are multiplied: the lines that come after about [`AHEAD`] blocks, which is the time that memory takes. Evenly
/// between the rows, since a burst of requests would hold up the loads behind it.
#[derive(Clone, Copy)]
pub(super) struct Ahead(Option<*const u8>);

impl Ahead {
    #[inline(always)]
    pub(super) fn of(product: &TileProduct<'_>, [tile, number]: [usize; 2], bytes: usize, part: usize) -> Self {
        let (blocks, after) = (product.x.blocks(), (AHEAD / product.tiles).max(1));
        // The thread's next tiles follow its present ones.
        let tile = if number + after < blocks { tile } else { tile + product.tiles - 1 };
        let at = (tile * blocks + number + after) * bytes;
        Self((part == 0 && product.ask).then(|| product.data.as_ptr().wrapping_add(at)))
    }

    /// Asks for one of `shares` shares of an eighth of a block of so many bytes.
    #[inline(always)]
    pub(super) fn ask<T: Tile>(self, t: T, bytes: usize, eighth: usize, share: usize, shares: usize) {
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

/// A product with ROWS rows.
struct Exactly<'a, 'b, T, const ROWS: usize> {
    t: T,
    product: &'a TileProduct<'b>,
    out: &'a mut [[f32; TILE_ROWS]],
}

impl<T: Tile, const ROWS: usize> ByKind for Exactly<'_, '_, T, ROWS> {
    #[inline(always)]
    fn k_quant<R: Read>(self) {
        self.multiply::<KQuants<R>>();
    }
    #[inline(always)]
    fn sixteenths<R: Read, const MINS: bool>(self) {
        self.multiply::<Sixteenths<R, MINS>>();
    }
    #[inline(always)]
    fn grouped<R: Read, G: Group>(self) {
        self.multiply::<Groups<R, G>>();
    }
}

impl<T: Tile, const ROWS: usize> Exactly<'_, '_, T, ROWS> {
    /// All rows pass by each block: together where their number is known, else as many at once as the instruction set likes.
    #[inline(always)]
    fn multiply<B: Blocks<T>>(self) {
        let Self { t, product, out } = self;
        for number in 0..product.x.blocks() {
            let xs = &product.x.of_rows(number)[product.rows.clone()];
            for (tile, out) in out.chunks_exact_mut(xs.len()).enumerate() {
                let block = product.block(tile, number, B::BYTES);
                let (header, area) = block.split_at(B::BYTES - B::Read::BYTES);
                for part in 0..T::PARTS {
                    let scales = B::scales(t, product.kind.brain(), header, part);
                    let mut ahead = Ahead::of(product, [tile, number], B::BYTES, part);
                    if ROWS == ANY {
                        let lines = &read::<T, B::Read>(t, area, part);
                        let (mut xs, mut out) = (xs, &mut *out);
                        each::<T, B, 8>(t, &mut ahead, lines, &scales, part, &mut xs, &mut out);
                        each::<T, B, 4>(t, &mut ahead, lines, &scales, part, &mut xs, &mut out);
                        each::<T, B, 2>(t, &mut ahead, lines, &scales, part, &mut xs, &mut out);
                        each::<T, B, 1>(t, &mut ahead, lines, &scales, part, &mut xs, &mut out);
                    } else if let (Some(x), Some(y)) = (xs.as_array::<ROWS>(), out.as_mut_array::<ROWS>()) {
                        let lines = Fresh { area, part, read: PhantomData::<B::Read> };
                        B::rows(t, ahead, lines, &scales, part, x, y);
                    }
                }
            }
        }
    }
}

/// N rows together, as often as it goes and if the instruction set takes so many; memory is asked ahead with the first.
#[inline(always)]
fn each<T: Tile, B: Blocks<T>, const N: usize>(
    t: T,
    ahead: &mut Ahead,
    lines: &Ready<T>,
    scales: &B::Scales<'_>,
    part: usize,
    xs: &mut &[Rounded],
    out: &mut &mut [[f32; TILE_ROWS]],
) {
    if T::TOGETHER >= N {
        while let Some((x, behind)) = xs.split_first_chunk::<N>()
            && let Some((y, rest)) = std::mem::take(out).split_first_chunk_mut::<N>()
        {
            B::rows(t, *ahead, lines, scales, part, x, y);
            (*ahead, *xs, *out) = (Ahead(None), behind, rest);
        }
    }
}

/// What blocks are made of. (A trait, as closures are not inlined where they have to be.)
trait Blocks<T: Tile> {
    /// How codes are read.
    type Read: Read;
    /// Bytes of a block of a tile.
    const BYTES: usize;
    /// What stands beside the codes.
    type Scales<'a>;

    /// Reads the scales of a block.
    fn scales(t: T, brain: bool, header: &[u8], part: usize) -> Self::Scales<'_>;
    /// Adds what a block gives with N rows.
    fn rows<const N: usize>(
        t: T,
        ahead: Ahead,
        lines: impl Lines<T>,
        scales: &Self::Scales<'_>,
        part: usize,
        x: &[Rounded; N],
        y: &mut [[f32; TILE_ROWS]; N],
    );
}

/// Blocks of a K-quant.
struct KQuants<R>(PhantomData<R>);

impl<T: Tile, R: Read> Blocks<T> for KQuants<R> {
    type Read = R;
    const BYTES: usize = K_HEADER + R::BYTES;
    type Scales<'a> = KScales<T>;

    #[inline(always)]
    fn scales(t: T, _: bool, header: &[u8], part: usize) -> KScales<T> {
        KScales::read(t, header, part)
    }
    #[inline(always)]
    fn rows<const N: usize>(
        t: T,
        ahead: Ahead,
        lines: impl Lines<T>,
        scales: &KScales<T>,
        part: usize,
        x: &[Rounded; N],
        y: &mut [[f32; TILE_ROWS]; N],
    ) {
        let mut sums = [t.no_sums(); N];
        for (s, &factor) in scales.factors.iter().enumerate() {
            let codes = lines.codes(t, s);
            let ask = |r| ahead.ask(t, K_HEADER + R::BYTES, s, r, N);
            if R::BITS == 4 {
                t.dot32_rows::<4, N>(&mut sums, &codes, x, 32 * s, factor, ask);
            } else {
                t.dot32_rows::<5, N>(&mut sums, &codes, x, 32 * s, factor, ask);
            }
        }
        for r in 0..N {
            add_value(t, &x[r], scales.value(t, t.scaled_row(&sums, r), &x[r]), &mut y[r], part);
        }
    }
}

/// Blocks with scales for each 16 inputs, and MINS.
struct Sixteenths<R, const MINS: bool>(PhantomData<R>);

impl<T: Tile, R: Read, const MINS: bool> Blocks<T> for Sixteenths<R, MINS> {
    type Read = R;
    const BYTES: usize = SIXTEENTHS + R::BYTES;
    type Scales<'a> = SixteenthScales<T, MINS>;

    #[inline(always)]
    fn scales(t: T, _: bool, header: &[u8], part: usize) -> SixteenthScales<T, MINS> {
        SixteenthScales::read(t, header, part)
    }
    #[inline(always)]
    fn rows<const N: usize>(
        t: T,
        ahead: Ahead,
        lines: impl Lines<T>,
        scales: &SixteenthScales<T, MINS>,
        part: usize,
        x: &[Rounded; N],
        y: &mut [[f32; TILE_ROWS]; N],
    ) {
        let mut sums = [t.no_sums(); N];
        for (s, &[first, second]) in scales.factors.iter().enumerate() {
            let [a, b, c, d, e, f, g, h] = lines.codes(t, s);
            let ask = |share| ahead.ask(t, SIXTEENTHS + R::BYTES, s, share, 2 * N);
            t.dot16_centred_rows(&mut sums, &[a, b, c, d], x, 32 * s, first, ask);
            t.dot16_centred_rows(&mut sums, &[e, f, g, h], x, 32 * s + 16, second, |r| ask(N + r));
        }
        for r in 0..N {
            add_value(t, &x[r], scales.value(t, t.scaled_row(&sums, r), &x[r]), &mut y[r], part);
        }
    }
}

/// Blocks of groups that have scales of their own.
struct Groups<R, G>(PhantomData<(R, G)>);

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
        let beside = G::beside(t, self.brain, self.header, group, self.part);
        for r in 0..N {
            values[r] = G::add(t, beside, t.plain_row(sums, r), &x[r], group, values[r]);
        }
        *sums = [t.no_sums(); N];
    }
}

impl<T: Tile, R: Read, G: Group> Blocks<T> for Groups<R, G> {
    type Read = R;
    const BYTES: usize = G::HEADER + R::BYTES;
    type Scales<'a> = Beside<'a>;

    #[inline(always)]
    fn scales(_: T, brain: bool, header: &[u8], part: usize) -> Beside<'_> {
        Beside { header, brain, part }
    }
    #[inline(always)]
    fn rows<const N: usize>(
        t: T,
        ahead: Ahead,
        lines: impl Lines<T>,
        beside: &Beside<'_>,
        part: usize,
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
            add_value(t, &x[r], values[r], &mut y[r], part);
        }
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

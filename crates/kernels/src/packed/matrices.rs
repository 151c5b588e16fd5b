//! Products of tiles with many rows of activations, for machines that multiply whole matrices of bytes.
//!
//! Such an instruction adds up many inputs at once, so that scales which are integers have to be in the codes before: a code times its
//! scale has more bits than a byte, and is taken in two bytes, whose sums are put together at the end. That is the same integer, so
//! that what follows, written once for all kernels (`scales.rs`), gives the same bits.

use super::TileProduct;
use super::activations::Rounded;
use super::kernels::{Ahead, STREAMS};
use super::kinds::{ByKind, by_kind};
use super::layout::{BLOCK, K_HEADER, Kind, SIXTEENTHS};
use super::read::Read;
use super::scales::{Group, KScales, Scales, SixteenthScales, add_value};
use super::tile::{LINE, TILE_ROWS, Tile};
use std::cell::Cell;
use std::marker::PhantomData;

/// Rows of activations that are multiplied at once.
pub const MATRIX_ROWS: usize = 16;
/// Lines of a block: four inputs of every row of the tile each.
pub const LINES: usize = BLOCK / 4;

/// Of some rows of activations, what sixteen rows of weights gave with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Sums(pub [[i32; TILE_ROWS]; MATRIX_ROWS]);

impl Sums {
    /// None yet.
    pub const ZERO: Self = Self([[0; TILE_ROWS]; MATRIX_ROWS]);
}

/// Lines of bytes of a block.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Lines(pub [[u8; LINE]; LINES]);

/// What a thread keeps between products.
struct Scratch {
    low: Lines,
    high: Lines,
    sums: [Sums; 32],
}

impl Default for Scratch {
    fn default() -> Self {
        let zeros = Lines([[0; LINE]; LINES]);
        Self { low: zeros.clone(), high: zeros, sums: [Sums::ZERO; 32] }
    }
}

impl Scratch {
    fn take() -> Box<Self> {
        SCRATCH.take().unwrap_or_default()
    }

    fn put_back(self: Box<Self>) {
        SCRATCH.set(Some(self));
    }
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// The operations on matrices of one instruction set, beside those of its [`Tile`], which takes the sixteen rows of a tile as one part.
pub trait Matrices: Copy + Send + Sync + 'static {
    /// Its vectors.
    type Tile: Tile;
    /// What holds while matrices of some size are multiplied by this thread.
    type Open: Matrix<Self>;

    /// Rows of activations from which on it is faster than the kernels for exactly so many.
    const FROM: usize;
    /// The same for codes of less than 8 bits in groups of 64 inputs or more: they are little work to make ready.
    const FROM_PLAIN: usize;

    /// Its vectors.
    fn tile(self) -> Self::Tile;
    /// Codes as they lie as lines: four inputs of every row, in order.
    fn lines(self, codes: [Codes<Self>; 8]) -> [Codes<Self>; 8];
    /// Codes of a line, below 32, times the factor of each row, below 64: low + 8 high, all of them bytes without sign.
    fn times(self, line: Codes<Self>, factor: Factor<Self>) -> [Codes<Self>; 2];
    /// Codes of a line, below 64, minus 32, times the factor of each row, which is a byte with a sign: low + 256 high, low without sign,
    /// high with one.
    fn times_centred(self, line: Codes<Self>, factor: Factor<Self>) -> [Codes<Self>; 2];
    /// Writes a line.
    fn put(self, line: Codes<Self>, to: &mut [u8; LINE]);
    /// low + high 2^SHIFT.
    fn joined<const SHIFT: u32>(self, low: &[i32; TILE_ROWS], high: &[i32; TILE_ROWS]) -> Int<Self>;
    /// Sums as they are.
    fn int(self, sums: &[i32; TILE_ROWS]) -> Int<Self>;
    /// Makes ready for matrices of `rows` rows of activations, 1 to 16, and INPUTS inputs, 16, 32 or 64.
    fn open<const INPUTS: usize>(self, rows: usize) -> Self::Open;
}

/// Products of matrices of a size, in quarters of a block: what is done between them hides the time that they take. Quarters 0 to 3 follow
/// each other, with the same arguments, and nothing else is multiplied by the thread meanwhile.
pub trait Matrix<M: Matrices> {
    /// A quarter of the sums over all 256 inputs of `x`, as many rows as were said, with lines of bytes without sign, and with `high`, which are
    /// SIGNED or not. They are there after the last.
    fn multiply<const SIGNED: bool, const QUARTER: usize>(
        &self,
        x: &[Rounded],
        low: &Lines,
        high: &Lines,
        sums: &mut [Sums; 2],
    );
    /// The sums over each GROUP of inputs, one after the other, as far as groups end in the quarter.
    fn multiply_groups<const GROUP: usize, const QUARTER: usize>(
        &self,
        x: &[Rounded],
        lines: &Lines,
        sums: &mut [Sums],
    );
}

type Codes<M> = <<M as Matrices>::Tile as Tile>::Codes;
type Factor<M> = <<M as Matrices>::Tile as Tile>::Factor;
type Float<M> = <<M as Matrices>::Tile as Tile>::Float;
type Int<M> = <<M as Matrices>::Tile as Tile>::Int;

/// How [`product`] likes rows: exactly so many are left to other kernels, and it reads about half of what belongs to a row.
#[inline(always)]
pub(crate) fn rows<M: Matrices>(_: M, kind: Kind, rows: &mut super::Rows) {
    let plain = matches!(kind, Kind::Grouped { group: 64.., .. }) && kind.codes().bits() < 8;
    let many = if plain { M::FROM_PLAIN } else { M::FROM };
    *rows = super::Rows {
        exactly: many - 1,
        many,
        panel: 48..512,
        step: MATRIX_ROWS,
        streams: STREAMS,
        turns: 1,
        bytes: BLOCK + 64,
    };
}

/// Tiles against any number of rows of activations: adds to `out[r]` the sixteen sums of row r, for each tile after the other.
#[inline(always)]
pub(crate) fn product<M: Matrices>(m: M, product: &TileProduct<'_>, out: &mut [[f32; TILE_ROWS]]) {
    const { assert!(M::Tile::PARTS == 1) };
    by_kind(product.kind, Many { m, product, out });
}

struct Many<'a, 'b, M> {
    m: M,
    product: &'a TileProduct<'b>,
    out: &'a mut [[f32; TILE_ROWS]],
}

impl<M: Matrices> ByKind for Many<'_, '_, M> {
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
        match G::GROUP {
            16 => self.multiply::<Groups<R, G, 16, 16>>(),
            32 => self.multiply::<Groups<R, G, 32, 8>>(),
            64 => self.multiply::<Groups<R, G, 64, 4>>(),
            _ => self.multiply::<Groups<R, G, 128, 2>>(),
        }
    }
}

/// What blocks are made of. (A trait, as closures are not inlined where they have to be.)
trait Blocks<M: Matrices> {
    /// Bytes of a block of a tile.
    const BYTES: usize;
    /// Inputs that are multiplied at once.
    const INPUTS: usize;
    /// What stands beside the codes.
    type Scales;
    /// What rows of activations give.
    type Sums;

    /// Reads the scales of a block.
    fn scales(m: M, brain: bool, block: &[u8]) -> Self::Scales;
    /// Makes lines of the codes of inputs 32 s .. 32 s + 32.
    fn decode(m: M, block: &[u8], scales: &Self::Scales, s: usize, low: &mut Lines, high: &mut Lines);
    /// Multiplies as many rows as are multiplied at once, a quarter after the other.
    fn multiply<const QUARTER: usize>(open: &M::Open, x: &[Rounded], low: &Lines, high: &Lines, sums: &mut Self::Sums);
    /// The value of one of them.
    fn value(m: M, scales: &Self::Scales, sums: &Self::Sums, row: usize, x: &Rounded) -> Float<M>;
    /// Sums, twice.
    fn sums(all: &mut [Sums; 32]) -> [&mut Self::Sums; 2];
}

impl<M: Matrices> Many<'_, '_, M> {
    /// Block by block: its codes are made ready, and all rows pass by them.
    #[inline(always)]
    fn multiply<B: Blocks<M>>(self) {
        let Self { m, product, out } = self;
        let rows = product.rows.len().min(MATRIX_ROWS);
        let open = match B::INPUTS {
            16 => m.open::<16>(rows),
            32 => m.open::<32>(rows),
            _ => m.open::<64>(rows),
        };
        let mut scratch = Scratch::take();
        let Scratch { low, high, sums } = &mut *scratch;
        let [sums, next] = B::sums(sums);
        for number in 0..product.x.blocks() {
            let xs = &product.x.of_rows(number)[product.rows.clone()];
            for (tile, out) in out.chunks_exact_mut(xs.len()).enumerate() {
                let block = product.block(tile, number, B::BYTES);
                let ahead = Ahead::of(product, [tile, number], B::BYTES, 0);
                let scales = B::scales(m, product.kind.brain(), block);
                for s in 0..8 {
                    B::decode(m, block, &scales, s, low, high);
                    // The second half is asked for while the first rows are multiplied.
                    ahead.ask(m.tile(), B::BYTES, s / 2, s % 2, 2);
                }
                let ready = Ready::<M, B> { m, open: &open, low, high, scales };
                ready.each_row(ahead, xs, out, [sums, next]);
            }
        }
        scratch.put_back();
    }
}

/// A block that is ready to be multiplied.
struct Ready<'a, M: Matrices, B: Blocks<M>> {
    m: M,
    open: &'a M::Open,
    low: &'a Lines,
    high: &'a Lines,
    scales: B::Scales,
}

impl<M: Matrices, B: Blocks<M>> Ready<'_, M, B> {
    /// Multiplies as many rows at once as there are, up to sixteen, and ends with the value of each: the last ones may be multiplied again,
    /// so that all matrices are of one size. What waits for sums does so while the next are made.
    #[inline(always)]
    fn each_row(
        &self,
        ahead: Ahead,
        xs: &[Rounded],
        outs: &mut [[f32; TILE_ROWS]],
        [mut sums, mut next]: [&mut B::Sums; 2],
    ) {
        let rows = xs.len();
        let last = rows.saturating_sub(MATRIX_ROWS);
        let first = &xs[..rows.min(MATRIX_ROWS)];
        self.multiply::<0>(first, sums);
        ahead.ask(self.m.tile(), B::BYTES, 4, 0, 1);
        self.multiply::<1>(first, sums);
        ahead.ask(self.m.tile(), B::BYTES, 5, 0, 1);
        self.multiply::<2>(first, sums);
        ahead.ask(self.m.tile(), B::BYTES, 6, 0, 1);
        self.multiply::<3>(first, sums);
        ahead.ask(self.m.tile(), B::BYTES, 7, 0, 1);
        let (wholes, rest) = outs.as_chunks_mut::<MATRIX_ROWS>();
        for (n, (x, out)) in xs.as_chunks::<MATRIX_ROWS>().0.iter().zip(wholes).enumerate() {
            let behind = (n + 1) * MATRIX_ROWS;
            if behind < rows {
                let behind = &xs[behind.min(last)..][..MATRIX_ROWS];
                self.multiply::<0>(behind, next);
                self.add::<0>(sums, x, out);
                self.multiply::<1>(behind, next);
                self.add::<1>(sums, x, out);
                self.multiply::<2>(behind, next);
                self.add::<2>(sums, x, out);
                self.multiply::<3>(behind, next);
                self.add::<3>(sums, x, out);
            } else {
                for r in 0..MATRIX_ROWS {
                    self.add_row(sums, r, &x[r], &mut out[r]);
                }
            }
            std::mem::swap(&mut sums, &mut next);
        }
        let first = rows - rest.len();
        for (i, (x, out)) in xs[first..].iter().zip(rest).enumerate() {
            self.add_row(sums, first + i - first.min(last), x, out);
        }
    }

    #[inline(always)]
    fn multiply<const QUARTER: usize>(&self, x: &[Rounded], sums: &mut B::Sums) {
        B::multiply::<QUARTER>(self.open, x, self.low, self.high, sums);
    }

    /// Adds the values of a quarter of sixteen rows.
    #[inline(always)]
    fn add<const QUARTER: usize>(
        &self,
        sums: &B::Sums,
        x: &[Rounded; MATRIX_ROWS],
        out: &mut [[f32; TILE_ROWS]; MATRIX_ROWS],
    ) {
        for r in 4 * QUARTER..4 * QUARTER + 4 {
            self.add_row(sums, r, &x[r], &mut out[r]);
        }
    }

    #[inline(always)]
    fn add_row(&self, sums: &B::Sums, row: usize, x: &Rounded, out: &mut [f32; TILE_ROWS]) {
        add_value(self.m.tile(), x, B::value(self.m, &self.scales, sums, row, x), out, 0);
    }
}

/// Twice N of the sums.
#[inline(always)]
fn pair<const N: usize>(sums: &mut [Sums; 32]) -> [&mut [Sums; N]; 2] {
    const { assert!(N <= 16) };
    match sums.as_chunks_mut::<N>().0 {
        [first, second, ..] => [first, second],
        _ => unreachable!("two of 16 are 32"),
    }
}

/// Blocks of a K-quant: codes times scales are low + 8 high.
struct KQuants<R>(PhantomData<R>);

impl<M: Matrices, R: Read> Blocks<M> for KQuants<R> {
    const BYTES: usize = K_HEADER + R::BYTES;
    const INPUTS: usize = 64;
    type Scales = KScales<M::Tile>;
    type Sums = [Sums; 2];

    #[inline(always)]
    fn scales(m: M, _: bool, block: &[u8]) -> Self::Scales {
        KScales::read(m.tile(), block, 0)
    }
    #[inline(always)]
    fn decode(m: M, block: &[u8], scales: &Self::Scales, s: usize, low: &mut Lines, high: &mut Lines) {
        let lines = m.lines(R::of_block(m.tile(), &block[K_HEADER..], s, 0));
        for (i, line) in lines.into_iter().enumerate() {
            let products = m.times(line, scales.factors[s]);
            m.put(products[0], &mut low.0[8 * s + i]);
            m.put(products[1], &mut high.0[8 * s + i]);
        }
    }
    #[inline(always)]
    fn multiply<const QUARTER: usize>(open: &M::Open, x: &[Rounded], low: &Lines, high: &Lines, sums: &mut [Sums; 2]) {
        open.multiply::<false, QUARTER>(x, low, high, sums);
    }
    #[inline(always)]
    fn value(m: M, scales: &Self::Scales, [low, high]: &[Sums; 2], row: usize, x: &Rounded) -> Float<M> {
        scales.value(m.tile(), m.joined::<3>(&low.0[row], &high.0[row]), x)
    }
    #[inline(always)]
    fn sums(all: &mut [Sums; 32]) -> [&mut [Sums; 2]; 2] {
        pair(all)
    }
}

/// Blocks with scales for each 16 inputs: centred codes times scales are low + 256 high.
struct Sixteenths<R, const MINS: bool>(PhantomData<R>);

impl<M: Matrices, R: Read, const MINS: bool> Blocks<M> for Sixteenths<R, MINS> {
    const BYTES: usize = SIXTEENTHS + R::BYTES;
    const INPUTS: usize = 64;
    type Scales = SixteenthScales<M::Tile, MINS>;
    type Sums = [Sums; 2];

    #[inline(always)]
    fn scales(m: M, _: bool, block: &[u8]) -> Self::Scales {
        SixteenthScales::read(m.tile(), block, 0)
    }
    #[inline(always)]
    fn decode(m: M, block: &[u8], scales: &Self::Scales, s: usize, low: &mut Lines, high: &mut Lines) {
        let lines = m.lines(R::of_block(m.tile(), &block[SIXTEENTHS..], s, 0));
        for (i, line) in lines.into_iter().enumerate() {
            let products = m.times_centred(line, scales.factors[s][i / 4]);
            m.put(products[0], &mut low.0[8 * s + i]);
            m.put(products[1], &mut high.0[8 * s + i]);
        }
    }
    #[inline(always)]
    fn multiply<const QUARTER: usize>(open: &M::Open, x: &[Rounded], low: &Lines, high: &Lines, sums: &mut [Sums; 2]) {
        open.multiply::<true, QUARTER>(x, low, high, sums);
    }
    #[inline(always)]
    fn value(m: M, scales: &Self::Scales, [low, high]: &[Sums; 2], row: usize, x: &Rounded) -> Float<M> {
        scales.value(m.tile(), m.joined::<8>(&low.0[row], &high.0[row]), x)
    }
    #[inline(always)]
    fn sums(all: &mut [Sums; 32]) -> [&mut [Sums; 2]; 2] {
        pair(all)
    }
}

/// Blocks of GROUPS groups of GROUP inputs.
struct Groups<R, G, const GROUP: usize, const GROUPS: usize>(PhantomData<(R, G)>);

impl<M: Matrices, R: Read, G: Group, const GROUP: usize, const GROUPS: usize> Blocks<M>
    for Groups<R, G, GROUP, GROUPS>
{
    const BYTES: usize = G::HEADER + R::BYTES;
    const INPUTS: usize = if GROUP < 64 { GROUP } else { 64 };
    type Scales = [(Float<M>, Float<M>); GROUPS];
    type Sums = [Sums; GROUPS];

    #[inline(always)]
    fn scales(m: M, brain: bool, block: &[u8]) -> Self::Scales {
        let mut scales = [(m.tile().splat(0.0), m.tile().splat(0.0)); GROUPS];
        for (group, scales) in scales.iter_mut().enumerate() {
            *scales = G::beside(m.tile(), brain, block, group, 0);
        }
        scales
    }
    #[inline(always)]
    fn decode(m: M, block: &[u8], _: &Self::Scales, s: usize, low: &mut Lines, _: &mut Lines) {
        let lines = m.lines(R::of_block(m.tile(), &block[G::HEADER..], s, 0));
        for (i, line) in lines.into_iter().enumerate() {
            m.put(line, &mut low.0[8 * s + i]);
        }
    }
    #[inline(always)]
    fn multiply<const QUARTER: usize>(
        open: &M::Open,
        x: &[Rounded],
        low: &Lines,
        _: &Lines,
        sums: &mut [Sums; GROUPS],
    ) {
        open.multiply_groups::<GROUP, QUARTER>(x, low, sums);
    }
    #[inline(always)]
    fn value(m: M, scales: &Self::Scales, sums: &[Sums; GROUPS], row: usize, x: &Rounded) -> Float<M> {
        let mut value = m.tile().splat(0.0);
        for (group, (sums, &scales)) in sums.iter().zip(scales).enumerate() {
            value = G::add(m.tile(), scales, m.int(&sums.0[row]), x, group, value);
        }
        value
    }
    #[inline(always)]
    fn sums(all: &mut [Sums; 32]) -> [&mut [Sums; GROUPS]; 2] {
        pair(all)
    }
}

//! Products of a tile with many rows of activations, for machines that multiply whole matrices of bytes.
//!
//! Such an instruction adds up many inputs at once, so that scales which are integers have to be in the codes before: a code times its
//! scale has more bits than a byte, and is taken in two bytes, whose sums are put together at the end. That is the same integer, so
//! that what follows, written once for all kernels (`scales.rs`), gives the same bits.

use super::TileProduct;
use super::activations::Rounded;
use super::kernels::Ahead;
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
    *rows = super::Rows { exactly: many - 1, many, panel: 48..512, step: MATRIX_ROWS, bytes: BLOCK + 64 };
}

/// One tile against any number of rows of activations: adds to `out[r]` the sixteen sums of row r.
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

/// A block of a tile, ready to be multiplied. (A trait, as closures are not inlined where they have to be.)
trait Block<M: Matrices> {
    /// What rows of activations give.
    type Sums;
    /// Multiplies as many rows as are multiplied at once, a quarter after the other.
    fn multiply<const QUARTER: usize>(&self, x: &[Rounded], sums: &mut Self::Sums);
    /// The value of one of them.
    fn value(&self, sums: &Self::Sums, row: usize, x: &Rounded) -> Float<M>;

    /// All quarters, while the second half of what comes next is asked for: of a block of so many bytes.
    #[inline(always)]
    fn multiply_all(&self, t: M::Tile, x: &[Rounded], sums: &mut Self::Sums, ahead: Ahead, bytes: usize) {
        self.multiply::<0>(x, sums);
        ahead.ask(t, bytes, 4, 0, 1);
        self.multiply::<1>(x, sums);
        ahead.ask(t, bytes, 5, 0, 1);
        self.multiply::<2>(x, sums);
        ahead.ask(t, bytes, 6, 0, 1);
        self.multiply::<3>(x, sums);
        ahead.ask(t, bytes, 7, 0, 1);
    }
    /// Adds the values of a quarter of sixteen rows.
    #[inline(always)]
    fn add<const QUARTER: usize>(
        &self,
        t: M::Tile,
        sums: &Self::Sums,
        x: &[Rounded; MATRIX_ROWS],
        out: &mut [[f32; TILE_ROWS]; MATRIX_ROWS],
    ) {
        for r in 4 * QUARTER..4 * QUARTER + 4 {
            add_value(t, &x[r], self.value(sums, r, &x[r]), &mut out[r], 0);
        }
    }
}

/// Multiplies as many rows at once as there are, up to sixteen, and ends with the value of each: the last ones may be multiplied again, so
/// that all matrices are of one size. What waits for sums does so while the next are made.
#[inline(always)]
fn each_row<M: Matrices, B: Block<M>>(
    m: M,
    block: &B,
    xs: &[Rounded],
    outs: &mut [[f32; TILE_ROWS]],
    (ahead, bytes): (Ahead, usize),
    [mut sums, mut next]: [&mut B::Sums; 2],
) {
    let t = m.tile();
    let rows = xs.len();
    let last = rows.saturating_sub(MATRIX_ROWS);
    block.multiply_all(t, &xs[..rows.min(MATRIX_ROWS)], sums, ahead, bytes);
    let (wholes, rest) = outs.as_chunks_mut::<MATRIX_ROWS>();
    for (n, (x, out)) in xs.as_chunks::<MATRIX_ROWS>().0.iter().zip(wholes).enumerate() {
        let behind = (n + 1) * MATRIX_ROWS;
        if behind < rows {
            let behind = &xs[behind.min(last)..][..MATRIX_ROWS];
            block.multiply::<0>(behind, next);
            block.add::<0>(t, sums, x, out);
            block.multiply::<1>(behind, next);
            block.add::<1>(t, sums, x, out);
            block.multiply::<2>(behind, next);
            block.add::<2>(t, sums, x, out);
            block.multiply::<3>(behind, next);
            block.add::<3>(t, sums, x, out);
        } else {
            for r in 0..MATRIX_ROWS {
                add_value(t, &x[r], block.value(sums, r, &x[r]), &mut out[r], 0);
            }
        }
        std::mem::swap(&mut sums, &mut next);
    }
    let first = rows - rest.len();
    for (i, (x, out)) in xs[first..].iter().zip(rest).enumerate() {
        add_value(t, x, block.value(sums, first + i - first.min(last), x), out, 0);
    }
}

/// Twice N of the sums.
#[inline(always)]
fn pair<const N: usize>(sums: &mut [Sums; 32]) -> (&mut [Sums; N], &mut [Sums; N]) {
    const { assert!(N <= 16) };
    match sums.as_chunks_mut::<N>().0 {
        [first, second, ..] => (first, second),
        _ => unreachable!("two of 16 are 32"),
    }
}

/// A block whose codes are multiplied by their scales: two bytes, `S` of them with a sign, of which the second is worth 2^SHIFT.
struct Scaled<'a, M: Matrices, S, const SHIFT: u32, const SIGNED: bool> {
    m: M,
    open: &'a M::Open,
    low: &'a Lines,
    high: &'a Lines,
    scales: S,
}

impl<M: Matrices, S: Scales<M::Tile>, const SHIFT: u32, const SIGNED: bool> Block<M>
    for Scaled<'_, M, S, SHIFT, SIGNED>
{
    type Sums = [Sums; 2];

    #[inline(always)]
    fn multiply<const QUARTER: usize>(&self, x: &[Rounded], sums: &mut [Sums; 2]) {
        self.open.multiply::<SIGNED, QUARTER>(x, self.low, self.high, sums);
    }
    #[inline(always)]
    fn value(&self, [low, high]: &[Sums; 2], row: usize, x: &Rounded) -> Float<M> {
        self.scales.value(self.m.tile(), self.m.joined::<SHIFT>(&low.0[row], &high.0[row]), x)
    }
}

/// A block of GROUPS groups of GROUP inputs.
struct Grouped<'a, M: Matrices, G, const GROUP: usize, const GROUPS: usize> {
    m: M,
    open: &'a M::Open,
    lines: &'a Lines,
    beside: [(Float<M>, Float<M>); GROUPS],
    group: PhantomData<G>,
}

impl<M: Matrices, G: Group, const GROUP: usize, const GROUPS: usize> Block<M> for Grouped<'_, M, G, GROUP, GROUPS> {
    type Sums = [Sums; GROUPS];

    #[inline(always)]
    fn multiply<const QUARTER: usize>(&self, x: &[Rounded], sums: &mut [Sums; GROUPS]) {
        self.open.multiply_groups::<GROUP, QUARTER>(x, self.lines, sums);
    }
    #[inline(always)]
    fn value(&self, sums: &[Sums; GROUPS], row: usize, x: &Rounded) -> Float<M> {
        let mut value = self.m.tile().splat(0.0);
        for (group, (sums, &beside)) in sums.iter().zip(&self.beside).enumerate() {
            value = G::add(self.m.tile(), beside, self.m.int(&sums.0[row]), x, group, value);
        }
        value
    }
}

impl<M: Matrices> Many<'_, '_, M> {
    /// Rows that are multiplied at once.
    #[inline(always)]
    fn size(&self) -> usize {
        self.product.rows.len().min(MATRIX_ROWS)
    }

    /// GROUPS groups of GROUP inputs make a block.
    #[inline(always)]
    fn groups<R: Read, G: Group, const GROUP: usize, const GROUPS: usize>(self) {
        let open = match GROUP {
            16 => self.m.open::<16>(self.size()),
            32 => self.m.open::<32>(self.size()),
            _ => self.m.open::<64>(self.size()),
        };
        let Self { m, product, out } = self;
        let t = m.tile();
        let mut scratch = Scratch::take();
        let Scratch { low, sums, .. } = &mut *scratch;
        let (sums, next) = pair::<GROUPS>(sums);
        for (number, block) in product.blocks.chunks_exact(G::HEADER + R::BYTES).enumerate() {
            let (header, area) = block.split_at(G::HEADER);
            let ahead = Ahead::of(product, block, 0);
            let mut beside = [(t.splat(0.0), t.splat(0.0)); GROUPS];
            for (group, beside) in beside.iter_mut().enumerate() {
                *beside = G::beside(t, product.kind.brain(), header, group, 0);
            }
            for s in 0..8 {
                let lines = m.lines(R::read(t, area, s, 0));
                for (i, line) in lines.into_iter().enumerate() {
                    m.put(line, &mut low.0[8 * s + i]);
                }
                ahead.ask(t, G::HEADER + R::BYTES, s / 2, s % 2, 2);
            }
            let block = Grouped::<M, G, GROUP, GROUPS> { m, open: &open, lines: low, beside, group: PhantomData };
            each_row(
                m,
                &block,
                &product.x.of_rows(number)[product.rows.clone()],
                out,
                (ahead, G::HEADER + R::BYTES),
                [sums, next],
            );
        }
        scratch.put_back();
    }
}

impl<M: Matrices> ByKind for Many<'_, '_, M> {
    #[inline(always)]
    fn k_quant<R: Read>(self) {
        let open = self.m.open::<64>(self.size());
        let Self { m, product, out } = self;
        let t = m.tile();
        let mut scratch = Scratch::take();
        let Scratch { low, high, sums } = &mut *scratch;
        let (sums, next) = pair::<2>(sums);
        for (number, block) in product.blocks.chunks_exact(K_HEADER + R::BYTES).enumerate() {
            let (header, area) = block.split_at(K_HEADER);
            let ahead = Ahead::of(product, block, 0);
            let scales = KScales::read(t, header, 0);
            for (s, &factor) in scales.factors.iter().enumerate() {
                let lines = m.lines(R::read(t, area, s, 0));
                for (i, line) in lines.into_iter().enumerate() {
                    let products = m.times(line, factor);
                    m.put(products[0], &mut low.0[8 * s + i]);
                    m.put(products[1], &mut high.0[8 * s + i]);
                }
                ahead.ask(t, K_HEADER + R::BYTES, s / 2, s % 2, 2);
            }
            let block = Scaled::<M, _, 3, false> { m, open: &open, low, high, scales };
            each_row(
                m,
                &block,
                &product.x.of_rows(number)[product.rows.clone()],
                out,
                (ahead, K_HEADER + R::BYTES),
                [sums, next],
            );
        }
        scratch.put_back();
    }

    #[inline(always)]
    fn sixteenths<R: Read, const MINS: bool>(self) {
        let open = self.m.open::<64>(self.size());
        let Self { m, product, out } = self;
        let t = m.tile();
        let mut scratch = Scratch::take();
        let Scratch { low, high, sums } = &mut *scratch;
        let (sums, next) = pair::<2>(sums);
        for (number, block) in product.blocks.chunks_exact(SIXTEENTHS + R::BYTES).enumerate() {
            let (header, area) = block.split_at(SIXTEENTHS);
            let ahead = Ahead::of(product, block, 0);
            let scales = SixteenthScales::<_, MINS>::read(t, header, 0);
            for (s, factors) in scales.factors.iter().enumerate() {
                let lines = m.lines(R::read(t, area, s, 0));
                for (i, line) in lines.into_iter().enumerate() {
                    let products = m.times_centred(line, factors[i / 4]);
                    m.put(products[0], &mut low.0[8 * s + i]);
                    m.put(products[1], &mut high.0[8 * s + i]);
                }
                ahead.ask(t, SIXTEENTHS + R::BYTES, s / 2, s % 2, 2);
            }
            let block = Scaled::<M, _, 8, true> { m, open: &open, low, high, scales };
            each_row(
                m,
                &block,
                &product.x.of_rows(number)[product.rows.clone()],
                out,
                (ahead, SIXTEENTHS + R::BYTES),
                [sums, next],
            );
        }
        scratch.put_back();
    }

    #[inline(always)]
    fn grouped<R: Read, G: Group>(self) {
        match G::GROUP {
            16 => self.groups::<R, G, 16, 16>(),
            32 => self.groups::<R, G, 32, 8>(),
            64 => self.groups::<R, G, 64, 4>(),
            _ => self.groups::<R, G, 128, 2>(),
        }
    }
}

//! Products with a dense weight matrix: `out[r][o] = sum over k of x[r][k] weight[o][k]`.
//!
//! One accumulation order per element, whatever the number of rows, the block shape or the partition. There are sixteen
//! accumulators, the tail is zero-padded, every product is added with one rounding to nearest (a fused multiply-add), and in the
//! end the sixteen are summed by halves.
//!
//! With activations in f32 ([`matmul`]), input k goes to accumulator k mod 16, ascending; weights are widened, exactly.
//!
//! With activations in bf16 ([`matmul_bf16`]), which bf16 weights meet only, inputs go in pairs: pair j, which is inputs 2j and
//! 2j + 1, to accumulator j mod 16, ascending, and of a pair the second input first. That is what `vdpbf16ps` does; every other
//! instruction set does it by two fused multiply-adds. That instruction takes numbers below 2^-126 for zero, and
//! others keep them; so that none arises, [`round_bf16`] and [`settle_bf16`] make zeros of what is below 2^-56 in
//! activations and in weights: then every product, and so every sum, is zero or a multiple of 2^-126. (The dot
//! product of Arm, `bfdot`, rounds by other rules, and is not used.)

use crate::dispatch::Kernels;
use crate::isa::finds_streams;
use crate::lanes::{Element, LANES, Lanes};
use crate::pool::{Pool, Shared};
use std::marker::PhantomData;
use std::ops::Range;

/// A dense weight matrix (outs, k), row-major.
#[derive(Clone, Copy, Debug)]
pub enum Dense<'a> {
    /// f32 elements.
    F32(&'a [f32]),
    /// f16 elements as bits.
    F16(&'a [u16]),
    /// bf16 elements as bits.
    BF16(&'a [u16]),
}

impl Dense<'_> {
    fn len(&self) -> usize {
        match self {
            Dense::F32(w) => w.len(),
            Dense::F16(w) | Dense::BF16(w) => w.len(),
        }
    }
}

/// Rows of the weight that a thread takes at once: enough work to be worth claiming, small enough to share out.
const TILE: usize = 16;
/// Multiplications below which waking the other threads costs more than it saves.
const WORTH_SHARING: usize = 1 << 16;

/// `x` (rows, k) times `weight` (outs, k) transposed, into `out` (rows, outs).
///
/// # Panics
/// If the lengths do not belong together.
pub fn matmul(kernels: &Kernels, pool: &Pool, x: &[f32], weight: Dense<'_>, k: usize, out: &mut [f32]) {
    share(pool, [x.len(), weight.len(), k], out, |part, out| match weight {
        Dense::F32(w) => kernels.matmul_f32(x, &w[part], k, out),
        Dense::F16(w) => kernels.matmul_f16(x, &w[part], k, out),
        Dense::BF16(w) => kernels.matmul_bf16(x, &w[part], k, out),
    });
}

/// The same of bf16 with bf16, as bits; `x` is from [`round_bf16`], and `weight` went through [`settle_bf16`].
///
/// # Panics
/// If the lengths do not belong together.
pub fn matmul_bf16(kernels: &Kernels, pool: &Pool, x: &[u16], weight: &[u16], k: usize, out: &mut [f32]) {
    share(pool, [x.len(), weight.len(), k], out, |part, out| kernels.matmul_pairs(x, &weight[part], k, out));
}

/// Rounds activations to the nearest bf16, ties to even, and to zero below 2^-56. What is not finite stays so.
pub fn round_bf16(x: &[f32]) -> Vec<u16> {
    let round = |x: f32| {
        let bits = x.to_bits();
        let nearest = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
        settle_bf16(if x.is_nan() { 0x7fc0 } else { nearest })
    };
    x.iter().map(|&x| round(x)).collect()
}

/// A bf16 as products of bf16 take it: zero below 2^-56.
#[inline(always)]
pub fn settle_bf16(bits: u16) -> u16 {
    const SMALLEST: u16 = (127 - 56) << 7;
    if bits & 0x7fff < SMALLEST { 0 } else { bits }
}

/// Shares the rows of a weight out. `task` takes a range of its elements and the columns of the output that they give.
fn share(
    pool: &Pool,
    [inputs, weights, k]: [usize; 3],
    out: &mut [f32],
    task: impl Fn(Range<usize>, &mut Columns<'_>) + Sync,
) {
    assert!(k > 0 && inputs.is_multiple_of(k) && weights.is_multiple_of(k), "operands of {k} inputs");
    let (rows, outs) = (inputs / k, weights / k);
    assert_eq!(out.len(), rows * outs, "output of {rows} rows of {outs}");
    let out = Shared::new(out);
    let task = |tile: usize| {
        let range = tile * TILE..outs.min((tile + 1) * TILE);
        let part = range.start * k..range.end * k;
        // SAFETY: tiles are disjoint ranges of columns, and each is given to one thread once.
        task(part, &mut unsafe { Columns::new(&out, outs, range) });
    };
    let tiles = outs.div_ceil(TILE);
    if rows * outs * k < WORTH_SHARING { (0..tiles).for_each(task) } else { pool.run(tiles, &task) }
}

/// Some columns of a row-major matrix that is being written.
pub(crate) struct Columns<'a> {
    matrix: &'a Shared<'a, f32>,
    /// Elements of a row.
    cols: usize,
    range: Range<usize>,
}

impl<'a> Columns<'a> {
    /// # Safety
    /// Nobody else uses those columns meanwhile.
    unsafe fn new(matrix: &'a Shared<'a, f32>, cols: usize, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= cols);
        Self { matrix, cols, range }
    }

    /// What of these columns is in a row.
    #[inline(always)]
    fn row(&mut self, row: usize) -> &mut [f32] {
        let start = row * self.cols;
        // SAFETY: these columns are nobody else's, and the result borrows them from here.
        unsafe { self.matrix.slice(start + self.range.start..start + self.range.end) }
    }
}

/// Elements that are read at once.
pub trait Chunk: Copy {
    /// One of them.
    type Element;
    /// Whole chunks, and what is left.
    fn split(elements: &[Self::Element]) -> (&[Self], &[Self::Element]);
    /// Fewer elements than a chunk has, and zeros.
    fn padded(elements: &[Self::Element]) -> Self;
}

impl<T: Copy + Default, const N: usize> Chunk for [T; N] {
    type Element = T;
    #[inline(always)]
    fn split(elements: &[T]) -> (&[Self], &[T]) {
        elements.as_chunks()
    }
    #[inline(always)]
    fn padded(elements: &[T]) -> Self {
        let mut padded = [T::default(); N];
        padded[..elements.len()].copy_from_slice(elements);
        padded
    }
}

/// How chunks of activations and of weights are multiplied into sixteen accumulators.
pub trait Dot: Copy {
    /// A chunk of activations.
    type X: Chunk;
    /// As many weights.
    type W: Chunk;
    /// A chunk that was read.
    type Operand: Copy;
    /// The accumulators.
    type Sum: Copy;
    /// As of [`Lanes`].
    const ACCUMULATORS: usize;
    /// Whether one row of weights, whose products wait for each other, is multiplied as fast as memory sends it.
    const KEEPS_UP: bool = false;

    /// Zeros.
    fn zero(self) -> Self::Sum;
    /// Reads activations.
    fn load_x(self, x: &Self::X) -> Self::Operand;
    /// Reads weights.
    fn load_w(self, w: &Self::W) -> Self::Operand;
    /// Adds the products.
    fn dot(self, x: Self::Operand, w: Self::Operand, sum: Self::Sum) -> Self::Sum;
    /// The sums of each sixteen by halves.
    fn sums(self, sums: [Self::Sum; GROUP]) -> [f32; GROUP];
    /// As of [`Lanes`].
    fn prefetch(self, at: *const u8);
}

/// f32 activations and weights that are widened.
struct Wide<L, E>(L, PhantomData<E>);

impl<L: Copy, E> Clone for Wide<L, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L: Copy, E> Copy for Wide<L, E> {}

impl<L: Lanes, E: Element> Dot for Wide<L, E> {
    type X = [f32; LANES];
    type W = [E::Bits; LANES];
    type Operand = L::V;
    type Sum = L::V;
    const ACCUMULATORS: usize = L::ACCUMULATORS;

    #[inline(always)]
    fn zero(self) -> L::V {
        self.0.splat(0.0)
    }
    #[inline(always)]
    fn load_x(self, x: &Self::X) -> L::V {
        self.0.load(x)
    }
    #[inline(always)]
    fn load_w(self, w: &Self::W) -> L::V {
        E::load(self.0, w)
    }
    #[inline(always)]
    fn dot(self, x: L::V, w: L::V, sum: L::V) -> L::V {
        self.0.fma(x, w, sum)
    }
    #[inline(always)]
    fn sums(self, sums: [L::V; GROUP]) -> [f32; GROUP] {
        self.0.sums(sums)
    }
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        self.0.prefetch(at);
    }
}

/// Pairs of bf16, by two fused multiply-adds.
#[derive(Clone, Copy)]
struct Pairs<L>(L);

impl<L: Lanes> Dot for Pairs<L> {
    type X = [u16; 2 * LANES];
    type W = [u16; 2 * LANES];
    type Operand = [L::V; 2];
    type Sum = L::V;
    const ACCUMULATORS: usize = L::ACCUMULATORS;

    #[inline(always)]
    fn zero(self) -> L::V {
        self.0.splat(0.0)
    }
    #[inline(always)]
    fn load_x(self, x: &Self::X) -> [L::V; 2] {
        self.0.load_bf16_pairs(x)
    }
    #[inline(always)]
    fn load_w(self, w: &Self::W) -> [L::V; 2] {
        self.0.load_bf16_pairs(w)
    }
    #[inline(always)]
    fn dot(self, x: [L::V; 2], w: [L::V; 2], sum: L::V) -> L::V {
        self.0.fma(x[0], w[0], self.0.fma(x[1], w[1], sum))
    }
    #[inline(always)]
    fn sums(self, sums: [L::V; GROUP]) -> [f32; GROUP] {
        self.0.sums(sums)
    }
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        self.0.prefetch(at);
    }
}

/// A tile of f32 activations and weights that are widened: row r of `out` takes row r's products with every row of
/// `weight`.
#[inline(always)]
pub(crate) fn wide<L: Lanes, E: Element>(l: L, x: &[f32], weight: &[E::Bits], k: usize, out: &mut Columns<'_>) {
    tile(Wide(l, PhantomData::<E>), x, weight, k, out);
}

/// The same of bf16 with bf16.
#[inline(always)]
pub(crate) fn pairs<L: Lanes>(l: L, x: &[u16], weight: &[u16], k: usize, out: &mut Columns<'_>) {
    tile(Pairs(l), x, weight, k, out);
}

type Elements<C> = [<C as Chunk>::Element];

/// Rows of a weight that are multiplied side by side.
pub(crate) const GROUP: usize = 4;
/// Rows of x that pass by a group at once: as many as the widest vectors have registers for, with room left for adding them
/// up.
const ROWS: usize = 5;

#[inline(always)]
pub(crate) fn tile<D: Dot>(d: D, x: &Elements<D::X>, weight: &Elements<D::W>, k: usize, out: &mut Columns<'_>) {
    // All about as high.
    let count = x.len() / k;
    let blocks = count.div_ceil(ROWS);
    for block in 0..blocks {
        let (first, end) = (block * count / blocks, (block + 1) * count / blocks);
        let x = &x[first * k..end * k];
        match end - first {
            1 => rows::<D, 1>(d, x, weight, k, first, out),
            2 => rows::<D, 2>(d, x, weight, k, first, out),
            3 => rows::<D, 3>(d, x, weight, k, first, out),
            4 => rows::<D, 4>(d, x, weight, k, first, out),
            _ => rows::<D, ROWS>(d, x, weight, k, first, out),
        }
    }
}

/// R rows of x, which are row `first` of the output and following.
#[inline(always)]
fn rows<D: Dot, const R: usize>(
    d: D,
    x: &Elements<D::X>,
    weight: &Elements<D::W>,
    k: usize,
    first: usize,
    out: &mut Columns<'_>,
) {
    let mut xs: [Split<'_, D::X>; R] = [D::X::split(x); R];
    for (r, row) in xs.iter_mut().enumerate() {
        *row = D::X::split(&x[r * k..(r + 1) * k]);
    }
    for (number, w) in weight.chunks(GROUP * k).enumerate() {
        // Where a group is not full, its last row is multiplied again.
        let count = w.len() / k;
        let mut ws: [Split<'_, D::W>; GROUP] = [D::W::split(w); GROUP];
        for (i, row) in ws.iter_mut().enumerate() {
            *row = D::W::split(&w[i.min(count - 1) * k..][..k]);
        }
        let sums = group(d, &xs, &ws, size_of_val(w) / count);
        for (r, sums) in sums.iter().enumerate() {
            let out = &mut out.row(first + r)[GROUP * number..];
            match out.first_chunk_mut() {
                Some(out) => *out = *sums,
                None => out.copy_from_slice(&sums[..count]),
            }
        }
    }
}

/// A row: its whole chunks, and what is left.
type Split<'a, C> = (&'a [C], &'a Elements<C>);

/// Rows of x times a group, a row of which has so many bytes.
#[inline(always)]
fn group<D: Dot, const R: usize>(
    d: D,
    xs: &[Split<'_, D::X>; R],
    ws: &[Split<'_, D::W>; GROUP],
    bytes: usize,
) -> [[f32; GROUP]; R] {
    let mut sums = [[0.0; GROUP]; R];
    // The group behind this one.
    let next = Some(GROUP * bytes);
    if D::ACCUMULATORS < 16 && R > 1 {
        for r in (0..R - 1).step_by(2) {
            for o in (0..GROUP).step_by(2) {
                let [[a, b], [c, e]] = block::<D, R, 2, 2>(d, xs, ws, (r, o), next.filter(|_| r == 0));
                let [a, b, c, e] = d.sums([a, b, c, e]);
                [sums[r][o], sums[r][o + 1], sums[r + 1][o], sums[r + 1][o + 1]] = [a, b, c, e];
            }
        }
        if R % 2 == 1 {
            sums[R - 1] = d.sums(block::<D, R, 1, GROUP>(d, xs, ws, (R - 1, 0), None)[0]);
        }
    } else if D::KEEPS_UP && R == 1 && finds_streams() {
        // One stream, which such a machine finds.
        let mut acc = [d.zero(); GROUP];
        for (o, acc) in acc.iter_mut().enumerate() {
            *acc = block::<D, R, 1, 1>(d, xs, ws, (0, o), None)[0][0];
        }
        sums[0] = d.sums(acc);
    } else {
        let acc = block::<D, R, R, GROUP>(d, xs, ws, (0, 0), next);
        for r in 0..R {
            sums[r] = d.sums(acc[r]);
        }
    }
    sums
}

/// B rows of x times O rows of a group, from these on. What lies `ahead` bytes behind the group's is asked for.
#[inline(always)]
fn block<D: Dot, const R: usize, const B: usize, const O: usize>(
    d: D,
    xs: &[Split<'_, D::X>; R],
    ws: &[Split<'_, D::W>; GROUP],
    (r, o): (usize, usize),
    ahead: Option<usize>,
) -> [[D::Sum; O]; B] {
    let (xs, ws) = (&xs[r..r + B], &ws[o..o + O]);
    let chunks = ws[0].0.len();
    let mut x: [&[D::X]; B] = [&[]; B];
    for b in 0..B {
        x[b] = &xs[b].0[..chunks];
    }
    let mut w: [&[D::W]; O] = [&[]; O];
    for o in 0..O {
        w[o] = &ws[o].0[..chunks];
    }
    let mut acc = [[d.zero(); O]; B];
    let mut weights = [d.load_w(&D::W::padded(&[])); O];
    for c in 0..chunks {
        for o in 0..O {
            if let Some(ahead) = ahead {
                d.prefetch((&raw const w[o][c]).cast::<u8>().wrapping_add(ahead));
            }
            weights[o] = d.load_w(&w[o][c]);
        }
        for b in 0..B {
            let x = d.load_x(&x[b][c]);
            for o in 0..O {
                acc[b][o] = d.dot(x, weights[o], acc[b][o]);
            }
        }
    }
    if !ws[0].1.is_empty() {
        for b in 0..B {
            let x = d.load_x(&D::X::padded(xs[b].1));
            for o in 0..O {
                acc[b][o] = d.dot(x, d.load_w(&D::W::padded(ws[o].1)), acc[b][o]);
            }
        }
    }
    acc
}

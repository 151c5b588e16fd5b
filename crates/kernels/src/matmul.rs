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
const WORTH_SHARING: usize = 1 << 17;

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

/// Shares the rows of a weight out. `task` takes a range of its elements and, of each row of the output, what they give.
fn share(
    pool: &Pool,
    [inputs, weights, k]: [usize; 3],
    out: &mut [f32],
    task: impl Fn(Range<usize>, &mut [&mut [f32]]) + Sync,
) {
    assert!(k > 0 && inputs.is_multiple_of(k) && weights.is_multiple_of(k), "operands of {k} inputs");
    let (rows, outs) = (inputs / k, weights / k);
    assert_eq!(out.len(), rows * outs, "output of {rows} rows of {outs}");
    let out = Shared::new(out);
    let task = |tile: usize| {
        let range = tile * TILE..outs.min((tile + 1) * TILE);
        // SAFETY: tiles are disjoint ranges of columns, and each is given to one thread once.
        let mut parts: Vec<&mut [f32]> =
            (0..rows).map(|row| unsafe { out.slice(row * outs + range.start..row * outs + range.end) }).collect();
        task(range.start * k..range.end * k, &mut parts);
    };
    let tiles = outs.div_ceil(TILE);
    if rows * outs * k < WORTH_SHARING { (0..tiles).for_each(task) } else { pool.run(tiles, &task) }
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
    /// The sum of the sixteen by halves.
    fn sum(self, sum: Self::Sum) -> f32;
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
    fn sum(self, sum: L::V) -> f32 {
        self.0.sum(sum)
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
    fn sum(self, sum: L::V) -> f32 {
        self.0.sum(sum)
    }
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        self.0.prefetch(at);
    }
}

/// A tile of f32 activations and weights that are widened: `out[r]` takes row r's products with every row of `weight`.
#[inline(always)]
pub(crate) fn wide<L: Lanes, E: Element>(l: L, x: &[f32], weight: &[E::Bits], k: usize, out: &mut [&mut [f32]]) {
    tile(Wide(l, PhantomData::<E>), x, weight, k, out);
}

/// The same of bf16 with bf16.
#[inline(always)]
pub(crate) fn pairs<L: Lanes>(l: L, x: &[u16], weight: &[u16], k: usize, out: &mut [&mut [f32]]) {
    tile(Pairs(l), x, weight, k, out);
}

type Elements<C> = [<C as Chunk>::Element];

/// Rows of a weight that are multiplied side by side.
const GROUP: usize = 4;
/// Rows of x that pass by a panel of a group: its weights are read from memory once for all of them.
const ROWS: usize = 8;
/// Chunks of a panel: few enough for weights and activations to stay in the nearest cache.
const PANEL: usize = 32;

#[inline(always)]
pub(crate) fn tile<D: Dot>(d: D, x: &Elements<D::X>, weight: &Elements<D::W>, k: usize, out: &mut [&mut [f32]]) {
    for (out, x) in out.chunks_mut(ROWS).zip(x.chunks(ROWS * k)) {
        for (number, w) in weight.chunks(GROUP * k).enumerate() {
            // Where a group is not full, its last row is multiplied again.
            let (count, mut ws) = (w.len() / k, [w; GROUP]);
            for (i, row) in ws.iter_mut().enumerate() {
                *row = &w[i.min(count - 1) * k..][..k];
            }
            let sums = group(d, x, ws, k);
            for (out, sums) in out.iter_mut().zip(&sums) {
                out[GROUP * number..][..count].copy_from_slice(&sums[..count]);
            }
        }
    }
}

/// Up to [`ROWS`] rows of x times a group.
#[inline(always)]
fn group<D: Dot>(d: D, x: &Elements<D::X>, w: [&Elements<D::W>; GROUP], k: usize) -> [[f32; GROUP]; ROWS] {
    let rows = x.len() / k;
    let mut acc = [[d.zero(); GROUP]; ROWS];
    let (ws, w_tails) = (w.map(|w| D::W::split(w).0), w.map(|w| D::W::split(w).1));
    let chunks = ws[0].len();
    // Rows of which each vector is used once by a block gain nothing from panels.
    let step = if rows <= GROUP { chunks.max(1) } else { PANEL };
    for first in (0..chunks).step_by(step) {
        let panel = first..chunks.min(first + step);
        let ws = ws.map(|w| &w[panel.clone()]);
        let mut r = 0;
        while r < rows {
            let (x, acc) = (&x[r * k..], &mut acc[r..]);
            // The group behind this one, which is asked for once.
            let ahead = if r == 0 { GROUP * size_of_val(w[0]) } else { 0 };
            r += match rows - r {
                // One stream, which such a machine finds.
                1 if D::KEEPS_UP && rows == 1 && finds_streams() => block::<D, 1, 1>(d, x, k, first, ws, 0, acc),
                1 => block::<D, 1, GROUP>(d, x, k, first, ws, ahead, acc),
                _ if D::ACCUMULATORS < 16 => block::<D, 2, 2>(d, x, k, first, ws, ahead, acc),
                2 => block::<D, 2, GROUP>(d, x, k, first, ws, ahead, acc),
                3 => block::<D, 3, GROUP>(d, x, k, first, ws, ahead, acc),
                4 => block::<D, 4, GROUP>(d, x, k, first, ws, ahead, acc),
                5 => block::<D, 5, 2>(d, x, k, first, ws, ahead, acc),
                6 => block::<D, 6, 2>(d, x, k, first, ws, ahead, acc),
                7 => block::<D, 7, 2>(d, x, k, first, ws, ahead, acc),
                _ => block::<D, 8, 2>(d, x, k, first, ws, ahead, acc),
            };
        }
    }
    let mut sums = [[0.0; GROUP]; ROWS];
    for r in 0..rows {
        for o in 0..GROUP {
            if !w_tails[o].is_empty() {
                let x = D::X::padded(D::X::split(&x[r * k..(r + 1) * k]).1);
                acc[r][o] = d.dot(d.load_x(&x), d.load_w(&D::W::padded(w_tails[o])), acc[r][o]);
            }
            sums[r][o] = d.sum(acc[r][o]);
        }
    }
    sums
}

/// The first R rows of x, from chunk `first` on, times a panel of a group, O rows of it at a time; returns R. What lies
/// `ahead` bytes behind the panel is asked for.
#[inline(always)]
fn block<D: Dot, const R: usize, const O: usize>(
    d: D,
    x: &Elements<D::X>,
    k: usize,
    first: usize,
    w: [&[D::W]; GROUP],
    ahead: usize,
    sums: &mut [[D::Sum; GROUP]],
) -> usize {
    let chunks = w[0].len();
    let mut xs: [&[D::X]; R] = [&[]; R];
    for (r, row) in xs.iter_mut().enumerate() {
        *row = &D::X::split(&x[r * k..(r + 1) * k]).0[first..first + chunks];
    }
    for part in (0..GROUP).step_by(O) {
        let mut ws: [&[D::W]; O] = [&[]; O];
        let mut acc = [[d.zero(); O]; R];
        for o in 0..O {
            ws[o] = &w[part + o][..chunks];
            for r in 0..R {
                acc[r][o] = sums[r][part + o];
            }
        }
        let mut w = [d.load_w(&D::W::padded(&[])); O];
        for c in 0..chunks {
            for o in 0..O {
                d.prefetch((&raw const ws[o][c]).cast::<u8>().wrapping_add(ahead));
                w[o] = d.load_w(&ws[o][c]);
            }
            for r in 0..R {
                let x = d.load_x(&xs[r][c]);
                for o in 0..O {
                    acc[r][o] = d.dot(x, w[o], acc[r][o]);
                }
            }
        }
        for o in 0..O {
            for r in 0..R {
                sums[r][part + o] = acc[r][o];
            }
        }
    }
    R
}

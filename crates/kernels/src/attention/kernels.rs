//! The kernels of attention, over lanes. `mod.rs` has the order in which they are called.

use super::CHUNK;
use crate::lanes::{Element, LANES, Lanes};
use crate::vmath;
use std::array::from_fn;
use std::ops::Range;

/// Widens whole vectors.
#[inline(always)]
pub(crate) fn widen<L: Lanes, E: Element>(l: L, from: &[E::Bits], to: &mut [f32]) {
    let (from, to) = (from.as_chunks::<LANES>().0, to.as_chunks_mut::<LANES>().0);
    for (from, to) in from.iter().zip(to) {
        l.store(E::load(l, from), to);
    }
}

/// Some blocks in 8 bits.
pub(crate) struct Rounded<'a> {
    pub codes: &'a [i8],
    pub scales: &'a [f32], // (blocks * 16)
    /// Whether the scale of a position belongs to a lane of its block's vectors, or to a run of vectors.
    pub by_lane: bool,
}

/// Multiplies codes with the scale of their position.
#[inline(always)]
pub(crate) fn widen_codes<L: Lanes>(l: L, a: &Rounded<'_>, to: &mut [f32]) {
    let (codes, to) = (a.codes.as_chunks::<LANES>().0, to.as_chunks_mut::<LANES>().0);
    if a.by_lane {
        let block = codes.len() * LANES / a.scales.len();
        let blocks = codes.chunks_exact(block).zip(to.chunks_exact_mut(block));
        for ((codes, to), scales) in blocks.zip(a.scales.as_chunks::<LANES>().0) {
            let scale = l.load(scales);
            for (codes, to) in codes.iter().zip(to) {
                l.store(l.mul(l.load_i8(codes), scale), to);
            }
        }
    } else {
        let row = codes.len() / a.scales.len();
        for ((codes, to), &scale) in codes.chunks_exact(row).zip(to.chunks_exact_mut(row)).zip(a.scales) {
            for (codes, to) in codes.iter().zip(to) {
                l.store(l.mul(l.load_i8(codes), l.splat(scale)), to);
            }
        }
    }
}

/// Heads and vectors that are multiplied with each other at a time: as many accumulators as the registers hold.
const fn shape<L: Lanes>() -> (usize, usize) {
    if L::ACCUMULATORS >= 16 { (8, 2) } else { (4, 1) }
}

/// Memory that will be read next. Kernels ask for it bit by bit as they go: what is stored is read in bursts, between which
/// the memory would be idle.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    at: *const u8,
    len: usize,
}

impl Ahead {
    pub fn of<T>(next: &[T]) -> Self {
        Self { at: next.as_ptr().cast(), len: size_of_val(next) }
    }

    /// The same, to be asked for in so many steps.
    fn steps(self, count: usize) -> Steps {
        Steps { at: self.at, step: self.len / count.max(1) }
    }
}

/// Where the next step asks, and how far it is to the one after.
#[derive(Clone, Copy)]
struct Steps {
    at: *const u8,
    step: usize,
}

impl Steps {
    /// Every kernel calls this once for each vector that it loads, or pair of vectors.
    #[inline(always)]
    fn next<L: Lanes>(&mut self, l: L) {
        l.prefetch(self.at);
        self.at = self.at.wrapping_add(self.step);
    }
}

/// One row's query heads and some blocks of keys.
pub(crate) struct Scores<'a> {
    pub q: &'a [f32],    // (group, head_dim)
    pub keys: &'a [f32], // (blocks, head_dim, 16)
    pub head_dim: usize,
    pub scale: f32,
    /// The first block's index in the chunk.
    pub block: usize,
    pub ahead: Ahead,
}

/// Scores of every head and position of the blocks, into `weights` (group, CHUNK).
#[inline(always)]
pub(crate) fn scores<L: Lanes>(l: L, a: &Scores<'_>, weights: &mut [f32]) {
    let weights = weights.as_chunks_mut::<CHUNK>().0;
    let (heads, vectors) = shape::<L>();
    let mut ahead = a.ahead.steps(weights.len().div_ceil(heads) * (a.keys.len() / LANES).div_ceil(vectors));
    let mut head = 0;
    while head < weights.len() {
        let rest = &mut weights[head..];
        head += match rest.len() {
            8.. if heads == 8 => scores_of::<L, 8>(l, a, head, &mut ahead, rest),
            4.. => scores_of::<L, 4>(l, a, head, &mut ahead, rest),
            _ => scores_of::<L, 1>(l, a, head, &mut ahead, rest),
        };
    }
}

#[inline(always)]
fn scores_of<L: Lanes, const H: usize>(
    l: L,
    a: &Scores<'_>,
    head: usize,
    ahead: &mut Steps,
    weights: &mut [[f32; CHUNK]],
) -> usize {
    let q = from_fn(|h| &a.q[(head + h) * a.head_dim..(head + h + 1) * a.head_dim]);
    let mut block = a.block;
    let (_, together) = shape::<L>();
    for keys in a.keys.as_chunks::<LANES>().0.chunks(together * a.head_dim) {
        if keys.len() > a.head_dim {
            let (first, second) = keys.split_at(a.head_dim);
            tile::<L, H, 2>(l, q, [first, second], a.scale, block, ahead, weights);
        } else {
            tile::<L, H, 1>(l, q, [keys], a.scale, block, ahead, weights);
        }
        block += together;
    }
    H
}

/// H heads times B blocks, into blocks `block` and following of the weights.
#[inline(always)]
fn tile<L: Lanes, const H: usize, const B: usize>(
    l: L,
    q: [&[f32]; H],
    keys: [&[[f32; LANES]]; B],
    scale: f32,
    block: usize,
    ahead: &mut Steps,
    weights: &mut [[f32; CHUNK]],
) {
    let head_dim = q[0].len();
    let mut acc = [[l.splat(0.0); B]; H];
    let mut next = *ahead;
    let whole = head_dim / LANES;
    for part in 0..whole {
        let q = q.map(|q| &q.as_chunks::<LANES>().0[part]);
        let keys = keys.map(|keys| &keys.as_chunks::<LANES>().0[part]);
        for d in 0..LANES {
            next.next(l);
            let keys: [L::V; B] = from_fn(|b| l.load(&keys[b][d]));
            for h in 0..H {
                let q = l.splat(q[h][d]);
                for b in 0..B {
                    acc[h][b] = l.fma(q, keys[b], acc[h][b]);
                }
            }
        }
    }
    for d in whole * LANES..head_dim {
        for h in 0..H {
            for b in 0..B {
                acc[h][b] = l.fma(l.splat(q[h][d]), l.load(&keys[b][d]), acc[h][b]);
            }
        }
    }
    *ahead = next;
    for (acc, weights) in acc.into_iter().zip(weights) {
        let blocks = weights.as_chunks_mut::<LANES>().0;
        for (b, acc) in acc.into_iter().enumerate() {
            l.store(l.mul(acc, l.splat(scale)), &mut blocks[block + b]);
        }
    }
}

/// Makes weights of the scores (group, CHUNK) at the positions `seen` of the chunk, and writes the max and the sum of each head's
/// record, the values being zero.
#[inline(always)]
pub(crate) fn soften<L: Lanes>(l: L, weights: &mut [f32], seen: Range<usize>, records: &mut [f32]) {
    let heads = weights.as_chunks_mut::<CHUNK>().0;
    let record_len = records.len() / heads.len();
    let blocks = seen.start / LANES..seen.end.div_ceil(LANES);
    for (weights, record) in heads.iter_mut().zip(records.chunks_exact_mut(record_len)) {
        // Only the first and the last block can hold positions that are not seen.
        weights[blocks.start * LANES..seen.start].fill(f32::NEG_INFINITY);
        weights[seen.end..blocks.end * LANES].fill(f32::NEG_INFINITY);
        let lanes = &mut weights.as_chunks_mut::<LANES>().0[blocks.clone()];
        let mut max = l.splat(f32::NEG_INFINITY);
        for lanes in lanes.iter() {
            max = l.max(max, l.load(lanes));
        }
        let max = l.max_lane(max);
        let mut sum = l.splat(0.0);
        for lanes in lanes {
            let weight = vmath::exp(l, l.sub(l.load(lanes), l.splat(max)));
            sum = l.add(sum, weight);
            l.store(weight, lanes);
        }
        let (values, rest) = record.split_at_mut(record_len - LANES);
        values.fill(0.0);
        rest[..2].copy_from_slice(&[max, l.sum(sum)]);
    }
}

/// One row's weights and some blocks of values.
pub(crate) struct Weigh<'a> {
    pub weights: &'a [f32], // (group, CHUNK)
    pub values: &'a [f32],  // (blocks, 16, stride)
    /// The first block's index in the chunk.
    pub block: usize,
    /// Positions of the chunk that the row sees.
    pub seen: Range<usize>,
    pub ahead: Ahead,
}

/// Adds the values of the blocks, times their weights, to each head's record.
#[inline(always)]
pub(crate) fn weigh<L: Lanes>(l: L, a: &Weigh<'_>, records: &mut [f32]) {
    let group = a.weights.len() / CHUNK;
    let (heads, vectors) = shape::<L>();
    let mut ahead = a.ahead.steps(group.div_ceil(heads) * (a.values.len() / LANES).div_ceil(vectors));
    let mut head = 0;
    while head < group {
        head += match group - head {
            8.. if heads == 8 => weigh_of::<L, 8>(l, a, head, &mut ahead, records),
            4.. => weigh_of::<L, 4>(l, a, head, &mut ahead, records),
            _ => weigh_of::<L, 1>(l, a, head, &mut ahead, records),
        };
    }
}

#[inline(always)]
fn weigh_of<L: Lanes, const H: usize>(
    l: L,
    a: &Weigh<'_>,
    head: usize,
    ahead: &mut Steps,
    records: &mut [f32],
) -> usize {
    let record_len = records.len() / (a.weights.len() / CHUNK);
    let parts = record_len / LANES - 1;
    let pairs = if shape::<L>().1 == 2 { parts / 2 } else { 0 };
    let mut heads = records[head * record_len..].chunks_exact_mut(record_len);
    let mut records: [&mut [[f32; LANES]]; H] =
        from_fn(|_| heads.next().map_or(&mut [][..], |record| record.as_chunks_mut::<LANES>().0));
    for pair in 0..pairs {
        columns::<L, H, 2>(l, a, head, 2 * pair, ahead, &mut records);
    }
    for part in 2 * pairs..parts {
        columns::<L, H, 1>(l, a, head, part, ahead, &mut records);
    }
    H
}

/// H heads times C vectors of columns, from `part` on.
#[inline(always)]
fn columns<L: Lanes, const H: usize, const C: usize>(
    l: L,
    a: &Weigh<'_>,
    head: usize,
    part: usize,
    ahead: &mut Steps,
    records: &mut [&mut [[f32; LANES]]; H],
) {
    let Some(weights) = a.weights.as_chunks::<CHUNK>().0[head..].first_chunk::<H>() else { return };
    let mut acc: [[L::V; C]; H] = from_fn(|h| from_fn(|c| l.load(&records[h][part + c])));
    let (values, parts) = (a.values.as_chunks::<LANES>().0, records[0].len() - 1);
    let mut next = *ahead;
    let first = a.block * LANES;
    let (start, end) = (a.seen.start.max(first), a.seen.end.min(first + values.len() / parts).min(CHUNK));
    let rows = values[(start - first) * parts..].chunks_exact(parts);
    for (p, row) in (start..end).zip(rows) {
        next.next(l);
        let values: [L::V; C] = from_fn(|c| l.load(&row[part..part + C][c]));
        for h in 0..H {
            let weight = l.splat(weights[h][p]);
            for c in 0..C {
                acc[h][c] = l.fma(weight, values[c], acc[h][c]);
            }
        }
    }
    *ahead = next;
    for h in 0..H {
        for c in 0..C {
            l.store(acc[h][c], &mut records[h][part + c]);
        }
    }
}

/// Folds the record of the next chunk, `later`, into that of earlier chunks.
#[inline(always)]
pub(crate) fn merge<L: Lanes>(l: L, merged: &mut [f32], later: &[f32]) {
    let (to, from) = (merged.as_chunks_mut::<LANES>().0, later.as_chunks::<LANES>().0);
    let (Some((to_sums, to)), Some((from_sums, from))) = (to.split_last_mut(), from.split_last()) else { return };
    let ([old_max, old_sum, ..], [new_max, new_sum, ..]) = (*to_sums, *from_sums);
    // The later second, so that a NaN stays; which maximum is taken does not matter otherwise.
    let max = if old_max > new_max { old_max } else { new_max };
    let old = vmath::exp(l, l.splat(old_max - max));
    let new = vmath::exp(l, l.splat(new_max - max));
    for (to, from) in to.iter_mut().zip(from) {
        l.store(l.fma(l.load(to), old, l.mul(l.load(from), new)), to);
    }
    l.store(l.fma(l.splat(old_sum), old, l.mul(l.splat(new_sum), new)), to_sums);
    // The sum stands in every lane now.
    to_sums[0] = max;
}

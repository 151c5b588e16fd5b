//! Attention over a cache of keys and values, in one written order.
//!
//! A row attends to a range of absolute positions. Positions are cut into chunks at multiples of [`CHUNK`]; for each chunk
//! (max, sum, weighted values) are computed from scratch, and the chunks are merged in ascending order. Inside a chunk:
//! a score is the sum over d, ascending, of q\[d\] k\[d\] by fused multiply-add; position p adds its weight to lane p mod 16 of
//! the sum, ascending; a value is weighed into its element by fused multiply-add, positions ascending. Nothing
//! depends on how many rows are computed together, on the ring a cache lives in, or on the threads: prefill, decode and
//! verification of a block give the same bits.
//!
//! Keys lie in blocks of sixteen positions, one lane each, so that a score needs no sum across lanes and a key that is read once
//! serves every query head of its group.

use crate::dispatch::Kernels;
use crate::lanes::{Element, LANES, Lanes};
use crate::pool::{Pool, Shared};
use crate::vmath;
use std::ops::Range;

/// Positions that are weighed together; chunk borders are absolute multiples of it.
pub const CHUNK: usize = 256;

/// How a cache lies in memory: per head, a ring of `slots` positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Key and value heads.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Positions that fit; a multiple of 16.
    pub slots: usize,
}

impl KvLayout {
    /// A layout for at least `positions` positions.
    pub fn new(heads: usize, head_dim: usize, positions: usize) -> Self {
        Self { heads, head_dim, slots: positions.max(1).next_multiple_of(LANES) }
    }

    /// Elements of the key buffer: (heads, slots / 16, head_dim, 16).
    pub fn key_len(&self) -> usize {
        self.heads * self.slots * self.head_dim
    }

    /// Elements of the value buffer: (heads, slots, head_dim rounded up to 16).
    pub fn value_len(&self) -> usize {
        self.heads * self.slots * self.value_stride()
    }

    fn value_stride(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }
}

/// Keys or values, in the type they are stored as.
#[derive(Clone, Copy, Debug)]
pub enum KvData<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// 16-bit floats, as bits.
    F16(&'a [u16]),
}

/// Rounds rows of keys (rows, heads * head_dim) to the type `E` and stores them from `position` on.
///
/// # Panics
/// If the lengths do not belong together.
pub fn store_keys<E: Element>(layout: KvLayout, keys: &mut [E::Bits], position: usize, k: &[f32]) {
    let KvLayout { heads, head_dim, slots } = layout;
    assert!(k.len().is_multiple_of(heads * head_dim) && keys.len() == layout.key_len());
    for (row, k) in k.chunks_exact(heads * head_dim).enumerate() {
        let slot = (position + row) % slots;
        for (head, k) in k.chunks_exact(head_dim).enumerate() {
            let block = head * slots * head_dim + (slot - slot % LANES) * head_dim;
            for (d, &x) in k.iter().enumerate() {
                keys[block + d * LANES + slot % LANES] = E::narrow(x);
            }
        }
    }
}

/// Rounds rows of values (rows, heads * head_dim) to the type `E` and stores them from `position` on.
///
/// # Panics
/// If the lengths do not belong together.
pub fn store_values<E: Element>(layout: KvLayout, values: &mut [E::Bits], position: usize, v: &[f32]) {
    let KvLayout { heads, head_dim, slots } = layout;
    assert!(v.len().is_multiple_of(heads * head_dim) && values.len() == layout.value_len());
    for (row, v) in v.chunks_exact(heads * head_dim).enumerate() {
        let slot = (position + row) % slots;
        for (head, v) in v.chunks_exact(head_dim).enumerate() {
            let start = (head * slots + slot) * layout.value_stride();
            for (to, &x) in values[start..start + head_dim].iter_mut().zip(v) {
                *to = E::narrow(x);
            }
        }
    }
}

/// What attention works on.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Queries (rows, q_heads * head_dim); query head h belongs to key head h / (q_heads / heads).
    pub q: &'a [f32],
    /// Query heads.
    pub q_heads: usize,
    /// How the cache lies in memory.
    pub layout: KvLayout,
    /// Keys, as [`KvLayout::key_len`] says.
    pub keys: KvData<'a>,
    /// Values, as [`KvLayout::value_len`] says.
    pub values: KvData<'a>,
    /// Multiplies every score.
    pub scale: f32,
    /// The positions that each row attends to: not empty, and still in the cache.
    pub visible: &'a [Range<usize>],
}

/// Attention of every row, into `out` (rows, q_heads * head_dim).
///
/// # Panics
/// If the shapes do not belong together, or a range is empty or larger than the cache.
pub fn attend(kernels: &Kernels, pool: &Pool, a: &Attention<'_>, out: &mut [f32]) {
    let KvLayout { heads, head_dim, slots } = a.layout;
    let width = a.q_heads * head_dim;
    let rows = a.visible.len();
    assert!(a.q.len() == rows * width && out.len() == rows * width && a.q_heads.is_multiple_of(heads));
    assert!(a.visible.iter().all(|r| !r.is_empty() && r.len() <= slots), "ranges within {slots} slots");
    let group = a.q_heads / heads;
    let out = Shared::new(out);
    // SAFETY: each (row, head) below is claimed by one thread once, and the parts do not overlap.
    let out_of = |row: usize, head: usize| unsafe {
        let start = row * width + head * group * head_dim;
        out.slice(start..start + group * head_dim)
    };
    let longest = a.visible.iter().map(|r| chunks(r).len()).max().unwrap_or(0);
    if rows * heads >= 4 * pool.threads() || longest < 2 || pool.threads() == 1 {
        pool.run(rows * heads, &|task| {
            let (row, head) = (task / heads, task % heads);
            let mut merged: Option<Partial> = None;
            let mut partial = Partial::new(group, a.layout);
            for chunk in chunks(&a.visible[row]) {
                chunk_of(kernels, a, row, head, chunk, &mut partial);
                match &mut merged {
                    None => merged = Some(partial.clone()),
                    Some(merged) => kernels.merge(merged, &partial),
                }
            }
            if let Some(merged) = merged {
                merged.finish(head_dim, out_of(row, head));
            }
        });
    } else {
        // Few rows, many chunks: threads share the chunks, and the merge follows in the same ascending order.
        let tasks: Vec<(usize, usize, usize)> = (0..rows)
            .flat_map(|row| (0..heads).flat_map(move |head| chunks(&a.visible[row]).map(move |c| (row, head, c))))
            .collect();
        let mut partials: Vec<Partial> = tasks.iter().map(|_| Partial::new(group, a.layout)).collect();
        let shared = Shared::new(&mut partials);
        pool.run(tasks.len(), &|task| {
            let (row, head, chunk) = tasks[task];
            // SAFETY: one element per task.
            let [partial] = (unsafe { shared.slice(task..task + 1) }) else { return };
            chunk_of(kernels, a, row, head, chunk, partial);
        });
        let mut at = 0;
        for row in 0..rows {
            for head in 0..heads {
                let count = chunks(&a.visible[row]).len();
                let (first, rest) = partials[at..at + count].split_at_mut(1);
                for partial in rest.iter() {
                    kernels.merge(&mut first[0], partial);
                }
                first[0].finish(head_dim, out_of(row, head));
                at += count;
            }
        }
    }
}

/// The chunks that a range of positions touches.
fn chunks(visible: &Range<usize>) -> Range<usize> {
    visible.start / CHUNK..visible.end.div_ceil(CHUNK)
}

fn chunk_of(kernels: &Kernels, a: &Attention<'_>, row: usize, head: usize, chunk: usize, partial: &mut Partial) {
    let KvLayout { head_dim, slots, .. } = a.layout;
    let group = a.q_heads / a.layout.heads;
    let start = (row * a.q_heads + head * group) * head_dim;
    let keys_at = head * slots * head_dim..(head + 1) * slots * head_dim;
    let stride = a.layout.value_stride();
    let values_at = head * slots * stride..(head + 1) * slots * stride;
    let visible = &a.visible[row];
    let range = visible.start.max(chunk * CHUNK)..visible.end.min((chunk + 1) * CHUNK);
    let q = &a.q[start..start + group * head_dim];
    let scale = a.scale;
    match (a.keys, a.values) {
        (KvData::F32(keys), KvData::F32(values)) => {
            let (keys, values) = (&keys[keys_at], &values[values_at]);
            kernels.attend_f32_f32(&ChunkOf { q, keys, values, head_dim, range, scale }, partial);
        }
        (KvData::F32(keys), KvData::F16(values)) => {
            let (keys, values) = (&keys[keys_at], &values[values_at]);
            kernels.attend_f32_f16(&ChunkOf { q, keys, values, head_dim, range, scale }, partial);
        }
        (KvData::F16(keys), KvData::F32(values)) => {
            let (keys, values) = (&keys[keys_at], &values[values_at]);
            kernels.attend_f16_f32(&ChunkOf { q, keys, values, head_dim, range, scale }, partial);
        }
        (KvData::F16(keys), KvData::F16(values)) => {
            let (keys, values) = (&keys[keys_at], &values[values_at]);
            kernels.attend_f16_f16(&ChunkOf { q, keys, values, head_dim, range, scale }, partial);
        }
    }
}

/// One group of query heads over the visible part of one chunk.
pub(crate) struct ChunkOf<'a, K, V> {
    q: &'a [f32],    // (group, head_dim)
    keys: &'a [K],   // (slots / 16, head_dim, 16)
    values: &'a [V], // (slots, stride)
    head_dim: usize,
    range: Range<usize>, // absolute positions inside one chunk
    scale: f32,
}

/// Attention over a part of the positions: weights relative to `max`, their sum, and the values weighed by them.
#[derive(Clone, Debug)]
pub(crate) struct Partial {
    max: Vec<f32>,    // (group)
    sum: Vec<f32>,    // (group)
    values: Vec<f32>, // (group, stride)
}

impl Partial {
    fn new(group: usize, layout: KvLayout) -> Self {
        Self { max: vec![0.0; group], sum: vec![0.0; group], values: vec![0.0; group * layout.value_stride()] }
    }

    fn finish(&self, head_dim: usize, out: &mut [f32]) {
        let stride = self.values.len() / self.sum.len();
        let heads = self.values.chunks_exact(stride).zip(&self.sum);
        for ((values, sum), out) in heads.zip(out.chunks_exact_mut(head_dim)) {
            for (o, v) in out.iter_mut().zip(values) {
                *o = v / sum;
            }
        }
    }
}

/// Computes `partial` from scratch.
#[inline(always)]
pub(crate) fn chunk<L: Lanes, K: Element, V: Element>(l: L, a: &ChunkOf<'_, K::Bits, V::Bits>, partial: &mut Partial) {
    const TOGETHER: usize = 4;
    let group = partial.sum.len();
    let many = group - group % TOGETHER;
    for head in (0..many).step_by(TOGETHER) {
        heads_of_chunk::<L, K, V, TOGETHER>(l, a, head, partial);
    }
    for head in many..group {
        heads_of_chunk::<L, K, V, 1>(l, a, head, partial);
    }
}

#[inline(always)]
fn heads_of_chunk<L: Lanes, K: Element, V: Element, const H: usize>(
    l: L,
    a: &ChunkOf<'_, K::Bits, V::Bits>,
    first: usize,
    partial: &mut Partial,
) {
    let dim = a.head_dim;
    let stride = dim.next_multiple_of(LANES);
    let slots = a.keys.len() / dim;
    let blocks = a.range.start / LANES..a.range.end.div_ceil(LANES);
    let base = blocks.start * LANES;
    let q: [&[f32]; H] = std::array::from_fn(|h| &a.q[(first + h) * dim..(first + h + 1) * dim]);
    let mut weights = [[0f32; CHUNK]; H]; // of positions base.., scores at first

    let mut max = [l.splat(f32::NEG_INFINITY); H];
    for block in blocks.clone() {
        let slot = (block * LANES) % slots;
        let (keys, _) = a.keys[slot * dim..(slot + LANES) * dim].as_chunks::<LANES>();
        let mut scores = [l.splat(0.0); H];
        for (d, key) in keys.iter().enumerate() {
            let key = K::load(l, key);
            for h in 0..H {
                scores[h] = l.fma(l.splat(q[h][d]), key, scores[h]);
            }
        }
        let at = block * LANES - base;
        for h in 0..H {
            let mut lanes = [0.0; LANES];
            l.store(l.mul(scores[h], l.splat(a.scale)), &mut lanes);
            // Only the first and the last block can hold positions that are not visible.
            if block * LANES < a.range.start || (block + 1) * LANES > a.range.end {
                for (lane, score) in lanes.iter_mut().enumerate() {
                    if !a.range.contains(&(block * LANES + lane)) {
                        *score = f32::NEG_INFINITY;
                    }
                }
            }
            max[h] = l.max(max[h], l.load(&lanes));
            weights[h][at..at + LANES].copy_from_slice(&lanes);
        }
    }

    let covered = blocks.len() * LANES;
    for h in 0..H {
        let max = l.max_lane(max[h]);
        let mut sum = l.splat(0.0);
        for lanes in weights[h][..covered].as_chunks_mut::<LANES>().0 {
            let weight = vmath::exp(l, l.sub(l.load(lanes), l.splat(max)));
            sum = l.add(sum, weight);
            l.store(weight, lanes);
        }
        partial.max[first + h] = max;
        partial.sum[first + h] = l.sum(sum);
    }

    for part in 0..stride / LANES {
        let mut acc = [l.splat(0.0); H];
        for block in blocks.clone() {
            let slot = (block * LANES) % slots;
            let visible = a.range.start.max(block * LANES)..a.range.end.min((block + 1) * LANES);
            for position in visible {
                let start = (slot + position % LANES) * stride + part * LANES;
                let (value, _) = a.values[start..start + LANES].as_chunks::<LANES>();
                let value = V::load(l, &value[0]);
                for h in 0..H {
                    acc[h] = l.fma(l.splat(weights[h][position - base]), value, acc[h]);
                }
            }
        }
        for (h, acc) in acc.into_iter().enumerate() {
            let start = (first + h) * stride + part * LANES;
            let (out, _) = partial.values[start..start + LANES].as_chunks_mut::<LANES>();
            l.store(acc, &mut out[0]);
        }
    }
}

/// Folds the next chunk, `later`, into what earlier chunks gave.
#[inline(always)]
pub(crate) fn merge<L: Lanes>(l: L, merged: &mut Partial, later: &Partial) {
    let stride = merged.values.len() / merged.sum.len();
    for head in 0..merged.sum.len() {
        // `later` second, so that a NaN stays; which maximum is taken does not matter otherwise.
        let max = if merged.max[head] > later.max[head] { merged.max[head] } else { later.max[head] };
        let old = vmath::exp(l, l.splat(merged.max[head] - max));
        let new = vmath::exp(l, l.splat(later.max[head] - max));
        let values = head * stride..(head + 1) * stride;
        let (to, _) = merged.values[values.clone()].as_chunks_mut::<LANES>();
        let (from, _) = later.values[values].as_chunks::<LANES>();
        for (to, from) in to.iter_mut().zip(from) {
            l.store(l.fma(l.load(to), old, l.mul(l.load(from), new)), to);
        }
        let mut lanes = [0.0; LANES];
        l.store(l.fma(l.splat(merged.sum[head]), old, l.mul(l.splat(later.sum[head]), new)), &mut lanes);
        merged.sum[head] = lanes[0];
        merged.max[head] = max;
    }
}

//! Attention over a cache of keys and values, in one written order.
//!
//! A row attends to a range of absolute positions. Positions are cut into chunks at multiples of [`CHUNK`]; for each chunk
//! (max, sum, weighted values) are computed from scratch, and the chunks are merged in ascending order. Inside a chunk:
//! a score is the sum over d, ascending, of q\[d\] k\[d\] by fused multiply-add; position p adds its weight to lane p mod 16 of
//! the sum, ascending; a value is weighed into its element by fused multiply-add, positions ascending. Positions that a row
//! does not see are left out, not weighed with zero. Nothing depends on how many rows are computed together, on the
//! pages that a cache lives in, or on the threads: prefill, decode and verification of a block give the same bits.
//!
//! The work is cut into tasks of up to eight rows, one key head, and one chunk or all of them. A task widens sixteen or
//! thirty-two positions at a time to f32, in the nearest cache, and multiplies them with every query head of every of its
//! rows: stored types are widened once for all of these, and only widening knows the types.

mod cache;
mod kernels;
mod page;

pub use cache::{KvData, KvDataMut, KvLayout, KvPage, KvType, store_keys, store_values};
pub(crate) use kernels::{Ahead, Rounded, Scores, Weigh, merge, scores, soften, weigh, widen, widen_codes};
pub use page::{Page, Pages};

use crate::dispatch::Kernels;
use crate::lanes::LANES;
use crate::pool::{Pool, Shared};
use cache::Side;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Positions that are weighed together; chunk borders are absolute multiples of it.
pub const CHUNK: usize = 256;

/// Rows that share what a task widens. Their scores of a chunk stay in the second-level cache.
const ROWS: usize = 8;
/// Blocks of sixteen positions that are widened at a time: with 128 elements a head, a third of the nearest cache.
const BLOCKS: usize = 2;
/// Multiplications below which waking the other threads costs more than it saves.
const WORTH_SHARING: usize = 1 << 17;
/// Elements of the parts that wait to be merged, about.
const PARKED: usize = 1 << 22;

/// What attention works on.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Queries (rows, q_heads * head_dim); query head h belongs to key head h / (q_heads / heads).
    pub q: &'a [f32],
    /// Query heads.
    pub q_heads: usize,
    /// How each page lies in memory.
    pub layout: KvLayout,
    /// Which chunk the first page holds.
    pub first: usize,
    /// The keys and values of that chunk and of those that follow.
    pub pages: &'a [KvPage<'a>],
    /// Multiplies every score.
    pub scale: f32,
    /// The positions that each row attends to: not empty, and in the pages.
    pub visible: &'a [Range<usize>],
}

/// Memory that attention works in, kept from call to call.
#[derive(Debug, Default)]
pub struct Workspace {
    /// One for each task that runs.
    scratch: Mutex<Vec<Scratch>>,
    parked: Mutex<Parked>,
}

/// What one task works in.
#[derive(Debug, Default)]
struct Scratch {
    widened: Vec<f32>, // (BLOCKS, elements of a block)
    weights: Vec<f32>, // (rows, group, CHUNK), scores at first
    part: Vec<f32>,    // (rows, group, record)
    merged: Vec<f32>,  // (rows, group, record)
}

/// What tasks of one chunk leave for the merge.
#[derive(Debug, Default)]
struct Parked {
    parts: Vec<f32>,  // (blocks of rows, heads, chunks, rows, group, record)
    merged: Vec<f32>, // (rows, heads, group, record)
}

/// Attention of every row, into `out` (rows, q_heads * head_dim).
///
/// # Panics
/// If the shapes do not belong together, or a range is empty or not in the pages.
pub fn attend(kernels: &Kernels, pool: &Pool, workspace: &Workspace, a: &Attention<'_>, out: &mut [f32]) {
    let KvLayout { heads, head_dim } = a.layout;
    let rows = a.visible.len();
    let width = a.q_heads * head_dim;
    assert!(a.q.len() == rows * width && out.len() == rows * width && a.q_heads.is_multiple_of(heads));
    let (start, end) = (a.first * CHUNK, (a.first + a.pages.len()) * CHUNK);
    assert!(
        a.visible.iter().all(|r| !r.is_empty() && r.start >= start && r.end <= end),
        "ranges within {start}..{end}"
    );
    for page in a.pages {
        page.keys.check(a.layout, Side::Keys);
        page.values.check(a.layout, Side::Values);
    }
    let positions: usize = a.visible.iter().map(Range::len).sum();
    let pool = Some(pool).filter(|pool| pool.threads() > 1 && positions * width >= WORTH_SHARING);
    let job = Job { kernels, pool, a, group: a.q_heads / heads, record: a.layout.value_stride() + LANES };
    let threads = pool.map_or(1, Pool::threads);
    if threads == 1 || rows.div_ceil(ROWS) * heads >= 4 * threads || chunks(a.visible).len() < 2 {
        job.walk(&workspace.scratch, out);
    } else {
        job.share(workspace, out);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a task that panicked left behind is overwritten before it is read.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `len` elements of `memory`, whatever they hold, from the start of a cache line on.
fn sized(memory: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if memory.len() < len + LANES {
        memory.resize(len + LANES, 0.0);
    }
    let start = memory.as_ptr().align_offset(LANES * size_of::<f32>()) % LANES;
    &mut memory[start..start + len]
}

/// The chunks that ranges of positions touch.
fn chunks(visible: &[Range<usize>]) -> Range<usize> {
    let start = visible.iter().map(|r| r.start).min().unwrap_or(0);
    let end = visible.iter().map(|r| r.end).max().unwrap_or(0);
    start / CHUNK..end.div_ceil(CHUNK)
}

/// One call of [`attend`].
///
/// A record is what one query head has of some positions: (values, max, sum), the values weighed relative to max and
/// padded to whole vectors, max and sum in a vector of their own.
struct Job<'a> {
    kernels: &'a Kernels,
    /// Threads to share the work with, where it is worth it.
    pool: Option<&'a Pool>,
    a: &'a Attention<'a>,
    /// Query heads of a key head.
    group: usize,
    /// Elements of a record.
    record: usize,
}

impl Job<'_> {
    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        match self.pool {
            Some(pool) => pool.run(tasks, task),
            None => (0..tasks).for_each(task),
        }
    }

    fn rows(&self, block: usize) -> Range<usize> {
        block * ROWS..self.a.visible.len().min((block + 1) * ROWS)
    }

    /// Elements of the records of one row and key head.
    fn records(&self) -> usize {
        self.group * self.record
    }

    /// Many rows: a task walks the chunks of its rows and merges them itself.
    fn walk(&self, scratches: &Mutex<Vec<Scratch>>, out: &mut [f32]) {
        let (heads, width) = (self.a.layout.heads, self.group * self.a.layout.head_dim);
        let out = Shared::new(out);
        let blocks = self.a.visible.len().div_ceil(ROWS);
        // The last rows see the most positions: the longest tasks come first.
        self.run(blocks * heads, &|task| {
            let (rows, head) = (self.rows(blocks - 1 - task / heads), task % heads);
            let mut scratch = lock(scratches).pop().unwrap_or_default();
            let Scratch { widened, weights, part, merged } = &mut scratch;
            let (part, merged) = (sized(part, rows.len() * self.records()), sized(merged, rows.len() * self.records()));
            for chunk in chunks(&self.a.visible[rows.clone()]) {
                self.chunk(rows.clone(), head, chunk, widened, weights, part);
                let each = merged.chunks_exact_mut(self.records()).zip(part.chunks_exact(self.records()));
                for (row, (merged, part)) in rows.clone().zip(each) {
                    for (merged, part) in merged.chunks_exact_mut(self.record).zip(part.chunks_exact(self.record)) {
                        self.fold(row, chunk, merged, part);
                    }
                }
            }
            for (row, merged) in rows.clone().zip(merged.chunks_exact(self.records())) {
                let start = (row * heads + head) * width;
                // SAFETY: each (row, head) is claimed by one thread once, and the parts do not overlap.
                self.finish(merged, unsafe { out.slice(start..start + width) });
            }
            lock(scratches).push(scratch);
        });
    }

    /// Few rows: threads share the chunks, and the merge follows in the same ascending order.
    fn share(&self, workspace: &Workspace, out: &mut [f32]) {
        let (heads, rows) = (self.a.layout.heads, self.a.visible.len());
        let (blocks, records) = (rows.div_ceil(ROWS), self.records());
        let all = chunks(self.a.visible);
        let together = (PARKED / (rows * heads * records)).clamp(1, all.len());
        let mut parked = lock(&workspace.parked);
        let Parked { parts, merged } = &mut *parked;
        // Where the part of a block of rows starts; only the last block can have fewer rows than the others.
        let at = |block: usize, head: usize, chunk: usize| {
            (block * ROWS * heads * together + (head * together + chunk) * self.rows(block).len()) * records
        };
        let parts = sized(parts, rows * heads * together * records);
        let merged = sized(merged, rows * heads * records);
        for first in all.clone().step_by(together) {
            let count = together.min(all.end - first);
            let shared = Shared::new(parts);
            self.run(count * blocks * heads, &|task| {
                let (chunk, block, head) = (task / (blocks * heads), task / heads % blocks, task % heads);
                let rows = self.rows(block);
                let start = at(block, head, chunk);
                // SAFETY: each (block, head, chunk) is claimed by one thread once, and the parts do not overlap.
                let part = unsafe { shared.slice(start..start + rows.len() * records) };
                let mut scratch = lock(&workspace.scratch).pop().unwrap_or_default();
                self.chunk(rows, head, first + chunk, &mut scratch.widened, &mut scratch.weights, part);
                lock(&workspace.scratch).push(scratch);
            });
            let parts = &*parts;
            let shared = Shared::new(merged);
            self.run(rows * heads * self.group, &|task| {
                let (row, head, q) = (task / self.group / heads, task / self.group % heads, task % self.group);
                // SAFETY: each record is claimed by one thread once.
                let merged = unsafe { shared.slice(task * self.record..(task + 1) * self.record) };
                for chunk in 0..count {
                    let start = at(row / ROWS, head, chunk) + row % ROWS * records + q * self.record;
                    self.fold(row, first + chunk, merged, &parts[start..start + self.record]);
                }
            });
        }
        self.finish(merged, out);
    }

    /// Folds the part that a row has of `chunk` into what earlier chunks gave.
    fn fold(&self, row: usize, chunk: usize, merged: &mut [f32], part: &[f32]) {
        let seen = chunks(std::slice::from_ref(&self.a.visible[row]));
        if chunk == seen.start {
            merged.copy_from_slice(part);
        } else if seen.contains(&chunk) {
            self.kernels.merge(merged, part);
        }
    }

    /// The weighed mean of each record, into as many heads.
    fn finish(&self, merged: &[f32], out: &mut [f32]) {
        let head_dim = self.a.layout.head_dim;
        for (record, out) in merged.chunks_exact(self.record).zip(out.chunks_exact_mut(head_dim)) {
            let sum = record[self.record - LANES + 1];
            for (out, value) in out.iter_mut().zip(record) {
                *out = value / sum;
            }
        }
    }

    /// Computes, from scratch, the records (rows, group) that `rows` have of the positions of `chunk` that they see. What stands
    /// in the records of a row that sees none is undefined.
    fn chunk(
        &self,
        rows: Range<usize>,
        head: usize,
        chunk: usize,
        widened: &mut Vec<f32>,
        weights: &mut Vec<f32>,
        part: &mut [f32],
    ) {
        let KvLayout { heads, head_dim } = self.a.layout;
        let (kernels, scale, width) = (self.kernels, self.a.scale, self.group * head_dim);
        let widened = sized(widened, BLOCKS * LANES * self.a.layout.value_stride());
        let weights = sized(weights, rows.len() * self.group * CHUNK);
        let weights_of = |i: usize| i * self.group * CHUNK..(i + 1) * self.group * CHUNK;
        let part_of = |i: usize| i * self.records()..(i + 1) * self.records();
        // What each row sees of the chunk, counted from its first position.
        let (first, end) = (chunk * CHUNK, (chunk + 1) * CHUNK);
        let clip = |r: &Range<usize>| r.start.clamp(first, end) - first..r.end.clamp(first, end) - first;
        let visible = &self.a.visible[rows.clone()];
        let seen: [Range<usize>; ROWS] = std::array::from_fn(|i| visible.get(i).map_or(0..0, clip));
        let seeing = |positions: Range<usize>| {
            let seen = seen.iter().enumerate();
            seen.filter(move |(_, seen)| seen.start.max(positions.start) < seen.end.min(positions.end))
        };

        let start = seeing(0..CHUNK).map(|(_, seen)| seen.start).min().unwrap_or(0);
        let end = seeing(0..CHUNK).map(|(_, seen)| seen.end).max().unwrap_or(0);
        if start >= end {
            return;
        }
        let page = &self.a.pages[chunk - self.a.first];
        let runs = |side: Side| self.a.layout.runs(side, head, start..end);
        let mut runs = runs(Side::Keys).chain(runs(Side::Values)).peekable();
        while let Some(run) = runs.next() {
            let blocks = page.data(run.side).widen(kernels, &run, widened);
            let nothing = Ahead::of(&blocks[..0]);
            let mut ahead = runs.peek().map_or(nothing, |next| page.data(next.side).ahead(next));
            for (i, seen) in seeing(run.positions()) {
                let weights = &mut weights[weights_of(i)];
                let (block, part) = (run.block, &mut part[part_of(i)]);
                match run.side {
                    Side::Keys => {
                        let start = ((rows.start + i) * heads + head) * width;
                        let q = &self.a.q[start..start + width];
                        kernels.scores(&Scores { q, keys: blocks, head_dim, scale, block, ahead }, weights);
                        if seen.end <= run.positions().end {
                            kernels.soften(weights, seen.clone(), part);
                        }
                    }
                    Side::Values => {
                        kernels.weigh(&Weigh { weights, values: blocks, block, seen: seen.clone(), ahead }, part);
                    }
                }
                ahead = nothing;
            }
        }
    }
}

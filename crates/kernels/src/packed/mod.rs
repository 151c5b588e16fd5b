//! Products with packed quantized weights: 8-bit activations, integer sums, few float operations.
//!
//! Weights are packed once at load into tiles of sixteen output rows ([`layout`]); activations are rounded to 8 bits by one rule
//! for all encodings and instruction sets ([`Activations`]). What a product is, is written down as the scalar
//! [`tile::Tile`] computes it, and every instruction set gives the same bits: the integer parts are exact, the float parts have
//! one order.

pub mod activations;
mod kernels;
mod kinds;
pub mod layout;
pub mod matrices;
mod pack;
mod read;
mod scales;
pub mod tile;

pub use activations::Activations;
pub use pack::{Packed, PackedRows};

pub(crate) use activations::round;
pub(crate) use kernels::{ANY, product, rows};
pub(crate) use matrices::{product as product_by_matrices, rows as rows_by_matrices};

use crate::dispatch::Kernels;
use crate::isa::finds_streams;
use crate::pool::{Pool, Shared};
use layout::{BLOCK, Kind};
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use tile::TILE_ROWS;

/// Tiles of 256 columns.
const GROUP: usize = BLOCK / TILE_ROWS;
/// Rows up to which tiles pass by turns for the sake of the streams that they are read in; above, for the sake of the rows.
const FEW: usize = 32;
/// Tiles that a thread takes at once, if there are enough of them: with few rows a tile is soon done.
const TOGETHER: usize = 2;
const TOGETHER_WITH_FEW: usize = 8;
/// Rows up to which a processor that [finds streams](finds_streams) reads one as fast as several, and sooner than it could be asked for it.
const ONE_STREAM: usize = 3;
const UNASKED: usize = 2;
/// Bytes of activations that stay in the second-level cache while tiles pass by them: of all blocks where they do so one by one, of one block
/// where they do by turns.
const PANEL: usize = 768 << 10;

thread_local! {
    /// What a thread's tiles give; kept, since few rows are done sooner than memory is allocated and freed.
    static SUMS: Cell<Vec<[f32; TILE_ROWS]>> = const { Cell::new(Vec::new()) };
}

/// How the kernels of an instruction set like rows of activations.
#[derive(Default)]
pub(crate) struct Rows {
    /// The most for which a tile has a kernel of its own.
    pub exactly: usize,
    /// From so many on, a tile is multiplied with all of them at once; what is between is taken in halves.
    pub many: usize,
    /// The fewest and the most that tiles pass by.
    pub panel: Range<usize>,
    /// A divisor of it.
    pub step: usize,
    /// Tiles that pass by turns by few rows, and by many.
    pub streams: usize,
    pub turns: usize,
    /// What is read of 256 activations.
    pub bytes: usize,
}

impl Rows {
    /// All rows at once, or in two halves where only those have a kernel.
    fn halves(&self, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let whole = rows.len() <= self.exactly || rows.len() >= self.many;
        let middle = if whole { rows.end } else { rows.start + rows.len().div_ceil(2) };
        [rows.start..middle, middle..rows.end].into_iter().filter(|half| !half.is_empty())
    }
}

/// Tiles of weights against some rows of activations.
pub(crate) struct TileProduct<'a> {
    /// How the tiles lie.
    pub kind: Kind,
    /// The tiles, one after the other.
    pub data: &'a [u8],
    /// How many they are.
    pub tiles: usize,
    /// The activations.
    pub x: &'a Activations,
    /// The rows of them.
    pub rows: Range<usize>,
    /// Whether memory is asked for what comes next.
    pub ask: bool,
}

impl TileProduct<'_> {
    /// A block of a tile, of so many bytes.
    #[inline(always)]
    pub fn block(&self, tile: usize, number: usize, bytes: usize) -> &[u8] {
        &self.data[(tile * self.x.blocks() + number) * bytes..][..bytes]
    }
}

/// A product to be made: the weight (outs, k), and where it goes (rows, outs).
pub struct Product<'a> {
    /// The weight.
    pub weight: &'a Packed,
    /// What takes the product.
    pub out: &'a mut [f32],
}

/// `x` (rows, k) times each packed weight (outs, k) transposed, all of them as one job.
///
/// # Panics
/// If the lengths do not belong together.
pub fn matmul(kernels: &Kernels, pool: &Pool, x: &Activations, products: &mut [Product<'_>]) {
    let rows = x.rows();
    let weights: Vec<&Packed> = products.iter().map(|product| product.weight).collect();
    let job = Job::new(kernels, pool, x, &weights);
    // The first claim of each product follows the last one of the product before.
    let mut claims = 0;
    let shares: Vec<(usize, Output<'_>)> = products
        .iter_mut()
        .map(|Product { weight, out }| {
            let first_claim = claims;
            claims += job.claims(weight);
            (first_claim, Output::new(out, rows, weight))
        })
        .collect();
    pool.run(job.panels() * claims, &|task| {
        let (panel, claim) = (job.panel(task / claims), task % claims);
        let number = shares.partition_point(|&(first_claim, _)| first_claim <= claim) - 1;
        let ((first_claim, out), weight) = (&shares[number], weights[number]);
        let tiles = job.claimed(weight, claim - first_claim);
        with_sums(tiles.len() * panel.len(), |sums| {
            job.multiply(number, tiles.clone(), panel.clone(), sums);
            // SAFETY: claims are disjoint ranges of tiles, panels of rows, and each pair is given to one thread once.
            unsafe { out.put(&job.likes[number], &tiles, panel, weight.factor(), sums) };
        });
    });
}

/// silu(x gate^T) * (x up^T) for `x` (rows, k) and packed weights (outs, k) of one kind, into `out` (rows, outs), and in 8 bits if `round`.
///
/// Who makes a tile of the one makes that of the other, and who makes the last tile of 256 columns rounds them, so that what is large is
/// not sent from one thread to the other.
///
/// # Panics
/// If the lengths do not belong together.
pub fn swiglu(
    kernels: &Kernels,
    pool: &Pool,
    x: &Activations,
    [gate, up]: [&Packed; 2],
    out: &mut [f32],
    round: bool,
) -> Option<Activations> {
    let (rows, outs) = (x.rows(), gate.outs());
    assert!(gate.is_like(up), "gate and up are alike");
    let weights = [gate, up];
    let job = Job::new(kernels, pool, x, &weights);
    let (claims, groups) = (job.claims(gate), outs.div_ceil(BLOCK));
    let out = Output::new(out, rows, gate);
    let done: Vec<AtomicUsize> = std::iter::repeat_with(AtomicUsize::default).take(job.panels() * groups).collect();
    let run = |rounded: &(dyn Fn(usize, usize, &[f32]) + Sync)| {
        pool.run(job.panels() * claims, &|task| {
            let (panel, tiles) = (job.panel(task / claims), job.claimed(gate, task % claims));
            let len = tiles.len() * panel.len();
            with_sums(2 * len, |sums| {
                let (gates, ups) = sums.split_at_mut(len);
                for (number, sums) in [&mut *gates, &mut *ups].into_iter().enumerate() {
                    job.multiply(number, tiles.clone(), panel.clone(), sums);
                    let factor = weights[number].factor();
                    if factor != 1.0 {
                        sums.as_flattened_mut().iter_mut().for_each(|sum| *sum *= factor);
                    }
                }
                kernels.swiglu_row(gates.as_flattened_mut(), ups.as_flattened());
                // SAFETY: as in `matmul`.
                unsafe { out.put(&job.likes[0], &tiles, panel.clone(), 1.0, gates) };
            });
            if !round {
                return;
            }
            for group in tiles.start / GROUP..tiles.end.div_ceil(GROUP) {
                let all = group * GROUP..gate.tiles().min((group + 1) * GROUP);
                let ours = all.end.min(tiles.end) - all.start.max(tiles.start);
                // What others wrote before they counted is seen by who counts last.
                if done[task / claims * groups + group].fetch_add(ours, Ordering::AcqRel) + ours == all.len() {
                    for row in panel.clone() {
                        let columns = row * outs + group * BLOCK..row * outs + outs.min((group + 1) * BLOCK);
                        // SAFETY: all tiles of it are done, so that nobody writes it.
                        rounded(row, group, unsafe { out.all.slice(columns) });
                    }
                }
            }
        });
    };
    if !round {
        run(&|_, _, _| {});
        return None;
    }
    // SAFETY: each group of each panel is counted to its end once.
    Some(unsafe { Activations::by_groups(kernels, rows, outs, run) })
}

/// Calls `f` with so many sums that are zero.
fn with_sums(count: usize, f: impl FnOnce(&mut [[f32; TILE_ROWS]])) {
    let mut sums = SUMS.take();
    sums.clear();
    sums.resize(count, [0.0; TILE_ROWS]);
    f(&mut sums);
    SUMS.set(sums);
}

/// How rows and weights are shared out.
struct Job<'a> {
    kernels: &'a Kernels,
    x: &'a Activations,
    weights: &'a [&'a Packed],
    /// How the kernels of each like rows.
    likes: Vec<Rows>,
    /// Rows that tiles pass by at once.
    panel: usize,
    /// Tiles that a thread takes at once.
    together: usize,
    /// Tiles that pass by rows by turns.
    turns: usize,
    /// Whether memory is asked for what comes next.
    ask: bool,
}

impl<'a> Job<'a> {
    fn new(kernels: &'a Kernels, pool: &Pool, x: &'a Activations, weights: &'a [&'a Packed]) -> Self {
        let rows = x.rows();
        let up_to = |most| finds_streams() && rows <= most;
        let (mut tiles, mut panel, mut in_order) = (0, rows.max(1), true);
        let mut turns = if up_to(ONE_STREAM) { 1 } else { usize::MAX };
        let mut all = Vec::with_capacity(weights.len());
        for weight in weights {
            assert_eq!(x.inputs(), weight.inputs(), "inputs of a product");
            let mut likes = Rows::default();
            kernels.packed_rows(weight.kind(), &mut likes);
            let by_turns = if rows > FEW { likes.turns } else { likes.streams };
            turns = turns.min(by_turns);
            let blocks = if by_turns > 1 { 1 } else { x.blocks().max(1) };
            let fits = PANEL / likes.bytes / blocks / likes.step * likes.step;
            panel = panel.min(fits.clamp(likes.panel.start, likes.panel.end));
            in_order &= weight.kind().in_order();
            all.push(likes);
            tiles += weight.tiles();
        }
        // At least four claims for each thread, so that none waits long for another.
        let together = if rows > FEW { TOGETHER.max(turns) } else { TOGETHER_WITH_FEW };
        let together = together.min(tiles / (4 * pool.threads())).max(1);
        Self { kernels, x, weights, likes: all, panel, together, turns, ask: !(up_to(UNASKED) && in_order) }
    }

    fn panels(&self) -> usize {
        self.x.rows().div_ceil(self.panel)
    }

    /// The rows of a panel.
    fn panel(&self, number: usize) -> Range<usize> {
        number * self.panel..self.x.rows().min((number + 1) * self.panel)
    }

    fn claims(&self, weight: &Packed) -> usize {
        weight.tiles().div_ceil(self.together)
    }

    /// The tiles of a claim.
    fn claimed(&self, weight: &Packed, number: usize) -> Range<usize> {
        number * self.together..weight.tiles().min((number + 1) * self.together)
    }

    /// Adds what some tiles of a weight give with the rows of a panel: half by half of the rows, one tile after the other.
    fn multiply(&self, number: usize, tiles: Range<usize>, panel: Range<usize>, sums: &mut [[f32; TILE_ROWS]]) {
        let (weight, likes) = (self.weights[number], &self.likes[number]);
        for from in tiles.clone().step_by(self.turns) {
            let turns = from..tiles.end.min(from + self.turns);
            for half in likes.halves(panel.clone()) {
                let ask = self.ask && half.start == panel.start;
                let at = tiles.len() * (half.start - panel.start) + (from - tiles.start) * half.len();
                let sums = &mut sums[at..at + turns.len() * half.len()];
                let (data, tiles) = (weight.tiles_of(turns.clone()), turns.len());
                let (kind, x) = (weight.kind(), self.x);
                multiply(self.kernels, &TileProduct { kind, data, tiles, x, rows: half, ask }, likes, sums);
            }
        }
    }
}

/// What takes a product.
struct Output<'a> {
    all: Shared<'a, f32>,
    outs: usize,
}

impl<'a> Output<'a> {
    /// The product of `rows` rows.
    fn new(out: &'a mut [f32], rows: usize, weight: &Packed) -> Self {
        assert_eq!(out.len(), rows * weight.outs(), "output of {rows} rows of {}", weight.outs());
        Self { all: Shared::new(out), outs: weight.outs() }
    }

    /// Writes what [`Job::multiply`] gave, times a factor.
    ///
    /// # Safety
    /// No other thread writes that of a tile and row of these.
    unsafe fn put(
        &self,
        likes: &Rows,
        tiles: &Range<usize>,
        panel: Range<usize>,
        factor: f32,
        sums: &[[f32; TILE_ROWS]],
    ) {
        for half in likes.halves(panel.clone()) {
            let count = half.len();
            let sums = &sums[tiles.len() * (half.start - panel.start)..][..tiles.len() * count];
            // Row by row, as the rows of the output lie far from each other.
            for (i, row) in half.enumerate() {
                for (tile, sums) in tiles.clone().zip(sums.chunks_exact(count)) {
                    let (sums, columns) = (&sums[i], tile * TILE_ROWS..self.outs.min((tile + 1) * TILE_ROWS));
                    // SAFETY: tiles are disjoint ranges of columns; the rest is the caller's promise.
                    let to = unsafe { self.all.slice(row * self.outs + columns.start..row * self.outs + columns.end) };
                    match (factor, to.as_mut_array()) {
                        // The length is known: a few moves instead of a call.
                        (1.0, Some(whole)) => *whole = *sums,
                        (1.0, None) => to.copy_from_slice(&sums[..columns.len()]),
                        _ => to.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum * factor),
                    }
                }
            }
        }
    }
}

/// Tiles with rows, for whose number there is a kernel.
fn multiply(kernels: &Kernels, product: &TileProduct<'_>, likes: &Rows, sums: &mut [[f32; TILE_ROWS]]) {
    match product.rows.len() {
        n if n >= likes.many => kernels.packed_any(product, sums),
        1 => kernels.packed_one(product, sums),
        2 => kernels.packed_two(product, sums),
        3 => kernels.packed_three(product, sums),
        4 => kernels.packed_four(product, sums),
        5 => kernels.packed_five(product, sums),
        6 => kernels.packed_six(product, sums),
        7 => kernels.packed_seven(product, sums),
        8 => kernels.packed_eight(product, sums),
        n => unreachable!("{n} rows, for which there is no kernel"),
    }
}

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
use layout::Kind;
use std::cell::Cell;
use std::ops::Range;
use tile::TILE_ROWS;

/// Rows up to which several tiles pass by them by turns.
const FEW: usize = 32;
/// Tiles that a thread takes at once, if there are enough of them: with few rows a tile is soon done.
const TOGETHER: usize = 2;
const TOGETHER_WITH_FEW: usize = 8;
/// Rows up to which a processor that [finds streams](finds_streams) follows one as fast as several: it is asked for little else meanwhile.
const FOUND: usize = 3;
/// Bytes of activations that stay in the second-level cache while tiles pass by them.
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
    /// Tiles that pass by few rows by turns.
    pub streams: usize,
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

/// One of the products of a job.
struct Share<'a> {
    /// Its first claim; those of each product follow those of the one before.
    first_claim: usize,
    weight: &'a Packed,
    out: Shared<'a, f32>,
    likes: Rows,
}

impl Share<'_> {
    /// Writes what some tiles gave with some rows, one tile after the other.
    ///
    /// # Safety
    /// No other thread writes that of a tile and row of these.
    unsafe fn put(&self, tiles: &Range<usize>, rows: Range<usize>, sums: &[[f32; TILE_ROWS]]) {
        let outs = self.weight.outs();
        let count = rows.len();
        // Row by row, as the rows of the output lie far from each other.
        for (i, row) in rows.enumerate() {
            for (tile, sums) in tiles.clone().zip(sums.chunks_exact(count)) {
                let (sums, columns) = (&sums[i], tile * TILE_ROWS..outs.min((tile + 1) * TILE_ROWS));
                // SAFETY: tiles are disjoint ranges of columns; the rest is the caller's promise.
                let to = unsafe { self.out.slice(row * outs + columns.start..row * outs + columns.end) };
                match (self.weight.factor(), to.as_mut_array()) {
                    // The length is known: a few moves instead of a call.
                    (1.0, Some(whole)) => *whole = *sums,
                    (1.0, None) => to.copy_from_slice(&sums[..columns.len()]),
                    (factor, _) => to.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum * factor),
                }
            }
        }
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
    let found = finds_streams() && rows <= FOUND;
    let (mut tiles, mut panel) = (0, rows.max(1));
    let mut streams = if found || rows > FEW { 1 } else { usize::MAX };
    let mut in_order = true;
    let mut shares = Vec::with_capacity(products.len());
    for Product { weight, out } in products {
        let outs = weight.outs();
        assert_eq!(x.inputs(), weight.inputs(), "inputs of a product");
        assert_eq!(out.len(), rows * outs, "output of {rows} rows of {outs}");
        let mut likes = Rows::default();
        kernels.packed_rows(weight.kind(), &mut likes);
        let fits = PANEL / likes.bytes / x.blocks().max(1) / likes.step * likes.step;
        panel = panel.min(fits.clamp(likes.panel.start, likes.panel.end));
        streams = streams.min(likes.streams);
        in_order &= weight.kind().in_order();
        shares.push(Share { first_claim: 0, weight, out: Shared::new(out), likes });
        tiles += weight.tiles();
    }
    // At least four claims for each thread, so that none waits long for another.
    let together = if rows > FEW { TOGETHER } else { TOGETHER_WITH_FEW };
    let together = together.min(tiles / (4 * pool.threads())).max(1);
    let mut claims = 0;
    for share in &mut shares {
        share.first_claim = claims;
        claims += share.weight.tiles().div_ceil(together);
    }
    let ask = !(found && rows == 1 && in_order);
    pool.run(rows.div_ceil(panel) * claims, &|task| {
        let (panel, claim) = (task / claims * panel..rows.min((task / claims + 1) * panel), task % claims);
        let share = &shares[shares.partition_point(|share| share.first_claim <= claim) - 1];
        let Share { first_claim, weight, likes, .. } = share;
        let first = (claim - first_claim) * together;
        let claimed = first..weight.tiles().min(first + together);
        let mut all = SUMS.take();
        all.clear();
        all.resize(claimed.len() * panel.len(), [0.0; TILE_ROWS]);
        for from in claimed.clone().step_by(streams) {
            let turns = from..claimed.end.min(from + streams);
            for half in likes.halves(panel.clone()) {
                let ask = ask && half.start == panel.start;
                let at = claimed.len() * (half.start - panel.start) + (from - first) * half.len();
                let sums = &mut all[at..at + turns.len() * half.len()];
                let (data, tiles) = (weight.tiles_of(turns.clone()), turns.len());
                let kind = weight.kind();
                multiply(kernels, &TileProduct { kind, data, tiles, x, rows: half, ask }, likes, sums);
            }
        }
        for half in likes.halves(panel.clone()) {
            let sums = &all[claimed.len() * (half.start - panel.start)..][..claimed.len() * half.len()];
            // SAFETY: claims are disjoint ranges of tiles, panels of rows, and each pair is given to one thread once.
            unsafe { share.put(&claimed, half, sums) };
        }
        SUMS.set(all);
    });
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

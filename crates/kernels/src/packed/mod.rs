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
use std::ops::Range;
use tile::TILE_ROWS;

/// Tiles that a thread takes at once.
const TOGETHER: usize = 2;
/// Bytes of activations that stay in the second-level cache while tiles pass by them.
const PANEL: usize = 768 << 10;

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
    /// What is read of 256 activations.
    pub bytes: usize,
}

/// One tile of weights against some rows of activations.
pub(crate) struct TileProduct<'a> {
    /// How the tile lies.
    pub kind: Kind,
    /// The tile's blocks.
    pub blocks: &'a [u8],
    /// The activations.
    pub x: &'a Activations,
    /// The rows of them.
    pub rows: Range<usize>,
    /// Whether memory is asked for what comes next.
    pub ask: bool,
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
    // Claims of each weight follow those of the one before.
    let (mut claims, mut panel) = (0, rows.max(1));
    let mut parts = Vec::with_capacity(products.len());
    for Product { weight, out } in products {
        let outs = weight.outs();
        assert_eq!(x.inputs(), weight.inputs(), "inputs of a product");
        assert_eq!(out.len(), rows * outs, "output of {rows} rows of {outs}");
        let mut likes = Rows::default();
        kernels.packed_rows(weight.kind(), &mut likes);
        let fits = PANEL / likes.bytes / x.blocks().max(1) / likes.step * likes.step;
        panel = panel.min(fits.clamp(likes.panel.start, likes.panel.end));
        parts.push((claims, *weight, Shared::new(out), likes));
        claims += weight.tiles().div_ceil(TOGETHER);
    }
    let ask = rows > 1 || !finds_streams();
    pool.run(rows.div_ceil(panel) * claims, &|task| {
        let (panel, claim) = (task / claims * panel..rows.min((task / claims + 1) * panel), task % claims);
        let part = parts.partition_point(|(first, ..)| *first <= claim) - 1;
        let (first, weight, out, likes) = &parts[part];
        let (outs, tiles) =
            (weight.outs(), (claim - first) * TOGETHER..weight.tiles().min((claim - first + 1) * TOGETHER));
        let mut sums = vec![[0f32; TILE_ROWS]; tiles.len() * panel.len()];
        for (tile, sums) in tiles.clone().zip(sums.chunks_exact_mut(panel.len())) {
            let product = TileProduct { kind: weight.kind(), blocks: weight.tile(tile), x, rows: panel.clone(), ask };
            multiply(kernels, product, likes, sums);
        }
        // Row by row, as the rows of the output lie far from each other.
        for (i, row) in panel.clone().enumerate() {
            for (tile, sums) in tiles.clone().zip(sums.chunks_exact(panel.len())) {
                let (sums, columns) = (&sums[i], tile * TILE_ROWS..outs.min((tile + 1) * TILE_ROWS));
                // SAFETY: tiles are disjoint ranges of columns, panels of rows, and each pair is given to one thread once.
                let part = unsafe { out.slice(row * outs + columns.start..row * outs + columns.end) };
                match (weight.factor(), part.as_mut_array()) {
                    // The length is known: a few moves instead of a call.
                    (1.0, Some(whole)) => *whole = *sums,
                    (1.0, None) => part.copy_from_slice(&sums[..columns.len()]),
                    (factor, _) => part.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum * factor),
                }
            }
        }
    });
}

/// One tile: by the kernel for exactly as many rows if there is one, in two halves if there is one for those.
fn multiply(kernels: &Kernels, product: TileProduct<'_>, likes: &Rows, sums: &mut [[f32; TILE_ROWS]]) {
    let rows = product.rows.clone();
    match rows.len() {
        0 => {}
        n if n >= likes.many => kernels.packed_any(&product, sums),
        n if n > likes.exactly => {
            let (first, second) = sums.split_at_mut(n.div_ceil(2));
            let middle = rows.start + first.len();
            multiply(kernels, TileProduct { rows: rows.start..middle, ..product }, likes, first);
            multiply(kernels, TileProduct { rows: middle..rows.end, ask: false, ..product }, likes, second);
        }
        1 => kernels.packed_one(&product, sums),
        2 => kernels.packed_two(&product, sums),
        3 => kernels.packed_three(&product, sums),
        4 => kernels.packed_four(&product, sums),
        5 => kernels.packed_five(&product, sums),
        6 => kernels.packed_six(&product, sums),
        7 => kernels.packed_seven(&product, sums),
        8 => kernels.packed_eight(&product, sums),
        _ => kernels.packed_any(&product, sums),
    }
}

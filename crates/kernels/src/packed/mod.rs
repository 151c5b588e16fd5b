//! Products with packed quantized weights: 8-bit activations, integer sums, few float operations.
//!
//! Weights are packed once at load into tiles of sixteen output rows ([`layout`]); activations are rounded to 8 bits by one rule
//! for all encodings and instruction sets ([`Activations`]). What a product is, is written down as the scalar
//! [`tile::Tile`] computes it, and every instruction set gives the same bits: the integer parts are exact, the float parts have
//! one order.

pub mod activations;
mod kernels;
pub mod layout;
mod pack;
mod read;
pub mod tile;

pub use activations::Activations;
pub use pack::{Packed, PackedRows};

pub(crate) use activations::round;
pub(crate) use kernels::{ANY, product, together};

use crate::dispatch::Kernels;
use crate::isa::finds_streams;
use crate::pool::{Pool, Shared};
use activations::Rounded;
use layout::Kind;
use std::ops::Range;
use tile::TILE_ROWS;

/// Tiles that a thread takes at once.
const TOGETHER: usize = 2;
/// Bytes of activations that stay in the second-level cache while tiles pass by them.
const PANEL: usize = 768 << 10;

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
    let mut claims = 0;
    let mut parts = Vec::with_capacity(products.len());
    for Product { weight, out } in products {
        let outs = weight.outs();
        assert_eq!(x.inputs(), weight.inputs(), "inputs of a product");
        assert_eq!(out.len(), rows * outs, "output of {rows} rows of {outs}");
        parts.push((claims, *weight, Shared::new(out)));
        claims += weight.tiles().div_ceil(TOGETHER);
    }
    let ask = rows > 1 || !finds_streams();
    let mut most = 0;
    kernels.packed_together(&mut most);
    let panel = (PANEL / size_of::<Rounded>() / x.blocks().max(1) / 8 * 8).clamp(32, 128);
    pool.run(rows.div_ceil(panel) * claims, &|task| {
        let (panel, claim) = (task / claims * panel..rows.min((task / claims + 1) * panel), task % claims);
        let part = parts.partition_point(|(first, ..)| *first <= claim) - 1;
        let (first, weight, out) = &parts[part];
        let (outs, tiles) =
            (weight.outs(), (claim - first) * TOGETHER..weight.tiles().min((claim - first + 1) * TOGETHER));
        let mut sums = Vec::with_capacity(panel.len());
        for tile in tiles {
            sums.clear();
            sums.resize(panel.len(), [0f32; TILE_ROWS]);
            let product = TileProduct { kind: weight.kind(), blocks: weight.tile(tile), x, rows: panel.clone(), ask };
            multiply(kernels, product, most, &mut sums);
            let columns = tile * TILE_ROWS..outs.min((tile + 1) * TILE_ROWS);
            for (row, sums) in panel.clone().zip(&sums) {
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

/// One tile: by the kernel for exactly as many rows if there is one, in two halves if there is one for those. `most` is the most rows
/// that have one.
fn multiply(kernels: &Kernels, product: TileProduct<'_>, most: usize, sums: &mut [[f32; TILE_ROWS]]) {
    let rows = product.rows.clone();
    match rows.len() {
        0 => {}
        n if n > 2 * most => kernels.packed_any(&product, sums),
        n if n > most => {
            let (first, second) = sums.split_at_mut(n.div_ceil(2));
            let middle = rows.start + first.len();
            multiply(kernels, TileProduct { rows: rows.start..middle, ..product }, most, first);
            multiply(kernels, TileProduct { rows: middle..rows.end, ask: false, ..product }, most, second);
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

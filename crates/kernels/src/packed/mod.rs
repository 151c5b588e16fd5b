//! Products with packed quantized weights: 8-bit activations, integer sums, one float operation per 256 inputs.
//!
//! Weights are packed once at load into tiles of sixteen output rows ([`layout`]); activations are rounded to 8 bits by one rule
//! for all encodings and instruction sets ([`Activations`]). What a product is, is written down as the scalar
//! [`tile::Tile`] computes it, and every instruction set gives the same bits: the integer parts are exact, the float parts have
//! one order.

pub mod activations;
mod kernels;
pub mod layout;
mod pack;
pub mod tile;

pub use activations::Activations;
pub use layout::{Packed, PackedRows};

pub(crate) use kernels::{affine4, q4_k, q5_k, q6_k};

use crate::dispatch::Kernels;
use crate::pool::{Pool, Shared};
use layout::Kind;
use tile::TILE_ROWS;

/// Tiles that a thread takes at once.
const TOGETHER: usize = 2;

/// One tile of weights against every row of activations.
pub(crate) struct TileProduct<'a> {
    /// The tile's blocks.
    pub blocks: &'a [u8],
    /// Inputs that share a scale, where that varies.
    pub group: usize,
    /// Whether scales are bf16 rather than f16.
    pub brain: bool,
    /// The activations.
    pub x: &'a Activations,
}

/// `x` (rows, k) times the packed weight (outs, k) transposed, into `out` (rows, outs).
///
/// # Panics
/// If the lengths do not belong together.
pub fn matmul(kernels: &Kernels, pool: &Pool, x: &Activations, weight: &Packed, out: &mut [f32]) {
    let (rows, outs) = (x.rows(), weight.outs());
    assert_eq!(x.inputs(), weight.inputs(), "inputs of a product");
    assert_eq!(out.len(), rows * outs, "output of {rows} rows of {outs}");
    let out = Shared::new(out);
    let tiles = weight.tiles();
    pool.run(tiles.div_ceil(TOGETHER), &|claim| {
        let mut sums = vec![[0f32; TILE_ROWS]; rows];
        for tile in claim * TOGETHER..tiles.min((claim + 1) * TOGETHER) {
            let product = TileProduct { blocks: weight.tile(tile), group: weight.group(), brain: weight.brain(), x };
            match weight.kind() {
                Kind::Q4K => kernels.packed_q4_k(&product, &mut sums),
                Kind::Q5K => kernels.packed_q5_k(&product, &mut sums),
                Kind::Q6K => kernels.packed_q6_k(&product, &mut sums),
                Kind::Affine4 => kernels.packed_affine4(&product, &mut sums),
            }
            let columns = tile * TILE_ROWS..outs.min((tile + 1) * TILE_ROWS);
            for (row, sums) in sums.iter().enumerate() {
                // SAFETY: tiles are disjoint ranges of columns, and each is given to one thread once.
                let part = unsafe { out.slice(row * outs + columns.start..row * outs + columns.end) };
                part.copy_from_slice(&sums[..columns.len()]);
            }
        }
    });
}

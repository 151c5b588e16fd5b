//! How packed weights lie in memory.
//!
//! A matrix is a sequence of tiles of sixteen output rows (the last one padded with zeros), a tile a sequence of blocks of 256
//! inputs, and a block is a header of scales followed by lines of codes, so that a product reads memory once and in order. A
//! line holds four inputs of each row; 4-bit codes share a line by nibbles: inputs 8 j .. 8 j + 3 in the low ones, 8 j + 4 ..
//! 8 j + 7 in the high ones. Scales stay in the bits that the file has them in.

use super::pack::pack_tile;
use super::tile::{LINE, TILE_ROWS};
use glimmer_encoding::{Encoding, FloatType, GgmlType, WeightView};

/// Inputs of a block.
pub const BLOCK: usize = 256;

/// The packed layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 4-bit codes; per 256 inputs f16 scales for scales and mins, per 32 a 6-bit scale and a 6-bit min.
    Q4K,
    /// The same with 5-bit codes.
    Q5K,
    /// 6-bit codes minus 32; per 256 inputs an f16 scale, per 16 an 8-bit scale.
    Q6K,
    /// 4-bit codes; per group of 32, 64 or 128 a 16-bit scale and bias.
    Affine4,
}

/// A packed weight matrix (outs, inputs).
pub struct Packed {
    kind: Kind,
    group: usize,
    brain: bool,
    outs: usize,
    inputs: usize,
    tile_bytes: usize,
    data: Vec<u8>,
}

impl Packed {
    /// Whether an encoding has a packed layout.
    pub fn exists(encoding: Encoding) -> bool {
        layout_of(encoding).is_some()
    }

    /// A matrix of zeros, to be filled; `None` where the encoding has no packed layout or there is no memory.
    pub fn zeros(encoding: Encoding, outs: usize, inputs: usize) -> Option<Self> {
        let (kind, group, brain) = layout_of(encoding)?;
        let tile_bytes = inputs.div_ceil(BLOCK).checked_mul(block_bytes(kind, group))?;
        let data = crate::memory::zeros(outs.div_ceil(TILE_ROWS).checked_mul(tile_bytes)?)?;
        Some(Self { kind, group, brain, outs, inputs, tile_bytes, data })
    }

    /// Pieces of `rows` rows each, the last with what is left, to be filled by as many threads as there are.
    ///
    /// # Panics
    /// If `rows` is no multiple of sixteen.
    pub fn pieces(&mut self, rows: usize) -> Vec<PackedRows<'_>> {
        assert!(rows > 0 && rows.is_multiple_of(TILE_ROWS), "pieces of {rows} rows");
        let Self { kind, group, outs, inputs, tile_bytes, .. } = *self;
        let pieces = self.data.chunks_mut((rows / TILE_ROWS * tile_bytes).max(1)).enumerate();
        pieces
            .map(|(i, data)| PackedRows { kind, group, rows: rows.min(outs - i * rows), inputs, tile_bytes, data })
            .collect()
    }

    /// Output rows.
    pub fn outs(&self) -> usize {
        self.outs
    }

    /// Inputs of a row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn group(&self) -> usize {
        self.group
    }

    pub(crate) fn brain(&self) -> bool {
        self.brain
    }

    pub(crate) fn tiles(&self) -> usize {
        self.outs.div_ceil(TILE_ROWS)
    }

    pub(crate) fn tile(&self, tile: usize) -> &[u8] {
        &self.data[tile * self.tile_bytes..(tile + 1) * self.tile_bytes]
    }
}

/// Rows of a packed matrix, in whole tiles.
pub struct PackedRows<'a> {
    kind: Kind,
    group: usize,
    rows: usize,
    inputs: usize,
    tile_bytes: usize,
    data: &'a mut [u8],
}

impl PackedRows<'_> {
    /// Packs all of its rows, which are those of `view`, over zeros or over others.
    ///
    /// # Panics
    /// If the view is of another shape or encoding.
    pub fn fill(&mut self, view: &WeightView<'_>) {
        let layout = layout_of(view.encoding()).map(|(kind, group, _)| (kind, group));
        assert_eq!(layout, Some((self.kind, self.group)), "layout of {}", view.encoding());
        assert_eq!((view.rows(), view.cols()), (self.rows, self.inputs), "shape of a piece");
        for (tile, bytes) in self.data.chunks_exact_mut(self.tile_bytes.max(1)).enumerate() {
            let rows = tile * TILE_ROWS..self.rows.min((tile + 1) * TILE_ROWS);
            pack_tile(self.kind, self.group, view, rows, bytes);
        }
    }
}

/// The layout of an encoding, the inputs that share a scale, and whether scales are bf16.
fn layout_of(encoding: Encoding) -> Option<(Kind, usize, bool)> {
    match encoding {
        Encoding::Ggml(GgmlType::Q4K) => Some((Kind::Q4K, 32, false)),
        Encoding::Ggml(GgmlType::Q5K) => Some((Kind::Q5K, 32, false)),
        Encoding::Ggml(GgmlType::Q6K) => Some((Kind::Q6K, 16, false)),
        Encoding::Affine { bits: 4, group, scale: FloatType::F16 } => Some((Kind::Affine4, group as usize, false)),
        Encoding::Affine { bits: 4, group, scale: FloatType::BF16 } => Some((Kind::Affine4, group as usize, true)),
        _ => None,
    }
}

/// Header and codes of a block.
pub(crate) const fn block_bytes(kind: Kind, group: usize) -> usize {
    let nibbles = BLOCK * TILE_ROWS / 2;
    match kind {
        Kind::Q4K => K_HEADER + nibbles,
        Kind::Q5K => K_HEADER + nibbles + BLOCK * TILE_ROWS / 8,
        Kind::Q6K => Q6_HEADER + nibbles + BLOCK * TILE_ROWS / 4,
        Kind::Affine4 => BLOCK / group * 4 * TILE_ROWS + nibbles,
    }
}

/// d, dmin (f16 each), and three words of packed 6-bit scales and mins per row.
pub(crate) const K_HEADER: usize = 2 * 2 * TILE_ROWS + 3 * LINE;
/// d (f16), and four words of 8-bit scales per row.
pub(crate) const Q6_HEADER: usize = 2 * TILE_ROWS + 4 * LINE;

//! Packing: from the rows of a file to tiles.

use super::layout::{BLOCK, Kind, Scale, put_codes};
use super::tile::{LINE, TILE_ROWS};
use crate::memory::{Arena, Buffer};
use glimmer_encoding::{Encoding, GgmlType, Parts, Sixteenths, WeightView, unpack_codes};
use std::ops::Range;

/// A packed weight matrix (outs, inputs).
pub struct Packed {
    encoding: Encoding,
    kind: Kind,
    outs: usize,
    inputs: usize,
    tile_bytes: usize,
    factor: f32,
    data: Buffer<u8>,
}

impl Packed {
    /// Whether an encoding has a packed layout.
    pub fn exists(encoding: Encoding) -> bool {
        Kind::of(encoding).is_some()
    }

    /// Bits that a weight of this encoding takes in memory, scales included, where it has a packed layout.
    pub fn bits_per_weight(encoding: Encoding) -> Option<f64> {
        Kind::of(encoding).map(|kind| (8 * kind.block_bytes()) as f64 / (BLOCK * TILE_ROWS) as f64)
    }

    /// A matrix of zeros, in an arena or alone, to be filled; `None` where the encoding has no packed layout or there is no memory.
    pub fn zeros(arena: Option<&Arena>, encoding: Encoding, outs: usize, inputs: usize) -> Option<Self> {
        let kind = Kind::of(encoding)?;
        let tile_bytes = inputs.div_ceil(BLOCK).checked_mul(kind.block_bytes())?;
        let data = Buffer::zeros_in(arena, outs.div_ceil(TILE_ROWS).checked_mul(tile_bytes)?)?;
        Some(Self { encoding, kind, outs, inputs, tile_bytes, factor: 1.0, data })
    }

    /// Pieces of `rows` rows each, the last with what is left, to be filled by as many threads as there are.
    ///
    /// # Panics
    /// If `rows` is no multiple of sixteen.
    pub fn pieces(&mut self, rows: usize) -> Vec<PackedRows<'_>> {
        assert!(rows > 0 && rows.is_multiple_of(TILE_ROWS), "pieces of {rows} rows");
        let Self { encoding, kind, outs, inputs, tile_bytes, .. } = *self;
        let pieces = self.data.chunks_mut((rows / TILE_ROWS * tile_bytes).max(1)).enumerate();
        pieces
            .map(|(i, data)| PackedRows { encoding, kind, rows: rows.min(outs - i * rows), inputs, tile_bytes, data })
            .collect()
    }

    /// Sets what every product is multiplied with, last: the scale of the whole tensor, where it has one.
    pub fn set_global_scale(&mut self, scale: Option<f32>) {
        self.factor = scale.unwrap_or(1.0);
    }

    /// Output rows.
    pub fn outs(&self) -> usize {
        self.outs
    }

    /// Inputs of a row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Whether the other is of the same shape and lies in memory alike.
    pub fn is_like(&self, other: &Self) -> bool {
        (self.kind, self.outs, self.inputs) == (other.kind, other.outs, other.inputs)
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// What every product is multiplied with, last.
    pub(super) fn factor(&self) -> f32 {
        self.factor
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn tiles(&self) -> usize {
        self.outs.div_ceil(TILE_ROWS)
    }

    /// Some tiles, one after the other.
    pub(super) fn tiles_of(&self, tiles: Range<usize>) -> &[u8] {
        &self.data[tiles.start * self.tile_bytes..tiles.end * self.tile_bytes]
    }
}

/// Rows of a packed matrix, in whole tiles.
pub struct PackedRows<'a> {
    encoding: Encoding,
    kind: Kind,
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
        assert_eq!(view.encoding(), self.encoding, "encoding of a piece");
        assert_eq!((view.rows(), view.cols()), (self.rows, self.inputs), "shape of a piece");
        for (tile, bytes) in self.data.chunks_exact_mut(self.tile_bytes.max(1)).enumerate() {
            bytes.fill(0);
            for row in 0..TILE_ROWS.min(self.rows - tile * TILE_ROWS) {
                pack_row(self.kind, self.encoding, view.row(tile * TILE_ROWS + row), row, bytes);
            }
        }
    }
}

/// Puts one row of the matrix into its place among the sixteen of a tile, whose bytes were zero.
fn pack_row(kind: Kind, encoding: Encoding, parts: Parts<'_>, row: usize, tile: &mut [u8]) {
    for (number, block) in tile.chunks_exact_mut(kind.block_bytes()).enumerate() {
        let (header, area) = block.split_at_mut(kind.header());
        let mut codes = [0; BLOCK];
        match encoding {
            Encoding::Ggml(ggml) => {
                let per_block = BLOCK / ggml.block() * ggml.block_bytes();
                let from = &parts.codes[number * per_block..parts.codes.len().min((number + 1) * per_block)];
                let blocks = from.chunks_exact(ggml.block_bytes()).zip(codes.chunks_exact_mut(ggml.block()));
                for (i, (block, codes)) in blocks.enumerate() {
                    ggml.codes(block, codes);
                    scales(kind, ggml, block, i * ggml.block(), row, header);
                }
            }
            _ => grouped(kind, parts, number, row, header, &mut codes),
        }
        put_codes(kind.codes(), area, row, &codes);
    }
}

fn put(header: &mut [u8], at: usize, bytes: &[u8]) {
    header[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The scales of a block of ggml, whose first input is number `first` of the packed block.
fn scales(kind: Kind, ggml: GgmlType, block: &[u8], first: usize, row: usize, header: &mut [u8]) {
    match kind {
        Kind::KQuant(_) | Kind::Q2K => {
            let (words, at) = if kind == Kind::Q2K { (&block[..16], LINE) } else { (&block[4..16], 4 * TILE_ROWS) };
            for (i, &half) in ggml.halves().iter().enumerate() {
                put(header, 2 * (i * TILE_ROWS + row), &block[half..half + 2]);
            }
            put_words(header, at, row, words);
        }
        Kind::Q3K | Kind::Q6K | Kind::Book(_) => {
            let Some(Sixteenths { d, factors }) = ggml.sixteenths(block) else { return };
            // Those beside values of a table are raised by 128.
            let raise = if matches!(kind, Kind::Book(_)) { 0x80 } else { 0 };
            put(header, 2 * row, &d);
            put_words(header, LINE, row, &factors.map(|factor| factor as u8 ^ raise));
        }
        Kind::Grouped { scale: scale @ (Scale::E8M0 | Scale::E4M3), group, .. } => {
            for (i, &byte) in block[..ggml.block() / group].iter().enumerate() {
                // In ggml, e4m3 has no sign, and what is not a number is 0.
                let byte = match scale {
                    Scale::E4M3 if byte == 0x7f => 0,
                    Scale::E4M3 => byte & 0x7f,
                    _ => byte,
                };
                put(header, (first / group + i) * TILE_ROWS + row, &[byte]);
            }
        }
        Kind::Grouped { scale, group, .. } => {
            // A block may be more than one group.
            for g in first / group..(first + ggml.block()).div_ceil(group) {
                for (i, &half) in ggml.halves().iter().enumerate() {
                    let at = g * scale.bytes() * TILE_ROWS + 2 * (i * TILE_ROWS + row);
                    put(header, at, &block[half..half + 2]);
                }
            }
        }
    }
}

/// Words of four bytes, one in each line.
fn put_words(header: &mut [u8], at: usize, row: usize, bytes: &[u8]) {
    for (i, word) in bytes.as_chunks::<4>().0.iter().enumerate() {
        put(header, at + i * LINE + 4 * row, word);
    }
}

/// Encodings that keep scales and biases apart from codes, which are one stream of bits.
fn grouped(kind: Kind, parts: Parts<'_>, number: usize, row: usize, header: &mut [u8], codes: &mut [u8; BLOCK]) {
    let Kind::Grouped { codes: form, group, scale } = kind else { return };
    let bits = form.bits();
    let per_block = BLOCK / 8 * bits;
    let from = &parts.codes[number * per_block..parts.codes.len().min((number + 1) * per_block)];
    unpack_codes(bits as u8, from, &mut codes[..from.len() * 8 / bits]);
    // A bias is as long as its scale.
    let stride = scale.bytes() * TILE_ROWS;
    let size = if parts.biases.is_empty() { scale.bytes() } else { scale.bytes() / 2 };
    let groups = BLOCK / group;
    for (g, scale) in parts.scales.chunks_exact(size).skip(number * groups).take(groups).enumerate() {
        put(header, g * stride + size * row, scale);
    }
    for (g, bias) in parts.biases.chunks_exact(size).skip(number * groups).take(groups).enumerate() {
        put(header, g * stride + size * (TILE_ROWS + row), bias);
    }
}

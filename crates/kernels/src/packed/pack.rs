//! Packing: from the rows of a file to tiles.

use super::layout::{BLOCK, Kind, put_codes};
use super::tile::{LINE, TILE_ROWS};
use crate::memory::Buffer;
use glimmer_encoding::{Encoding, GgmlType, Parts, WeightView, unpack_codes};

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

    /// A matrix of zeros, to be filled; `None` where the encoding has no packed layout or there is no memory.
    pub fn zeros(encoding: Encoding, outs: usize, inputs: usize) -> Option<Self> {
        let kind = Kind::of(encoding)?;
        let tile_bytes = inputs.div_ceil(BLOCK).checked_mul(kind.block_bytes())?;
        let data = Buffer::zeros(outs.div_ceil(TILE_ROWS).checked_mul(tile_bytes)?)?;
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

    pub(super) fn tile(&self, tile: usize) -> &[u8] {
        &self.data[tile * self.tile_bytes..(tile + 1) * self.tile_bytes]
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
                match ggml {
                    GgmlType::Q4K => k_quant(from, &from[16..], row, header, &mut codes),
                    GgmlType::Q5K => {
                        k_quant(from, &from[48..], row, header, &mut codes);
                        // Bit s of high byte i is the fifth bit of input 32 s + i.
                        for (s, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                            codes.iter_mut().zip(&from[16..48]).for_each(|(c, high)| *c |= (high >> s & 1) << 4);
                        }
                    }
                    GgmlType::Q6K => q6_k(from, row, header, &mut codes),
                    GgmlType::Q4_0 => {
                        for (g, from) in from.as_chunks::<18>().0.iter().enumerate() {
                            put(header, g * 2 * TILE_ROWS + 2 * row, &from[..2]);
                            let (low, high) = codes[32 * g..32 * g + 32].split_at_mut(16);
                            for ((low, high), code) in low.iter_mut().zip(high).zip(&from[2..]) {
                                (*low, *high) = (code & 15, code >> 4);
                            }
                        }
                    }
                    GgmlType::Q8_0 => {
                        for (g, from) in from.as_chunks::<34>().0.iter().enumerate() {
                            put(header, g * 2 * TILE_ROWS + 2 * row, &from[..2]);
                            codes[32 * g..32 * g + 32].iter_mut().zip(&from[2..]).for_each(|(c, b)| *c = b ^ 0x80);
                        }
                    }
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

/// d, dmin and the twelve bytes of scales and mins of a K-quant block, and its nibbles: 32 bytes hold 64 inputs, the first 32 in
/// the low ones.
fn k_quant(from: &[u8], nibbles: &[u8], row: usize, header: &mut [u8], codes: &mut [u8; BLOCK]) {
    put(header, 2 * row, &from[..2]);
    put(header, 2 * TILE_ROWS + 2 * row, &from[2..4]);
    for word in 0..3 {
        put(header, 4 * TILE_ROWS + word * LINE + 4 * row, &from[4 + 4 * word..8 + 4 * word]);
    }
    for (codes, bytes) in codes.as_chunks_mut::<64>().0.iter_mut().zip(nibbles.as_chunks::<32>().0) {
        let (low, high) = codes.split_at_mut(32);
        low.iter_mut().zip(bytes).for_each(|(c, b)| *c = b & 15);
        high.iter_mut().zip(bytes).for_each(|(c, b)| *c = b >> 4);
    }
}

/// 128 bytes of low halves, 64 of upper bits, 16 scales, d. Two halves of 128 inputs, four quarters of 32 each.
fn q6_k(from: &[u8], row: usize, header: &mut [u8], codes: &mut [u8; BLOCK]) {
    put(header, 2 * row, &from[208..210]);
    for word in 0..4 {
        put(header, (word + 1) * LINE + 4 * row, &from[192 + 4 * word..196 + 4 * word]);
    }
    for (at, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (half, quarter) = (at / 4, at % 4);
        let low = &from[64 * half + 32 * (quarter % 2)..][..32];
        let high = &from[128 + 32 * half..][..32];
        for ((code, low), high) in codes.iter_mut().zip(low).zip(high) {
            *code = low >> (4 * (quarter / 2)) & 15 | (high >> (2 * quarter) & 3) << 4;
        }
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

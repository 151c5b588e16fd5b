//! Packing: from rows as files have them to tiles.
//!
//! Of each block of a tile, the codes of all sixteen rows become bytes first, which is all that an encoding has to know;
//! then the lines are written from those, which is all that the layout has to know.

use super::layout::{BLOCK, K_HEADER, Kind, Q6_HEADER, block_bytes};
use super::tile::{LINE, TILE_ROWS};
use glimmer_encoding::{Parts, WeightView};
use std::ops::Range;

/// The codes of a block, each in a byte: row by row.
type Codes = [[u8; BLOCK]; TILE_ROWS];

/// Bytes of the lines that hold the lower four bits of a block's codes.
const NIBBLES: usize = BLOCK * TILE_ROWS / 2;

/// Packs at most sixteen rows of `view`. What belongs to rows that there are not is left as it is.
pub(super) fn pack_tile(kind: Kind, group: usize, view: &WeightView<'_>, rows: Range<usize>, tile: &mut [u8]) {
    let mut codes: Codes = [[0; BLOCK]; TILE_ROWS];
    let parts: Vec<Parts<'_>> = rows.map(|row| view.row(row)).collect();
    for (number, to) in tile.chunks_exact_mut(block_bytes(kind, group)).enumerate() {
        let rows = parts.iter().zip(&mut codes).enumerate();
        match kind {
            Kind::Q4K => {
                rows.for_each(|(row, (parts, codes))| q4_k(block(parts, number), row, codes, to));
                nibbles(&codes, &mut to[K_HEADER..]);
            }
            Kind::Q5K => {
                rows.for_each(|(row, (parts, codes))| q5_k(block(parts, number), row, codes, to));
                nibbles(&codes, &mut to[K_HEADER..]);
                tops::<1>(&codes, &mut to[K_HEADER + NIBBLES..]);
            }
            Kind::Q6K => {
                rows.for_each(|(row, (parts, codes))| q6_k(block(parts, number), row, codes, to));
                nibbles(&codes, &mut to[Q6_HEADER..]);
                tops::<2>(&codes, &mut to[Q6_HEADER + NIBBLES..]);
            }
            Kind::Affine4 => {
                rows.for_each(|(row, (parts, codes))| affine4(parts, number, group, row, codes, to));
                nibbles(&codes, &mut to[BLOCK / group * 4 * TILE_ROWS..]);
            }
        }
    }
}

/// Block `number` of a row of blocks of N bytes.
fn block<'a, const N: usize>(parts: &Parts<'a>, number: usize) -> &'a [u8; N] {
    &parts.codes.as_chunks().0[number]
}

/// Puts a number of a row's header into its place: `at` is where the numbers of row 0 begin.
fn put<const N: usize>(to: &mut [u8], at: usize, row: usize, from: &[u8]) {
    to[at + N * row..at + N * (row + 1)].copy_from_slice(&from[..N]);
}

fn q4_k(block: &[u8; 144], row: usize, codes: &mut [u8; BLOCK], to: &mut [u8]) {
    k_header(block, row, to);
    k_nibbles(&block[16..], codes);
}

fn q5_k(block: &[u8; 176], row: usize, codes: &mut [u8; BLOCK], to: &mut [u8]) {
    k_header(block, row, to);
    k_nibbles(&block[48..], codes);
    // Bit s of byte i is the fifth bit of input 32 s + i.
    for (s, codes) in codes.chunks_exact_mut(32).enumerate() {
        codes.iter_mut().zip(&block[16..48]).for_each(|(code, &byte)| *code |= (byte >> s & 1) << 4);
    }
}

fn q6_k(block: &[u8; 210], row: usize, codes: &mut [u8; BLOCK], to: &mut [u8]) {
    put::<2>(to, 0, row, &block[208..]);
    for word in 0..4 {
        put::<4>(to, 2 * TILE_ROWS + word * LINE, row, &block[192 + 4 * word..]);
    }
    // Two halves of 128 inputs, four quarters of 32 each.
    for (i, codes) in codes.chunks_exact_mut(32).enumerate() {
        let (half, quarter) = (i / 4, i % 4);
        let low = &block[64 * half + 32 * (quarter % 2)..][..32];
        let high = &block[128 + 32 * half..][..32];
        for ((code, &low), &high) in codes.iter_mut().zip(low).zip(high) {
            *code = low >> (4 * (quarter / 2)) & 15 | (high >> (2 * quarter) & 3) << 4;
        }
    }
}

fn affine4(parts: &Parts<'_>, number: usize, group: usize, row: usize, codes: &mut [u8; BLOCK], to: &mut [u8]) {
    let packed = parts.codes.chunks(BLOCK / 2).nth(number).unwrap_or_default();
    let first = number * BLOCK / group;
    for g in 0..2 * packed.len() / group {
        let (at, from) = (g * 4 * TILE_ROWS, 2 * (first + g));
        put::<2>(to, at, row, &parts.scales[from..]);
        put::<2>(to, at + 2 * TILE_ROWS, row, &parts.biases[from..]);
    }
    let (pairs, _) = codes.as_chunks_mut::<2>();
    pairs.iter_mut().zip(packed).for_each(|(pair, &byte)| *pair = [byte & 15, byte >> 4]);
    codes[2 * packed.len()..].fill(0);
}

/// d, dmin and the twelve bytes of scales and mins of a K-quant block.
fn k_header(header: &[u8], row: usize, to: &mut [u8]) {
    put::<2>(to, 0, row, header);
    put::<2>(to, 2 * TILE_ROWS, row, &header[2..]);
    for word in 0..3 {
        put::<4>(to, 4 * TILE_ROWS + word * LINE, row, &header[4 + 4 * word..]);
    }
}

/// The nibbles of a K-quant block: 32 bytes hold 64 inputs, the first 32 in the low nibbles.
fn k_nibbles(bytes: &[u8], codes: &mut [u8; BLOCK]) {
    for (codes, bytes) in codes.chunks_exact_mut(64).zip(bytes.chunks_exact(32)) {
        let (low, high) = codes.split_at_mut(32);
        low.iter_mut().zip(bytes).for_each(|(code, &byte)| *code = byte & 15);
        high.iter_mut().zip(bytes).for_each(|(code, &byte)| *code = byte >> 4);
    }
}

/// Lines of the lower four bits: inputs 8 j .. 8 j + 3 of line j in the low nibbles, 8 j + 4 .. 8 j + 7 in the high ones.
fn nibbles(codes: &Codes, lines: &mut [u8]) {
    let (lines, _) = lines[..NIBBLES].as_chunks_mut::<LINE>();
    for (row, codes) in codes.iter().enumerate() {
        for (line, &eight) in lines.iter_mut().zip(codes.as_chunks::<8>().0) {
            let eight = u64::from_le_bytes(eight) & 0x0f0f_0f0f_0f0f_0f0f;
            let word = eight as u32 | (eight >> 28) as u32;
            line[4 * row..4 * row + 4].copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Lines of the BITS bits above the lower four: group g of four inputs at bit g * BITS of a line's bytes.
fn tops<const BITS: usize>(codes: &Codes, lines: &mut [u8]) {
    let (lines, _) = lines.as_chunks_mut::<LINE>();
    let mask = u32::from_le_bytes([(1 << BITS) - 1; 4]);
    for (row, codes) in codes.iter().enumerate() {
        for (line, codes) in lines.iter_mut().zip(codes.chunks_exact(32 / BITS)) {
            let groups = codes.as_chunks().0.iter().map(|&group| u32::from_le_bytes(group) >> 4 & mask);
            let word = groups.enumerate().fold(0, |word, (g, group)| word | group << (g * BITS));
            line[4 * row..4 * row + 4].copy_from_slice(&word.to_le_bytes());
        }
    }
}

//! The products themselves, one tile against rows of activations, written over [`Tile`].
//!
//! Per block of 256 inputs, ascending: the integer sum is exact; value = d * sum - dmin * mins (one rounding for the second
//! product, one for the whole), then y = scale * value + y by fused multiply-add. Rows of activations are taken
//! together to reuse what was unpacked; each is computed as if it were alone.

#![expect(clippy::needless_range_loop, reason = "a row indexes accumulators and activations at once")]

use super::TileProduct;
use super::layout::{BLOCK, K_HEADER, Kind, Q6_HEADER, block_bytes};
use super::tile::{LINE, TILE_ROWS, Tile};

/// Calls a kernel for groups of rows, as many together as the instruction set likes.
macro_rules! by_rows {
    ($name:ident, $kernel:ident) => {
        /// One tile against every row of activations: `out[r]` takes the sixteen sums of row r.
        #[inline(always)]
        pub(crate) fn $name<T: Tile>(t: T, product: &TileProduct<'_>, out: &mut [[f32; TILE_ROWS]]) {
            let mut row = 0;
            while row < out.len() {
                let left = out.len() - row;
                let rows = &mut out[row..];
                if T::TOGETHER >= 8 && left >= 8 {
                    $kernel::<T, 8>(t, product, row, rows);
                    row += 8;
                } else if T::TOGETHER >= 4 && left >= 4 {
                    $kernel::<T, 4>(t, product, row, rows);
                    row += 4;
                } else if T::TOGETHER >= 2 && left >= 2 {
                    $kernel::<T, 2>(t, product, row, rows);
                    row += 2;
                } else {
                    $kernel::<T, 1>(t, product, row, rows);
                    row += 1;
                }
            }
        }
    };
}

by_rows!(q4_k, q4_k_rows);
by_rows!(q5_k, q5_k_rows);
by_rows!(q6_k, q6_k_rows);
by_rows!(affine4, affine4_rows);

/// The line at an offset.
#[inline(always)]
fn line(block: &[u8], at: usize) -> &[u8; LINE] {
    const ZEROS: &[u8; LINE] = &[0; LINE];
    block[at..at + LINE].as_array().unwrap_or(ZEROS)
}

/// Sixteen 16-bit floats at an offset.
#[inline(always)]
fn floats(block: &[u8], at: usize) -> &[u8; 2 * TILE_ROWS] {
    const ZEROS: &[u8; 2 * TILE_ROWS] = &[0; 2 * TILE_ROWS];
    block[at..at + 2 * TILE_ROWS].as_array().unwrap_or(ZEROS)
}

#[inline(always)]
fn inputs<const N: usize>(codes: &[i8; BLOCK], at: usize) -> &[i8; N] {
    codes[at..at + N].as_array().unwrap_or(&[0; N])
}

#[inline(always)]
fn pair(sums: &[i16], at: usize) -> &[i16; 2] {
    sums[at..at + 2].as_array().unwrap_or(&[0; 2])
}

/// The 4-bit codes of 32 inputs.
#[inline(always)]
fn nibbles<T: Tile>(t: T, block: &[u8], at: usize, part: usize) -> [T::Codes; 8] {
    let (a, b) = (t.line(line(block, at), part), t.line(line(block, at + LINE), part));
    let (c, d) = (t.line(line(block, at + 2 * LINE), part), t.line(line(block, at + 3 * LINE), part));
    [t.low(a), t.high(a), t.low(b), t.high(b), t.low(c), t.high(c), t.low(d), t.high(d)]
}

/// Scales and mins of a K-quant block: words of four bytes each for sub-blocks 0..4 and 4..8.
#[inline(always)]
fn k_scales<T: Tile>(t: T, block: &[u8], part: usize) -> ([T::Codes; 2], [T::Codes; 2]) {
    let at = 4 * TILE_ROWS;
    let a = t.line(line(block, at), part);
    let b = t.line(line(block, at + LINE), part);
    let c = t.line(line(block, at + 2 * LINE), part);
    ([t.six_low(a), t.six_split(c, a)], [t.six_low(b), t.six_split(t.high(c), b)])
}

/// Adds what a K-quant block contributes, once its integer sums are known.
#[inline(always)]
fn k_finish<T: Tile, const R: usize>(
    t: T,
    (block, part, mins): (&[u8], usize, [T::Codes; 2]),
    product: &TileProduct<'_>,
    (first, number): (usize, usize),
    sums: &[T::Int; R],
    y: &mut [T::Float; R],
) {
    let (d, dmin) = (t.halves(floats(block, 0), part), t.halves(floats(block, 2 * TILE_ROWS), part));
    for r in 0..R {
        let s = product.x.sums32(first + r, number);
        let mut min = t.dot_pair::<0>(t.zero(), mins[0], pair(s, 0));
        min = t.dot_pair::<2>(min, mins[0], pair(s, 2));
        min = t.dot_pair::<0>(min, mins[1], pair(s, 4));
        min = t.dot_pair::<2>(min, mins[1], pair(s, 6));
        let value = t.fms(d, t.to_float(sums[r]), t.mul(dmin, t.to_float(min)));
        y[r] = t.fma(t.splat(product.x.scale(first + r, number)), value, y[r]);
    }
}

#[inline(always)]
fn q4_k_rows<T: Tile, const R: usize>(t: T, product: &TileProduct<'_>, first: usize, out: &mut [[f32; TILE_ROWS]]) {
    for part in 0..T::PARTS {
        let mut y = [t.splat(0.0); R];
        for (number, block) in product.blocks.chunks_exact(block_bytes(Kind::Q4K, 32)).enumerate() {
            let (scales, mins) = k_scales(t, block, part);
            let mut sums = [t.zero(); R];
            macro_rules! sub_block {
                ($s:literal) => {
                    let factor = t.factor::<{ $s % 4 }>(scales[$s / 4]);
                    let codes = nibbles(t, block, K_HEADER + $s * 4 * LINE, part);
                    for r in 0..R {
                        let a = product.x.codes(first + r, number);
                        sums[r] = t.dot32(sums[r], &codes, inputs(a, 32 * $s), factor);
                    }
                };
            }
            sub_block!(0);
            sub_block!(1);
            sub_block!(2);
            sub_block!(3);
            sub_block!(4);
            sub_block!(5);
            sub_block!(6);
            sub_block!(7);
            k_finish(t, (block, part, mins), product, (first, number), &sums, &mut y);
        }
        for r in 0..R {
            t.store(y[r], &mut out[r], part);
        }
    }
}

#[inline(always)]
fn q5_k_rows<T: Tile, const R: usize>(t: T, product: &TileProduct<'_>, first: usize, out: &mut [[f32; TILE_ROWS]]) {
    const TOPS: usize = K_HEADER + BLOCK * TILE_ROWS / 2;
    for part in 0..T::PARTS {
        let mut y = [t.splat(0.0); R];
        for (number, block) in product.blocks.chunks_exact(block_bytes(Kind::Q5K, 32)).enumerate() {
            let (scales, mins) = k_scales(t, block, part);
            let mut sums = [t.zero(); R];
            macro_rules! sub_block {
                ($s:literal) => {
                    let factor = t.factor::<{ $s % 4 }>(scales[$s / 4]);
                    let low = nibbles(t, block, K_HEADER + $s * 4 * LINE, part);
                    let tops = t.line(line(block, TOPS + $s * LINE), part);
                    let codes = [
                        [
                            t.with_one::<0>(low[0], tops),
                            t.with_one::<1>(low[1], tops),
                            t.with_one::<2>(low[2], tops),
                            t.with_one::<3>(low[3], tops),
                        ],
                        [
                            t.with_one::<4>(low[4], tops),
                            t.with_one::<5>(low[5], tops),
                            t.with_one::<6>(low[6], tops),
                            t.with_one::<7>(low[7], tops),
                        ],
                    ];
                    for r in 0..R {
                        let a = product.x.codes(first + r, number);
                        sums[r] = t.dot16(sums[r], &codes[0], inputs(a, 32 * $s), factor);
                        sums[r] = t.dot16(sums[r], &codes[1], inputs(a, 32 * $s + 16), factor);
                    }
                };
            }
            sub_block!(0);
            sub_block!(1);
            sub_block!(2);
            sub_block!(3);
            sub_block!(4);
            sub_block!(5);
            sub_block!(6);
            sub_block!(7);
            k_finish(t, (block, part, mins), product, (first, number), &sums, &mut y);
        }
        for r in 0..R {
            t.store(y[r], &mut out[r], part);
        }
    }
}

#[inline(always)]
fn q6_k_rows<T: Tile, const R: usize>(t: T, product: &TileProduct<'_>, first: usize, out: &mut [[f32; TILE_ROWS]]) {
    const TOPS: usize = Q6_HEADER + BLOCK * TILE_ROWS / 2;
    for part in 0..T::PARTS {
        let mut y = [t.splat(0.0); R];
        for (number, block) in product.blocks.chunks_exact(block_bytes(Kind::Q6K, 16)).enumerate() {
            let mut sums = [t.zero(); R];
            let mut offsets = [t.zero(); R];
            for word in 0..4 {
                let scales = t.line(line(block, 2 * TILE_ROWS + word * LINE), part);
                macro_rules! sub_block {
                    ($s:literal) => {
                        let factor = t.signed_factor::<$s>(scales);
                        let at = 4 * word + $s; // of the sixteen
                        let a = t.line(line(block, Q6_HEADER + 2 * at * LINE), part);
                        let b = t.line(line(block, Q6_HEADER + (2 * at + 1) * LINE), part);
                        let tops = t.line(line(block, TOPS + at * LINE), part);
                        let codes = [
                            t.with_two::<0>(t.low(a), tops),
                            t.with_two::<1>(t.high(a), tops),
                            t.with_two::<2>(t.low(b), tops),
                            t.with_two::<3>(t.high(b), tops),
                        ];
                        for r in 0..R {
                            let a = product.x.codes(first + r, number);
                            sums[r] = t.dot16(sums[r], &codes, inputs(a, 16 * at), factor);
                        }
                    };
                }
                sub_block!(0);
                sub_block!(1);
                sub_block!(2);
                sub_block!(3);
                for r in 0..R {
                    let s = product.x.sums16(first + r, number);
                    offsets[r] = t.dot_signed_pair::<0>(offsets[r], scales, pair(s, 4 * word));
                    offsets[r] = t.dot_signed_pair::<2>(offsets[r], scales, pair(s, 4 * word + 2));
                }
            }
            let d = t.halves(floats(block, 0), part);
            for r in 0..R {
                let value = t.mul(d, t.to_float(t.minus_32(sums[r], offsets[r])));
                y[r] = t.fma(t.splat(product.x.scale(first + r, number)), value, y[r]);
            }
        }
        for r in 0..R {
            t.store(y[r], &mut out[r], part);
        }
    }
}

/// Per group, ascending: value = scale * sum + value, then bias * (sum of activations) + value.
#[inline(always)]
fn affine4_rows<T: Tile, const R: usize>(t: T, product: &TileProduct<'_>, first: usize, out: &mut [[f32; TILE_ROWS]]) {
    let group = product.group;
    let header = BLOCK / group * 4 * TILE_ROWS;
    for part in 0..T::PARTS {
        let mut y = [t.splat(0.0); R];
        for (number, block) in product.blocks.chunks_exact(block_bytes(Kind::Affine4, group)).enumerate() {
            let mut values = [t.splat(0.0); R];
            for g in 0..BLOCK / group {
                let at = g * 4 * TILE_ROWS;
                let (scale, bias) = (floats(block, at), floats(block, at + 2 * TILE_ROWS));
                let (scale, bias) = match product.brain {
                    true => (t.brains(scale, part), t.brains(bias, part)),
                    false => (t.halves(scale, part), t.halves(bias, part)),
                };
                let mut sums = [t.zero(); R];
                for s in g * group / 32..(g + 1) * group / 32 {
                    let codes = nibbles(t, block, header + s * 4 * LINE, part);
                    for r in 0..R {
                        let a = product.x.codes(first + r, number);
                        sums[r] = t.dot32_plain(sums[r], &codes, inputs(a, 32 * s));
                    }
                }
                for r in 0..R {
                    let s = product.x.sums32(first + r, number);
                    let sum: i32 = s[g * group / 32..(g + 1) * group / 32].iter().map(|&s| i32::from(s)).sum();
                    values[r] = t.fma(scale, t.to_float(sums[r]), values[r]);
                    values[r] = t.fma(bias, t.splat(sum as f32), values[r]);
                }
            }
            for r in 0..R {
                y[r] = t.fma(t.splat(product.x.scale(first + r, number)), values[r], y[r]);
            }
        }
        for r in 0..R {
            t.store(y[r], &mut out[r], part);
        }
    }
}

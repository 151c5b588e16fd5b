//! [`Tile`] in plain Rust: the sixteen rows are one part.

use crate::isa::Scalar;
use crate::lanes::{BF16, Element, F16};
use crate::packed::layout::slot_of;
use crate::packed::tile::{LINE, TILE_ROWS, Tile};
use glimmer_encoding::{e4m3, e8m0};
use std::array::from_fn;

type Codes = [u8; LINE];
type Int = [i32; TILE_ROWS];
type Float = [f32; TILE_ROWS];

fn each(codes: Codes, f: impl Fn(u8) -> u8) -> Codes {
    codes.map(f)
}

/// The products of a row of a tile with eight inputs for each pair of lines.
fn dot(row: usize, codes: &[Codes], x: &[i8]) -> i32 {
    let (slot, half) = slot_of(row);
    let lines = codes.iter().skip(half).step_by(2);
    let products = lines.zip(x.chunks_exact(8)).flat_map(|(line, x)| line[8 * slot..].iter().zip(x));
    products.map(|(&code, &x)| i32::from(code) * i32::from(x)).sum()
}

impl Tile for Scalar {
    type Codes = Codes;
    type Int = Int;
    type Float = Float;
    type Factor = Int;
    type Sums = Int;

    const PARTS: usize = 1;
    const TOGETHER: usize = 1;

    fn prefetch(self, _: *const u8) {}
    fn line(self, line: &[u8; LINE], _: usize) -> Codes {
        *line
    }
    fn low(self, codes: Codes) -> Codes {
        each(codes, |c| c & 15)
    }
    fn high(self, codes: Codes) -> Codes {
        each(codes, |c| c >> 4)
    }
    fn two<const GROUP: i32>(self, pairs: Codes) -> Codes {
        each(pairs, |c| c >> (2 * GROUP) & 3)
    }
    fn with_two<const GROUP: i32>(self, low: Codes, pairs: Codes) -> Codes {
        from_fn(|i| low[i] | (pairs[i] >> (2 * GROUP) & 3) << 4)
    }
    fn with_one<const FROM: i32, const TO: i32>(self, low: Codes, ones: Codes) -> Codes {
        from_fn(|i| low[i] | (ones[i] >> FROM & 1) << TO)
    }
    fn lookup(self, codes: Codes, table: &[u8; 16]) -> Codes {
        each(codes, |c| table[usize::from(c)])
    }
    fn no_sums(self) -> Int {
        [0; TILE_ROWS]
    }
    fn dot32<const BITS: u32>(self, sums: Int, codes: &[Codes; 8], x: &[i8; 32], factor: Int) -> Int {
        from_fn(|row| sums[row] + factor[row] * dot(row, codes, x))
    }
    fn dot16_centred(self, sums: Int, codes: &[Codes; 4], x: &[i8; 16], centre: &[i32; 2], factor: Int) -> Int {
        from_fn(|row| sums[row] + factor[row] * (dot(row, codes, x) + centre[0] + centre[1]))
    }
    fn scaled(self, sums: Int) -> Int {
        sums
    }
    fn dot16<const BITS: u32>(self, sums: Int, codes: &[Codes; 4], x: &[i8; 16]) -> Int {
        from_fn(|row| sums[row] + dot(row, codes, x))
    }
    fn plain(self, sums: Int) -> Int {
        sums
    }
    fn factor<const AT: i32>(self, words: Codes) -> Int {
        from_fn(|row| i32::from(words[4 * row + AT as usize]))
    }
    fn signed_factor<const AT: i32>(self, words: Codes) -> Int {
        from_fn(|row| i32::from(words[4 * row + AT as usize] as i8))
    }
    fn dot_pair<const AT: i32>(self, sum: Int, words: Codes, pair: &[i16; 2]) -> Int {
        let term = |row: usize, i: usize| i32::from(words[4 * row + AT as usize + i]) * i32::from(pair[i]);
        from_fn(|row| sum[row] + term(row, 0) + term(row, 1))
    }
    fn zero(self) -> Int {
        [0; TILE_ROWS]
    }
    fn six_low(self, words: Codes) -> Codes {
        each(words, |w| w & 0x3f)
    }
    fn six_split(self, nibbles: Codes, tops: Codes) -> Codes {
        from_fn(|i| nibbles[i] & 15 | tops[i] >> 2 & 0x30)
    }
    fn to_float(self, x: Int) -> Float {
        x.map(|x| x as f32)
    }
    fn halves(self, bits: &[u8; 2 * TILE_ROWS], _: usize) -> Float {
        from_fn(|row| F16::widen(u16::from_le_bytes([bits[2 * row], bits[2 * row + 1]])))
    }
    fn brains(self, bits: &[u8; 2 * TILE_ROWS], _: usize) -> Float {
        from_fn(|row| BF16::widen(u16::from_le_bytes([bits[2 * row], bits[2 * row + 1]])))
    }
    fn powers(self, codes: &[u8; TILE_ROWS], _: usize) -> Float {
        codes.map(e8m0)
    }
    fn minifloats(self, codes: &[u8; TILE_ROWS], _: usize) -> Float {
        codes.map(|code| match code & 0x7f {
            0x7f => 480f32.copysign(if code & 0x80 == 0 { 1.0 } else { -1.0 }),
            _ => e4m3(code),
        })
    }
    fn splat(self, x: f32) -> Float {
        [x; TILE_ROWS]
    }
    fn load(self, from: &[f32; TILE_ROWS], _: usize) -> Float {
        *from
    }
    fn store(self, x: Float, to: &mut [f32; TILE_ROWS], _: usize) {
        *to = x;
    }
    fn fma(self, a: Float, b: Float, c: Float) -> Float {
        from_fn(|row| a[row].mul_add(b[row], c[row]))
    }
    fn fms(self, a: Float, b: Float, c: Float) -> Float {
        from_fn(|row| a[row].mul_add(b[row], -c[row]))
    }
    fn mul(self, a: Float, b: Float) -> Float {
        from_fn(|row| a[row] * b[row])
    }
}

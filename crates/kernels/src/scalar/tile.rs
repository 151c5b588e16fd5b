//! [`Tile`] in plain Rust: the sixteen rows are one part.

use crate::isa::Scalar;
use crate::lanes::{BF16, Element, F16};
use crate::packed::tile::{LINE, TILE_ROWS, Tile};
use std::array::from_fn;

type Codes = [[u8; 4]; TILE_ROWS];
type Int = [i32; TILE_ROWS];
type Float = [f32; TILE_ROWS];

fn each(codes: Codes, f: impl Fn(u8) -> u8) -> Codes {
    codes.map(|row| row.map(&f))
}

fn dot(sum: Int, codes: &[Codes], activations: &[i8], factor: Int) -> Int {
    from_fn(|row| {
        let inputs = codes.iter().flat_map(|line| line[row]).zip(activations);
        sum[row] + factor[row] * inputs.map(|(code, &a)| i32::from(code) * i32::from(a)).sum::<i32>()
    })
}

impl Tile for Scalar {
    type Codes = Codes;
    type Int = Int;
    type Float = Float;
    type Factor = Int;

    const PARTS: usize = 1;
    const TOGETHER: usize = 1;

    fn line(self, line: &[u8; LINE], _: usize) -> Codes {
        from_fn(|row| from_fn(|i| line[4 * row + i]))
    }
    fn low(self, codes: Codes) -> Codes {
        each(codes, |c| c & 15)
    }
    fn high(self, codes: Codes) -> Codes {
        each(codes, |c| c >> 4)
    }
    fn with_two<const GROUP: u32>(self, low: Codes, tops: Codes) -> Codes {
        from_fn(|row| from_fn(|i| low[row][i] | (tops[row][i] >> (2 * GROUP) & 3) << 4))
    }
    fn with_one<const GROUP: u32>(self, low: Codes, tops: Codes) -> Codes {
        from_fn(|row| from_fn(|i| low[row][i] | (tops[row][i] >> GROUP & 1) << 4))
    }
    fn dot32_plain(self, sum: Int, codes: &[Codes; 8], activations: &[i8; 32]) -> Int {
        dot(sum, codes, activations, [1; TILE_ROWS])
    }
    fn dot32(self, sum: Int, codes: &[Codes; 8], activations: &[i8; 32], factor: Int) -> Int {
        dot(sum, codes, activations, factor)
    }
    fn dot16(self, sum: Int, codes: &[Codes; 4], activations: &[i8; 16], factor: Int) -> Int {
        dot(sum, codes, activations, factor)
    }
    fn factor<const AT: i32>(self, words: Codes) -> Int {
        words.map(|word| i32::from(word[AT as usize]))
    }
    fn signed_factor<const AT: i32>(self, words: Codes) -> Int {
        words.map(|word| i32::from(word[AT as usize] as i8))
    }
    fn dot_pair<const AT: i32>(self, sum: Int, words: Codes, pair: &[i16; 2]) -> Int {
        let term = |row: usize, i: usize| i32::from(words[row][AT as usize + i]) * i32::from(pair[i]);
        from_fn(|row| sum[row] + term(row, 0) + term(row, 1))
    }
    fn dot_signed_pair<const AT: i32>(self, sum: Int, words: Codes, pair: &[i16; 2]) -> Int {
        let term = |row: usize, i: usize| i32::from(words[row][AT as usize + i] as i8) * i32::from(pair[i]);
        from_fn(|row| sum[row] + term(row, 0) + term(row, 1))
    }
    fn zero(self) -> Int {
        [0; TILE_ROWS]
    }
    fn minus_32(self, a: Int, b: Int) -> Int {
        from_fn(|row| a[row] - 32 * b[row])
    }
    fn six_low(self, words: Codes) -> Codes {
        each(words, |w| w & 0x3f)
    }
    fn six_split(self, nibbles: Codes, tops: Codes) -> Codes {
        from_fn(|row| from_fn(|i| nibbles[row][i] & 15 | tops[row][i] >> 2 & 0x30))
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

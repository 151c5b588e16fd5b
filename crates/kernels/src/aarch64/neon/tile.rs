//! [`Tile`] for NEON: the scalar code, which has the same bits, until there are kernels of its own.

use crate::isa::{Neon, Scalar};
use crate::packed::tile::{LINE, TILE_ROWS, Tile};

impl Tile for Neon {
    type Codes = <Scalar as Tile>::Codes;
    type Int = <Scalar as Tile>::Int;
    type Float = <Scalar as Tile>::Float;
    type Factor = <Scalar as Tile>::Factor;

    const PARTS: usize = Scalar::PARTS;
    const TOGETHER: usize = Scalar::TOGETHER;

    fn line(self, line: &[u8; LINE], part: usize) -> Self::Codes {
        Scalar.line(line, part)
    }
    fn low(self, codes: Self::Codes) -> Self::Codes {
        Scalar.low(codes)
    }
    fn high(self, codes: Self::Codes) -> Self::Codes {
        Scalar.high(codes)
    }
    fn with_two<const GROUP: u32>(self, low: Self::Codes, tops: Self::Codes) -> Self::Codes {
        Scalar.with_two::<GROUP>(low, tops)
    }
    fn with_one<const GROUP: u32>(self, low: Self::Codes, tops: Self::Codes) -> Self::Codes {
        Scalar.with_one::<GROUP>(low, tops)
    }
    fn dot32_plain(self, sum: Self::Int, codes: &[Self::Codes; 8], activations: &[i8; 32]) -> Self::Int {
        Scalar.dot32_plain(sum, codes, activations)
    }
    fn dot32(
        self,
        sum: Self::Int,
        codes: &[Self::Codes; 8],
        activations: &[i8; 32],
        factor: Self::Factor,
    ) -> Self::Int {
        Scalar.dot32(sum, codes, activations, factor)
    }
    fn dot16(
        self,
        sum: Self::Int,
        codes: &[Self::Codes; 4],
        activations: &[i8; 16],
        factor: Self::Factor,
    ) -> Self::Int {
        Scalar.dot16(sum, codes, activations, factor)
    }
    fn factor<const AT: i32>(self, words: Self::Codes) -> Self::Factor {
        Scalar.factor::<AT>(words)
    }
    fn signed_factor<const AT: i32>(self, words: Self::Codes) -> Self::Factor {
        Scalar.signed_factor::<AT>(words)
    }
    fn dot_pair<const AT: i32>(self, sum: Self::Int, words: Self::Codes, pair: &[i16; 2]) -> Self::Int {
        Scalar.dot_pair::<AT>(sum, words, pair)
    }
    fn dot_signed_pair<const AT: i32>(self, sum: Self::Int, words: Self::Codes, pair: &[i16; 2]) -> Self::Int {
        Scalar.dot_signed_pair::<AT>(sum, words, pair)
    }
    fn zero(self) -> Self::Int {
        Scalar.zero()
    }
    fn minus_32(self, a: Self::Int, b: Self::Int) -> Self::Int {
        Scalar.minus_32(a, b)
    }
    fn six_low(self, words: Self::Codes) -> Self::Codes {
        Scalar.six_low(words)
    }
    fn six_split(self, nibbles: Self::Codes, tops: Self::Codes) -> Self::Codes {
        Scalar.six_split(nibbles, tops)
    }
    fn to_float(self, x: Self::Int) -> Self::Float {
        Scalar.to_float(x)
    }
    fn halves(self, bits: &[u8; 2 * TILE_ROWS], part: usize) -> Self::Float {
        Scalar.halves(bits, part)
    }
    fn brains(self, bits: &[u8; 2 * TILE_ROWS], part: usize) -> Self::Float {
        Scalar.brains(bits, part)
    }
    fn splat(self, x: f32) -> Self::Float {
        Scalar.splat(x)
    }
    fn load(self, from: &[f32; TILE_ROWS], part: usize) -> Self::Float {
        Scalar.load(from, part)
    }
    fn store(self, x: Self::Float, to: &mut [f32; TILE_ROWS], part: usize) {
        Scalar.store(x, to, part)
    }
    fn fma(self, a: Self::Float, b: Self::Float, c: Self::Float) -> Self::Float {
        Scalar.fma(a, b, c)
    }
    fn fms(self, a: Self::Float, b: Self::Float, c: Self::Float) -> Self::Float {
        Scalar.fms(a, b, c)
    }
    fn mul(self, a: Self::Float, b: Self::Float) -> Self::Float {
        Scalar.mul(a, b)
    }
}

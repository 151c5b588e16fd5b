//! [`Tile`] for NEON: the scalar code, which has the same bits, until there are kernels of its own.

use crate::isa::{Neon, Scalar};
use crate::packed::tile::{LINE, TILE_ROWS, Tile};

impl Tile for Neon {
    type Codes = <Scalar as Tile>::Codes;
    type Int = <Scalar as Tile>::Int;
    type Float = <Scalar as Tile>::Float;
    type Factor = <Scalar as Tile>::Factor;
    type Sums = <Scalar as Tile>::Sums;

    const PARTS: usize = Scalar::PARTS;
    const TOGETHER: usize = Scalar::TOGETHER;

    fn prefetch(self, at: *const u8) {
        Scalar.prefetch(at);
    }
    fn line(self, line: &[u8; LINE], part: usize) -> Self::Codes {
        Scalar.line(line, part)
    }
    fn low(self, codes: Self::Codes) -> Self::Codes {
        Scalar.low(codes)
    }
    fn high(self, codes: Self::Codes) -> Self::Codes {
        Scalar.high(codes)
    }
    fn two<const GROUP: i32>(self, pairs: Self::Codes) -> Self::Codes {
        Scalar.two::<GROUP>(pairs)
    }
    fn with_two<const GROUP: i32>(self, low: Self::Codes, pairs: Self::Codes) -> Self::Codes {
        Scalar.with_two::<GROUP>(low, pairs)
    }
    fn with_one<const FROM: i32, const TO: i32>(self, low: Self::Codes, ones: Self::Codes) -> Self::Codes {
        Scalar.with_one::<FROM, TO>(low, ones)
    }
    fn lookup(self, codes: Self::Codes, table: &[u8; 16]) -> Self::Codes {
        Scalar.lookup(codes, table)
    }
    fn no_sums(self) -> Self::Sums {
        Scalar.no_sums()
    }
    fn dot32<const BITS: u32>(
        self,
        sums: Self::Sums,
        codes: &[Self::Codes; 8],
        x: &[i8; 32],
        factor: Self::Factor,
    ) -> Self::Sums {
        Scalar.dot32::<BITS>(sums, codes, x, factor)
    }
    fn dot16_centred(
        self,
        sums: Self::Sums,
        codes: &[Self::Codes; 4],
        x: &[i8; 16],
        centre: &[i32; 2],
        factor: Self::Factor,
    ) -> Self::Sums {
        Scalar.dot16_centred(sums, codes, x, centre, factor)
    }
    fn scaled(self, sums: Self::Sums) -> Self::Int {
        Scalar.scaled(sums)
    }
    fn dot16(self, sums: Self::Sums, codes: &[Self::Codes; 4], x: &[i8; 16]) -> Self::Sums {
        Scalar.dot16(sums, codes, x)
    }
    fn dot16_bytes(self, sums: Self::Sums, codes: &[Self::Codes; 4], x: &[i8; 16]) -> Self::Sums {
        Scalar.dot16_bytes(sums, codes, x)
    }
    fn plain(self, sums: Self::Sums) -> Self::Int {
        Scalar.plain(sums)
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
    fn zero(self) -> Self::Int {
        Scalar.zero()
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
    fn powers(self, codes: &[u8; TILE_ROWS], part: usize) -> Self::Float {
        Scalar.powers(codes, part)
    }
    fn minifloats(self, codes: &[u8; TILE_ROWS], part: usize) -> Self::Float {
        Scalar.minifloats(codes, part)
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

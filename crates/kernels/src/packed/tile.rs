//! A vector of output rows: the vocabulary that packed integer kernels are written in, once.
//!
//! Packed weights lie in tiles of sixteen output rows ([`layout`](super::layout)). An instruction set takes a tile in one or more
//! parts, each as many rows as a register has 32-bit lanes; in what leaves an integer sum, a lane is an output row. Integer sums are exact,
//! in whatever order they are made, so every instruction set gives the same bits.

use super::activations::Rounded;

/// Output rows of a tile.
pub const TILE_ROWS: usize = 16;
/// Bytes of a line: eight codes for each of half the rows of a tile, or four bytes for each row.
pub const LINE: usize = 4 * TILE_ROWS;

/// The integer operations of one instruction set. A value of the type is the proof that the machine has it.
///
/// Codes come as they lie: lines of the first and the second half of the rows by turns, so that four of them are 16 inputs.
///
/// What is added to sums is also there for N rows of activations, from input `at` on, with something to do once for each row
/// meanwhile. An instruction set that multiplies some rows at once writes these itself, and may then keep the sums of such rows
/// together, in the place of any of them.
pub trait Tile: Copy + Send + Sync + 'static {
    /// Eight unsigned bytes for each of half the rows of a part; or four for each row.
    type Codes: Copy;
    /// A 32-bit integer per row of a part, in order.
    type Int: Copy;
    /// An f32 per row of a part, in order.
    type Float: Copy;
    /// Small factors, one per row, prepared for [`dot32`](Self::dot32).
    type Factor: Copy;
    /// Integer sums of all rows of a part, on their way to one per row.
    type Sums: Copy;

    /// Parts of a tile.
    const PARTS: usize;
    /// Rows of activations that are multiplied together.
    const TOGETHER: usize;

    /// Asks for a line of memory; an address that is none does no harm.
    fn prefetch(self, at: *const u8);
    /// A part of a line.
    fn line(self, line: &[u8; LINE], part: usize) -> Self::Codes;
    /// The low nibble of each byte.
    fn low(self, codes: Self::Codes) -> Self::Codes;
    /// The high nibble of each byte.
    fn high(self, codes: Self::Codes) -> Self::Codes;
    /// Bits 2 GROUP and 2 GROUP + 1 of each byte.
    fn two<const GROUP: i32>(self, pairs: Self::Codes) -> Self::Codes;
    /// `low` with bits 2 GROUP and 2 GROUP + 1 of each byte of `pairs` as its bits 4 and 5.
    fn with_two<const GROUP: i32>(self, low: Self::Codes, pairs: Self::Codes) -> Self::Codes;
    /// `low` with bit FROM of each byte of `ones` as its bit TO; FROM is 0 to 7, TO is 2 or 4.
    fn with_one<const FROM: i32, const TO: i32>(self, low: Self::Codes, ones: Self::Codes) -> Self::Codes;
    /// The byte of a table for each code, which is below 16.
    fn lookup(self, codes: Self::Codes, table: &[u8; 16]) -> Self::Codes;

    /// No sum yet.
    fn no_sums(self) -> Self::Sums;
    /// Adds `factor` times the products of 32 inputs, every code of BITS bits, 4 or 5.
    fn dot32<const BITS: u32>(
        self,
        sums: Self::Sums,
        codes: &[Self::Codes; 8],
        x: &[i8; 32],
        factor: Self::Factor,
    ) -> Self::Sums;
    /// [`dot32`](Self::dot32) for N rows.
    #[inline(always)]
    fn dot32_rows<const BITS: u32, const N: usize>(
        self,
        sums: &mut [Self::Sums; N],
        codes: &[Self::Codes; 8],
        x: &[Rounded; N],
        at: usize,
        factor: Self::Factor,
        meanwhile: impl Fn(usize),
    ) {
        for r in 0..N {
            sums[r] = self.dot32::<BITS>(sums[r], codes, x[r].inputs(at), factor);
            meanwhile(r);
        }
    }
    /// Adds `factor` times the products of 16 inputs with codes minus 32, every code below 64. `centre` is -32 times the sums of
    /// x 0..4 and 8..12, and 4..8 and 12..16.
    fn dot16_centred(
        self,
        sums: Self::Sums,
        codes: &[Self::Codes; 4],
        x: &[i8; 16],
        centre: &[i32; 2],
        factor: Self::Factor,
    ) -> Self::Sums;
    /// [`dot16_centred`](Self::dot16_centred) for N rows.
    #[inline(always)]
    fn dot16_centred_rows<const N: usize>(
        self,
        sums: &mut [Self::Sums; N],
        codes: &[Self::Codes; 4],
        x: &[Rounded; N],
        at: usize,
        factor: Self::Factor,
        meanwhile: impl Fn(usize),
    ) {
        for r in 0..N {
            sums[r] = self.dot16_centred(sums[r], codes, x[r].inputs(at), &x[r].centres[at / 16], factor);
            meanwhile(r);
        }
    }
    /// The sums made by those above, one per row.
    fn scaled(self, sums: Self::Sums) -> Self::Int;
    /// [`scaled`](Self::scaled) of one of the rows of activations.
    #[inline(always)]
    fn scaled_row<const N: usize>(self, sums: &[Self::Sums; N], row: usize) -> Self::Int {
        self.scaled(sums[row])
    }
    /// Adds the products of 16 inputs, every code of at most BITS bits, 6 or 8.
    fn dot16<const BITS: u32>(self, sums: Self::Sums, codes: &[Self::Codes; 4], x: &[i8; 16]) -> Self::Sums;
    /// [`dot16`](Self::dot16) for N rows.
    #[inline(always)]
    fn dot16_rows<const BITS: u32, const N: usize>(
        self,
        sums: &mut [Self::Sums; N],
        codes: &[Self::Codes; 4],
        x: &[Rounded; N],
        at: usize,
        meanwhile: impl Fn(usize),
    ) {
        for r in 0..N {
            sums[r] = self.dot16::<BITS>(sums[r], codes, x[r].inputs(at));
            meanwhile(r);
        }
    }
    /// The sums made by these, one per row.
    fn plain(self, sums: Self::Sums) -> Self::Int;
    /// [`plain`](Self::plain) of one of the rows of activations.
    #[inline(always)]
    fn plain_row<const N: usize>(self, sums: &[Self::Sums; N], row: usize) -> Self::Int {
        self.plain(sums[row])
    }

    /// Byte AT of each row's word as a factor, zero-extended.
    fn factor<const AT: i32>(self, words: Self::Codes) -> Self::Factor;
    /// Byte AT of each row's word as a factor, sign-extended.
    fn signed_factor<const AT: i32>(self, words: Self::Codes) -> Self::Factor;
    /// `sum + bytes[AT] * pair[0] + bytes[AT + 1] * pair[1]` of each row's word, bytes unsigned.
    fn dot_pair<const AT: i32>(self, sum: Self::Int, words: Self::Codes, pair: &[i16; 2]) -> Self::Int;
    /// Zero.
    fn zero(self) -> Self::Int;
    /// (words & 0x3f3f3f3f), the plain 6-bit fields.
    fn six_low(self, words: Self::Codes) -> Self::Codes;
    /// (nibbles & 0x0f0f0f0f) | ((tops >> 2) & 0x30303030): 6-bit fields whose top bits lie elsewhere.
    fn six_split(self, nibbles: Self::Codes, tops: Self::Codes) -> Self::Codes;

    /// To f32 (exact below 2^24 in magnitude, else rounded to nearest).
    fn to_float(self, x: Self::Int) -> Self::Float;
    /// Sixteen-bit floats of a part.
    fn halves(self, bits: &[u8; 2 * TILE_ROWS], part: usize) -> Self::Float;
    /// Brain floats of a part.
    fn brains(self, bits: &[u8; 2 * TILE_ROWS], part: usize) -> Self::Float;
    /// Powers of two (e8m0) of a part; no code is 255.
    fn powers(self, codes: &[u8; TILE_ROWS], part: usize) -> Self::Float;
    /// 8-bit floats (e4m3) of a part; what is not a number goes on from the others as 480.
    fn minifloats(self, codes: &[u8; TILE_ROWS], part: usize) -> Self::Float;
    /// An f32 in every row.
    fn splat(self, x: f32) -> Self::Float;
    /// The rows of a part.
    fn load(self, from: &[f32; TILE_ROWS], part: usize) -> Self::Float;
    /// The rows of a part.
    fn store(self, x: Self::Float, to: &mut [f32; TILE_ROWS], part: usize);
    /// a b + c, rounded once.
    fn fma(self, a: Self::Float, b: Self::Float, c: Self::Float) -> Self::Float;
    /// a b - c, rounded once.
    fn fms(self, a: Self::Float, b: Self::Float, c: Self::Float) -> Self::Float;
    /// a b
    fn mul(self, a: Self::Float, b: Self::Float) -> Self::Float;
}

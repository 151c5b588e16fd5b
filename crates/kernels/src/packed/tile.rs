//! A vector of output rows: the vocabulary that packed integer kernels are written in, once.
//!
//! Packed weights lie in tiles of sixteen output rows. A line of 64 bytes holds, for each of the sixteen rows, four
//! unsigned codes of consecutive inputs. An instruction set takes a tile in one or more parts, each as many rows as a register has
//! 32-bit lanes; a lane is an output row, so that no sum crosses lanes and every instruction set gives the same bits.

/// Output rows of a tile.
pub const TILE_ROWS: usize = 16;
/// Bytes of a line: four codes for each row of a tile.
pub const LINE: usize = 4 * TILE_ROWS;

/// The integer operations of one instruction set. A value of the type is the proof that the machine has it.
pub trait Tile: Copy + Send + Sync + 'static {
    /// Four unsigned bytes per row of a part.
    type Codes: Copy;
    /// A 32-bit integer per row of a part.
    type Int: Copy;
    /// An f32 per row of a part.
    type Float: Copy;
    /// Small factors, one per row, prepared for [`dot32`](Self::dot32).
    type Factor: Copy;

    /// Parts of a tile.
    const PARTS: usize;
    /// Rows of activations that are multiplied together.
    const TOGETHER: usize;

    /// The codes of a part of a line.
    fn line(self, line: &[u8; LINE], part: usize) -> Self::Codes;
    /// The low nibble of each byte.
    fn low(self, codes: Self::Codes) -> Self::Codes;
    /// The high nibble of each byte.
    fn high(self, codes: Self::Codes) -> Self::Codes;
    /// `low` with bits 2 GROUP and 2 GROUP + 1 of each byte of `tops` as its bits 4 and 5.
    fn with_two<const GROUP: u32>(self, low: Self::Codes, tops: Self::Codes) -> Self::Codes;
    /// `low` with bit GROUP of each byte of `tops` as its bit 4.
    fn with_one<const GROUP: u32>(self, low: Self::Codes, tops: Self::Codes) -> Self::Codes;
    /// Adds the products of 32 inputs, every code below 16.
    fn dot32_plain(self, sum: Self::Int, codes: &[Self::Codes; 8], activations: &[i8; 32]) -> Self::Int;
    /// Adds `factor` times the products of 32 inputs, every code below 16.
    fn dot32(self, sum: Self::Int, codes: &[Self::Codes; 8], activations: &[i8; 32], factor: Self::Factor)
    -> Self::Int;
    /// Adds `factor` times the products of 16 inputs, every code below 64.
    fn dot16(self, sum: Self::Int, codes: &[Self::Codes; 4], activations: &[i8; 16], factor: Self::Factor)
    -> Self::Int;
    /// Byte `at` of each row's word as a factor, zero-extended.
    fn factor<const AT: i32>(self, words: Self::Codes) -> Self::Factor;
    /// Byte `at` of each row's word as a factor, sign-extended.
    fn signed_factor<const AT: i32>(self, words: Self::Codes) -> Self::Factor;
    /// `sum + bytes[at] * pair[0] + bytes[at + 1] * pair[1]` of each row's word, bytes unsigned.
    fn dot_pair<const AT: i32>(self, sum: Self::Int, words: Self::Codes, pair: &[i16; 2]) -> Self::Int;
    /// The same with signed bytes.
    fn dot_signed_pair<const AT: i32>(self, sum: Self::Int, words: Self::Codes, pair: &[i16; 2]) -> Self::Int;
    /// Zero.
    fn zero(self) -> Self::Int;
    /// a - 32 b
    fn minus_32(self, a: Self::Int, b: Self::Int) -> Self::Int;

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

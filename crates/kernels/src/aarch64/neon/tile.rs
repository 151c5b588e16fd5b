//! [`Tile`] over 128-bit registers: four rows are a part.
//!
//! Rows of activations are taken by twos where there are products of matrices. The sums of two such rows lie together, in the
//! place of the first; a last row that is alone is multiplied as without.

use super::dot::{One, Rows, Two};
use crate::isa::Neon;
use crate::packed::activations::Rounded;
use crate::packed::tile::{LINE, TILE_ROWS, Tile};
use std::arch::aarch64::*;

/// Two sums for each row: those of the first two rows, those of the others.
type Sums = [int32x4_t; 2];
/// The factor of a row beside each of its sums.
type Factor = [int32x4_t; 2];

/// Adds the products of sixteen inputs for each four of the codes, those of the two halves of the rows by turns.
///
/// # Safety
/// The machine has the instruction of `X`.
#[inline(always)]
unsafe fn add<X: Rows, const N: usize>([mut a, mut b]: Sums, codes: &[int8x16_t; N], x: X) -> Sums {
    for (number, codes) in codes.as_chunks::<4>().0.iter().enumerate() {
        let [x, y] = x.sixteen(16 * number);
        // SAFETY: the caller's promise.
        unsafe {
            a = X::multiply(X::multiply(a, codes[0], x), codes[2], y);
            b = X::multiply(X::multiply(b, codes[1], x), codes[3], y);
        }
    }
    [a, b]
}

/// The same, times a factor.
///
/// # Safety
/// The machine has the instruction of `X`.
#[inline(always)]
unsafe fn add_scaled<X: Rows, const N: usize>(sums: Sums, codes: &[int8x16_t; N], x: X, factor: Factor) -> Sums {
    // SAFETY: every AArch64 machine has what is used, but for what the caller promises.
    unsafe {
        let [a, b] = add([vdupq_n_s32(0); 2], codes, x);
        [vmlaq_s32(sums[0], a, factor[0]), vmlaq_s32(sums[1], b, factor[1])]
    }
}

/// Codes below 128.
#[inline(always)]
fn signed<const N: usize>(codes: &[uint8x16_t; N]) -> [int8x16_t; N] {
    // SAFETY: every AArch64 machine has what is used.
    let mut out = [unsafe { vdupq_n_s8(0) }; N];
    for (out, &codes) in out.iter_mut().zip(codes) {
        // SAFETY: every AArch64 machine has what is used.
        *out = unsafe { vreinterpretq_s8_u8(codes) };
    }
    out
}

/// Codes of 6 bits minus 32.
#[inline(always)]
fn centred<const N: usize>(codes: &[uint8x16_t; N]) -> [int8x16_t; N] {
    let mut out = signed(codes);
    for out in &mut out {
        // SAFETY: every AArch64 machine has what is used.
        *out = unsafe { vsubq_s8(*out, vdupq_n_s8(32)) };
    }
    out
}

/// Each byte shifted left, or right where `by` is negative; zeros come in.
#[inline(always)]
fn shift(bytes: uint8x16_t, by: i32) -> uint8x16_t {
    // SAFETY: every AArch64 machine has what is used.
    unsafe { vshlq_u8(bytes, vdupq_n_s8(by as i8)) }
}

/// Byte `at` of each word, zero-extended.
#[inline(always)]
fn byte(words: uint8x16_t, at: i32) -> int32x4_t {
    // SAFETY: every AArch64 machine has what is used.
    unsafe {
        let moved = vshlq_u32(vreinterpretq_u32_u8(words), vdupq_n_s32(-8 * at));
        vreinterpretq_s32_u32(vandq_u32(moved, vdupq_n_u32(0xff)))
    }
}

/// The bytes of a part, widened.
#[inline(always)]
fn wide(codes: &[u8; TILE_ROWS], part: usize) -> uint16x4_t {
    let quarter = codes[4 * part..4 * part + 4].as_array().map_or([0; 4], |x| *x);
    // SAFETY: every AArch64 machine has what is used.
    unsafe { vget_low_u16(vmovl_u8(vcreate_u8(u32::from_le_bytes(quarter).into()))) }
}

/// A factor of each row, beside both of its sums.
#[inline(always)]
fn beside(factors: int32x4_t) -> Factor {
    // SAFETY: every AArch64 machine has what is used.
    unsafe { [vzip1q_s32(factors, factors), vzip2q_s32(factors, factors)] }
}

/// Replaces the sums of each two of N rows of activations, if there are products of matrices, and of each row that is left; and
/// does what is to be done meanwhile.
///
/// Written out for all rows that are taken together, as the compiler does not unroll a loop that is that long.
macro_rules! by_twos {
    ($sums:ident, $xs:ident, $inputs:literal, $at:ident, $meanwhile:ident, |$sum:ident, $x:ident| $replaced:expr) => {{
        const { assert!(N <= Self::TOGETHER && Self::TOGETHER <= 8) };
        by_twos!(@two 0, 1, ($sums, $xs, $inputs, $at, $meanwhile, $sum, $x, $replaced));
        by_twos!(@two 2, 3, ($sums, $xs, $inputs, $at, $meanwhile, $sum, $x, $replaced));
        by_twos!(@two 4, 5, ($sums, $xs, $inputs, $at, $meanwhile, $sum, $x, $replaced));
        by_twos!(@two 6, 7, ($sums, $xs, $inputs, $at, $meanwhile, $sum, $x, $replaced));
    }};
    (@two $r:literal, $s:literal, $job:tt) => {
        if MATRICES && $s < N {
            by_twos!(@replace $r, Two($r, $s), $job);
        } else {
            if $r < N {
                by_twos!(@replace $r, One($r), $job);
            }
            if $s < N {
                by_twos!(@replace $s, One($s), $job);
            }
        }
    };
    (@replace $to:literal, $rows:ident($($r:literal),*),
     ($sums:ident, $xs:ident, $inputs:literal, $at:ident, $meanwhile:ident, $sum:ident, $x:ident, $replaced:expr)) => {{
        let ($sum, $x) = ($sums[$to], $rows($($xs[$r].inputs::<$inputs>($at)),*));
        // SAFETY: detection found `sdot`, and with matrices `smmla`.
        $sums[$to] = unsafe { $replaced };
        $($meanwhile($r);)*
    }};
}

// SAFETY of every block below: a `Neon` exists only where detection found NEON and `sdot`, and `smmla` if it has matrices; the
// pointers come from references to arrays that are as long as what is read or written.
impl<const MATRICES: bool> Tile for Neon<MATRICES> {
    type Codes = uint8x16_t;
    type Int = int32x4_t;
    type Float = float32x4_t;
    type Factor = Factor;
    type Sums = Sums;

    const PARTS: usize = 4;
    const TOGETHER: usize = 8;

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        super::prefetch(at);
    }
    #[inline(always)]
    fn line(self, line: &[u8; LINE], part: usize) -> uint8x16_t {
        let quarter = &line[16 * part..16 * part + 16];
        // SAFETY: see above; 16 bytes are readable.
        unsafe { vld1q_u8(quarter.as_ptr()) }
    }
    #[inline(always)]
    fn low(self, codes: uint8x16_t) -> uint8x16_t {
        // SAFETY: see above.
        unsafe { vandq_u8(codes, vdupq_n_u8(0x0f)) }
    }
    #[inline(always)]
    fn high(self, codes: uint8x16_t) -> uint8x16_t {
        shift(codes, -4)
    }
    #[inline(always)]
    fn two<const GROUP: i32>(self, pairs: uint8x16_t) -> uint8x16_t {
        // SAFETY: see above.
        unsafe { vandq_u8(shift(pairs, -2 * GROUP), vdupq_n_u8(0x03)) }
    }
    #[inline(always)]
    fn with_two<const GROUP: i32>(self, low: uint8x16_t, pairs: uint8x16_t) -> uint8x16_t {
        // SAFETY: see above.
        unsafe { vsliq_n_u8::<4>(low, self.two::<GROUP>(pairs)) }
    }
    #[inline(always)]
    fn with_one<const FROM: i32, const TO: i32>(self, low: uint8x16_t, ones: uint8x16_t) -> uint8x16_t {
        // SAFETY: see above.
        unsafe { vorrq_u8(low, vandq_u8(shift(ones, TO - FROM), vdupq_n_u8(1 << TO))) }
    }
    #[inline(always)]
    fn lookup(self, codes: uint8x16_t, table: &[u8; 16]) -> uint8x16_t {
        // SAFETY: see above; 16 bytes are readable.
        unsafe { vqtbl1q_u8(vld1q_u8(table.as_ptr()), codes) }
    }
    #[inline(always)]
    fn no_sums(self) -> Sums {
        [self.zero(); 2]
    }
    #[inline(always)]
    fn dot32<const BITS: u32>(self, sums: Sums, codes: &[uint8x16_t; 8], x: &[i8; 32], factor: Factor) -> Sums {
        // SAFETY: see above.
        unsafe { add_scaled(sums, &signed(codes), One(x), factor) }
    }
    #[inline(always)]
    fn dot32_rows<const BITS: u32, const N: usize>(
        self,
        sums: &mut [Sums; N],
        codes: &[uint8x16_t; 8],
        x: &[Rounded; N],
        at: usize,
        factor: Factor,
        meanwhile: impl Fn(usize),
    ) {
        by_twos!(sums, x, 32, at, meanwhile, |sum, x| add_scaled(sum, &signed(codes), x, factor));
    }
    #[inline(always)]
    fn dot16_centred(self, sums: Sums, codes: &[uint8x16_t; 4], x: &[i8; 16], _: &[i32; 2], factor: Factor) -> Sums {
        // SAFETY: see above.
        unsafe { add_scaled(sums, &centred(codes), One(x), factor) }
    }
    #[inline(always)]
    fn dot16_centred_rows<const N: usize>(
        self,
        sums: &mut [Sums; N],
        codes: &[uint8x16_t; 4],
        x: &[Rounded; N],
        at: usize,
        factor: Factor,
        meanwhile: impl Fn(usize),
    ) {
        by_twos!(sums, x, 16, at, meanwhile, |sum, x| add_scaled(sum, &centred(codes), x, factor));
    }
    #[inline(always)]
    fn scaled(self, sums: Sums) -> int32x4_t {
        self.plain(sums)
    }
    #[inline(always)]
    fn scaled_row<const N: usize>(self, sums: &[Sums; N], row: usize) -> int32x4_t {
        self.plain_row(sums, row)
    }
    #[inline(always)]
    fn dot16<const BITS: u32>(self, sums: Sums, codes: &[uint8x16_t; 4], x: &[i8; 16]) -> Sums {
        // SAFETY: see above.
        unsafe { if BITS > 6 { One(x).multiply_bytes(sums, codes) } else { add(sums, &signed(codes), One(x)) } }
    }
    #[inline(always)]
    fn dot16_rows<const BITS: u32, const N: usize>(
        self,
        sums: &mut [Sums; N],
        codes: &[uint8x16_t; 4],
        x: &[Rounded; N],
        at: usize,
        meanwhile: impl Fn(usize),
    ) {
        if BITS > 6 {
            by_twos!(sums, x, 16, at, meanwhile, |sum, x| x.multiply_bytes(sum, codes));
        } else {
            by_twos!(sums, x, 16, at, meanwhile, |sum, x| add(sum, &signed(codes), x));
        }
    }
    #[inline(always)]
    fn plain(self, sums: Sums) -> int32x4_t {
        // SAFETY: see above.
        unsafe { vpaddq_s32(sums[0], sums[1]) }
    }
    #[inline(always)]
    fn plain_row<const N: usize>(self, sums: &[Sums; N], row: usize) -> int32x4_t {
        if !MATRICES || row == N - N % 2 {
            return self.plain(sums[row]);
        }
        let [a, b] = sums[row - row % 2];
        // SAFETY: see above.
        unsafe { if row.is_multiple_of(2) { vuzp1q_s32(a, b) } else { vuzp2q_s32(a, b) } }
    }
    #[inline(always)]
    fn factor<const AT: i32>(self, words: uint8x16_t) -> Factor {
        beside(byte(words, AT))
    }
    #[inline(always)]
    fn signed_factor<const AT: i32>(self, words: uint8x16_t) -> Factor {
        // SAFETY: see above.
        unsafe {
            let moved = vshlq_s32(vreinterpretq_s32_u8(words), vdupq_n_s32(24 - 8 * AT));
            beside(vshrq_n_s32::<24>(moved))
        }
    }
    #[inline(always)]
    fn dot_pair<const AT: i32>(self, sum: int32x4_t, words: uint8x16_t, pair: &[i16; 2]) -> int32x4_t {
        // SAFETY: see above.
        unsafe {
            let sum = vmlaq_n_s32(sum, byte(words, AT), pair[0].into());
            vmlaq_n_s32(sum, byte(words, AT + 1), pair[1].into())
        }
    }
    #[inline(always)]
    fn zero(self) -> int32x4_t {
        // SAFETY: see above.
        unsafe { vdupq_n_s32(0) }
    }
    #[inline(always)]
    fn six_low(self, words: uint8x16_t) -> uint8x16_t {
        // SAFETY: see above.
        unsafe { vandq_u8(words, vdupq_n_u8(0x3f)) }
    }
    #[inline(always)]
    fn six_split(self, nibbles: uint8x16_t, tops: uint8x16_t) -> uint8x16_t {
        // SAFETY: see above.
        unsafe { vsliq_n_u8::<4>(nibbles, vshrq_n_u8::<6>(tops)) }
    }
    #[inline(always)]
    fn to_float(self, x: int32x4_t) -> float32x4_t {
        // SAFETY: see above.
        unsafe { vcvtq_f32_s32(x) }
    }
    #[inline(always)]
    fn halves(self, bits: &[u8; 2 * TILE_ROWS], part: usize) -> float32x4_t {
        let quarter = &bits[8 * part..8 * part + 8];
        // SAFETY: see above; 8 bytes are readable.
        unsafe { vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(quarter.as_ptr()))) }
    }
    #[inline(always)]
    fn brains(self, bits: &[u8; 2 * TILE_ROWS], part: usize) -> float32x4_t {
        let quarter = &bits[8 * part..8 * part + 8];
        // SAFETY: see above; 8 bytes are readable.
        unsafe {
            let wide = vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(quarter.as_ptr())));
            vreinterpretq_f32_u32(wide)
        }
    }
    #[inline(always)]
    fn powers(self, codes: &[u8; TILE_ROWS], part: usize) -> float32x4_t {
        // SAFETY: see above.
        unsafe {
            // Code 0 is 2^-127, a subnormal number.
            let bits = vshll_n_u16::<16>(vshl_n_u16::<7>(wide(codes, part)));
            vreinterpretq_f32_u32(vmaxq_u32(bits, vdupq_n_u32(1 << 22)))
        }
    }
    #[inline(always)]
    fn minifloats(self, codes: &[u8; TILE_ROWS], part: usize) -> float32x4_t {
        let wide = wide(codes, part);
        // SAFETY: see above.
        unsafe {
            let sign = vshl_n_u16::<8>(vand_u16(wide, vdup_n_u16(0x80)));
            let magnitude = vshl_n_u16::<7>(vand_u16(wide, vdup_n_u16(0x7f)));
            // As f16 the exponent's bias is larger by 8.
            vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(vorr_u16(sign, magnitude))), 256.0)
        }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> float32x4_t {
        // SAFETY: see above.
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    fn load(self, from: &[f32; TILE_ROWS], part: usize) -> float32x4_t {
        let quarter = &from[4 * part..4 * part + 4];
        // SAFETY: see above; 4 f32 are readable.
        unsafe { vld1q_f32(quarter.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, x: float32x4_t, to: &mut [f32; TILE_ROWS], part: usize) {
        let quarter = &mut to[4 * part..4 * part + 4];
        // SAFETY: see above; 4 f32 are writable.
        unsafe { vst1q_f32(quarter.as_mut_ptr(), x) }
    }
    #[inline(always)]
    fn fma(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: see above.
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    fn fms(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: see above.
        unsafe { vfmaq_f32(vnegq_f32(c), a, b) }
    }
    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: see above.
        unsafe { vmulq_f32(a, b) }
    }
}

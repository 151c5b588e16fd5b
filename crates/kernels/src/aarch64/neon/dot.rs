//! Codes times rows of activations, and the instructions that do it.
//!
//! A part of a line has eight codes for each of two rows of weights. `sdot` multiplies it with one row of activations and leaves
//! two sums for each row of weights, `smmla` with two rows of activations and leaves one for each pair of rows.
//!
//! The instructions are written out, since the library has no stable functions for them.

use std::arch::aarch64::*;
use std::arch::asm;

/// Rows of activations that are multiplied by one instruction. What it leaves for a row of weights are two neighbours.
pub(super) trait Rows: Copy {
    /// Eight inputs from `at` on, and the next eight, as the instruction takes them.
    fn sixteen(self, at: usize) -> [int8x16_t; 2];
    /// Adds the products with codes below 128.
    ///
    /// # Safety
    /// The machine has the instruction.
    unsafe fn multiply(sum: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t;
    /// Adds the products of 16 inputs with codes of 8 bits: `codes` are those of the two halves of the rows by turns.
    ///
    /// # Safety
    /// The machine has the instruction.
    unsafe fn multiply_bytes(self, sums: [int32x4_t; 2], codes: &[uint8x16_t; 4]) -> [int32x4_t; 2];
}

/// One row, by `sdot`.
#[derive(Clone, Copy)]
pub(super) struct One<'a>(pub &'a [i8]);

/// Two rows, by `smmla`.
#[derive(Clone, Copy)]
pub(super) struct Two<'a>(pub &'a [i8], pub &'a [i8]);

/// Eight inputs, for each of two rows of codes.
#[inline(always)]
fn twice(x: &[i8]) -> int8x16_t {
    let x = x.as_array().map_or([0; 8], |x| x.map(|x| x as u8));
    // SAFETY: every AArch64 machine has what is used.
    unsafe { vreinterpretq_s8_s64(vdupq_n_s64(i64::from_le_bytes(x))) }
}

// SAFETY of every block below: every AArch64 machine has what is used, but for the instructions that the caller promises.
impl Rows for One<'_> {
    #[inline(always)]
    fn sixteen(self, at: usize) -> [int8x16_t; 2] {
        [twice(&self.0[at..at + 8]), twice(&self.0[at + 8..at + 16])]
    }
    #[inline(always)]
    unsafe fn multiply(sum: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: see above.
        unsafe { sdot(sum, codes, x) }
    }
    #[inline(always)]
    unsafe fn multiply_bytes(self, [a, b]: [int32x4_t; 2], codes: &[uint8x16_t; 4]) -> [int32x4_t; 2] {
        let [x, y] = self.sixteen(0);
        // SAFETY: see above.
        unsafe {
            // As signed bytes, the codes minus 128; minus 128 times the activations is then taken away.
            let flipped = |i: usize| vreinterpretq_s8_u8(veorq_u8(codes[i], vdupq_n_u8(0x80)));
            let all = vdupq_n_s8(-128);
            let excess = sdot(sdot(vdupq_n_s32(0), all, x), all, y);
            let (a, b) = (vsubq_s32(a, excess), vsubq_s32(b, excess));
            [sdot(sdot(a, flipped(0), x), flipped(2), y), sdot(sdot(b, flipped(1), x), flipped(3), y)]
        }
    }
}

impl Rows for Two<'_> {
    #[inline(always)]
    fn sixteen(self, at: usize) -> [int8x16_t; 2] {
        let (x, y) = (&self.0[at..at + 16], &self.1[at..at + 16]);
        // SAFETY: see above; 16 bytes are readable.
        unsafe {
            let (x, y) = (vreinterpretq_s64_s8(vld1q_s8(x.as_ptr())), vreinterpretq_s64_s8(vld1q_s8(y.as_ptr())));
            [vreinterpretq_s8_s64(vzip1q_s64(x, y)), vreinterpretq_s8_s64(vzip2q_s64(x, y))]
        }
    }
    #[inline(always)]
    unsafe fn multiply(sum: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: see above.
        unsafe { smmla(sum, codes, x) }
    }
    #[inline(always)]
    unsafe fn multiply_bytes(self, [a, b]: [int32x4_t; 2], codes: &[uint8x16_t; 4]) -> [int32x4_t; 2] {
        let [x, y] = self.sixteen(0);
        // SAFETY: see above.
        unsafe { [usmmla(usmmla(a, codes[0], x), codes[2], y), usmmla(usmmla(b, codes[1], x), codes[3], y)] }
    }
}

/// A function for an instruction that adds products of bytes to 32-bit sums.
macro_rules! instruction {
    ($(#[$doc:meta])* $name:ident, $features:literal, $codes:ty) => {
        $(#[$doc])*
        #[inline]
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $name(mut sum: int32x4_t, codes: $codes, x: int8x16_t) -> int32x4_t {
            // SAFETY: the instruction changes `sum` and nothing else.
            unsafe {
                asm!(concat!(stringify!($name), " {0:v}.4s, {1:v}.16b, {2:v}.16b"), inout(vreg) sum, in(vreg) codes,
                     in(vreg) x, options(pure, nomem, nostack, preserves_flags));
            }
            sum
        }
    };
}

instruction! {
    /// Lane i: the four products of bytes 4 i to 4 i + 4.
    ///
    /// # Safety
    /// The machine has dot products.
    sdot, "neon,dotprod", int8x16_t
}
instruction! {
    /// Lane 2 i + j: the eight products of half i of `codes` and half j of `x`.
    ///
    /// # Safety
    /// The machine has products of matrices.
    smmla, "neon,i8mm", int8x16_t
}
instruction! {
    /// The same with unsigned codes.
    ///
    /// # Safety
    /// The machine has products of matrices.
    usmmla, "neon,i8mm", uint8x16_t
}

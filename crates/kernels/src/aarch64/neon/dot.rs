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
    /// Eight inputs from `at` on, as the instruction takes them.
    fn eight(self, at: usize) -> int8x16_t;
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

/// Eight inputs from `at` on.
#[inline(always)]
fn half(x: &[i8], at: usize) -> int8x8_t {
    let x = &x[at..at + 8];
    // SAFETY: every AArch64 machine has what is used; 8 bytes are readable.
    unsafe { vld1_s8(x.as_ptr()) }
}

// SAFETY of every block below: every AArch64 machine has what is used, but for the instructions that the caller promises.
impl Rows for One<'_> {
    #[inline(always)]
    fn eight(self, at: usize) -> int8x16_t {
        let x = half(self.0, at);
        // SAFETY: see above.
        unsafe { vcombine_s8(x, x) }
    }
    #[inline(always)]
    unsafe fn multiply(sum: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: see above.
        unsafe { sdot(sum, codes, x) }
    }
    #[inline(always)]
    unsafe fn multiply_bytes(self, [a, b]: [int32x4_t; 2], codes: &[uint8x16_t; 4]) -> [int32x4_t; 2] {
        let (x0, x1) = (self.eight(0), self.eight(8));
        // SAFETY: see above.
        unsafe {
            // As signed bytes, the codes minus 128; minus 128 times the activations is then taken away.
            let flipped = |i: usize| vreinterpretq_s8_u8(veorq_u8(codes[i], vdupq_n_u8(0x80)));
            let all = vdupq_n_s8(-128);
            let excess = sdot(sdot(vdupq_n_s32(0), all, x0), all, x1);
            let (a, b) = (vsubq_s32(a, excess), vsubq_s32(b, excess));
            [sdot(sdot(a, flipped(0), x0), flipped(2), x1), sdot(sdot(b, flipped(1), x0), flipped(3), x1)]
        }
    }
}

impl Rows for Two<'_> {
    #[inline(always)]
    fn eight(self, at: usize) -> int8x16_t {
        // SAFETY: see above.
        unsafe { vcombine_s8(half(self.0, at), half(self.1, at)) }
    }
    #[inline(always)]
    unsafe fn multiply(sum: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: see above.
        unsafe { smmla(sum, codes, x) }
    }
    #[inline(always)]
    unsafe fn multiply_bytes(self, [a, b]: [int32x4_t; 2], codes: &[uint8x16_t; 4]) -> [int32x4_t; 2] {
        let (x0, x1) = (self.eight(0), self.eight(8));
        // SAFETY: see above.
        unsafe { [usmmla(usmmla(a, codes[0], x0), codes[2], x1), usmmla(usmmla(b, codes[1], x0), codes[3], x1)] }
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

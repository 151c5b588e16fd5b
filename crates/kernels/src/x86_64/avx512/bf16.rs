//! [`Dot`] by `vdpbf16ps`: thirty-two products of bf16 an instruction.

use crate::isa::Avx512Bf16;
use crate::lanes::{LANES, Lanes};
use crate::matmul::{Dot, GROUP};
use std::arch::x86_64::*;
use std::array::from_fn;

// SAFETY of every block below: an `Avx512Bf16` exists only where detection found AVX-512 F, DQ and BF16; the pointers come
// from references to arrays of thirty-two elements, and loads need no alignment.
impl Dot for Avx512Bf16 {
    type X = [u16; 2 * LANES];
    type W = [u16; 2 * LANES];
    type Operand = __m512bh;
    type Sum = __m512;
    const ACCUMULATORS: usize = 16;
    const KEEPS_UP: bool = true;

    #[inline(always)]
    fn zero(self) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    fn load_x(self, x: &Self::X) -> __m512bh {
        // SAFETY: see above; the types are two names of 64 bytes.
        unsafe { std::mem::transmute(_mm512_loadu_si512(x.as_ptr().cast())) }
    }
    #[inline(always)]
    fn load_w(self, w: &Self::W) -> __m512bh {
        self.load_x(w)
    }
    #[inline(always)]
    fn dot(self, x: __m512bh, w: __m512bh, sum: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_dpbf16_ps(sum, x, w) }
    }
    #[inline(always)]
    fn sums(self, sums: [__m512; GROUP]) -> [f32; GROUP] {
        self.lanes().sums(sums)
    }
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        self.lanes().prefetch(at);
    }
}

/// Whether the instruction adds the second product of a pair and then the first, rounding each sum to nearest.
pub(crate) fn rounds_twice(proof: Avx512Bf16) -> bool {
    // Of both signs and of exponents so near to each other that nearly every sum is rounded.
    let operand = |seed: u32| -> [u16; 2 * LANES] {
        from_fn(|i| {
            let noise = (i as u32 + seed).wrapping_mul(0x9e37_79b9).rotate_left(15).wrapping_mul(0x85eb_ca6b) >> 16;
            (noise as u16 & 0x807f) | ((122 + (noise as u16 >> 8 & 7)) << 7)
        })
    };
    let (mut ours, mut theirs) = ([1.0f32; LANES], [1.0f32; LANES]);
    for seed in 0..64 {
        let (x, w) = (operand(97 * seed), operand(89 * seed + 40));
        // SAFETY: the proof's features are those that the function is compiled with.
        unsafe { dot_once(proof, &x, &w, &mut theirs) };
        let wide = |half: u16| f32::from_bits(u32::from(half) << 16);
        for (lane, sum) in ours.iter_mut().enumerate() {
            let at = 2 * lane;
            *sum = wide(x[at]).mul_add(wide(w[at]), wide(x[at + 1]).mul_add(wide(w[at + 1]), *sum));
        }
    }
    ours.map(f32::to_bits) == theirs.map(f32::to_bits)
}

/// # Safety
/// The machine has the features named.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn dot_once(proof: Avx512Bf16, x: &[u16; 2 * LANES], w: &[u16; 2 * LANES], sums: &mut [f32; LANES]) {
    // SAFETY: sixteen f32 are readable and writable.
    unsafe {
        let sum = proof.dot(proof.load_x(x), proof.load_w(w), _mm512_loadu_ps(sums.as_ptr()));
        _mm512_storeu_ps(sums.as_mut_ptr(), sum);
    }
}

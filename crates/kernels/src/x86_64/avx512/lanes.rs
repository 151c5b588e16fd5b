//! [`Lanes`] over one 512-bit register.

use crate::isa::Avx512;
use crate::lanes::{LANES, Lanes};
use std::arch::x86_64::*;

type V = __m512;

// SAFETY of every block below: an `Avx512` exists only where detection found AVX-512 F, BW, DQ and VL; the pointers come
// from references to arrays of sixteen elements, and the load and store instructions used need no alignment.
impl Lanes for Avx512 {
    type V = V;
    const ACCUMULATORS: usize = 16;

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        // SAFETY: see above.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> V {
        // SAFETY: see above; 64 bytes are readable.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u16; LANES]) -> V {
        // SAFETY: see above; 32 bytes are readable.
        unsafe {
            let half = _mm256_loadu_si256(from.as_ptr().cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half)))
        }
    }
    #[inline(always)]
    fn load_bf16_pairs(self, from: &[u16; 2 * LANES]) -> [V; 2] {
        // SAFETY: see above; 64 bytes are readable.
        unsafe {
            let pairs = _mm512_loadu_si512(from.as_ptr().cast());
            let (first, second) = (_mm512_slli_epi32::<16>(pairs), _mm512_and_si512(pairs, _mm512_set1_epi32(!0xffff)));
            [_mm512_castsi512_ps(first), _mm512_castsi512_ps(second)]
        }
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> V {
        // SAFETY: see above; 32 bytes are readable.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }
    #[inline(always)]
    fn load_i8(self, from: &[i8; LANES]) -> V {
        // SAFETY: see above; 16 bytes are readable.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast()))) }
    }
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a hint, which reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
    #[inline(always)]
    fn store(self, v: V, to: &mut [f32; LANES]) {
        // SAFETY: see above; 64 bytes are writable.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), v) }
    }
    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        // SAFETY: see above.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        // SAFETY: see above.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        // SAFETY: see above.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        // SAFETY: see above.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        // SAFETY: see above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        // SAFETY: see above. The instruction returns its second operand where a comparison with NaN fails.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        // SAFETY: see above. The instruction returns its second operand where a comparison with NaN fails.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn select_lt(self, a: V, b: V, x: V, y: V) -> V {
        // SAFETY: see above.
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x) }
    }
    #[inline(always)]
    fn abs(self, a: V) -> V {
        // SAFETY: see above.
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    fn round(self, a: V) -> V {
        const MODE: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: see above.
        unsafe { _mm512_roundscale_ps::<MODE>(a) }
    }
    #[inline(always)]
    fn exp2_int(self, n: V) -> V {
        // SAFETY: see above.
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        // SAFETY: see above.
        unsafe {
            let eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    fn sums(self, [a, b, c, d]: [V; 4]) -> [f32; 4] {
        let mut sums = [0.0; 4];
        // SAFETY: see above; four elements are writable.
        unsafe {
            // Quarters of two vectors: the first two of each, and the last two.
            let (low, high) =
                (_mm512_shuffle_f32x4::<0b01_00_01_00>(a, b), _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b));
            let ab = _mm512_add_ps(low, high);
            let (low, high) =
                (_mm512_shuffle_f32x4::<0b01_00_01_00>(c, d), _mm512_shuffle_f32x4::<0b11_10_11_10>(c, d));
            let cd = _mm512_add_ps(low, high);
            let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd);
            let four = _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd));
            let two = _mm512_add_ps(four, _mm512_permute_ps::<0b01_00_11_10>(four));
            let one = _mm512_add_ps(two, _mm512_permute_ps::<0b10_11_00_01>(two));
            let first = _mm512_castps_si512(one);
            let each =
                _mm512_permutexvar_epi32(_mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0), first);
            _mm_storeu_si128(sums.as_mut_ptr().cast(), _mm512_castsi512_si128(each));
        }
        sums
    }
    #[inline(always)]
    fn max_lane(self, v: V) -> f32 {
        // SAFETY: see above.
        unsafe {
            let eight = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
}

//! [`Lanes`] over two 256-bit registers: lanes 0..8 and 8..16.

use crate::isa::Avx2;
use crate::lanes::{LANES, Lanes};
use std::arch::x86_64::*;

type V = (__m256, __m256);

// SAFETY of every block below: an `Avx2` exists only where detection found AVX2, FMA and F16C; the pointers come from
// references to arrays of sixteen elements, and the load and store instructions used need no alignment.
impl Lanes for Avx2 {
    type V = V;
    const ACCUMULATORS: usize = 4;

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        // SAFETY: see above.
        let v = unsafe { _mm256_set1_ps(x) };
        (v, v)
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> V {
        let p = from.as_ptr();
        // SAFETY: see above; 16 f32 are readable at p.
        unsafe { (_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u16; LANES]) -> V {
        let p = from.as_ptr().cast::<__m128i>();
        // SAFETY: see above; 32 bytes are readable at p.
        unsafe {
            let low = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)));
            let high = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(1))));
            (_mm256_castsi256_ps(low), _mm256_castsi256_ps(high))
        }
    }
    #[inline(always)]
    fn load_bf16_pairs(self, from: &[u16; 2 * LANES]) -> [V; 2] {
        let p = from.as_ptr().cast::<__m256i>();
        // SAFETY: see above; 64 bytes are readable at p.
        unsafe {
            let (low, high) = (_mm256_loadu_si256(p), _mm256_loadu_si256(p.add(1)));
            let first = |pairs| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs));
            let second = |pairs| _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(!0xffff)));
            [(first(low), first(high)), (second(low), second(high))]
        }
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> V {
        let p = from.as_ptr().cast::<__m128i>();
        // SAFETY: see above; 32 bytes are readable at p.
        unsafe { (_mm256_cvtph_ps(_mm_loadu_si128(p)), _mm256_cvtph_ps(_mm_loadu_si128(p.add(1)))) }
    }
    #[inline(always)]
    fn load_i8(self, from: &[i8; LANES]) -> V {
        let p = from.as_ptr().cast::<__m128i>();
        // SAFETY: see above; 16 bytes are readable at p.
        unsafe {
            let codes = _mm_loadu_si128(p);
            let low = _mm256_cvtepi8_epi32(codes);
            let high = _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(codes, codes));
            (_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a hint, which reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
    #[inline(always)]
    fn store(self, v: V, to: &mut [f32; LANES]) {
        let p = to.as_mut_ptr();
        // SAFETY: see above; 16 f32 are writable at p.
        unsafe {
            _mm256_storeu_ps(p, v.0);
            _mm256_storeu_ps(p.add(8), v.1);
        }
    }
    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        // SAFETY: see above.
        unsafe { (_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        // SAFETY: see above.
        unsafe { (_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        // SAFETY: see above.
        unsafe { (_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        // SAFETY: see above.
        unsafe { (_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        // SAFETY: see above.
        unsafe { (_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)) }
    }
    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        // SAFETY: see above. The instruction returns its second operand where a comparison with NaN fails.
        unsafe { (_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        // SAFETY: see above. The instruction returns its second operand where a comparison with NaN fails.
        unsafe { (_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn select_lt(self, a: V, b: V, x: V, y: V) -> V {
        // SAFETY: see above.
        unsafe {
            (
                _mm256_blendv_ps(y.0, x.0, _mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0)),
                _mm256_blendv_ps(y.1, x.1, _mm256_cmp_ps::<_CMP_LT_OQ>(a.1, b.1)),
            )
        }
    }
    #[inline(always)]
    fn abs(self, a: V) -> V {
        // SAFETY: see above.
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            (_mm256_andnot_ps(sign, a.0), _mm256_andnot_ps(sign, a.1))
        }
    }
    #[inline(always)]
    fn round(self, a: V) -> V {
        const MODE: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: see above.
        unsafe { (_mm256_round_ps::<MODE>(a.0), _mm256_round_ps::<MODE>(a.1)) }
    }
    #[inline(always)]
    fn exp2_int(self, n: V) -> V {
        // SAFETY: see above.
        unsafe {
            let bias = _mm256_set1_epi32(127);
            let low = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(n.0), bias));
            let high = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(n.1), bias));
            (_mm256_castsi256_ps(low), _mm256_castsi256_ps(high))
        }
    }
    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        // SAFETY: see above.
        unsafe {
            let eight = _mm256_add_ps(v.0, v.1);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    fn sums(self, v: [V; 4]) -> [f32; 4] {
        let mut sums = [0.0; 4];
        // SAFETY: see above; four elements are writable.
        unsafe {
            let (a, b) = (_mm256_add_ps(v[0].0, v[0].1), _mm256_add_ps(v[1].0, v[1].1));
            let (c, d) = (_mm256_add_ps(v[2].0, v[2].1), _mm256_add_ps(v[3].0, v[3].1));
            // Halves of two vectors: the first of each, and the second.
            let (low, high) = (_mm256_permute2f128_ps::<0x20>(a, c), _mm256_permute2f128_ps::<0x31>(a, c));
            let ac = _mm256_castps_pd(_mm256_add_ps(low, high));
            let (low, high) = (_mm256_permute2f128_ps::<0x20>(b, d), _mm256_permute2f128_ps::<0x31>(b, d));
            let bd = _mm256_castps_pd(_mm256_add_ps(low, high));
            let (low, high) = (_mm256_unpacklo_pd(ac, bd), _mm256_unpackhi_pd(ac, bd));
            // Of each half: two of a or c, two of b or d.
            let two = _mm256_add_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high));
            let one = _mm256_add_ps(two, _mm256_permute_ps::<0b10_11_00_01>(two));
            let (ab, cd) = (_mm256_castps256_ps128(one), _mm256_extractf128_ps::<1>(one));
            _mm_storeu_ps(sums.as_mut_ptr(), _mm_shuffle_ps::<0b10_00_10_00>(ab, cd));
        }
        sums
    }
    #[inline(always)]
    fn max_lane(self, v: V) -> f32 {
        // SAFETY: see above.
        unsafe {
            let eight = _mm256_max_ps(v.0, v.1);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
}

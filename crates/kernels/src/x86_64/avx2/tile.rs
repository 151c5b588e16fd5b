//! [`Tile`] over 256-bit registers: eight rows are a part.

#![expect(clippy::needless_range_loop, reason = "a group indexes codes and activations at once")]

use crate::isa::Avx2;
use crate::packed::tile::{LINE, TILE_ROWS, Tile};
use std::arch::x86_64::*;

/// Four activations for every row.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn four(activations: &[i8], group: usize) -> __m256i {
    let a = &activations[4 * group..4 * group + 4];
    // SAFETY: the caller's promise.
    unsafe { _mm256_set1_epi32(i32::from_ne_bytes([a[0] as u8, a[1] as u8, a[2] as u8, a[3] as u8])) }
}

/// A byte shuffle that does the same in each 32-bit lane: byte i of the result is byte `b[i]` of the lane, or zero.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn spread(words: __m256i, b: [i32; 4]) -> __m256i {
    let lane = |l: i32| {
        let byte = |i: usize| if b[i] < 0 { 0x80u8 } else { (4 * l + b[i]) as u8 };
        i32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)])
    };
    let (l0, l1, l2, l3) = (lane(0), lane(1), lane(2), lane(3));
    // SAFETY: the caller's promise.
    unsafe { _mm256_shuffle_epi8(words, _mm256_setr_epi32(l0, l1, l2, l3, l0, l1, l2, l3)) }
}

// SAFETY of every block below: an `Avx2` exists only where detection found AVX2, FMA and F16C; the pointers come from
// references to arrays that are as long as what is read or written.
impl Tile for Avx2 {
    type Codes = __m256i;
    type Int = __m256i;
    type Float = __m256;
    /// The factor twice per row, as 16-bit integers.
    type Factor = __m256i;

    const PARTS: usize = 2;
    const TOGETHER: usize = 4;

    #[inline(always)]
    fn line(self, line: &[u8; LINE], part: usize) -> __m256i {
        let half = &line[32 * part..32 * part + 32];
        // SAFETY: see above; 32 bytes are readable.
        unsafe { _mm256_loadu_si256(half.as_ptr().cast()) }
    }
    #[inline(always)]
    fn low(self, codes: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_and_si256(codes, _mm256_set1_epi8(0x0f)) }
    }
    #[inline(always)]
    fn high(self, codes: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_and_si256(_mm256_srli_epi16::<4>(codes), _mm256_set1_epi8(0x0f)) }
    }
    #[inline(always)]
    fn with_two<const GROUP: u32>(self, low: __m256i, tops: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe {
            let moved = match GROUP {
                0 => _mm256_slli_epi16::<4>(tops),
                1 => _mm256_slli_epi16::<2>(tops),
                2 => tops,
                _ => _mm256_srli_epi16::<2>(tops),
            };
            _mm256_or_si256(low, _mm256_and_si256(moved, _mm256_set1_epi8(0x30)))
        }
    }
    #[inline(always)]
    fn with_one<const GROUP: u32>(self, low: __m256i, tops: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe {
            let moved = match GROUP {
                0 => _mm256_slli_epi16::<4>(tops),
                1 => _mm256_slli_epi16::<3>(tops),
                2 => _mm256_slli_epi16::<2>(tops),
                3 => _mm256_slli_epi16::<1>(tops),
                4 => tops,
                5 => _mm256_srli_epi16::<1>(tops),
                6 => _mm256_srli_epi16::<2>(tops),
                _ => _mm256_srli_epi16::<3>(tops),
            };
            _mm256_or_si256(low, _mm256_and_si256(moved, _mm256_set1_epi8(0x10)))
        }
    }
    #[inline(always)]
    fn dot32_plain(self, sum: __m256i, codes: &[__m256i; 8], activations: &[i8; 32]) -> __m256i {
        // SAFETY: see above.
        unsafe { self.dot32(sum, codes, activations, _mm256_set1_epi16(1)) }
    }
    #[inline(always)]
    fn dot32(self, sum: __m256i, codes: &[__m256i; 8], activations: &[i8; 32], factor: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe {
            // Eight sums of two products stay within 16 bits: 16 * 15 * 127 < 2^15.
            let mut acc = _mm256_maddubs_epi16(codes[0], four(activations, 0));
            for group in 1..8 {
                acc = _mm256_add_epi16(acc, _mm256_maddubs_epi16(codes[group], four(activations, group)));
            }
            _mm256_add_epi32(sum, _mm256_madd_epi16(acc, factor))
        }
    }
    #[inline(always)]
    fn dot16(self, sum: __m256i, codes: &[__m256i; 4], activations: &[i8; 16], factor: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe {
            // Two sums of two products stay within 16 bits: 4 * 63 * 127 < 2^15.
            let first = _mm256_add_epi16(
                _mm256_maddubs_epi16(codes[0], four(activations, 0)),
                _mm256_maddubs_epi16(codes[1], four(activations, 1)),
            );
            let second = _mm256_add_epi16(
                _mm256_maddubs_epi16(codes[2], four(activations, 2)),
                _mm256_maddubs_epi16(codes[3], four(activations, 3)),
            );
            let both = _mm256_add_epi32(_mm256_madd_epi16(first, factor), _mm256_madd_epi16(second, factor));
            _mm256_add_epi32(sum, both)
        }
    }
    #[inline(always)]
    fn factor<const AT: i32>(self, words: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { spread(words, [AT, -1, AT, -1]) }
    }
    #[inline(always)]
    fn signed_factor<const AT: i32>(self, words: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_srai_epi16::<8>(spread(words, [-1, AT, -1, AT])) }
    }
    #[inline(always)]
    fn dot_pair<const AT: i32>(self, sum: __m256i, words: __m256i, pair: &[i16; 2]) -> __m256i {
        // SAFETY: see above.
        unsafe {
            let pair = _mm256_set1_epi32(i32::from(pair[1]) << 16 | i32::from(pair[0] as u16));
            _mm256_add_epi32(sum, _mm256_madd_epi16(spread(words, [AT, -1, AT + 1, -1]), pair))
        }
    }
    #[inline(always)]
    fn dot_signed_pair<const AT: i32>(self, sum: __m256i, words: __m256i, pair: &[i16; 2]) -> __m256i {
        // SAFETY: see above.
        unsafe {
            let pair = _mm256_set1_epi32(i32::from(pair[1]) << 16 | i32::from(pair[0] as u16));
            let bytes = _mm256_srai_epi16::<8>(spread(words, [-1, AT, -1, AT + 1]));
            _mm256_add_epi32(sum, _mm256_madd_epi16(bytes, pair))
        }
    }
    #[inline(always)]
    fn zero(self) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    fn minus_32(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_sub_epi32(a, _mm256_slli_epi32::<5>(b)) }
    }
    #[inline(always)]
    fn six_low(self, words: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_and_si256(words, _mm256_set1_epi8(0x3f)) }
    }
    #[inline(always)]
    fn six_split(self, nibbles: __m256i, tops: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe {
            let low = _mm256_and_si256(nibbles, _mm256_set1_epi8(0x0f));
            let high = _mm256_and_si256(_mm256_srli_epi16::<2>(tops), _mm256_set1_epi8(0x30));
            _mm256_or_si256(low, high)
        }
    }
    #[inline(always)]
    fn to_float(self, x: __m256i) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_cvtepi32_ps(x) }
    }
    #[inline(always)]
    fn halves(self, bits: &[u8; 2 * TILE_ROWS], part: usize) -> __m256 {
        let half = &bits[16 * part..16 * part + 16];
        // SAFETY: see above; 16 bytes are readable.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(half.as_ptr().cast())) }
    }
    #[inline(always)]
    fn brains(self, bits: &[u8; 2 * TILE_ROWS], part: usize) -> __m256 {
        let half = &bits[16 * part..16 * part + 16];
        // SAFETY: see above; 16 bytes are readable.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(half.as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, from: &[f32; TILE_ROWS], part: usize) -> __m256 {
        let half = &from[8 * part..8 * part + 8];
        // SAFETY: see above; 8 f32 are readable.
        unsafe { _mm256_loadu_ps(half.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, x: __m256, to: &mut [f32; TILE_ROWS], part: usize) {
        let half = &mut to[8 * part..8 * part + 8];
        // SAFETY: see above; 8 f32 are writable.
        unsafe { _mm256_storeu_ps(half.as_mut_ptr(), x) }
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn fms(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_fmsub_ps(a, b, c) }
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_mul_ps(a, b) }
    }
}

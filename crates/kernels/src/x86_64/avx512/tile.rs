//! [`Tile`] over 512-bit registers with VNNI: the sixteen rows are one part.

#![expect(clippy::needless_range_loop, reason = "a group indexes codes and activations at once")]

use crate::isa::Avx512;
use crate::packed::tile::{LINE, TILE_ROWS, Tile};
use std::arch::x86_64::*;

/// Four activations for every row.
///
/// # Safety
/// The machine has AVX-512.
#[inline(always)]
unsafe fn four(activations: &[i8], group: usize) -> __m512i {
    let a = &activations[4 * group..4 * group + 4];
    // SAFETY: the caller's promise.
    unsafe { _mm512_set1_epi32(i32::from_ne_bytes([a[0] as u8, a[1] as u8, a[2] as u8, a[3] as u8])) }
}

/// A byte shuffle that does the same in each 32-bit lane: byte i of the result is byte `b[i]` of the lane, or zero.
///
/// # Safety
/// The machine has AVX-512 BW.
#[inline(always)]
unsafe fn spread(words: __m512i, b: [i32; 4]) -> __m512i {
    let lane = |l: i32| {
        let byte = |i: usize| if b[i] < 0 { 0x80u8 } else { (4 * l + b[i]) as u8 };
        i32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)])
    };
    let (l0, l1, l2, l3) = (lane(0), lane(1), lane(2), lane(3));
    // SAFETY: the caller's promise.
    unsafe { _mm512_shuffle_epi8(words, _mm512_broadcast_i32x4(_mm_setr_epi32(l0, l1, l2, l3))) }
}

// SAFETY of every block below: an `Avx512` exists only where detection found AVX-512 F, BW, DQ, VL and VNNI; the pointers
// come from references to arrays that are as long as what is read or written.
impl Tile for Avx512 {
    type Codes = __m512i;
    type Int = __m512i;
    type Float = __m512;
    type Factor = __m512i;

    const PARTS: usize = 1;
    const TOGETHER: usize = 8;

    #[inline(always)]
    fn line(self, line: &[u8; LINE], _: usize) -> __m512i {
        // SAFETY: see above; 64 bytes are readable.
        unsafe { _mm512_loadu_si512(line.as_ptr().cast()) }
    }
    #[inline(always)]
    fn low(self, codes: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_and_si512(codes, _mm512_set1_epi8(0x0f)) }
    }
    #[inline(always)]
    fn high(self, codes: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_and_si512(_mm512_srli_epi16::<4>(codes), _mm512_set1_epi8(0x0f)) }
    }
    #[inline(always)]
    fn with_two<const GROUP: u32>(self, low: __m512i, tops: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe {
            let moved = match GROUP {
                0 => _mm512_slli_epi16::<4>(tops),
                1 => _mm512_slli_epi16::<2>(tops),
                2 => tops,
                _ => _mm512_srli_epi16::<2>(tops),
            };
            _mm512_or_si512(low, _mm512_and_si512(moved, _mm512_set1_epi8(0x30)))
        }
    }
    #[inline(always)]
    fn with_one<const GROUP: u32>(self, low: __m512i, tops: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe {
            let moved = match GROUP {
                0 => _mm512_slli_epi16::<4>(tops),
                1 => _mm512_slli_epi16::<3>(tops),
                2 => _mm512_slli_epi16::<2>(tops),
                3 => _mm512_slli_epi16::<1>(tops),
                4 => tops,
                5 => _mm512_srli_epi16::<1>(tops),
                6 => _mm512_srli_epi16::<2>(tops),
                _ => _mm512_srli_epi16::<3>(tops),
            };
            _mm512_or_si512(low, _mm512_and_si512(moved, _mm512_set1_epi8(0x10)))
        }
    }
    #[inline(always)]
    fn dot32_plain(self, sum: __m512i, codes: &[__m512i; 8], activations: &[i8; 32]) -> __m512i {
        // SAFETY: see above.
        unsafe {
            let mut acc = sum;
            for group in 0..8 {
                acc = _mm512_dpbusd_epi32(acc, codes[group], four(activations, group));
            }
            acc
        }
    }
    #[inline(always)]
    fn dot32(self, sum: __m512i, codes: &[__m512i; 8], activations: &[i8; 32], factor: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe {
            let acc = self.dot32_plain(_mm512_setzero_si512(), codes, activations);
            _mm512_add_epi32(sum, _mm512_mullo_epi32(acc, factor))
        }
    }
    #[inline(always)]
    fn dot16(self, sum: __m512i, codes: &[__m512i; 4], activations: &[i8; 16], factor: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe {
            let mut acc = _mm512_setzero_si512();
            for group in 0..4 {
                acc = _mm512_dpbusd_epi32(acc, codes[group], four(activations, group));
            }
            _mm512_add_epi32(sum, _mm512_mullo_epi32(acc, factor))
        }
    }
    #[inline(always)]
    fn factor<const AT: i32>(self, words: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { spread(words, [AT, -1, -1, -1]) }
    }
    #[inline(always)]
    fn signed_factor<const AT: i32>(self, words: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_srai_epi32::<24>(spread(words, [-1, -1, -1, AT])) }
    }
    #[inline(always)]
    fn dot_pair<const AT: i32>(self, sum: __m512i, words: __m512i, pair: &[i16; 2]) -> __m512i {
        // SAFETY: see above.
        unsafe {
            let pair = _mm512_set1_epi32(i32::from(pair[1]) << 16 | i32::from(pair[0] as u16));
            _mm512_dpwssd_epi32(sum, spread(words, [AT, -1, AT + 1, -1]), pair)
        }
    }
    #[inline(always)]
    fn dot_signed_pair<const AT: i32>(self, sum: __m512i, words: __m512i, pair: &[i16; 2]) -> __m512i {
        // SAFETY: see above.
        unsafe {
            let pair = _mm512_set1_epi32(i32::from(pair[1]) << 16 | i32::from(pair[0] as u16));
            _mm512_dpwssd_epi32(sum, _mm512_srai_epi16::<8>(spread(words, [-1, AT, -1, AT + 1])), pair)
        }
    }
    #[inline(always)]
    fn zero(self) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    fn minus_32(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_sub_epi32(a, _mm512_slli_epi32::<5>(b)) }
    }
    #[inline(always)]
    fn six_low(self, words: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_and_si512(words, _mm512_set1_epi8(0x3f)) }
    }
    #[inline(always)]
    fn six_split(self, nibbles: __m512i, tops: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe {
            let low = _mm512_and_si512(nibbles, _mm512_set1_epi8(0x0f));
            let high = _mm512_and_si512(_mm512_srli_epi16::<2>(tops), _mm512_set1_epi8(0x30));
            _mm512_or_si512(low, high)
        }
    }
    #[inline(always)]
    fn to_float(self, x: __m512i) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_cvtepi32_ps(x) }
    }
    #[inline(always)]
    fn halves(self, bits: &[u8; 2 * TILE_ROWS], _: usize) -> __m512 {
        // SAFETY: see above; 32 bytes are readable.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(bits.as_ptr().cast())) }
    }
    #[inline(always)]
    fn brains(self, bits: &[u8; 2 * TILE_ROWS], _: usize) -> __m512 {
        // SAFETY: see above; 32 bytes are readable.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(bits.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, from: &[f32; TILE_ROWS], _: usize) -> __m512 {
        // SAFETY: see above; 64 bytes are readable.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, x: __m512, to: &mut [f32; TILE_ROWS], _: usize) {
        // SAFETY: see above; 64 bytes are writable.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn fms(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_fmsub_ps(a, b, c) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_mul_ps(a, b) }
    }
}

//! [`Tile`] over 512-bit registers with VNNI: the sixteen rows are one part.

use crate::isa::Avx512;
use crate::packed::tile::{LINE, TILE_ROWS, Tile};
use std::arch::x86_64::*;

/// Eight activations for every row, as they lie at group `group`.
///
/// # Safety
/// The machine has AVX-512.
#[inline(always)]
unsafe fn eight(x: &[i8], group: usize) -> __m512i {
    let x = x[8 * group..8 * group + 8].as_array().map_or([0; 8], |x| x.map(|x| x as u8));
    // SAFETY: the caller's promise.
    unsafe { _mm512_set1_epi64(i64::from_le_bytes(x)) }
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
    /// The factor twice per row, as 16-bit integers.
    type Factor = __m512i;
    /// Scaled: in order. Plain: two sums for each row of either half.
    type Sums = [__m512i; 2];

    const PARTS: usize = 1;
    const TOGETHER: usize = 8;

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a hint; it never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
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
    fn two<const GROUP: i32>(self, pairs: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe {
            let moved = match GROUP {
                0 => pairs,
                1 => _mm512_srli_epi16::<2>(pairs),
                2 => _mm512_srli_epi16::<4>(pairs),
                _ => _mm512_srli_epi16::<6>(pairs),
            };
            _mm512_and_si512(moved, _mm512_set1_epi8(0x03))
        }
    }
    #[inline(always)]
    fn with_two<const GROUP: i32>(self, low: __m512i, pairs: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe {
            let moved = match GROUP {
                0 => _mm512_slli_epi16::<4>(pairs),
                1 => _mm512_slli_epi16::<2>(pairs),
                2 => pairs,
                _ => _mm512_srli_epi16::<2>(pairs),
            };
            _mm512_or_si512(low, _mm512_and_si512(moved, _mm512_set1_epi8(0x30)))
        }
    }
    #[inline(always)]
    fn with_one<const FROM: i32, const TO: i32>(self, low: __m512i, ones: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe {
            let moved = match TO - FROM {
                4 => _mm512_slli_epi16::<4>(ones),
                3 => _mm512_slli_epi16::<3>(ones),
                2 => _mm512_slli_epi16::<2>(ones),
                1 => _mm512_slli_epi16::<1>(ones),
                0 => ones,
                -1 => _mm512_srli_epi16::<1>(ones),
                -2 => _mm512_srli_epi16::<2>(ones),
                -3 => _mm512_srli_epi16::<3>(ones),
                -4 => _mm512_srli_epi16::<4>(ones),
                _ => _mm512_srli_epi16::<5>(ones),
            };
            _mm512_or_si512(low, _mm512_and_si512(moved, _mm512_set1_epi8(1 << TO)))
        }
    }
    #[inline(always)]
    fn lookup(self, codes: __m512i, table: &[u8; 16]) -> __m512i {
        // SAFETY: see above; 16 bytes are readable.
        unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), codes) }
    }
    #[inline(always)]
    fn no_sums(self) -> [__m512i; 2] {
        // SAFETY: see above.
        unsafe { [_mm512_setzero_si512(); 2] }
    }
    #[inline(always)]
    fn dot32<const BITS: u32>(
        self,
        sums: [__m512i; 2],
        codes: &[__m512i; 8],
        x: &[i8; 32],
        factor: __m512i,
    ) -> [__m512i; 2] {
        // SAFETY: see above.
        unsafe {
            // Half a row's sum stays within 16 bits: 16 * 15 * 127 < 2^15, and 8 * 31 * 127.
            let together = if BITS == 4 { 4 } else { 2 };
            let mut sum = sums[0];
            for first in (0..4).step_by(together) {
                let (mut a, mut b) = (_mm512_setzero_si512(), _mm512_setzero_si512());
                for group in first..first + together {
                    let x = eight(x, group);
                    a = _mm512_dpbusd_epi32(a, codes[2 * group], x);
                    b = _mm512_dpbusd_epi32(b, codes[2 * group + 1], x);
                }
                sum = _mm512_dpwssd_epi32(sum, _mm512_packs_epi32(a, b), factor);
            }
            [sum, sums[1]]
        }
    }
    #[inline(always)]
    fn dot16_centred(
        self,
        sums: [__m512i; 2],
        codes: &[__m512i; 4],
        x: &[i8; 16],
        centre: &[i32; 2],
        factor: __m512i,
    ) -> [__m512i; 2] {
        // SAFETY: see above.
        unsafe {
            let centre = i64::from(centre[1]) << 32 | i64::from(centre[0] as u32);
            let (mut a, mut b) = (_mm512_set1_epi64(centre), _mm512_set1_epi64(centre));
            for group in 0..2 {
                let x = eight(x, group);
                a = _mm512_dpbusd_epi32(a, codes[2 * group], x);
                b = _mm512_dpbusd_epi32(b, codes[2 * group + 1], x);
            }
            // Half a row's sum stays within 16 bits: 8 * 32 * 127 < 2^15.
            [_mm512_dpwssd_epi32(sums[0], _mm512_packs_epi32(a, b), factor), sums[1]]
        }
    }
    #[inline(always)]
    fn scaled(self, sums: [__m512i; 2]) -> __m512i {
        sums[0]
    }
    #[inline(always)]
    fn dot16<const BITS: u32>(self, sums: [__m512i; 2], codes: &[__m512i; 4], x: &[i8; 16]) -> [__m512i; 2] {
        // SAFETY: see above.
        unsafe {
            let (x0, x1) = (eight(x, 0), eight(x, 1));
            let (a, b) = (_mm512_dpbusd_epi32(sums[0], codes[0], x0), _mm512_dpbusd_epi32(sums[1], codes[1], x0));
            [_mm512_dpbusd_epi32(a, codes[2], x1), _mm512_dpbusd_epi32(b, codes[3], x1)]
        }
    }
    #[inline(always)]
    fn plain(self, sums: [__m512i; 2]) -> __m512i {
        // SAFETY: see above.
        unsafe {
            let (a, b) = (_mm512_castsi512_ps(sums[0]), _mm512_castsi512_ps(sums[1]));
            let even = _mm512_castps_si512(_mm512_shuffle_ps::<0x88>(a, b));
            let odd = _mm512_castps_si512(_mm512_shuffle_ps::<0xdd>(a, b));
            _mm512_add_epi32(even, odd)
        }
    }
    #[inline(always)]
    fn factor<const AT: i32>(self, words: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { spread(words, [AT, -1, AT, -1]) }
    }
    #[inline(always)]
    fn signed_factor<const AT: i32>(self, words: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_srai_epi16::<8>(spread(words, [-1, AT, -1, AT])) }
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
    fn zero(self) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_setzero_si512() }
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
    fn powers(self, codes: &[u8; TILE_ROWS], _: usize) -> __m512 {
        // SAFETY: see above; 16 bytes are readable.
        unsafe {
            let codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(codes.as_ptr().cast()));
            // Code 0 is 2^-127, a subnormal number.
            _mm512_castsi512_ps(_mm512_max_epi32(_mm512_slli_epi32::<23>(codes), _mm512_set1_epi32(1 << 22)))
        }
    }
    #[inline(always)]
    fn minifloats(self, codes: &[u8; TILE_ROWS], _: usize) -> __m512 {
        // SAFETY: see above; 16 bytes are readable.
        unsafe {
            let wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(codes.as_ptr().cast()));
            let sign = _mm256_slli_epi16::<8>(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)));
            let magnitude = _mm256_slli_epi16::<7>(_mm256_and_si256(wide, _mm256_set1_epi16(0x7f)));
            // As f16 the exponent's bias is larger by 8.
            _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(sign, magnitude)), _mm512_set1_ps(256.0))
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

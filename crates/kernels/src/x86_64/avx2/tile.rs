//! [`Tile`] over 256-bit registers: eight rows are a part.

use crate::isa::Avx2;
use crate::packed::tile::{LINE, TILE_ROWS, Tile};
use std::arch::x86_64::*;

/// Eight activations for every row, as they lie at group `group`.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn eight(x: &[i8], group: usize) -> __m256i {
    let x = x[8 * group..8 * group + 8].as_array().map_or([0; 8], |x| x.map(|x| x as u8));
    // SAFETY: the caller's promise.
    unsafe { _mm256_set1_epi64x(i64::from_le_bytes(x)) }
}

/// A byte shuffle within each half: 16-bit element i of the result is, in its low or high byte, a byte of the row that has
/// slot i / 4 in the first (`half` 0) or second half of the rows: byte `at` of its word, and zero in the other byte.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn of_slots(words: __m256i, half: i32, at: i32, high: bool) -> __m256i {
    let two = |slot: i32| {
        let byte = 4 * (2 * half + slot) + at;
        let element = if high { byte << 8 | 0x80 } else { 0x8000 | byte };
        element << 16 | element
    };
    let (a, b) = (two(0), two(1));
    // SAFETY: the caller's promise.
    unsafe { _mm256_shuffle_epi8(words, _mm256_setr_epi32(a, a, b, b, a, a, b, b)) }
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
    /// The factor four times per row, as 16-bit integers, for the rows of either half.
    type Factor = [__m256i; 2];
    /// Two sums for each row of either half.
    type Sums = [__m256i; 2];

    const PARTS: usize = 2;
    const TOGETHER: usize = 4;

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a hint; it never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
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
    fn two<const GROUP: i32>(self, pairs: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe {
            let moved = match GROUP {
                0 => pairs,
                1 => _mm256_srli_epi16::<2>(pairs),
                2 => _mm256_srli_epi16::<4>(pairs),
                _ => _mm256_srli_epi16::<6>(pairs),
            };
            _mm256_and_si256(moved, _mm256_set1_epi8(0x03))
        }
    }
    #[inline(always)]
    fn with_two<const GROUP: i32>(self, low: __m256i, pairs: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe {
            let moved = match GROUP {
                0 => _mm256_slli_epi16::<4>(pairs),
                1 => _mm256_slli_epi16::<2>(pairs),
                2 => pairs,
                _ => _mm256_srli_epi16::<2>(pairs),
            };
            _mm256_or_si256(low, _mm256_and_si256(moved, _mm256_set1_epi8(0x30)))
        }
    }
    #[inline(always)]
    fn with_one<const FROM: i32, const TO: i32>(self, low: __m256i, ones: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe {
            let moved = match TO - FROM {
                4 => _mm256_slli_epi16::<4>(ones),
                3 => _mm256_slli_epi16::<3>(ones),
                2 => _mm256_slli_epi16::<2>(ones),
                1 => _mm256_slli_epi16::<1>(ones),
                0 => ones,
                -1 => _mm256_srli_epi16::<1>(ones),
                -2 => _mm256_srli_epi16::<2>(ones),
                -3 => _mm256_srli_epi16::<3>(ones),
                -4 => _mm256_srli_epi16::<4>(ones),
                _ => _mm256_srli_epi16::<5>(ones),
            };
            _mm256_or_si256(low, _mm256_and_si256(moved, _mm256_set1_epi8(1 << TO)))
        }
    }
    #[inline(always)]
    fn lookup(self, codes: __m256i, table: &[u8; 16]) -> __m256i {
        // SAFETY: see above; 16 bytes are readable.
        unsafe { _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())), codes) }
    }
    #[inline(always)]
    fn no_sums(self) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe { [_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    fn dot32<const BITS: u32>(
        self,
        sums: [__m256i; 2],
        codes: &[__m256i; 8],
        x: &[i8; 32],
        factor: [__m256i; 2],
    ) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe {
            // Four sums of two products stay within 16 bits: 8 * 31 * 127 < 2^15.
            let first = eight(x, 0);
            let (mut a, mut b) = (_mm256_maddubs_epi16(codes[0], first), _mm256_maddubs_epi16(codes[1], first));
            for group in 1..4 {
                let x = eight(x, group);
                a = _mm256_add_epi16(a, _mm256_maddubs_epi16(codes[2 * group], x));
                b = _mm256_add_epi16(b, _mm256_maddubs_epi16(codes[2 * group + 1], x));
            }
            [
                _mm256_add_epi32(sums[0], _mm256_madd_epi16(a, factor[0])),
                _mm256_add_epi32(sums[1], _mm256_madd_epi16(b, factor[1])),
            ]
        }
    }
    #[inline(always)]
    fn dot16_centred(
        self,
        sums: [__m256i; 2],
        codes: &[__m256i; 4],
        x: &[i8; 16],
        centre: &[i32; 2],
        factor: [__m256i; 2],
    ) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe {
            // The centre is added to the first of the two 16-bit sums that it belongs to. All stays within 16 bits:
            // four products with 63 or four with -32 of what is centred, and four times 32 of what is not, each times 127.
            let centre = i64::from(centre[1] as u16) << 32 | i64::from(centre[0] as u16);
            let centre = _mm256_set1_epi64x(centre);
            let (x0, x1) = (eight(x, 0), eight(x, 1));
            let a = _mm256_add_epi16(_mm256_maddubs_epi16(codes[0], x0), _mm256_maddubs_epi16(codes[2], x1));
            let b = _mm256_add_epi16(_mm256_maddubs_epi16(codes[1], x0), _mm256_maddubs_epi16(codes[3], x1));
            let (a, b) = (_mm256_add_epi16(centre, a), _mm256_add_epi16(centre, b));
            [
                _mm256_add_epi32(sums[0], _mm256_madd_epi16(a, factor[0])),
                _mm256_add_epi32(sums[1], _mm256_madd_epi16(b, factor[1])),
            ]
        }
    }
    #[inline(always)]
    fn scaled(self, sums: [__m256i; 2]) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_hadd_epi32(sums[0], sums[1]) }
    }
    #[inline(always)]
    fn dot16<const BITS: u32>(self, sums: [__m256i; 2], codes: &[__m256i; 4], x: &[i8; 16]) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe {
            let (ones, sixteens) = (_mm256_set1_epi16(1), _mm256_set1_epi16(16));
            let (x0, x1) = (eight(x, 0), eight(x, 1));
            let mut sums = sums;
            for half in 0..2 {
                let (c0, c1) = (codes[half], codes[half + 2]);
                if BITS > 6 {
                    // By halves of the codes, since the products of bytes would not stay within 16 bits.
                    let low0 = _mm256_maddubs_epi16(self.low(c0), x0);
                    let low1 = _mm256_maddubs_epi16(self.low(c1), x1);
                    let high0 = _mm256_maddubs_epi16(self.high(c0), x0);
                    let high1 = _mm256_maddubs_epi16(self.high(c1), x1);
                    let low = _mm256_madd_epi16(_mm256_add_epi16(low0, low1), ones);
                    let high = _mm256_madd_epi16(_mm256_add_epi16(high0, high1), sixteens);
                    sums[half] = _mm256_add_epi32(sums[half], _mm256_add_epi32(low, high));
                } else {
                    // Two sums of two products stay within 16 bits: 4 * 63 * 127 < 2^15.
                    let both = _mm256_add_epi16(_mm256_maddubs_epi16(c0, x0), _mm256_maddubs_epi16(c1, x1));
                    sums[half] = _mm256_add_epi32(sums[half], _mm256_madd_epi16(both, ones));
                }
            }
            sums
        }
    }
    #[inline(always)]
    fn plain(self, sums: [__m256i; 2]) -> __m256i {
        self.scaled(sums)
    }
    #[inline(always)]
    fn factor<const AT: i32>(self, words: __m256i) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe { [of_slots(words, 0, AT, false), of_slots(words, 1, AT, false)] }
    }
    #[inline(always)]
    fn signed_factor<const AT: i32>(self, words: __m256i) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe {
            let (a, b) = (of_slots(words, 0, AT, true), of_slots(words, 1, AT, true));
            [_mm256_srai_epi16::<8>(a), _mm256_srai_epi16::<8>(b)]
        }
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
    fn zero(self) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_setzero_si256() }
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
    fn powers(self, codes: &[u8; TILE_ROWS], part: usize) -> __m256 {
        let half = &codes[8 * part..8 * part + 8];
        // SAFETY: see above; 8 bytes are readable.
        unsafe {
            let codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(half.as_ptr().cast()));
            // Code 0 is 2^-127, a subnormal number.
            _mm256_castsi256_ps(_mm256_max_epi32(_mm256_slli_epi32::<23>(codes), _mm256_set1_epi32(1 << 22)))
        }
    }
    #[inline(always)]
    fn minifloats(self, codes: &[u8; TILE_ROWS], part: usize) -> __m256 {
        let half = &codes[8 * part..8 * part + 8];
        // SAFETY: see above; 8 bytes are readable.
        unsafe {
            let wide = _mm_cvtepu8_epi16(_mm_loadl_epi64(half.as_ptr().cast()));
            let sign = _mm_slli_epi16::<8>(_mm_and_si128(wide, _mm_set1_epi16(0x80)));
            let magnitude = _mm_slli_epi16::<7>(_mm_and_si128(wide, _mm_set1_epi16(0x7f)));
            // As f16 the exponent's bias is larger by 8.
            _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(sign, magnitude)), _mm256_set1_ps(256.0))
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

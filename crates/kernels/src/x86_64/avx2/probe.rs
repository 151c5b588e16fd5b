//! [`Probe`] over 256-bit registers: `vpmaddubsw`, thirty-two products an instruction, summed in 16 bits as far as 4-bit codes
//! allow, which is the best that AVX2 can do.

use crate::isa::Avx2;
use crate::limits::Probe;
use std::arch::asm;
use std::arch::x86_64::*;
use std::hint::black_box;

const CHAINS: usize = 4;
/// Products of codes below 16 that are summed in 16 bits before they are widened.
const NARROW: usize = 8;

impl Probe for Avx2 {
    const PRODUCTS: u64 = (CHAINS * NARROW * 32) as u64;

    #[inline(always)]
    fn read(self, words: &[[u64; 64]]) -> u64 {
        // SAFETY: an `Avx2` exists only where detection found AVX2; each load is inside the 512 bytes of its array.
        unsafe {
            let mut sums = [_mm256_setzero_si256(); 8];
            for words in words {
                for i in 0..16 {
                    let sum = &mut sums[i % 8];
                    *sum = _mm256_add_epi64(*sum, _mm256_loadu_si256(words.as_ptr().add(4 * i).cast()));
                }
            }
            let mut all = [0u64; 4];
            for sum in sums {
                let mut out = [0u64; 4];
                _mm256_storeu_si256(out.as_mut_ptr().cast(), sum);
                all.iter_mut().zip(out).for_each(|(all, out)| *all = all.wrapping_add(out));
            }
            all.into_iter().fold(0, u64::wrapping_add)
        }
    }

    #[inline(always)]
    fn multiply(self, rounds: u64) -> u64 {
        // SAFETY: an `Avx2` exists only where detection found AVX2; the instructions touch the registers that they name.
        unsafe {
            let (x, y, ones) = (_mm256_set1_epi8(black_box(3)), _mm256_set1_epi8(black_box(5)), _mm256_set1_epi16(1));
            let starts: [i32; CHAINS] = black_box([0; CHAINS]);
            let mut sums = starts.map(|start| _mm256_set1_epi32(start));
            for _ in 0..rounds {
                for sum in &mut sums {
                    let mut narrow = product(x, y);
                    for _ in 1..NARROW {
                        narrow = _mm256_add_epi16(narrow, product(x, y));
                    }
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(narrow, ones));
                }
            }
            let mut out = [0i32; 8];
            sums.into_iter().fold(0, |all: u64, sum| {
                _mm256_storeu_si256(out.as_mut_ptr().cast(), sum);
                all.wrapping_add(out[0] as u64)
            })
        }
    }
}

/// `vpmaddubsw` as it is written: the compiler would compute a product of values that do not change only once.
///
/// # Safety
/// The machine has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn product(x: __m256i, y: __m256i) -> __m256i {
    let out: __m256i;
    // SAFETY: the instruction writes `out` and nothing else.
    unsafe {
        asm!("vpmaddubsw {}, {}, {}", out(ymm_reg) out, in(ymm_reg) x, in(ymm_reg) y,
             options(nomem, nostack, preserves_flags));
    }
    out
}

//! [`Probe`] over 512-bit registers: `vpdpbusd`, sixty-four products an instruction.

use crate::isa::Avx512;
use crate::limits::Probe;
use std::arch::x86_64::*;
use std::hint::black_box;

const CHAINS: usize = 12;

impl Probe for Avx512 {
    const PRODUCTS: u64 = (CHAINS * 64) as u64;

    #[inline(always)]
    fn read(self, words: &[[u64; 64]]) -> u64 {
        // SAFETY: an `Avx512` exists only where detection found AVX-512 F; each load is inside the 512 bytes of its array.
        unsafe {
            let mut sums = [_mm512_setzero_si512(); 8];
            for words in words {
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm512_add_epi64(*sum, _mm512_loadu_si512(words.as_ptr().add(8 * i).cast()));
                }
            }
            sums.into_iter().fold(0, |all, sum| all.wrapping_add(_mm512_reduce_add_epi64(sum) as u64))
        }
    }

    #[inline(always)]
    fn multiply(self, rounds: u64) -> u64 {
        // SAFETY: an `Avx512` exists only where detection found AVX-512 F and VNNI.
        unsafe {
            let (x, y) = (_mm512_set1_epi8(black_box(3)), _mm512_set1_epi8(black_box(5)));
            // Starts that the compiler does not know keep it from merging the chains.
            let starts: [i32; CHAINS] = black_box([0; CHAINS]);
            let mut sums = starts.map(|start| _mm512_set1_epi32(start));
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = _mm512_dpbusd_epi32(*sum, x, y);
                }
            }
            sums.into_iter().fold(0, |all: u64, sum| all.wrapping_add(_mm512_reduce_add_epi32(sum) as u64))
        }
    }
}

//! [`Probe`] over 128-bit registers: `sdot` or `smmla`, sixteen or thirty-two products an instruction.

use super::dot::{sdot, smmla};
use crate::isa::Neon;
use crate::limits::Probe;
use std::arch::aarch64::*;
use std::hint::black_box;

const CHAINS: usize = 12;

impl<const MATRICES: bool> Probe for Neon<MATRICES> {
    const PRODUCTS: u64 = (CHAINS * if MATRICES { 32 } else { 16 }) as u64;

    #[inline(always)]
    fn read(self, words: &[[u64; 64]]) -> u64 {
        // SAFETY: a `Neon` exists only where detection found NEON; each load is inside the 512 bytes of its array.
        unsafe {
            let mut sums = [vdupq_n_u64(0); 8];
            for words in words {
                for i in 0..32 {
                    sums[i % 8] = vaddq_u64(sums[i % 8], vld1q_u64(words.as_ptr().add(2 * i)));
                }
            }
            sums.into_iter().fold(0, |all: u64, sum| all.wrapping_add(vaddvq_u64(sum)))
        }
    }

    #[inline(always)]
    fn multiply(self, rounds: u64) -> u64 {
        let (codes, x) = (black_box([3i8; 16]), black_box([5i8; 16]));
        let starts = black_box([[0i32; 4]; CHAINS]);
        // SAFETY: a `Neon` exists only where detection found NEON and `sdot`, and `smmla` if it has matrices; the pointers are
        // to 16 bytes each.
        unsafe {
            let (codes, x) = (vld1q_s8(codes.as_ptr()), vld1q_s8(x.as_ptr()));
            let mut chains = starts.map(|start| vld1q_s32(start.as_ptr()));
            for _ in 0..rounds {
                for chain in &mut chains {
                    *chain = if MATRICES { smmla(*chain, codes, x) } else { sdot(*chain, codes, x) };
                }
            }
            chains.into_iter().fold(0, |all: u64, chain| all.wrapping_add(vaddvq_s32(chain) as u64))
        }
    }
}

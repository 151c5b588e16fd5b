//! [`Probe`] over 128-bit registers: `smull` and `sadalp`, eight products every two instructions.

use crate::isa::Neon;
use crate::limits::Probe;
use std::arch::aarch64::*;
use std::arch::asm;
use std::hint::black_box;

const CHAINS: usize = 12;

impl Probe for Neon {
    const PRODUCTS: u64 = (CHAINS * 8) as u64;

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
        // SAFETY: a `Neon` exists only where detection found NEON; the instructions touch the registers that they name.
        unsafe {
            let (x, y) = (vdup_n_s8(black_box(3)), vdup_n_s8(black_box(5)));
            let starts: [i32; CHAINS] = black_box([0; CHAINS]);
            let mut sums = starts.map(|start| vdupq_n_s32(start));
            for _ in 0..rounds {
                for sum in &mut sums {
                    // As it is written: the compiler would compute a product of values that do not change only once.
                    let product: int16x8_t;
                    asm!("smull {0:v}.8h, {1:v}.8b, {2:v}.8b", out(vreg) product, in(vreg) x, in(vreg) y,
                         options(nomem, nostack, preserves_flags));
                    *sum = vpadalq_s16(*sum, product);
                }
            }
            sums.into_iter().fold(0, |all: u64, sum| all.wrapping_add(vaddvq_s32(sum) as u64))
        }
    }
}

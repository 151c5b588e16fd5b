//! [`Probe`] in plain Rust.

use crate::isa::Scalar;
use crate::limits::Probe;
use std::hint::black_box;

/// Products of a round.
const ROUND: usize = 64;

impl Probe for Scalar {
    const PRODUCTS: u64 = ROUND as u64;

    fn read(self, words: &[[u64; 64]]) -> u64 {
        let mut sums = [0u64; 8];
        for words in words {
            for (i, word) in words.iter().enumerate() {
                sums[i % 8] = sums[i % 8].wrapping_add(*word);
            }
        }
        sums.into_iter().fold(0, u64::wrapping_add)
    }

    fn multiply(self, rounds: u64) -> u64 {
        let (mut x, y) = (black_box([3u8; ROUND]), black_box([5i8; ROUND]));
        let mut sums = [0i32; ROUND / 4];
        for round in 0..rounds {
            // One operand changes, so that the products cannot be computed once for all rounds.
            x[round as usize % ROUND] = round as u8;
            for i in 0..ROUND {
                sums[i / 4] = sums[i / 4].wrapping_add(i32::from(x[i]) * i32::from(y[i]));
            }
        }
        sums.into_iter().fold(0, |all: u64, sum| all.wrapping_add(sum as u64))
    }
}

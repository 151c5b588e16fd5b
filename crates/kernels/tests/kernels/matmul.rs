//! Dense products.

use crate::support::{ENDS, Flush, Guarded, Random, bits, cases, narrow, tables};
use glimmer_kernels::dispatch::Kernels;
use glimmer_kernels::lanes::{BF16, Element, F16, F32};
use glimmer_kernels::matmul::{Dense, matmul, matmul_bf16, round_bf16, settle_bf16};
use glimmer_kernels::pool::Pool;
use proptest::prelude::*;

/// Rows, outputs, inputs: around the sizes of vectors, blocks and tiles.
const SHAPES: &[(usize, usize, usize)] = &[
    (1, 1, 1),
    (1, 3, 15),
    (1, 4, 16),
    (2, 5, 17),
    (3, 16, 31),
    (4, 17, 32),
    (5, 15, 33),
    (5, 33, 48),
    (7, 9, 100),
    (8, 8, 128),
    (9, 70, 129),
    (16, 6, 64),
    (17, 47, 191),
    (33, 130, 65),
];

/// x (rows, k) times w (outs, k), into the last.
type Product<E> = fn(&Kernels, &Pool, &[f32], &[<E as Element>::Bits], usize, &mut [f32]);

/// `seen` is what an activation counts as.
fn check<E: Element>(product: Product<E>, seen: fn(f32) -> f32) {
    let pools = [Pool::new(1), Pool::new(3)];
    for (seed, &shape) in SHAPES.iter().enumerate() {
        check_shape::<E>(product, seen, &pools, shape, seed as u64 + 1);
    }
    cases(64, &((1..=20usize, 1..=70usize, 1..=300usize), any::<u64>()), |&(shape, seed)| {
        check_shape::<E>(product, seen, &pools, shape, seed);
    });
}

fn check_shape<E: Element>(
    product: Product<E>,
    seen: fn(f32) -> f32,
    pools: &[Pool],
    (rows, outs, k): (usize, usize, usize),
    seed: u64,
) {
    let mut random = Random::new(seed);
    let x = random.values(rows * k);
    let stored: Vec<E::Bits> = narrow::<E>(&random.values(outs * k));
    let weight: Vec<f64> = stored.iter().map(|&w| E::widen(w) as f64).collect();
    let run = |kernels: &Kernels, pool: &Pool, x: &[f32], w: &[E::Bits]| {
        let mut out = vec![f32::NAN; x.len() / k * outs];
        product(kernels, pool, x, w, k, &mut out);
        out
    };
    let scalar = run(tables()[0], &pools[0], &x, &stored);
    for (i, &sum) in scalar.iter().enumerate() {
        let (x, w) = (&x[i / outs * k..][..k], &weight[i % outs * k..][..k]);
        let products = || x.iter().zip(w).map(|(&x, w)| f64::from(seen(x)) * w);
        let (exact, size): (f64, f64) = (products().sum(), products().map(f64::abs).sum());
        // Each lane adds k / 16 products with one rounding each, and four levels of sums follow.
        let bound = (k as f64 / 16.0 + 5.0) * f64::from(f32::EPSILON) * size;
        assert!((sum as f64 - exact).abs() <= bound, "{rows}x{outs}x{k} at {i}: {sum} against {exact}");
    }
    for kernels in tables() {
        let isa = kernels.isa();
        for end in ENDS {
            let (x, w) = (Guarded::new(&x, end), Guarded::new(&stored, end));
            let mut out = Guarded::new(&vec![f32::NAN; rows * outs], end);
            for pool in pools {
                product(kernels, pool, &x, &w, k, &mut out);
                assert!(bits(&out) == bits(&scalar), "{isa} {rows}x{outs}x{k} {end:?}");
            }
        }
        // A row alone, and in any company, is the same row.
        for row in 0..rows {
            let alone = run(kernels, &pools[0], &x[row * k..(row + 1) * k], &stored);
            assert!(bits(&alone) == bits(&scalar[row * outs..(row + 1) * outs]), "{isa} row {row} alone");
        }
        for first in 0..rows {
            let tail = run(kernels, &pools[0], &x[first * k..], &stored);
            assert!(bits(&tail) == bits(&scalar[first * outs..]), "{isa} rows from {first}");
        }
    }
}

#[test]
fn f32_weights() {
    check::<F32>(|kernels, pool, x, w, k, out| matmul(kernels, pool, x, Dense::F32(w), k, out), |x| x);
}

#[test]
fn f16_weights() {
    check::<F16>(|kernels, pool, x, w, k, out| matmul(kernels, pool, x, Dense::F16(w), k, out), |x| x);
}

#[test]
fn bf16_weights() {
    check::<BF16>(|kernels, pool, x, w, k, out| matmul(kernels, pool, x, Dense::BF16(w), k, out), |x| x);
}

#[test]
fn bf16_weights_and_activations() {
    let product: Product<BF16> = |kernels, pool, x, w, k, out| {
        matmul_bf16(kernels, pool, &Guarded::new(&round_bf16(x), Flush::End), w, k, out);
    };
    check::<BF16>(product, |x| BF16::widen(BF16::narrow(x)));
}

#[test]
fn bf16_products_are_added_in_the_written_order_and_never_denormal() {
    // Of all sizes, tiny ones above all; neighbours that cancel, so that what is left is as small as it can be.
    fn operand(random: &mut Random, len: usize) -> Vec<u16> {
        let exponent = |random: &mut Random| match random.below(4) {
            0 => random.below(255),
            1 => 69 + random.below(4),
            _ => 71 + random.below(60),
        };
        (0..len).map(|_| settle_bf16((random.next() as u16 & 0x807f) | (exponent(random) as u16) << 7)).collect()
    }
    let wide = BF16::widen;
    for (seed, &(rows, outs, k)) in SHAPES.iter().enumerate() {
        for round in 0..4 {
            let mut random = Random::new(100 * seed as u64 + round);
            let (mut x, mut w) = (operand(&mut random, rows * k), operand(&mut random, outs * k));
            if k > 1 && round % 2 == 1 {
                x.chunks_mut(k).for_each(|x| x.chunks_exact_mut(2).for_each(|x| x[1] = x[0] ^ 0x8000));
                w.chunks_mut(k).for_each(|w| w.chunks_exact_mut(2).for_each(|w| w[1] = w[0] ^ random.below(2) as u16));
                w.iter_mut().for_each(|w| *w = settle_bf16(*w));
            }
            let expected: Vec<f32> = (0..rows * outs)
                .map(|i| {
                    let (x, w) = (&x[i / outs * k..][..k], &w[i % outs * k..][..k]);
                    let mut sums = [0f32; 16];
                    for (pair, (x, w)) in x.chunks(2).zip(w.chunks(2)).enumerate() {
                        for (&x, &w) in x.iter().zip(w).rev() {
                            let sum = &mut sums[pair % 16];
                            *sum = wide(x).mul_add(wide(w), *sum);
                            assert!(!sum.is_subnormal(), "{x:x} {w:x}");
                        }
                    }
                    for half in [8, 4, 2, 1] {
                        (0..half).for_each(|i| sums[i] += sums[i + half]);
                    }
                    sums[0]
                })
                .collect();
            for kernels in tables() {
                let mut out = vec![f32::NAN; rows * outs];
                matmul_bf16(kernels, &Pool::new(1), &x, &w, k, &mut out);
                for (ours, theirs) in out.iter().zip(&expected) {
                    let same = ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan();
                    assert!(same, "{} {rows}x{outs}x{k}: {ours:e} {theirs:e}", kernels.isa());
                }
            }
        }
    }
}

#[test]
fn activations_round_to_bf16() {
    let mut random = Random::new(9);
    let rounded = |x: f32| round_bf16(&[x])[0];
    for _ in 0..100_000 {
        let x = f32::from_bits(random.next() as u32);
        let nearest = BF16::narrow(x);
        if x.is_nan() {
            assert!(BF16::widen(rounded(x)).is_nan());
        } else if BF16::widen(nearest).abs() < 2f32.powi(-56) {
            assert_eq!(rounded(x), 0, "{x:e}");
        } else {
            assert_eq!(rounded(x), nearest, "{x:e}");
        }
    }
    let smallest = 2f32.powi(-56);
    assert_eq!([-0.0, f32::from_bits(1), smallest / 2.0, -smallest, 1.0].map(rounded), [0, 0, 0, 0xa380, 0x3f80]);
    assert_eq!([f32::INFINITY, f32::NEG_INFINITY, f32::MAX].map(rounded), [0x7f80, 0xff80, 0x7f80]);
}

#[test]
fn large_products_are_shared_out_and_stay_the_same() {
    let (rows, outs, k) = (6, 500, 300);
    let mut random = Random::new(99);
    let (x, w) = (random.values(rows * k), random.values(outs * k));
    let mut expected = vec![0.0; rows * outs];
    matmul(tables()[0], &Pool::new(1), &x, Dense::F32(&w), k, &mut expected);
    for kernels in tables() {
        for threads in [1, 2, 3, 4] {
            let mut out = vec![0.0; rows * outs];
            matmul(kernels, &Pool::new(threads), &x, Dense::F32(&w), k, &mut out);
            assert!(bits(&out) == bits(&expected), "{} with {threads} threads", kernels.isa());
        }
    }
}

#[test]
fn what_is_not_a_number_reaches_its_row_and_no_other() {
    let (rows, outs, k) = (5, 7, 40);
    let mut random = Random::new(5);
    let (mut x, w) = (random.values(rows * k), random.values(outs * k));
    x[2 * k + 17] = f32::NAN;
    x[3 * k + 39] = f32::INFINITY;
    for kernels in tables() {
        let mut out = vec![0.0; rows * outs];
        matmul(kernels, &Pool::new(1), &x, Dense::F32(&w), k, &mut out);
        for (row, out) in out.chunks(outs).enumerate() {
            assert_eq!(out.iter().all(|x| x.is_finite()), row != 2 && row != 3, "{} row {row}", kernels.isa());
        }
    }
}

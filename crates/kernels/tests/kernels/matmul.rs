//! Dense products.

use crate::support::{ENDS, Guarded, Random, bits, cases, narrow, tables};
use glimmer_kernels::dispatch::Kernels;
use glimmer_kernels::lanes::{BF16, Element, F16, F32};
use glimmer_kernels::matmul::{Dense, matmul};
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

type AsDense<E> = for<'a> fn(&'a [<E as Element>::Bits]) -> Dense<'a>;

fn check<E: Element>(dense: AsDense<E>) {
    let pools = [Pool::new(1), Pool::new(3)];
    for (seed, &shape) in SHAPES.iter().enumerate() {
        check_shape::<E>(dense, &pools, shape, seed as u64 + 1);
    }
    cases(64, &((1..=20usize, 1..=70usize, 1..=300usize), any::<u64>()), |&(shape, seed)| {
        check_shape::<E>(dense, &pools, shape, seed);
    });
}

fn check_shape<E: Element>(dense: AsDense<E>, pools: &[Pool], (rows, outs, k): (usize, usize, usize), seed: u64) {
    let mut random = Random::new(seed);
    let x = random.values(rows * k);
    let stored: Vec<E::Bits> = narrow::<E>(&random.values(outs * k));
    let weight: Vec<f64> = stored.iter().map(|&w| E::widen(w) as f64).collect();
    let run = |kernels: &Kernels, pool: &Pool, x: &[f32], w: &[E::Bits]| {
        let mut out = vec![f32::NAN; x.len() / k * outs];
        matmul(kernels, pool, x, dense(w), k, &mut out);
        out
    };
    let scalar = run(tables()[0], &pools[0], &x, &stored);
    for (i, &sum) in scalar.iter().enumerate() {
        let (x, w) = (&x[i / outs * k..][..k], &weight[i % outs * k..][..k]);
        let exact: f64 = x.iter().zip(w).map(|(&x, w)| x as f64 * w).sum();
        let size: f64 = x.iter().zip(w).map(|(&x, w)| (x as f64 * w).abs()).sum();
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
                matmul(kernels, pool, &x, dense(&w), k, &mut out);
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
    check::<F32>(|w| Dense::F32(w));
}

#[test]
fn f16_weights() {
    check::<F16>(|w| Dense::F16(w));
}

#[test]
fn bf16_weights() {
    check::<BF16>(|w| Dense::BF16(w));
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

//! Norms, rotations and functions of single elements.

use crate::support::{ENDS, Guarded, Random, bits, cases, tables};
use glimmer_kernels::dispatch::Kernels;
use glimmer_kernels::packed::Activations;
use glimmer_kernels::pool::Pool;
use glimmer_kernels::rope::Rotation;
use glimmer_kernels::rows;
use proptest::prelude::*;

/// A kernel under test: x (rows, cols) in place, with a second operand of the same shape.
type Kernel = fn(&Kernels, &Pool, &mut [f32], &[f32], usize);
/// What an element should be, from x, the second operand and the row, in f64.
type Oracle = fn(&[f64], &[f64], usize) -> f64;

const ELEMENTWISE: &[(&str, Kernel, Oracle, f64)] = &[
    ("add", |k, p, x, y, cols| rows::add(k, p, x, y, cols), |x, y, i| x[i] + y[i], 1e-7),
    (
        "gate",
        |k, p, x, y, cols| drop(rows::gate(k, p, x, y, cols, false)),
        |x, y, i| x[i] / (1.0 + (-y[i]).exp()),
        4e-7,
    ),
    (
        "swiglu",
        |k, p, x, y, cols| drop(rows::swiglu(k, p, x, y, cols, false)),
        |x, y, i| x[i] / (1.0 + (-x[i]).exp()) * y[i],
        6e-7,
    ),
    (
        "softcap",
        |k, p, x, _, cols| rows::softcap(k, p, x, cols, 0.3, 20.0),
        |x, _, i| (x[i] * 0.3f32 as f64 / 20.0).tanh() * 20.0,
        6e-7,
    ),
    (
        "rms_norm",
        |k, p, x, _, cols| rows::rms_norm(k, p, x, cols, None, 1e-5, 3.5),
        |x, _, i| x[i] / (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + 1e-5f32 as f64).sqrt() * 3.5,
        2e-6,
    ),
];

#[test]
fn every_element_is_right_and_the_same_everywhere() {
    let pools = [Pool::new(1), Pool::new(3)];
    for shape in [(1, 1), (2, 3), (3, 15), (1, 16), (4, 17), (2, 31), (3, 48), (5, 100), (70, 600)] {
        check(&pools, shape, shape.1 as u64);
    }
    cases(64, &((1..=5usize, 1..=130usize), any::<u64>()), |&(shape, seed)| check(&pools, shape, seed));
}

fn check(pools: &[Pool], (rows, cols): (usize, usize), seed: u64) {
    for (name, kernel, oracle, tolerance) in ELEMENTWISE {
        let mut random = Random::new(seed);
        let (mut x, mut y) = (random.values(rows * cols), random.values(rows * cols));
        // Far out on both sides, and where the functions turn.
        for (i, far) in [0.0, -0.0, 30.0, -30.0, 95.0, -95.0, 300.0, -300.0, 1e-20, 0.625].into_iter().enumerate() {
            if i < x.len() {
                (x[i], y[i]) = (far, -far);
            }
        }
        let mut scalar = x.clone();
        kernel(tables()[0], &pools[0], &mut scalar, &y, cols);
        for (row, out) in scalar.chunks(cols).enumerate() {
            let wide = |v: &[f32]| -> Vec<f64> { v[row * cols..(row + 1) * cols].iter().map(|&x| x as f64).collect() };
            let (x, y) = (wide(&x), wide(&y));
            for (i, &ours) in out.iter().enumerate() {
                let exact = oracle(&x, &y, i);
                let error = (ours as f64 - exact).abs();
                assert!(error <= tolerance * exact.abs() + 1e-30, "{name} {cols} at {i}: {ours} against {exact}");
            }
        }
        for kernels in tables() {
            for end in ENDS {
                for pool in pools {
                    let (mut x, y) = (Guarded::new(&x, end), Guarded::new(&y, end));
                    kernel(kernels, pool, &mut x, &y, cols);
                    assert!(bits(&x) == bits(&scalar), "{name} {} {rows}x{cols} {end:?}", kernels.isa());
                }
            }
            for row in 0..rows {
                let part = row * cols..(row + 1) * cols;
                let mut alone = x[part.clone()].to_vec();
                kernel(kernels, &pools[0], &mut alone, &y[part.clone()], cols);
                assert!(bits(&alone) == bits(&scalar[part]), "{name} {} row {row} alone", kernels.isa());
            }
        }
    }
}

/// A kernel that rounds what it makes, if it is told to: x (rows, cols) in place, with a second operand of the same shape.
type Rounding = fn(&Kernels, &Pool, &mut [f32], &[f32], usize, bool) -> Option<Activations>;

const ROUNDING: &[(&str, Rounding)] = &[
    ("gate", rows::gate),
    ("swiglu", rows::swiglu),
    ("norm", |k, p, x, y, cols, round| rows::rms_norm_into(k, p, y, cols, Some(&y[..cols]), 1e-5, x, round)),
];

#[test]
fn what_is_rounded_as_it_is_made_is_rounded_as_ever() {
    let pools = [Pool::new(1), Pool::new(3)];
    let mut shapes: Vec<(usize, usize)> = (1..=17).map(|rows| (rows, 15 + 97 * rows)).collect();
    shapes.extend([(1, 1), (2, 256), (3, 257), (9, 2048), (17, 1024), (40, 600)]);
    for (rows, cols) in shapes {
        let mut random = Random::new(rows as u64);
        let (x, y) = (random.values(rows * cols), random.values(rows * cols));
        for (name, kernel) in ROUNDING {
            let mut plain = x.clone();
            assert!(kernel(tables()[0], &pools[0], &mut plain, &y, cols, false).is_none());
            let expected = Activations::quantize(tables()[0], &pools[0], &plain, cols);
            for (kernels, pool) in tables().into_iter().flat_map(|kernels| pools.iter().map(move |p| (kernels, p))) {
                let mut made = x.clone();
                let rounded = kernel(kernels, pool, &mut made, &y, cols, true).unwrap();
                assert!(bits(&made) == bits(&plain), "{name} {} {rows}x{cols}", kernels.isa());
                assert_eq!((rounded.rows(), rounded.inputs()), (rows, cols));
                for number in 0..expected.blocks() {
                    let (ours, expected) = (rounded.of_rows(number), expected.of_rows(number));
                    assert_eq!(format!("{ours:?}"), format!("{expected:?}"), "{name} {} {rows}x{cols}", kernels.isa());
                }
            }
        }
    }
}

#[test]
fn norms_are_added_and_put_elsewhere_with_the_same_bits() {
    let pools = [Pool::new(1), Pool::new(3)];
    for (rows, cols) in (1..=17).map(|rows| (rows, 11 + 101 * rows)).chain([(9, 2048), (40, 600)]) {
        let mut random = Random::new(rows as u64);
        let (x, y, weight) = (random.values(rows * cols), random.values(rows * cols), random.values(cols));
        for weight in [None, Some(&weight[..])] {
            let (mut normed, mut sum) = (y.clone(), x.clone());
            rows::rms_norm(tables()[0], &pools[0], &mut normed, cols, weight, 1e-5, 1.0);
            rows::add(tables()[0], &pools[0], &mut sum, &normed, cols);
            for (kernels, pool) in tables().into_iter().flat_map(|kernels| pools.iter().map(move |p| (kernels, p))) {
                let mut elsewhere = vec![f32::NAN; rows * cols];
                rows::rms_norm_into(kernels, pool, &y, cols, weight, 1e-5, &mut elsewhere, false);
                assert!(bits(&elsewhere) == bits(&normed), "{} {rows}x{cols}", kernels.isa());
                let (mut x, mut y) = (x.clone(), y.clone());
                rows::add_norm(kernels, pool, &mut x, &mut y, cols, weight, 1e-5);
                assert!(bits(&x) == bits(&sum) && bits(&y) == bits(&normed), "{} {rows}x{cols}", kernels.isa());
            }
        }
    }
}

#[test]
fn what_is_not_a_number_stays_what_it_is() {
    for (name, kernel, _, _) in ELEMENTWISE {
        for kernels in tables() {
            for at in 0..20 {
                let mut x = vec![0.5; 20];
                x[at] = f32::NAN;
                kernel(kernels, &Pool::new(1), &mut x, &[0.25; 20], 20);
                assert!(x[at].is_nan(), "{name} {} at {at}", kernels.isa());
                // Infinity is not hidden either, where a function would saturate.
                for huge in [f32::INFINITY, f32::NEG_INFINITY, 3e38] {
                    let mut x = vec![0.5; 20];
                    x[at] = huge;
                    kernel(kernels, &Pool::new(1), &mut x, &[0.25; 20], 20);
                    let finite = huge.is_finite() && *name != "rms_norm";
                    assert_eq!(x[at].is_finite(), finite, "{name} {} of {huge}", kernels.isa());
                }
                if *name == "gate" {
                    let mut gate = [0.25; 20];
                    gate[at] = f32::NAN;
                    let mut x = vec![0.5; 20];
                    kernel(kernels, &Pool::new(1), &mut x, &gate, 20);
                    assert!(x[at].is_nan(), "gate {} at {at}", kernels.isa());
                    gate[at] = f32::INFINITY;
                    let mut x = vec![0.5; 20];
                    kernel(kernels, &Pool::new(1), &mut x, &gate, 20);
                    assert!(x[at].is_nan(), "gate {} at {at}", kernels.isa());
                }
            }
        }
    }
}

#[test]
fn norm_weights_multiply() {
    cases(64, &(1..=70usize, any::<u64>()), |&(cols, seed)| {
        let mut random = Random::new(seed);
        let (x, weight) = (random.values(3 * cols), random.values(cols));
        for kernels in tables() {
            for end in ENDS {
                let (mut plain, mut weighted) = (x.clone(), Guarded::new(&x, end));
                let guarded = Guarded::new(&weight, end);
                rows::rms_norm(kernels, &Pool::new(1), &mut plain, cols, None, 1e-8, 1.0);
                rows::rms_norm(kernels, &Pool::new(1), &mut weighted, cols, Some(&guarded), 1e-8, 1.0);
                let expected: Vec<f32> = plain.iter().enumerate().map(|(i, x)| x * weight[i % cols]).collect();
                assert!(bits(&weighted) == bits(&expected), "{} {cols}", kernels.isa());
            }
        }
    });
}

#[test]
fn rotations_turn_pairs_of_halves() {
    for (heads, head_dim, start) in [(1, 2, 0), (3, 6, 5), (2, 32, 131_000), (4, 34, 77), (2, 128, 2047)] {
        check_rotation(heads, head_dim, start);
    }
    let shape = (1..=4usize, 1..=70usize, 0..=131_072usize);
    cases(64, &shape, |&(heads, half, start)| check_rotation(heads, 2 * half, start));
}

fn check_rotation(heads: usize, head_dim: usize, start: usize) {
    let (count, cols) = (4, heads * head_dim);
    let theta = 500_000.0;
    let rotation = Rotation::new(start..start + count, head_dim, theta);
    let x = Random::new(9).values(count * cols);
    let mut scalar = x.clone();
    rows::rope(tables()[0], &Pool::new(1), &mut scalar, cols, &rotation);
    for (i, &ours) in scalar.iter().enumerate() {
        let (row, head, d) = (i / cols, i % cols / head_dim, i % head_dim);
        let (half, j) = (head_dim / 2, d % (head_dim / 2));
        // The reference rounds frequency and angle to f32.
        let frequency = 1.0 / theta.powf(2.0 * j as f64 / head_dim as f64) as f32;
        let angle = ((start + row) as f32 * frequency) as f64;
        let at = row * cols + head * head_dim + j;
        let (a, b) = (x[at] as f64, x[at + half] as f64);
        let exact = if d < half { a * angle.cos() - b * angle.sin() } else { b * angle.cos() + a * angle.sin() };
        assert!((ours as f64 - exact).abs() < 2e-6, "{heads}x{head_dim} at {i}: {ours} against {exact}");
    }
    for kernels in tables() {
        for end in ENDS {
            let mut turned = Guarded::new(&x, end);
            rows::rope(kernels, &Pool::new(2), &mut turned, cols, &rotation);
            assert!(bits(&turned) == bits(&scalar), "{} {heads}x{head_dim}", kernels.isa());
        }
        for row in 0..count {
            let mut alone = x[row * cols..(row + 1) * cols].to_vec();
            let rotation = Rotation::new(start + row..start + row + 1, head_dim, theta);
            rows::rope(kernels, &Pool::new(1), &mut alone, cols, &rotation);
            assert!(bits(&alone) == bits(&scalar[row * cols..(row + 1) * cols]));
        }
    }
}

/// Taps, rows, columns, elements of a group.
fn conv_is_right(pools: &[Pool], taps: usize, rows: usize, cols: usize, group: usize, seed: u64) {
    let groups = cols / group;
    let mut random = Random::new(seed);
    let [x, base, dynamic] = [rows * cols, 2 * taps * cols, rows * 2 * taps * groups].map(|len| random.values(len));
    for side in 0..2 {
        let conv = |pool: &Pool, rows: usize| {
            let dynamic = &dynamic[..rows * 2 * taps * groups];
            let mut out = vec![f32::NAN; rows * cols];
            rows::dynamic_conv(pool, &x[..rows * cols], cols, &base, dynamic, side, &mut out);
            out
        };
        let out = conv(&pools[0], rows);
        for (at, &ours) in out.iter().enumerate() {
            let (row, col) = (at / cols, at % cols);
            let term = |tap: usize| {
                let kernel = base[(side * taps + tap) * cols + col] as f64
                    + dynamic[((row * 2 + side) * taps + tap) * groups + col / group] as f64;
                kernel * x[(row - tap) * cols + col] as f64
            };
            let terms: Vec<f64> = (0..taps.min(row + 1)).map(term).collect();
            let (exact, size) = (terms.iter().sum::<f64>(), terms.iter().map(|x| x.abs()).sum::<f64>());
            let bound = 1e-6 * (size + 1.0);
            assert!(
                (ours as f64 - exact).abs() < bound,
                "{taps} taps, row {row}, column {col}: {ours} against {exact}"
            );
        }
        // Nor does a row depend on threads, or on the rows behind it.
        for (pool, rows) in pools.iter().flat_map(|pool| (1..=rows).map(move |rows| (pool, rows))) {
            assert!(bits(&conv(pool, rows)) == bits(&out[..rows * cols]), "{rows} rows");
        }
    }
}

#[test]
fn convolutions_are_right_and_the_same_everywhere() {
    let pools = [Pool::new(1), Pool::new(3)];
    for (taps, rows, cols, group) in
        [(2, 16, 64, 16), (2, 1, 16, 16), (1, 3, 12, 4), (3, 2, 35, 5), (4, 9, 48, 48), (2, 20, 1040, 16)]
    {
        conv_is_right(&pools, taps, rows, cols, group, 11);
    }
    let shapes = (1..=4usize, 1..=9usize, 1..=8usize, 1..=33usize);
    cases(32, &(shapes, any::<u64>()), |&((taps, rows, groups, group), seed)| {
        conv_is_right(&pools, taps, rows, groups * group, group, seed);
    });
}

//! Draws are distributed as the distribution says, and depend on seed, sample and position alone.

use super::{chain, greedy, plain};
use glimmer_engine::sampling::{Noise, Sampling};

/// The probability that a chi-square variable with `degrees` degrees of freedom exceeds `x`: the regularised upper incomplete
/// gamma function Q(degrees / 2, x / 2), by its series or its continued fraction (Numerical Recipes, 6.2).
fn survival(x: f64, degrees: usize) -> f64 {
    let (a, x) = (degrees as f64 / 2.0, x / 2.0);
    if x <= 0.0 {
        return 1.0;
    }
    let factor = (a * x.ln() - x - ln_gamma(degrees)).exp();
    if x < a + 1.0 {
        let (mut term, mut sum) = (1.0 / a, 1.0 / a);
        for n in 1..1000 {
            term *= x / (a + n as f64);
            sum += term;
        }
        1.0 - factor * sum
    } else {
        let mut b = x + 1.0 - a;
        let (mut c, mut d) = (1e300, 1.0 / b);
        let mut h = d;
        for n in 1..1000 {
            let n = n as f64;
            let an = -n * (n - a);
            b += 2.0;
            d = 1.0 / (an * d + b);
            c = b + an / c;
            h *= d * c;
        }
        factor * h
    }
}

/// ln of the gamma function at `twice` / 2, from Gamma(1) = 1, Gamma(1/2) = sqrt(pi) and Gamma(a + 1) = a Gamma(a).
fn ln_gamma(twice: usize) -> f64 {
    let start = if twice.is_multiple_of(2) { 0.0 } else { std::f64::consts::PI.ln() / 2.0 };
    (1..twice).filter(|n| (twice - n).is_multiple_of(2)).fold(start, |sum, n| sum + (n as f64 / 2.0).ln())
}

/// The probability of counts as unlikely as these. Rare outcomes are counted together.
fn fit(counts: &[u32], expected: &[(u32, f64)]) -> f64 {
    let draws: u32 = counts.iter().sum();
    let (mut chi, mut bins, mut rare) = (0.0, 0, (0.0, 0.0));
    let mut bin = |found: f64, wanted: f64| {
        chi += (found - wanted).powi(2) / wanted;
        bins += 1;
    };
    for &(token, p) in expected {
        let (found, wanted) = (counts[token as usize] as f64, p * draws as f64);
        match wanted < 8.0 {
            true => rare = (rare.0 + found, rare.1 + wanted),
            false => bin(found, wanted),
        }
    }
    if rare.1 >= 1.0 {
        bin(rare.0, rare.1);
    }
    survival(chi, bins - 1)
}

fn draws() -> u64 {
    if std::env::var_os("GLIMMER_LONG").is_some() { 100_000 } else { 10_000 }
}

#[test]
fn the_statistic_itself() {
    // Tabulated 5 % and 0.1 % points.
    for (x, degrees, p) in [(3.841459, 1, 0.05), (5.991465, 2, 0.05), (18.307038, 10, 0.05), (59.703064, 30, 0.001)] {
        assert!((survival(x, degrees) - p).abs() < 1e-7, "{x}, {degrees}");
    }
    assert!((survival(10.0, 10) - 0.440_493_285).abs() < 1e-8);
    let halves = [(0, 0.5), (1, 0.5)];
    assert!(fit(&[5000, 5000], &halves) > 0.99 && fit(&[5300, 4700], &halves) < 1e-8);
}

/// Logits of some shape, the same every time.
fn logits(vocab_size: usize) -> Vec<f32> {
    (0..vocab_size).map(|t| ((t * 37 + 11) % 64) as f32 * 0.11 - 3.0).collect()
}

#[test]
fn draws_follow_the_distribution() {
    let settings = [
        plain(),
        Sampling::default(),
        Sampling { temperature: 0.5, ..plain() },
        Sampling { temperature: 2.5, top_k: 7, ..plain() },
        Sampling { top_p: 0.6, ..plain() },
        Sampling { min_p: 0.3, ..plain() },
        Sampling { repetition_penalty: 1.7, presence_penalty: 0.6, frequency_penalty: 0.3, top_k: 20, ..plain() },
        Sampling { temperature: 1e6, ..plain() },
    ];
    for (case, sampling) in settings.into_iter().enumerate() {
        let logits = logits(50);
        let prepared = |seed, sample_index| {
            let mut chain = chain(Sampling { seed, sample_index, ..sampling.clone() }, logits.len());
            chain.start(&[1, 2, 3]);
            [3, 4, 3].into_iter().for_each(|token| chain.accept(token));
            chain
        };
        let expected = prepared(0, 0).distribution(&logits).expect("tokens");
        // Over seeds, over positions of one seed, over samples of one seed.
        let mut counts = [[0; 50], [0; 50], [0; 50]];
        let mut one = prepared(77, 0);
        for n in 0..draws() {
            let token = prepared(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), 0).draw(&logits, 5);
            counts[0][token.expect("a token") as usize] += 1;
            counts[1][one.draw(&logits, n).expect("a token") as usize] += 1;
            counts[2][prepared(5, n as u32).draw(&logits, 5).expect("a token") as usize] += 1;
        }
        for (over, counts) in ["seeds", "positions", "samples"].iter().zip(counts) {
            let kept: u32 = expected.iter().map(|(token, _)| counts[*token as usize]).sum();
            assert_eq!(kept as u64, draws(), "setting {case} over {over}: a token that is not kept");
            let p = fit(&counts, &expected);
            assert!(p > 1e-4, "setting {case} over {over}: p = {p:e}");
        }
    }
}

/// Draws at neighbouring positions and samples are independent: pairs follow the product.
#[test]
fn neighbours_are_independent() {
    let logits = [0.0, 1.0, 0.5];
    let p: Vec<_> = chain(plain(), 3).distribution(&logits).expect("tokens");
    let pairs: Vec<_> = p.iter().flat_map(|a| p.iter().map(|b| (a.0 * 3 + b.0, a.1 * b.1))).collect();
    let (mut positions, mut samples) = ([0; 9], [0; 9]);
    for seed in 0..draws() {
        let draw = |sample_index, position| {
            let token = chain(Sampling { seed, sample_index, ..plain() }, 3).draw(&logits, position);
            token.expect("a token") as usize
        };
        positions[draw(0, 8) * 3 + draw(0, 9)] += 1;
        samples[draw(0, 8) * 3 + draw(1, 8)] += 1;
    }
    assert!(fit(&positions, &pairs) > 1e-4 && fit(&samples, &pairs) > 1e-4);
}

#[test]
fn a_draw_depends_on_seed_sample_and_position_alone() {
    let logits = [1.0; 1000];
    let draw = |seed, sample_index, position| {
        chain(Sampling { seed, sample_index, ..plain() }, 1000).draw(&logits, position).expect("a token")
    };
    let base = draw(1, 0, 7);
    assert_eq!(base, draw(1, 0, 7));
    let others = [draw(2, 0, 7), draw(1 << 32, 0, 7), draw(1, 1, 7), draw(1, 0, 8), draw(0, 1, 7), draw(7, 0, 1)];
    assert!(others.iter().all(|&other| other != base), "{base} {others:?}");

    // Draws in any order, with others between them, are the same.
    let mut one = chain(plain(), 1000);
    let forward: Vec<_> = (0..50).map(|position| one.draw(&logits, position)).collect();
    let mut backward: Vec<_> = (0..50).rev().map(|position| one.draw(&logits, position)).collect();
    backward.reverse();
    assert_eq!(forward, backward);

    let mut greedy = chain(greedy(), 1000);
    assert!((0..50).all(|position| greedy.draw(&logits, position) == Ok(0)));
}

/// The same bits on every machine. The values come from a second implementation in arithmetic of 50 digits.
#[test]
fn pinned() {
    let (seed, sample_index) = (0x0123_4567_89ab_cdef, 2);
    let noise = Noise::new(seed, sample_index);
    for (token, position, exact, bits) in [
        (0, 0, 0.662_905_682_812_229_3, 0x3fe5_3685_fa80_5ab9),
        (7, 1, 0.449_520_179_779_507_25, 0x3fdc_c4f0_49c2_e1ac),
        (202_047, 131_071, 0.496_080_638_744_245_8, 0x3fdf_bfc9_01e5_75fd),
        (1000, 5_000_000_000, 2.482_007_796_567_125, 0x4003_db26_e755_61f0_u64),
    ] {
        let found = noise.gumbel(token, position);
        assert!((found - exact).abs() < 1e-15, "{found} is not {exact}");
        assert_eq!(found.to_bits(), bits, "{found}, bits {:x}", found.to_bits());
    }
    let logits: Vec<f32> = (0..50).map(|t| ((t * 37 + 11) % 64) as f32 * 0.25 - 3.0).collect();
    let mut chain = chain(Sampling { temperature: 4.0, seed, sample_index, ..plain() }, 50);
    let tokens: Vec<_> = (0..12).map(|position| chain.draw(&logits, position).expect("a token")).collect();
    assert_eq!(tokens, [1, 48, 43, 34, 10, 32, 3, 8, 36, 49, 46, 27]);
}

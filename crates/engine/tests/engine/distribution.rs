//! What is drawn through a drafter is distributed as the target says.

use crate::support::{Pair, greedy, long, request, run};
use glimmer_engine::sampling::{Chain, Sampling};
use glimmer_engine::{Engine, Session};
use std::collections::HashMap;

/// Settings under which few tokens are likely, so that pairs can be counted.
fn narrow(seed: u64) -> Sampling {
    Sampling { temperature: 0.8, top_k: 6, top_p: 0.97, presence_penalty: 0.5, seed, ..Sampling::default() }
}

/// Exact probabilities of the token after `prefix`, which continues `prompt`.
fn distribution(session: &mut Session, engine: &Engine, prompt: &[u32], prefix: &[u32]) -> Vec<(u32, f64)> {
    let mut chain = Chain::new(narrow(0), engine.vocab_size()).unwrap();
    chain.start(prompt);
    prefix.iter().for_each(|&token| chain.accept(token));
    let whole: Vec<u32> = prompt.iter().chain(prefix).copied().collect();
    let (_, logits) = session.prefill(&whole, false, &mut |_, _| true).unwrap();
    chain.distribution(&logits.unwrap()).unwrap()
}

#[test]
fn tokens_and_pairs_pass_a_chi_square_test_with_the_drafter_on() {
    let draws = if long() { 100_000 } else { 10_000 };
    let engine = Pair::Nano.engine();
    let mut session = engine.session().unwrap();
    // A place where several tokens are likely, and the drafter is often right about them.
    let mut prompt = Pair::Nano.prompts()[0].clone();
    prompt.extend(run(&mut session, &request(&prompt, &greedy(), 1, 20)).token_ids);

    // The second and third token: both can come from one verified block.
    let mut expected: HashMap<(u32, u32), f64> = HashMap::new();
    let mut singles: HashMap<u32, f64> = HashMap::new();
    for (first, p) in distribution(&mut session, &engine, &prompt, &[]) {
        for (second, q) in distribution(&mut session, &engine, &prompt, &[first]) {
            *singles.entry(second).or_default() += p * q;
            for (third, r) in distribution(&mut session, &engine, &prompt, &[first, second]) {
                *expected.entry((second, third)).or_default() += p * q * r;
            }
        }
    }
    let mut pairs: HashMap<(u32, u32), u64> = HashMap::new();
    let mut seconds: HashMap<u32, u64> = HashMap::new();
    let mut accepted = 0;
    for seed in 0..draws {
        let out = run(&mut session, &request(&prompt, &narrow(seed), 4, 3));
        let [_, second, third] = out.token_ids[..] else { panic!("three tokens") };
        *pairs.entry((second, third)).or_default() += 1;
        *seconds.entry(second).or_default() += 1;
        accepted += out.rounds.iter().map(|round| round.accepted).sum::<usize>();
    }
    let p_singles = chi_square(&singles, &seconds, draws);
    let p_pairs = chi_square(&expected, &pairs, draws);
    println!("{draws} draws, {accepted} accepted: p = {p_singles:.4} singles, {p_pairs:.4} pairs");
    assert!(p_singles > 1e-4 && p_pairs > 1e-4, "p = {p_singles} singles, {p_pairs} pairs");
    // Without accepted proposals the test would say nothing about drafting.
    assert!(accepted > draws as usize / 5, "{accepted} proposals accepted");
}

#[test]
fn samples_of_one_seed_differ() {
    let engine = Pair::Nano.engine();
    let mut session = engine.session().unwrap();
    let prompt = Pair::Nano.prompts()[0].clone();
    let mut seen = std::collections::HashSet::new();
    for sample_index in 0..8 {
        let sampling = Sampling { seed: 3, sample_index, ..Sampling::default() };
        let tokens = run(&mut session, &request(&prompt, &sampling, 5, 24)).token_ids;
        assert_eq!(tokens, run(&mut session, &request(&prompt, &sampling, 1, 24)).token_ids);
        seen.insert(tokens);
    }
    assert_eq!(seen.len(), 8);
}

/// The probability of a deviation at least this large; cells that expect fewer than five are thrown together.
fn chi_square<K: std::hash::Hash + Eq + Copy + std::fmt::Debug>(
    expected: &HashMap<K, f64>,
    seen: &HashMap<K, u64>,
    draws: u64,
) -> f64 {
    assert!((expected.values().sum::<f64>() - 1.0).abs() < 1e-9);
    assert!(seen.keys().all(|key| expected.contains_key(key)), "a token that cannot be drawn was");
    let (mut statistic, mut cells, mut rest) = (0.0, 0, (0.0, 0.0));
    let mut add = |e: f64, s: f64| {
        statistic += (s - e) * (s - e) / e;
        cells += 1;
    };
    for (key, p) in expected {
        let (e, s) = (p * draws as f64, seen.get(key).copied().unwrap_or(0) as f64);
        if e < 5.0 {
            rest = (rest.0 + e, rest.1 + s);
        } else {
            add(e, s);
        }
    }
    if rest.0 >= 5.0 {
        add(rest.0, rest.1);
    }
    assert!(cells >= 4, "{cells} cells");
    upper_gamma((cells - 1) as f64 / 2.0, statistic / 2.0)
}

/// Regularised upper incomplete gamma function Q(a, x), by its series and its continued fraction (Numerical Recipes 6.2).
fn upper_gamma(a: f64, x: f64) -> f64 {
    // ln gamma(a) for halves of integers, by recurrence.
    let (mut ln_gamma, mut z) = if a.fract() == 0.0 { (0.0, 1.0) } else { (std::f64::consts::PI.sqrt().ln(), 0.5) };
    while z < a {
        ln_gamma += f64::ln(z);
        z += 1.0;
    }
    let front = (a * x.ln() - x - ln_gamma).exp();
    if x < a + 1.0 {
        let (mut term, mut sum, mut n) = (1.0 / a, 1.0 / a, a);
        while term > sum * 1e-15 {
            n += 1.0;
            term *= x / n;
            sum += term;
        }
        1.0 - front * sum
    } else {
        let mut b = x + 1.0 - a;
        let mut c = 1e300;
        let mut d = 1.0 / b;
        let mut h = d;
        for i in 1..10_000 {
            let an = -(i as f64) * (i as f64 - a);
            b += 2.0;
            d = 1.0 / (an * d + b);
            c = b + an / c;
            h *= d * c;
            if (d * c - 1.0).abs() < 1e-15 {
                break;
            }
        }
        front * h
    }
}

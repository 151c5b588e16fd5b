//! Scores of a text, against the same worked out from the logits of single passes.

use crate::support::{Pair, load, logits, path, tower};
use glimmer_backend::{CpuBackend, CpuOptions};
use glimmer_engine::score::Score;
use glimmer_engine::{Engine, EngineOptions, KvType, KvTypes, Source};

const TEXT: &str = "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n\nprint(fibonacci(10))\n";

fn engine(window: usize, chunk: usize) -> Engine {
    load(&EngineOptions { drafter: None, context: Some(window), prefill_chunk: chunk, ..Pair::Nano.options() })
}

fn score(engine: &Engine, reference: Option<&Engine>) -> Score {
    engine.score(TEXT, reference, &mut |_, _| true).unwrap().unwrap()
}

#[test]
fn perplexity_is_that_of_every_token_with_one_before_it() {
    const WINDOW: usize = 20;
    let engine = engine(WINDOW, 7);
    let b = CpuBackend::new(CpuOptions::default()).unwrap();
    let model = tower(&b, &Source::Nano);
    let (ids, vocab) = (engine.encode_raw(TEXT).unwrap(), engine.vocab_size());
    let prefix = engine.tokenizer().unwrap().raw_prefix();
    let (mut nll, mut tokens, mut windows) = (0.0, 0, 0);
    for part in ids[prefix.len()..].chunks(WINDOW - prefix.len()) {
        let window = [prefix, part].concat();
        let all = logits(&b, &model, &window, window.len(), KvTypes::both(KvType::F32));
        for (row, &token) in all.chunks(vocab).zip(&window[1..]).skip(prefix.len().saturating_sub(1)) {
            let max = f64::from(row.iter().copied().fold(f32::MIN, f32::max));
            let sum: f64 = row.iter().map(|&x| (f64::from(x) - max).exp()).sum();
            nll += max + sum.ln() - f64::from(row[token as usize]);
            tokens += 1;
        }
        windows += 1;
    }
    let score = score(&engine, None);
    let expected = (nll / f64::from(tokens)).exp();
    assert!(windows > 2 && (score.tokens, score.windows) == (tokens as usize, windows), "{score:?}");
    assert!((score.perplexity / expected - 1.0).abs() < 1e-9, "{score:?}, expected {expected}");
}

#[test]
fn chunks_change_no_score_and_a_model_is_no_distance_from_itself() {
    let all = [1, 7, 64].map(|chunk| score(&engine(64, chunk), Some(&engine(64, chunk))));
    assert!(all.iter().all(|score| *score == all[0]), "{all:?}");
    let distance = all[0].distance.as_ref().unwrap();
    assert_eq!((distance.kl_max, distance.top1, distance.logit_p99), (0.0, 1.0, 0.0));
    assert_eq!(distance.perplexity, all[0].perplexity);
}

#[test]
fn a_narrow_cache_is_a_small_distance() {
    let narrow = load(&EngineOptions {
        drafter: None,
        context: Some(64),
        cache_keys: Some(KvType::Q8),
        cache_values: Some(KvType::Q8),
        ..Pair::Nano.options()
    });
    let reference = engine(64, 512);
    let [near, back] = [score(&narrow, Some(&reference)), score(&reference, Some(&narrow))];
    let (near, back) = (near.distance.unwrap(), back.distance.unwrap());
    assert!(0.0 < near.kl_mean && near.kl_mean < 1e-3 && near.kl_mean <= near.kl_max, "{near:?}");
    assert!(near.kl_p99 <= near.kl_max && near.top1 > 0.9, "{near:?}");
    // Differences of logits have no direction, divergences have.
    assert_eq!((near.logit_mean, near.logit_p99), (back.logit_mean, back.logit_p99));
    assert_ne!(near.kl_mean, back.kl_mean);
}

#[test]
fn what_cannot_be_scored_or_compared_is_refused_and_a_stop_is_none() {
    let nano = engine(64, 512);
    let mut calls = 0;
    let stopped = nano.score(TEXT, None, &mut |_, _| {
        calls += 1;
        false
    });
    assert!(stopped.unwrap().is_none() && calls == 1);
    let target = Source::Path(path("fixtures/muse-tiny-bf16"));
    let tiny = load(&EngineOptions { context: Some(64), ..EngineOptions::new(target) });
    let message = nano.score(TEXT, Some(&tiny), &mut |_, _| true).unwrap_err().to_string();
    assert!(message.contains("nano") && message.contains("cannot be compared"), "{message}");
    // Without a tokenizer there is no text.
    let message = tiny.score(TEXT, None, &mut |_, _| true).unwrap_err().to_string();
    assert!(message.contains("tokenizer.json"), "{message}");
}

//! The chain against a plain implementation that sorts everything, over random logits and settings.

use super::{INF, chain};
use glimmer_engine::sampling::{Noise, Sampling};
use proptest::prelude::*;

/// The kept tokens and their probabilities, written as the definition reads.
fn distribution(s: &Sampling, logits: &[f32], prompt: &[u32], output: &[u32]) -> Vec<(u32, f64)> {
    let mut tokens = Vec::new();
    for id in 0..logits.len() as u32 {
        let mut logit = logits[id as usize] as f64;
        let times = output.iter().filter(|t| **t == id).count();
        if times > 0 || prompt.contains(&id) {
            let r = s.repetition_penalty as f64;
            logit = if logit > 0.0 { logit / r } else { logit * r };
        }
        if times > 0 {
            logit -= s.presence_penalty as f64;
        }
        for _ in 0..times {
            logit -= s.frequency_penalty as f64;
        }
        for (token, bias) in &s.logit_bias {
            if *token == id {
                logit += *bias as f64;
            }
        }
        if logit > f64::NEG_INFINITY {
            tokens.push((id, logit));
        }
    }
    tokens.sort_by(|a, b| b.1.partial_cmp(&a.1).expect("no NaN").then(a.0.cmp(&b.0)));
    if s.temperature == 0.0 {
        return tokens.first().map(|t| vec![(t.0, 1.0)]).unwrap_or_default();
    }
    if s.top_k > 0 {
        tokens.truncate(s.top_k);
    }
    let max = tokens.first().map_or(0.0, |t| t.1);
    for token in &mut tokens {
        token.1 = ((token.1 - max) / s.temperature as f64).exp();
    }
    let whole: f64 = tokens.iter().map(|t| t.1).sum();
    let mut kept = Vec::new();
    let mut mass = 0.0;
    for token in tokens {
        if s.top_p == 1.0 || mass < s.top_p as f64 * whole {
            mass += token.1;
            kept.push(token);
        }
    }
    kept.retain(|t| t.1 >= s.min_p as f64);
    let total: f64 = kept.iter().map(|t| t.1).sum();
    kept.iter().map(|t| (t.0, t.1 / total)).collect()
}

/// argmax of log p + noise, by ascending id.
fn draw(kept: &[(u32, f64)], noise: Noise, position: u64) -> Option<u32> {
    let mut kept = kept.to_vec();
    kept.sort_by_key(|t| t.0);
    let mut best: Option<(u32, f64)> = None;
    for (id, p) in kept {
        let score = p.ln() + noise.gumbel(id, position);
        if best.is_none_or(|(_, other)| score > other) {
            best = Some((id, score));
        }
    }
    best.map(|(id, _)| id)
}

/// Logits and penalties are dyadic, so that f32 and f64 agree about ties.
fn settings() -> impl Strategy<Value = Sampling> {
    let scale = (
        prop_oneof![Just(0.0f32), Just(0.7), Just(1.0), Just(3.0)],
        prop_oneof![Just(0usize), Just(1), Just(3), Just(64), Just(150), Just(10_000)],
        prop_oneof![Just(1.0f32), Just(0.3), Just(0.95), Just(0.999)],
        prop_oneof![Just(0.0f32), Just(0.05), Just(0.4), Just(1.0)],
    );
    let penalties = (
        prop_oneof![Just(1.0f32), Just(2.0), Just(0.5)],
        prop_oneof![Just(0.0f32), Just(1.25), Just(-0.5)],
        prop_oneof![Just(0.0f32), Just(0.25), Just(-0.5)],
        prop_oneof![Just(vec![]), Just(vec![(0, -INF), (4, 2.5), (2, -3.0)])],
    );
    (scale, penalties, any::<u64>(), 0u32..3).prop_map(|(scale, penalties, seed, sample_index)| Sampling {
        temperature: scale.0,
        top_k: scale.1,
        top_p: scale.2,
        min_p: scale.3,
        repetition_penalty: penalties.0,
        presence_penalty: penalties.1,
        frequency_penalty: penalties.2,
        logit_bias: penalties.3,
        seed,
        sample_index,
    })
}

fn logits() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![9 => (-40i32..40).prop_map(|x| x as f32 * 0.25), 1 => Just(-INF)];
    prop_oneof![proptest::collection::vec(logit.clone(), 5..40), proptest::collection::vec(logit, 300..900)]
}

fn tokens() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(0u32..12, 0..10)
}

proptest! {
    #[test]
    fn the_chain_is_what_the_definition_says(
        s in settings(), logits in logits(), prompt in tokens(), output in tokens(), pending in tokens(), position in 0u64..1000,
    ) {
        let noise = Noise::new(s.seed, s.sample_index);
        let mut chain = chain(s.clone(), logits.len()).with_sharpness(1.0);
        chain.start(&prompt);
        output.iter().for_each(|&token| chain.accept(token));

        let expected = distribution(&s, &logits, &prompt, &output);
        prop_assume!(!expected.is_empty());
        let found = chain.distribution(&logits).expect("tokens are left");
        prop_assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            prop_assert_eq!(found.0, expected.0);
            prop_assert!((found.1 - expected.1).abs() < 1e-12);
        }
        prop_assert_eq!(chain.draw(&logits, position).ok(), draw(&expected, noise, position));

        let with_pending = distribution(&s, &logits, &prompt, &[output.clone(), pending.clone()].concat());
        let proposed = chain.propose(&logits, position, &pending).expect("tokens are left");
        prop_assert_eq!(Some(proposed.token), draw(&with_pending, noise, position));
        prop_assert!(proposed.probability > 0.0 && proposed.probability <= 1.0);
        prop_assert_eq!(chain.distribution(&logits).ok(), Some(found));
    }

    #[test]
    fn a_drafter_with_the_target_s_logits_proposes_its_draw(
        s in settings(), logits in logits(), prompt in tokens(), output in tokens(), position in any::<u64>(),
    ) {
        let mut chain = chain(s, logits.len()).with_sharpness(1.0);
        chain.start(&prompt);
        for &token in &output {
            let proposed = chain.propose(&logits, position, &[]).map(|p| p.token);
            prop_assert_eq!(proposed, chain.draw(&logits, position));
            chain.accept(token);
        }
        // Proposals of a block, made ahead, are the draws that follow.
        chain.start(&prompt);
        let mut pending = Vec::new();
        for ahead in 0..4 {
            let Ok(proposal) = chain.propose(&logits, ahead, &pending) else { return Ok(()) };
            pending.push(proposal.token);
        }
        for (ahead, &token) in pending.iter().enumerate() {
            prop_assert_eq!(chain.draw(&logits, ahead as u64), Ok(token));
            chain.accept(token);
        }
    }

    #[test]
    fn banned_tokens_have_no_part_in_a_draw(s in settings(), logits in logits(), more in 1usize..200, position in 0u64..99) {
        let padded = [logits.clone(), vec![-INF; more]].concat();
        let (mut short, mut long) = (chain(s.clone(), logits.len()), chain(s.clone(), padded.len()));
        prop_assert_eq!(short.draw(&logits, position), long.draw(&padded, position));
        prop_assert_eq!(short.distribution(&logits), long.distribution(&padded));

        // Without truncation, banning tokens other than the drawn one does not change the draw.
        let mut chain = chain(Sampling { top_k: 0, top_p: 1.0, min_p: 0.0, ..s }, logits.len());
        if let Ok(token) = chain.draw(&logits, position) {
            let mut fewer = logits;
            fewer.iter_mut().zip(0..).filter(|(_, t)| *t != token && t % 3 != 0).for_each(|(l, _)| *l = -INF);
            prop_assert_eq!(chain.draw(&fewer, position), Ok(token));
        }
    }
}

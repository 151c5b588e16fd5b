//! What follows a kept beginning has the bits of a cold start.

use crate::support::{Kind, Pair, fresh, greedy, load, logits_by_position, request, run};
use glimmer_engine::sampling::Sampling;
use glimmer_engine::{Engine, EngineOptions, Prefill};
use std::collections::HashMap;

fn keeping(pair: Pair, kind: Kind, bytes: u64) -> Engine {
    load(&EngineOptions { prefix_cache: bytes, ..kind.of(pair.options()) })
}

/// An agent's log: a long system prompt, then turns, each longer by an answer and a tool's result.
#[test]
fn a_conversation_prefills_what_is_new() {
    for (pair, kind) in [(Pair::Nano, Kind::Dflash), (Pair::Nano2, Kind::Hybrid), (Pair::Tiny, Kind::Dflash)] {
        let (engine, cold) = (keeping(pair, kind, 1 << 30), keeping(pair, kind, 0));
        let prompts = pair.prompts();
        let mut prompt: Vec<u32> = prompts.iter().flatten().copied().cycle().take(300).collect();
        let mut known = 0;
        for turn in 0..10 {
            let asked = request(&prompt, &greedy(), 5, 12);
            let given = fresh(&engine, &asked);
            let expected = fresh(&cold, &asked);
            assert_eq!(given.token_ids, expected.token_ids, "{pair:?} turn {turn}");
            // The drafter's context came along: it proposes what it proposes after a cold start.
            let proposals = |of: &glimmer_engine::Generation| -> Vec<Vec<u32>> {
                of.rounds.iter().map(|round| round.proposals.clone()).collect()
            };
            assert_eq!(proposals(&given), proposals(&expected), "{pair:?} turn {turn}");
            let new = prompt.len() - known;
            assert_eq!(given.timings.prefill, Prefill { cached: known, new }, "{pair:?} turn {turn}");
            assert_eq!(expected.timings.prefill, Prefill { cached: 0, new: prompt.len() });
            // All but the last token of the answer is in the cache.
            known = prompt.len() + given.token_ids.len() - 1;
            prompt.extend(&given.token_ids);
            prompt.extend(prompts[turn % prompts.len()].iter().take(17));
        }
        // The same question again, and one that leaves the path within a page.
        let again = fresh(&engine, &request(&prompt[..known], &greedy(), 5, 12));
        assert_eq!(again.timings.prefill.new, 1);
        let mut other = prompt[..known].to_vec();
        other[280] ^= 1;
        let given = fresh(&engine, &request(&other, &greedy(), 5, 12));
        assert_eq!(given.token_ids, fresh(&cold, &request(&other, &greedy(), 5, 12)).token_ids);
        // Of nano all layers see 280 tokens back; the window of the other is shorter than what was kept of each turn.
        assert!(given.timings.prefill.cached <= 280);
    }
}

#[test]
fn logits_after_a_hit_are_those_of_a_cold_start() {
    for pair in [Pair::Nano, Pair::Tiny] {
        for sampling in [greedy(), Sampling { seed: 3, ..Sampling::default() }] {
            let long = pair.prompts().pop().unwrap();
            let cold = keeping(pair, Kind::Dflash, 0);
            let bits = |engine: &Engine, prompt: &[u32]| -> HashMap<usize, Vec<u32>> {
                logits_by_position(engine, prompt, &sampling, 4, 10)
            };
            for len in [1, 100, 255, 256, 257, 511, 512, 513, long.len()] {
                let engine = keeping(pair, Kind::Dflash, 1 << 30);
                fresh(&engine, &request(&long, &greedy(), 3, 5));
                let (warm, expected) = (bits(&engine, &long[..len]), bits(&cold, &long[..len]));
                for position in len..len + 10 {
                    assert!(warm[&position] == expected[&position], "{pair:?} {len} at {position}");
                }
            }
        }
    }
}

#[test]
fn what_is_kept_stays_within_its_limit_and_what_was_used_last_stays() {
    let pair = Pair::Tiny;
    let all = keeping(pair, Kind::Dflash, 1 << 30);
    let prompt = |of: u32, len: usize| -> Vec<u32> { (0..len as u32).map(|i| (i * 7 + of * 31) % 400).collect() };
    fresh(&all, &request(&prompt(0, 400), &greedy(), 4, 4));
    let one = all.prefix_usage().unwrap();
    assert!(one.pages == 2 && one.bytes > 0, "{one:?}");
    let engine = keeping(pair, Kind::Dflash, 3 * one.bytes);
    for round in 0..3 {
        for of in 0..6 {
            let asked = request(&prompt(of, 400), &greedy(), 4, 4);
            assert_eq!(fresh(&engine, &asked).token_ids, fresh(&all, &asked).token_ids);
            let usage = engine.prefix_usage().unwrap();
            assert!(usage.bytes <= usage.limit && usage.limit == 3 * one.bytes, "{usage:?}");
            // Asked again at once it is there; the one before the last three is not.
            assert_eq!(fresh(&engine, &asked).timings.prefill.new, 1, "{round} {of}");
        }
        let gone = fresh(&engine, &request(&prompt(1, 400), &greedy(), 4, 4)).timings.prefill;
        assert_eq!(gone, Prefill { cached: 0, new: 400 }, "{round}");
    }
    // Nothing is kept that is larger than all that may be.
    let tiny = keeping(pair, Kind::Dflash, 1000);
    fresh(&tiny, &request(&prompt(0, 400), &greedy(), 4, 4));
    assert_eq!(tiny.prefix_usage().unwrap().pages, 0);
    assert!(keeping(pair, Kind::Dflash, 0).prefix_usage().is_none());
}

#[test]
fn sequences_of_one_session_and_of_many_share_what_is_kept() {
    let engine = keeping(Pair::Nano, Kind::Dflash, 1 << 30);
    let prompts = Pair::Nano.prompts();
    let (long, short) = (prompts.last().unwrap(), &prompts[0]);
    let mut session = engine.session().unwrap();
    let first = run(&mut session, &request(long, &greedy(), 4, 8));
    // Another sequence in between, and back: what the session itself no longer has, it finds.
    run(&mut session, &request(short, &greedy(), 4, 8));
    let again = run(&mut session, &request(long, &greedy(), 4, 8));
    assert_eq!((again.token_ids, again.timings.prefill.new), (first.token_ids.clone(), 1));
    // A beginning of what is kept, within a page and at its end.
    for len in [40, 256, 300] {
        let part = fresh(&engine, &request(&long[..len], &greedy(), 4, 8));
        let cold = fresh(&keeping(Pair::Nano, Kind::Dflash, 0), &request(&long[..len], &greedy(), 4, 8));
        assert_eq!(part.token_ids, cold.token_ids, "{len}");
    }
}

//! Whole generations against the reference implementations: tokens, proposals, rounds.

use crate::support::{Pair, fresh, greedy, ids, json, request};
use glimmer_engine::sampling::{self, Chain};

#[test]
fn nano_writes_the_expected_tokens_in_the_expected_rounds() {
    let expected = json("nano/nano_expected.json");
    for (pair, drafter) in [(Pair::Nano, "v1"), (Pair::Nano2, "dflash2")] {
        let engine = pair.engine();
        for (name, case) in expected["cases"].as_object().unwrap() {
            let (prompt, name) = (ids(&case["prompt_ids"]), format!("{drafter} {name}"));
            let stored = &case["drafters"][drafter];
            let width = stored["block_size"].as_u64().unwrap() as usize;
            let out = fresh(&engine, &request(&prompt, &greedy(), width, 64));
            assert_eq!(out.token_ids, ids(&case["greedy_ids"]), "{name}");
            let proposals: Vec<Vec<u32>> = stored["proposals"].as_array().unwrap().iter().map(ids).collect();
            assert_eq!(out.rounds.iter().map(|r| r.proposals.clone()).collect::<Vec<_>>(), proposals, "{name}");
            let emitted: Vec<u32> = out.rounds.iter().map(|r| r.emitted as u32).collect();
            assert_eq!(emitted, ids(&stored["emitted_per_round"]), "{name}");
            assert!(out.rounds.iter().all(|r| r.width == width && r.emitted <= r.accepted + 1), "{name}");
            let plain = fresh(&engine, &request(&prompt, &greedy(), 1, 64));
            assert_eq!(plain.token_ids, out.token_ids, "{name}");
        }
    }
}

#[test]
fn dflash_2_goes_round_as_its_reference_does() {
    let expected = json("fixtures/dflash2_expected.json");
    let engine = Pair::Tiny2.engine();
    let mut count = 0;
    for (name, case) in expected["cases"].as_object().unwrap() {
        let prompt = ids(&case["input_ids"]);
        let eos = case["eos_token_id"].as_u64().map(|id| id as u32);
        let budget = case["max_new_tokens"].as_u64().unwrap() as usize;
        let mut session = engine.session().unwrap();
        let mut chain = Chain::new(greedy(), engine.vocab_size()).unwrap();
        chain.start(&prompt);
        let (_, logits) = session.prefill(&prompt, true, &mut |_, _| true).unwrap();
        let mut tokens = vec![session.draw_first(&logits.unwrap(), &mut chain).unwrap()];
        for (number, stored) in case["rounds"].as_array().unwrap().iter().enumerate() {
            let name = format!("{name} {number}");
            let number = |field: &str| stored[field].as_u64().unwrap() as usize;
            let anchor = *tokens.last().unwrap();
            assert_eq!((anchor as usize, session.tokens().len()), (number("anchor"), number("noise_start")), "{name}");
            let round = session.round(anchor, number("block").into(), &mut chain).unwrap();
            assert_eq!(round.proposals, ids(&stored["proposals"]), "{name}");
            assert_eq!(round.accepted, number("accepted"), "{name}");
            let argmax: Vec<u32> =
                round.logits.chunks(engine.vocab_size()).map(|row| sampling::argmax(row).unwrap()).collect();
            assert_eq!(argmax, ids(&stored["verify_argmax"]), "{name}");
            // Cut at the budget and behind an end token.
            let cut = round.tokens.iter().position(|&t| Some(t) == eos).map_or(round.tokens.len(), |at| at + 1);
            let emitted = &round.tokens[..cut.min(budget - tokens.len())];
            assert_eq!(emitted, ids(&stored["emitted"]), "{name}");
            tokens.extend(emitted);
            count += 1;
        }
        assert_eq!(tokens, ids(&case["tokens"]), "{name}");
    }
    assert_eq!(count, 39);
}

#[test]
fn the_tiny_pair_goes_round_as_transformers_does() {
    let expected = json("fixtures/dflash_expected.json");
    let engine = Pair::Tiny.engine();
    for (name, case) in expected["cases"].as_object().unwrap() {
        let prompt = ids(&case["input_ids"]);
        let eos = case["eos_token_id"].as_u64().map(|id| id as u32);
        let budget = case["max_new_tokens"].as_u64().unwrap() as usize;
        let mut session = engine.session().unwrap();
        let mut chain = Chain::new(greedy(), engine.vocab_size()).unwrap();
        chain.start(&prompt);
        let (_, logits) = session.prefill(&prompt, true, &mut |_, _| true).unwrap();
        let mut tokens = vec![session.draw_first(&logits.unwrap(), &mut chain).unwrap()];
        let rounds = case["rounds"].as_array().unwrap();
        assert_eq!(ids(&rounds[0]["emitted"]), tokens, "{name}: the prefill");
        for (number, stored) in rounds.iter().enumerate().skip(1) {
            let width = match stored["drafter_called"].as_bool().unwrap() {
                true => ids(&stored["proposals"]).len() + 1,
                false => 1,
            };
            let anchor = *tokens.last().unwrap();
            assert_eq!(session.tokens().len(), prompt.len() + tokens.len() - 1, "{name} {number}");
            let round = session.round(anchor, width.into(), &mut chain).unwrap();
            assert_eq!(round.proposals, ids(&stored["proposals"]), "{name} {number}");
            // Cut at the budget and behind an end token.
            let cut = round.tokens.iter().position(|&t| Some(t) == eos).map_or(round.tokens.len(), |at| at + 1);
            let cut = cut.min(budget - tokens.len());
            let emitted = &round.tokens[..cut];
            assert_eq!(emitted, ids(&stored["emitted"]), "{name} {number}");
            assert_eq!(stored["accepted"].as_u64().unwrap() as usize, cut - 1, "{name} {number}");
            assert!(round.accepted + 1 >= cut);
            tokens.extend(emitted);
        }
        assert_eq!(tokens, ids(&case["tokens"]), "{name}");
    }
}

//! The promise: tokens depend on model, prompt, settings and seed alone.

use crate::support::{Kind, Pair, fresh, greedy, load, logits_by_position, long, request, run};
use glimmer_engine::sampling::Sampling;
use glimmer_engine::speculative::NGRAM_BLOCK;
use glimmer_engine::{DraftWidth, Engine, EngineOptions, Isa, KvType};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::collections::HashMap;

const CHUNKS: [usize; 7] = [1, 7, 15, 16, 17, 64, 4096];
const TOKENS: usize = 40;

/// What must not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Way {
    kind: Kind,
    width: DraftWidth,
    threads: usize,
    chunk: usize,
}

/// What may matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Setting {
    pair: Pair,
    prompt: usize,
    keys: KvType,
    values: KvType,
    sampled: bool,
    penalties: bool,
}

impl Setting {
    fn sampling(self) -> Sampling {
        let base = if self.sampled { Sampling { seed: 77, ..Sampling::default() } } else { greedy() };
        match self.penalties {
            false => base,
            true => Sampling {
                repetition_penalty: 1.2,
                presence_penalty: 0.4,
                frequency_penalty: 0.3,
                logit_bias: vec![(11, -2.0), (13, f32::NEG_INFINITY)],
                ..base
            },
        }
    }

    fn prompt(self) -> Vec<u32> {
        let prompts = self.pair.prompts();
        prompts[self.prompt % prompts.len()].clone()
    }

    fn options(self, way: Way) -> EngineOptions {
        way.kind.of(EngineOptions {
            cache_keys: Some(self.keys),
            cache_values: Some(self.values),
            threads: Some(way.threads),
            prefill_chunk: way.chunk,
            ..self.pair.options()
        })
    }
}

const PLAIN: Way = Way { kind: Kind::Dflash, width: DraftWidth::Fixed(1), threads: 1, chunk: 4096 };

/// Engines and plain results are made once.
#[derive(Default)]
struct Cache {
    engines: HashMap<(Pair, KvType, KvType, Kind, usize, usize), Engine>,
    plain: HashMap<Setting, Vec<u32>>,
}

impl Cache {
    fn engine(&mut self, setting: Setting, way: Way) -> Engine {
        let key = (setting.pair, setting.keys, setting.values, way.kind, way.threads, way.chunk);
        self.engines.entry(key).or_insert_with(|| load(&setting.options(way))).clone()
    }

    fn tokens(&mut self, setting: Setting, way: Way) -> Vec<u32> {
        let request = request(&setting.prompt(), &setting.sampling(), way.width, TOKENS);
        fresh(&self.engine(setting, way), &request).token_ids
    }

    fn check(&mut self, setting: Setting, way: Way) {
        if !self.plain.contains_key(&setting) {
            let tokens = self.tokens(setting, PLAIN);
            self.plain.insert(setting, tokens);
        }
        let tokens = self.tokens(setting, way);
        assert_eq!(tokens, self.plain[&setting], "{setting:?} {way:?}");
    }
}

#[test]
fn tokens_do_not_depend_on_drafter_width_threads_or_chunks() {
    let kind = || prop::sample::select(KvType::ALL.to_vec());
    let pair = prop::sample::select(Pair::ALL.to_vec());
    let settings = (pair, 0..7usize, (kind(), kind()), any::<bool>(), any::<bool>()).prop_map(
        |(pair, prompt, (keys, values), sampled, penalties)| Setting { pair, prompt, keys, values, sampled, penalties },
    );
    // One in four chooses its widths.
    let widths = (1..=20usize).prop_map(|width| if width > 16 { DraftWidth::Auto } else { DraftWidth::Fixed(width) });
    let ways = (prop::sample::select(Kind::ALL.to_vec()), widths, 1..=3usize, 0..CHUNKS.len())
        .prop_map(|(kind, width, threads, chunk)| Way { kind, width, threads, chunk: CHUNKS[chunk] });
    let config = Config { cases: 90, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]));
    let cache = std::cell::RefCell::new(Cache::default());
    let result = runner.run(&(settings, ways), |(setting, way)| {
        let most = if way.kind == Kind::Dflash { setting.pair.block_size() } else { NGRAM_BLOCK };
        let width = match way.width {
            DraftWidth::Fixed(rows) => DraftWidth::Fixed(rows.min(most)),
            DraftWidth::Auto => DraftWidth::Auto,
        };
        let way = Way { width, ..way };
        cache.borrow_mut().check(setting, way);
        Ok(())
    });
    result.unwrap();
}

#[test]
fn the_whole_grid() {
    if !long() {
        return;
    }
    let mut cache = Cache::default();
    let mut count = 0;
    let bits = [false, true];
    for pair in Pair::ALL {
        for (keys, sampled, penalties) in
            KvType::ALL.into_iter().flat_map(|a| bits.into_iter().flat_map(move |b| bits.map(|c| (a, b, c))))
        {
            for chunk in CHUNKS {
                for threads in 1..=3 {
                    for width in 0..=pair.block_size() {
                        let width = if width == 0 { DraftWidth::Auto } else { DraftWidth::Fixed(width) };
                        let kind = Kind::ALL[count % 3];
                        let values = if count % 4 == 3 { KvType::ALL[count / 4 % 4] } else { keys };
                        let setting = Setting { pair, prompt: count, keys, values, sampled, penalties };
                        cache.check(setting, Way { kind, width, threads, chunk });
                        count += 1;
                    }
                }
            }
        }
    }
    println!("{count} combinations");
}

#[test]
fn logits_of_verified_rows_are_those_of_plain_decoding() {
    for (pair, kind, sampled) in [
        (Pair::Nano, KvType::F32, true),
        (Pair::Nano, KvType::F16, false),
        (Pair::Nano, KvType::Q8, true),
        (Pair::Tiny, KvType::F32, false),
        (Pair::Tiny, KvType::BF16, true),
        (Pair::Tiny, KvType::Q8, false),
        (Pair::Nano2, KvType::F16, true),
        (Pair::Tiny2, KvType::F32, false),
    ] {
        for prompt in [0, 2, pair.prompts().len() - 2] {
            let setting = Setting { pair, prompt, keys: kind, values: kind, sampled, penalties: false };
            let engine = |kind| load(&setting.options(Way { kind, threads: 2, chunk: 64, ..PLAIN }));
            let (prompt, sampling) = (setting.prompt(), setting.sampling());
            let plain = logits_by_position(&engine(Kind::Dflash), &prompt, &sampling, 1, TOKENS);
            for kind in Kind::ALL {
                let engine = engine(kind);
                for width in [2.into(), 3.into(), 5.into(), 8.into(), DraftWidth::Auto] {
                    let rounds = logits_by_position(&engine, &prompt, &sampling, width, TOKENS);
                    for position in prompt.len()..prompt.len() + TOKENS {
                        assert!(plain[&position] == rounds[&position], "{setting:?} {kind:?} {width} at {position}");
                    }
                }
            }
        }
    }
}

#[test]
fn instruction_sets_give_the_same_tokens() {
    for pair in Pair::ALL {
        let prompt = pair.prompts()[0].clone();
        let sampling = Sampling { seed: 5, ..Sampling::default() };
        let expected = fresh(&pair.engine(), &request(&prompt, &sampling, 5, 24)).token_ids;
        for isa in Isa::available() {
            let engine = load(&EngineOptions { isa: Some(isa), ..pair.options() });
            let tokens = fresh(&engine, &request(&prompt, &sampling, 3, 24)).token_ids;
            assert_eq!(tokens, expected, "{pair:?} {isa}");
        }
    }
}

#[test]
fn proposals_do_not_depend_on_threads_or_instruction_set() {
    for pair in Pair::ALL {
        let prompt = pair.prompts()[0].clone();
        for sampling in [greedy(), Sampling { seed: 9, presence_penalty: 0.5, ..Sampling::default() }] {
            let wanted = request(&prompt, &sampling, 7, 24);
            let proposals = |engine: &Engine| -> Vec<Vec<u32>> {
                fresh(engine, &wanted).rounds.into_iter().map(|round| round.proposals).collect()
            };
            let expected = proposals(&pair.engine());
            for (isa, threads) in Isa::available().into_iter().flat_map(|isa| [(isa, 1), (isa, 3)]) {
                let engine = load(&EngineOptions { isa: Some(isa), threads: Some(threads), ..pair.options() });
                assert_eq!(proposals(&engine), expected, "{pair:?} {isa} {threads}");
            }
        }
    }
}

#[test]
fn a_session_that_goes_on_equals_a_fresh_one() {
    for (pair, kind) in Pair::ALL.into_iter().flat_map(|pair| Kind::ALL.map(|kind| (pair, kind))) {
        for width in [1.into(), 2.into(), 5.into(), pair.block_size().into(), DraftWidth::Auto] {
            let engine = load(&kind.of(pair.options()));
            let mut session = engine.session().unwrap();
            let mut prompt = pair.prompts()[0].clone();
            for turn in 0..4 {
                let sampling = Sampling { seed: turn, ..Sampling::default() };
                let wanted = request(&prompt, &sampling, width, 20 + turn as usize);
                let out = run(&mut session, &wanted);
                assert_eq!(
                    out.token_ids,
                    fresh(&engine, &request(&prompt, &sampling, 1, 20 + turn as usize)).token_ids
                );
                assert!(turn == 0 || out.timings.prefill.cached > 0, "{pair:?} turn {turn} reuses its beginning");
                // The next turn keeps the answer, but for a few tokens every other time.
                let kept = out.token_ids.len() - if turn % 2 == 1 { 3 } else { 0 };
                prompt.extend(&out.token_ids[..kept]);
                prompt.extend([5, 6, 7]);
            }
            // Another conversation, and back.
            let other = pair.prompts()[2].clone();
            for prompt in [&other, &prompt] {
                let out = run(&mut session, &request(prompt, &greedy(), width, 12));
                assert_eq!(out.token_ids, fresh(&engine, &request(prompt, &greedy(), 1, 12)).token_ids);
            }
        }
    }
}

#[test]
fn a_session_that_goes_back_drafts_as_well_as_a_fresh_one() {
    for (pair, case) in [(Pair::Nano, 2), (Pair::Nano, 3), (Pair::Nano, 4), (Pair::Nano2, 3)] {
        let engine = pair.engine();
        let prompt = Pair::Nano.prompts()[case].clone();
        let wanted = request(&prompt, &greedy(), 16, 40);
        let accepted = |out: &glimmer_engine::Generation| out.rounds.iter().map(|r| r.accepted).sum::<usize>();
        let expected = accepted(&fresh(&engine, &wanted));
        let mut session = engine.session().unwrap();
        // Far beyond the drafter's window, on another path from the tenth token on.
        let detour: Vec<u32> = prompt[..10].iter().chain(&[7; 600]).copied().collect();
        run(&mut session, &request(&detour, &greedy(), 16, 40));
        let out = run(&mut session, &wanted);
        // A few positions before the fork may be missing from the drafter's context.
        assert!(accepted(&out) * 10 >= expected * 8, "{} of {expected} accepted", accepted(&out));
    }
}

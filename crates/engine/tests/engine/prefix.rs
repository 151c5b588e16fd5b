//! What follows a kept beginning has the bits of a cold start.

use crate::support::{Kind, Pair, fresh, greedy, load, logits_by_position, request, run};
use glimmer_engine::sampling::Sampling;
use glimmer_engine::{Engine, EngineOptions, KvType, Prefill, PrefixFiles};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

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
            let (Prefill { cached, new }, times) = (given.timings.prefill, [&given, &expected].map(|of| of.timings));
            let [warm, cold] = times.map(|times| times.prompt_time);
            println!(
                "{pair:?} turn {}: {cached} cached, {new} new, {warm:.1?} to the first token, cold {cold:.1?}",
                turn + 1
            );
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

fn with_files(pair: Pair, kind: Kind, bytes: u64, dir: &Path, limit: u64) -> Engine {
    let prefix_files = Some(PrefixFiles { dir: dir.into(), limit });
    load(&EngineOptions { prefix_cache: bytes, prefix_files, ..kind.of(pair.options()) })
}

/// All files below a folder.
fn files(dir: &Path) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    folders.flat_map(|folder| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path())).collect()
}

fn prompt(of: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 7 + of * 31) % 400).collect()
}

#[test]
fn what_memory_gave_up_comes_back_from_files_and_survives_a_restart() {
    for (pair, kind) in [(Pair::Tiny, Kind::Dflash), (Pair::Nano2, Kind::Hybrid)] {
        let cold = keeping(pair, kind, 0);
        let dir = tempfile::tempdir().unwrap();
        let asked = |of: u32| request(&prompt(of, 400), &greedy(), 4, 6);
        let all = keeping(pair, kind, 1 << 30);
        fresh(&all, &asked(0));
        let one = all.prefix_usage().unwrap().bytes;
        // Memory for one of them, files for all.
        let engine = with_files(pair, kind, one * 3 / 2, dir.path(), 1 << 30);
        let expected: Vec<_> = (0..5).map(|of| fresh(&cold, &asked(of))).collect();
        for round in 0..2 {
            for of in 0..5 {
                let given = fresh(&engine, &asked(of));
                assert_eq!(given.token_ids, expected[of as usize].token_ids);
                let proposals: Vec<_> = given.rounds.iter().map(|round| &round.proposals).collect();
                let of_cold: Vec<_> = expected[of as usize].rounds.iter().map(|round| &round.proposals).collect();
                assert_eq!(proposals, of_cold, "{round} {of}");
                assert_eq!(given.timings.prefill.new, if round == 0 { 400 } else { 1 }, "{round} {of}");
                let usage = engine.prefix_usage().unwrap();
                assert!(usage.bytes <= usage.limit && usage.trouble.is_none(), "{usage:?}");
            }
        }
        let spilled = engine.prefix_usage().unwrap().spilled;
        assert!(spilled > 3 * one, "{spilled} of {one} each");
        drop(engine);
        let on_disk: u64 = files(dir.path()).iter().map(|file| std::fs::metadata(file).unwrap().len()).sum();
        let again = with_files(pair, kind, one * 3 / 2, dir.path(), 1 << 30);
        assert_eq!(again.prefix_usage().unwrap().spilled, on_disk);
        for of in 0..5 {
            let given = fresh(&again, &asked(of));
            assert_eq!((given.token_ids, given.timings.prefill.new), (expected[of as usize].token_ids.clone(), 1));
        }
        drop(again);
        // Another model, or another setting, does not see them.
        let other = EngineOptions { cache_keys: Some(KvType::F16), ..pair.options() };
        let prefix_files = Some(PrefixFiles { dir: dir.path().into(), limit: 1 << 30 });
        let other = load(&EngineOptions { prefix_cache: 1 << 30, prefix_files, ..kind.of(other) });
        assert_eq!(other.prefix_usage().unwrap().spilled, 0);
        assert_eq!(fresh(&other, &asked(0)).timings.prefill.new, 400);
    }
}

#[test]
fn files_have_a_bound_and_damaged_ones_are_as_good_as_none() {
    let (pair, kind) = (Pair::Tiny, Kind::Dflash);
    let cold = keeping(pair, kind, 0);
    let dir = tempfile::tempdir().unwrap();
    let asked = |of: u32| request(&prompt(of, 600), &greedy(), 4, 6);
    {
        let engine = with_files(pair, kind, 1 << 30, dir.path(), 1 << 30);
        (0..4).for_each(|of| drop(fresh(&engine, &asked(of))));
    }
    let all = files(dir.path());
    let bytes = |of: &[PathBuf]| -> u64 { of.iter().map(|file| std::fs::metadata(file).unwrap().len()).sum() };
    let limit = bytes(&all) / 2;
    {
        let engine = with_files(pair, kind, 1 << 30, dir.path(), limit);
        assert!(engine.prefix_usage().unwrap().spilled <= limit);
        // What was used last is there.
        assert_eq!(fresh(&engine, &asked(3)).timings.prefill.new, 1);
        assert_eq!(fresh(&engine, &asked(0)).timings.prefill.new, 600);
    }
    assert!(bytes(&files(dir.path())) <= limit);
    for (name, damage) in [
        ("cut", (|bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - 1)) as fn(&mut Vec<u8>)),
        ("longer", |bytes| bytes.push(0)),
        ("a bit of a page", |bytes| {
            let at = bytes.len() / 2;
            bytes[at] ^= 1
        }),
        ("a token", |bytes| bytes[16 + 64 + 16 + 16] ^= 1),
        ("counts that wrap", |bytes| bytes[80..96].fill(0xff)),
        ("empty", Vec::clear),
    ] {
        for file in files(dir.path()) {
            let mut bytes = std::fs::read(&file).unwrap();
            damage(&mut bytes);
            std::fs::write(&file, bytes).unwrap();
        }
        let engine = with_files(pair, kind, 1 << 30, dir.path(), 1 << 30);
        for of in 0..4 {
            let given = fresh(&engine, &asked(of));
            assert_eq!(given.token_ids, fresh(&cold, &asked(of)).token_ids, "{name}");
            assert_eq!(given.timings.prefill.cached, 0, "{name}");
        }
    }
    // A folder that cannot be is an error before anything is loaded; one that goes away later ends the writing.
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let prefix_files = Some(PrefixFiles { dir: file, limit: 1 });
    let options = EngineOptions { prefix_cache: 1, prefix_files, ..pair.options() };
    let error = Engine::load(&options, &mut |_| {}).err().unwrap().to_string();
    assert!(error.contains("cannot be used for keys and values"), "{error}");
    let engine = with_files(pair, kind, 1000, dir.path(), 1 << 30);
    std::fs::remove_dir_all(dir.path()).unwrap();
    assert_eq!(fresh(&engine, &asked(0)).token_ids, fresh(&cold, &asked(0)).token_ids);
    assert!(engine.prefix_usage().unwrap().trouble.is_some());
}

//! Every encoding, through whatever path it takes: as exact as any other, and what the rule of activations says.

use crate::by_the_rule;
use crate::encoded::{Base, Encoded, encodings};
use crate::support::{bits, fresh, greedy, load, logits, logits_by_position, long, request, tower};
use glimmer_backend::{CpuBackend, CpuOptions};
use glimmer_engine::sampling::Sampling;
use glimmer_engine::{EngineOptions, Isa, KvType, KvTypes};
use std::collections::HashSet;

/// Checkpoints of a base in every encoding that it takes; without the long forms, one type of scales for each affine encoding.
fn all(base: Base) -> impl Iterator<Item = Encoded> {
    encodings(long()).into_iter().filter(move |&encoding| base.takes(encoding)).map(move |e| Encoded::new(base, e))
}

#[test]
fn no_encoding_is_left_out() {
    let covered = |encoding| Base::ALL.iter().any(|base| base.takes(encoding));
    assert!(encodings(true).into_iter().all(covered));
    let distinct: HashSet<_> = encodings(true).into_iter().collect();
    assert_eq!((distinct.len(), encodings(false).len()), (23 + 3 + 3 + 2 * 18, 23 + 3 + 3 + 18));
}

/// Tokens with the drafter off and on, and the bits of logits: whatever the width, the threads, the chunks of the prompt, the
/// instruction set.
fn tokens_and_logits_depend_on_nothing_else(base: Base, tokens: usize) {
    let block = base.block_size();
    let ways: &[_] = match (base, long()) {
        (Base::Synthetic, false) => &[(5, 2, 7)],
        (_, false) => &[(2, 1, 1), (block, 3, 16)],
        (_, true) => &[(2, 1, 1), (3, 2, 15), (5, 2, 7), (8, 3, 17), (block, 2, 64)],
    };
    for (i, encoded) in all(base).enumerate() {
        let kind = KvType::ALL[i % 4];
        let sampling = if i % 2 == 0 { greedy() } else { Sampling { seed: 3, ..Sampling::default() } };
        let options = EngineOptions { cache_keys: Some(kind), cache_values: Some(kind), ..encoded.options() };
        let prompt = base.prompt();
        let plain = load(&EngineOptions { prefill_chunk: 4096, ..options.clone() });
        let expected = fresh(&plain, &request(&prompt, &sampling, 1, tokens)).token_ids;
        let all_logits = logits_by_position(&plain, &prompt, &sampling, 1, tokens);
        for &(width, threads, prefill_chunk) in ways {
            let label = format!("{base:?} {} {width} {threads} {prefill_chunk}", encoded.encoding);
            let engine = load(&EngineOptions { threads: Some(threads), prefill_chunk, ..options.clone() });
            assert_eq!(fresh(&engine, &request(&prompt, &sampling, width, tokens)).token_ids, expected, "{label}");
            let rounds = logits_by_position(&engine, &prompt, &sampling, width, tokens);
            for position in prompt.len()..prompt.len() + tokens {
                assert!(rounds[&position] == all_logits[&position], "{label} at {position}");
            }
        }
        every_row_is_the_same(&encoded, KvTypes::both(kind));
    }
}

/// The logits of every row of a text, in passes of many lengths: a row has the same bits wherever it stands in a pass, also
/// where no drafter would have put it, and on every instruction set.
fn every_row_is_the_same(encoded: &Encoded, types: KvTypes) {
    let target = encoded.target();
    let all = encoded.base.prompt();
    let (rows, slow) = match (encoded.base, long()) {
        (_, true) => (all.len(), all.len()),
        (Base::Synthetic, false) => (12, 5),
        (_, false) => (24, 7),
    };
    let ids = &all[..rows.min(all.len())];
    let backend = |isa, threads| {
        CpuBackend::new(CpuOptions { threads: Some(threads), isa: Some(isa), ..CpuOptions::default() }).unwrap()
    };
    let b = backend(Isa::best(), 2);
    let model = tower(&b, &target);
    let whole = bits(&logits(&b, &model, ids, ids.len(), types));
    let label = |what: &str| format!("{:?} {} {what}", encoded.base, encoded.encoding);
    for chunk in [1, 2, 3, 5, 8, 9, 16, 17] {
        let cut = bits(&logits(&b, &model, ids, chunk, types));
        assert!(cut == whole, "{}", label(&format!("in passes of {chunk}")));
    }
    for isa in Isa::available() {
        let (b, ids) = (backend(isa, 1), &ids[..if isa == Isa::Scalar { slow } else { ids.len() }]);
        let model = tower(&b, &target);
        for chunk in [4, ids.len()] {
            let rows = bits(&logits(&b, &model, ids, chunk, types));
            assert!(rows == whole[..rows.len()], "{}", label(&isa.to_string()));
        }
    }
}

#[test]
fn nano_depends_on_nothing_else() {
    tokens_and_logits_depend_on_nothing_else(Base::Nano, if long() { 64 } else { 16 });
}

#[test]
fn the_tiny_pair_depends_on_nothing_else() {
    tokens_and_logits_depend_on_nothing_else(Base::Tiny, if long() { 64 } else { 16 });
}

#[test]
fn long_blocks_depend_on_nothing_else() {
    tokens_and_logits_depend_on_nothing_else(Base::Synthetic, if long() { 32 } else { 6 });
}

/// Logits of a whole forward, which are up to 19, within 1e-4. (They are within 2e-5, those of f32 weights too: f32 sums in
/// another order.)
fn logits_are_those_of_the_rule(base: Base, rows: usize) {
    for encoded in all(base) {
        let prompt = base.prompt();
        let ids = &prompt[..prompt.len().min(rows)];
        let isas = if long() { Isa::available() } else { vec![Isa::best()] };
        for isa in isas {
            let (worst, counts) = by_the_rule::distance(&encoded.target(), isa, ids);
            let label = format!("{base:?} {} on {isa}: off by {worst}, {counts:?}", encoded.encoding);
            assert!(worst <= 1e-4, "{label}");
            // Chance puts twice the width of a tie there.
            assert!(counts.ties * 100 <= counts.rounded, "{label}");
        }
    }
}

#[test]
fn logits_of_nano_are_those_of_the_rule() {
    logits_are_those_of_the_rule(Base::Nano, 32);
}

#[test]
fn logits_of_the_tiny_pair_are_those_of_the_rule() {
    logits_are_those_of_the_rule(Base::Tiny, 48);
}

#[test]
fn logits_of_long_blocks_are_those_of_the_rule() {
    logits_are_those_of_the_rule(Base::Synthetic, 8);
}

//! DFlash against transformers: the stored tensors of six rounds.

use crate::support::F32;
use crate::support::{Golden, backend, bits, load, open, path};
use glimmer_backend::{Backend, PAGE};
use glimmer_model::dflash::{Block, DFlash, DFlashConfig, Seen};
use glimmer_model::observe::{Observer, Site, Taps, Unobserved};
use serde_json::Value;
use std::collections::HashMap;

#[derive(Default)]
struct All(HashMap<Site, Vec<f32>>);

impl<B: Backend> Observer<B> for All {
    fn see(&mut self, backend: &B, site: Site, x: &B::Tensor) {
        self.0.insert(site, backend.read(x));
    }
}

#[test]
fn stored_rounds_are_met() {
    let b = backend();
    let target = load(&b, "fixtures/muse-tiny-bf16");
    let checkpoint = glimmer_checkpoint::open(&path("fixtures/muse-tiny-assistant")).unwrap();
    let config = DFlashConfig::bind(&checkpoint, target.config(), "muse-tiny-bf16").unwrap();
    let drafter = DFlash::load(&b, &checkpoint, config, &mut |_| {}).unwrap();
    let c = drafter.config().clone();
    let golden = Golden::open("fixtures/dflash_expected.safetensors");
    let cases: Value = serde_json::from_slice(&std::fs::read(path("fixtures/dflash_expected.json")).unwrap()).unwrap();
    let mut checked = 0;
    for case in ["a", "c"] {
        let case_data = &cases["cases"][case];
        let ids =
            |v: &Value| -> Vec<u32> { v.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect() };
        let mut sequence = ids(&case_data["input_ids"]);
        let mut cache = target.cache(200, 64, F32);
        let mut context = drafter.context();
        for (number, round) in case_data["rounds"].as_array().unwrap().iter().enumerate() {
            let emitted = ids(&round["emitted"]);
            if round["drafter_called"] == true {
                // The states of every position before the anchor that the context lacks.
                let new = sequence[cache.len()..sequence.len() - 1].to_vec();
                let start = cache.len();
                let mut taps = Taps::new(&c.target_layer_ids);
                target.forward(&b, &mut cache, &new, &mut taps).unwrap();
                let states = taps.concat(&b);
                let at = |name: &str| format!("{case}.round{number}.{name}");
                let stored = golden.names().contains(&at("context"));
                let mut seen = All::default();
                drafter.observe(&b, &mut context, &states, start, &mut seen).unwrap();
                assert_eq!(context.end(), round["noise_start"].as_u64().unwrap() as usize);
                let mut block = vec![c.mask_token_id; c.block_size];
                block[0] = *sequence.last().unwrap();
                let embeds = target.embed_raw(&b, &block);
                if stored {
                    golden.check(&at("context"), &b.read(&states));
                    // Context rows that the window leaves behind are not encoded.
                    let encoded = &seen.0[&Site::Encoder];
                    let theirs = golden.f32(&at("encoder_out"));
                    let worst =
                        encoded.iter().rev().zip(theirs.iter().rev()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(worst < 1e-3, "{case} {number}: encoder off by {worst}");
                    assert_eq!(b.read(&embeds), golden.f32(&at("noise_embeds")));
                }
                let hidden = drafter.draft(&b, &mut context, embeds, &mut seen).unwrap();
                let logits = b.read(&target.bare_logits(&b, &b.rows(&hidden, 1..c.block_size)));
                if stored {
                    for layer in 0..c.num_hidden_layers {
                        golden.check(&at(&format!("layer_out.{layer}")), &seen.0[&Site::Layer(layer)]);
                    }
                    golden.check(&at("last_hidden"), &b.read(&hidden));
                    golden.check(&at("logits"), &logits);
                    checked += 1;
                }
                let proposals: Vec<u32> = logits.chunks(512).map(crate::support::argmax).collect();
                assert_eq!(proposals, ids(&round["proposals"]), "{case} {number}");
            }
            sequence.extend(emitted);
        }
    }
    assert_eq!(checked, 6);
}

#[test]
fn the_context_keeps_its_window_and_no_more() {
    let b = backend();
    let target = load(&b, "fixtures/muse-tiny-bf16");
    let checkpoint = glimmer_checkpoint::open(&path("fixtures/muse-tiny-assistant")).unwrap();
    let config = DFlashConfig::bind(&checkpoint, target.config(), "muse-tiny-bf16").unwrap();
    let drafter = DFlash::load(&b, &checkpoint, config, &mut |_| {}).unwrap();
    let ids: Vec<u32> = (0..590).map(|i| i * 5 % 400).collect();
    let states = |ids: &[u32]| {
        let mut cache = target.cache(600, 600, F32);
        let mut taps = Taps::new(&drafter.config().target_layer_ids);
        target.forward(&b, &mut cache, ids, &mut taps).unwrap();
        taps.concat(&b)
    };
    let all = states(&ids);
    let block = |context: &mut _| {
        let embeds = target.embed_raw(&b, &[9, 500, 500, 500]);
        b.read(&drafter.draft(&b, context, embeds, &mut Unobserved).unwrap())
    };
    // At once, row by row with a block drafted in between, and only the last rows of a long prompt: the same block.
    let mut whole = drafter.context();
    drafter.observe(&b, &mut whole, &all, 0, &mut Unobserved).unwrap();
    let (mut by_rows, taken) = (drafter.context(), b.pages_taken());
    for row in 0..590 {
        drafter.observe(&b, &mut by_rows, &b.rows(&all, row..row + 1), row, &mut Unobserved).unwrap();
        block(&mut by_rows);
    }
    // A page for every 256 positions and layer, and none is copied, however many rounds there are.
    assert_eq!(b.pages_taken() - taken, (3 * drafter.config().num_hidden_layers) as u64);
    let mut late = drafter.context();
    drafter.observe(&b, &mut late, &b.rows(&all, 570..590), 570, &mut Unobserved).unwrap();
    let expected = block(&mut whole);
    assert_eq!(block(&mut by_rows), expected);
    assert_eq!(block(&mut late), expected);
    for context in [&whole, &by_rows, &late] {
        // No page is kept that holds nothing of the window and a block before what was observed last.
        assert!((16..=2 * PAGE).contains(&context.held().len()) && context.held().end == 590);
    }
    // Cut back by fewer rows than the block's slack, the window is still whole.
    whole.truncate(588);
    let mut fresh = drafter.context();
    drafter.observe(&b, &mut fresh, &b.rows(&all, 0..588), 0, &mut Unobserved).unwrap();
    assert_eq!(block(&mut whole), block(&mut fresh));
}

#[test]
fn drafters_that_do_not_fit_are_refused_by_name() {
    let (_, nano) = open("nano/target");
    let checkpoint = glimmer_checkpoint::open(&path("fixtures/muse-tiny-assistant")).unwrap();
    let message = DFlashConfig::bind(&checkpoint, &nano.text, "nano").unwrap_err().to_string();
    assert!(
        message.contains("nano") && message.contains("hidden_size") && message.contains("192, found 64"),
        "{message}"
    );
    let (_, tiny) = open("fixtures/muse-tiny-bf16");
    for (change, expected) in
        [("vocab_size", "vocab_size: expected 300, found 512"), ("depth", "num_target_layers: expected 4, found 8")]
    {
        let mut target = tiny.text.clone();
        match change {
            "vocab_size" => target.vocab_size = 300,
            _ => target.layers.truncate(4),
        }
        let message = DFlashConfig::bind(&checkpoint, &target, "t").unwrap_err().to_string();
        assert!(message.contains(expected) && !message.contains('\n'), "{message}");
    }
}

/// Numbers around zero, as a state might have them.
fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as i32 as f32 / i32::MAX as f32
    };
    (0..len).map(next).collect()
}

/// How often each site was seen, and with how many elements.
#[derive(Default)]
struct Counted(HashMap<Site, (usize, usize)>);

impl<B: Backend> Observer<B> for Counted {
    fn see(&mut self, backend: &B, site: Site, x: &B::Tensor) {
        let (rows, cols) = backend.shape(x);
        let count = self.0.entry(site).or_default();
        *count = (count.0 + 1, rows * cols);
    }
}

#[test]
fn a_block_is_the_same_alone_and_among_others() {
    let b = backend();
    let target = load(&b, "fixtures/muse-tiny-bf16");
    for fixture in ["muse-tiny-assistant", "muse-tiny-dflash2"] {
        let checkpoint = glimmer_checkpoint::open(&path(&format!("fixtures/{fixture}"))).unwrap();
        let config = DFlashConfig::bind(&checkpoint, target.config(), "muse-tiny-bf16").unwrap();
        let drafter = DFlash::load(&b, &checkpoint, config, &mut |_| {}).unwrap();
        let c = drafter.config().clone();
        let states = |rows: usize, seed: u32| {
            let cols = c.target_layer_ids.len() * c.hidden_size;
            b.tensor(rows, cols, noise(rows * cols, seed))
        };
        let embeds = |rows: usize, anchor: u32| {
            let mut block = vec![c.mask_token_id; rows];
            block[0] = anchor;
            target.embed_raw(&b, &block)
        };
        // Rows that are observed at first and then, and those of the blocks: short, at the end of a page, over one and over two.
        let (first, later) = ([3, 250, 1, 254, 530], [2, 4, 8, 1, 3]);
        let widths = [[2, 8, 5, 7, 3], [8, 6, 1, 4, 2]];
        let mut alone: Vec<_> = first.iter().map(|_| drafter.context()).collect();
        let mut among: Vec<_> = first.iter().map(|_| drafter.context()).collect();
        for (turn, new) in [first, later].iter().enumerate() {
            let shown: Vec<_> = (0..5).map(|i| states(new[i], (10 * turn + i) as u32)).collect();
            let mut seen = Counted::default();
            let mut batch: Vec<Seen<'_, _>> = among
                .iter_mut()
                .zip(&shown)
                .map(|(context, states)| Seen { position: context.end(), context, states })
                .collect();
            assert!(drafter.observe_all(&b, &mut batch, &mut seen).iter().all(Result::is_ok));
            // A drafter encodes what its window may see.
            let rows: usize = new.iter().map(|&rows| rows.min(c.reach() + c.block_size)).sum();
            assert_eq!(seen.0[&Site::Encoder], (1, rows * c.hidden_size));
            for (context, states) in alone.iter_mut().zip(&shown) {
                let position = context.end();
                drafter.observe(&b, context, states, position, &mut Unobserved).unwrap();
            }
            let widths = widths[turn];
            let mut seen = Counted::default();
            let mut blocks: Vec<Block<'_, _>> = (among.iter_mut().zip(widths).enumerate())
                .map(|(i, (context, rows))| Block { context, embeds: embeds(rows, 5 + i as u32) })
                .collect();
            let drafted = drafter.draft_all(&b, &mut blocks, &mut seen);
            // One pass: every tensor of it was made once, for all rows.
            assert_eq!(seen.0[&Site::FinalNorm], (1, widths.iter().sum::<usize>() * c.hidden_size));
            assert!(seen.0.values().all(|&(times, _)| times == 1), "{:?}", seen.0);
            for (i, (context, drafted)) in alone.iter_mut().zip(drafted).enumerate() {
                let drafted = drafted.unwrap();
                assert_eq!(b.shape(&drafted), (widths[i], c.hidden_size));
                let expected = drafter.draft(&b, context, embeds(widths[i], 5 + i as u32), &mut Unobserved).unwrap();
                assert!(bits(&b.read(&drafted)) == bits(&b.read(&expected)), "{fixture}: block {i}, turn {turn}");
                assert_eq!(context.held(), among[i].held());
            }
        }
    }
    let drafter = {
        let checkpoint = glimmer_checkpoint::open(&path("fixtures/muse-tiny-assistant")).unwrap();
        let config = DFlashConfig::bind(&checkpoint, target.config(), "muse-tiny-bf16").unwrap();
        DFlash::load(&b, &checkpoint, config, &mut |_| {}).unwrap()
    };
    assert!(drafter.observe_all(&b, &mut [], &mut Unobserved).is_empty());
    assert!(drafter.draft_all(&b, &mut [], &mut Unobserved).is_empty());
}

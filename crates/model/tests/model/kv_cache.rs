//! Going back: a cache that was cut equals one that never went further.

use crate::support::{F16, F32, Golden, KINDS, backend, bits, load};
use glimmer_backend::{Backend, CpuBackend, PAGE};
use glimmer_model::kv_cache::Span;
use glimmer_model::muse::{MuseText, Rows, TextCache};
use glimmer_model::observe::Unobserved;

fn step(b: &CpuBackend, model: &MuseText<CpuBackend>, cache: &mut TextCache<CpuBackend>, ids: &[u32]) -> Vec<u32> {
    let x = model.forward(b, cache, ids, &mut Unobserved).unwrap();
    bits(&b.read(&model.logits(b, &x, 0..ids.len(), &mut Unobserved)))
}

#[test]
fn a_cut_cache_decodes_like_a_fresh_one() {
    for (name, block) in [("muse-tiny-bf16", 8), ("muse-tiny-f32", 5)] {
        let b = backend();
        let model = load(&b, &format!("fixtures/{name}"));
        let golden = Golden::open(&format!("fixtures/{name}_expected.safetensors"));
        let ids: Vec<u32> = golden.ids("input_ids").into_iter().cycle().take(120).collect();
        for keys in KINDS {
            // `start` lets the block begin before, at and behind the window's edge and the ring's.
            for start in [1, 8, 15, 16, 17, 23, 24, 40, 63] {
                for kept in 0..=block {
                    let mut cache = model.cache(200, block, keys);
                    for part in ids[..start].chunks(block) {
                        step(&b, &model, &mut cache, part);
                    }
                    // A block of other tokens is verified, and all but `kept` of its rows are taken back.
                    let wrong: Vec<u32> = ids[start..start + kept]
                        .iter()
                        .copied()
                        .chain((0..(block - kept) as u32).map(|i| 3 + i))
                        .collect();
                    step(&b, &model, &mut cache, &wrong);
                    cache.truncate(start + kept).unwrap();
                    let again = step(&b, &model, &mut cache, &ids[start + kept..start + kept + 3]);

                    let mut fresh = model.cache(200, block, keys);
                    for part in ids[..start + kept].chunks(block) {
                        step(&b, &model, &mut fresh, part);
                    }
                    let plain = step(&b, &model, &mut fresh, &ids[start + kept..start + kept + 3]);
                    assert!(again == plain, "{name} {keys:?}: block at {start}, {kept} rows kept");
                }
            }
        }
    }
}

#[test]
fn a_cache_says_where_it_cannot_go_back_to() {
    let b = backend();
    let model = load(&b, "fixtures/muse-tiny-bf16"); // window 16
    let mut cache = model.cache(1000, 8, F32);
    for part in [7u32; 600].chunks(8) {
        step(&b, &model, &mut cache, part);
    }
    // The pages from 512 on are kept; a row at 527 sees from 512 on.
    let refused = cache.truncate(526).unwrap_err();
    assert_eq!((refused.shortest, cache.len()), (527, 600));
    cache.truncate(527).unwrap();
    // What was lost stays lost after a shorter detour.
    step(&b, &model, &mut cache, &[1, 2]);
    assert!(cache.truncate(526).is_err());
    cache.truncate(0).unwrap();
    assert!(cache.is_empty());
    let again = step(&b, &model, &mut cache, &[7; 8]);
    let mut fresh = model.cache(400, 8, F32);
    assert!(again == step(&b, &model, &mut fresh, &[7; 8]));
    cache.truncate(3).unwrap();
}

#[test]
fn a_cache_keeps_what_a_pass_needs_and_no_more() {
    let b = backend();
    let model = load(&b, "fixtures/muse-tiny-bf16"); // window 16
    let mut cache = model.cache(4000, 8, F16);
    for (i, part) in [7u32; 2400].chunks(8).enumerate() {
        step(&b, &model, &mut cache, part);
        let len = 8 * (i + 1);
        for (layer, c) in cache.layers().iter().zip(&model.config().layers) {
            let held = layer.pages().positions();
            match c.span {
                Span::Full => assert_eq!(held, 0..len.next_multiple_of(PAGE)),
                // The last pass began at len - 8, saw 15 positions before it, and could have been 8 rows further back.
                Span::Sliding(_) => {
                    assert_eq!(held, len.saturating_sub(8 + 23) / PAGE * PAGE..len.next_multiple_of(PAGE))
                }
            }
        }
    }
}

#[test]
fn sequences_share_pages_until_one_writes_to_them() {
    let b = backend();
    let model = load(&b, "fixtures/muse-tiny-bf16");
    let ids: Vec<u32> = (0..640).map(|i| i * 7 % 400).collect();
    for (keys, len) in [(F32, 256), (F16, 300), (F16, 512), (F32, 599), (F32, 600)] {
        let mut first = model.cache(1000, 64, keys);
        for part in ids[..600].chunks(50) {
            step(&b, &model, &mut first, part);
        }
        let mut second = model.cache(1000, 64, keys);
        for (from, to) in first.layers().iter().zip(second.layers_mut()) {
            let pages = to.first_page(len)..len.div_ceil(PAGE);
            let pages = pages.map(|page| from.pages().page(page).cloned());
            // Of the first 300 positions, a sliding layer of the first no longer holds all that is needed.
            let Some(pages) = pages.collect::<Option<Vec<_>>>() else { continue };
            to.adopt(len, pages);
        }
        if second.layers().iter().any(|layer| layer.len() != len) {
            assert!(len < 527);
            continue;
        }
        let mut alone = model.cache(1000, 64, keys);
        for part in ids[..len].chunks(64) {
            step(&b, &model, &mut alone, part);
        }
        // Other tokens than the first had there, then those that it had.
        let other = step(&b, &model, &mut second, &[9, 9, 9]);
        assert!(other == step(&b, &model, &mut alone, &[9, 9, 9]), "{len}");
        let next = &ids[600..640];
        let expected = {
            let mut fresh = model.cache(1000, 64, keys);
            for part in ids[..600].chunks(64) {
                step(&b, &model, &mut fresh, part);
            }
            step(&b, &model, &mut fresh, next)
        };
        assert!(step(&b, &model, &mut first, next) == expected, "{len}: written to by the second");
        second.truncate(len).unwrap();
        let again = step(&b, &model, &mut second, &ids[len..len + 1]);
        alone.truncate(len).unwrap();
        assert!(again == step(&b, &model, &mut alone, &ids[len..len + 1]));
    }
}

#[test]
fn a_sequence_is_the_same_alone_and_in_a_batch() {
    let b = backend();
    let model = load(&b, "fixtures/muse-tiny-bf16");
    let ids = |seed: u32, len: usize| -> Vec<u32> { (0..len as u32).map(|i| (i * seed + 3) % 400).collect() };
    let prompts = [ids(5, 3), ids(7, 300), ids(11, 17), ids(13, 1), ids(17, 255)];
    let blocks = [ids(3, 1), ids(19, 5), ids(23, 16), ids(29, 2), ids(31, 8)];
    let cache = || model.cache(600, 300, F16);
    let mut caches: Vec<_> = prompts.iter().map(|_| cache()).collect();
    let expected: Vec<(Vec<u32>, Vec<u32>)> = prompts
        .iter()
        .zip(&blocks)
        .map(|(prompt, block)| {
            let mut cache = cache();
            (step(&b, &model, &mut cache, prompt), step(&b, &model, &mut cache, block))
        })
        .collect();
    let mut together = |all: &[Vec<u32>]| -> Vec<u32> {
        let mut batch: Vec<_> = caches.iter_mut().zip(all).map(|(cache, ids)| Rows { cache, ids }).collect();
        let x = model.forward_all(&b, &mut batch, &mut Unobserved).unwrap();
        let rows = all.iter().map(Vec::len).sum();
        bits(&b.read(&model.logits(&b, &x, 0..rows, &mut Unobserved)))
    };
    let (of_prompts, of_blocks): (Vec<Vec<u32>>, Vec<Vec<u32>>) = expected.into_iter().unzip();
    assert!(together(&prompts) == of_prompts.concat());
    assert!(together(&blocks) == of_blocks.concat());
}

#[test]
fn a_filled_cache_goes_on_like_one_that_was_written() {
    let b = backend();
    let model = load(&b, "fixtures/muse-tiny-bf16"); // window 16
    let filled = |widest: usize, depth: usize| {
        let mut cache = model.cache(1000, widest, F16);
        // With all keys alike, what is attended to is their common value, however many are kept.
        model.fill(&b, &mut cache, depth, &mut || 0.5).unwrap();
        cache
    };
    for depth in [0, 5, 16, 23, 100, 392, 600] {
        let expected = step(&b, &model, &mut filled(8, depth), &[5, 6, 7]);
        let mut cache = filled(60, depth);
        assert_eq!(cache.len(), depth);
        assert!(step(&b, &model, &mut cache, &[5, 6, 7]) == expected, "depth {depth}");
        cache.truncate(depth).unwrap();
        assert!(step(&b, &model, &mut cache, &[5, 6, 7]) == expected, "depth {depth}, again");
    }
    // What it no longer holds it does not pretend to hold.
    let mut cache = filled(8, 600);
    assert_eq!(cache.truncate(526).unwrap_err().shortest, 527);
    cache.truncate(527).unwrap();
    // Over what it held before.
    model.fill(&b, &mut cache, 30, &mut || 0.5).unwrap();
    assert!(step(&b, &model, &mut cache, &[9]) == step(&b, &model, &mut filled(8, 30), &[9]));
}

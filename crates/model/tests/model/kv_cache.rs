//! Going back: a cache that was cut equals one that never went further.

use crate::support::{F16, F32, Golden, KINDS, backend, bits, load};
use glimmer_backend::{Backend, CpuBackend};
use glimmer_model::muse::{MuseText, TextCache};
use glimmer_model::observe::Unobserved;

fn step(b: &CpuBackend, model: &MuseText<CpuBackend>, cache: &mut TextCache<CpuBackend>, ids: &[u32]) -> Vec<u32> {
    let x = model.forward(b, cache, ids, &mut Unobserved);
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
                    let mut cache = model.cache(&b, 200, block, keys).unwrap();
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

                    let mut fresh = model.cache(&b, 200, block, keys).unwrap();
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
    let mut cache = model.cache(&b, 400, 8, F32).unwrap();
    for part in [7u32; 100].chunks(8) {
        step(&b, &model, &mut cache, part);
    }
    // 23 positions are kept, 77..100; a row at 92 sees from 77 on.
    let refused = cache.truncate(91).unwrap_err();
    assert_eq!((refused.shortest, cache.len()), (92, 100));
    cache.truncate(92).unwrap();
    // What was lost stays lost after a shorter detour.
    step(&b, &model, &mut cache, &[1, 2]);
    assert!(cache.truncate(91).is_err());
    cache.truncate(0).unwrap();
    assert!(cache.is_empty());
    let again = step(&b, &model, &mut cache, &[7; 8]);
    let mut fresh = model.cache(&b, 400, 8, F32).unwrap();
    assert!(again == step(&b, &model, &mut fresh, &[7; 8]));
    cache.truncate(3).unwrap();
}

#[test]
fn a_filled_cache_goes_on_like_one_that_was_written() {
    let b = backend();
    let model = load(&b, "fixtures/muse-tiny-bf16"); // window 16
    let filled = |widest: usize, depth: usize| {
        let mut cache = model.cache(&b, 400, widest, F16).unwrap();
        // With all keys alike, what is attended to is their common value, however many a ring keeps.
        model.fill(&b, &mut cache, depth, &mut || 0.5);
        cache
    };
    for depth in [0, 5, 16, 23, 100, 392] {
        let expected = step(&b, &model, &mut filled(8, depth), &[5, 6, 7]);
        let mut cache = filled(60, depth);
        assert_eq!(cache.len(), depth);
        assert!(step(&b, &model, &mut cache, &[5, 6, 7]) == expected, "depth {depth}");
        cache.truncate(depth).unwrap();
        assert!(step(&b, &model, &mut cache, &[5, 6, 7]) == expected, "depth {depth}, again");
    }
    // What it no longer holds, 0..77, it does not pretend to hold.
    let mut cache = filled(8, 100);
    assert_eq!(cache.truncate(91).unwrap_err().shortest, 92);
    cache.truncate(92).unwrap();
    // Over what it held before.
    model.fill(&b, &mut cache, 30, &mut || 0.5);
    assert!(step(&b, &model, &mut cache, &[9]) == step(&b, &model, &mut filled(8, 30), &[9]));
}

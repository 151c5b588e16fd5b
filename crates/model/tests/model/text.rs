//! The text tower against transformers, tensor by tensor, and its independence of how a prompt is cut.

use crate::support::{F16, F32, KINDS};
use crate::support::{Golden, argmax, backend, bits, load, logits, open};
use glimmer_backend::{ActivationType, Backend, CpuBackend, CpuOptions, Isa};
use glimmer_model::muse::VisionConfig;
use glimmer_model::observe::{FirstNonFinite, Observer, Site, Unobserved};
use std::collections::HashMap;

/// Keeps every tensor it sees.
#[derive(Default)]
struct All(HashMap<Site, Vec<f32>>);

impl<B: Backend> Observer<B> for All {
    fn see(&mut self, backend: &B, site: Site, x: &B::Tensor) {
        self.0.insert(site, backend.read(x));
    }

    fn see_inside(&mut self, backend: &B, site: Site, x: impl FnOnce() -> B::Tensor) {
        self.see(backend, site, &x());
    }
}

fn site(name: &str) -> Option<Site> {
    let parts: Vec<&str> = name.split('.').collect();
    let index = parts.get(1).and_then(|n| n.parse().ok());
    Some(match (parts[0], index, parts.get(2).copied()) {
        ("embed", None, None) => Site::Embed,
        ("final_norm", None, None) => Site::FinalNorm,
        ("layer_out", Some(i), None) => Site::Layer(i),
        ("sub", Some(i), Some("input_norm")) => Site::InputNorm(i),
        ("sub", Some(i), Some("attn_out")) => Site::AttentionOut(i),
        ("sub", Some(i), Some("post_attn_norm")) => Site::PostAttentionNorm(i),
        ("sub", Some(i), Some("mlp_out")) => Site::MlpOut(i),
        _ => return None,
    })
}

#[test]
fn every_stored_tensor_is_met() {
    for (name, tensors) in [("muse-tiny-bf16", 8 + 8 + 3), ("muse-tiny-f32", 5 + 3)] {
        let b = backend();
        let golden = Golden::open(&format!("fixtures/{name}_expected.safetensors"));
        let model = load(&b, &format!("fixtures/{name}"));
        let ids = golden.ids("input_ids");
        let mut cache = model.cache(ids.len(), ids.len(), F32);
        let mut seen = All::default();
        let x = model.forward(&b, &mut cache, &ids, &mut seen).unwrap();
        let logits = model.logits(&b, &x, 0..ids.len(), &mut seen);
        golden.check("logits", &b.read(&logits));
        let mut checked = 1;
        for tensor in golden.names() {
            if let Some(site) = site(&tensor) {
                golden.check(&tensor, &seen.0[&site]);
                checked += 1;
            }
        }
        assert_eq!(checked, tensors, "{name}: stored tensors that were compared");
    }
}

/// Logits that mlx-lm and mlx-vlm compute from the packed weights with f32 activations.
#[test]
fn quantized_checkpoints_of_mlx_meet_the_stored_logits() {
    for name in ["muse-tiny-mlx-lm-mixed", "muse-tiny-mlx-vlm-4bit"] {
        let b = backend();
        let golden = Golden::open(&format!("fixtures/{name}_expected.safetensors"));
        let model = load(&b, &format!("fixtures/{name}"));
        let ids = golden.ids("input_ids");
        golden.check("logits_f32", &logits(&b, &model, &ids, ids.len(), F32));
    }
}

#[test]
fn greedy_continuations_are_met() {
    for name in ["muse-tiny-bf16", "muse-tiny-f32"] {
        let b = backend();
        let golden = Golden::open(&format!("fixtures/{name}_expected.safetensors"));
        let model = load(&b, &format!("fixtures/{name}"));
        let (prompt, expected) = (golden.ids("input_ids"), golden.ids("greedy_tokens"));
        let mut cache = model.cache(prompt.len() + expected.len(), prompt.len(), F32);
        let mut next = prompt.clone();
        let mut tokens: Vec<u32> = Vec::new();
        for step in 0..expected.len() {
            let x = model.forward(&b, &mut cache, &next, &mut Unobserved).unwrap();
            let logits = b.read(&model.logits(&b, &x, next.len() - 1..next.len(), &mut Unobserved));
            match step {
                0 => _ = golden.check("greedy_first_logits", &logits),
                _ if step + 1 == expected.len() => _ = golden.check("greedy_last_logits", &logits),
                _ => {}
            }
            next = vec![argmax(&logits)];
            tokens.extend(&next);
        }
        assert_eq!(tokens, expected, "{name}");
    }
}

#[test]
fn logits_do_not_depend_on_chunks_threads_or_instruction_set() {
    let names = ["muse-tiny-bf16", "muse-tiny-f32"].into_iter().cycle();
    for (name, keys) in names.zip(KINDS) {
        let golden = Golden::open(&format!("fixtures/{name}_expected.safetensors"));
        // Longer than the 256 positions that attention weighs together, and than any window.
        let ids: Vec<u32> = golden.ids("input_ids").into_iter().cycle().take(300).collect();
        let b = backend();
        let model = load(&b, &format!("fixtures/{name}"));
        let whole = logits(&b, &model, &ids, ids.len(), keys);
        for chunk in [1, 7, 15, 16, 17, 64] {
            assert!(
                bits(&logits(&b, &model, &ids, chunk, keys)) == bits(&whole),
                "{name} {keys:?} in chunks of {chunk}"
            );
        }
        for isa in Isa::available() {
            for threads in [1, 3] {
                let b = CpuBackend::new(CpuOptions { threads: Some(threads), isa: Some(isa), ..CpuOptions::default() })
                    .unwrap();
                let model = load(&b, &format!("fixtures/{name}"));
                assert!(bits(&logits(&b, &model, &ids, 33, keys)) == bits(&whole), "{name} on {threads} x {isa}");
            }
        }
    }
}

#[test]
fn logits_of_bf16_activations_do_not_depend_on_chunks_threads_or_instruction_set() {
    let on = |threads, isa| {
        let activations = ActivationType::BF16;
        CpuBackend::new(CpuOptions { threads: Some(threads), isa: Some(isa), activations }).unwrap()
    };
    for (name, keys) in [("fixtures/muse-tiny-bf16", F16), ("nano/target", F32)] {
        let ids: Vec<u32> = (0..60).map(|i| i * 37 % 200).collect();
        let b = on(1, Isa::Scalar);
        let whole = logits(&b, &load(&b, name), &ids, ids.len(), keys);
        for isa in Isa::available() {
            for (threads, chunk) in [(1, 1), (2, 5), (3, 16), (2, 60)] {
                let b = on(threads, isa);
                let chunked = logits(&b, &load(&b, name), &ids, chunk, keys);
                assert!(bits(&chunked) == bits(&whole), "{name} in chunks of {chunk} on {threads} x {isa}");
            }
        }
        let b = backend();
        let exact = logits(&b, &load(&b, name), &ids, ids.len(), keys);
        let apart = whole.iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart > 0.0 && apart < 0.5, "{name}: {apart}");
    }
}

#[test]
fn vision_tensors_are_counted() {
    for name in ["muse-tiny-bf16", "muse-tiny-f32"] {
        let (checkpoint, config) = open(&format!("fixtures/{name}"));
        let count = checkpoint.tensors().iter().filter(|t| VisionConfig::is_vision(&t.name)).count();
        assert!(count > 0 && glimmer_model::muse::account(&checkpoint, &config).unwrap() == count);
    }
    let (checkpoint, config) = open("nano/target");
    assert_eq!(glimmer_model::muse::account(&checkpoint, &config).unwrap(), 0);
}

#[test]
fn the_first_layer_that_is_not_finite_is_named() {
    let b = backend();
    let model = load(&b, "fixtures/muse-tiny-bf16");
    let mut found = FirstNonFinite::default();
    let mut cache = model.cache(8, 8, F32);
    model.forward(&b, &mut cache, &[1, 2, 3], &mut found).unwrap();
    assert_eq!(found.found, None);
    let zeros = b.rms_norm(&model.embed_raw(&b, &[1, 2, 3]), None, 1e-5);
    let infinite = b.softcap(zeros, f32::INFINITY, f32::INFINITY);
    Observer::see(&mut found, &b, Site::Layer(4), &b.concat_rows(&[&model.embed_raw(&b, &[5]), &infinite]));
    assert_eq!(found.found, Some((Some(4), 1)));
}

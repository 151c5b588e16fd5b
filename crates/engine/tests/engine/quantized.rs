//! Quantized weights through 8-bit activations: as exact as dense ones, and near them.

use crate::support::{Pair, copy, edit, fresh, greedy, load, path, request};
use glimmer_encoding::{Encoding, FloatType, encode_rows};
use glimmer_engine::sampling::{Chain, Sampling};
use glimmer_engine::{ActivationType, Engine, EngineOptions, Isa, KvType, Source};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;

/// Nano as mlx-lm would quantize it: affine 4-bit with bf16 scales.
pub fn nano(group: u16) -> tempfile::TempDir {
    let dir = copy("nano/target");
    let source = glimmer_checkpoint::open(&path("nano/target")).unwrap();
    let encoding = Encoding::Affine { bits: 4, group, scale: FloatType::BF16 };
    let mut parts: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for info in source.tensors() {
        let tensor = source.read(&info.name).unwrap();
        let name = info.name.replace("model.language_model.", "model.");
        match info.shape[..] {
            [rows, cols] => {
                let encoded = encode_rows(encoding, &tensor.view().to_f32(), rows, cols).unwrap();
                let module = name.strip_suffix(".weight").unwrap();
                let groups = cols / group as usize;
                parts.push((name.clone(), Dtype::U32, vec![rows, cols / 8], encoded.codes));
                parts.push((format!("{module}.scales"), Dtype::BF16, vec![rows, groups], encoded.scales));
                parts.push((format!("{module}.biases"), Dtype::BF16, vec![rows, groups], encoded.biases));
            }
            _ => parts.push((name, Dtype::BF16, info.shape.clone(), tensor.view().parts().codes.to_vec())),
        }
    }
    let views = parts
        .iter()
        .map(|(name, dtype, shape, bytes)| (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &dir.path().join("model.safetensors")).unwrap();
    edit(&dir, "config.json", |config| {
        config["quantization"] = json!({"bits": 4, "group_size": group, "mode": "affine"})
    });
    dir
}

fn options(dir: &tempfile::TempDir) -> EngineOptions {
    EngineOptions { target: Source::Path(dir.path().into()), ..Pair::Nano.options() }
}

#[test]
fn tokens_do_not_depend_on_drafter_width_threads_chunks_or_instruction_set() {
    for group in [32, 64] {
        let dir = nano(group);
        let plain = load(&EngineOptions { threads: Some(1), ..options(&dir) });
        assert_eq!(plain.settings().activations, "int8");
        for (case, sampling) in [(2, greedy()), (3, Sampling { seed: 3, ..Sampling::default() })] {
            let prompt = Pair::Nano.prompts()[case].clone();
            let expected = fresh(&plain, &request(&prompt, &sampling, 1, 32)).token_ids;
            for (width, threads, prefill_chunk) in [(2, 1, 1), (5, 2, 7), (9, 3, 16), (16, 2, 512)] {
                let engine = load(&EngineOptions { threads: Some(threads), prefill_chunk, ..options(&dir) });
                let tokens = fresh(&engine, &request(&prompt, &sampling, width, 32)).token_ids;
                assert_eq!(
                    tokens, expected,
                    "group {group}, width {width}, {threads} threads, chunks of {prefill_chunk}"
                );
            }
            for isa in Isa::available() {
                let engine = load(&EngineOptions { isa: Some(isa), ..options(&dir) });
                let tokens = fresh(&engine, &request(&prompt, &sampling, 4, 12)).token_ids;
                assert_eq!(tokens, expected[..12], "group {group} on {isa}");
            }
        }
    }
}

/// The largest mean KL divergence that rounding activations to 8 bits may cost on nano: half as much again as was measured.
const KL_LIMIT: f64 = 1.5 * 0.00027;

#[test]
fn eight_bit_activations_are_near_f32() {
    let dir = nano(64);
    let engine = |activations| load(&EngineOptions { activations, ..options(&dir) });
    let (rounded, exact) = (engine(ActivationType::Int8), engine(ActivationType::F32));
    assert_eq!(exact.settings().activations, "f32");
    let (kl, top1) = distance(&exact, &rounded);
    println!("int8 against f32 activations: mean KL {kl:.5}, top-1 agreement {top1:.3}");
    assert!(kl < KL_LIMIT && top1 > 0.95, "KL {kl}, top-1 {top1}");
}

#[test]
fn narrow_caches_are_near_f32() {
    let engine =
        |kind| load(&EngineOptions { cache_keys: Some(kind), cache_values: Some(kind), ..Pair::Nano.options() });
    let exact = engine(KvType::F32);
    // Half as much again as was measured.
    for (kind, measured) in [(KvType::F16, 1.7e-7), (KvType::BF16, 1.4e-5), (KvType::Q8, 1.3e-4)] {
        let (kl, top1) = distance(&exact, &engine(kind));
        println!("a cache in {kind} against f32: mean KL {kl:e}, top-1 agreement {top1:.3}");
        assert!(kl < 1.5 * measured && top1 > 0.97, "{kind}: KL {kl}, top-1 {top1}");
    }
}

/// Mean KL divergence and top-1 agreement of two engines over prompts of nano, of up to 140 tokens.
fn distance(exact: &Engine, rounded: &Engine) -> (f64, f64) {
    let (mut kl, mut same, mut count) = (0.0, 0, 0);
    for prompt in Pair::Nano.prompts() {
        for end in (8..prompt.len().min(140)).step_by(4) {
            let [p, q] = [exact, rounded].map(|engine| distribution(engine, &prompt[..end]));
            kl += p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum::<f64>();
            let best = |d: &[f64]| (0..d.len()).max_by(|&a, &b| d[a].total_cmp(&d[b])).unwrap();
            same += usize::from(best(&p) == best(&q));
            count += 1;
        }
    }
    (kl / count as f64, same as f64 / count as f64)
}

/// The softmax of the logits after a prompt.
fn distribution(engine: &Engine, prompt: &[u32]) -> Vec<f64> {
    let sampling = Sampling { top_k: 0, top_p: 1.0, ..Sampling::default() };
    let mut session = engine.session().unwrap();
    let (_, logits) = session.prefill(prompt, false, &mut |_, _| true).unwrap();
    let chain = Chain::new(sampling, engine.vocab_size()).unwrap();
    let mut all = vec![0.0; engine.vocab_size()];
    for (token, p) in chain.distribution(&logits.unwrap()).unwrap() {
        all[token as usize] = p;
    }
    all
}

#[test]
fn what_has_no_kernel_is_refused_only_where_it_was_asked_for() {
    let tiny = |activations| EngineOptions {
        target: Source::Path(path("fixtures/muse-tiny-mlx-lm-mixed")),
        drafter: None,
        activations,
        ..Pair::Tiny.options()
    };
    let message = Engine::load(&tiny(ActivationType::Int8), &mut |_| {}).err().unwrap().to_string();
    assert!(message.contains("--activations f32"), "{message}");
    let engine = load(&tiny(ActivationType::Auto));
    assert!(engine.settings().activations.starts_with("int8 (f32 for "), "{}", engine.settings().activations);
    assert_eq!(load(&tiny(ActivationType::F32)).settings().activations, "f32");
}

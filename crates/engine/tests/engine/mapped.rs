//! Weights that stay in their files give the bits of those that are loaded.

use crate::encoded::{Base, Encoded};
use crate::gguf_writer::target;
use crate::support::{Pair, copy, fresh, greedy, load, overwrite, path, request};
use crate::synthetic::{self, Shape};
use glimmer_encoding::{Encoding, FloatType, GgmlType};
use glimmer_engine::inspect::{Part, inspect};
use glimmer_engine::sampling::Sampling;
use glimmer_engine::{ActivationType, Engine, EngineOptions, KvType, Source};
use std::path::Path;

fn options(target: &Path) -> EngineOptions {
    EngineOptions {
        context: Some(400),
        cache_keys: Some(KvType::F32),
        cache_values: Some(KvType::F32),
        threads: Some(1),
        ..EngineOptions::new(Source::Path(target.into()))
    }
}

fn logits(engine: &Engine, prompt: &[u32]) -> Vec<u32> {
    let (_, logits) = engine.session().unwrap().prefill(prompt, false, &mut |_, _| true).unwrap();
    logits.unwrap().iter().map(|x| x.to_bits()).collect()
}

/// The same logits and tokens, mapped and not, whatever the threads, the chunks and the width.
fn same(options: &EngineOptions, prompt: &[u32], label: &str) {
    let loaded = load(options);
    let sampling = Sampling { seed: 5, ..Sampling::default() };
    let expected = (logits(&loaded, prompt), fresh(&loaded, &request(prompt, &sampling, 1, 12)).token_ids);
    for (threads, prefill_chunk, width) in [(1, 512, 1), (2, 7, 3), (3, 64, 6)] {
        let mapped = load(&EngineOptions { mmap: true, threads: Some(threads), prefill_chunk, ..options.clone() });
        assert!(mapped.settings().mmap && mapped.settings().activations == loaded.settings().activations, "{label}");
        let width = if options.drafter.is_some() { width } else { 1 };
        let tokens = fresh(&mapped, &request(prompt, &sampling, width, 12)).token_ids;
        assert!((logits(&mapped, prompt), tokens) == expected, "{label}: {threads} threads, chunks of {prefill_chunk}");
    }
}

#[test]
fn directories_give_the_same_bits() {
    let prompt = Pair::Nano.prompts()[0].clone();
    let drafter = Some(Source::Path(path("nano/assistant")));
    let nano = EngineOptions { drafter, ..options(&path("nano/target")) };
    same(&nano, &prompt, "nano");
    let drafter = Some(Source::Path(path("nano/dflash2")));
    same(&EngineOptions { drafter, ..nano.clone() }, &prompt, "nano with DFlash 2");
    same(&EngineOptions { activations: ActivationType::BF16, ..nano }, &prompt, "nano in bf16");
    let quantized = Encoded::new(Base::Nano, Encoding::Affine { bits: 4, group: 64, scale: FloatType::BF16 });
    same(&quantized.options(), &prompt, "nano in 4 bits");
    // Ids that the smallest vocabulary has.
    let prompt: Vec<u32> = Pair::Tiny.prompts()[0].iter().map(|id| id % 200).collect();
    for name in ["muse-tiny-f32", "muse-tiny-mlx-lm-mixed", "muse-tiny-mlx-vlm-4bit"] {
        let options = options(&path("fixtures").join(name));
        same(&options, &prompt, name);
        same(&EngineOptions { activations: ActivationType::F32, ..options }, &prompt, name);
    }
}

#[test]
fn gguf_files_give_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.gguf");
    let checkpoint = glimmer_checkpoint::open(&path("fixtures/muse-tiny-bf16")).unwrap();
    for encoding in [
        Encoding::Dense(FloatType::BF16),
        Encoding::Dense(FloatType::F16),
        Encoding::Dense(FloatType::F32),
        Encoding::Ggml(GgmlType::Q8_0),
        Encoding::Ggml(GgmlType::Q4_0),
    ] {
        std::fs::write(&file, target(&checkpoint, |_, _| encoding).bytes()).unwrap();
        same(&options(&file), &Pair::Tiny.prompts()[0], &encoding.to_string());
    }
    // Rows of more than one block, pieces of more than one tile, and heads that a piece ends in.
    let shape = Shape { layers: 2, hidden: 512, intermediate: 1792, heads: 6, kv_heads: 2, head_dim: 128, vocab: 1000 };
    let kinds = [GgmlType::Q4K, GgmlType::Q6K, GgmlType::Q5K];
    let written = synthetic::target(&shape, |i| Encoding::Ggml(kinds[i % kinds.len()]));
    std::fs::write(&file, written.bytes()).unwrap();
    let prompt: Vec<u32> = (0..70).map(|i| i * 37 % 1000).collect();
    same(&options(&file), &prompt, "K-quants");
    same(&EngineOptions { activations: ActivationType::F32, ..options(&file) }, &prompt, "K-quants in f32");
}

fn refusal(options: &EngineOptions) -> String {
    Engine::load(options, &mut |_| {}).err().expect("refused").to_string()
}

#[test]
fn what_has_no_file_cannot_be_mapped() {
    let nano = EngineOptions { mmap: true, drafter: None, ..Pair::Nano.options() };
    let drafter = EngineOptions { drafter: Some(Source::Nano), mmap: true, ..options(&path("nano/target")) };
    for (options, name) in [(nano, "nano: "), (drafter, "nano-assistant: ")] {
        let expected = format!("{name}it is part of this program: there is no file to map");
        assert_eq!(refusal(&options), expected);
        assert_eq!(inspect(&options).unwrap_err().to_string(), expected);
    }
}

#[test]
fn mapped_weights_are_checked_and_take_no_memory() {
    let dir = copy("fixtures/muse-tiny-bf16");
    let mapped = EngineOptions { mmap: true, ..options(dir.path()) };
    for (options, none) in [(&options(dir.path()), false), (&mapped, true)] {
        let Part::Target { weight_bytes, .. } = inspect(options).unwrap().part else { panic!("a target") };
        assert_eq!(weight_bytes == 0, none);
    }
    for tensor in ["lm_head.weight", "model.language_model.embed_tokens.weight"] {
        overwrite(&dir, tensor, 3 * 64 + 5..3 * 64 + 6, f32::INFINITY);
        let (read, mapped) = (refusal(&options(dir.path())), refusal(&mapped));
        assert!(read == mapped && read.contains(tensor) && read.contains("row 3, column 5"), "{read}");
        overwrite(&dir, tensor, 3 * 64 + 5..3 * 64 + 6, 0.0);
    }
    assert_eq!(fresh(&load(&mapped), &request(&[1, 2, 3], &greedy(), 1, 4)).token_ids.len(), 4);
}

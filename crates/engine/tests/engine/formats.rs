//! One model in several containers: the same tokens.

use crate::gguf_writer::{self, Gguf};
use crate::support::{Pair, bits, fresh, greedy, load, logits, path, request, tower};
use crate::tokenizer::nano;
use glimmer_backend::{CpuBackend, CpuOptions};
use glimmer_checkpoint::open;
use glimmer_encoding::{Encoding, FloatType, GgmlType};
use glimmer_engine::chat::message::Message;
use glimmer_engine::{ActivationType, Engine, EngineOptions, KvType, KvTypes, Source};
use std::path::Path;

fn engine(target: &Path) -> Engine {
    // Nano's own cache, so that nothing but the container differs.
    let (cache_keys, cache_values) = (Some(KvType::F32), Some(KvType::F32));
    load(&EngineOptions { cache_keys, cache_values, ..EngineOptions::new(Source::Path(target.into())) })
}

/// Nano as the converter of llama.cpp would store it.
fn nano_gguf(dir: &Path) -> Engine {
    let original = open(&path("nano/target")).unwrap();
    let file = dir.join("nano.gguf");
    std::fs::write(&file, gguf_writer::target(&original, |_, _| Encoding::Dense(FloatType::BF16)).bytes()).unwrap();
    engine(&file)
}

#[test]
fn a_gguf_file_brings_tokenizer_and_template() {
    let dir = tempfile::tempdir().unwrap();
    let (gguf, huggingface) = (nano_gguf(dir.path()), engine(&path("nano/target")));
    for text in [
        "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1)\n",
        "HELLOWorld it's CAN'T 12345 x  \n\n  y // a\n/b",
        "नमस्ते दुनिया ภาษาไทยน้ำใจ مُحَمَّد رسول e\u{301}cole 😀",
        "<|begin_of_text|><|eot|> is text",
        "",
    ] {
        assert_eq!(gguf.encode_raw(text).unwrap(), huggingface.encode_raw(text).unwrap(), "{text}");
        assert_eq!(gguf.tokenizer().unwrap().encode(text).unwrap(), nano().encode(text).unwrap(), "{text}");
    }
    let messages = [Message::user("What is 17 times 23?")];
    let of = |engine: &Engine| engine.encode_chat(&messages, None).unwrap();
    assert!(gguf.can_chat());
    assert_eq!(of(&gguf), of(&huggingface));
    assert_eq!(gguf.eos(), huggingface.eos());
}

#[test]
fn containers_give_the_same_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let (gguf, huggingface) = (nano_gguf(dir.path()), engine(&path("nano/target")));
    for prompt in Pair::Nano.prompts().iter().take(2) {
        let request = request(prompt, &greedy(), 1, 48);
        let [a, b] = [&gguf, &huggingface].map(|engine| fresh(engine, &request).token_ids);
        assert_eq!(a, b);
    }
}

/// llama.cpp keeps what all of such a matrix is multiplied with as a tensor of its own.
#[test]
fn a_scale_of_nvfp4_multiplies_all_of_the_matrix() {
    let tiny = open(&path("fixtures/muse-tiny-bf16")).unwrap();
    let kind = GgmlType::NvFp4;
    let divides = |cols: usize| cols.is_multiple_of(kind.block());
    let bf16 = Encoding::Dense(FloatType::BF16);
    let mut plain = gguf_writer::target(&tiny, |_, cols| if divides(cols) { Encoding::Ggml(kind) } else { bf16 });
    for tensor in plain.tensors.iter_mut().filter(|t| t.kind == 40) {
        // No scale is subnormal.
        let blocks = tensor.data.chunks_exact_mut(kind.block_bytes());
        blocks.for_each(|block| block[..4].iter_mut().for_each(|scale| *scale = (*scale).max(8)));
    }
    let (mut four_times, mut with_scales) = (plain.clone(), plain.clone());
    let names: Vec<String> = plain.tensors.iter().filter(|t| t.kind == 40).map(|t| t.name.clone()).collect();
    assert!(names.len() > 40, "{}", names.len());
    for name in &names {
        // Two more in the exponent of e4m3.
        for block in four_times.entry(name).data.chunks_exact_mut(kind.block_bytes()) {
            block[..4].iter_mut().for_each(|scale| *scale += 16);
        }
        let stem = name.strip_suffix(".weight").unwrap();
        with_scales.tensor(&format!("{stem}.scale"), &[1], Encoding::Dense(FloatType::F32), &[4.0]);
        with_scales.tensor(&format!("{stem}.input_scale"), &[1], Encoding::Dense(FloatType::F32), &[0.3]);
    }
    let ids: Vec<u32> = (3..20).map(|i| i * 17).collect();
    for activations in [ActivationType::Auto, ActivationType::F32] {
        let b = CpuBackend::new(CpuOptions { activations, ..CpuOptions::default() }).unwrap();
        let of = |file: &Gguf| {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("x.gguf"), file.bytes()).unwrap();
            let tower = tower(&b, &Source::Path(dir.path().join("x.gguf")));
            bits(&logits(&b, &tower, &ids, ids.len(), KvTypes::both(KvType::F32)))
        };
        let expected = of(&four_times);
        assert!(of(&with_scales) == expected && of(&plain) != expected, "{activations}");
    }
}

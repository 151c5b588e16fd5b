//! One model in several containers: the same tokens.

use crate::gguf_writer;
use crate::support::{Pair, fresh, greedy, load, path, request};
use crate::tokenizer::nano;
use glimmer_checkpoint::open;
use glimmer_encoding::{Encoding, FloatType};
use glimmer_engine::chat::message::Message;
use glimmer_engine::{Engine, EngineOptions, KvType, Source};
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

//! The published vocabulary, whose merges are those of Llama 4: `GLIMMER_REAL_TOKENIZER=DIR` fetches them from PyPI into a directory,
//! leaves `tokenizer.json` there, and compares ids with published ones, through that file and through the metadata of a GGUF file.

use crate::gguf_writer::{Gguf, Meta, vocabulary};
use crate::tokenizer::segments_of;
use glimmer_checkpoint::open;
use glimmer_checkpoint::tokenizer::{Role, Vocabulary};
use glimmer_encoding::{Encoding, FloatType};
use glimmer_engine::tokenizer::Tokenizer;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const PACKAGE: &str = "llama-models==0.3.0";
const ORDINARY: usize = 200_000;
const ALL: usize = 202_048;
const NAMED: [(usize, &str); 14] = [
    (200_000, "<|begin_of_text|>"),
    (200_001, "<|end_of_text|>"),
    (200_007, "<|eom|>"),
    (200_008, "<|eot|>"),
    (200_018, "<|finetune_right_pad|>"),
    (200_022, "<|start|>"),
    (200_023, "<|message|>"),
    (200_080, "<|image_start|>"),
    (200_081, "<|image_end|>"),
    (200_082, "<|vid_start|>"),
    (200_083, "<|vid_end|>"),
    (200_087, "<|vid_frame_separator|>"),
    (200_091, "<|video|>"),
    (200_092, "<|patch|>"),
];

const PROMPT: &str = "<|begin_of_text|><|start|>system<|message|>You are terse.\n\nReasoning strength: high.\n\n# Valid recipients: \
                      \"self\", \"user\".<|eot|><|start|>user<|message|>What is 17 times 23?<|eot|><|start|>assistant";
const VECTORS: [(&str, &[u32]); 5] = [
    (
        PROMPT,
        &[
            200000, 200022, 15651, 200023, 4662, 583, 260, 6201, 1574, 34956, 300, 9762, 38, 2244, 1574, 15, 14757,
            73965, 38, 392, 2540, 706, 392, 1556, 4205, 200008, 200022, 1556, 200023, 3668, 373, 220, 1087, 4332, 220,
            1504, 43, 200008, 200022, 140680,
        ],
    ),
    (" to=self<|message|>", &[328, 19669, 200023]),
    (" to=user<|message|>", &[328, 76976, 200023]),
    ("<|eom|><|start|>assistant to=user<|message|>", &[200007, 200022, 140680, 328, 76976, 200023]),
    ("The capital of France is", &[954, 7963, 323, 11698, 373]),
];

#[test]
fn the_published_vocabulary_gives_the_published_ids() {
    let Some(dir) = std::env::var_os("GLIMMER_REAL_TOKENIZER").map(PathBuf::from) else { return };
    let ranks = ranks(&fetch(&dir));
    assert_eq!(ranks.len(), ORDINARY);
    let json = published(&ranks).to_json();
    std::fs::write(dir.join("tokenizer.json"), &json).unwrap();
    let tokenizer = Tokenizer::from_json(&json, "tokenizer.json").unwrap();

    let mut file = Gguf::new("muse-glimmer");
    vocabulary(&mut file, &serde_json::from_slice(&json).unwrap());
    file.set("tokenizer.ggml.bos_token_id", Meta::U32(ORDINARY as u32));
    file.set("muse-glimmer.block_count", Meta::U32(1));
    file.set("muse-glimmer.attention.key_length", Meta::U32(2));
    for part in ["attn_q_norm", "attn_k_norm"] {
        file.tensor(&format!("blk.0.{part}.weight"), &[2], Encoding::Dense(FloatType::F32), &[1.0; 2]);
    }
    file.tensor("output_norm.weight", &[2], Encoding::Dense(FloatType::F32), &[1.0; 2]);
    let path = dir.join("x.gguf");
    std::fs::write(&path, file.bytes()).unwrap();
    let bytes = open(&path).unwrap().file("tokenizer.json").unwrap().unwrap();
    let through_gguf = Tokenizer::from_json(&bytes, "x.gguf").unwrap();

    for tokenizer in [&tokenizer, &through_gguf] {
        assert_eq!(tokenizer.vocab_size(), ALL);
        assert_eq!(tokenizer.raw_prefix(), [ORDINARY as u32]);
        for (text, ids) in VECTORS {
            assert_eq!(tokenizer.encode_segments(&segments_of(tokenizer, text)).unwrap(), ids, "{text}");
            assert_eq!(tokenizer.decode_with_specials(ids).unwrap(), text);
        }
        for (word, id) in [("low", 4463), ("medium", 13670), ("high", 2244)] {
            assert_eq!(tokenizer.encode(&format!(" {word}")).unwrap(), [id], "{word}");
        }
    }
    // Any text, the same through both.
    let text = include_str!("real_tokenizer.rs");
    assert_eq!(tokenizer.encode(text).unwrap(), through_gguf.encode(text).unwrap());
    assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap()).unwrap(), text);
}

/// The file of merges: lines of a token in base64 and its rank.
fn fetch(dir: &Path) -> String {
    let python = |args: &[&str]| {
        let run = Command::new("python3").args(args).current_dir(dir).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    };
    python(&["-m", "pip", "download", "-q", "--no-deps", PACKAGE]);
    let wheel = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    python(&["-m", "zipfile", "-e", wheel.unwrap().to_str().unwrap(), "."]);
    std::fs::read_to_string(dir.join("llama_models/llama4/tokenizer.model")).unwrap()
}

/// Tokens by rank.
fn ranks(file: &str) -> Vec<Vec<u8>> {
    let lines = file.lines().filter_map(|line| line.split_once(' ')).enumerate();
    lines
        .map(|(i, (token, rank))| {
            assert_eq!(rank.parse::<usize>().unwrap(), i);
            base64(token)
        })
        .collect()
}

fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut out, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for byte in text.bytes().filter(|&byte| byte != b'=') {
        bits = bits << 6 | DIGITS.iter().position(|&digit| digit == byte).unwrap() as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    out
}

fn published(ranks: &[Vec<u8>]) -> Vocabulary {
    let by_token: HashMap<&[u8], usize> = ranks.iter().enumerate().map(|(rank, token)| (&token[..], rank)).collect();
    let merges = ranks.iter().enumerate().filter(|(_, token)| token.len() > 1).filter_map(|(rank, token)| {
        let [left, right] = &parts(token, rank, &by_token)[..] else { return None };
        Some([printable(left), printable(right)])
    });
    let special = |id: usize| match NAMED.iter().find(|(named, _)| *named == id) {
        Some((_, name)) => name.to_string(),
        None => format!("<|reserved_special_token_{}|>", id - ORDINARY),
    };
    let ordinary = ranks.iter().map(|token| (printable(token), Role::Ordinary));
    let specials = (ORDINARY..ALL).map(|id| (special(id), Role::Control));
    Vocabulary {
        merges: merges.collect(),
        tokens: ordinary.chain(specials).collect(),
        prefix: Some(ORDINARY as u32),
        ignore_merges: true,
    }
}

/// What a token is merged from: its bytes, merged by the ranks below its own.
fn parts<'a>(token: &'a [u8], below: usize, ranks: &HashMap<&[u8], usize>) -> Vec<&'a [u8]> {
    let mut ends: Vec<usize> = (0..=token.len()).collect();
    loop {
        let merged = |i: usize| ranks.get(&token[ends[i]..ends[i + 2]]).copied().filter(|&rank| rank < below);
        let best = (0..ends.len().saturating_sub(2)).filter_map(|i| Some((merged(i)?, i))).min();
        match best {
            Some((_, i)) => drop(ends.remove(i + 1)),
            None => return ends.windows(2).map(|pair| &token[pair[0]..pair[1]]).collect(),
        }
    }
}

/// Bytes as byte-level vocabularies print them.
fn printable(bytes: &[u8]) -> String {
    let plain = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let shown = |&byte: &u8| match plain(byte) {
        true => char::from(byte),
        false => char::from_u32(0x100 + (0..byte).filter(|&b| !plain(b)).count() as u32).unwrap(),
    };
    bytes.iter().map(shown).collect()
}

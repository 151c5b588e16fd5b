//! A byte-level BPE vocabulary, and the `tokenizer.json` that says the same.

use serde_json::{Value, json};
use std::collections::HashSet;

/// How Muse-Glimmer (and Llama 4) split text before merging.
pub const SPLIT_PATTERN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// The tokens of Muse-Glimmer's kind of tokenizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vocabulary {
    /// By id: the text, byte by byte in printable characters where it is ordinary, and what it is.
    pub tokens: Vec<(String, Role)>,
    /// Pairs that become one token, the first first.
    pub merges: Vec<[String; 2]>,
    /// The token in front of a document.
    pub prefix: Option<u32>,
    /// Whether text that is a token is never split, whatever the merges say.
    pub ignore_merges: bool,
}

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Made by merges.
    Ordinary,
    /// Found in text before it is split.
    Added,
    /// Never found in text.
    Control,
    /// An id without a token.
    Unused,
}

impl Vocabulary {
    /// The first text that two ids have.
    pub fn twice(&self) -> Option<&str> {
        let mut seen = HashSet::new();
        let used = self.tokens.iter().filter(|(_, role)| *role != Role::Unused);
        used.map(|(text, _)| text.as_str()).find(|text| !seen.insert(*text))
    }

    /// The bytes of a `tokenizer.json`.
    pub fn to_json(&self) -> Vec<u8> {
        let added = self.tokens.iter().enumerate().filter(|(_, (_, role))| matches!(role, Role::Added | Role::Control));
        let added: Value = added
            .map(|(id, (content, role))| {
                json!({
                    "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": *role == Role::Control,
                })
            })
            .collect();
        let ordinary = self.tokens.iter().enumerate().filter(|(_, (_, role))| *role == Role::Ordinary);
        let vocab: serde_json::Map<String, Value> = ordinary.map(|(id, (text, _))| (text.clone(), id.into())).collect();
        let post_processor =
            self.prefix.and_then(|id| Some((id, &self.tokens.get(id as usize)?.0))).map(|(id, text)| {
                json!({
                    "type": "TemplateProcessing",
                    "single": [
                        { "SpecialToken": { "id": text, "type_id": 0 } },
                        { "Sequence": { "id": "A", "type_id": 0 } },
                    ],
                    "pair": [
                        { "Sequence": { "id": "A", "type_id": 0 } },
                        { "Sequence": { "id": "B", "type_id": 1 } },
                    ],
                    "special_tokens": { text: { "id": text, "ids": [id], "tokens": [text] } },
                })
            });
        let all = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": null,
            "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
                { "type": "Split", "pattern": { "Regex": SPLIT_PATTERN }, "behavior": "Isolated", "invert": false },
                { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false },
            ]},
            "post_processor": post_processor,
            "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": self.ignore_merges,
                "vocab": vocab,
                "merges": self.merges,
            },
        });
        all.to_string().into_bytes()
    }
}

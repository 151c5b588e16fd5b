//! A byte-level BPE vocabulary, and the `tokenizer.json` that says the same.

use crate::Fields;
use crate::error::{Error, brief};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashSet};

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

    /// What a `tokenizer.json` of this kind has, by `file`'s name in messages; ids that it leaves out are unused.
    ///
    /// # Errors
    /// [`Error::Malformed`] where a part is not what it has to be, [`Error::Unsupported`] for another kind of tokenizer.
    pub fn from_json(file: &str, bytes: &[u8]) -> Result<Self, Error> {
        // Not within the bounds of other documents: a vocabulary has hundreds of thousands of values.
        let all: Map<String, Value> = serde_json::from_slice(bytes).map_err(|error| Error::Malformed {
            file: file.into(),
            what: "tokenizer".into(),
            expected: "a JSON object".into(),
            found: format!("an error: {}", brief(&error.to_string())),
        })?;
        let all = Fields::new(file, &all);
        let kind =
            |what: &str| Error::Unsupported { file: file.into(), what: format!("{what}, as Muse-Glimmer's has") };
        let model = all.object("model")?.ok_or_else(|| all.invalid("model", "an object"))?;
        if model.opt_str("type")? != Some("BPE") {
            return Err(kind("expected a tokenizer of merges, of type BPE"));
        }
        let splits = all.get("pre_tokenizer").and_then(|value| value["pretokenizers"].as_array());
        if splits.and_then(|list| list.first()?["pattern"]["Regex"].as_str()) != Some(SPLIT_PATTERN) {
            return Err(kind("expected text to be split by the pattern of Llama 4"));
        }
        let malformed = |what: String, expected: &str, found: &Value| Error::Malformed {
            file: file.into(),
            what,
            expected: expected.into(),
            found: brief(&found.to_string()),
        };
        let vocab = model.get("vocab").and_then(Value::as_object);
        let mut tokens = BTreeMap::new();
        for (text, id) in vocab.ok_or_else(|| model.invalid("vocab", "an object of tokens and ids"))? {
            let found = id.as_u64().filter(|&id| id < MAX_TOKENS);
            let what = || format!("the id of token `{}`", brief(text));
            let id = found.ok_or_else(|| malformed(what(), "a small whole number", id))?;
            tokens.insert(id, (text.clone(), Role::Ordinary));
        }
        for added in all.get("added_tokens").and_then(Value::as_array).into_iter().flatten() {
            let id = added["id"].as_u64().filter(|&id| id < MAX_TOKENS);
            let (Some(id), Some(text)) = (id, added["content"].as_str()) else {
                return Err(malformed("`added_tokens`".into(), "objects with `id` and `content`", added));
            };
            let role = if added["special"] == Value::Bool(true) { Role::Control } else { Role::Added };
            tokens.insert(id, (text.into(), role));
        }
        let count = tokens.last_key_value().map_or(0, |(last, _)| last + 1);
        let merge = |pair: &Value| {
            let halves = match pair {
                Value::String(pair) => pair.split_once(' ').map(|(left, right)| [left.into(), right.into()]),
                pair => {
                    Option::zip(pair[0].as_str(), pair[1].as_str()).map(|(left, right)| [left.into(), right.into()])
                }
            };
            halves.ok_or_else(|| malformed("`merges`".into(), "pairs of tokens", pair))
        };
        let merges = model.get("merges").and_then(Value::as_array);
        let merges = merges.ok_or_else(|| model.invalid("merges", "a list"))?;
        let (prefix, ignore_merges) = (prefix(all.get("post_processor")), model.opt_bool("ignore_merges")?);
        Ok(Self {
            tokens: (0..count).map(|id| tokens.remove(&id).unwrap_or_else(|| unused(id as usize))).collect(),
            merges: merges.iter().map(merge).collect::<Result<_, _>>()?,
            prefix: prefix.and_then(|id| u32::try_from(id).ok()).filter(|&id| u64::from(id) < count),
            ignore_merges: ignore_merges.unwrap_or(false),
        })
    }

    /// With unused ids up to `count`.
    pub fn padded(mut self, count: usize) -> Self {
        self.tokens.extend((self.tokens.len()..count).map(unused));
        self
    }

    /// The id of the token that is this text.
    pub fn id(&self, text: &str) -> Option<u32> {
        let used = |(token, role): &(String, Role)| token == text && *role != Role::Unused;
        self.tokens.iter().position(used).map(|id| id as u32)
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

/// Far above any vocabulary.
const MAX_TOKENS: u64 = 1 << 20;

/// As llama.cpp's converter calls it.
fn unused(id: usize) -> (String, Role) {
    (format!("[PAD{id}]"), Role::Unused)
}

/// The token that a template puts in front of a document: the template itself, or one of a sequence.
fn prefix(processor: Option<&Value>) -> Option<u64> {
    let processor = processor?;
    if let Some(list) = processor["processors"].as_array() {
        return list.iter().find_map(|processor| prefix(Some(processor)));
    }
    let token = processor["single"].as_array()?.first()?["SpecialToken"]["id"].as_str()?;
    processor["special_tokens"][token]["ids"].as_array()?.first()?.as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vocabulary_survives_a_round_trip() {
        let token = |text: &str, role| (text.to_string(), role);
        let vocabulary = Vocabulary {
            tokens: vec![
                token("a", Role::Ordinary),
                token("b", Role::Ordinary),
                token("ab", Role::Ordinary),
                unused(3),
                token("<x>", Role::Added),
                token("<s>", Role::Control),
            ],
            merges: vec![["a".into(), "b".into()]],
            prefix: Some(5),
            ignore_merges: true,
        };
        let bytes = vocabulary.to_json();
        assert_eq!(Vocabulary::from_json("tokenizer.json", &bytes).unwrap(), vocabulary);
        assert_eq!((vocabulary.id("ab"), vocabulary.id("[PAD3]")), (Some(2), None));
        let other = String::from_utf8(bytes).unwrap().replace("BPE", "Unigram");
        let error = Vocabulary::from_json("tokenizer.json", other.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("BPE"), "{error}");
    }
}

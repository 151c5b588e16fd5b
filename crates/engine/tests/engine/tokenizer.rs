//! The tokenizer against nano's files, and against what breaks tokenizers.

use glimmer_engine::tokenizer::{Detokenizer, Segment, Specials, Tokenizer, TokenizerError};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

pub fn nano_bytes(file: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../nano").join(file);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub fn nano() -> Arc<Tokenizer> {
    static NANO: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    let read = || {
        let tokenizer = Tokenizer::from_json(&nano_bytes("target/tokenizer.json"), "tokenizer.json").unwrap();
        let config = nano_bytes("target/tokenizer_config.json");
        Arc::new(tokenizer.with_config(&config, "tokenizer_config.json").unwrap())
    };
    Arc::clone(NANO.get_or_init(read))
}

pub fn nano_cases() -> Vec<(String, Value)> {
    let expected: Value = serde_json::from_slice(&nano_bytes("nano_expected.json")).unwrap();
    let cases = expected["cases"].as_object().unwrap();
    cases.iter().map(|(name, case)| (name.clone(), case.clone())).collect()
}

pub fn ids_of(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// A prompt written as one string, its special literals being control tokens.
pub fn segments_of(tokenizer: &Tokenizer, text: &str) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let special =
            tokenizer.specials().filter(|(literal, _)| rest.starts_with(literal)).max_by_key(|(l, _)| l.len());
        match special {
            Some((literal, id)) => {
                if !plain.is_empty() {
                    segments.push(Segment::Text(std::mem::take(&mut plain)));
                }
                segments.push(Segment::Control(id));
                rest = &rest[literal.len()..];
            }
            None => {
                plain.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    if !plain.is_empty() {
        segments.push(Segment::Text(plain));
    }
    segments
}

/// Small and repeatable; quality does not matter here.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % bound
    }
}

#[test]
fn text_is_split_as_the_model_was_trained() {
    let tokenizer = nano();
    for (text, pieces) in [
        ("नमस्ते दुनिया", &["नमस्ते", " दुनिया"][..]),
        ("ภาษาไทยน้ำใจ", &["ภาษาไทยน้ำใจ"]),
        ("مُحَمَّد رسول", &["مُحَمَّد", " رسول"]),
        ("HELLOWorld it's CAN'T", &["HELLOWorld", " it's", " CAN'T"]),
        ("12345 x  \n\n  y", &["123", "45", " x", "  \n\n", " ", " y"]),
        ("// a\n/b", &["//", " a", "\n", "/b"]),
        ("e\u{301}cole", &["e\u{301}cole"]),
        ("", &[]),
    ] {
        assert_eq!(tokenizer.pieces(text).unwrap(), pieces, "{text:?}");
    }
}

#[test]
fn special_literals_in_text_are_text() {
    let tokenizer = nano();
    let literals: Vec<&str> = tokenizer.specials().map(|(literal, _)| literal).collect();
    assert_eq!(literals.len(), 48);
    for text in [literals.concat(), literals.join(" "), literals.join("\n"), format!("a{}b", literals.join("é"))] {
        let ids = tokenizer.encode(&text).unwrap();
        assert!(!ids.iter().any(|&id| tokenizer.is_special(id)));
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
        assert_eq!(tokenizer.decode_with_specials(&ids).unwrap(), text);
    }
    for literal in literals {
        let id = tokenizer.special_id(literal).unwrap();
        assert!(tokenizer.is_special(id));
        assert_eq!(tokenizer.token_bytes(id).unwrap(), literal.as_bytes());
        assert_eq!(tokenizer.decode(&[id]).unwrap(), "");
        assert_eq!(tokenizer.decode_with_specials(&[id]).unwrap(), literal);
    }
}

#[test]
fn nano_prompts_and_answers_have_the_reference_ids() {
    let tokenizer = nano();
    let bos = tokenizer.special_id("<|begin_of_text|>").unwrap();
    assert_eq!(tokenizer.raw_prefix(), [bos]);
    let cases = nano_cases();
    assert!(cases.len() >= 5);
    for (name, case) in cases {
        let prompt = case["prompt"].as_str().unwrap();
        let ids = tokenizer.encode_segments(&segments_of(&tokenizer, prompt)).unwrap();
        assert_eq!(ids, ids_of(&case["prompt_ids"]), "{name}");
        assert_eq!(tokenizer.decode_with_specials(&ids).unwrap(), prompt, "{name}");
        if let Some(text) = prompt.strip_prefix("<|begin_of_text|>").filter(|text| !text.contains("<|")) {
            assert_eq!(tokenizer.encode_raw(text).unwrap(), ids, "{name}");
        }
        let greedy = ids_of(&case["greedy_ids"]);
        assert_eq!(tokenizer.decode_with_specials(&greedy).unwrap(), case["greedy_text"].as_str().unwrap(), "{name}");
    }
}

/// Whole text by the standard library: each stretch between control tokens decoded by itself, and an incomplete
/// character at the very end left out.
fn oracle(tokenizer: &Tokenizer, ids: &[u32], keep: bool) -> String {
    let mut text = String::new();
    let mut stretch = Vec::new();
    for &id in ids {
        let bytes = tokenizer.token_bytes(id).unwrap();
        if tokenizer.is_special(id) {
            text += &String::from_utf8_lossy(&stretch);
            stretch.clear();
            text += if keep { std::str::from_utf8(bytes).unwrap() } else { "" };
        } else {
            stretch.extend_from_slice(bytes);
        }
    }
    for tail in (1..=3.min(stretch.len())).rev() {
        let end = &stretch[stretch.len() - tail..];
        let is_char = |rest: &[u8]| {
            let bytes = [end, rest].concat();
            std::str::from_utf8(&bytes).is_ok_and(|text| text.chars().count() == 1)
        };
        if (0x80..=0xBF).any(|b| is_char(&[b]) || is_char(&[b, 0x80]) || is_char(&[b, 0x80, 0x80])) {
            stretch.truncate(stretch.len() - tail);
            break;
        }
    }
    text + &String::from_utf8_lossy(&stretch)
}

#[test]
fn streaming_is_the_whole() {
    let tokenizer = nano();
    let by_bytes = |wanted: &dyn Fn(&[u8]) -> bool| -> Vec<u32> {
        let ids = 0..tokenizer.vocab_size() as u32;
        ids.filter(|&id| !tokenizer.is_special(id) && tokenizer.token_bytes(id).is_some_and(wanted)).collect()
    };
    let mut lone = by_bytes(&|bytes| bytes.len() == 1 && bytes[0] >= 0x80);
    lone.sort_by_key(|&id| tokenizer.token_bytes(id).map(<[u8]>::to_vec));
    let any = by_bytes(&|_| true);
    let special: Vec<u32> = tokenizer.specials().map(|(_, id)| id).collect();
    assert_eq!(lone.len(), 128);
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let mut ids = Vec::new();
        for _ in 0..1 + random.below(60) {
            match random.below(8) {
                0 => ids.push(special[random.below(special.len())]),
                1 | 2 => ids.push(any[random.below(any.len())]),
                3 => {
                    let c = char::from_u32(0x80 + random.below(0x1_0000) as u32).unwrap_or('é');
                    ids.extend(c.to_string().bytes().map(|b| lone[usize::from(b) - 0x80]));
                }
                4 => ids.extend("🦀".bytes().take(1 + random.below(4)).map(|b| lone[usize::from(b) - 0x80])),
                _ => ids.push(lone[random.below(lone.len())]),
            }
        }
        for (specials, whole) in [
            (Specials::Drop, tokenizer.decode(&ids).unwrap()),
            (Specials::Keep, tokenizer.decode_with_specials(&ids).unwrap()),
        ] {
            let mut detokenizer = Detokenizer::new(Arc::clone(&tokenizer), specials);
            let streamed: String = ids.iter().map(|&id| detokenizer.push(id).unwrap().to_string()).collect();
            assert_eq!(streamed, whole, "{seed} {specials:?}");
            assert_eq!(whole, oracle(&tokenizer, &ids, specials == Specials::Keep), "{seed} {specials:?}");
        }
    }
}

#[test]
fn a_character_comes_when_it_is_complete() {
    let tokenizer = nano();
    let byte = |b: u8| (0..tokenizer.vocab_size() as u32).find(|&id| tokenizer.token_bytes(id) == Some(&[b])).unwrap();
    let eot = tokenizer.special_id("<|eot|>").unwrap();
    let mut detokenizer = Detokenizer::new(Arc::clone(&tokenizer), Specials::Keep);
    let crab: Vec<u32> = "🦀".bytes().map(byte).collect();
    let steps: Vec<(u32, &str)> = vec![
        (crab[0], ""),
        (crab[1], ""),
        (crab[2], ""),
        (crab[3], "🦀"),
        (crab[0], ""),
        (byte(b'a'), "\u{FFFD}a"),
        (crab[1], "\u{FFFD}"),
        (crab[0], ""),
        (crab[1], ""),
        (eot, "\u{FFFD}<|eot|>"),
        (crab[0], ""),
    ];
    for (id, text) in &steps {
        assert_eq!(detokenizer.push(*id).unwrap(), *text);
    }
    let ids: Vec<u32> = steps.iter().map(|(id, _)| *id).collect();
    assert_eq!(tokenizer.decode(&ids).unwrap(), "🦀\u{FFFD}a\u{FFFD}\u{FFFD}");
}

#[test]
fn an_id_that_no_token_has_is_an_error() {
    let tokenizer = nano();
    let size = tokenizer.vocab_size() as u32;
    assert_eq!(size, 2048);
    for id in [size, 200_000, u32::MAX] {
        let error = TokenizerError::UnknownId { label: "tokenizer.json".into(), id };
        assert_eq!(tokenizer.decode(&[0, id]), Err(error.clone()));
        assert_eq!(tokenizer.decode_with_specials(&[id]), Err(error.clone()));
        assert_eq!(Detokenizer::new(Arc::clone(&tokenizer), Specials::Drop).push(id), Err(error));
        assert_eq!(tokenizer.token_bytes(id), None);
        assert!(!tokenizer.is_special(id));
    }
    assert_eq!(tokenizer.check_fits(2048), Ok(()));
    let error = tokenizer.check_fits(2047).unwrap_err().to_string();
    assert_eq!(error, "tokenizer.json: token ids run up to 2047, but the model has a vocabulary of 2047");
}

#[test]
fn long_texts_take_linear_time() {
    let tokenizer = nano();
    let start = Instant::now();
    let mixed = "fn main() { println!(\"नमस्ते {}\", 12345); }\n\n    // it's été\t…\n".repeat(15_000);
    assert!(mixed.len() > 1_000_000);
    let ids = tokenizer.encode(&mixed).unwrap();
    assert_eq!(tokenizer.decode(&ids).unwrap(), mixed);
    for c in [" ", "a", "A", "ก", "\n", "!", "1", "\u{301}", "\t", "aA", " \n", "/\n"] {
        let text = c.repeat(300_000);
        let ids = tokenizer.encode(&text).unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), text, "{c:?}");
    }
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

#[test]
fn long_runs_of_blanks_are_split_like_short_ones() {
    let tokenizer = nano();
    // The library alone is right while the run is not too long for its regex engine.
    let library = tokenizers::Tokenizer::from_bytes(nano_bytes("target/tokenizer.json")).unwrap();
    let pieces = |text: &str| {
        let mut split = PreTokenizedString::from(text);
        library.get_pre_tokenizer().unwrap().pre_tokenize(&mut split).unwrap();
        let splits = split.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.iter().map(|(_, (start, end), _)| text[*start..*end].to_string()).collect::<Vec<_>>()
    };
    let blanks = [" ".repeat(100_001), "\t\u{3000}".repeat(51_000)];
    for before in ["", "a", "1", "!", "\n", "/\n", "!\n", " \n"] {
        for after in ["", "b c", "1 c", "!/ c", "/\n", "\n x", "\r\nx", "\n/x", "é"] {
            for blank in &blanks {
                let text = format!("x {before}{blank}{after} y");
                assert!(tokenizer.pieces(&text).unwrap() == pieces(&text), "{before:?} {after:?}");
            }
        }
    }
    let text = format!("x{}y z", blanks.concat());
    assert_eq!(tokenizer.encode(&text).unwrap(), library.encode_fast(text, false).unwrap().get_ids());
    let text = format!("x{}y z", " ".repeat(1_200_000));
    let lengths: Vec<usize> = tokenizer.pieces(&text).unwrap().iter().map(String::len).collect();
    assert_eq!(lengths, [1, 1_199_999, 2, 2]);
}

#[test]
fn a_file_that_is_no_byte_level_bpe_is_refused() {
    let good: Value = serde_json::from_slice(&nano_bytes("target/tokenizer.json")).unwrap();
    type Edit = fn(&mut Value);
    let cases: &[(&str, Edit)] = &[
        ("model type `WordPiece` is not supported", |v| v["model"]["type"] = json!("WordPiece")),
        ("model type `none` is not supported", |v| {
            v["model"].as_object_mut().unwrap().remove("type");
        }),
        ("there is no `model`", |v| v["model"] = Value::Null),
        ("there is no `vocab`", |v| {
            v["model"].as_object_mut().unwrap().remove("vocab");
        }),
        ("there is no `merges`", |v| v["model"]["merges"] = json!(7)),
        ("has no token for the byte 0x61", |v| {
            v["model"]["vocab"].as_object_mut().unwrap().remove("a");
        }),
        ("is not of tokens in `vocab`", |v| v["model"]["merges"][0] = json!(["a", "no such token at all, and long"])),
        ("is not a pair", |v| v["model"]["merges"][0] = json!("a")),
        ("is not a pair", |v| v["model"]["merges"][0] = json!(["a", 1])),
        ("token `a` has the id -1", |v| v["model"]["vocab"]["a"] = json!(-1)),
        ("token `a` has the id 4294967296", |v| v["model"]["vocab"]["a"] = json!(4_294_967_296_u64)),
        ("token `a` has the id 4294967295", |v| v["model"]["vocab"]["a"] = json!(u32::MAX)),
        ("the id 66 is given twice", |v| v["model"]["vocab"]["a"] = v["model"]["vocab"]["c"].clone()),
        ("is not byte-level", |v| v["model"]["vocab"]["漢"] = json!(2048)),
        ("dropout `0.1` is not supported", |v| v["model"]["dropout"] = json!(0.1)),
        ("byte_fallback `true` is not supported", |v| v["model"]["byte_fallback"] = json!(true)),
        ("continuing_subword_prefix `\"##\"`", |v| v["model"]["continuing_subword_prefix"] = json!("##")),
        ("decoder `Metaspace` is not supported", |v| v["decoder"]["type"] = json!("Metaspace")),
        ("decoder `WordPiece` is not supported", |v| {
            v["decoder"] = json!({"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "WordPiece"}]})
        }),
        ("decoder `none` is not supported", |v| v["decoder"] = Value::Null),
        ("pre-tokenizer `Whitespace` is not supported", |v| v["pre_tokenizer"] = json!({"type": "Whitespace"})),
        ("pre-tokenizer `none` is not supported", |v| v["pre_tokenizer"] = Value::Null),
        ("`add_prefix_space` is not supported", |v| {
            v["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = json!(true)
        }),
        ("pre-tokenizer `Unheard` is not supported", |v| {
            v["pre_tokenizer"]["pretokenizers"][0]["type"] = json!("Unheard")
        }),
        ("Parsing error", |v| v["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!("(a")),
        ("normalizer `NFC` is not supported", |v| v["normalizer"] = json!({"type": "NFC"})),
        ("post-processor `BertProcessing` is not supported", |v| {
            v["post_processor"] = json!({"type": "BertProcessing", "sep": ["a", 1], "cls": ["b", 2]})
        }),
        ("post-processor lacks `<|x|>`", |v| {
            v["post_processor"]["processors"][1]["single"][0]["SpecialToken"]["id"] = json!("<|x|>")
        }),
        ("token after the text `<|begin_of_text|>`", |v| {
            v["post_processor"]["processors"][1]["single"].as_array_mut().unwrap().reverse()
        }),
        ("the id 66 is given twice", |v| v["added_tokens"][8]["id"] = json!(66)),
        ("an added token has no `content`", |v| v["added_tokens"][8]["content"] = json!("")),
        ("`added_tokens` is not a list", |v| v["added_tokens"] = json!({})),
    ];
    let check = |bytes: &[u8], expected: &str| {
        let Err(error) = Tokenizer::from_json(bytes, "dir/tokenizer.json") else { panic!("accepted: {expected}") };
        let error = error.to_string();
        assert!(error.starts_with("dir/tokenizer.json: ") && error.contains(expected), "{error}\nexpected: {expected}");
        assert!(!error.contains('\n'), "{error}");
    };
    for (expected, edit) in cases {
        let mut bad = good.clone();
        edit(&mut bad);
        check(&serde_json::to_vec(&bad).unwrap(), expected);
    }
    let bytes = serde_json::to_vec(&good).unwrap();
    check(b"", "not JSON");
    check(b"[]", "not a JSON object");
    check(b"\xFF\xFE", "not JSON");
    for cut in [1, bytes.len() / 3, bytes.len() - 1] {
        check(&bytes[..cut], "not JSON");
    }
}

#[test]
fn added_tokens_have_the_ids_that_the_file_says() {
    let mut value: Value = serde_json::from_slice(&nano_bytes("target/tokenizer.json")).unwrap();
    let added = value["added_tokens"].as_array_mut().unwrap();
    added.retain(|token| ["<|eot|>", "<|image|>", "<|begin_of_text|>"].contains(&token["content"].as_str().unwrap()));
    added[1]["id"] = json!(3000);
    added[2]["special"] = json!(false);
    let tokenizer = Tokenizer::from_json(&serde_json::to_vec(&value).unwrap(), "tokenizer.json").unwrap();
    assert_eq!((tokenizer.special_id("<|eot|>"), tokenizer.vocab_size()), (Some(3000), 3001));
    // An added token that is not special is part of ordinary text.
    let ids = tokenizer.encode("a<|image|>b<|eot|>").unwrap();
    assert!(ids.contains(&2040) && !ids.contains(&3000));
    assert_eq!(tokenizer.decode(&ids).unwrap(), "a<|image|>b<|eot|>");
    assert_eq!(tokenizer.token_bytes(2999), None);
    assert!(tokenizer.decode(&[2999]).is_err());
}

#[test]
fn both_spellings_of_merges_are_read() {
    let mut value: Value = serde_json::from_slice(&nano_bytes("target/tokenizer.json")).unwrap();
    let tokenizer = nano();
    for merge in value["model"]["merges"].as_array_mut().unwrap() {
        if let Value::Array(pair) = merge {
            *merge = json!(format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()));
        }
    }
    let other = Tokenizer::from_json(&serde_json::to_vec(&value).unwrap(), "tokenizer.json").unwrap();
    let text = "The capital of France is Paris.\n    return [x for x in range(10)]";
    assert_eq!(other.encode(text).unwrap(), tokenizer.encode(text).unwrap());
}

#[test]
fn bos_of_a_raw_prompt() {
    let mut value: Value = serde_json::from_slice(&nano_bytes("target/tokenizer.json")).unwrap();
    value["post_processor"] = Value::Null;
    let read = |config: &str| {
        let tokenizer = Tokenizer::from_json(&serde_json::to_vec(&value).unwrap(), "tokenizer.json").unwrap();
        tokenizer.with_config(config.as_bytes(), "tokenizer_config.json").map(|t| t.raw_prefix().to_vec())
    };
    assert_eq!(read("{}"), Ok(vec![]));
    assert_eq!(read(r#"{"bos_token": "<|begin_of_text|>"}"#), Ok(vec![]));
    assert_eq!(read(r#"{"bos_token": "<|begin_of_text|>", "add_bos_token": true}"#), Ok(vec![2000]));
    assert_eq!(read(r#"{"bos_token": {"content": "<|eot|>"}, "add_bos_token": true}"#), Ok(vec![2008]));
    let error = |config| read(config).unwrap_err().to_string();
    assert_eq!(
        error(r#"{"bos_token": "<s>", "add_bos_token": true}"#),
        "tokenizer.json: there is no special token `<s>`"
    );
    assert!(error(r#"{"add_bos_token": true}"#).contains("there is no `bos_token`"));
    assert!(error("{").starts_with("tokenizer_config.json: not JSON"));
}

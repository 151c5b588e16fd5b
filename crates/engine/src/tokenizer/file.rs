//! Reading `tokenizer.json` and `tokenizer_config.json`: everything that they say is honoured, or refused by name.

use super::{Token, Tokenizer, TokenizerError, one_line};
use glimmer_checkpoint::tokenizer::SPLIT_PATTERN;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;

/// Far above any vocabulary; keeps a damaged id from sizing the table.
const MAX_ID: u64 = 1 << 22;

/// Names under which `tokenizer_config.json` gives control tokens to templates.
const NAMED: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

pub(super) fn read(bytes: &[u8], label: String) -> Result<Tokenizer, TokenizerError> {
    let file = File { label: &label };
    let root = file.object(bytes)?;
    let model = root.get("model").and_then(Value::as_object).ok_or_else(|| file.malformed("there is no `model`"))?;
    file.check_model(model)?;
    if let Some(normalizer) = root.get("normalizer").filter(|v| !v.is_null()) {
        return Err(file.unsupported("normalizer", type_of(normalizer), "none"));
    }
    file.check_decoder(root.get("decoder").unwrap_or(&Value::Null))?;
    let known_pattern = file.check_pre_tokenizer(root.get("pre_tokenizer").unwrap_or(&Value::Null))?;

    let mut vocab = file.vocab(model)?;
    let added = file.added_tokens(root.get("added_tokens").unwrap_or(&Value::Null))?;
    let tokens = file.tokens(&vocab, &added)?;
    // The library looks for added tokens in text. It never hears of the special ones, and finds the ids of others in the
    // vocabulary instead of counting its own.
    for (id, token) in &added {
        if token.special {
            vocab.remove(&token.content);
        } else {
            vocab.insert(token.content.clone(), *id);
        }
    }
    let merges = file.merges(model, &vocab)?;
    let ignore_merges = model.get("ignore_merges").and_then(Value::as_bool).unwrap_or(false);
    let vocab: Vocab = vocab.into_iter().collect();
    let bpe = BPE::builder().vocab_and_merges(vocab, merges).ignore_merges(ignore_merges).build();
    let mut inner = tokenizers::Tokenizer::new(bpe.map_err(|e| file.malformed(e))?);
    let pre_tokenizer = root.get("pre_tokenizer").cloned().unwrap_or_default();
    let pre_tokenizer: PreTokenizerWrapper = serde_json::from_value(pre_tokenizer).map_err(|e| file.malformed(e))?;
    inner.with_pre_tokenizer(Some(pre_tokenizer));
    let findable = added.iter().filter(|(_, token)| !token.special).map(|(_, token)| token.clone());
    inner.add_tokens(findable).map_err(|e| file.malformed(e))?;

    let specials: BTreeMap<String, u32> =
        added.into_iter().filter(|(_, token)| token.special).map(|(id, token)| (token.content, id)).collect();
    let prefix = file.prefix(root.get("post_processor").unwrap_or(&Value::Null), tokens.len())?;
    Ok(Tokenizer { label, inner, tokens, specials, prefix, named: Vec::new(), known_pattern })
}

pub(super) fn read_config(tokenizer: &mut Tokenizer, bytes: &[u8], label: &str) -> Result<(), TokenizerError> {
    let file = File { label };
    let root = file.object(bytes)?;
    for name in NAMED {
        let value = root.get(name).unwrap_or(&Value::Null);
        if let Some(literal) = value.as_str().or_else(|| value.get("content").and_then(Value::as_str)) {
            tokenizer.named.push((name.to_string(), literal.to_string()));
        }
    }
    if tokenizer.prefix.is_empty() && root.get("add_bos_token") == Some(&Value::Bool(true)) {
        let bos = tokenizer.named.iter().find(|(name, _)| name == "bos_token");
        let (_, literal) = bos.ok_or_else(|| file.malformed("`add_bos_token` is set, but there is no `bos_token`"))?;
        tokenizer.prefix = vec![tokenizer.require_special(literal)?];
    }
    Ok(())
}

struct File<'a> {
    label: &'a str,
}

impl File<'_> {
    fn object(&self, bytes: &[u8]) -> Result<Map<String, Value>, TokenizerError> {
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(map)) => Ok(map),
            Ok(_) => Err(self.malformed("not a JSON object")),
            Err(error) => Err(self.malformed(format!("not JSON: {error}"))),
        }
    }

    fn check_model(&self, model: &Map<String, Value>) -> Result<(), TokenizerError> {
        match model.get("type").and_then(Value::as_str) {
            Some("BPE") => {}
            other => return Err(self.unsupported("model type", other.unwrap_or("none"), "BPE")),
        }
        // Each of these changes the ids or drops text when it is left out.
        for (part, neutral) in [
            ("dropout", Value::from(0.0)),
            ("byte_fallback", Value::from(false)),
            ("continuing_subword_prefix", Value::from("")),
            ("end_of_word_suffix", Value::from("")),
        ] {
            match model.get(part) {
                Some(value) if !value.is_null() && *value != neutral => {
                    return Err(self.unsupported(part, &value.to_string(), "none"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_decoder(&self, decoder: &Value) -> Result<(), TokenizerError> {
        let parts = parts_of(decoder, "decoders");
        match parts.iter().map(|part| type_of(part)).find(|&kind| kind != "ByteLevel") {
            None if !parts.is_empty() => Ok(()),
            other => Err(self.unsupported("decoder", other.unwrap_or("none"), "ByteLevel")),
        }
    }

    /// Whether this is exactly the known split; an error if it is not byte-level.
    fn check_pre_tokenizer(&self, pre_tokenizer: &Value) -> Result<bool, TokenizerError> {
        let parts = parts_of(pre_tokenizer, "pretokenizers");
        let Some((last, splits)) = parts.split_last().filter(|(last, _)| type_of(last) == "ByteLevel") else {
            let last = parts.last().map_or("none", |part| type_of(part));
            return Err(self.unsupported("pre-tokenizer", last, "one that ends in ByteLevel"));
        };
        if let Some(other) = splits.iter().find(|part| type_of(part) != "Split") {
            return Err(self.unsupported("pre-tokenizer", type_of(other), "Split"));
        }
        if last.get("add_prefix_space") != Some(&Value::Bool(false)) {
            return Err(self.unsupported("pre-tokenizer option", "add_prefix_space", "false"));
        }
        let [split] = splits else { return Ok(false) };
        Ok(last.get("use_regex") == Some(&Value::Bool(false))
            && split.get("pattern").and_then(|p| p.get("Regex")).and_then(Value::as_str) == Some(SPLIT_PATTERN)
            && split.get("behavior").and_then(Value::as_str) == Some("Isolated")
            && split.get("invert") == Some(&Value::Bool(false)))
    }

    fn vocab(&self, model: &Map<String, Value>) -> Result<HashMap<String, u32>, TokenizerError> {
        let vocab =
            model.get("vocab").and_then(Value::as_object).ok_or_else(|| self.malformed("there is no `vocab`"))?;
        let ids = vocab.iter().map(|(token, id)| Ok((token.clone(), self.id(token, id)?)));
        let vocab: HashMap<String, u32> = ids.collect::<Result<_, TokenizerError>>()?;
        // Without its byte a character would vanish from the text.
        match (0..=255).find(|&byte| !vocab.contains_key(byte_char(byte).encode_utf8(&mut [0; 4]) as &str)) {
            Some(byte) => Err(self.malformed(format!("`vocab` has no token for the byte 0x{byte:02X}"))),
            None => Ok(vocab),
        }
    }

    fn merges(&self, model: &Map<String, Value>, vocab: &HashMap<String, u32>) -> Result<Merges, TokenizerError> {
        let merges = model.get("merges").and_then(Value::as_array);
        let merges = merges.ok_or_else(|| self.malformed("there is no `merges`"))?;
        let read = |merge: &Value| {
            let pair = match merge {
                Value::String(line) => line.split_once(' ').map(|(a, b)| (a.to_string(), b.to_string())),
                Value::Array(pair) => match pair.as_slice() {
                    [Value::String(a), Value::String(b)] => Some((a.clone(), b.clone())),
                    _ => None,
                },
                _ => None,
            };
            let pair = pair.ok_or_else(|| self.malformed(format!("merge {merge} is not a pair")))?;
            // The library panics on a merge into a token that is longer than any in the vocabulary.
            let known = vocab.contains_key(&pair.0)
                && vocab.contains_key(&pair.1)
                && vocab.contains_key(&format!("{}{}", pair.0, pair.1));
            if known { Ok(pair) } else { Err(self.malformed(format!("merge {merge} is not of tokens in `vocab`"))) }
        };
        merges.iter().map(read).collect()
    }

    fn added_tokens(&self, added: &Value) -> Result<Vec<(u32, AddedToken)>, TokenizerError> {
        let entries = match added {
            Value::Null => &[][..],
            Value::Array(entries) => entries,
            _ => return Err(self.malformed("`added_tokens` is not a list")),
        };
        let read = |entry: &Value| {
            let flag = |name| entry.get(name).and_then(Value::as_bool).unwrap_or(false);
            let content = entry.get("content").and_then(Value::as_str).filter(|content| !content.is_empty());
            let content = content.ok_or_else(|| self.malformed("an added token has no `content`"))?;
            let id = self.id(content, entry.get("id").unwrap_or(&Value::Null))?;
            let token = AddedToken::from(content, flag("special"))
                .single_word(flag("single_word"))
                .lstrip(flag("lstrip"))
                .rstrip(flag("rstrip"))
                .normalized(flag("normalized"));
            Ok((id, token))
        };
        entries.iter().map(read).collect()
    }

    /// The table of token bytes by id.
    fn tokens(
        &self,
        vocab: &HashMap<String, u32>,
        added: &[(u32, AddedToken)],
    ) -> Result<Vec<Option<Token>>, TokenizerError> {
        let ids = vocab.values().chain(added.iter().map(|(id, _)| id));
        let len = ids.max().map_or(0, |&last| last as usize + 1);
        let mut tokens: Vec<Option<Token>> = (0..len).map(|_| None).collect();
        let undo: HashMap<char, u8> = (0..=255).map(|byte| (byte_char(byte), byte)).collect();
        let also_added: HashMap<&str, u32> = added.iter().map(|(id, token)| (token.content.as_str(), *id)).collect();
        for (text, &id) in vocab {
            if also_added.get(text.as_str()) == Some(&id) {
                continue;
            }
            let bytes = text.chars().map(|c| undo.get(&c).copied()).collect::<Option<Box<[u8]>>>();
            let bytes = bytes.ok_or_else(|| self.malformed(format!("token {id} `{text}` is not byte-level")))?;
            if tokens[id as usize].replace(Token { bytes, special: false }).is_some() {
                return Err(self.malformed(format!("the id {id} is given twice")));
            }
        }
        for (id, token) in added {
            let bytes = token.content.as_bytes().into();
            if tokens[*id as usize].replace(Token { bytes, special: token.special }).is_some() {
                return Err(self.malformed(format!("the id {id} is given twice")));
            }
        }
        Ok(tokens)
    }

    /// What the post-processor puts in front of a single text.
    fn prefix(&self, post_processor: &Value, vocab_size: usize) -> Result<Vec<u32>, TokenizerError> {
        let mut prefix = Vec::new();
        for part in parts_of(post_processor, "processors") {
            match type_of(part) {
                "ByteLevel" => {} // moves offsets only
                "TemplateProcessing" => {
                    let template = part.get("single").and_then(Value::as_array);
                    let template = template.ok_or_else(|| self.malformed("the post-processor has no `single`"))?;
                    let mut text_seen = false;
                    for piece in template {
                        let Some(name) = piece.get("SpecialToken").and_then(|p| p.get("id")).and_then(Value::as_str)
                        else {
                            text_seen = true;
                            continue;
                        };
                        if text_seen {
                            return Err(self.unsupported("post-processor token after the text", name, "none"));
                        }
                        let ids = part.get("special_tokens").and_then(|t| t.get(name)).and_then(|t| t.get("ids"));
                        let ids = ids.and_then(Value::as_array);
                        let ids = ids.ok_or_else(|| self.malformed(format!("the post-processor lacks `{name}`")))?;
                        for id in ids {
                            prefix.push(self.id(name, id)?);
                        }
                    }
                }
                other => return Err(self.unsupported("post-processor", other, "TemplateProcessing")),
            }
        }
        match prefix.iter().find(|&&id| id as usize >= vocab_size) {
            Some(id) => Err(self.malformed(format!("the post-processor adds the unknown id {id}"))),
            None => Ok(prefix),
        }
    }

    fn id(&self, token: &str, id: &Value) -> Result<u32, TokenizerError> {
        let number = id.as_u64().filter(|&id| id < MAX_ID).and_then(|id| u32::try_from(id).ok());
        number.ok_or_else(|| self.malformed(format!("token `{token}` has the id {id}")))
    }

    fn malformed(&self, reason: impl ToString) -> TokenizerError {
        TokenizerError::Malformed { label: self.label.to_string(), reason: one_line(&reason.to_string()) }
    }

    fn unsupported(&self, part: &'static str, found: &str, expected: &'static str) -> TokenizerError {
        TokenizerError::Unsupported { label: self.label.to_string(), part, found: one_line(found), expected }
    }
}

/// The parts of a `Sequence`, or the part itself; none for null.
fn parts_of<'v>(value: &'v Value, list: &str) -> Vec<&'v Value> {
    match value {
        Value::Null => Vec::new(),
        _ if type_of(value) == "Sequence" => value.get(list).and_then(Value::as_array).into_iter().flatten().collect(),
        _ => vec![value],
    }
}

fn type_of(value: &Value) -> &str {
    value.get("type").and_then(Value::as_str).unwrap_or("none")
}

/// The printable character that stands for a byte in byte-level vocabularies: itself if it is printable, otherwise the
/// next free one from U+0100.
fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

//! The small files that stand beside a Hugging Face checkpoint, made from the metadata.

use super::metadata::{Array, Arrays};
use super::reader::Reader;
use crate::Fields;
use crate::error::{Error, brief};
use crate::source::Blob;
use crate::tokenizer::{Role, Vocabulary};
use serde_json::{Map, Value};

/// Far above any vocabulary, and pairs of it.
const MAX_TOKENS: u64 = 1 << 20;
const MAX_MERGES: u64 = 1 << 21;
/// Longest token.
const MAX_TOKEN: u64 = 1 << 16;

/// What the files are made from when they are asked for: few readers of a checkpoint want them.
pub(crate) struct Side {
    /// The file that the metadata are in.
    pub file: String,
    pub metadata: Map<String, Value>,
    /// Where the lists lie that were passed over.
    pub arrays: Arrays,
}

impl Side {
    /// The bytes of the file called `name`, or `None` where the metadata have nothing of it.
    pub fn read(&self, blob: &Blob, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let fields = Fields::new(blob.file(), &self.metadata);
        let at = Metadata { fields: &fields, arrays: &self.arrays, blob };
        let json = |value: Option<Value>| value.map(|value| value.to_string().into_bytes());
        Ok(match name {
            "tokenizer.json" => at.vocabulary()?.map(|vocabulary| vocabulary.to_json()),
            "tokenizer_config.json" => json(at.tokenizer_config()?),
            "generation_config.json" => json(at.generation_config()?),
            "chat_template.jinja" => fields.opt_str("tokenizer.chat_template")?.map(|text| text.as_bytes().to_vec()),
            _ => None,
        })
    }
}

struct Metadata<'a> {
    fields: &'a Fields<'a>,
    arrays: &'a Arrays,
    blob: &'a Blob,
}

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";

impl Metadata<'_> {
    fn vocabulary(&self) -> Result<Option<Vocabulary>, Error> {
        if self.fields.opt_str(MODEL)?.is_none_or(|model| model == "none" || model == "no_vocab") {
            return Ok(None);
        }
        let Some(texts) = self.texts(TOKENS, MAX_TOKENS)? else { return Ok(None) };
        for (key, known) in [(MODEL, &["gpt2"][..]), ("tokenizer.ggml.pre", &["llama4", "gpt-4o"])] {
            if !self.fields.opt_str(key)?.is_some_and(|found| known.contains(&found)) {
                return Err(self.fields.invalid(key, known.join(" or ")));
            }
        }
        let missing = |key| Error::Missing {
            file: self.blob.file().into(),
            what: format!("field `{key}`"),
            expected: format!("a list beside `{TOKENS}`"),
            more: 0,
        };
        let types = self.types()?.ok_or_else(|| missing(TYPES))?;
        if types.len() != texts.len() {
            return Err(self.malformed(TYPES, format!("{} types, one for each token", texts.len()), types.len()));
        }
        let role = |(id, kind): (usize, &i64)| match kind {
            1 => Ok(Role::Ordinary),
            2 | 3 => Ok(Role::Control),
            4 => Ok(Role::Added),
            5 => Ok(Role::Unused),
            other => Err(self.malformed(TYPES, "types from 1 to 5".into(), format!("{other} of token {id}"))),
        };
        let roles = types.iter().enumerate().map(role).collect::<Result<Vec<Role>, Error>>()?;
        let merges = self.texts(MERGES, MAX_MERGES)?.ok_or_else(|| missing(MERGES))?;
        let pair = |merge: String| match merge.split_once(' ') {
            Some((left, right)) if !left.is_empty() && !right.is_empty() && !right.contains(' ') => {
                Ok([left.to_string(), right.to_string()])
            }
            _ => Err(self.malformed(MERGES, "two tokens with a space between".into(), brief(&merge))),
        };
        let merges = merges.into_iter().map(pair).collect::<Result<_, Error>>()?;
        let count = texts.len();
        // The published tokenizer begins every document with it, and the metadata need not say so.
        let prefix = match self.fields.opt_bool("tokenizer.ggml.add_bos_token")? {
            Some(false) => None,
            _ => self.token("bos_token_id", count)?,
        };
        let vocabulary =
            Vocabulary { tokens: texts.into_iter().zip(roles).collect(), merges, prefix, ignore_merges: true };
        match vocabulary.twice() {
            Some(text) => Err(self.malformed(TOKENS, "every token once".into(), format!("`{}` twice", brief(text)))),
            None => Ok(Some(vocabulary)),
        }
    }

    /// An id below `count`.
    fn token(&self, key: &str, count: usize) -> Result<Option<u32>, Error> {
        let key = format!("tokenizer.ggml.{key}");
        match self.fields.opt_usize(&key, 0..=usize::MAX)? {
            Some(id) if id >= count => Err(self.fields.invalid(&key, format!("an id below {count}"))),
            id => Ok(id.map(|id| id as u32)),
        }
    }

    /// The control tokens that templates know by name, and what transformers, which mlx-lm and mlx-vlm ask for a tokenizer, need to
    /// know besides: that `tokenizer.json` is all there is, and that decoding it changes nothing.
    fn tokenizer_config(&self) -> Result<Option<Value>, Error> {
        let Some(texts) = self.texts(TOKENS, MAX_TOKENS)? else { return Ok(None) };
        let mut named = Map::new();
        named.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());
        named.insert("clean_up_tokenization_spaces".into(), false.into());
        for (key, name) in [
            ("bos_token_id", "bos_token"),
            ("eos_token_id", "eos_token"),
            ("padding_token_id", "pad_token"),
            ("mask_token_id", "mask_token"),
        ] {
            if let Some(id) = self.token(key, texts.len())? {
                named.insert(name.into(), texts[id as usize].as_str().into());
            }
        }
        Ok(Some(named.into()))
    }

    /// Settings of sampling, where there are any.
    fn generation_config(&self) -> Result<Option<Value>, Error> {
        let mut config = Map::new();
        for (key, field) in [
            ("temp", "temperature"),
            ("top_k", "top_k"),
            ("top_p", "top_p"),
            ("min_p", "min_p"),
            ("penalty_repeat", "repetition_penalty"),
        ] {
            match self.fields.get(&format!("general.sampling.{key}")) {
                None => {}
                Some(number @ Value::Number(_)) => drop(config.insert(field.into(), number.clone())),
                Some(_) => return Err(self.fields.invalid(&format!("general.sampling.{key}"), "a number")),
            }
        }
        Ok((!config.is_empty()).then_some(config.into()))
    }

    fn array(&self, key: &str, most: u64) -> Result<Option<Array>, Error> {
        match self.arrays.get(key) {
            None if self.fields.get(key).is_none() => Ok(None),
            Some(array) if array.count <= most => Ok(Some(*array)),
            Some(array) => Err(self.malformed(key, format!("at most {most} elements"), array.count)),
            None => Err(self.fields.invalid(key, "a list")),
        }
    }

    fn texts(&self, key: &str, most: u64) -> Result<Option<Vec<String>>, Error> {
        let Some(Array { kind, count, at }) = self.array(key, most)? else { return Ok(None) };
        if kind != Array::TEXT {
            return Err(self.malformed(key, "strings".into(), format!("elements of type {kind}")));
        }
        let (mut reader, what) = (Reader::at_byte(self.blob, at)?, format!("field `{key}`"));
        (0..count).map(|_| reader.string(&what, MAX_TOKEN)).collect::<Result<_, _>>().map(Some)
    }

    fn types(&self) -> Result<Option<Vec<i64>>, Error> {
        let integer =
            |value: &Value| value.as_i64().ok_or_else(|| self.malformed(TYPES, "integers".into(), value.to_string()));
        // A short list was kept.
        if let Some(Value::Array(list)) = self.fields.get(TYPES) {
            return list.iter().map(integer).collect::<Result<_, _>>().map(Some);
        }
        let Some(Array { kind, count, at }) = self.array(TYPES, MAX_TOKENS)? else { return Ok(None) };
        let (mut reader, what) = (Reader::at_byte(self.blob, at)?, format!("field `{TYPES}`"));
        (0..count)
            .map(|_| integer(&super::metadata::scalar(&mut reader, &what, kind)?))
            .collect::<Result<_, _>>()
            .map(Some)
    }

    fn malformed(&self, key: &str, expected: String, found: impl ToString) -> Error {
        let (file, found) = (self.blob.file().into(), found.to_string());
        Error::Malformed { file, what: format!("field `{key}`"), expected, found }
    }
}

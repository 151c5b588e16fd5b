//! Text to token ids and back, over a Hugging Face `tokenizer.json` (byte-level BPE).
//!
//! Encoding never reads a control token out of ordinary text: a control token enters a prompt only as
//! [`Segment::Control`]. Decoding is ours, by bytes, so that a stream of tokens and the whole sequence give the same text.

mod detokenizer;
mod file;

pub use detokenizer::{Detokenizer, Specials};

use std::collections::BTreeMap;
use thiserror::Error;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

/// What a tokenizer file or a token id can have wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TokenizerError {
    /// The file is not what its format says.
    #[error("{label}: {reason}")]
    Malformed {
        /// Name of the file.
        label: String,
        /// What is wrong, in one line.
        reason: String,
    },
    /// The file asks for something that this tokenizer does not do.
    #[error("{label}: {part} `{found}` is not supported, expected {expected}")]
    Unsupported {
        /// Name of the file.
        label: String,
        /// The part of the file, for example `model type`.
        part: &'static str,
        /// What the file has there.
        found: String,
        /// What would be accepted.
        expected: &'static str,
    },
    /// A control token that the caller needs is not in the vocabulary.
    #[error("{label}: there is no special token `{literal}`")]
    MissingSpecial {
        /// Name of the file.
        label: String,
        /// The token's text.
        literal: String,
    },
    /// The tokenizer gives ids that the model has no embedding for.
    #[error("{label}: token ids run up to {last}, but the model has a vocabulary of {vocab_size}")]
    DoesNotFit {
        /// Name of the file.
        label: String,
        /// The highest id of the tokenizer.
        last: usize,
        /// The model's vocabulary.
        vocab_size: usize,
    },
    /// An id that no token has.
    #[error("{label}: no token has the id {id}")]
    UnknownId {
        /// Name of the file.
        label: String,
        /// The id.
        id: u32,
    },
    /// A text that this tokenizer cannot encode.
    #[error("{label}: cannot encode the text: {reason}")]
    Encode {
        /// Name of the file.
        label: String,
        /// What is wrong, in one line.
        reason: String,
    },
}

/// A stretch of a prompt: one control token, or ordinary text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// The id of a control token.
    Control(u32),
    /// Text in which the literals of control tokens mean nothing.
    Text(String),
}

/// A byte-level BPE tokenizer.
pub struct Tokenizer {
    label: String,
    inner: tokenizers::Tokenizer,
    /// By id; `None` where no token has the id.
    tokens: Vec<Option<Token>>,
    specials: BTreeMap<String, u32>,
    /// What precedes a raw prompt.
    prefix: Vec<u32>,
    /// Control tokens by the name that templates know them under, such as `bos_token`.
    named: Vec<(String, String)>,
    /// Whether the pre-tokenizer is the one that [`sections`] knows how to cut for.
    known_pattern: bool,
}

struct Token {
    bytes: Box<[u8]>,
    special: bool,
}

impl Tokenizer {
    /// Reads the bytes of a `tokenizer.json`; `label` names the file in errors.
    pub fn from_json(bytes: &[u8], label: impl Into<String>) -> Result<Self, TokenizerError> {
        file::read(bytes, label.into())
    }

    /// Adds what `tokenizer_config.json` says: the names of control tokens, and `add_bos_token` where the post-processor
    /// of `tokenizer.json` puts nothing in front of a raw prompt.
    pub fn with_config(mut self, bytes: &[u8], label: &str) -> Result<Self, TokenizerError> {
        file::read_config(&mut self, bytes, label)?;
        Ok(self)
    }

    /// The ids of ordinary text. A literal such as `<|eot|>` in it is text like any other; no BOS is added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        self.encode_into(text, &mut ids)?;
        Ok(ids)
    }

    /// The ids of a raw completion prompt: what the post-processor puts in front (BOS), then ordinary text.
    pub fn encode_raw(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = self.prefix.clone();
        self.encode_into(text, &mut ids)?;
        Ok(ids)
    }

    /// The ids of a prompt of control tokens and ordinary text.
    pub fn encode_segments(&self, segments: &[Segment]) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        for segment in segments {
            match segment {
                Segment::Control(id) => ids.push(*id),
                Segment::Text(text) => self.encode_into(text, &mut ids)?,
            }
        }
        Ok(ids)
    }

    fn encode_into(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        for section in self.sections(text)? {
            let encoding = self.inner.encode_fast(section, false).map_err(|e| self.encode_error(e))?;
            ids.extend_from_slice(encoding.get_ids());
        }
        Ok(())
    }

    /// The pieces that the pre-tokenizer splits ordinary text into, before any merging.
    pub fn pieces(&self, text: &str) -> Result<Vec<String>, TokenizerError> {
        let mut pieces = Vec::new();
        for section in self.sections(text)? {
            let mut split = PreTokenizedString::from(section);
            if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
                pre_tokenizer.pre_tokenize(&mut split).map_err(|e| self.encode_error(e))?;
            }
            let splits = split.get_splits(OffsetReferential::Original, OffsetType::Byte);
            pieces.extend(splits.iter().filter_map(|(_, (start, end), _)| section.get(*start..*end)).map(String::from));
        }
        Ok(pieces)
    }

    /// The text of `ids`, control tokens left out.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.decode_as(ids, Specials::Drop)
    }

    /// The text of `ids`, control tokens as their literals.
    pub fn decode_with_specials(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.decode_as(ids, Specials::Keep)
    }

    fn decode_as(&self, ids: &[u32], specials: Specials) -> Result<String, TokenizerError> {
        let mut text = String::new();
        let mut utf8 = detokenizer::Utf8::default();
        for &id in ids {
            let token = self.token(id)?;
            utf8.push_token(&token.bytes, token.special, specials, &mut text);
        }
        Ok(text)
    }

    /// The id of the control token with this literal.
    pub fn special_id(&self, literal: &str) -> Option<u32> {
        self.specials.get(literal).copied()
    }

    /// The id of the control token with this literal, or an error that names it.
    pub fn require_special(&self, literal: &str) -> Result<u32, TokenizerError> {
        let missing = || TokenizerError::MissingSpecial { label: self.label.clone(), literal: literal.to_string() };
        self.special_id(literal).ok_or_else(missing)
    }

    /// Every control token: literal and id, in the order of the literals.
    pub fn specials(&self) -> impl Iterator<Item = (&str, u32)> {
        self.specials.iter().map(|(literal, &id)| (literal.as_str(), id))
    }

    /// Control tokens by the name that templates use, such as `("bos_token", "<|begin_of_text|>")`.
    pub fn named_specials(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named.iter().map(|(name, literal)| (name.as_str(), literal.as_str()))
    }

    /// Whether `id` is a control token.
    pub fn is_special(&self, id: u32) -> bool {
        self.get(id).is_some_and(|token| token.special)
    }

    /// The bytes of a token: for a control token, those of its literal.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.get(id).map(|token| &*token.bytes)
    }

    /// What a raw prompt begins with: BOS, or nothing.
    pub fn raw_prefix(&self) -> &[u32] {
        &self.prefix
    }

    /// One more than the highest token id.
    pub fn vocab_size(&self) -> usize {
        self.tokens.len()
    }

    /// Checks that every id has a row in a model with this vocabulary.
    pub fn check_fits(&self, vocab_size: usize) -> Result<(), TokenizerError> {
        if self.tokens.len() <= vocab_size {
            return Ok(());
        }
        let (label, last) = (self.label.clone(), self.tokens.len() - 1);
        Err(TokenizerError::DoesNotFit { label, last, vocab_size })
    }

    /// The name of the file, as errors give it.
    pub fn label(&self) -> &str {
        &self.label
    }

    fn get(&self, id: u32) -> Option<&Token> {
        self.tokens.get(usize::try_from(id).ok()?)?.as_ref()
    }

    fn token(&self, id: u32) -> Result<&Token, TokenizerError> {
        self.get(id).ok_or_else(|| TokenizerError::UnknownId { label: self.label.clone(), id })
    }

    fn encode_error(&self, error: impl ToString) -> TokenizerError {
        TokenizerError::Encode { label: self.label.clone(), reason: one_line(&error.to_string()) }
    }

    fn sections<'t>(&self, text: &'t str) -> Result<Vec<&'t str>, TokenizerError> {
        let sections = sections(text);
        if sections.len() > 1 && !self.known_pattern {
            return Err(self.encode_error(format!("it holds more than {LONGEST_BLANK} blanks in a row")));
        }
        Ok(sections)
    }
}

/// The regex engine gives up, without saying so, after a million steps back, and `\s+(?!\S)` takes those in a long run of
/// blanks. Runs beyond this are taken out of its hands.
const LONGEST_BLANK: usize = 100_000;

/// Cuts `text` where the pre-tokenizer cuts it anyway: a run of blanks (white space that is no line end) of two or more
/// before a visible character is one piece without its last blank, whatever surrounds it. Only longest runs are cut at.
fn sections(text: &str) -> Vec<&str> {
    let mut sections = Vec::new();
    let mut from = 0;
    let mut run: Option<(usize, usize)> = None; // start and number of blanks
    let mut last_blank = 0;
    for (at, c) in text.char_indices() {
        let line_end = matches!(c, '\r' | '\n');
        if c.is_whitespace() && !line_end {
            run = Some(run.map_or((at, 1), |(start, count)| (start, count + 1)));
            last_blank = at;
            continue;
        }
        if let Some((start, count)) = run.take()
            && count > LONGEST_BLANK
            && !line_end
        {
            sections.extend([&text[from..start], &text[start..last_blank]]);
            from = last_blank;
        }
    }
    sections.push(&text[from..]);
    sections
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

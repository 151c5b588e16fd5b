//! Token bytes to text, one token at a time.

use super::{Tokenizer, TokenizerError};
use std::sync::Arc;

/// What becomes of control tokens in decoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// They leave no text.
    Drop,
    /// They appear as their literals.
    Keep,
}

/// Turns tokens into text as they come. The pieces, joined, are what decoding the whole sequence gives: every maximal
/// invalid sequence of bytes is one U+FFFD, and an incomplete character at the very end is left out.
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    specials: Specials,
    utf8: Utf8,
    text: String,
}

impl Detokenizer {
    /// A detokenizer at the start of a text.
    pub fn new(tokenizer: Arc<Tokenizer>, specials: Specials) -> Self {
        Self { tokenizer, specials, utf8: Utf8::default(), text: String::new() }
    }

    /// Takes one token and returns the text that it completes, which may be empty. A control token ends whatever
    /// character was incomplete before it: that becomes U+FFFD.
    pub fn push(&mut self, id: u32) -> Result<&str, TokenizerError> {
        self.text.clear();
        let token = self.tokenizer.token(id)?;
        self.utf8.push_token(&token.bytes, token.special, self.specials, &mut self.text);
        Ok(&self.text)
    }
}

/// The bytes of a character that has begun and not ended: at most three.
#[derive(Default)]
pub(super) struct Utf8 {
    tail: Vec<u8>,
}

impl Utf8 {
    pub(super) fn push_token(&mut self, bytes: &[u8], special: bool, specials: Specials, text: &mut String) {
        if !special {
            return self.push(bytes, text);
        }
        if !self.tail.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
            self.tail.clear();
        }
        if specials == Specials::Keep {
            self.push(bytes, text);
        }
    }

    fn push(&mut self, bytes: &[u8], text: &mut String) {
        self.tail.extend_from_slice(bytes);
        let bytes = std::mem::take(&mut self.tail);
        let mut rest = bytes.len();
        for chunk in bytes.utf8_chunks() {
            text.push_str(chunk.valid());
            rest -= chunk.valid().len() + chunk.invalid().len();
            if rest == 0 && is_incomplete(chunk.invalid()) {
                self.tail.extend_from_slice(chunk.invalid());
            } else if !chunk.invalid().is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
    }
}

/// Whether `bytes` are the beginning of a character, rather than a mistake.
fn is_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

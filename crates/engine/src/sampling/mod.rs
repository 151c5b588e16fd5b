//! From logits to a token: processors, then a draw that the seed alone decides.
//!
//! A draw depends on the logits, the settings, the seed, the sample index and the position of the token, and on nothing
//! else: not on how many draws came before. So verification can draw any row of a block and get the token that plain
//! decoding would have drawn there, and a drafter can look at the same noise.

mod chain;
mod noise;
mod processors;
mod select;

pub use chain::{Chain, Proposal, SHARPNESS};
pub use noise::Noise;
pub use processors::TokenMask;
pub use select::argmax;

use std::collections::HashSet;

/// What a request may say about sampling.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the largest logit.
    pub temperature: f32,
    /// Keeps this many of the largest logits; 0 keeps all.
    pub top_k: usize,
    /// Keeps the smallest set of likeliest tokens whose mass reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this likely relative to the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt and output; 1 is neutral.
    pub repetition_penalty: f32,
    /// Subtracted once from tokens in the output; 0 is neutral.
    pub presence_penalty: f32,
    /// Subtracted once per occurrence in the output; 0 is neutral.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens; negative infinity bans one.
    pub logit_bias: Vec<(u32, f32)>,
    /// Decides the noise together with the position and the sample index.
    pub seed: u64,
    /// Tells apart several samples of one prompt with one seed.
    pub sample_index: u32,
}

/// The published model's settings; everything else is neutral, seed 0.
impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 64,
            top_p: 0.95,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            sample_index: 0,
        }
    }
}

impl Sampling {
    /// Refuses by name what has no meaning for a vocabulary of this size.
    pub fn validate(&self, vocab_size: usize) -> Result<(), SamplingError> {
        if vocab_size == 0 || u32::try_from(vocab_size).is_err() {
            return Err(SamplingError::Vocabulary { found: vocab_size });
        }
        let range = |name, found: f32, ok: bool, expected| match ok && found.is_finite() {
            true => Ok(()),
            false => Err(SamplingError::Range { name, found, expected }),
        };
        let (t, p, m, r) = (self.temperature, self.top_p, self.min_p, self.repetition_penalty);
        range("temperature", t, t >= 0.0, "0 or more")?;
        range("top_p", p, p > 0.0 && p <= 1.0, "above 0, at most 1")?;
        range("min_p", m, (0.0..=1.0).contains(&m), "0 to 1")?;
        range("repetition_penalty", r, r > 0.0, "above 0")?;
        for (name, found) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            range(name, found, (-2.0..=2.0).contains(&found), "-2 to 2")?;
        }
        let mut named = HashSet::new();
        for &(token, found) in &self.logit_bias {
            if token as usize >= vocab_size {
                return Err(SamplingError::BiasToken { token, vocab_size });
            }
            if found != f32::NEG_INFINITY && !(-100.0..=100.0).contains(&found) {
                return Err(SamplingError::Bias { token, found });
            }
            if !named.insert(token) {
                return Err(SamplingError::BiasTwice { token });
            }
        }
        Ok(())
    }
}

/// A setting that cannot be honoured.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// A number outside its range.
    #[error("{name} is {found}, expected {expected}")]
    Range {
        /// The field of [`Sampling`].
        name: &'static str,
        /// Its value.
        found: f32,
        /// What is accepted.
        expected: &'static str,
    },
    /// A bias outside its range.
    #[error("logit_bias of token {token} is {found}, expected -100 to 100, or -inf to ban it")]
    Bias {
        /// The token.
        token: u32,
        /// Its bias.
        found: f32,
    },
    /// A bias for a token that does not exist.
    #[error("logit_bias names token {token}, expected an id below {vocab_size}")]
    BiasToken {
        /// The token.
        token: u32,
        /// The size of the vocabulary.
        vocab_size: usize,
    },
    /// Two biases for one token.
    #[error("logit_bias names token {token} twice, expected once")]
    BiasTwice {
        /// The token.
        token: u32,
    },
    /// Token ids are 32-bit numbers and there is at least one.
    #[error("the vocabulary has {found} tokens, expected 1 to 4294967295")]
    Vocabulary {
        /// The size of the vocabulary.
        found: usize,
    },
}

/// Logits that no token can be drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DrawError {
    /// A NaN or positive infinity. (Negative infinity is a banned token.)
    #[error("the logit of token {index} is not a number or infinite, expected a finite one")]
    NonFinite {
        /// The first such token.
        index: usize,
    },
    /// Every token is banned.
    #[error("no token is left to draw: every logit is banned")]
    NothingLeft,
    /// Not one logit per token.
    #[error("{found} logits, expected {expected}, one per token of the vocabulary")]
    Length {
        /// Logits given.
        found: usize,
        /// The size of the vocabulary.
        expected: usize,
    },
}

//! The processors, in their order: repetition penalty, presence and frequency penalties, bias, mask, temperature, top-k,
//! top-p, min-p. What they remember is how often each token occurred.

use super::select::{self, Candidate, Softmax, usable};
use super::{DrawError, Sampling};
use std::collections::HashMap;

/// A constraint on what may come next, such as a grammar. It stands after the penalties and the bias and before the
/// temperature.
pub trait TokenMask: Send {
    /// Forgets the output.
    fn start(&mut self);

    /// Advances over a token of the output.
    fn accept(&mut self, token: u32);

    /// Sets the logits of all tokens that may not follow to negative infinity. `pending` are tokens proposed after those
    /// accepted, empty for the target's own draw.
    fn mask(&self, pending: &[u32], logits: &mut [f32]);
}

/// Settings, and the counts that the penalties need.
pub(super) struct Processors {
    pub sampling: Sampling,
    vocab_size: usize,
    /// Times that a token occurred in the output; 0 for one that only the prompt has.
    counts: HashMap<u32, u32>,
    mask: Option<Box<dyn TokenMask>>,
}

/// Buffers that a draw works in.
#[derive(Default)]
pub(super) struct Scratch {
    pub logits: Vec<f32>,
    pub kept: Vec<Candidate>,
}

impl Processors {
    pub fn new(sampling: Sampling, vocab_size: usize, mask: Option<Box<dyn TokenMask>>) -> Self {
        Self { sampling, vocab_size, counts: HashMap::new(), mask }
    }

    pub fn start(&mut self, prompt: &[u32]) {
        self.counts.clear();
        if self.sampling.repetition_penalty != 1.0 {
            self.counts = prompt.iter().filter(|t| self.knows(**t)).map(|&t| (t, 0)).collect();
        }
        if let Some(mask) = &mut self.mask {
            mask.start();
        }
    }

    pub fn accept(&mut self, token: u32) {
        if self.penalises() && self.knows(token) {
            let count = self.counts.entry(token).or_default();
            *count = count.saturating_add(1);
        }
        if let Some(mask) = &mut self.mask {
            mask.accept(token);
        }
    }

    /// The logits after penalties, bias and mask: the given ones where nothing applies, else those in `copy`.
    pub fn adjust<'a>(
        &self,
        logits: &'a [f32],
        pending: &[u32],
        copy: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], DrawError> {
        if logits.len() != self.vocab_size {
            return Err(DrawError::Length { found: logits.len(), expected: self.vocab_size });
        }
        if !self.adjusts() {
            return Ok(logits);
        }
        copy.resize(logits.len(), 0.0);
        let mut good = true;
        for (to, &from) in copy.iter_mut().zip(logits) {
            *to = from;
            good &= usable(from);
        }
        if !good {
            return Err(why_none(logits));
        }
        if self.penalises() {
            for (&token, &count) in &self.counts {
                copy[token as usize] = self.penalised(logits[token as usize], count);
            }
            for &token in pending.iter().filter(|t| self.knows(**t)) {
                let more = pending.iter().filter(|t| **t == token).count() as u32;
                let count = self.counts.get(&token).map_or(0, |&count| count).saturating_add(more);
                copy[token as usize] = self.penalised(logits[token as usize], count);
            }
        }
        for &(token, bias) in &self.sampling.logit_bias {
            let logit = &mut copy[token as usize];
            *logit = if bias == f32::NEG_INFINITY { bias } else { saturate(*logit + bias, *logit) };
        }
        if let Some(mask) = &self.mask {
            mask.mask(pending, copy);
        }
        Ok(copy)
    }

    /// The tokens that can be drawn at a temperature above 0, never none, and their distribution. They lie best first
    /// where top-k or top-p is on, else by id.
    pub fn keep(&self, logits: &[f32], kept: &mut Vec<Candidate>) -> Result<Softmax, DrawError> {
        let top_k = self.sampling.top_k;
        let good = match 0 < top_k && top_k < logits.len() {
            true => select::top_k(logits, top_k, kept),
            false => select::all(logits, kept),
        };
        good.and_then(|()| self.cut(kept)).ok_or_else(|| why_none(logits))
    }

    /// The same of candidates alone.
    pub fn keep_of(&self, kept: &mut Vec<Candidate>) -> Option<Softmax> {
        kept.sort_unstable();
        if self.sampling.top_k > 0 {
            kept.truncate(self.sampling.top_k);
        }
        self.cut(kept)
    }

    /// The temperature, top-p and min-p; `None` if there are no candidates.
    fn cut(&self, kept: &mut Vec<Candidate>) -> Option<Softmax> {
        let Sampling { temperature, top_p, min_p, .. } = self.sampling;
        let softmax = Softmax { max: kept.iter().min()?.logit(), temperature };
        if top_p < 1.0 {
            select::top_p(kept, softmax, top_p);
        }
        if min_p > 0.0 {
            select::min_p(kept, softmax, min_p);
        }
        Some(softmax)
    }

    /// Whether penalties, bias or mask can change a logit.
    pub fn adjusts(&self) -> bool {
        self.penalises() || !self.sampling.logit_bias.is_empty() || self.mask.is_some()
    }

    fn penalises(&self) -> bool {
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } = self.sampling;
        repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0
    }

    /// A token beyond the vocabulary has no logit to penalise.
    fn knows(&self, token: u32) -> bool {
        (token as usize) < self.vocab_size
    }

    /// Repetition as in Keskar et al. (arXiv 1909.05858), made to weaken negative logits too; presence and frequency as in
    /// OpenAI's API.
    fn penalised(&self, logit: f32, count: u32) -> f32 {
        let Sampling { repetition_penalty: repetition, presence_penalty, frequency_penalty, .. } = self.sampling;
        let mut penalised = if logit > 0.0 { logit / repetition } else { logit * repetition };
        if count > 0 {
            penalised -= presence_penalty + frequency_penalty * count as f32;
        }
        saturate(penalised, logit)
    }
}

/// A finite logit stays finite, a banned token stays banned.
fn saturate(changed: f32, logit: f32) -> f32 {
    if logit == f32::NEG_INFINITY { logit } else { changed.clamp(f32::MIN, f32::MAX) }
}

/// Why there is nothing to draw from these logits.
pub(super) fn why_none(logits: &[f32]) -> DrawError {
    match logits.iter().position(|&logit| !usable(logit)) {
        Some(index) => DrawError::NonFinite { index },
        None => DrawError::NothingLeft,
    }
}

//! The draw of a token, for the target and for a drafter.

use super::noise::Noise;
use super::processors::{Processors, Scratch, TokenMask, why_none};
use super::select::{self, Candidate, Softmax, argmax};
use super::{DrawError, Sampling, SamplingError};

/// Logits that the confidence of a greedy proposal is normalised over.
const CONFIDENCE_OVER: usize = 64;

/// What log q counts for beside the noise when a drafter proposes. With 1, a drafter that is the target would propose its draw;
/// a drafter knows less than its target, and what it takes for likely is likelier. Tokens per round at temperature 1, top-p 0.95,
/// top-k 64 (`sharpness_of_proposals`; the tiny pair has random weights):
///
/// | | 0.8 | 1 | 1.25 | 1.5 | 2 | without the noise |
/// |---|---|---|---|---|---|---|
/// | nano, width 5 | 1.809 | 1.840 | 1.857 | 1.864 | 1.850 | 1.800 |
/// | nano, width 16 | 1.931 | 1.991 | 2.004 | 2.021 | 2.016 | 1.963 |
/// | tiny, width 5 | 1.024 | 1.021 | 1.019 | 1.017 | 1.013 | 1.005 |
/// | tiny, width 8 | 1.023 | 1.022 | 1.021 | 1.018 | 1.015 | 1.005 |
pub const SHARPNESS: f64 = 1.5;

/// The processors of one sequence, their state, and its noise.
///
/// The state advances by [`accept`](Self::accept) alone, on tokens that are emitted; so nothing is ever rolled back.
pub struct Chain {
    processors: Processors,
    noise: Noise,
    sharpness: f64,
    scratch: Scratch,
}

/// What a drafter says comes next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proposal {
    /// The token.
    pub token: u32,
    /// How likely the drafter holds it: its probability after the processors; at temperature 0, where that would always be
    /// 1, its probability at temperature 1 among the largest 64 logits.
    pub probability: f64,
}

impl Chain {
    /// A chain for a vocabulary of this size.
    pub fn new(sampling: Sampling, vocab_size: usize) -> Result<Self, SamplingError> {
        Self::build(sampling, vocab_size, None)
    }

    /// The same with a constraint on what may be drawn.
    pub fn with_mask(sampling: Sampling, vocab_size: usize, mask: Box<dyn TokenMask>) -> Result<Self, SamplingError> {
        Self::build(sampling, vocab_size, Some(mask))
    }

    fn build(sampling: Sampling, vocab_size: usize, mask: Option<Box<dyn TokenMask>>) -> Result<Self, SamplingError> {
        sampling.validate(vocab_size)?;
        let noise = Noise::new(sampling.seed, sampling.sample_index);
        let (processors, scratch) = (Processors::new(sampling, vocab_size, mask), Scratch::default());
        Ok(Self { processors, noise, sharpness: SHARPNESS, scratch })
    }

    /// The same with another sharpness of proposals: what may change is how many of them are accepted.
    pub fn with_sharpness(self, sharpness: f64) -> Self {
        Self { sharpness, ..self }
    }

    /// The settings.
    pub fn sampling(&self) -> &Sampling {
        &self.processors.sampling
    }

    /// Whether a draw is the argmax of the logits as they are, so that their scale does not matter.
    pub fn is_plain_argmax(&self) -> bool {
        self.processors.sampling.temperature == 0.0 && !self.processors.adjusts()
    }

    /// Forgets the output and begins after this prompt.
    pub fn start(&mut self, prompt: &[u32]) {
        self.processors.start(prompt);
    }

    /// Counts an emitted token.
    pub fn accept(&mut self, token: u32) {
        self.processors.accept(token);
    }

    /// The token at absolute position `position`, from the logits of the row before it.
    ///
    /// At temperature 0 the argmax. Above, argmax over the kept tokens of (log p + Gumbel noise), which is distributed
    /// exactly as p (Gumbel-max); in f64, the lowest id on ties.
    pub fn draw(&mut self, logits: &[f32], position: u64) -> Result<u32, DrawError> {
        let Self { processors, noise, scratch, .. } = self;
        let logits = processors.adjust(logits, &[], &mut scratch.logits)?;
        if processors.sampling.temperature == 0.0 {
            return argmax(logits).ok_or_else(|| why_none(logits));
        }
        let softmax = processors.keep(logits, &mut scratch.kept)?;
        let winner = gumbel_argmax(&scratch.kept, softmax, 1.0, noise, position).ok_or(DrawError::NothingLeft)?;
        Ok(winner.token())
    }

    /// A drafter's guess of what [`draw`](Self::draw) will give at `position`, from the drafter's own logits: the same
    /// processors with `pending` (this block's proposals so far) counted as output, and the same noise.
    pub fn propose(&mut self, logits: &[f32], position: u64, pending: &[u32]) -> Result<Proposal, DrawError> {
        let Self { processors, noise, sharpness, scratch } = self;
        let logits = processors.adjust(logits, pending, &mut scratch.logits)?;
        let kept = &mut scratch.kept;
        if processors.sampling.temperature == 0.0 {
            let token = argmax(logits).ok_or_else(|| why_none(logits))?;
            select::top_k(logits, CONFIDENCE_OVER, kept).ok_or_else(|| why_none(logits))?;
            return Ok(likeliest(Candidate::new(logits[token as usize], token), kept));
        }
        let softmax = processors.keep(logits, kept)?;
        drawn(kept, softmax, *sharpness, noise, position).ok_or(DrawError::NothingLeft)
    }

    /// The same of the `count` tokens that are best after the processors; `add` is told them, best first, and gives what is added to
    /// the logit of each.
    pub fn propose_among(
        &mut self,
        logits: &[f32],
        position: u64,
        pending: &[u32],
        count: usize,
        add: impl FnOnce(&[u32]) -> Vec<f32>,
    ) -> Result<Proposal, DrawError> {
        let Self { processors, noise, scratch, sharpness } = self;
        let logits = processors.adjust(logits, pending, &mut scratch.logits)?;
        let kept = &mut scratch.kept;
        select::top_k(logits, count, kept).ok_or_else(|| why_none(logits))?;
        let tokens: Vec<u32> = kept.iter().map(|candidate| candidate.token()).collect();
        for (candidate, added) in kept.iter_mut().zip(add(&tokens)) {
            let (score, token) = (candidate.logit() + added, candidate.token());
            if !score.is_finite() {
                return Err(DrawError::NonFinite { index: token as usize });
            }
            *candidate = Candidate::new(score, token);
        }
        if processors.sampling.temperature == 0.0 {
            let best = *kept.iter().min().ok_or_else(|| why_none(logits))?;
            return Ok(likeliest(best, kept));
        }
        let softmax = processors.keep_of(kept).ok_or_else(|| why_none(logits))?;
        drawn(kept, softmax, *sharpness, noise, position).ok_or(DrawError::NothingLeft)
    }

    /// What [`draw`](Self::draw) draws from: the kept tokens and their exact probabilities, likeliest first.
    pub fn distribution(&self, logits: &[f32]) -> Result<Vec<(u32, f64)>, DrawError> {
        let mut scratch = Scratch::default();
        let logits = self.processors.adjust(logits, &[], &mut scratch.logits)?;
        if self.processors.sampling.temperature == 0.0 {
            return argmax(logits).map(|token| vec![(token, 1.0)]).ok_or_else(|| why_none(logits));
        }
        let kept = &mut scratch.kept;
        let softmax = self.processors.keep(logits, kept)?;
        kept.sort_unstable();
        let total = softmax.total(kept);
        Ok(kept.iter().map(|&c| (c.token(), softmax.weight(c) / total)).collect())
    }
}

/// The greedy proposal, with its probability at temperature 1 among others.
fn likeliest(best: Candidate, among: &[Candidate]) -> Proposal {
    let softmax = Softmax { max: best.logit(), temperature: 1.0 };
    Proposal { token: best.token(), probability: 1.0 / softmax.total(among) }
}

/// The proposal that the noise makes of a distribution.
fn drawn(kept: &[Candidate], softmax: Softmax, sharpness: f64, noise: &Noise, position: u64) -> Option<Proposal> {
    let winner = gumbel_argmax(kept, softmax, sharpness, noise, position)?;
    Some(Proposal { token: winner.token(), probability: softmax.weight(winner) / softmax.total(kept) })
}

/// The first maximum by ascending id of sharpness * log weight + noise, whatever order the tokens lie in.
fn gumbel_argmax(
    kept: &[Candidate],
    softmax: Softmax,
    sharpness: f64,
    noise: &Noise,
    position: u64,
) -> Option<Candidate> {
    let (mut best, mut winner) = (f64::NEG_INFINITY, None::<Candidate>);
    for &candidate in kept {
        let (log_weight, token) = (sharpness * softmax.log_weight(candidate), candidate.token());
        let Some(gumbel) = noise.gumbel_above(token, position, best - log_weight) else { continue };
        let score = log_weight + gumbel;
        if score > best || (score == best && winner.is_some_and(|other| token < other.token())) {
            (best, winner) = (score, Some(candidate));
        }
    }
    winner
}

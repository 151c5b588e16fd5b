//! How well a model predicts a text, and how far two models are apart on it.
//!
//! The text's tokens are cut into windows that do not overlap, each a sequence of its own that begins with what the tokenizer
//! puts in front of a document. Every token that has another before it in its window is scored by the distribution there:
//! perplexity = exp(mean of -ln p(token)). Of two models with one vocabulary, KL = sum of p ln(p / q) over the vocabulary,
//! p being the reference's distribution; a logit difference is |a - b| of one token of the vocabulary at one position.

use crate::engine::{Active, Loaded};
use crate::sampling::argmax;
use crate::{Engine, EngineError};
use glimmer_backend::Backend;
use glimmer_kernels::math::{exp, ln};
use glimmer_model::muse::TextCache;
use glimmer_model::observe::Unobserved;

/// Rows whose logits are held at once: a row has as many as the vocabulary.
const ROWS: usize = 32;

/// How well a model predicts a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// Tokens that were scored.
    pub tokens: usize,
    /// Windows that the text was cut into.
    pub windows: usize,
    /// exp(mean of -ln p(token)).
    pub perplexity: f64,
    /// The distance from the reference, where there is one.
    pub distance: Option<Distance>,
}

/// How far a model is from a reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Distance {
    /// The reference's own perplexity.
    pub perplexity: f64,
    /// The mean KL divergence, in nats.
    pub kl_mean: f64,
    /// What 99 of 100 positions have at most.
    pub kl_p99: f64,
    /// The largest.
    pub kl_max: f64,
    /// The share of positions where both have the same likeliest token.
    pub top1: f64,
    /// The mean difference of logits.
    pub logit_mean: f64,
    /// What 99 of 100 differences have at most, to 8 bits.
    pub logit_p99: f64,
}

impl Engine {
    /// Scores a text, in windows as long as the engine's context. `progress` is told the tokens that are done, and may end it by
    /// returning false: then there is no score.
    ///
    /// # Errors
    /// Where the text is too short to score a token, the two have not one vocabulary, or an output is not finite.
    pub fn score(
        &self,
        text: &str,
        reference: Option<&Engine>,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Option<Score>, EngineError> {
        let ids = self.encode_raw(text)?;
        if let Some(reference) = reference {
            self.check_vocabulary(reference, text, &ids)?;
        }
        let prefix = self.loaded.tokenizer()?.raw_prefix().len();
        self.score_ids(&ids, prefix, reference, progress)
    }

    /// The same for ids, of which the first `prefix` stand in front of every window.
    pub(crate) fn score_ids(
        &self,
        ids: &[u32],
        prefix: usize,
        reference: Option<&Engine>,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Option<Score>, EngineError> {
        let (prefix, body) = ids.split_at(prefix.min(ids.len()));
        let mut models = vec![Model::new(&self.loaded)];
        models.extend(reference.map(|reference| Model::new(&reference.loaded)));
        let window = models.iter().map(|model| model.loaded.geometry.context).min().unwrap_or(0);
        let Some(step) = window.checked_sub(prefix.len()).filter(|&step| step > 0 && prefix.len() + step > 1) else {
            let expected = format!("at least {}, so that a token has one before it", prefix.len().max(1) + 1);
            return Err(EngineError::Range { what: "the window", found: window, expected });
        };
        let mut tally = Tally::default();
        let mut done = 0;
        for part in body.chunks(step) {
            let ids = [prefix, part].concat();
            for start in (0..ids.len()).step_by(self.loaded.geometry.prefill_chunk) {
                if !progress(done, body.len()) {
                    return Ok(None);
                }
                let end = ids.len().min(start + self.loaded.geometry.prefill_chunk);
                // The distribution at a position is that of the next token.
                let targets = &ids[(start + 1).min(ids.len())..ids.len().min(end + 1)];
                // Of what stands in front of the text nothing is scored, as nothing of it is the text's.
                let first = prefix.len().saturating_sub(start + 1);
                tally.add(&mut models, &ids[start..end], start, targets, first)?;
                done += (end - start).min(end.saturating_sub(prefix.len()));
            }
            models.iter_mut().for_each(Model::reset);
            tally.windows += 1;
        }
        progress(body.len(), body.len());
        if tally.nll.is_empty() {
            let expected = "enough for two tokens, of which the second is scored".to_string();
            return Err(EngineError::Range { what: "the number of tokens in the text", found: ids.len(), expected });
        }
        Ok(Some(tally.score()))
    }

    /// Refuses a reference with other tokens.
    fn check_vocabulary(&self, reference: &Engine, text: &str, ids: &[u32]) -> Result<(), EngineError> {
        let other = |what| EngineError::Vocabularies {
            label: self.settings().model.clone(),
            other: reference.settings().model.clone(),
            what,
        };
        let (size, theirs) = (self.vocab_size(), reference.vocab_size());
        if size != theirs {
            return Err(other(format!("{size} and {theirs} tokens")));
        }
        if reference.loaded.tokenizer.is_none() {
            // Ids mean the same where the vocabulary is one.
            return Ok(());
        }
        let found = reference.encode_raw(text)?;
        match ids.iter().zip(&found).position(|(a, b)| a != b) {
            Some(at) => Err(other(format!("token {at} of the text is {} and {}", ids[at], found[at]))),
            None if ids.len() != found.len() => Err(other(format!("{} and {} tokens of text", ids.len(), found.len()))),
            None => Ok(()),
        }
    }
}

/// A model and a sequence of its own.
struct Model<'a> {
    loaded: &'a Loaded,
    cache: TextCache<Active>,
}

impl<'a> Model<'a> {
    fn new(loaded: &'a Loaded) -> Self {
        let (positions, widest) = (loaded.geometry.positions(), loaded.geometry.widest());
        let cache = loaded.target.cache(positions, widest, loaded.settings.cache);
        Self { loaded, cache }
    }

    fn forward(&mut self, ids: &[u32]) -> Result<<Active as Backend>::Tensor, EngineError> {
        Ok(self.loaded.target.forward(&self.loaded.backend, &mut self.cache, ids, &mut Unobserved)?)
    }

    fn logits(&self, x: &<Active as Backend>::Tensor, rows: std::ops::Range<usize>) -> Vec<f32> {
        let (b, target) = (&self.loaded.backend, &self.loaded.target);
        b.read(&target.logits(b, x, rows, &mut Unobserved))
    }

    fn reset(&mut self) {
        // An empty cache is always within reach.
        let _ = self.cache.truncate(0);
    }
}

/// What was found so far.
#[derive(Default)]
struct Tally {
    windows: usize,
    nll: Vec<f64>,
    reference_nll: Vec<f64>,
    kl: Vec<f64>,
    same: usize,
    differences: Differences,
}

impl Tally {
    /// Runs `ids`, which begin at `start`, and scores `targets`, the tokens after each of them, from `first` on.
    fn add(
        &mut self,
        models: &mut [Model<'_>],
        ids: &[u32],
        start: usize,
        targets: &[u32],
        first: usize,
    ) -> Result<(), EngineError> {
        let outputs: Vec<_> = models.iter_mut().map(|model| model.forward(ids)).collect::<Result<_, _>>()?;
        for from in (first..targets.len()).step_by(ROWS) {
            let to = targets.len().min(from + ROWS);
            let all: Vec<Vec<f32>> = models.iter().zip(&outputs).map(|(model, x)| model.logits(x, from..to)).collect();
            for (row, &target) in targets[from..to].iter().enumerate() {
                let at = |logits: &Vec<f32>| {
                    let vocab = logits.len() / (to - from);
                    row * vocab..(row + 1) * vocab
                };
                let rows: Vec<&[f32]> = all.iter().map(|logits| &logits[at(logits)]).collect();
                let position = start + from + row;
                let distributions: Result<Vec<Distribution<'_>>, EngineError> =
                    rows.into_iter().map(|logits| Distribution::of(logits, position)).collect();
                self.position(&distributions?, target as usize);
            }
        }
        Ok(())
    }

    fn position(&mut self, distributions: &[Distribution<'_>], target: usize) {
        let [model, reference @ ..] = distributions else { return };
        self.nll.push(-model.log(target));
        let [reference] = reference else { return };
        self.reference_nll.push(-reference.log(target));
        let vocab = 0..model.logits.len();
        // Rounding can take a divergence of zero below it.
        let kl = vocab.clone().map(|token| {
            let (p, q) = (reference.log(token), model.log(token));
            exp(p) * (p - q)
        });
        self.kl.push(kl.sum::<f64>().max(0.0));
        self.same += usize::from(argmax(model.logits) == argmax(reference.logits));
        vocab.for_each(|token| self.differences.add(model.logits[token], reference.logits[token]));
    }

    fn score(mut self) -> Score {
        let tokens = self.nll.len();
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
        let distance = (!self.kl.is_empty()).then(|| {
            self.kl.sort_by(f64::total_cmp);
            Distance {
                perplexity: exp(mean(&self.reference_nll)),
                kl_mean: mean(&self.kl),
                kl_p99: self.kl[percentile(99, tokens)],
                kl_max: self.kl[tokens - 1],
                top1: self.same as f64 / tokens as f64,
                logit_mean: self.differences.mean(),
                logit_p99: self.differences.p99(),
            }
        });
        Score { tokens, windows: self.windows, perplexity: exp(mean(&self.nll)), distance }
    }
}

/// Where in so many sorted numbers the one lies that `percent` of them have at most.
fn percentile(percent: u64, count: usize) -> usize {
    ((count as u64 * percent).div_ceil(100) as usize).saturating_sub(1)
}

/// The distribution that logits stand for.
struct Distribution<'a> {
    logits: &'a [f32],
    /// ln of the sum of exp(logit).
    total: f64,
}

impl<'a> Distribution<'a> {
    fn of(logits: &'a [f32], position: usize) -> Result<Self, EngineError> {
        if !logits.iter().all(|logit| logit.is_finite()) {
            return Err(EngineError::NonFinite { position, place: "in the logits".into() });
        }
        let max = f64::from(logits.iter().copied().fold(f32::MIN, f32::max));
        let sum: f64 = logits.iter().map(|&logit| exp(f64::from(logit) - max)).sum();
        Ok(Self { logits, total: max + ln(sum) })
    }

    /// ln p(token)
    fn log(&self, token: usize) -> f64 {
        f64::from(self.logits[token]) - self.total
    }
}

/// Differences of logits: their sum, and how many have which upper half of an f32, which sorts as the numbers do.
struct Differences {
    sum: f64,
    counts: Vec<u64>,
}

impl Default for Differences {
    fn default() -> Self {
        Self { sum: 0.0, counts: vec![0; 1 << 15] }
    }
}

impl Differences {
    fn add(&mut self, a: f32, b: f32) {
        let difference = (a - b).abs();
        self.sum += f64::from(difference);
        self.counts[(difference.to_bits() >> 16) as usize] += 1;
    }

    fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    fn mean(&self) -> f64 {
        self.sum / self.count() as f64
    }

    fn p99(&self) -> f64 {
        let mut below = (self.count() * 99).div_ceil(100);
        let of = |bits: usize| f64::from(f32::from_bits((bits as u32) << 16));
        for (bits, &count) in self.counts.iter().enumerate() {
            match below.checked_sub(count) {
                None | Some(0) => return of(bits),
                Some(left) => below = left,
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_sums_to_one() {
        let logits = [1.0, -3.0, 20.0, 19.5, 0.0];
        let d = Distribution::of(&logits, 0).unwrap();
        let sum: f64 = (0..5).map(|token| exp(d.log(token))).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{sum}");
        assert!(Distribution::of(&[0.0, f32::NAN], 7).is_err_and(|error| error.to_string().contains("position 7")));
    }

    #[test]
    fn divergence_of_a_coin() {
        // p = (3/4, 1/4), q = (1/2, 1/2): KL = 3/4 ln 3/2 + 1/4 ln 1/2.
        let (p, q) = ([3f32.ln(), 0.0], [0.0, 0.0]);
        let mut tally = Tally { windows: 1, ..Tally::default() };
        tally.position(&[Distribution::of(&q, 0).unwrap(), Distribution::of(&p, 0).unwrap()], 1);
        let score = tally.score();
        let distance = score.distance.unwrap();
        assert!((score.perplexity - 2.0).abs() < 1e-12 && (distance.perplexity - 4.0).abs() < 1e-6, "{distance:?}");
        assert!((distance.kl_mean - (0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln())).abs() < 1e-7, "{distance:?}");
        assert_eq!((distance.kl_mean, distance.kl_mean), (distance.kl_p99, distance.kl_max));
        assert_eq!((distance.top1, distance.logit_mean), (1.0, f64::from(3f32.ln()) / 2.0));
    }

    #[test]
    fn ninety_nine_of_a_hundred() {
        assert_eq!([1, 2, 99, 100, 101, 200].map(|count| percentile(99, count)), [0, 1, 98, 98, 99, 197]);
        let mut differences = Differences::default();
        (0..100).for_each(|i| differences.add(i as f32, 0.0));
        assert_eq!((differences.mean(), differences.p99()), (49.5, 98.0));
    }
}

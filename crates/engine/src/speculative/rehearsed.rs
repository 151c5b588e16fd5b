//! A drafter for measuring: it takes the time of the one it wraps, and is right as often as it was told to be.
//!
//! What speculation gains depends on how often proposals are accepted, which a checkpoint with random weights says nothing about.
//! So the tokens that the target will draw are told beforehand, and each proposal is one of them, or not, by chance. The target
//! still decides: whatever is proposed, its own tokens come out.

use super::{Asked, Draft, DraftError, Drafter};
use crate::random::Random;
use glimmer_backend::{Backend, KvSpec};
use glimmer_model::ModelError;
use glimmer_model::dflash::{DFlashContext, Seen};
use glimmer_model::muse::MuseText;
use std::sync::{Arc, Mutex, PoisonError};

/// What is known beforehand of a sequence, and how often proposals are to be right.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    /// The tokens from the prompt's first on.
    pub tokens: Vec<u32>,
    /// How likely each proposal is right, whatever came of those before it; in 0..=1.
    pub acceptance: f64,
    /// Decides which are right.
    pub seed: u64,
}

/// The share of the room around the acceptance that confidences are spread over.
const SPREAD: f64 = 0.25;

impl Script {
    /// Whether the proposal at `position` is right, and how sure of it the drafter is: what it is sure of to c is right with
    /// probability c, and c is the acceptance on average. Position and seed alone decide, so all widths have the same luck.
    fn luck(&self, position: usize) -> (bool, f64) {
        // The sequences of neighbouring numbers overlap, so the position is spread first.
        let mut random = Random::new(self.seed ^ Random::new(position as u64).bits());
        let mut unit = || f64::from(random.unit());
        let p = self.acceptance;
        let confidence = p + (2.0 * unit() - 1.0) * SPREAD * p.min(1.0 - p);
        (unit() < confidence, confidence)
    }

    /// Replaces proposals that follow `position`, as far as the tokens there are known.
    fn rewrite(&self, draft: &mut Draft, position: usize, vocab_size: usize) {
        let next = position + 1;
        let known = self.tokens.get(next..).unwrap_or_default();
        for (i, (&token, proposal)) in known.iter().zip(&mut draft.tokens).enumerate() {
            let (right, confidence) = self.luck(next + i);
            let other = (token + 1) % vocab_size as u32;
            *proposal = if right { token } else { other };
            if let Some(sure) = draft.confidence.get_mut(i) {
                *sure = confidence;
            }
        }
    }
}

/// The script of an engine's sequences; without one drafters propose what they propose.
#[derive(Default)]
pub(crate) struct Rehearsal(Mutex<Option<Script>>);

impl Rehearsal {
    pub fn set(&self, script: Option<Script>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = script;
    }

    fn rewrite(&self, draft: &mut Draft, position: usize, vocab_size: usize) {
        if let Some(script) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            script.rewrite(draft, position, vocab_size);
        }
    }
}

/// Another drafter.
pub(crate) struct Rehearsed<B: Backend> {
    pub inner: Arc<dyn Drafter<B>>,
    pub rehearsal: Arc<Rehearsal>,
}

impl<B: Backend> Drafter<B> for Rehearsed<B> {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn block_size(&self) -> usize {
        self.inner.block_size()
    }

    fn pages(&self) -> KvSpec {
        self.inner.pages()
    }

    fn context_bytes(&self) -> u64 {
        self.inner.context_bytes()
    }

    fn context(&self) -> DFlashContext<B> {
        self.inner.context()
    }

    fn taps(&self) -> &[usize] {
        self.inner.taps()
    }

    fn reach(&self) -> usize {
        self.inner.reach()
    }

    fn observe(&self, backend: &B, batch: &mut [Seen<'_, B>]) -> Vec<Result<(), ModelError>> {
        self.inner.observe(backend, batch)
    }

    fn draft(&self, backend: &B, target: &MuseText<B>, batch: &mut [Asked<'_, B>]) -> Vec<Result<Draft, DraftError>> {
        let mut drafts = self.inner.draft(backend, target, batch);
        for (draft, asked) in drafts.iter_mut().zip(batch) {
            if let Ok(draft) = draft {
                self.rehearsal.rewrite(draft, asked.context.end(), target.config().vocab_size);
            }
        }
        drafts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confidences_are_honest() {
        for acceptance in [0.0, 0.2, 0.5, 0.8, 1.0] {
            let script = Script { tokens: Vec::new(), acceptance, seed: 3 };
            let n = 40_000;
            let (mut right, mut sum, mut sure) = (0, 0.0, [(0, 0); 2]);
            for position in 0..n {
                let (hit, confidence) = script.luck(position);
                assert!((0.0..=1.0).contains(&confidence));
                right += usize::from(hit);
                sum += confidence;
                let group = &mut sure[usize::from(confidence > acceptance)];
                *group = (group.0 + usize::from(hit), group.1 + 1);
            }
            let share = |(hits, of): (usize, usize)| hits as f64 / of.max(1) as f64;
            assert!((share((right, n)) - acceptance).abs() < 0.01, "{acceptance}: {right}");
            assert!((sum / n as f64 - acceptance).abs() < 0.01, "{acceptance}: {sum}");
            if acceptance == 0.5 {
                assert!(share(sure[1]) - share(sure[0]) > 0.08, "{sure:?}");
            }
            // Neighbours know nothing of each other.
            let both = (0..n).filter(|&position| script.luck(position).0 && script.luck(position + 1).0).count();
            assert!((share((both, n)) - acceptance * acceptance).abs() < 0.012, "{acceptance}: {both}");
        }
    }

    #[test]
    fn only_what_is_known_is_replaced() {
        let script = |acceptance| Script { tokens: vec![5, 6, 7, 9], acceptance, seed: 1 };
        let draft = Draft { tokens: vec![1, 2, 3], confidence: vec![0.3; 3] };
        for (acceptance, position, tokens, confidence) in [
            (1.0, 0, [6, 7, 9], [1.0; 3]),
            (0.0, 0, [7, 8, 0], [0.0; 3]),
            (1.0, 2, [9, 2, 3], [1.0, 0.3, 0.3]),
            (1.0, 9, [1, 2, 3], [0.3; 3]),
        ] {
            let mut draft = draft.clone();
            script(acceptance).rewrite(&mut draft, position, 10);
            assert_eq!((draft.tokens, draft.confidence), (tokens.to_vec(), confidence.to_vec()));
        }
    }
}

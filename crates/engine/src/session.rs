//! One sequence: what is in the cache, and what passes extend it with.

use crate::EngineError;
use crate::batch::{Batch, Begun};
use crate::engine::{Active, Loaded};
use crate::pass::{Out, Want};
use crate::sampling::{Chain, DrawError};
use crate::speculative::{self, DraftWidth, Proposed, Round, Speculation};
use glimmer_backend::{Backend, PAGE};
use glimmer_model::muse::TextCache;
use glimmer_model::observe::FirstNonFinite;
use std::sync::Arc;

/// Tokens of a long prompt between which its beginning is kept: a sliding layer needs its window there, which is a quarter of what it
/// would take to keep everything.
const KEEP_EVERY: usize = 32 * PAGE;

/// One mutable timeline over a loaded model: its tokens, their keys and values, and the drafter's context.
pub struct Session {
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) cache: TextCache<Active>,
    speculation: Speculation<Active>,
    /// The tokens in the cache.
    pub(crate) tokens: Vec<u32>,
}

/// How much of a prompt had to be processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefill {
    /// Tokens that were in the cache already.
    pub cached: usize,
    /// Tokens that were processed.
    pub new: usize,
}

impl Session {
    pub(crate) fn new(loaded: Arc<Loaded>) -> Self {
        let (positions, widest) = (loaded.geometry.positions(), loaded.geometry.widest());
        let cache = loaded.target.cache(positions, widest, loaded.settings.cache);
        let speculation = Speculation::new(loaded.drafter.clone(), loaded.lookup, &loaded.experience);
        Self { loaded, cache, speculation, tokens: Vec::new() }
    }

    /// The tokens in the cache.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Brings the cache to the prompt, which may share its beginning with what is there, and returns the logits after the
    /// prompt's last token. `progress` is told the tokens that are done, and may end the prefill by returning false: then
    /// there are no logits. With `drafting` the drafter observes what it will need.
    ///
    /// [`Session::generate`] is made of what this, [`draw_first`](Self::draw_first) and [`round`](Self::round) are made of.
    ///
    /// # Panics
    /// If the prompt is empty, or longer than the context.
    pub fn prefill(
        &mut self,
        prompt: &[u32],
        drafting: bool,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<(Prefill, Option<Vec<f32>>), EngineError> {
        let prefill = self.begin(prompt, drafting);
        let (mut logits, loaded) = (None, Arc::clone(&self.loaded));
        while logits.is_none() {
            if !progress(self.tokens.len(), prompt.len()) {
                return Ok((prefill, None));
            }
            let want = self.want_prompt(prompt, loaded.geometry.prefill_chunk);
            let prompts = vec![(&mut *self, want)];
            let out = Batch { rounds: Vec::new(), prompts }.step(&loaded)?.prompts.remove(0);
            logits = self.take_prompt(prompt, out)?;
        }
        progress(prompt.len(), prompt.len());
        Ok((prefill, logits))
    }

    /// Goes back to where the prompt's beginning ends that is there, or has been kept.
    pub(crate) fn begin(&mut self, prompt: &[u32], drafting: bool) -> Prefill {
        self.speculation.start(drafting);
        let shared = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        // The last token is processed in any case: its logits are wanted.
        let most = prompt.len() - 1;
        let mut kept = self.rewind(shared.min(most));
        let loaded = Arc::clone(&self.loaded);
        let hit = loaded.prefix().and_then(|mut prefix| prefix.find(&loaded.backend, prompt, most, &self.cache));
        if let Some(hit) = hit.filter(|hit| hit.len > kept) {
            kept = hit.len;
            self.reset();
            self.tokens.extend(&prompt[..kept]);
            self.speculation.adopt(kept, hit.adopt(&mut self.cache));
        }
        Prefill { cached: kept, new: prompt.len() - kept }
    }

    /// The next rows of the prompt, at most so many.
    pub(crate) fn want_prompt(&self, prompt: &[u32], rows: usize) -> Want {
        let start = self.tokens.len();
        let mut end = prompt.len().min(start + rows);
        if self.loaded.prefix().is_some() {
            // What is kept on the way ends with a page.
            end = end.min((start / KEEP_EVERY + 1) * KEEP_EVERY);
        }
        let logits = if end == prompt.len() { end - start - 1..end - start } else { 0..0 };
        Want { ids: prompt[start..end].to_vec(), logits, tap: end + self.speculation.reach() > prompt.len() }
    }

    /// Takes in rows of the prompt. At its end, the logits after its last token.
    pub(crate) fn take_prompt(&mut self, prompt: &[u32], out: Out) -> Result<Option<Vec<f32>>, EngineError> {
        let loaded = Arc::clone(&self.loaded);
        let (rows, _) = loaded.backend.shape(&out.x);
        let start = self.tokens.len() - rows;
        // Only the last row's logits are looked at: what an earlier row did wrong has to be seen here.
        if !loaded.backend.read(&out.x).iter().all(|x| x.is_finite()) {
            return Err(self.name_non_finite(start));
        }
        let done = self.tokens.len() == prompt.len();
        if done || self.tokens.len().is_multiple_of(KEEP_EVERY) {
            self.keep();
        }
        Ok(done.then_some(out.logits))
    }

    /// Keeps the sequence as it is for prompts that begin like it.
    pub(crate) fn keep(&mut self) {
        let loaded = Arc::clone(&self.loaded);
        if let Some(mut prefix) = loaded.prefix() {
            let drafter = self.speculation.context(&loaded.backend);
            prefix.keep(&loaded.backend, &self.tokens, &self.cache, drafter);
        }
    }

    /// One round from `anchor`, the newest token, which is not in the cache yet: proposals, one pass over all rows, and the
    /// draws. Without a preceding prefill that drafts, and after the drafter failed, a round is one row wide, as it is where
    /// there is nothing to look up. The cache ends up with the anchor and the accepted proposals.
    ///
    /// # Panics
    /// If the width is larger than the drafter's block, or the context is full.
    pub fn round(&mut self, anchor: u32, width: DraftWidth, chain: &mut Chain) -> Result<Round, EngineError> {
        let loaded = Arc::clone(&self.loaded);
        let rounds = vec![Begun { session: self, chain, anchor, width }];
        Batch { rounds, prompts: Vec::new() }.step(&loaded)?.rounds.remove(0)
    }

    /// What proposes, and the tokens that it goes by.
    pub(crate) fn speculating(&mut self) -> (&mut Speculation<Active>, &[u32]) {
        (&mut self.speculation, &self.tokens)
    }

    /// Draws from the rows of a round.
    pub(crate) fn take_round(
        &mut self,
        proposed: Proposed,
        logits: Vec<f32>,
        chain: &mut Chain,
    ) -> Result<Round, EngineError> {
        let Proposed { tokens: proposals, trace, .. } = proposed;
        let width = proposals.len() + 1;
        let position = self.tokens.len() - width;
        let tokens = match speculative::fold(chain, &logits, &proposals, position) {
            Ok(tokens) => tokens,
            Err((row, cause)) => return Err(self.explain(position, row, cause)),
        };
        self.rewind(position + tokens.len()); // the anchor and the accepted proposals
        let (accepted, notice) = (tokens.len() - 1, self.speculation.trouble());
        Ok(Round { width, proposals, accepted, tokens, logits, trace, notice })
    }

    /// Takes what was tapped in a pass, of which the first `rows` rows are the newest tokens, for a drafter that will be asked.
    pub(crate) fn tap(&mut self, states: Option<<Active as Backend>::Tensor>, rows: usize) {
        if let Some(states) = states.filter(|_| self.taps().is_some()) {
            let b = &self.loaded.backend;
            self.speculation.take(b, b.rows(&states, 0..rows), self.tokens.len() - rows);
        }
    }

    /// Takes in what came of a round, and how long it took.
    pub(crate) fn learn(&mut self, width: DraftWidth, round: &Round) {
        self.speculation.learn(width, round);
    }

    /// The layers that the drafter taps, where it observes.
    pub(crate) fn taps(&self) -> Option<&[usize]> {
        self.speculation.taps()
    }

    /// Draws the token after the prompt from the logits that [`prefill`](Self::prefill) gave.
    pub fn draw_first(&mut self, logits: &[f32], chain: &mut Chain) -> Result<u32, EngineError> {
        let position = self.tokens.len();
        match chain.draw(logits, position as u64) {
            Ok(token) => {
                chain.accept(token);
                Ok(token)
            }
            Err(cause) => Err(self.explain(position - 1, 0, cause)),
        }
    }

    /// Cuts the sequence back to at most `len` tokens and returns how many it kept: `len`, or 0 where the windows before
    /// it are gone.
    pub fn rewind(&mut self, len: usize) -> usize {
        let len = match self.cache.truncate(len.min(self.tokens.len())) {
            Ok(()) => len.min(self.tokens.len()),
            Err(_) => {
                self.reset();
                0
            }
        };
        self.tokens.truncate(len);
        self.speculation.truncate(&self.loaded.backend, len);
        len
    }

    /// Forgets the sequence.
    pub fn reset(&mut self) {
        // An empty cache is always within reach.
        let _ = self.cache.truncate(0);
        self.tokens.clear();
        self.speculation.reset();
    }

    /// Turns a failed draw into an error: of row `row` of the last pass, which began at `start`. Afterwards the sequence is
    /// forgotten.
    fn explain(&mut self, start: usize, row: usize, cause: DrawError) -> EngineError {
        match cause {
            DrawError::NonFinite { .. } => self.name_non_finite(start),
            cause => {
                self.reset();
                EngineError::Draw { position: start + row + 1, cause }
            }
        }
    }

    /// Repeats the pass from `start` on with every layer's output read, to name the first that is not finite.
    fn name_non_finite(&mut self, start: usize) -> EngineError {
        let rows = self.tokens[start..].to_vec();
        let mut first = FirstNonFinite::default();
        if self.rewind(start) == start {
            let loaded = Arc::clone(&self.loaded);
            // As many rows had memory before; where they have none, the logits are named.
            let _ = loaded.target.forward(&loaded.backend, &mut self.cache, &rows, &mut first);
        }
        self.reset();
        match first.found {
            Some((None, row)) => EngineError::NonFinite { position: start + row, place: "in the embedding".into() },
            Some((Some(layer), row)) => {
                EngineError::NonFinite { position: start + row, place: format!("first after layer {layer}") }
            }
            None => EngineError::NonFinite { position: start + rows.len() - 1, place: "in the logits".into() },
        }
    }
}

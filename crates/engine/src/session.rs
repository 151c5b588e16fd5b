//! One sequence: what is in the cache, and the forward passes that extend it.

use crate::EngineError;
use crate::engine::{Active, Loaded};
use crate::sampling::{Chain, DrawError};
use crate::speculative::{self, DraftWidth, Place, Proposed, Round, Speculation};
use glimmer_backend::Backend;
use glimmer_model::muse::TextCache;
use glimmer_model::observe::{FirstNonFinite, Taps, Unobserved};
use std::sync::Arc;
use std::time::Instant;

/// One mutable timeline over a loaded model: its tokens, their keys and values, and the drafter's context.
pub struct Session {
    pub(crate) loaded: Arc<Loaded>,
    cache: TextCache<Active>,
    speculation: Speculation<Active>,
    /// The tokens in the cache.
    tokens: Vec<u32>,
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
        let drafter = loaded.drafter.as_ref().map(|drafter| (Arc::clone(drafter).start(), drafter.block_size()));
        let speculation = Speculation::new(drafter, loaded.lookup, &loaded.experience);
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
    /// [`Session::generate`] is made of this, [`draw_first`](Self::draw_first) and [`round`](Self::round).
    ///
    /// # Panics
    /// If the prompt is empty, or longer than the context.
    pub fn prefill(
        &mut self,
        prompt: &[u32],
        drafting: bool,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<(Prefill, Option<Vec<f32>>), EngineError> {
        self.speculation.start(drafting);
        let shared = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        // The last token is processed in any case: its logits are wanted.
        let kept = self.rewind(shared.min(prompt.len() - 1));
        let prefill = Prefill { cached: kept, new: prompt.len() - kept };
        let loaded = Arc::clone(&self.loaded);
        let chunk = loaded.geometry.prefill_chunk;
        let reach = self.speculation.reach();
        let mut logits = None;
        while self.tokens.len() < prompt.len() {
            let start = self.tokens.len();
            if !progress(start, prompt.len()) {
                return Ok((prefill, None));
            }
            let end = prompt.len().min(start + chunk);
            let wanted = end + reach > prompt.len();
            let rows = if end == prompt.len() { end - start - 1..end - start } else { 0..0 };
            let out = self.forward(&prompt[start..end], rows, wanted)?;
            // Only the last row's logits are looked at: what an earlier row did wrong has to be seen here.
            if !loaded.backend.read(&out.x).iter().all(|x| x.is_finite()) {
                return Err(self.name_non_finite(start));
            }
            if let Some(states) = out.states {
                self.speculation.take(&loaded.backend, states, start);
            }
            logits = Some(out.logits);
        }
        progress(prompt.len(), prompt.len());
        Ok((prefill, logits))
    }

    /// One round from `anchor`, the newest token, which is not in the cache yet: proposals, one pass over all rows, and the
    /// draws. Without a preceding prefill that drafts, and after the drafter failed, a round is one row wide, as it is where
    /// there is nothing to look up. The cache ends up with the anchor and the accepted proposals.
    ///
    /// # Panics
    /// If the width is larger than the drafter's block, or the context is full.
    pub fn round(&mut self, anchor: u32, width: DraftWidth, chain: &mut Chain) -> Result<Round, EngineError> {
        let loaded = Arc::clone(&self.loaded);
        let (b, position) = (&loaded.backend, self.tokens.len());
        let place = Place { backend: b, target: &loaded.target, verified: &self.tokens, anchor };
        let mut proposed = self.speculation.propose(place, width, chain);
        let started = Instant::now();
        let mut rows = vec![anchor];
        rows.extend(&proposed.tokens);
        let out = self.forward(&rows, 0..rows.len(), true)?;
        let tokens = match speculative::fold(chain, &out.logits, &proposed.tokens, position) {
            Ok(tokens) => tokens,
            Err((row, cause)) => return Err(self.explain(position, row, cause)),
        };
        let verified = tokens.len(); // the anchor and the accepted proposals
        self.rewind(position + verified);
        proposed.trace.verify = started.elapsed();
        if let Some(states) = &out.states {
            self.speculation.take(b, b.rows(states, 0..verified), position);
        }
        let accepted = verified - 1;
        self.speculation.learn(width, &proposed, accepted);
        let Proposed { tokens: proposals, trace, notice, .. } = proposed;
        Ok(Round { width: rows.len(), proposals, accepted, tokens, logits: out.logits, trace, notice })
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

    fn forward(&mut self, ids: &[u32], logits_of: std::ops::Range<usize>, tap: bool) -> Result<Out, EngineError> {
        let loaded = &self.loaded;
        let (b, target) = (&loaded.backend, &loaded.target);
        let (x, states) = match self.speculation.taps().filter(|_| tap) {
            Some(layers) => {
                let mut taps = Taps::new(layers);
                let x = target.forward(b, &mut self.cache, ids, &mut taps)?;
                (x, Some(taps.concat(b)))
            }
            None => (target.forward(b, &mut self.cache, ids, &mut Unobserved)?, None),
        };
        self.tokens.extend(ids);
        let logits = match logits_of.is_empty() {
            true => Vec::new(),
            false => b.read(&target.logits(b, &x, logits_of, &mut Unobserved)),
        };
        Ok(Out { x, logits, states })
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

/// What a pass gives.
struct Out {
    x: <Active as Backend>::Tensor, // (rows, hidden)
    logits: Vec<f32>,
    states: Option<<Active as Backend>::Tensor>,
}

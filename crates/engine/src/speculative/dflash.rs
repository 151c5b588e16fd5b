//! DFlash, of either version, as a [`Drafter`].

use super::{Draft, DraftError, Drafter, DrafterModel};
use crate::prefix::{Continued, Observed};
use crate::sampling::Chain;
use glimmer_backend::{Backend, KvSpec};
use glimmer_checkpoint::Checkpoint;
use glimmer_model::ModelError;
use glimmer_model::dflash::{self, DFlashConfig, DFlashContext};
use glimmer_model::muse::MuseText;
use glimmer_model::observe::Unobserved;
use std::sync::Arc;

/// The weights.
pub struct DFlash<B: Backend> {
    model: dflash::DFlash<B>,
}

impl<B: Backend> DFlash<B> {
    pub fn load(
        backend: &B,
        checkpoint: &Checkpoint,
        config: DFlashConfig,
        loaded: &mut (dyn FnMut(u64) + Send),
    ) -> Result<Self, ModelError> {
        Ok(Self { model: dflash::DFlash::load(backend, checkpoint, config, loaded)? })
    }
}

impl<B: Backend> DrafterModel<B> for DFlash<B> {
    fn kind(&self) -> &'static str {
        match self.model.selector() {
            None => "dflash",
            Some(_) => "dflash2",
        }
    }

    fn block_size(&self) -> usize {
        self.model.config().block_size
    }

    fn pages(&self) -> KvSpec {
        self.model.config().pages()
    }

    fn context_bytes(&self) -> u64 {
        self.model.config().context_bytes()
    }

    fn start(self: Arc<Self>) -> Box<dyn Drafter<B>> {
        let context = self.model.context();
        Box::new(DFlashDrafter { weights: self, context })
    }
}

/// The weights with the context of one sequence.
struct DFlashDrafter<B: Backend> {
    weights: Arc<DFlash<B>>,
    context: DFlashContext<B>,
}

impl<B: Backend> Drafter<B> for DFlashDrafter<B> {
    fn taps(&self) -> &[usize] {
        &self.weights.model.config().target_layer_ids
    }

    fn reach(&self) -> usize {
        let config = self.weights.model.config();
        config.sliding_window + config.block_size
    }

    fn observe(&mut self, backend: &B, states: &B::Tensor, position: usize) -> Result<(), ModelError> {
        self.weights.model.observe(backend, &mut self.context, states, position, &mut Unobserved)
    }

    fn draft(
        &mut self,
        b: &B,
        target: &MuseText<B>,
        anchor: u32,
        position: usize,
        width: usize,
        chain: &mut Chain,
    ) -> Result<Draft, DraftError> {
        let model = &self.weights.model;
        debug_assert_eq!(self.context.end(), position, "the anchor follows what was observed");
        let mut block = vec![model.config().mask_token_id; width];
        block[0] = anchor;
        let hidden = model.draft(b, &mut self.context, target.embed_raw(b, &block), &mut Unobserved)?;
        let proposing = b.rows(&hidden, 1..width);
        let logits = target.bare_logits(b, &proposing);
        let config = target.config();
        let codes = model.selector().map(|selector| (selector, selector.codes(b, &proposing)));
        // Bare logits are several times too hot for anything but an argmax.
        let logits = match chain.is_plain_argmax() && codes.is_none() {
            true => logits,
            false => b.softcap(logits, config.output_multiplier, config.final_logit_softcapping),
        };
        let mut draft = Draft::default();
        for (row, logits) in b.read(&logits).chunks_exact(config.vocab_size).enumerate() {
            let position = position + 1 + row;
            let (at, pending) = (position as u64, &draft.tokens);
            let proposal = match &codes {
                None => chain.propose(logits, at, pending),
                Some((selector, codes)) => {
                    let previous = pending.last().copied().unwrap_or(anchor);
                    let edges = |candidates: &[u32]| selector.edges(b, previous, &codes[row], candidates);
                    chain.propose_among(logits, at, pending, selector.top_k(), edges)
                }
            };
            let proposal = proposal.map_err(|cause| DraftError::Output { position, cause })?;
            draft.tokens.push(proposal.token);
            draft.confidence.push(proposal.probability);
        }
        Ok(draft)
    }

    fn truncate(&mut self, len: usize) {
        self.context.truncate(len);
    }

    fn reset(&mut self) {
        self.context.reset();
    }

    fn context(&self) -> Option<Observed<'_, B>> {
        Some(Observed { layers: self.context.layers(), held: self.context.held() })
    }

    fn adopt(&mut self, len: usize, from: Continued<B>) {
        self.context.adopt(len, from.start, from.pages);
    }
}

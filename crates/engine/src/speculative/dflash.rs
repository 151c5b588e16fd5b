//! DFlash, of either version, as a [`Drafter`].

use super::{Asked, Draft, DraftError, Drafter};
use glimmer_backend::{Backend, KvSpec};
use glimmer_checkpoint::Checkpoint;
use glimmer_model::ModelError;
use glimmer_model::dflash::{self, Block, DFlashConfig, DFlashContext, Seen};
use glimmer_model::muse::MuseText;
use glimmer_model::observe::Unobserved;

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

    /// The path through the rows behind the anchor, position by position, of their logits and, in DFlash 2, their codes.
    fn path(
        &self,
        b: &B,
        asked: &mut Asked<'_, B>,
        logits: &[f32], // (rows, vocab)
        codes: &[Vec<f32>],
    ) -> Result<Draft, DraftError> {
        let mut draft = Draft::default();
        for (row, logits) in logits.chunks_exact(logits.len() / (asked.width - 1)).enumerate() {
            let position = asked.context.end() + 1 + row;
            let (at, pending) = (position as u64, &draft.tokens);
            let proposal = match self.model.selector() {
                None => asked.chain.propose(logits, at, pending),
                Some(selector) => {
                    let previous = pending.last().copied().unwrap_or(asked.anchor);
                    let edges = |candidates: &[u32]| selector.edges(b, previous, &codes[row], candidates);
                    asked.chain.propose_among(logits, at, pending, selector.top_k(), edges)
                }
            };
            let proposal = proposal.map_err(|cause| DraftError::Output { position, cause })?;
            draft.tokens.push(proposal.token);
            draft.confidence.push(proposal.probability);
        }
        Ok(draft)
    }
}

impl<B: Backend> Drafter<B> for DFlash<B> {
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

    fn context(&self) -> DFlashContext<B> {
        self.model.context()
    }

    fn taps(&self) -> &[usize] {
        &self.model.config().target_layer_ids
    }

    fn reach(&self) -> usize {
        let config = self.model.config();
        config.sliding_window + config.block_size
    }

    fn observe(&self, backend: &B, batch: &mut [Seen<'_, B>]) -> Vec<Result<(), ModelError>> {
        self.model.observe_all(backend, batch, &mut Unobserved)
    }

    fn draft(&self, b: &B, target: &MuseText<B>, batch: &mut [Asked<'_, B>]) -> Vec<Result<Draft, DraftError>> {
        let (model, config) = (&self.model, target.config());
        let block = |asked: &Asked<'_, B>| {
            let mut ids = vec![model.config().mask_token_id; asked.width];
            ids[0] = asked.anchor;
            target.embed_raw(b, &ids)
        };
        let embeds: Vec<B::Tensor> = batch.iter().map(block).collect();
        let blocks = batch.iter_mut().zip(embeds).map(|(asked, embeds)| Block { context: asked.context, embeds });
        let hidden = model.draft_all(b, &mut blocks.collect::<Vec<_>>(), &mut Unobserved);
        // All rows but the anchors'.
        let proposing = hidden.iter().zip(&*batch).filter_map(|(hidden, asked)| Some((hidden.as_ref().ok()?, asked)));
        let proposing: Vec<B::Tensor> = proposing.map(|(hidden, asked)| b.rows(hidden, 1..asked.width)).collect();

        let plain = |asked: &Asked<'_, B>| model.selector().is_none() && asked.chain.is_plain_argmax();
        let (mut bare, mut capped, mut codes) = (Vec::new(), Vec::new(), Vec::new());
        if !proposing.is_empty() {
            // One product for all of them: the head is read once.
            let proposing = b.concat_rows(&proposing.iter().collect::<Vec<_>>());
            codes = model.selector().map(|selector| selector.codes(b, &proposing)).unwrap_or_default();
            let logits = target.bare_logits(b, &proposing);
            // Bare logits are several times too hot for anything but an argmax.
            if batch.iter().any(plain) {
                bare = b.read(&logits);
            }
            if !batch.iter().all(plain) {
                capped = b.read(&b.softcap(logits, config.output_multiplier, config.final_logit_softcapping));
            }
        }
        let mut start = 0;
        let draft = |(hidden, asked): (Result<B::Tensor, ModelError>, &mut Asked<'_, B>)| {
            hidden?;
            let rows = start..start + asked.width - 1;
            start = rows.end;
            let logits = if plain(asked) { &bare } else { &capped };
            let logits = &logits[rows.start * config.vocab_size..rows.end * config.vocab_size];
            self.path(b, asked, logits, codes.get(rows).unwrap_or_default())
        };
        hidden.into_iter().zip(batch).map(draft).collect()
    }
}

//! Speculation: drafters propose, the target's own draw decides.
//!
//! A proposal is accepted when it equals what the target draws at its position, so a drafter can change the speed of a
//! generation and nothing else.

mod dflash;
mod round;

pub use round::Round;
pub(crate) use round::fold;

use crate::sampling::{Chain, DrawError};
use crate::{EngineError, suspicion};
use glimmer_backend::Backend;
use glimmer_checkpoint::Checkpoint;
use glimmer_model::ModelError;
use glimmer_model::dflash::DFlashConfig;
use glimmer_model::muse::{MuseText, TextConfig};
use std::sync::Arc;

/// A drafter's weights, from which each session makes its own [`Drafter`].
pub trait DrafterModel<B: Backend>: Send + Sync {
    /// How a user knows it, for example `dflash`.
    fn kind(&self) -> &'static str;
    /// The most rows of a round: the anchor and `block_size - 1` proposals.
    fn block_size(&self) -> usize;
    /// A drafter with an empty context.
    fn start(self: Arc<Self>, backend: &B) -> Result<Box<dyn Drafter<B>>, ModelError>;
}

/// Proposes what comes after the verified tokens of one sequence.
pub trait Drafter<B: Backend>: Send {
    /// Target layers whose outputs it wants to observe, in the order in which they are put side by side.
    fn taps(&self) -> &[usize];
    /// How many of the last positions it makes use of.
    fn reach(&self) -> usize;
    /// Takes the tapped states (rows, taps * hidden) of verified positions from `position` on.
    fn observe(&mut self, backend: &B, states: &B::Tensor, position: usize);
    /// Proposes the `width - 1` tokens after `anchor`, which stands at `position`, the first that was not observed.
    fn draft(
        &mut self,
        backend: &B,
        target: &MuseText<B>,
        anchor: u32,
        position: usize,
        width: usize,
        chain: &mut Chain,
    ) -> Result<Draft, DraftError>;
    /// Forgets positions from `len` on.
    fn truncate(&mut self, len: usize);
    /// Forgets everything.
    fn reset(&mut self);
}

/// What a drafter proposes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// How likely the drafter holds each of them, in 0..=1.
    pub confidence: Vec<f64>,
}

/// A drafter's logits that nothing can be proposed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftError {
    /// Position of the proposal.
    pub position: usize,
    /// Why.
    pub cause: DrawError,
}

/// A drafter's configuration, checked against its target, and its tensors, accounted for.
#[derive(Clone, Debug, PartialEq)]
pub enum Bound {
    /// DFlash v1.
    DFlash(DFlashConfig),
}

/// The registry: an architecture, and how a drafter of it is bound to a target.
type Bind = fn(&Checkpoint, &TextConfig, &str) -> Result<Bound, EngineError>;
const REGISTRY: &[(&str, Bind)] = &[("MuseGlimmerAssistantModel", |checkpoint, target, label| {
    let config = DFlashConfig::bind(checkpoint, target, label)?;
    checkpoint.account(&config.v1_tensors()).map_err(EngineError::from)?;
    Ok(Bound::DFlash(config))
})];

/// Binds a drafter to a target by the architecture that the drafter's configuration names.
pub(crate) fn bind(checkpoint: &Checkpoint, target: &TextConfig, target_label: &str) -> Result<Bound, EngineError> {
    let fields = checkpoint.fields();
    let known = || REGISTRY.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let names = fields.opt_str_list("architectures", 16)?.unwrap_or_default();
    let Some(&name) = names.first() else {
        return Err(fields.invalid("architectures", format!("a list that begins with one of {}", known())).into());
    };
    match REGISTRY.iter().find(|(registered, _)| *registered == name) {
        Some((_, bind)) => bind(checkpoint, target, target_label),
        None => Err(EngineError::UnknownDrafter {
            label: checkpoint.label().to_string(),
            found: name.escape_debug().take(80).collect(),
            known: known(),
        }),
    }
}

/// The configuration of a drafter by itself, its tensors accounted for; `None` where the checkpoint is something else.
pub(crate) fn drafter(checkpoint: &Checkpoint) -> Result<Option<DFlashConfig>, EngineError> {
    let fields = checkpoint.fields();
    if fields.opt_str("model_type")? != Some("muse_glimmer_assistant") {
        return Ok(None);
    }
    let config = DFlashConfig::from_fields(&fields)?;
    checkpoint.account(&config.v1_tensors())?;
    Ok(Some(config))
}

/// What is suspicious about the weights of a drafter that was bound.
pub(crate) fn suspicions(checkpoint: &Checkpoint) -> Result<Vec<String>, EngineError> {
    match drafter(checkpoint)? {
        Some(config) => suspicion::of_drafter(checkpoint, &config),
        None => Ok(Vec::new()),
    }
}

impl Bound {
    /// Loads the weights; `loaded` is told the bytes read so far.
    pub(crate) fn load<B: Backend>(
        self,
        backend: &B,
        checkpoint: &Checkpoint,
        loaded: &mut (dyn FnMut(u64) + Send),
    ) -> Result<Arc<dyn DrafterModel<B>>, EngineError> {
        match self {
            Bound::DFlash(config) => Ok(Arc::new(dflash::DFlash::load(backend, checkpoint, config, loaded)?)),
        }
    }

    /// The most rows of a round.
    pub fn block_size(&self) -> usize {
        match self {
            Bound::DFlash(config) => config.block_size,
        }
    }

    /// Bytes of a session's context.
    pub fn context_bytes(&self) -> u64 {
        match self {
            Bound::DFlash(config) => config.context_bytes(),
        }
    }
}

//! Speculation: drafters propose, the target's own draw decides.
//!
//! A proposal is accepted when it equals what the target draws at its position, so a drafter can change the speed of a
//! generation and nothing else.

mod dflash;
mod round;

pub use round::Round;
pub(crate) use round::fold;

use crate::EngineError;
use crate::sampling::{Chain, DrawError};
use glimmer_backend::Backend;
use glimmer_checkpoint::Checkpoint;
use glimmer_model::ModelError;
use glimmer_model::muse::MuseText;
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

/// The drafter architectures that are known: the registry of [`load`].
const KNOWN: &[&str] = &["MuseGlimmerAssistantModel"];

/// Loads a drafter for `target` by the architecture that its configuration names.
pub(crate) fn load<B: Backend>(
    backend: &B,
    checkpoint: &Checkpoint,
    target: &MuseText<B>,
    target_label: &str,
) -> Result<Arc<dyn DrafterModel<B>>, EngineError> {
    match architecture(checkpoint)?.as_str() {
        "MuseGlimmerAssistantModel" => {
            Ok(Arc::new(dflash::DFlash::load(backend, checkpoint, target.config(), target_label)?))
        }
        unknown => Err(unknown_drafter(checkpoint, unknown)),
    }
}

/// The architecture that a drafter's configuration names.
pub(crate) fn architecture(checkpoint: &Checkpoint) -> Result<String, EngineError> {
    let fields = checkpoint.fields();
    let names = fields.opt_str_list("architectures", 16)?.unwrap_or_default();
    match names.first() {
        Some(name) => Ok((*name).to_string()),
        None => {
            Err(fields.invalid("architectures", format!("a list that begins with one of {}", KNOWN.join(", "))).into())
        }
    }
}

pub(crate) fn unknown_drafter(checkpoint: &Checkpoint, found: &str) -> EngineError {
    EngineError::UnknownDrafter {
        label: checkpoint.label().to_string(),
        found: found.escape_debug().take(80).collect(),
        known: KNOWN.join(", "),
    }
}

//! Speculation: drafters propose, the target's own draw decides.
//!
//! A proposal is accepted when it equals what the target draws at its position, so a drafter can change the speed of a
//! generation and nothing else.

mod dflash;
mod ngram;
mod rehearsed;
mod round;
mod speculation;
mod width;

pub use ngram::BLOCK as NGRAM_BLOCK;
pub use rehearsed::Script;
pub(crate) use rehearsed::{Rehearsal, Rehearsed};
pub use round::Round;
pub(crate) use round::fold;
pub(crate) use speculation::{Proposals, Proposed, Speculation, Turn, catch_up, propose};
pub use speculation::{RoundTrace, StageTrace};
pub(crate) use width::Experience;
pub use width::{Estimate, Proposer};

use crate::sampling::{Chain, DrawError};
use crate::{EngineError, suspicion};
use glimmer_backend::{Backend, KvSpec};
use glimmer_checkpoint::Checkpoint;
use glimmer_model::ModelError;
use glimmer_model::dflash::{DFlashConfig, DFlashContext, Seen};
use glimmer_model::muse::{MuseText, TextConfig};
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// Rows of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DraftWidth {
    /// Each round as many as pay; none but the anchor where nothing does.
    Auto,
    /// So many: the anchor and one less proposals. 1 decodes plainly.
    Fixed(usize),
}

impl From<usize> for DraftWidth {
    fn from(rows: usize) -> Self {
        Self::Fixed(rows)
    }
}

impl fmt::Display for DraftWidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(rows) => rows.fmt(f),
        }
    }
}

/// A drafter: weights, which propose what comes after the verified tokens of any sequence. What it remembers of a sequence is a
/// context, of which each has one.
pub trait Drafter<B: Backend>: Send + Sync {
    /// How a user knows it, for example `dflash`.
    fn kind(&self) -> &'static str;
    /// The most rows of a round: the anchor and `block_size - 1` proposals.
    fn block_size(&self) -> usize;
    /// The shape of the pages of a context.
    fn pages(&self) -> KvSpec;
    /// Bytes of a context at most.
    fn context_bytes(&self) -> u64;
    /// An empty context.
    fn context(&self) -> DFlashContext<B>;
    /// Target layers whose outputs it wants to observe, in the order in which they are put side by side.
    fn taps(&self) -> &[usize];
    /// How many of the last positions it makes use of.
    fn reach(&self) -> usize;
    /// Takes tapped states of verified positions of several sequences, in one pass. What came of each: none depends on the others.
    fn observe(&self, backend: &B, batch: &mut [Seen<'_, B>]) -> Vec<Result<(), ModelError>>;
    /// Proposes for several sequences, in one pass. What came of each: none depends on the others.
    fn draft(&self, backend: &B, target: &MuseText<B>, batch: &mut [Asked<'_, B>]) -> Vec<Result<Draft, DraftError>>;
}

/// A sequence that a drafter is asked for proposals for.
pub struct Asked<'a, B: Backend> {
    /// What the drafter remembers of it: all that was verified.
    pub context: &'a mut DFlashContext<B>,
    /// Its processors and its noise.
    pub chain: &'a mut Chain,
    /// The newest token, at the first position that was not observed.
    pub anchor: u32,
    /// The anchor and one less proposals.
    pub width: usize,
}

/// What a drafter proposes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// How likely the drafter holds each of them, in 0..=1.
    pub confidence: Vec<f64>,
}

/// Why nothing can be proposed.
#[derive(Debug, Error)]
pub enum DraftError {
    /// The drafter's logits.
    #[error("its output at position {position}: {cause}")]
    Output {
        /// Position of the proposal.
        position: usize,
        /// Why.
        cause: DrawError,
    },
    /// Its pass.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// A drafter's configuration, checked against its target, and its tensors, accounted for.
#[derive(Clone, Debug, PartialEq)]
pub enum Bound {
    /// DFlash, of either version.
    DFlash(DFlashConfig),
}

/// The registry: an architecture, and how a drafter of it is bound to a target.
type Bind = fn(&Checkpoint, &TextConfig, &str) -> Result<Bound, EngineError>;
const REGISTRY: &[(&str, Bind)] = &[("MuseGlimmerAssistantModel", bind_dflash), ("DFlash2DraftModel", bind_dflash)];

fn bind_dflash(checkpoint: &Checkpoint, target: &TextConfig, target_label: &str) -> Result<Bound, EngineError> {
    let config = DFlashConfig::bind(checkpoint, target, target_label)?;
    checkpoint.account(&config.tensors())?;
    Ok(Bound::DFlash(config))
}

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
    if !DFlashConfig::describes(&fields)? {
        return Ok(None);
    }
    let config = DFlashConfig::from_fields(&fields)?;
    checkpoint.account(&config.tensors())?;
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
    ) -> Result<Arc<dyn Drafter<B>>, EngineError> {
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

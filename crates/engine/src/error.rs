//! Why the engine cannot do what it was asked for.

use crate::chat::message::MessageError;
use crate::chat::template::TemplateError;
use crate::sampling::{DrawError, SamplingError};
use crate::stops::StopError;
use crate::tokenizer::TokenizerError;
use glimmer_backend::{ActivationType, BackendError};
use glimmer_model::ModelError;
use std::path::PathBuf;
use thiserror::Error;

/// An error of the engine: one line that names what was expected and what was found.
#[derive(Debug, Error)]
pub enum EngineError {
    /// The checkpoint, or the drafter's, cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The backend cannot be started.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The tokenizer cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template cannot be used, or refuses the conversation.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A message is malformed.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A sampling setting cannot be honoured.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// A stop string cannot be honoured.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// The checkpoint has no such part.
    #[error("{label} has no {what}: {advice}")]
    Without {
        /// The checkpoint.
        label: String,
        /// What is missing.
        what: &'static str,
        /// What can be done without it.
        advice: &'static str,
    },
    /// There is no drafter where one is needed.
    #[error("{label}: there is no drafter for it: --draft-model names one")]
    NoDrafter {
        /// The target.
        label: String,
    },
    /// A drafter changed the output, which none can.
    #[error("{label}: the tokens of rounds of {rows} rows are not those of plain decoding: nothing is stored")]
    Differs {
        /// The target.
        label: String,
        /// Rows of a round.
        rows: usize,
    },
    /// An architecture that no drafter is registered for.
    #[error("{label}: unknown drafter architecture `{found}` (known: {known})")]
    UnknownDrafter {
        /// The drafter's checkpoint.
        label: String,
        /// Its architecture.
        found: String,
        /// What is registered.
        known: String,
    },
    /// An encoding that a container has no place for.
    #[error("{encoding} weights cannot be stored as {name}: expected {other}")]
    Container {
        /// The encoding.
        encoding: String,
        /// The container that was asked for.
        name: &'static str,
        /// Those that have it.
        other: &'static str,
    },
    /// No weight meets the activations that were asked for.
    #[error("{label}: no weight meets {activations} activations, as all are dense (--activations auto or f32 works)")]
    NoActivations {
        /// The checkpoint.
        label: String,
        /// What was asked for.
        activations: ActivationType,
    },
    /// A recipe that cannot be followed.
    #[error("recipe {recipe}: {what}")]
    Recipe {
        /// Its name or its file.
        recipe: String,
        /// What is wrong with it.
        what: String,
    },
    /// What a container cannot express.
    #[error("{label} cannot be stored as {format}: {what}")]
    Unstorable {
        /// The checkpoint.
        label: String,
        /// The container.
        format: &'static str,
        /// What it has no place for.
        what: String,
    },
    /// Two models that are to be compared do not share their tokens.
    #[error("{label} and {other} cannot be compared: {what}")]
    Vocabularies {
        /// The model.
        label: String,
        /// The reference.
        other: String,
        /// What differs.
        what: String,
    },
    /// Nothing to continue.
    #[error("the prompt is empty: expected at least one token")]
    EmptyPrompt,
    /// The prompt leaves no room.
    #[error("the prompt has {tokens} tokens, but the context holds {context} and one must be left for the answer")]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens that the context holds.
        context: usize,
    },
    /// An id that the model has no embedding for.
    #[error("token {id} of the prompt: expected an id below the vocabulary's size, {vocab_size}")]
    UnknownToken {
        /// The id.
        id: u32,
        /// The size of the vocabulary.
        vocab_size: usize,
    },
    /// A setting of the request or of the engine outside its range.
    #[error("{what} is {found}, expected {expected}")]
    Range {
        /// The setting.
        what: &'static str,
        /// Its value.
        found: usize,
        /// What is accepted.
        expected: String,
    },
    /// The machine has less memory than the model needs.
    #[error(
        "{label} needs {needed} bytes of memory ({weights} for weights, {cache} for a context of {context} tokens), \
         but only {available} are available; a smaller --ctx-size or a smaller checkpoint needs less, and --mmap holds no weights"
    )]
    NotEnoughMemory {
        /// The checkpoint.
        label: String,
        /// All that is needed, in bytes.
        needed: u64,
        /// Bytes of weights, the drafter's included.
        weights: u64,
        /// Bytes of caches.
        cache: u64,
        /// Tokens of the context.
        context: usize,
        /// Bytes that are available.
        available: u64,
    },
    /// The folder for keys and values cannot be used.
    #[error("{}: cannot be used for keys and values: {error}", dir.display())]
    PrefixFiles {
        /// The folder.
        dir: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A request that is longer than all memory for keys and values.
    #[error("a sequence of {tokens} tokens needs {needed} bytes of keys and values, but there are {most} for all")]
    NoRoom {
        /// Tokens of prompt and answer.
        tokens: usize,
        /// Bytes that they take.
        needed: u64,
        /// Bytes that there are.
        most: u64,
    },
    /// The forward pass gave something that is not a number.
    #[error("the model's output is not finite at position {position}: {place}")]
    NonFinite {
        /// Position of the row.
        position: usize,
        /// The layer where it began.
        place: String,
    },
    /// No token could be drawn.
    #[error("position {position}: {cause}")]
    Draw {
        /// Position of the token.
        position: usize,
        /// Why.
        cause: DrawError,
    },
}

impl From<glimmer_checkpoint::Error> for EngineError {
    fn from(error: glimmer_checkpoint::Error) -> Self {
        EngineError::Model(error.into())
    }
}

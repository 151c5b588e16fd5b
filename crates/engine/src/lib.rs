//! Engine and Session: prompts in, exactly reproducible tokens out.
//!
//! An [`Engine`] is a loaded model; a [`Session`] is one mutable timeline over it. [`Session::generate`] turns a
//! [`Request`] into [`Event`]s and a [`Generation`]. What a token is depends on the model, the prompt, the settings and
//! the seed alone. Nothing here knows HTTP or the JSON of any interface.

#![forbid(unsafe_code)]

mod batch;
pub mod bundle;
pub mod chat;
mod engine;
mod error;
mod generate;
mod gguf;
pub mod inspect;
pub mod memory;
mod obtain;
mod pass;
mod prefix;
pub mod quantize;
mod random;
pub mod sampling;
pub mod scheduler;
pub mod score;
mod session;
mod source;
pub mod speculative;
mod spill;
pub mod step;
pub mod stops;
mod suspicion;
pub mod synth;
pub mod tokenizer;
pub mod tune;

pub use engine::{DrafterSettings, Engine, EngineOptions, LoadProgress, PrefixFiles, Settings};
pub use error::EngineError;
pub use generate::{Event, Finish, Flow, Generation, Ongoing, Output, Request, RoundRecord, Timings, ToolMessage};
pub use glimmer_backend::{ActivationType, Isa, KvType, KvTypes, Limits};
pub use glimmer_checkpoint::hub;
pub use obtain::{Obtained, PairWidth};
pub use prefix::PrefixUsage;
pub use session::{Prefill, Session};
pub use source::{NanoDrafter, Source};
pub use speculative::{DraftWidth, RoundTrace, StageTrace};

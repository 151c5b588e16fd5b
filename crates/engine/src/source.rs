//! Where models come from: a path, or the pair that is part of the binary.

use crate::EngineError;
use glimmer_checkpoint::Checkpoint;
use std::fmt;
use std::path::PathBuf;

/// A target or a drafter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The embedded nano pair's part of that kind.
    Nano,
    /// A checkpoint on disk.
    Path(PathBuf),
}

macro_rules! nano {
    ($folder:literal: $($file:literal),*) => {
        &[$(($file, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../nano/", $folder, "/", $file)))),*]
    };
}

const TARGET: &[(&str, &[u8])] = nano!("target":
    "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    "chat_template.jinja");
const ASSISTANT: &[(&str, &[u8])] = nano!("assistant": "config.json", "model.safetensors");

impl Source {
    /// Opens a target.
    pub fn open_target(&self) -> Result<Checkpoint, EngineError> {
        self.open("nano", TARGET)
    }

    /// Opens a drafter.
    pub fn open_drafter(&self) -> Result<Checkpoint, EngineError> {
        self.open("nano-assistant", ASSISTANT)
    }

    fn open(&self, label: &str, files: &[(&'static str, &'static [u8])]) -> Result<Checkpoint, EngineError> {
        match self {
            Source::Nano => Ok(Checkpoint::embedded(label, files)?),
            Source::Path(path) => Ok(glimmer_checkpoint::open(path)?),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Nano => f.write_str("nano"),
            Source::Path(path) => path.display().fmt(f),
        }
    }
}

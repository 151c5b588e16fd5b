//! Where models come from: a path, a repository of the hub, or the pair that is part of the binary.

use crate::EngineError;
use glimmer_checkpoint::hub::{Hub, Pulling, Repository};
use glimmer_checkpoint::{Checkpoint, Error, Pair};
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

/// A target or a drafter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The embedded nano pair's part of that kind.
    Nano,
    /// A drafter that is embedded beside it, by its own name.
    NanoDrafter(NanoDrafter),
    /// A checkpoint on disk.
    Path(PathBuf),
    /// A model of the hub, which is [obtained](Self::obtain) before it can be opened.
    Repository(Repository),
    /// A model of the hub that is here.
    Snapshot {
        /// What it was asked for by.
        name: String,
        /// Where it is.
        path: PathBuf,
    },
}

/// An embedded drafter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NanoDrafter {
    /// DFlash v1, which is the pair's own.
    Assistant,
    /// DFlash 2.
    DFlash2,
}

/// The name of the embedded pair.
const NANO: &str = "nano";

macro_rules! nano {
    ($folder:literal: $($file:literal),*) => {
        &[$(($file, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../nano/", $folder, "/", $file)))),*]
    };
}

const TARGET: &[(&str, &[u8])] = nano!("target":
    "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    "chat_template.jinja");
const ASSISTANT: &[(&str, &[u8])] = nano!("assistant": "config.json", "model.safetensors");
const DFLASH2: &[(&str, &[u8])] = nano!("dflash2": "config.json", "model.safetensors");

impl NanoDrafter {
    const ALL: [NanoDrafter; 2] = [NanoDrafter::Assistant, NanoDrafter::DFlash2];

    fn name(self) -> &'static str {
        match self {
            NanoDrafter::Assistant => "nano-assistant",
            NanoDrafter::DFlash2 => "nano-dflash2",
        }
    }

    fn open(self) -> Result<Checkpoint, Error> {
        let files = match self {
            NanoDrafter::Assistant => ASSISTANT,
            NanoDrafter::DFlash2 => DFLASH2,
        };
        Checkpoint::embedded(self.name(), files)
    }
}

impl Source {
    /// What a name stands for. `nano` is the pair of this program unless there is a checkpoint of that name, `nano-assistant` and
    /// `nano-dflash2` are its drafters; `org/repo`, with a revision or a quantization or without, is a model of the hub unless `exists` knows such a path; all else is a path.
    pub fn named(name: &OsStr, exists: impl Fn(&Path) -> bool) -> Source {
        let path = Path::new(name);
        let embedded = name.to_str().and_then(Source::embedded);
        if let Some(source) = embedded.filter(|_| !exists(&path.join("config.json"))) {
            return source;
        }
        match name.to_str().and_then(Repository::parse) {
            Some(repository) if !exists(path) => Source::Repository(repository),
            _ => Source::Path(path.into()),
        }
    }

    /// What is part of this program by that name.
    pub fn embedded(name: &str) -> Option<Source> {
        let mut drafters = NanoDrafter::ALL.into_iter();
        match name {
            NANO => Some(Source::Nano),
            name => drafters.find(|drafter| drafter.name() == name).map(Source::NanoDrafter),
        }
    }

    /// Has a model of the hub here: from the cache without a request where all of it is there, else by downloading it. Where
    /// the two are, the environment says ([`Hub::from_environment`]).
    pub fn obtain(&mut self, watch: &mut dyn FnMut(&Repository, Pulling<'_>)) -> Result<(), EngineError> {
        if let Source::Repository(repository) = self {
            let path = Hub::from_environment()?.obtain(repository, &mut |pulling| watch(repository, pulling))?.path;
            *self = Source::Snapshot { name: repository.to_string(), path };
        }
        Ok(())
    }

    /// The pair, where this is a bundle of one.
    pub(crate) fn pair(&self) -> Result<Option<Pair>, EngineError> {
        match self {
            Source::Path(path) | Source::Snapshot { path, .. } => Ok(Pair::read(path)?),
            Source::Nano | Source::NanoDrafter(_) | Source::Repository(_) => Ok(None),
        }
    }

    /// A part of this bundle.
    pub(crate) fn part(&self, path: PathBuf) -> Source {
        match self {
            Source::Snapshot { name, .. } => {
                let part = path.file_name().unwrap_or_default().to_string_lossy();
                Source::Snapshot { name: format!("{name} ({part})"), path }
            }
            _ => Source::Path(path),
        }
    }

    /// Opens a target.
    pub fn open_target(&self) -> Result<Checkpoint, EngineError> {
        self.open(|| Checkpoint::embedded(NANO, TARGET))
    }

    /// Opens a drafter.
    pub fn open_drafter(&self) -> Result<Checkpoint, EngineError> {
        self.open(|| NanoDrafter::Assistant.open())
    }

    fn open(&self, nano: impl FnOnce() -> Result<Checkpoint, Error>) -> Result<Checkpoint, EngineError> {
        Ok(match self {
            Source::Nano => nano()?,
            Source::NanoDrafter(drafter) => drafter.open()?,
            Source::Path(path) => glimmer_checkpoint::open(path)?,
            Source::Snapshot { name, path } => glimmer_checkpoint::open(path)?.labelled(name),
            Source::Repository(name) => return Err(Error::NotFound { path: name.to_string() }.into()),
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Nano => f.write_str(NANO),
            Source::NanoDrafter(drafter) => f.write_str(drafter.name()),
            Source::Path(path) => path.display().fmt(f),
            Source::Repository(name) => name.fmt(f),
            Source::Snapshot { name, .. } => name.fmt(f),
        }
    }
}

//! Which container a checkpoint is in. Formats register here and nowhere else.

use crate::error::Error;
use crate::source::{Source, is_plain};
use crate::{Checkpoint, gguf, huggingface};

struct Container {
    /// Whether `open` is the one to ask. Looks at contents, cheaply.
    sniff: fn(&Source) -> Result<bool, Error>,
    open: fn(Source) -> Result<Checkpoint, Error>,
}

/// Asked in this order; the first that recognises the source opens it.
const CONTAINERS: [Container; 2] = [
    Container { sniff: is_gguf, open: gguf::open },
    Container { sniff: |source| Ok(source.is_directory()), open: huggingface::open },
];

pub(crate) fn open(source: Source) -> Result<Checkpoint, Error> {
    for container in &CONTAINERS {
        if (container.sniff)(&source)? {
            return (container.open)(source);
        }
    }
    Err(Error::Malformed {
        file: source.to_string(),
        what: "checkpoint".into(),
        expected: "a directory with config.json and model.safetensors, or a GGUF file".into(),
        found: "another file".into(),
    })
}

/// A file that begins as GGUF does, or a directory that has such a file and no safetensors.
fn is_gguf(source: &Source) -> Result<bool, Error> {
    if !source.is_directory() {
        return source.starts_with(None, gguf::MAGIC);
    }
    for name in huggingface::WEIGHTS {
        if source.open(name)?.is_some() {
            return Ok(false);
        }
    }
    for name in source.names()? {
        if name.ends_with(".gguf") && is_plain(&name) && source.starts_with(Some(&name), gguf::MAGIC)? {
            return Ok(true);
        }
    }
    Ok(false)
}

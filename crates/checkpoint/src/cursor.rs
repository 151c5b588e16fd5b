//! Walking into the names of a checkpoint, part by part.

use crate::{Checkpoint, Error, Tensor};
use std::fmt::Display;

/// A place among the tensor names. Parts of a model are loaded from one without knowing what they are part of.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    checkpoint: &'a Checkpoint,
    path: String,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint, path: String) -> Self {
        Self { checkpoint, path }
    }

    /// One part further: `layers.at(3).at("self_attn")`. An empty name stays here.
    pub fn at(&self, name: impl Display) -> Cursor<'a> {
        Cursor { checkpoint: self.checkpoint, path: self.join(&name.to_string()) }
    }

    /// Reads the tensor called `name` at this place; its shape has to be `shape`, outermost dimension first.
    ///
    /// # Errors
    /// As [`Checkpoint::read`], and [`Error::Malformed`] for another shape, before anything is read.
    pub fn read(&self, name: &str, shape: &[usize]) -> Result<Tensor<'a>, Error> {
        self.checkpoint.read_shaped(&self.join(name), shape)
    }

    /// The name up to here: "model.language_model.layers.3".
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The tensor called `name` at this place as messages name it: the file, and its name there.
    pub fn describe(&self, name: &str) -> String {
        self.checkpoint.describe(&self.join(name))
    }

    fn join(&self, name: &str) -> String {
        match (self.path.as_str(), name) {
            (path, "") => path.into(),
            ("", name) => name.into(),
            (path, name) => format!("{path}.{name}"),
        }
    }
}

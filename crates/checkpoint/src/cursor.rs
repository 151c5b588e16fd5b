//! Walking into the names of a checkpoint, part by part.

use crate::{Checkpoint, Error, Rows, Tensor};
use std::fmt::{self, Display};

/// A place among the tensor names. Parts of a model are loaded from one without knowing what they are part of.
#[derive(Clone)]
pub struct Cursor<'a> {
    checkpoint: &'a Checkpoint,
    path: String,
    watch: Option<&'a (dyn Fn(u64) + Sync)>,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint, path: String) -> Self {
        Self { checkpoint, path, watch: None }
    }

    /// The same place, from where `watch` is told the bytes of everything that is read, on the thread that reads it.
    pub fn watched(self, watch: &'a (dyn Fn(u64) + Sync)) -> Self {
        Self { watch: Some(watch), ..self }
    }

    /// One part further: `layers.at(3).at("self_attn")`. An empty name stays here.
    pub fn at(&self, name: impl Display) -> Cursor<'a> {
        Cursor { path: self.join(&name.to_string()), ..self.clone() }
    }

    /// Reads the tensor called `name` at this place; its shape has to be `shape`, outermost dimension first.
    ///
    /// # Errors
    /// As [`Checkpoint::read`], and [`Error::Malformed`] for another shape, before anything is read.
    pub fn read(&self, name: &str, shape: &[usize]) -> Result<Tensor<'a>, Error> {
        let tensor = self.checkpoint.read_shaped(&self.join(name), shape)?;
        if let Some(watch) = self.watch {
            watch(tensor.info().byte_len() as u64);
        }
        Ok(tensor)
    }

    /// The matrix called `name` at this place, whose rows are to be read piece by piece; its shape has to be `shape`.
    ///
    /// # Errors
    /// As [`read`](Self::read) for another shape. Reading its rows gives [`Error::Malformed`] where the file has been cut
    /// since it was opened, and [`Error::Io`].
    pub fn rows(&self, name: &str, shape: [usize; 2]) -> Result<Rows<'a>, Error> {
        self.checkpoint.rows(&self.join(name), shape, self.watch)
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

impl fmt::Debug for Cursor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cursor({:?})", self.path)
    }
}

//! Parts that the target and its drafters share.

use crate::ModelError;
use glimmer_backend::{Backend, BackendError, LoadError};
use glimmer_checkpoint::{Cursor, Error};
use std::sync::{Mutex, PoisonError};

/// Loads a weight matrix (outs, inputs).
pub fn weight<B: Backend>(backend: &B, at: &Cursor<'_>, outs: usize, inputs: usize) -> Result<B::Weight, ModelError> {
    backend.load_weight(&at.rows("weight", [outs, inputs])?).map_err(|error| failed(at, "weight", error))
}

/// Loads a table of embeddings (vocab, hidden).
pub fn table<B: Backend>(backend: &B, at: &Cursor<'_>, rows: usize, cols: usize) -> Result<B::Table, ModelError> {
    bare_table(backend, at, "weight", rows, cols)
}

/// Loads a table called `name` (rows, cols).
pub fn bare_table<B: Backend>(
    backend: &B,
    at: &Cursor<'_>,
    name: &str,
    rows: usize,
    cols: usize,
) -> Result<B::Table, ModelError> {
    backend.load_table(&at.rows(name, [rows, cols])?).map_err(|error| failed(at, name, error))
}

fn failed(at: &Cursor<'_>, name: &str, error: LoadError<Error>) -> ModelError {
    match error {
        LoadError::Source(error) => error.into(),
        LoadError::Backend(cause) => ModelError::Backend { what: at.describe(name), cause },
    }
}

/// Tells `loaded` how many bytes were read so far, from what a [`Cursor`] tells its watch.
pub fn counted<'a>(loaded: &'a mut (dyn FnMut(u64) + Send)) -> impl Fn(u64) + Sync + 'a {
    let state = Mutex::new((0, loaded));
    move |bytes| {
        let (done, loaded) = &mut *state.lock().unwrap_or_else(PoisonError::into_inner);
        *done += bytes;
        loaded(*done);
    }
}

/// Loads a norm's weight as it is.
pub fn norm<B: Backend>(backend: &B, at: &Cursor<'_>, len: usize) -> Result<B::Vector, ModelError> {
    Ok(backend.load_vector(vector(at, "weight", &[len])?))
}

/// Loads a zero-centred norm's weight w as 1 + w, in f32.
pub fn centred_norm<B: Backend>(backend: &B, at: &Cursor<'_>, len: usize) -> Result<B::Vector, ModelError> {
    Ok(backend.load_vector(vector(at, "weight", &[len])?.into_iter().map(|w| 1.0 + w).collect()))
}

/// The elements of the tensor called `name`, which are finite.
pub fn vector(at: &Cursor<'_>, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
    let values = at.read(name, shape)?.view().to_f32();
    match values.iter().position(|x| !x.is_finite()) {
        None => Ok(values),
        Some(at_element) => {
            let cols = shape.last().map_or(1, |&cols| cols.max(1));
            let cause = BackendError::NonFinite { row: at_element / cols, col: at_element % cols };
            Err(ModelError::Backend { what: at.describe(name), cause })
        }
    }
}

/// SwiGLU: down(silu(gate(x)) * up(x)).
pub struct Mlp<B: Backend> {
    gate_proj: B::Weight, // (intermediate, hidden)
    up_proj: B::Weight,   // (intermediate, hidden)
    down_proj: B::Weight, // (hidden, intermediate)
}

impl<B: Backend> Mlp<B> {
    /// Loads `gate_proj`, `up_proj`, `down_proj`.
    pub fn load(backend: &B, at: &Cursor<'_>, hidden: usize, intermediate: usize) -> Result<Self, ModelError> {
        Ok(Self {
            gate_proj: weight(backend, &at.at("gate_proj"), intermediate, hidden)?,
            up_proj: weight(backend, &at.at("up_proj"), intermediate, hidden)?,
            down_proj: weight(backend, &at.at("down_proj"), hidden, intermediate)?,
        })
    }

    /// The norm of x (rows, hidden) to (rows, hidden).
    pub fn forward_normed(&self, b: &B, x: &B::Tensor, norm: &B::Vector, eps: f32) -> B::Tensor {
        b.norm_mlp(x, Some(norm), eps, self.weights())
    }

    /// x (rows, hidden) to (rows, hidden).
    pub fn forward(&self, b: &B, x: &B::Tensor) -> B::Tensor {
        b.mlp(x, self.weights())
    }

    fn weights(&self) -> [&B::Weight; 3] {
        [&self.gate_proj, &self.up_proj, &self.down_proj]
    }
}

//! Checkpoints: found, checked, and read tensor by tensor.
//!
//! [`open`] looks at a path and gives a [`Checkpoint`]: the configuration, the small files beside it, and a table of
//! tensors of which no byte has been read. Everything that can be wrong with the files is found there or in
//! [`Checkpoint::account`], before work starts; what is wrong is one line that names file, tensor or field, what was
//! expected and what was found ([`Error`]).
//!
//! What can be read:
//!
//! - Hugging Face checkpoints, that is a directory with `config.json` and either `model.safetensors` or shards with
//!   `model.safetensors.index.json`, of bf16, f16 or f32; from disk or from bytes in the binary
//!   ([`Checkpoint::embedded`]);
//! - the same as MLX writes it, with modules quantized in its affine, mxfp4, mxfp8 and nvfp4 modes;
//! - GGUF (versions 2 and 3, in one file or in several) of a target or of a DFlash drafter, with tensors of floats or of any of ggml's
//!   block formats ([`GgmlType`](glimmer_encoding::GgmlType)).
//!
//! [`hub`] has models of the Hugging Face hub here, and [`Pair`] reads bundles of a target and its drafter.
//!
//! Whatever the container, names and configuration are those that Hugging Face has, and what a converter changed about
//! a tensor is undone when it is read. Files are read at offsets: a file that is cut while it is read is an error, not a
//! crash. Only [`Checkpoint::map`] maps them, for those who have not the memory and know the price. No input, however malformed, makes this crate panic, hang, or take more than tens of
//! megabytes beyond the tensors that are asked for.

#![deny(unsafe_code)]

mod checkpoint;
mod container;
mod cursor;
mod error;
mod fields;
mod fingerprint;
mod gguf;
pub mod hub;
mod huggingface;
mod index;
mod json;
mod mapped;
mod modules;
mod names;
mod pair;
mod quantization;
mod rows;
mod safetensors;
mod source;
mod tensor;
pub mod tokenizer;
pub mod write;

pub use checkpoint::{Checkpoint, CheckpointFile, Content};
pub use cursor::Cursor;
pub use error::Error;
pub use fields::Fields;
pub use fingerprint::Fingerprint;
pub use pair::{DRAFTER, MANIFEST, Pair, manifest, set_best_width};
pub use rows::Rows;
pub use tensor::{Extent, Tensor, TensorInfo, TensorSpec};

use source::Source;
use std::path::Path;

/// Opens the checkpoint at `path`, a directory or a GGUF file. Which container it is in is decided from the contents.
///
/// Reads the configuration and the tensor tables, and no tensor. Where a directory has both `model.safetensors` and
/// an index of shards, the single file is taken and the shards are left alone, as `transformers` does.
///
/// # Errors
/// [`Error::NotFound`] where nothing is at `path`; [`Error::Unsupported`] for what this version cannot read (other
/// quantizations and architectures); anything else that [`Error`] lists, where a file is missing, malformed or inconsistent.
pub fn open(path: &Path) -> Result<Checkpoint, Error> {
    container::open(Source::at(path)?)
}

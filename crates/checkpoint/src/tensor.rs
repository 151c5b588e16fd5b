//! Tensors of a checkpoint: where they are, and what they are once read.

use glimmer_encoding::{Encoding, Parts, WeightView};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// A tensor as read: its entry in the table and its bytes, which fit each other.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    // Both private: that the length is right is checked where they come together, and nowhere else.
    info: &'a TensorInfo,
    bytes: Cow<'a, [u8]>,
}

impl<'a> Tensor<'a> {
    /// `bytes` is what lies at `info.range`, so `info.byte_len()` bytes.
    pub(crate) fn new(info: &'a TensorInfo, bytes: Cow<'a, [u8]>) -> Self {
        Self { info, bytes }
    }

    /// Name, encoding, shape and place.
    pub fn info(&self) -> &'a TensorInfo {
        self.info
    }

    /// The stored bytes: row-major, little endian.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The stored bytes; copied only where they are part of the binary.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes.into_owned()
    }

    /// Encoding, shape and bytes, as the kernels take them.
    pub fn view(&self) -> WeightView<'_> {
        WeightView::new(self.info.encoding, &self.info.shape, Parts::of_codes(&self.bytes))
            .expect("the length is checked at opening")
    }
}

/// A tensor in the table of a checkpoint. Nothing of it has been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, verbatim as in the file.
    pub name: String,
    /// How its numbers are stored.
    pub encoding: Encoding,
    /// Dimensions, outermost first; empty for a scalar. Their product in `encoding` is as long as `range`.
    pub shape: Vec<usize>,
    /// The plain name of the file that it is in.
    pub file: Arc<str>,
    /// Where it lies, in bytes from the beginning of that file; within the file, when it was opened.
    pub range: Range<u64>,
}

impl TensorInfo {
    /// Bytes that it takes.
    pub fn byte_len(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }
}

/// A tensor that a model needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name, verbatim as in the file.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// A tensor called `name` of `shape`.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), shape: shape.into() }
    }
}

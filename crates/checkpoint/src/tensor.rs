//! Tensors of a checkpoint: where they are, and what they are once read.

use glimmer_encoding::{Encoding, Parts, RowOrder, Sizes, WeightView};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// A tensor as read: its entry in the table and its parts, which fit each other.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    // All private: that the lengths are right is checked where they come together, and nowhere else.
    info: &'a TensorInfo,
    codes: Cow<'a, [u8]>,
    scales: Cow<'a, [u8]>,
    biases: Cow<'a, [u8]>,
    global_scale: Option<f32>,
}

impl<'a> Tensor<'a> {
    /// `read` gives what lies at an extent; parts that the tensor does not have are empty.
    pub(crate) fn read<E>(info: &'a TensorInfo, read: impl Fn(&Extent) -> Result<Cow<'a, [u8]>, E>) -> Result<Self, E> {
        let part = |extent: &Option<Extent>| extent.as_ref().map_or(Ok(Cow::Borrowed(&[][..])), &read);
        let global_scale = info.global_scale(&read)?;
        let codes = info.layout.undo(read(&info.codes)?, info);
        Ok(Self { info, codes, scales: part(&info.scales)?, biases: part(&info.biases)?, global_scale })
    }

    /// Name, encoding, shape and place.
    pub fn info(&self) -> &'a TensorInfo {
        self.info
    }

    /// The stored bytes, part by part.
    pub fn parts(&self) -> Parts<'_> {
        let Self { codes, scales, biases, global_scale, .. } = self;
        Parts { codes, scales, biases, global_scale: *global_scale }
    }

    /// Encoding, shape and bytes, as the kernels take them.
    pub fn view(&self) -> WeightView<'_> {
        let TensorInfo { encoding, shape, .. } = self.info;
        WeightView::new(*encoding, shape, self.parts()).expect("the lengths are checked at opening")
    }
}

/// A tensor in the table of a checkpoint. Nothing of it has been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name that Hugging Face gives it.
    pub name: String,
    /// How its numbers are stored.
    pub encoding: Encoding,
    /// Dimensions, outermost first; empty for a scalar. In `encoding` they need as many bytes as the parts have.
    pub shape: Vec<usize>,
    /// Its codes, blocks or floats.
    pub codes: Extent,
    /// Its scales, where they are kept apart.
    pub scales: Option<Extent>,
    /// Its biases, where they are kept apart.
    pub biases: Option<Extent>,
    /// One f32 for the whole tensor, of nvfp4, both of MLX and of ggml.
    pub global_scale: Option<Extent>,
    pub(crate) layout: Layout,
}

/// Bytes in a file that are a tensor there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The tensor's name, verbatim as in the file.
    pub name: String,
    /// The plain name of the file.
    pub file: Arc<str>,
    /// Where it lies, in bytes from the beginning of that file; within the file, when it was opened.
    pub range: Range<u64>,
}

impl Extent {
    /// Bytes that it takes.
    pub fn byte_len(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }
}

impl TensorInfo {
    /// A tensor that is one run of bytes.
    pub(crate) fn whole(name: String, encoding: Encoding, shape: Vec<usize>, codes: Extent) -> Self {
        let layout = Layout::Canonical;
        Self { name, encoding, shape, codes, scales: None, biases: None, global_scale: None, layout }
    }

    /// Whether its parts are as long as shape and encoding need.
    pub(crate) fn fits(&self) -> bool {
        let len = |extent: &Option<Extent>| extent.as_ref().map_or(0, Extent::byte_len);
        let found = Sizes { codes: self.codes.byte_len(), scales: len(&self.scales), biases: len(&self.biases) };
        self.encoding.tensor_sizes(&self.shape) == Some(found)
    }

    /// What every scale is multiplied with. llama.cpp stores it as it is, MLX the largest magnitude of the tensor: it is that over
    /// the largest code times the largest scale. `read` gives what lies at an extent.
    pub(crate) fn global_scale<'a, E>(
        &self,
        read: impl Fn(&Extent) -> Result<Cow<'a, [u8]>, E>,
    ) -> Result<Option<f32>, E> {
        let unit = if matches!(self.encoding, Encoding::Ggml(_)) { 1.0 } else { 6.0 * 448.0 };
        let Some(extent) = &self.global_scale else { return Ok(None) };
        Ok(read(extent)?.first_chunk().map(|&bytes| f32::from_le_bytes(bytes) / unit))
    }

    /// Bytes that it takes, all parts together.
    pub fn byte_len(&self) -> usize {
        let parts = [&self.scales, &self.biases, &self.global_scale];
        self.codes.byte_len() + parts.into_iter().flatten().map(Extent::byte_len).sum::<usize>()
    }
}

/// How what is stored differs from the tensor that Hugging Face has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// It does not.
    Canonical,
    /// Every element is one more. Dense f32 only.
    PlusOne,
    /// The rows of each head of `head_dim` alternate between its first and its second half. One part only.
    Interleaved { head_dim: usize },
}

impl Layout {
    /// How rows are stored that are read piece by piece.
    pub fn order(self) -> RowOrder {
        match self {
            Layout::Canonical | Layout::PlusOne => RowOrder::Ascending,
            Layout::Interleaved { head_dim } => RowOrder::Interleaved { head_dim },
        }
    }

    fn undo<'a>(self, stored: Cow<'a, [u8]>, info: &TensorInfo) -> Cow<'a, [u8]> {
        match self {
            Layout::Canonical => stored,
            Layout::PlusOne => {
                let (floats, _) = stored.as_chunks();
                Cow::Owned(floats.iter().flat_map(|&bytes| (f32::from_le_bytes(bytes) - 1.0).to_le_bytes()).collect())
            }
            // Rows are moved whole, so any encoding of rows will do.
            Layout::Interleaved { .. } => {
                let rows = info.shape.first().copied().unwrap_or(1);
                let (len, order) = (stored.len() / rows.max(1), self.order());
                let row = |row: usize| &stored[order.stored(row) * len..][..len];
                Cow::Owned((0..rows).flat_map(row).copied().collect())
            }
        }
    }
}

/// A tensor that a model needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name, as Hugging Face gives it.
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

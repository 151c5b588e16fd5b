//! The verbs that a transformer is written in, and the CPU behind them.
//!
//! [`Backend`] speaks of projections, norms, rotations, gates and caches, not of a tensor library; the model crates are
//! written once over it. [`CpuBackend`] is the one that is always there, and the oracle of all others.

#![forbid(unsafe_code)]

mod cpu;

pub use cpu::{CpuBackend, CpuOptions};
pub use glimmer_kernels::attention::KvType;
pub use glimmer_kernels::isa::Isa;
pub use glimmer_kernels::limits::{Buffer, Limits};

use glimmer_encoding::{Encoding, RowSource};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use thiserror::Error;

/// What can fail: opening, loading, allocating. Arithmetic cannot.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BackendError {
    /// The backend has no kernel for this encoding and the activations that were asked for.
    #[error("no kernel for {encoding} weights with {activations} activations (--activations f32 or auto works)")]
    Encoding {
        /// The encoding that was asked for.
        encoding: Encoding,
        /// And the activations.
        activations: ActivationType,
    },
    /// The machine lacks the instruction set that was asked for.
    #[error("this machine has no {isa} (it has: {available})")]
    Isa {
        /// The instruction set that was asked for.
        isa: Isa,
        /// Those that are there.
        available: String,
    },
    /// A weight that is not a number, or infinite.
    #[error("the element in row {row}, column {col} is not finite")]
    NonFinite {
        /// Its row.
        row: usize,
        /// Its column.
        col: usize,
    },
    /// Memory could not be had.
    #[error("cannot allocate {bytes} bytes for {what}")]
    Memory {
        /// What the memory was for.
        what: &'static str,
        /// How much.
        bytes: usize,
    },
}

/// Why a weight cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LoadError<E> {
    /// It cannot be read.
    #[error("{0}")]
    Source(E),
    /// The backend cannot hold it.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// The shape of one layer's pages.
#[derive(Clone, Copy, Debug)]
pub struct KvSpec {
    /// Key and value heads.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// How keys and values are stored.
    pub types: KvTypes,
}

/// What activations are multiplied as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ActivationType {
    /// 8 bits where the weights have 8 or fewer and there is a kernel for them, else f32.
    #[default]
    Auto,
    /// 32-bit floats, whatever the weights are.
    F32,
    /// bfloat16; weights that are not bf16 themselves are refused.
    BF16,
    /// 8 bits; quantized weights that there is no 8-bit kernel for are refused, dense ones beside them meet f32.
    Int8,
}

impl ActivationType {
    /// All of them.
    pub const ALL: [ActivationType; 4] =
        [ActivationType::Auto, ActivationType::Int8, ActivationType::BF16, ActivationType::F32];
}

impl fmt::Display for ActivationType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ActivationType::Auto => "auto",
            ActivationType::F32 => "f32",
            ActivationType::BF16 => "bf16",
            ActivationType::Int8 => "int8",
        })
    }
}

impl FromStr for ActivationType {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.map(|kind| kind.to_string());
        let found = Self::ALL.into_iter().zip(&known).find(|(_, known)| *known == name);
        found
            .map(|(kind, _)| kind)
            .ok_or_else(|| format!("unknown activation type `{name}` (known: {})", known.join(", ")))
    }
}

/// How the keys and the values of a cache are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvTypes {
    /// The keys' type.
    pub keys: KvType,
    /// The values' type.
    pub values: KvType,
}

impl KvTypes {
    /// Both the same.
    pub const fn both(kind: KvType) -> Self {
        Self { keys: kind, values: kind }
    }
}

/// Positions of a page of keys and values. Pages begin at multiples of it.
pub const PAGE: usize = glimmer_kernels::attention::CHUNK;

/// The arithmetic of a transformer.
///
/// Tensors are matrices (rows, cols) of activations; a row is a position. Verbs take a tensor by value where they may reuse its
/// memory. They assert their shapes and do not fail; a lazy backend builds its graph in them, and [`read`](Backend::read) is
/// the only synchronisation. Verbs that join others have a default that says what they give, to the bit.
pub trait Backend: Send + Sync + 'static {
    /// Activations (rows, cols).
    type Tensor: Clone + Send;
    /// A weight matrix (outs, inputs), in the backend's own layout.
    type Weight: Send + Sync;
    /// A table that rows are looked up in, such as an embedding.
    type Table: Send + Sync;
    /// A vector of f32, such as a norm's weight.
    type Vector: Send + Sync;
    /// Rotation angles of some positions.
    type Rotation: Send;
    /// Keys and values of one layer at [`PAGE`] positions. Clones are the same page.
    type KvPage: Clone + Send + Sync;

    /// Whether a row's bits are the same whatever rows are computed with it. Exactness of speculation rests on it.
    const ROW_INVARIANT: bool;

    /// Takes a weight matrix over into the backend's layout, or, where it is mapped, leaves it in its file.
    fn load_weight<S: RowSource>(&self, source: &S) -> Result<Self::Weight, LoadError<S::Error>>;
    /// Takes a table over; its rows are decoded as they are looked up.
    fn load_table<S: RowSource>(&self, source: &S) -> Result<Self::Table, LoadError<S::Error>>;
    /// Takes a vector over.
    fn load_vector(&self, values: Vec<f32>) -> Self::Vector;
    /// A page, with anything in it.
    fn kv_page(&self, spec: KvSpec) -> Result<Self::KvPage, BackendError>;
    /// Makes a page one that nobody else has: a copy, where somebody has.
    fn kv_own(&self, page: &mut Self::KvPage) -> Result<(), BackendError>;

    /// A tensor of these values, row by row.
    fn tensor(&self, rows: usize, cols: usize, values: Vec<f32>) -> Self::Tensor;
    /// The values of a tensor, row by row.
    fn read(&self, x: &Self::Tensor) -> Vec<f32>;
    /// (rows, cols)
    fn shape(&self, x: &Self::Tensor) -> (usize, usize);
    /// Rows `range` of a tensor.
    fn rows(&self, x: &Self::Tensor, range: Range<usize>) -> Self::Tensor;
    /// Tensors of as many rows side by side.
    fn concat_cols(&self, parts: &[&Self::Tensor]) -> Self::Tensor;
    /// Tensors of as many columns below each other.
    fn concat_rows(&self, parts: &[&Self::Tensor]) -> Self::Tensor;

    /// Rows `ids` of an embedding table (vocab, hidden), as stored.
    fn embed(&self, table: &Self::Table, ids: &[u32]) -> Self::Tensor;
    /// x (rows, inputs) times the weight (outs, inputs) transposed.
    fn linear(&self, x: &Self::Tensor, weight: &Self::Weight) -> Self::Tensor;
    /// [`linear`](Self::linear) with several weights.
    fn linears<const N: usize>(&self, x: &Self::Tensor, weights: [&Self::Weight; N]) -> [Self::Tensor; N] {
        weights.map(|weight| self.linear(x, weight))
    }
    /// [`linears`](Self::linears) of the [`rms_norm`](Self::rms_norm) of x.
    fn norm_linears<const N: usize>(
        &self,
        x: &Self::Tensor,
        norm: Option<&Self::Vector>,
        eps: f32,
        weights: [&Self::Weight; N],
    ) -> [Self::Tensor; N] {
        self.linears(&self.rms_norm(x, norm, eps), weights)
    }
    /// [`linear`](Self::linear) of x [`gate`](Self::gate)d.
    fn gate_linear(&self, x: Self::Tensor, gate: &Self::Tensor, weight: &Self::Weight) -> Self::Tensor {
        self.linear(&self.gate(x, gate), weight)
    }
    /// `down`, [`linear`](Self::linear)ly, of the [`swiglu`](Self::swiglu) of `gate` and `up`, which are both of x.
    fn mlp(&self, x: &Self::Tensor, [gate, up, down]: [&Self::Weight; 3]) -> Self::Tensor {
        let [gate, up] = self.linears(x, [gate, up]);
        self.linear(&self.swiglu(gate, &up), down)
    }
    /// [`mlp`](Self::mlp) of the [`rms_norm`](Self::rms_norm) of x.
    fn norm_mlp(
        &self,
        x: &Self::Tensor,
        norm: Option<&Self::Vector>,
        eps: f32,
        weights: [&Self::Weight; 3],
    ) -> Self::Tensor {
        self.mlp(&self.rms_norm(x, norm, eps), weights)
    }
    /// Every row: x / sqrt(mean(x^2) + eps) * weight; no `weight` means ones.
    fn rms_norm(&self, x: &Self::Tensor, weight: Option<&Self::Vector>, eps: f32) -> Self::Tensor;
    /// Every head of every row: x / sqrt(mean(x^2) + eps) * weight * scale, the mean over `head_dim` elements.
    fn rms_norm_heads(
        &self,
        x: Self::Tensor,
        head_dim: usize,
        weight: Option<&Self::Vector>,
        eps: f32,
        scale: f32,
    ) -> Self::Tensor;
    /// Angles `position * theta^(-2j / head_dim)`, for the position of each row.
    fn rotation(&self, positions: &[usize], head_dim: usize, theta: f64) -> Self::Rotation;
    /// Turns every head of every row; half-split (NEOX) layout.
    fn rope(&self, x: Self::Tensor, rotation: &Self::Rotation) -> Self::Tensor;
    /// x * sigmoid(gate)
    fn gate(&self, x: Self::Tensor, gate: &Self::Tensor) -> Self::Tensor;
    /// silu(gate) * up
    fn swiglu(&self, gate: Self::Tensor, up: &Self::Tensor) -> Self::Tensor;
    /// x + y
    fn add(&self, x: Self::Tensor, y: &Self::Tensor) -> Self::Tensor;
    /// x + the [`rms_norm`](Self::rms_norm) of y
    fn add_norm(&self, x: Self::Tensor, y: Self::Tensor, norm: Option<&Self::Vector>, eps: f32) -> Self::Tensor {
        self.add(x, &self.rms_norm(&y, norm, eps))
    }
    /// cap * tanh(x * multiplier / cap)
    fn softcap(&self, x: Self::Tensor, multiplier: f32, cap: f32) -> Self::Tensor;
    /// A convolution along the rows of blocks, x (rows, cols) with so many rows of each, whose kernel each row brings: row i of a
    /// block, column c is the sum over taps t of (base\[side, t, c\] + dynamic\[i, side, t, c / group\]) * x\[i - t, c\]. There is
    /// nothing before the first row of a block, and no row depends on those behind it. `base` (2 * taps * cols), `dynamic` (rows,
    /// 2 * taps * groups), `side` 0 or 1.
    fn dynamic_conv(
        &self,
        x: &Self::Tensor,
        base: &Self::Vector,
        dynamic: &Self::Tensor,
        side: usize,
        blocks: &[usize],
    ) -> Self::Tensor;

    /// What is in a page, to be stored. The bits of later passes depend on these alone.
    fn kv_bytes(&self, page: &Self::KvPage) -> Vec<u8>;
    /// A page with these bytes, which a page of this shape had; `None` where there are more or fewer.
    fn kv_page_of(&self, spec: KvSpec, bytes: &[u8]) -> Result<Option<Self::KvPage>, BackendError>;
    /// Stores rows `rows` of keys and values (rows, heads * head_dim) from position `at` of a page on, which nobody else has.
    fn kv_write(&self, page: &mut Self::KvPage, at: usize, k: &Self::Tensor, v: &Self::Tensor, rows: Range<usize>);
    /// Attention of q (rows, q_heads * head_dim), the rows being those of the sequences, one after the other; scores are
    /// multiplied by `scale`.
    fn attend(&self, q: &Self::Tensor, sequences: &[Attended<'_, Self::KvPage>], scale: f32) -> Self::Tensor;
}

/// What the rows of one sequence attend to.
#[derive(Clone, Copy, Debug)]
pub struct Attended<'a, P> {
    /// The positions that each row sees.
    pub visible: &'a [Range<usize>],
    /// Which page of the sequence the first of `pages` is: its positions begin at [`PAGE`] times this.
    pub first: usize,
    /// That page and those that follow.
    pub pages: &'a [P],
}

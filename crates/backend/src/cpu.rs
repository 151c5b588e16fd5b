//! The verbs on the CPU, over the kernels of the instruction set in use.

mod stock;
mod weights;

pub use weights::{Table, Weight};

use stock::{Floats, Stock};

use crate::{ActivationType, Backend, BackendError, KvSpec, KvType, LoadError};
use glimmer_encoding::{Encoding, FloatType, RowSource};
use glimmer_kernels::attention::{self, Attention, KvData, KvDataMut, KvLayout, Workspace};
use glimmer_kernels::cores;
use glimmer_kernels::dispatch::Kernels;
use glimmer_kernels::isa::Isa;
use glimmer_kernels::limits::{self, Limits};
use glimmer_kernels::memory::{self, Buffer};
use glimmer_kernels::packed::{Activations, Packed};
use glimmer_kernels::pool::Pool;
use glimmer_kernels::rope::Rotation;
use glimmer_kernels::rows;
use std::ops::Range;
use std::sync::OnceLock;

/// What a [`CpuBackend`] is made with.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Threads in all; the default is one per [core](cores::usable) that the process may use.
    pub threads: Option<usize>,
    /// Instruction set; the default is the machine's fastest.
    pub isa: Option<Isa>,
    /// What activations are multiplied as.
    pub activations: ActivationType,
}

/// The CPU: a pool of threads and a table of kernels.
pub struct CpuBackend {
    pool: Pool,
    kernels: &'static Kernels,
    activations: ActivationType,
    workspace: Workspace,
    stock: Stock,
}

impl CpuBackend {
    /// Starts the threads.
    pub fn new(options: CpuOptions) -> Result<Self, BackendError> {
        let kernels = match options.isa {
            None => Kernels::best(),
            Some(isa) => Kernels::of(isa).ok_or_else(|| {
                let names: Vec<String> = Isa::available().iter().map(Isa::to_string).collect();
                BackendError::Isa { isa, available: names.join(", ") }
            })?,
        };
        memory::reuse_freed();
        let threads = options.threads.unwrap_or_else(cores::usable);
        Ok(Self {
            pool: Pool::new(threads.max(1)),
            kernels,
            activations: options.activations,
            workspace: Workspace::default(),
            stock: Stock::default(),
        })
    }

    /// What activations are multiplied as with weights of this encoding, or why such weights cannot be loaded.
    pub fn activations(&self, encoding: Encoding) -> Result<ActivationType, BackendError> {
        let dense = matches!(encoding, Encoding::Dense(_));
        match self.activations {
            ActivationType::F32 => Ok(ActivationType::F32),
            ActivationType::BF16 if encoding == Encoding::Dense(FloatType::BF16) => Ok(ActivationType::BF16),
            ActivationType::Auto | ActivationType::Int8 if Packed::exists(encoding) => Ok(ActivationType::Int8),
            ActivationType::Auto => Ok(ActivationType::F32),
            ActivationType::Int8 if dense => Ok(ActivationType::F32),
            activations => Err(BackendError::Encoding { encoding, activations }),
        }
    }

    /// Bits that a weight of this encoding takes in memory where it is multiplied with 8-bit activations; `None` where there is
    /// no such product.
    pub fn packed_bits(encoding: Encoding) -> Option<f64> {
        Packed::bits_per_weight(encoding)
    }

    /// Threads that take part.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// A buffer to measure the memory with, of about so many bytes; `None` where there is no such memory.
    pub fn buffer(&self, bytes: usize) -> Option<limits::Buffer> {
        limits::Buffer::new(&self.pool, bytes)
    }

    /// Measures once what the machine can do at most, with the threads and the instruction set in use.
    pub fn limits(&self, buffer: &limits::Buffer) -> Limits {
        Limits::measure(self.kernels, &self.pool, buffer)
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.kernels.isa()
    }

    /// A tensor whose elements are whatever they are, to be written.
    fn unwritten(&self, rows: usize, cols: usize) -> Tensor {
        Tensor::new(rows, cols, self.stock.take(rows * cols))
    }

    /// x normalised, and in 8 bits as well if `round`; so are the two below.
    fn normed(&self, x: &Tensor, norm: Option<&Vec<f32>>, eps: f32, round: bool) -> Tensor {
        let (mut out, norm) = (self.unwritten(x.rows, x.cols), norm.map(Vec::as_slice));
        let rounded = rows::rms_norm_into(self.kernels, &self.pool, &x.data, x.cols, norm, eps, &mut out.data, round);
        out.with(rounded)
    }

    fn gated(&self, mut x: Tensor, gate: &Tensor, round: bool) -> Tensor {
        let rounded = rows::gate(self.kernels, &self.pool, &mut x.data, &gate.data, gate.cols, round);
        x.with(rounded)
    }

    fn multiplied(&self, mut gate: Tensor, up: &Tensor, round: bool) -> Tensor {
        let rounded = rows::swiglu(self.kernels, &self.pool, &mut gate.data, &up.data, up.cols, round);
        gate.with(rounded)
    }
}

/// Activations, row-major.
#[derive(Clone, Debug)]
pub struct Tensor {
    rows: usize,
    cols: usize,
    data: Floats,
    /// The same in 8 bits, once a projection has asked for it: projections of one input share it.
    rounded: OnceLock<Activations>,
    /// And in bf16.
    halves: OnceLock<Vec<u16>>,
}

impl Tensor {
    fn new(rows: usize, cols: usize, data: Floats) -> Self {
        Self { rows, cols, data, rounded: OnceLock::new(), halves: OnceLock::new() }
    }

    /// The elements, to be changed.
    fn elements(&mut self) -> &mut [f32] {
        (self.rounded, self.halves) = (OnceLock::new(), OnceLock::new());
        &mut self.data
    }

    /// Takes over what was rounded while the elements were made.
    fn with(mut self, rounded: Option<Activations>) -> Self {
        (self.rounded, self.halves) = (rounded.map_or_else(OnceLock::new, OnceLock::from), OnceLock::new());
        self
    }
}

/// Keys and values of one layer, a ring of slots.
pub struct KvStore {
    layout: KvLayout,
    keys: KvBuffer,
    values: KvBuffer,
}

enum KvBuffer {
    F32(Buffer<f32>),
    F16(Buffer<u16>),
    BF16(Buffer<u16>),
    Q8 { codes: Buffer<i8>, scales: Buffer<f32> },
}

impl KvBuffer {
    /// `len` elements and, where the type has them, `scales`.
    fn zeros(kind: KvType, len: usize, scales: usize) -> Option<Self> {
        match kind {
            KvType::F32 => Buffer::zeros(len).map(KvBuffer::F32),
            KvType::F16 => Buffer::zeros(len).map(KvBuffer::F16),
            KvType::BF16 => Buffer::zeros(len).map(KvBuffer::BF16),
            KvType::Q8 => {
                Buffer::zeros(len).zip(Buffer::zeros(scales)).map(|(codes, scales)| KvBuffer::Q8 { codes, scales })
            }
        }
    }

    fn data(&self) -> KvData<'_> {
        match self {
            KvBuffer::F32(data) => KvData::F32(data),
            KvBuffer::F16(data) => KvData::F16(data),
            KvBuffer::BF16(data) => KvData::BF16(data),
            KvBuffer::Q8 { codes, scales } => KvData::Q8 { codes, scales },
        }
    }

    fn data_mut(&mut self) -> KvDataMut<'_> {
        match self {
            KvBuffer::F32(data) => KvDataMut::F32(data),
            KvBuffer::F16(data) => KvDataMut::F16(data),
            KvBuffer::BF16(data) => KvDataMut::BF16(data),
            KvBuffer::Q8 { codes, scales } => KvDataMut::Q8 { codes, scales },
        }
    }
}

impl Backend for CpuBackend {
    type Tensor = Tensor;
    type Weight = Weight;
    type Table = Table;
    type Vector = Vec<f32>;
    type Rotation = Rotation;
    type KvStore = KvStore;

    const ROW_INVARIANT: bool = true;

    fn load_weight<S: RowSource>(&self, source: &S) -> Result<Weight, LoadError<S::Error>> {
        self.take_weight(source)
    }

    fn load_table<S: RowSource>(&self, source: &S) -> Result<Table, LoadError<S::Error>> {
        self.take_table(source)
    }

    fn load_vector(&self, values: Vec<f32>) -> Vec<f32> {
        values
    }

    fn kv_store(&self, spec: KvSpec) -> Result<KvStore, BackendError> {
        let layout = KvLayout::new(spec.heads, spec.head_dim, spec.positions);
        let zeros = |kind: KvType, len: usize| {
            let bytes = layout.scale_len().saturating_mul(kind.head_bytes(layout.head_dim));
            KvBuffer::zeros(kind, len, layout.scale_len()).ok_or(BackendError::Memory { what: "the KV cache", bytes })
        };
        let keys = zeros(spec.types.keys, layout.key_len())?;
        let values = zeros(spec.types.values, layout.value_len())?;
        Ok(KvStore { layout, keys, values })
    }

    fn tensor(&self, rows: usize, cols: usize, values: Vec<f32>) -> Tensor {
        assert_eq!(values.len(), rows * cols, "values of a tensor");
        Tensor::new(rows, cols, self.stock.keep(values))
    }

    fn read(&self, x: &Tensor) -> Vec<f32> {
        x.data.to_vec()
    }

    fn shape(&self, x: &Tensor) -> (usize, usize) {
        (x.rows, x.cols)
    }

    fn rows(&self, x: &Tensor, range: Range<usize>) -> Tensor {
        let mut out = self.unwritten(range.len(), x.cols);
        out.data.copy_from_slice(&x.data[range.start * x.cols..range.end * x.cols]);
        out
    }

    fn concat_cols(&self, parts: &[&Tensor]) -> Tensor {
        let rows = parts.first().map_or(0, |part| part.rows);
        assert!(parts.iter().all(|part| part.rows == rows));
        let row = |r: usize| parts.iter().flat_map(move |part| &part.data[r * part.cols..(r + 1) * part.cols]);
        let cols = parts.iter().map(|part| part.cols).sum();
        self.tensor(rows, cols, (0..rows).flat_map(row).copied().collect())
    }

    fn concat_rows(&self, parts: &[&Tensor]) -> Tensor {
        let cols = parts.first().map_or(0, |part| part.cols);
        assert!(parts.iter().all(|part| part.cols == cols));
        let rows = parts.iter().map(|part| part.rows).sum();
        self.tensor(rows, cols, parts.iter().flat_map(|part| &*part.data).copied().collect())
    }

    fn embed(&self, table: &Table, ids: &[u32]) -> Tensor {
        let mut out = self.unwritten(ids.len(), table.cols());
        table.look_up(ids, &mut out.data);
        out
    }

    fn linear(&self, x: &Tensor, weight: &Weight) -> Tensor {
        let [out] = self.linears(x, [weight]);
        out
    }

    fn linears<const N: usize>(&self, x: &Tensor, weights: [&Weight; N]) -> [Tensor; N] {
        assert!(weights.iter().all(|weight| weight.inputs() == x.cols), "inputs of a projection");
        let mut outs = weights.map(|weight| self.unwritten(x.rows, weight.outs()));
        self.multiply(x, &weights, &mut outs);
        outs
    }

    fn norm_linears<const N: usize>(
        &self,
        x: &Tensor,
        norm: Option<&Vec<f32>>,
        eps: f32,
        weights: [&Weight; N],
    ) -> [Tensor; N] {
        self.linears(&self.normed(x, norm, eps, weights.iter().any(|weight| weight.rounds())), weights)
    }

    fn gate_linear(&self, x: Tensor, gate: &Tensor, weight: &Weight) -> Tensor {
        self.linear(&self.gated(x, gate, weight.rounds()), weight)
    }

    fn swiglu_linear(&self, gate: Tensor, up: &Tensor, weight: &Weight) -> Tensor {
        self.linear(&self.multiplied(gate, up, weight.rounds()), weight)
    }

    fn rms_norm(&self, x: &Tensor, weight: Option<&Vec<f32>>, eps: f32) -> Tensor {
        self.normed(x, weight, eps, false)
    }

    fn rms_norm_heads(
        &self,
        mut x: Tensor,
        head_dim: usize,
        weight: Option<&Vec<f32>>,
        eps: f32,
        scale: f32,
    ) -> Tensor {
        rows::rms_norm(self.kernels, &self.pool, x.elements(), head_dim, weight.map(Vec::as_slice), eps, scale);
        x
    }

    fn rotation(&self, positions: Range<usize>, head_dim: usize, theta: f64) -> Rotation {
        Rotation::new(positions, head_dim, theta)
    }

    fn rope(&self, mut x: Tensor, rotation: &Rotation) -> Tensor {
        let cols = x.cols;
        rows::rope(self.kernels, &self.pool, x.elements(), cols, rotation);
        x
    }

    fn gate(&self, x: Tensor, gate: &Tensor) -> Tensor {
        self.gated(x, gate, false)
    }

    fn swiglu(&self, gate: Tensor, up: &Tensor) -> Tensor {
        self.multiplied(gate, up, false)
    }

    fn add(&self, mut x: Tensor, y: &Tensor) -> Tensor {
        let cols = x.cols;
        rows::add(self.kernels, &self.pool, x.elements(), &y.data, cols);
        x
    }

    fn add_norm(&self, mut x: Tensor, mut y: Tensor, norm: Option<&Vec<f32>>, eps: f32) -> Tensor {
        let (cols, norm) = (x.cols, norm.map(Vec::as_slice));
        rows::add_norm(self.kernels, &self.pool, x.elements(), y.elements(), cols, norm, eps);
        x
    }

    fn softcap(&self, mut x: Tensor, multiplier: f32, cap: f32) -> Tensor {
        let cols = x.cols;
        rows::softcap(self.kernels, &self.pool, x.elements(), cols, multiplier, cap);
        x
    }

    fn dynamic_conv(&self, x: &Tensor, base: &Vec<f32>, dynamic: &Tensor, side: usize) -> Tensor {
        assert_eq!(x.rows, dynamic.rows, "a kernel for each row");
        let mut out = self.unwritten(x.rows, x.cols);
        rows::dynamic_conv(&self.pool, &x.data, x.cols, base, &dynamic.data, side, &mut out.data);
        out
    }

    fn kv_write(&self, store: &mut KvStore, position: usize, k: &Tensor, v: &Tensor) {
        attention::store_keys(store.layout, store.keys.data_mut(), position, &k.data);
        attention::store_values(store.layout, store.values.data_mut(), position, &v.data);
    }

    fn attend(&self, q: &Tensor, store: &KvStore, visible: &[Range<usize>], scale: f32) -> Tensor {
        let KvStore { layout, keys, values } = store;
        let q_heads = q.cols / layout.head_dim;
        let (keys, values) = (keys.data(), values.data());
        let mut out = self.unwritten(q.rows, q.cols);
        let attention = Attention { q: &q.data, q_heads, layout: *layout, keys, values, scale, visible };
        attention::attend(self.kernels, &self.pool, &self.workspace, &attention, &mut out.data);
        out
    }
}

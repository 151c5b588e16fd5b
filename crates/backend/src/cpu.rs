//! The verbs on the CPU, over the kernels of the instruction set in use.

use crate::{Backend, BackendError, KvSpec, KvType};
use glimmer_encoding::{Encoding, FloatType, WeightView};
use glimmer_kernels::attention::{self, Attention, KvData, KvLayout};
use glimmer_kernels::dispatch::Kernels;
use glimmer_kernels::isa::Isa;
use glimmer_kernels::lanes::{BF16, Element, F16, F32};
use glimmer_kernels::matmul::{Dense, matmul};
use glimmer_kernels::memory;
use glimmer_kernels::pool::Pool;
use glimmer_kernels::rope::Rotation;
use glimmer_kernels::rows;
use std::ops::Range;

/// What a [`CpuBackend`] is made with.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Threads in all; the default is one per core that the process may use.
    pub threads: Option<usize>,
    /// Instruction set; the default is the machine's fastest.
    pub isa: Option<Isa>,
}

/// The CPU: a pool of threads and a table of kernels.
pub struct CpuBackend {
    pool: Pool,
    kernels: &'static Kernels,
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
        let threads = options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        Ok(Self { pool: Pool::new(threads.max(1)), kernels })
    }

    /// Threads that take part.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.kernels.isa()
    }
}

/// Activations, row-major.
#[derive(Clone, Debug)]
pub struct Tensor {
    rows: usize,
    cols: usize,
    data: Vec<f32>,
}

impl Tensor {
    fn zeros(rows: usize, cols: usize) -> Self {
        Self { rows, cols, data: vec![0.0; rows * cols] }
    }

    fn with(rows: usize, data: Vec<f32>) -> Self {
        Self { rows, cols: data.len().checked_div(rows).unwrap_or(0), data }
    }
}

/// A weight matrix (outs, inputs).
pub struct Weight {
    inputs: usize,
    data: WeightData,
}

enum WeightData {
    F32(Vec<f32>),
    F16(Vec<u16>),
    BF16(Vec<u16>),
}

impl Weight {
    fn dense(&self) -> Dense<'_> {
        match &self.data {
            WeightData::F32(w) => Dense::F32(w),
            WeightData::F16(w) => Dense::F16(w),
            WeightData::BF16(w) => Dense::BF16(w),
        }
    }

    fn outs(&self) -> usize {
        let len = match &self.data {
            WeightData::F32(w) => w.len(),
            WeightData::F16(w) | WeightData::BF16(w) => w.len(),
        };
        len / self.inputs
    }
}

/// Keys and values of one layer, a ring of slots.
pub struct KvStore {
    layout: KvLayout,
    keys: KvBuffer,
    values: KvBuffer,
}

enum KvBuffer {
    F32(Vec<f32>),
    F16(Vec<u16>),
}

impl KvBuffer {
    fn zeros(kind: KvType, len: usize) -> Result<Self, BackendError> {
        let memory = BackendError::Memory { what: "the KV cache", bytes: len.saturating_mul(kind.size()) };
        match kind {
            KvType::F32 => memory::zeros(len).map(KvBuffer::F32),
            KvType::F16 => memory::zeros(len).map(KvBuffer::F16),
        }
        .ok_or(memory)
    }

    fn data(&self) -> KvData<'_> {
        match self {
            KvBuffer::F32(data) => KvData::F32(data),
            KvBuffer::F16(data) => KvData::F16(data),
        }
    }
}

impl Backend for CpuBackend {
    type Tensor = Tensor;
    type Weight = Weight;
    type Vector = Vec<f32>;
    type Rotation = Rotation;
    type KvStore = KvStore;

    const ROW_INVARIANT: bool = true;

    fn load_weight(&self, view: &WeightView<'_>) -> Result<Weight, BackendError> {
        let halves = || view.parts().codes.as_chunks::<2>().0.iter().map(|&b| u16::from_le_bytes(b)).collect();
        let data = match view.encoding() {
            Encoding::Dense(FloatType::F16) => WeightData::F16(halves()),
            Encoding::Dense(FloatType::BF16) => WeightData::BF16(halves()),
            _ => WeightData::F32(view.to_f32()),
        };
        let bad = match &data {
            WeightData::F32(w) => w.iter().position(|x| !x.is_finite()),
            WeightData::F16(w) => w.iter().position(|bits| bits & 0x7c00 == 0x7c00),
            WeightData::BF16(w) => w.iter().position(|bits| bits & 0x7f80 == 0x7f80),
        };
        match bad {
            Some(at) => Err(BackendError::NonFinite { row: at / view.cols(), col: at % view.cols() }),
            None => Ok(Weight { inputs: view.cols(), data }),
        }
    }

    fn load_vector(&self, values: Vec<f32>) -> Vec<f32> {
        values
    }

    fn kv_store(&self, spec: KvSpec) -> Result<KvStore, BackendError> {
        let layout = KvLayout::new(spec.heads, spec.head_dim, spec.positions);
        let keys = KvBuffer::zeros(spec.types.keys, layout.key_len())?;
        let values = KvBuffer::zeros(spec.types.values, layout.value_len())?;
        Ok(KvStore { layout, keys, values })
    }

    fn read(&self, x: &Tensor) -> Vec<f32> {
        x.data.clone()
    }

    fn shape(&self, x: &Tensor) -> (usize, usize) {
        (x.rows, x.cols)
    }

    fn rows(&self, x: &Tensor, range: Range<usize>) -> Tensor {
        let data = x.data[range.start * x.cols..range.end * x.cols].to_vec();
        Tensor { rows: range.len(), cols: x.cols, data }
    }

    fn concat_cols(&self, parts: &[&Tensor]) -> Tensor {
        let rows = parts.first().map_or(0, |part| part.rows);
        assert!(parts.iter().all(|part| part.rows == rows));
        let row = |r: usize| parts.iter().flat_map(move |part| &part.data[r * part.cols..(r + 1) * part.cols]);
        Tensor::with(rows, (0..rows).flat_map(row).copied().collect())
    }

    fn concat_rows(&self, parts: &[&Tensor]) -> Tensor {
        let cols = parts.first().map_or(0, |part| part.cols);
        assert!(parts.iter().all(|part| part.cols == cols));
        let rows = parts.iter().map(|part| part.rows).sum();
        Tensor { rows, cols, data: parts.iter().flat_map(|part| &part.data).copied().collect() }
    }

    fn embed(&self, table: &Weight, ids: &[u32]) -> Tensor {
        let mut out = Tensor::zeros(ids.len(), table.inputs);
        for (row, &id) in out.data.chunks_exact_mut(table.inputs).zip(ids) {
            let range = id as usize * table.inputs..(id as usize + 1) * table.inputs;
            match &table.data {
                WeightData::F32(w) => row.copy_from_slice(&w[range]),
                WeightData::F16(w) => widen::<F16>(&w[range], row),
                WeightData::BF16(w) => widen::<BF16>(&w[range], row),
            }
        }
        out
    }

    fn linear(&self, x: &Tensor, weight: &Weight) -> Tensor {
        assert_eq!(x.cols, weight.inputs, "inputs of a projection");
        let mut out = Tensor::zeros(x.rows, weight.outs());
        matmul(self.kernels, &self.pool, &x.data, weight.dense(), weight.inputs, &mut out.data);
        out
    }

    fn rms_norm(&self, x: &Tensor, weight: Option<&Vec<f32>>, eps: f32) -> Tensor {
        let mut out = x.clone();
        rows::rms_norm(self.kernels, &self.pool, &mut out.data, x.cols, weight.map(Vec::as_slice), eps, 1.0);
        out
    }

    fn rms_norm_heads(
        &self,
        mut x: Tensor,
        head_dim: usize,
        weight: Option<&Vec<f32>>,
        eps: f32,
        scale: f32,
    ) -> Tensor {
        rows::rms_norm(self.kernels, &self.pool, &mut x.data, head_dim, weight.map(Vec::as_slice), eps, scale);
        x
    }

    fn rotation(&self, positions: Range<usize>, head_dim: usize, theta: f64) -> Rotation {
        Rotation::new(positions, head_dim, theta)
    }

    fn rope(&self, mut x: Tensor, rotation: &Rotation) -> Tensor {
        rows::rope(self.kernels, &self.pool, &mut x.data, x.cols, rotation);
        x
    }

    fn gate(&self, mut x: Tensor, gate: &Tensor) -> Tensor {
        rows::gate(self.kernels, &self.pool, &mut x.data, &gate.data, x.cols);
        x
    }

    fn swiglu(&self, mut gate: Tensor, up: &Tensor) -> Tensor {
        rows::swiglu(self.kernels, &self.pool, &mut gate.data, &up.data, up.cols);
        gate
    }

    fn add(&self, mut x: Tensor, y: &Tensor) -> Tensor {
        rows::add(self.kernels, &self.pool, &mut x.data, &y.data, x.cols);
        x
    }

    fn softcap(&self, mut x: Tensor, multiplier: f32, cap: f32) -> Tensor {
        rows::softcap(self.kernels, &self.pool, &mut x.data, x.cols, multiplier, cap);
        x
    }

    fn kv_write(&self, store: &mut KvStore, position: usize, k: &Tensor, v: &Tensor) {
        match &mut store.keys {
            KvBuffer::F32(keys) => attention::store_keys::<F32>(store.layout, keys, position, &k.data),
            KvBuffer::F16(keys) => attention::store_keys::<F16>(store.layout, keys, position, &k.data),
        }
        match &mut store.values {
            KvBuffer::F32(values) => attention::store_values::<F32>(store.layout, values, position, &v.data),
            KvBuffer::F16(values) => attention::store_values::<F16>(store.layout, values, position, &v.data),
        }
    }

    fn attend(&self, q: &Tensor, store: &KvStore, visible: &[Range<usize>], scale: f32) -> Tensor {
        let KvStore { layout, keys, values } = store;
        let q_heads = q.cols / layout.head_dim;
        let (keys, values) = (keys.data(), values.data());
        let mut out = Tensor::zeros(q.rows, q.cols);
        let attention = Attention { q: &q.data, q_heads, layout: *layout, keys, values, scale, visible };
        attention::attend(self.kernels, &self.pool, &attention, &mut out.data);
        out
    }
}

fn widen<E: Element>(from: &[E::Bits], to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(to, &bits)| *to = E::widen(bits));
}

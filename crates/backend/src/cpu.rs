//! The verbs on the CPU, over the kernels of the instruction set in use.

mod stock;
mod weights;

pub use weights::{Table, Weight};

use stock::{Floats, Stock};

use crate::{ActivationType, Attended, Backend, BackendError, KvSpec, KvTypes, LoadError};
use glimmer_encoding::{Encoding, FloatType, RowSource};
use glimmer_kernels::attention::{self, Attention, KvLayout, KvPage, Page, Pages, Workspace};
use glimmer_kernels::cores;
use glimmer_kernels::dispatch::Kernels;
use glimmer_kernels::isa::Isa;
use glimmer_kernels::limits::{self, Limits};
use glimmer_kernels::memory::{self, Arena};
use glimmer_kernels::packed::{Activations, Packed};
use glimmer_kernels::pool::Pool;
use glimmer_kernels::rope::Rotation;
use glimmer_kernels::rows;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

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
    /// What weights lie in.
    weights: Arena,
    /// Pages of each shape that was asked for.
    pages: Mutex<Vec<Pages>>,
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
            weights: Arena::default(),
            pages: Mutex::default(),
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

    /// Bytes of a page of keys and values.
    pub fn page_bytes(spec: KvSpec) -> usize {
        let layout = KvLayout { heads: spec.heads, head_dim: spec.head_dim };
        Pages::new(layout, spec.types.keys, spec.types.values).page_bytes()
    }

    /// Pages of keys and values that were taken so far, copies included.
    pub fn pages_taken(&self) -> u64 {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner).iter().map(Pages::taken).sum()
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

    /// The processor time that its threads have had, as [`Pool::cpu_time`] counts it.
    pub fn cpu_time(&self) -> Option<Duration> {
        self.pool.cpu_time()
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

impl Backend for CpuBackend {
    type Tensor = Tensor;
    type Weight = Weight;
    type Table = Table;
    type Vector = Vec<f32>;
    type Rotation = Rotation;
    type KvPage = Arc<Page>;

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

    fn kv_page(&self, spec: KvSpec) -> Result<Arc<Page>, BackendError> {
        let layout = KvLayout { heads: spec.heads, head_dim: spec.head_dim };
        let KvTypes { keys, values } = spec.types;
        let mut all = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.iter().position(|pages| pages.are(layout, keys, values));
        let at = known.unwrap_or_else(|| {
            all.push(Pages::new(layout, keys, values));
            all.len() - 1
        });
        let memory = BackendError::Memory { what: "a page of the KV cache", bytes: all[at].page_bytes() };
        all[at].take().map(Arc::new).ok_or(memory)
    }

    fn kv_own(&self, page: &mut Arc<Page>) -> Result<(), BackendError> {
        if Arc::get_mut(page).is_none() {
            let KvLayout { heads, head_dim } = page.layout();
            let [keys, values] = page.types();
            let mut copy = self.kv_page(KvSpec { heads, head_dim, types: KvTypes { keys, values } })?;
            if let Some(copy) = Arc::get_mut(&mut copy) {
                copy.copy_from(page.bytes());
            }
            *page = copy;
        }
        Ok(())
    }

    fn tensor(&self, rows: usize, cols: usize, values: Vec<f32>) -> Tensor {
        assert_eq!(values.len(), rows * cols, "values of a tensor");
        Tensor::new(rows, cols, self.stock.copy(&values))
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
        let (mut out, mut start) = (self.unwritten(rows, parts.iter().map(|part| part.cols).sum()), 0);
        for r in 0..rows {
            for part in parts {
                out.data[start..start + part.cols].copy_from_slice(&part.data[r * part.cols..(r + 1) * part.cols]);
                start += part.cols;
            }
        }
        out
    }

    fn concat_rows(&self, parts: &[&Tensor]) -> Tensor {
        let cols = parts.first().map_or(0, |part| part.cols);
        assert!(parts.iter().all(|part| part.cols == cols));
        let (mut out, mut start) = (self.unwritten(parts.iter().map(|part| part.rows).sum(), cols), 0);
        for part in parts {
            out.data[start..start + part.data.len()].copy_from_slice(&part.data);
            start += part.data.len();
        }
        out
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

    fn mlp(&self, x: &Tensor, [gate, up, down]: [&Weight; 3]) -> Tensor {
        let product = self.swiglu_of(x, [gate, up], down.rounds()).unwrap_or_else(|| {
            let [gate, up] = self.linears(x, [gate, up]);
            self.multiplied(gate, &up, down.rounds())
        });
        self.linear(&product, down)
    }

    fn norm_mlp(&self, x: &Tensor, norm: Option<&Vec<f32>>, eps: f32, weights: [&Weight; 3]) -> Tensor {
        self.mlp(&self.normed(x, norm, eps, weights[..2].iter().any(|weight| weight.rounds())), weights)
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

    fn rotation(&self, positions: &[usize], head_dim: usize, theta: f64) -> Rotation {
        Rotation::new(positions.iter().copied(), head_dim, theta)
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

    fn kv_bytes(&self, page: &Arc<Page>) -> Vec<u8> {
        page.bytes().to_vec()
    }

    fn kv_page_of(&self, spec: KvSpec, bytes: &[u8]) -> Result<Option<Arc<Page>>, BackendError> {
        let mut page = self.kv_page(spec)?;
        match Arc::get_mut(&mut page) {
            Some(page) if page.bytes().len() == bytes.len() => page.copy_from(bytes),
            _ => return Ok(None),
        }
        Ok(Some(page))
    }

    fn dynamic_conv(&self, x: &Tensor, base: &Vec<f32>, dynamic: &Tensor, side: usize, blocks: &[usize]) -> Tensor {
        assert_eq!(x.rows, dynamic.rows, "a kernel for each row");
        let (mut out, mut start, cols) = (self.unwritten(x.rows, x.cols), 0, x.cols);
        for &rows in blocks {
            let of = |cols: usize| start * cols..(start + rows) * cols;
            let (x, dynamic) = (&x.data[of(cols)], &dynamic.data[of(dynamic.cols)]);
            let out = &mut out.data[of(cols)];
            rows::dynamic_conv(&self.pool, x, cols, base, dynamic, side, out);
            start += rows;
        }
        assert_eq!(start, x.rows, "rows of the blocks");
        out
    }

    fn kv_write(&self, page: &mut Arc<Page>, at: usize, k: &Tensor, v: &Tensor, rows: Range<usize>) {
        assert!(Arc::strong_count(page) == 1, "a page that is written belongs to one sequence");
        let of = |x: &Tensor| rows.start * x.cols..rows.end * x.cols;
        if let Some(page) = Arc::get_mut(page) {
            page.write(at, &k.data[of(k)], &v.data[of(v)]);
        }
    }

    fn attend(&self, q: &Tensor, sequences: &[Attended<'_, Arc<Page>>], scale: f32) -> Tensor {
        let mut out = self.unwritten(q.rows, q.cols);
        let mut start = 0;
        for &Attended { visible, first, pages } in sequences {
            let elements = start * q.cols..(start + visible.len()) * q.cols;
            start += visible.len();
            let Some(page) = pages.first() else { continue };
            let views: Vec<KvPage<'_>> = pages.iter().map(|page| page.view()).collect();
            let (layout, q_heads) = (page.layout(), q.cols / page.layout().head_dim);
            let attention =
                Attention { q: &q.data[elements.clone()], q_heads, layout, first, pages: &views, scale, visible };
            attention::attend(self.kernels, &self.pool, &self.workspace, &attention, &mut out.data[elements]);
        }
        assert_eq!(start, q.rows, "rows of the sequences");
        out
    }
}

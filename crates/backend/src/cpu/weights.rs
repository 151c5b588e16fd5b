//! Weights on the CPU: how they are taken over, and how those are multiplied with that stay in their files.

use super::{CpuBackend, Tensor};
use crate::{ActivationType, BackendError, LoadError};
use glimmer_encoding::{Encoding, FloatType, MemoryRows, RowOrder, RowSource, Scratch, SharedBytes, Sizes, WeightView};
use glimmer_kernels::matmul::{Dense, matmul, matmul_bf16, round_bf16, settle_bf16};
use glimmer_kernels::memory::{Arena, Buffer, Zero};
use glimmer_kernels::packed::tile::TILE_ROWS;
use glimmer_kernels::packed::{self, Activations, Packed, PackedRows, Product};
use glimmer_kernels::pool::Pool;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a file that a thread takes at once: few enough to stay in its cache until they are packed.
const PIECE: usize = 256 << 10;

/// A weight matrix (outs, inputs).
pub struct Weight {
    outs: usize,
    inputs: usize,
    place: Place,
}

enum Place {
    Loaded(Matrix),
    /// In its file, each piece loaded for each product.
    Mapped(Form, MemoryRows),
}

/// Rows as they were stored, looked up one by one.
pub struct Table(MemoryRows);

/// What a weight becomes.
#[derive(Clone, Copy)]
enum Form {
    F32,
    F16,
    BF16,
    /// For bf16 activations.
    Pairs,
    /// For 8-bit activations.
    Packed,
}

/// A weight, or a piece of one, ready to be multiplied with.
enum Matrix {
    F32(Buffer<f32>),
    F16(Buffer<u16>),
    BF16(Buffer<u16>),
    Pairs(Buffer<u16>),
    Packed(Packed),
}

/// Rows of a [`Matrix`], to be filled.
enum MatrixRows<'a> {
    F32(&'a mut [f32]),
    Halves(&'a mut [u16]),
    Pairs(&'a mut [u16]),
    Packed(PackedRows<'a>),
}

/// What a thread multiplies pieces of a mapped weight with; they are of one length, but for the last.
struct Desk {
    alone: Pool,
    scratch: Scratch,
    matrix: Option<(usize, Matrix)>,
    part: Vec<f32>,
}

impl Weight {
    pub(super) fn outs(&self) -> usize {
        self.outs
    }

    pub(super) fn inputs(&self) -> usize {
        self.inputs
    }

    /// Whether it is multiplied with activations in 8 bits.
    pub(super) fn rounds(&self) -> bool {
        matches!(self.place, Place::Loaded(Matrix::Packed(_)) | Place::Mapped(Form::Packed, _))
    }
}

impl Table {
    /// Decodes rows `ids`, one after the other.
    pub(super) fn look_up(&self, ids: &[u32], out: &mut [f32]) {
        let [_, cols] = self.0.shape();
        let mut scratch = Scratch::default();
        for (out, &id) in out.chunks_exact_mut(cols).zip(ids) {
            let view = self.0.rows(id as usize..id as usize + 1, &mut scratch);
            view.encoding().decode_row(view.row(0), out);
        }
    }

    pub(super) fn cols(&self) -> usize {
        self.0.shape()[1]
    }
}

impl Matrix {
    fn zeros(
        arena: Option<&Arena>,
        form: Form,
        encoding: Encoding,
        outs: usize,
        inputs: usize,
    ) -> Result<Self, BackendError> {
        let len = outs.saturating_mul(inputs);
        Ok(match form {
            Form::F32 => Matrix::F32(zeros(arena, len)?),
            Form::F16 => Matrix::F16(zeros(arena, len)?),
            Form::BF16 => Matrix::BF16(zeros(arena, len)?),
            Form::Pairs => Matrix::Pairs(zeros(arena, len)?),
            Form::Packed => {
                let bytes = encoding.tensor_sizes(&[outs, inputs]).map_or(usize::MAX, Sizes::total);
                let memory = BackendError::Memory { what: "weights", bytes };
                Matrix::Packed(Packed::zeros(arena, encoding, outs, inputs).ok_or(memory)?)
            }
        })
    }

    /// Pieces of `rows` rows each, the last with what is left.
    fn pieces(&mut self, rows: usize, inputs: usize) -> Vec<MatrixRows<'_>> {
        let len = rows * inputs;
        match self {
            Matrix::F32(w) => w.chunks_mut(len).map(MatrixRows::F32).collect(),
            Matrix::F16(w) | Matrix::BF16(w) => w.chunks_mut(len).map(MatrixRows::Halves).collect(),
            Matrix::Pairs(w) => w.chunks_mut(len).map(MatrixRows::Pairs).collect(),
            Matrix::Packed(w) => w.pieces(rows).into_iter().map(MatrixRows::Packed).collect(),
        }
    }
}

impl MatrixRows<'_> {
    /// Takes over `view`, which has its rows.
    fn fill(&mut self, view: &WeightView<'_>) {
        match self {
            MatrixRows::F32(w) => {
                let rows = w.chunks_exact_mut(view.cols()).enumerate();
                rows.for_each(|(row, values)| view.encoding().decode_row(view.row(row), values));
            }
            MatrixRows::Halves(w) => {
                let bytes = view.parts().codes.as_chunks::<2>().0;
                w.iter_mut().zip(bytes).for_each(|(w, &bytes)| *w = u16::from_le_bytes(bytes));
            }
            MatrixRows::Pairs(w) => {
                let bytes = view.parts().codes.as_chunks::<2>().0;
                w.iter_mut().zip(bytes).for_each(|(w, &bytes)| *w = settle_bf16(u16::from_le_bytes(bytes)));
            }
            MatrixRows::Packed(w) => w.fill(view),
        }
    }
}

impl CpuBackend {
    pub(super) fn take_weight<S: RowSource>(&self, source: &S) -> Result<Weight, LoadError<S::Error>> {
        let ([outs, inputs], form) = (source.shape(), self.form(source.encoding())?);
        let ranges = pieces(source);
        if let Some(rows) = source.mapped() {
            self.read_all(source, ranges.into_iter().map(|range| (range, ())).collect(), |(), _| {})?;
            return Ok(Weight { outs, inputs, place: Place::Mapped(form, rows) });
        }
        let mut matrix = Matrix::zeros(Some(&self.weights), form, source.encoding(), outs, inputs)?;
        let rows = ranges.first().map_or(TILE_ROWS, ExactSizeIterator::len).next_multiple_of(TILE_ROWS);
        let pieces = ranges.into_iter().zip(matrix.pieces(rows, inputs)).collect();
        let global_scale = self.read_all(source, pieces, |mut piece, view| piece.fill(view))?;
        if let Matrix::Packed(packed) = &mut matrix {
            packed.set_global_scale(global_scale);
        }
        Ok(Weight { outs, inputs, place: Place::Loaded(matrix) })
    }

    pub(super) fn take_table<S: RowSource>(&self, source: &S) -> Result<Table, LoadError<S::Error>> {
        let (encoding, ranges) = (source.encoding(), pieces(source));
        if let Some(rows) = source.mapped() {
            self.read_all(source, ranges.into_iter().map(|range| (range, ())).collect(), |(), _| {})?;
            return Ok(Table(rows));
        }
        let shape = source.shape();
        let row = encoding.sizes(shape[1]).unwrap_or_default();
        let sizes = encoding.tensor_sizes(&shape).unwrap_or_default();
        let zeros = |len| zeros::<u8>(Some(&self.weights), len);
        let mut parts = [zeros(sizes.codes)?, zeros(sizes.scales)?, zeros(sizes.biases)?];
        let mut left = parts.each_mut().map(|part| &mut **part);
        let mut pieces = Vec::new();
        for range in ranges {
            let lens = [row.codes, row.scales, row.biases].map(|len| len * range.len());
            let mut lens = lens.into_iter();
            let piece = left.each_mut().map(|left| left.split_off_mut(..lens.next().unwrap_or(0)).unwrap_or_default());
            pieces.push((range, piece));
        }
        let global_scale = self.read_all(source, pieces, |piece: [&mut [u8]; 3], view| {
            let parts = view.parts();
            piece
                .into_iter()
                .zip([parts.codes, parts.scales, parts.biases])
                .for_each(|(to, from)| to.copy_from_slice(from));
        })?;
        let parts = parts.map(|part| {
            let all = 0..part.len();
            SharedBytes::new(Arc::new(part), all).expect("all of it")
        });
        let rows = MemoryRows::new(encoding, shape, RowOrder::Ascending, parts, global_scale);
        Ok(Table(rows.expect("as long as its encoding says")))
    }

    /// What a weight of this encoding becomes.
    fn form(&self, encoding: Encoding) -> Result<Form, BackendError> {
        Ok(match (self.activations(encoding)?, encoding) {
            (ActivationType::Int8, _) => Form::Packed,
            (ActivationType::BF16, _) => Form::Pairs,
            (_, Encoding::Dense(FloatType::F16)) => Form::F16,
            (_, Encoding::Dense(FloatType::BF16)) => Form::BF16,
            _ => Form::F32,
        })
    }

    /// Reads every piece, on all threads, and gives it to `take` if it is finite. Returns what all scales are multiplied
    /// with.
    fn read_all<S: RowSource, T: Send>(
        &self,
        source: &S,
        pieces: Vec<(Range<usize>, T)>,
        take: impl Fn(T, &WeightView<'_>) + Sync,
    ) -> Result<Option<f32>, LoadError<S::Error>> {
        let global_scale = Mutex::new(None);
        share(&self.pool, pieces, Scratch::default, |scratch, (range, piece)| {
            let view = source.read(range.clone(), scratch).map_err(LoadError::Source)?;
            if let Some([row, col]) = view.first_non_finite() {
                return Err(LoadError::Backend(BackendError::NonFinite { row: range.start + row, col }));
            }
            *lock(&global_scale) = view.parts().global_scale;
            take(piece, &view);
            Ok(())
        })?;
        Ok(global_scale.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// x (rows, inputs) times each weight transposed, into the tensors (rows, outs).
    pub(super) fn multiply(&self, x: &Tensor, weights: &[&Weight], outs: &mut [Tensor]) {
        // Products with packed weights are one job, so that threads wait for each other once.
        let mut products = Vec::with_capacity(weights.len());
        for (weight, out) in weights.iter().zip(outs) {
            match &weight.place {
                Place::Loaded(Matrix::Packed(weight)) => products.push(Product { weight, out: &mut out.data }),
                Place::Loaded(matrix) => self.multiply_matrix(&self.pool, x, matrix, &mut out.data),
                Place::Mapped(form, rows) => self.multiply_mapped(x, *form, rows, &mut out.data),
            }
        }
        if !products.is_empty() {
            packed::matmul(self.kernels, &self.pool, self.rounded(x), &mut products);
        }
    }

    /// swiglu of two weights with x, in one job, and in 8 bits as well if `round`; `None` where the weights are not packed alike.
    pub(super) fn swiglu_of(&self, x: &Tensor, weights: [&Weight; 2], round: bool) -> Option<Tensor> {
        let [Place::Loaded(Matrix::Packed(gate)), Place::Loaded(Matrix::Packed(up))] = weights.map(|w| &w.place) else {
            return None;
        };
        if !gate.is_like(up) {
            return None;
        }
        let mut out = self.unwritten(x.rows, gate.outs());
        let rounded = packed::swiglu(self.kernels, &self.pool, self.rounded(x), [gate, up], &mut out.data, round);
        Some(out.with(rounded))
    }

    /// The activations in 8 bits, made once.
    fn rounded<'a>(&self, x: &'a Tensor) -> &'a Activations {
        x.rounded.get_or_init(|| Activations::quantize(self.kernels, &self.pool, &x.data, x.cols))
    }

    /// And in bf16.
    fn halves<'a>(&self, x: &'a Tensor) -> &'a [u16] {
        x.halves.get_or_init(|| round_bf16(&x.data))
    }

    fn multiply_matrix(&self, pool: &Pool, x: &Tensor, matrix: &Matrix, out: &mut [f32]) {
        let dense = match matrix {
            Matrix::F32(w) => Dense::F32(w),
            Matrix::F16(w) => Dense::F16(w),
            Matrix::BF16(w) => Dense::BF16(w),
            Matrix::Pairs(w) => return matmul_bf16(self.kernels, pool, self.halves(x), w, x.cols, out),
            Matrix::Packed(w) => {
                return packed::matmul(self.kernels, pool, self.rounded(x), &mut [Product { weight: w, out }]);
            }
        };
        matmul(self.kernels, pool, &x.data, dense, x.cols, out);
    }

    /// Loads each piece as it would be loaded to stay, and multiplies with it: what a row gives does not depend on its
    /// neighbours, so these are the bits of the whole.
    fn multiply_mapped(&self, x: &Tensor, form: Form, rows: &MemoryRows, out: &mut [f32]) {
        let [outs, inputs] = rows.shape();
        // Before the threads set out: it is they who round to 8 bits.
        if matches!(form, Form::Packed) {
            self.rounded(x);
        } else if matches!(form, Form::Pairs) {
            self.halves(x);
        }
        let out = Mutex::new(out);
        let desk = || Desk { alone: Pool::new(1), scratch: Scratch::default(), matrix: None, part: Vec::new() };
        let task = |desk: &mut Desk, range: Range<usize>| {
            let len = range.len();
            let view = rows.rows(range.clone(), &mut desk.scratch);
            let matrix = match desk.matrix.take().filter(|(had, _)| *had == len) {
                Some((_, matrix)) => matrix,
                None => Matrix::zeros(None, form, view.encoding(), len, inputs).expect("memory for a few hundred rows"),
            };
            let (_, matrix) = desk.matrix.insert((len, matrix));
            let pieces = matrix.pieces(len.next_multiple_of(TILE_ROWS), inputs);
            pieces.into_iter().for_each(|mut piece| piece.fill(&view));
            if let Matrix::Packed(packed) = matrix {
                packed.set_global_scale(view.parts().global_scale);
            }
            desk.part.resize(x.rows * len, 0.0);
            self.multiply_matrix(&desk.alone, x, matrix, &mut desk.part);
            let mut out = lock(&out);
            for (out, part) in out.chunks_exact_mut(outs).zip(desk.part.chunks_exact(len)) {
                out[range.clone()].copy_from_slice(part);
            }
            Ok::<_, Infallible>(())
        };
        let Ok(()) = share(&self.pool, pieces(rows), desk, task);
    }
}

/// Ranges of rows of about [`PIECE`] bytes, in whole tiles.
fn pieces(source: &impl RowSource) -> Vec<Range<usize>> {
    let [rows, cols] = source.shape();
    let bytes = source.encoding().sizes(cols).map_or(0, Sizes::total).max(1);
    let step = (PIECE / bytes).max(1).next_multiple_of(TILE_ROWS);
    (0..rows.div_ceil(step)).map(|i| i * step..rows.min((i + 1) * step)).collect()
}

/// Calls `task` once for each piece, on all threads, each of which has scratch of its own. Of several failures, the one
/// of the first piece is returned.
fn share<T: Send, S, E: Send>(
    pool: &Pool,
    pieces: Vec<T>,
    scratch: impl Fn() -> S + Sync,
    task: impl Fn(&mut S, T) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let pieces: Vec<Mutex<Option<T>>> = pieces.into_iter().map(|piece| Mutex::new(Some(piece))).collect();
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<(usize, E)>> = Mutex::new(None);
    pool.run(pool.threads(), &|_| {
        let mut scratch = scratch();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = pieces.get(at).and_then(|piece| lock(piece).take()) else { return };
            if let Err(error) = task(&mut scratch, piece) {
                // Pieces are taken in order: those before this one are being worked on, those behind it need not be.
                next.fetch_max(pieces.len(), Ordering::Relaxed);
                let mut failed = lock(&failed);
                if failed.as_ref().is_none_or(|(first, _)| at < *first) {
                    *failed = Some((at, error));
                }
            }
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}

fn zeros<T: Zero>(arena: Option<&Arena>, len: usize) -> Result<Buffer<T>, BackendError> {
    let bytes = len.saturating_mul(size_of::<T>());
    Buffer::zeros_in(arena, len).ok_or(BackendError::Memory { what: "weights", bytes })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backend, CpuOptions};
    use glimmer_encoding::{EncodedRows, encode_rows};

    const COLS: usize = 1024;
    const ROWS: usize = 1000;

    /// A matrix in memory, of which some rows cannot be read.
    struct Faulty {
        encoding: Encoding,
        rows: EncodedRows,
        broken: Vec<usize>,
    }

    impl Faulty {
        fn new(encoding: Encoding) -> Self {
            let values: Vec<f32> = (0..ROWS * COLS).map(|i| (i * 37 % 1009) as f32 / 1009.0 - 0.5).collect();
            Self { encoding, rows: encode_rows(encoding, &values, ROWS, COLS).unwrap(), broken: Vec::new() }
        }

        fn view(&self) -> WeightView<'_> {
            WeightView::new(self.encoding, &[ROWS, COLS], self.rows.parts()).unwrap()
        }
    }

    impl RowSource for Faulty {
        type Error = usize;

        fn encoding(&self) -> Encoding {
            self.encoding
        }

        fn shape(&self) -> [usize; 2] {
            [ROWS, COLS]
        }

        fn read<'a>(&'a self, rows: Range<usize>, scratch: &'a mut Scratch) -> Result<WeightView<'a>, usize> {
            if let Some(&row) = self.broken.iter().find(|row| rows.contains(row)) {
                return Err(row);
            }
            let len = self.encoding.sizes(COLS).unwrap().codes;
            scratch.shape = [rows.len(), COLS];
            scratch.codes = self.rows.codes[rows.start * len..rows.end * len].to_vec();
            Ok(WeightView::dense(FloatType::F32, &scratch.shape, &scratch.codes).unwrap())
        }
    }

    fn backend(threads: usize) -> CpuBackend {
        CpuBackend::new(CpuOptions { threads: Some(threads), ..CpuOptions::default() }).unwrap()
    }

    #[test]
    fn every_row_arrives_and_the_first_failure_is_told() {
        let mut source = Faulty::new(Encoding::Dense(FloatType::F32));
        assert!(pieces(&source).len() > 10);
        for threads in [1, 2, 5] {
            let b = backend(threads);
            let ids: Vec<u32> = (0..ROWS as u32).rev().collect();
            let table = b.load_table(&source).unwrap();
            let decoded = b.read(&b.embed(&table, &ids));
            assert!(decoded.chunks(COLS).rev().flatten().eq(source.view().to_f32().iter()));
            let weight = b.load_weight(&source).unwrap();
            let Place::Loaded(Matrix::F32(loaded)) = &weight.place else { panic!("dense") };
            assert!(loaded[..] == source.view().to_f32());
        }
        for threads in [1, 2, 5].repeat(20) {
            let b = backend(threads);
            source.broken = vec![990, 130, 500, 501];
            assert_eq!(b.load_weight(&source).err(), Some(LoadError::Source(130)));
            source.broken = vec![700];
            source.rows.codes[(300 * COLS + 7) * 4 + 2..][..2].fill(0xff);
            let expected = LoadError::Backend(BackendError::NonFinite { row: 300, col: 7 });
            assert_eq!(b.load_weight(&source).err(), Some(expected.clone()));
            assert_eq!(b.load_table(&source).err(), Some(expected));
        }
    }
}

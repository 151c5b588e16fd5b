//! How much the columns of each matrix count: the mean square of what they are multiplied with, over a text.
//!
//! The error of a product is the sum over columns of weight error times input, so that errors of a column count by the square of
//! its inputs. The source itself runs over the text, on a backend that looks at every input of a product.

use crate::engine::{Active, tokenizer_of};
use crate::inspect::held_bytes;
use crate::source::Source;
use crate::{ActivationType, EngineError, memory};
use glimmer_backend::{Attended, Backend, BackendError, CpuBackend, CpuOptions, KvSpec, KvType, KvTypes, LoadError};
use glimmer_encoding::RowSource;
use glimmer_model::muse::{self, MuseConfig, MuseText};
use glimmer_model::observe::Unobserved;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Tokens of a window: each is a sequence of its own, and one pass.
const WINDOW: usize = 512;
/// Rows whose logits are held at once.
const ROWS: usize = 32;
/// Tokens that say enough of all columns, at least.
const LEAST: usize = 128;
/// What a column weighs at least, in parts of the mean: one that the text has no use for is no worse than coarse.
const FLOOR: f64 = 1e-3;

/// A weight for every column of every matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Importance {
    /// Tokens of the text that it was gathered on.
    pub tokens: usize,
    /// By the name of the matrix; the mean of each is 1.
    columns: BTreeMap<String, Vec<f32>>,
}

impl Importance {
    /// Runs a target over a text. `progress` is told the tokens that are done and all of them, and may end it by returning false:
    /// then there is `None`. Weights that do not fit into memory stay in their files.
    ///
    /// # Errors
    /// Where the target cannot be run, has no tokenizer, or where the text is too short.
    pub fn gather(
        source: &Source,
        text: &str,
        threads: Option<usize>,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Option<Self>, EngineError> {
        let mut checkpoint = source.open_target()?;
        let config = MuseConfig::from_checkpoint(&checkpoint)?;
        muse::account(&checkpoint, &config)?;
        let Some(tokenizer) = tokenizer_of(&checkpoint, &config)? else {
            let (label, advice) = (checkpoint.label().to_string(), "an importance matrix is gathered on a text");
            return Err(EngineError::Without { label, what: "tokenizer.json", advice });
        };
        let prefix = tokenizer.raw_prefix();
        let ids = tokenizer.encode_raw(text)?.split_off(prefix.len());
        let (tokens, window) = (ids.len(), WINDOW.min(config.text.max_position_embeddings));
        if tokens < LEAST {
            let expected = format!("at least {LEAST}, for an importance matrix");
            return Err(EngineError::Range { what: "the number of tokens in the text", found: tokens, expected });
        }
        // A quarter for all that is not weights.
        let needed = held_bytes(&checkpoint, ActivationType::Auto);
        if *source != Source::Nano && memory::available().is_some_and(|available| needed > available / 4 * 3) {
            checkpoint.map()?;
        }
        let b = Recorder::new(threads)?;
        let target = MuseText::load(&b, &checkpoint, &config, &mut |_| {})?;
        let mut cache = target.cache(window, window, KvTypes::both(KvType::F32));
        // What stands in front of a document stands in front of every window, unless that leaves no room.
        let prefix = if prefix.len() < window / 2 { prefix } else { &[] };
        let mut done = 0;
        for part in ids.chunks(window - prefix.len()) {
            if !progress(done, tokens) {
                return Ok(None);
            }
            let ids = [prefix, part].concat();
            let x = target.forward(&b, &mut cache, &ids, &mut Unobserved)?;
            for from in (0..ids.len()).step_by(ROWS) {
                target.logits(&b, &x, from..ids.len().min(from + ROWS), &mut Unobserved);
            }
            // An empty cache is always within reach.
            let _ = cache.truncate(0);
            done += part.len();
        }
        progress(tokens, tokens);
        Ok(Some(Self { tokens, columns: b.columns() }))
    }

    /// The weights for a matrix; `None` for one that nothing is multiplied with, such as a table of embeddings.
    pub fn of(&self, name: &str) -> Option<&[f32]> {
        self.columns.get(name).map(Vec::as_slice)
    }
}

/// Sums of squares of the inputs of one matrix, by column.
type Squares = Arc<Mutex<Vec<f64>>>;

/// The CPU, with a record of what each matrix is multiplied with. Verbs that join others are written with those, so that there are
/// inputs to be seen.
struct Recorder {
    inner: Active,
    squares: Mutex<BTreeMap<String, Squares>>,
}

/// A weight, and the record of its inputs.
struct Weight {
    inner: <Active as Backend>::Weight,
    squares: Squares,
}

type Tensor = <Active as Backend>::Tensor;
type Vector = <Active as Backend>::Vector;
type Rotation = <Active as Backend>::Rotation;
type KvPage = <Active as Backend>::KvPage;

impl Recorder {
    fn new(threads: Option<usize>) -> Result<Self, BackendError> {
        let options = CpuOptions { threads, ..CpuOptions::default() };
        Ok(Self { inner: CpuBackend::new(options)?, squares: Mutex::default() })
    }

    fn record(&self, x: &Tensor, weights: &[&Weight]) {
        let (_, cols) = self.inner.shape(x);
        let mut sums = vec![0.0; cols];
        for row in self.inner.read(x).chunks_exact(cols) {
            sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x) * f64::from(x));
        }
        for weight in weights {
            let mut squares = weight.squares.lock().unwrap_or_else(PoisonError::into_inner);
            squares.iter_mut().zip(&sums).for_each(|(all, sum)| *all += sum);
        }
    }

    /// The record as weights. Of a matrix that met nothing but zeros there is none.
    fn columns(self) -> BTreeMap<String, Vec<f32>> {
        let all = self.squares.into_inner().unwrap_or_else(PoisonError::into_inner);
        let relative = |squares: Squares| {
            let squares = squares.lock().unwrap_or_else(PoisonError::into_inner);
            let mean = squares.iter().sum::<f64>() / squares.len() as f64;
            let weight = |&square: &f64| (square / mean).max(FLOOR) as f32;
            (mean > 0.0 && mean.is_finite()).then(|| squares.iter().map(weight).collect())
        };
        all.into_iter().filter_map(|(name, squares)| Some((name, relative(squares)?))).collect()
    }
}

impl Backend for Recorder {
    type Tensor = Tensor;
    type Weight = Weight;
    type Table = <Active as Backend>::Table;
    type Vector = Vector;
    type Rotation = Rotation;
    type KvPage = KvPage;

    const ROW_INVARIANT: bool = Active::ROW_INVARIANT;

    fn load_weight<S: RowSource>(&self, source: &S) -> Result<Weight, LoadError<S::Error>> {
        let [_, cols] = source.shape();
        let squares: Squares = Arc::new(Mutex::new(vec![0.0; cols]));
        if let Some(name) = source.name() {
            let mut all = self.squares.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert(name.into(), Arc::clone(&squares));
        }
        Ok(Weight { inner: self.inner.load_weight(source)?, squares })
    }

    fn load_table<S: RowSource>(&self, source: &S) -> Result<Self::Table, LoadError<S::Error>> {
        self.inner.load_table(source)
    }

    fn load_vector(&self, values: Vec<f32>) -> Vector {
        self.inner.load_vector(values)
    }

    fn kv_page(&self, spec: KvSpec) -> Result<KvPage, BackendError> {
        self.inner.kv_page(spec)
    }

    fn kv_own(&self, page: &mut KvPage) -> Result<(), BackendError> {
        self.inner.kv_own(page)
    }

    fn tensor(&self, rows: usize, cols: usize, values: Vec<f32>) -> Tensor {
        self.inner.tensor(rows, cols, values)
    }

    fn read(&self, x: &Tensor) -> Vec<f32> {
        self.inner.read(x)
    }

    fn shape(&self, x: &Tensor) -> (usize, usize) {
        self.inner.shape(x)
    }

    fn rows(&self, x: &Tensor, range: Range<usize>) -> Tensor {
        self.inner.rows(x, range)
    }

    fn concat_cols(&self, parts: &[&Tensor]) -> Tensor {
        self.inner.concat_cols(parts)
    }

    fn concat_rows(&self, parts: &[&Tensor]) -> Tensor {
        self.inner.concat_rows(parts)
    }

    fn embed(&self, table: &Self::Table, ids: &[u32]) -> Tensor {
        self.inner.embed(table, ids)
    }

    fn linear(&self, x: &Tensor, weight: &Weight) -> Tensor {
        self.record(x, &[weight]);
        self.inner.linear(x, &weight.inner)
    }

    fn linears<const N: usize>(&self, x: &Tensor, weights: [&Weight; N]) -> [Tensor; N] {
        self.record(x, &weights);
        self.inner.linears(x, weights.map(|weight| &weight.inner))
    }

    fn rms_norm(&self, x: &Tensor, weight: Option<&Vector>, eps: f32) -> Tensor {
        self.inner.rms_norm(x, weight, eps)
    }

    fn rms_norm_heads(&self, x: Tensor, head_dim: usize, weight: Option<&Vector>, eps: f32, scale: f32) -> Tensor {
        self.inner.rms_norm_heads(x, head_dim, weight, eps, scale)
    }

    fn rotation(&self, positions: &[usize], head_dim: usize, theta: f64) -> Rotation {
        self.inner.rotation(positions, head_dim, theta)
    }

    fn rope(&self, x: Tensor, rotation: &Rotation) -> Tensor {
        self.inner.rope(x, rotation)
    }

    fn gate(&self, x: Tensor, gate: &Tensor) -> Tensor {
        self.inner.gate(x, gate)
    }

    fn swiglu(&self, gate: Tensor, up: &Tensor) -> Tensor {
        self.inner.swiglu(gate, up)
    }

    fn add(&self, x: Tensor, y: &Tensor) -> Tensor {
        self.inner.add(x, y)
    }

    fn softcap(&self, x: Tensor, multiplier: f32, cap: f32) -> Tensor {
        self.inner.softcap(x, multiplier, cap)
    }

    fn kv_bytes(&self, page: &KvPage) -> Vec<u8> {
        self.inner.kv_bytes(page)
    }

    fn kv_page_of(&self, spec: KvSpec, bytes: &[u8]) -> Result<Option<KvPage>, BackendError> {
        self.inner.kv_page_of(spec, bytes)
    }

    fn dynamic_conv(&self, x: &Tensor, base: &Vector, dynamic: &Tensor, side: usize, blocks: &[usize]) -> Tensor {
        self.inner.dynamic_conv(x, base, dynamic, side, blocks)
    }

    fn kv_write(&self, page: &mut KvPage, at: usize, k: &Tensor, v: &Tensor, rows: Range<usize>) {
        self.inner.kv_write(page, at, k, v, rows);
    }

    fn attend(&self, q: &Tensor, sequences: &[Attended<'_, KvPage>], scale: f32) -> Tensor {
        self.inner.attend(q, sequences, scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glimmer_encoding::{Encoding, FloatType, MemoryRows, RowOrder, Scratch, WeightView};
    use std::convert::Infallible;

    struct Named(&'static str, MemoryRows);

    impl RowSource for Named {
        type Error = Infallible;

        fn encoding(&self) -> Encoding {
            self.1.encoding()
        }

        fn shape(&self) -> [usize; 2] {
            self.1.shape()
        }

        fn name(&self) -> Option<&str> {
            Some(self.0)
        }

        fn read<'a>(&'a self, rows: Range<usize>, scratch: &'a mut Scratch) -> Result<WeightView<'a>, Infallible> {
            self.1.read(rows, scratch)
        }
    }

    #[test]
    fn columns_weigh_the_mean_square_of_their_inputs() {
        let b = Recorder::new(Some(1)).unwrap();
        let load = |name| {
            let parts = [vec![0; 3 * 4 * 4].into(), Vec::new().into(), Vec::new().into()];
            let rows = MemoryRows::new(Encoding::Dense(FloatType::F32), [3, 4], RowOrder::Ascending, parts, None);
            b.load_weight(&Named(name, rows.unwrap())).unwrap()
        };
        let [alone, first, second, _unused] = ["alone", "first", "second", "unused"].map(load);
        b.linear(&b.tensor(1, 4, vec![0.0, 1.0, 0.0, -1.0]), &alone);
        b.linears(&b.tensor(1, 4, vec![1.0, 0.0, 2.0, -1.0]), [&first, &second]);
        b.linears(&b.tensor(2, 4, vec![3.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]), [&first, &second]);
        let columns = b.columns();
        let floor = FLOOR as f32;
        assert_eq!(columns["alone"], [floor, 2.0, floor, 2.0]);
        assert_eq!(columns["first"], [2.5, floor, 1.0, 0.5]);
        assert_eq!(columns["first"], columns["second"]);
        assert!(!columns.contains_key("unused"));
    }
}

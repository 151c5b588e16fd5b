//! The rule of activations, restated and followed in f64 through a whole model, beside the kernels.
//!
//! [`Both`] computes everything twice: once as [`CpuBackend`] does, once with every projection as a plain product of decoded
//! weights and activations that were rounded here. The second knows nothing of packed weights.

use crate::support::{logits, tower};
use glimmer_backend::{Attended, Backend, BackendError, CpuBackend, CpuOptions, Isa, KvSpec, KvTypes, LoadError};
use glimmer_encoding::{RowSource, Scratch};
use glimmer_engine::{ActivationType, KvType, Source};
use std::ops::Range;
use std::sync::Mutex;

type Cpu = <CpuBackend as Backend>::Tensor;

/// The kernels, and the rule.
pub struct Both {
    kernels: CpuBackend,
    scalar: CpuBackend,
    counts: Mutex<Counts>,
}

/// How many activations were rounded, and how many of them lay so near the middle of two codes that either is right.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub rounded: usize,
    pub ties: usize,
}

/// A tensor as the kernels computed it, and as the rule has it.
#[derive(Clone)]
pub struct Twice {
    kernels: Cpu,
    rule: Cpu,
}

pub struct Weight {
    kernels: <CpuBackend as Backend>::Weight,
    /// (outs, inputs)
    decoded: Vec<f32>,
    inputs: usize,
    rounds: bool,
}

/// How near the middle of two codes is, in codes: more than what the floats of two orders of summation differ by.
const TIE: f64 = 2e-3;

impl Both {
    fn new(isa: Isa) -> Self {
        let backend =
            |isa, activations| CpuBackend::new(CpuOptions { threads: Some(1), isa: Some(isa), activations }).unwrap();
        Self {
            kernels: backend(isa, ActivationType::Auto),
            scalar: backend(Isa::Scalar, ActivationType::F32),
            counts: Mutex::default(),
        }
    }

    /// A row of activations as the rule has it. Per 256 inputs, scale = max |x| / 127, and a code is x / scale to the nearest, ties to
    /// even. Where `x` is within [`TIE`] of the middle of two, it is the one that the kernels' own activations have.
    fn round(&self, x: &[f32], kernels: &[f32]) -> Vec<f64> {
        let mut counts = self.counts.lock().unwrap();
        let mut out = Vec::with_capacity(x.len());
        for (x, kernels) in x.chunks(256).zip(kernels.chunks(256)) {
            let max = |x: &[f32]| x.iter().fold(0f32, |max, x| max.max(x.abs()));
            let (scale, inverse) = (f64::from(max(x)) / 127.0, 127.0 / max(kernels));
            for (&x, &theirs) in x.iter().zip(kernels) {
                let exact = if scale == 0.0 { 0.0 } else { f64::from(x) / scale };
                let theirs = f64::from((theirs * inverse).round_ties_even());
                let mut code = exact.round_ties_even();
                counts.rounded += 1;
                if (exact - code).abs() > 0.5 - TIE {
                    counts.ties += 1;
                    if (exact - theirs).abs() < 0.5 + TIE {
                        code = theirs;
                    }
                }
                out.push(code * scale);
            }
        }
        out
    }
}

/// Sums products in f64.
fn dot(x: &[f64], w: &[f32]) -> f64 {
    let mut sums = [0.0; 8];
    for (x, w) in x.chunks(8).zip(w.chunks(8)) {
        sums.iter_mut().zip(x.iter().zip(w)).for_each(|(sum, (x, w))| *sum += x * f64::from(*w));
    }
    sums.iter().sum()
}

impl Backend for Both {
    type Tensor = Twice;
    type Weight = Weight;
    type Table = <CpuBackend as Backend>::Table;
    type Vector = <CpuBackend as Backend>::Vector;
    type Rotation = <CpuBackend as Backend>::Rotation;
    type KvPage = [<CpuBackend as Backend>::KvPage; 2];

    const ROW_INVARIANT: bool = true;

    fn load_weight<S: RowSource>(&self, source: &S) -> Result<Weight, LoadError<S::Error>> {
        let kernels = self.kernels.load_weight(source)?;
        let [outs, inputs] = source.shape();
        let decoded = source.read(0..outs, &mut Scratch::default()).map_err(LoadError::Source)?.to_f32();
        let rounds = self.kernels.activations(source.encoding()) == Ok(ActivationType::Int8);
        Ok(Weight { kernels, decoded, inputs, rounds })
    }

    fn load_table<S: RowSource>(&self, source: &S) -> Result<Self::Table, LoadError<S::Error>> {
        self.scalar.load_table(source)
    }

    fn load_vector(&self, values: Vec<f32>) -> Self::Vector {
        self.scalar.load_vector(values)
    }

    fn kv_page(&self, spec: KvSpec) -> Result<Self::KvPage, BackendError> {
        Ok([self.kernels.kv_page(spec)?, self.scalar.kv_page(spec)?])
    }

    fn kv_own(&self, [kernels, rule]: &mut Self::KvPage) -> Result<(), BackendError> {
        self.kernels.kv_own(kernels)?;
        self.scalar.kv_own(rule)
    }

    fn kv_bytes(&self, [kernels, rule]: &Self::KvPage) -> Vec<u8> {
        [self.kernels.kv_bytes(kernels), self.scalar.kv_bytes(rule)].concat()
    }

    fn kv_page_of(&self, spec: KvSpec, bytes: &[u8]) -> Result<Option<Self::KvPage>, BackendError> {
        let (kernels, rule) = bytes.split_at(bytes.len() / 2);
        let kernels = self.kernels.kv_page_of(spec, kernels)?;
        Ok(kernels.zip(self.scalar.kv_page_of(spec, rule)?).map(|(kernels, rule)| [kernels, rule]))
    }

    fn tensor(&self, rows: usize, cols: usize, values: Vec<f32>) -> Twice {
        let x = self.scalar.tensor(rows, cols, values);
        Twice { kernels: x.clone(), rule: x }
    }

    /// What the kernels computed, and behind it what the rule says.
    fn read(&self, x: &Twice) -> Vec<f32> {
        [self.kernels.read(&x.kernels), self.scalar.read(&x.rule)].concat()
    }

    fn shape(&self, x: &Twice) -> (usize, usize) {
        self.scalar.shape(&x.rule)
    }

    fn rows(&self, x: &Twice, range: Range<usize>) -> Twice {
        Twice { kernels: self.kernels.rows(&x.kernels, range.clone()), rule: self.scalar.rows(&x.rule, range) }
    }

    fn concat_cols(&self, parts: &[&Twice]) -> Twice {
        let (kernels, rule): (Vec<_>, Vec<_>) = parts.iter().map(|x| (&x.kernels, &x.rule)).unzip();
        Twice { kernels: self.kernels.concat_cols(&kernels), rule: self.scalar.concat_cols(&rule) }
    }

    fn concat_rows(&self, parts: &[&Twice]) -> Twice {
        let (kernels, rule): (Vec<_>, Vec<_>) = parts.iter().map(|x| (&x.kernels, &x.rule)).unzip();
        Twice { kernels: self.kernels.concat_rows(&kernels), rule: self.scalar.concat_rows(&rule) }
    }

    fn embed(&self, table: &Self::Table, ids: &[u32]) -> Twice {
        Twice { kernels: self.kernels.embed(table, ids), rule: self.scalar.embed(table, ids) }
    }

    fn linear(&self, x: &Twice, weight: &Weight) -> Twice {
        let kernels = self.kernels.linear(&x.kernels, &weight.kernels);
        let (seen, exact) = (self.kernels.read(&x.kernels), self.scalar.read(&x.rule));
        let mut out = Vec::new();
        for (seen, exact) in seen.chunks(weight.inputs).zip(exact.chunks(weight.inputs)) {
            let x: Vec<f64> = match weight.rounds {
                true => self.round(exact, seen),
                false => exact.iter().map(|&x| f64::from(x)).collect(),
            };
            out.extend(weight.decoded.chunks(weight.inputs).map(|w| dot(&x, w) as f32));
        }
        let (rows, outs) = self.kernels.shape(&kernels);
        Twice { kernels, rule: self.scalar.tensor(rows, outs, out) }
    }

    fn rms_norm(&self, x: &Twice, weight: Option<&Self::Vector>, eps: f32) -> Twice {
        let kernels = self.kernels.rms_norm(&x.kernels, weight, eps);
        Twice { kernels, rule: self.scalar.rms_norm(&x.rule, weight, eps) }
    }

    fn rms_norm_heads(&self, x: Twice, head_dim: usize, weight: Option<&Self::Vector>, eps: f32, scale: f32) -> Twice {
        let kernels = self.kernels.rms_norm_heads(x.kernels, head_dim, weight, eps, scale);
        Twice { kernels, rule: self.scalar.rms_norm_heads(x.rule, head_dim, weight, eps, scale) }
    }

    fn rotation(&self, positions: &[usize], head_dim: usize, theta: f64) -> Self::Rotation {
        self.scalar.rotation(positions, head_dim, theta)
    }

    fn rope(&self, x: Twice, rotation: &Self::Rotation) -> Twice {
        Twice { kernels: self.kernels.rope(x.kernels, rotation), rule: self.scalar.rope(x.rule, rotation) }
    }

    fn gate(&self, x: Twice, gate: &Twice) -> Twice {
        Twice { kernels: self.kernels.gate(x.kernels, &gate.kernels), rule: self.scalar.gate(x.rule, &gate.rule) }
    }

    fn swiglu(&self, gate: Twice, up: &Twice) -> Twice {
        Twice { kernels: self.kernels.swiglu(gate.kernels, &up.kernels), rule: self.scalar.swiglu(gate.rule, &up.rule) }
    }

    fn add(&self, x: Twice, y: &Twice) -> Twice {
        Twice { kernels: self.kernels.add(x.kernels, &y.kernels), rule: self.scalar.add(x.rule, &y.rule) }
    }

    fn softcap(&self, x: Twice, multiplier: f32, cap: f32) -> Twice {
        let kernels = self.kernels.softcap(x.kernels, multiplier, cap);
        Twice { kernels, rule: self.scalar.softcap(x.rule, multiplier, cap) }
    }

    fn dynamic_conv(&self, x: &Twice, base: &Self::Vector, dynamic: &Twice, side: usize, blocks: &[usize]) -> Twice {
        let kernels = self.kernels.dynamic_conv(&x.kernels, base, &dynamic.kernels, side, blocks);
        Twice { kernels, rule: self.scalar.dynamic_conv(&x.rule, base, &dynamic.rule, side, blocks) }
    }

    fn kv_write(&self, [kernels, rule]: &mut Self::KvPage, at: usize, k: &Twice, v: &Twice, rows: Range<usize>) {
        self.kernels.kv_write(kernels, at, &k.kernels, &v.kernels, rows.clone());
        self.scalar.kv_write(rule, at, &k.rule, &v.rule, rows);
    }

    fn attend(&self, q: &Twice, sequences: &[Attended<'_, Self::KvPage>], scale: f32) -> Twice {
        let pages = |of: usize| -> Vec<Vec<_>> {
            sequences.iter().map(|sequence| sequence.pages.iter().map(|page| page[of].clone()).collect()).collect()
        };
        let attend = |backend: &CpuBackend, q, pages: &[Vec<_>]| {
            let sequences: Vec<_> = sequences
                .iter()
                .zip(pages)
                .map(|(&Attended { visible, first, .. }, pages)| Attended { visible, first, pages })
                .collect();
            backend.attend(q, &sequences, scale)
        };
        let kernels = attend(&self.kernels, &q.kernels, &pages(0));
        Twice { kernels, rule: attend(&self.scalar, &q.rule, &pages(1)) }
    }
}

/// The largest difference of the logits of the kernels and those of the rule, after every one of `ids`, taken in one pass.
pub fn distance(target: &Source, isa: Isa, ids: &[u32]) -> (f32, Counts) {
    let both = Both::new(isa);
    let both_logits = logits(&both, &tower(&both, target), ids, ids.len(), KvTypes::both(KvType::F32));
    let (kernels, rule) = both_logits.split_at(both_logits.len() / 2);
    assert!(both_logits.iter().all(|x| x.is_finite()));
    let worst = kernels.iter().zip(rule).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    (worst, *both.counts.lock().unwrap())
}

//! Fixtures and comparisons.

use glimmer_backend::{ActivationType, Backend, CpuBackend, CpuOptions, KvType, KvTypes};
use glimmer_checkpoint::Checkpoint;
use glimmer_model::muse::{MuseConfig, MuseText, account};
use glimmer_model::observe::Unobserved;
use safetensors::{Dtype, SafeTensors};
use std::path::PathBuf;

/// How far two correct f32 implementations may be apart (they differ by about 5e-5).
pub const GOLDEN: f32 = 1e-3;

pub const F32: KvTypes = KvTypes::both(KvType::F32);
pub const F16: KvTypes = KvTypes::both(KvType::F16);
/// Every type, and a mixture.
pub const KINDS: [KvTypes; 5] = [
    F32,
    F16,
    KvTypes::both(KvType::BF16),
    KvTypes::both(KvType::Q8),
    KvTypes { keys: KvType::Q8, values: KvType::F16 },
];

pub fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

/// Multiplies in f32, as the golden data were.
pub fn backend() -> CpuBackend {
    let activations = ActivationType::F32;
    CpuBackend::new(CpuOptions { threads: Some(2), activations, ..CpuOptions::default() }).unwrap()
}

pub fn load(backend: &CpuBackend, name: &str) -> MuseText<CpuBackend> {
    let (checkpoint, config) = open(name);
    MuseText::load(backend, &checkpoint, &config, &mut |_| {}).unwrap()
}

pub fn open(name: &str) -> (Checkpoint, MuseConfig) {
    let checkpoint = glimmer_checkpoint::open(&path(name)).unwrap();
    let config = MuseConfig::from_checkpoint(&checkpoint).unwrap();
    account(&checkpoint, &config).unwrap();
    (checkpoint, config)
}

/// All logits of a sequence, fed in passes of `chunk` tokens.
pub fn logits(b: &CpuBackend, model: &MuseText<CpuBackend>, ids: &[u32], chunk: usize, keys: KvTypes) -> Vec<f32> {
    let mut cache = model.cache(ids.len(), chunk, keys);
    let mut all = Vec::new();
    for part in ids.chunks(chunk) {
        let x = model.forward(b, &mut cache, part, &mut Unobserved).unwrap();
        all.extend(b.read(&model.logits(b, &x, 0..part.len(), &mut Unobserved)));
    }
    all
}

/// A file of golden tensors.
pub struct Golden(Vec<u8>);

impl Golden {
    pub fn open(name: &str) -> Self {
        Self(std::fs::read(path(name)).unwrap())
    }

    pub fn names(&self) -> Vec<String> {
        SafeTensors::deserialize(&self.0).unwrap().names().into_iter().map(String::from).collect()
    }

    pub fn f32(&self, name: &str) -> Vec<f32> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let tensor = file.tensor(name).unwrap();
        assert_eq!(tensor.dtype(), Dtype::F32, "{name}");
        tensor.data().as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let tensor = file.tensor(name).unwrap();
        assert_eq!(tensor.dtype(), Dtype::I32, "{name}");
        tensor.data().as_chunks::<4>().0.iter().map(|&b| i32::from_le_bytes(b) as u32).collect()
    }

    /// Asserts that `ours` is the golden tensor `name` within [`GOLDEN`]; returns the largest difference.
    pub fn check(&self, name: &str, ours: &[f32]) -> f32 {
        let theirs = self.f32(name);
        assert_eq!(ours.len(), theirs.len(), "{name}");
        let worst = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= GOLDEN && ours.iter().all(|x| x.is_finite()), "{name}: off by {worst}");
        worst
    }
}

pub fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best }) as u32
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

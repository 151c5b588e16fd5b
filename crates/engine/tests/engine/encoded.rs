//! Checkpoints in every encoding there is.

use crate::gguf_writer;
use crate::support::{Pair, copy_to, edit, path};
use glimmer_checkpoint::write::safetensors::{Header, Part};
use glimmer_encoding::{EncodedRows, Encoding, FloatType, GgmlType, encode_rows};
use glimmer_engine::synth::{Shape, StoredAs, Synth};
use glimmer_engine::{EngineOptions, KvType, Source};
use serde_json::json;
use std::path::Path;

/// What is encoded: a target and its drafter, both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    Nano,
    Tiny,
    /// Random weights of larger widths, which any block divides.
    Synthetic,
}

/// Every encoding; affine ones with scales of either type by turns, or, where `both`, of both.
pub fn encodings(both: bool) -> Vec<Encoding> {
    let mut all: Vec<Encoding> = GgmlType::ALL.map(Encoding::Ggml).into();
    all.extend([Encoding::MxFp4, Encoding::MxFp8, Encoding::NvFp4]);
    all.extend([FloatType::F32, FloatType::F16, FloatType::BF16].map(Encoding::Dense));
    let floats = [FloatType::F16, FloatType::BF16];
    let affine = [2, 3, 4, 5, 6, 8].into_iter().flat_map(|bits| [32, 64, 128].map(|group| (bits, group)));
    for (i, (bits, group)) in affine.enumerate() {
        let scales = if both { &floats[..] } else { &floats[i % 2..][..1] };
        all.extend(scales.iter().map(|&scale| Encoding::Affine { bits, group, scale }));
    }
    all
}

impl Base {
    pub const ALL: [Base; 3] = [Base::Nano, Base::Tiny, Base::Synthetic];

    /// Whether its rows are whole blocks, and, for the synthetic one, those of no other are.
    pub fn takes(self, encoding: Encoding) -> bool {
        let divides = |width: usize| width.is_multiple_of(encoding.block());
        match self {
            Base::Nano => divides(64),
            Base::Tiny => divides(32),
            Base::Synthetic => !divides(64),
        }
    }

    pub fn block_size(self) -> usize {
        match self {
            Base::Nano | Base::Synthetic => 16,
            Base::Tiny => 8,
        }
    }

    pub fn prompt(self) -> Vec<u32> {
        match self {
            Base::Nano => Pair::Nano.prompts()[2].clone(),
            Base::Tiny => Pair::Tiny.prompts()[2].clone(),
            Base::Synthetic => (3..15).map(|i| i * 31).collect(),
        }
    }
}

/// A target and its drafter in one encoding, as long as they are needed.
pub struct Encoded {
    pub base: Base,
    pub encoding: Encoding,
    dir: tempfile::TempDir,
}

impl Encoded {
    pub fn new(base: Base, encoding: Encoding) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let [target, drafter] = ["target", "drafter"].map(|name| dir.path().join(name));
        let (from, assistant) = match base {
            Base::Nano => ("nano/target", "nano/assistant"),
            Base::Tiny => ("fixtures/muse-tiny-bf16", "fixtures/muse-tiny-assistant"),
            Base::Synthetic => {
                for (path, drafter) in [(target, false), (drafter, true)] {
                    let encoding = StoredAs(encoding);
                    let synth = Synth { shape: Shape::Tiny, encoding, container: None, drafter, seed: 5 };
                    assert!(synth.write(&path, &mut |_, _| true).unwrap().is_some());
                }
                return Self { base, encoding, dir };
            }
        };
        match encoding {
            Encoding::Ggml(_) => {
                let open = |name: &str| glimmer_checkpoint::open(&path(name)).unwrap();
                std::fs::write(target, gguf_writer::target(&open(from), |_, _| encoding).bytes()).unwrap();
                std::fs::write(drafter, gguf_writer::drafter(&open(assistant), |_, _| encoding).bytes()).unwrap();
            }
            _ => {
                directory(from, encoding, &target);
                directory(assistant, encoding, &drafter);
            }
        }
        Self { base, encoding, dir }
    }

    pub fn target(&self) -> Source {
        Source::Path(self.dir.path().join("target"))
    }

    /// Both, with a cache of f32 and one thread.
    pub fn options(&self) -> EngineOptions {
        EngineOptions {
            drafter: Some(Source::Path(self.dir.path().join("drafter"))),
            context: Some(800),
            cache_keys: Some(KvType::F32),
            cache_values: Some(KvType::F32),
            threads: Some(1),
            ..EngineOptions::new(self.target())
        }
    }
}

/// A checkpoint's text tower as MLX would quantize it, or as other floats, in a directory of its own.
fn directory(from: &str, encoding: Encoding, to: &Path) {
    copy_to(from, to);
    let source = glimmer_checkpoint::open(&path(from)).unwrap();
    let (mut header, mut data) = (Header::default(), Vec::new());
    for info in source.tensors().iter().filter(|info| !info.name.contains("vision")) {
        let values = source.read(&info.name).unwrap().view().to_f32();
        let module = info.name.strip_suffix(".weight").unwrap();
        let encoding = match info.shape[..] {
            [_] => Encoding::Dense(FloatType::BF16),
            _ => encoding,
        };
        let cols = info.shape[info.shape.len() - 1];
        let (rows, global) = encoded(encoding, values, cols);
        let mut parts = header.tensor(module, encoding, &info.shape).unwrap();
        if encoding == Encoding::NvFp4 {
            parts.push(header.global_scale(module));
        }
        for (part, bytes) in parts {
            let part = match part {
                Part::Weight => rows.codes.clone(),
                Part::Scales => rows.scales.clone(),
                Part::Biases => rows.biases.clone(),
                Part::GlobalScale => global.to_le_bytes().to_vec(),
            };
            assert_eq!(part.len(), bytes, "{}", info.name);
            data.push(part);
        }
    }
    let file = to.join("model.safetensors");
    std::fs::remove_file(&file).unwrap();
    let mut file = header.create(&file).unwrap();
    data.iter().for_each(|part| file.write(part).unwrap());
    file.finish().unwrap();
    edit(to, "config.json", |config| {
        config.as_object_mut().unwrap().remove("vision_config");
        let mode = match encoding {
            Encoding::Affine { bits, group, .. } => json!({"bits": bits, "group_size": group, "mode": "affine"}),
            Encoding::Dense(_) => return,
            _ => json!({"bits": if encoding == Encoding::MxFp8 { 8 } else { 4 }, "group_size": encoding.block(),
                "mode": encoding.to_string()}),
        };
        config["quantization"] = mode;
    });
}

/// Rows in an encoding, and the largest magnitude, by which the scales of nvfp4 are measured.
fn encoded(encoding: Encoding, mut values: Vec<f32>, cols: usize) -> (EncodedRows, f32) {
    let max = values.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
    if encoding == Encoding::NvFp4 {
        values.iter_mut().for_each(|x| *x *= 6.0 * 448.0 / max);
    }
    (encode_rows(encoding, &values, values.len() / cols, cols).unwrap(), max)
}

//! Synthetic checkpoints: random weights in the shapes, containers and encodings of real ones.
//!
//! They say nothing sensible, but they load, run and take as long as real ones. Blocks are drawn as they are stored, never
//! quantized: zero-mean, with a standard deviation of 1 / sqrt(inputs), so that activations stay sane. The bytes of a tensor
//! depend on seed, name and encoding alone.

mod blocks;
mod config;

use crate::EngineError;
use crate::random::Random;
use blocks::Fill;
use glimmer_backend::{ActivationType, BackendError};
use glimmer_checkpoint::TensorSpec;
use glimmer_checkpoint::write::safetensors::{self, Part};
use glimmer_checkpoint::write::{Data, Staged, gguf, write_file};
use glimmer_encoding::{Encoding, FloatType, GgmlType};
use glimmer_model::dflash::DFlashConfig;
use glimmer_model::kv_cache::Span;
use glimmer_model::muse::{LayerConfig, TextConfig};
use std::path::Path;
use std::str::FromStr;

/// A checkpoint to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synth {
    /// Its size.
    pub shape: Shape,
    /// How its matrices are stored; the output of a 4-bit ggml target takes 6 bits, as it does in the wild.
    pub encoding: StoredAs,
    /// A GGUF file, or a directory as Hugging Face and MLX have it; the default is the encoding's own.
    pub container: Option<Container>,
    /// A DFlash v1 drafter for the target of this shape, in place of the target.
    pub drafter: bool,
    /// Decides every weight.
    pub seed: u64,
}

/// The sizes there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// 8 layers, hidden size 512: for tests.
    Tiny,
    /// 28 layers, hidden size 2048, 1.6 B parameters: for measuring.
    Mid,
    /// The published model's text tower.
    Full,
}

/// Where tensors lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// One GGUF file.
    Gguf,
    /// A directory with `config.json` and `model.safetensors`.
    Directory,
}

/// The encoding of a synthetic checkpoint, by the name that it is asked for with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredAs(pub Encoding);

impl FromStr for Shape {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "tiny" => Ok(Shape::Tiny),
            "mid" => Ok(Shape::Mid),
            "full" => Ok(Shape::Full),
            _ => Err(format!("unknown shape `{name}` (known: tiny, mid, full)")),
        }
    }
}

impl FromStr for Container {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "gguf" => Ok(Container::Gguf),
            "hf" | "mlx" => Ok(Container::Directory),
            _ => Err(format!("unknown container `{name}` (known: gguf, hf, mlx)")),
        }
    }
}

impl FromStr for StoredAs {
    type Err = String;

    /// `bf16`, `q4_k`, `mxfp4`, or as in `affine4g64`: bits and group.
    fn from_str(name: &str) -> Result<Self, String> {
        let floats = [FloatType::F32, FloatType::F16, FloatType::BF16].map(Encoding::Dense);
        let plain = GgmlType::ALL.map(Encoding::Ggml).into_iter().chain(floats);
        let mut plain = plain.chain([Encoding::MxFp4, Encoding::MxFp8, Encoding::NvFp4]);
        let affine = || {
            let (bits, group) = name.strip_prefix("affine")?.split_once('g')?;
            let (bits, group) = (bits.parse().ok()?, group.parse().ok()?);
            let encoding = Encoding::Affine { bits, group, scale: FloatType::BF16 };
            encoding.sizes(usize::from(group)).map(|_| encoding)
        };
        plain.find(|encoding| encoding.to_string() == name).or_else(affine).map(StoredAs).ok_or_else(|| {
            let ggml = GgmlType::ALL.map(|kind| kind.to_string()).join(", ");
            let known = format!("f32, f16, bf16, {ggml}, mxfp4, mxfp8, nvfp4, affine4g64 and other bits and groups");
            format!("unknown encoding `{name}` (known: {known})")
        })
    }
}

/// A run of bytes of a file to be.
struct Piece {
    /// Names the sequence of random numbers.
    name: String,
    fill: Fill,
    bytes: usize,
}

/// Bytes that are drawn at a time.
const CHUNK: usize = 4 << 20;

impl Synth {
    /// Writes it to `path`, where nothing may be yet, and gives the bytes of its tensors. `progress` is told the bytes that are
    /// done and all of them, and may end it by returning false: then there is `None`, and nothing at `path`.
    pub fn write(&self, path: &Path, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<Option<u64>, EngineError> {
        let container = self.container()?;
        let staged = Staged::new(path)?;
        let (data, pieces) = match container {
            Container::Gguf => self.gguf(staged.part())?,
            Container::Directory => {
                staged.directory()?;
                for (name, bytes) in self.side_files() {
                    write_file(&staged.part().join(name), &bytes)?;
                }
                self.safetensors(&staged.part().join("model.safetensors"))?
            }
        };
        let total = pieces.iter().map(|piece| piece.bytes as u64).sum();
        if !self.draw(data, &pieces, &mut |done| progress(done, total))? {
            return Ok(None);
        }
        staged.commit()?;
        Ok(Some(total))
    }

    /// The container, if the encoding can be stored in it.
    pub fn container(&self) -> Result<Container, EngineError> {
        let StoredAs(encoding) = self.encoding;
        let only = match encoding {
            Encoding::Dense(_) => return Ok(self.container.unwrap_or(Container::Directory)),
            Encoding::Ggml(_) => Container::Gguf,
            _ => Container::Directory,
        };
        match self.container {
            Some(asked) if asked != only => {
                let (name, other) = match asked {
                    Container::Gguf => ("gguf", "hf or mlx"),
                    Container::Directory => ("hf and mlx", "gguf"),
                };
                Err(EngineError::Container { encoding: encoding.to_string(), name, other })
            }
            _ => Ok(only),
        }
    }

    fn draw(&self, mut data: Data, pieces: &[Piece], done: &mut dyn FnMut(u64) -> bool) -> Result<bool, EngineError> {
        let mut buffer = vec![0; CHUNK];
        let mut written = 0;
        for piece in pieces {
            let mut random = Random::named(self.seed, &piece.name);
            let unit = piece.fill.unit();
            let mut left = piece.bytes;
            while left > 0 {
                let part = &mut buffer[..left.min(CHUNK / unit * unit)];
                piece.fill.draw(&mut random, part);
                data.write(part)?;
                left -= part.len();
                written += part.len() as u64;
                if !done(written) {
                    return Ok(false);
                }
            }
        }
        data.finish()?;
        Ok(true)
    }

    /// Every tensor, by its name in Hugging Face's checkpoints.
    fn specs(&self) -> Vec<TensorSpec> {
        match self.drafter {
            true => self.drafter_config().tensors(),
            false => self.text_config().tensors(),
        }
    }

    /// How a tensor is stored: matrices as asked for, vectors as the container has them.
    fn encoding_of(&self, spec: &TensorSpec, container: Container) -> Encoding {
        let StoredAs(body) = self.encoding;
        match (spec.shape.len(), container, body) {
            (1, Container::Gguf, _) => Encoding::Dense(FloatType::F32),
            (1, _, Encoding::Dense(_)) => body,
            (1, ..) => Encoding::Dense(FloatType::BF16),
            (_, _, Encoding::Ggml(GgmlType::Q4_0 | GgmlType::Q4K)) if spec.name == "lm_head.weight" => {
                Encoding::Ggml(GgmlType::Q6K)
            }
            _ => body,
        }
    }

    /// How it is drawn. `plus_one`: norms that are centred at zero are stored with one added.
    fn fill_of(&self, spec: &TensorSpec, encoding: Encoding, plus_one: bool) -> Fill {
        match (&spec.shape[..], encoding) {
            ([_, inputs], _) => Fill::Codes { encoding, deviation: (*inputs as f32).sqrt().recip() },
            (_, Encoding::Dense(float)) => {
                let centred = !self.drafter && spec.name.ends_with("layernorm.weight");
                Fill::Around { float, centre: if centred && !plus_one { 0.0 } else { 1.0 }, spread: 0.1 }
            }
            _ => unreachable!("vectors are stored as floats"),
        }
    }

    fn gguf(&self, path: &Path) -> Result<(Data, Vec<Piece>), EngineError> {
        let mut header = self.gguf_metadata();
        let mut pieces = Vec::new();
        let mut add = |name: String, encoding: Encoding, shape: &[usize], fill: Fill| {
            let bytes = header.tensor(&name, encoding, shape).ok_or_else(|| unstorable(encoding))?;
            pieces.push(Piece { name, fill, bytes });
            Ok::<(), EngineError>(())
        };
        for spec in self.specs() {
            let encoding = self.encoding_of(&spec, Container::Gguf);
            let fill = self.fill_of(&spec, encoding, true);
            let name = if self.drafter { gguf::drafter_name(&spec.name) } else { gguf::target_name(&spec.name) };
            add(name.unwrap_or(spec.name), encoding, &spec.shape, fill)?;
        }
        if !self.drafter {
            // The format's norms of queries and keys, which the model has without weights.
            let text = self.text_config();
            for layer in 0..text.layers.len() {
                for (part, centre) in [("attn_q_norm", text.qk_scale_factor), ("attn_k_norm", 1.0)] {
                    let fill = Fill::Around { float: FloatType::F32, centre, spread: 0.0 };
                    let encoding = Encoding::Dense(FloatType::F32);
                    add(format!("blk.{layer}.{part}.weight"), encoding, &[text.head_dim], fill)?;
                }
            }
        }
        Ok((header.create(path)?, pieces))
    }

    fn safetensors(&self, path: &Path) -> Result<(Data, Vec<Piece>), EngineError> {
        let mut header = safetensors::Header::default();
        let mut pieces = Vec::new();
        for spec in self.specs() {
            let encoding = self.encoding_of(&spec, Container::Directory);
            let fill = self.fill_of(&spec, encoding, false);
            let module = spec.name.strip_suffix(".weight").unwrap_or(&spec.name);
            let mut parts = header.tensor(module, encoding, &spec.shape).ok_or_else(|| unstorable(encoding))?;
            if encoding == Encoding::NvFp4 {
                parts.push(header.global_scale(module));
            }
            for (part, bytes) in parts {
                let (suffix, fill) = match part {
                    Part::Weight => ("weight", fill),
                    // Biases follow from scales, so they come from the same numbers.
                    Part::Scales => ("scales", fill.scales()),
                    Part::Biases => ("scales", fill.biases()),
                    Part::GlobalScale => ("global_scale", fill.global_scale()),
                };
                pieces.push(Piece { name: format!("{module}.{suffix}"), fill, bytes });
            }
        }
        Ok((header.create(path)?, pieces))
    }

    fn text_config(&self) -> TextConfig {
        let (layers, hidden_size, intermediate_size, heads, vocab_size, positions, window) = match self.shape {
            Shape::Tiny => (8, 512, 1536, 4, 4096, 8192, 512),
            Shape::Mid => (28, 2048, 6144, 16, 32_000, 32_768, 2048),
            Shape::Full => (52, 6656, 19_968, 32, 202_048, 131_072, 2048),
        };
        let layer = |layer: usize| match (layers - 1 - layer) % 4 {
            0 => LayerConfig { span: Span::Full, rope_theta: None },
            _ => LayerConfig { span: Span::Sliding(window), rope_theta: Some(THETA) },
        };
        let specials = self.specials();
        TextConfig {
            vocab_size,
            hidden_size,
            intermediate_size,
            layers: (0..layers).map(layer).collect(),
            num_attention_heads: heads,
            num_key_value_heads: 2,
            head_dim: 128,
            max_position_embeddings: positions,
            rms_norm_eps: 1e-5,
            post_norm_eps: 1e-8,
            qk_scale_factor: 3.87,
            output_multiplier: (hidden_size as f32 / 256.0).sqrt().recip(),
            final_logit_softcapping: 20.0,
            bos_token_id: Some(specials.bos),
            eos_token_id: vec![specials.eos, specials.eot],
        }
    }

    fn drafter_config(&self) -> DFlashConfig {
        let target = self.text_config();
        let (layers, kv_heads, taps) = match self.shape {
            Shape::Tiny => (2, 2, vec![1, 3, 5]),
            Shape::Mid => (5, 8, vec![1, 7, 13, 19, 25]),
            Shape::Full => (5, 8, vec![1, 13, 25, 37, 49]),
        };
        let window = target.layers.iter().find_map(|layer| match layer.span {
            Span::Sliding(window) => Some(window),
            Span::Full => None,
        });
        DFlashConfig {
            hidden_size: target.hidden_size,
            intermediate_size: target.intermediate_size,
            num_hidden_layers: layers,
            num_attention_heads: target.num_attention_heads,
            num_key_value_heads: kv_heads,
            head_dim: target.head_dim,
            rms_norm_eps: target.rms_norm_eps,
            rope_theta: THETA,
            sliding_window: window.unwrap_or(target.max_position_embeddings),
            block_size: 16,
            mask_token_id: self.specials().mask,
            target_layer_ids: taps,
            dflash2: None,
        }
    }
}

const THETA: f64 = 500_000.0;

/// The shapes have rows of whole blocks, so this is a mistake of theirs.
fn unstorable(encoding: Encoding) -> EngineError {
    BackendError::Encoding { encoding, activations: ActivationType::Int8 }.into()
}

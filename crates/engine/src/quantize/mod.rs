//! Other encodings and containers for a checkpoint.
//!
//! Matrices pass by a few pieces of rows at a time, read, encoded by all threads, and written in order, so that the memory it takes
//! does not depend on the model's size: beside the pieces there are only the scales and biases of one matrix, which MLX keeps
//! behind its codes. Nothing is there under the final name before all of it is.

mod check;
mod directory;
mod gguf;
mod importance;
mod recipe;
mod transcode;

pub use check::check;
pub use importance::Importance;
pub use recipe::{Format, Recipe};

use crate::source::Source;
use crate::{EngineError, speculative};
use glimmer_checkpoint::write::Staged;
use glimmer_checkpoint::{Checkpoint, TensorInfo};
use glimmer_encoding::{Encoding, FloatType, GgmlType};
use glimmer_model::dflash::DFlashConfig;
use glimmer_model::muse::{self, MuseConfig, VisionConfig};
use std::collections::BTreeMap;
use std::path::Path;
use transcode::Transcoder;

/// A checkpoint to be made of another.
#[derive(Clone, Debug)]
pub struct Quantize {
    /// A target or a drafter.
    pub source: Source,
    /// What to make of its matrices.
    pub recipe: Recipe,
    /// How much columns count where an encoding's parameters are searched for; all alike without it.
    pub importance: Option<Importance>,
    /// The target whose tokenizer goes into the GGUF file of a drafter, which has none itself.
    pub tokenizer: Option<Source>,
    /// Threads; the default is one per core that the process may use.
    pub threads: Option<usize>,
}

/// What was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// Elements of all tensors.
    pub parameters: u64,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Encodings: name, tensors, bytes.
    pub encodings: Vec<(String, usize, u64)>,
    /// Matrices that the recipe's encoding has no place for.
    pub exceptions: Vec<Exception>,
    /// Tensors of the vision tower that the container has no place for.
    pub left_out: usize,
    /// Whether it is a drafter, of which there are no logits to compare.
    pub drafter: bool,
}

/// A matrix whose rows are not made of whole blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct Exception {
    /// The tensor.
    pub name: String,
    /// Elements of a row.
    pub width: usize,
    /// What the recipe asks for.
    pub asked: Encoding,
    /// What it is stored as.
    pub stored: Encoding,
}

/// What the tensors are of.
enum Model {
    Target(Box<MuseConfig>),
    Drafter(DFlashConfig),
}

/// A tensor to be written.
struct Item<'a> {
    /// By its canonical name; none is in the source for what a container adds.
    name: String,
    shape: Vec<usize>,
    encoding: Encoding,
    content: Content<'a>,
}

enum Content<'a> {
    Tensor(&'a TensorInfo, Change),
    /// The same number everywhere.
    Constant(f32),
}

/// What a container does to a tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    /// Every element is one more.
    PlusOne,
    /// The rows of each head alternate between its first and its second half.
    Interleaved {
        head_dim: usize,
    },
}

/// All that writing needs.
struct Job<'a> {
    checkpoint: &'a Checkpoint,
    model: &'a Model,
    recipe: &'a Recipe,
    /// The type of 16 bits that the source has, for scales, and for what has to be a float and was none.
    float: FloatType,
    transcoder: Transcoder<'a>,
    tokenizer: Option<Checkpoint>,
}

/// Is told the bytes that are done and all of them, and may end it by returning false.
type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

impl Quantize {
    /// Refuses, before importance is gathered, what [`write`](Self::write) would refuse before it begins, and a recipe for which
    /// importance is of no use.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn preflight(&self, path: &Path) -> Result<(), EngineError> {
        self.open(path)?;
        if !self.recipe.encodings().any(Encoding::is_searched) {
            let what =
                "an importance matrix changes nothing, as it has neither affine encodings nor K-quants".to_string();
            return Err(EngineError::Recipe { recipe: self.recipe.name.clone(), what });
        }
        Ok(())
    }

    /// The source, what it is, and the place to write to, once the recipe is known to be one for it.
    fn open(&self, path: &Path) -> Result<(Checkpoint, Model, Staged), EngineError> {
        let checkpoint = self.source.open_target()?;
        let model = Model::of(&checkpoint)?;
        let modules = checkpoint.tensors().iter().filter(|info| is_quantized(info)).map(|info| module(&info.name));
        self.recipe.check(modules)?;
        let staged = Staged::new(path)?;
        Ok((checkpoint, model, staged))
    }

    /// Writes it to `path`, where nothing may be yet. `progress` is told the bytes that are done and all of them, and may end it by
    /// returning false: then there is `None`, and nothing at `path`.
    ///
    /// # Errors
    /// Where the source cannot be read, the recipe not be followed, or the result not be written.
    pub fn write(
        &self,
        path: &Path,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Option<Written>, EngineError> {
        let (mut checkpoint, model, staged) = self.open(path)?;
        // Every byte is read once, and far more than fit may come by.
        checkpoint.forget_what_is_read();
        let job = Job {
            checkpoint: &checkpoint,
            model: &model,
            recipe: &self.recipe,
            float: sixteen_bits(&checkpoint),
            transcoder: Transcoder::new(&checkpoint, self.importance.as_ref(), self.threads),
            tokenizer: self.tokenizer.as_ref().map(Source::open_target).transpose()?,
        };
        let mut exceptions = Vec::new();
        let (items, whole) = match self.recipe.format {
            Format::Gguf => {
                let items = gguf::items(&job, &mut exceptions);
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                let whole = gguf::write(&job, name, &items, staged.part(), progress)?;
                (items, whole)
            }
            Format::Mlx | Format::Hf => {
                let items = directory::items(&job, &mut exceptions);
                staged.directory()?;
                let whole = directory::write(&job, &items, staged.part(), progress)?;
                (items, whole)
            }
        };
        if !whole {
            return Ok(None);
        }
        staged.commit()?;
        Ok(Some(written(&items, exceptions, &checkpoint, &model)))
    }
}

fn written(items: &[Item<'_>], exceptions: Vec<Exception>, checkpoint: &Checkpoint, model: &Model) -> Written {
    let mut encodings: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for item in items {
        let (count, bytes) = encodings.entry(item.encoding.to_string()).or_default();
        *count += 1;
        *bytes += item.bytes();
    }
    let kept = |name: &str| items.iter().any(|item| item.name == name);
    Written {
        parameters: items.iter().map(Item::elements).sum(),
        bytes: items.iter().map(Item::bytes).sum(),
        encodings: encodings.into_iter().map(|(name, (count, bytes))| (name, count, bytes)).collect(),
        exceptions,
        left_out: checkpoint.tensors().iter().filter(|info| !kept(&info.name)).count(),
        drafter: matches!(model, Model::Drafter(_)),
    }
}

impl Model {
    /// Reads the configuration, and accounts for the tensors.
    fn of(checkpoint: &Checkpoint) -> Result<Self, EngineError> {
        if let Some(config) = speculative::drafter(checkpoint)? {
            return Ok(Model::Drafter(config));
        }
        let config = MuseConfig::from_checkpoint(checkpoint)?;
        muse::account(checkpoint, &config)?;
        Ok(Model::Target(Box::new(config)))
    }

    fn layers(&self) -> usize {
        match self {
            Model::Target(config) => config.text.layers.len(),
            Model::Drafter(config) => config.num_hidden_layers,
        }
    }
}

impl Job<'_> {
    /// What a matrix is stored as: what the recipe says, or, where rows are no multiple of its block, what comes nearest in the
    /// container.
    fn encoding_of(&self, info: &TensorInfo, exceptions: &mut Vec<Exception>) -> Encoding {
        let asked = match self.recipe.encoding_of(module(&info.name), self.model.layers()) {
            Encoding::Affine { bits, group, .. } => Encoding::Affine { bits, group, scale: self.float },
            other => other,
        };
        let width = info.shape[1];
        if asked.sizes(width).is_some() {
            return asked;
        }
        let nearest = Encoding::Ggml(GgmlType::Q8_0);
        let stored = match (self.recipe.format, info.encoding) {
            (Format::Gguf, _) if nearest.sizes(width).is_some() => nearest,
            (Format::Gguf, _) => Encoding::Dense(FloatType::BF16),
            (_, dense @ Encoding::Dense(_)) => dense,
            _ => Encoding::Dense(self.float),
        };
        exceptions.push(Exception { name: info.name.clone(), width, asked, stored });
        stored
    }
}

impl Item<'_> {
    fn elements(&self) -> u64 {
        self.shape.iter().map(|&d| d as u64).product()
    }

    fn bytes(&self) -> u64 {
        self.encoding.tensor_sizes(&self.shape).map_or(0, |sizes| sizes.total() as u64)
    }
}

/// Matrices that recipes are for: all of the text tower or of a drafter, tables of embeddings included.
fn is_quantized(info: &TensorInfo) -> bool {
    info.shape.len() == 2 && !VisionConfig::is_vision(&info.name)
}

/// A tensor's name without what all weights end in.
fn module(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

fn sixteen_bits(checkpoint: &Checkpoint) -> FloatType {
    let half = |info: &TensorInfo| match info.encoding {
        Encoding::Dense(float) | Encoding::Affine { scale: float, .. } => float == FloatType::F16,
        _ => false,
    };
    match checkpoint.tensors().iter().any(half) {
        true => FloatType::F16,
        false => FloatType::BF16,
    }
}

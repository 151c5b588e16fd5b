//! What a checkpoint is and what it needs, from its headers alone.

use crate::engine::{Active, Geometry};
use crate::speculative::{self, Bound};
use crate::step::{Matrices, Work};
use crate::{EngineError, EngineOptions, engine};
use glimmer_backend::{ActivationType, KvTypes, PAGE};
pub use glimmer_checkpoint::Fingerprint;
use glimmer_checkpoint::{Checkpoint, TensorInfo};
use glimmer_encoding::Encoding;
use glimmer_model::ModelError;
pub use glimmer_model::dflash::DFlashConfig;
pub use glimmer_model::kv_cache::Span;
use glimmer_model::kv_cache::pages_needed;
use glimmer_model::muse::{self, MuseConfig, TextConfig, VisionConfig};
use std::collections::BTreeMap;

/// What a checkpoint is.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The checkpoint.
    pub label: String,
    /// What its configuration calls itself.
    pub architecture: String,
    /// Target or drafter.
    pub part: Part,
    /// Elements of all tensors.
    pub parameters: u64,
    /// Elements of the vision tensors among them.
    pub vision_parameters: u64,
    /// Number of tensors.
    pub tensors: usize,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Encodings: name, tensors, bytes.
    pub encodings: Vec<(String, usize, u64)>,
}

/// What a checkpoint is for.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// The model that decides.
    Target {
        /// Its text tower.
        text: Box<TextConfig>,
        /// Whether it brings a tokenizer.
        tokenizer: bool,
        /// Whether it brings a chat template.
        chat_template: bool,
        /// Bytes of memory that the weights of text generation take.
        weight_bytes: u64,
        /// Bytes of caches.
        cache: CacheSizes,
        /// How keys and values would be stored.
        cache_types: KvTypes,
        /// The drafter that was asked about: its label and whether, or why not, it fits.
        drafter: Option<(String, Result<DFlashConfig, String>)>,
        /// Bytes of memory that its weights take.
        drafter_bytes: u64,
        /// The vision tower, where it has a file of its own.
        projector: Option<Projector>,
    },
    /// A model that proposes.
    Drafter(DFlashConfig),
}

/// A vision tower in a file of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Projector {
    /// The file.
    pub label: String,
    /// Elements of its tensors.
    pub parameters: u64,
    /// Bytes of its tensors.
    pub bytes: u64,
}

/// Bytes that a session takes besides the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSizes {
    /// Tokens of the context.
    pub context: usize,
    /// Keys and values of layers that see everything.
    pub full: u64,
    /// Keys and values of layers that see a window.
    pub sliding: u64,
    /// The drafter's context.
    pub drafter: u64,
    /// Activations of the widest pass, about.
    pub passes: u64,
}

impl CacheSizes {
    pub(crate) fn of(text: &TextConfig, geometry: Geometry, types: KvTypes, drafter: Option<&Bound>) -> Self {
        let of_a_head = types.keys.head_bytes(text.head_dim) + types.values.head_bytes(text.head_dim);
        let per_position = text.num_key_value_heads as u64 * of_a_head as u64;
        let (mut full, mut sliding) = (0u64, 0u64);
        for layer in &text.layers {
            let positions = (PAGE * pages_needed(layer.span, geometry.positions(), geometry.widest())) as u64;
            let sum = match layer.span {
                Span::Full => &mut full,
                Span::Sliding(_) => &mut sliding,
            };
            *sum = sum.saturating_add(per_position.saturating_mul(positions));
        }
        // The residual stream with its norm and a sub-layer's output, queries, gate and attention, the MLP's three.
        let q = text.num_attention_heads * text.head_dim;
        let row = 4 * (4 * text.hidden_size + 3 * q + 3 * text.intermediate_size) as u64;
        let logits = 2 * 4 * geometry.block as u64 * text.vocab_size as u64;
        let passes = row.saturating_mul(geometry.widest() as u64).saturating_add(logits);
        Self { context: geometry.context, full, sliding, drafter: drafter.map_or(0, Bound::context_bytes), passes }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        [self.sliding, self.drafter, self.passes].into_iter().fold(self.full, u64::saturating_add)
    }
}

/// Looks at a checkpoint without reading a weight: what would be loaded with these options, and what memory it would
/// take. The drafter, if one is given, is checked against the target.
pub fn inspect(options: &EngineOptions) -> Result<Report, EngineError> {
    let checkpoint = options.open_target()?;
    let fields = checkpoint.fields();
    let names = fields.opt_str_list("architectures", 16)?.unwrap_or_default();
    let architecture = names.first().map_or("unnamed", |name| *name).to_string();
    let part = if let Some(config) = speculative::drafter(&checkpoint)? {
        Part::Drafter(config)
    } else {
        let config = MuseConfig::from_checkpoint(&checkpoint)?;
        muse::account(&checkpoint, &config)?;
        let cache_types = engine::cache_types(options, &checkpoint);
        let opened = options.open_drafter()?;
        let bound = opened.as_ref().map(|drafter| speculative::bind(drafter, &config.text, checkpoint.label()));
        let fitting = bound.as_ref().and_then(|bound| bound.as_ref().ok());
        let geometry = Geometry::new(options, &config.text, fitting.map_or(1, Bound::block_size))?;
        Part::Target {
            tokenizer: checkpoint.file("tokenizer.json")?.is_some(),
            chat_template: checkpoint.file("chat_template.jinja")?.is_some()
                || checkpoint.json("tokenizer_config.json")?.is_some_and(|c| c.contains_key("chat_template")),
            weight_bytes: options.held_bytes(&checkpoint),
            cache: CacheSizes::of(&config.text, geometry, cache_types, fitting),
            cache_types,
            drafter_bytes: opened.as_ref().map_or(0, |drafter| options.held_bytes(drafter)),
            drafter: opened.as_ref().zip(bound).map(|(drafter, bound)| {
                let fit = bound.map(|Bound::DFlash(config)| config).map_err(|e| e.to_string());
                (drafter.label().to_string(), fit)
            }),
            projector: options.open_projector(&config.text)?.map(|checkpoint| Projector {
                label: checkpoint.label().to_string(),
                parameters: checkpoint.tensors().iter().map(elements).sum(),
                bytes: checkpoint.tensors().iter().map(|t| t.byte_len() as u64).sum(),
            }),
            text: Box::new(config.text),
        }
    };
    let all = checkpoint.tensors();
    Ok(Report {
        label: checkpoint.label().to_string(),
        architecture,
        part,
        parameters: all.iter().map(elements).sum(),
        vision_parameters: all.iter().filter(|t| VisionConfig::is_vision(&t.name)).map(elements).sum(),
        tensors: all.len(),
        bytes: all.iter().map(|t| t.byte_len() as u64).sum(),
        encodings: by_encoding(all).into_iter().map(|(name, (n, bytes))| (name, n, bytes)).collect(),
    })
}

/// What tells the target, and the drafter if there is one, from others.
pub fn fingerprints(options: &EngineOptions) -> Result<(Fingerprint, Option<Fingerprint>), EngineError> {
    let target = options.open_target()?.fingerprint()?;
    let drafter = options.open_drafter()?.map(|drafter| drafter.fingerprint()).transpose()?;
    Ok((target, drafter))
}

fn elements(info: &TensorInfo) -> u64 {
    info.shape.iter().map(|&d| d as u64).product()
}

/// Bytes of the tensors that text generation loads.
pub(crate) fn text_bytes(checkpoint: &Checkpoint) -> u64 {
    let text = checkpoint.tensors().iter().filter(|t| !VisionConfig::is_vision(&t.name));
    text.map(|t| t.byte_len() as u64).sum()
}

/// Bytes of memory that they take then: packed, or widened to f32, where they are not multiplied as they are stored.
pub(crate) fn held_bytes(checkpoint: &Checkpoint, activations: ActivationType) -> u64 {
    let text = checkpoint.tensors().iter().filter(|t| !VisionConfig::is_vision(&t.name));
    text.map(|tensor| {
        let stored = tensor.byte_len() as u64;
        if !is_multiplied(tensor) || matches!(tensor.encoding, Encoding::Dense(_)) {
            return stored;
        }
        let packed = Active::packed_bits(tensor.encoding)
            .filter(|_| matches!(activations, ActivationType::Auto | ActivationType::Int8));
        let elements: f64 = tensor.shape.iter().map(|&d| d as f64).product();
        (elements * packed.unwrap_or(32.0) / 8.0) as u64
    })
    .sum()
}

/// What activations are multiplied as, by the matrices that the text tower, or a drafter, multiplies with; the first that cannot
/// be multiplied as was asked for is the error.
pub(crate) fn activations(checkpoint: &Checkpoint, backend: &Active) -> Result<String, ModelError> {
    let (mut rounded, mut wide) = (None, 0);
    for tensor in multiplied(checkpoint) {
        let refused = |cause| ModelError::Backend { what: checkpoint.describe(&tensor.name), cause };
        match backend.activations(tensor.encoding).map_err(refused)? {
            ActivationType::F32 => wide += 1,
            other => rounded = Some(other),
        }
    }
    Ok(match (rounded, wide) {
        (None, _) => "f32".into(),
        (Some(rounded), 0) => rounded.to_string(),
        (Some(rounded), wide) => format!("{rounded} (f32 for {wide} matrices)"),
    })
}

/// The matrices that the text tower multiplies with.
fn multiplied(checkpoint: &Checkpoint) -> impl Iterator<Item = &TensorInfo> {
    checkpoint.tensors().iter().filter(|tensor| is_multiplied(tensor))
}

/// All are but tables, whose rows are looked up as they are stored: embeddings, and a drafter's codebooks.
fn is_multiplied(tensor: &TensorInfo) -> bool {
    let is_table = tensor.name.contains(".embed_tokens.") || tensor.name.ends_with("_codebook");
    tensor.shape.len() == 2 && !VisionConfig::is_vision(&tensor.name) && !is_table
}

/// What reading and multiplying them takes.
pub(crate) fn matrices(checkpoint: &Checkpoint, backend: &Active) -> Matrices {
    let mut all = Matrices::default();
    for tensor in multiplied(checkpoint) {
        let products = tensor.shape.iter().map(|&d| d as u64).product();
        let (integers, floats) = match backend.activations(tensor.encoding) == Ok(ActivationType::Int8) {
            true => (products, 0),
            false => (0, products),
        };
        let work = Work { bytes: tensor.byte_len() as u64, integers, floats };
        let part = if tensor.name == "lm_head.weight" { &mut all.head } else { &mut all.layers };
        *part = *part + work;
    }
    all
}

/// The encodings of a checkpoint's matrices, the most bytes first, with the path that products with them take where it is
/// not the only one: `bf16`, or `q4_k (packed) + mxfp8 (widened to f32)`, or `iq2_s (packed, 3.625 bits)` where they take more memory
/// than in the file.
pub(crate) fn encodings(checkpoint: &Checkpoint, backend: &Active) -> String {
    let matrices = || checkpoint.tensors().iter().filter(|tensor| tensor.shape.len() > 1);
    let mut all: Vec<_> = by_encoding(matrices()).into_iter().collect();
    all.sort_by_key(|(_, (_, bytes))| std::cmp::Reverse(*bytes));
    let path = |name: &str| {
        let tensor = matrices().find(|tensor| is_multiplied(tensor) && tensor.encoding.to_string() == name);
        match tensor.map(|tensor| tensor.encoding) {
            None | Some(Encoding::Dense(_)) => String::new(),
            Some(encoding) if backend.activations(encoding) == Ok(ActivationType::Int8) => packed(encoding),
            Some(_) => " (widened to f32)".into(),
        }
    };
    let names: Vec<String> = all.into_iter().map(|(name, _)| format!("{name}{}", path(&name))).collect();
    names.join(" + ")
}

fn packed(encoding: Encoding) -> String {
    match Active::packed_bits(encoding) {
        // The padding of q6_k is not worth a word.
        Some(bits) if bits > encoding.bits_per_weight() + 0.1 => format!(" (packed, {bits} bits)"),
        _ => " (packed)".into(),
    }
}

fn by_encoding<'a>(tensors: impl IntoIterator<Item = &'a TensorInfo>) -> BTreeMap<String, (usize, u64)> {
    let mut all: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for tensor in tensors {
        let (count, bytes) = all.entry(tensor.encoding.to_string()).or_default();
        *count += 1;
        *bytes += tensor.byte_len() as u64;
    }
    all
}

//! What a checkpoint is and what it needs, from its headers alone.

use crate::speculative;
use crate::{EngineError, EngineOptions, engine};
use glimmer_backend::KvTypes;
use glimmer_checkpoint::Checkpoint;
use glimmer_model::dflash::DFlashConfig;
pub use glimmer_model::kv_cache::Span;
use glimmer_model::kv_cache::positions_needed;
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
        /// Bytes of weights that text generation loads.
        weight_bytes: u64,
        /// Bytes of caches.
        cache: CacheSizes,
        /// How keys and values would be stored.
        cache_types: KvTypes,
        /// The drafter that was asked about: its label and whether, or why not, it fits.
        drafter: Option<(String, Result<DFlashConfig, String>)>,
        /// Bytes of its weights.
        drafter_bytes: u64,
    },
    /// A model that proposes.
    Drafter,
}

/// Bytes of caches for a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSizes {
    /// Tokens of the context.
    pub context: usize,
    /// Layers that see everything.
    pub full: u64,
    /// Layers that see a window.
    pub sliding: u64,
}

impl CacheSizes {
    /// For a context of `context` tokens and passes of `widest` rows.
    pub fn of(text: &TextConfig, context: usize, widest: usize, types: KvTypes) -> Self {
        let per_position =
            text.num_key_value_heads as u64 * text.head_dim as u64 * (types.keys.size() + types.values.size()) as u64;
        let (mut full, mut sliding) = (0, 0);
        for layer in &text.layers {
            let bytes = per_position * positions_needed(layer.span, context, widest) as u64;
            match layer.span {
                Span::Full => full += bytes,
                Span::Sliding(_) => sliding += bytes,
            }
        }
        Self { context, full, sliding }
    }

    /// All layers.
    pub fn total(&self) -> u64 {
        self.full + self.sliding
    }
}

/// Looks at a checkpoint without reading a weight: what would be loaded with these options, and what memory it would
/// take. The drafter, if one is given, is checked against the target.
pub fn inspect(options: &EngineOptions) -> Result<Report, EngineError> {
    let checkpoint = options.target.open_target()?;
    let architecture = speculative::architecture(&checkpoint).unwrap_or_else(|_| "unnamed".to_string());
    let part = if checkpoint.fields().opt_str("model_type")? == Some("muse_glimmer_assistant") {
        Part::Drafter
    } else {
        let config = MuseConfig::from_checkpoint(&checkpoint)?;
        muse::account(&checkpoint, &config)?;
        let context = engine::context(options, &config)?;
        let cache_types = engine::cache_types(options, &checkpoint);
        let opened = options.drafter.as_ref().map(|source| source.open_drafter()).transpose()?;
        let drafter = opened.as_ref().map(|drafter| {
            let fit = check_drafter(drafter, &config, checkpoint.label()).map_err(|e| e.to_string());
            (drafter.label().to_string(), fit)
        });
        Part::Target {
            tokenizer: checkpoint.file("tokenizer.json")?.is_some(),
            chat_template: checkpoint.file("chat_template.jinja")?.is_some()
                || checkpoint.json("tokenizer_config.json")?.is_some_and(|c| c.contains_key("chat_template")),
            weight_bytes: text_bytes(&checkpoint),
            cache: CacheSizes::of(&config.text, context, options.prefill_chunk, cache_types),
            cache_types,
            text: Box::new(config.text),
            drafter,
            drafter_bytes: opened.as_ref().map_or(0, text_bytes),
        }
    };
    let elements = |t: &glimmer_checkpoint::TensorInfo| t.shape.iter().map(|&d| d as u64).product::<u64>();
    let all = checkpoint.tensors();
    Ok(Report {
        label: checkpoint.label().to_string(),
        architecture,
        part,
        parameters: all.iter().map(elements).sum(),
        vision_parameters: all.iter().filter(|t| VisionConfig::is_vision(&t.name)).map(elements).sum(),
        tensors: all.len(),
        bytes: all.iter().map(|t| t.byte_len() as u64).sum(),
        encodings: by_encoding(&checkpoint).into_iter().map(|(name, (n, bytes))| (name, n, bytes)).collect(),
    })
}

/// Whether a drafter is of a known architecture and fits the target.
pub(crate) fn check_drafter(
    drafter: &Checkpoint,
    target: &MuseConfig,
    target_label: &str,
) -> Result<DFlashConfig, EngineError> {
    match speculative::architecture(drafter)?.as_str() {
        "MuseGlimmerAssistantModel" => {
            let config = DFlashConfig::bind(drafter, &target.text, target_label)?;
            drafter.account(&config.v1_tensors())?;
            Ok(config)
        }
        unknown => Err(speculative::unknown_drafter(drafter, unknown)),
    }
}

/// Bytes of the tensors that text generation loads.
pub(crate) fn text_bytes(checkpoint: &Checkpoint) -> u64 {
    let text = checkpoint.tensors().iter().filter(|t| !VisionConfig::is_vision(&t.name));
    text.map(|t| t.byte_len() as u64).sum()
}

/// The encodings of a checkpoint's matrices, the most bytes first: `bf16`, or `bf16 + f32`.
pub(crate) fn encodings(checkpoint: &Checkpoint) -> String {
    let mut all: Vec<_> = by_encoding(checkpoint).into_iter().collect();
    all.sort_by_key(|(_, (_, bytes))| std::cmp::Reverse(*bytes));
    let names: Vec<String> = all.into_iter().map(|(name, _)| name).collect();
    names.join(" + ")
}

fn by_encoding(checkpoint: &Checkpoint) -> BTreeMap<String, (usize, u64)> {
    let mut all: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        let (count, bytes) = all.entry(tensor.encoding.to_string()).or_default();
        *count += 1;
        *bytes += tensor.byte_len() as u64;
    }
    all
}

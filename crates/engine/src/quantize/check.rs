//! Whether what was written says what its source says.

use crate::score::Score;
use crate::{ActivationType, Engine, EngineError, EngineOptions, KvType, Source, memory};
use glimmer_model::muse::{MuseConfig, VisionConfig};
use std::path::Path;

/// Prose, code and a few other scripts: about a hundred and fifty tokens.
const TEXT: &str = "The lighthouse keeper climbed the stairs twice a day, once to light the lamp and once to put it out, and on the \
way he counted: 117 steps up, 117 steps down.\n\ndef mean(values):\n    \"\"\"The arithmetic mean of a list.\"\"\"\n    if not values:\n        \
raise ValueError(\"no values\")\n    return sum(values) / len(values)\n\nSi la mer se tait, c'est qu'elle écoute. Wer zu spät kommt, \
den bestraft das Leben. 春眠不觉晓，处处闻啼鸟。\n";

/// Tokens that are compared where there is no tokenizer.
const TOKENS: u32 = 96;
/// Longer than the text.
const CONTEXT: usize = 512;

/// Compares the logits of a written target with those of its source, on a short text, or on any tokens where there is no
/// tokenizer. Nothing but the weights differs: activations and caches are f32. Where such weights do not fit into memory they stay in
/// their files. `None` where `progress` ended it.
///
/// # Errors
/// Where one of the two cannot be run.
pub fn check(
    written: &Path,
    source: &Source,
    threads: Option<usize>,
    progress: &mut dyn FnMut(usize, usize) -> bool,
) -> Result<Option<Score>, EngineError> {
    let sources = [&Source::Path(written.into()), source];
    let mut needed = 0;
    for source in sources {
        let checkpoint = source.open_target()?;
        let text = checkpoint.tensors().iter().filter(|info| !VisionConfig::is_vision(&info.name));
        needed += text.map(|info| 4 * info.shape.iter().map(|&d| d as u64).product::<u64>()).sum::<u64>();
    }
    // A quarter for all that is not weights.
    let short = memory::available().is_some_and(|available| needed > available / 4 * 3);
    let load = |source: &Source| {
        let limit = MuseConfig::from_checkpoint(&source.open_target()?)?.text.max_position_embeddings;
        let options = EngineOptions {
            context: Some(limit.min(CONTEXT)),
            cache_keys: Some(KvType::F32),
            cache_values: Some(KvType::F32),
            threads,
            activations: ActivationType::F32,
            mmap: short && *source != Source::Nano,
            ..EngineOptions::new(source.clone())
        };
        Engine::load(&options, &mut |_| {})
    };
    let [model, reference] = sources.map(load);
    let (model, reference) = (model?, reference?);
    match model.tokenizer() {
        Some(_) => model.score(TEXT, Some(&reference), progress),
        None => {
            let vocab = model.vocab_size() as u32;
            // Odd, so that they differ as long as they can.
            let ids: Vec<u32> = (0..TOKENS).map(|i| i.wrapping_mul(2_654_435_761) % vocab).collect();
            model.score_ids(&ids, 0, Some(&reference), progress)
        }
    }
}

//! The target: Muse-Glimmer.

pub(crate) use config::{MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH, SCALES, refuse_other_ropes, rope_theta};
mod config;
mod text;
mod vision;

pub use config::{LayerConfig, MuseConfig, TextConfig};
pub use text::{MuseText, Rows, TextCache};
pub use vision::VisionConfig;

use crate::ModelError;
use glimmer_checkpoint::Checkpoint;

/// Checks that every tensor of the checkpoint is one of the model's, and every tensor of the model is there.
///
/// A checkpoint may come without its vision tower (all of it); returns the number of vision tensors.
pub fn account(checkpoint: &Checkpoint, config: &MuseConfig) -> Result<usize, ModelError> {
    let mut expected = config.text.tensors();
    let vision = config.vision.tensors(config.text.hidden_size);
    let has_vision = checkpoint.tensors().iter().any(|tensor| VisionConfig::is_vision(&tensor.name));
    let count = if has_vision { vision.len() } else { 0 };
    expected.extend(vision.into_iter().take(count));
    checkpoint.account(&expected)?;
    Ok(count)
}

/// Whether it is an mmproj file.
pub fn is_projector(checkpoint: &Checkpoint) -> Result<bool, ModelError> {
    Ok(checkpoint.fields().opt_str("model_type")? == Some("muse_glimmer_vision"))
}

/// The same of an mmproj file, whose vision tower feeds a text tower of width `text_hidden`.
pub fn account_projector(checkpoint: &Checkpoint, text_hidden: usize) -> Result<VisionConfig, ModelError> {
    let fields = checkpoint.fields();
    if !is_projector(checkpoint)? {
        return Err(fields.invalid("model_type", "muse_glimmer_vision, as an mmproj file has it").into());
    }
    let vision = VisionConfig::from_fields(&fields)?;
    checkpoint.account(&vision.projector_tensors(text_hidden))?;
    Ok(vision)
}

//! The vision tower's tensors: recognised and counted, so that a checkpoint is fully accounted for.

use super::config::{MAX_LAYERS, MAX_WIDTH};
use crate::ModelError;
use glimmer_checkpoint::{Fields, TensorSpec};

/// Dimensions of the vision tower and of the adapter behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisionConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Encoder layers.
    pub num_hidden_layers: usize,
    /// Pixels of a patch's side.
    pub patch_size: usize,
    /// Elements of a patch: frames, channels, rows, columns.
    pub patch_elements: usize,
    /// Rows of the position table.
    pub positions: usize,
    /// Width after the merge of patches.
    pub out_hidden_size: usize,
    /// Width of the adapter.
    pub projector_hidden_size: usize,
}

impl VisionConfig {
    pub(super) fn from_fields(top: &Fields<'_>) -> Result<Self, ModelError> {
        let vision = top.object("vision_config")?;
        let size = |key: &str, max: usize, default: usize| match &vision {
            Some(fields) => fields.opt_usize(key, 1..=max).map(|n| n.unwrap_or(default)),
            None => Ok(default),
        };
        let patch = size("patch_size", 1024, 14)?;
        let frames = size("patch_temporal", 64, 2)?;
        let hidden_size = size("hidden_size", MAX_WIDTH, 1536)?;
        let merge = size("merge_size", 64, 2)?;
        let outer = |key: &str, default: usize| top.opt_usize(key, 1..=MAX_WIDTH).map(|n| n.unwrap_or(default));
        Ok(Self {
            hidden_size,
            intermediate_size: size("intermediate_size", MAX_WIDTH, 8960)?,
            num_hidden_layers: size("num_hidden_layers", MAX_LAYERS, 50)?,
            patch_size: patch,
            patch_elements: frames * 3 * patch * patch,
            positions: size("pos_emb_height", 1 << 16, 32)? * size("pos_emb_width", 1 << 16, 32)?,
            out_hidden_size: outer("out_hidden_size", hidden_size * merge * merge)?,
            projector_hidden_size: outer("projector_hidden_size", 4096)?,
        })
    }

    /// Whether a tensor of this name belongs to the vision tower, its adapter or its projection.
    pub fn is_vision(name: &str) -> bool {
        ["model.vision_tower.", "model.vision_adapter.", "model.vision_projection."]
            .iter()
            .any(|prefix| name.starts_with(prefix))
    }

    /// Every tensor between pixels and the text tower of width `text_hidden`.
    pub fn tensors(&self, text_hidden: usize) -> Vec<TensorSpec> {
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let adapter = self.projector_hidden_size;
        let mut all = vec![
            TensorSpec::new("model.vision_tower.patch_embedder.patch_embedding.weight", [hidden, self.patch_elements]),
            TensorSpec::new(
                "model.vision_tower.patch_embedder.position_embedding_table.weight",
                [self.positions, hidden],
            ),
            TensorSpec::new("model.vision_adapter.fc1.weight", [adapter, self.out_hidden_size]),
            TensorSpec::new("model.vision_adapter.fc2.weight", [adapter, adapter]),
            TensorSpec::new("model.vision_projection.weight", [text_hidden, adapter]),
        ];
        let both = |all: &mut Vec<TensorSpec>, name: String, shape: &[usize]| {
            all.push(TensorSpec::new(format!("{name}.weight"), shape));
            all.push(TensorSpec::new(format!("{name}.bias"), &shape[..1]));
        };
        for norm in ["ln_pre", "ln_post"] {
            both(&mut all, format!("model.vision_tower.{norm}"), &[hidden]);
        }
        for layer in 0..self.num_hidden_layers {
            let at = |name: &str| format!("model.vision_tower.layers.{layer}.{name}");
            for norm in ["norm1", "norm2"] {
                both(&mut all, at(norm), &[hidden]);
            }
            for projection in ["attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.proj"] {
                both(&mut all, at(projection), &[hidden, hidden]);
            }
            both(&mut all, at("mlp.fc1"), &[inner, hidden]);
            both(&mut all, at("mlp.fc2"), &[hidden, inner]);
        }
        all
    }

    /// The same of an mmproj file. Its patch embedding is summed over the frames of a patch, which is exact for images.
    pub fn projector_tensors(&self, text_hidden: usize) -> Vec<TensorSpec> {
        let mut all = self.tensors(text_hidden);
        let patches = all.iter_mut().find(|spec| spec.name.ends_with("patch_embedding.weight"));
        if let Some(patches) = patches {
            patches.shape = vec![self.hidden_size, 3, self.patch_size, self.patch_size];
        }
        all
    }
}

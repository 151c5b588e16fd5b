//! The target's vision tower as llama.cpp stores it (`clip`), in a file of its own: mmproj.
//!
//! Rows of queries and keys are interleaved, and so are their biases. The patch embedding is summed over the frames of a patch:
//! exact for images, whose frames are all alike, and nothing can undo it.

use super::{File, found, numbered};
use crate::error::Error;
use crate::tensor::{Layout, TensorInfo};
use serde_json::{Map, Value, json};

const PREFIX: &str = "clip.vision.";
const PROJECTOR: &str = "muse-glimmer";
/// Of the published model, where the file is silent.
const HIDDEN: usize = 1536;
const HEADS: usize = 16;

/// Whole names.
const SINGLES: [(&str, &str); 5] = [
    ("v.patch_embd.weight", "model.vision_tower.patch_embedder.patch_embedding.weight"),
    ("v.position_embd.weight", "model.vision_tower.patch_embedder.position_embedding_table.weight"),
    ("mm.0.weight", "model.vision_adapter.fc1.weight"),
    ("mm.1.weight", "model.vision_adapter.fc2.weight"),
    ("mm.2.weight", "model.vision_projection.weight"),
];

/// What has a weight and a bias.
const NORMS: [(&str, &str); 2] =
    [("v.pre_ln", "model.vision_tower.ln_pre"), ("v.post_ln", "model.vision_tower.ln_post")];

/// The same in a layer.
const PARTS: [(&str, &str); 8] = [
    ("ln1", "norm1"),
    ("ln2", "norm2"),
    ("attn_q", "attn.q_proj"),
    ("attn_k", "attn.k_proj"),
    ("attn_v", "attn.v_proj"),
    ("attn_out", "attn.proj"),
    ("ffn_up", "mlp.fc1"),
    ("ffn_down", "mlp.fc2"),
];

/// The config and the tensors, in the terms of Hugging Face. What the metadata leave out stays out.
pub(super) fn translate(
    file: &File<'_>,
    tensors: Vec<TensorInfo>,
) -> Result<(Map<String, Value>, Vec<TensorInfo>), Error> {
    let own = format!("{PREFIX}projector_type");
    let key = if file.metadata.get(&own).is_some() { own.as_str() } else { "clip.projector_type" };
    if file.metadata.opt_str(key)? != Some(PROJECTOR) {
        return Err(file.metadata.invalid(key, format!("{PROJECTOR}: no other vision tower is known")));
    }
    let mut vision = Map::new();
    file.copy(
        PREFIX,
        &mut vision,
        &[
            ("embedding_length", "hidden_size"),
            ("feed_forward_length", "intermediate_size"),
            ("block_count", "num_hidden_layers"),
            ("attention.head_count", "num_attention_heads"),
            ("attention.layer_norm_epsilon", "layer_norm_eps"),
            ("patch_size", "patch_size"),
            ("spatial_merge_size", "merge_size"),
        ],
    )?;
    let size = |key: &str, default: usize| {
        file.metadata.opt_usize(&format!("{PREFIX}{key}"), 1..=1 << 20).map(|found| found.unwrap_or(default))
    };
    // The nominal image has as many merged patches each way as the table has positions.
    if let Some(pixels) = file.metadata.opt_usize(&format!("{PREFIX}image_size"), 1..=1 << 20)? {
        let cell = size("patch_size", 14)? * size("spatial_merge_size", 2)?;
        if !pixels.is_multiple_of(cell) {
            let expected = format!("a multiple of {cell}, the pixels of a token");
            return Err(file.metadata.invalid(&format!("{PREFIX}image_size"), expected));
        }
        for field in ["pos_emb_height", "pos_emb_width"] {
            vision.insert(field.into(), (pixels / cell).into());
        }
    }
    let (hidden, heads) = (size("embedding_length", HIDDEN)?, size("attention.head_count", HEADS)?);
    if !hidden.is_multiple_of(2 * heads) {
        let expected = format!("a number of heads of which {hidden} has an even number of elements for each");
        return Err(file.metadata.invalid(&format!("{PREFIX}attention.head_count"), expected));
    }
    let mut config = Map::new();
    config.insert("model_type".into(), "muse_glimmer_vision".into());
    config.insert("vision_config".into(), vision.into());
    // Of the adapter only the tensors themselves say how wide it is.
    if let Some(adapter) = tensors.iter().find(|info| info.name == "mm.0.weight") {
        config.insert("projector_hidden_size".into(), json!(adapter.shape[0]));
    }
    let tensors = tensors.into_iter().map(|info| tensor(file, info, hidden / heads)).collect::<Result<_, _>>()?;
    Ok((config, tensors))
}

fn tensor(file: &File<'_>, mut info: TensorInfo, head_dim: usize) -> Result<TensorInfo, Error> {
    // What is unknown is left as it is, so that accounting for the tensors finds it.
    let Some((name, rotated)) = canonical(&info.name) else { return Ok(info) };
    if rotated {
        if info.shape.len() > 2 || !info.shape[0].is_multiple_of(head_dim) {
            let expected = format!("rows of whole heads of {head_dim}");
            return Err(file.malformed(&info, expected, found(&info)));
        }
        info.layout = Layout::Interleaved { head_dim };
    }
    info.name = name;
    Ok(info)
}

/// The name in Hugging Face's checkpoints, and whether rows are in the order of llama.cpp's rotation.
fn canonical(name: &str) -> Option<(String, bool)> {
    let of = |table: &[(&str, &'static str)], here: &str| {
        table.iter().find(|(known, _)| *known == here).map(|(_, there)| *there)
    };
    if let Some(whole) = of(&SINGLES, name) {
        return Some((whole.into(), false));
    }
    let (stem, end) = name.rsplit_once('.').filter(|(_, end)| matches!(*end, "weight" | "bias"))?;
    let Some(layer) = stem.strip_prefix("v.blk.") else {
        return of(&NORMS, stem).map(|norm| (format!("{norm}.{end}"), false));
    };
    let (layer, part) = numbered(layer)?;
    let there = of(&PARTS, part)?;
    Some((format!("model.vision_tower.layers.{layer}.{there}.{end}"), matches!(part, "attn_q" | "attn_k")))
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn names_are_those_of_hugging_face() {
        for (name, there, rotated) in [
            ("v.patch_embd.weight", "model.vision_tower.patch_embedder.patch_embedding.weight", false),
            ("v.pre_ln.bias", "model.vision_tower.ln_pre.bias", false),
            ("mm.2.weight", "model.vision_projection.weight", false),
            ("v.blk.7.attn_q.bias", "model.vision_tower.layers.7.attn.q_proj.bias", true),
            ("v.blk.49.attn_k.weight", "model.vision_tower.layers.49.attn.k_proj.weight", true),
            ("v.blk.0.attn_v.weight", "model.vision_tower.layers.0.attn.v_proj.weight", false),
            ("v.blk.3.ffn_down.weight", "model.vision_tower.layers.3.mlp.fc2.weight", false),
        ] {
            assert_eq!(canonical(name), Some((there.to_string(), rotated)));
        }
        for name in
            ["v.blk", "v.pre_ln", "mm.0.bias", "v.blk.07.ln1.weight", "v.blk.1.ln3.weight", "v.blk.weight", "x.weight"]
        {
            assert_eq!(canonical(name), None, "{name}");
        }
    }
}

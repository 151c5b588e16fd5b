//! DFlash drafters as llama.cpp stores them (`dflash`).
//!
//! Unlike the target's, their norms and the rows of their queries and keys are stored as they are.

use super::File;
use super::names::{DRAFTER, DRAFTER2};
use crate::error::Error;
use crate::tensor::TensorInfo;
use serde_json::{Map, Value, json};

const PREFIX: &str = "dflash.";
const MAX_LAYERS: usize = 4096;

/// The config and the tensors, as Hugging Face has them. What the metadata leave out stays out.
pub(super) fn translate(
    file: &File<'_>,
    tensors: Vec<TensorInfo>,
) -> Result<(Map<String, Value>, Vec<TensorInfo>), Error> {
    // What only DFlash 2 has: a selector.
    let second = file.metadata.get(&format!("{PREFIX}selector_rank")).is_some();
    let (names, architecture, model_type) = match second {
        true => (DRAFTER2, "DFlash2DraftModel", "qwen3"),
        false => (DRAFTER, "MuseGlimmerAssistantModel", "muse_glimmer_assistant"),
    };
    let mut config = Map::new();
    config.insert("architectures".into(), json!([architecture]));
    config.insert("model_type".into(), model_type.into());
    file.copy(
        PREFIX,
        &mut config,
        &[
            ("vocab_size", "vocab_size"),
            ("embedding_length", "hidden_size"),
            ("feed_forward_length", "intermediate_size"),
            ("block_count", "num_hidden_layers"),
            ("attention.head_count", "num_attention_heads"),
            ("attention.head_count_kv", "num_key_value_heads"),
            ("attention.key_length", "head_dim"),
            ("context_length", "max_position_embeddings"),
            ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
            ("attention.sliding_window", "sliding_window"),
            ("block_size", "block_size"),
            ("logit_scale", "output_multiplier"),
            ("final_logit_softcapping", "final_logit_softcapping"),
            ("conv_kernel_size", "conv_kernel_size"),
            ("conv_group_size", "conv_group_size"),
            ("selector_rank", "selector_rank"),
            ("selector_top_k", "selector_top_k"),
        ],
    )?;
    if let Some(table) = tensors.iter().find(|t| t.name == "selector_predecessor.weight")
        && !config.contains_key("vocab_size")
    {
        config.insert("vocab_size".into(), table.shape[0].into());
    }
    file.copy("tokenizer.ggml.", &mut config, &[("mask_token_id", "mask_token_id")])?;
    if let Some(causal) = file.metadata.opt_bool(&format!("{PREFIX}attention.causal"))? {
        config.insert("is_causal".into(), causal.into());
    }
    let layers = file.metadata.opt_usize(&format!("{PREFIX}block_count"), 1..=MAX_LAYERS)?.unwrap_or(5);
    if let Some(types) = file.layer_types(PREFIX, layers)? {
        config.insert("layer_types".into(), types);
    }
    if let Some(theta) = file.number(&format!("{PREFIX}rope.freq_base"))? {
        config.insert("rope_parameters".into(), json!({"rope_theta": theta, "rope_type": "default"}));
    }
    file.refuse_other_rotations(PREFIX, file.head_dim(PREFIX)?)?;
    // Here layers are tapped at their input, there at their output.
    let key = format!("{PREFIX}target_layers");
    if let Some(inputs) = file.metadata.opt_u32_list(&key, MAX_LAYERS)? {
        let outputs: Option<Vec<u32>> = inputs.iter().map(|input| input.checked_sub(1)).collect();
        let outputs = outputs.ok_or_else(|| file.metadata.invalid(&key, "layers from 1"))?;
        config.insert("target_layer_ids".into(), outputs.into());
    }
    // What is unknown keeps its name, so that accounting for the tensors finds it.
    let rename = |mut info: TensorInfo| {
        if let Some(name) = names.canonical(&info.name) {
            info.name = name;
        }
        info
    };
    Ok((config, tensors.into_iter().map(rename).collect()))
}

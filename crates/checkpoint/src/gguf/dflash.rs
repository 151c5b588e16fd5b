//! DFlash drafters as llama.cpp stores them (`dflash`).
//!
//! Unlike the target's, their norms and the rows of their queries and keys are stored as they are.

use super::File;
use super::names::DRAFTER;
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
    for key in ["conv_kernel_size", "selector_rank"].map(|key| format!("{PREFIX}{key}")) {
        if file.metadata.get(&key).is_some() {
            let what = format!("field `{key}`: DFlash 2 drafters cannot be read from GGUF by this version yet");
            return Err(Error::Unsupported { file: file.name.into(), what });
        }
    }
    let mut config = Map::new();
    config.insert("architectures".into(), json!(["MuseGlimmerAssistantModel"]));
    config.insert("model_type".into(), "muse_glimmer_assistant".into());
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
        ],
    )?;
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
        if let Some(name) = DRAFTER.canonical(&info.name) {
            info.name = name;
        }
        info
    };
    Ok((config, tensors.into_iter().map(rename).collect()))
}

//! The target as llama.cpp stores it (`muse-glimmer`).

use super::names::TARGET;
use super::{File, block, found, number};
use crate::error::{Error, brief};
use crate::tensor::{Layout, TensorInfo};
use glimmer_encoding::{Encoding, FloatType};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

const PREFIX: &str = "muse-glimmer.";
const MAX_LAYERS: usize = 4096;

/// The config and the tensors, as Hugging Face has them. What the metadata leave out stays out.
pub(super) fn translate(
    file: &File<'_>,
    tensors: Vec<TensorInfo>,
) -> Result<(Map<String, Value>, Vec<TensorInfo>), Error> {
    let mut config = Map::new();
    config.insert("architectures".into(), json!(["MuseGlimmerForCausalLM"]));
    config.insert("model_type".into(), "muse_glimmer_text".into());
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
            ("logit_scale", "output_multiplier"),
            ("final_logit_softcapping", "final_logit_softcapping"),
        ],
    )?;
    file.copy("tokenizer.ggml.", &mut config, &[("bos_token_id", "bos_token_id")])?;
    let ends = ["eos_token_id", "eot_token_id"].map(|key| file.number(&format!("tokenizer.ggml.{key}")));
    let mut eos: Vec<Value> = ends.into_iter().filter_map(Result::transpose).collect::<Result<_, _>>()?;
    eos.dedup();
    if !eos.is_empty() {
        config.insert("eos_token_id".into(), eos.into());
    }
    let layers = file.metadata.opt_usize(&format!("{PREFIX}block_count"), 1..=MAX_LAYERS)?.unwrap_or(52);
    if let Some(types) = file.layer_types(PREFIX, layers)? {
        config.insert("layer_types".into(), types);
    }
    // Only sliding layers rotate; the base has a key of its own for them.
    let theta = match file.number(&format!("{PREFIX}rope.freq_base_swa"))? {
        Some(theta) => Some(theta),
        None => file.number(&format!("{PREFIX}rope.freq_base"))?,
    };
    if let Some(theta) = theta {
        config.insert("rope_parameters".into(), json!({"rope_theta": theta, "rope_type": "default"}));
    }
    let head_dim = file.head_dim(PREFIX)?;
    file.refuse_other_rotations(PREFIX, head_dim)?;
    if let Some(table) = tensors.iter().find(|t| t.name == "token_embd.weight")
        && !config.contains_key("vocab_size")
    {
        config.insert("vocab_size".into(), table.shape[0].into());
    }
    let (norms, tensors): (Vec<_>, Vec<_>) = tensors
        .into_iter()
        .partition(|t| block(&t.name).is_some_and(|(_, part)| matches!(part, "attn_q_norm" | "attn_k_norm")));
    config.insert("qk_scale_factor".into(), query_scale(file, &norms, layers, head_dim)?);
    let tensors = tensors.into_iter().map(|info| tensor(file, info, head_dim)).collect::<Result<_, _>>()?;
    Ok((config, tensors))
}

/// The model's norms of queries and keys have no weights. The converter makes some: the scale of the queries for each
/// element, and ones.
fn query_scale(file: &File<'_>, norms: &[TensorInfo], layers: usize, head_dim: usize) -> Result<Value, Error> {
    let by_name: BTreeMap<&str, &TensorInfo> = norms.iter().map(|info| (info.name.as_str(), info)).collect();
    let mut scale: Option<f32> = None;
    for layer in 0..layers {
        for part in ["attn_q_norm", "attn_k_norm"] {
            let name = format!("blk.{layer}.{part}.weight");
            let Some(info) = by_name.get(name.as_str()) else {
                let expected = format!("shape [{head_dim}]");
                let what = format!("tensor `{}`", brief(&name));
                return Err(Error::Missing { file: file.name.into(), what, expected, more: 0 });
            };
            let values = file.vector(info, head_dim)?;
            let (expected, why) = match part {
                "attn_k_norm" => (1.0, "everywhere, since keys have no scale"),
                _ => (*scale.get_or_insert(values[0]), "everywhere and in every layer, the scale of the queries"),
            };
            // Not equal to NaN is NaN either.
            if let Some(other) = values.iter().find(|&&v| !(v == expected && v.is_finite())) {
                return Err(file.malformed(info, format!("{expected} {why}"), other.to_string()));
            }
        }
    }
    // There is at least one layer, and what is there is finite.
    Ok(scale.and_then(number).unwrap_or(Value::Null))
}

fn tensor(file: &File<'_>, mut info: TensorInfo, head_dim: usize) -> Result<TensorInfo, Error> {
    // What is unknown is left as it is, so that accounting for the tensors finds it.
    let Some(name) = TARGET.canonical(&info.name) else { return Ok(info) };
    let layout = match block(&info.name) {
        Some((_, "attn_norm" | "post_attention_norm" | "ffn_norm" | "post_ffw_norm")) => Layout::PlusOne,
        Some((_, "attn_q" | "attn_k")) => Layout::Interleaved { head_dim },
        _ => Layout::Canonical,
    };
    let right = match layout {
        Layout::Canonical => true,
        Layout::PlusOne => info.encoding == Encoding::Dense(FloatType::F32),
        Layout::Interleaved { head_dim } => info.shape.len() == 2 && info.shape[0].is_multiple_of(head_dim),
    };
    if !right {
        let expected = match layout {
            Layout::Interleaved { .. } => format!("rows of whole heads of {head_dim}"),
            _ => "f32, of which one is to be subtracted".into(),
        };
        return Err(file.malformed(&info, expected, found(&info)));
    }
    (info.name, info.layout) = (name, layout);
    Ok(info)
}

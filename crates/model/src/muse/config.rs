//! The target's `config.json`, with the architecture's constants for what it leaves out.

use super::VisionConfig;
use crate::ModelError;
use crate::dflash::DFlashConfig;
use crate::kv_cache::Span;
use glimmer_backend::{KvSpec, KvTypes};
use glimmer_checkpoint::{Checkpoint, Fields, TensorSpec};

/// Everything that `config.json` says about the target.
#[derive(Clone, Debug, PartialEq)]
pub struct MuseConfig {
    /// The text tower.
    pub text: TextConfig,
    /// The vision tower; the architecture's constants where the file is silent.
    pub vision: VisionConfig,
}

/// The text tower.
#[derive(Clone, Debug, PartialEq)]
pub struct TextConfig {
    /// Tokens.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// One entry per decoder layer.
    pub layers: Vec<LayerConfig>,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Longest context.
    pub max_position_embeddings: usize,
    /// Epsilon of every norm but the post norms.
    pub rms_norm_eps: f32,
    /// Epsilon of the norms after attention and after the MLP.
    pub post_norm_eps: f32,
    /// Multiplies normalised queries, before rotation.
    pub qk_scale_factor: f32,
    /// Multiplies logits before the soft cap.
    pub output_multiplier: f32,
    /// Logits end up between minus and plus this.
    pub final_logit_softcapping: f32,
    /// First token of a document.
    pub bos_token_id: Option<u32>,
    /// Tokens that end a generation.
    pub eos_token_id: Vec<u32>,
}

/// What differs between decoder layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerConfig {
    /// What its attention sees.
    pub span: Span,
    /// Base of its rotation; `None` means that positions are not encoded.
    pub rope_theta: Option<f64>,
}

/// Upper bounds that no real model comes near. A matrix has less than 2^40 elements by them, and a cache less than 2^52 bytes.
pub(crate) const MAX_WIDTH: usize = 1 << 20;
pub(crate) const MAX_LAYERS: usize = 4096;
pub(crate) const MAX_POSITIONS: usize = 1 << 28;
pub(crate) const SCALES: std::ops::RangeInclusive<f32> = 1e-12..=1e12;

impl MuseConfig {
    /// Reads and checks the configuration of a target.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self, ModelError> {
        let top = checkpoint.fields();
        let kinds = ["muse_glimmer", "muse_glimmer_text"];
        match top.opt_str("model_type")? {
            Some(kind) if kinds.contains(&kind) => {}
            _ if DFlashConfig::describes(&top)? => {
                return Err(top
                    .invalid("model_type", "a target, `muse_glimmer` (a drafter goes to --draft-model)")
                    .into());
            }
            _ => return Err(top.invalid("model_type", "`muse_glimmer` or `muse_glimmer_text`").into()),
        }
        // Text-only exports leave the nesting out.
        let nested = top.object("text_config")?;
        let mut text = TextConfig::from_fields(nested.as_ref().unwrap_or(&top))?;
        if text.eos_token_id.is_empty() {
            text.eos_token_id = eos(&top, text.vocab_size)?;
        }
        Ok(Self { text, vision: VisionConfig::from_fields(&top)? })
    }
}

impl TextConfig {
    /// The shape of the pages of every layer, stored as these types.
    pub fn pages(&self, types: KvTypes) -> KvSpec {
        KvSpec { heads: self.num_key_value_heads, head_dim: self.head_dim, types }
    }

    fn from_fields(fields: &Fields<'_>) -> Result<Self, ModelError> {
        let width = |key: &str, default: usize| fields.opt_usize(key, 1..=MAX_WIDTH).map(|n| n.unwrap_or(default));
        let scale = |key: &str, default: f32| fields.opt_f32(key, SCALES).map(|x| x.unwrap_or(default));
        let vocab_size = width("vocab_size", 202_048)?;
        let hidden_size = width("hidden_size", 6656)?;
        let num_attention_heads = width("num_attention_heads", 32)?;
        let num_key_value_heads = width("num_key_value_heads", 2)?;
        let head_dim = width("head_dim", 128)?;
        if !num_attention_heads.is_multiple_of(num_key_value_heads) {
            let expected = format!("a divisor of num_attention_heads, {num_attention_heads}");
            return Err(fields.invalid("num_key_value_heads", expected).into());
        }
        if !head_dim.is_multiple_of(2) {
            return Err(fields.invalid("head_dim", "an even number").into());
        }
        if num_attention_heads * head_dim > MAX_WIDTH {
            let expected = format!("at most {} with {num_attention_heads} heads", MAX_WIDTH / num_attention_heads);
            return Err(fields.invalid("head_dim", expected).into());
        }
        refuse_others(fields)?;
        // The native export multiplies the factor by sqrt(head_dim); the two are told apart by magnitude.
        let root = (head_dim as f32).sqrt();
        let qk_scale_factor = match fields.opt_f32("qk_scale_factor", SCALES)? {
            Some(native) if native >= root => native / root,
            given => given.unwrap_or(3.87),
        };
        let token = |key: &str| fields.opt_u32(key, 0..=vocab_size as u32 - 1);
        let eos_token_id = eos(fields, vocab_size)?;
        Ok(Self {
            vocab_size,
            hidden_size,
            intermediate_size: width("intermediate_size", 19_968)?,
            layers: layers(fields)?,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            max_position_embeddings: fields.opt_usize("max_position_embeddings", 1..=MAX_POSITIONS)?.unwrap_or(131_072),
            rms_norm_eps: scale("rms_norm_eps", 1e-5)?,
            post_norm_eps: scale("post_norm_eps", 1e-8)?,
            qk_scale_factor,
            output_multiplier: scale("output_multiplier", 0.196_116_14)?,
            final_logit_softcapping: match fields.get("final_logit_softcapping") {
                Some(_) => scale("final_logit_softcapping", 20.0)?,
                None => scale("output_soft_cap_temp", 20.0)?,
            },
            bos_token_id: token("bos_token_id")?,
            eos_token_id,
        })
    }

    /// Every tensor of the text tower.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let (q, kv) = (self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim);
        let matrix = |name: String, rows: usize, cols: usize| TensorSpec::new(name, [rows, cols]);
        let mut all = vec![
            matrix("model.language_model.embed_tokens.weight".into(), self.vocab_size, hidden),
            TensorSpec::new("model.language_model.norm.weight", [hidden]),
            matrix("lm_head.weight".into(), self.vocab_size, hidden),
        ];
        for layer in 0..self.layers.len() {
            let at = |name: &str| format!("model.language_model.layers.{layer}.{name}.weight");
            let norms = [
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
            ];
            all.extend(norms.map(|name| TensorSpec::new(at(name), [hidden])));
            all.extend([
                matrix(at("self_attn.q_proj"), q, hidden),
                matrix(at("self_attn.k_proj"), kv, hidden),
                matrix(at("self_attn.v_proj"), kv, hidden),
                matrix(at("self_attn.gate_proj"), q, hidden),
                matrix(at("self_attn.o_proj"), hidden, q),
                matrix(at("mlp.gate_proj"), inner, hidden),
                matrix(at("mlp.up_proj"), inner, hidden),
                matrix(at("mlp.down_proj"), hidden, inner),
            ]);
        }
        all
    }
}

fn eos(fields: &Fields<'_>, vocab_size: usize) -> Result<Vec<u32>, ModelError> {
    let ids = fields.opt_u32_list("eos_token_id", 64)?.unwrap_or_default();
    match ids.iter().any(|&id| id as usize >= vocab_size) {
        true => Err(fields.invalid("eos_token_id", format!("ids below the vocabulary's size, {vocab_size}")).into()),
        false => Ok(ids),
    }
}

/// Values that change the arithmetic and that no published checkpoint has: refused, not ignored.
fn refuse_others(fields: &Fields<'_>) -> Result<(), ModelError> {
    for key in ["hidden_activation", "hidden_act"] {
        if fields.opt_str(key)?.is_some_and(|name| name != "silu") {
            return Err(fields.invalid(key, "`silu`").into());
        }
    }
    for key in ["attention_bias", "tie_word_embeddings"] {
        if fields.opt_bool(key)? == Some(true) {
            return Err(fields.invalid(key, "false").into());
        }
    }
    for key in ["rope_parameters", "rope_scaling"] {
        if let Some(rope) = fields.object(key)? {
            refuse_other_ropes(&rope)?;
            for kind in ["sliding_attention", "full_attention"] {
                rope.object(kind)?.map_or(Ok(()), |rope| refuse_other_ropes(&rope))?;
            }
        }
    }
    Ok(())
}

/// No rotation but the plain one.
pub(crate) fn refuse_other_ropes(rope: &Fields<'_>) -> Result<(), ModelError> {
    for kind in ["rope_type", "type"] {
        if rope.opt_str(kind)?.is_some_and(|name| name != "default") {
            return Err(rope.invalid(kind, "`default`").into());
        }
    }
    Ok(())
}

/// The base of the rotation: of the sliding layers, of all layers, or flat.
pub(crate) fn rope_theta(fields: &Fields<'_>) -> Result<f64, ModelError> {
    let theta = |fields: &Fields<'_>| fields.opt_f32("rope_theta", 1.0..=1e12);
    let mut found = None;
    if let Some(rope) = fields.object("rope_parameters")? {
        if let Some(sliding) = rope.object("sliding_attention")? {
            found = theta(&sliding)?;
        }
        found = found.or(theta(&rope)?);
    }
    Ok(found.or(theta(fields)?).unwrap_or(500_000.0) as f64)
}

/// Kind and rotation of every layer. By default every fourth layer, counted backward from the last, is full and has no
/// rotation.
fn layers(fields: &Fields<'_>) -> Result<Vec<LayerConfig>, ModelError> {
    let types = fields.opt_str_list("layer_types", MAX_LAYERS)?;
    let thetas = fields.opt_f32_list("layer_rope_theta", MAX_LAYERS, 0.0..=1e12)?;
    let count = fields.opt_usize("num_hidden_layers", 1..=MAX_LAYERS)?;
    let count = count.or(types.as_ref().map(Vec::len)).unwrap_or(52);
    let window = fields.opt_usize("sliding_window", 1..=MAX_POSITIONS)?.unwrap_or(2048);
    let theta = rope_theta(fields)?;
    let of_each_layer = format!("one entry for each of the {count} layers");
    if types.as_ref().is_some_and(|types| types.len() != count) {
        return Err(fields.invalid("layer_types", of_each_layer).into());
    }
    if thetas.as_ref().is_some_and(|thetas| thetas.len() != count) {
        return Err(fields.invalid("layer_rope_theta", of_each_layer).into());
    }
    (0..count)
        .map(|layer| {
            let kind = match &types {
                Some(types) => types[layer],
                None if (count - 1 - layer).is_multiple_of(4) => "full_attention",
                None => "sliding_attention",
            };
            let span = match kind {
                "full_attention" => Span::Full,
                "sliding_attention" => Span::Sliding(window),
                _ => {
                    let expected = "`sliding_attention` and `full_attention` only";
                    return Err(fields.invalid("layer_types", expected).into());
                }
            };
            let theta = match &thetas {
                Some(thetas) => thetas[layer] as f64,
                None if span == Span::Full => 0.0,
                None => theta,
            };
            Ok(LayerConfig { span, rope_theta: (theta != 0.0).then_some(theta) })
        })
        .collect()
}

//! A drafter's `config.json`, and whether it fits a target.

use crate::ModelError;
use crate::muse::TextConfig;
use glimmer_checkpoint::{Checkpoint, Error, Fields, TensorSpec};

/// What a DFlash drafter's configuration says; absent keys have the published assistant's values.
#[derive(Clone, Debug, PartialEq)]
pub struct DFlashConfig {
    /// Width of the residual stream, the target's.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Drafter layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Epsilon of every norm.
    pub rms_norm_eps: f32,
    /// Base of the rotation.
    pub rope_theta: f64,
    /// How far back a block row sees context rows.
    pub sliding_window: usize,
    /// Rows of the largest block: the anchor and the masks behind it.
    pub block_size: usize,
    /// The token that stands for a position to be proposed.
    pub mask_token_id: u32,
    /// Target layers whose outputs are tapped, in the order of the encoder's input.
    pub target_layer_ids: Vec<usize>,
}

/// Blocks beyond this would only cost memory; published ones have 16 rows.
const MAX_BLOCK: usize = 1024;

impl DFlashConfig {
    /// Reads a drafter's configuration and checks it against the target that it is to draft for. `label` and
    /// `target_label` name the two in messages.
    pub fn bind(checkpoint: &Checkpoint, target: &TextConfig, target_label: &str) -> Result<Self, ModelError> {
        let top = checkpoint.fields();
        let config = Self::from_fields(&top)?;
        let misfit = |what: &str, expected: String, found: String| ModelError::Misfit {
            drafter: checkpoint.label().to_string(),
            target: target_label.to_string(),
            what: what.to_string(),
            expected,
            found,
        };
        let equal = |what: &str, expected: usize, found: Option<usize>| match found {
            Some(found) if found != expected => Err(misfit(what, expected.to_string(), found.to_string())),
            _ => Ok(()),
        };
        equal("hidden_size", target.hidden_size, Some(config.hidden_size))?;
        equal("vocab_size", target.vocab_size, top.opt_usize("vocab_size", 1..=usize::MAX)?)?;
        equal(
            "num_target_layers",
            target.layers.len(),
            setting(&top, "num_target_layers", |f, key| f.opt_usize(key, 1..=usize::MAX))?,
        )?;
        let depth = target.layers.len();
        if let Some(id) = config.target_layer_ids.iter().find(|&&id| id >= depth) {
            return Err(misfit("target_layer_ids", format!("ids below the target's {depth} layers"), id.to_string()));
        }
        if config.mask_token_id as usize >= target.vocab_size {
            let expected = format!("an id below the target's vocabulary of {}", target.vocab_size);
            return Err(misfit("mask_token_id", expected, config.mask_token_id.to_string()));
        }
        for (key, expected) in [
            ("final_logit_softcapping", target.final_logit_softcapping),
            ("output_multiplier", target.output_multiplier),
        ] {
            let found = setting(&top, key, |f, key| f.opt_f32(key, crate::muse::SCALES))?;
            if let Some(found) = found.filter(|found| (found - expected).abs() > 1e-4 * expected) {
                return Err(misfit(key, expected.to_string(), found.to_string()));
            }
        }
        Ok(config)
    }

    /// Reads a drafter's configuration by itself.
    pub fn from_fields(top: &Fields<'_>) -> Result<Self, ModelError> {
        use crate::muse::{MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH, SCALES};
        let width = |key: &str, default: usize| top.opt_usize(key, 1..=MAX_WIDTH).map(|n| n.unwrap_or(default));
        let num_attention_heads = width("num_attention_heads", 32)?;
        let num_key_value_heads = width("num_key_value_heads", 8)?;
        let head_dim = width("head_dim", 128)?;
        if !num_attention_heads.is_multiple_of(num_key_value_heads) {
            let expected = format!("a divisor of num_attention_heads, {num_attention_heads}");
            return Err(top.invalid("num_key_value_heads", expected).into());
        }
        if !head_dim.is_multiple_of(2) {
            return Err(top.invalid("head_dim", "an even number").into());
        }
        if num_attention_heads * head_dim > MAX_WIDTH {
            let expected = format!("at most {} with {num_attention_heads} heads", MAX_WIDTH / num_attention_heads);
            return Err(top.invalid("head_dim", expected).into());
        }
        let num_hidden_layers = top.opt_usize("num_hidden_layers", 1..=MAX_LAYERS)?.unwrap_or(5);
        refuse_others(top, num_hidden_layers)?;
        let ids = setting(top, "target_layer_ids", |f, key| f.opt_u32_list(key, MAX_LAYERS))?;
        let target_layer_ids: Vec<usize> =
            ids.unwrap_or_else(|| vec![1, 13, 25, 37, 49]).into_iter().map(|id| id as usize).collect();
        if target_layer_ids.is_empty() {
            return Err(top.invalid("target_layer_ids", "at least one layer").into());
        }
        Ok(Self {
            hidden_size: width("hidden_size", 6656)?,
            intermediate_size: width("intermediate_size", 19_968)?,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            rms_norm_eps: top.opt_f32("rms_norm_eps", SCALES)?.unwrap_or(1e-5),
            rope_theta: crate::muse::rope_theta(top)?,
            sliding_window: top.opt_usize("sliding_window", 1..=MAX_POSITIONS)?.unwrap_or(2048),
            block_size: setting(top, "block_size", |f, key| f.opt_usize(key, 2..=MAX_BLOCK))?.unwrap_or(16),
            mask_token_id: setting(top, "mask_token_id", |f, key| f.opt_u32(key, 0..=u32::MAX))?.unwrap_or(201_818),
            target_layer_ids,
        })
    }

    /// Bytes of a session's context: keys and values of every layer, in f32.
    pub fn context_bytes(&self) -> u64 {
        let per_position = 2 * 4 * self.num_key_value_heads * self.head_dim * self.num_hidden_layers;
        (self.sliding_window + self.block_size) as u64 * per_position as u64
    }

    /// Every tensor of a DFlash v1 drafter.
    pub fn v1_tensors(&self) -> Vec<TensorSpec> {
        let (hidden, inner, head_dim) = (self.hidden_size, self.intermediate_size, self.head_dim);
        let (q, kv) = (self.num_attention_heads * head_dim, self.num_key_value_heads * head_dim);
        let mut all = vec![
            TensorSpec::new("encoder.fc.weight", [hidden, self.target_layer_ids.len() * hidden]),
            TensorSpec::new("encoder.output_norm_enc.weight", [hidden]),
            TensorSpec::new("norm.weight", [hidden]),
        ];
        for layer in 0..self.num_hidden_layers {
            let at = |name: &str| format!("layers.{layer}.{name}.weight");
            all.extend(["input_layernorm", "post_attention_layernorm"].map(|n| TensorSpec::new(at(n), [hidden])));
            all.extend(["self_attn.q_norm", "self_attn.k_norm"].map(|n| TensorSpec::new(at(n), [head_dim])));
            all.extend(
                [
                    ("self_attn.q_proj", [q, hidden]),
                    ("self_attn.k_proj", [kv, hidden]),
                    ("self_attn.v_proj", [kv, hidden]),
                    ("self_attn.o_proj", [hidden, q]),
                    ("mlp.gate_proj", [inner, hidden]),
                    ("mlp.up_proj", [inner, hidden]),
                    ("mlp.down_proj", [hidden, inner]),
                ]
                .map(|(name, shape)| TensorSpec::new(at(name), shape)),
            );
        }
        all
    }
}

/// A setting that stands at the top level or inside `dflash_config`; in both places it has to be the same.
fn setting<'a, T: PartialEq>(
    top: &Fields<'a>,
    key: &str,
    read: impl Fn(&Fields<'a>, &str) -> Result<Option<T>, Error>,
) -> Result<Option<T>, ModelError> {
    let flat = read(top, key)?;
    let Some(nested) = top.object("dflash_config")? else { return Ok(flat) };
    let inner = read(&nested, key)?;
    match (flat, inner) {
        (Some(flat), Some(inner)) if flat != inner => Err(nested.invalid(key, "the same as at the top level").into()),
        (flat, inner) => Ok(inner.or(flat)),
    }
}

/// Values that change the arithmetic and that no published drafter has: refused, not ignored.
fn refuse_others(top: &Fields<'_>, layers: usize) -> Result<(), ModelError> {
    if top.opt_str("hidden_act")?.is_some_and(|name| name != "silu") {
        return Err(top.invalid("hidden_act", "`silu`").into());
    }
    if top.opt_bool("attention_bias")? == Some(true) {
        return Err(top.invalid("attention_bias", "false").into());
    }
    if setting(top, "is_causal", |f, key| f.opt_bool(key))? == Some(true) {
        return Err(top.invalid("is_causal", "false: the rows of a block see each other").into());
    }
    for key in ["rope_parameters", "rope_scaling"] {
        top.object(key)?.map_or(Ok(()), |rope| crate::muse::refuse_other_ropes(&rope))?;
    }
    if let Some(types) = top.opt_str_list("layer_types", crate::muse::MAX_LAYERS)?
        && (types.len() != layers || types.iter().any(|kind| *kind != "sliding_attention"))
    {
        return Err(top.invalid("layer_types", format!("`sliding_attention` for each of the {layers} layers")).into());
    }
    Ok(())
}

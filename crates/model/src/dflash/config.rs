//! A drafter's `config.json`, and whether it fits a target.

use crate::ModelError;
use crate::muse::TextConfig;
use glimmer_backend::{KvSpec, KvType, KvTypes, PAGE};
use glimmer_checkpoint::{Checkpoint, Error, Fields, TensorSpec};
use std::fmt::Display;

/// The architecture of DFlash 2; every other drafter is of the first DFlash.
const DFLASH2: &str = "DFlash2DraftModel";
/// Where settings of drafting may stand, besides the top level.
const NESTED: &str = "dflash_config";

/// What a DFlash drafter's configuration says; absent keys have the published drafter's values.
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
    /// What DFlash 2 adds, where it is one.
    pub dflash2: Option<DFlash2Config>,
}

/// What a DFlash 2 drafter's configuration says besides.
#[derive(Clone, Debug, PartialEq)]
pub struct DFlash2Config {
    /// Rows of a convolution's kernel: the row itself and those before it.
    pub conv_kernel_size: usize,
    /// Neighbouring channels that share the part of a kernel that a row brings.
    pub conv_group_size: usize,
    /// Elements of a code of the selector.
    pub selector_rank: usize,
    /// Candidates that the selector chooses from, by logit.
    pub selector_top_k: usize,
    /// Multiplies the logits before they are capped.
    pub output_multiplier: f32,
    /// Caps them, by a tangent.
    pub final_logit_softcapping: f32,
    /// Codes of the selector, one for each token of the target.
    pub vocab_size: usize,
}

/// Blocks beyond this would only cost memory; published ones have 16 rows.
const MAX_BLOCK: usize = 1024;
/// Kernels beyond this would be longer than blocks are; published ones have 2 rows.
const MAX_KERNEL: usize = 64;
/// Candidates beyond this would be chosen from at a cost that buys nothing; published drafters have 16.
const MAX_CANDIDATES: usize = 1024;

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
        let vocab_size = match &config.dflash2 {
            Some(dflash2) => Some(dflash2.vocab_size),
            None => top.opt_usize("vocab_size", 1..=usize::MAX)?,
        };
        equal("vocab_size", target.vocab_size, vocab_size)?;
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
        let dflash2 = config.dflash2.as_ref();
        for (key, expected, own) in [
            ("final_logit_softcapping", target.final_logit_softcapping, dflash2.map(|d| d.final_logit_softcapping)),
            ("output_multiplier", target.output_multiplier, dflash2.map(|d| d.output_multiplier)),
        ] {
            let found = own.map_or_else(|| scale(&top, key), |own| Ok(Some(own)))?;
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
            return Err(refused(top, "target_layer_ids", "at least one layer"));
        }
        let hidden_size = width("hidden_size", 6656)?;
        let dflash2 = match is_dflash2(top)? {
            true => Some(DFlash2Config::from_fields(top, hidden_size)?),
            false => None,
        };
        Ok(Self {
            hidden_size,
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
            dflash2,
        })
    }

    /// Whether a configuration is that of a drafter of this kind.
    pub fn describes(top: &Fields<'_>) -> Result<bool, Error> {
        Ok(is_dflash2(top)? || top.opt_str("model_type")? == Some("muse_glimmer_assistant"))
    }

    /// How many positions back a block row sees context rows: the window itself does not count in DFlash 2.
    pub fn reach(&self) -> usize {
        self.sliding_window - usize::from(self.dflash2.is_some())
    }

    /// The names of the encoder's projection and of its norm.
    pub(super) fn encoder(&self) -> [&'static str; 2] {
        match self.dflash2 {
            None => ["encoder.fc", "encoder.output_norm_enc"],
            Some(_) => ["fc", "hidden_norm"],
        }
    }

    /// Bytes of a session's context: keys and values of every layer, in f32.
    pub fn context_bytes(&self) -> u64 {
        let per_position = 2 * 4 * self.num_key_value_heads * self.head_dim * self.num_hidden_layers;
        // What is kept, as much again while it is observed at once, and both begin within a page.
        let pages = (2 * (self.reach() + self.block_size)).div_ceil(PAGE) + 1;
        (pages * PAGE) as u64 * per_position as u64
    }

    /// The shape of the pages of its context.
    pub fn pages(&self) -> KvSpec {
        let types = KvTypes::both(KvType::F32);
        KvSpec { heads: self.num_key_value_heads, head_dim: self.head_dim, types }
    }

    /// Every tensor of the drafter.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let (hidden, inner, head_dim) = (self.hidden_size, self.intermediate_size, self.head_dim);
        let (q, kv) = (self.num_attention_heads * head_dim, self.num_key_value_heads * head_dim);
        let [fc, hidden_norm] = self.encoder();
        let mut all = vec![
            TensorSpec::new(format!("{fc}.weight"), [hidden, self.target_layer_ids.len() * hidden]),
            TensorSpec::new(format!("{hidden_norm}.weight"), [hidden]),
            TensorSpec::new("norm.weight", [hidden]),
        ];
        if let Some(dflash2) = &self.dflash2 {
            all.extend(dflash2.tensors(hidden, self.num_hidden_layers));
        }
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

impl DFlash2Config {
    fn from_fields(top: &Fields<'_>, hidden: usize) -> Result<Self, ModelError> {
        use crate::muse::MAX_WIDTH;
        let size = |key: &str, max: usize, default: usize| {
            setting(top, key, |f, key| f.opt_usize(key, 1..=max)).map(|found| found.unwrap_or(default))
        };
        let conv_group_size = size("conv_group_size", MAX_WIDTH, 16)?;
        if !hidden.is_multiple_of(conv_group_size) {
            return Err(refused(top, "conv_group_size", format!("a divisor of hidden_size, {hidden}")));
        }
        if scale(top, "input_embedding_scale")?.is_some_and(|scale| scale != 1.0) {
            return Err(refused(top, "input_embedding_scale", "1: embeddings are taken as the target has them"));
        }
        Ok(Self {
            conv_kernel_size: size("conv_kernel_size", MAX_KERNEL, 2)?,
            conv_group_size,
            selector_rank: size("selector_rank", MAX_WIDTH, 256)?,
            selector_top_k: size("selector_top_k", MAX_CANDIDATES, 16)?,
            output_multiplier: scale(top, "output_multiplier")?.unwrap_or(0.196_116_14),
            final_logit_softcapping: scale(top, "final_logit_softcapping")?.unwrap_or(20.0),
            vocab_size: top.opt_usize("vocab_size", 1..=u32::MAX as usize)?.unwrap_or(202_048),
        })
    }

    /// Elements of the two kernels that a row brings for a sub-layer of so many channels.
    pub(super) fn dynamic(&self, hidden: usize) -> usize {
        2 * self.conv_kernel_size * (hidden / self.conv_group_size)
    }

    fn tensors(&self, hidden: usize, layers: usize) -> Vec<TensorSpec> {
        let codebook =
            |name: &str| TensorSpec::new(format!("candidate_selector.{name}"), [self.vocab_size, self.selector_rank]);
        let mut all = vec![
            codebook("predecessor_codebook"),
            codebook("successor_codebook"),
            TensorSpec::new("candidate_selector.hidden_projection.weight", [self.selector_rank, hidden]),
        ];
        for conv in (0..layers).flat_map(|i| ["attention", "mlp"].map(|part| format!("layers.{i}.{part}_conv"))) {
            all.push(TensorSpec::new(format!("{conv}.base_kernel"), [2, self.conv_kernel_size, hidden]));
            all.push(TensorSpec::new(format!("{conv}.kernel_projection.weight"), [self.dynamic(hidden), hidden]));
        }
        all
    }
}

fn is_dflash2(top: &Fields<'_>) -> Result<bool, Error> {
    Ok(top.opt_str_list("architectures", 16)?.is_some_and(|names| names.first() == Some(&DFLASH2)))
}

/// A setting that scales.
fn scale(top: &Fields<'_>, key: &str) -> Result<Option<f32>, ModelError> {
    setting(top, key, |f, key| f.opt_f32(key, crate::muse::SCALES))
}

/// The error for a setting that is not `expected`, where it stands.
fn refused(top: &Fields<'_>, key: &str, expected: impl Display) -> ModelError {
    let nested = top.object(NESTED).ok().flatten().filter(|nested| nested.get(key).is_some());
    nested.as_ref().unwrap_or(top).invalid(key, expected).into()
}

/// A setting that stands at the top level or inside `dflash_config`; in both places it has to be the same.
fn setting<'a, T: PartialEq>(
    top: &Fields<'a>,
    key: &str,
    read: impl Fn(&Fields<'a>, &str) -> Result<Option<T>, Error>,
) -> Result<Option<T>, ModelError> {
    let flat = read(top, key)?;
    let Some(nested) = top.object(NESTED)? else { return Ok(flat) };
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
    for key in ["is_causal", "causal"] {
        if setting(top, key, |f, key| f.opt_bool(key))? == Some(true) {
            return Err(refused(top, key, "false: the rows of a block see each other"));
        }
    }
    if top.opt_bool("use_sliding_window")? == Some(false) {
        return Err(top.invalid("use_sliding_window", "true").into());
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

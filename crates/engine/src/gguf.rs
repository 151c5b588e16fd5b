//! The metadata that llama.cpp wants to find in a GGUF file: of a model and of its tokenizer.

use glimmer_checkpoint::tokenizer::{Role, Vocabulary};
use glimmer_checkpoint::write::gguf::{Header, Value};
use glimmer_encoding::{Encoding, FloatType, GgmlType};
use glimmer_model::dflash::DFlashConfig;
use glimmer_model::kv_cache::Span;
use glimmer_model::muse::TextConfig;

/// The metadata of a target, whose matrices are mostly stored as `body`.
pub fn target(name: String, body: Encoding, mixed: bool, text: &TextConfig) -> Header {
    let windows = text.layers.iter().map(|layer| match layer.span {
        Span::Sliding(window) => Some(window),
        Span::Full => None,
    });
    let theta = text.layers.iter().find_map(|layer| layer.rope_theta);
    let sizes = Sizes {
        layers: text.layers.len(),
        positions: text.max_position_embeddings,
        hidden: text.hidden_size,
        intermediate: text.intermediate_size,
        heads: text.num_attention_heads,
        kv_heads: text.num_key_value_heads,
        head_dim: text.head_dim,
        vocab: Some(text.vocab_size),
        window: windows.clone().flatten().next().unwrap_or(text.max_position_embeddings),
        eps: text.rms_norm_eps,
        theta: theta.unwrap_or(500_000.0),
    };
    let mut header = header("muse-glimmer", name, body, mixed, &sizes);
    let mut set = |key: &str, value| header.set(format!("muse-glimmer.{key}"), value);
    set("attention.sliding_window_pattern", Value::Bools(windows.map(|window| window.is_some()).collect()));
    set("final_logit_softcapping", Value::F32(text.final_logit_softcapping));
    set("logit_scale", Value::F32(text.output_multiplier));
    header
}

/// The metadata of a DFlash drafter for a target with so many positions and tokens.
pub fn drafter(
    name: String,
    body: Encoding,
    mixed: bool,
    config: &DFlashConfig,
    positions: usize,
    vocab: Option<usize>,
) -> Header {
    let sizes = Sizes {
        layers: config.num_hidden_layers,
        positions,
        hidden: config.hidden_size,
        intermediate: config.intermediate_size,
        heads: config.num_attention_heads,
        kv_heads: config.num_key_value_heads,
        head_dim: config.head_dim,
        vocab,
        window: config.sliding_window,
        eps: config.rms_norm_eps,
        theta: config.rope_theta,
    };
    let mut header = header("dflash", name, body, mixed, &sizes);
    let mut set = |key: &str, value| header.set(format!("dflash.{key}"), value);
    set("attention.causal", Value::Bool(false));
    set("attention.sliding_window_pattern", Value::Bools(vec![true; config.num_hidden_layers]));
    set("block_size", Value::U32(config.block_size as u32));
    // Layers are tapped at their input there.
    set("target_layers", Value::U32s(config.target_layer_ids.iter().map(|&id| id as u32 + 1).collect()));
    if let Some(dflash2) = &config.dflash2 {
        let mut number = |key: &str, n: usize| set(key, Value::U32(n as u32));
        number("conv_kernel_size", dflash2.conv_kernel_size);
        number("conv_group_size", dflash2.conv_group_size);
        number("selector_rank", dflash2.selector_rank);
        number("selector_top_k", dflash2.selector_top_k);
        set("logit_scale", Value::F32(dflash2.output_multiplier));
        set("final_logit_softcapping", Value::F32(dflash2.final_logit_softcapping));
    }
    header.set("tokenizer.ggml.mask_token_id", Value::U32(config.mask_token_id));
    header
}

/// What both architectures have.
struct Sizes {
    layers: usize,
    positions: usize,
    hidden: usize,
    intermediate: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocab: Option<usize>,
    window: usize,
    eps: f32,
    theta: f64,
}

fn header(architecture: &str, name: String, body: Encoding, mixed: bool, sizes: &Sizes) -> Header {
    let mut header = Header::new(architecture);
    header.set("general.name", Value::Text(name));
    header.set("general.quantization_version", Value::U32(2));
    header.set("general.file_type", Value::U32(file_type(body, mixed)));
    let mut number = |key: &str, n: usize| header.set(format!("{architecture}.{key}"), Value::U32(n as u32));
    number("block_count", sizes.layers);
    number("context_length", sizes.positions);
    number("embedding_length", sizes.hidden);
    number("feed_forward_length", sizes.intermediate);
    number("attention.head_count", sizes.heads);
    number("attention.head_count_kv", sizes.kv_heads);
    number("attention.key_length", sizes.head_dim);
    number("attention.value_length", sizes.head_dim);
    number("rope.dimension_count", sizes.head_dim);
    number("attention.sliding_window", sizes.window);
    if let Some(vocab) = sizes.vocab {
        number("vocab_size", vocab);
    }
    header.set(format!("{architecture}.attention.layer_norm_rms_epsilon"), Value::F32(sizes.eps));
    header.set(format!("{architecture}.rope.freq_base"), Value::F32(sizes.theta as f32));
    header
}

/// Ids of control tokens that a file names.
#[derive(Clone, Copy, Debug, Default)]
pub struct Named {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub eot: Option<u32>,
    pub pad: Option<u32>,
}

/// Adds a tokenizer, or that there is none.
pub fn tokenizer(header: &mut Header, vocabulary: Option<Vocabulary>, named: Named) {
    let kind = |role: &Role| match role {
        Role::Ordinary => 1,
        Role::Control => 3,
        Role::Added => 4,
        Role::Unused => 5,
    };
    let mut set = |key: &str, value| header.set(format!("tokenizer.ggml.{key}"), value);
    // What stands in front of a document is the first token, whatever the configuration calls so.
    let first = vocabulary.as_ref().and_then(|vocabulary| vocabulary.prefix);
    match vocabulary {
        None => set("model", Value::Text("no_vocab".into())),
        Some(Vocabulary { tokens, merges, prefix, .. }) => {
            set("model", Value::Text("gpt2".into()));
            set("pre", Value::Text("llama4".into()));
            set("token_type", Value::I32s(tokens.iter().map(|(_, role)| kind(role)).collect()));
            set("tokens", Value::Texts(tokens.into_iter().map(|(text, _)| text).collect()));
            set("merges", Value::Texts(merges.iter().map(|pair| pair.join(" ")).collect()));
            set("add_bos_token", Value::Bool(prefix.is_some()));
        }
    }
    let Named { bos, eos, eot, pad } = named;
    let ids =
        [("bos_token_id", first.or(bos)), ("eos_token_id", eos), ("eot_token_id", eot), ("padding_token_id", pad)];
    for (key, id) in ids {
        if let Some(id) = id {
            set(key, Value::U32(id));
        }
    }
}

/// What llama.cpp calls a file of mostly this encoding. `mixed`: some matrices have another.
fn file_type(body: Encoding, mixed: bool) -> u32 {
    match body {
        Encoding::Dense(FloatType::F16) => 1,
        Encoding::Dense(FloatType::BF16) => 32,
        Encoding::Ggml(kind) => match kind {
            GgmlType::Q4_0 => 2,
            GgmlType::Q4_1 => 3,
            GgmlType::Q8_0 => 7,
            GgmlType::Q5_0 => 8,
            GgmlType::Q5_1 => 9,
            GgmlType::Q2K => 10,
            GgmlType::Q3K => 11,
            GgmlType::Q4K if mixed => 15,
            GgmlType::Q4K => 14,
            GgmlType::Q5K if mixed => 17,
            GgmlType::Q5K => 16,
            GgmlType::Q6K => 18,
            GgmlType::Iq2Xxs => 19,
            GgmlType::Iq2Xs => 20,
            GgmlType::Iq3Xxs => 23,
            GgmlType::Iq1S => 24,
            GgmlType::Iq4Nl => 25,
            GgmlType::Iq3S => 26,
            GgmlType::Iq2S => 28,
            GgmlType::Iq4Xs => 30,
            GgmlType::Iq1M => 31,
            GgmlType::Tq1_0 => 36,
            GgmlType::Tq2_0 => 37,
            GgmlType::MxFp4 => 38,
            GgmlType::NvFp4 => 39,
        },
        _ => 0,
    }
}

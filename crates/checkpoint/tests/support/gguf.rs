//! GGUF files, written as the converter of llama.cpp does it, from checkpoints as Hugging Face has them.
//!
//! Tests of other crates include this file by its path.

#![allow(dead_code)] // Not everyone who includes it needs all of it.

use glimmer_checkpoint::write::gguf::{drafter_name, kind, target_name};
use glimmer_checkpoint::{Checkpoint, Fields};
use glimmer_encoding::{Encoding, FloatType, encode_rows};
use serde_json::Value;
use std::collections::BTreeMap;

/// A file to be; wrong ones included.
#[derive(Clone)]
pub struct Gguf {
    pub version: u32,
    pub metadata: Vec<(String, Meta)>,
    pub tensors: Vec<Entry>,
    /// In place of what is right.
    pub tensor_count: Option<u64>,
    pub metadata_count: Option<u64>,
    /// Of what is written; the reader is told of it by the metadata alone.
    pub alignment: usize,
}

#[derive(Clone)]
pub enum Meta {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(String),
    Bools(Vec<bool>),
    U32s(Vec<u32>),
    I32s(Vec<i32>),
    Texts(Vec<String>),
    /// Any type, any bytes.
    Raw(u32, Vec<u8>),
}

#[derive(Clone)]
pub struct Entry {
    pub name: String,
    /// The fastest first.
    pub dims: Vec<u64>,
    pub kind: u32,
    /// In place of what is right.
    pub offset: Option<u64>,
    pub data: Vec<u8>,
}

impl Gguf {
    pub fn new(architecture: &str) -> Self {
        let metadata = vec![("general.architecture".into(), Meta::Text(architecture.into()))];
        Self { version: 3, metadata, tensors: vec![], tensor_count: None, metadata_count: None, alignment: 32 }
    }

    pub fn set(&mut self, key: &str, value: Meta) {
        self.unset(key);
        self.metadata.push((key.into(), value));
    }

    pub fn unset(&mut self, key: &str) {
        self.metadata.retain(|(k, _)| k != key);
    }

    pub fn entry(&mut self, name: &str) -> &mut Entry {
        self.tensors.iter_mut().find(|t| t.name == name).unwrap()
    }

    /// Adds a tensor of `shape`, outermost dimension first.
    pub fn tensor(&mut self, name: &str, shape: &[usize], encoding: Encoding, values: &[f32]) {
        let cols = *shape.last().unwrap();
        let data = encode_rows(encoding, values, values.len() / cols, cols).unwrap().codes;
        let dims = shape.iter().rev().map(|&d| d as u64).collect();
        self.tensors.push(Entry { name: name.into(), dims, kind: kind(encoding).unwrap(), offset: None, data });
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.metadata_count.unwrap_or(self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            text(&mut out, key);
            value.write(&mut out);
        }
        let mut at = 0;
        for tensor in &self.tensors {
            text(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(at).to_le_bytes());
            at += tensor.data.len().next_multiple_of(self.alignment) as u64;
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&tensor.data);
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out
    }
}

impl Meta {
    fn write(&self, out: &mut Vec<u8>) {
        let mut array = |kind: u32, len: usize| {
            out.extend(9u32.to_le_bytes());
            out.extend(kind.to_le_bytes());
            out.extend((len as u64).to_le_bytes());
        };
        match self {
            Meta::Bools(list) => {
                array(7, list.len());
                out.extend(list.iter().map(|&b| u8::from(b)));
                return;
            }
            Meta::U32s(list) => {
                array(4, list.len());
                out.extend(list.iter().flat_map(|n| n.to_le_bytes()));
                return;
            }
            Meta::I32s(list) => {
                array(5, list.len());
                out.extend(list.iter().flat_map(|n| n.to_le_bytes()));
                return;
            }
            Meta::Texts(list) => {
                array(8, list.len());
                list.iter().for_each(|t| text(out, t));
                return;
            }
            _ => {}
        }
        let kind: u32 = match self {
            Meta::U32(_) => 4,
            Meta::F32(_) => 6,
            Meta::Bool(_) => 7,
            Meta::Raw(kind, _) => *kind,
            _ => 8,
        };
        out.extend(kind.to_le_bytes());
        match self {
            Meta::U32(n) => out.extend(n.to_le_bytes()),
            Meta::F32(x) => out.extend(x.to_le_bytes()),
            Meta::Bool(b) => out.push(u8::from(*b)),
            Meta::Text(t) => text(out, t),
            Meta::Raw(_, bytes) => out.extend(bytes),
            _ => unreachable!(),
        }
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

const F32: Encoding = Encoding::Dense(FloatType::F32);

/// What a target becomes, its vision tower left out. `encoding` chooses that of each matrix, by its name in the
/// file and the elements of its rows.
pub fn target(checkpoint: &Checkpoint, encoding: impl Fn(&str, usize) -> Encoding) -> Gguf {
    let top = checkpoint.fields();
    let text = top.object("text_config").unwrap().unwrap_or(top);
    let int = |key: &str| text.opt_usize(key, 0..=usize::MAX).unwrap().unwrap();
    let float = |key: &str| Meta::F32(text.opt_f32(key, -1e30..=1e30).unwrap().unwrap());
    let mut out = Gguf::new("muse-glimmer");
    numbers(
        &mut out,
        "muse-glimmer",
        &text,
        &[("vocab_size", "vocab_size"), ("context_length", "max_position_embeddings")],
    );
    out.set("muse-glimmer.final_logit_softcapping", float("final_logit_softcapping"));
    out.set("muse-glimmer.logit_scale", float("output_multiplier"));
    let types = text.opt_str_list("layer_types", 4096).unwrap().unwrap();
    let sliding = types.iter().map(|kind| *kind == "sliding_attention").collect();
    out.set("muse-glimmer.attention.sliding_window_pattern", Meta::Bools(sliding));
    if let Some(tokenizer) = checkpoint.json("tokenizer.json").unwrap() {
        vocabulary(&mut out, &tokenizer);
    }
    if let Some(template) = checkpoint.file("chat_template.jinja").unwrap() {
        out.set("tokenizer.chat_template", Meta::Text(String::from_utf8(template).unwrap()));
    }
    out.set("tokenizer.ggml.bos_token_id", Meta::U32(int("bos_token_id") as u32));
    out.set("tokenizer.ggml.eos_token_id", Meta::U32(text.opt_u32_list("eos_token_id", 9).unwrap().unwrap()[0]));

    let (head_dim, layers) = (int("head_dim"), int("num_hidden_layers"));
    let scale = text.opt_f32("qk_scale_factor", 0.0..=100.0).unwrap().unwrap();
    for info in checkpoint.tensors().iter().filter(|t| !t.name.contains("vision")) {
        let mut values = checkpoint.read(&info.name).unwrap().view().to_f32();
        let name = target_name(&info.name).unwrap();
        if info.name.ends_with("layernorm.weight") {
            values.iter_mut().for_each(|w| *w += 1.0);
        }
        if name.ends_with("attn_q.weight") || name.ends_with("attn_k.weight") {
            values = interleave(&values, info.shape[1], head_dim);
        }
        let encoding = if info.shape.len() == 1 { F32 } else { encoding(&name, info.shape[1]) };
        out.tensor(&name, &info.shape, encoding, &values);
    }
    for layer in 0..layers {
        out.tensor(&format!("blk.{layer}.attn_q_norm.weight"), &[head_dim], F32, &vec![scale; head_dim]);
        out.tensor(&format!("blk.{layer}.attn_k_norm.weight"), &[head_dim], F32, &vec![1.0; head_dim]);
    }
    out
}

/// What a DFlash drafter of either version becomes.
pub fn drafter(checkpoint: &Checkpoint, encoding: impl Fn(&str, usize) -> Encoding) -> Gguf {
    let top = checkpoint.fields();
    let nested = top.object("dflash_config").unwrap();
    let settings = nested.as_ref().unwrap_or(&top);
    let mut out = Gguf::new("dflash");
    numbers(&mut out, "dflash", &top, &[("context_length", "max_position_embeddings")]);
    for key in ["block_size", "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"] {
        if let Some(n) = settings.opt_u32(key, 0..=u32::MAX).unwrap() {
            out.set(&format!("dflash.{key}"), Meta::U32(n));
        }
    }
    for (key, field) in [("logit_scale", "output_multiplier"), ("final_logit_softcapping", "final_logit_softcapping")] {
        if let Some(x) = settings.opt_f32(field, 0.0..=1e3).unwrap() {
            out.set(&format!("dflash.{key}"), Meta::F32(x));
        }
    }
    let layers = top.opt_usize("num_hidden_layers", 0..=99).unwrap().unwrap();
    out.set("dflash.attention.sliding_window_pattern", Meta::Bools(vec![true; layers]));
    let taps = settings.opt_u32_list("target_layer_ids", 99).unwrap().unwrap();
    out.set("dflash.target_layers", Meta::U32s(taps.into_iter().map(|id| id + 1).collect()));
    let mask = settings.opt_u32("mask_token_id", 0..=u32::MAX).unwrap().unwrap();
    out.set("tokenizer.ggml.mask_token_id", Meta::U32(mask));
    for info in checkpoint.tensors() {
        let values = checkpoint.read(&info.name).unwrap().view().to_f32();
        let name = drafter_name(&info.name).unwrap();
        let encoding = if info.shape.len() == 2 { encoding(&name, info.shape[1]) } else { F32 };
        out.tensor(&name, &info.shape, encoding, &values);
    }
    out
}

/// A vocabulary as llama.cpp's converter stores it.
pub fn vocabulary(out: &mut Gguf, tokenizer: &serde_json::Map<String, Value>) {
    let (model, added) = (&tokenizer["model"], tokenizer["added_tokens"].as_array().unwrap());
    let ordinary =
        model["vocab"].as_object().unwrap().iter().map(|(text, id)| (id.as_u64().unwrap(), (text.clone(), 1)));
    let mut tokens: BTreeMap<u64, (String, i32)> = ordinary.collect();
    for token in added {
        let kind = if token["special"] == Value::Bool(true) { 3 } else { 4 };
        tokens.insert(token["id"].as_u64().unwrap(), (token["content"].as_str().unwrap().into(), kind));
    }
    let last = *tokens.last_key_value().unwrap().0;
    let unused = |id: u64| (format!("[PAD{id}]"), 5);
    let (texts, types) = (0..=last).map(|id| tokens.remove(&id).unwrap_or_else(|| unused(id))).unzip();
    let merge = |pair: &Value| match pair.as_str() {
        Some(pair) => pair.to_string(),
        None => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
    };
    if let Some(eot) = added.iter().find(|token| token["content"] == "<|eot|>") {
        out.set("tokenizer.ggml.eot_token_id", Meta::U32(eot["id"].as_u64().unwrap() as u32));
    }
    out.set("tokenizer.ggml.model", Meta::Text("gpt2".into()));
    out.set("tokenizer.ggml.pre", Meta::Text("llama4".into()));
    out.set("tokenizer.ggml.tokens", Meta::Texts(texts));
    out.set("tokenizer.ggml.token_type", Meta::I32s(types));
    out.set("tokenizer.ggml.merges", Meta::Texts(model["merges"].as_array().unwrap().iter().map(merge).collect()));
}

/// Numbers that both have, and `more` that are integers.
fn numbers(out: &mut Gguf, prefix: &str, fields: &Fields<'_>, more: &[(&str, &str)]) {
    let integers = [
        ("block_count", "num_hidden_layers"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.key_length", "head_dim"),
        ("attention.value_length", "head_dim"),
        ("rope.dimension_count", "head_dim"),
        ("attention.sliding_window", "sliding_window"),
    ];
    for (key, field) in integers.iter().chain(more) {
        if let Some(n) = fields.get(field).and_then(|v| v.as_u64()) {
            out.set(&format!("{prefix}.{key}"), Meta::U32(n as u32));
        }
    }
    let eps = fields.opt_f32("rms_norm_eps", 0.0..=1.0).unwrap().unwrap();
    out.set(&format!("{prefix}.attention.layer_norm_rms_epsilon"), Meta::F32(eps));
    let rope = fields.object("rope_parameters").unwrap().unwrap();
    let theta = rope.opt_f32("rope_theta", 0.0..=1e9).unwrap().unwrap();
    out.set(&format!("{prefix}.rope.freq_base"), Meta::F32(theta));
}

/// Rows of a head's first and second half, by turns.
fn interleave(values: &[f32], cols: usize, head_dim: usize) -> Vec<f32> {
    let rows: Vec<&[f32]> = values.chunks_exact(cols).collect();
    let row = |i: usize| rows[i / head_dim * head_dim + i % 2 * (head_dim / 2) + i % head_dim / 2];
    (0..rows.len()).flat_map(row).copied().collect()
}

/// What a target's vision tower becomes: a file of its own.
pub fn projector(checkpoint: &Checkpoint, encoding: impl Fn(&str, usize) -> Encoding) -> Gguf {
    let top = checkpoint.fields();
    let vision = top.object("vision_config").unwrap().unwrap();
    let int = |key: &str| vision.opt_usize(key, 1..=usize::MAX).unwrap().unwrap();
    let (heads, hidden, patch, merge) =
        (int("num_attention_heads"), int("hidden_size"), int("patch_size"), int("merge_size"));
    let mut out = Gguf::new("clip");
    out.set("clip.projector_type", Meta::Text("muse-glimmer".into()));
    out.set("clip.has_vision_encoder", Meta::Bool(true));
    out.set("clip.use_gelu", Meta::Bool(true));
    for (key, value) in [
        ("embedding_length", hidden),
        ("feed_forward_length", int("intermediate_size")),
        ("block_count", int("num_hidden_layers")),
        ("attention.head_count", heads),
        ("patch_size", patch),
        ("spatial_merge_size", merge),
        ("image_size", int("pos_emb_height") * patch * merge),
    ] {
        out.set(&format!("clip.vision.{key}"), Meta::U32(value as u32));
    }
    out.set("clip.vision.attention.layer_norm_epsilon", Meta::F32(1e-5));
    for info in checkpoint.tensors().iter().filter(|t| t.name.contains("vision")) {
        let mut values = checkpoint.read(&info.name).unwrap().view().to_f32();
        let (name, mut shape) = (projector_name(&info.name), info.shape.clone());
        if name.contains("attn_q") || name.contains("attn_k") {
            values = interleave(&values, values.len() / shape[0], hidden / heads);
        }
        if name == "v.patch_embd.weight" {
            values = collapsed(&values, shape[1]);
            shape = vec![hidden, 3, patch, patch];
        }
        let encoding = if shape.len() == 2 { encoding(&name, shape[1]) } else { F32 };
        out.tensor(&name, &shape, encoding, &values);
    }
    out
}

/// The sum over the two frames of patches of `elements`.
pub fn collapsed(values: &[f32], elements: usize) -> Vec<f32> {
    let half = elements / 2;
    values.chunks_exact(elements).flat_map(|patch| (0..half).map(|i| patch[i] + patch[i + half])).collect()
}

fn projector_name(name: &str) -> String {
    let mut name = name.to_string();
    for (there, here) in [
        ("model.vision_tower.patch_embedder.patch_embedding", "v.patch_embd"),
        ("model.vision_tower.patch_embedder.position_embedding_table", "v.position_embd"),
        ("model.vision_tower.ln_pre", "v.pre_ln"),
        ("model.vision_tower.ln_post", "v.post_ln"),
        ("model.vision_tower.layers", "v.blk"),
        ("model.vision_adapter.fc1", "mm.0"),
        ("model.vision_adapter.fc2", "mm.1"),
        ("model.vision_projection", "mm.2"),
        ("norm1", "ln1"),
        ("norm2", "ln2"),
        ("attn.q_proj", "attn_q"),
        ("attn.k_proj", "attn_k"),
        ("attn.v_proj", "attn_v"),
        ("attn.proj", "attn_out"),
        ("mlp.fc1", "ffn_up"),
        ("mlp.fc2", "ffn_down"),
    ] {
        name = name.replace(there, here);
    }
    name
}

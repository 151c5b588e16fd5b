//! A small checkpoint that is right: every file and tensor of a Muse-Glimmer with four text and two vision layers.

use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

/// Lays out the checkpoint in `dir` with one file of weights, all bf16.
pub fn write_valid(dir: &Path) {
    write_config(dir, &config());
    let (header, data) = weights(specs());
    fs::write(dir.join("model.safetensors"), file(&header, &data)).unwrap();
}

/// Lays out the same checkpoint in two shards with an index.
pub fn write_sharded(dir: &Path) {
    write_config(dir, &config());
    let mut map = Map::new();
    for (shard, tensors) in shards() {
        map.extend(tensors.iter().map(|(name, _)| (name.clone(), json!(shard))));
        let (header, data) = weights(tensors);
        fs::write(dir.join(shard), file(&header, &data)).unwrap();
    }
    write_index(dir, &json!({"metadata": {"total_size": 1}, "weight_map": map}));
}

pub const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

pub fn write_config(dir: &Path, config: &Value) {
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

pub fn write_index(dir: &Path, index: &Value) {
    fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

pub fn config() -> Value {
    json!({
        "architectures": ["MuseGlimmerForConditionalGeneration"],
        "dtype": "bfloat16",
        "image_token_id": 250,
        "model_type": "muse_glimmer",
        "out_hidden_size": 64,
        "projector_hidden_act": "gelu",
        "projector_hidden_size": 32,
        "text_config": {
            "attention_bias": false,
            "bos_token_id": 240,
            "eos_token_id": [241, 242],
            "final_logit_softcapping": 20.0,
            "head_dim": 16,
            "hidden_activation": "silu",
            "hidden_size": 32,
            "intermediate_size": 48,
            "layer_rope_theta": [500000.0, 500000.0, 500000.0, 0],
            "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "max_position_embeddings": 4096,
            "model_type": "muse_glimmer_text",
            "num_attention_heads": 2,
            "num_hidden_layers": 4,
            "num_key_value_heads": 1,
            "output_multiplier": 0.5,
            "pad_token_id": null,
            "post_norm_eps": 1e-8,
            "qk_scale_factor": 3.87,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
            "sliding_window": 16,
            "tie_word_embeddings": false,
            "vocab_size": 256
        },
        "tie_word_embeddings": false,
        "video_token_id": 251,
        "vision_config": {
            "hidden_act": "gelu",
            "hidden_size": 16,
            "intermediate_size": 24,
            "layer_norm_eps": 1e-5,
            "layer_types": ["window_attention", "full_attention"],
            "max_position_embeddings": 16,
            "merge_size": 2,
            "model_type": "muse_glimmer_vision",
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "patch_size": 14,
            "patch_temporal": 2,
            "pos_emb_height": 4,
            "pos_emb_width": 4,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"}
        }
    })
}

/// Name and shape of every tensor, sorted by name.
pub fn specs() -> Vec<(String, Vec<usize>)> {
    let mut specs = Vec::new();
    let mut add = |name: String, shape: &[usize]| specs.push((name, shape.to_vec()));
    add("lm_head.weight".into(), &[256, 32]);
    add("model.language_model.embed_tokens.weight".into(), &[256, 32]);
    add("model.language_model.norm.weight".into(), &[32]);
    for layer in (0..4).map(|i| format!("model.language_model.layers.{i}")) {
        for norm in ["input", "post_attention", "pre_feedforward", "post_feedforward"] {
            add(format!("{layer}.{norm}_layernorm.weight"), &[32]);
        }
        for (name, rows) in [("q_proj", 32), ("k_proj", 16), ("v_proj", 16), ("gate_proj", 32), ("o_proj", 32)] {
            add(format!("{layer}.self_attn.{name}.weight"), &[rows, 32]);
        }
        add(format!("{layer}.mlp.gate_proj.weight"), &[48, 32]);
        add(format!("{layer}.mlp.up_proj.weight"), &[48, 32]);
        add(format!("{layer}.mlp.down_proj.weight"), &[32, 48]);
    }
    let tower = "model.vision_tower";
    add(format!("{tower}.patch_embedder.patch_embedding.weight"), &[16, 1176]);
    add(format!("{tower}.patch_embedder.position_embedding_table.weight"), &[16, 16]);
    for norm in ["ln_pre", "ln_post", "layers.0.norm1", "layers.0.norm2", "layers.1.norm1", "layers.1.norm2"] {
        add(format!("{tower}.{norm}.weight"), &[16]);
        add(format!("{tower}.{norm}.bias"), &[16]);
    }
    for layer in (0..2).map(|i| format!("{tower}.layers.{i}")) {
        for name in ["q_proj", "k_proj", "v_proj", "proj"] {
            add(format!("{layer}.attn.{name}.weight"), &[16, 16]);
            add(format!("{layer}.attn.{name}.bias"), &[16]);
        }
        add(format!("{layer}.mlp.fc1.weight"), &[24, 16]);
        add(format!("{layer}.mlp.fc1.bias"), &[24]);
        add(format!("{layer}.mlp.fc2.weight"), &[16, 24]);
        add(format!("{layer}.mlp.fc2.bias"), &[16]);
    }
    add("model.vision_adapter.fc1.weight".into(), &[32, 64]);
    add("model.vision_adapter.fc2.weight".into(), &[32, 32]);
    add("model.vision_projection.weight".into(), &[32, 32]);
    specs.sort();
    specs
}

/// A name, and the tensors in the file of that name.
pub type Shard = (&'static str, Vec<(String, Vec<usize>)>);

/// The tensors of each shard: the vision parts are in the second.
pub fn shards() -> [Shard; 2] {
    let (vision, text) = specs().into_iter().partition(|(name, _)| name.contains("vision"));
    [(SHARDS[0], text), (SHARDS[1], vision)]
}

/// The header and data of `tensors`, in this order: small bf16 numbers of both signs.
pub fn weights(tensors: Vec<(String, Vec<usize>)>) -> (Map<String, Value>, Vec<u8>) {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut data = Vec::new();
    for (name, shape) in tensors {
        let begin = data.len();
        let bits = |i: usize| 0x3c00 | (i * 37 % 128) as u16 | if i.is_multiple_of(3) { 0x8000 } else { 0 };
        data.extend((0..shape.iter().product()).flat_map(|i| bits(i + begin).to_le_bytes()));
        header.insert(name, json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, data.len()]}));
    }
    (header, data)
}

/// The bytes of a safetensors file.
pub fn file(header: &Map<String, Value>, data: &[u8]) -> Vec<u8> {
    raw_file(serde_json::to_string(header).unwrap().as_bytes(), data)
}

/// The bytes of a safetensors file whose header may be anything.
pub fn raw_file(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, data].concat()
}

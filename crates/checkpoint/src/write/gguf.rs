//! GGUF, version 3: metadata, a table of tensors, and their data at multiples of 32 bytes.

use super::Data;
use crate::Error;
use glimmer_encoding::{Encoding, FloatType, GgmlType};
use std::path::Path;

const ALIGNMENT: u64 = 32;

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An unsigned integer of 32 bits.
    U32(u32),
    /// A float of 32 bits.
    F32(f32),
    /// A string.
    Text(String),
    /// An array of booleans.
    Bools(Vec<bool>),
    /// An array of unsigned integers.
    U32s(Vec<u32>),
    /// An array of signed integers.
    I32s(Vec<i32>),
    /// An array of strings.
    Texts(Vec<String>),
}

/// The header of a file to be.
#[derive(Debug)]
pub struct Header {
    metadata: Vec<(String, Value)>,
    tensors: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    shape: Vec<usize>,
    kind: u32,
    bytes: u64,
}

impl Header {
    /// For a model of this architecture.
    pub fn new(architecture: &str) -> Self {
        let metadata = vec![("general.architecture".into(), Value::Text(architecture.into()))];
        Self { metadata, tensors: Vec::new() }
    }

    /// Adds a pair of the metadata.
    pub fn set(&mut self, key: impl Into<String>, value: Value) {
        self.metadata.push((key.into(), value));
    }

    /// Adds a tensor by its name in the file, and says how many bytes it has. `None` where such a tensor cannot be stored in
    /// this encoding, or the encoding not here.
    pub fn tensor(&mut self, name: &str, encoding: Encoding, shape: &[usize]) -> Option<usize> {
        let (kind, bytes) = (kind(encoding)?, encoding.tensor_sizes(shape)?.codes);
        self.tensors.push(Entry { name: name.into(), shape: shape.to_vec(), kind, bytes: bytes as u64 });
        Some(bytes)
    }

    /// Creates the file.
    pub fn create(self, path: &Path) -> Result<Data, Error> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_text(&mut out, key);
            value.put(&mut out);
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            put_text(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            // The fastest comes first in the file.
            tensor.shape.iter().rev().for_each(|&d| out.extend((d as u64).to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += tensor.bytes.next_multiple_of(ALIGNMENT);
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT as usize), 0);
        Data::create(path, &out, self.tensors.iter().map(|tensor| tensor.bytes), ALIGNMENT)
    }
}

/// The number of an encoding's type; `None` for those of other containers.
pub fn kind(encoding: Encoding) -> Option<u32> {
    Some(match encoding {
        Encoding::Dense(FloatType::F32) => 0,
        Encoding::Dense(FloatType::F16) => 1,
        Encoding::Dense(FloatType::BF16) => 30,
        Encoding::Ggml(GgmlType::Q4_0) => 2,
        Encoding::Ggml(GgmlType::Q8_0) => 8,
        Encoding::Ggml(GgmlType::Q4K) => 12,
        Encoding::Ggml(GgmlType::Q5K) => 13,
        Encoding::Ggml(GgmlType::Q6K) => 14,
        _ => return None,
    })
}

impl Value {
    /// Type and value.
    fn put(&self, out: &mut Vec<u8>) {
        const ARRAY: u32 = 9;
        let array = |out: &mut Vec<u8>, len: usize| {
            out.extend(ARRAY.to_le_bytes());
            out.extend(self.kind().to_le_bytes());
            out.extend((len as u64).to_le_bytes());
        };
        match self {
            Value::Bools(list) => array(out, list.len()),
            Value::U32s(list) => array(out, list.len()),
            Value::I32s(list) => array(out, list.len()),
            Value::Texts(list) => array(out, list.len()),
            _ => out.extend(self.kind().to_le_bytes()),
        }
        match self {
            Value::U32(n) => out.extend(n.to_le_bytes()),
            Value::F32(x) => out.extend(x.to_le_bytes()),
            Value::Text(text) => put_text(out, text),
            Value::Bools(list) => out.extend(list.iter().map(|&b| u8::from(b))),
            Value::U32s(list) => out.extend(list.iter().flat_map(|n| n.to_le_bytes())),
            Value::I32s(list) => out.extend(list.iter().flat_map(|n| n.to_le_bytes())),
            Value::Texts(list) => list.iter().for_each(|text| put_text(out, text)),
        }
    }

    /// The number of the type, of an array that of its elements.
    fn kind(&self) -> u32 {
        match self {
            Value::U32(_) | Value::U32s(_) => 4,
            Value::I32s(_) => 5,
            Value::F32(_) => 6,
            Value::Bools(_) => 7,
            Value::Text(_) | Value::Texts(_) => 8,
        }
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// The name in the file of a target's tensor, by its name in Hugging Face's checkpoints; `None` for unknown ones.
pub fn target_name(name: &str) -> Option<String> {
    match name {
        "lm_head.weight" => return Some("output.weight".into()),
        "model.language_model.embed_tokens.weight" => return Some("token_embd.weight".into()),
        "model.language_model.norm.weight" => return Some("output_norm.weight".into()),
        _ => {}
    }
    block(name.strip_prefix("model.language_model.layers.")?, &TARGET_NORMS)
}

/// The same for a DFlash v1 drafter's.
pub fn drafter_name(name: &str) -> Option<String> {
    match name {
        "encoder.fc.weight" => return Some("fc.weight".into()),
        "encoder.output_norm_enc.weight" => return Some("enc.output_norm.weight".into()),
        "norm.weight" => return Some("output_norm.weight".into()),
        _ => {}
    }
    block(name.strip_prefix("layers.")?, &DRAFTER_NORMS)
}

const MATRICES: [(&str, &str); 8] = [
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.gate_proj", "attn_gate"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

const TARGET_NORMS: [(&str, &str); 4] = [
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

const DRAFTER_NORMS: [(&str, &str); 4] = [
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
];

fn block(name: &str, norms: &[(&str, &str)]) -> Option<String> {
    let (layer, rest) = name.split_once('.')?;
    let part = rest.strip_suffix(".weight")?;
    let (_, part) = MATRICES.iter().chain(norms).find(|(known, _)| *known == part)?;
    Some(format!("blk.{layer}.{part}.weight"))
}

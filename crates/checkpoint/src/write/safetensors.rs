//! Safetensors: eight bytes of length, a JSON header, and the data of the tensors in its order.

use super::Data;
use crate::Error;
use glimmer_encoding::{Encoding, FloatType, Sizes};
use serde_json::{Map, json};
use std::path::Path;

pub use crate::names::{mlx_lm_name, mlx_vlm_name};

const METADATA: &str = "__metadata__";

/// The header of a file to be.
#[derive(Debug)]
pub struct Header {
    entries: Map<String, serde_json::Value>,
    sizes: Vec<u64>,
    end: u64,
}

/// One entry of a safetensors file that a tensor becomes: a module quantized as MLX does it has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Floats, or codes in 32-bit words.
    Weight,
    /// A scale for each group.
    Scales,
    /// A bias for each group.
    Biases,
    /// One scale for all.
    GlobalScale,
}

impl Default for Header {
    fn default() -> Self {
        let mut entries = Map::new();
        entries.insert(METADATA.into(), json!({ "format": "mlx" }));
        Self { entries, sizes: Vec::new(), end: 0 }
    }
}

impl Header {
    /// Adds a tensor of a module's name, without `.weight`, and says in which parts its bytes are to be written, and how
    /// many bytes each has. `None` where such a tensor cannot be stored in this encoding, or the encoding not here.
    pub fn tensor(&mut self, module: &str, encoding: Encoding, shape: &[usize]) -> Option<Vec<(Part, usize)>> {
        let sizes = encoding.tensor_sizes(shape)?;
        if let Encoding::Dense(float) = encoding {
            return Some(vec![self.dense(format!("{module}.weight"), float, shape)?]);
        }
        let &[rows, cols] = shape else { return None };
        let scale = match encoding {
            Encoding::Affine { scale, .. } => float_name(scale),
            Encoding::Ggml(_) => return None,
            _ => "U8",
        };
        let groups = [rows, cols / encoding.block()];
        let Sizes { codes, scales, biases } = sizes;
        // Codes are words of 32 bits.
        self.entry(format!("{module}.weight"), "U32", &[rows, codes / rows.max(1) / 4], codes);
        self.entry(format!("{module}.scales"), scale, &groups, scales);
        let mut parts = vec![(Part::Weight, codes), (Part::Scales, scales)];
        if biases > 0 {
            self.entry(format!("{module}.biases"), scale, &groups, biases);
            parts.push((Part::Biases, biases));
        }
        Some(parts)
    }

    /// Adds a tensor of floats by its whole name.
    pub fn dense(&mut self, name: String, float: FloatType, shape: &[usize]) -> Option<(Part, usize)> {
        let bytes = Encoding::Dense(float).tensor_sizes(shape)?.codes;
        self.entry(name, float_name(float), shape, bytes);
        Some((Part::Weight, bytes))
    }

    /// Adds one scale for all of an nvfp4 tensor, right behind it.
    pub fn global_scale(&mut self, module: &str) -> (Part, usize) {
        self.entry(format!("{module}.global_scale"), "F32", &[], 4);
        (Part::GlobalScale, 4)
    }

    /// The names of what was added.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str).filter(|name| *name != METADATA)
    }

    fn entry(&mut self, name: String, dtype: &str, shape: &[usize], bytes: usize) {
        let offsets = [self.end, self.end + bytes as u64];
        self.end = offsets[1];
        self.sizes.push(bytes as u64);
        self.entries.insert(name, json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets }));
    }

    /// Creates the file.
    pub fn create(self, path: &Path) -> Result<Data, Error> {
        let mut json = serde_json::Value::Object(self.entries).to_string().into_bytes();
        // Spaces may follow the object; with them data begin at a multiple of 8.
        json.resize(json.len().next_multiple_of(8), b' ');
        let header = [&(json.len() as u64).to_le_bytes()[..], &json].concat();
        Data::create(path, &header, self.sizes, 1)
    }
}

fn float_name(float: FloatType) -> &'static str {
    match float {
        FloatType::F32 => "F32",
        FloatType::F16 => "F16",
        FloatType::BF16 => "BF16",
    }
}

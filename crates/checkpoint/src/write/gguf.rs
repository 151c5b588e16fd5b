//! GGUF, version 3: metadata, a table of tensors, and their data at multiples of 32 bytes.

use super::Data;
use crate::Error;
use glimmer_encoding::Encoding;

use std::path::Path;

pub use crate::gguf::names::{drafter_name, kind, target_name};

const ALIGNMENT: u64 = 32;

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An unsigned integer of 32 bits.
    U32(u32),
    /// A float of 32 bits.
    F32(f32),
    /// A boolean.
    Bool(bool),
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
            Value::Bool(b) => out.push(u8::from(*b)),
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
            Value::Bool(_) | Value::Bools(_) => 7,
            Value::Text(_) | Value::Texts(_) => 8,
        }
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

//! GGUF, versions 2 and 3, in one file or in several: a header of metadata and a table of tensors, then their data.
//!
//! What the converter of llama.cpp changed is undone, so that a checkpoint reads as the one of Hugging Face that it was
//! made from: names, the order of dimensions, the order of rows, norms, settings that it keeps as tensors, and the small files
//! that stand beside one.

mod clip;
mod dflash;
mod metadata;
mod muse;
pub(crate) mod names;
mod reader;
pub(crate) mod side;
mod split;
mod table;

use crate::error::{Error, brief};
use crate::source::{Blob, Source};
use crate::tensor::TensorInfo;
use crate::{Checkpoint, Fields};
use glimmer_encoding::{Encoding, FloatType, GgmlType};
use metadata::Arrays;
use reader::Reader;
use serde_json::{Map, Number, Value};
use side::Side;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) const MAGIC: &[u8] = b"GGUF";

pub(crate) fn open(source: Source) -> Result<Checkpoint, Error> {
    let Some((name, blob)) = source.single()? else { return Err(which(&source)) };
    let mut parts = split::gather(&source, name, blob)?;
    let tensors: Vec<TensorInfo> = parts.iter_mut().flat_map(|part| std::mem::take(&mut part.header.tensors)).collect();
    // The first part has the metadata of all.
    let Header { metadata: map, arrays, .. } = std::mem::take(&mut parts[0].header);
    let first = parts[0].name.clone();
    let blobs: BTreeMap<String, Blob> = parts.into_iter().map(|part| (part.name, part.blob)).collect();
    let blob = &blobs[&first];
    if tensors.is_empty() {
        let (file, what, expected) = (blob.file().into(), "weights".into(), "at least one tensor".into());
        return Err(Error::Missing { file, what, expected, more: 0 });
    }
    let metadata = Fields::new(blob.file(), &map);
    let file = File { blobs: &blobs, name: blob.file(), metadata: &metadata };
    let architecture = metadata.opt_str(ARCHITECTURE)?;
    let tensors = global_scales(&file, tensors)?;
    let (config, tensors) = match architecture {
        Some("muse-glimmer") => muse::translate(&file, tensors)?,
        Some("dflash") => dflash::translate(&file, tensors)?,
        Some("clip") => clip::translate(&file, tensors)?,
        Some(other) => {
            let what = format!("architecture `{}` (known: muse-glimmer, dflash, clip)", brief(other));
            return Err(Error::Unsupported { file: blob.file().into(), what });
        }
        None => return Err(metadata.invalid(ARCHITECTURE, "muse-glimmer, dflash or clip")),
    };
    let side = Side { file: first, metadata: map, arrays };
    Ok(Checkpoint::new(source, "", config, "", tensors, blobs).with_side(side))
}

const ARCHITECTURE: &str = "general.architecture";

/// A directory may have many; which one is meant is not ours to guess.
fn which(source: &Source) -> Error {
    let what = "GGUF files are opened by their own path, not by that of their directory".into();
    Error::Unsupported { file: source.to_string(), what }
}

/// What stands in front of the data.
#[derive(Default)]
struct Header {
    metadata: Map<String, Value>,
    arrays: Arrays,
    /// Under their names in the file.
    tensors: Vec<TensorInfo>,
}

fn header(blob: &Blob, name: &str) -> Result<Header, Error> {
    let mut reader = Reader::new(blob)?;
    reader.bytes(MAGIC.len(), "magic")?;
    match reader.u32("version")? {
        2 | 3 => {}
        version => {
            let what = match version.swap_bytes() {
                1..=3 => "big-endian GGUF cannot be read; little-endian can".into(),
                _ => format!("GGUF of version {version} cannot be read; versions 2 and 3 can"),
            };
            return Err(Error::Unsupported { file: blob.file().into(), what });
        }
    }
    let tensors = reader.count("tensor count", 1 << 16)?;
    let pairs = reader.count("metadata count", 1 << 16)?;
    let (metadata, arrays) = metadata::read(&mut reader, pairs)?;
    let tensors = table::read(&mut reader, tensors, &Fields::new(blob.file(), &metadata), Arc::from(name))?;
    Ok(Header { metadata, arrays, tensors })
}

/// What translating an architecture needs.
struct File<'a> {
    /// The files by name.
    blobs: &'a BTreeMap<String, Blob>,
    /// The one with the metadata, as messages name it.
    name: &'a str,
    metadata: &'a Fields<'a>,
}

impl File<'_> {
    /// The number under `key`, as it stands.
    fn number(&self, key: &str) -> Result<Option<Value>, Error> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(number @ Value::Number(_)) => Ok(Some(number.clone())),
            Some(_) => Err(self.metadata.invalid(key, "a number")),
        }
    }

    /// Copies numbers from keys below `prefix` to fields of a config.
    fn copy(&self, prefix: &str, config: &mut Map<String, Value>, pairs: &[(&str, &str)]) -> Result<(), Error> {
        for (key, field) in pairs {
            if let Some(value) = self.number(&format!("{prefix}{key}"))? {
                config.insert(field.to_string(), value);
            }
        }
        Ok(())
    }

    /// Every decoder layer of the config has an entry: flags, one for each, or a period n, of which the last is full.
    fn layer_types(&self, prefix: &str, layers: usize) -> Result<Option<Value>, Error> {
        let key = format!("{prefix}attention.sliding_window_pattern");
        let name = |sliding: bool| Value::from(if sliding { "sliding_attention" } else { "full_attention" });
        let expected = || self.metadata.invalid(&key, format!("a period, or true or false for {layers} layers"));
        match self.metadata.get(&key) {
            None => Ok(None),
            Some(Value::Array(flags)) if flags.len() == layers => {
                let flag = |flag: &Value| flag.as_bool().or(flag.as_u64().filter(|&n| n < 2).map(|n| n == 1));
                flags.iter().map(|value| flag(value).map(name).ok_or_else(expected)).collect::<Result<_, _>>().map(Some)
            }
            Some(value) => {
                let period = value.as_u64().ok_or_else(expected)?;
                Ok(Some((0..layers as u64).map(|i| name(period == 0 || i % period < period - 1)).collect()))
            }
        }
    }

    /// Settings of positions that change the arithmetic and that no checkpoint of these has.
    fn refuse_other_rotations(&self, prefix: &str, head_dim: usize) -> Result<(), Error> {
        let key = format!("{prefix}rope.scaling.type");
        if self.metadata.opt_str(&key)?.is_some_and(|kind| kind != "none") {
            return Err(self.metadata.invalid(&key, "none"));
        }
        for key in ["rope.dimension_count", "attention.value_length"].map(|key| format!("{prefix}{key}")) {
            if self.metadata.opt_usize(&key, 0..=usize::MAX)?.is_some_and(|n| n != head_dim) {
                return Err(self.metadata.invalid(&key, format!("{head_dim}, the elements of a head")));
            }
        }
        Ok(())
    }

    /// The elements of a head: an even number, by default those of the published model.
    fn head_dim(&self, prefix: &str) -> Result<usize, Error> {
        let key = format!("{prefix}attention.key_length");
        let head_dim = self.metadata.opt_usize(&key, 2..=1 << 20)?.unwrap_or(128);
        if !head_dim.is_multiple_of(2) {
            return Err(self.metadata.invalid(&key, "an even number"));
        }
        Ok(head_dim)
    }

    /// A vector that is stored as f32.
    fn vector(&self, info: &TensorInfo, len: usize) -> Result<Vec<f32>, Error> {
        if info.encoding != Encoding::Dense(FloatType::F32) || info.shape != [len] {
            return Err(self.malformed(info, format!("f32 of shape [{len}]"), found(info)));
        }
        let bytes = self.blob(info).read_at(info.codes.range.start, info.codes.byte_len())?;
        Ok(bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
    }

    /// The file that has a tensor, which is one of those that were read.
    fn blob(&self, info: &TensorInfo) -> &Blob {
        &self.blobs[&*info.codes.file]
    }

    fn malformed(&self, info: &TensorInfo, expected: String, found: String) -> Error {
        let (file, what) = (self.blob(info).file().into(), format!("tensor `{}`", brief(&info.codes.name)));
        Error::Malformed { file, what, expected, found }
    }
}

/// Puts `name.scale` to the matrix of nvfp4 `name.weight`: one f32 that all of it is multiplied with. `name.input_scale` beside it is for
/// activations of 4 bits, which there are none of here.
fn global_scales(file: &File<'_>, tensors: Vec<TensorInfo>) -> Result<Vec<TensorInfo>, Error> {
    let nvfp4 = |info: &TensorInfo| info.encoding == Encoding::Ggml(GgmlType::NvFp4);
    let stems: BTreeSet<String> = tensors
        .iter()
        .filter(|info| nvfp4(info))
        .filter_map(|info| info.name.strip_suffix(".weight").map(String::from))
        .collect();
    let (mut scales, mut rest) = (BTreeMap::new(), Vec::new());
    for info in tensors {
        match info.name.rsplit_once('.') {
            Some((stem, end @ ("scale" | "input_scale"))) if stems.contains(stem) => {
                let value = file.vector(&info, 1)?[0];
                if !(value.is_finite() && value > 0.0) {
                    return Err(file.malformed(&info, "a finite number above 0".into(), value.to_string()));
                }
                if end == "scale" {
                    scales.insert(format!("{stem}.weight"), info.codes);
                }
            }
            _ => rest.push(info),
        }
    }
    rest.iter_mut().for_each(|info| info.global_scale = scales.remove(&info.name));
    Ok(rest)
}

fn found(info: &TensorInfo) -> String {
    format!("{} of shape {:?}", info.encoding, info.shape)
}

/// A JSON number that is this float exactly.
fn number(value: f32) -> Option<Value> {
    Number::from_f64(value.into()).map(Value::Number)
}

/// The layer and the rest of a name that begins with `blk.`.
fn layer(name: &str) -> Option<(&str, &str)> {
    numbered(name.strip_prefix("blk.")?)
}

/// The same without `.weight`.
fn block(name: &str) -> Option<(&str, &str)> {
    let (layer, rest) = layer(name)?;
    Some((layer, rest.strip_suffix(".weight")?))
}

/// The number that a name begins with, and what follows its dot.
fn numbered(name: &str) -> Option<(&str, &str)> {
    let (number, rest) = name.split_once('.')?;
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    (digits && (number == "0" || !number.starts_with('0'))).then_some((number, rest))
}

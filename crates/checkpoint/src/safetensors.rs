//! The header of a safetensors file: eight bytes of length, JSON, and then nothing but the data of its tensors.

use crate::error::{Error, brief};
use crate::fields::Fields;
use crate::json::{self, parse_object, shown};
use crate::source::Blob;
use crate::tensor::Extent;
use glimmer_encoding::FloatType;
use serde_json::{Map, Value};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// More dimensions than any tensor of a transformer has.
const MAX_DIMS: usize = 8;

/// The dtypes of the format that no part of Muse-Glimmer uses, so that they are told from misspelt ones.
const OTHER_DTYPES: [&str; 17] = [
    "BOOL",
    "I8",
    "U16",
    "I16",
    "I32",
    "U64",
    "I64",
    "F64",
    "C64",
    "F4",
    "F6_E2M3",
    "F6_E3M2",
    "F8_E4M3",
    "F8_E5M2",
    "F8_E8M0",
    "F8_E4M3FNUZ",
    "F8_E5M2FNUZ",
];

/// A tensor as a safetensors file has it; of a quantized module, one part.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub extent: Extent,
}

/// The dtypes that are used; unsigned integers for the codes and scales of quantized modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dtype {
    Float(FloatType),
    U8,
    U32,
}

impl Dtype {
    fn size(self) -> usize {
        match self {
            Dtype::Float(float) => float.size(),
            Dtype::U8 => 1,
            Dtype::U32 => 4,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dtype::Float(FloatType::BF16) => "BF16",
            Dtype::Float(FloatType::F16) => "F16",
            Dtype::Float(FloatType::F32) => "F32",
            Dtype::U8 => "U8",
            Dtype::U32 => "U32",
        })
    }
}

/// The tensors of a file that is called `name`, sorted by name; every byte of the file belongs to one.
pub(crate) fn table(blob: &Blob, name: &str) -> Result<Vec<Entry>, Error> {
    let len = blob.len()?;
    let (header, data) = header(blob, len)?;
    let name: Arc<str> = name.into();
    let mut tensors = Vec::with_capacity(header.len());
    for (key, value) in &header {
        if key == "__metadata__" {
            metadata(blob.file(), value)?;
        } else {
            tensors.push(entry(blob.file(), &name, key, value, data..len)?);
        }
    }
    contiguous(blob.file(), &mut tensors, data..len)?;
    tensors.sort_by(|a, b| a.extent.name.cmp(&b.extent.name));
    Ok(tensors)
}

/// The header of a file of `len` bytes, and where the data begin.
fn header(blob: &Blob, len: u64) -> Result<(Map<String, Value>, u64), Error> {
    let malformed = |what: &str, expected: String, found: String| {
        Err(Error::Malformed { file: blob.file().into(), what: what.into(), expected, found })
    };
    if len < 8 {
        return malformed("header length", "8 bytes".into(), format!("a file of {len} bytes"));
    }
    let prefix = blob.read_at(0, 8)?;
    let size = prefix.first_chunk().map_or(0, |&bytes| u64::from_le_bytes(bytes));
    // Both bounds before anything of that size is allocated.
    if size > len - 8 {
        return malformed("header length", format!("at most the {} bytes left in the file", len - 8), size.to_string());
    }
    if size > json::MAX_BYTES {
        return malformed("header length", format!("at most {} bytes", json::MAX_BYTES), size.to_string());
    }
    let bytes = blob.read_at(8, size as usize)?;
    // The format wants the brace to come first, so that no other kind of file is taken for one.
    match bytes.first() {
        Some(b'{') => Ok((parse_object(blob.file(), "header", &bytes)?, 8 + size)),
        Some(byte) => malformed("header", "a JSON object".into(), format!("byte 0x{byte:02x} where it begins")),
        None => malformed("header", "a JSON object".into(), "0 bytes".into()),
    }
}

/// Nothing of it is used, but a tensor must not hide there.
fn metadata(file: &str, value: &Value) -> Result<(), Error> {
    let malformed = |what: String, expected: &str, found: &Value| {
        Err(Error::Malformed { file: file.into(), what, expected: expected.into(), found: shown(found) })
    };
    let Value::Object(map) = value else {
        return malformed("field `__metadata__`".into(), "an object of strings", value);
    };
    match map.iter().find(|(_, v)| !v.is_string()) {
        Some((key, other)) => malformed(format!("field `__metadata__.{}`", brief(key)), "a string", other),
        None => Ok(()),
    }
}

/// One tensor. `data` is where data lie in the file.
fn entry(file: &str, name: &Arc<str>, key: &str, value: &Value, data: Range<u64>) -> Result<Entry, Error> {
    let tensor = format!("tensor `{}`", brief(key));
    let malformed =
        |expected: String, found: String| Error::Malformed { file: file.into(), what: tensor.clone(), expected, found };
    let Value::Object(map) = value else {
        return Err(malformed("an object with dtype, shape and data_offsets".into(), shown(value)));
    };
    let fields = Fields::of(file, map, &tensor);
    if let Some((key, value)) = map.iter().find(|(k, _)| !matches!(k.as_str(), "dtype" | "shape" | "data_offsets")) {
        return Err(Error::Unknown {
            file: file.into(),
            what: fields.describe(key),
            expected: "only dtype, shape and data_offsets".into(),
            found: shown(value),
            more: 0,
        });
    }
    let dtype = dtype(&fields, &tensor)?;
    let shape = dimensions(&fields)?;
    let (begin, end) = offsets(&fields)?;

    let found = end - begin;
    let expected = shape
        .iter()
        .try_fold(dtype.size(), |n, &d| n.checked_mul(d))
        .ok_or_else(|| malformed("a size that fits this machine".into(), format!("shape {shape:?} of {dtype}")))?;
    if found != expected as u64 {
        let expected = format!("{expected} bytes for shape {shape:?} of {dtype}");
        return Err(malformed(expected, format!("{found} in data_offsets [{begin}, {end}]")));
    }
    let size = data.end - data.start;
    if end > size {
        let found = format!("{size} (is the file cut off?)");
        return Err(malformed(format!("at least {end} bytes of data in the file"), found));
    }
    // Both sums stay within the length of the file.
    let range = data.start + begin..data.start + end;
    Ok(Entry { dtype, shape, extent: Extent { name: key.into(), file: name.clone(), range } })
}

const EXPECTED: &str = "BF16, F16 or F32";

fn dtype(fields: &Fields<'_>, tensor: &str) -> Result<Dtype, Error> {
    match fields.opt_str("dtype")?.ok_or_else(|| fields.invalid("dtype", EXPECTED))? {
        "BF16" => Ok(Dtype::Float(FloatType::BF16)),
        "F16" => Ok(Dtype::Float(FloatType::F16)),
        "F32" => Ok(Dtype::Float(FloatType::F32)),
        "U8" => Ok(Dtype::U8),
        "U32" => Ok(Dtype::U32),
        other if OTHER_DTYPES.contains(&other) => Err(unused_dtype(fields.file(), tensor, other)),
        _ => Err(fields.invalid("dtype", EXPECTED)),
    }
}

/// The error for a dtype that belongs to no weight.
pub(crate) fn unused_dtype(file: &str, tensor: &str, dtype: &str) -> Error {
    let what = format!("{tensor}: {dtype} is not a dtype that Muse-Glimmer uses here; those are {EXPECTED}");
    Error::Unsupported { file: file.into(), what }
}

fn dimensions(fields: &Fields<'_>) -> Result<Vec<usize>, Error> {
    let invalid = || fields.invalid("shape", format!("a list of at most {MAX_DIMS} dimensions, integers"));
    let list =
        fields.get("shape").and_then(Value::as_array).filter(|list| list.len() <= MAX_DIMS).ok_or_else(invalid)?;
    let dimension = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok());
    list.iter().map(dimension).collect::<Option<_>>().ok_or_else(invalid)
}

fn offsets(fields: &Fields<'_>) -> Result<(u64, u64), Error> {
    let invalid = || fields.invalid("data_offsets", "[begin, end], two integers in ascending order");
    let list = fields.get("data_offsets").and_then(Value::as_array).ok_or_else(invalid)?;
    match list.iter().map(Value::as_u64).collect::<Vec<_>>()[..] {
        [Some(begin), Some(end)] if begin <= end => Ok((begin, end)),
        _ => Err(invalid()),
    }
}

/// The format allows no gaps and no overlaps: bytes that no tensor has are a sign of a wrong header.
fn contiguous(file: &str, tensors: &mut [Entry], data: Range<u64>) -> Result<(), Error> {
    let malformed = |what: String, expected: String, found: String| {
        Err(Error::Malformed { file: file.into(), what, expected, found })
    };
    tensors.sort_by_key(|t| (t.extent.range.start, t.extent.range.end));
    let (mut end, mut before) = (data.start, "the header");
    for Entry { extent: tensor, .. } in tensors.iter() {
        let begin = tensor.range.start;
        if begin != end {
            let fault = if begin < end { "they overlap" } else { "no tensor has the bytes between" };
            return malformed(
                format!("tensor `{}`", brief(&tensor.name)),
                format!("its data to begin at {}, where {} ends", end - data.start, brief(before)),
                format!("{} ({fault})", begin - data.start),
            );
        }
        (end, before) = (tensor.range.end, &tensor.name);
    }
    if end != data.end {
        return malformed(
            "data".into(),
            format!("{} bytes, where {} ends", end - data.start, brief(before)),
            format!("{}", data.end - data.start),
        );
    }
    Ok(())
}

//! The metadata: keys and values, as JSON values from here on.

use super::reader::Reader;
use crate::error::{Error, brief};
use serde_json::{Map, Number, Value};
use std::collections::BTreeMap;

/// Longest key that the format allows, and longest string that is kept.
const MAX_KEY: u64 = 65_535;
const MAX_TEXT: u64 = 1 << 20;
/// Bytes of keys and strings in all that are kept.
const MAX_KEPT: usize = 16 << 20;
/// Elements of arrays that are kept: those with an entry per layer. The vocabulary is not.
const MAX_ELEMENTS: u64 = 4096;
const MAX_ALL_ELEMENTS: u64 = 65_536;

/// An array that is not kept, and where its elements begin.
#[derive(Clone, Copy)]
pub(crate) struct Array {
    pub kind: u32,
    pub count: u64,
    pub at: u64,
}

impl Array {
    /// The kind of an array of strings.
    pub const TEXT: u32 = STRING;
}

/// Those that are not kept, by key.
pub(crate) type Arrays = BTreeMap<String, Array>;

/// Reads `count` pairs. An array that is not kept is an empty object, which no reader of a field takes for a value.
pub(super) fn read(reader: &mut Reader<'_>, count: u64) -> Result<(Map<String, Value>, Arrays), Error> {
    let (mut map, mut arrays) = (Map::new(), Arrays::new());
    let (mut kept, mut elements) = (0, 0);
    for i in 0..count {
        let key = reader.string(&format!("key {i} of the metadata"), MAX_KEY)?;
        let what = format!("field `{}`", brief(&key));
        let kind = reader.u32(&what)?;
        let value = match kind {
            ARRAY => match array(reader, &what, &mut elements)? {
                Ok(value) => value,
                Err(array) => {
                    arrays.insert(key.clone(), array);
                    Value::Object(Map::new())
                }
            },
            STRING => Value::String(reader.string(&what, MAX_TEXT)?),
            kind => scalar(reader, &what, kind)?,
        };
        kept += key.len() + value.as_str().map_or(0, str::len);
        if kept > MAX_KEPT {
            return Err(reader.malformed(
                "metadata",
                format!("at most {MAX_KEPT} bytes of keys and strings"),
                "more".into(),
            ));
        }
        if map.insert(key, value).is_some() {
            return Err(reader.malformed(&what, "the key once".into(), "it again".into()));
        }
    }
    Ok((map, arrays))
}

const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// The value, or where it lies if it is not kept.
fn array(reader: &mut Reader<'_>, what: &str, elements: &mut u64) -> Result<Result<Value, Array>, Error> {
    let (kind, count) = (reader.u32(what)?, reader.u64(what)?);
    let passed = Array { kind, count, at: reader.at() };
    let too_many = |reader: &Reader<'_>| {
        let left = reader.len() - reader.at();
        Err(reader.malformed(what, format!("elements within the {left} bytes left in the file"), count.to_string()))
    };
    if kind == STRING {
        // Eight bytes at least for each.
        if count > (reader.len() - reader.at()) / 8 {
            return too_many(reader);
        }
        for _ in 0..count {
            let len = reader.u64(what)?;
            reader.skip(len, what)?;
        }
        return Ok(Err(passed));
    }
    let size = size(kind).ok_or_else(|| unknown(reader, what, kind))?;
    if count > (reader.len() - reader.at()) / size {
        return too_many(reader);
    }
    if count > MAX_ELEMENTS || *elements + count > MAX_ALL_ELEMENTS {
        reader.skip(count * size, what)?;
        return Ok(Err(passed));
    }
    *elements += count;
    (0..count).map(|_| scalar(reader, what, kind)).collect::<Result<_, _>>().map(|list| Ok(Value::Array(list)))
}

/// Bytes of a value that is neither a string nor an array.
fn size(kind: u32) -> Option<u64> {
    Some(match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        _ => return None,
    })
}

/// One value that is neither a string nor an array.
pub(super) fn scalar(reader: &mut Reader<'_>, what: &str, kind: u32) -> Result<Value, Error> {
    let size = size(kind).ok_or_else(|| unknown(reader, what, kind))? as usize;
    let mut bytes = [0; 8];
    bytes[..size].copy_from_slice(reader.bytes(size, what)?);
    let unsigned = u64::from_le_bytes(bytes);
    // Moved to the top and back, the sign fills what is left.
    let shift = 64 - 8 * size as u32;
    let signed = (unsigned << shift).cast_signed() >> shift;
    let float = |value: f64| {
        let finite = Number::from_f64(value).map(Value::Number);
        finite.ok_or_else(|| reader.malformed(what, "a finite number".into(), value.to_string()))
    };
    match kind {
        0 | 2 | 4 | 10 => Ok(unsigned.into()),
        1 | 3 | 5 | 11 => Ok(signed.into()),
        6 => float(f32::from_bits(unsigned as u32).into()),
        12 => float(f64::from_bits(unsigned)),
        _ => match unsigned {
            0 | 1 => Ok(Value::Bool(unsigned == 1)),
            other => Err(reader.malformed(what, "true or false, as 1 or 0".into(), other.to_string())),
        },
    }
}

fn unknown(reader: &Reader<'_>, what: &str, kind: u32) -> Error {
    let expected = "a type of value from 0 to 12, in arrays none of 9".into();
    reader.malformed(what, expected, format!("type {kind}"))
}

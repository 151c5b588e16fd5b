//! `model.safetensors.index.json`: which shard a tensor is in.

use crate::error::{Error, brief};
use crate::fields::Fields;
use crate::json::{parse_object, shown};
use crate::source::{PLAIN_NAME, is_plain};
use serde_json::Value;
use std::collections::BTreeMap;

/// Shard by tensor name. Of the rest of the index, sums of sizes and parameters, nothing is used: they are wrong in
/// published checkpoints, and the shards say it themselves.
pub(crate) fn parse(file: &str, bytes: &[u8]) -> Result<BTreeMap<String, String>, Error> {
    let index = parse_object(file, "index", bytes)?;
    let index = Fields::new(file, &index);
    let expected = "an object of tensor names and file names";
    let map =
        index.get("weight_map").and_then(Value::as_object).ok_or_else(|| index.invalid("weight_map", expected))?;
    let entry = |(name, shard): (&String, &Value)| match shard {
        Value::String(shard) if is_plain(shard) => Ok((name.clone(), shard.clone())),
        other => Err(Error::Malformed {
            file: file.into(),
            what: format!("tensor `{}` of `weight_map`", brief(name)),
            expected: PLAIN_NAME.into(),
            found: shown(other),
        }),
    };
    map.iter().map(entry).collect()
}

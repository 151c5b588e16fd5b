//! The layout of a Hugging Face checkpoint: `config.json`, and weights in one file or in shards with an index.

use crate::error::{Error, brief};
use crate::json::{self, parse_object};
use crate::modules::Assembly;
use crate::quantization::Quantization;
use crate::safetensors::Entry;
use crate::source::{Blob, Source};
use crate::{Checkpoint, Fields, TensorInfo, index, names, safetensors};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Where weights are looked for, in this order, which is that of `transformers`.
pub(crate) const WEIGHTS: [&str; 2] = [SINGLE, INDEX];
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

const CONFIG: &str = "config.json";

pub(crate) fn open(source: Source) -> Result<Checkpoint, Error> {
    let config = config(&source)?;
    let config_file = source.describe(CONFIG);
    let canonical = naming(&Fields::new(&config_file, &config))?;
    let quantization = Quantization::parse(&config_file, &config, canonical)?;
    if let Some(blob) = source.open(SINGLE)? {
        let tensors = safetensors::table(&blob, SINGLE)?;
        let assembly = Assembly { source: &source, config_file: &config_file, quantization, canonical };
        let tensors = some(assembly.tensors(tensors)?, &source, SINGLE)?;
        return Ok(Checkpoint::new(source, CONFIG, config, SINGLE, tensors, [(SINGLE.to_string(), blob)].into()));
    }
    if let Some(bytes) = source.read(INDEX, json::MAX_BYTES)? {
        let index = index::parse(&source.describe(INDEX), &bytes)?;
        let (tensors, blobs) = shards(&source, &index)?;
        let assembly = Assembly { source: &source, config_file: &config_file, quantization, canonical };
        let tensors = some(assembly.tensors(tensors)?, &source, INDEX)?;
        return Ok(Checkpoint::new(source, CONFIG, config, INDEX, tensors, blobs));
    }
    Err(Error::Missing { file: source.to_string(), what: "weights".into(), expected: WEIGHTS.join(" or "), more: 0 })
}

fn some(tensors: Vec<TensorInfo>, source: &Source, table: &str) -> Result<Vec<TensorInfo>, Error> {
    if tensors.is_empty() {
        let (what, expected) = ("weights".into(), "at least one tensor".into());
        return Err(Error::Missing { file: source.describe(table), what, expected, more: 0 });
    }
    Ok(tensors)
}

/// How names become canonical ones.
fn naming(config: &Fields<'_>) -> Result<fn(&str) -> String, Error> {
    Ok(match config.opt_str("model_type")? {
        Some("muse_glimmer" | "muse_glimmer_text") => names::canonical,
        _ => names::drafter,
    })
}

fn config(source: &Source) -> Result<Map<String, Value>, Error> {
    let file = source.describe(CONFIG);
    let Some(bytes) = source.read(CONFIG, json::MAX_BYTES)? else {
        let expected = "the configuration of a Hugging Face checkpoint".into();
        return Err(Error::Missing { file: source.to_string(), what: CONFIG.into(), expected, more: 0 });
    };
    parse_object(&file, "config", &bytes)
}

/// Reads the table of every shard. Index and shards have to say the same, both ways.
fn shards(source: &Source, index: &BTreeMap<String, String>) -> Result<(Vec<Entry>, BTreeMap<String, Blob>), Error> {
    // All are opened before any is looked into: a shard that was not downloaded is what is wrong most often.
    let mut blobs = BTreeMap::new();
    let mut missing = Vec::new();
    for shard in index.values().collect::<BTreeSet<_>>() {
        match source.open(shard)? {
            Some(blob) => drop(blobs.insert(shard.clone(), blob)),
            None => missing.push(shard),
        }
    }
    if let Some(shard) = missing.first() {
        let (file, what) = (source.describe(INDEX), format!("shard `{}`", brief(shard)));
        let expected = "the file beside the index".into();
        return Err(Error::Missing { file, what, expected, more: missing.len() - 1 });
    }
    let mut tensors = Vec::new();
    for (shard, blob) in &blobs {
        let table = safetensors::table(blob, shard)?;
        table.iter().try_for_each(|entry| check_home(blob, shard, entry, index))?;
        tensors.extend(table);
    }
    // Every tensor is where the index has it, so that none is there twice; is every one of the index there?
    let found: BTreeSet<&str> = tensors.iter().map(|t| t.extent.name.as_str()).collect();
    let mut lost = index.iter().filter(|(name, _)| !found.contains(name.as_str()));
    match lost.next() {
        Some((name, shard)) => Err(Error::Missing {
            file: source.describe(shard),
            what: format!("tensor `{}`", brief(name)),
            expected: "it here, as the index says".into(),
            more: lost.count(),
        }),
        None => Ok((tensors, blobs)),
    }
}

/// Whether the index has `entry`, which is in `shard`, there as well.
fn check_home(blob: &Blob, shard: &str, entry: &Entry, index: &BTreeMap<String, String>) -> Result<(), Error> {
    let expected = match index.get(&entry.extent.name) {
        Some(named) if named == shard => return Ok(()),
        Some(named) => format!("it in {}, as the index says", brief(named)),
        None => "only tensors that the index has".into(),
    };
    let (file, what) = (blob.file().into(), format!("tensor `{}`", brief(&entry.extent.name)));
    Err(Error::Unknown { file, what, expected, found: "it here".into(), more: 0 })
}

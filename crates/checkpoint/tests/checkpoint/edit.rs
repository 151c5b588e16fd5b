//! The valid checkpoint, with one thing in it changed.

use super::HEAD;
use super::valid::*;
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

/// The valid checkpoint, with other bytes in the file of weights.
pub fn raw(dir: &Path, edit: impl FnOnce(&[u8]) -> Vec<u8>) {
    write_valid(dir);
    let path = dir.join("model.safetensors");
    let bytes = edit(&fs::read(&path).unwrap());
    fs::write(path, bytes).unwrap();
}

/// ... with another length of the header in it.
pub fn length(dir: &Path, length: u64) {
    raw(dir, |bytes| [&length.to_le_bytes(), &bytes[8..]].concat());
}

/// ... with another text of the header.
pub fn header_text(dir: &Path, edit: impl FnOnce(String) -> String) {
    let (header, data) = weights(specs());
    let before = serde_json::to_string(&header).unwrap();
    let after = edit(before.clone());
    assert_ne!(before, after);
    raw(dir, |_| raw_file(after.as_bytes(), &data));
}

/// ... with another header or other data.
pub fn weights_with(dir: &Path, edit: impl FnOnce(&mut Map<String, Value>, &mut Vec<u8>)) {
    let (mut header, mut data) = weights(specs());
    edit(&mut header, &mut data);
    raw(dir, |_| file(&header, &data));
}

/// ... with another `field` of the first tensor.
pub fn entry(dir: &Path, field: &str, value: Value) {
    weights_with(dir, |header, _| header[HEAD][field] = value);
}

/// ... without a `field` of the first tensor.
pub fn entry_without(dir: &Path, field: &str) {
    weights_with(dir, |header, _| drop(header[HEAD].as_object_mut().unwrap().shift_remove(field)));
}

/// ... with a tensor of 16384 bytes that begins elsewhere.
pub fn moved(dir: &Path, name: &str, begin: u64) {
    weights_with(dir, |header, _| header[name]["data_offsets"] = json!([begin, begin + 16384]));
}

/// ... with other tensors.
pub fn tensors(dir: &Path, edit: impl FnOnce(&mut Vec<(String, Vec<usize>)>)) {
    let mut tensors = specs();
    edit(&mut tensors);
    let (header, data) = weights(tensors);
    raw(dir, |_| file(&header, &data));
}

pub fn data_begin(file: &[u8]) -> usize {
    8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize
}

/// The sharded checkpoint, with another map in the index.
pub fn sharded(dir: &Path, edit: impl FnOnce(&mut Map<String, Value>)) {
    write_sharded(dir);
    let mut map = Map::new();
    for (shard, tensors) in shards() {
        map.extend(tensors.into_iter().map(|(name, _)| (name, json!(shard))));
    }
    edit(&mut map);
    write_index(dir, &json!({ "weight_map": map }));
}

/// ... with another file for the first tensor.
pub fn mapped(dir: &Path, shard: Value) {
    sharded(dir, |map| map[HEAD] = shard);
}

/// ... with another text of the index.
pub fn index_text(dir: &Path, text: &str) {
    write_sharded(dir);
    fs::write(dir.join("model.safetensors.index.json"), text).unwrap();
}

/// ... with something done to the second shard.
pub fn shard(dir: &Path, edit: impl FnOnce(&Path)) {
    write_sharded(dir);
    edit(&dir.join(SHARDS[1]));
}

/// ... with `more` tensors in the second shard.
pub fn second_shard(dir: &Path, more: Vec<(String, Vec<usize>)>) {
    shard(dir, |path| {
        let (header, data) = weights([shards()[1].1.clone(), more].concat());
        fs::write(path, file(&header, &data)).unwrap();
    });
}

/// The valid checkpoint, with another text of the config.
pub fn config_text(dir: &Path, edit: impl FnOnce(String) -> String) {
    let before = config().to_string();
    let after = edit(before.clone());
    assert_ne!(before, after);
    config_bytes(dir, after.as_bytes());
}

pub fn config_bytes(dir: &Path, bytes: &[u8]) {
    write_valid(dir);
    fs::write(dir.join("config.json"), bytes).unwrap();
}

pub fn config_text_len(dir: &Path, len: u64) {
    write_valid(dir);
    fs::File::create(dir.join("config.json")).unwrap().set_len(len).unwrap();
}

pub fn config_key(dir: &Path, key: &str, value: Value) {
    let mut config = config();
    config[key] = value;
    write_valid(dir);
    write_config(dir, &config);
}

/// The valid checkpoint, without the file `name`.
pub fn without(dir: &Path, name: &str) {
    write_valid(dir);
    fs::remove_file(dir.join(name)).unwrap();
}

/// ... with something else in place of the file `name`.
pub fn replaced(dir: &Path, name: &str, make: fn(&Path)) {
    without(dir, name);
    make(&dir.join(name));
}

pub fn directory(path: &Path) {
    let _ = fs::remove_file(path);
    fs::create_dir(path).unwrap();
}

#[cfg(unix)]
pub fn pipe(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[cfg(unix)]
pub fn link(to: &str, path: &Path) {
    std::os::unix::fs::symlink(to, path).unwrap();
}

pub fn gguf(dir: &Path) {
    without(dir, "model.safetensors");
    fs::write(dir.join("Muse-Glimmer-30B-Q4_K_M.gguf"), b"GGUF\x03\0\0\0").unwrap();
}

pub fn resize(path: &Path, by: i64) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len().checked_add_signed(by).unwrap()).unwrap();
}

/// A file that is long enough for its header, and takes no space.
pub fn header_of_101_mb(dir: &Path) {
    length(dir, 101_000_000);
    resize(&dir.join("model.safetensors"), 200_000_000);
}

pub fn deep(begin: &str) -> Vec<u8> {
    [begin.as_bytes(), &[b'['; 100_000]].concat()
}

/// An object, valid, in `len` + 1 bytes.
pub fn padded(len: usize) -> Vec<u8> {
    format!("{{{}}}", " ".repeat(len - 1)).into_bytes()
}

/// Almost 8 MiB of header that is one string of escapes.
pub fn escapes() -> Vec<u8> {
    format!("{{\"{}\":1}}", "\\u0001".repeat(1_390_000)).into_bytes()
}

/// Almost 8 MiB of what takes most memory when parsed: objects of one field.
pub fn wide() -> Vec<u8> {
    format!("{{\"a\":[{}0]}}", "{\"\":0},".repeat(1_190_000)).into_bytes()
}

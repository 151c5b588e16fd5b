//! What fuzzing kept is read or refused, never worse.

use crate::hostile;
use std::fs;
use std::path::Path;

fn replay(name: &str, target: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!files.is_empty(), "{name}: no files");
    files.iter().for_each(|file| target(&fs::read(file).unwrap()));
}

#[test]
fn the_corpus_of_gguf_files() {
    replay("gguf", hostile::gguf);
}

#[test]
fn the_corpus_of_directories() {
    replay("directory", hostile::directory);
}

//! What is done with any bytes whatever: they are opened, and read if that went well. The fuzz targets in `fuzz/` do this with theirs,
//! and a test with the corpus that is kept there.

#![allow(dead_code)] // Each target does one of these.

use glimmer_checkpoint::{Checkpoint, Error, open};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// As a GGUF file.
pub fn gguf(bytes: &[u8]) {
    let dir = directory_in_memory();
    let path = dir.path().join("x.gguf");
    fs::write(&path, bytes).unwrap();
    look(open(&path));
}

/// As a directory: `config.json`, a byte of zero, and `model.safetensors`.
pub fn directory(bytes: &[u8]) {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let dir = directory_in_memory();
    fs::write(dir.path().join("config.json"), &bytes[..end]).unwrap();
    fs::write(dir.path().join("model.safetensors"), bytes.get(end + 1..).unwrap_or_default()).unwrap();
    look(open(dir.path()));
}

fn look(opened: Result<Checkpoint, Error>) {
    let checkpoint = match opened {
        Ok(checkpoint) => checkpoint,
        Err(error) => return one_line(&error),
    };
    for info in checkpoint.tensors() {
        match checkpoint.read(&info.name) {
            Ok(tensor) => assert_eq!(tensor.view().to_f32().len(), info.shape.iter().product::<usize>()),
            Err(error) => one_line(&error),
        }
    }
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"] {
        if let Err(error) = checkpoint.file(name) {
            one_line(&error);
        }
    }
}

fn one_line(error: &Error) {
    let line = error.to_string();
    assert!(!line.contains(char::is_control) && line.chars().count() < 1000, "{line:?}");
}

fn directory_in_memory() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() }.unwrap()
}

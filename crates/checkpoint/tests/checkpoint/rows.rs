//! Matrices that are read piece by piece are those that are read whole.

use crate::corpus::{write_sharded, write_valid};
use crate::gguf_writer::target;
use glimmer_checkpoint::{Checkpoint, Error, open};
use glimmer_encoding::{Encoding, FloatType, GgmlType, RowSource, Scratch, WeightView};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

fn bytes(view: &WeightView<'_>) -> [Vec<u8>; 3] {
    let parts = view.parts();
    [parts.codes, parts.scales, parts.biases].map(<[u8]>::to_vec)
}

/// Every matrix in pieces of several sizes, against the whole of it.
fn same(checkpoint: &Checkpoint, mapped: bool) {
    let read = AtomicU64::new(0);
    let watch = |bytes| {
        read.fetch_add(bytes, Ordering::Relaxed);
    };
    let at = checkpoint.at("").watched(&watch);
    let mut scratch = Scratch::default();
    let mut matrices = 0;
    for info in checkpoint.tensors() {
        let [rows, cols] = info.shape[..] else { continue };
        matrices += 1;
        let whole = checkpoint.read(&info.name).unwrap();
        let source = at.rows(&info.name, [rows, cols]).unwrap();
        assert_eq!((source.encoding(), source.shape()), (info.encoding, [rows, cols]));
        for step in [1, 7, 16, rows] {
            read.store(0, Ordering::Relaxed);
            let mut all = [const { Vec::new() }; 3];
            for start in (0..rows).step_by(step) {
                let view = source.read(start..rows.min(start + step), &mut scratch).unwrap();
                assert_eq!((view.shape(), view.encoding()), (&[step.min(rows - start), cols][..], info.encoding));
                assert_eq!(view.parts().global_scale, whole.parts().global_scale);
                all.iter_mut().zip(bytes(&view)).for_each(|(all, part)| all.extend(part));
            }
            assert!(all == bytes(&whole.view()), "{} in steps of {step}", info.name);
            let global = info.global_scale.as_ref().map_or(0, |scale| scale.byte_len());
            assert_eq!(read.load(Ordering::Relaxed), (info.byte_len() - global) as u64, "{}", info.name);
        }
        assert_eq!(source.mapped().is_some(), mapped);
        if let Some(source) = source.mapped() {
            assert!(bytes(&source.rows(0..rows, &mut scratch)) == bytes(&whole.view()), "{}", info.name);
        }
        assert!(at.rows(&info.name, [rows, cols + 1]).is_err());
    }
    assert!(matrices > 0, "{}", checkpoint.label());
    assert!(matches!(at.rows("nothing", [1, 1]), Err(Error::Missing { .. })));
}

#[test]
fn pieces_are_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, encoding| {
        let path = dir.path().join(name);
        let original = open(&fixture("fixtures/muse-tiny-bf16")).unwrap();
        fs::write(&path, target(&original, |_, _| encoding).bytes()).unwrap();
        path
    };
    let sharded = dir.path().join("sharded");
    fs::create_dir(&sharded).unwrap();
    write_sharded(&sharded);
    for path in [
        fixture("fixtures/muse-tiny-f32"),
        fixture("fixtures/muse-tiny-mlx-lm-mixed"),
        fixture("fixtures/muse-tiny-mlx-vlm-4bit"),
        // Here the rows of queries and keys lie in another order.
        write("bf16.gguf", Encoding::Dense(FloatType::BF16)),
        write("q8_0.gguf", Encoding::Ggml(GgmlType::Q8_0)),
        sharded,
    ] {
        let mut checkpoint = open(&path).unwrap();
        same(&checkpoint, false);
        checkpoint.forget_what_is_read();
        same(&checkpoint, false);
        checkpoint.map().unwrap();
        same(&checkpoint, true);
    }
}

#[test]
fn what_is_in_the_binary_is_not_mapped() {
    let dir = tempfile::tempdir().unwrap();
    write_valid(dir.path());
    let read = |name| -> (&'static str, &'static [u8]) { (name, fs::read(dir.path().join(name)).unwrap().leak()) };
    let mut checkpoint = Checkpoint::embedded("nano", &[read("config.json"), read("model.safetensors")]).unwrap();
    same(&checkpoint, false);
    let error = checkpoint.map().unwrap_err().to_string();
    assert_eq!(error, "nano: it is part of this program: there is no file to map");
}

#[test]
fn a_file_that_is_cut_meanwhile_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    write_valid(dir.path());
    let mut checkpoint = open(dir.path()).unwrap();
    let name = "model.language_model.embed_tokens.weight";
    let info = checkpoint.tensor(name).unwrap();
    let (shape, start) = ([info.shape[0], info.shape[1]], info.codes.range.start);
    let row = info.byte_len() / shape[0];
    let file = fs::File::options().write(true).open(dir.path().join("model.safetensors")).unwrap();
    {
        let at = checkpoint.at("");
        let rows = at.rows(name, shape).unwrap();
        file.set_len(start + 20 * row as u64).unwrap();
        let mut scratch = Scratch::default();
        assert!(rows.read(4..20, &mut scratch).is_ok());
        let error = rows.read(4..21, &mut scratch).unwrap_err().to_string();
        let expected = format!("model.safetensors: file size: expected {} bytes at byte ", 17 * row);
        assert!(error.contains(&expected) && error.ends_with("found the end of the file"), "{error}");
    }
    checkpoint.map().unwrap();
    let error = checkpoint.at("").rows(name, shape).err().unwrap().to_string();
    assert!(error.contains("model.safetensors: file size: expected "), "{error}");
}

//! What is right is read as it is.

use crate::corpus::{SHARDS, specs, write_config, write_sharded, write_valid};
use glimmer_checkpoint::{Checkpoint, Error, open};
use glimmer_encoding::{Encoding, FloatType, RowSource, Scratch};
use safetensors::{Dtype, SafeTensors};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn same_as_oracle(checkpoint: &Checkpoint, bytes: &[u8]) {
    let oracle = SafeTensors::deserialize(bytes).unwrap();
    let mut names = oracle.names();
    names.sort();
    assert_eq!(names, checkpoint.tensors().iter().map(|t| t.name.as_str()).collect::<Vec<_>>());
    for name in names {
        let (expected, found) = (oracle.tensor(name).unwrap(), checkpoint.read(name).unwrap());
        let encoding = match expected.dtype() {
            Dtype::BF16 => FloatType::BF16,
            Dtype::F16 => FloatType::F16,
            Dtype::F32 => FloatType::F32,
            other => panic!("{other:?}"),
        };
        assert_eq!(found.info().encoding, Encoding::Dense(encoding), "{name}");
        assert_eq!(found.info().shape, expected.shape(), "{name}");
        assert!(found.parts().codes == expected.data(), "{name}");
        assert!(found.view().parts().codes == expected.data() && found.view().shape() == expected.shape(), "{name}");
        assert_eq!(checkpoint.tensor(name), Some(found.info()));
    }
}

#[test]
fn fixtures_read_as_the_safetensors_crate_reads_them() {
    for (path, model_type) in [
        ("fixtures/muse-tiny-bf16", "muse_glimmer"),
        ("fixtures/muse-tiny-f32", "muse_glimmer"),
        ("fixtures/muse-tiny-assistant", "muse_glimmer_assistant"),
        ("nano/target", "muse_glimmer"),
        ("nano/assistant", "muse_glimmer_assistant"),
        ("nano/dflash2", "qwen3"),
    ] {
        let path = root().join(path);
        let checkpoint = open(&path).unwrap();
        assert_eq!(checkpoint.label(), path.to_str().unwrap());
        assert_eq!(checkpoint.config()["model_type"], model_type);
        assert_eq!(checkpoint.fields().opt_str("model_type").unwrap(), Some(model_type));
        same_as_oracle(&checkpoint, &fs::read(path.join("model.safetensors")).unwrap());
    }
}

#[test]
fn side_files_are_there_or_not() {
    let path = root().join("nano/target");
    let checkpoint = open(&path).unwrap();
    assert_eq!(checkpoint.file("tokenizer.json").unwrap(), Some(fs::read(path.join("tokenizer.json")).unwrap()));
    assert!(checkpoint.json("generation_config.json").unwrap().unwrap().contains_key("eos_token_id"));
    assert_eq!(checkpoint.file("nothing").unwrap(), None);
    assert_eq!(checkpoint.json("nothing").unwrap(), None);
}

#[test]
fn shards_read_as_one_file_does() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_valid(one.path());
    write_sharded(two.path());
    let (single, sharded) = (open(one.path()).unwrap(), open(two.path()).unwrap());
    same_as_oracle(&single, &fs::read(one.path().join("model.safetensors")).unwrap());
    assert_eq!(single.tensors().len(), specs().len());
    assert!(single.tensors().iter().all(|t| &*t.codes.file == "model.safetensors"));
    let names = |c: &Checkpoint| c.tensors().iter().map(|t| (t.name.clone(), t.shape.clone())).collect::<Vec<_>>();
    assert_eq!(names(&single), names(&sharded));
    for shard in SHARDS {
        let bytes = fs::read(two.path().join(shard)).unwrap();
        let oracle = SafeTensors::deserialize(&bytes).unwrap();
        for (name, expected) in oracle.iter() {
            assert_eq!(&*sharded.tensor(name).unwrap().codes.file, shard);
            assert!(sharded.read(name).unwrap().parts().codes == expected.data(), "{name}");
        }
    }
}

#[test]
fn a_single_file_goes_before_an_index() {
    let dir = tempfile::tempdir().unwrap();
    write_sharded(dir.path());
    write_valid(dir.path());
    fs::write(dir.path().join("model.safetensors.index.json"), "not read").unwrap();
    assert!(open(dir.path()).unwrap().tensors().iter().all(|t| &*t.codes.file == "model.safetensors"));
}

/// The cache of the Hugging Face hub is made of links.
#[cfg(unix)]
#[test]
fn links_are_followed() {
    let (blobs, snapshot) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_sharded(blobs.path());
    for entry in fs::read_dir(blobs.path()).unwrap() {
        let entry = entry.unwrap();
        std::os::unix::fs::symlink(entry.path(), snapshot.path().join(entry.file_name())).unwrap();
    }
    assert_eq!(open(snapshot.path()).unwrap().tensors().len(), specs().len());
}

#[test]
fn embedded_bytes_are_borrowed() {
    let dir = tempfile::tempdir().unwrap();
    write_valid(dir.path());
    let bytes: &'static [u8] = fs::read(dir.path().join("model.safetensors")).unwrap().leak();
    let files: [(&'static str, &'static [u8]); 3] =
        [("model.safetensors", bytes), ("config.json", b"{\"a\":null}"), ("x.txt", b"text")];
    let checkpoint = Checkpoint::embedded("nano", &files).unwrap();
    assert_eq!(checkpoint.label(), "nano");
    assert_eq!(checkpoint.file("x.txt").unwrap().unwrap(), b"text");
    assert_eq!(checkpoint.file("y.txt").unwrap(), None);
    same_as_oracle(&checkpoint, bytes);
    let tensor = checkpoint.read("lm_head.weight").unwrap();
    assert!(bytes.as_ptr_range().contains(&tensor.parts().codes.as_ptr()));
}

#[test]
fn a_cursor_joins_names_and_checks_shapes() {
    let dir = tempfile::tempdir().unwrap();
    write_valid(dir.path());
    let checkpoint = open(dir.path()).unwrap();
    let layer = checkpoint.at("model.language_model").at("layers").at(3);
    assert_eq!(layer.path(), "model.language_model.layers.3");
    let q_proj = layer.at("self_attn").at("q_proj");
    let tensor = q_proj.read("weight", &[32, 32]).unwrap();
    assert_eq!(tensor.info().name, "model.language_model.layers.3.self_attn.q_proj.weight");
    assert_eq!(checkpoint.at("").read("lm_head.weight", &[256, 32]).unwrap().view().rows(), 256);
    assert_eq!(checkpoint.at("lm_head").at("").at("weight").read("", &[256, 32]).unwrap().view().cols(), 32);

    let error = q_proj.read("weight", &[32, 64]).unwrap_err().to_string();
    let tail = "model.safetensors: tensor `model.language_model.layers.3.self_attn.q_proj.weight`: expected shape [32, 64], found [32, 32]";
    assert!(error.ends_with(tail), "{error}");
    let error = q_proj.read("bias", &[32]).unwrap_err();
    assert!(matches!(error, Error::Missing { .. }), "{error}");
    assert!(error.to_string().ends_with("q_proj.bias`: expected shape [32], found none"), "{error}");
    assert!(matches!(checkpoint.read("nothing"), Err(Error::Missing { .. })));
}

#[test]
fn a_file_that_is_cut_after_opening_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    write_valid(dir.path());
    let checkpoint = open(dir.path()).unwrap();
    fs::File::options().write(true).open(dir.path().join("model.safetensors")).unwrap().set_len(20_000).unwrap();
    let error = checkpoint.read("model.language_model.embed_tokens.weight").unwrap_err().to_string();
    assert!(error.contains("model.safetensors: file size: expected 16384 bytes at byte "), "{error}");
}

#[test]
fn an_absent_quantization_is_none() {
    let dir = tempfile::tempdir().unwrap();
    write_valid(dir.path());
    write_config(dir.path(), &json!({"quantization_config": null}));
    open(dir.path()).unwrap();
}

#[test]
fn threads_read_at_once() {
    let path = root().join("fixtures/muse-tiny-bf16");
    let (checkpoint, bytes) = (open(&path).unwrap(), fs::read(path.join("model.safetensors")).unwrap());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| same_as_oracle(&checkpoint, &bytes));
        }
    });
}

/// Elements of each encoding; names as Hugging Face has them.
#[test]
fn mlx_checkpoints_read_under_canonical_names() {
    let affine = |bits, group| Encoding::Affine { bits, group, scale: FloatType::BF16 };
    let bf16 = Encoding::Dense(FloatType::BF16);
    let checkpoint = open(&root().join("fixtures/muse-tiny-mlx-lm-mixed")).unwrap();
    assert_eq!(checkpoint.tensors().len(), 3 + 8 * 12);
    let layer = |i: usize, name: &str| format!("model.language_model.layers.{i}.{name}.weight");
    for (name, encoding, shape) in [
        ("lm_head.weight".to_string(), affine(6, 64), [512, 64]),
        ("model.language_model.embed_tokens.weight".to_string(), affine(8, 32), [512, 64]),
        (layer(0, "self_attn.q_proj"), affine(3, 64), [128, 64]),
        (layer(1, "mlp.down_proj"), affine(5, 32), [64, 96]),
        (layer(2, "self_attn.o_proj"), affine(2, 128), [64, 128]),
        (layer(3, "self_attn.gate_proj"), Encoding::MxFp4, [128, 64]),
        (layer(4, "mlp.up_proj"), bf16, [96, 64]),
        (layer(5, "self_attn.v_proj"), Encoding::NvFp4, [32, 64]),
        (layer(6, "self_attn.k_proj"), Encoding::MxFp8, [32, 64]),
        (layer(7, "mlp.up_proj"), affine(4, 32), [96, 64]),
    ] {
        let info = checkpoint.tensor(&name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!((info.encoding, info.shape.as_slice()), (encoding, &shape[..]), "{name}");
        let tensor = checkpoint.read(&name).unwrap();
        assert_eq!(Some(tensor.parts().sizes()), encoding.tensor_sizes(&shape));
        assert_eq!(info.byte_len(), tensor.parts().sizes().total());
        assert!(tensor.view().to_f32().iter().all(|w| w.is_finite() && w.abs() < 100.0), "{name}");
    }
    let checkpoint = open(&root().join("fixtures/muse-tiny-mlx-vlm-4bit")).unwrap();
    assert_eq!(checkpoint.tensor("lm_head.weight").unwrap().codes.name, "language_model.lm_head.weight");
    assert_eq!(checkpoint.tensor(&layer(0, "mlp.up_proj")).unwrap().encoding, affine(4, 64));
    assert_eq!(checkpoint.tensor(&layer(0, "mlp.down_proj")).unwrap().encoding, bf16);
    assert_eq!(checkpoint.tensor("model.vision_projection.weight").unwrap().encoding, bf16);
    // Near what it was made from.
    let original = open(&root().join("fixtures/muse-tiny-bf16")).unwrap();
    assert_eq!(original.tensors().len(), checkpoint.tensors().len());
    for info in original.tensors() {
        let (before, after) = (original.read(&info.name).unwrap(), checkpoint.read(&info.name).unwrap());
        let pairs = before.view().to_f32().into_iter().zip(after.view().to_f32());
        let (error, all) =
            pairs.fold((0f64, 0f64), |(e, a), (x, y)| (e + f64::from(x - y).powi(2), a + f64::from(x).powi(2)));
        assert!(error <= all * 0.02, "{}: {}", info.name, error / all);
    }
}

/// A drafter's names are left alone, and a global scale is one more part.
#[test]
fn quantized_drafters_and_global_scales() {
    let dir = tempfile::tempdir().unwrap();
    let config = json!({"model_type": "muse_glimmer_assistant", "quantization": {"mode": "nvfp4"}});
    write_config(dir.path(), &config);
    let header = json!({
        "norm.weight": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
        "model.norm.weight": {"dtype": "BF16", "shape": [2], "data_offsets": [4, 8]},
        "fc.weight": {"dtype": "U32", "shape": [1, 2], "data_offsets": [8, 16]},
        "fc.scales": {"dtype": "U8", "shape": [1, 1], "data_offsets": [16, 17]},
        "fc.global_scale": {"dtype": "F32", "shape": [], "data_offsets": [17, 21]},
    });
    // Codes 1, which are 0.5; a scale of 1; and a largest magnitude that makes the global scale 2.
    let data = [&[0u8; 8][..], &[0x11; 8], &[0x38], &(2.0 * 6.0 * 448f32).to_le_bytes()].concat();
    let file = crate::corpus::file(header.as_object().unwrap(), &data);
    fs::write(dir.path().join("model.safetensors"), file).unwrap();
    let checkpoint = open(dir.path()).unwrap();
    let names: Vec<&str> = checkpoint.tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["fc.weight", "model.norm.weight", "norm.weight"]);
    let fc = checkpoint.read("fc.weight").unwrap();
    assert_eq!((fc.parts().global_scale, fc.view().to_f32()), (Some(2.0), vec![1.0; 16]));
    let (rows, mut scratch) = (checkpoint.at("fc").rows("weight", [1, 16]).unwrap(), Scratch::default());
    assert_eq!(rows.read(0..1, &mut scratch).unwrap().to_f32(), vec![1.0; 16]);
    assert_eq!(checkpoint.tensor("fc.weight").unwrap().byte_len(), 8 + 1 + 4);
}

#[test]
fn a_fingerprint_tells_checkpoints_apart() {
    let nano = |part: &str| open(&root().join("nano").join(part)).unwrap();
    let print = nano("target").fingerprint().unwrap();
    assert_eq!(print, nano("target").fingerprint().unwrap());
    assert!(print.data && print.sha256.len() == 64 && print.bytes > 8_000_000, "{print:?}");
    assert_ne!(print.sha256, nano("assistant").fingerprint().unwrap().sha256);
}

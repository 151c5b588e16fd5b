//! The vision tower in a GGUF file of its own.

use crate::gguf_writer::{Gguf, Meta, collapsed, projector};
use glimmer_checkpoint::{Checkpoint, Error, open};
use glimmer_encoding::{Encoding, FloatType};
use std::path::Path;

const F32: Encoding = Encoding::Dense(FloatType::F32);
const PATCHES: &str = "model.vision_tower.patch_embedder.patch_embedding.weight";

fn original() -> Checkpoint {
    open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/muse-tiny-bf16")).unwrap()
}

fn written() -> Gguf {
    projector(&original(), |_, _| F32)
}

fn opened(file: &Gguf) -> Result<Checkpoint, Error> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("any name.gguf");
    std::fs::write(&path, file.bytes()).unwrap();
    open(&path)
}

#[test]
fn tensors_are_those_of_the_original_again() {
    let (original, read) = (original(), opened(&written()).unwrap());
    let vision: Vec<_> = original.tensors().iter().filter(|t| t.name.contains("vision")).collect();
    assert_eq!(vision.len(), read.tensors().len());
    let mut rotated = 0;
    for info in vision {
        let (before, after) = (original.read(&info.name).unwrap(), read.read(&info.name).unwrap());
        let (mut values, mut shape) = (before.view().to_f32(), info.shape.clone());
        if info.name == PATCHES {
            values = collapsed(&values, 1176);
            shape = vec![48, 3, 14, 14];
        }
        assert!(after.info().shape == shape && after.view().to_f32() == values, "{}", info.name);
        rotated += usize::from(info.name.contains("q_proj") || info.name.contains("k_proj"));
    }
    assert_eq!(rotated, 32, "weights and biases of eight layers");
}

#[test]
fn settings_are_those_of_the_original() {
    let read = opened(&written()).unwrap();
    let fields = read.fields();
    let vision = fields.object("vision_config").unwrap().unwrap();
    for (key, value) in [
        ("hidden_size", 48),
        ("intermediate_size", 80),
        ("num_hidden_layers", 8),
        ("num_attention_heads", 4),
        ("patch_size", 14),
        ("merge_size", 2),
        ("pos_emb_height", 4),
        ("pos_emb_width", 4),
    ] {
        assert_eq!(vision.opt_usize(key, 0..=usize::MAX).unwrap(), Some(value), "{key}");
    }
    assert_eq!(fields.opt_usize("projector_hidden_size", 0..=usize::MAX).unwrap(), Some(72));
    assert_eq!(fields.opt_str("model_type").unwrap(), Some("muse_glimmer_vision"));
}

#[test]
fn what_is_another_tower_or_a_wrong_one_is_named() {
    type Change = fn(&mut Gguf);
    let cases: [(Change, &[&str]); 8] = [
        (
            |f| f.set("clip.projector_type", Meta::Text("qwen2vl_merger".into())),
            &["`clip.projector_type`", "muse-glimmer"],
        ),
        (|f| f.unset("clip.projector_type"), &["`clip.projector_type`", "muse-glimmer"]),
        (|f| f.set("clip.vision.image_size", Meta::U32(113)), &["`clip.vision.image_size`", "a multiple of 28"]),
        (|f| f.set("clip.vision.patch_size", Meta::U32(0)), &["`clip.vision.patch_size`"]),
        (|f| f.set("clip.vision.attention.head_count", Meta::U32(7)), &["`clip.vision.attention.head_count`", "48"]),
        (|f| f.set("clip.vision.attention.head_count", Meta::U32(48)), &["`clip.vision.attention.head_count`"]),
        (|f| f.set("clip.vision.embedding_length", Meta::U32(u32::MAX)), &["`clip.vision.embedding_length`"]),
        (
            |f| {
                let entry = f.entry("v.blk.0.attn_q.weight");
                (entry.dims[1], entry.dims[0]) = (entry.dims[1] / 2 + 1, entry.dims[0]);
                entry.data.truncate((entry.dims[0] * entry.dims[1]) as usize * 4);
            },
            &["`v.blk.0.attn_q.weight`", "whole heads of 12"],
        ),
    ];
    for (change, parts) in cases {
        let mut file = written();
        change(&mut file);
        let error = opened(&file).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)) && error.lines().count() == 1, "{error}");
    }
}

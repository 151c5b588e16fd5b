//! GGUF files: read as the checkpoint that they were made from, or refused by name.

use crate::gguf_writer::{Entry, Gguf, Meta, drafter, target};
use glimmer_checkpoint::{Checkpoint, Error, open};
use glimmer_encoding::{Encoding, FloatType, GgmlType, encode_rows};
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> Checkpoint {
    open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)).unwrap()
}

pub fn open_bytes(bytes: &[u8]) -> Result<Checkpoint, Error> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    fs::write(&path, bytes).unwrap();
    open(&path)
}

const BF16: Encoding = Encoding::Dense(FloatType::BF16);
const Q8_0: Encoding = Encoding::Ggml(GgmlType::Q8_0);
const Q4_0: Encoding = Encoding::Ggml(GgmlType::Q4_0);

#[test]
fn tensors_are_those_of_the_original_again() {
    for name in ["muse-tiny-bf16", "muse-tiny-f32", "muse-tiny-assistant", "muse-tiny-dflash2"] {
        let original = fixture(name);
        for encoding in [BF16, Encoding::Dense(FloatType::F32), Encoding::Dense(FloatType::F16), Q8_0, Q4_0] {
            // Rows that are no whole blocks stay bf16.
            let of = |name: &str, cols: usize| match cols.is_multiple_of(32) {
                true if name.contains("ffn_up") => Q8_0,
                true => encoding,
                false => BF16,
            };
            let written = match name {
                "muse-tiny-assistant" | "muse-tiny-dflash2" => drafter(&original, of),
                _ => target(&original, of),
            };
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("x.gguf");
            fs::write(&path, written.bytes()).unwrap();
            let read = open(&path).unwrap();
            assert_eq!(read.label(), path.to_str().unwrap());
            let text: Vec<_> = original.tensors().iter().filter(|t| !t.name.contains("vision")).collect();
            assert_eq!(read.tensors().len(), text.len(), "{name}");
            for info in text {
                let (before, after) = (original.read(&info.name).unwrap(), read.read(&info.name).unwrap());
                assert_eq!(before.info().shape, after.info().shape);
                let values = before.view().to_f32();
                if info.shape.len() != 2 {
                    // Of a centred norm 1 + w is what is used, and that is kept to the bit; w is, if 1 + w has room for it.
                    let used = |w: f32| if info.name.contains("language_model.layers") { 1.0 + w } else { w };
                    let same = |(a, b): (&f32, &f32)| used(*a).to_bits() == used(*b).to_bits();
                    assert!(values.iter().zip(&after.view().to_f32()).all(same), "{}", info.name);
                    continue;
                }
                let expected = encode_rows(after.info().encoding, &values, info.shape[0], info.shape[1]).unwrap();
                assert!(after.parts() == expected.parts(), "{name} {} {}", info.name, after.info().encoding);
            }
        }
    }
}

#[test]
fn configs_are_those_of_the_original_again() {
    let (original, read) = (fixture("muse-tiny-bf16"), open_bytes(&valid().bytes()).unwrap());
    let text = original.config()["text_config"].as_object().unwrap();
    for key in [
        "model_type",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "sliding_window",
        "layer_types",
        "bos_token_id",
        "rope_parameters",
        "output_multiplier",
        "final_logit_softcapping",
    ] {
        assert_eq!(read.config()[key], text[key], "{key}");
    }
    let float = |key: &str| read.fields().opt_f32(key, 0.0..=100.0).unwrap();
    assert_eq!((float("qk_scale_factor"), float("rms_norm_eps")), (Some(3.87), Some(1e-5)));
    assert_eq!(read.fields().opt_u32_list("eos_token_id", 9).unwrap(), Some(vec![481]));
    assert_eq!((read.file("tokenizer.json").unwrap(), read.json("generation_config.json").unwrap()), (None, None));

    let mut period = valid();
    period.set("muse-glimmer.attention.sliding_window_pattern", Meta::U32(4));
    assert_eq!(open_bytes(&period.bytes()).unwrap().config()["layer_types"], text["layer_types"]);
    let mut silent = valid();
    silent.unset("muse-glimmer.attention.sliding_window_pattern");
    silent.unset("muse-glimmer.vocab_size");
    let silent = open_bytes(&silent.bytes()).unwrap();
    assert!(!silent.config().contains_key("layer_types") && silent.config()["vocab_size"] == 512);

    let original = fixture("muse-tiny-assistant");
    let read = open_bytes(&drafter(&original, |_, _| BF16).bytes()).unwrap();
    for key in [
        "architectures",
        "model_type",
        "block_size",
        "mask_token_id",
        "target_layer_ids",
        "layer_types",
        "sliding_window",
    ] {
        assert_eq!(read.config()[key], original.config()[key], "{key}");
    }

    let original = fixture("muse-tiny-dflash2");
    let read = open_bytes(&drafter(&original, |_, _| BF16).bytes()).unwrap();
    for key in ["architectures", "model_type", "vocab_size", "layer_types", "sliding_window", "rope_parameters"] {
        assert_eq!(read.config()[key], original.config()[key], "{key}");
    }
    for (key, value) in original.config()["dflash_config"].as_object().unwrap() {
        assert_eq!(read.config()[key], *value, "{key}");
    }
}

#[test]
fn another_alignment_is_kept_to() {
    let mut aligned = valid();
    aligned.alignment = 256;
    aligned.set("general.alignment", Meta::U32(256));
    let (one, two) = (open_bytes(&valid().bytes()).unwrap(), open_bytes(&aligned.bytes()).unwrap());
    assert!(two.tensors().iter().all(|t| t.codes.range.start % 256 == 0));
    assert_eq!(one.tensors().len(), two.tensors().len());
}

#[test]
fn version_2_is_read_as_version_3() {
    let (three, two) = (valid(), Gguf { version: 2, ..valid() });
    let [three, two] = [three, two].map(|file| open_bytes(&file.bytes()).unwrap());
    assert_eq!(three.tensors().len(), two.tensors().len());
    assert_eq!(three.config(), two.config());
}

/// The file's tensors in `count` parts, the first of which has the metadata.
fn split(whole: &Gguf, count: usize) -> Vec<Gguf> {
    let each = whole.tensors.len().div_ceil(count - 1);
    (0..count)
        .map(|number| {
            let mut part = if number == 0 { whole.clone() } else { Gguf { metadata: vec![], ..whole.clone() } };
            // The first may have no tensors at all.
            part.tensors = match number {
                0 => vec![],
                _ => whole.tensors.iter().skip((number - 1) * each).take(each).cloned().collect(),
            };
            part.set("split.no", Meta::U32(number as u32));
            part.set("split.count", Meta::U32(count as u32));
            part.set("split.tensors.count", Meta::U32(whole.tensors.len() as u32));
            part
        })
        .collect()
}

/// Writes the parts under their names, and gives those.
fn write_parts(dir: &Path, parts: &[Gguf]) -> Vec<PathBuf> {
    let name = |number: usize| dir.join(format!("m-{:05}-of-{:05}.gguf", number + 1, parts.len()));
    let write = |(number, part): (usize, &Gguf)| {
        fs::write(name(number), part.bytes()).unwrap();
        name(number)
    };
    parts.iter().enumerate().map(write).collect()
}

#[test]
fn parts_are_one_checkpoint_whichever_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let whole = open_bytes(&valid().bytes()).unwrap();
    let parts = write_parts(dir.path(), &split(&valid(), 4));
    for path in &parts {
        let read = open(path).unwrap();
        assert_eq!((read.config(), read.label()), (whole.config(), path.to_str().unwrap()));
        assert_eq!(read.tensors().len(), whole.tensors().len());
        for info in whole.tensors() {
            assert!(read.read(&info.name).unwrap().parts() == whole.read(&info.name).unwrap().parts(), "{}", info.name);
        }
    }
}

#[test]
fn parts_that_do_not_belong_together_are_refused_by_name() {
    type Damage = fn(&mut Vec<Gguf>);
    let faults: [(Damage, &[&str]); 5] = [
        (|parts| parts[2].set("split.no", Meta::U32(1)), &["m-00003-of-00004.gguf: field `split.no`: expected 2"]),
        (
            |parts| parts[3].set("split.count", Meta::U32(5)),
            &["m-00004-of-00004.gguf: field `split.count`: expected 4"],
        ),
        (|parts| parts[3].tensors.truncate(1), &["field `split.tensors.count`: expected"]),
        (
            |parts| {
                let again = parts[1].tensors[0].clone();
                parts[2].tensors.push(again)
            },
            &["m-00003-of-00004.gguf: tensor `output.weight`: expected it in one part"],
        ),
        (
            |parts| parts[3].entry("blk.7.attn_k_norm.weight").data[..4].copy_from_slice(&2f32.to_le_bytes()),
            &["m-00004-of-00004.gguf: tensor `blk.7.attn_k_norm.weight`: expected 1 everywhere"],
        ),
    ];
    for (damage, expect) in faults {
        let (dir, mut parts) = (tempfile::tempdir().unwrap(), split(&valid(), 4));
        damage(&mut parts);
        let paths = write_parts(dir.path(), &parts);
        let message = open(&paths[0]).unwrap_err().to_string();
        assert!(expect.iter().all(|part| message.contains(part)), "{message}");
    }
    let dir = tempfile::tempdir().unwrap();
    let paths = write_parts(dir.path(), &split(&valid(), 4));
    fs::remove_file(&paths[2]).unwrap();
    fs::remove_file(&paths[3]).unwrap();
    let message = open(&paths[1]).unwrap_err().to_string();
    let expected = "m-00002-of-00004.gguf: part `m-00003-of-00004.gguf`: expected the file beside it";
    assert!(message.contains(expected) && message.contains("1 more"), "{message}");
}

/// A target with a vocabulary of four tokens.
fn with_vocabulary() -> Gguf {
    let mut file = valid();
    let text = |text: &str| Meta::Text(text.into());
    file.set("tokenizer.ggml.model", text("gpt2"));
    file.set("tokenizer.ggml.pre", text("llama4"));
    file.set("tokenizer.ggml.tokens", Meta::Texts(["a", "b", "ab", "<|s|>", "[PAD4]"].map(String::from).into()));
    file.set("tokenizer.ggml.token_type", Meta::I32s(vec![1, 1, 1, 3, 5]));
    file.set("tokenizer.ggml.merges", Meta::Texts(vec!["a b".into()]));
    file.set("tokenizer.ggml.bos_token_id", Meta::U32(3));
    file.set("tokenizer.ggml.eos_token_id", Meta::U32(3));
    file
}

#[test]
fn metadata_become_the_files_that_they_were_made_from() {
    let mut file = with_vocabulary();
    file.set("tokenizer.chat_template", Meta::Text("{{ bos_token }}".into()));
    file.set("general.sampling.temp", Meta::F32(0.5));
    file.set("general.sampling.top_k", Meta::U32(7));
    let read = open_bytes(&file.bytes()).unwrap();
    let tokenizer = read.json("tokenizer.json").unwrap().unwrap();
    assert_eq!(tokenizer["model"]["vocab"], serde_json::json!({ "a": 0, "b": 1, "ab": 2 }));
    assert_eq!(tokenizer["model"]["merges"], serde_json::json!([["a", "b"]]));
    assert_eq!(
        (tokenizer["added_tokens"][0]["id"].as_u64(), tokenizer["added_tokens"].as_array().unwrap().len()),
        (Some(3), 1)
    );
    assert_eq!(tokenizer["post_processor"]["special_tokens"]["<|s|>"]["ids"], serde_json::json!([3]));
    let config = read.json("tokenizer_config.json").unwrap().unwrap();
    assert_eq!(
        (&config["bos_token"], &config["tokenizer_class"]),
        (&"<|s|>".into(), &"PreTrainedTokenizerFast".into())
    );
    assert_eq!(read.file("chat_template.jinja").unwrap().unwrap(), b"{{ bos_token }}");
    let generation = read.json("generation_config.json").unwrap().unwrap();
    assert_eq!((generation["temperature"].as_f64(), generation["top_k"].as_u64()), (Some(0.5), Some(7)));
    assert_eq!(read.file("other.json").unwrap(), None);

    file.set("tokenizer.ggml.add_bos_token", Meta::Bool(false));
    let without = open_bytes(&file.bytes()).unwrap().json("tokenizer.json").unwrap().unwrap();
    assert!(without["post_processor"].is_null());
    file.set("tokenizer.ggml.model", Meta::Text("no_vocab".into()));
    assert_eq!(open_bytes(&file.bytes()).unwrap().file("tokenizer.json").unwrap(), None);
}

#[test]
fn vocabularies_that_are_none_are_refused_by_name() {
    type Damage = fn(&mut Gguf);
    let faults: [(Damage, &str); 11] = [
        (|f| f.set("tokenizer.ggml.model", Meta::Text("llama".into())), "`tokenizer.ggml.model`: expected gpt2, found"),
        (
            |f| f.set("tokenizer.ggml.pre", Meta::Text("qwen2".into())),
            "`tokenizer.ggml.pre`: expected llama4 or gpt-4o, found",
        ),
        (|f| f.unset("tokenizer.ggml.pre"), "`tokenizer.ggml.pre`: expected llama4 or gpt-4o, found none"),
        (|f| f.unset("tokenizer.ggml.token_type"), "`tokenizer.ggml.token_type`: expected a list beside"),
        (|f| f.unset("tokenizer.ggml.merges"), "`tokenizer.ggml.merges`: expected a list beside"),
        (
            |f| f.set("tokenizer.ggml.token_type", Meta::I32s(vec![1; 4])),
            "expected 5 types, one for each token, found 4",
        ),
        (
            |f| f.set("tokenizer.ggml.token_type", Meta::I32s(vec![1, 1, 6, 1, 1])),
            "types from 1 to 5, found 6 of token 2",
        ),
        (|f| f.set("tokenizer.ggml.tokens", Meta::U32s(vec![1; 5])), "`tokenizer.ggml.tokens`: expected"),
        (|f| f.set("tokenizer.ggml.merges", Meta::Texts(vec!["ab".into()])), "two tokens with a space between, found"),
        (
            |f| f.set("tokenizer.ggml.bos_token_id", Meta::U32(5)),
            "`tokenizer.ggml.bos_token_id`: expected an id below 5",
        ),
        (
            |f| f.set("tokenizer.ggml.tokens", Meta::Texts(["a", "b", "a", "c", "d"].map(String::from).into())),
            "expected every token once, found `a` twice",
        ),
    ];
    for (damage, expected) in faults {
        let mut file = with_vocabulary();
        damage(&mut file);
        let message = open_bytes(&file.bytes()).unwrap().file("tokenizer.json").unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains("model.gguf: "), "{message}");
    }
}

pub fn valid() -> Gguf {
    target(&fixture("muse-tiny-bf16"), |_, _| BF16)
}

/// Cut anywhere, it is refused.
#[test]
fn a_file_that_is_cut_is_refused() {
    let bytes = valid().bytes();
    let last = bytes.len() - 32;
    for len in (4..20_000).step_by(97).chain((20_000..last).step_by(9973)).chain([last]) {
        let message = open_bytes(&bytes[..len]).expect_err("cut").to_string();
        assert!(message.contains("model.gguf: ") && !message.contains('\n'), "{len}: {message}");
    }
    assert!(open_bytes(&bytes[..3]).is_err());
    open_bytes(&bytes).unwrap();
}

#[test]
fn what_the_model_does_not_know_keeps_its_name() {
    let mut extra = valid();
    let data = vec![0; 64 * 4];
    extra.tensors.push(Entry { name: "blk.0.attn_sinks.weight".into(), dims: vec![64], kind: 0, offset: None, data });
    extra.tensors.push(Entry {
        name: "blk.00.ffn_up.weight".into(),
        dims: vec![64],
        kind: 0,
        offset: None,
        data: vec![0; 256],
    });
    let checkpoint = open_bytes(&extra.bytes()).unwrap();
    let specs: Vec<_> = checkpoint.tensors().iter().filter(|t| !t.name.starts_with("blk")).collect();
    let specs: Vec<_> =
        specs.iter().map(|t| glimmer_checkpoint::TensorSpec::new(t.name.clone(), t.shape.clone())).collect();
    let message = checkpoint.account(&specs).unwrap_err().to_string();
    assert!(message.contains("tensor `blk.0.attn_sinks.weight`: expected only tensors of the model"), "{message}");
    assert!(message.ends_with("(1 more is unknown)"), "{message}");
    let lacking = glimmer_checkpoint::TensorSpec::new("model.language_model.norm.bias", [64]);
    let message = checkpoint.account(&[lacking]).unwrap_err().to_string();
    assert!(message.contains("model.gguf: tensor `model.language_model.norm.bias`: expected shape [64]"), "{message}");
}

fn small() -> Vec<u8> {
    let mut small = Gguf::new("dflash");
    small.set("dflash.target_layers", Meta::U32s(vec![1, 2]));
    small.set("dflash.attention.sliding_window_pattern", Meta::Bools(vec![true; 5]));
    small.set("tokenizer.ggml.model", Meta::Text("gpt2".into()));
    small.set("tokenizer.ggml.pre", Meta::Text("llama4".into()));
    small.set("tokenizer.ggml.tokens", Meta::Texts(vec!["a".into(), "bc".into()]));
    small.set("tokenizer.ggml.token_type", Meta::I32s(vec![1, 3]));
    small.set("tokenizer.ggml.merges", Meta::Texts(vec!["a bc".into()]));
    small.tensor("fc.weight", &[2, 32], Q8_0, &[1.0; 64]);
    small.tensor("output_norm.weight", &[4], Encoding::Dense(FloatType::F32), &[1.0; 4]);
    small.bytes()
}

/// A vision tower, with a matrix that has a scale of its own.
fn small_projector() -> Vec<u8> {
    let f32 = Encoding::Dense(FloatType::F32);
    let mut small = Gguf::new("clip");
    small.set("clip.projector_type", Meta::Text("muse-glimmer".into()));
    small.set("clip.vision.embedding_length", Meta::U32(8));
    small.set("clip.vision.attention.head_count", Meta::U32(2));
    small.set("clip.vision.image_size", Meta::U32(56));
    small.tensor("v.blk.0.attn_q.weight", &[8, 64], Encoding::Ggml(GgmlType::NvFp4), &[1.0; 512]);
    small.tensor("v.blk.0.attn_q.bias", &[8], f32, &[1.0; 8]);
    small.tensor("v.blk.0.attn_q.scale", &[1], f32, &[0.5]);
    small.tensor("mm.0.weight", &[2, 4], f32, &[1.0; 8]);
    small.bytes()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_damage_makes_it_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
        vision in any::<bool>(),
    ) {
        let mut bytes = if vision { small_projector() } else { small() };
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        if let Some(at) = cut {
            bytes.truncate(at.index(bytes.len()));
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.gguf");
        fs::write(&path, &bytes).unwrap();
        match open(&path) {
            Ok(checkpoint) => {
                for info in checkpoint.tensors() {
                    let values = checkpoint.read(&info.name).unwrap().view().to_f32();
                    prop_assert_eq!(values.len(), info.shape.iter().product::<usize>());
                }
                if let Err(e) = checkpoint.file("tokenizer.json") {
                    prop_assert!(!e.to_string().contains(char::is_control), "{}", e);
                }
            }
            Err(e) => prop_assert!(!e.to_string().contains(char::is_control), "{}", e),
        }
    }
}

#[test]
fn the_undamaged_small_files_open() {
    assert_eq!(open_bytes(&small()).unwrap().tensors().len(), 2);
    let projector = open_bytes(&small_projector()).unwrap();
    assert_eq!(projector.tensors().len(), 3);
    let query = projector.read("model.vision_tower.layers.0.attn.q_proj.weight").unwrap();
    assert!(query.parts().global_scale == Some(0.5) && query.view().to_f32().iter().all(|&w| (w - 0.5).abs() < 0.1));
}

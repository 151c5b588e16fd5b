//! GGUF files that are right but for one fault, and what the message about it has to say.

use crate::gguf::{open_bytes, valid};
use crate::gguf_writer::{Gguf, Meta};
use glimmer_encoding::{Encoding, FloatType};

type Fault = (&'static str, fn(&mut Gguf), &'static [&'static str]);

const FAULTS: &[Fault] = &[
    ("version_1", |g| g.version = 1, &["GGUF of version 1 cannot be read; versions 2 and 3 can"]),
    ("version_4", |g| g.version = 4, &["GGUF of version 4 cannot be read"]),
    ("big_endian", |g| g.version = 3u32.swap_bytes(), &["big-endian GGUF cannot be read"]),
    (
        "tensors_without_end",
        |g| g.tensor_count = Some(u64::MAX),
        &["tensor count: expected at most 65536", "18446744073709551615"],
    ),
    ("tensors_one_too_many", |g| g.tensor_count = Some(g.tensors.len() as u64 + 1), &["tensor"]),
    ("metadata_without_end", |g| g.metadata_count = Some(1 << 61), &["metadata count: expected at most 65536"]),
    (
        "architecture_unknown",
        |g| g.set("general.architecture", Meta::Text("llama".into())),
        &["architecture `llama` (known: muse-glimmer, dflash, clip)"],
    ),
    (
        "architecture_missing",
        |g| g.unset("general.architecture"),
        &["field `general.architecture`: expected muse-glimmer, dflash or clip, found none"],
    ),
    (
        "architecture_a_number",
        |g| g.set("general.architecture", Meta::U32(1)),
        &["`general.architecture`: expected a string, found 1"],
    ),
    (
        "key_twice",
        |g| g.metadata.push(("muse-glimmer.vocab_size".into(), Meta::U32(512))),
        &["field `muse-glimmer.vocab_size`: expected the key once"],
    ),
    ("string_past_the_end", |g| g.set("x", Meta::Raw(8, (1u64 << 19).to_le_bytes().into())), &["field `x`: expected"]),
    (
        "string_of_2_63",
        |g| g.set("x", Meta::Raw(8, (1u64 << 63).to_le_bytes().into())),
        &["field `x`: expected at most 1048576 bytes, found 9223372036854775808"],
    ),
    (
        "key_of_a_megabyte",
        |g| g.set(&"k".repeat(1 << 20), Meta::U32(1)),
        &["of the metadata: expected at most 65535 bytes, found 1048576"],
    ),
    (
        "array_that_wraps",
        |g| g.set("x", Meta::Raw(9, [&4u32.to_le_bytes()[..], &(1u64 << 62).to_le_bytes()].concat())),
        &["field `x`: expected elements within", "found 4611686018427387904"],
    ),
    (
        "strings_that_wrap",
        |g| g.set("x", Meta::Raw(9, [&8u32.to_le_bytes()[..], &(1u64 << 61).to_le_bytes()].concat())),
        &["field `x`: expected elements within"],
    ),
    (
        "array_of_arrays",
        |g| g.set("x", Meta::Raw(9, [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat())),
        &["field `x`", "found type 9"],
    ),
    ("value_of_type_13", |g| g.set("x", Meta::Raw(13, vec![0; 8])), &["field `x`", "found type 13"]),
    ("bool_of_two", |g| g.set("x", Meta::Raw(7, vec![2])), &["field `x`: expected true or false, as 1 or 0, found 2"]),
    ("not_a_number", |g| g.set("x", Meta::F32(f32::NAN)), &["field `x`: expected a finite number, found NaN"]),
    (
        "alignment_0",
        |g| g.set("general.alignment", Meta::U32(0)),
        &["field `general.alignment`: expected a power of two", "found 0"],
    ),
    (
        "alignment_48",
        |g| g.set("general.alignment", Meta::U32(48)),
        &["field `general.alignment`: expected a power of two", "found 48"],
    ),
    (
        "part_of_no_name",
        |g| {
            g.set("split.count", Meta::U32(3));
            g.set("split.no", Meta::U32(1))
        },
        &["file name: expected a name that ends in -00002-of-00003.gguf, as it is part 2 of 3, found `model.gguf`"],
    ),
    ("part_without_number", |g| g.set("split.count", Meta::U32(3)), &["field `split.no`: expected a number below 3"]),
    ("parts_without_end", |g| g.set("split.count", Meta::U32(u32::MAX)), &["field `split.count`", "found 4294967295"]),
    ("no_tensors", |g| g.tensors.clear(), &["weights: expected at least one tensor, found none"]),
    (
        "tensor_twice",
        |g| {
            let t = g.tensors[5].clone();
            g.tensors.push(t)
        },
        &["tensor `blk.0.", "expected the name once"],
    ),
    (
        "name_of_300",
        |g| g.tensors[0].name = "n".repeat(300),
        &["name of tensor 0: expected at most 255 bytes, found 300"],
    ),
    ("dims_none", |g| g.tensors[0].dims.clear(), &["tensor `output.weight`: expected 1 to 4 dimensions, found 0"]),
    (
        "dims_many",
        |g| g.tensors[0].dims = vec![1; 1000],
        &["tensor `output.weight`: expected 1 to 4 dimensions, found 1000"],
    ),
    ("dim_0", |g| g.tensors[0].dims[1] = 0, &["tensor `output.weight`: expected dimensions of at least 1, found 0"]),
    (
        "dim_2_42",
        |g| g.tensors[0].dims[1] = 1 << 42,
        &["tensor `output.weight`: expected data within", "[4398046511104, 64]"],
    ),
    (
        "dims_that_wrap",
        |g| g.tensors[0].dims = vec![1 << 32, 1 << 32, 1 << 32],
        &["tensor `output.weight`: expected data within"],
    ),
    (
        "type_99",
        |g| g.tensors[0].kind = 99,
        &["tensor `output.weight`: expected a known type of tensor, found type 99"],
    ),
    ("type_q8_k", |g| g.tensors[0].kind = 15, &["tensor `output.weight`: weights of type q8_k cannot be read"]),
    ("type_q4_0_4_8", |g| g.tensors[0].kind = 32, &["tensor `output.weight`: weights of type q4_0_4_8 cannot be read"]),
    (
        "type_of_other_blocks",
        |g| g.tensors[0].kind = 12,
        &["tensor `output.weight`: expected rows of a multiple of 256 elements of q4_k, found 64"],
    ),
    ("offset_past_the_end", |g| g.tensors[0].offset = Some(1 << 40), &["tensor `output.weight`: expected data within"]),
    (
        "offset_that_wraps",
        |g| g.tensors[0].offset = Some(u64::MAX - 31),
        &["tensor `output.weight`: expected data within"],
    ),
    ("offset_unaligned", |g| g.tensors[1].offset = Some(65_552), &["its data to begin at", "65552 (not aligned)"]),
    ("overlap", |g| g.tensors[1].offset = Some(32), &["expected its data to begin at", "32 (they overlap)"]),
    ("same_place", |g| g.tensors[1].offset = Some(0), &["expected its data to begin at", "0 (they overlap)"]),
    (
        "gap",
        |g| {
            let last = g.tensors.len() - 1;
            g.tensors[last].data = vec![0; 4096];
            let t = &mut g.tensors[last - 1];
            t.data.resize(4096, 0)
        },
        &["no tensor has the bytes between"],
    ),
    (
        "data_behind",
        |g| {
            let last = g.tensors.len() - 1;
            g.tensors[last].data.resize(4096, 0)
        },
        &["data: expected", "ends, found"],
    ),
    (
        "unaligned_query_norm_missing",
        |g| g.tensors.retain(|t| t.name != "blk.3.attn_q_norm.weight"),
        &["tensor `blk.3.attn_q_norm.weight`: expected shape [16], found none"],
    ),
    (
        "query_norm_not_constant",
        |g| g.entry("blk.2.attn_q_norm.weight").data[8..12].copy_from_slice(&2f32.to_le_bytes()),
        &["tensor `blk.2.attn_q_norm.weight`: expected 3.87 everywhere", "found 2"],
    ),
    (
        "query_norm_nan",
        |g| g.entry("blk.0.attn_q_norm.weight").data[..4].copy_from_slice(&f32::NAN.to_le_bytes()),
        &["tensor `blk.0.attn_q_norm.weight`", "found"],
    ),
    (
        "key_norm_not_one",
        |g| g.entry("blk.2.attn_k_norm.weight").data[..4].copy_from_slice(&2f32.to_le_bytes()),
        &["tensor `blk.2.attn_k_norm.weight`: expected 1 everywhere", "found 2"],
    ),
    (
        "norm_of_bf16",
        |g| {
            let t = g.entry("blk.1.ffn_norm.weight");
            t.kind = 30;
            t.data.truncate(128)
        },
        &["tensor `blk.1.ffn_norm.weight`: expected f32, of which one is to be subtracted, found bf16 of shape [64]"],
    ),
    (
        "scale_of_two",
        |g| {
            g.entry("blk.1.ffn_up.weight").kind = 40;
            g.entry("blk.1.ffn_up.weight").data.truncate(96 * 36);
            g.tensor("blk.1.ffn_up.scale", &[2], Encoding::Dense(FloatType::F32), &[1.0; 2])
        },
        &["tensor `blk.1.ffn_up.scale`: expected f32 of shape [1], found f32 of shape [2]"],
    ),
    (
        "scale_nan",
        |g| {
            g.entry("blk.1.ffn_up.weight").kind = 40;
            g.entry("blk.1.ffn_up.weight").data.truncate(96 * 36);
            g.tensor("blk.1.ffn_up.scale", &[1], Encoding::Dense(FloatType::F32), &[f32::NAN])
        },
        &["tensor `blk.1.ffn_up.scale`: expected a finite number above 0, found NaN"],
    ),
    (
        "pattern_of_other_length",
        |g| g.set("muse-glimmer.attention.sliding_window_pattern", Meta::Bools(vec![true; 7])),
        &["field `muse-glimmer.attention.sliding_window_pattern`: expected a period, or true or false for 8 layers"],
    ),
    (
        "heads_per_layer",
        |g| g.set("muse-glimmer.attention.head_count", Meta::U32s(vec![8; 8])),
        &["field `muse-glimmer.attention.head_count`: expected a number"],
    ),
    (
        "head_of_odd_size",
        |g| g.set("muse-glimmer.attention.key_length", Meta::U32(15)),
        &["field `muse-glimmer.attention.key_length`: expected an even number, found 15"],
    ),
    (
        "rope_scaling",
        |g| g.set("muse-glimmer.rope.scaling.type", Meta::Text("yarn".into())),
        &["field `muse-glimmer.rope.scaling.type`: expected none, found \"yarn\""],
    ),
    (
        "values_of_other_size",
        |g| g.set("muse-glimmer.attention.value_length", Meta::U32(8)),
        &["`muse-glimmer.attention.value_length`: expected 16, the elements of a head, found 8"],
    ),
    (
        "taps_from_0",
        |g| {
            g.set("general.architecture", Meta::Text("dflash".into()));
            g.set("dflash.target_layers", Meta::U32s(vec![0, 2]))
        },
        &["field `dflash.target_layers`: expected layers from 1"],
    ),
];

#[test]
fn every_fault_is_refused_by_name() {
    let valid = valid();
    let wrong: Vec<String> = FAULTS
        .iter()
        .filter_map(|(name, break_it, expect)| {
            let mut broken = valid.clone();
            break_it(&mut broken);
            let message = match open_bytes(&broken.bytes()) {
                Ok(checkpoint) => return Some(format!("{name}: opened {checkpoint:?}")),
                Err(e) => e.to_string(),
            };
            let lacks = expect.iter().find(|part| !message.contains(**part));
            let fine = lacks.is_none() && message.contains("model.gguf: ") && message.chars().count() < 400;
            (!fine || message.contains(char::is_control)).then(|| format!("{name}: lacks {lacks:?}: {message:?}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

//! Faults in a file of weights.

use super::edit::*;
use super::valid::*;
use super::{Case, EMBED, HEAD, cases_of};
use serde_json::{Value, json};

pub fn cases() -> Vec<Case> {
    [truncated(), headers(), entries(), layouts()].into_iter().flatten().collect()
}

fn truncated() -> Vec<Case> {
    cases_of(&[
        ("empty_file", |d| raw(d, |_| vec![]), &["model.safetensors: header length", "8 bytes", "0 bytes"]),
        ("seven_bytes", |d| raw(d, |b| b[..7].to_vec()), &["model.safetensors: header length", "7 bytes"]),
        ("length_and_no_header", |d| raw(d, |b| b[..8].to_vec()), &["header length", "at most the 0 bytes"]),
        ("header_cut", |d| raw(d, |b| b[..300].to_vec()), &["header length", "at most the 292 bytes"]),
        (
            "no_data",
            |d| raw(d, |b| b[..data_begin(b)].to_vec()),
            &["tensor `lm_head.weight`", "at least 16384 bytes of data", "found 0 (is the file cut off?)"],
        ),
        (
            "data_cut_in_the_first_tensor",
            |d| raw(d, |b| b[..data_begin(b) + 9999].to_vec()),
            &["model.safetensors", HEAD, "found 9999"],
        ),
        (
            "data_cut_between_tensors",
            |d| raw(d, |b| b[..data_begin(b) + 16384].to_vec()),
            &[EMBED, "at least 32768 bytes", "found 16384"],
        ),
        (
            "data_cut_by_a_byte",
            |d| raw(d, |b| b[..b.len() - 1].to_vec()),
            &["model.safetensors", "model.vision_tower.patch_embedder.position_embedding_table.weight", "cut off"],
        ),
        ("header_length_2_63", |d| length(d, 1 << 63), &["model.safetensors: header length", "9223372036854775808"]),
        ("header_length_max", |d| length(d, u64::MAX), &["header length", "18446744073709551615"]),
        ("header_length_past_the_end", |d| length(d, 1 << 20), &["header length", "1048576"]),
        ("header_of_101_mb", header_of_101_mb, &["header length", "at most 8388608 bytes", "101000000"]),
        (
            "header_just_too_long",
            |d| raw(d, |_| raw_file(&padded(8 << 20), &[])),
            &["header length", "8388608", "8388609"],
        ),
    ])
}

fn headers() -> Vec<Case> {
    cases_of(&[
        (
            "header_empty",
            |d| raw(d, |_| raw_file(b"", &[])),
            &["model.safetensors: header", "a JSON object", "0 bytes"],
        ),
        (
            "header_not_json",
            |d| raw(d, |_| raw_file(b"{lm_head}", &[])),
            &["model.safetensors: header", "valid JSON", "line 1 column 2"],
        ),
        (
            "header_unfinished",
            |d| raw(d, |_| raw_file(br#"{"a":{"dtype":"#, &[])),
            &["field `a.dtype` of the header", "EOF"],
        ),
        ("header_with_a_tail", |d| raw(d, |_| raw_file(b"{} {}", &[])), &["header", "trailing characters"]),
        ("header_a_list", |d| raw(d, |_| raw_file(b"[]", &[])), &["header", "a JSON object", "0x5b"]),
        ("header_a_zip", |d| raw(d, |_| raw_file(b"PK\x03\x04", &[])), &["header", "a JSON object", "0x50"]),
        ("header_with_bom", |d| raw(d, |_| raw_file(b"\xef\xbb\xbf{}", &[])), &["header", "a JSON object", "0xef"]),
        ("header_not_utf8", |d| raw(d, |_| raw_file(b"{\"\xff\xfe\":1}", &[])), &["header", "valid JSON"]),
        (
            "header_deep",
            |d| raw(d, |_| raw_file(&[b'['; 100_000], &[])),
            &["model.safetensors: header", "a JSON object"],
        ),
        (
            "header_deep_in_a_tensor",
            |d| raw(d, |_| raw_file(&deep("{\"a\":"), &[])),
            &["field `a[0][0]", "recursion limit"],
        ),
        (
            "header_deep_in_metadata",
            |d| raw(d, |_| raw_file(&deep("{\"__metadata__\":"), &[])),
            &["`__metadata__[0]", "recursion limit"],
        ),
        (
            "header_huge_number",
            |d| header_text(d, |h| h.replacen("[0,16384]", "[0,1e400]", 1)),
            &["field `lm_head.weight.data_offsets[1]` of the header", "out of range"],
        ),
        (
            "header_without_tensors",
            |d| raw(d, |_| raw_file(br#"{"__metadata__":{}}"#, &[])),
            &["model.safetensors: weights", "at least one tensor"],
        ),
        (
            "tensor_twice",
            |d| header_text(d, |h| h.replacen(EMBED, HEAD, 1)),
            &["field `lm_head.weight` of the header", "once", "again"],
        ),
        (
            "metadata_a_list",
            |d| weights_with(d, |h, _| h["__metadata__"] = json!(["pt"])),
            &["`__metadata__`", "an object of strings", "[\"pt\"]"],
        ),
        (
            "metadata_of_numbers",
            |d| weights_with(d, |h, _| h["__metadata__"] = json!({"version": 7})),
            &["`__metadata__.version`", "a string", "found 7"],
        ),
        (
            "metadata_twice",
            |d| header_text(d, |h| h.replacen('{', "{\"__metadata__\":{},", 1)),
            &["field `__metadata__` of the header", "once"],
        ),
        (
            "too_many_values",
            |d| raw(d, |_| raw_file(&format!("{{\"a\":[{}0]}}", "0,".repeat(200_000)).into_bytes(), &[])),
            &["header", "at most 100000 values"],
        ),
        (
            "long_string",
            |d| raw(d, |_| raw_file(&escapes(), &[])),
            &["model.safetensors", "an object with dtype, shape and data_offsets"],
        ),
    ])
}

fn entries() -> Vec<Case> {
    cases_of(&[
        (
            "entry_null",
            |d| weights_with(d, |h, _| h[HEAD] = Value::Null),
            &["tensor `lm_head.weight`", "an object with dtype", "null"],
        ),
        (
            "entry_a_list",
            |d| weights_with(d, |h, _| h[HEAD] = json!([1, 2])),
            &["tensor `lm_head.weight`", "an object with dtype", "[1,2]"],
        ),
        (
            "entry_extra_field",
            |d| entry(d, "checksum", json!(7)),
            &["field `checksum` of tensor `lm_head.weight`", "only dtype, shape and data_offsets", "found 7"],
        ),
        (
            "entry_field_twice",
            |d| header_text(d, |h| h.replacen("\"dtype\":", "\"dtype\":\"F32\",\"dtype\":", 1)),
            &["field `lm_head.weight.dtype` of the header", "once"],
        ),
        (
            "dtype_unknown",
            |d| entry(d, "dtype", json!("I3")),
            &["field `dtype` of tensor `lm_head.weight`", "BF16, F16 or F32", "\"I3\""],
        ),
        ("dtype_lower_case", |d| entry(d, "dtype", json!("bf16")), &["`dtype`", HEAD, "\"bf16\""]),
        (
            "dtype_i64",
            |d| entry(d, "dtype", json!("I64")),
            &["model.safetensors", "`lm_head.weight`", "I64 is not a dtype that Muse-Glimmer uses"],
        ),
        (
            "dtype_f64",
            |d| entry(d, "dtype", json!("F64")),
            &["`lm_head.weight`", "F64 is not a dtype that Muse-Glimmer uses"],
        ),
        ("dtype_fp8", |d| entry(d, "dtype", json!("F8_E4M3")), &["`lm_head.weight`", "F8_E4M3 is not"]),
        ("dtype_a_number", |d| entry(d, "dtype", json!(16)), &["`dtype` of tensor `lm_head.weight`", "a string", "16"]),
        (
            "dtype_missing",
            |d| entry_without(d, "dtype"),
            &["`dtype` of tensor `lm_head.weight`", "BF16, F16 or F32", "none"],
        ),
        ("dtype_null", |d| entry(d, "dtype", Value::Null), &["`dtype` of tensor `lm_head.weight`", "none"]),
        (
            "dtype_of_other_size",
            |d| entry(d, "dtype", json!("F32")),
            &["`lm_head.weight`", "32768 bytes for shape [256, 32] of F32", "16384"],
        ),
        ("shape_missing", |d| entry_without(d, "shape"), &["`shape` of tensor `lm_head.weight`", "none"]),
        (
            "shape_a_number",
            |d| entry(d, "shape", json!(8192)),
            &["`shape` of tensor `lm_head.weight`", "a list", "8192"],
        ),
        ("shape_of_strings", |d| entry(d, "shape", json!(["256", 32])), &["`shape`", HEAD, "integers", "[\"256\",32]"]),
        ("shape_negative", |d| entry(d, "shape", json!([-256, -32])), &["`shape`", HEAD, "[-256,-32]"]),
        ("shape_fractional", |d| entry(d, "shape", json!([256.5, 32])), &["`shape`", HEAD, "256.5"]),
        (
            "shape_too_small",
            |d| entry(d, "shape", json!([255, 32])),
            &["`lm_head.weight`", "16320 bytes for shape [255, 32] of BF16", "16384 in data_offsets [0, 16384]"],
        ),
        (
            "shape_of_9_dimensions",
            |d| entry(d, "shape", json!([256, 32, 1, 1, 1, 1, 1, 1, 1])),
            &["`shape`", HEAD, "at most 8 dimensions", "a list of 9"],
        ),
        (
            "shape_of_2_42",
            |d| entry(d, "shape", json!([1u64 << 42])),
            &["`lm_head.weight`", "[4398046511104]", "16384"],
        ),
        (
            "shape_product_overflows",
            |d| entry(d, "shape", json!([1u64 << 42, 1u64 << 42])),
            &["`lm_head.weight`", "fits this machine", "[4398046511104, 4398046511104]"],
        ),
        (
            "shape_product_wraps_to_the_size",
            |d| entry(d, "shape", json!([(1u64 << 63) + 1, 1, 8192])),
            &["`lm_head.weight`", "9223372036854775809"],
        ),
        (
            "shape_bytes_overflow",
            |d| entry(d, "shape", json!([1u64 << 63])),
            &["`lm_head.weight`", "9223372036854775808"],
        ),
        (
            "shape_past_u64",
            |d| header_text(d, |h| h.replacen("[256,32]", "[18446744073709551616]", 1)),
            &["`shape`", HEAD, "1.844674407370955"],
        ),
        (
            "shape_zero_with_bytes",
            |d| entry(d, "shape", json!([0, 32])),
            &["`lm_head.weight`", "0 bytes for shape [0, 32]", "16384"],
        ),
        (
            "offsets_missing",
            |d| entry_without(d, "data_offsets"),
            &["`data_offsets` of tensor `lm_head.weight`", "[begin, end]", "none"],
        ),
        ("offsets_three", |d| entry(d, "data_offsets", json!([0, 1, 2])), &["`data_offsets`", HEAD, "[0,1,2]"]),
        ("offsets_one", |d| entry(d, "data_offsets", json!([0])), &["`data_offsets`", HEAD, "[0]"]),
        ("offsets_negative", |d| entry(d, "data_offsets", json!([-1, 16383])), &["`data_offsets`", HEAD, "[-1,16383]"]),
        (
            "offsets_fractional",
            |d| entry(d, "data_offsets", json!([0.0, 16384.0])),
            &["`data_offsets`", HEAD, "16384.0"],
        ),
        (
            "offsets_descending",
            |d| entry(d, "data_offsets", json!([16384, 0])),
            &["`data_offsets`", HEAD, "ascending", "[16384,0]"],
        ),
    ])
}

fn layouts() -> Vec<Case> {
    cases_of(&[
        (
            "range_past_the_data",
            |d| entry(d, "data_offsets", json!([1u64 << 40, (1u64 << 40) + 16384])),
            &["`lm_head.weight`", "at least 1099511644160 bytes of data"],
        ),
        (
            "range_at_the_end_of_u64",
            |d| entry(d, "data_offsets", json!([u64::MAX - 16384, u64::MAX])),
            &["`lm_head.weight`", "18446744073709551615"],
        ),
        ("ranges_equal", |d| moved(d, EMBED, 0), &[EMBED, "begin at 16384, where lm_head.weight ends", "found 0"]),
        (
            "ranges_overlap",
            |d| moved(d, EMBED, 16382),
            &[EMBED, "begin at 16384, where lm_head.weight ends", "found 16382 (they overlap)"],
        ),
        (
            "hole_at_the_beginning",
            |d| weights_with(d, |h, _| drop(h.shift_remove(HEAD))),
            &["model.safetensors", EMBED, "begin at 0, where the header ends", "16384"],
        ),
        (
            "hole_between_tensors",
            |d| weights_with(d, |h, _| drop(h.shift_remove(EMBED))),
            &[
                "model.safetensors",
                "begin at 16384, where lm_head.weight ends",
                "found 32768 (no tensor has the bytes between)",
            ],
        ),
        (
            "bytes_at_the_end",
            |d| weights_with(d, |_, data| data.push(0)),
            &["model.safetensors: data", "position_embedding_table.weight ends"],
        ),
        (
            "name_with_line_breaks",
            |d| {
                header_text(d, |h| {
                    h.replacen(EMBED, r"a\nb\u2028c\u001b[31m", 1).replacen("16384,32768", "16380,32764", 1)
                })
            },
            &[r"tensor `a\nb\u{2028}c\u{1b}[31m`", "found 16380"],
        ),
        (
            "name_of_a_megabyte",
            |d| {
                header_text(d, |h| h.replacen(EMBED, &"x".repeat(1 << 20), 1).replacen("16384,32768", "16380,32764", 1))
            },
            &["tensor `xxxx", "…", "found 16380"],
        ),
    ])
}

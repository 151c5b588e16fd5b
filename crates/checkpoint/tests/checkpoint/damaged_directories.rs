//! Faults in the other files, and in how the files fit together.

use super::edit::*;
use super::valid::*;
use super::{Case, HEAD, cases_of};
use serde_json::json;
use std::fs;

pub fn cases() -> Vec<Case> {
    [indexes(), directories(), configs()].into_iter().flatten().collect()
}

fn indexes() -> Vec<Case> {
    cases_of(&[
        ("index_not_json", |d| index_text(d, "weight_map"), &["model.safetensors.index.json: index", "valid JSON"]),
        ("index_a_list", |d| index_text(d, "[]"), &["model.safetensors.index.json: index", "a JSON object", "[]"]),
        ("index_empty", |d| index_text(d, ""), &["model.safetensors.index.json: index", "EOF"]),
        ("index_without_map", |d| index_text(d, "{}"), &["model.safetensors.index.json", "`weight_map`", "none"]),
        (
            "index_map_a_list",
            |d| index_text(d, r#"{"weight_map":["a"]}"#),
            &["model.safetensors.index.json", "`weight_map`", "an object", "[\"a\"]"],
        ),
        (
            "index_map_empty",
            |d| index_text(d, r#"{"weight_map":{}}"#),
            &["model.safetensors.index.json: weights", "at least one tensor"],
        ),
        (
            "index_tensor_twice",
            |d| index_text(d, r#"{"weight_map":{"a":"x","a":"y"}}"#),
            &["field `weight_map.a` of the index", "once"],
        ),
        (
            "index_map_twice",
            |d| index_text(d, r#"{"weight_map":{},"weight_map":{}}"#),
            &["field `weight_map` of the index", "once"],
        ),
        (
            "index_shard_a_number",
            |d| mapped(d, json!(1)),
            &["index.json: tensor `lm_head.weight` of `weight_map`", "plain name", "found 1"],
        ),
        (
            "index_shard_above",
            |d| mapped(d, json!("../model-00001-of-00002.safetensors")),
            &["index.json", "`lm_head.weight`", "plain name", "\"../model"],
        ),
        (
            "index_shard_absolute",
            |d| mapped(d, json!("/etc/passwd")),
            &["index.json", "`lm_head.weight`", "plain name", "\"/etc/passwd\""],
        ),
        (
            "index_shard_below",
            |d| mapped(d, json!("sub/a.safetensors")),
            &["index.json", "`lm_head.weight`", "\"sub/a.safetensors\""],
        ),
        (
            "index_shard_backslash",
            |d| mapped(d, json!("..\\a.safetensors")),
            &["index.json", "`lm_head.weight`", "plain name"],
        ),
        (
            "index_shard_drive",
            |d| mapped(d, json!("C:a.safetensors")),
            &["index.json", "`lm_head.weight`", "plain name"],
        ),
        ("index_shard_empty", |d| mapped(d, json!("")), &["index.json", "`lm_head.weight`", "plain name", "\"\""]),
        ("index_shard_dots", |d| mapped(d, json!("..")), &["index.json", "`lm_head.weight`", "plain name", "\"..\""]),
        (
            "index_shard_nul",
            |d| mapped(d, json!("a\0.safetensors")),
            &["index.json", "`lm_head.weight`", r"a\u{0}.safetensors"],
        ),
        (
            "index_shard_too_long",
            |d| mapped(d, json!("x".repeat(300))),
            &["index.json", "`lm_head.weight`", "plain name", "…"],
        ),
        (
            "index_shard_missing",
            |d| mapped(d, json!("model-00003-of-00003.safetensors")),
            &["index.json: shard `model-00003-of-00003.safetensors`", "found none"],
        ),
        (
            "shard_removed",
            |d| shard(d, |path| fs::remove_file(path).unwrap()),
            &["index.json", "model-00002-of-00002.safetensors", "none"],
        ),
        (
            "shard_a_directory",
            |d| shard(d, directory),
            &["model-00002-of-00002.safetensors", "a regular file", "a directory"],
        ),
        (
            "shard_truncated",
            |d| shard(d, |path| resize(path, -1)),
            &["model-00002-of-00002.safetensors", "position_embedding_table.weight", "cut off"],
        ),
        ("shard_too_long", |d| shard(d, |path| resize(path, 1)), &["model-00002-of-00002.safetensors: data"]),
        (
            "tensor_in_the_other_shard",
            |d| mapped(d, json!(SHARDS[1])),
            &[
                "model-00001-of-00002.safetensors",
                "`lm_head.weight`",
                "it in model-00002-of-00002.safetensors, as the index says",
                "here",
            ],
        ),
        (
            "tensor_in_no_shard",
            |d| sharded(d, |map| drop(map.insert("lost".into(), json!(SHARDS[1])))),
            &["model-00002-of-00002.safetensors", "tensor `lost`", "as the index says", "none"],
        ),
        (
            "tensor_not_in_the_index",
            |d| sharded(d, |map| drop(map.shift_remove(HEAD))),
            &["model-00001-of-00002.safetensors", "`lm_head.weight`", "only tensors that the index has"],
        ),
        (
            "tensor_in_both_shards",
            |d| second_shard(d, vec![("lm_head.weight".into(), vec![4])]),
            &["model-00002-of-00002.safetensors", "`lm_head.weight`", "it in model-00001-of-00002.safetensors"],
        ),
    ])
}

fn directories() -> Vec<Case> {
    let mut cases = cases_of(&[
        ("no_files", |_| {}, &["config.json", "found none"]),
        (
            "no_config",
            |d| without(d, "config.json"),
            &["config.json", "the configuration of a Hugging Face checkpoint", "found none"],
        ),
        (
            "no_weights",
            |d| without(d, "model.safetensors"),
            &["weights", "model.safetensors or model.safetensors.index.json", "none"],
        ),
        (
            "weights_a_directory",
            |d| replaced(d, "model.safetensors", directory),
            &["model.safetensors", "a regular file", "a directory"],
        ),
        (
            "config_a_directory",
            |d| replaced(d, "config.json", directory),
            &["config.json", "a regular file", "a directory"],
        ),
        ("only_gguf", gguf, &["GGUF files are opened by their own path"]),
    ]);
    #[cfg(unix)]
    cases.extend(cases_of(&[
        (
            "weights_a_pipe",
            |d| replaced(d, "model.safetensors", pipe),
            &["model.safetensors", "a regular file", "a pipe"],
        ),
        ("config_a_pipe", |d| replaced(d, "config.json", pipe), &["config.json", "a regular file", "a pipe"]),
        (
            "weights_a_device",
            |d| replaced(d, "model.safetensors", |p| link("/dev/zero", p)),
            &["model.safetensors", "a regular file", "device"],
        ),
        (
            "weights_a_dead_link",
            |d| replaced(d, "model.safetensors", |p| link("../blobs/0123", p)),
            &["model.safetensors", "a regular file", "leads nowhere"],
        ),
        (
            "weights_a_link_to_itself",
            |d| replaced(d, "model.safetensors", |p| link("model.safetensors", p)),
            &["model.safetensors"],
        ),
    ]));
    cases
}

fn configs() -> Vec<Case> {
    cases_of(&[
        ("config_empty", |d| config_text(d, |_| "".into()), &["config.json: config", "valid JSON", "EOF"]),
        (
            "config_not_json",
            |d| config_text(d, |c| c.replacen(':', "=", 1)),
            &["config.json", "`architectures`", "valid JSON"],
        ),
        ("config_cut", |d| config_text(d, |c| c[..c.len() - 1].into()), &["config.json", "valid JSON", "EOF"]),
        ("config_with_a_tail", |d| config_text(d, |c| c + "]"), &["config.json", "trailing characters"]),
        ("config_a_list", |d| config_text(d, |c| format!("[{c}]")), &["config.json: config", "a JSON object"]),
        ("config_null", |d| config_text(d, |_| "null".into()), &["config.json: config", "a JSON object", "null"]),
        (
            "config_with_bom",
            |d| config_text(d, |c| format!("\u{feff}{c}")),
            &["config.json: config", "a byte order mark"],
        ),
        ("config_not_utf8", |d| config_bytes(d, b"{\"a\":\"\xff\"}"), &["config.json", "`a`", "valid JSON"]),
        (
            "config_key_twice",
            |d| config_text(d, |c| c.replacen('{', "{\"model_type\":\"x\",", 1)),
            &["config.json: field `model_type` of the config", "once"],
        ),
        (
            "config_nested_key_twice",
            |d| config_text(d, |c| c.replacen("\"head_dim\":16", "\"head_dim\":16,\"head_dim\":32", 1)),
            &["config.json: field `text_config.head_dim` of the config", "once", "again"],
        ),
        (
            "config_huge_number",
            |d| config_text(d, |c| c.replacen("3.87", "1e400", 1)),
            &["field `text_config.qk_scale_factor` of the config", "out of range"],
        ),
        (
            "config_nan",
            |d| config_text(d, |c| c.replacen("3.87", "NaN", 1)),
            &["field `text_config.qk_scale_factor` of the config", "valid JSON"],
        ),
        (
            "config_infinity",
            |d| config_text(d, |c| c.replacen("3.87", "-Infinity", 1)),
            &["`text_config.qk_scale_factor`", "valid JSON"],
        ),
        ("config_deep", |d| config_bytes(d, &deep("{\"a\":")), &["config.json", "`a[0]", "recursion limit"]),
        (
            "config_of_9_mib",
            |d| config_bytes(d, &padded(9 << 20)),
            &["config.json: file size", "at most 8388608 bytes", "9437185"],
        ),
        ("config_of_a_gigabyte", |d| config_text_len(d, 1 << 30), &["config.json: file size", "1073741824"]),
        (
            "config_of_many_values",
            |d| config_text(d, |c| c.replacen("null", &format!("[{}0]", "{},".repeat(500_000)), 1)),
            &["config.json: field `text_config.pad_token_id[", "at most 100000 values"],
        ),
        ("config_of_many_objects", |d| config_bytes(d, &wide()), &["config.json: field `a[", "at most 100000 values"]),
        (
            "quantized_by_gptq",
            |d| config_key(d, "quantization_config", json!({"quant_method": "gptq"})),
            &["config.json: field `quantization_config`", "gptq", "cannot be read"],
        ),
    ])
}

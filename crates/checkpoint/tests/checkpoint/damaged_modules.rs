//! Faults in how modules are quantized.

use super::valid::*;
use super::{Case, HEAD, cases_of};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

pub fn cases() -> Vec<Case> {
    cases_of(&[
        (
            "mlx_without_settings",
            |d| mlx(d, |m| m.config = config()),
            &["config.json: field `quantization`", "settings, since the weights have `lm_head.scales`", "found none"],
        ),
        (
            "mlx_false_but_quantized",
            |d| mlx(d, |m| m.config["quantization"]["lm_head"] = json!(false)),
            &["config.json: module `lm_head`", "since the weights have its scales", "found false"],
        ),
        (
            "mlx_false_by_its_other_name",
            |d| mlx(d, |m| m.config["quantization"]["language_model.lm_head"] = json!(false)),
            &["config.json: module `lm_head`", "found false"],
        ),
        (
            "mlx_other_bits",
            |d| mlx(d, |m| m.config["quantization"]["lm_head"] = json!({"bits": 8, "group_size": 32})),
            &["model.safetensors", HEAD, "rows of 8-bit codes in groups of 32, as", "config.json says", "[256, 4]"],
        ),
        (
            "mlx_other_group",
            |d| mlx(d, |m| m.config["quantization"]["group_size"] = json!(64)),
            &["model.safetensors", HEAD, "rows of 4-bit codes in groups of 64", "found shape [256, 4]"],
        ),
        (
            "mlx_scales_of_other_groups",
            |d| mlx(d, |m| m.tensor("lm_head.scales", "BF16", &[256, 2])),
            &[
                "model.safetensors: tensor `lm_head.scales`",
                "BF16 [256, 1]",
                "`lm_head.weight` [256, 4] with 4 bits",
                "found BF16 [256, 2]",
            ],
        ),
        (
            "mlx_biases_of_other_rows",
            |d| mlx(d, |m| m.tensor("lm_head.biases", "BF16", &[255, 1])),
            &["`lm_head.biases`", "BF16 [256, 1]", "found BF16 [255, 1]"],
        ),
        (
            "mlx_biases_of_other_type",
            |d| mlx(d, |m| m.tensor("lm_head.biases", "F16", &[256, 1])),
            &["`lm_head.biases`", "expected BF16 [256, 1]", "found F16 [256, 1]"],
        ),
        (
            "mlx_scales_of_bytes",
            |d| mlx(d, |m| m.tensor("lm_head.scales", "U8", &[256, 1])),
            &["`lm_head.scales`", "expected BF16, F16 or F32, found U8"],
        ),
        (
            "mlx_floats_for_mxfp4",
            |d| mlx(d, |m| m.config["quantization"] = json!({"mode": "mxfp4", "bits": 4, "group_size": 32})),
            &["`lm_head.scales`", "expected U8 [256, 1]", "found BF16 [256, 1]"],
        ),
        (
            "mlx_without_biases",
            |d| mlx(d, |m| m.without("lm_head.biases")),
            &["model.safetensors: tensor `lm_head.biases`", "it beside `lm_head.scales`", "found none"],
        ),
        (
            "mlx_without_scales",
            |d| mlx(d, |m| m.without("lm_head.scales")),
            &["model.safetensors: tensor `lm_head.scales`", "it beside `lm_head.weight`, which is U32", "found none"],
        ),
        (
            "mlx_without_weight",
            |d| mlx(d, |m| m.without(HEAD)),
            &["model.safetensors: tensor `lm_head.weight`", "it beside `lm_head.scales`", "found none"],
        ),
        (
            "mlx_weight_of_floats",
            |d| mlx(d, |m| m.tensor(HEAD, "BF16", &[256, 32])),
            &["tensor `lm_head.weight`", "U32 of two dimensions, since it has scales", "found BF16 [256, 32]"],
        ),
        (
            "mlx_weight_of_three_dimensions",
            |d| mlx(d, |m| m.tensor(HEAD, "U32", &[256, 4, 1])),
            &["tensor `lm_head.weight`", "U32 of two dimensions", "found U32 [256, 4, 1]"],
        ),
        (
            "mlx_bytes_alone",
            |d| mlx(d, |m| m.tensor("model.codes", "U8", &[4])),
            &["tensor `model.codes`", "U8 is not a dtype that Muse-Glimmer uses"],
        ),
        (
            "mlx_a_name_in_two_spellings",
            |d| mlx(d, |m| m.tensor("model.norm.weight", "BF16", &[32])),
            &["tensor `model.norm.weight`", "one name for a tensor", "`model.language_model.norm.weight` as well"],
        ),
        (
            "mlx_seven_bits",
            |d| mlx(d, |m| m.config["quantization"]["bits"] = json!(7)),
            &["config.json: field `quantization.bits`", "one of 2, 3, 4, 5, 6, 8", "found 7"],
        ),
        (
            "mlx_group_of_16_in_a_module",
            |d| mlx(d, |m| m.config["quantization"]["lm_head"] = json!({"bits": 4, "group_size": 16})),
            &["config.json: field `quantization.lm_head.group_size`", "one of 32, 64, 128", "found 16"],
        ),
        (
            "mlx_mxfp4_of_8_bits",
            |d| mlx(d, |m| m.config["quantization"] = json!({"mode": "mxfp4", "bits": 8})),
            &["config.json: field `quantization.bits`", "one of 4", "found 8"],
        ),
        (
            "mlx_unknown_mode",
            |d| mlx(d, |m| m.config["quantization"]["mode"] = json!("int9")),
            &["config.json: field `quantization.mode`", "affine, mxfp4, mxfp8 or nvfp4", "\"int9\""],
        ),
        (
            "mlx_a_setting_that_is_none",
            |d| mlx(d, |m| m.config["quantization"]["lm_head"] = json!(4)),
            &["config.json: field `quantization.lm_head`", "a module's settings, or true or false", "found 4"],
        ),
        (
            "mlx_settings_twice",
            |d| mlx(d, |m| m.config["quantization_config"] = json!({"bits": 8, "group_size": 32})),
            &["config.json: field `quantization_config`", "the same as in `quantization`"],
        ),
        (
            "mlx_a_module_twice",
            |d| {
                mlx(d, |m| {
                    m.config["quantization"]["lm_head"] = json!({"bits": 4, "group_size": 32});
                    m.config["quantization"]["language_model.lm_head"] = json!({"bits": 8, "group_size": 32});
                })
            },
            &["config.json: field `quantization.language_model.lm_head`", "the same as under its other name"],
        ),
    ])
}

/// The valid checkpoint, with `lm_head` in 4 bits.
struct Mlx {
    config: Value,
    tensors: Vec<(String, &'static str, Vec<usize>)>,
}

impl Mlx {
    fn without(&mut self, name: &str) {
        self.tensors.retain(|(n, _, _)| n != name);
    }

    fn tensor(&mut self, name: &str, dtype: &'static str, shape: &[usize]) {
        self.without(name);
        self.tensors.push((name.into(), dtype, shape.into()));
    }
}

fn mlx(dir: &Path, edit: impl FnOnce(&mut Mlx)) {
    let tensors = specs().into_iter().map(|(name, shape)| (name, "BF16", shape)).collect();
    let mut m = Mlx { config: config(), tensors };
    m.config["quantization"] = json!({"bits": 4, "group_size": 32});
    m.tensor(HEAD, "U32", &[256, 4]);
    m.tensor("lm_head.scales", "BF16", &[256, 1]);
    m.tensor("lm_head.biases", "BF16", &[256, 1]);
    edit(&mut m);
    write_config(dir, &m.config);
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, dtype, shape) in m.tensors {
        let size = match dtype {
            "U8" => 1,
            "U32" => 4,
            _ => 2,
        };
        let begin = data.len();
        data.resize(begin + size * shape.iter().product::<usize>(), 0);
        header.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()]}));
    }
    fs::write(dir.join("model.safetensors"), file(&header, &data)).unwrap();
}

//! Malformed checkpoints: one line, no panic, hardly any memory.

use crate::corpus::{self, Case};
use crate::support::{Ran, glimmer, repository};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Of writable memory in KiB; the program's own pages are some 20 MB more at most.
const LIMIT: u32 = 75_000;

/// Runs where taking more memory than `limit` fails, which the program would not survive.
fn limited(limit: u32, args: &[&str]) -> Ran {
    let mut command = match cfg!(target_os = "linux") {
        true => {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("ulimit -d {limit} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_glimmer")]);
            shell
        }
        false => Command::new(env!("CARGO_BIN_EXE_glimmer")),
    };
    command.args(args).stdin(Stdio::null()).output().unwrap().into()
}

#[cfg(target_os = "linux")]
#[test]
fn the_limit_is_one() {
    let tiny = repository("fixtures/muse-tiny-bf16");
    let run = ["run", "-m", &tiny, "--prompt-ids", "1", "-n", "1", "-q"];
    assert_eq!(limited(LIMIT, &run).code, Some(0));
    assert_ne!(limited(3_000, &run).code, Some(0), "not even a small model runs in 3 MB");
}

fn assert_refused<S: AsRef<str>>(name: &str, args: &[&str], parts: &[S]) {
    let ran = limited(LIMIT, args);
    println!("{name}: {}", ran.err.trim_end());
    ran.assert_error(1, parts);
    assert!(ran.err.len() < 1000, "{name}: {} bytes", ran.err.len());
}

/// Both commands refuse each case in the same words.
fn assert_all_refused(cases: Vec<Case>) {
    for case in cases {
        let dir = tempfile::tempdir().unwrap();
        (case.write)(dir.path());
        let path = dir.path().to_str().unwrap();
        assert_refused(case.name, &["run", "-m", path, "--prompt-ids", "1", "-n", "1"], case.expect);
        assert_refused(case.name, &["inspect", path], case.expect);
    }
}

#[test]
fn malformed_checkpoints() {
    let cases = corpus::cases();
    assert!(cases.len() >= 40, "{}", cases.len());
    assert_all_refused(cases);
}

#[test]
fn tensors_that_are_not_the_models() {
    assert_all_refused(corpus::unaccounted());
}

#[test]
fn configs_of_no_model() {
    let text: &[(&str, Value, &[&str])] = &[
        ("num_hidden_layers", json!(1_000_000_000u64), &["`text_config.num_hidden_layers`", "1000000000"]),
        ("num_hidden_layers", json!(0), &["`text_config.num_hidden_layers`"]),
        ("num_hidden_layers", json!(-1), &["`text_config.num_hidden_layers`", "-1"]),
        ("num_hidden_layers", json!("4"), &["`text_config.num_hidden_layers`", "\"4\""]),
        ("num_hidden_layers", json!(5), &["layer_types", "5 layers"]),
        ("hidden_size", json!(1u64 << 62), &["`text_config.hidden_size`", "4611686018427387904"]),
        ("hidden_size", json!(1e300), &["`text_config.hidden_size`"]),
        ("hidden_size", json!(33), &["shape [256, 33]", "[256, 32]"]),
        ("intermediate_size", json!(0), &["`text_config.intermediate_size`"]),
        ("head_dim", json!(15), &["`text_config.head_dim`", "an even number", "15"]),
        ("num_attention_heads", json!(0), &["`text_config.num_attention_heads`"]),
        ("num_attention_heads", json!(64), &["gate_proj", "1024"]),
        ("num_attention_heads", json!(1_048_576), &["`text_config.head_dim`", "1048576 heads"]),
        ("num_key_value_heads", json!(3), &["`text_config.num_key_value_heads`", "a divisor"]),
        ("vocab_size", json!(0), &["`text_config.vocab_size`"]),
        ("vocab_size", json!(u64::MAX), &["`text_config.vocab_size`", "18446744073709551615"]),
        ("vocab_size", json!(240), &["id", "240"]),
        ("layer_types", json!(["full_attention"]), &["`text_config.layer_types`", "4 layers"]),
        ("layer_types", json!(["a", "b", "c", "d"]), &["`text_config.layer_types`", "full_attention"]),
        ("layer_types", json!("full_attention"), &["`text_config.layer_types`", "a list"]),
        ("layer_rope_theta", json!([0]), &["`text_config.layer_rope_theta`", "4 layers"]),
        ("layer_rope_theta", json!([1, 2, 3, -4]), &["`text_config.layer_rope_theta"]),
        ("sliding_window", json!(0), &["`text_config.sliding_window`"]),
        ("max_position_embeddings", json!(0), &["`text_config.max_position_embeddings`"]),
        ("max_position_embeddings", json!(1u64 << 40), &["`text_config.max_position_embeddings`"]),
        ("eos_token_id", json!([241, 256]), &["`text_config.eos_token_id`", "256"]),
        ("eos_token_id", json!(-1), &["`text_config.eos_token_id`"]),
        ("bos_token_id", json!(256), &["`text_config.bos_token_id`", "256"]),
        ("attention_bias", json!(true), &["`text_config.attention_bias`", "false"]),
        ("tie_word_embeddings", json!(true), &["`text_config.tie_word_embeddings`"]),
        ("hidden_activation", json!("gelu"), &["`text_config.hidden_activation`", "`silu`"]),
        ("rope_parameters", json!({ "rope_type": "yarn" }), &["rope_type", "yarn"]),
        ("rms_norm_eps", json!(0), &["`text_config.rms_norm_eps`"]),
        ("qk_scale_factor", json!(-3.87), &["`text_config.qk_scale_factor`", "-3.87"]),
        ("output_multiplier", json!(null), &[]),
        ("final_logit_softcapping", json!(0), &["`text_config.final_logit_softcapping`"]),
    ];
    let top: &[(&str, Value, &[&str])] = &[
        ("model_type", json!("llama"), &["`model_type`", "`muse_glimmer`", "\"llama\""]),
        ("model_type", json!(null), &["`model_type`", "`muse_glimmer`"]),
        ("model_type", json!(7), &["`model_type`", "7"]),
        ("text_config", json!([]), &["`text_config`", "an object"]),
        ("text_config", json!(1), &["`text_config`", "an object"]),
    ];
    for (section, cases) in [("/text_config", text), ("", top)] {
        for (key, value, parts) in cases {
            let dir = tempfile::tempdir().unwrap();
            corpus::write_valid(dir.path());
            let mut config = corpus::config();
            config.pointer_mut(section).unwrap()[key] = value.clone();
            corpus::write_config(dir.path(), &config);
            let path = dir.path().to_str().unwrap();
            let name = format!("{key} {value}");
            let run = ["run", "-m", path, "--prompt-ids", "1", "-n", "1"];
            if parts.is_empty() {
                assert_eq!(limited(LIMIT, &run).code, Some(0), "{name}: null is as good as absent");
                continue;
            }
            let parts = [&["config.json"], *parts].concat();
            let parts =
                if parts.iter().any(|part| part.contains('[') || *part == "gate_proj") { &parts[1..] } else { &parts };
            assert_refused(&name, &run, parts);
            assert_refused(&name, &["inspect", path], parts);
        }
    }
}

/// Nano's assistant with another configuration.
fn drafter(dir: &Path, edit: impl FnOnce(&mut Value)) -> String {
    let assistant = repository("nano/assistant");
    let config = fs::read_to_string(format!("{assistant}/config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    edit(&mut config);
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    fs::copy(format!("{assistant}/model.safetensors"), dir.join("model.safetensors")).unwrap();
    dir.to_str().unwrap().to_string()
}

#[test]
fn drafters_that_do_not_fit() {
    let target = repository("nano/target");
    let misfit = "does not fit the target";
    let edits: &[(&str, Value, &[&str])] = &[
        ("hidden_size", json!(256), &[misfit, "hidden_size: expected 192, found 256"]),
        ("vocab_size", json!(2049), &[misfit, "vocab_size: expected 2048, found 2049"]),
        ("num_target_layers", json!(52), &[misfit, "num_target_layers: expected 8, found 52"]),
        ("target_layer_ids", json!([1, 2, 4, 5, 8]), &[misfit, "target_layer_ids", "found 8"]),
        ("target_layer_ids", json!([]), &["`target_layer_ids`", "at least one layer"]),
        ("target_layer_ids", json!([1, 2]), &["encoder.fc.weight", "[192, 384]", "[192, 960]"]),
        ("mask_token_id", json!(2048), &[misfit, "mask_token_id", "found 2048"]),
        ("final_logit_softcapping", json!(30.0), &[misfit, "final_logit_softcapping: expected 20, found 30"]),
        ("block_size", json!(1), &["`block_size`"]),
        ("block_size", json!(1_000_000), &["`block_size`", "1000000"]),
        ("num_hidden_layers", json!(1_000_000_000u64), &["`num_hidden_layers`", "1000000000"]),
        ("is_causal", json!(true), &["`is_causal`", "false"]),
        ("hidden_act", json!("gelu"), &["`hidden_act`", "`silu`"]),
        ("attention_bias", json!(true), &["`attention_bias`"]),
        ("dflash_config", json!({ "block_size": 8 }), &["`dflash_config.block_size`", "the same"]),
        ("architectures", json!(["Eagle9"]), &["unknown drafter architecture `Eagle9`", "MuseGlimmerAssistantModel"]),
        ("architectures", json!([]), &["`architectures`", "MuseGlimmerAssistantModel"]),
    ];
    for (key, value, parts) in edits {
        let dir = tempfile::tempdir().unwrap();
        let drafter = drafter(dir.path(), |config| config[key] = value.clone());
        let name = format!("{key} {value}");
        assert_refused(&name, &["run", "-m", &target, "-md", &drafter, "--prompt-ids", "1", "-n", "1"], parts);
        let table = glimmer(&["inspect", &target, "-md", &drafter]).ok();
        assert!(parts.iter().all(|part| table.contains(part)), "{name}: {table}");
    }
    let run = |model: &str, drafter: &str, parts: &[&str]| {
        let args = ["run", "-m", model, "-md", drafter, "--prompt-ids", "1", "-n", "1"];
        assert_refused(drafter, &args, parts);
    };
    let assistant = repository("nano/assistant");
    run(&assistant, &assistant, &["assistant/config.json", "`model_type`", "a drafter goes to --draft-model"]);
    run(&target, &target, &["unknown drafter architecture `MuseGlimmerForConditionalGeneration`"]);
    run(&target, &repository("fixtures/muse-tiny-assistant"), &[misfit, "hidden_size: expected 192, found 64"]);
    run(&repository("fixtures/muse-tiny-f32"), &assistant, &[misfit, "hidden_size: expected 48, found 192"]);
    let dir = tempfile::tempdir().unwrap();
    drafter(dir.path(), |_| {});
    run(&target, dir.path().join("absent").to_str().unwrap(), &["absent: no such file or directory"]);
}

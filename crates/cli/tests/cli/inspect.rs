//! `inspect`.

use crate::support::{glimmer, json, repository};
use serde_json::Value;

#[test]
fn nano_is_what_its_card_says() {
    let out = json(&["inspect", "nano"]);
    assert_eq!((&out["model"], &out["part"]), (&Value::from("nano"), &Value::from("target")));
    assert_eq!(out["architecture"], "MuseGlimmerForConditionalGeneration");
    assert_eq!((&out["parameters"], &out["vision_parameters"]), (&Value::from(4_233_408), &Value::from(0)));
    assert_eq!((&out["encodings"][0]["name"], &out["bytes"]), (&Value::from("bf16"), &Value::from(8_466_816)));
    assert_eq!((&out["tokenizer"], &out["chat_template"]), (&Value::from(true), &Value::from(true)));
    assert_eq!((&out["drafter"]["fits"], &out["drafter"]["block_size"]), (&Value::from(true), &Value::from(16)));
    assert_eq!(out["text"]["max_position_embeddings"], 4096);
    let table = glimmer(&["inspect", "nano"]).ok();
    for part in ["4.23 M", "8.47 MB", "8 (2 full, 6 sliding with a window of 128)", "yes: block of 16"] {
        assert!(table.contains(part), "{table}");
    }
}

#[test]
fn memory_follows_context_and_types() {
    // Two full layers of two heads of 32, keys and values, in pages of 256; a block of 16 may begin at the last position.
    let full =
        |args: &[&str]| json(&[&["inspect", "nano"], args].concat())["memory"]["cache_full_bytes"].as_u64().unwrap();
    let per_token = 2 * 2 * 2 * 32;
    assert_eq!(full(&["-c", "1000"]), 1024 * per_token * 4);
    assert_eq!(full(&["-c", "1000", "-ctk", "f16"]), 1024 * per_token * 3);
    assert_eq!(full(&["-c", "1000", "-ctv", "f16"]), 1024 * per_token * 3);
    assert_eq!(full(&["-c", "1000", "-ctk", "f16", "-ctv", "f16"]), 1024 * per_token * 2);
    // 8 bits: a scale of four bytes for each head of 32.
    assert_eq!(full(&["-c", "1000", "-ctk", "bf16", "-ctv", "q8"]), 1024 * 2 * 2 * (2 * 32 + 32 + 4));
    assert_eq!(full(&[]), 4352 * per_token * 4);
    let memory = &json(&["inspect", "nano", "-c", "64"])["memory"];
    let number = |field: &str| memory[field].as_u64().unwrap();
    let caches = ["cache_full_bytes", "cache_sliding_bytes", "cache_drafter_bytes"];
    let parts = [&["weights_bytes", "drafter_bytes", "passes_bytes"], &caches[..]].concat();
    assert_eq!(number("total_bytes"), parts.iter().map(|part| number(part)).sum::<u64>());
    assert!(parts.iter().all(|part| number(part) > 0), "{memory}");
    assert_eq!(memory["fits"], true);
    glimmer(&["inspect", "nano", "-c", "5000"]).assert_error(1, &["the context size is 5000", "2 to 4096"]);
}

#[test]
fn any_checkpoint_can_be_inspected() {
    let tiny = repository("fixtures/muse-tiny-bf16");
    let out = json(&["inspect", &tiny, "-md", &repository("fixtures/muse-tiny-assistant")]);
    assert!(out["vision_parameters"].as_u64().unwrap() > 0);
    assert_eq!((&out["tokenizer"], &out["memory"]["cache_type_k"]), (&Value::from(false), &Value::from("f16")));
    assert_eq!((&out["drafter"]["fits"], &out["drafter"]["block_size"]), (&Value::from(true), &Value::from(8)));
    let f32 = json(&["inspect", "-m", &repository("fixtures/muse-tiny-f32")]);
    assert_eq!((&f32["memory"]["cache_type_v"], &f32["drafter"]), (&Value::from("f32"), &Value::Null));

    let assistant = repository("nano/assistant");
    let misfit = json(&["inspect", &tiny, "-md", &assistant]);
    assert_eq!(misfit["drafter"]["fits"], false);
    assert!(misfit["drafter"]["why_not"].as_str().unwrap().contains("hidden_size: expected 64, found 192"), "{misfit}");
    assert!(glimmer(&["inspect", &tiny, "-md", &assistant]).ok().contains("drafter fits      no: "));
    let drafter = json(&["inspect", &assistant]);
    assert_eq!((&drafter["part"], &drafter["architecture"]), (&"drafter".into(), &"MuseGlimmerAssistantModel".into()));
    let config = serde_json::json!({
        "block_size": 16,
        "layers": 3,
        "sliding_window": 128,
        "target_layer_ids": [1, 2, 4, 5, 6],
        "mask_token_id": 2047,
        "hidden_size": 192,
        "intermediate_size": 384,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
    });
    assert_eq!(drafter["drafter_config"], config);
    let table = glimmer(&["inspect", &assistant]).ok();
    for part in [
        "part              drafter",
        "16 rows, 15 proposals",
        "layers            3",
        "128 tokens",
        "[1, 2, 4, 5, 6]",
        "2047",
    ] {
        assert!(table.contains(part), "{table}");
    }
    for more in [&["-md", "nano"][..], &["-c", "64"], &["-ctk", "f16"]] {
        glimmer(&[&["inspect", &assistant], more].concat()).assert_error(1, &["is a drafter", "a target's"]);
    }
}

#[test]
fn dflash_2_shows_what_it_adds() {
    let drafter = json(&["inspect", "nano-dflash2"]);
    assert_eq!((&drafter["part"], &drafter["architecture"]), (&"drafter".into(), &"DFlash2DraftModel".into()));
    assert_eq!((&drafter["model"], &drafter["drafter_config"]["block_size"]), (&"nano-dflash2".into(), &16.into()));
    let added =
        serde_json::json!({ "conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 32, "selector_top_k": 16 });
    assert_eq!(drafter["drafter_config"]["dflash2"], added);
    let table = glimmer(&["inspect", "nano-dflash2"]).ok();
    for part in ["of 2 rows, groups of 16 channels", "among 16 candidates, codes of 32", "[1, 2, 4, 5, 6]", "1.49 M"] {
        assert!(table.contains(part), "{table}");
    }
    let pair = json(&["inspect", "nano", "-md", "nano-dflash2"]);
    assert_eq!((&pair["drafter"]["model"], &pair["drafter"]["fits"]), (&"nano-dflash2".into(), &true.into()));
    assert_eq!(json(&["inspect", "nano"])["drafter"]["model"], "nano-assistant");
    assert_eq!(json(&["inspect", "nano", "-md", "nano-assistant"])["drafter"]["model"], "nano-assistant");
    let tiny = repository("fixtures/muse-tiny-bf16");
    let fixture = json(&["inspect", &tiny, "-md", &repository("fixtures/muse-tiny-dflash2")]);
    assert_eq!((&fixture["drafter"]["fits"], &fixture["drafter"]["block_size"]), (&true.into(), &8.into()));
}

/// The file itself comes of the tests of the engine; here it is one that is none.
#[test]
fn a_vision_tower_that_is_none_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mmproj.gguf");
    std::fs::write(&file, b"GGUF\x03\0\0\0").unwrap();
    let file = file.to_str().unwrap();
    glimmer(&["inspect", "nano", "--mmproj", file]).assert_error(1, &[file]);
    glimmer(&["run", "-mm", file, "-p", "x", "-n", "1", "-q"]).assert_error(1, &[file]);
    let assistant = repository("nano/assistant");
    glimmer(&["inspect", "nano", "--mmproj", &assistant]).assert_error(1, &["model_type", "mmproj"]);
}

//! The registry of drafters, on configurations and headers alone.

use glimmer_engine::inspect::{Part, Report, inspect};
use glimmer_engine::{EngineError, EngineOptions, Source};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::Write;

/// Names and shapes.
type Tensors = Vec<(String, Vec<u64>)>;
type Damage = fn(&mut Tensors);

/// A checkpoint without weights: a header, and a file that is as long as the header says and holds nothing.
fn headers(config: &Value, tensors: &[(String, Vec<u64>)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (mut table, mut end) = (Map::new(), 0);
    for (name, shape) in tensors {
        let bytes = 2 * shape.iter().product::<u64>();
        table.insert(name.clone(), json!({ "dtype": "BF16", "shape": shape, "data_offsets": [end, end + bytes] }));
        end += bytes;
    }
    let table = Value::Object(table).to_string();
    let mut file = File::create(dir.path().join("model.safetensors")).unwrap();
    file.write_all(&(table.len() as u64).to_le_bytes()).unwrap();
    file.write_all(table.as_bytes()).unwrap();
    file.set_len(8 + table.len() as u64 + end).unwrap();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    dir
}

fn look(dir: &tempfile::TempDir) -> Result<Report, EngineError> {
    inspect(&EngineOptions::new(Source::Path(dir.path().into())))
}

/// Why a drafter does not fit nano.
fn refused(dir: &tempfile::TempDir) -> String {
    let drafter = Some(Source::Path(dir.path().into()));
    let report = inspect(&EngineOptions { drafter, ..EngineOptions::new(Source::Nano) }).unwrap();
    let Part::Target { drafter: Some((_, Err(why))), .. } = report.part else { panic!("{report:?}") };
    assert!(!why.contains('\n'), "{why}");
    why
}

/// The published assistant.
fn v1() -> (Value, Tensors) {
    let config = json!({
        "architectures": ["MuseGlimmerAssistantModel"], "model_type": "muse_glimmer_assistant", "hidden_size": 6656,
        "intermediate_size": 19968, "num_hidden_layers": 5, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "rms_norm_eps": 1e-5, "hidden_act": "silu", "attention_dropout": 0.0,
        "max_position_embeddings": 131072, "rope_parameters": { "rope_theta": 500000.0, "rope_type": "default" },
        "layer_types": vec!["sliding_attention"; 5], "sliding_window": 2048, "block_size": 16, "mask_token_id": 201818,
        "target_layer_ids": [1, 13, 25, 37, 49],
    });
    let mut tensors = layers();
    tensors.push(("encoder.fc.weight".into(), vec![6656, 33280]));
    tensors.push(("encoder.output_norm_enc.weight".into(), vec![6656]));
    (config, tensors)
}

/// The published DFlash 2.
fn v2() -> (Value, Tensors) {
    let config = json!({
        "architectures": ["DFlash2DraftModel"], "model_type": "qwen3", "attention_bias": false, "attention_dropout": 0.0,
        "is_causal": false, "head_dim": 128, "hidden_act": "silu", "hidden_size": 6656, "intermediate_size": 19968,
        "layer_types": vec!["sliding_attention"; 5], "max_position_embeddings": 131072, "max_window_layers": 5,
        "num_attention_heads": 32, "num_hidden_layers": 5, "num_key_value_heads": 8, "num_target_layers": 52,
        "rms_norm_eps": 1e-5, "rope_parameters": { "rope_theta": 500000.0, "rope_type": "default" },
        "sliding_window": 2048, "tie_word_embeddings": false, "use_cache": false, "use_sliding_window": true,
        "vocab_size": 202048,
        "dflash_config": {
            "block_size": 16, "conv_group_size": 16, "conv_kernel_size": 2, "final_logit_softcapping": 20.0,
            "mask_token_id": 201818, "output_multiplier": 0.19611613513818404, "selector_rank": 256, "selector_top_k": 16,
            "target_layer_ids": [1, 13, 25, 37, 49],
        },
    });
    let mut tensors = layers();
    tensors.push(("fc.weight".into(), vec![6656, 33280]));
    tensors.push(("hidden_norm.weight".into(), vec![6656]));
    for part in (0..5).flat_map(|layer| ["attention", "mlp"].map(|part| format!("layers.{layer}.{part}_conv"))) {
        tensors.push((format!("{part}.base_kernel"), vec![2, 2, 6656]));
        tensors.push((format!("{part}.kernel_projection.weight"), vec![1664, 6656]));
    }
    for codebook in ["predecessor_codebook", "successor_codebook"] {
        tensors.push((format!("candidate_selector.{codebook}"), vec![202048, 256]));
    }
    tensors.push(("candidate_selector.hidden_projection.weight".into(), vec![256, 6656]));
    (config, tensors)
}

/// What both have.
fn layers() -> Tensors {
    let parts: [(&str, &[u64]); 11] = [
        ("input_layernorm", &[6656]),
        ("post_attention_layernorm", &[6656]),
        ("self_attn.q_proj", &[4096, 6656]),
        ("self_attn.k_proj", &[1024, 6656]),
        ("self_attn.v_proj", &[1024, 6656]),
        ("self_attn.o_proj", &[6656, 4096]),
        ("self_attn.q_norm", &[128]),
        ("self_attn.k_norm", &[128]),
        ("mlp.gate_proj", &[19968, 6656]),
        ("mlp.up_proj", &[19968, 6656]),
        ("mlp.down_proj", &[6656, 19968]),
    ];
    let name = |layer: usize, part: &str| format!("layers.{layer}.{part}.weight");
    let all = (0..5).flat_map(|layer| parts.map(|(part, shape)| (name(layer, part), shape.to_vec())));
    all.chain([("norm.weight".to_string(), vec![6656])]).collect()
}

#[test]
fn published_drafters_are_known_without_a_weight() {
    for ((config, tensors), architecture, count, dflash2) in
        [(v1(), "MuseGlimmerAssistantModel", 58, false), (v2(), "DFlash2DraftModel", 81, true)]
    {
        let report = look(&headers(&config, &tensors)).unwrap();
        assert_eq!((report.architecture.as_str(), report.tensors), (architecture, count));
        let Part::Drafter(found) = report.part else { panic!("{architecture} is a drafter") };
        assert_eq!((found.hidden_size, found.intermediate_size, found.num_hidden_layers), (6656, 19968, 5));
        assert_eq!((found.num_attention_heads, found.num_key_value_heads, found.head_dim), (32, 8, 128));
        assert_eq!((found.block_size, found.mask_token_id, found.sliding_window), (16, 201_818, 2048));
        assert_eq!(found.target_layer_ids, [1, 13, 25, 37, 49]);
        assert_eq!((found.rms_norm_eps, found.rope_theta), (1e-5, 500_000.0));
        assert_eq!(found.dflash2.is_some(), dflash2);
        // What is left out is what is published.
        let mut short = json!({ "architectures": config["architectures"], "model_type": config["model_type"] });
        let Part::Drafter(silent) = look(&headers(&short, &tensors)).unwrap().part else { panic!("{short}") };
        assert_eq!(silent, found);
        // And it does not fit nano, which is said before a weight is read.
        short["hidden_size"] = 6656.into();
        assert!(refused(&headers(&short, &tensors)).contains("hidden_size: expected 192, found 6656"));
        // A tensor too few, one too many, one of another shape.
        let faults: [(Damage, &str); 3] = [
            (|all| drop(all.pop()), "expected shape ["),
            (|all| all.push(("layers.5.input_layernorm.weight".into(), vec![6656])), "only tensors of the model"),
            (|all| all[2].1 = vec![4096, 6658], "expected shape [4096, 6656]"),
        ];
        for (damage, expected) in faults {
            let mut tensors = tensors.clone();
            damage(&mut tensors);
            let error = look(&headers(&config, &tensors)).unwrap_err().to_string();
            assert!(error.contains("model.safetensors") && error.contains(expected), "{error}");
        }
    }
    // Nor is one read as the other.
    let ((config, _), (_, tensors)) = (v1(), v2());
    let error = look(&headers(&config, &tensors)).unwrap_err().to_string();
    assert!(error.contains("`encoder.fc.weight`"), "{error}");
}

#[test]
fn an_unknown_drafter_is_named_with_those_that_are_known() {
    let known = "MuseGlimmerAssistantModel, DFlash2DraftModel";
    for (architectures, found) in [
        (json!(["DSparkDraftModel"]), "unknown drafter architecture `DSparkDraftModel`"),
        (json!(["LlamaForCausalLMEagle3"]), "unknown drafter architecture `LlamaForCausalLMEagle3`"),
        (json!([]), "field `architectures`"),
        (json!(null), "field `architectures`"),
    ] {
        let config = json!({ "architectures": architectures, "speculators_model_type": "dspark", "block_size": 15 });
        let why = refused(&headers(&config, &[("markov.weight".into(), vec![4, 4])]));
        assert!(why.contains(found) && why.contains(known), "{why}");
    }
}

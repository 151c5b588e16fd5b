//! Checkpoints that are damaged in ways only the arithmetic or a generation can show, and settings that cannot be honoured.

use crate::gguf_writer;
use crate::support::{Pair, copy, edit, fresh, greedy, load, overwrite, path, request};
use glimmer_encoding::{Encoding, FloatType, GgmlType};
use glimmer_engine::stops::StopRule;
use glimmer_engine::{Engine, EngineOptions, Event, Finish, Flow, Output, Request, Source};
use serde_json::{Value, json};

fn target(dir: &tempfile::TempDir) -> EngineOptions {
    EngineOptions { target: Source::Path(dir.path().into()), drafter: None, ..Pair::Tiny.options() }
}

fn refusal(options: &EngineOptions) -> String {
    let message = Engine::load(options, &mut |_| {}).err().expect("refused").to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

#[test]
fn weights_that_are_not_finite_are_refused_by_name() {
    for (tensor, element, place) in [
        ("lm_head.weight", 3 * 64 + 5, "row 3, column 5"),
        ("model.language_model.layers.2.self_attn.gate_proj.weight", 64, "row 1, column 0"),
        ("model.language_model.layers.7.input_layernorm.weight", 9, "column 9"),
        ("model.language_model.norm.weight", 0, "column 0"),
    ] {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let dir = copy("fixtures/muse-tiny-bf16");
            overwrite(&dir, tensor, element..element + 1, value);
            let message = refusal(&target(&dir));
            assert!(message.contains(tensor) && message.contains(place), "{message}");
            assert!(message.contains("model.safetensors"), "{message}");
        }
    }
    for (tensor, element, place) in [
        ("layers.1.mlp_conv.base_kernel", 3 * 64 + 5, "row 3, column 5"),
        ("layers.2.attention_conv.kernel_projection.weight", 64, "row 1, column 0"),
        ("candidate_selector.successor_codebook", 500 * 8 + 7, "row 500, column 7"),
        ("candidate_selector.hidden_projection.weight", 1, "row 0, column 1"),
    ] {
        let dir = copy("fixtures/muse-tiny-dflash2");
        overwrite(&dir, tensor, element..element + 1, f32::NAN);
        let drafter = Some(Source::Path(dir.path().into()));
        let message = refusal(&EngineOptions { drafter, ..Pair::Tiny.options() });
        assert!(message.contains(tensor) && message.contains(place), "{message}");
    }
}

#[test]
fn scales_that_are_not_finite_are_refused_by_name() {
    let tiny = glimmer_checkpoint::open(&path("fixtures/muse-tiny-bf16")).unwrap();
    // Where a block has its scale, and one that is not a number: f16, or the exponent of e8m0.
    let f16: &[u8] = &[0, 0x7e];
    for (kind, at, nan) in [
        (GgmlType::Q4_0, 0, f16),
        (GgmlType::Q5_1, 2, f16),
        (GgmlType::Q8_0, 0, f16),
        (GgmlType::Iq4Nl, 0, f16),
        (GgmlType::MxFp4, 0, &[255]),
    ] {
        let bf16 = Encoding::Dense(FloatType::BF16);
        let mut file =
            gguf_writer::target(&tiny, |_, cols| if cols.is_multiple_of(32) { Encoding::Ggml(kind) } else { bf16 });
        let data = &mut file.entry("blk.2.ffn_up.weight").data;
        // The second block of the second row.
        let start = 3 * kind.block_bytes() + at;
        data[start..start + nan.len()].copy_from_slice(nan);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("x.gguf"), file.bytes()).unwrap();
        let options = EngineOptions::new(Source::Path(dir.path().join("x.gguf")));
        let message = refusal(&EngineOptions { context: Some(64), ..options });
        let parts = ["x.gguf", "`blk.2.ffn_up.weight`", "row 1, column 3", "not finite"];
        assert!(parts.iter().all(|part| message.contains(part)), "{kind}: {message}");
    }
    for part in ["scales", "biases"] {
        let dir = copy("fixtures/muse-tiny-mlx-vlm-4bit");
        overwrite(&dir, &format!("language_model.lm_head.{part}"), 3..4, f32::NAN);
        let message = refusal(&EngineOptions { context: Some(64), ..target(&dir) });
        assert!(message.contains("lm_head.weight`") && message.contains("not finite"), "{part}: {message}");
    }
}

#[test]
fn where_the_output_stopped_being_finite_is_named() {
    for (tensor, elements, position, place) in [
        // An overflow in the MLP of layer 2 hits every row; one in the embedding of token 5 its own row.
        ("model.language_model.layers.2.mlp.down_proj.weight", 0..48 * 64, 0, "first after layer 2"),
        ("model.language_model.embed_tokens.weight", 5 * 48..6 * 48, 3, "in the embedding"),
        ("lm_head.weight", 0..48, 6, "in the logits"),
    ] {
        let dir = copy("fixtures/muse-tiny-f32");
        overwrite(&dir, tensor, elements, 3e38);
        for chunk in [2, 512] {
            let engine = load(&EngineOptions { prefill_chunk: chunk, ..target(&dir) });
            let mut session = engine.session().unwrap();
            let wanted = request(&[1, 2, 3, 5, 4, 3, 2], &greedy(), 1, 4);
            for _ in 0..2 {
                let message = session.generate(&wanted, &mut |_| Flow::Continue).unwrap_err().to_string();
                assert!(message.contains(&format!("position {position}: {place}")), "{tensor} by {chunk}: {message}");
            }
            assert!(session.tokens().is_empty());
            // Step by step, nothing follows the step that failed.
            let mut ongoing = session.start(wanted).unwrap();
            while let Ok(goes_on) = ongoing.step(&mut |_| Flow::Continue) {
                assert!(goes_on, "{tensor} by {chunk}");
            }
            assert!(!ongoing.step(&mut |_| Flow::Continue).unwrap());
            assert!(ongoing.finish().token_ids.is_empty());
        }
    }
}

#[test]
fn a_drafter_that_fails_is_turned_off_and_the_output_stays() {
    for (fixture, tensor, elements) in [
        ("muse-tiny-assistant", "norm.weight", 0..64),
        ("muse-tiny-dflash2", "norm.weight", 0..64),
        ("muse-tiny-dflash2", "layers.1.attention_conv.base_kernel", 0..64),
        ("muse-tiny-dflash2", "candidate_selector.successor_codebook", 0..512 * 8),
    ] {
        let dir = copy(&format!("fixtures/{fixture}"));
        overwrite(&dir, tensor, elements, 3e38);
        let engine = load(&EngineOptions { drafter: Some(Source::Path(dir.path().into())), ..Pair::Tiny.options() });
        let prompt = Pair::Tiny.prompts()[0].clone();
        let mut notices = Vec::new();
        let out = engine.session().unwrap().generate(&request(&prompt, &greedy(), 5, 20), &mut |event| {
            if let Event::Notice(notice) = event {
                notices.push(notice);
            }
            Flow::Continue
        });
        assert_eq!(out.unwrap().token_ids, fresh(&engine, &request(&prompt, &greedy(), 1, 20)).token_ids, "{tensor}");
        assert_eq!(notices.len(), 1, "{tensor}: {notices:?}");
        assert!(notices[0].contains("the drafter is off"), "{notices:?}");
    }
}

#[test]
fn a_chat_ends_with_its_turn_whatever_the_checkpoint_lists() {
    let dir = copy("nano/target");
    std::fs::remove_file(dir.path().join("generation_config.json")).unwrap();
    let engine = load(&EngineOptions { target: Source::Path(dir.path().into()), ..Pair::Nano.options() });
    let stop = StopRule { max_tokens: Some(300), ..StopRule::default() };
    let prompt = Pair::Nano.prompts()[2].clone();
    let wanted = Request { stop, output: Output::Chat, ..request(&prompt, &greedy(), 5, 0) };
    let out = fresh(&engine, &wanted);
    assert_eq!((out.finish, out.text.as_deref()), (Finish::Stop, Some("23 + 45 = 79.")));
    let defaults = engine.default_sampling();
    assert_eq!((defaults.temperature, defaults.top_p, defaults.top_k), (1.0, 0.95, 64));
}

#[test]
fn messages_to_tools_are_kept() {
    let engine = Pair::Nano.engine();
    let prompt = Pair::Nano.prompts()[4].clone();
    let stop = StopRule { max_tokens: Some(200), ..StopRule::default() };
    let out = fresh(&engine, &Request { stop, output: Output::Chat, ..request(&prompt, &greedy(), 5, 0) });
    assert_eq!(out.tool_messages.len(), 1);
    assert_eq!(out.tool_messages[0].recipient, "get_weather");
    assert!(out.tool_messages[0].text.contains("<atem:invoke name=\"get_weather\">"), "{out:?}");
}

#[test]
fn an_id_that_no_token_has_gives_no_text() {
    let dir = copy("nano/target");
    edit(&dir, "tokenizer.json", |tokenizer| {
        let added = tokenizer["added_tokens"].as_array_mut().unwrap();
        added.retain(|token| token["id"] != 2047);
    });
    let engine =
        load(&EngineOptions { target: Source::Path(dir.path().into()), drafter: None, ..Pair::Nano.options() });
    let mut wanted = Request { output: Output::Text, ..request(&[2000, 40], &greedy(), 1, 3) };
    wanted.sampling.logit_bias = vec![(2047, 100.0)];
    let out = fresh(&engine, &wanted);
    assert_eq!((out.token_ids, out.text.as_deref()), (vec![2047; 3], Some("")));
}

#[test]
fn settings_that_cannot_be_honoured_are_refused() {
    type Change = fn(&mut Value);
    let cases: &[(&str, Change, &str)] = &[
        ("generation_config.json", |c| c["num_beams"] = json!(4), "num_beams"),
        ("generation_config.json", |c| c["no_repeat_ngram_size"] = json!(3), "no_repeat_ngram_size"),
        ("generation_config.json", |c| c["suppress_tokens"] = json!([5]), "suppress_tokens"),
        ("generation_config.json", |c| c["typical_p"] = json!(0.5), "typical_p"),
        ("generation_config.json", |c| c["top_p"] = json!(0.0), "top_p"),
        ("generation_config.json", |c| c["eos_token_id"] = json!([9999]), "eos_token_id"),
        (
            "config.json",
            |c| c["text_config"]["rope_parameters"]["sliding_attention"] = json!({"rope_type": "yarn"}),
            "rope_type",
        ),
        ("config.json", |c| c["text_config"]["rope_scaling"] = json!({"type": "linear"}), "type"),
        ("config.json", |c| c["text_config"]["head_dim"] = json!(1_048_576), "head_dim"),
        ("config.json", |c| c["text_config"]["hidden_activation"] = json!("gelu"), "silu"),
    ];
    for (file, change, expected) in cases {
        let dir = copy("nano/target");
        edit(&dir, file, change);
        let message = refusal(&target(&dir));
        assert!(message.contains(file) && message.contains(expected), "{message}");
    }
    // Neutral values are none of them.
    let dir = copy("nano/target");
    edit(&dir, "generation_config.json", |c| {
        c["num_beams"] = json!(1);
        c["suppress_tokens"] = json!([]);
        c["typical_p"] = json!(1.0);
        c["presence_penalty"] = json!(0.25);
    });
    edit(&dir, "config.json", |c| {
        // A native export: the factor comes multiplied by sqrt(head_dim), and the end token stands outside.
        c["text_config"]["qk_scale_factor"] = json!(3.87 * 32f64.sqrt());
        c["text_config"]["eos_token_id"] = Value::Null;
        c["eos_token_id"] = json!(2008);
    });
    let engine = load(&target(&dir));
    assert_eq!(engine.default_sampling().presence_penalty, 0.25);
    let prompt = Pair::Nano.prompts()[3].clone();
    let out = fresh(&engine, &request(&prompt, &greedy(), 1, 30));
    assert_eq!(out.token_ids, fresh(&Pair::Nano.engine(), &request(&prompt, &greedy(), 1, 30)).token_ids);
}

#[test]
fn windows_beyond_the_context_cost_nothing() {
    let dir = copy("fixtures/muse-tiny-bf16");
    edit(&dir, "config.json", |c| c["text_config"]["sliding_window"] = json!(1 << 28));
    let engine = load(&EngineOptions { context: Some(64), ..target(&dir) });
    assert_eq!(fresh(&engine, &request(&[1, 2, 3], &greedy(), 1, 61)).token_ids.len(), 61);
}

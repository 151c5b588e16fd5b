//! Checkpoints in other encodings and containers: what is written reads as what it was made of.

use crate::support::{bits, fresh, greedy, load, path, request};
use glimmer_checkpoint::Checkpoint;
use glimmer_encoding::Encoding;
use glimmer_engine::quantize::{Quantize, Recipe, Written, check};
use glimmer_engine::synth::{Shape, StoredAs, Synth};
use glimmer_engine::{EngineError, EngineOptions, NanoDrafter, Source};
use glimmer_model::dflash::DFlashConfig;
use glimmer_model::muse::MuseConfig;
use std::path::Path;

const OWN: &str = "format = \"mlx\"\nencoding = \"affine4g32\"\n[[rule]]\nmodules = [\"lm_head\"]\nencoding = \"mxfp8\"\n\
    [[rule]]\nmodules = [\"v_proj\"]\nencoding = \"nvfp4\"\n[[rule]]\nmodules = [\"mlp.*\"]\nlayers = [1, -2]\nevery = 2\nencoding = \"bf16\"\n";

fn tiny() -> Source {
    Source::Path(path("fixtures/muse-tiny-bf16"))
}

fn assistant() -> Source {
    Source::Path(path("fixtures/muse-tiny-assistant"))
}

fn job(source: Source, recipe: &str) -> Quantize {
    let recipe = Recipe::open(recipe).or_else(|_| Recipe::parse("own", recipe)).unwrap();
    Quantize { source, recipe, importance: None, tokenizer: None, threads: Some(2) }
}

fn write(source: Source, recipe: &str, to: &Path) -> Written {
    job(source, recipe).write(to, &mut |_, _| true).unwrap().unwrap()
}

fn values(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    checkpoint.read(name).unwrap().view().to_f32()
}

fn text(checkpoint: &Checkpoint) -> glimmer_model::muse::TextConfig {
    MuseConfig::from_checkpoint(checkpoint).unwrap().text
}

#[test]
fn floats_come_back_bit_by_bit() {
    let dir = tempfile::tempdir().unwrap();
    for (i, (source, recipe)) in
        [(Source::Nano, "gguf-bf16"), (Source::Nano, "hf-bf16"), (tiny(), "gguf-bf16"), (tiny(), "hf-bf16")]
            .iter()
            .enumerate()
    {
        let out = dir.path().join(i.to_string());
        let written = write(source.clone(), recipe, &out);
        let (before, after) = (source.open_target().unwrap(), glimmer_checkpoint::open(&out).unwrap());
        assert_eq!(before.tensors().len() - after.tensors().len(), written.left_out, "{recipe}");
        for info in after.tensors() {
            let [before, after] = [&before, &after].map(|checkpoint| values(checkpoint, &info.name));
            match info.name.ends_with("layernorm.weight") && *recipe == "gguf-bf16" {
                // One was added, and taken away again.
                true => assert!(before.iter().zip(&after).all(|(a, b)| (a - b).abs() <= 1.2e-7), "{}", info.name),
                false => assert_eq!(bits(&before), bits(&after), "{}", info.name),
            }
        }
        let (before, mut after) = (text(&before), text(&after));
        after.eos_token_id = before.eos_token_id.clone();
        assert_eq!(before, after, "{recipe}");
    }
}

#[test]
fn a_gguf_file_brings_tokenizer_and_template() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("nano.gguf");
    write(Source::Nano, "gguf-bf16", &out);
    let [before, after] = [Source::Nano, Source::Path(out.clone())].map(|source| load(&EngineOptions::new(source)));
    for text in ["def f(x):\n    return x + 1\n", "naïve ⏎ 12345 <|eot|> <|start|>", "  \n\n\tx"] {
        let ids = before.encode_raw(text).unwrap();
        assert_eq!(after.encode_raw(text).unwrap(), ids, "{text}");
    }
    assert_eq!((before.eos(), before.default_sampling()), (after.eos(), after.default_sampling()));
    let template = |source: &Source| source.open_target().unwrap().file("chat_template.jinja").unwrap().unwrap();
    assert_eq!(template(&Source::Nano), template(&Source::Path(out)));
    let prompt = before.encode_raw("def ").unwrap();
    let of = |engine| fresh(engine, &request(&prompt, &greedy(), 1, 24)).token_ids;
    assert_eq!(of(&before), of(&after));
}

#[test]
fn eight_bits_are_near_and_four_bits_not_far() {
    let dir = tempfile::tempdir().unwrap();
    for (recipe, most) in [
        ("mlx-8bit", 1e-3),
        ("gguf-q8_0", 1e-3),
        ("gguf-bf16", 1e-9),
        ("mlx-4bit", 0.1),
        ("ud-q4", 0.05),
        ("mlx-mxfp4", 0.2),
    ] {
        let out = dir.path().join(recipe);
        write(Source::Nano, recipe, &out);
        let score = check(&out, &Source::Nano, Some(2), &mut |_, _| true).unwrap().unwrap();
        let kl = score.distance.unwrap().kl_mean;
        println!("{recipe}: {kl:e}");
        assert!(kl < most && score.tokens > 100, "{recipe}: {kl}");
    }
    // Without a tokenizer too. Random weights are far more sensitive, and any 8 bits are about as far.
    let out = dir.path().join("tiny");
    for (recipe, out) in [("gguf-q8_0", dir.path().join("tiny.gguf")), ("mlx-8bit", out.clone())] {
        write(tiny(), recipe, &out);
        let score = check(&out, &tiny(), None, &mut |_, _| true).unwrap().unwrap();
        let kl = score.distance.unwrap().kl_mean;
        println!("{recipe}, random weights: {kl:e}");
        assert!(kl < 0.02 && score.tokens > 90, "{recipe}: {kl}");
    }
    assert!(check(&out, &tiny(), None, &mut |_, _| false).unwrap().is_none());
}

#[test]
fn settings_of_modules_are_those_of_the_recipe() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("own");
    let written = write(tiny(), OWN, &out);
    assert_eq!((written.left_out, written.exceptions.len()), (0, 0));
    let config: serde_json::Value = serde_json::from_slice(&std::fs::read(out.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["quantization"], config["quantization_config"]);
    let setting = |module: &str| config["quantization"][module].to_string();
    // By the names of both loaders.
    for module in ["lm_head", "language_model.lm_head"] {
        assert_eq!(setting(module), r#"{"group_size":32,"bits":8,"mode":"mxfp8"}"#);
    }
    for module in ["language_model.model.layers.5.mlp.up_proj", "model.layers.5.mlp.up_proj"] {
        assert_eq!(setting(module), "false");
    }
    assert_eq!(setting("model.layers.4.mlp.up_proj"), "null");
    let checkpoint = glimmer_checkpoint::open(&out).unwrap();
    let encoding =
        |name: &str| checkpoint.tensor(&format!("model.language_model.layers.{name}.weight")).unwrap().encoding;
    let StoredAs(affine) = "affine4g32".parse().unwrap();
    let StoredAs(bf16) = "bf16".parse().unwrap();
    assert_eq!((encoding("3.self_attn.v_proj"), encoding("3.self_attn.q_proj")), (Encoding::NvFp4, affine));
    let dense = [1, 3, 5].map(|layer| encoding(&format!("{layer}.mlp.down_proj")));
    assert_eq!((dense, encoding("7.mlp.down_proj"), encoding("0.mlp.down_proj")), ([bf16; 3], affine, affine));
    // A file with the names that mlx-vlm knows, and images as they were.
    let raw = checkpoint.tensor("model.vision_projection.weight").unwrap();
    assert_eq!((raw.codes.name.as_str(), raw.encoding), ("vision_projection.weight", bf16));
    load(&EngineOptions::new(Source::Path(out)));
}

#[test]
fn matrices_that_do_not_divide_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    // Rows of 64, 96 and 128.
    for (recipe, count, stored) in [("mlx-8bit", 8, "bf16"), ("gguf-q4_k_m", 66, "q8_0")] {
        let out = dir.path().join(recipe);
        let written = write(tiny(), recipe, &out);
        assert_eq!(written.exceptions.len(), count, "{recipe}");
        let checkpoint = glimmer_checkpoint::open(&out).unwrap();
        for exception in &written.exceptions {
            let info = checkpoint.tensor(&exception.name).unwrap();
            assert_eq!((info.encoding, info.encoding.to_string().as_str()), (exception.stored, stored), "{recipe}");
            assert!(!exception.width.is_multiple_of(exception.asked.block()));
        }
        load(&EngineOptions::new(Source::Path(out)));
    }
    // Rows of 48, which nothing of 32 divides.
    let odd = Source::Path(path("fixtures/muse-tiny-f32"));
    let written = write(odd, "gguf-q8_0", &dir.path().join("odd"));
    assert!(written.exceptions.iter().all(|e| e.width == 48 && e.stored.to_string() == "bf16"));
    assert!(!written.exceptions.is_empty());
}

#[test]
fn drafters_are_quantized_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let engine = load(&EngineOptions { context: Some(64), ..EngineOptions::new(tiny()) });
    let prompt: Vec<u32> = (3..15).map(|i| i * 31).collect();
    let expected = fresh(&engine, &request(&prompt, &greedy(), 1, 12)).token_ids;
    let config = |source: &Source| DFlashConfig::from_fields(&source.open_drafter().unwrap().fields()).unwrap();
    for (name, source) in [("v1", assistant()), ("v2", Source::Path(path("fixtures/muse-tiny-dflash2")))] {
        for recipe in ["mlx-4bit", "mlx-8bit", "mlx-mxfp4", "gguf-q8_0", "gguf-bf16", "hf-bf16"] {
            let out = dir.path().join(format!("{name}-{recipe}"));
            let written = write(source.clone(), recipe, &out);
            assert!(written.drafter, "{recipe}");
            let drafter = Source::Path(out);
            assert_eq!(config(&drafter), config(&source), "{recipe}");
            let options = EngineOptions { drafter: Some(drafter), context: Some(64), ..EngineOptions::new(tiny()) };
            let engine = load(&options);
            assert_eq!(fresh(&engine, &request(&prompt, &greedy(), 4, 12)).token_ids, expected, "{recipe}");
        }
    }
    let out = dir.path().join("with-tokenizer");
    let own = Quantize { tokenizer: Some(Source::Nano), ..job(assistant(), "gguf-q8_0") };
    own.write(&out, &mut |_, _| true).unwrap();
    assert!(glimmer_checkpoint::open(&out).unwrap().file("tokenizer.json").unwrap().is_some());
}

/// Codebooks are quantized as embeddings are, and have their names again once they are read.
#[test]
fn drafters_of_any_container_propose_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let nano = |drafter: Source| EngineOptions { drafter: Some(drafter), ..EngineOptions::new(Source::Nano) };
    let prompt: Vec<u32> = (3..40).map(|i| i * 31 % 1900).collect();
    let proposals = |drafter: Source| -> Vec<Vec<u32>> {
        let out = fresh(&load(&nano(drafter)), &request(&prompt, &greedy(), 16, 40));
        out.rounds.into_iter().map(|round| round.proposals).collect()
    };
    for own in [NanoDrafter::Assistant, NanoDrafter::DFlash2] {
        let source = Source::NanoDrafter(own);
        let at = |name: &str| Source::Path(dir.path().join(format!("{own:?}-{name}")));
        let make = |from: &Source, recipe: &str, to: &str| {
            write(from.clone(), recipe, &dir.path().join(format!("{own:?}-{to}")))
        };
        // Floats as they were.
        make(&source, "gguf-bf16", "gguf");
        make(&at("gguf"), "hf-bf16", "hf");
        let expected = proposals(source.clone());
        assert_eq!(proposals(at("gguf")), expected);
        assert_eq!(proposals(at("hf")), expected);
        // Rows of a code have 32 elements.
        let exceptions = make(&source, "mlx-4bit-gs32", "mlx").exceptions;
        assert!(exceptions.is_empty(), "{exceptions:?}");
        let checkpoint = at("mlx").open_drafter().unwrap();
        let quantized = checkpoint.tensors().iter().filter(|t| t.scales.is_some()).count();
        assert_eq!(quantized, checkpoint.tensors().iter().filter(|t| t.shape.len() == 2).count());
        make(&at("mlx"), "hf-bf16", "hf-of-mlx");
        let back = at("hf-of-mlx").open_drafter().unwrap();
        let name = |t: &glimmer_checkpoint::TensorInfo| t.name.clone();
        assert!(back.tensors().iter().map(name).eq(source.open_drafter().unwrap().tensors().iter().map(name)));
        // Coarse, and still a drafter of the same tokens at large.
        let (ours, exact) = (proposals(at("mlx")), &expected);
        let same = ours.iter().flatten().zip(exact.iter().flatten()).filter(|(a, b)| a == b).count();
        assert!(same * 2 > exact.iter().flatten().count(), "{same}");
    }
}

#[test]
fn any_container_becomes_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    // K-quants take rows of 256.
    let StoredAs(bf16) = "bf16".parse().unwrap();
    let synth = Synth { shape: Shape::Tiny, encoding: StoredAs(bf16), container: None, drafter: false, seed: 3 };
    synth.write(&at("source"), &mut |_, _| true).unwrap();
    let source = Source::Path(at("source"));
    let mixed = write(source, "gguf-q4_k_m", &at("k"));
    assert!(mixed.exceptions.is_empty() && ["q4_k", "q6_k"].iter().all(|k| mixed.encodings.iter().any(|e| e.0 == *k)));
    // What is stored in the encoding already is copied.
    let q6 = "format = \"gguf\"\nencoding = \"q4_k\"\n[[rule]]\nmodules = [\"lm_head\"]\nencoding = \"q8_0\"";
    write(Source::Path(at("k")), q6, &at("again"));
    let [first, again] = ["k", "again"].map(|name| glimmer_checkpoint::open(&at(name)).unwrap());
    let same = "model.language_model.layers.3.mlp.up_proj.weight";
    assert_eq!(first.read(same).unwrap().parts(), again.read(same).unwrap().parts());
    for (from, recipe, to) in [("k", "mlx-4bit", "mlx"), ("mlx", "gguf-q8_0", "q8"), ("q8", "hf-bf16", "hf")] {
        write(Source::Path(at(from)), recipe, &at(to));
        let engine = load(&EngineOptions { context: Some(64), ..EngineOptions::new(Source::Path(at(to))) });
        assert!(engine.tokenizer().is_some(), "{to}");
    }
}

#[test]
fn nothing_is_left_of_what_ended_early_or_failed() {
    let dir = tempfile::tempdir().unwrap();
    let entries = || std::fs::read_dir(dir.path()).unwrap().count();
    for recipe in ["mlx-4bit", "gguf-bf16"] {
        let out = dir.path().join("out");
        let mut steps = 0;
        let ended = job(Source::Nano, recipe).write(&out, &mut |_, _| {
            steps += 1;
            steps < 5
        });
        assert_eq!((ended.unwrap(), entries()), (None, 0), "{recipe}");
        let damaged = crate::support::copy("fixtures/muse-tiny-bf16");
        crate::support::overwrite(&damaged, "lm_head.weight", 70..71, f32::NAN);
        let error = job(Source::Path(damaged.path().into()), recipe).write(&out, &mut |_, _| true).unwrap_err();
        assert!(error.to_string().contains("`lm_head.weight`") && entries() == 0, "{error}");
        write(Source::Nano, recipe, &out);
        let error = job(Source::Nano, recipe).write(&out, &mut |_, _| true).unwrap_err().to_string();
        assert!(error.contains("exists already") && entries() == 1, "{error}");
        let _ = std::fs::remove_file(&out).or_else(|_| std::fs::remove_dir_all(&out));
    }
}

#[test]
fn what_cannot_be_done_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let refused = |source: Source, recipe: &str, parts: &[&str]| {
        let error = job(source, recipe).write(&out, &mut |_, _| true).unwrap_err();
        let text = error.to_string();
        assert!(parts.iter().all(|part| text.contains(part)) && !out.exists(), "{text}");
        error
    };
    let rule =
        "format = \"mlx\"\nencoding = \"affine4g64\"\n[[rule]]\nmodules = [\"self_attn.w_proj\"]\nencoding = \"bf16\"";
    assert!(matches!(refused(tiny(), rule, &["own", "`self_attn.w_proj`"]), EngineError::Recipe { .. }));
    refused(assistant(), "ud-q4", &["ud-q4", "`lm_head`"]);
    // llama.cpp has one epsilon for all norms but the post norms.
    let other = crate::support::copy("fixtures/muse-tiny-bf16");
    crate::support::edit(&other, "config.json", |config| config["text_config"]["post_norm_eps"] = 1e-6.into());
    refused(Source::Path(other.path().into()), "gguf-bf16", &["gguf", "post_norm_eps: 1e-6"]);
}

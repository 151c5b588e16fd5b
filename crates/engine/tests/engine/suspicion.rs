//! Conversions that went wrong are noticed, and nothing else is.

use crate::support::{copy, load, path};
use glimmer_engine::quantize::{Quantize, Recipe};
use glimmer_engine::synth::{Shape, StoredAs, Synth};
use glimmer_engine::{EngineOptions, Source};
use serde_json::Value;
use std::path::Path;

/// Changes tensors of bf16 of a copy, where `change` does: it has their names, rows and values.
fn rewrite(dir: &Path, change: impl Fn(&str, usize, &mut [f32])) {
    let at = dir.join("model.safetensors");
    let mut bytes = std::fs::read(&at).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let table: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    for (name, entry) in table.as_object().unwrap().iter().filter(|(_, entry)| entry["dtype"] == "BF16") {
        let offset = |i: usize| 8 + header + entry["data_offsets"][i].as_u64().unwrap() as usize;
        let data = &mut bytes[offset(0)..offset(1)];
        let mut values: Vec<f32> =
            data.as_chunks().0.iter().map(|&b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)).collect();
        change(name, entry["shape"][0].as_u64().unwrap() as usize, &mut values);
        let halves = values.iter().flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes());
        data.iter_mut().zip(halves).for_each(|(byte, half)| *byte = half);
    }
    std::fs::write(at, bytes).unwrap();
}

fn suspicions(target: Source, drafter: Option<Source>) -> Vec<String> {
    let options = EngineOptions { drafter, context: Some(64), threads: Some(2), ..EngineOptions::new(target) };
    load(&options).suspicions().to_vec()
}

fn add(summand: f32) -> impl Fn(&mut [f32]) {
    move |values| values.iter_mut().for_each(|value| *value += summand)
}

/// Rows of heads of 32 as llama.cpp stores them.
fn interleave(rows: usize, values: &mut [f32]) {
    let (before, cols) = (values.to_vec(), values.len() / rows);
    for (stored, row) in values.chunks_exact_mut(cols).enumerate() {
        let (head, at) = (stored / 32 * 32, stored % 32);
        row.copy_from_slice(&before[(head + at % 2 * 16 + at / 2) * cols..][..cols]);
    }
}

fn is_query_or_key(name: &str) -> bool {
    name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight")
}

#[test]
fn bad_copies_of_the_target_are_noticed() {
    type Change = Box<dyn Fn(&str, usize, &mut [f32])>;
    let centred = |name: &str| name.ends_with("layernorm.weight");
    let of = |matches: fn(&str) -> bool, summand: f32| -> Change {
        let change = add(summand);
        Box::new(move |name, _, values| {
            if matches(name) {
                change(values)
            }
        })
    };
    let cases: [(Change, &str); 6] = [
        (of(centred, 1.0), "1 had been added once too often"),
        (of(centred, -1.0), "1 were missing"),
        (of(|name| name.ends_with("pre_feedforward_layernorm.weight"), -1.0), "`pre_feedforward_layernorm`"),
        (of(|name| name == "model.language_model.norm.weight", -2.0), "`norm`"),
        (
            Box::new(|name, rows, values| {
                if is_query_or_key(name) {
                    interleave(rows, values)
                }
            }),
            "look interleaved",
        ),
        (
            Box::new(|name, rows, values| {
                if name.ends_with("embed_tokens.weight") {
                    let cols = values.len() / rows;
                    for row in values.chunks_exact_mut(cols) {
                        let mean = row.iter().map(|x| x * x).sum::<f32>() / cols as f32;
                        row.iter_mut().for_each(|x| *x /= (mean + 1e-5).sqrt());
                    }
                }
            }),
            "normalised already",
        ),
    ];
    for (change, expected) in cases {
        let dir = copy("nano/target");
        rewrite(dir.path(), change);
        let found = suspicions(Source::Path(dir.path().into()), None);
        assert!(
            found.len() == 1 && found[0].contains(expected) && found[0].lines().count() == 1,
            "{expected}: {found:?}"
        );
        assert!(found[0].starts_with(&dir.path().display().to_string()), "{found:?}");
    }
}

#[test]
fn bad_copies_of_the_drafter_are_noticed() {
    for (summand, expected) in [(1.0, "1 had been added"), (-1.0, "1 were missing"), (0.0, "look interleaved")] {
        let dir = copy("nano/assistant");
        rewrite(dir.path(), |name, rows, values| match name {
            _ if summand == 0.0 && is_query_or_key(name) => interleave(rows, values),
            _ if name.contains("norm") => add(summand)(values),
            _ => {}
        });
        let found = suspicions(Source::Nano, Some(Source::Path(dir.path().into())));
        assert!(
            found.len() == 1 && found[0].contains(expected) && found[0].contains("output stays right"),
            "{found:?}"
        );
    }
}

#[test]
fn nothing_else_is_suspicious() {
    let tiny = |name: &str| Source::Path(path(&format!("fixtures/{name}")));
    let none = Vec::<String>::new();
    assert_eq!(suspicions(Source::Nano, Some(Source::Nano)), none);
    assert_eq!(suspicions(tiny("muse-tiny-bf16"), Some(tiny("muse-tiny-assistant"))), none);
    for name in ["muse-tiny-f32", "muse-tiny-mlx-lm-mixed", "muse-tiny-mlx-vlm-4bit"] {
        assert_eq!(suspicions(tiny(name), None), none, "{name}");
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for recipe in ["mlx-4bit", "gguf-q8_0", "mlx-mxfp4"] {
        let recipe = Recipe::open(recipe).unwrap();
        let out = at(&recipe.name);
        let job = Quantize { source: Source::Nano, recipe, importance: None, tokenizer: None, threads: Some(2) };
        job.write(&out, &mut |_, _| true).unwrap().unwrap();
        assert_eq!(suspicions(Source::Path(out), None), none);
    }
    for (encoding, seed) in [("bf16", 1), ("bf16", 2), ("q4_k", 3), ("affine4g64", 4), ("nvfp4", 5)] {
        let StoredAs(encoding) = encoding.parse().unwrap();
        let [target, drafter] = [false, true].map(|drafter| {
            let synth = Synth { shape: Shape::Tiny, encoding: StoredAs(encoding), container: None, drafter, seed };
            let out = at(&format!("{seed}{drafter}"));
            synth.write(&out, &mut |_, _| true).unwrap();
            Source::Path(out)
        });
        assert_eq!(suspicions(target, Some(drafter)), none, "{encoding}");
    }
}

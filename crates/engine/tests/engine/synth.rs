//! Synthetic checkpoints: they load, their weights are what they should be, and drafting on them is exact.

use crate::support::{fresh, greedy, load, request};
use glimmer_encoding::GgmlType;
use glimmer_engine::inspect::{Part, inspect};
use glimmer_engine::synth::{Container, Shape, StoredAs, Synth};
use glimmer_engine::{EngineError, EngineOptions, Source};
use std::path::Path;

const OTHERS: [&str; 14] = [
    "f32",
    "f16",
    "bf16",
    "affine2g64",
    "affine3g64",
    "affine4g32",
    "affine4g64",
    "affine4g128",
    "affine5g64",
    "affine6g64",
    "affine8g64",
    "mxfp4",
    "mxfp8",
    "nvfp4",
];

fn tiny(encoding: &str) -> Synth {
    let encoding: StoredAs = encoding.parse().unwrap();
    Synth { shape: Shape::Tiny, encoding, container: None, drafter: false, seed: 5 }
}

fn write(synth: &Synth, path: &Path) {
    assert!(synth.write(path, &mut |_, _| true).unwrap().is_some());
}

/// Deviation of the weights of a matrix times the root of its inputs, and the same of their mean.
fn moments(path: &Path, name: &str) -> (f64, f64) {
    let checkpoint = glimmer_checkpoint::open(path).unwrap();
    let tensor = checkpoint.read(name).unwrap();
    let values = tensor.view().to_f32();
    assert!(values.iter().all(|x| x.is_finite()));
    let (n, root) = (values.len() as f64, (tensor.view().cols() as f64).sqrt());
    let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let variance = values.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
    (variance.sqrt() * root, mean * root)
}

#[test]
fn every_encoding_loads_and_drafting_on_it_is_exact() {
    for encoding in GgmlType::ALL.map(|kind| kind.to_string()).into_iter().chain(OTHERS.map(String::from)) {
        let dir = tempfile::tempdir().unwrap();
        let [target, drafter] = ["target", "drafter"].map(|name| dir.path().join(name));
        write(&tiny(&encoding), &target);
        write(&Synth { drafter: true, ..tiny(&encoding) }, &drafter);
        for name in ["lm_head.weight", "model.language_model.layers.3.mlp.down_proj.weight"] {
            let (deviation, mean) = moments(&target, name);
            assert!((deviation - 1.0).abs() < 0.05 && mean.abs() < 0.02, "{encoding} {name}: {deviation} {mean}");
        }
        let drafter = Some(Source::Path(drafter));
        let options = EngineOptions { drafter, context: Some(64), ..EngineOptions::new(Source::Path(target)) };
        let engine = load(&options);
        let prompt: Vec<u32> = (3..15).map(|i| i * 31).collect();
        let plain = fresh(&engine, &request(&prompt, &greedy(), 1, 8)).token_ids;
        let drafted = fresh(&engine, &request(&prompt, &greedy(), 5, 8)).token_ids;
        assert_eq!(plain, drafted, "{encoding}");
        // Activations that are not sane end in one token over and over.
        assert!(plain.iter().any(|&token| token != plain[0]), "{encoding}: {plain:?}");
    }
}

#[test]
fn what_takes_more_memory_than_in_the_file_says_so() {
    for (encoding, named) in [("iq2_xxs", "iq2_xxs (packed, 3.625 bits)"), ("q2_k", "q2_k (packed)")] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model");
        write(&tiny(encoding), &path);
        let options = EngineOptions::new(Source::Path(path));
        assert_eq!(load(&options).settings().encoding, named);
        let report = inspect(&options).unwrap();
        let Part::Target { weight_bytes, .. } = report.part else { panic!("a target") };
        assert_eq!(weight_bytes > report.bytes, encoding == "iq2_xxs", "{weight_bytes} of {}", report.bytes);
    }
}

#[test]
fn a_directory_has_a_tokenizer_that_gives_back_what_it_took() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model");
    write(&tiny("affine8g64"), &path);
    let engine = load(&EngineOptions::new(Source::Path(path)));
    let ids = engine.encode_raw("the inner thé").unwrap();
    assert_eq!((ids[0], engine.eos().len()), (4096 - 10, 2));
    let tokenizer = engine.tokenizer().unwrap();
    assert_eq!(tokenizer.decode(&ids[1..]).unwrap(), "the inner thé");
}

#[test]
fn bytes_depend_on_the_seed_and_on_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for (name, seed) in [("a", 5), ("b", 5), ("c", 6)] {
        write(&Synth { seed, container: Some(Container::Gguf), ..tiny("bf16") }, &at(name));
    }
    let [a, b, c] = ["a", "b", "c"].map(|name| std::fs::read(at(name)).unwrap());
    assert!(a == b && a != c && a.len() == c.len());
}

#[test]
fn nothing_is_overwritten_and_nothing_is_left_half() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model");
    let left = || std::fs::read_dir(dir.path()).unwrap().count();
    for encoding in ["q4_k", "bf16"] {
        // Stopped in the middle.
        let mut calls = 0;
        let stopped = tiny(encoding).write(&path, &mut |_, _| {
            calls += 1;
            calls < 4
        });
        assert_eq!((stopped.unwrap(), left()), (None, 0), "{encoding}");
    }
    std::fs::write(&path, "mine").unwrap();
    let error = tiny("bf16").write(&path, &mut |_, _| true).unwrap_err().to_string();
    assert!(error.contains("exists already") && error.starts_with(&path.display().to_string()), "{error}");
    assert_eq!((std::fs::read_to_string(&path).unwrap().as_str(), left()), ("mine", 1));
    let nowhere = tiny("q8_0").write(&dir.path().join("no/model"), &mut |_, _| true).unwrap_err().to_string();
    assert!(nowhere.contains("no/model"), "{nowhere}");
}

#[test]
fn an_encoding_goes_where_it_belongs() {
    let asked = |encoding: &str, container| Synth { container: Some(container), ..tiny(encoding) }.container();
    assert_eq!(asked("f16", Container::Gguf).unwrap(), Container::Gguf);
    for (encoding, container) in [("q4_k", Container::Directory), ("mxfp4", Container::Gguf)] {
        assert!(matches!(asked(encoding, container), Err(EngineError::Container { .. })), "{encoding}");
    }
    for unknown in ["affine7g64", "affine4g16", "affine4", "q4_k_m", "affine4g64x", ""] {
        assert!(unknown.parse::<StoredAs>().is_err(), "{unknown}");
    }
}

//! Pair bundles of GGUF files.

use crate::gguf_writer::{Gguf, Meta, projector, target};
use crate::support::path;
use glimmer_encoding::{Encoding, FloatType};
use glimmer_engine::bundle::{Bundle, MakePair};
use glimmer_engine::{Engine, EngineOptions, Source};
use std::path::Path;

const F32: Encoding = Encoding::Dense(FloatType::F32);

/// The target in files of its own, and a vision tower beside them. The first file.
fn target_in_parts(dir: &Path, count: usize) -> Source {
    let checkpoint = glimmer_checkpoint::open(&path("fixtures/muse-tiny-bf16")).unwrap();
    let whole = target(&checkpoint, |_, _| F32);
    std::fs::write(dir.join("vision.gguf"), projector(&checkpoint, |_, _| F32).bytes()).unwrap();
    let each = whole.tensors.len().div_ceil(count);
    for number in 0..count {
        let mut part = if number == 0 { whole.clone() } else { Gguf { metadata: vec![], ..whole.clone() } };
        part.set("split.no", Meta::U32(number as u32));
        part.set("split.count", Meta::U32(count as u32));
        part.set("split.tensors.count", Meta::U32(whole.tensors.len() as u32));
        part.tensors = whole.tensors.iter().skip(number * each).take(each).cloned().collect();
        let name = format!("m-{:05}-of-{count:05}.gguf", number + 1);
        std::fs::write(dir.join(name), part.bytes()).unwrap();
    }
    Source::Path(dir.join(format!("m-00001-of-{count:05}.gguf")))
}

#[test]
fn all_parts_and_the_vision_tower_go_into_a_bundle() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let mut options = EngineOptions {
        drafter: Some(Source::Path(path("fixtures/muse-tiny-assistant"))),
        ..EngineOptions::new(target_in_parts(dir.path(), 3))
    };
    options.obtain(false, &mut |_, _| ()).unwrap();
    assert_eq!(options.projector, Some(Source::Path(dir.path().join("vision.gguf"))));
    let mut make = MakePair { options, copy: true, width: None };
    let made = make.make(&out, &mut |_, _| true).unwrap().unwrap();
    assert_eq!((made.files, made.linked), (6, 0));

    let mut options = EngineOptions { context: Some(64), ..EngineOptions::new(Source::Path(out.clone())) };
    options.obtain(true, &mut |_, _| ()).unwrap();
    assert_eq!(options.target, Source::Path(out.join("target/m-00001-of-00003.gguf")));
    assert_eq!(options.projector, Some(Source::Path(out.join("target/vision.gguf"))));
    assert_eq!(options.drafter, Some(Source::Path(out.join("drafter"))));
    Engine::load(&options, &mut |_| {}).unwrap();

    // Whoever watches may end it, and nothing is left.
    let begun = |out: &Path, make: &MakePair| make.make(out, &mut |done, _| done < 100).unwrap();
    assert_eq!(begun(&dir.path().join("again"), &make), None);
    make.options.drafter = None;
    let error = make.make(&dir.path().join("again"), &mut |_, _| true).unwrap_err().to_string();
    assert!(error.contains("there is no drafter for it"), "{error}");
    let mut left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf", "out", "vision.gguf"]);
}

#[test]
fn a_manifest_learns_the_best_width_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (file, source) = (dir.path().join("dflash_pair.json"), Source::Path(dir.path().into()));
    assert_eq!(Bundle::of(&source).unwrap(), None);
    std::fs::create_dir(dir.path().join("t")).unwrap();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    let text = |benchmark: &str| {
        let layout = r#""layout": {"target": "t", "drafter": "d", "more": [1, null]}"#;
        format!(r#"{{"x": {{"y": 18446744073709551615}}, {layout}, "backend": "dflash", {benchmark} "z": "Ä"}}"#)
    };
    for (before, after) in [
        (
            r#""benchmark": {"mean_accept": 2.5, "best_block_size": 9, "n": []},"#,
            r#""benchmark": {"mean_accept": 2.5, "best_block_size": 5, "n": []},"#,
        ),
        (r#""benchmark": {"mean_accept": 2.5},"#, r#""benchmark": {"mean_accept": 2.5, "best_block_size": 5},"#),
        (r#""benchmark": null,"#, r#""benchmark": {"best_block_size": 5},"#),
    ] {
        std::fs::write(&file, text(before)).unwrap();
        Bundle::of(&source).unwrap().unwrap().set_best_width(5).unwrap();
        let written: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let expected: serde_json::Value = serde_json::from_str(&text(after)).unwrap();
        assert_eq!(written.to_string(), expected.to_string());
    }
    // Nothing is left of the writing, and nothing is written where that is no bundle.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
    let bundle = Bundle::of(&source).unwrap().unwrap();
    std::fs::write(&file, text("").replace("dflash", "other")).unwrap();
    assert!(bundle.set_best_width(5).unwrap_err().to_string().contains("field `backend`"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text("").replace("dflash", "other"));
}

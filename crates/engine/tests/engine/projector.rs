//! The vision tower of a target in GGUF files.

use crate::gguf_writer::{Gguf, projector, target};
use crate::support::path;
use glimmer_encoding::{Encoding, FloatType};
use glimmer_engine::inspect::{Part, Projector, inspect};
use glimmer_engine::{Engine, EngineOptions, Obtained, Source};
use std::path::Path;

const F32: Encoding = Encoding::Dense(FloatType::F32);

fn vision() -> Gguf {
    projector(&glimmer_checkpoint::open(&path("fixtures/muse-tiny-bf16")).unwrap(), |_, _| F32)
}

/// The target's text tower at `target.gguf`.
fn model(dir: &Path) -> EngineOptions {
    let file = target(&glimmer_checkpoint::open(&path("fixtures/muse-tiny-bf16")).unwrap(), |_, _| F32);
    std::fs::write(dir.join("target.gguf"), file.bytes()).unwrap();
    EngineOptions { context: Some(64), ..EngineOptions::new(Source::Path(dir.join("target.gguf"))) }
}

fn seen(options: &EngineOptions) -> Option<Projector> {
    match inspect(options).unwrap().part {
        Part::Target { projector, .. } => projector,
        Part::Drafter(_) => None,
    }
}

#[test]
fn it_is_found_beside_its_target_by_what_is_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = model(dir.path());
    std::fs::write(dir.path().join("mmproj.gguf"), b"GGUF and nothing").unwrap();
    options.obtain(true, &mut |_, _| ()).unwrap();
    assert_eq!((&options.projector, seen(&options)), (&None, None));
    // One of another model is not taken, and said.
    let other = dir.path().join("other.gguf");
    let mut narrow = vision();
    narrow.entry("mm.2.weight").dims = vec![64, 72];
    std::fs::write(&other, narrow.bytes()).unwrap();
    let notes = options.obtain(false, &mut |_, _| ()).unwrap().notes;
    assert!(options.projector.is_none() && notes.len() == 1 && notes[0].contains("`mm.2.weight`"), "{notes:?}");
    let file = dir.path().join("a name.gguf");
    std::fs::write(&file, vision().bytes()).unwrap();
    assert_eq!(options.obtain(false, &mut |_, _| ()).unwrap(), Obtained::default());
    assert_eq!(options.projector, Some(Source::Path(file.clone())));
    let Projector { label, parameters, bytes } = seen(&options).unwrap();
    // All of the tower, but for one of two frames of a patch.
    let whole = inspect(&EngineOptions::new(Source::Path(path("fixtures/muse-tiny-bf16")))).unwrap().vision_parameters;
    assert_eq!((label, parameters, bytes), (file.display().to_string(), whole - 48 * 588, 4 * (whole - 48 * 588)));
    Engine::load(&options, &mut |_| {}).unwrap();
}

#[test]
fn one_that_was_named_is_accounted_for() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("vision.gguf");
    let options = EngineOptions { projector: Some(Source::Path(file.clone())), ..model(dir.path()) };
    let refused = |parts: &[&str]| {
        let errors = [inspect(&options).map(drop), Engine::load(&options, &mut |_| {}).map(drop)];
        for error in errors.map(|result| result.unwrap_err().to_string()) {
            assert!(parts.iter().all(|part| error.contains(part)) && error.lines().count() == 1, "{error}");
        }
    };
    refused(&["vision.gguf: no such file"]);
    type Change = fn(&mut Gguf);
    let cases: [(Change, &[&str]); 5] = [
        (
            |f| f.tensors.retain(|t| t.name != "v.blk.3.ln2.bias"),
            &["`model.vision_tower.layers.3.norm2.bias`", "shape [48]"],
        ),
        (|f| f.entry("mm.1.weight").name = "mm.3.weight".into(), &["`model.vision_adapter.fc2.weight`"]),
        (|f| f.tensor("v.extra", &[4], F32, &[0.0; 4]), &["`v.extra`", "only tensors of the model"]),
        (|f| f.entry("v.patch_embd.weight").dims = vec![14, 14, 48, 3], &["`v.patch_embd.weight`", "[48, 3, 14, 14]"]),
        (|f| f.entry("mm.2.weight").dims = vec![64, 72], &["`mm.2.weight`", "[64, 72]"]),
    ];
    for (change, parts) in cases {
        let mut damaged = vision();
        change(&mut damaged);
        std::fs::write(&file, damaged.bytes()).unwrap();
        refused(parts);
    }
    std::fs::copy(dir.path().join("target.gguf"), &file).unwrap();
    refused(&["vision.gguf: field `model_type`", "mmproj"]);
    std::fs::write(&file, vision().bytes()).unwrap();
    Engine::load(&options, &mut |_| {}).unwrap();
}

//! What lies beside a model and belongs to it.

use crate::support::{copy_to, fresh, greedy, load, request};
use glimmer_engine::quantize::{Quantize, Recipe};
use glimmer_engine::{EngineOptions, Obtained, Source};
use std::path::Path;

fn obtain(target: &Path, draft: bool) -> (Option<Source>, Obtained) {
    let mut options = EngineOptions::new(Source::Path(target.into()));
    let obtained = options.obtain(draft, &mut |_, _| unreachable!("nothing is of the hub")).unwrap();
    (options.drafter, obtained)
}

fn write(source: Source, recipe: &str, to: &Path) {
    let recipe = Recipe::open(recipe).unwrap();
    let job = Quantize { source, recipe, importance: None, tokenizer: None, threads: Some(2) };
    job.write(to, &mut |_, _| true).unwrap().unwrap();
}

#[test]
fn a_drafter_in_a_folder_of_the_target_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let drafter = dir.path().join("drafter");
    copy_to("nano/target", dir.path());
    assert_eq!(obtain(dir.path(), true).0, None);
    copy_to("nano/assistant", &drafter);
    let (found, obtained) = obtain(dir.path(), true);
    assert_eq!((found, obtained), (Some(Source::Path(drafter.clone())), Obtained::default()));
    assert_eq!(obtain(dir.path(), false).0, None);
    // Another one that was named is the one.
    let mut options =
        EngineOptions { drafter: Some(Source::Nano), ..EngineOptions::new(Source::Path(dir.path().into())) };
    options.obtain(true, &mut |_, _| ()).unwrap();
    assert_eq!(options.drafter, Some(Source::Nano));

    options.drafter = Some(Source::Path(drafter));
    options.context = Some(256);
    let engine = load(&options);
    let prompt = engine.encode_raw("def ").unwrap();
    let generation = fresh(&engine, &request(&prompt, &greedy(), 4, 24));
    assert!(generation.rounds.iter().any(|round| round.accepted > 0), "{:?}", generation.rounds);
}

#[test]
fn a_drafter_beside_a_gguf_file_is_known_by_what_is_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    write(Source::Nano, "gguf-q8_0", &at("nano.gguf"));
    // Another target, a drafter of another target, what is no model, and what is no file.
    write(Source::Nano, "gguf-bf16", &at("dflash-nano.gguf"));
    write(Source::Path(crate::support::path("fixtures/muse-tiny-assistant")), "gguf-bf16", &at("drafter.gguf"));
    std::fs::write(at("dflash.gguf"), b"GGUF and nothing").unwrap();
    std::fs::create_dir(at("dflash-dir.gguf")).unwrap();
    assert_eq!(obtain(&at("nano.gguf"), true), (None, Obtained::default()));

    write(Source::Path(crate::support::path("nano/assistant")), "gguf-q8_0", &at("zebra.GGUF"));
    let found = Some(Source::Path(at("zebra.GGUF")));
    assert_eq!(obtain(&at("nano.gguf"), true), (found.clone(), Obtained::default()));
    assert_eq!(obtain(&at("nano.gguf"), false).0, None);
    load(&EngineOptions { drafter: found, context: Some(64), ..EngineOptions::new(Source::Path(at("nano.gguf"))) });
    // A drafter itself has none.
    assert_eq!(obtain(&at("drafter.gguf"), true).0, None);

    // In a folder as well, and of two neither.
    std::fs::create_dir(at("drafter")).unwrap();
    std::fs::rename(at("zebra.GGUF"), at("drafter/any.gguf")).unwrap();
    assert_eq!(obtain(&at("nano.gguf"), true).0, Some(Source::Path(at("drafter/any.gguf"))));
    write(Source::Path(crate::support::path("nano/assistant")), "gguf-bf16", &at("zebra.gguf"));
    let (found, Obtained { notes, .. }) = obtain(&at("nano.gguf"), true);
    let [note] = &notes[..] else { panic!("{notes:?}") };
    assert!(
        found.is_none() && ["zebra.gguf", "any.gguf", "--draft-model"].iter().all(|part| note.contains(part)),
        "{note}"
    );
}

//! `pair make`.

use crate::support::{Ran, command, glimmer, json, repository};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;

const RAW: [&str; 6] = ["--raw", "--temp", "0", "-n", "24", "def fibonacci(n):"];

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn greedy(model: &[&str]) -> Ran {
    glimmer(&[&["run"], model, &RAW].concat())
}

fn manifest(bundle: &Path) -> Value {
    serde_json::from_slice(&fs::read(bundle.join("dflash_pair.json")).unwrap()).unwrap()
}

#[test]
fn a_bundle_opens_and_gives_the_tokens_of_both_named() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (target, drafter) = (repository("nano/target"), repository("nano/assistant"));
    // Sources below the same directory, so that links are possible.
    for (from, to) in [(&target, at("t")), (&drafter, at("d"))] {
        fs::create_dir(&to).unwrap();
        for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
    fs::write(at("t/consolidated.pth"), "no part of it").unwrap();
    let expected = greedy(&["-m", &target, "-md", &drafter]).ok();
    let said = glimmer(&["pair", "make", text(&at("t")), text(&at("d")), text(&at("linked"))]).ok();
    assert!(said.contains("linked: ") && said.contains("MB linked, ") && said.contains(" 9 files"), "{said}");
    let copied = json(&["pair", "make", text(&at("t")), text(&at("d")), text(&at("copied")), "--copy"]);
    assert_eq!((&copied["files"], &copied["linked_bytes"]), (&9.into(), &0.into()));
    let wide = ["pair", "make", "nano", "nano-dflash2", text(&at("nano")), "--draft-width", "5"].map(String::from);
    glimmer(&wide.iter().map(String::as_str).collect::<Vec<_>>()).ok();

    let plain = json!({ "layout": { "target": "target", "drafter": "drafter" }, "backend": "dflash" });
    assert_eq!((manifest(&at("linked")), manifest(&at("copied"))), (plain.clone(), plain));
    assert_eq!(manifest(&at("nano"))["benchmark"], json!({ "best_block_size": 5 }));
    assert!(!at("linked/target/consolidated.pth").exists());
    for (name, drafter) in
        [("linked", "(dflash), width auto"), ("copied", "(dflash), width auto"), ("nano", "(dflash2), width 5")]
    {
        let ran = greedy(&["-m", text(&at(name))]);
        assert!(ran.err.contains(drafter), "{ran:?}");
        assert_eq!(ran.ok(), expected, "{name}");
        assert_eq!(json(&["inspect", text(&at(name))])["drafter"]["fits"], true);
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let inode = |path: &str| fs::metadata(at(path)).unwrap().ino();
        let weights = inode("t/model.safetensors");
        assert_eq!(inode("linked/target/model.safetensors"), weights);
        assert_ne!(inode("copied/target/model.safetensors"), weights);
        // It is edited, and the source has not agreed to that.
        assert_ne!(inode("linked/target/config.json"), inode("t/config.json"));
    }
    // A bundle can be the source of another.
    let again = format!("{}/", text(&at("again")));
    glimmer(&["pair", "make", text(&at("linked")), text(&at("nano")), &again]).ok();
    assert_eq!(greedy(&["-m", text(&at("again"))]).ok(), expected);
}

#[test]
fn gguf_files_keep_their_names_in_a_bundle() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    glimmer(&["quantize", "nano", text(&at("Nano-Q8_0.gguf")), "--recipe", "gguf-q8_0", "--no-check"]).ok();
    let assistant = repository("nano/assistant");
    glimmer(&["quantize", &assistant, text(&at("draft.gguf")), "--recipe", "gguf-q8_0", "--no-check"]).ok();
    glimmer(&["pair", "make", text(&at("Nano-Q8_0.gguf")), text(&at("draft.gguf")), text(&at("out"))]).ok();
    let layout = json!({ "target": "target/Nano-Q8_0.gguf", "drafter": "drafter/draft.gguf" });
    assert_eq!(manifest(&at("out"))["layout"], layout);
    let ran = greedy(&["-m", text(&at("out"))]);
    assert!(ran.err.contains("draft.gguf (dflash), width auto"), "{ran:?}");
    let expected = greedy(&["-m", text(&at("Nano-Q8_0.gguf")), "-md", text(&at("draft.gguf"))]);
    assert_eq!(ran.ok(), expected.ok());
}

#[test]
fn what_cannot_be_paired_is_one_line_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (out, tiny) = (at("out"), repository("fixtures/muse-tiny-bf16"));
    let refused = |target: &str, drafter: &str, out: &Path, parts: &[&str]| {
        glimmer(&["pair", "make", target, drafter, text(out)]).assert_error(1, parts);
    };
    refused("nano", &repository("fixtures/muse-tiny-assistant"), &out, &["muse-tiny-assistant", "nano"]);
    refused(&tiny, "nano", &out, &["nano-assistant", "muse-tiny-bf16"]);
    refused("nano", &tiny, &out, &["muse-tiny-bf16"]);
    refused("nano-assistant", "nano-assistant", &out, &["nano-assistant"]);
    refused("nano", "/nonexistent/drafter", &out, &["/nonexistent/drafter"]);
    refused("nano", "nano", Path::new("/nonexistent/out"), &["/nonexistent/out"]);
    glimmer(&["pair", "make", "nano", "nano", text(&out), "--draft-width", "17"])
        .assert_error(1, &["best width is 17", "2 to 16", "nano-assistant"]);
    glimmer(&["pair", "make", "nano", "nano"]).assert_error(2, &["OUT"]);
    glimmer(&["pair", "make", "nano", "nano", text(&out), "--draft-width", "1"]).assert_error(2, &["--draft-width"]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    fs::write(&out, "mine").unwrap();
    refused("nano", "nano", &out, &["out", "exists already"]);
    refused("nano", "org/not-here", &out, &["out", "exists already"]);
    assert_eq!(fs::read(&out).unwrap(), b"mine");
}

/// Files may not grow beyond a limit, as on a disk that is full.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_one_line_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    for source in [["nano".to_string(), "nano".into()], [repository("nano/target"), repository("nano/assistant")]] {
        let limited = format!(
            "trap '' XFSZ; ulimit -f 1000; exec {} pair make {} {} {} --copy",
            env!("CARGO_BIN_EXE_glimmer"),
            source[0],
            source[1],
            out.display()
        );
        let ran: Ran = Command::new("sh").args(["-c", &limited]).output().unwrap().into();
        ran.assert_error(1, &["model.safetensors"]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_nothing_by_half() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let mut child = command(&["pair", "make", "nano", "nano", text(&out)]).spawn().unwrap();
    // Wherever this meets it: the bundle is whole, or not there.
    let _ = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    let status = child.wait().unwrap();
    match out.exists() {
        true => {
            greedy(&["-m", text(&out)]).ok();
        }
        false => assert_ne!(status.code(), Some(0)),
    }
    let _ = fs::remove_dir_all(&out);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

//! What is malformed is refused, in one line that says what.

use crate::corpus::{Case, cases, raw_file, specs, unaccounted, write_sharded, write_valid};
use glimmer_checkpoint::{Error, TensorSpec, open};
use proptest::prelude::*;
use std::collections::HashSet;
use std::fs;
use std::path::Path;

fn expected() -> Vec<TensorSpec> {
    specs().into_iter().map(|(name, shape)| TensorSpec::new(name, shape)).collect()
}

/// What is wrong with the message, if anything. Messages name the file with its directory, so what is expected is
/// looked for behind it.
fn check(case: &Case, dir: &Path, message: &str) -> Option<String> {
    let rest = message.strip_prefix(&*dir.to_string_lossy()).unwrap_or("");
    let lacks = case.expect.iter().find(|part| !rest.contains(**part));
    let one_line = !rest.contains(char::is_control) && rest.chars().count() < 400;
    (lacks.is_some() || !one_line).then(|| format!("{}: lacks {lacks:?} or is too long: {message:?}", case.name))
}

#[test]
fn every_malformed_checkpoint_is_refused_by_name() {
    let cases = cases();
    assert!(cases.len() >= 45, "{}", cases.len());
    assert_eq!(cases.iter().map(|c| c.name).collect::<HashSet<_>>().len(), cases.len());
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            let dir = tempfile::tempdir().unwrap();
            (case.write)(dir.path());
            match open(dir.path()) {
                Ok(checkpoint) => Some(format!("{}: opened {checkpoint:?}", case.name)),
                Err(e) => check(case, dir.path(), &e.to_string()),
            }
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_the_model_does_not_expect_is_refused_by_name() {
    for case in unaccounted() {
        let dir = tempfile::tempdir().unwrap();
        (case.write)(dir.path());
        let checkpoint = open(dir.path()).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let message = checkpoint.account(&expected()).unwrap_err().to_string();
        assert_eq!(check(&case, dir.path(), &message), None);
    }
    for write in [write_valid, write_sharded] {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path());
        open(dir.path()).unwrap().account(&expected()).unwrap();
    }
}

/// What is embedded is checked in the same way; the valid checkpoint has the cases of one file.
#[test]
fn embedded_files_are_checked_alike() {
    let dir = tempfile::tempdir().unwrap();
    write_valid(dir.path());
    let config: &'static [u8] = fs::read(dir.path().join("config.json")).unwrap().leak();
    let weights: &'static [u8] = fs::read(dir.path().join("model.safetensors")).unwrap().leak();
    let error = |files: &[(&'static str, &'static [u8])]| {
        glimmer_checkpoint::Checkpoint::embedded("built in", files).unwrap_err().to_string()
    };
    let cut = error(&[("config.json", config), ("model.safetensors", &weights[..weights.len() - 1])]);
    assert!(cut.starts_with("built in/model.safetensors: tensor `model.vision_tower."), "{cut}");
    assert!(cut.ends_with("(is the file cut off?)"), "{cut}");
    assert!(error(&[("model.safetensors", weights)]).starts_with("built in: config.json: expected "));
    assert!(error(&[("config.json", config)]).starts_with("built in: weights: expected model.safetensors or "));
    assert!(error(&[("config.json", config), ("x.gguf", b"GGUF")]).contains("GGUF files are opened by their own path"));
}

#[test]
fn paths_that_are_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    write_valid(dir.path());
    let at = |name: &str| open(&dir.path().join(name)).unwrap_err();

    let error = at("nowhere\n");
    assert!(matches!(error, Error::NotFound { .. }));
    assert!(error.to_string().ends_with(r"/nowhere\n: no such file or directory"), "{error}");

    let error = at("model.safetensors").to_string();
    assert!(
        error.ends_with(
            "expected a directory with config.json and model.safetensors, or a GGUF file, found another file"
        )
    );
    assert!(matches!(at("model.safetensors/x"), Error::Io { .. }));

    // By its contents, not its name.
    fs::write(dir.path().join("a.bin"), b"GGUF\x03\0\0\0").unwrap();
    fs::write(dir.path().join("a.gguf"), b"G").unwrap();
    assert!(at("a.bin").to_string().contains("a.bin: tensor count: expected 8 bytes at byte 8, found 0 until"));
    assert!(at("a.gguf").to_string().contains("found another file"));
}

#[cfg(unix)]
#[test]
fn a_pipe_does_not_hang() {
    let error = open(Path::new("/dev/zero")).unwrap_err();
    assert!(error.to_string().contains("expected a regular file, found a pipe, a socket or a device"));
}

#[test]
fn side_files_are_plain_small_files() {
    let dir = tempfile::tempdir().unwrap();
    write_valid(dir.path());
    let checkpoint = open(dir.path()).unwrap();
    for name in ["../config.json", "/etc/passwd", "", ".", "..", "a/b", "a\\b", "a\0", "C:a", "a\n"] {
        let error = checkpoint.file(name).unwrap_err().to_string();
        assert!(error.contains("file name: expected the plain name") && !error.contains('\n'), "{error}");
    }
    fs::create_dir(dir.path().join("tokenizer.json")).unwrap();
    assert!(checkpoint.file("tokenizer.json").unwrap_err().to_string().contains("found a directory"));
    fs::File::create(dir.path().join("big")).unwrap().set_len((64 << 20) + 1).unwrap();
    assert!(checkpoint.file("big").unwrap_err().to_string().contains("at most 67108864 bytes, found 67108865"));
    fs::write(dir.path().join("generation_config.json"), "[1]").unwrap();
    let error = checkpoint.json("generation_config.json").unwrap_err().to_string();
    assert!(error.ends_with("generation_config.json: file: expected a JSON object, found [1]"), "{error}");
}

/// Neither sizes that a file claims nor what its JSON is parsed into take memory.
#[cfg(target_os = "linux")]
#[test]
fn memory_is_bounded() {
    const CHILD: &str = "GLIMMER_MEMORY_OF_CASE";
    if let Ok(dir) = std::env::var(CHILD) {
        assert!(open(Path::new(&dir)).is_err());
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap().trim().trim_end_matches(" kB");
        println!("peak {peak} kB");
        assert!(peak.trim().parse::<usize>().unwrap() < 100_000, "{peak} kB");
        return;
    }
    for case in cases() {
        let dir = tempfile::tempdir().unwrap();
        (case.write)(dir.path());
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "refuse::memory_is_bounded", "--nocapture"])
            .env(CHILD, dir.path())
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && output.contains("peak "), "{}: {output}", case.name);
        println!("{}: {}", case.name, output.lines().find(|l| l.contains("peak ")).unwrap());
    }
}

/// A file of three tensors: small, so that a random change hits something.
fn small() -> Vec<u8> {
    let header = br#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b.c":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},"e":{"dtype":"F16","shape":[0],"data_offsets":[32,32]}}"#;
    raw_file(header, &[1; 32])
}

fn open_and_read(files: &[(&str, &[u8])]) {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    match open(dir.path()) {
        Ok(checkpoint) => {
            for info in checkpoint.tensors() {
                assert_eq!(
                    checkpoint.read(&info.name).unwrap().view().to_f32().len(),
                    info.shape.iter().product::<usize>()
                );
            }
        }
        Err(e) => assert!(!e.to_string().contains(char::is_control), "{e}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_damage_to_the_weights_makes_it_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = small();
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        if let Some(at) = cut {
            bytes.truncate(at.index(bytes.len()));
        }
        open_and_read(&[("config.json", b"{}"), ("model.safetensors", &bytes)]);
    }

    #[test]
    fn no_damage_to_the_json_makes_it_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        in_config: bool,
    ) {
        let mut config = br#"{"quantization":null,"a":[1,2.5,{"b":"c"}]}"#.to_vec();
        let mut index = br#"{"weight_map":{"a":"x.safetensors","b.c":"x.safetensors","e":"x.safetensors"}}"#.to_vec();
        let target = if in_config { &mut config } else { &mut index };
        for (at, byte) in flips {
            let at = at.index(target.len());
            target[at] = byte;
        }
        let files: [(&str, &[u8]); 3] =
            [("config.json", &config), ("model.safetensors.index.json", &index), ("x.safetensors", &small())];
        open_and_read(&files);
    }
}

#[test]
fn the_undamaged_small_file_opens() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), "{}").unwrap();
    fs::write(dir.path().join("model.safetensors"), small()).unwrap();
    let checkpoint = open(dir.path()).unwrap();
    assert_eq!(checkpoint.tensors().len(), 3);
    assert!(checkpoint.read("e").unwrap().parts().codes.is_empty());
}

//! Warnings about weights that look wrong.

use crate::support::{glimmer, json, repository};
use serde_json::Value;

#[test]
fn a_bad_norm_is_one_line_of_warning() {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(repository("nano/target")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    let weights = dir.path().join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let table: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let entry = &table["model.language_model.norm.weight"]["data_offsets"];
    let [start, end] = [0, 1].map(|i| 8 + header + entry[i].as_u64().unwrap() as usize);
    // The sign of each bf16.
    bytes[start..end].iter_mut().skip(1).step_by(2).for_each(|byte| *byte |= 0x80);
    std::fs::write(&weights, bytes).unwrap();

    let model = dir.path().to_str().unwrap();
    let run = ["generate", "-m", model, "--raw", "-p", "def f(x):", "-n", "2", "--temp", "0"];
    let ran = glimmer(&run);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let warnings: Vec<&str> = ran.err.lines().filter(|line| line.starts_with("warning: ")).collect();
    assert!(warnings.len() == 1 && warnings[0].contains(model) && warnings[0].contains("`norm`"), "{}", ran.err);
    assert_eq!(json(&run)["warnings"].as_array().unwrap().len(), 1);
    let nano = glimmer(&["generate", "-p", "def f(x):", "-n", "2"]);
    assert!(nano.code == Some(0) && !nano.err.contains("warning"), "{}", nano.err);
}

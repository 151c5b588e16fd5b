//! `score`, also as `perplexity` and `kld`.

use crate::support::{glimmer, glimmer_with_stdin, json};

const TEXT: &str = "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1)\n";

/// A file with the text.
fn file() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), TEXT).unwrap();
    file
}

#[test]
fn a_text_is_scored_from_a_file_and_from_standard_input() {
    let file = file();
    let path = file.path().to_str().unwrap();
    let out = json(&["score", "nano", "--file", path]);
    let ppl = out["ppl"].as_f64().unwrap();
    assert!(ppl > 1.0 && ppl < 100.0 && out["tokens"].as_u64() > Some(20), "{out}");
    assert_eq!((&out["window"], &out["windows"]), (&2048.into(), &1.into()));
    assert!(out.get("kl_mean").is_none() && out["against"].is_null(), "{out}");
    let table = glimmer_with_stdin(&["perplexity", "nano", "-f", "-"], TEXT.as_bytes()).ok();
    assert!(table.starts_with(&format!("perplexity         {ppl:.4}\n")), "{table}");
}

#[test]
fn two_models_are_compared() {
    let file = file();
    let path = file.path().to_str().unwrap();
    let same = json(&["kld", "nano", "-f", path, "--against", "nano", "--window", "16", "-b", "5"]);
    assert!(same["windows"].as_u64() > Some(1), "{same}");
    assert_eq!((&same["kl_mean"], &same["kl_p99"], &same["top1"]), (&0.0.into(), &0.0.into(), &1.0.into()));
    assert_eq!(same["ppl"], same["against_ppl"]);
    assert_eq!((&same["settings"]["model"], &same["against"]["model"]), (&"nano".into(), &"nano".into()));
    let table = glimmer(&["score", "nano", "-f", path, "--against", "nano"]).ok();
    for part in ["of the reference", "KL divergence", "same likeliest     100.000 %", "in 1 window\n"] {
        assert!(table.contains(part), "expected `{part}` in {table}");
    }
}

#[test]
fn what_cannot_be_scored_is_one_line() {
    let file = file();
    let path = file.path().to_str().unwrap();
    glimmer(&["score", "nano"]).assert_error(2, &["--file"]);
    glimmer(&["score", "nano", "-f", path, "-c", "1"]).assert_error(2, &["--window", "1"]);
    glimmer(&["score", "nano", "-f", "/nonexistent/text"]).assert_error(1, &["/nonexistent/text"]);
    glimmer_with_stdin(&["score", "nano", "-f", "-"], b"").assert_error(1, &["standard input", "empty"]);
    glimmer_with_stdin(&["score", "nano", "-f", "-"], b"a\xffb").assert_error(1, &["UTF-8"]);
    glimmer(&["score", "nano", "-f", path, "--against", "no/such"]).assert_error(1, &["no/such"]);
    glimmer(&["score", "nano", "-f", path, "-c", "5000"]).assert_error(1, &["5000", "4096"]);
}

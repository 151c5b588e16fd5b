//! `quantize`.

use crate::support::{command, glimmer, json, repository};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

const TEXT: &str =
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n";

#[test]
fn what_is_written_is_near_its_source() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    std::fs::write(at("text"), TEXT).unwrap();
    for (recipe, most) in [("gguf-bf16", 1e-5), ("gguf-q8_0", 1e-3), ("mlx-8bit", 1e-3), ("hf-bf16", 1e-5)] {
        let out = at(recipe);
        let written = json(&["quantize", "nano", &out, "--recipe", recipe]);
        let kl = written["check"]["kl_mean"].as_f64().unwrap();
        assert!(kl < most && written["bits_per_weight"].as_f64().unwrap() > 8.0, "{written}");
        let score = ["score", &out, "--against", "nano", "-f", &at("text"), "--activations", "f32"];
        let score = json(&[&score[..], &["--cache-type-k", "f32", "--cache-type-v", "f32"]].concat());
        assert!(score["kl_mean"].as_f64().unwrap() < most, "{recipe}: {score}");
    }
    let out = at("table");
    let table = glimmer(&["quantize", &repository("fixtures/muse-tiny-bf16"), &out, "--recipe", "mlx-8bit"]).ok();
    for part in
        ["bits per weight", "affine 8-bit gs64 bf16", "layers.*.mlp.down_proj.weight (8), as 96", "KL divergence"]
    {
        assert!(table.contains(part), "{table}");
    }
    let quiet = glimmer(&["quantize", "nano", &at("quiet.gguf"), "--recipe", "gguf-q8_0", "--no-check"]).ok();
    assert!(!quiet.contains("KL"), "{quiet}");
}

#[test]
fn an_importance_matrix_comes_of_a_text() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    std::fs::write(at("text"), TEXT.repeat(8)).unwrap();
    let own = "format = \"mlx\"\nencoding = \"affine2g32\"\n";
    std::fs::write(at("own.toml"), own).unwrap();
    let quantize =
        |out: &str, more: &[&str]| json(&[&["quantize", "nano", &at(out), "--recipe", &at("own.toml")], more].concat());
    let (plain, weighed) = (quantize("plain", &[]), quantize("weighed", &["--imatrix", &at("text")]));
    assert!(plain["imatrix_tokens"].is_null() && weighed["imatrix_tokens"].as_u64().unwrap() > 128, "{weighed}");
    let kl = |written: &serde_json::Value| written["check"]["kl_mean"].as_f64().unwrap();
    assert!(kl(&weighed) < kl(&plain), "{weighed} {plain}");

    let refused = |out: &str, recipe: &str, text: &str, parts: &[&str]| {
        glimmer(&["quantize", "nano", &at(out), "--recipe", recipe, "--imatrix", text]).assert_error(1, parts);
    };
    std::fs::write(at("short"), "def f():").unwrap();
    refused("x", "mlx-4bit", &at("short"), &["number of tokens in the text is", "at least 128"]);
    refused("x", "mlx-4bit", "/nonexistent/text", &["/nonexistent/text"]);
    refused("x", "gguf-q8_0", &at("text"), &["gguf-q8_0", "importance matrix changes nothing"]);
    refused("plain", "mlx-4bit", &at("text"), &["exists already"]);
    assert!(!dir.path().join("x").exists());
}

#[test]
fn what_cannot_be_quantized_is_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    glimmer(&["quantize", "nano"]).assert_error(2, &["OUT", "--recipe"]);
    glimmer(&["quantize", "nano", &at("x"), "--recipe", "mlx-7bit"]).assert_error(1, &["mlx-7bit", "mlx-8bit"]);
    std::fs::write(at("own.toml"), "format = \"mlx\"\nencoding = \"affine4g64\"\nsize = 3\n").unwrap();
    glimmer(&["quantize", "nano", &at("x"), "--recipe", &at("own.toml")])
        .assert_error(1, &["own.toml", "line 3", "`size`"]);
    glimmer(&["quantize", "/nonexistent/in", &at("x"), "--recipe", "mlx-8bit"]).assert_error(1, &["/nonexistent/in"]);
    glimmer(&["quantize", "nano", &at("own.toml"), "--recipe", "mlx-8bit"])
        .assert_error(1, &["own.toml", "exists already"]);
    glimmer(&["quantize", "nano", "/nonexistent/out", "--recipe", "mlx-8bit"]).assert_error(1, &["/nonexistent/out"]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// Files may not grow beyond a limit, as on a disk that is full.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_one_line_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let limited = format!(
        "trap '' XFSZ; ulimit -f 1000; exec {} quantize nano {} --recipe gguf-bf16",
        env!("CARGO_BIN_EXE_glimmer"),
        out.display()
    );
    let ran: crate::support::Ran = Command::new("sh").args(["-c", &limited]).output().unwrap().into();
    ran.assert_error(1, &["out.gguf"]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn ctrl_c_leaves_nothing_under_the_name() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    glimmer(&["synth", "--shape", "tiny", "--encoding", "bf16", "-o", &at("in")]).ok();
    let args = ["quantize", &at("in"), &at("out"), "--recipe", "mlx-4bit", "-t", "1"];
    let child = command(&args).spawn().unwrap();
    // In the middle of it, before, or when it is done: whatever the machine makes of it, nothing is there by half.
    sleep(Duration::from_millis(300));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let code = child.wait_with_output().unwrap().status.code();
    let whole = dir.path().join("out/model.safetensors").exists();
    assert!(matches!((code, whole), (Some(130) | None, _) | (Some(0), true)), "{code:?} {whole}");
    assert!(whole || !dir.path().join("out").exists());
    if whole {
        glimmer(&["inspect", &at("out")]).ok();
    }
}

//! `bench` and `synth`.

use crate::support::{glimmer, json};

const QUICK: [&str; 12] =
    ["bench", "step", "nano", "--iterations", "2", "--seconds", "0", "--prefill", "8", "--decode", "2", "-t1"];

#[test]
fn a_step_is_measured_beside_the_limits() {
    let out = json(&[&QUICK[..], &["--widths", "1,3", "--depth", "100"]].concat());
    let widths = out["widths"].as_array().unwrap();
    assert_eq!(widths.iter().map(|w| w["width"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 3]);
    for width in widths {
        let number = |key: &str| width[key].as_f64().unwrap_or_else(|| panic!("{key} of {width}"));
        assert!(0.0 < number("min_ms") && number("min_ms") <= number("median_ms"));
        for key in ["cpu_ms", "relative", "gb_s", "gmac_s", "bandwidth_share", "peak_share", "bound_ms", "bound_ratio"]
        {
            assert!(number(key) > 0.0, "{key} of {width}");
        }
    }
    assert_eq!((&out["rounds"], &out["settings"]["depth"]), (&2.into(), &100.into()));
    assert_eq!((&out["prefill"]["tokens"], &out["decode"]["tokens"]), (&8.into(), &2.into()));
    for limit in ["read_gb_s", "int8_gmac_s", "f32_gmac_s"] {
        assert!(out["limits"][limit]["best"].as_f64() >= out["limits"][limit]["median"].as_f64(), "{limit}");
    }
    assert!(out["matrices"]["bytes"].as_u64() > Some(0));
}

#[test]
fn a_record_grows_by_a_line_for_each_measurement() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    for _ in 0..2 {
        let ran = glimmer(&[&QUICK[..], &["--widths", "2", "--record", path]].concat());
        assert!(ran.err.contains("nano: bf16 weights"), "{ran:?}");
        let table = ran.ok();
        assert!(table.contains("prefill of 8 tokens") && table.contains("x limit"), "{table}");
    }
    let folder = dir.path().join(std::env::consts::ARCH);
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    // One, or two around midnight.
    let lines: Vec<String> = files
        .iter()
        .flat_map(|file| std::fs::read_to_string(file).unwrap().lines().map(String::from).collect::<Vec<_>>())
        .collect();
    assert_eq!(lines.len(), files.len() + 6, "{lines:?}");
    let fields = |line: &str| line.split(',').count();
    assert!(lines[0].starts_with("date,cpu,threads,isa,model") && fields(&lines[0]) == 20, "{lines:?}");
    assert!(lines[1].contains(",nano,8x192x576,bf16,f32,") && lines[1].contains(",step,2,"), "{lines:?}");
}

#[test]
fn what_cannot_be_measured_is_refused_by_name() {
    for (args, parts) in [
        (&["--widths", "0"][..], &["--widths", "0"][..]),
        (&["--widths", "1,2,1"], &["--widths", "1 twice"]),
        (&["--widths", "600"], &["--widths", "600", "1 to 512"]),
        (&["--widths", "9", "-b", "8"], &["--widths", "9", "1 to 8"]),
        (&["--widths", ""], &["--widths"]),
        (&["--depth", "4000"], &["--depth is 4000", "at most 3584", "4096"]),
        (&["--prefill", "5000"], &["--prefill", "5000", "4096"]),
        (&["--iterations", "0"], &["--iterations"]),
        (&["--seconds", "-1"], &["--seconds"]),
    ] {
        glimmer(&[&["bench", "step", "nano"], args].concat()).assert_error(2, parts);
    }
    glimmer(&["bench", "step"]).assert_error(2, &["<MODEL>"]);
    glimmer(&["bench", "step", "nowhere.gguf"]).assert_error(1, &["nowhere.gguf", "no such file"]);
    let record = ["bench", "step", "nano", "--record", "/dev/null/x"];
    glimmer(&record).assert_error(1, &["/dev/null/x"]);
}

#[test]
fn a_synthetic_checkpoint_is_written_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    let path = path.to_str().unwrap();
    let synth = ["synth", "--shape", "tiny", "--encoding", "q4_k", "--out", path];
    assert!(glimmer(&synth).err.contains("0.018 GB of weights"));
    glimmer(&synth).assert_error(1, &[path, "exists already"]);
    let out = json(&["inspect", path]);
    assert_eq!((&out["text"]["layers"], &out["text"]["vocab_size"]), (&8.into(), &4096.into()));
    let asked = |encoding: &str, more: &[&str]| {
        glimmer(&[&["synth", "--shape", "tiny", "--encoding", encoding, "--out", "x"], more].concat())
    };
    asked("q4_k", &["--container", "mlx"]).assert_error(2, &["q4_k", "expected gguf"]);
    asked("affine7g64", &[]).assert_error(2, &["--encoding", "affine7g64", "known"]);
    asked("bf16", &["--container", "zip"]).assert_error(2, &["--container", "zip", "gguf"]);
}

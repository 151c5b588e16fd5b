//! The lines of `--trace`.

use crate::support::{glimmer, json};
use serde_json::Value;

fn traced(more: &[&str]) -> (Value, Vec<Value>) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trace.jsonl");
    std::fs::write(&file, "of another run").unwrap();
    let args = ["run", "def f(a, b):\n", "--temp", "0", "-n", "40", "--ignore-eos", "--trace", file.to_str().unwrap()];
    let out = json(&[&args, more].concat());
    let text = std::fs::read_to_string(file).unwrap();
    (out, text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[test]
fn every_round_has_a_line() {
    for (more, proposers) in [
        (&[][..], &["dflash"][..]),
        (&["--draft-width", "6"], &["dflash"]),
        (&["--draft-kind", "ngram"], &["ngram"]),
        (&["--draft-kind", "hybrid"], &["dflash", "ngram"]),
        (&["--no-draft"], &[]),
    ] {
        let (out, lines) = traced(more);
        let rounds = out["rounds"].as_array().unwrap();
        assert_eq!(lines.len(), rounds.len(), "{more:?}");
        for (number, (line, round)) in lines.iter().zip(rounds).enumerate() {
            let keys: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(
                keys.join(" "),
                "generation round width proposer proposals confidence accepted emitted observe_ms draft_ms verify_ms estimate"
            );
            assert_eq!((&line["generation"], &line["round"]), (&Value::from(0), &Value::from(number)));
            for key in ["width", "proposals", "accepted", "emitted"] {
                assert_eq!(line[key], round[key], "{more:?} {number} {key}");
            }
            let proposer = line["proposer"].as_str();
            assert!(proposer.is_none_or(|proposer| proposers.contains(&proposer)), "{line}");
            let confidence = line["confidence"].as_array().unwrap();
            assert!(confidence.iter().all(|p| (0.0..=1.0).contains(&p.as_f64().unwrap())), "{line}");
            assert!(confidence.len() >= line["proposals"].as_array().unwrap().len(), "{line}");
            assert!(line["verify_ms"].as_f64().unwrap() > 0.0, "{line}");
            let chosen = proposer.is_some() && !more.contains(&"--draft-width");
            assert_eq!(line["estimate"].is_object(), chosen, "{line}");
        }
    }
}

#[test]
fn what_cannot_be_written_is_an_error() {
    glimmer(&["run", "x", "-n", "1", "-q", "--trace", "/absent/trace"]).assert_error(1, &["/absent/trace: "]);
    #[cfg(target_os = "linux")]
    {
        let ran = glimmer(&["run", "x", "--temp", "0", "-n", "9", "-q", "--trace", "/dev/full"]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.err.contains("error: /dev/full: "), "{ran:?}");
    }
}

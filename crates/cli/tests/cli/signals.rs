//! Ctrl-C.

use crate::support::{Ran, command};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::Duration;

fn interrupt(child: &Child) {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
}

const LONG: [&str; 7] = ["run", "def f", "-n", "-1", "--temp", "0", "--ignore-eos"];

#[test]
fn ctrl_c_stops_and_keeps_what_there_is() {
    let mut child = command(&LONG).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut text = vec![0; 5];
    stdout.read_exact(&mut text).unwrap();
    interrupt(&child);
    stdout.read_to_end(&mut text).unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(text.ends_with(b"\n"));
    let timing = ran.err.lines().last().unwrap();
    assert!(timing.starts_with("prompt ") && timing.contains("(cancelled)"), "{ran:?}");
}

#[test]
fn ctrl_c_leaves_json_whole() {
    let mut child = command(&[&LONG[..], &["--json"]].concat()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut lines = String::new();
    while !lines.contains("width auto") {
        assert_ne!(stderr.read_line(&mut lines).unwrap(), 0, "{lines}");
    }
    // Long before the context is full.
    sleep(Duration::from_millis(150));
    interrupt(&child);
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130));
    let out: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(out["finish_reason"], "cancelled");
    assert_eq!(out["timings"]["predicted_n"], out["token_ids"].as_array().unwrap().len());
}

#[test]
fn ctrl_c_ends_waiting_for_a_prompt_at_once() {
    let mut child = command(&["run"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
    let _open = child.stdin.take();
    // The handler is there once the program waits; before, the signal itself ends it.
    sleep(Duration::from_millis(1500));
    interrupt(&child);
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (Some(130), "", ""));
}

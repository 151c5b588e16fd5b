//! Text in, text out.

use crate::support::{Ran, command, glimmer, glimmer_with_stdin, json, repository};
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::path::Path;

const GREEDY: [&str; 4] = ["--temp", "0", "-n", "32"];

fn greedy(args: &[&str]) -> Ran {
    glimmer(&[&["run"], args, &GREEDY].concat())
}

#[test]
fn the_continuation_is_on_stdout_and_the_rest_on_stderr() {
    let ran = greedy(&["def fibonacci(n):", "-s", "7"]);
    let lines: Vec<&str> = ran.err.lines().collect();
    let [note, start, timing] = lines[..] else { panic!("{ran:?}") };
    assert!(note.starts_with("note: this is nano, a tiny test model"), "{note}");
    for part in ["nano: bf16 weights", "f32 activations", "f32 KV cache", "context 4096", "(dflash), width auto"] {
        assert!(start.contains(part), "{start}");
    }
    assert!(timing.starts_with("prompt ") && timing.contains("output 32 tokens") && timing.ends_with("seed 7"));
    assert!(ran.out.len() > 40 && ran.out.ends_with('\n') && !ran.out.contains('\u{fffd}'), "{ran:?}");

    let out = json(&["run", "def fibonacci(n):", "--temp", "0", "-n", "32"]);
    assert_eq!(format!("{}\n", out["text"].as_str().unwrap().trim_end_matches('\n')), ran.out);
    let quiet = greedy(&["def fibonacci(n):", "-q", "-s", "7"]);
    assert_eq!((quiet.err.as_str(), quiet.out.as_str()), ("", ran.ok().as_str()));
    let drawn = greedy(&["def fibonacci(n):", "-q"]).err;
    let seed = drawn.strip_prefix("seed ").and_then(|seed| seed.strip_suffix('\n'));
    assert!(seed.is_some_and(|seed| seed.parse::<u64>().is_ok()), "{drawn:?}");
}

#[test]
fn activations_in_bf16_are_named_and_every_width_gives_the_same_text() {
    let args = ["def fibonacci(n):", "--activations", "bf16"];
    let ran = greedy(&args);
    assert!(ran.err.contains("nano: bf16 weights, bf16 activations, "), "{ran:?}");
    assert_eq!(greedy(&[&args[..], &["--no-draft", "-t", "1"]].concat()).ok(), ran.ok());
    let out = json(&[&["run"], &args[..], &GREEDY].concat());
    assert_eq!(out["settings"]["activations"], "bf16");
    let quantized = repository("fixtures/muse-tiny-mlx-vlm-4bit");
    glimmer(&["run", "-m", &quantized, "--prompt-ids", "1", "--activations", "bf16"])
        .assert_error(1, &[": tensor `", "no kernel for", "with bf16 activations", "--activations f32"]);
    let dense = repository("fixtures/muse-tiny-bf16");
    glimmer(&["run", "-m", &dense, "--prompt-ids", "1", "--activations", "int8"])
        .assert_error(1, &["muse-tiny-bf16: no weight meets int8 activations"]);
    glimmer(&["run", "x", "--activations", "bf17"]).assert_error(2, &["auto, int8, bf16, f32"]);
}

#[test]
fn mapped_weights_give_the_same_text() {
    let target = repository("nano/target");
    let args = |more: &[&'static str]| -> Vec<String> {
        let all = ["run", "-m", &target, "--raw", "def fibonacci(n):"];
        all.iter().chain(&GREEDY).chain(more).map(|arg| arg.to_string()).collect()
    };
    let run = |more: &[&'static str]| {
        let args = args(more);
        glimmer(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let (loaded, mapped) = (run(&[]), run(&["--mmap"]));
    assert!(mapped.err.contains("bf16 weights left in their files, "), "{mapped:?}");
    assert!(!loaded.err.contains("left in their files"), "{loaded:?}");
    assert_eq!(mapped.ok(), loaded.ok());
    let out: Value = serde_json::from_str(&run(&["--mmap", "--json"]).ok()).unwrap();
    assert_eq!(out["settings"]["mmap"], true);
    glimmer(&["run", "x", "--mmap"]).assert_error(1, &["nano: it is part of this program: there is no file to map"]);
    glimmer(&["run", "x", "--no-mmap"]).assert_error(2, &["weights are read into memory unless --mmap is given"]);
}

#[test]
fn a_prompt_is_the_same_wherever_it_comes_from() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompt.txt");
    fs::write(&file, "def fibonacci(n):\n").unwrap();
    let file = file.to_str().unwrap();
    let expected = greedy(&["def fibonacci(n):", "-q"]).ok();
    for args in [
        &["-p", "def fibonacci(n):"][..],
        &["-m", "nano", "def fibonacci(n):"],
        &["nano", "def fibonacci(n):"],
        &["-f", file],
        &["--no-draft", "-f", file],
    ] {
        assert_eq!(greedy(args).ok(), expected, "{args:?}");
    }
    assert_eq!(glimmer(&[&["run", "-q"][..], &GREEDY, &["--", "def fibonacci(n):"]].concat()).ok(), expected);
    for args in [
        &["run"][..],
        &["run", "-f", "-"],
        &["run", "-p", "-"],
        &["run", "-"],
        &["generate"],
        &["generate", "-m", "nano"],
    ] {
        let args = [args, &GREEDY].concat();
        assert_eq!(glimmer_with_stdin(&args, b"def fibonacci(n):").ok(), expected, "{args:?}");
        assert_eq!(glimmer_with_stdin(&args, b"def fibonacci(n):\r\n").ok(), expected, "{args:?}");
    }
    assert_ne!(glimmer_with_stdin(&[&["run"][..], &GREEDY].concat(), b"def fibonacci(n):\n\n").ok(), expected);
}

#[test]
fn a_seed_decides_the_text_and_a_drawn_one_is_printed() {
    let sampled = |more: &[&str]| json(&[&["run", "import", "-n", "24"], more].concat());
    let first = sampled(&[]);
    let seed = first["seed"].as_u64().unwrap();
    assert!(seed < 1 << 53, "{seed}");
    let again = sampled(&["--seed", &seed.to_string(), "--draft-width", "9", "-t", "1"]);
    assert_eq!(again["token_ids"], first["token_ids"]);
    assert_ne!(sampled(&[])["seed"], first["seed"]);
    assert_ne!(sampled(&["-s", "1"])["token_ids"], sampled(&["-s", "2"])["token_ids"]);
    let largest = u64::MAX.to_string();
    assert_eq!(sampled(&["-s", &largest])["seed"], u64::MAX);
    let ran = glimmer(&["run", "import", "-n", "24", "-s", &seed.to_string()]);
    assert!(ran.err.trim_end().ends_with(&format!("seed {seed}")), "{ran:?}");
    assert_eq!(ran.ok().trim_end(), first["text"].as_str().unwrap().trim_end());
}

#[test]
fn output_ends_where_it_was_told_to() {
    let whole = json(&["run", "def fibonacci(n):", "--temp", "0", "-n", "32"]);
    assert_eq!(whole["finish_reason"], "length");
    let text = whole["text"].as_str().unwrap();
    let (before, stop) = text.split_at(text.char_indices().nth(25).unwrap().0);
    let stop: String = stop.chars().take(7).collect();
    let out = json(&["run", "def fibonacci(n):", "--temp", "0", "-n", "32", "--stop", "~~~~", "--stop", &stop]);
    assert_eq!((out["finish_reason"].as_str(), out["text"].as_str()), (Some("stop"), Some(before)));

    // One token of the context is left for the answer at least, and the last may be the answer's.
    let ids = "2000,322,528,1089,578,1319,11,292,1412";
    let edge = json(&["run", "--prompt-ids", ids, "-c", "12", "--temp", "0", "--ignore-eos"]);
    assert_eq!((edge["finish_reason"].as_str(), edge["token_ids"].as_array().unwrap().len()), (Some("length"), 3));
    let full = glimmer(&["run", "--prompt-ids", ids, "-c", "9", "-q"]);
    full.assert_error(1, &["the prompt has 9 tokens", "the context holds 9"]);
    assert_eq!(json(&["run", "--prompt-ids", ids, "-n", "0"])["token_ids"], Value::Array(vec![]));
}

#[test]
fn chat_tells_reasoning_from_the_answer() {
    let ask = ["run", "--chat", "What is 23 + 45?", "--temp", "0"];
    let out = json(&ask);
    assert_eq!(out["finish_reason"], "stop");
    assert_eq!(out["tool_messages"], Value::Array(vec![]));
    let (answer, reasoning) = (out["text"].as_str().unwrap(), out["reasoning"].as_str().unwrap());
    assert!(!answer.is_empty() && !reasoning.is_empty() && !answer.contains("<|"), "{out}");
    assert_eq!(out["settings"]["framing"], "chat");
    assert_eq!(glimmer(&ask).ok(), format!("{answer}\n"));
    assert_eq!(glimmer(&[&ask[..], &["--show-reasoning", "off"]].concat()).ok(), format!("{answer}\n"));
    let shown = glimmer(&[&ask[..], &["--show-reasoning", "on"]].concat()).ok();
    assert_eq!(shown, format!("{reasoning}\n\n{answer}\n"));

    // A checkpoint with a template chats by itself, without a drafter, and gives the same.
    let target = repository("nano/target");
    let f32 = ["What is 23 + 45?", "--temp", "0", "-ctk", "f32", "-ctv", "f32"];
    let named = json(&[&["run", &target][..], &f32].concat());
    assert_eq!((&named["text"], &named["reasoning"]), (&out["text"], &out["reasoning"]));
    assert_eq!(named["settings"]["draft_model"], Value::Null);
    let assistant = repository("nano/assistant");
    let drafted = json(&[&["run", &target, "-md", &assistant][..], &f32].concat());
    assert_eq!(
        (&drafted["token_ids"], &drafted["settings"]["draft_width"]),
        (&named["token_ids"], &Value::from("auto"))
    );
    let raw = json(&["run", &target, "What is 23 + 45?", "--temp", "0", "-n", "4", "--raw"]);
    assert_eq!((&raw["settings"]["framing"], raw.get("reasoning")), (&Value::from("raw"), None));

    let low = glimmer(&[&ask[..], &["--reasoning-effort", "off", "--system", "Be brief."]].concat());
    assert!(low.err.contains("note: the model always reasons"), "{low:?}");
    low.ok();
}

#[test]
fn without_a_tokenizer_only_ids_work() {
    let tiny = repository("fixtures/muse-tiny-bf16");
    let out = json(&["run", &tiny, "--prompt-ids", "480,1,2,3", "-n", "8", "--temp", "0"]);
    assert_eq!((&out["text"], out["token_ids"].as_array().unwrap().len()), (&Value::Null, 8));
    assert_eq!(out["settings"]["cache_type_k"], "f16");
    let printed = glimmer(&["run", &tiny, "--prompt-ids", "480,1,2,3", "-n", "8", "--temp", "0", "-q"]).ok();
    let ids: Vec<String> = out["token_ids"].as_array().unwrap().iter().map(Value::to_string).collect();
    assert_eq!(printed, format!("{}\n", ids.join(",")));
    assert_eq!(glimmer(&["run", &tiny, "--prompt-ids", "480", "-n", "0", "-q"]).ok(), "");
    for (args, part) in [
        (&["hello"][..], "tokenizer.json: only --prompt-ids works"),
        (&["hello", "--chat"], "tokenizer.json: only --prompt-ids works"),
        (&["--prompt-ids", "1", "--stop", "x"], "tokenizer.json: --stop needs one"),
    ] {
        glimmer(&[&["run", "-m", &tiny], args].concat()).assert_error(1, &["muse-tiny-bf16 has no", part]);
    }
}

/// A copy of a checkpoint in which one tensor of bf16 holds the largest number.
fn spoilt(from: &str, tensor: &str, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
    let file = to.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    assert_eq!(header[tensor]["dtype"], "BF16");
    let at = |n: usize| 8 + length + header[tensor]["data_offsets"][n].as_u64().unwrap() as usize;
    bytes[at(0)..at(1)].chunks_exact_mut(2).for_each(|bf16| bf16.copy_from_slice(&0x7f7fu16.to_le_bytes()));
    fs::write(file, bytes).unwrap();
}

#[test]
fn a_drafter_that_fails_is_told_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    spoilt(&repository("nano/assistant"), "norm.weight", dir.path());
    let drafter = dir.path().to_str().unwrap();
    let args = ["run", "def f", "--temp", "0", "-n", "16"];
    let plain = json(&[&args[..], &["--no-draft"]].concat());
    assert_eq!(plain["notices"], Value::Array(vec![]));
    let told = json(&[&args[..], &["-md", drafter]].concat());
    assert_eq!(told["token_ids"], plain["token_ids"]);
    let [Value::String(notice)] = &told["notices"].as_array().unwrap()[..] else { panic!("{told}") };
    assert!(notice.contains("drafter"), "{notice}");
    let ran = glimmer(&[&args[..], &["-md", drafter, "-q", "-s", "1"]].concat());
    assert_eq!(ran.err, format!("note: {notice}\n"));
    assert_eq!(ran.ok().trim_end(), plain["text"].as_str().unwrap().trim_end());
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let mut child = command(&["run", "def f", "-n", "400", "--temp", "0", "--ignore-eos", "-q"]).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    drop(stdout);
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    for args in [&["run", "--help"][..], &["inspect", "nano"], &["run", "--prompt-ids", "1", "-n", "1", "--json", "-q"]]
    {
        let mut child = command(args).spawn().unwrap();
        drop(child.stdout.take());
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_is_full_is_an_error() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let out = command(&["run", "def f", "-n", "4", "-q"]).stdout(full).output().unwrap();
    Ran::from(out).assert_error(1, &["writing to stdout"]);
}

#[test]
fn a_drafter_that_comes_with_the_model_is_used_and_said() {
    let dir = tempfile::tempdir().unwrap();
    for (from, to) in [("nano/target", dir.path().to_path_buf()), ("nano/assistant", dir.path().join("drafter"))] {
        std::fs::create_dir_all(&to).unwrap();
        for entry in std::fs::read_dir(repository(from)).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
    let run = ["generate", "-m", dir.path().to_str().unwrap(), "--raw", "-p", "def f(x):", "-n", "8", "--temp", "0"];
    let (with, without) = (glimmer(&run), glimmer(&[&run[..], &["--no-draft"]].concat()));
    let folder = dir.path().join("drafter").display().to_string();
    assert!(with.err.contains(&format!("drafter {folder} (dflash)")), "{}", with.err);
    assert!(without.err.contains("no drafter"), "{}", without.err);
    assert_eq!(with.ok(), without.ok());
}

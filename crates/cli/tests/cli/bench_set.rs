//! `bench` over prompts, and of random tokens.

use crate::support::{glimmer, repository};
use serde_json::Value;
use std::fs;

/// The rows of a measurement that went well.
#[track_caller]
fn rows(args: &[&str]) -> Vec<Value> {
    let out = glimmer(&[&["bench", "nano", "--json", "-"], args].concat()).ok();
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn keys(value: &Value) -> String {
    value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ")
}

/// Two prompts, short ones.
fn prompts(dir: &tempfile::TempDir) -> String {
    let file = dir.path().join("prompts.jsonl");
    let lines = "{\"name\": \"a & <b>\", \"prompt\": \"def f(x):\\n\"}\n\n\
                 {\"name\": \"talk\", \"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of France?\"}]}\n\
                 {\"name\": \"numbers\", \"ids\": [5, 6, 7]}\n";
    fs::write(&file, lines).unwrap();
    file.to_str().unwrap().into()
}

/// Everything but the rates, which nobody knows.
#[track_caller]
fn check_row(row: &Value, repetitions: usize) {
    assert_eq!(
        keys(row),
        "prompt width drafter tok_s tok_s_of_each cpu_s_per_token_and_thread speedup tokens_equal first_difference rounds \
         drafted_rounds rounds_by_width tokens_per_round proposed accepted acceptance round_ms framing prompt_tokens \
         prefill_tok_s finish_reason token_ids sha256 load_s peak_memory_bytes machine versions checkpoints settings"
    );
    for (key, members) in [
        ("tok_s", "median min max deviation"),
        ("prefill_tok_s", "median min max deviation"),
        ("round_ms", "observe draft verify"),
        ("machine", "cpu cores threads isa arch os"),
        ("checkpoints", "target drafter"),
    ] {
        assert_eq!(keys(&row[key]), members, "{key}");
    }
    for key in ["tok_s", "prefill_tok_s", "cpu_s_per_token_and_thread"] {
        let of = |member: &str| row[key][member].as_f64().unwrap();
        assert!(0.0 < of("min") && of("min") <= of("median") && of("median") <= of("max"), "{key} of {row}");
    }
    assert_eq!(row["tok_s_of_each"].as_array().unwrap().len(), repetitions);
    assert!(row["speedup"].as_f64().unwrap() > 0.0);
    assert_eq!((&row["tokens_equal"], &row["first_difference"]), (&true.into(), &Value::Null));
    for key in ["load_s", "peak_memory_bytes", "prompt_tokens", "rounds", "tokens_per_round"] {
        assert!(row[key].as_f64().unwrap() > 0.0, "{key} of {row}");
    }
    assert_eq!((row["sha256"].as_str().unwrap().len(), &row["settings"]["temperature"]), (64, &0.0.into()));
    for part in ["target", "drafter"] {
        let print = &row["checkpoints"][part];
        assert_eq!(print["sha256"].as_str().unwrap().len(), 64, "{part}");
        assert_eq!(print["sha256_of"], "configuration, tensor table and data");
    }
    let (proposed, accepted) = (row["proposed"].as_array().unwrap(), row["accepted"].as_array().unwrap());
    assert!(proposed.len() == accepted.len() && (proposed.is_empty() || row["drafter"] == true), "{row}");
    for counts in [proposed, accepted] {
        assert!(counts.windows(2).all(|pair| pair[0].as_u64() >= pair[1].as_u64()), "{row}");
    }
}

#[test]
fn every_prompt_has_a_row_for_every_width() {
    let dir = tempfile::tempdir().unwrap();
    let [file, svg, json] = ["", "chart.svg", "rows.jsonl"].map(|name| dir.path().join(name));
    let prompts = prompts(&dir);
    let args = ["--prompts", &prompts, "-n", "12", "-r", "2", "-t1", "--ignore-eos"];
    let widths = ["--widths", "3,auto", "--svg", svg.to_str().unwrap(), "--json", json.to_str().unwrap()];
    assert!(file.is_dir());
    let table = glimmer(&[&["bench", "nano"], &args[..], &widths].concat()).ok();
    let text = fs::read_to_string(&json).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found: Vec<String> = rows.iter().map(|row| format!("{} {}", row["prompt"], row["width"])).collect();
    let expected = ["a & <b>", "talk", "numbers"].map(|name| ["1", "3", "\"auto\""].map(|w| format!("\"{name}\" {w}")));
    assert_eq!(found, expected.concat());
    for (n, row) in rows.iter().enumerate() {
        check_row(row, 2);
        assert_eq!(row["token_ids"], rows[n / 3 * 3]["token_ids"]);
        assert_eq!(row["token_ids"].as_array().unwrap().len(), 12);
        assert_eq!(row["drafter"], n % 3 > 0);
        assert_eq!(row["settings"]["draft_width"], row["width"]);
    }
    assert_eq!([0, 3, 6].map(|n| rows[n]["framing"].clone()), ["raw", "chat", "ids"]);
    assert_eq!(rows[6]["prompt_tokens"], 3);
    // At a fixed width every round drafts.
    let (count, drafted) = (&rows[1]["rounds"], &rows[1]["drafted_rounds"]);
    assert!(count == drafted && rows[1]["rounds_by_width"]["3"] == *count, "{}", rows[1]);
    assert_eq!((&rows[1]["proposed"][0], rows[1]["proposed"].as_array().unwrap().len()), (count, 2));
    // The same tokens as `run` has.
    let ids = ["run", "--prompt-ids", "5,6,7", "--temp", "0", "-n", "12", "--ignore-eos", "--no-draft", "-q", "--json"];
    let run: Value = serde_json::from_str(&glimmer(&ids).ok()).unwrap();
    assert_eq!((&run["token_ids"], &run["sha256"]), (&rows[6]["token_ids"], &rows[6]["sha256"]));

    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("| prompt | width | tok/s | speedup |") && lines[1].starts_with("|---|"), "{table}");
    assert_eq!(lines.len(), 2 + 9 + 2, "{table}");
    assert!(lines.iter().all(|line| line.matches('|').count() == 8), "{table}");
    assert!(lines[2].starts_with("| a & <b> | plain | ") && lines[12].starts_with("| all (geometric mean) | auto |"));

    let svg = fs::read_to_string(&svg).unwrap();
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
    assert!(svg.contains("a &amp; &lt;b&gt;") && svg.contains("numbers") && svg.contains("auto"), "{svg}");
    // The ground, a bar for each row, and one for each width in the legend.
    assert!(svg.matches("<rect").count() >= 1 + 9 + 3);
}

#[test]
fn the_shipped_prompts_are_measured_by_default() {
    let rows = rows(&["-n", "3", "-r", "1", "--temp", "1", "--top-k", "40", "-s", "5"]);
    assert_eq!(rows.len(), 6 * 5);
    let of = |key: &str| rows.iter().map(|row| row[key].to_string()).collect::<Vec<_>>();
    assert_eq!(of("width")[..5], ["1", "\"auto\"", "2", "5", "8"]);
    let names = ["code", "repetitive code", "prose", "log", "json", "chat"].map(|name| format!("\"{name}\""));
    assert_eq!(of("prompt").iter().step_by(5).collect::<Vec<_>>(), names.iter().collect::<Vec<_>>());
    let settings = &rows[0]["settings"];
    assert_eq!((&settings["temperature"], &settings["top_k"], &settings["seed"]), (&1.0.into(), &40.into(), &5.into()));
    assert!(rows.iter().all(|row| row["tokens_equal"] == true));
}

#[test]
fn without_a_baseline_there_is_no_speedup() {
    let dir = tempfile::tempdir().unwrap();
    let rows = rows(&["--prompts", &prompts(&dir), "-n", "4", "-r", "1", "--baseline=off", "--draft-kind", "ngram"]);
    assert_eq!(rows.len(), 3 * 4);
    assert!(rows.iter().all(|row| row["speedup"].is_null() && row["width"] != 1));
    assert_eq!(rows[0]["settings"]["draft_kind"], "ngram");
    // Without a drafter there is nothing to compare, but something to measure.
    let bf16 = repository("fixtures/muse-tiny-bf16");
    let ran = glimmer(&["bench", &bf16, "-n", "3", "-r", "1"]);
    assert!(ran.err.contains("note: there is no drafter") && ran.err.contains("no tokenizer"), "{ran:?}");
    assert_eq!(ran.ok().lines().count(), 2 + 6);
}

#[test]
fn a_drafter_can_be_as_right_as_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let prompts = prompts(&dir);
    let args = ["--prompts", &prompts, "-n", "41", "-r", "1", "--ignore-eos", "--widths", "5"];
    for (accept, acceptance) in [("0", 0.0), ("1", 1.0)] {
        let rows = rows(&[&args[..], &["--accept", accept]].concat());
        for row in rows.iter().filter(|row| row["width"] == 5) {
            // 40 tokens are 8 rounds of 5; or 40 of one.
            assert_eq!(row["rounds"], if accept == "1" { 8 } else { 40 });
            assert!(row["acceptance"].as_array().unwrap().iter().all(|share| *share == acceptance), "{row}");
            assert_eq!(row["settings"]["accept"], acceptance);
        }
    }
    // Several turns of each.
    let pairs =
        ["--prompts", &prompts, "-n", "41", "--ignore-eos", "--widths", "2,auto", "--accept", "0.5", "--pairs", "3"];
    assert!(
        rows(&pairs)
            .iter()
            .all(|row| row["tokens_equal"] == true && row["tok_s_of_each"].as_array().unwrap().len() == 3)
    );
    let out = glimmer(&[&["bench", "nano"][..], &pairs].concat()).ok();
    assert!(
        out.contains("| prompt | best fixed | auto to it | at least (95 %) |") && out.contains("| talk | 2 | "),
        "{out}"
    );
}

#[test]
fn random_tokens_are_timed_at_a_depth() {
    let rows = rows(&["-p", "20", "-n", "3", "-d", "30", "-r", "2"]);
    let found: Vec<_> = rows.iter().map(|row| row["test"].as_str().unwrap()).collect();
    assert_eq!(found, ["pp20 @ d30", "tg3 @ d30"]);
    for (row, (kind, tokens)) in rows.iter().zip([("prefill", 20), ("decode", 3)]) {
        assert_eq!(
            keys(row),
            "test kind tokens depth tok_s seconds_of_each load_s peak_memory_bytes machine versions checkpoints settings"
        );
        assert_eq!((&row["kind"], &row["tokens"], &row["depth"]), (&kind.into(), &tokens.into(), &30.into()));
        assert_eq!(row["seconds_of_each"].as_array().unwrap().len(), 2);
        assert!(row["tok_s"]["median"].as_f64().unwrap() > 0.0);
        assert_eq!(row["settings"]["repetitions"], 2);
    }
    let table = glimmer(&["bench", "-m", "nano", "-p", "8", "-n", "0", "-r", "1"]).ok();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0] == "| model | size | params | threads | test | t/s |" && lines[2].contains("| pp8 | "), "{table}");
    let depth_alone = glimmer(&["bench", "nano", "-d", "5", "-n", "2", "-r", "1"]).ok();
    assert!(depth_alone.contains("| pp512 @ d5 |") && depth_alone.contains("| tg2 @ d5 |"), "{depth_alone}");
}

#[test]
fn what_cannot_be_measured_is_refused_before_work() {
    let assistant = repository("nano/assistant");
    let bf16 = repository("fixtures/muse-tiny-bf16");
    for (args, code, parts) in [
        (&["nano", "--widths", "wide"][..], 2, &["--widths <WIDTH,...>", "wide", "expected auto"][..]),
        (&["nano", "--widths", "1"], 2, &["--widths", "from 2"]),
        (&["nano", "--widths", "2,5,2"], 2, &["--widths: 2 twice"]),
        (&["nano", "--widths", "17"], 2, &["--widths: 17", "2 to 16", "nano-assistant"]),
        (&["nano", "--draft-kind", "ngram", "--widths", "17"], 2, &["--widths: 17", "2 to 16", "ngram"]),
        (&[&bf16, "--widths", "2"], 2, &["--widths needs a drafter"]),
        (&[&bf16, "--baseline=off"], 2, &["--baseline=off needs a drafter"]),
        (&["nano", "--accept", "1.5"], 2, &["--accept", "0 to 1"]),
        (&["nano", "--accept", "0.5", "--draft-kind", "hybrid"], 2, &["--accept", "hybrid"]),
        (&["nano", "-n", "1"], 2, &["-n: expected at least 2"]),
        (&["nano", "-r", "0"], 2, &["--repetitions"]),
        (&["nano", "--pairs", "3", "-r", "2"], 2, &["--pairs", "--repetitions"]),
        (&["nano", "-p", "8", "--widths", "2"], 2, &["--widths", "--n-prompt"]),
        (&["nano", "-d", "8", "--svg", "x"], 2, &["--svg", "--n-depth"]),
        (&["nano", "-p", "0", "-n", "0"], 2, &["nothing to time"]),
        (&["nano", "-p", "8", "-d", "4090"], 2, &["-d 4090", "at most 4096"]),
        (&["nano", "-p", "64", "-c", "32", "-n", "2"], 2, &["-p 64", "at most 32, the context"]),
        (&["nano", "--svg", "/absent/x.svg"], 1, &["/absent/x.svg"]),
        (&["nano", "--json", "/absent/x"], 1, &["/absent/x"]),
        (&["nano", "--prompts", "/absent/p"], 1, &["/absent/p"]),
        (&[&assistant], 1, &["is a drafter"]),
        (&[&assistant, "-p", "8"], 1, &["is a drafter"]),
        (&["nowhere.gguf"], 1, &["nowhere.gguf", "no such file"]),
        (&[], 2, &["<MODEL>"]),
    ] {
        glimmer(&[&["bench"], args].concat()).assert_error(code, parts);
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("p");
    let file = file.to_str().unwrap();
    for (text, part) in [
        ("{\"name\": \"a\", \"prompt\": \"x\"}\n{\"name\": \"b\"}\n", "line 2: expected one of"),
        ("\n\nnonsense", "line 3: not JSON"),
        ("", "expected a JSON object per line"),
    ] {
        fs::write(file, text).unwrap();
        glimmer(&["bench", "nano", "--prompts", file]).assert_error(1, &[file, part]);
    }
    fs::write(file, "{\"name\": \"far\", \"ids\": [999999]}").unwrap();
    let ran = glimmer(&["bench", "nano", "--prompts", file, "-n", "2"]);
    assert!(ran.code == Some(1) && ran.err.contains("999999"), "{ran:?}");
}

//! `tune`, and what is made of it.

use crate::support::{Ran, command, glimmer, repository};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

const QUICK: [&str; 6] = ["--widths", "2,4", "-n", "8", "--rounds", "1"];
const RAW: [&str; 6] = ["--raw", "--temp", "0", "-n", "24", "def fibonacci(n):"];

/// A user with a configuration.
struct User {
    home: tempfile::TempDir,
}

impl User {
    fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap() }
    }

    fn glimmer(&self, args: &[&str]) -> Ran {
        command(args).env("XDG_CONFIG_HOME", self.home.path()).output().unwrap().into()
    }

    fn file(&self) -> PathBuf {
        self.home.path().join("glimmer/tuned.json")
    }

    fn tunings(&self) -> Value {
        serde_json::from_slice(&fs::read(self.file()).unwrap()).unwrap()
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.glimmer(&[&["run"], args, &RAW].concat())
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Where the system does not say what processor it has, nothing is stored.
fn stores_here() -> bool {
    fs::read_to_string("/proc/cpuinfo").is_ok_and(|info| info.contains("model name"))
}

#[test]
fn what_was_measured_is_stored_and_used() {
    let user = User::new();
    let ran = user.glimmer(&[&["tune", "nano", "-t", "1"], &QUICK[..]].concat());
    for part in ["width  verify ms  draft ms  tokens a round", "\n    1  ", "\n    2  ", "\n    4  ", "\nbest: "] {
        assert!(ran.out.contains(part), "{ran:?}");
    }
    if !stores_here() {
        return;
    }
    assert!(ran.out.contains(&format!("stored in {}", text(&user.file()))), "{ran:?}");
    let all = user.tunings();
    assert_eq!((&all["version"], all["tunings"].as_array().unwrap().len()), (&1.into(), 1));
    let tuning = &all["tunings"][0];
    let key = &tuning["key"];
    assert_eq!(
        (&key["target"], &key["drafter"], &key["threads"]),
        (&"nano".into(), &"nano-assistant".into(), &1.into())
    );
    let rows: Vec<_> =
        tuning["widths"].as_array().unwrap().iter().map(|width| width["rows"].as_u64().unwrap()).collect();
    assert_eq!(rows, [1, 2, 4]);

    // The same models and settings begin with it, others do not; the tokens are the same.
    let day = format!("width auto, tuned {}", &tuning["tuned"].as_str().unwrap()[..10]);
    let expected = glimmer(&[&["run", "nano"], &RAW[..]].concat()).ok();
    for (args, tuned) in [
        (&["nano", "-t", "1"][..], true),
        (&["nano", "-t", "1", "--draft-width", "auto"], true),
        (&["nano", "-t", "1", "--draft-width", "4"], false),
        (&["nano", "-t", "2"], false),
        (&["nano", "-t", "1", "-md", "nano-dflash2"], false),
        (&["nano", "-t", "1", "--no-draft"], false),
    ] {
        let ran = user.run(args);
        assert_eq!(ran.err.contains(&day), tuned, "{args:?}: {ran:?}");
        assert_eq!(ran.err.contains("tuned"), tuned, "{args:?}: {ran:?}");
        assert_eq!(ran.ok(), expected, "{args:?}");
    }
    // Those of another machine are not used.
    let other = fs::read_to_string(user.file()).unwrap().replace("\"cpu\": \"", "\"cpu\": \"not ");
    fs::write(user.file(), other).unwrap();
    assert!(!user.run(&["nano", "-t", "1"]).err.contains("tuned"));
    // New values take the place of old ones of the same key, and no others.
    for _ in 0..2 {
        user.glimmer(&[&["tune", "nano", "-t", "1"], &QUICK[..]].concat()).ok();
    }
    assert_eq!(user.tunings()["tunings"].as_array().unwrap().len(), 2);
}

#[test]
fn costs_that_were_stored_decide_the_first_round() {
    if !stores_here() {
        return;
    }
    let user = User::new();
    user.glimmer(&[&["tune", "nano", "-t", "1"], &QUICK[..]].concat()).ok();
    let trace = user.home.path().join("trace");
    let first = |args: &[&str]| -> Value {
        user.run(&[&["nano", "-t", "1", "--trace", text(&trace)], args].concat()).ok();
        serde_json::from_str(fs::read_to_string(&trace).unwrap().lines().next().unwrap()).unwrap()
    };
    // As if rows cost nothing, and as if nothing else were to be had for them.
    let mut all = user.tunings();
    for (each, wide) in [(0.0, true), (10.0, false)] {
        for width in all["tunings"][0]["widths"].as_array_mut().unwrap() {
            let rows = width["rows"].as_f64().unwrap();
            width["verify_ms"] = json!(10.0 + each * (rows - 1.0));
            width["draft_ms"] = json!(if rows > 1.0 { 0.001 + each } else { 0.0 });
        }
        fs::write(user.file(), all.to_string()).unwrap();
        let round = first(&[]);
        assert_eq!(round["width"].as_u64().unwrap() > 1, wide, "{round}");
        assert_eq!(round["proposer"] == "dflash", wide, "{round}");
    }
    fs::remove_file(user.file()).unwrap();
    assert_eq!(first(&[])["width"], 1);
}

#[test]
fn without_a_tokenizer_and_without_storing_it_measures_too() {
    let user = User::new();
    let (tiny, drafter) = (repository("fixtures/muse-tiny-bf16"), repository("fixtures/muse-tiny-assistant"));
    let ran = user.glimmer(&[&["tune", &tiny, "-md", &drafter, "--dry-run", "--json"], &QUICK[..]].concat());
    let out: Value = serde_json::from_str(&ran.ok()).unwrap();
    assert_eq!(out["dry_run"], true);
    assert_eq!(out["widths"].as_array().unwrap().len(), 3);
    for width in out["widths"].as_array().unwrap() {
        let field = |name: &str| width[name].as_f64().unwrap();
        assert!(field("verify_ms") > 0.0 && field("tokens_per_second") > 0.0, "{width}");
        assert!(field("tokens_per_round") >= 1.0 && field("tokens_per_round") <= field("rows"), "{width}");
        assert_eq!(field("draft_ms") > 0.0, field("rows") > 1.0, "{width}");
    }
    assert!(!user.file().exists());
    assert_eq!(fs::read_dir(user.home.path()).unwrap().count(), 0);
}

#[test]
fn a_bundle_is_told_its_best_width_and_keeps_the_rest() {
    let user = User::new();
    let dir = tempfile::tempdir().unwrap();
    let (bundle, file) = (dir.path().join("pair"), dir.path().join("pair/dflash_pair.json"));
    glimmer(&["pair", "make", "nano", "nano", text(&bundle)]).ok();
    let mut manifest: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    manifest["benchmark"] = json!({ "mean_accept": 2.5, "best_block_size": 9, "prompts": ["a", 1, null] });
    manifest["diffusion"] = json!({ "num_steps": 1 });
    manifest["x-maker"] = json!({ "name": "somebody", "big": 18_446_744_073_709_551_615u64 });
    let before = manifest.to_string();
    fs::write(&file, &before).unwrap();

    let args = [&["tune", text(&bundle), "-t", "1", "--json"], &QUICK[..]].concat();
    user.glimmer(&[&args[..], &["--dry-run"]].concat()).ok();
    assert_eq!((fs::read_to_string(&file).unwrap(), user.file().exists()), (before.clone(), false));
    assert!(user.run(&[text(&bundle), "-t", "1"]).err.contains("width 9"));

    let out: Value = serde_json::from_str(&user.glimmer(&args).ok()).unwrap();
    // Where drafting did not pay there is no width to store.
    let best = out["best_block_size"].as_u64().unwrap();
    manifest["benchmark"]["best_block_size"] = json!(if best == 1 { 9 } else { best });
    let after = fs::read_to_string(&file).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&after).unwrap().to_string(), manifest.to_string());
    assert_eq!(fs::read_dir(&bundle).unwrap().count(), 3);
    if stores_here() {
        let ran = user.run(&[text(&bundle), "-t", "1"]);
        assert!(ran.err.contains("width auto, tuned "), "{ran:?}");
        assert_eq!(ran.ok(), glimmer(&[&["run", text(&bundle)], &RAW[..]].concat()).ok());
    }
    // Of another drafter the bundle has nothing to learn.
    fs::write(&file, &before).unwrap();
    user.glimmer(&[&args[..], &["-md", "nano-dflash2"]].concat()).ok();
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
}

#[test]
fn a_malformed_file_is_said_and_not_used() {
    if !stores_here() {
        return;
    }
    let user = User::new();
    user.glimmer(&[&["tune", "nano", "-t", "1"], &QUICK[..]].concat()).ok();
    let whole = fs::read_to_string(user.file()).unwrap();
    let expected = glimmer(&[&["run", "nano"], &RAW[..]].concat()).ok();
    let number = |field: &str, value: &str| {
        let at = whole.find(field).unwrap() + field.len();
        let end = at + whole[at..].find([',', '\n']).unwrap();
        format!("{}{value}{}", &whole[..at], &whole[end..])
    };
    for malformed in [
        String::new(),
        "{".into(),
        "[]".into(),
        "{\"version\": 1}".into(),
        "\u{1b}[31m\u{0}".into(),
        whole.replace("\"version\": 1", "\"version\": 2"),
        number("\"verify_ms\": ", "1e999"),
        number("\"verify_ms\": ", "0.0"),
        number("\"verify_ms\": ", "null"),
        number("\"draft_ms\": ", "-1.0"),
        number("\"rows\": ", "7"),
        number("\"rows\": ", "-1"),
        number("\"best_block_size\": ", "99"),
        number("\"tuned\": ", "\"yesterday\\n\""),
        " ".repeat((4 << 20) + 1),
    ] {
        let shown = malformed.chars().take(300).collect::<String>();
        fs::write(user.file(), &malformed).unwrap();
        let ran = user.run(&["nano", "-t", "1", "-q"]);
        let lines: Vec<&str> = ran.err.lines().collect();
        assert!(lines[0].starts_with("warning: ") && lines[0].contains("tuned.json"), "{shown}: {ran:?}");
        assert!(lines[0].ends_with("it is not used") && lines.len() == 2, "{shown}: {ran:?}");
        assert_eq!(ran.ok(), expected, "{shown}");
        user.glimmer(&[&["tune", "nano", "-t", "1"], &QUICK[..]].concat()).assert_error(1, &["tuned.json: "]);
        assert_eq!(fs::read_to_string(user.file()).unwrap(), malformed, "what it is, is not ours to say");
    }
    // What nothing is decided by is not looked at.
    assert_eq!(user.run(&["nano", "-t", "1", "-q", "--draft-width", "4", "-s", "1"]).err, "");
    fs::remove_file(user.file()).unwrap();
    fs::create_dir(user.file()).unwrap();
    let ran = user.run(&["nano", "-t", "1", "-q", "-s", "1"]);
    assert!(ran.err.starts_with("warning: ") && ran.err.lines().count() == 1, "{ran:?}");
}

#[test]
fn the_place_is_that_of_the_users_configuration() {
    let home = tempfile::tempdir().unwrap();
    let run = |variable: &str| -> Ran {
        let mut tune = command(&[&["tune", "nano", "-t", "1"], &QUICK[..]].concat());
        tune.env("HOME", home.path()).env("XDG_CONFIG_HOME", variable).output().unwrap().into()
    };
    // What is not absolute counts as not set.
    for variable in ["", "relative"] {
        run(variable).ok();
        assert_eq!(home.path().join(".config/glimmer/tuned.json").exists(), stores_here(), "{variable}");
    }
    assert!(!Path::new("relative").exists());
    let mut nowhere = command(&[&["tune", "nano", "-t", "1"], &QUICK[..]].concat());
    let ran: Ran = nowhere.env_remove("HOME").env_remove("XDG_CONFIG_HOME").output().unwrap().into();
    assert!(ran.ok().contains("not stored: neither XDG_CONFIG_HOME nor HOME"));
}

#[test]
fn what_cannot_be_tuned_is_one_line() {
    let tune = |args: &[&str]| glimmer(&[&["tune"], args].concat());
    tune(&[]).assert_error(2, &["MODEL"]);
    tune(&["nano", "--widths", "2,17"]).assert_error(2, &["--widths: 17", "1 to 16"]);
    tune(&["nano", "--widths", "0"]).assert_error(2, &["--widths"]);
    tune(&["nano", "-n", "1"]).assert_error(2, &["--tokens"]);
    let (tiny, drafter) = (repository("fixtures/muse-tiny-bf16"), repository("nano/assistant"));
    tune(&[&tiny]).assert_error(2, &["muse-tiny-bf16 has no drafter", "--draft-model"]);
    tune(&[&tiny, "-md", &drafter]).assert_error(1, &["assistant", "muse-tiny-bf16"]);
    tune(&[&drafter]).assert_error(1, &["assistant"]);
    tune(&["/nonexistent/model"]).assert_error(1, &["/nonexistent/model"]);
}

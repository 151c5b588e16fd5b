//! What cannot be meant, and what cannot be done: one line, and the exit code tells which.

use crate::support::{glimmer, glimmer_with_stdin, repository};
use std::fs;

#[test]
fn usage_errors_name_the_flag() {
    let bf16 = repository("fixtures/muse-tiny-bf16");
    for (args, parts) in [
        (&["run", "x", "--temprature", "1"][..], &["--temprature", "similar argument", "--temperature"][..]),
        (&["rum"], &["rum", "similar subcommand", "'run'"]),
        (&["run", "x", "--temp", "hot"], &["--temp <T>", "hot", "0 or more"]),
        (&["run", "x", "--temp", "-1"], &["--temp <T>", "-1", "0 or more"]),
        (&["run", "x", "--temp", "nan"], &["--temp <T>", "nan"]),
        (&["run", "x", "--temp"], &["--temp <T>", "value is required"]),
        (&["run", "x", "--top-p", "0"], &["--top-p <P>", "above 0"]),
        (&["run", "x", "--top-p", "1.1"], &["--top-p <P>"]),
        (&["run", "x", "--min-p", "-0.1"], &["--min-p <P>", "0 to 1"]),
        (&["run", "x", "--top-k", "-3"], &["--top-k <K>", "-3"]),
        (&["run", "x", "--repeat-penalty", "0"], &["--repeat-penalty <X>", "above 0"]),
        (&["run", "x", "--presence-penalty", "3"], &["--presence-penalty <X>", "-2 to 2"]),
        (&["run", "x", "--frequency-penalty", "-3"], &["--frequency-penalty <X>", "-2 to 2"]),
        (&["run", "x", "--logit-bias", "5"], &["--logit-bias <ID=BIAS>", "ID=BIAS"]),
        (&["run", "x", "--logit-bias", "5=inf"], &["--logit-bias <ID=BIAS>"]),
        (&["run", "x", "--seed", "-2"], &["--seed <N>", "-2", "or -1"]),
        (&["run", "x", "-mli"], &["-mli is not supported by this version"]),
        (&["run", "x", "-ptc", "5"], &["-ptc is not supported by this version"]),
        (&["run", "x", "-st"], &["-st is not supported by this version"]),
        (&["run", "x", "-co"], &["-co is not supported by this version"]),
        (&["run", "x", "-sp"], &["-sp is not supported by this version"]),
        (&["run", "x", "-if"], &["-if is not supported by this version"]),
        (&["run", "x", "-temp", "1"], &["'-temp'", "nearest known is --temp"]),
        (&["run", "-phello"], &["'-phello'", "nearest known is -p hello"]),
        (&["inspect", "nano", "-mdx", "y"], &["'-mdx'", "nearest known is -md"]),
        (&["run", "x", "-t2x"], &["'-t2x'", "nearest known is "]),
        (&["run", "x", "-r", "User:"], &["-r is not supported by this version: --stop ends"]),
        (&["run", "x", "--no-display-prompt"], &["--no-display-prompt", "the prompt is never printed"]),
        (&["run", "x", "-e"], &["-e is not supported by this version: the prompt is taken as it is"]),
        (&["run", "x", "--rope-freq-base", "1"], &["--rope-freq-base is not supported by this version"]),
        (&["run", "x", "--max-kv-size", "9"], &["--max-kv-size is not supported by this version: -c sets"]),
        (&["run", "x", "-s18446744073709551616"], &["--seed <N>"]),
        (&["run", "x", "--seed", "18446744073709551616"], &["--seed <N>"]),
        (&["run", "x", "-n", "-2"], &["--predict <N>", "-2"]),
        (&["run", "x", "-n", "many"], &["--predict <N>", "many"]),
        (&["run", "x", "-t", "0"], &["--threads <N>", "1..=1024"]),
        (&["run", "x", "-b", "0"], &["--prefill-chunk <N>"]),
        (&["run", "x", "-c", "-5"], &["-5"]),
        (&["run", "x", "-ctk", "q8_0"], &["--cache-type-k <TYPE>", "q8_0", "one scale per head"]),
        (&["run", "x", "-ctv", "q4_0"], &["--cache-type-v <TYPE>", "q4_0", "f32, f16, bf16, q8"]),
        (&["run", "x", "--isa", "mmx"], &["--isa <NAME>", "mmx", "avx2"]),
        (
            &["run", "x", "--draft-width", "1"],
            &["--draft-width <auto|N>", "1", "expected auto, or a whole number from 2"],
        ),
        (&["run", "x", "--draft-width", "0"], &["--draft-width <auto|N>", "0"]),
        (&["run", "x", "--draft-width", "best"], &["--draft-width <auto|N>", "best"]),
        (&["run", "x", "--draft-width", "99999999999"], &["--draft-width <auto|N>"]),
        (&["run", "x", "--draft-kind", "ngram", "--draft-width", "17"], &["--draft-width is 17", "2 to 16", "ngram"]),
        (&["run", "x", "--draft-kind", "eagle3"], &["--draft-kind <KIND>", "eagle3"]),
        (&["run", "x", "--draft-kind", "ngram", "--draft-model", "y"], &["ngram uses no drafter", "hybrid"]),
        (&["run", "x", "--draft-kind", "ngram", "--no-draft"], &["--draft-kind <KIND>", "--no-draft"]),
        (
            &["run", &bf16, "x", "--draft-kind", "hybrid"],
            &["--draft-kind", "needs a drafter", "--draft-model names one"],
        ),
        (&["run", &bf16, "x", "--draft-kind", "dflash"], &["--draft-kind", "needs a drafter"]),
        (&["run", &bf16, "x", "--draft-width", "auto"], &["--draft-width needs a drafter"]),
        (&["run", "x", "--draft-width", "17"], &["--draft-width is 17", "2 to 16", "nano-assistant"]),
        (&["run", "x", "--spec-draft-n-max", "16"], &["--spec-draft-n-max", "1 to 15"]),
        (&["run", "x", "--spec-draft-n-max", "0"], &["--spec-draft-n-max <K>"]),
        (&["run", "x", "--draft-width", "4", "--no-draft"], &["--draft-width <auto|N>", "--no-draft"]),
        (&["run", "x", "--no-draft", "--draft-model", "y"], &["--no-draft", "--draft-model <MODEL>"]),
        (&["run", &bf16, "x", "--draft-width", "4"], &["--draft-width needs a drafter"]),
        (&["run", &bf16, "x", "--spec-draft-n-max", "4"], &["--spec-draft-n-max needs a drafter"]),
        (&["run", "x", "-hff", "a.gguf"], &["-hff is not supported by this version: org/repo:QUANT names a file"]),
        (&["run", "x", "--offline"], &["--offline is not supported by this version: HF_HUB_OFFLINE=1 forbids"]),
        (&["pull"], &["<NAME>"]),
        (&["pull", "nano"], &["nano names no model of the hub", "org/repo:QUANT"]),
        (&["pull", "../x"], &["../x names no model of the hub"]),
        (&["pull", "org/repo", "--revision", "../x"], &["--revision", "../x"]),
        (&["pull", "org/repo@v1", "--revision", "v2"], &["two revisions"]),
        (&["rm"], &["<NAME>"]),
        (&["run", "--prompt-ids", "1,x"], &["--prompt-ids <IDS>", "x"]),
        (&["run", "--prompt-ids", ""], &["--prompt-ids <IDS>"]),
        (&["run", "--prompt-ids", "-1"], &["-1"]),
        (&["run", "--prompt-ids", "1", "-p", "x"], &["--prompt-ids <IDS>", "--prompt <TEXT>"]),
        (&["run", "--prompt-ids", "1", "-m", "x", "y"], &["two prompts", "--prompt-ids"]),
        (&["run", "x", "--chat", "--reasoning-effort", "huge"], &["--reasoning-effort <LEVEL>", "huge", "xhigh"]),
        (&["run", "x", "--chat", "--show-reasoning", "maybe"], &["--show-reasoning <on|off>", "maybe"]),
        (&["run", "x", "--raw", "--chat"], &["--raw", "--chat"]),
        (&["run", "x", "--stop", ""], &["--stop"]),
        (&["run", "a", "b", "c"], &["'c'"]),
        (&["run", "x", "-s", "1", "-s", "2"], &["--seed <N>", "multiple times"]),
        (&["run", "x", "-ngl", "99"], &["-ngl is not supported by this version"]),
        (&["run", "x", "--image", "a.png"], &["--image is not supported by this version"]),
        (&["run", "x", "--mmproj-url=a"], &["--mmproj-url is not supported by this version"]),
        (&["run", "x", "--no-mmproj"], &["--no-mmproj is not supported by this version"]),
        (&["run", "x", "--grammar", "root"], &["--grammar is not supported by this version"]),
        (&["run", "x", "--host", "0.0.0.0"], &["--host is not supported by this version"]),
        (&["run", "x", "--evil\u{1b}[31m\nline"], &["'--evil; line'"]),
        (&["run", "-p", ""], &["the prompt is empty"]),
        (&["run", ""], &["the prompt is empty"]),
        (&["inspect"], &["<MODEL>"]),
        (&["inspect", "nano", "-m", "nano"], &["[MODEL]", "--model"]),
        (&["completions", "cmd"], &["cmd"]),
    ] {
        let ran = glimmer(args);
        ran.assert_error(2, parts);
    }
    let many: Vec<String> = (0..65).map(|n| format!("--stop=s{n}")).collect();
    let many: Vec<&str> = ["run", "x"].into_iter().chain(many.iter().map(String::as_str)).collect();
    glimmer(&many).assert_error(2, &["--stop: 65 texts", "at most 64"]);
}

#[test]
fn what_cannot_be_done_is_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let (absent, latin1, empty, gguf) = (at("absent"), at("latin1"), at("empty"), at("model.gguf"));
    fs::write(&latin1, b"caf\xe9").unwrap();
    fs::write(&empty, b"\n").unwrap();
    fs::write(&gguf, b"GGUF\x03\0\0\0").unwrap();
    let directory = dir.path().to_str().unwrap();
    let assistant = repository("nano/assistant");
    for (args, parts) in [
        (&["run", "-m", &absent, "x"][..], &["absent: no such file or directory"][..]),
        (&["run", "-md", &absent, "x"], &["absent: no such file or directory"]),
        (&["run", "absent.gguf", "x"], &["absent.gguf: no such file or directory"]),
        (
            &["run", &gguf, "x"],
            &["model.gguf: tensor count: expected 8 bytes at byte 8, found 0 until the end of the file"],
        ),
        (&["run", &absent, "-p", "a\u{1b}b"], &["absent: no such file"]),
        (&["run", "-m", "ab\u{1b}[1m\nsent", "-p", "x"], &["ab\\u{1b}[1m\\nsent: no such file"]),
        (&["run", "-f", &absent], &["absent: No such file"]),
        (&["run", "-f", directory], &["directory"]),
        (&["run", "-f", &latin1], &["latin1: the prompt is not UTF-8", "at 3"]),
        (&["run", "-f", &empty], &["empty: the prompt is empty"]),
        (&["run"], &["standard input: the prompt is empty"]),
        (&["run", "x", "-c", "1", "-q"], &["the context size is 1", "2 to 4096"]),
        (&["run", "x", "-c", "5000", "-q"], &["the context size is 5000", "2 to 4096"]),
        (&["run", "--prompt-ids", "2048", "-q"], &["token 2048", "2048"]),
        (&["run", "x", "--logit-bias", "2048=1", "-q"], &["token 2048"]),
        (&["run", &assistant, "x"], &["assistant/config.json", "model_type", "--draft-model"]),
        (&["run", "nano-dflash2", "x"], &["nano-dflash2/config.json", "model_type", "--draft-model"]),
        (&["inspect", &absent], &["absent: no such file or directory"]),
        (&["inspect", "nano", "-md", &absent], &["absent: no such file or directory"]),
    ] {
        glimmer(args).assert_error(1, parts);
    }
    glimmer_with_stdin(&["generate"], b"\xff").assert_error(1, &["standard input: the prompt is not UTF-8"]);
    let long = vec![b'x'; 40_000];
    let ran = glimmer_with_stdin(&["run", "-q"], &long);
    ran.assert_error(1, &["the prompt has ", "tokens, but the context holds 4096"]);
}

#[cfg(unix)]
#[test]
fn arguments_need_not_be_utf8() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let odd = OsStr::from_bytes(b"caf\xe9");
    let run = |args: &[&str]| crate::support::command(args).arg(odd).output().unwrap().into();
    let ran: crate::support::Ran = run(&["run"]);
    ran.assert_error(1, &["no such file or directory"]);
    let ran: crate::support::Ran = run(&["run", "-m", "nano"]);
    ran.assert_error(2, &["the prompt is not UTF-8"]);
    let ran: crate::support::Ran = run(&["run", "-p"]);
    ran.assert_error(2, &["UTF-8"]);
}

#[test]
fn a_lone_argument_that_looks_like_a_path_raises_a_doubt() {
    let ran = glimmer(&["run", "./absent/path", "-n", "1"]);
    assert!(ran.err.starts_with("note: there is no `./absent/path`, so it is taken as the prompt"), "{ran:?}");
    ran.ok();
}

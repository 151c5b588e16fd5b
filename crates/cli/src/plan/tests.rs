//! Which argument is the model, which the prompt, and what goes together.

use super::*;
use crate::args::{self, Command};
use glimmer_engine::NanoDrafter;

/// Only these paths exist.
fn exists(path: &Path) -> bool {
    ["here", "a dir", "org/cached", "prompt.txt", "-", "./-"].iter().any(|known| path == Path::new(known))
}

const AT_A_TERMINAL: Surroundings = Surroundings { stdin_terminal: true, stdout_terminal: true, exists };
const IN_A_SCRIPT: Surroundings = Surroundings { stdin_terminal: false, stdout_terminal: false, exists };

fn planned(typed: &[&str], around: &Surroundings) -> Outcome<RunPlan> {
    let all = ["glimmer", "run"].iter().chain(typed).map(OsString::from);
    match args::parse(all)?.unwrap().command {
        Command::Run(args) => run(*args, around, Manner::MayInteract),
        _ => unreachable!(),
    }
}

fn usage(typed: &[&str]) -> String {
    match planned(typed, &AT_A_TERMINAL) {
        Err(Failure::Usage(line)) => line,
        other => panic!("{typed:?}: {other:?}"),
    }
}

#[test]
fn a_lone_argument_is_a_model_or_a_prompt() {
    for (text, model) in [
        ("here", true),
        ("a dir", true),
        ("model.gguf", true),
        ("some where/model.gguf", true),
        ("meta/Muse-Glimmer-30B", true),
        ("org/repo:Q4_K_M", true),
        ("org/repo@main", true),
        ("org/cached", true),
        ("and/or", true),
        ("nano", true),
        ("def fibonacci(n):", false),
        ("hello", false),
        ("", false),
        ("nanometre", false),
        ("org/repo has spaces", false),
        ("org /repo", false),
        ("org/repo/file", false),
        ("/absent", false),
        ("./absent", false),
        ("../absent/x", false),
        ("~/absent", false),
        ("org/", false),
        ("/repo", false),
        ("org/repo:", false),
        ("org/repo:a:b", false),
        ("// a comment", false),
        ("1/2=?", false),
        ("https://example.org/x", false),
        ("model.gguf?", false),
        ("ünï/cödé", false),
        ("org/repo@v1:Q8_0", true),
        ("-", false),
        ("./-", true),
    ] {
        assert_eq!(is_model(OsStr::new(text), exists), model, "{text}");
    }
}

#[test]
fn flags_settle_what_is_what() {
    let path = |text: &str| Source::Path(text.into());
    let text = |text: &str| Prompt::Text(text.into());
    let ids = || Prompt::Ids(vec![1, 2]);
    for (typed, target, prompt) in [
        (&["hello"][..], Source::Nano, text("hello")),
        (&["here"], path("here"), Prompt::Interactive),
        (&["here", "hello"], path("here"), text("hello")),
        (&["hello", "here"], path("hello"), text("here")),
        (&["absent", "hello"], path("absent"), text("hello")),
        (&["nano", "hello"], Source::Nano, text("hello")),
        (&["nano"], Source::Nano, Prompt::Interactive),
        (&["nano-dflash2"], Source::NanoDrafter(NanoDrafter::DFlash2), Prompt::Interactive),
        (&[], Source::Nano, Prompt::Interactive),
        (&["-m", "here"], path("here"), Prompt::Interactive),
        (&["-m", "here", "here"], path("here"), text("here")),
        (&["here", "-m", "absent"], path("absent"), text("here")),
        (&["-p", "here"], Source::Nano, text("here")),
        (&["-p", "hello", "absent"], path("absent"), text("hello")),
        (&["-f", "prompt.txt"], Source::Nano, Prompt::File("prompt.txt".into())),
        (&["-f", "-", "absent"], path("absent"), Prompt::Stdin),
        (&["-p", "-"], Source::Nano, Prompt::Stdin),
        (&["-"], Source::Nano, Prompt::Stdin),
        (&["-m", "here", "-"], path("here"), Prompt::Stdin),
        (&["here", "-"], path("here"), Prompt::Stdin),
        (&["./-"], path("./-"), Prompt::Interactive),
        (&["-f", "./-"], Source::Nano, Prompt::File("./-".into())),
        (&["--", "-"], Source::Nano, text("-")),
        (&["--", "here"], Source::Nano, text("here")),
        (&["--", "-x"], Source::Nano, text("-x")),
        (&["absent", "--", "org/repo"], path("absent"), text("org/repo")),
        (&["-m", "here", "--", "here"], path("here"), text("here")),
        (&["--prompt-ids", "1,2"], Source::Nano, ids()),
        (&["--prompt-ids", "1,2", "absent"], path("absent"), ids()),
    ] {
        let plan = planned(typed, &AT_A_TERMINAL).unwrap_or_else(|e| panic!("{typed:?}: {e:?}"));
        assert_eq!((plan.options.target, plan.prompt), (target, prompt), "{typed:?}");
    }
    let plan = planned(&["here"], &IN_A_SCRIPT).unwrap();
    assert_eq!((plan.options.target, plan.prompt), (path("here"), Prompt::Stdin));
}

#[test]
fn a_repository_is_a_model_unless_there_is_such_a_path() {
    let repository = |text: &str| Source::Repository(Repository::parse(text).unwrap());
    let target = |typed: &[&str]| planned(typed, &AT_A_TERMINAL).unwrap().options.target;
    assert_eq!(target(&["org/repo"]), repository("org/repo"));
    assert_eq!(target(&["org/repo:Q4_K_M", "hello"]), repository("org/repo:Q4_K_M"));
    assert_eq!(target(&["-hf", "org/repo@main", "x"]), repository("org/repo@main"));
    assert_eq!(target(&["org/cached"]), Source::Path("org/cached".into()));
    assert_eq!(target(&["org/model.gguf"]), Source::Path("org/model.gguf".into()));
    let drafter = planned(&["-hfd", "org/repo", "x"], &AT_A_TERMINAL).unwrap().options.drafter;
    assert_eq!(drafter, Some(repository("org/repo")));
}

#[test]
fn a_path_that_is_taken_as_a_prompt_raises_a_doubt() {
    assert!(planned(&["./absent"], &AT_A_TERMINAL).unwrap().doubt.is_some());
    assert!(planned(&["a / b"], &AT_A_TERMINAL).unwrap().doubt.is_none());
    assert!(planned(&["--", "./absent"], &AT_A_TERMINAL).unwrap().doubt.is_none());
}

#[test]
fn what_does_not_go_together_is_refused_by_name() {
    for (typed, names) in [
        (&["hello", "-p", "x", "-m", "here"][..], &["two prompts", "`hello`", "--prompt"][..]),
        (&["here", "hello", "-p", "x"], &["two prompts", "`hello`", "--prompt"]),
        (&["here", "hello", "--", "x"], &["two prompts", "`hello`", "after --"]),
        (&["-m", "here", "a", "--", "x"], &["two prompts", "`a`", "after --"]),
        (&["-f", "x", "--", "y"], &["two prompts", "--file"]),
        (&["--prompt-ids", "1", "--", "y"], &["two prompts", "--prompt-ids"]),
        (&["-m", "here", "--prompt-ids", "1", "y"], &["two prompts", "--prompt-ids"]),
        (&["-m", "here", "there", "hello"], &["two models", "`there`", "--model"]),
        (&["-p", "x", "-f", "y"], &["--prompt <TEXT>", "--file <FILE>"]),
        (&["--prompt-ids", "1", "-p", "x"], &["--prompt-ids <IDS>", "--prompt <TEXT>"]),
        (&["--prompt-ids", "1", "--chat"], &["--prompt-ids <IDS>", "--chat"]),
        (&["--no-draft", "-md", "here", "x"], &["--no-draft", "--draft-model <MODEL>"]),
        (&["--no-draft", "--draft-width", "4", "x"], &["--no-draft", "--draft-width <auto|N>"]),
        (
            &["--draft-width", "4", "--spec-draft-n-max", "3", "x"],
            &["--draft-width <auto|N>", "--spec-draft-n-max <K>"],
        ),
        (&["--raw", "--chat", "x"], &["--raw", "--chat"]),
        (&["--raw", "--system", "s", "x"], &["--raw", "--system <TEXT>"]),
        (&["--raw", "--reasoning-effort", "low", "x"], &["--raw", "--reasoning-effort <LEVEL>"]),
        (&["--raw", "--show-reasoning", "on", "x"], &["--show-reasoning", "--raw"]),
        (&["--system", "s", "x"], &["--system needs --chat"]),
        (&["--reasoning-effort", "low", "x"], &["--reasoning-effort needs --chat"]),
        (&["--show-reasoning", "off", "x"], &["--show-reasoning needs --chat"]),
        (&["--json"], &["no prompt", "--json is not interactive"]),
        (&["-p", ""], &["the prompt is empty"]),
        (&[""], &["the prompt is empty"]),
        (&["-m", "", "x"], &["path is empty"]),
        (&["--logit-bias", "3=1", "--logit-bias", "3=2", "x"], &["logit_bias names token 3 twice"]),
    ] {
        let line = usage(typed);
        assert!(names.iter().all(|name| line.contains(name)) && !line.contains('\n'), "{typed:?}: {line}");
    }
}

#[test]
fn nothing_is_asked_for_where_nobody_can_answer() {
    let generate = |around: &Surroundings| run(RunArgs::default(), around, Manner::OneShot);
    assert!(matches!(generate(&AT_A_TERMINAL), Err(Failure::Usage(line)) if line.contains("`generate`")));
    assert_eq!(generate(&IN_A_SCRIPT).unwrap().prompt, Prompt::Stdin);
    let to_a_file = Surroundings { stdout_terminal: false, ..AT_A_TERMINAL };
    assert!(matches!(planned(&[], &to_a_file), Err(Failure::Usage(line)) if line.contains("not a terminal")));
}

#[test]
fn nano_brings_its_drafter_and_named_models_do_not() {
    let drafter = |typed: &[&str]| planned(typed, &AT_A_TERMINAL).unwrap().options.drafter;
    assert_eq!(drafter(&["hello"]), Some(Source::Nano));
    assert_eq!(drafter(&["hello", "--no-draft"]), None);
    assert_eq!(drafter(&["here", "hello"]), None);
    assert_eq!(drafter(&["here", "hello", "-md", "d"]), Some(Source::Path("d".into())));
    assert_eq!(drafter(&["hello", "--draft-model", "nano"]), Some(Source::Nano));
    for (name, own) in [("nano-assistant", NanoDrafter::Assistant), ("nano-dflash2", NanoDrafter::DFlash2)] {
        assert_eq!(drafter(&["hello", "-md", name]), Some(Source::NanoDrafter(own)));
    }
}

#[test]
fn framing_follows_model_and_flags() {
    let framing = |typed: &[&str]| planned(typed, &AT_A_TERMINAL).unwrap().framing;
    for (typed, expected) in [
        (&["hello"][..], Framing::Raw),
        (&["hello", "--chat"], Framing::Chat),
        (&["nano", "hello"], Framing::Raw),
        (&["here", "hello"], Framing::ByTemplate),
        (&["here", "hello", "--raw"], Framing::Raw),
        (&["here", "hello", "--system", "s"], Framing::Chat),
        (&["here", "hello", "--reasoning-strength", "none"], Framing::Chat),
        (&["here", "hello", "--show-reasoning", "off"], Framing::Chat),
        (&["here", "--prompt-ids", "1"], Framing::Raw),
    ] {
        assert_eq!(framing(typed), expected, "{typed:?}");
    }
}

#[test]
fn numbers_of_other_tools_mean_the_same() {
    let plan = |typed: &[&str]| planned(&[typed, &["x"]].concat(), &AT_A_TERMINAL).unwrap();
    let width = |typed: &[&str]| plan(typed).width.map(|width| width.rows);
    assert_eq!(width(&["--spec-draft-n-max", "4"]), Some(5.into()));
    assert_eq!(width(&["--draft-block-size", "4"]), Some(4.into()));
    assert_eq!(width(&["--draft-width", "auto"]), Some(DraftWidth::Auto));
    for proposals in ["--num-draft-tokens", "--draft-max", "--draft-n", "--draft"] {
        assert_eq!(width(&[proposals, "4"]), Some(5.into()), "{proposals}");
    }
    for (typed, drafter, ngram) in [
        (&[][..], true, false),
        (&["--draft-kind", "dflash"], true, false),
        (&["--spec-type", "draft-dflash"], true, false),
        (&["--draft-kind", "ngram"], false, true),
        (&["--spec-type", "ngram-simple"], false, true),
        (&["--draft-kind", "hybrid"], true, true),
        (&["--no-draft"], false, false),
    ] {
        let options = plan(typed).options;
        assert_eq!((options.drafter.is_some(), options.ngram), (drafter, ngram), "{typed:?}");
    }
    let sampling = |typed: &[&str]| plan(typed).sampling(&Sampling { top_k: 9, ..Sampling::default() }, 0);
    assert_eq!((sampling(&["--top-k", "-1"]).top_k, sampling(&["--top-k=0"]).top_k, sampling(&[]).top_k), (0, 0, 9));
    for (typed, seed) in [
        (&[][..], None),
        (&["-s", "-1"], None),
        (&["-s-1"], None),
        (&["--seed", "-1"], None),
        (&["--seed=-1"], None),
        (&["-s7"], Some(7)),
        (&["--seed", "18446744073709551615"], Some(u64::MAX)),
    ] {
        assert_eq!(plan(typed).seed(), seed, "{typed:?}");
    }
    assert_eq!(plan(&["-c", "0"]).options.context, None);
    assert_eq!(plan(&["-c", "64"]).options.context, Some(64));
    assert_eq!(plan(&["-n", "-1"]).limit.tokens(false), None);
    assert_eq!(plan(&["--max-tokens", "0"]).limit.tokens(false), Some(0));
    assert_eq!(plan(&[]).limit.tokens(false), Some(256));
    assert_eq!(plan(&[]).limit.tokens(true), None);
    assert_eq!(plan(&["-ub", "7"]).options.prefill_chunk, 7);
    let attached = plan(&["-n64", "-t2", "-c4096", "-b512"]);
    assert_eq!((attached.limit.tokens(false), attached.options.threads), (Some(64), Some(2)));
    assert_eq!((attached.options.context, attached.options.prefill_chunk), (Some(4096), 512));
    assert_eq!(plan(&["-n-1"]).limit.tokens(false), None);
}

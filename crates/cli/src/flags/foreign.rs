//! Flags of other tools: those that have another spelling here, and those that this version cannot honour.

/// What people type, and what it is here.
pub const SPELLINGS: &[(&str, &str)] = &[
    ("-md", "--draft-model"),
    ("-mm", "--mmproj"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-ub", "--prefill-chunk"),
    ("-sys", "--system"),
    ("-cnv", "--chat"),
    ("--conversation", "--chat"),
    ("-no-cnv", "--raw"),
    ("--no-conversation", "--raw"),
    ("--ignore-chat-template", "--raw"),
    ("-l", "--logit-bias"),
    ("-hf", "--model"),
    ("-hfr", "--model"),
    ("--hf-repo", "--model"),
    ("-hfd", "--draft-model"),
    ("-hfrd", "--draft-model"),
    ("--hf-repo-draft", "--draft-model"),
];

/// Why, or what to do instead, and the flags; with a `*` all that begin so.
const REFUSED: &[(&str, &[&str])] = &[
    ("", &["--adapter-path", "--lora*", "--control-vector*"]),
    ("", &["--audio", "--image", "--video", "--mmproj-*", "--no-mmproj*"]),
    ("", &["--chat-template*", "--use-default-chat-template", "--no-jinja", "--tools"]),
    ("", &["--grammar*", "-j", "--json-schema*", "-jf"]),
    ("", &["--host", "--port", "--api-key*", "-np", "--parallel", "-a", "--alias"]),
    ("", &["-ngl", "-ngld", "--gpu-layers*", "--n-gpu-layers*", "-dev", "-devd", "--device*", "-mg", "--main-gpu"]),
    ("", &["-sm", "--split-mode", "-ts", "--tensor-split", "-ot", "--override-tensor", "-nkvo", "--no-kv-offload"]),
    ("", &["-fa", "--flash-attn", "--numa", "--mlock", "--check-tensors", "--override-kv"]),
    ("", &["-cram", "--swa-full", "--prompt-cache*", "--context-shift", "--no-context-shift", "--keep"]),
    ("", &["--kv-bits", "--kv-group-size", "--quantized-kv-start", "--rope-*", "--yarn-*", "-gan", "-gaw"]),
    (
        "",
        &["--dry-multiplier", "--dry-base", "--dry-allowed-length", "--dry-penalty-last-n", "--dry-sequence-breaker*"],
    ),
    ("", &["--dynatemp-*", "--mirostat*", "--top-n-sigma", "--top-nsigma", "--typical*", "--xtc-*"]),
    ("", &["--samplers", "--sampler-seq", "--sampling-seq", "--min-tokens-to-keep", "--adaptive-*"]),
    ("", &["--draft-min", "--draft-p-*", "--spec-draft-n-min", "--spec-draft-p-*"]),
    ("", &["--spec-draft-sampling", "--speculative-config", "--batch-size-draft"]),
    ("", &["-cd", "--ctx-size-draft", "-td", "--threads-draft", "-tbd", "--threads-batch-draft"]),
    ("", &["--in-prefix*", "--in-suffix*", "--prefill-response", "--simple-io", "--cpu-*", "--prio*", "--poll*"]),
    ("", &["--warmup", "--no-warmup", "--log-*", "--reasoning-format"]),
    ("threads are the same for prompt and output", &["-tb", "--threads-batch"]),
    ("org/repo:QUANT names a file of a repository", &["-hff", "--hf-file"]),
    ("HF_TOKEN has the token", &["-hft", "--hf-token"]),
    ("HF_HUB_OFFLINE=1 forbids every request", &["--offline"]),
    ("models are read from paths and from the hub", &["-mu", "--model-url"]),
    ("no code of a checkpoint is ever run", &["--trust-remote-code"]),
    ("the prompt is never printed", &["--no-display-prompt", "--display-prompt"]),
    ("the prompt is taken as it is, backslashes included", &["-e", "--escape", "--no-escape"]),
    ("without a prompt `glimmer run` is interactive", &["-i", "--interactive", "-if", "--interactive-first"]),
    ("with a prompt there is one answer", &["-st", "--single-turn"]),
    ("a message is one line", &["-mli", "--multiline-input"]),
    ("where the terminal has styles, reasoning is dimmed", &["-co", "--color*"]),
    ("control tokens leave no text; --json has the ids", &["-sp", "--special"]),
    ("settings and timings are printed unless -q says otherwise", &["-v", "--verbose*", "-lv", "--verbosity"]),
    ("the line of timings has the counts; -q leaves it out", &["-ptc", "--print-token-count", "--perf", "--no-perf"]),
    ("--stop ends the output before a text", &["-r", "--reverse-prompt", "--extra-eos-token"]),
    ("weights are read into memory unless --mmap is given", &["--no-mmap"]),
    ("penalties see everything that they are for", &["--repeat-last-n", "--repetition-context-size"]),
    ("-c sets the tokens of prompt and answer", &["--max-kv-size"]),
    ("--system takes the text itself", &["-sysf", "--system-prompt-file"]),
    ("--reasoning-effort says how long the model reasons", &["--reasoning-budget*"]),
];

/// The line for a flag that cannot be honoured.
pub fn refusal(name: &str) -> Option<String> {
    let same = |flag: &str| match flag.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => flag == name,
    };
    let (why, _) = REFUSED.iter().find(|(_, flags)| flags.iter().any(|flag| same(flag)))?;
    let colon = if why.is_empty() { "" } else { ": " };
    Some(format!("{name} is not supported by this version{colon}{why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        for (why, flags) in REFUSED {
            for flag in *flags {
                let name = flag.trim_end_matches('*');
                let line = refusal(name).unwrap();
                assert!(line.starts_with(&format!("{name} is not supported by this version")), "{line}");
                assert!(line.ends_with(why), "{line}");
            }
        }
        assert_eq!(refusal("--dry-multiplier").unwrap(), "--dry-multiplier is not supported by this version");
        for flag in ["-", "-m", "--model", "--dry", "--temp", "--spec-draft-n-max"] {
            assert_eq!(refusal(flag), None);
        }
    }
}

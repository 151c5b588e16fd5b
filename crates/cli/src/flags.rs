//! Spellings of other tools that a parser of long and one-letter flags does not know, and flags of theirs that mean
//! something that this version cannot do.

use std::ffi::{OsStr, OsString};

/// Flags of several letters after one dash, and what they are here.
const SPELLINGS: &[(&str, &str)] = &[
    ("-md", "--draft-model"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-ub", "--prefill-chunk"),
    ("-sys", "--system"),
    ("-cnv", "--chat"),
    ("-no-cnv", "--raw"),
];

/// Flags that people paste, refused by name.
const UNSUPPORTED: &[&str] = &[
    "-cram",
    "-dev",
    "-fa",
    "-hf",
    "-hfd",
    "-hff",
    "-hfr",
    "-j",
    "-mg",
    "-mm",
    "-mu",
    "-ngl",
    "-ngld",
    "-np",
    "-sm",
    "-tb",
    "-ts",
    "--adapter-path",
    "--api-key",
    "--audio",
    "--batch-size-draft",
    "--chat-template",
    "--chat-template-args",
    "--chat-template-file",
    "--chat-template-kwargs",
    "--context-shift",
    "--device",
    "--draft-kind",
    "--draft-min",
    "--draft-p-min",
    "--dry-multiplier",
    "--dynatemp-range",
    "--flash-attn",
    "--gpu-layers",
    "--gpu-layers-draft",
    "--grammar",
    "--grammar-file",
    "--hf-file",
    "--hf-repo",
    "--host",
    "--image",
    "--json-schema",
    "--keep",
    "--kv-bits",
    "--lora",
    "--main-gpu",
    "--mirostat",
    "--mlock",
    "--mmap",
    "--mmproj",
    "--mmproj-url",
    "--model-url",
    "--n-gpu-layers",
    "--no-mmap",
    "--no-mmproj",
    "--numa",
    "--parallel",
    "--port",
    "--prompt-cache",
    "--reasoning-budget",
    "--reasoning-format",
    "--rope-freq-base",
    "--rope-scale",
    "--rope-scaling",
    "--samplers",
    "--spec-draft-n-min",
    "--spec-draft-p-min",
    "--spec-type",
    "--speculative-config",
    "--split-mode",
    "--swa-full",
    "--tensor-split",
    "--threads-batch",
    "--tools",
    "--top-n-sigma",
    "--typical",
    "--video",
    "--xtc-probability",
];

/// Rewrites what was typed, up to a `--`, so that the parser knows it. An error names the flag that cannot be honoured.
pub fn normalise(typed: impl IntoIterator<Item = OsString>) -> Result<Vec<OsString>, String> {
    let mut literal = false;
    typed
        .into_iter()
        .map(|arg| {
            literal |= arg == "--";
            if literal || !arg.as_encoded_bytes().starts_with(b"-") {
                return Ok(arg);
            }
            let Some(text) = arg.to_str() else { return Ok(arg) };
            let (name, value) = match text.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (text, None),
            };
            if UNSUPPORTED.contains(&name) {
                return Err(format!("{name} is not supported by this version"));
            }
            let Some((_, known)) = SPELLINGS.iter().find(|(spelling, _)| *spelling == name) else { return Ok(arg) };
            Ok(match value {
                Some(value) => format!("{known}={value}").into(),
                None => OsStr::new(known).into(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalised(typed: &[&str]) -> Result<Vec<String>, String> {
        let all = normalise(typed.iter().map(OsString::from))?;
        Ok(all.into_iter().map(|arg| arg.into_string().unwrap()).collect())
    }

    #[test]
    fn only_known_spellings_are_rewritten() {
        let typed =
            ["glimmer", "run", "-md", "d", "-ctk=f16", "-m", "ctk", "-mdx", "-c", "9", "md", "--", "-md", "-ngl"];
        let known = [
            "glimmer",
            "run",
            "--draft-model",
            "d",
            "--cache-type-k=f16",
            "-m",
            "ctk",
            "-mdx",
            "-c",
            "9",
            "md",
            "--",
            "-md",
            "-ngl",
        ];
        assert_eq!(normalised(&typed).unwrap(), known);
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        for flag in UNSUPPORTED {
            for typed in [flag.to_string(), format!("{flag}=1")] {
                let error = normalised(&["glimmer", "run", &typed]).unwrap_err();
                assert_eq!(error, format!("{flag} is not supported by this version"));
            }
        }
    }
}

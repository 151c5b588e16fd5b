//! Spellings of other tools that a parser of long and one-letter flags does not know, or would misread.

mod foreign;

use clap::Command;
use foreign::{SPELLINGS, refusal};
use std::ffi::{OsStr, OsString};

/// One-letter flags that a number may follow without a space.
const NUMERIC: [&str; 5] = ["-b", "-c", "-n", "-s", "-t"];

/// A flag of `bench` that means something else to those who `run`.
const REPETITIONS: &str = "-r";

/// The flags that the parser knows, with their dashes.
pub struct Known {
    all: Vec<String>,
    /// Those of one letter that take a value.
    short_with_value: Vec<String>,
}

impl Known {
    /// The flags of `run`. Other commands have a few of their own; their numbers stand apart.
    pub fn of(command: &Command) -> Self {
        let mut known = Self { all: Vec::new(), short_with_value: Vec::new() };
        for arg in command.find_subcommand("run").into_iter().flat_map(Command::get_arguments) {
            if let Some(short) = arg.get_short() {
                known.all.push(format!("-{short}"));
                if arg.get_action().takes_values() {
                    known.short_with_value.push(format!("-{short}"));
                }
            }
            let aliases = arg.get_all_aliases().unwrap_or_default();
            known.all.extend(arg.get_long().into_iter().chain(aliases).map(|long| format!("--{long}")));
        }
        known.all.extend(SPELLINGS.iter().map(|(spelling, _)| spelling.to_string()));
        known.all.extend(["-h", "--help"].map(String::from));
        known
    }

    /// What somebody who typed `word` may have meant.
    fn nearest(&self, word: &str) -> String {
        let typed = word.trim_start_matches('-');
        let distance = |flag: &String| {
            let flag = flag.trim_start_matches('-');
            (distance(typed, flag), flag.chars().next() != typed.chars().next())
        };
        let nearest = self.all.iter().min_by_key(|flag| distance(flag)).cloned().unwrap_or_default();
        let (edits, another_letter) = distance(&nearest);
        let value = self.short_with_value.iter().find_map(|short| Some((short, word.strip_prefix(short.as_str())?)));
        match value {
            Some((short, value)) if another_letter || edits * 2 > typed.chars().count() => format!("{short} {value}"),
            _ => nearest,
        }
    }
}

/// Rewrites what was typed, up to a `--`, so that the parser knows it. An error names the flag that cannot be honoured.
pub fn normalise(typed: impl IntoIterator<Item = OsString>, known: &Known) -> Result<Vec<OsString>, String> {
    let mut literal = false;
    let mut typed = typed.into_iter();
    let program = typed.next();
    let mut typed = typed.peekable();
    let measuring = typed.peek().is_some_and(|command| command == "bench");
    let rest = typed.map(|arg| {
        literal |= arg == "--";
        if literal || !arg.as_encoded_bytes().starts_with(b"-") {
            return Ok(arg);
        }
        let text = arg.to_string_lossy();
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (&*text, None),
        };
        if let Some(refusal) = refusal(name).filter(|_| !(measuring && name == REPETITIONS)) {
            return Err(refusal);
        }
        if let (Some((_, known)), Some(_)) = (SPELLINGS.iter().find(|(spelling, _)| *spelling == name), arg.to_str()) {
            return Ok(match value {
                Some(value) => format!("{known}={value}").into(),
                None => OsStr::new(known).into(),
            });
        }
        match is_cluster(&text, name) {
            true => Err(format!("unexpected argument '{name}'; the nearest known is {}", known.nearest(name))),
            false => Ok(arg),
        }
    });
    program.into_iter().map(Ok).chain(rest).collect()
}

/// Whether a parser would take `name` apart: into a flag and its value, or into several flags.
fn is_cluster(text: &str, name: &str) -> bool {
    let number = |text: &str| {
        let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
        digits.contains(|c: char| c.is_ascii_digit()) && digits.chars().all(|c| c.is_ascii_digit() || c == '.')
    };
    let several_letters = !name.starts_with("--") && name.chars().count() > 2;
    let attached = NUMERIC.iter().find_map(|flag| text.strip_prefix(flag));
    several_letters && !number(name) && !attached.is_some_and(number)
}

/// Letters to add, drop or replace.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, &b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    fn normalised(typed: &[&str]) -> Result<Vec<String>, String> {
        let all = ["glimmer", "run"].iter().chain(typed).map(OsString::from);
        let all = normalise(all, &Known::of(&Cli::command()))?;
        Ok(all.into_iter().skip(2).map(|arg| arg.into_string().unwrap()).collect())
    }

    #[test]
    fn only_known_spellings_are_rewritten() {
        let typed = ["-md", "d", "-ctk=f16", "-m", "ctk", "-cnv", "-c", "9", "md", "-m=x", "--", "-md", "-ngl", "-xyz"];
        let known = [
            "--draft-model",
            "d",
            "--cache-type-k=f16",
            "-m",
            "ctk",
            "--chat",
            "-c",
            "9",
            "md",
            "-m=x",
            "--",
            "-md",
            "-ngl",
            "-xyz",
        ];
        assert_eq!(normalised(&typed).unwrap(), known);
        let repeated =
            |command: &str| normalise(["glimmer", command, "-r", "5"].map(OsString::from), &Known::of(&Cli::command()));
        assert!(repeated("run").is_err() && repeated("bench").is_ok());
        let program = normalise(["-login".into()], &Known::of(&Cli::command()));
        assert_eq!(program, Ok(vec!["-login".into()]));
    }

    #[test]
    fn a_number_may_be_attached_and_nothing_else() {
        for arg in ["-n64", "-n-1", "-t2", "-c4096", "-s7", "-b512", "-5", "-0.5", "-.5", "-", "-q", "-p=x", "--x"] {
            assert_eq!(normalised(&[arg]), Ok(vec![arg.to_string()]));
        }
        for (arg, name, nearest) in [
            ("-mdx", "-mdx", "-md"),
            ("-cktk", "-cktk", "-ctk"),
            ("-temp", "-temp", "--temp"),
            ("-seed=7", "-seed", "--seed"),
            ("-tempp", "-tempp", "--temp"),
            ("-help", "-help", "--help"),
            ("-phello", "-phello", "-p hello"),
            ("-mnano", "-mnano", "-m nano"),
            ("-p64", "-p64", "-p 64"),
            ("-n64k", "-n64k", "-n 64k"),
            ("-n64=1", "-n64", "-n 64"),
            ("-qh", "-qh", "-q"),
            ("-pé", "-pé", "-p"),
            ("-é€", "-é€", "-p"),
        ] {
            let expected = format!("unexpected argument '{name}'; the nearest known is {nearest}");
            assert_eq!(normalised(&[arg]), Err(expected), "{arg}");
        }
    }

    #[test]
    fn distances_count_edits() {
        for (from, to, edits) in
            [("", "", 0), ("", "ab", 2), ("temp", "tmep", 2), ("seed", "sed", 1), ("abc", "xbc", 1)]
        {
            assert_eq!((distance(from, to), distance(to, from)), (edits, edits), "{from} {to}");
        }
    }

    #[test]
    fn what_the_parser_knows_is_not_refused() {
        let known = Known::of(&Cli::command());
        for flag in &known.all {
            assert_eq!(refusal(flag), None);
        }
        for (_, rewritten) in SPELLINGS {
            assert!(known.all.iter().any(|flag| flag == rewritten), "{rewritten}");
        }
    }
}

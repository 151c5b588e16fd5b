//! Writing to people: lines on stderr, and text that may hold anything on a terminal.

use crate::failure::{Failure, Outcome};
use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

/// A line on stderr. Where nobody can read it, nothing is lost.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Text on stdout.
pub fn print(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::stdout)
}

/// Whether stdout is a terminal that wants colours.
pub fn has_styles() -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// The same text, as one line.
pub fn on_one_line(text: &str) -> Cow<'_, str> {
    escape(text.trim_end(), |c| c.is_control() || steers(c))
}

/// The same text, without what would move a terminal's cursor, change its colours or ring its bell.
pub fn harmless(text: &str) -> Cow<'_, str> {
    escape(text, |c| c.is_control() && !matches!(c, '\n' | '\t'))
}

fn escape(text: &str, unwanted: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&unwanted) {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    for c in text.chars() {
        match unwanted(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Line and paragraph separators, and marks that change the direction of text.
fn steers(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_gets_out_of_its_line_or_at_the_terminal() {
        assert_eq!(on_one_line("a\nb\u{1b}[31m\u{202e}c\n"), "a\\nb\\u{1b}[31m\\u{202e}c");
        assert_eq!(harmless("a\n\tb\u{1b}[31m\r\u{9b}"), "a\n\tb\\u{1b}[31m\\r\\u{9b}");
        assert!(matches!(harmless("déjà vu\n"), Cow::Borrowed(_)));
    }
}

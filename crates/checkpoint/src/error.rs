//! What can be wrong with a checkpoint, each in one line.

use std::{fmt, io};
use thiserror::Error;

/// A checkpoint, or something in it, cannot be used.
///
/// The message is one line of reasonable length: file, tensor or field, expected, found. What comes out of a file is
/// shortened and its control characters are escaped before it gets in here. Files are named with their directory, as
/// the user gave it, or with the label of an embedded checkpoint.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// There is nothing at the path that was asked for.
    #[error("{path}: no such file or directory")]
    NotFound {
        /// The path.
        path: String,
    },
    /// Something is at the path that was to be written.
    #[error("{path}: exists already, and nothing is overwritten")]
    Exists {
        /// The path.
        path: String,
    },
    /// The system refused to read or to write. The cause is part of the message, and so not also a `source` of the error.
    #[error("{file}: {cause}")]
    Io {
        /// The file or directory.
        file: String,
        /// What the system said.
        cause: io::Error,
    },
    /// Something is there, and is not what it has to be.
    #[error("{file}: {what}: expected {expected}, found {found}")]
    Malformed {
        /// The file.
        file: String,
        /// The tensor, the field, or the part of the file.
        what: String,
        /// What would have been right.
        expected: String,
        /// What is there.
        found: String,
    },
    /// Something that is needed is not there.
    #[error("{file}: {what}: expected {expected}, found none{}", More(*more, "missing"))]
    Missing {
        /// The file or directory that lacks it.
        file: String,
        /// The file, tensor or field that is missing.
        what: String,
        /// What would have been right.
        expected: String,
        /// How many more are missing in the same way.
        more: usize,
    },
    /// Something is there that nothing knows what to do with.
    #[error("{file}: {what}: expected {expected}, found {found}{}", More(*more, "unknown"))]
    Unknown {
        /// The file.
        file: String,
        /// The tensor or field that is not known.
        what: String,
        /// What would have been right.
        expected: String,
        /// What is there.
        found: String,
        /// How many more are unknown in the same way.
        more: usize,
    },
    /// Well formed, as far as one can see, but nothing that this version can read.
    #[error("{file}: {what}")]
    Unsupported {
        /// The file or directory.
        file: String,
        /// What it is that cannot be read.
        what: String,
    },
    /// A model could not be had from the hub, or is not in its cache. The text says what to do.
    #[error("{name}: {what}")]
    Hub {
        /// The model, as it was asked for.
        name: String,
        /// Why, and what to do.
        what: String,
    },
}

struct More(usize, &'static str);

impl fmt::Display for More {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            1 => write!(f, " (1 more is {})", self.1),
            n => write!(f, " ({n} more are {})", self.1),
        }
    }
}

/// `text` on one line: what could break the line, or rewrite the terminal, is escaped.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    text.chars().for_each(|c| push_escaped(&mut out, c));
    out
}

/// `text` on one line and short: beginning and end, since the end of a tensor name says the most.
pub(crate) fn brief(text: &str) -> String {
    const HEAD: usize = 80;
    const TAIL: usize = 40;
    // No more is escaped than can be shown; names of many megabytes come here.
    let (begin, _) = text.split_at(text.char_indices().nth(HEAD + TAIL).map_or(text.len(), |(at, _)| at));
    let begin = escape(begin);
    if begin.chars().count() <= HEAD + TAIL && text.chars().count() <= HEAD + TAIL {
        return begin;
    }
    let (_, end) = text.split_at(text.char_indices().nth_back(TAIL - 1).map_or(0, |(at, _)| at));
    let end = escape(end);
    let end = end.char_indices().nth_back(TAIL - 1).map_or(end.as_str(), |(at, _)| &end[at..]);
    begin.chars().take(HEAD).chain(['…']).chain(end.chars()).collect()
}

fn push_escaped(out: &mut String, c: char) {
    // Line and paragraph separators, and the marks that change the direction of text.
    let steers = matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if c.is_control() || steers {
        out.extend(c.escape_default());
    } else {
        out.push(c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_file_says_stays_one_short_line() {
        assert_eq!(brief("a\nb\u{202e}c\0"), "a\\nb\\u{202e}c\\u{0}");
        let long = format!("{}é{}.weight", "x".repeat(200), "ß".repeat(200));
        let brief = brief(&long);
        assert!(brief.starts_with("xxxx") && brief.ends_with("ß.weight") && brief.chars().count() == 121, "{brief}");
        // Over the limit in bytes, under it in characters.
        assert_eq!(super::brief(&"ß".repeat(120)), "ß".repeat(120));
        assert_eq!(super::brief(&"ß".repeat(121)).chars().count(), 121);
        // Over it once escaped.
        assert_eq!(super::brief(&"\u{1}".repeat(100)).chars().count(), 121);
        assert_eq!(super::brief(""), "");
    }
}

//! Where a prompt comes from.

use crate::failure::{Failure, Outcome};
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

/// A prompt, or the place that it is to be read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// On the command line.
    Text(String),
    /// Ids on the command line.
    Ids(Vec<u32>),
    /// In a file.
    File(PathBuf),
    /// On standard input.
    Stdin,
    /// Line by line, from whoever sits at the terminal.
    Interactive,
}

/// More text than any context holds.
const MAX_BYTES: u64 = 64 << 20;

impl Prompt {
    /// The text, where there is one.
    pub fn read(&self) -> Outcome<Option<String>> {
        match self {
            Prompt::Text(text) => Ok(Some(text.clone())),
            Prompt::File(path) => {
                let name = path.to_string_lossy();
                let file = File::open(path).map_err(|error| Failure::Runtime(format!("{name}: {error}")))?;
                read(file, &name).map(Some)
            }
            Prompt::Stdin => read(io::stdin().lock(), "standard input").map(Some),
            Prompt::Ids(_) | Prompt::Interactive => Ok(None),
        }
    }
}

/// The whole text without its last line break, which belongs to the file and not to the prompt.
fn read(from: impl Read, name: &str) -> Outcome<String> {
    let refuse = |what: String| Failure::Runtime(format!("{name}: {what}"));
    let mut bytes = Vec::new();
    from.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| refuse(error.to_string()))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(refuse(format!("the prompt is longer than {MAX_BYTES} bytes")));
    }
    let mut text = String::from_utf8(bytes).map_err(|error| {
        refuse(format!(
            "the prompt is not UTF-8: expected text, found another byte at {}",
            error.utf8_error().valid_up_to()
        ))
    })?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    match text.is_empty() {
        true => Err(refuse("the prompt is empty".into())),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_break_at_the_end_is_the_files() {
        for (bytes, text) in [("a", "a"), ("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("\n\n", "\n")] {
            assert_eq!(read(bytes.as_bytes(), "x").unwrap(), text);
        }
        for bytes in [&b""[..], b"\n", b"\r\n", b"a\xffb"] {
            assert!(matches!(read(bytes, "x"), Err(Failure::Runtime(line)) if line.starts_with("x: the prompt is ")));
        }
    }

    #[test]
    fn endless_input_is_refused() {
        assert!(matches!(read(io::repeat(b'a'), "x"), Err(Failure::Runtime(line)) if line.contains("67108864")));
    }
}

//! Running the binary.

use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// What a run left behind.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

impl Ran {
    /// What is on stdout, after a run that went well.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    /// Whether it ended with this code and one line on stderr, of which all of these are part.
    #[track_caller]
    pub fn assert_error<S: AsRef<str>>(&self, code: i32, parts: &[S]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(self.err.starts_with("error: ") && self.err.ends_with('\n'), "{self:?}");
        assert_eq!(self.err.trim_end().lines().count(), 1, "{self:?}");
        assert!(!self.err.contains("panicked") && !self.err.contains("internal error"), "{self:?}");
        for part in parts {
            assert!(self.err.contains(part.as_ref()), "expected `{}` in {self:?}", part.as_ref());
        }
        assert_eq!(self.out, "");
    }
}

/// The binary, with nothing on standard input.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glimmer"));
    // What its user has tuned is no part of a test.
    command.env("XDG_CONFIG_HOME", "/nonexistent");
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn glimmer(args: &[&str]) -> Ran {
    command(args).output().unwrap().into()
}

pub fn glimmer_with_stdin(args: &[&str], input: &[u8]) -> Ran {
    let mut child = command(args).stdin(Stdio::piped()).spawn().unwrap();
    // It may end without reading.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap().into()
}

/// The object that `--json` prints.
#[track_caller]
pub fn json(args: &[&str]) -> Value {
    let out = glimmer(&[args, &["--json"]].concat()).ok();
    serde_json::from_str(&out).unwrap()
}

/// A file of the repository.
pub fn repository(path: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    root.join(path).to_str().unwrap().to_string()
}

//! How the program ends when it does not end well.

use crate::terminal;
use std::fmt::Write as _;
use std::io;
use std::process::ExitCode;

/// What a command gives.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Why a command ended early.
#[derive(Debug)]
pub enum Failure {
    /// What was typed has no meaning: one line.
    Usage(String),
    /// What was asked for cannot be done: one line.
    Runtime(String),
    /// The help was asked for by leaving everything out.
    Help(String),
    /// The user stopped it.
    Interrupted,
    /// Nobody reads the output any more.
    ClosedPipe,
}

impl Failure {
    /// An error of writing to stdout.
    pub fn stdout(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::ClosedPipe,
            _ => Failure::Runtime(format!("writing to stdout: {error}")),
        }
    }

    /// Says on stderr what there is to say, and gives the exit code.
    pub fn report(self) -> ExitCode {
        match self {
            Failure::Usage(line) => {
                say_error(&line);
                ExitCode::from(2)
            }
            Failure::Runtime(line) => {
                say_error(&line);
                ExitCode::from(1)
            }
            Failure::Help(text) => {
                terminal::say(text.trim_end());
                ExitCode::from(2)
            }
            Failure::Interrupted => ExitCode::from(130),
            Failure::ClosedPipe => ExitCode::SUCCESS,
        }
    }
}

/// The whole chain of causes, on one line.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut line = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let _ = write!(line, ": {error}");
            cause = error.source();
        }
        Failure::Runtime(line)
    }
}

/// One line, whatever is in it.
pub fn say_error(line: &str) {
    terminal::say(&format!("error: {}", terminal::on_one_line(line)));
}

/// A defect of the program is one line as well.
pub fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let what = panic.payload_as_str().unwrap_or("no message");
        let place = panic.location().map(|at| format!(" at {}:{}", at.file(), at.line())).unwrap_or_default();
        say_error(&format!("internal error: {what}{place} (please report this)"));
        std::process::exit(1);
    }));
}

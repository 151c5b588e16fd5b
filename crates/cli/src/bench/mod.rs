//! How fast a model runs here.

mod chart;
mod pairs;
mod prompts;
mod row;
mod set;
mod spread;
mod step;
mod table;
mod tokens;

use crate::args::{Bench, BenchArgs};
use crate::failure::{Failure, Outcome};
use crate::plan::Surroundings;
use crate::signals::Interrupt;
use crate::terminal;
use glimmer_engine::Settings;
use glimmer_engine::inspect::{Fingerprint, Report};
use glimmer_engine::step::cpu_model;
use serde_json::{Value, json};
use std::env::consts::{ARCH, OS};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Does what `bench` says.
pub fn bench(args: BenchArgs, around: &Surroundings, interrupt: &Interrupt) -> Outcome {
    match args {
        BenchArgs { other: Some(Bench::Step(args)), .. } => step::step(*args, around),
        args if args.tokens.prefill.is_some() || args.tokens.depth.is_some() => tokens::tokens(args, around),
        args => set::set(args, around, interrupt),
    }
}

/// What all rows of a measurement have in common.
struct Common {
    machine: Value,
    checkpoints: Value,
    load: Duration,
}

impl Common {
    fn new(settings: &Settings, (target, drafter): &(Fingerprint, Option<Fingerprint>), load: Duration) -> Self {
        let print = |print: &Fingerprint| {
            json!({
                "name": print.label,
                "bytes": print.bytes,
                "sha256": print.sha256,
                "sha256_of": if print.data { "configuration, tensor table and data" } else { "configuration and tensor table" },
            })
        };
        Self {
            machine: json!({
                "cpu": cpu_model(),
                "cores": std::thread::available_parallelism().ok().map(usize::from),
                "threads": settings.threads,
                "isa": settings.isa.to_string(),
                "arch": ARCH,
                "os": OS,
            }),
            checkpoints: json!({ "target": print(target), "drafter": drafter.as_ref().map(print) }),
            load,
        }
    }

    /// The members that every row ends with.
    fn json(&self, settings: Value) -> Value {
        json!({
            "load_s": self.load.as_secs_f64(),
            "peak_memory_bytes": glimmer_engine::memory::peak(),
            "machine": self.machine,
            "versions": { "glimmer": env!("CARGO_PKG_VERSION") },
            "checkpoints": self.checkpoints,
            "settings": settings,
        })
    }
}

/// A model is measured as a target.
fn not_a_target(report: &Report) -> Failure {
    Failure::Runtime(format!("{} is a drafter: name its target, and the drafter with --draft-model", report.label))
}

/// A file that is written when everything was measured, and made before: what cannot be written is told at once.
struct OutFile {
    path: PathBuf,
    file: File,
}

impl OutFile {
    fn create(path: &Path) -> Outcome<Self> {
        let file = File::create(path).map_err(|error| failed(path, &error))?;
        Ok(Self { path: path.into(), file })
    }

    fn write(mut self, text: &str) -> Outcome {
        self.file.write_all(text.as_bytes()).map_err(|error| failed(&self.path, &error))
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Runtime(format!("{}: {error}", path.display()))
}

/// Where rows go.
enum Rows {
    Nowhere,
    Stdout,
    File(OutFile),
}

impl Rows {
    fn of(json: Option<&Path>) -> Outcome<Self> {
        Ok(match json {
            None => Self::Nowhere,
            Some(path) if path.as_os_str() == "-" => Self::Stdout,
            Some(path) => Self::File(OutFile::create(path)?),
        })
    }

    /// Writes an object per line, and the table where standard output is free.
    fn write(self, rows: &[Value], table: &str) -> Outcome {
        let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
        match self {
            Self::Stdout => return terminal::print(&lines),
            Self::File(file) => file.write(&lines)?,
            Self::Nowhere => {}
        }
        terminal::print(table)
    }
}

//! What each round did, as lines of JSON.

use crate::failure::{Failure, Outcome};
use glimmer_engine::speculative::Proposer;
use glimmer_engine::{Generation, RoundRecord};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// The file of `--trace`.
pub struct Trace {
    path: PathBuf,
    out: RefCell<BufWriter<File>>,
    /// Generations that were written.
    count: Cell<usize>,
}

impl Trace {
    /// Makes the file, in place of what was there.
    pub fn create(path: &Path) -> Outcome<Self> {
        let file = File::create(path).map_err(|error| failed(path, &error))?;
        Ok(Self { path: path.into(), out: RefCell::new(BufWriter::new(file)), count: Cell::new(0) })
    }

    /// Writes the rounds of a generation.
    pub fn write(&self, generation: &Generation) -> Outcome {
        let mut out = self.out.borrow_mut();
        let number = self.count.replace(self.count.get() + 1);
        let mut write = || {
            for (round, record) in generation.rounds.iter().enumerate() {
                writeln!(out, "{}", line(number, round, record))?;
            }
            out.flush()
        };
        write().map_err(|error| failed(&self.path, &error))
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Runtime(format!("{}: {error}", path.display()))
}

fn line(generation: usize, round: usize, record: &RoundRecord) -> Value {
    let trace = &record.trace;
    let ms = |seconds: f64| 1e3 * seconds;
    json!({
        "generation": generation,
        "round": round,
        "width": record.width,
        "proposer": trace.proposer.map(|proposer| match proposer {
            Proposer::Lookup => "ngram",
            Proposer::Drafter => "dflash",
        }),
        "proposals": record.proposals,
        "confidence": trace.confidence,
        "accepted": record.accepted,
        "emitted": record.emitted,
        "observe_ms": ms(trace.observe.time.as_secs_f64()),
        "draft_ms": ms(trace.draft.time.as_secs_f64()),
        "verify_ms": ms(trace.verify.time.as_secs_f64()),
        "estimate": trace.estimate.map(|estimate| json!({
            "tokens": estimate.tokens,
            "ms": ms(estimate.seconds),
            "plain_ms": ms(estimate.plain),
        })),
    })
}

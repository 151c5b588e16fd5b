//! Writing synthetic checkpoints.

use crate::args::SynthArgs;
use crate::failure::{Failure, Outcome};
use crate::progress::Progress;
use crate::signals::Interrupt;
use crate::terminal;
use glimmer_engine::synth::Synth;
use std::time::Instant;

/// Does what `synth` says.
pub fn synth(args: &SynthArgs, interrupt: &Interrupt) -> Outcome {
    let SynthArgs { shape, encoding, container, drafter, seed, out } = args;
    let synth = Synth { shape: *shape, encoding: *encoding, container: *container, drafter: *drafter, seed: *seed };
    synth.container().map_err(|error| Failure::Usage(error.to_string()))?;
    let listening = interrupt.listen();
    let started = Instant::now();
    let mut progress = Progress::writing();
    let written = synth.write(out, &mut |done, total| {
        progress.update(done, total);
        !listening.hit()
    })?;
    progress.clear();
    let Some(bytes) = written else { return Err(Failure::Interrupted) };
    let (gigabytes, seconds) = (bytes as f64 / 1e9, started.elapsed().as_secs_f64());
    let line = format!("{}: {gigabytes:.3} GB of weights in {seconds:.1} s, seed {seed}", out.display());
    terminal::say(&terminal::on_one_line(&line));
    Ok(())
}

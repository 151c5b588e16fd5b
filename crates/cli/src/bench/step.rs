//! Single passes of a model, beside what the machine can do.

mod record;
mod table;

use crate::args::StepArgs;
use crate::failure::{Failure, Outcome};
use crate::output::start_line;
use crate::plan::{Surroundings, source, with_machine, with_passes};
use crate::progress::Progress;
use crate::{models, terminal};
use glimmer_engine::inspect::{self, Part};
use glimmer_engine::step::{StepPlan, StepReport};
use glimmer_engine::{Engine, EngineOptions, Settings};
use record::Record;
use std::time::{Duration, Instant};

/// A finished measurement and what it was of.
struct Measured<'a> {
    settings: &'a Settings,
    /// `layers x hidden x intermediate`
    shape: String,
    plan: &'a StepPlan,
    report: StepReport,
    load: Duration,
}

/// Does what `bench step` says.
pub fn step(args: StepArgs, around: &Surroundings) -> Outcome {
    let (json, record) = (args.json, args.record.clone());
    let (mut options, plan) = understand(args, around)?;
    models::obtain(&mut options, false)?;
    let shape = preflight(&mut options, &plan)?;
    let record = record.map(|dir| Record::new(&dir)).transpose()?;
    let started = Instant::now();
    let mut progress = Progress::loading();
    let engine = Engine::load(&options, &mut |loaded| progress.update(loaded.done, loaded.total))?;
    drop(progress);
    let load = started.elapsed();
    terminal::say(&terminal::on_one_line(&start_line(engine.settings(), 1.into())));
    let report = engine.time_steps(&plan)?;
    let measured = Measured { settings: engine.settings(), shape, plan: &plan, report, load };
    match json {
        true => terminal::print(&format!("{}\n", table::json(&measured)))?,
        false => terminal::print(&table::table(&measured))?,
    }
    record.map_or(Ok(()), |record| record.append(&measured))
}

fn understand(args: StepArgs, around: &Surroundings) -> Outcome<(EngineOptions, StepPlan)> {
    let target = source(args.first.or(args.model).unwrap_or_else(|| "nano".into()), around)?;
    let plan = StepPlan {
        widths: args.widths.iter().map(|&rows| rows as usize).collect(),
        depth: args.depth as usize,
        prefill: args.prefill as usize,
        decode: args.decode as usize,
        rounds: args.iterations as usize,
        time: args.seconds,
        seed: args.seed,
    };
    for (i, rows) in plan.widths.iter().enumerate() {
        if plan.widths[..i].contains(rows) {
            return Err(Failure::Usage(format!("--widths: {rows} twice")));
        }
    }
    let options = with_machine(with_passes(EngineOptions::new(target), args.passes), args.machine);
    let chunk = options.prefill_chunk;
    match plan.widths.iter().find(|&&rows| rows > chunk) {
        Some(rows) => Err(Failure::Usage(format!("--widths: {rows}, expected 1 to {chunk}, the prefill chunk (-b)"))),
        None => Ok((options, plan)),
    }
}

/// Makes the context as long as it has to be, and refuses what the model has no room for. Gives the model's shape.
fn preflight(options: &mut EngineOptions, plan: &StepPlan) -> Outcome<String> {
    let report = inspect::inspect(options)?;
    let Part::Target { text, .. } = report.part else {
        return Err(Failure::Runtime(format!("{} is a drafter: only a target's passes are timed", report.label)));
    };
    let longest = plan.widths.iter().copied().chain([plan.prefill, plan.decode]).max().unwrap_or(1);
    let limit = text.max_position_embeddings;
    if plan.depth + longest > limit {
        return Err(Failure::Usage(match limit.checked_sub(longest) {
            Some(most) => {
                let depth = plan.depth;
                format!("--depth is {depth}, expected at most {most}: {longest} more make {limit}, the model's limit")
            }
            None => format!(
                "--widths, --prefill and --decode: {longest} positions, expected at most {limit}, the model's limit"
            ),
        }));
    }
    options.context = Some((plan.depth + longest).max(2));
    Ok(format!("{}x{}x{}", text.layers.len(), text.hidden_size, text.intermediate_size))
}

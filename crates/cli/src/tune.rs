//! Measuring draft widths, and what earlier measurements are used for.

use crate::args::TuneArgs;
use crate::failure::{Failure, Outcome};
use crate::output::start_line;
use crate::plan::{Surroundings, source, with_machine, with_passes};
use crate::progress::Progress;
use crate::signals::Interrupt;
use crate::{models, run, terminal};
use glimmer_engine::bundle::Bundle;
use glimmer_engine::inspect::{self, Part};
use glimmer_engine::tune::{TunePlan, Tuned, Tuning, TuningFile, WidthCost};
use glimmer_engine::{DraftWidth, Engine, EngineOptions, Source};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Widths that are measured, as far as the drafter's block goes, and the block itself.
const WIDTHS: [usize; 9] = [1, 2, 3, 4, 5, 6, 8, 12, 16];
/// Tokens that the longest prompt may have.
const PROMPT: usize = 2048;

/// Where results go.
struct Stores {
    bundle: Option<Bundle>,
    file: Option<TuningFile>,
}

/// Does what `tune` says.
pub fn tune(args: TuneArgs, around: &Surroundings, interrupt: &Interrupt) -> Outcome {
    let (dry_run, json) = (args.dry_run, args.json);
    let typed = args.widths.clone();
    let (tokens, repeats) = (args.tokens as usize, args.rounds as usize);
    let (mut options, stores) = understand(args, around)?;
    models::obtain(&mut options, true)?;
    let block = preflight(&mut options, tokens)?;
    let plan = TunePlan { widths: widths(typed, block)?, tokens, repeats };
    // After the measurement would be late to find out.
    match &stores.file {
        Some(file) if !dry_run => file.check()?,
        _ => {}
    }
    let mut progress = Progress::loading();
    let engine = Engine::load(&options, &mut |loaded| progress.update(loaded.done, loaded.total))?;
    drop(progress);
    let line = start_line(engine.settings(), DraftWidth::Fixed(block));
    // Every width is measured.
    let line = line.rsplit_once(", width ").map_or(&*line, |(settings, _)| settings);
    terminal::say(&terminal::on_one_line(line));
    run::warn(&engine);
    let listening = interrupt.listen();
    let mut progress = Progress::tuning();
    let tuned = engine.tune(&plan, &mut |done, total| {
        progress.update(done as u64, total as u64);
        !listening.hit()
    })?;
    drop((progress, listening));
    let tuned = tuned.ok_or(Failure::Interrupted)?;
    if let Some(notice) = tuned.notices.first() {
        return Err(Failure::Runtime(format!("nothing is stored: {notice}")));
    }
    let said = match dry_run {
        true => vec!["nothing is stored (--dry-run)".into()],
        false => store(&engine, &tuned, &stores)?,
    };
    if json {
        let rows = tuned.widths.iter().map(|width| {
            let mut row = json!(width);
            row["estimated_tokens_per_second"] = json!(width.estimate());
            row
        });
        let all = json!({
            "key": engine.tuning_key(),
            "best_block_size": tuned.best(),
            "widths": rows.collect::<Value>(),
            "dry_run": dry_run,
            "notes": said,
        });
        return terminal::print(&format!("{all}\n"));
    }
    terminal::print(&table(&tuned))?;
    said.iter().try_for_each(|line| terminal::print(&format!("{}\n", terminal::on_one_line(line))))
}

fn understand(args: TuneArgs, around: &Surroundings) -> Outcome<(EngineOptions, Stores)> {
    let target = source(args.first.or(args.model).unwrap_or_else(|| "nano".into()), around)?;
    let drafter = args.draft_model.map(|name| source(name, around)).transpose()?;
    // With another drafter the bundle's own has no better width than before.
    let bundle = match drafter {
        Some(_) => None,
        None => Bundle::of(&target)?,
    };
    let drafter = drafter.or((target == Source::Nano).then_some(Source::Nano));
    let options = EngineOptions { drafter, ..EngineOptions::new(target) };
    let options = with_machine(with_passes(options, args.passes), args.machine);
    Ok((options, Stores { bundle, file: TuningFile::from_environment() }))
}

/// Makes the context as long as it has to be. The drafter's block size.
fn preflight(options: &mut EngineOptions, tokens: usize) -> Outcome<usize> {
    let report = inspect::inspect(options)?;
    let Part::Target { text, drafter, .. } = report.part else {
        return Err(Failure::Runtime(format!("{} is a drafter: expected a target", report.label)));
    };
    options.context = Some((PROMPT + tokens).min(text.max_position_embeddings));
    match drafter {
        None => Err(Failure::Usage(format!("{} has no drafter: --draft-model names one", report.label))),
        Some((_, Ok(config))) => Ok(config.block_size),
        Some((_, Err(why))) => Err(Failure::Runtime(why)),
    }
}

/// The widths to measure: 1 first, none twice.
fn widths(typed: Option<Vec<u32>>, block: usize) -> Outcome<Vec<usize>> {
    let mut widths: Vec<usize> = match typed {
        Some(typed) => typed.into_iter().map(|rows| rows as usize).chain([1]).collect(),
        None => WIDTHS.into_iter().filter(|&rows| rows < block).chain([block]).collect(),
    };
    widths.sort_unstable();
    widths.dedup();
    match widths.iter().find(|&&rows| rows > block) {
        Some(rows) => Err(Failure::Usage(format!("--widths: {rows}, expected 1 to {block}, the drafter's block size"))),
        None => Ok(widths),
    }
}

/// Stores what was measured, and says where.
fn store(engine: &Engine, tuned: &Tuned, stores: &Stores) -> Outcome<Vec<String>> {
    let (mut said, best) = (Vec::new(), tuned.best());
    match (&stores.file, engine.tuning_key()) {
        (Some(file), Some(key)) => {
            file.store(Tuning::new(key.clone(), best, tuned.widths.clone()))?;
            said.push(format!("stored in {}: what each width takes here", file.path().display()));
        }
        (Some(_), None) => {
            said.push("what each width takes is not stored: the system does not say which processor it has".into())
        }
        (None, _) => {
            said.push("what each width takes is not stored: neither XDG_CONFIG_HOME nor HOME says where".into())
        }
    }
    if let Some(bundle) = &stores.bundle {
        said.push(match best {
            1 => format!("{} stays as it is: drafting did not pay", bundle.manifest),
            best => match bundle.set_best_width(best) {
                Ok(()) => format!("stored in {}: field `benchmark.best_block_size`: {best}", bundle.manifest),
                Err(why) => format!("the bundle stays as it is: {why}"),
            },
        });
    }
    Ok(said)
}

fn table(tuned: &Tuned) -> String {
    let mut out = String::from("width  verify ms  draft ms  tokens a round  tok/s estimated  measured\n");
    for width in &tuned.widths {
        let WidthCost { rows, verify_ms, draft_ms, observe_ms, tokens_per_round, tokens_per_second } = width;
        let (draft, estimate) = (draft_ms + observe_ms, width.estimate());
        let _ = writeln!(
            out,
            "{rows:>5}  {verify_ms:>9.2}  {draft:>8.2}  {tokens_per_round:>14.2}  {estimate:>15.1}  {tokens_per_second:>8.1}"
        );
    }
    let _ = match tuned.best() {
        1 => writeln!(out, "best: no drafter, on these prompts"),
        best => writeln!(out, "best: width {best}"),
    };
    out
}

/// What was measured for this engine here, which the engine begins with. A file that cannot be read is said and not used.
pub fn recall(engine: &Engine) -> Option<Tuning> {
    match TuningFile::from_environment()?.find(engine.tuning_key()?) {
        Ok(tuning) => tuning.inspect(|tuning| engine.believe(tuning)),
        Err(why) => {
            terminal::say(&terminal::on_one_line(&format!("warning: {why}; it is not used")));
            None
        }
    }
}

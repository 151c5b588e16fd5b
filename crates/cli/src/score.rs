//! How well a model predicts a text, and how far it is from another.

use crate::args::ScoreArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{object, settings_json, start_line};
use crate::plan::{Surroundings, file, source, with_machine, with_passes};
use crate::progress::Progress;
use crate::run::warn;
use crate::signals::Interrupt;
use crate::{models, terminal};
use glimmer_engine::inspect::{self, Part};
use glimmer_engine::score::{Distance, Score};
use glimmer_engine::{Engine, EngineOptions, Settings, memory};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Instant;

/// Tokens of a window, where the model takes as many and nothing else was asked for.
const WINDOW: usize = 2048;

/// Does what `score` says.
pub fn score(args: ScoreArgs, around: &Surroundings, interrupt: &Interrupt) -> Outcome {
    let ScoreArgs { first, model, file: path, against, window, passes, machine, json } = args;
    let text = file(path).read()?.unwrap_or_default();
    let target = source(first.or(model).unwrap_or_else(|| "nano".into()), around)?;
    let against = against.map(|name| source(name, around)).transpose()?;
    let options = with_machine(with_passes(EngineOptions::new(target), passes), machine);
    let reference = against.map(|target| EngineOptions { target, ..options.clone() });
    let mut all: Vec<EngineOptions> = std::iter::once(options).chain(reference).collect();
    all.iter_mut().try_for_each(|options| models::obtain(options, false).map(drop))?;
    let window = match window {
        Some(window) => window as usize,
        None => all.iter().map(limit).try_fold(WINDOW, |least, limit| Outcome::Ok(least.min(limit?)))?,
    };
    all.iter_mut().for_each(|options| options.context = Some(window));

    let engines = all.iter().map(load).collect::<Outcome<Vec<Engine>>>()?;
    engines.iter().for_each(warn);
    let [model, reference @ ..] = &engines[..] else { return Ok(()) };
    let (reference, listening, started) = (reference.first(), interrupt.listen(), Instant::now());
    let mut progress = Progress::scoring();
    let score = model.score(&text, reference, &mut |done, total| {
        progress.update(done as u64, total as u64);
        !listening.hit()
    })?;
    drop(progress);
    let Some(score) = score else { return Err(Failure::Interrupted) };
    let reference = reference.map(Engine::settings);
    if json {
        let seconds = started.elapsed().as_secs_f64();
        return terminal::print(&format!("{}\n", to_json(&score, model.settings(), reference, seconds)));
    }
    terminal::print(&table(&score, reference))
}

/// The model's own limit of tokens.
fn limit(options: &EngineOptions) -> Outcome<usize> {
    let report = inspect::inspect(options)?;
    match report.part {
        Part::Target { text, .. } => Ok(text.max_position_embeddings),
        Part::Drafter(_) => Err(Failure::Runtime(format!("{} is a drafter: only a target is scored", report.label))),
    }
}

fn load(options: &EngineOptions) -> Outcome<Engine> {
    let mut progress = Progress::loading();
    let engine = Engine::load(options, &mut |loaded| progress.update(loaded.done, loaded.total))?;
    drop(progress);
    terminal::say(&terminal::on_one_line(&start_line(engine.settings(), 1.into())));
    Ok(engine)
}

fn table(score: &Score, reference: Option<&Settings>) -> String {
    let Score { tokens, windows, perplexity, distance } = score;
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let mut out = format!("perplexity         {perplexity:.4}\n");
    if let (Some(distance), Some(reference)) = (distance, reference) {
        let Distance { perplexity, kl_mean, kl_p99, kl_max, top1, logit_mean, logit_p99 } = distance;
        let _ = writeln!(out, "  of the reference {perplexity:.4} ({})", terminal::on_one_line(&reference.model));
        let _ = writeln!(out, "KL divergence      {kl_mean:.3e} mean, {kl_p99:.3e} 99 %, {kl_max:.3e} most");
        let _ = writeln!(out, "same likeliest     {:.3} %", 100.0 * top1);
        let _ = writeln!(out, "logit difference   {logit_mean:.3e} mean, {logit_p99:.3e} 99 %");
    }
    let _ = writeln!(out, "over {} in {}", count(*tokens, "token"), count(*windows, "window"));
    out
}

fn to_json(score: &Score, model: &Settings, reference: Option<&Settings>, seconds: f64) -> Value {
    let Score { tokens, windows, perplexity, distance } = score;
    let mut all = object(json!({ "ppl": perplexity, "tokens": tokens, "windows": windows, "window": model.context }));
    if let Some(Distance { perplexity, kl_mean, kl_p99, kl_max, top1, logit_mean, logit_p99 }) = distance {
        all.extend(object(json!({
            "against_ppl": perplexity,
            "kl_mean": kl_mean,
            "kl_p99": kl_p99,
            "kl_max": kl_max,
            "top1": top1,
            "logit_diff_mean": logit_mean,
            "logit_diff_p99": logit_p99,
        })));
    }
    all.extend(object(json!({
        "settings": settings_json(model),
        "against": reference.map(settings_json),
        "seconds": seconds,
        "peak_memory_bytes": memory::peak(),
    })));
    Value::Object(all)
}

//! A prompt and decoding at a depth, as llama-bench times them.

use super::spread::Spread;
use super::{Common, Rows, not_a_target};
use crate::args::BenchArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{object, settings_json, start_line};
use crate::plan::{Surroundings, source, with_machine, with_passes};
use crate::progress::Progress;
use crate::run::warn;
use crate::{models, terminal};
use glimmer_engine::inspect::{self, Part};
use glimmer_engine::step::{TokenPlan, TokenTimes};
use glimmer_engine::{Engine, EngineOptions};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Tokens of the prompt, if only the depth was said.
const PREFILL: usize = 512;

/// Measures random tokens.
pub fn tokens(args: BenchArgs, around: &Surroundings) -> Outcome {
    let json = args.json.clone();
    let plan = TokenPlan {
        depth: args.tokens.depth.unwrap_or(0) as usize,
        prefill: args.tokens.prefill.map_or(PREFILL, |n| n as usize),
        decode: args.predict as usize,
        repeats: args.repetitions as usize,
        seed: args.sampling.seed,
    };
    if plan.prefill == 0 && plan.decode == 0 {
        return Err(Failure::Usage("-p and -n are both 0: there is nothing to time".into()));
    }
    let target = source(args.first.or(args.model).unwrap_or_else(|| "nano".into()), around)?;
    let mut options = with_machine(with_passes(EngineOptions::new(target), args.passes), args.machine);
    models::obtain(&mut options, false)?;
    let shape = preflight(&mut options, &plan, args.ctx_size.map_or(0, |n| n as usize))?;
    let prints = inspect::fingerprints(&options)?;
    let rows_to = Rows::of(json.as_deref())?;
    let started = Instant::now();
    let mut progress = Progress::loading();
    let engine = Engine::load(&options, &mut |loaded| progress.update(loaded.done, loaded.total))?;
    drop(progress);
    let common = Common::new(engine.settings(), &prints, started.elapsed());
    terminal::say(&terminal::on_one_line(&start_line(engine.settings(), 1.into())));
    warn(&engine);
    let tests = Test::all(&plan, &engine.time_tokens(&plan)?);
    let values: Vec<Value> = tests.iter().map(|test| test.json(&plan, &common, &engine)).collect();
    rows_to.write(&values, &table(&tests, &shape, &engine))
}

/// The model's name, bytes and elements.
struct Shape {
    name: String,
    bytes: u64,
    parameters: u64,
}

/// Makes the context as long as it has to be, and refuses what the model has no room for.
fn preflight(options: &mut EngineOptions, plan: &TokenPlan, asked: usize) -> Outcome<Shape> {
    let report = inspect::inspect(options)?;
    let Part::Target { text, .. } = &report.part else { return Err(not_a_target(&report)) };
    let longest = plan.prefill.max(plan.decode);
    let limit = if asked > 0 { asked } else { text.max_position_embeddings };
    if plan.depth.saturating_add(longest) > limit {
        return Err(Failure::Usage(format!(
            "-d {}, -p {} and -n {}: {} positions, expected at most {limit}, the {}",
            plan.depth,
            plan.prefill,
            plan.decode,
            plan.depth.saturating_add(longest),
            if asked > 0 { "context (-c)" } else { "model's limit" }
        )));
    }
    options.context = Some((plan.depth + longest).max(2));
    Ok(Shape { name: report.label.clone(), bytes: report.bytes, parameters: report.parameters })
}

/// One line of the table.
struct Test {
    /// As llama-bench calls it: `pp512`, `tg128 @ d4096`.
    name: String,
    kind: &'static str,
    tokens: usize,
    seconds: Vec<f64>,
    rates: Vec<f64>,
}

impl Test {
    fn all(plan: &TokenPlan, times: &TokenTimes) -> Vec<Self> {
        let test = |kind, short, tokens: usize, times: &[Duration]| {
            let seconds: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
            let depth = if plan.depth > 0 { format!(" @ d{}", plan.depth) } else { String::new() };
            let rates = seconds.iter().map(|seconds| tokens as f64 / seconds).collect();
            Self { name: format!("{short}{tokens}{depth}"), kind, tokens, seconds, rates }
        };
        let all =
            [test("prefill", "pp", plan.prefill, &times.prefill), test("decode", "tg", plan.decode, &times.decode)];
        all.into_iter().filter(|test| test.tokens > 0).collect()
    }

    fn json(&self, plan: &TokenPlan, common: &Common, engine: &Engine) -> Value {
        let mut settings = settings_json(engine.settings());
        settings.extend(object(json!({ "seed": plan.seed, "repetitions": plan.repeats })));
        let mut all = object(json!({
            "test": self.name,
            "kind": self.kind,
            "tokens": self.tokens,
            "depth": plan.depth,
            "tok_s": Spread::of(&self.rates).map(|spread| spread.json()),
            "seconds_of_each": self.seconds,
        }));
        all.extend(object(common.json(Value::Object(settings))));
        Value::Object(all)
    }
}

fn table(tests: &[Test], shape: &Shape, engine: &Engine) -> String {
    let settings = engine.settings();
    let mut out = String::from("| model | size | params | threads | test | t/s |\n|---|---:|---:|---:|---:|---:|\n");
    for test in tests {
        let _ = writeln!(
            out,
            "| {} {} | {:.2} MB | {:.2} M | {} | {} | {} |",
            terminal::on_one_line(&shape.name).replace('|', "\\|"),
            settings.encoding,
            shape.bytes as f64 / 1e6,
            shape.parameters as f64 / 1e6,
            settings.threads,
            test.name,
            Spread::of(&test.rates).map_or("-".into(), |spread| spread.to_string()),
        );
    }
    out
}

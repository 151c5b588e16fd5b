//! Prompts that are continued without a drafter and at several widths.

use super::prompts::{self, Encoded, Prompt};
use super::row::{PLAIN, Row, Run};
use super::{Common, OutFile, Rows, chart, not_a_target, pairs, table};
use crate::args::{BenchArgs, BenchSampling, DraftKind, Switch};
use crate::failure::{Failure, Outcome};
use crate::output::{object, request_json, start_line};
use crate::plan::{Surroundings, source, with_machine, with_passes};
use crate::progress::Progress;
use crate::run::warn;
use crate::signals::{Interrupt, Listening};
use crate::{models, terminal};
use glimmer_engine::inspect::{self, Part};
use glimmer_engine::sampling::Sampling;
use glimmer_engine::speculative::{NGRAM_BLOCK, Script};
use glimmer_engine::stops::StopRule;
use glimmer_engine::{DraftWidth, Engine, EngineOptions, Flow, Ongoing, Output, Request, Session, Source};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The widths that are measured if none are named.
const WIDTHS: [DraftWidth; 4] = [DraftWidth::Auto, DraftWidth::Fixed(2), DraftWidth::Fixed(5), DraftWidth::Fixed(8)];
/// Tokens that are generated before anything is measured.
const WARM_UP: usize = 8;
/// Tokens of a turn, where widths take turns: what one leaves in the processor's caches is not what another needs, so its first round is slower.
const TURN: usize = 16;

/// What is to be measured.
struct Plan {
    options: EngineOptions,
    /// A drafter that comes with the target is used.
    draft: bool,
    prompts: Vec<Prompt>,
    widths: Option<Vec<DraftWidth>>,
    baseline: bool,
    tokens: usize,
    repeats: usize,
    ignore_eos: bool,
    sampling: BenchSampling,
    accept: Option<f64>,
    /// Widths take turns of a few tokens, and are compared repetition by repetition.
    pairs: bool,
}

/// Measures a set of prompts.
pub fn set(args: BenchArgs, around: &Surroundings, interrupt: &Interrupt) -> Outcome {
    let (json, svg) = (args.json.clone(), args.svg.clone());
    let mut plan = understand(args, around)?;
    models::obtain(&mut plan.options, plan.draft)?;
    let widths = preflight(&mut plan)?;
    let prints = inspect::fingerprints(&plan.options)?;
    let (rows_to, svg) = (Rows::of(json.as_deref())?, svg.as_deref().map(OutFile::create).transpose()?);
    let started = Instant::now();
    let mut progress = Progress::loading();
    let engine = Engine::load(&plan.options, &mut |loaded| progress.update(loaded.done, loaded.total))?;
    drop(progress);
    let common = Common::new(engine.settings(), &prints, started.elapsed());
    let shown = widths.iter().copied().find(|&width| width != PLAIN).unwrap_or(PLAIN);
    terminal::say(&terminal::on_one_line(&start_line(engine.settings(), shown)));
    warn(&engine);
    let prompts = plan.prompts.iter().map(|prompt| prompt.encode(&engine)).collect::<Outcome<Vec<_>>>()?;
    if prompts.iter().any(|prompt| prompt.framing == "bytes") {
        terminal::say("note: the checkpoint has no tokenizer; the prompts' bytes stand for tokens");
    }
    let mut measuring = Measuring::new(&plan, &engine, widths.len(), interrupt)?;
    let mut rows = measuring.rows(&prompts, &widths)?;
    let compared = table::compare(&mut rows);
    let mut out = table::table(&rows);
    if plan.pairs && compared.is_ok() {
        out.push_str(&pairs::table(&rows, plan.accept));
    }
    let values: Vec<Value> = rows
        .iter()
        .zip(prompts.iter().flat_map(|prompt| widths.iter().map(move |&width| (prompt, width))))
        .map(|(row, (prompt, width))| row.json(&common, measuring.settings(prompt, width)))
        .collect();
    rows_to.write(&values, &out)?;
    if let Some(svg) = svg {
        svg.write(&chart::svg(&rows).map_err(Failure::Runtime)?)?;
    }
    compared.map_err(Failure::from)
}

fn understand(args: BenchArgs, around: &Surroundings) -> Outcome<Plan> {
    let target = source(args.first.or(args.model).unwrap_or_else(|| "nano".into()), around)?;
    let alone = args.draft_kind == Some(DraftKind::Ngram);
    let usage = |line: &str| Err(Failure::Usage(line.into()));
    if args.predict < 2 {
        return usage("-n: expected at least 2 tokens, as the first is the prompt's");
    }
    if alone && args.draft_model.is_some() {
        return usage("--draft-kind ngram uses no drafter: --draft-kind hybrid uses both");
    }
    if args.accept.is_some() && args.draft_kind.is_some_and(|kind| kind != DraftKind::Dflash) {
        return usage("--accept is of what a drafter proposes, and not of ngram or hybrid");
    }
    if let Some(widths) = &args.widths
        && let Some((_, twice)) = widths.iter().enumerate().find(|(i, width)| widths[..*i].contains(width))
    {
        return usage(&format!("--widths: {twice} twice"));
    }
    let drafter = match args.draft_model {
        Some(name) => Some(source(name, around)?),
        None => (target == Source::Nano && !alone).then_some(Source::Nano),
    };
    let prompts = match &args.prompts {
        Some(path) => prompts::read(path)?,
        None => prompts::shipped()?,
    };
    let options = EngineOptions {
        drafter,
        ngram: args.draft_kind.is_some_and(|kind| kind != DraftKind::Dflash),
        rehearsed: args.accept.is_some(),
        context: args.ctx_size.filter(|&n| n > 0).map(|n| n as usize),
        ..EngineOptions::new(target)
    };
    Ok(Plan {
        options: with_machine(with_passes(options, args.passes), args.machine),
        draft: !alone,
        prompts,
        widths: args.widths,
        baseline: args.baseline != Some(Switch::Off),
        tokens: args.predict as usize,
        repeats: args.pairs.unwrap_or(args.repetitions) as usize,
        ignore_eos: args.ignore_eos,
        sampling: args.sampling,
        accept: args.accept,
        pairs: args.pairs.is_some(),
    })
}

/// Makes the context as long as it has to be, and gives the widths, of which the first decodes plainly if any does; refuses those
/// that the drafter has not.
fn preflight(plan: &mut Plan) -> Outcome<Vec<DraftWidth>> {
    let report = inspect::inspect(&plan.options)?;
    let Part::Target { text, drafter, .. } = &report.part else { return Err(not_a_target(&report)) };
    let ngram = plan.options.ngram.then_some((NGRAM_BLOCK, "ngram"));
    let block = match drafter {
        Some((label, Ok(config))) => ngram.max(Some((config.block_size, label))),
        Some((_, Err(_))) => None, // Loading it says best what is wrong.
        None => ngram,
    };
    let has_drafter = plan.options.drafter.is_some() || plan.options.ngram;
    if !has_drafter && (plan.widths.is_some() || plan.accept.is_some() || !plan.baseline) {
        let flag = match (&plan.widths, plan.accept) {
            (Some(_), _) => "--widths",
            (_, Some(_)) => "--accept",
            _ => "--baseline=off",
        };
        let line = "needs a drafter: --draft-model names one, --draft-kind ngram needs none";
        return Err(Failure::Usage(format!("{flag} {line}")));
    }
    let most = block.map_or(usize::MAX, |(most, _)| most);
    let fits = |width: &DraftWidth| !matches!(width, DraftWidth::Fixed(rows) if *rows > most);
    if let (Some(width), Some((most, label))) = (plan.widths.iter().flatten().find(|width| !fits(width)), block) {
        return Err(Failure::Usage(format!("--widths: {width}, expected 2 to {most}, the block size of {label}")));
    }
    let widths = match &plan.widths {
        Some(widths) => widths.clone(),
        None => WIDTHS.into_iter().filter(|width| has_drafter && fits(width)).collect(),
    };
    if !has_drafter {
        terminal::say("note: there is no drafter: only decoding without one is measured");
    }
    if plan.options.context.is_none() {
        let longest = plan.prompts.iter().map(Prompt::longest).max().unwrap_or(0);
        plan.options.context = Some((longest + plan.tokens).min(text.max_position_embeddings));
    }
    Ok(plan.baseline.then_some(PLAIN).into_iter().chain(widths).collect())
}

/// A model, and the sequences that everything is measured on.
struct Measuring<'a> {
    plan: &'a Plan,
    engine: &'a Engine,
    /// One for each width where those take turns.
    sessions: Vec<Session>,
    sampling: Sampling,
    listening: Listening<'a>,
}

/// A continuation that takes its turns with others, and what it has taken since its first token.
struct Voice<'a> {
    ongoing: Ongoing<'a>,
    goes_on: bool,
    time: Duration,
    cpu: Option<Duration>,
}

impl Voice<'_> {
    fn finish(self) -> Run {
        Run { generation: self.ongoing.finish(), time: self.time, cpu: self.cpu }
    }
}

impl<'a> Measuring<'a> {
    fn new(plan: &'a Plan, engine: &'a Engine, widths: usize, interrupt: &'a Interrupt) -> Outcome<Self> {
        let BenchSampling { temperature, top_k, top_p, min_p, seed } = plan.sampling;
        let defaults = engine.default_sampling().clone();
        let sampling = Sampling {
            temperature: temperature.unwrap_or(0.0),
            top_k: top_k.map_or(defaults.top_k, |k| usize::try_from(k).unwrap_or(0)),
            top_p: top_p.unwrap_or(defaults.top_p),
            min_p: min_p.unwrap_or(defaults.min_p),
            seed,
            ..defaults
        };
        let together = if plan.pairs { widths } else { 1 };
        let sessions = (0..together).map(|_| engine.session()).collect::<Result<_, _>>()?;
        Ok(Self { plan, engine, sessions, sampling, listening: interrupt.listen() })
    }

    /// A row for each prompt and width, by prompt; of at least one prompt. Every prompt is continued at all widths before the next, and everything before
    /// anything is repeated; who goes first changes from one repetition to the next.
    fn rows(&mut self, prompts: &[Encoded], widths: &[DraftWidth]) -> Outcome<Vec<Row>> {
        let scripts = prompts.iter().map(|prompt| self.script(prompt)).collect::<Outcome<Vec<_>>>()?;
        // With its script: what the drafter is worth is learned from the first round on.
        self.engine.rehearse(scripts[0].clone());
        for together in widths.chunks(self.sessions.len()) {
            self.speak(&prompts[0], together, 0, WARM_UP)?;
        }
        let (count, each) = (widths.len(), prompts.len() * widths.len());
        let mut runs: Vec<Vec<Run>> = (0..each).map(|_| Vec::new()).collect();
        let mut progress = Progress::benchmarking();
        let total = (each * self.plan.repeats) as u64;
        let mut done = 0;
        for repeat in 0..self.plan.repeats {
            for (n, (prompt, script)) in prompts.iter().zip(&scripts).enumerate() {
                // All widths have the same luck, repetitions each their own.
                let seed = self.sampling.seed.wrapping_add(repeat as u64);
                self.engine.rehearse(script.clone().map(|script| Script { seed, ..script }));
                let together = self.sessions.len();
                for turn in (0..count).step_by(together) {
                    progress.update(done, total);
                    let at = if together == 1 { (turn + repeat) % count } else { turn };
                    let found = self.speak(prompt, &widths[at..at + together], repeat, self.plan.tokens)?;
                    found.into_iter().enumerate().for_each(|(i, run)| runs[n * count + at + i].push(run));
                    done += together as u64;
                }
            }
        }
        drop(progress);
        let cells = prompts.iter().flat_map(|prompt| widths.iter().map(move |&width| (prompt, width)));
        let threads = self.engine.settings().threads;
        Ok(cells.zip(&runs).map(|((prompt, width), runs)| Row::new(prompt, width, runs, threads)).collect())
    }

    /// What a drafter that was told how often to be right has to know.
    fn script(&mut self, prompt: &Encoded) -> Outcome<Option<Script>> {
        let Some(acceptance) = self.plan.accept else { return Ok(None) };
        let Run { generation, .. } = self.speak(prompt, &[PLAIN], 0, self.plan.tokens)?.remove(0);
        let tokens = [&prompt.ids[..], &generation.token_ids].concat();
        Ok(Some(Script { tokens, acceptance, seed: self.sampling.seed }))
    }

    /// Continues a prompt at these widths, no more than there are sequences. After the prompt they go on by turns, a few tokens each: next is who has the fewest,
    /// so that what disturbs the machine disturbs all alike; of several who have, the one that comes first from number `first` on.
    fn speak(&mut self, prompt: &Encoded, widths: &[DraftWidth], first: usize, tokens: usize) -> Outcome<Vec<Run>> {
        let requests: Vec<Request> = widths.iter().map(|&width| self.request(prompt, width, tokens)).collect();
        let Self { sessions, listening, engine, .. } = self;
        let mut listener = |_| if listening.hit() { Flow::Cancel } else { Flow::Continue };
        let mut voices = Vec::with_capacity(widths.len());
        for (session, request) in sessions.iter_mut().zip(requests) {
            session.reset();
            let (mut ongoing, mut goes_on) = (session.start(request)?, true);
            while goes_on && ongoing.tokens() == 0 {
                goes_on = ongoing.step(&mut listener)?;
            }
            voices.push(Voice { ongoing, goes_on, time: Duration::ZERO, cpu: Some(Duration::ZERO) });
        }
        let first = first % voices.len();
        voices.rotate_left(first);
        let unfinished = |voice: &&mut Voice<'_>| voice.goes_on && !listening.hit();
        while let Some(next) = voices.iter_mut().filter(unfinished).min_by_key(|voice| voice.ongoing.tokens()) {
            let (started, before, end) = (Instant::now(), engine.cpu_time(), next.ongoing.tokens() + TURN);
            while next.goes_on && next.ongoing.tokens() < end {
                next.goes_on = next.ongoing.step(&mut listener)?;
            }
            let cpu = before.zip(engine.cpu_time()).map(|(before, after)| after.saturating_sub(before));
            next.time += started.elapsed();
            next.cpu = next.cpu.zip(cpu).map(|(all, cpu)| all + cpu);
        }
        if listening.hit() {
            return Err(Failure::Interrupted);
        }
        voices.rotate_right(first);
        Ok(voices.into_iter().map(Voice::finish).collect())
    }

    fn request(&self, prompt: &Encoded, width: DraftWidth, tokens: usize) -> Request {
        let stop = StopRule {
            eos: self.engine.eos().to_vec(),
            ignore_eos: self.plan.ignore_eos,
            max_tokens: Some(tokens),
            ..StopRule::default()
        };
        let output = if prompt.framing == "chat" { Output::Chat } else { Output::Ids };
        Request { prompt: prompt.ids.clone(), sampling: self.sampling.clone(), stop, width, output }
    }

    fn settings(&self, prompt: &Encoded, width: DraftWidth) -> Value {
        let request = self.request(prompt, width, self.plan.tokens);
        let mut all = object(request_json(self.engine.settings(), &request, prompt.framing, None));
        all.extend(object(json!({
            "seed": self.sampling.seed,
            "repetitions": self.plan.repeats,
            "accept": self.plan.accept,
        })));
        Value::Object(all)
    }
}

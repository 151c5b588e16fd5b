//! One prompt, one answer; or the way into a conversation.

use crate::failure::{Failure, Outcome};
use crate::output::{Ran, start_line};
use crate::plan::{Framing, Limit, RunPlan, Surroundings, Width};
use crate::printer::{Printer, Style};
use crate::progress::Progress;
use crate::prompt::Prompt;
use crate::signals::Interrupt;
use crate::trace::Trace;
use crate::{repl, terminal, tune};
use glimmer_engine::chat::message::{Message, ReasoningStrength};
use glimmer_engine::inspect::{self, Part};
use glimmer_engine::sampling::Sampling;
use glimmer_engine::speculative::NGRAM_BLOCK;
use glimmer_engine::stops::StopRule;
use glimmer_engine::{DraftWidth, Engine, Event, Flow, Generation, Output, Request, Session, Source};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

/// A model that is ready to speak, and how it is to.
pub struct Ready<'a> {
    pub plan: &'a RunPlan,
    pub engine: Engine,
    /// Prompts are conversations.
    pub chat: bool,
    width: DraftWidth,
    /// The day on which the costs were measured that choosing widths begins with.
    tuned: Option<String>,
    sampling: Sampling,
    style: Style,
    trace: Option<Trace>,
    load: Duration,
}

/// What came of a request.
pub struct Spoken {
    pub generation: Generation,
    /// What the engine had to say about it.
    pub notices: Vec<String>,
    /// Ctrl-C was pressed meanwhile.
    pub interrupted: bool,
}

/// Does what `run` says.
pub fn run(mut plan: RunPlan, around: &Surroundings, interrupt: &Interrupt) -> Outcome {
    plan.obtain()?;
    let plan = &plan;
    let chat = preflight(plan)?;
    let text = plan.prompt.read()?;
    announce(plan);
    let ready = Ready::load(plan, chat, around)?;
    if !plan.quiet {
        let tuned = ready.tuned.as_ref().map(|day| format!(", tuned {day}")).unwrap_or_default();
        let line = start_line(ready.engine.settings(), ready.width) + &tuned;
        terminal::say(&terminal::on_one_line(&line));
    }
    warn(&ready.engine);
    let mut session = ready.engine.session()?;
    let ids = match (&plan.prompt, text) {
        (Prompt::Ids(ids), _) => ids.clone(),
        (_, Some(text)) if chat => ready.engine.encode_chat(&ready.conversation(text), ready.effort())?,
        (_, Some(text)) => ready.engine.encode_raw(&text)?,
        (_, None) => return repl::run(&ready, &mut session, interrupt),
    };
    let request = ready.request(ids, 0);
    let spoken = ready.speak(&mut session, &request, interrupt)?;
    let ran = ready.ran(&request, &spoken);
    if plan.json {
        terminal::print(&format!("{}\n", ran.json()))?;
    }
    match plan.quiet {
        true if !plan.json => ready.say_drawn_seed(),
        true => {}
        false => terminal::say(&ran.timing_line()),
    }
    if spoken.interrupted { Err(Failure::Interrupted) } else { Ok(()) }
}

/// Says what about the weights looks wrong.
pub fn warn(engine: &Engine) {
    for suspicion in engine.suspicions() {
        terminal::say(&format!("warning: {}", terminal::on_one_line(suspicion)));
    }
}

/// What the user should know before anything happens.
fn announce(plan: &RunPlan) {
    if plan.quiet {
        return;
    }
    if let Some(doubt) = &plan.doubt {
        terminal::say(&format!("note: {}", terminal::on_one_line(doubt)));
    }
    if plan.options.target == Source::Nano {
        terminal::say("note: this is nano, a tiny test model inside this program; -m names a real one");
    }
    if plan.vision {
        terminal::say("note: images are not supported yet; the vision tower is checked, and not used");
    }
    if plan.effort.is_some_and(|effort| effort.raised) {
        terminal::say("note: the model always reasons; low is the least");
    }
}

/// Refuses from the headers alone what the weights need not be read for. Whether prompts are conversations.
fn preflight(plan: &RunPlan) -> Outcome<bool> {
    let report = inspect::inspect(&plan.options)?;
    let Part::Target { tokenizer, chat_template, drafter, .. } = report.part else {
        return Ok(false); // Loading it as a target says best what is wrong.
    };
    let without = |what: &str| Err(Failure::Runtime(format!("{} has no {what}", report.label)));
    if !tokenizer && !matches!(plan.prompt, Prompt::Ids(_)) {
        return without("tokenizer.json: only --prompt-ids works with it");
    }
    if !tokenizer && !plan.stop.is_empty() {
        return without("tokenizer.json: --stop needs one");
    }
    if !chat_template && plan.framing == Framing::Chat {
        return without("chat template: use --raw, and neither --system, --reasoning-effort nor --show-reasoning");
    }
    let ngram = plan.options.ngram.then_some((NGRAM_BLOCK, "ngram"));
    let block = match &drafter {
        Some((label, Ok(config))) => ngram.max(Some((config.block_size, label))),
        Some((_, Err(_))) => None, // Loading it says best what is wrong.
        None => ngram,
    };
    if let (Some(Width { rows: DraftWidth::Fixed(rows), from, typed }), Some((most, label))) = (&plan.width, block)
        && *rows > most
    {
        let expected = format!("expected 2 to {most}, the block size of {label}");
        return Err(match typed {
            true => {
                let proposals = most - 1;
                let line = format!("--draft-width is {rows}, {expected} (--spec-draft-n-max: 1 to {proposals})");
                Failure::Usage(line)
            }
            false => Failure::Runtime(format!("{from}: {expected}, found {rows}")),
        });
    }
    Ok(match plan.framing {
        Framing::Chat => true,
        Framing::Raw => false,
        Framing::ByTemplate => chat_template,
    })
}

impl<'a> Ready<'a> {
    fn load(plan: &'a RunPlan, chat: bool, around: &Surroundings) -> Outcome<Self> {
        let trace = plan.trace.as_deref().map(Trace::create).transpose()?;
        let started = Instant::now();
        let mut progress = Progress::loading();
        let engine = Engine::load(&plan.options, &mut |loaded| progress.update(loaded.done, loaded.total))?;
        drop(progress);
        let auto = match engine.settings().drafter {
            Some(_) => DraftWidth::Auto,
            None => DraftWidth::Fixed(1),
        };
        let (width, tuned) = match &plan.width {
            Some(Width { rows: rows @ DraftWidth::Fixed(_), typed: true, .. }) => (*rows, None),
            // What was measured here is a better guide than what a bundle brings.
            other => match tune::recall(&engine) {
                Some(tuning) => (DraftWidth::Auto, Some(tuning.day())),
                None => (other.as_ref().map_or(auto, |width| width.rows), None),
            },
        };
        let sampling = plan.sampling(engine.default_sampling(), plan.seed().unwrap_or_else(draw_seed));
        sampling.validate(engine.vocab_size())?;
        Ok(Self {
            plan,
            chat,
            width,
            tuned,
            trace,
            sampling,
            style: Style {
                silent: plan.json,
                ids: engine.tokenizer().is_none(),
                reasoning: plan.show_reasoning,
                dim: terminal::has_styles(),
                harmless: around.stdout_terminal,
            },
            load: started.elapsed(),
            engine,
        })
    }

    /// The first turn.
    fn conversation(&self, text: String) -> Vec<Message> {
        let system = self.plan.system.iter().map(|system| Message::system(system.as_str()));
        system.chain([Message::user(text)]).collect()
    }

    pub fn effort(&self) -> Option<ReasoningStrength> {
        self.plan.effort.map(|effort| effort.strength)
    }

    /// The request for what comes after these ids; `sample` tells apart attempts at the same prompt.
    pub fn request(&self, prompt: Vec<u32>, sample: u32) -> Request {
        let output = match (self.chat, self.engine.tokenizer()) {
            (true, _) => Output::Chat,
            (false, Some(_)) => Output::Text,
            (false, None) => Output::Ids,
        };
        let stop = StopRule {
            eos: self.engine.eos().to_vec(),
            ignore_eos: self.plan.ignore_eos,
            max_tokens: self.plan.limit.tokens(self.chat),
            strings: self.plan.stop.clone(),
        };
        let sampling = Sampling { sample_index: sample, ..self.sampling.clone() };
        Request { prompt, sampling, stop, width: self.width, output }
    }

    /// Without it, an output that people like could not be had again.
    pub fn say_drawn_seed(&self) {
        if self.plan.seed().is_none() {
            terminal::say(&format!("seed {}", self.sampling.seed));
        }
    }

    /// Generates and prints.
    pub fn speak(&self, session: &mut Session, request: &Request, interrupt: &Interrupt) -> Outcome<Spoken> {
        let listening = interrupt.listen();
        let mut printer = Printer::new(self.style);
        let mut progress = Progress::reading();
        let mut notices = Vec::new();
        let generation = session.generate(request, &mut |event| {
            match event {
                Event::Prefill { done, total } => progress.update(done as u64, total as u64),
                _ => progress.clear(),
            }
            // Told at the end: on a terminal they would stand in the middle of the text.
            if let Event::Notice(notice) = &event {
                notices.push(notice.clone());
            }
            match printer.event(event) && !listening.hit() {
                true => Flow::Continue,
                false => Flow::Cancel,
            }
        });
        progress.clear();
        printer.finish()?;
        for notice in notices.iter().filter(|_| !self.plan.json) {
            terminal::say(&format!("note: {}", terminal::on_one_line(notice)));
        }
        let generation = generation?;
        self.trace.as_ref().map_or(Ok(()), |trace| trace.write(&generation))?;
        Ok(Spoken { generation, notices, interrupted: listening.hit() })
    }

    /// What there is to say about a generation.
    pub fn ran<'b>(&'b self, request: &'b Request, spoken: &'b Spoken) -> Ran<'b> {
        Ran {
            settings: self.engine.settings(),
            request,
            generation: &spoken.generation,
            notices: &spoken.notices,
            suspicions: self.engine.suspicions(),
            load: self.load,
            chat: self.chat,
            effort: self.effort(),
            limit_by_default: !self.chat && self.plan.limit == Limit::ByFraming,
        }
    }
}

/// Below 2^53, so that every reader of JSON keeps it.
fn draw_seed() -> u64 {
    RandomState::new().build_hasher().finish() >> 11
}

//! What rounds of each width take on this machine, and what they give: measured by generating.
//!
//! A few prompts are continued with rounds of every width by turns, so that what disturbs the machine disturbs all alike. Of that come
//! the costs that choosing widths can begin with ([`Engine::believe`]) and the width that is the best where one has to do for all.

mod file;

pub use file::{Tuning, TuningFile, TuningKey};

use crate::chat::message::Message;
use crate::random::Random;
use crate::stops::StopRule;
use crate::{DraftWidth, Engine, EngineError, EngineOptions, Event, Flow, Output, Request, Settings, Source, step};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Prompts of several kinds: code, prose, a list, JSON.
const PROMPTS: [&str; 4] = [
    "Write a Python function that returns the n-th Fibonacci number, with a docstring and three asserts.",
    "Describe in a few sentences how the tides come about, for somebody who has never seen the sea.",
    "List the twelve months, one a line, each with its number of days.",
    "Write a JSON array of three people with the fields name, age, city and email.",
];
/// Tokens of a prompt where there is no tokenizer.
const IDS: usize = 32;

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunePlan {
    /// Rows of the rounds, 1 among them.
    pub widths: Vec<usize>,
    /// Tokens of each generation.
    pub tokens: usize,
    /// How often each prompt is continued with each width.
    pub repeats: usize,
}

/// What rounds of a width took and gave.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WidthCost {
    /// Rows of a round.
    pub rows: usize,
    /// Milliseconds of the target's pass and the draws.
    pub verify_ms: f64,
    /// Milliseconds of making proposals.
    pub draft_ms: f64,
    /// Milliseconds of showing the drafter what was verified before.
    pub observe_ms: f64,
    /// Tokens of a round, on average.
    pub tokens_per_round: f64,
    /// Tokens per second of all generations together, whatever disturbed them.
    pub tokens_per_second: f64,
}

impl WidthCost {
    /// Tokens per second where rounds take what they take undisturbed.
    pub fn estimate(&self) -> f64 {
        1e3 * self.tokens_per_round / (self.verify_ms + self.draft_ms + self.observe_ms).max(1e-6)
    }
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuned {
    /// By rows.
    pub widths: Vec<WidthCost>,
    /// What the user should be told, such as that the drafter failed.
    pub notices: Vec<String>,
}

impl Tuned {
    /// The width with the most tokens per second; 1 where drafting does not pay.
    pub fn best(&self) -> usize {
        let faster = |a: &&WidthCost, b: &&WidthCost| a.estimate().total_cmp(&b.estimate()).then(b.rows.cmp(&a.rows));
        self.widths.iter().max_by(faster).map_or(1, |width| width.rows)
    }
}

/// What the rounds of one width took.
#[derive(Default)]
struct Samples {
    /// Of verifying, drafting, observing.
    times: [Vec<Duration>; 3],
    rounds: usize,
    tokens: usize,
    /// Tokens after the first of each generation, and how long they took.
    decoded: usize,
    time: Duration,
}

impl Samples {
    fn cost(mut self, rows: usize) -> Option<WidthCost> {
        let [verify_ms, draft_ms, observe_ms] = std::array::from_fn(|at| low(&mut self.times[at]));
        let tokens_per_second = self.decoded as f64 / self.time.as_secs_f64().max(1e-9);
        let tokens_per_round = self.tokens as f64 / self.rounds as f64;
        let cost = WidthCost { rows, verify_ms, draft_ms, observe_ms, tokens_per_round, tokens_per_second };
        (self.rounds > 0).then_some(cost)
    }
}

/// In milliseconds: a third took no longer, as whatever disturbs a pass makes it slower.
fn low(times: &mut [Duration]) -> f64 {
    times.sort();
    times.get(times.len().saturating_sub(1) / 3).map_or(0.0, |time| 1e3 * time.as_secs_f64())
}

impl Engine {
    /// Measures rounds of several widths, with the checkpoint's own sampling settings. `progress` is told the generations that are done and
    /// all of them, and may end it by returning false: then there is `None`.
    ///
    /// # Errors
    /// Where there is no drafter, a width is none of its own, a generation fails, or a width changes the tokens.
    pub fn tune(
        &self,
        plan: &TunePlan,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Option<Tuned>, EngineError> {
        let loaded = &*self.loaded;
        let Some(drafter) = &loaded.drafter else {
            return Err(EngineError::NoDrafter { label: loaded.settings.model.clone() });
        };
        let block = drafter.block_size();
        if let Some(&found) = plan.widths.iter().find(|rows| !(1..=block).contains(rows)) {
            let expected = format!("1 to {block}, the drafter's block size");
            return Err(EngineError::Range { what: "the width of a round", found, expected });
        }
        let prompts = self.prompts()?;
        let (mut samples, mut notices) = (Vec::new(), Vec::new());
        samples.resize_with(plan.widths.len(), Samples::default);
        let (mut done, total) = (0, prompts.len() * plan.repeats * plan.widths.len());
        let mut session = self.session()?;
        for prompt in prompts {
            // Untimed: the prompt is processed, memory is touched, clocks go up.
            let mut request = self.request(prompt, 1, plan.tokens);
            let expected = session.generate(&request, &mut |_| flow(progress(done, total)))?.token_ids;
            for _ in 0..plan.repeats {
                for (&rows, samples) in plan.widths.iter().zip(&mut samples) {
                    request.width = DraftWidth::Fixed(rows);
                    let mut goes_on = true;
                    let generation = session.generate(&request, &mut |event| {
                        if let Event::Notice(notice) = event {
                            notices.push(notice);
                        }
                        goes_on &= progress(done, total);
                        flow(goes_on)
                    })?;
                    if !goes_on {
                        return Ok(None);
                    }
                    if generation.token_ids != expected {
                        return Err(EngineError::Differs { label: loaded.settings.model.clone(), rows });
                    }
                    take(samples, &generation, rows);
                    done += 1;
                }
            }
        }
        if !progress(done, total) {
            return Ok(None);
        }
        let costs = plan.widths.iter().zip(samples).filter_map(|(&rows, samples)| samples.cost(rows));
        Ok(Some(Tuned { widths: costs.collect(), notices }))
    }

    /// Choosing widths begins with these costs; what rounds take from then on replaces them.
    pub fn believe(&self, tuning: &Tuning) {
        let seconds = |ms: f64| ms / 1e3;
        let widths = tuning.widths.iter();
        let costs = widths.map(|width| (width.rows, seconds(width.verify_ms), seconds(width.draft_ms)));
        self.loaded.experience.believe(costs);
    }

    /// What values belong to that were measured with these models here; `None` where there is no drafter, or where the system does not say
    /// what processor it has.
    pub fn tuning_key(&self) -> Option<&TuningKey> {
        self.loaded.tuning_key.as_ref()
    }

    fn request(&self, prompt: Vec<u32>, rows: usize, tokens: usize) -> Request {
        let stop =
            StopRule { eos: self.eos().to_vec(), ignore_eos: true, max_tokens: Some(tokens), strings: Vec::new() };
        let sampling = self.default_sampling().clone();
        Request { prompt, sampling, stop, width: DraftWidth::Fixed(rows), output: Output::Ids }
    }

    fn prompts(&self) -> Result<Vec<Vec<u32>>, EngineError> {
        if self.tokenizer().is_none() {
            let (mut random, vocab) = (Random::new(1), self.vocab_size() as u32);
            return Ok(PROMPTS.iter().map(|_| (0..IDS).map(|_| random.below(vocab)).collect()).collect());
        }
        let encode = |text: &str| match self.can_chat() {
            true => self.encode_chat(&[Message::user(text)], None),
            false => self.encode_raw(text),
        };
        PROMPTS.into_iter().map(encode).collect()
    }
}

fn flow(goes_on: bool) -> Flow {
    if goes_on { Flow::Continue } else { Flow::Cancel }
}

/// Adds the rounds of a generation. Its first one shows the drafter the end of the prompt, which is no round's cost.
fn take(samples: &mut Samples, generation: &crate::Generation, rows: usize) {
    let rounds: Vec<_> = generation.rounds.iter().filter(|round| round.width == rows).collect();
    samples.rounds += rounds.len();
    samples.tokens += rounds.iter().map(|round| round.accepted + 1).sum::<usize>();
    samples.decoded += generation.token_ids.len().saturating_sub(1);
    samples.time += generation.timings.predicted_time;
    for round in rounds.iter().skip(usize::from(rounds.len() > 1)) {
        let trace = &round.trace;
        for (times, time) in samples.times.iter_mut().zip([trace.verify.time, trace.draft.time, trace.observe.time]) {
            times.push(time);
        }
    }
}

/// What values of an engine belong to.
pub(crate) fn key(options: &EngineOptions, settings: &Settings, bytes: [u64; 2]) -> Option<TuningKey> {
    let drafter = options.drafter.as_ref()?;
    let name = |source: &Source, label: &str| match source {
        Source::Path(path) => path.canonicalize().map_or(label.into(), |path| path.to_string_lossy().into_owned()),
        _ => label.to_string(),
    };
    let label = settings.drafter.as_ref().and_then(|drafter| drafter.model.as_deref())?;
    Some(TuningKey {
        target: name(&options.target, &settings.model),
        target_bytes: bytes[0],
        drafter: name(drafter, label),
        drafter_bytes: bytes[1],
        cpu: step::cpu_model()?,
        threads: settings.threads,
        isa: settings.isa.to_string(),
        activations: settings.activations.clone(),
        mmap: settings.mmap,
    })
}

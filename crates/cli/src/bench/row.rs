//! What one prompt at one width gave.

use super::Common;
use super::prompts::Encoded;
use super::spread::Spread;
use crate::output::{object, per_second, sha256, width_json};
use glimmer_engine::{DraftWidth, Generation, RoundRecord};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Decoding without a drafter.
pub const PLAIN: DraftWidth = DraftWidth::Fixed(1);

/// One continuation.
pub struct Run {
    pub generation: Generation,
    /// What its rounds took, without those of others between them: from its first token to its last.
    pub time: Duration,
    /// Processor time meanwhile, all threads added up.
    pub cpu: Option<Duration>,
}

/// A row: all continuations of one prompt at one width.
#[derive(Clone, Debug)]
pub struct Row {
    pub prompt: String,
    pub width: DraftWidth,
    framing: &'static str,
    prompt_tokens: usize,
    pub token_ids: Vec<u32>,
    finish: &'static str,
    /// Tokens per second after the first, each time.
    pub rates: Vec<f64>,
    /// Seconds of the processor for each of those tokens, by thread; of the clock where the system does not say.
    pub costs: Vec<f64>,
    prefill: Vec<f64>,
    pub rounds: Rounds,
    /// The first place where one of them has another token than the first of them, and that token.
    pub unsteady: Option<(usize, Option<u32>)>,
    /// The first place where it has another token than decoding plainly.
    pub differs: Option<usize>,
    /// How much faster than decoding plainly it is.
    pub speedup: Option<f64>,
}

/// What the rounds of all continuations did.
#[derive(Clone, Debug, Default)]
pub struct Rounds {
    count: usize,
    drafted: usize,
    emitted: usize,
    widths: BTreeMap<usize, usize>,
    /// By the place of a proposal in its round: how many were verified, and how many accepted.
    pub proposed: Vec<usize>,
    pub accepted: Vec<usize>,
    /// Seconds of each.
    observe: Vec<f64>,
    draft: Vec<f64>,
    verify: Vec<f64>,
}

impl Rounds {
    fn add(&mut self, round: &RoundRecord) {
        let proposals = round.proposals.len();
        self.count += 1;
        self.drafted += usize::from(proposals > 0);
        self.emitted += round.emitted;
        *self.widths.entry(round.width).or_default() += 1;
        if self.proposed.len() < proposals {
            self.proposed.resize(proposals, 0);
            self.accepted.resize(proposals, 0);
        }
        self.proposed[..proposals].iter_mut().for_each(|n| *n += 1);
        self.accepted[..round.accepted].iter_mut().for_each(|n| *n += 1);
        self.observe.push(round.trace.observe.time.as_secs_f64());
        self.draft.push(round.trace.draft.time.as_secs_f64());
        self.verify.push(round.trace.verify.time.as_secs_f64());
    }

    pub fn tokens_per_round(&self) -> Option<f64> {
        (self.count > 0).then(|| self.emitted as f64 / self.count as f64)
    }

    /// How many of the proposals at each place were accepted.
    pub fn acceptance(&self) -> Vec<f64> {
        self.accepted.iter().zip(&self.proposed).map(|(&accepted, &of)| accepted as f64 / of as f64).collect()
    }

    /// The mean time of a round, all of it: where widths take turns, each has had its share of whatever state the machine was in.
    pub fn seconds(&self) -> Option<f64> {
        let all: f64 = [&self.observe, &self.draft, &self.verify].into_iter().flatten().sum();
        (self.count > 0).then(|| all / self.count as f64)
    }

    fn json(&self) -> Value {
        let median = |samples: &[f64]| Spread::of(samples).map(|spread| 1e3 * spread.median);
        let widths = self.widths.iter().map(|(width, count)| (width.to_string(), json!(count)));
        json!({
            "rounds": self.count,
            "drafted_rounds": self.drafted,
            "rounds_by_width": Value::Object(widths.collect()),
            "tokens_per_round": self.tokens_per_round(),
            "proposed": self.proposed,
            "accepted": self.accepted,
            "acceptance": self.acceptance(),
            "round_ms": {
                "observe": median(&self.observe),
                "draft": median(&self.draft),
                "verify": median(&self.verify),
            },
        })
    }
}

impl Row {
    /// Of at least one continuation.
    pub fn new(prompt: &Encoded, width: DraftWidth, runs: &[Run], threads: usize) -> Self {
        let mut row = Self {
            prompt: prompt.name.clone(),
            width,
            framing: prompt.framing,
            prompt_tokens: prompt.ids.len(),
            token_ids: runs.first().map(|run| run.generation.token_ids.clone()).unwrap_or_default(),
            finish: runs.first().map_or("", |run| run.generation.finish.as_str()),
            rates: Vec::new(),
            costs: Vec::new(),
            prefill: Vec::new(),
            rounds: Rounds::default(),
            unsteady: None,
            differs: None,
            speedup: None,
        };
        for Run { generation, time, cpu } in runs {
            let (timings, tokens) = (&generation.timings, generation.token_ids.len().saturating_sub(1));
            row.rates.extend(per_second(tokens, *time));
            if tokens > 0 {
                let cpu = cpu.filter(|cpu| !cpu.is_zero()).map(|cpu| cpu / threads as u32);
                row.costs.push(cpu.unwrap_or(*time).as_secs_f64() / tokens as f64);
            }
            row.prefill.extend(per_second(timings.prefill.new, timings.prompt_time));
            generation.rounds.iter().for_each(|round| row.rounds.add(round));
            let differs = first_difference(&row.token_ids, &generation.token_ids);
            row.unsteady = row.unsteady.or(differs.map(|place| (place, generation.token_ids.get(place).copied())));
        }
        row
    }

    pub fn rate(&self) -> Option<Spread> {
        Spread::of(&self.rates)
    }

    /// Tokens of the prompt per second.
    pub fn prefill(&self) -> Option<Spread> {
        Spread::of(&self.prefill)
    }

    /// How the width is called.
    pub fn label(&self) -> String {
        label(self.width)
    }

    /// Everything there is to know.
    pub fn json(&self, common: &Common, settings: Value) -> Value {
        let spread = |samples: &[f64]| Spread::of(samples).map(|spread| spread.json());
        let mut all = object(json!({
            "prompt": self.prompt,
            "width": width_json(self.width),
            "drafter": self.width != PLAIN,
            "tok_s": spread(&self.rates),
            "tok_s_of_each": self.rates,
            "cpu_s_per_token_and_thread": spread(&self.costs),
            "speedup": self.speedup,
            "tokens_equal": self.differs.is_none(),
            "first_difference": self.differs,
        }));
        all.extend(object(self.rounds.json()));
        all.extend(object(json!({
            "framing": self.framing,
            "prompt_tokens": self.prompt_tokens,
            "prefill_tok_s": spread(&self.prefill),
            "finish_reason": self.finish,
            "token_ids": self.token_ids,
            "sha256": sha256(&self.token_ids),
        })));
        all.extend(object(common.json(settings)));
        Value::Object(all)
    }
}

/// How a width is called in tables and charts.
pub fn label(width: DraftWidth) -> String {
    if width == PLAIN { "plain".into() } else { width.to_string() }
}

/// The first place where two outputs are not the same, the end of the shorter one included.
pub fn first_difference(a: &[u32], b: &[u32]) -> Option<usize> {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    (same < a.len().max(b.len())).then_some(same)
}

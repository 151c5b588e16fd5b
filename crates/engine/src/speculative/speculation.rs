//! Whatever proposes for a sequence, what it has to be told, and the stages in which a batch of sequences comes to its proposals.

use super::ngram::{self, Lookup};
use super::width::{Controller, Estimate, Experience, Measured, Proposer, Stage};
use super::{Asked, Draft, DraftWidth, Drafter, Round};
use crate::prefix::{Continued, Observed};
use crate::sampling::Chain;
use glimmer_backend::Backend;
use glimmer_model::dflash::{DFlashContext, Seen};
use glimmer_model::muse::MuseText;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of tapped rows of a sequence that wait to be observed. Where they are more than the drafter looks back to, those of one that
/// is not asked again need never be.
const WAITING: usize = 8 << 20;
/// So many rows wait whatever they take, so that the observer's weights are read seldom while nothing is drafted.
const TOGETHER: usize = 32;

/// A drafter with weights, earlier text, both or neither, for one sequence.
pub(crate) struct Speculation<B: Backend> {
    drafter: Option<Companion<B>>,
    lookup: Option<Lookup>,
    controller: Controller,
    /// Whether the present generation drafts, so that the drafter has to observe.
    drafting: bool,
    /// The drafter gave something that nothing can be proposed from, or could not observe.
    failed: bool,
    /// What the user should be told of that, once.
    trouble: Option<String>,
    /// Tapped states (rows, taps * hidden) that were not observed yet, one behind the other, and where they begin: behind
    /// what the drafter has observed, or further where it would not look back to what is between.
    tapped: VecDeque<B::Tensor>,
    from: usize,
    rows: usize,
}

/// A drafter and what it remembers of the sequence.
struct Companion<B: Backend> {
    drafter: Arc<dyn Drafter<B>>,
    context: DFlashContext<B>,
}

/// A sequence whose round begins: `anchor`, its newest token, stands behind the `verified`.
pub(crate) struct Turn<'a, B: Backend> {
    pub speculation: &'a mut Speculation<B>,
    pub chain: &'a mut Chain,
    pub verified: &'a [u32],
    pub anchor: u32,
    pub width: DraftWidth,
}

/// What is to be verified, and how it came about.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proposed {
    pub tokens: Vec<u32>,
    pub trace: RoundTrace,
    /// Rows that the drafter is asked to draft; 0 where it is not asked.
    asked: usize,
}

/// How a round came about, and how long what took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoundTrace {
    /// Who proposed, if anybody did.
    pub proposer: Option<Proposer>,
    /// How sure it was of each proposal, also of those that were not verified.
    pub confidence: Vec<f64>,
    /// What the round was expected to give, where the width was chosen.
    pub estimate: Option<Estimate>,
    /// Showing the drafter what was verified before.
    pub observe: StageTrace,
    /// Making proposals.
    pub draft: StageTrace,
    /// The target's pass over the rows, and the draws.
    pub verify: StageTrace,
}

/// A stage of a round, which the sequences of a batch go through together: what is said here is of all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTrace {
    /// Those that took part.
    pub sequences: usize,
    /// Their rows.
    pub rows: usize,
    /// How long it took.
    pub time: Duration,
}

impl StageTrace {
    /// Its rows, and seconds.
    pub(crate) fn cost(self) -> Stage {
        (self.rows, self.time.as_secs_f64())
    }
}

/// What sequences that share a pass propose, and what the drafter's stages took.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proposals {
    /// Of each sequence.
    pub rounds: Vec<Proposed>,
    pub observe: StageTrace,
    pub draft: StageTrace,
}

/// What is to be verified in the next round of each sequence. Those that ask their drafter, which is the same for all, show it in one
/// pass what it has not seen, and have their blocks drafted in another.
pub(crate) fn propose<B: Backend>(b: &B, target: &MuseText<B>, turns: &mut [Turn<'_, B>]) -> Proposals {
    let company = turns.len();
    turns.iter_mut().for_each(|turn| turn.speculation.controller.join(company));
    let mut all: Vec<Proposed> = turns.iter_mut().map(Turn::plan).collect();
    let mut asking: Vec<_> = turns.iter_mut().zip(&mut all).filter(|(_, proposed)| proposed.asked > 0).collect();
    let observe = observe(b, &mut asking.iter_mut().map(|(turn, _)| &mut *turn.speculation).collect::<Vec<_>>());
    asking.iter_mut().for_each(|(_, proposed)| proposed.trace.observe = observe);
    asking.retain(|(turn, _)| !turn.speculation.failed);
    let draft = draft(b, target, &mut asking);
    turns.iter_mut().zip(&mut all).for_each(|(turn, proposed)| turn.cut(proposed));
    Proposals { rounds: all, observe, draft }
}

/// Shows the drafter what it has not seen of those sequences of which that has become much.
pub(crate) fn catch_up<'a, B: Backend>(b: &B, sequences: impl Iterator<Item = &'a mut Speculation<B>>) {
    observe(b, &mut sequences.filter(|sequence| sequence.is_due(b)).collect::<Vec<_>>());
}

/// Shows the drafter what it has not seen of these sequences.
fn observe<B: Backend>(b: &B, sequences: &mut [&mut Speculation<B>]) -> StageTrace {
    let started = Instant::now();
    let unseen: Vec<Option<(B::Tensor, usize)>> = sequences.iter_mut().map(|sequence| sequence.unseen(b)).collect();
    let (mut batch, mut drafter, mut rows) = (Vec::with_capacity(unseen.len()), None, 0);
    for (sequence, unseen) in sequences.iter_mut().zip(&unseen) {
        if let (Some(companion), Some((states, position))) = (&mut sequence.drafter, unseen) {
            rows += b.shape(states).0;
            drafter = Some(&companion.drafter);
            batch.push(Seen { context: &mut companion.context, states, position: *position });
        }
    }
    let Some(drafter) = drafter else { return StageTrace::default() };
    let given = drafter.observe(b, &mut batch);
    let shown = sequences.iter_mut().zip(&unseen).filter(|(_, unseen)| unseen.is_some());
    for ((sequence, _), given) in shown.zip(&given) {
        if let Err(error) = given {
            sequence.fail(error);
        }
    }
    StageTrace { sequences: given.len(), rows, time: started.elapsed() }
}

/// Has the drafter propose for these.
fn draft<B: Backend>(b: &B, target: &MuseText<B>, asking: &mut [(&mut Turn<'_, B>, &mut Proposed)]) -> StageTrace {
    let started = Instant::now();
    let (mut batch, mut drafter, mut rows) = (Vec::with_capacity(asking.len()), None, 0);
    for (turn, proposed) in &mut *asking {
        if let Some(companion) = &mut turn.speculation.drafter {
            debug_assert_eq!(companion.context.end(), turn.verified.len(), "the anchor follows what was observed");
            rows += proposed.asked;
            drafter = Some(&companion.drafter);
            let (anchor, width) = (turn.anchor, proposed.asked);
            batch.push(Asked { context: &mut companion.context, chain: turn.chain, anchor, width });
        }
    }
    let Some(drafter) = drafter else { return StageTrace::default() };
    let drafts = drafter.draft(b, target, &mut batch);
    let stage = StageTrace { sequences: drafts.len(), rows, time: started.elapsed() };
    for ((turn, proposed), draft) in asking.iter_mut().zip(drafts) {
        proposed.trace.draft = stage;
        match draft {
            Ok(draft) => proposed.take(Proposer::Drafter, draft),
            Err(error) => turn.speculation.fail(&error),
        }
    }
    stage
}

impl<B: Backend> Turn<'_, B> {
    /// Looks up what is to be proposed, or says how many rows the drafter is to draft.
    fn plan(&mut self) -> Proposed {
        let (speculation, mut proposed) = (&mut *self.speculation, Proposed::default());
        if !speculation.drafting || self.width == DraftWidth::Fixed(1) {
            return proposed;
        }
        let started = Instant::now();
        let found = speculation.look_up(self.verified, self.anchor, self.width);
        if found.tokens.is_empty() {
            proposed.asked = speculation.plan(self.width);
        } else {
            let rows = found.tokens.len() + 1;
            proposed.take(Proposer::Lookup, found);
            proposed.trace.draft = StageTrace { sequences: 1, rows, time: started.elapsed() };
        }
        proposed
    }

    /// Leaves what is worth to be verified of what was proposed.
    fn cut(&mut self, proposed: &mut Proposed) {
        if let (DraftWidth::Auto, Some(proposer)) = (self.width, proposed.trace.proposer) {
            let (rows, estimate) = self.speculation.controller.cut(proposer, &proposed.trace.confidence);
            proposed.tokens.truncate(rows - 1);
            proposed.trace.estimate = Some(estimate);
        }
    }
}

impl Proposed {
    fn take(&mut self, proposer: Proposer, draft: Draft) {
        self.trace.proposer = Some(proposer);
        (self.tokens, self.trace.confidence) = (draft.tokens, draft.confidence);
    }
}

impl<B: Backend> Speculation<B> {
    /// Of a drafter, and of earlier text where `lookup` says so.
    pub fn new(drafter: Option<Arc<dyn Drafter<B>>>, lookup: bool, experience: &Arc<Experience>) -> Speculation<B> {
        let block = drafter.as_ref().map_or(1, |drafter| drafter.block_size());
        let drafter = drafter.map(|drafter| Companion { context: drafter.context(), drafter });
        let controller = Controller::new(Arc::clone(experience), block);
        let lookup = lookup.then(Lookup::default);
        let (drafting, failed, trouble, tapped, from, rows) = Default::default();
        Self { drafter, lookup, controller, drafting, failed, trouble, tapped, from, rows }
    }

    /// Begins a generation, which drafts or does not.
    pub fn start(&mut self, drafting: bool) {
        (self.drafting, self.failed) = (drafting, false);
        self.controller.restart();
    }

    /// The layers that have to be tapped for the drafter; `None` where nobody observes.
    pub fn taps(&self) -> Option<&[usize]> {
        self.asked().map(|drafter| drafter.taps())
    }

    /// How many of the last positions have to be observed.
    pub fn reach(&self) -> usize {
        self.drafter.as_ref().map_or(0, |companion| companion.drafter.reach())
    }

    fn asked(&self) -> Option<&dyn Drafter<B>> {
        let companion = self.drafter.as_ref().filter(|_| self.drafting && !self.failed);
        companion.map(|companion| &*companion.drafter)
    }

    /// Takes tapped states of verified positions from `position` on. The drafter observes them when it drafts, or when they
    /// have become many.
    pub fn take(&mut self, b: &B, states: B::Tensor, position: usize) {
        if self.from + self.rows != position {
            observe(b, &mut [self]);
            self.from = position;
        }
        self.rows += b.shape(&states).0;
        self.tapped.push_back(states);
        // What the drafter will not look back to; who goes back behind it later has a shorter context for a while.
        while let Some(first) = self.tapped.front()
            && self.rows - b.shape(first).0 >= self.reach()
        {
            let rows = b.shape(first).0;
            (self.from, self.rows) = (self.from + rows, self.rows - rows);
            self.tapped.pop_front();
        }
    }

    /// Whether what waits takes too much memory, or a pass over a prompt gave all that the drafter looks back to: together they
    /// take least, and the first draft need not wait for them.
    fn is_due(&self, b: &B) -> bool {
        let Some(last) = self.tapped.back() else { return false };
        let (rows, cols) = b.shape(last);
        let most = (WAITING / (size_of::<f32>() * cols)).max(TOGETHER);
        self.rows >= most || rows >= self.reach().max(TOGETHER)
    }

    /// What the drafter has not seen, which it is about to, and where that begins.
    fn unseen(&mut self, b: &B) -> Option<(B::Tensor, usize)> {
        let (position, tapped) = (self.from, std::mem::take(&mut self.tapped));
        self.from += std::mem::take(&mut self.rows);
        let there = self.drafter.is_some() && !tapped.is_empty();
        there.then(|| (b.concat_rows(&tapped.iter().collect::<Vec<_>>()), position))
    }

    /// A drafter cannot change the output, so it cannot end it either.
    fn fail(&mut self, error: &impl std::fmt::Display) {
        self.failed = true;
        self.trouble = Some(format!("the drafter is off: {error}"));
    }

    /// What the user should be told, once.
    pub fn trouble(&mut self) -> Option<String> {
        self.trouble.take()
    }

    fn look_up(&mut self, verified: &[u32], anchor: u32, width: DraftWidth) -> Draft {
        let shortest = if self.asked().is_some() { ngram::LONG } else { ngram::SHORTEST };
        let rows = match width {
            DraftWidth::Auto => ngram::BLOCK,
            DraftWidth::Fixed(rows) => rows,
        };
        self.lookup.as_mut().map(|lookup| lookup.draft(verified, anchor, rows - 1, shortest)).unwrap_or_default()
    }

    /// How many rows the drafter is to draft, if it is worth it; 0 where it is not.
    fn plan(&mut self, width: DraftWidth) -> usize {
        let Some(drafter) = self.asked() else { return 0 };
        let rows = match width {
            DraftWidth::Fixed(rows) => rows.min(drafter.block_size()),
            DraftWidth::Auto => self.controller.plan(self.rows),
        };
        if rows == 1 { 0 } else { rows }
    }

    /// Takes in what came of a round.
    pub fn learn(&mut self, width: DraftWidth, round: &Round) {
        let trace = &round.trace;
        if !self.drafting || width != DraftWidth::Auto {
            return;
        }
        self.controller.learn(&Measured {
            proposer: trace.proposer,
            confidence: &trace.confidence,
            rows: round.width,
            accepted: round.accepted,
        });
    }

    /// Forgets positions from `len` on.
    pub fn truncate(&mut self, b: &B, len: usize) {
        while self.from + self.rows > len {
            let Some(last) = self.tapped.pop_back() else {
                (self.from, self.rows) = (len, 0);
                break;
            };
            let start = self.from + self.rows - b.shape(&last).0;
            self.rows = start - self.from;
            if start < len {
                self.rows += len - start;
                self.tapped.push_back(b.rows(&last, 0..len - start));
            }
        }
        if let Some(companion) = &mut self.drafter {
            companion.context.truncate(len);
            if self.rows == 0 && companion.context.end() < self.from {
                // What is between was not kept.
                companion.context.adopt(self.from, self.from, Vec::new());
            }
        }
        if let Some(lookup) = &mut self.lookup {
            lookup.truncate(len);
        }
    }

    /// The drafter's context, brought up to what was verified.
    pub fn context(&mut self, b: &B) -> Option<Observed<'_, B>> {
        observe(b, &mut [self]);
        let context = &self.drafter.as_ref().filter(|_| !self.failed)?.context;
        Some(Observed { layers: context.layers(), held: context.held() })
    }

    /// Goes on from the first `len` positions of another sequence, with what of the drafter's context is there.
    pub fn adopt(&mut self, len: usize, from: Continued<B>) {
        self.reset();
        (self.from, self.rows) = (len, 0);
        if let Some(companion) = &mut self.drafter {
            companion.context.adopt(len, from.start, from.pages);
        }
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.tapped.clear();
        (self.from, self.rows) = (0, 0);
        if let Some(companion) = &mut self.drafter {
            companion.context.reset();
        }
        if let Some(lookup) = &mut self.lookup {
            lookup.truncate(0);
        }
    }
}

//! Whatever proposes for one sequence, and what it has to be told.

use super::ngram::{self, Lookup};
use super::width::{Controller, Estimate, Experience, Measured, Proposer};
use super::{Draft, DraftWidth, Drafter};
use crate::prefix::{Continued, Observed};
use crate::sampling::Chain;
use glimmer_backend::Backend;
use glimmer_model::muse::MuseText;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tapped rows that are observed together, at the latest: few enough to be kept, and enough that the observer's weights are
/// read seldom while nothing is drafted.
const TOGETHER: usize = 32;

/// A drafter with weights, earlier text, both or neither, for one sequence.
pub(crate) struct Speculation<B: Backend> {
    drafter: Option<Box<dyn Drafter<B>>>,
    /// The most rows that it drafts.
    block: usize,
    lookup: Option<Lookup>,
    controller: Controller,
    /// Whether the present generation drafts, so that the drafter has to observe.
    drafting: bool,
    /// The drafter gave something that nothing can be proposed from, or could not observe.
    failed: bool,
    /// What the user should be told of that, once.
    trouble: Option<String>,
    /// Tapped states (rows, taps * hidden) that were not observed yet, one behind the other, and where they begin.
    tapped: Vec<B::Tensor>,
    from: usize,
    rows: usize,
}

/// Where a round begins: `anchor`, the newest token, stands behind the `verified`.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a, B: Backend> {
    pub backend: &'a B,
    pub target: &'a MuseText<B>,
    pub verified: &'a [u32],
    pub anchor: u32,
}

/// What is to be verified, and how it came about.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proposed {
    pub tokens: Vec<u32>,
    pub trace: RoundTrace,
    /// Rows that were observed.
    observed: usize,
    pub notice: Option<String>,
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
    pub observe: Duration,
    /// Making proposals.
    pub draft: Duration,
    /// The target's pass over the rows, and the draws.
    pub verify: Duration,
}

impl<B: Backend> Speculation<B> {
    /// Of a drafter that drafts at most `block` rows, and of earlier text where `lookup` says so.
    pub fn new(
        drafter: Option<(Box<dyn Drafter<B>>, usize)>,
        lookup: bool,
        experience: &Arc<Experience>,
    ) -> Speculation<B> {
        let (drafter, block) = drafter.map_or((None, 1), |(drafter, block)| (Some(drafter), block));
        let controller = Controller::new(Arc::clone(experience), block);
        let lookup = lookup.then(Lookup::default);
        let (drafting, failed, trouble, tapped, from, rows) = Default::default();
        Self { drafter, block, lookup, controller, drafting, failed, trouble, tapped, from, rows }
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
        self.drafter.as_ref().map_or(0, |drafter| drafter.reach())
    }

    fn asked(&self) -> Option<&dyn Drafter<B>> {
        self.drafter.as_deref().filter(|_| self.drafting && !self.failed)
    }

    /// Takes tapped states of verified positions from `position` on. The drafter observes them when it drafts, or when they
    /// have become many.
    pub fn take(&mut self, b: &B, states: B::Tensor, position: usize) {
        if self.from + self.rows != position {
            self.observe(b);
            self.from = position;
        }
        self.rows += b.shape(&states).0;
        self.tapped.push(states);
        if self.rows >= TOGETHER {
            self.observe(b);
        }
    }

    /// Shows the drafter what it has not seen; the number of rows.
    fn observe(&mut self, b: &B) -> usize {
        let rows = std::mem::take(&mut self.rows);
        let tapped = std::mem::take(&mut self.tapped);
        if let (Some(drafter), false) = (&mut self.drafter, tapped.is_empty()) {
            let states = b.concat_rows(&tapped.iter().collect::<Vec<_>>());
            if let Err(error) = drafter.observe(b, &states, self.from) {
                self.fail(&error);
            }
        }
        self.from += rows;
        rows
    }

    /// A drafter cannot change the output, so it cannot end it either.
    fn fail(&mut self, error: &impl std::fmt::Display) {
        self.failed = true;
        self.trouble = Some(format!("the drafter is off: {error}"));
    }

    /// What is to be verified in a round.
    pub fn propose(&mut self, at: Place<'_, B>, width: DraftWidth, chain: &mut Chain) -> Proposed {
        let mut proposed = self.draft(at, width, chain);
        proposed.notice = self.trouble.take();
        proposed
    }

    fn draft(&mut self, at: Place<'_, B>, width: DraftWidth, chain: &mut Chain) -> Proposed {
        let mut proposed = Proposed::default();
        if !self.drafting || width == DraftWidth::Fixed(1) {
            return proposed;
        }
        let started = Instant::now();
        let mut draft = self.look_up(at.verified, at.anchor, width);
        proposed.trace.proposer = (!draft.tokens.is_empty()).then_some(Proposer::Lookup);
        proposed.trace.draft = started.elapsed();
        if draft.tokens.is_empty() {
            draft = self.ask(at, width, chain, &mut proposed);
        }
        proposed.tokens = draft.tokens;
        proposed.trace.confidence = draft.confidence;
        if let (DraftWidth::Auto, Some(proposer)) = (width, proposed.trace.proposer) {
            let (rows, estimate) = self.controller.cut(proposer, &proposed.trace.confidence);
            proposed.tokens.truncate(rows - 1);
            proposed.trace.estimate = Some(estimate);
        }
        proposed
    }

    fn look_up(&mut self, verified: &[u32], anchor: u32, width: DraftWidth) -> Draft {
        let shortest = if self.asked().is_some() { ngram::LONG } else { ngram::SHORTEST };
        let rows = match width {
            DraftWidth::Auto => ngram::BLOCK,
            DraftWidth::Fixed(rows) => rows,
        };
        self.lookup.as_mut().map(|lookup| lookup.draft(verified, anchor, rows - 1, shortest)).unwrap_or_default()
    }

    /// Asks the drafter, if it is worth it.
    fn ask(&mut self, at: Place<'_, B>, width: DraftWidth, chain: &mut Chain, proposed: &mut Proposed) -> Draft {
        if self.asked().is_none() {
            return Draft::default();
        }
        let rows = match width {
            DraftWidth::Auto => self.controller.plan(),
            DraftWidth::Fixed(rows) => rows.min(self.block),
        };
        let started = Instant::now();
        if rows == 1 {
            return Draft::default();
        }
        proposed.observed = self.observe(at.backend);
        proposed.trace.observe = started.elapsed();
        let Some(drafter) = self.drafter.as_mut().filter(|_| !self.failed) else { return Draft::default() };
        let started = Instant::now();
        let draft = drafter.draft(at.backend, at.target, at.anchor, at.verified.len(), rows, chain);
        proposed.trace.draft += started.elapsed();
        match draft {
            Ok(draft) => {
                proposed.trace.proposer = Some(Proposer::Drafter);
                draft
            }
            Err(error) => {
                self.fail(&error);
                Draft::default()
            }
        }
    }

    /// Takes in what came of proposals: so many were accepted.
    pub fn learn(&mut self, width: DraftWidth, proposed: &Proposed, accepted: usize) {
        if !self.drafting || width != DraftWidth::Auto {
            return;
        }
        let Proposed { tokens, trace, observed, .. } = proposed;
        self.controller.learn(&Measured {
            proposer: trace.proposer,
            confidence: &trace.confidence,
            rows: tokens.len() + 1,
            accepted,
            observed: *observed,
            observe: trace.observe.as_secs_f64(),
            draft: trace.draft.as_secs_f64(),
            verify: trace.verify.as_secs_f64(),
        });
    }

    /// Forgets positions from `len` on.
    pub fn truncate(&mut self, b: &B, len: usize) {
        while self.from + self.rows > len {
            let Some(last) = self.tapped.pop() else {
                (self.from, self.rows) = (len, 0);
                break;
            };
            let start = self.from + self.rows - b.shape(&last).0;
            self.rows = start - self.from;
            if start < len {
                self.rows += len - start;
                self.tapped.push(b.rows(&last, 0..len - start));
            }
        }
        if let Some(drafter) = &mut self.drafter {
            drafter.truncate(len);
        }
        if let Some(lookup) = &mut self.lookup {
            lookup.truncate(len);
        }
    }

    /// The drafter's context, brought up to what was verified.
    pub fn context(&mut self, b: &B) -> Option<Observed<'_, B>> {
        self.observe(b);
        self.drafter.as_ref().filter(|_| !self.failed)?.context()
    }

    /// Goes on from the first `len` positions of another sequence, with what of the drafter's context is there.
    pub fn adopt(&mut self, len: usize, from: Continued<B>) {
        self.reset();
        (self.from, self.rows) = (len, 0);
        if let Some(drafter) = &mut self.drafter {
            drafter.adopt(len, from);
        }
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.tapped.clear();
        (self.from, self.rows) = (0, 0);
        if let Some(drafter) = &mut self.drafter {
            drafter.reset();
        }
        if let Some(lookup) = &mut self.lookup {
            lookup.truncate(0);
        }
    }
}

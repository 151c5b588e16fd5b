//! The width of a round by what pays: the one with the most tokens per second to be expected.
//!
//! A [`Controller`] belongs to a sequence. It decides how many rows are drafted ([`plan`](Controller::plan)) and, once the
//! drafter has said how sure it is, how many of them are verified ([`cut`](Controller::cut)); what came of it teaches it
//! ([`learn`](Controller::learn)). It has no clock: times are told. What passes cost, and how sequences are as a rule, is the
//! [`Experience`] of an engine.
//!
//! Sequences whose rounds share their passes ([`join`](Controller::join)) pay shares of them: each decides as if all did as it does, and
//! a pass of so many times its rows were paid for by so many.

mod cost;
mod odds;

use cost::{Costs, Curve};
use odds::{Logit, Odds, Place, Prior};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Drafts that plans are tried on.
const RECENT: usize = 24;
/// Rounds without a draft before an attempt, at least.
const WAIT: usize = 8;
/// Proposals that a round without a draft counts for, when it comes to how sure the odds still are.
const IDLE: usize = 5;
/// In one of so many rounds with proposals, costs that are little known are hoped to be low.
const HOPE: usize = 8;
/// How far odds are thought to be above what they seem, in standard deviations: what is tried is learned about, what is not
/// stays as it seems. In a round, and where it is decided whether a drafter that does not seem to pay does.
const BELIEF: Belief = Belief { round: 0.25, off: 1.0 };
/// The share of the time that attempts may cost while drafting is off.
const ATTEMPTS: f64 = 0.02;
/// How fast the experience follows a sequence, by the round.
const FOLLOW: f64 = 0.05;
/// How sure a drafter is thought to be that was never asked.
const UNKNOWN: f64 = 0.7;

struct Belief {
    round: f64,
    off: f64,
}

/// Who proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proposer {
    /// Earlier text, at no cost.
    Lookup,
    /// A drafter with weights.
    Drafter,
}

/// What a round was expected to give.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Tokens.
    pub tokens: f64,
    /// Seconds: drafting, verification, observation.
    pub seconds: f64,
    /// Seconds of a round that drafts nothing.
    pub plain: f64,
}

/// Rows that go through a stage together, and seconds. Without rows, nothing was measured.
pub type Stage = (usize, f64);

/// What a round did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured<'a> {
    /// Who proposed, if anybody did.
    pub proposer: Option<Proposer>,
    /// How sure it was of each proposal, of those that were not verified too.
    pub confidence: &'a [f64],
    /// Rows that were verified.
    pub rows: usize,
    /// Proposals that were accepted.
    pub accepted: usize,
}

/// When the drafter is asked that does not seem to pay. The next sequence goes on with it: many short ones try as often as one long one.
#[derive(Clone, Copy)]
struct Pause {
    /// Rounds since the drafter was asked, and after how many it is.
    idle: usize,
    wait: usize,
    /// The last attempt paid.
    paid: bool,
    /// The last attempt was verified.
    verified: bool,
}

/// What the sequences of an engine have taught.
pub struct Experience(Mutex<Learned>);

struct Learned {
    /// Passes of which a controller chose something.
    round: u64,
    /// The most rows of a round.
    widest: usize,
    verify: Costs,
    draft: Costs,
    observe: Costs,
    odds: [Prior; 2],
    pause: Pause,
    /// How sure the drafter is at each place.
    typical: Vec<f64>,
}

impl Experience {
    /// None yet, of rounds of at most `widest` rows.
    pub fn new(widest: usize) -> Self {
        let (verify, draft, observe) = Default::default();
        let pause = Pause { idle: 0, wait: WAIT, paid: false, verified: true };
        Self(Mutex::new(Learned {
            round: 0,
            widest,
            verify,
            draft,
            observe,
            odds: Default::default(),
            pause,
            typical: Vec::new(),
        }))
    }

    /// Begins with what verifying and drafting took elsewhere: rows and the seconds of both. What is measured from now on replaces it.
    pub fn believe(&self, costs: impl Iterator<Item = (usize, f64, f64)>) {
        let mut learned = self.look();
        for (rows, verify, draft) in costs {
            learned.verify.believe(rows, verify);
            if rows > 1 {
                learned.draft.believe(rows, draft);
            }
        }
    }

    /// Takes in what the stages of a pass took, of all sequences that shared it. What is known grows old by the passes in which
    /// widths were `chosen`, since the others tell little of them.
    pub fn measured(&self, chosen: bool, observe: Stage, draft: Stage, verify: Stage) {
        let mut learned = self.look();
        let learned = &mut *learned;
        learned.round += u64::from(chosen);
        let stages = [(&mut learned.observe, observe), (&mut learned.draft, draft), (&mut learned.verify, verify)];
        for (costs, (rows, seconds)) in stages.into_iter().filter(|(_, (rows, _))| *rows > 0) {
            costs.add(rows, seconds, learned.round);
        }
    }

    /// Whether a pass over so many rows was measured.
    #[cfg(test)]
    pub fn has_measured(&self, rows: usize) -> bool {
        !self.look().verify.due(rows, 0)
    }

    fn look(&self) -> MutexGuard<'_, Learned> {
        // Whoever panicked with it left it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What passes cost at some moment.
struct Prices {
    /// Little known odds are thought to be high, by so many standard deviations.
    belief: f64,
    verify: Curve,
    draft: Curve,
    observe: Curve,
}

impl Learned {
    /// A sequence ended.
    fn end(&mut self, odds: &[Odds; 2]) {
        self.odds.iter_mut().zip(odds).for_each(|(prior, odds)| prior.end(odds));
    }

    /// What passes cost each of `company` sequences; with `hope`, costs that are little known are thought to be low.
    fn prices(&self, company: usize, hope: bool) -> Prices {
        let curve = |of: &Costs| of.curve(self.round, f64::from(u8::from(hope)), self.widest, company);
        let [verify, draft, observe] = [&self.verify, &self.draft, &self.observe].map(curve);
        Prices { belief: BELIEF.round, verify, draft, observe }
    }
}

impl Prices {
    /// Verifying `rows`, of which `tokens` are expected to stay.
    fn verified(&self, rows: usize, tokens: f64) -> f64 {
        self.verify.at(rows as f64) + self.observe.at(tokens)
    }

    fn plain(&self) -> f64 {
        self.verify.at(1.0)
    }
}

/// Decides the widths of one sequence's rounds.
pub struct Controller {
    experience: Arc<Experience>,
    /// The most rows that the drafter drafts; 1 where there is none.
    block: usize,
    /// Sequences that share a pass, this one among them.
    company: usize,
    odds: [Odds; 2],
    /// How sure each of the last drafts was, by who made it.
    recent: [VecDeque<Vec<Logit>>; 2],
    /// Tokens per second that a second is worth.
    rate: f64,
    /// The drafter is not asked.
    off: bool,
    /// It was not, until the present round.
    attempt: bool,
    pause: Pause,
    /// Rounds with proposals, and whether costs are hoped to be low in the present one.
    rounds: usize,
    hope: bool,
    /// What observing before the present draft takes, in rounds of plain decoding.
    shown: f64,
}

impl Controller {
    /// For a drafter of at most `block` rows.
    pub fn new(experience: Arc<Experience>, block: usize) -> Self {
        let (odds, pause) = {
            let learned = experience.look();
            (learned.odds.map(|prior| prior.odds()), learned.pause)
        };
        let (recent, rate, off, attempt, rounds, hope, shown) = Default::default();
        let mut new =
            Self { experience, block, company: 1, odds, recent, rate, off, attempt, pause, rounds, hope, shown };
        new.restart();
        new
    }

    /// For the next sequence, which need not be like the last.
    pub fn restart(&mut self) {
        let mut learned = self.experience.look();
        learned.end(&self.odds);
        self.odds = learned.odds.map(|prior| prior.odds());
        let typical = if learned.typical.is_empty() { vec![UNKNOWN] } else { learned.typical.clone() };
        self.recent = [VecDeque::new(), VecDeque::from([logits(&typical)])];
        (self.off, self.pause) = (false, learned.pause);
    }

    /// So many sequences share the next pass, this one among them.
    pub fn join(&mut self, company: usize) {
        self.company = company.max(1);
    }

    /// How many rows the drafter drafts in the next round, for which it has to observe `unseen` rows first; 1 where it is not asked.
    pub fn plan(&mut self, unseen: usize) -> usize {
        let experience = Arc::clone(&self.experience);
        let learned = experience.look();
        // Nothing can be compared before plain decoding was measured, and with what it took long ago. In company others may draft all
        // the time.
        let due = match self.company {
            1 => learned.verify.due(1, learned.round),
            _ => learned.verify.widest() == 0,
        };
        if self.block < 2 || due {
            return 1;
        }
        if self.off && self.pause.idle < self.pause.wait {
            return 1;
        }
        self.attempt = self.off;
        let belief = if self.attempt { BELIEF.off } else { BELIEF.round };
        let prices = Prices { belief, ..learned.prices(self.company, false) };
        let rates = self.rates(Proposer::Drafter, &prices);
        self.rate = rates.iter().copied().fold(0.0, f64::max);
        self.off = self.rate <= rates[1];
        if !self.off {
            self.pause.wait = WAIT;
        } else if self.pause.idle < self.pause.wait {
            return 1;
        }
        self.shown = learned.observe.about(unseen * self.company) / self.company as f64 / prices.plain();
        self.hope = self.off || self.rounds.is_multiple_of(HOPE);
        let hoped = self.hope.then(|| {
            let prices = Prices { belief, ..learned.prices(self.company, true) };
            self.rates(Proposer::Drafter, &prices)
        });
        let rows = best(hoped.as_ref().unwrap_or(&rates), 2).min(next_step(&learned.draft, self.company));
        if !self.off {
            return rows;
        }
        // In rounds of plain decoding, what the attempt is expected to lose.
        let takes = (prices.draft.at(rows as f64) + prices.verify.at(rows as f64)) / prices.plain();
        let lost = takes * (1.0 - rates[rows] / rates[1]);
        if self.pause.idle < rest(lost + self.shown) {
            // Others have other rows to show, which is looked at again soon.
            let wait = rest(lost);
            self.pause.wait = if self.pause.idle < wait { wait } else { self.pause.idle + WAIT };
            return 1;
        }
        self.odds[Proposer::Drafter as usize].forget((IDLE * self.pause.idle) as f64);
        rows
    }

    /// How many rows of a draft are verified.
    pub fn cut(&mut self, proposer: Proposer, confidence: &[f64]) -> (usize, Estimate) {
        let experience = Arc::clone(&self.experience);
        let learned = experience.look();
        if proposer == Proposer::Lookup {
            self.hope = self.rounds.is_multiple_of(HOPE);
        }
        self.rounds += 1;
        let prices = learned.prices(self.company, self.hope);
        let (rate, draft) = match proposer {
            Proposer::Drafter => (self.rate, prices.draft.at(confidence.len() as f64 + 1.0)),
            Proposer::Lookup => {
                let looked_up = self.rates(Proposer::Lookup, &prices);
                (looked_up.into_iter().fold(self.rate, f64::max), 0.0)
            }
        };
        let most = match learned.verify.widest() > 0 {
            true => next_step(&learned.verify, self.company),
            false => 1,
        };
        // Attempts that are never verified would teach nothing.
        let least = match proposer == Proposer::Drafter && self.attempt && !self.pause.verified {
            true => most.min(confidence.len() + 1),
            false => 1,
        };
        let mut best = Best::default();
        let confidence = logits(confidence);
        let places = self.places(proposer, confidence.len());
        let expected = expected(&places, confidence.iter(), prices.belief);
        for (rows, tokens) in (1..=most).zip(expected).skip(least - 1) {
            best.offer(rows, tokens, prices.verified(rows, tokens), rate);
        }
        let estimate = Estimate { tokens: best.tokens, seconds: best.seconds + draft, plain: prices.plain() };
        (best.rows, estimate)
    }

    /// Takes in what a round did, after what its pass took.
    pub fn learn(&mut self, round: &Measured<'_>) {
        let experience = Arc::clone(&self.experience);
        let mut learned = experience.look();
        let learned = &mut *learned;
        if round.proposer != Some(Proposer::Lookup) {
            self.remember(Proposer::Lookup, &[]);
        }
        if let Some(proposer) = round.proposer {
            let at = proposer as usize;
            for (i, &confidence) in round.confidence.iter().enumerate().take(round.rows - 1).take(round.accepted + 1) {
                self.odds[at].learn(Logit::of(confidence), i + 1, i < round.accepted);
            }
            learned.odds[at].follow(&self.odds[at], FOLLOW);
            self.remember(proposer, round.confidence);
        }
        match round.proposer {
            Some(Proposer::Drafter) => self.drafted(learned, round),
            _ => self.pause.idle += 1,
        }
        learned.pause = self.pause;
    }

    fn drafted(&mut self, learned: &mut Learned, round: &Measured<'_>) {
        for (i, &confidence) in round.confidence.iter().enumerate() {
            match learned.typical.get_mut(i) {
                Some(typical) => *typical += FOLLOW * (confidence - *typical),
                None => learned.typical.push(confidence),
            }
        }
        if !self.attempt && !self.off {
            self.pause.idle = 0;
            return;
        }
        self.pause.verified = round.rows > 1;
        // Not what this one took: it may have been disturbed.
        let prices = learned.prices(self.company, false);
        let rows = round.confidence.len() + 1;
        let tokens = (round.accepted + 1) as f64;
        let lost = (prices.draft.at(rows as f64) + prices.verified(round.rows, tokens)) / prices.plain() - tokens;
        let wait = WAIT.max(rest(lost + self.shown));
        let pause = &mut self.pause;
        // An attempt that paid is followed by another at once.
        match lost > 0.0 {
            true if pause.paid => (pause.idle, pause.wait, pause.paid) = (0, WAIT, false),
            true => (pause.idle, pause.wait) = (0, wait),
            false => pause.paid = true,
        }
    }

    fn remember(&mut self, proposer: Proposer, confidence: &[f64]) {
        let recent = &mut self.recent[proposer as usize];
        if recent.len() == RECENT {
            recent.pop_front();
        }
        recent.push_back(logits(confidence));
    }

    /// The odds at each of so many places.
    fn places(&self, proposer: Proposer, count: usize) -> Vec<Place> {
        let odds = &self.odds[proposer as usize];
        (1..=count).map(|place| odds.place(place)).collect()
    }

    /// Tokens per second by the rows that are drafted, had the last drafts been so wide: each verified as far as pays,
    /// where a second is worth what the best width makes of it. At 1, without drafts.
    fn rates(&self, proposer: Proposer, prices: &Prices) -> Vec<f64> {
        let most = match proposer {
            Proposer::Drafter => self.block,
            Proposer::Lookup => super::ngram::BLOCK,
        };
        let places = self.places(proposer, most - 1);
        // Of each of the last drafts, tokens and seconds by the rows that are verified.
        let drafts: Vec<Vec<(f64, f64)>> = self.recent[proposer as usize]
            .iter()
            .map(|confidence| {
                // What a narrow draft would have gone on with is not known.
                let rest = match (proposer, confidence.last()) {
                    (Proposer::Drafter, Some(last)) => vec![*last; (most - 1).saturating_sub(confidence.len())],
                    _ => Vec::new(),
                };
                let tokens = expected(&places, confidence.iter().chain(&rest), prices.belief);
                (1..).zip(tokens).map(|(rows, tokens)| (tokens, prices.verified(rows, tokens))).collect()
            })
            .collect();
        let plain = 1.0 / prices.plain().max(f64::MIN_POSITIVE);
        let (mut rates, mut worth) = (Vec::new(), plain);
        // The worth of a second and the best widths depend on each other; they settle at once.
        for _ in 0..3 {
            let mut sums = vec![(0.0, 0.0); most + 1];
            for draft in &drafts {
                let mut best = Best::default();
                for (rows, sum) in sums.iter_mut().enumerate().skip(1) {
                    if let Some(&(tokens, seconds)) = draft.get(rows - 1) {
                        best.offer(rows, tokens, seconds, worth);
                    }
                    *sum = (sum.0 + best.tokens, sum.1 + best.seconds);
                }
            }
            let drafted = |rows: usize| match proposer {
                Proposer::Drafter => drafts.len() as f64 * prices.draft.at(rows as f64),
                Proposer::Lookup => 0.0,
            };
            let rate = |(rows, &(tokens, seconds)): (usize, &(f64, f64))| match seconds > 0.0 {
                true => tokens / (seconds + drafted(rows)),
                false => 0.0,
            };
            rates = sums.iter().enumerate().map(rate).collect();
            rates[1] = plain;
            let best = rates.iter().copied().fold(0.0, f64::max);
            if best == worth {
                break;
            }
            worth = best;
        }
        rates
    }
}

/// The tokens to be expected of 1, 2, ... rows.
fn expected<'a>(
    places: &[Place],
    confidence: impl Iterator<Item = &'a Logit>,
    belief: f64,
) -> impl Iterator<Item = f64> {
    let odds = places.iter().zip(confidence).map(move |(place, &confidence)| place.odds(confidence, belief));
    let survives = odds.scan(1.0, |survives, odds| {
        *survives *= odds;
        Some(*survives)
    });
    std::iter::once(1.0).chain(survives).scan(0.0, |tokens, more| {
        *tokens += more;
        Some(*tokens)
    })
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.experience.look().end(&self.odds);
    }
}

/// The rows that are worth the most.
#[derive(Default)]
struct Best {
    rows: usize,
    tokens: f64,
    seconds: f64,
    worth: f64,
}

impl Best {
    fn offer(&mut self, rows: usize, tokens: f64, seconds: f64, rate: f64) {
        let worth = tokens - rate * seconds;
        if self.rows == 0 || worth > self.worth {
            *self = Self { rows, tokens, seconds, worth };
        }
    }
}

fn logits(confidence: &[f64]) -> Vec<Logit> {
    confidence.iter().copied().map(Logit::of).collect()
}

/// The rounds after which attempts may have cost so many of them.
fn rest(lost: f64) -> usize {
    (lost / ATTEMPTS) as usize
}

/// The number of rows, at least so many, of the highest rate; the fewer of two.
fn best(rates: &[f64], least: usize) -> usize {
    (least..rates.len()).max_by(|&a, &b| rates[a].total_cmp(&rates[b]).then(b.cmp(&a))).unwrap_or(least)
}

/// The most rows that are tried next by each in company: a first attempt should not be dear.
fn next_step(costs: &Costs, company: usize) -> usize {
    2 * (costs.widest() / company).max(1) + 1
}

#[cfg(test)]
mod tests;

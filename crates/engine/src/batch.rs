//! One step of several sequences: rounds of those that decode, and rows of the prompts of others, in one pass of the target.
//!
//! The stages are those of one round, and a session's own round is the batch of one: proposals, the pass, the draws. A stage is timed
//! once, for all sequences that it is shared by.

use crate::EngineError;
use crate::engine::{Active, Loaded};
use crate::pass::{Out, Want, pass};
use crate::sampling::Chain;
use crate::session::Session;
use crate::speculative::{self, DraftWidth, Proposals, Proposed, Round, StageTrace, Turn};
use std::time::Instant;

/// What sequences want of a step.
#[derive(Default)]
pub(crate) struct Batch<'a> {
    /// A round of each of these.
    pub rounds: Vec<Begun<'a>>,
    /// Rows of these.
    pub prompts: Vec<(&'a mut Session, Want)>,
}

/// A sequence whose next round begins at `anchor`, its newest token, which is not in the cache yet.
pub(crate) struct Begun<'a> {
    pub session: &'a mut Session,
    pub chain: &'a mut Chain,
    pub anchor: u32,
    pub width: DraftWidth,
}

/// What came of a step, in the order of the batch. A round that failed does not keep the others from theirs.
pub(crate) struct Done {
    pub rounds: Vec<Result<Round, EngineError>>,
    pub prompts: Vec<Out>,
}

impl Batch<'_> {
    /// Makes the step. If there is no memory for one, nothing has changed.
    pub fn step(mut self, loaded: &Loaded) -> Result<Done, EngineError> {
        let proposed = self.propose(loaded);
        self.verify(loaded, proposed)
    }

    /// What each round is to verify.
    fn propose(&mut self, loaded: &Loaded) -> Proposals {
        let mut turns: Vec<Turn<'_, Active>> = self.rounds.iter_mut().map(Begun::turn).collect();
        speculative::propose(&loaded.backend, &loaded.target, &mut turns)
    }

    /// One pass over that and the rows of the prompts, and the draws.
    fn verify(self, loaded: &Loaded, proposals: Proposals) -> Result<Done, EngineError> {
        let Proposals { rounds: proposed, observe, draft } = proposals;
        let Self { rounds: mut begun, mut prompts } = self;
        let started = Instant::now();
        let rounds = begun.iter_mut().zip(&proposed);
        let rounds = rounds.map(|(begun, proposed)| (&mut *begun.session, want(begun.anchor, proposed)));
        let rows = prompts.iter_mut().map(|(session, want)| (&mut **session, want.clone()));
        let mut wants: Vec<(&mut Session, Want)> = rounds.chain(rows).collect();
        let mut outs = pass(loaded, &mut wants)?;
        let (sequences, rows) = (wants.len(), wants.iter().map(|(_, want)| want.ids.len()).sum());
        let mut of_prompts = outs.split_off(begun.len());
        let (mut rounds, mut states) = (Vec::new(), Vec::new());
        for ((begun, proposed), out) in begun.iter_mut().zip(proposed).zip(outs) {
            rounds.push(begun.session.take_round(proposed, out.logits, begun.chain));
            states.push(out.states);
        }
        let verify = StageTrace { sequences, rows, time: started.elapsed() };
        // What a pass took that had rows of prompts is not what rounds take.
        let of_rounds = if prompts.is_empty() { verify } else { StageTrace::default() };
        let chosen = begun.iter().any(|begun| begun.width == DraftWidth::Auto);
        loaded.experience.measured(chosen, observe.cost(), draft.cost(), of_rounds.cost());

        for ((begun, round), states) in begun.iter_mut().zip(&mut rounds).zip(states) {
            if let Ok(round) = round {
                round.trace.verify = verify;
                begun.session.tap(states, round.tokens.len());
                begun.session.learn(begun.width, round);
            }
        }
        for ((session, want), out) in prompts.iter_mut().zip(&mut of_prompts) {
            session.tap(out.states.take(), want.ids.len());
        }
        let all = begun.iter_mut().map(|begun| &mut *begun.session);
        let all = all.chain(prompts.iter_mut().map(|(session, _)| &mut **session));
        speculative::catch_up(&loaded.backend, all.map(|session| session.speculating().0));
        Ok(Done { rounds, prompts: of_prompts })
    }
}

impl Begun<'_> {
    fn turn(&mut self) -> Turn<'_, Active> {
        let (speculation, verified) = self.session.speculating();
        Turn { speculation, verified, chain: self.chain, anchor: self.anchor, width: self.width }
    }
}

/// The rows of a round: the anchor's and the proposals', with the logits of all.
fn want(anchor: u32, proposed: &Proposed) -> Want {
    let ids: Vec<u32> = std::iter::once(anchor).chain(proposed.tokens.iter().copied()).collect();
    Want { logits: 0..ids.len(), ids, tap: true }
}

#[cfg(test)]
mod tests;

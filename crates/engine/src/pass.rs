//! One pass of the target over what several sequences want.

use crate::EngineError;
use crate::engine::{Active, Loaded};
use crate::session::Session;
use glimmer_backend::Backend;
use glimmer_model::muse::Rows;
use glimmer_model::observe::{Taps, Unobserved};
use std::ops::Range;

/// What a sequence wants of the next pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    /// What is appended to it: at least one token.
    pub ids: Vec<u32>,
    /// The rows whose logits are wanted.
    pub logits: Range<usize>,
    /// Whether its drafter will want what it taps.
    pub tap: bool,
}

/// What a pass gives a sequence.
pub(crate) struct Out {
    /// The residual stream after the last layer: (rows, hidden).
    pub x: <Active as Backend>::Tensor,
    /// Of the rows that were wanted: (rows, vocab).
    pub logits: Vec<f32>,
    /// What the drafter taps: (rows, taps * hidden).
    pub states: Option<<Active as Backend>::Tensor>,
}

/// Appends to each sequence what it wants. If there is no memory for one, nothing has changed.
pub(crate) fn pass(loaded: &Loaded, wants: &mut [(&mut Session, Want)]) -> Result<Vec<Out>, EngineError> {
    let (b, target) = (&loaded.backend, &loaded.target);
    // Sequences of one engine have drafters of one kind.
    let tapping = wants.iter().find(|(session, want)| want.tap && session.taps().is_some());
    let layers: Option<Vec<usize>> = tapping.and_then(|(session, _)| session.taps().map(<[usize]>::to_vec));
    let mut batch: Vec<Rows<'_, Active>> =
        wants.iter_mut().map(|(session, want)| Rows { cache: &mut session.cache, ids: &want.ids }).collect();
    let (x, states) = match &layers {
        Some(layers) => {
            let mut taps = Taps::new(layers);
            let x = target.forward_all(b, &mut batch, &mut taps)?;
            (x, Some(taps.concat(b)))
        }
        None => (target.forward_all(b, &mut batch, &mut Unobserved)?, None),
    };
    let mut start = 0;
    let rows: Vec<Range<usize>> = wants
        .iter_mut()
        .map(|(session, want)| {
            session.tokens.extend(&want.ids);
            start += want.ids.len();
            start - want.ids.len()..start
        })
        .collect();
    let of = |rows: &Range<usize>, part: &Range<usize>| rows.start + part.start..rows.start + part.end;
    let wanted: Vec<Range<usize>> = rows.iter().zip(&*wants).map(|(rows, (_, want))| of(rows, &want.logits)).collect();
    let all: Vec<_> = wanted.iter().filter(|rows| !rows.is_empty()).map(|rows| b.rows(&x, rows.clone())).collect();
    // One product for all of them: the head is read once.
    let mut logits = match &all[..] {
        [] => Vec::new(),
        parts => {
            let chosen = b.concat_rows(&parts.iter().collect::<Vec<_>>());
            let (count, _) = b.shape(&chosen);
            b.read(&target.logits(b, &chosen, 0..count, &mut Unobserved))
        }
    };
    let vocab = target.config().vocab_size;
    let outs = rows.iter().zip(wanted).zip(&*wants).rev().map(|((rows, wanted), (_, want))| {
        let of_sequence = logits.split_off(logits.len() - wanted.len() * vocab);
        let states = states.as_ref().filter(|_| want.tap);
        Out { x: b.rows(&x, rows.clone()), logits: of_sequence, states: states.map(|all| b.rows(all, rows.clone())) }
    });
    let mut outs: Vec<Out> = outs.collect();
    outs.reverse();
    Ok(outs)
}

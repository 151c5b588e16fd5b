//! One round: what was proposed, and what the target made of it.

use super::RoundTrace;
use crate::sampling::{Chain, DrawError};

/// A round of drafting and verification.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// Rows of the verifying pass: the anchor and the proposals.
    pub width: usize,
    /// What the drafter proposed.
    pub proposals: Vec<u32>,
    /// How many of the proposals the target drew itself, before any cut.
    pub accepted: usize,
    /// What the target drew: the accepted proposals and one token more.
    pub tokens: Vec<u32>,
    /// The target's logits (width, vocab), before any processor.
    pub logits: Vec<f32>,
    /// How it came about.
    pub trace: RoundTrace,
    /// What the user should be told, such as that the drafter failed.
    pub notice: Option<String>,
}

/// Draws from the verified rows, first to last, as long as the next row's input was drawn: `logits` holds a row after the
/// anchor and after each proposal, the anchor stands at `position`. The processors' state advances on what is drawn only, so there
/// is nothing to take back. An error names the row.
pub(crate) fn fold(
    chain: &mut Chain,
    logits: &[f32],
    proposals: &[u32],
    position: usize,
) -> Result<Vec<u32>, (usize, DrawError)> {
    let vocab_size = logits.len() / (proposals.len() + 1);
    let mut tokens = Vec::new();
    for (row, logits) in logits.chunks_exact(vocab_size).enumerate() {
        let token = chain.draw(logits, (position + row + 1) as u64).map_err(|cause| (row, cause))?;
        chain.accept(token);
        tokens.push(token);
        if proposals.get(row) != Some(&token) {
            break;
        }
    }
    Ok(tokens)
}

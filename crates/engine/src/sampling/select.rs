//! Which tokens are kept, without sorting a vocabulary.

use glimmer_kernels::math::{exp, ln};

/// Logits looked at together: small enough that a block with a new candidate is cheap to walk.
const BLOCK: usize = 64;

/// The token with the largest logit, the lowest id on ties: the one greedy choice of the engine.
/// `None` where there is none: no logits, all of them negative infinity, or a NaN or positive infinity among them.
pub fn argmax(logits: &[f32]) -> Option<u32> {
    let (mut best, mut token) = (f32::NEG_INFINITY, None);
    for (start, block) in (0..).step_by(BLOCK).zip(logits.chunks(BLOCK)) {
        let top = peak(block)?;
        if top > best {
            best = top;
            token = block.iter().position(|&logit| logit == top).map(|at| start + at as u32);
        }
    }
    token
}

/// The largest value, or `None` with a NaN or positive infinity. Sixteen lanes, so that it becomes vector code.
fn peak(block: &[f32]) -> Option<f32> {
    let (mut tops, mut bad) = ([f32::NEG_INFINITY; 16], [0u32; 16]);
    let (parts, rest) = block.as_chunks::<16>();
    for part in parts {
        for lane in 0..16 {
            let x = part[lane];
            tops[lane] = if x > tops[lane] { x } else { tops[lane] };
            bad[lane] |= u32::from(!usable(x));
        }
    }
    let top = tops.iter().chain(rest).fold(f32::NEG_INFINITY, |top, &x| if x > top { x } else { top });
    let good = bad.iter().all(|&bad| bad == 0) && rest.iter().all(|&x| usable(x));
    good.then_some(top)
}

/// A finite logit or a banned token.
pub(super) fn usable(logit: f32) -> bool {
    logit < f32::INFINITY
}

/// A logit and its token in one integer: ascending is logit descending, then id ascending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate(u64);

impl Candidate {
    pub fn new(logit: f32, token: u32) -> Self {
        let bits = (logit + 0.0).to_bits(); // both zeros are one
        let descending = if bits >> 31 == 1 { bits } else { !bits & 0x7fff_ffff };
        Self((descending as u64) << 32 | token as u64)
    }

    pub fn logit(self) -> f32 {
        let descending = (self.0 >> 32) as u32;
        f32::from_bits(if descending >> 31 == 1 { descending } else { !descending & 0x7fff_ffff })
    }

    pub fn token(self) -> u32 {
        self.0 as u32
    }
}

/// All tokens that are not banned, by ascending id. `None` with a NaN or positive infinity.
pub(super) fn all(logits: &[f32], kept: &mut Vec<Candidate>) -> Option<()> {
    kept.clear();
    let mut good = true;
    for (&logit, token) in logits.iter().zip(0..) {
        good &= usable(logit);
        if logit > f32::NEG_INFINITY {
            kept.push(Candidate::new(logit, token));
        }
    }
    good.then_some(())
}

/// The `k` best tokens, best first. `None` with a NaN or positive infinity.
///
/// One pass: whatever beats the k-th best so far is collected, and now and then the collection is cut back to k.
pub(super) fn top_k(logits: &[f32], k: usize, kept: &mut Vec<Candidate>) -> Option<()> {
    kept.clear();
    let mut floor = f32::NEG_INFINITY;
    for (start, block) in (0..).step_by(BLOCK).zip(logits.chunks(BLOCK)) {
        if peak(block)? <= floor {
            continue; // a later token does not beat an earlier one by a tie
        }
        kept.extend(block.iter().zip(start..).filter(|(logit, _)| **logit > floor).map(|(&l, t)| Candidate::new(l, t)));
        if kept.len() > k.saturating_mul(2).saturating_add(BLOCK) {
            keep_best(kept, k);
            floor = kept.iter().max().map_or(floor, |worst| worst.logit());
        }
    }
    keep_best(kept, k);
    kept.sort_unstable();
    Some(())
}

fn keep_best(kept: &mut Vec<Candidate>, k: usize) {
    if 0 < k && k < kept.len() {
        kept.select_nth_unstable(k - 1);
        kept.truncate(k);
    }
}

/// The distribution over candidates that a temperature gives, up to its normaliser.
#[derive(Clone, Copy, Debug)]
pub(super) struct Softmax {
    pub max: f32,
    pub temperature: f32,
}

impl Softmax {
    /// log p of a candidate, up to a common constant; 0 for the best. The maximum is subtracted before the division, in
    /// f64, where no pair of f32 logits and no f32 temperature overflows.
    pub fn log_weight(self, candidate: Candidate) -> f64 {
        (candidate.logit() as f64 - self.max as f64) / self.temperature as f64
    }

    pub fn weight(self, candidate: Candidate) -> f64 {
        exp(self.log_weight(candidate))
    }

    /// The sum of the weights, in the order in which they lie.
    pub fn total(self, kept: &[Candidate]) -> f64 {
        kept.iter().map(|&candidate| self.weight(candidate)).sum()
    }
}

/// Keeps the smallest set of best tokens whose mass reaches `p` of the whole, the crossing token included. Sorts what it
/// keeps. The whole is summed in the order given (best first after top-k, else by id), the set's mass best first.
pub(super) fn top_p(kept: &mut Vec<Candidate>, softmax: Softmax, p: f32) {
    let target = p as f64 * softmax.total(kept);
    let (mut mass, mut sorted, mut step) = (0.0, 0, 256);
    while sorted < kept.len() {
        // The best ones of the rest are found and sorted, a few at first: mostly they are enough.
        let end = kept.len().min(sorted + step);
        if end < kept.len() {
            kept[sorted..].select_nth_unstable(step - 1);
        }
        kept[sorted..end].sort_unstable();
        for at in sorted..end {
            mass += softmax.weight(kept[at]);
            if mass >= target {
                kept.truncate(at + 1);
                return;
            }
        }
        sorted = end;
        step *= 4;
    }
}

/// Keeps tokens whose probability is at least `p` times the best one's.
pub(super) fn min_p(kept: &mut Vec<Candidate>, softmax: Softmax, p: f32) {
    let floor = ln(p as f64);
    kept.retain(|&candidate| softmax.log_weight(candidate) >= floor);
}

#[cfg(test)]
mod tests {
    use super::*;

    const INF: f32 = f32::INFINITY;

    #[test]
    fn argmax_takes_the_lowest_id() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0, 2.0]), Some(1));
        assert_eq!(argmax(&[-0.0, 0.0]), Some(0));
        assert_eq!(argmax(&[-INF, -5.0]), Some(1));
        assert_eq!(argmax(&[]), None);
        assert_eq!(argmax(&[-INF, -INF]), None);
        assert_eq!(argmax(&[f32::MIN; 3]), Some(0));
        for at in [0, 15, 16, 63, 64, 200, 299] {
            let mut logits = vec![1.0; 300];
            logits[at] = 2.0;
            logits[299] = 2.0;
            assert_eq!(argmax(&logits), Some(at as u32));
            for bad in [f32::NAN, INF] {
                logits[at] = bad;
                assert_eq!(argmax(&logits), None, "{bad} at {at}");
            }
        }
    }

    #[test]
    fn candidates_sort_by_logit_then_id() {
        let logits = [INF, 1.0, 1.0, f32::MIN_POSITIVE, -0.0, 0.0, -1e-40, -2.5, f32::MIN, -INF];
        let sorted: Vec<_> = logits.iter().zip(0..).map(|(&l, t)| Candidate::new(l, t)).collect();
        assert!(sorted.is_sorted());
        for (candidate, (logit, token)) in sorted.iter().zip(logits.iter().zip(0..)) {
            assert_eq!((candidate.logit(), candidate.token()), (*logit, token));
        }
    }

    #[test]
    fn top_k_of_every_order() {
        for (name, logit) in [
            ("ascending", (|t| t as f32) as fn(u32) -> f32),
            ("descending", |t| -(t as f32)),
            ("constant", |_| 1.5),
            ("mixed", |t| (t.wrapping_mul(2_654_435_761) >> 20) as f32),
            ("mostly banned", |t| if t % 97 == 3 { t as f32 } else { -INF }),
        ] {
            let logits: Vec<f32> = (0..3000).map(logit).collect();
            let mut sorted = Vec::new();
            assert_eq!(all(&logits, &mut sorted), Some(()));
            sorted.sort_unstable();
            for k in [1, 2, 5, 64, 700, 3000, usize::MAX] {
                let mut kept = Vec::new();
                assert_eq!(top_k(&logits, k, &mut kept), Some(()));
                assert_eq!(kept, sorted[..k.min(sorted.len())], "{name}, k {k}");
            }
        }
        assert_eq!(top_k(&[1.0, f32::NAN], 1, &mut Vec::new()), None);
        assert_eq!(all(&[1.0, INF], &mut Vec::new()), None);
    }
}

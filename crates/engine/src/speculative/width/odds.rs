//! How likely a proposal is accepted, from how sure the drafter is of it.

use std::sync::LazyLock;

/// Places of a block that are told apart; those behind are one.
const PLACES: usize = 15;
/// What the odds depend on: a constant, the logit of the confidence, the logarithm of the place in the block, and each place by
/// itself.
const INPUTS: usize = 3 + PLACES;
/// Which of them is the confidence.
const CONFIDENCE: usize = 1;
/// Before anything is known, a confidence is believed.
const FIRST: Inputs = inputs_of([0.0, 1.0, 0.0], 0.0);
/// How far the weights of one sequence may be from those of others, before that is known: their variances.
const SPREAD: Inputs = inputs_of([1.5, 0.2, 0.2], 0.3);
/// What of it a sequence may be seen to be away at least and at most.
const SPREADS: (f64, f64) = (0.1, 4.0);
/// The share that a sequence has in what is known of how far they are.
const SHARE: f64 = 0.2;
/// How far they may have moved from one proposal to the next.
const DRIFT: Inputs = inputs_of([0.0012, 0.0002, 0.0002], 0.02);
/// Nothing is certain.
const CERTAINTY: f64 = 6.0;

type Inputs = [f64; INPUTS];

/// How sure a drafter is of a proposal, as a logit.
#[derive(Clone, Copy, Debug)]
pub struct Logit(f64);

/// A logistic regression that follows what is accepted: one step of Newton's method for each proposal, of a length that the
/// uncertainty of the weights decides, which does not fall below a floor (an extended Kalman filter).
#[derive(Clone, Debug)]
pub struct Odds {
    weights: Inputs,
    covariance: [Inputs; INPUTS],
    prior: Prior,
}

/// The odds of sequences as a rule: the weights, and how far those of one sequence are from them, as variances.
#[derive(Clone, Copy, Debug)]
pub struct Prior {
    weights: Inputs,
    spread: Inputs,
}

impl Default for Prior {
    fn default() -> Self {
        Self { weights: FIRST, spread: SPREAD }
    }
}

impl Prior {
    /// For a new sequence.
    pub fn odds(&self) -> Odds {
        let mut covariance = [[0.0; INPUTS]; INPUTS];
        for (i, variance) in self.spread.into_iter().enumerate() {
            covariance[i][i] = variance;
        }
        Odds { weights: self.weights, covariance, prior: *self }
    }

    /// Moves the weights a little towards those of a sequence.
    pub fn follow(&mut self, odds: &Odds, share: f64) {
        for (own, other) in self.weights.iter_mut().zip(odds.weights) {
            *own += share * (other - *own);
        }
    }

    /// A sequence ended: as far as it went from what was expected, others may.
    pub fn end(&mut self, odds: &Odds) {
        // Nothing was learned there.
        if odds.weights == odds.prior.weights {
            return;
        }
        for (i, spread) in self.spread.iter_mut().enumerate() {
            let far = odds.weights[i] - odds.prior.weights[i];
            let found = far * far + odds.covariance[i][i];
            *spread += SHARE * (found.clamp(SPREADS.0 * SPREAD[i], SPREADS.1 * SPREAD[i]) - *spread);
        }
    }
}

/// The odds at a place of a block, as they depend on the confidence there: the logit, and how far it may be off.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// A constant and a slope.
    logit: [f64; 2],
    /// The variance: a constant, half a slope, and what grows with the square.
    variance: [f64; 3],
}

impl Place {
    /// The probability that a proposal is accepted where those before it were. With `belief`, what it may well be: so many
    /// standard deviations of the logit more.
    pub fn odds(&self, Logit(confidence): Logit, belief: f64) -> f64 {
        let [constant, slope] = self.logit;
        let more = match belief > 0.0 {
            true => {
                let [constant, half, square] = self.variance;
                belief * (constant + confidence * (2.0 * half + confidence * square)).max(0.0).sqrt()
            }
            false => 0.0,
        };
        probability(constant + confidence * slope + more)
    }
}

impl Odds {
    /// The odds at a place; the first is 1.
    pub fn place(&self, place: usize) -> Place {
        let (at, x) = inputs(Logit(0.0), place);
        let with = |i: usize| (0..4).map(|j| x[j] * self.covariance[i][at[j]]).sum::<f64>();
        let variance = (0..4).map(|i| x[i] * with(at[i])).sum();
        Place {
            logit: [self.logit(at, x), self.weights[CONFIDENCE]],
            variance: [variance, with(CONFIDENCE), self.covariance[CONFIDENCE][CONFIDENCE]],
        }
    }

    /// So many proposals were not learned from.
    pub fn forget(&mut self, proposals: f64) {
        for (i, (spread, drift)) in self.prior.spread.into_iter().zip(DRIFT).enumerate() {
            let variance = &mut self.covariance[i][i];
            *variance = variance.max(spread.min(*variance + proposals * drift));
        }
    }

    /// A proposal was accepted or not, and those before it were.
    pub fn learn(&mut self, confidence: Logit, place: usize, accepted: bool) {
        let (at, x) = inputs(confidence, place);
        self.forget(1.0);
        let expected = probability(self.logit(at, x));
        let curvature = expected * (1.0 - expected);
        let px = self.covariance.map(|row| (0..4).map(|j| row[at[j]] * x[j]).sum::<f64>());
        let gain = 1.0 / (1.0 + curvature * (0..4).map(|j| px[at[j]] * x[j]).sum::<f64>());
        let surprise = f64::from(u8::from(accepted)) - expected;
        for i in 0..INPUTS {
            self.weights[i] += gain * px[i] * surprise;
            for j in 0..INPUTS {
                self.covariance[i][j] -= gain * curvature * px[i] * px[j];
            }
        }
    }

    fn logit(&self, at: [usize; 4], x: [f64; 4]) -> f64 {
        (0..4).map(|i| self.weights[at[i]] * x[i]).sum()
    }
}

/// The first three, and the same for every place.
const fn inputs_of(first: [f64; 3], place: f64) -> Inputs {
    let mut all = [place; INPUTS];
    [all[0], all[1], all[2]] = first;
    all
}

/// The inputs that are not zero: which, and what they are.
fn inputs(Logit(confidence): Logit, place: usize) -> ([usize; 4], [f64; 4]) {
    static LOGARITHMS: LazyLock<[f64; PLACES]> = LazyLock::new(|| std::array::from_fn(|i| (i as f64 + 1.0).ln()));
    let own = place.clamp(1, PLACES);
    ([0, 1, 2, 2 + own], [1.0, confidence, LOGARITHMS[own - 1], 1.0])
}

impl Logit {
    /// Of a probability.
    pub fn of(p: f64) -> Self {
        let logit = (p / (1.0 - p)).ln();
        // A confidence that is not a number says nothing.
        Self(if logit.is_nan() { 0.0 } else { logit.clamp(-CERTAINTY, CERTAINTY) })
    }
}

fn probability(logit: f64) -> f64 {
    1.0 / (1.0 + (-logit.clamp(-CERTAINTY, CERTAINTY)).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn a_confidence_is_believed_at_first() {
        let odds = Prior::default().odds();
        for p in [0.1, 0.5, 0.95] {
            assert!((odds.place(7).odds(Logit::of(p), 0.0) - p).abs() < 1e-9);
        }
        for p in [f64::NAN, 0.0, 1.0, -1.0, 2.0] {
            assert!((0.0..=1.0).contains(&odds.place(1).odds(Logit::of(p), 1.0)), "{p}");
        }
    }

    #[test]
    fn a_sequence_that_learned_nothing_teaches_nothing() {
        let mut prior = Prior::default();
        let unused = prior.odds();
        let mut odds = prior.odds();
        (0..20).for_each(|_| odds.learn(Logit::of(0.5), 1, true));
        prior.end(&odds);
        let spread = prior.spread;
        prior.end(&unused);
        assert_eq!(prior.spread, spread);
        assert_ne!(spread, Prior::default().spread);
    }

    #[test]
    fn what_the_drafter_overstates_is_learned() {
        let mut random = Random::new(4);
        let mut odds = Prior::default().odds();
        // The truth is flatter than the confidence, and falls with the place.
        let truth =
            |confidence: f64, place: usize| probability(0.5 * Logit::of(confidence).0 - 0.8 * (place as f64).ln());
        let mut draw = |odds: &mut Odds, truth: &dyn Fn(f64, usize) -> f64| {
            let (confidence, place) = (0.02 + 0.96 * random.unit() as f64, 1 + random.below(6) as usize);
            odds.learn(Logit::of(confidence), place, (random.unit() as f64) < truth(confidence, place));
        };
        (0..2000).for_each(|_| draw(&mut odds, &truth));
        for (confidence, place) in [(0.2, 1), (0.5, 2), (0.9, 1), (0.9, 5)] {
            let (found, truth) = (odds.place(place).odds(Logit::of(confidence), 0.0), truth(confidence, place));
            assert!((found - truth).abs() < 0.15, "{confidence} {place}: {found}, {truth}");
        }
        // It follows when the truth changes.
        (0..100).for_each(|_| draw(&mut odds, &|_, _| 0.95));
        assert!(odds.place(2).odds(Logit::of(0.5), 0.0) > 0.8);
        (0..200).for_each(|_| draw(&mut odds, &|_, _| 0.05));
        assert!(odds.place(2).odds(Logit::of(0.5), 0.0) < 0.2);
    }
}

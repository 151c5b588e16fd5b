//! How likely a proposal is accepted, from how sure the drafter is of it.

/// Places of a block that are told apart; those behind are one.
const PLACES: usize = 15;
/// What the odds depend on: a constant, the logit of the confidence, the logarithm of the place in the block, and each place by
/// itself.
const INPUTS: usize = 3 + PLACES;
/// Before anything is known, a confidence is believed.
const FIRST: Inputs = inputs_of([0.0, 1.0, 0.0], 0.0);
/// How far the weights of one sequence may be from those of others, before that is known: their variances.
const SPREAD: Inputs = inputs_of([0.5, 0.2, 0.2], 0.3);
/// What of it a sequence may be seen to be away at least and at most.
const SPREADS: (f64, f64) = (0.1, 4.0);
/// The share that a sequence has in what is known of how far they are.
const SHARE: f64 = 0.2;
/// How far they may have moved from one proposal to the next.
const DRIFT: Inputs = inputs_of([0.0012, 0.0002, 0.0002], 0.02);
/// Nothing is certain.
const CERTAINTY: f64 = 6.0;

type Inputs = [f64; INPUTS];

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
        for (i, spread) in self.spread.iter_mut().enumerate() {
            let far = odds.weights[i] - odds.prior.weights[i];
            let found = far * far + odds.covariance[i][i];
            *spread += SHARE * (found.clamp(SPREADS.0 * SPREAD[i], SPREADS.1 * SPREAD[i]) - *spread);
        }
    }
}

impl Odds {
    /// The probability that a proposal is accepted where those before it were. The first has place 1. With `hope`, what it may
    /// well be: so many standard deviations of the logit more.
    pub fn of(&self, confidence: f64, place: usize, hope: f64) -> f64 {
        let x = inputs(confidence, place);
        let more = match hope > 0.0 {
            true => hope * dot(&self.covariance.map(|row| dot(&row, &x)), &x).max(0.0).sqrt(),
            false => 0.0,
        };
        probability(dot(&self.weights, &x) + more)
    }

    /// So many proposals were not learned from.
    pub fn forget(&mut self, proposals: f64) {
        for (i, (spread, drift)) in self.prior.spread.into_iter().zip(DRIFT).enumerate() {
            let variance = &mut self.covariance[i][i];
            *variance = variance.max(spread.min(*variance + proposals * drift));
        }
    }

    /// A proposal was accepted or not, and those before it were.
    pub fn learn(&mut self, confidence: f64, place: usize, accepted: bool) {
        let x = inputs(confidence, place);
        self.forget(1.0);
        let expected = probability(dot(&self.weights, &x));
        let curvature = expected * (1.0 - expected);
        let px = self.covariance.map(|row| dot(&row, &x));
        let gain = 1.0 / (1.0 + curvature * dot(&px, &x));
        let surprise = f64::from(u8::from(accepted)) - expected;
        for i in 0..INPUTS {
            self.weights[i] += gain * px[i] * surprise;
            for j in 0..INPUTS {
                self.covariance[i][j] -= gain * curvature * px[i] * px[j];
            }
        }
    }
}

/// The first three, and the same for every place.
const fn inputs_of(first: [f64; 3], place: f64) -> Inputs {
    let mut all = [place; INPUTS];
    [all[0], all[1], all[2]] = first;
    all
}

fn inputs(confidence: f64, place: usize) -> Inputs {
    let mut all = inputs_of([1.0, logit(confidence), (place as f64).ln()], 0.0);
    all[2 + place.clamp(1, PLACES)] = 1.0;
    all
}

fn logit(p: f64) -> f64 {
    // A confidence that is not a number says nothing.
    let logit = (p / (1.0 - p)).ln();
    if logit.is_nan() { 0.0 } else { logit.clamp(-CERTAINTY, CERTAINTY) }
}

fn probability(logit: f64) -> f64 {
    1.0 / (1.0 + (-logit.clamp(-CERTAINTY, CERTAINTY)).exp())
}

fn dot(a: &Inputs, b: &Inputs) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn a_confidence_is_believed_at_first() {
        let odds = Prior::default().odds();
        for p in [0.1, 0.5, 0.95] {
            assert!((odds.of(p, 7, 0.0) - p).abs() < 1e-9);
        }
        for p in [f64::NAN, 0.0, 1.0, -1.0, 2.0] {
            assert!((0.0..=1.0).contains(&odds.of(p, 1, 1.0)), "{p}");
        }
    }

    #[test]
    fn what_the_drafter_overstates_is_learned() {
        let mut random = Random::new(4);
        let mut odds = Prior::default().odds();
        // The truth is flatter than the confidence, and falls with the place.
        let truth = |confidence: f64, place: usize| probability(0.5 * logit(confidence) - 0.8 * (place as f64).ln());
        let mut draw = |odds: &mut Odds, truth: &dyn Fn(f64, usize) -> f64| {
            let (confidence, place) = (0.02 + 0.96 * random.unit() as f64, 1 + random.below(6) as usize);
            odds.learn(confidence, place, (random.unit() as f64) < truth(confidence, place));
        };
        (0..2000).for_each(|_| draw(&mut odds, &truth));
        for (confidence, place) in [(0.2, 1), (0.5, 2), (0.9, 1), (0.9, 5)] {
            let (found, truth) = (odds.of(confidence, place, 0.0), truth(confidence, place));
            assert!((found - truth).abs() < 0.15, "{confidence} {place}: {found}, {truth}");
        }
        // It follows when the truth changes.
        (0..100).for_each(|_| draw(&mut odds, &|_, _| 0.95));
        assert!(odds.of(0.5, 2, 0.0) > 0.8);
        (0..200).for_each(|_| draw(&mut odds, &|_, _| 0.05));
        assert!(odds.of(0.5, 2, 0.0) < 0.2);
    }
}

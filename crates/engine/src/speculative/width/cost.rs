//! What a pass of some number of rows takes, from what such passes took.

use std::collections::BTreeMap;

/// Samples of a width that count.
const KEPT: usize = 9;
/// Rounds after which a width counts as not measured; twice as many after each time that it was found as it had been.
const FRESH: u64 = 256;
/// So many times at most.
const LASTS: u32 = 4;
/// How far what is found may be from what was, as a share, to be as it had been.
const ALIKE: f64 = 0.25;
/// What a row more is thought to cost, as a share of what is known, while only one width is.
const SLOPE: f64 = 0.05;
/// How far a row more may be from costing what its neighbours say, in costs of one row: a standard deviation.
const ROUGH: f64 = 0.12;
/// So many standard deviations beyond what other widths say, a single sample is not believed.
const DOUBT: f64 = 2.0;
/// Samples that a belief counts for.
const BELIEVED: usize = 3;
/// Rounds after which what was measured once is measured again; twice as many after each time.
const AGAIN: u64 = 16;

/// Seconds by the rows of a pass, large numbers of rows being told apart to a sixteenth or so.
///
/// An estimate is a low quantile of the last samples, since whatever disturbs a pass makes it slower; a wider pass that took
/// less is believed more than the narrower one. Between widths it is linear, behind the widest it goes on as steeply as before.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    /// By rows, of those that were measured.
    widths: BTreeMap<usize, Samples>,
}

#[derive(Clone, Debug, Default)]
struct Samples {
    last: Vec<f64>,
    next: usize,
    /// A third of them took no longer.
    low: f64,
    /// The round of the last one.
    round: u64,
    /// How often it was found as it had been.
    lasts: u32,
}

impl Samples {
    fn add(&mut self, seconds: f64, round: u64) {
        if self.count(round) == 0 {
            match alike(seconds, self.low) {
                true => self.lasts = LASTS.min(self.lasts + 1),
                false => self.last.clear(),
            }
        }
        match self.last.len() < KEPT {
            true => self.last.push(seconds),
            false => self.last[self.next % KEPT] = seconds,
        }
        self.next = (self.next + 1) % KEPT;
        self.round = round;
        let mut sorted = self.last.clone();
        sorted.sort_by(f64::total_cmp);
        let before = std::mem::replace(&mut self.low, sorted[(sorted.len() - 1) / 3]);
        if !alike(self.low, before) {
            self.lasts = 0;
        }
    }

    fn count(&self, round: u64) -> usize {
        if round > self.round + (FRESH << self.lasts) { 0 } else { self.last.len() }
    }
}

/// Whether something takes as long as it did.
fn alike(seconds: f64, before: f64) -> bool {
    (seconds / before - 1.0).abs() < ALIKE
}

/// What each number of rows costs a sequence at some moment, 0 rows first.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve(Vec<f64>);

impl Curve {
    /// What `rows` cost, which may lie between two numbers.
    pub fn at(&self, rows: f64) -> f64 {
        let last = self.0.len() - 1;
        let below = (rows.max(0.0) as usize).min(last);
        let above = (below + 1).min(last);
        self.0[below] + (rows - below as f64).clamp(0.0, 1.0) * (self.0[above] - self.0[below])
    }
}

impl Costs {
    /// A pass of `rows` rows took so long.
    pub fn add(&mut self, rows: usize, seconds: f64, round: u64) {
        let grain = (rows / 16).max(1).next_power_of_two();
        let about = (rows + grain / 2) / grain * grain;
        self.widths.entry(about).or_default().add(seconds, round);
    }

    /// A pass of `rows` rows is believed to take so long, as if it had been measured just now and often enough.
    pub fn believe(&mut self, rows: usize, seconds: f64) {
        (0..BELIEVED).for_each(|_| self.add(rows, seconds, 0));
    }

    /// Whether this many rows should be measured once more, lest they seem dearer than they are.
    pub fn due(&self, rows: usize, round: u64) -> bool {
        let Some(samples) = self.widths.get(&rows) else { return true };
        let after = AGAIN << (samples.last.len() - 1).min(3);
        round.saturating_sub(samples.round) >= after
    }

    /// The most rows that were ever measured.
    pub fn widest(&self) -> usize {
        self.widths.last_key_value().map_or(0, |(&rows, _)| rows)
    }

    /// The estimates for up to `most` rows of each of `company` sequences, or what it may well be: so many standard deviations less.
    pub fn curve(&self, round: u64, hope: f64, most: usize, company: usize) -> Curve {
        let mut points = self.points(|samples| hope == 0.0 || samples.count(round) > 0);
        if points.is_empty() {
            points = self.points(|_| true);
        }
        self.doubt(&mut points, round);
        let mut least = f64::INFINITY;
        for (rows, seconds) in points.iter_mut().rev() {
            *seconds = seconds.min(least);
            if self.widths[rows].count(round) > 0 {
                least = *seconds;
            }
        }
        let mut curve: Vec<f64> = Vec::with_capacity(most + 1);
        for rows in (0..=most).map(|rows| rows * company) {
            let below = curve.last().copied().unwrap_or(0.0);
            let seconds = line(&points, rows) - hope * deviation(&points, rows);
            curve.push(below.max(seconds / company as f64));
        }
        Curve(curve)
    }

    /// The estimate for any number of rows.
    pub fn about(&self, rows: usize) -> f64 {
        if rows == 0 { 0.0 } else { line(&self.points(|_| true), rows) }
    }

    /// Measured widths of a kind.
    fn points(&self, which: impl Fn(&Samples) -> bool) -> Vec<(usize, f64)> {
        let all = self.widths.iter().filter(|(_, samples)| which(samples));
        all.map(|(&rows, samples)| (rows, samples.low)).collect()
    }

    /// A single sample may have been disturbed: it is believed as far as the other widths allow.
    fn doubt(&self, points: &mut [(usize, f64)], round: u64) {
        let all = points.to_vec();
        for (i, (rows, seconds)) in points.iter_mut().enumerate().skip(1) {
            if self.widths[rows].count(round) == 1 {
                let others = [&all[..i], &all[i + 1..]].concat();
                *seconds = seconds.min(line(&others, *rows) + DOUBT * deviation(&others, *rows));
            }
        }
    }
}

/// How far the cost of so many rows may be from what the points say, as a random walk goes between them and behind the last: a
/// standard deviation.
fn deviation(points: &[(usize, f64)], rows: usize) -> f64 {
    let next = points.partition_point(|&(known, _)| known < rows);
    let behind = next.checked_sub(1).map(|last| (rows - points[last].0) as f64);
    let before = points.get(next).map(|&(known, _)| (known - rows) as f64);
    let steps = match (behind, before) {
        (Some(behind), Some(before)) => behind * before / (behind + before),
        (Some(behind), None) => behind,
        (None, _) => 0.0,
    };
    ROUGH * line(points, 1) * steps.sqrt()
}

/// Through ascending points; behind the last as steep as between the last two, or between the first and the last if that
/// is less.
fn line(points: &[(usize, f64)], rows: usize) -> f64 {
    let slope = |(from, a): (usize, f64), (to, b): (usize, f64)| ((b - a) / (to - from) as f64).max(0.0);
    let next = points.partition_point(|&(known, _)| known < rows);
    let (from, steep) = match (next.checked_sub(1).map(|last| points[last]), points.get(next)) {
        (Some(last), Some(&above)) => (last, slope(last, above)),
        (Some(last), None) if next >= 2 => (last, slope(points[next - 2], last).min(slope(points[0], last))),
        (Some(last), None) => (last, SLOPE * last.1),
        (None, Some(&first)) => return first.1,
        (None, None) => return 0.0,
    };
    from.1 + (rows - from.0) as f64 * steep
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(samples: &[(usize, f64)]) -> Costs {
        let mut costs = Costs::default();
        samples.iter().for_each(|&(rows, seconds)| costs.add(rows, seconds, 1));
        costs
    }

    #[test]
    fn widths_between_and_behind_are_on_lines() {
        let curve = costs(&[(1, 10.0), (5, 14.0)]).curve(1, 0.0, 16, 1);
        for (rows, seconds) in [(1.0, 10.0), (3.0, 12.0), (3.5, 12.5), (5.0, 14.0), (9.0, 18.0), (99.0, 25.0)] {
            assert_eq!(curve.at(rows), seconds, "{rows}");
        }
        assert_eq!(costs(&[(1, 10.0)]).curve(1, 0.0, 16, 1).at(3.0), 11.0);
        assert_eq!(costs(&[]).curve(1, 0.0, 16, 1).at(3.0), 0.0);
    }

    #[test]
    fn a_pass_is_shared_by_those_in_company() {
        let curve = costs(&[(1, 10.0), (4, 12.0), (16, 24.0)]).curve(1, 0.0, 4, 4);
        assert_eq!([1.0, 2.0, 4.0].map(|rows| curve.at(rows)), [3.0, 4.0, 6.0]);
    }

    #[test]
    fn large_passes_that_are_nearly_alike_are_one() {
        let mut costs = Costs::default();
        (120..=131).for_each(|rows| costs.add(rows, rows as f64, 1));
        assert_eq!(costs.widths.keys().copied().collect::<Vec<_>>(), [120, 128]);
        assert_eq!(costs.widest(), 128);
    }

    #[test]
    fn what_was_disturbed_counts_little() {
        let mut costs = costs(&[(1, 99.0), (5, 14.0), (9, 70.0)]);
        assert_eq!(costs.curve(1, 0.0, 16, 1).at(1.0), 14.0, "a narrower pass takes no longer");
        for seconds in [10.0, 55.0, 11.0, 10.0, 300.0] {
            costs.add(1, seconds, 1);
        }
        assert_eq!(costs.curve(1, 0.0, 16, 1).at(1.0), 10.0);
        for _ in 0..KEPT {
            costs.add(1, 12.0, 2);
        }
        assert_eq!(costs.curve(2, 0.0, 16, 1).at(1.0), 12.0, "old samples make room");
    }

    #[test]
    fn what_is_far_from_what_was_measured_may_cost_less() {
        let costs = costs(&[(1, 10.0), (1, 10.0), (5, 14.0), (5, 14.0)]);
        let hoped = costs.curve(1, 1.0, 16, 1);
        assert_eq!((hoped.at(1.0), hoped.at(5.0)), (10.0, 14.0));
        let less = |rows: f64| costs.curve(1, 0.0, 16, 1).at(rows) - hoped.at(rows);
        assert!(less(3.0) > less(4.0) && less(4.0) > 0.0);
        assert!(less(9.0) > less(7.0) && less(7.0) > less(3.0));
        // What was measured long ago is not known.
        let mut costs = costs;
        costs.add(1, 10.0, 2 + FRESH);
        assert!(costs.curve(2 + FRESH, 1.0, 16, 1).at(5.0) < 14.0);
        assert_eq!(costs.curve(2 + FRESH, 0.0, 16, 1).at(5.0), 14.0);
    }

    #[test]
    fn what_stays_as_it_was_is_known_for_longer() {
        let known = |costs: &Costs, round| costs.widths[&3].count(round);
        let mut costs = costs(&[(3, 10.0)]);
        assert_eq!([1 + FRESH, 2 + FRESH].map(|round| known(&costs, round)), [1, 0]);
        let mut round = 2 + FRESH;
        costs.add(3, 11.0, round);
        assert_eq!([round + 2 * FRESH, round + 2 * FRESH + 1].map(|round| known(&costs, round)), [2, 0]);
        for _ in 0..9 {
            round += 1 + (FRESH << LASTS);
            costs.add(3, 9.0, round);
        }
        assert_eq!([round, round + 1].map(|round| known(&costs, round + (FRESH << LASTS))), [KEPT, 0]);
        // It need not have been forgotten for that.
        (0..KEPT).for_each(|_| costs.add(3, 14.0, round));
        assert_eq!([round + FRESH, round + FRESH + 1].map(|round| known(&costs, round)), [KEPT, 0]);
        // What has become another is known for as long as what is new, and what it was no longer counts.
        round += 1 + (FRESH << LASTS);
        costs.add(3, 20.0, round);
        assert_eq!([round + FRESH, round + FRESH + 1].map(|round| known(&costs, round)), [1, 0]);
        assert_eq!(costs.about(3), 20.0);
    }

    #[test]
    fn a_single_sample_is_believed_as_far_as_others_allow() {
        let mut costs = costs(&[(1, 10.0), (3, 40.0)]);
        let doubted = costs.curve(1, 0.0, 16, 1).at(3.0);
        assert!(doubted > 11.0 && doubted < 20.0, "{doubted}");
        costs.add(3, 40.0, 1);
        assert_eq!(costs.curve(1, 0.0, 16, 1).at(3.0), 40.0);
    }

    #[test]
    fn what_was_measured_seldom_is_soon_measured_again() {
        let mut costs = Costs::default();
        assert!(costs.due(1, 0));
        costs.add(1, 10.0, 1);
        assert!(!costs.due(1, AGAIN) && costs.due(1, 1 + AGAIN));
        (0..KEPT).for_each(|_| costs.add(1, 10.0, 1));
        assert!(!costs.due(1, 1 + AGAIN) && costs.due(1, 1 + 8 * AGAIN));
    }
}

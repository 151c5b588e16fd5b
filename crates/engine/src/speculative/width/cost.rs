//! What a pass of some number of rows takes, from what such passes took.

/// Samples of a width that count.
const KEPT: usize = 9;
/// Rounds after which a width counts as not measured.
const FRESH: u64 = 2048;
/// What a row more is thought to cost, as a share of what is known, while only one width is.
const SLOPE: f64 = 0.05;
/// The share of an estimate that a width may turn out to cost, by how often it was measured.
const HOPE: [f64; 3] = [0.7, 0.8, 0.9];

/// Seconds by the rows of a pass.
///
/// An estimate is a low quantile of the last samples, since whatever disturbs a pass makes it slower; a wider pass that took
/// less is believed more than the narrower one. Between widths it is linear, behind the widest it goes on as steeply as before.
#[derive(Clone, Debug)]
pub struct Costs {
    /// By rows.
    widths: Vec<Samples>,
}

#[derive(Clone, Debug, Default)]
struct Samples {
    last: Vec<f64>,
    next: usize,
    /// A third of them took no longer.
    low: f64,
    /// The round of the last one.
    round: u64,
}

impl Samples {
    fn add(&mut self, seconds: f64, round: u64) {
        if round > self.round + FRESH {
            self.last.clear();
        }
        match self.last.len() < KEPT {
            true => self.last.push(seconds),
            false => self.last[self.next % KEPT] = seconds,
        }
        self.next = (self.next + 1) % KEPT;
        self.round = round;
        let mut sorted = self.last.clone();
        sorted.sort_by(f64::total_cmp);
        self.low = sorted[(sorted.len() - 1) / 3];
    }

    fn count(&self, round: u64) -> usize {
        if round > self.round + FRESH { 0 } else { self.last.len() }
    }
}

/// What each number of rows costs at some moment, 0 rows first.
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
    /// Of passes of at most `most` rows.
    pub fn new(most: usize) -> Self {
        Self { widths: vec![Samples::default(); most + 1] }
    }

    /// A pass of `rows` rows took so long.
    pub fn add(&mut self, rows: usize, seconds: f64, round: u64) {
        if let Some(samples) = self.widths.get_mut(rows) {
            samples.add(seconds, round);
        }
    }

    /// A pass of `rows` rows is believed to take so long, as if it had been measured just now and often enough.
    pub fn believe(&mut self, rows: usize, seconds: f64) {
        HOPE.iter().for_each(|_| self.add(rows, seconds, 0));
    }

    /// Whether this many rows were measured often enough to be believed.
    pub fn knows(&self, rows: usize) -> bool {
        self.widths.get(rows).is_some_and(|samples| samples.last.len() >= HOPE.len())
    }

    /// Rounds since this many rows were measured.
    pub fn age(&self, rows: usize, round: u64) -> u64 {
        self.widths.get(rows).map_or(u64::MAX, |samples| round.saturating_sub(samples.round))
    }

    /// The most rows that were ever measured.
    pub fn widest(&self) -> usize {
        self.widths.iter().rposition(|samples| !samples.last.is_empty()).unwrap_or(0)
    }

    /// The estimates. With `hope`, widths that were measured seldom are given the benefit of the doubt: it is not believed that
    /// they are dear, and a share of what the others say is taken.
    pub fn curve(&self, round: u64, hope: bool) -> Curve {
        let known = |often: usize| {
            let all = self.widths.iter().enumerate().filter(|(_, samples)| !samples.last.is_empty());
            let all = all.filter(|(_, samples)| samples.count(round) >= often);
            all.map(|(rows, samples)| (rows, samples.low)).collect::<Vec<_>>()
        };
        let mut points = known(if hope { HOPE.len() } else { 0 });
        if points.is_empty() {
            points = known(0);
        }
        let mut least = f64::INFINITY;
        for (rows, seconds) in points.iter_mut().rev() {
            *seconds = seconds.min(least);
            if self.widths[*rows].count(round) > 0 {
                least = *seconds;
            }
        }
        let mut curve: Vec<f64> = Vec::with_capacity(self.widths.len());
        for (rows, samples) in self.widths.iter().enumerate() {
            let estimate = line(&points, rows);
            let share = HOPE.get(samples.count(round)).filter(|_| hope).copied().unwrap_or(1.0);
            let below = curve.last().copied().unwrap_or(0.0);
            curve.push(if share < 1.0 { below.max(share * estimate) } else { estimate });
        }
        Curve(curve)
    }
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
        let mut costs = Costs::new(16);
        samples.iter().for_each(|&(rows, seconds)| costs.add(rows, seconds, 1));
        costs
    }

    #[test]
    fn widths_between_and_behind_are_on_lines() {
        let curve = costs(&[(1, 10.0), (5, 14.0)]).curve(1, false);
        for (rows, seconds) in [(1.0, 10.0), (3.0, 12.0), (3.5, 12.5), (5.0, 14.0), (9.0, 18.0), (99.0, 25.0)] {
            assert_eq!(curve.at(rows), seconds, "{rows}");
        }
        assert_eq!(costs(&[(1, 10.0)]).curve(1, false).at(3.0), 11.0);
        assert_eq!(costs(&[]).curve(1, false).at(3.0), 0.0);
    }

    #[test]
    fn what_was_disturbed_counts_little() {
        let mut costs = costs(&[(1, 99.0), (5, 14.0), (9, 70.0)]);
        assert_eq!(costs.curve(1, false).at(1.0), 14.0, "a narrower pass takes no longer");
        for seconds in [10.0, 55.0, 11.0, 10.0, 300.0] {
            costs.add(1, seconds, 1);
        }
        assert_eq!(costs.curve(1, false).at(1.0), 10.0);
        for _ in 0..KEPT {
            costs.add(1, 12.0, 2);
        }
        assert_eq!(costs.curve(2, false).at(1.0), 12.0, "old samples make room");
    }

    #[test]
    fn hope_ends_with_three_samples_and_returns_with_time() {
        let mut costs = costs(&[(1, 10.0); 3]);
        costs.add(5, 30.0, 1);
        let hoped = |costs: &Costs, round| costs.curve(round, true).at(5.0);
        assert_eq!(hoped(&costs, 1), 10.0, "no less than a narrower pass");
        costs.add(9, 31.0, 1);
        costs.add(9, 31.0, 1);
        costs.add(9, 31.0, 1);
        assert_eq!(hoped(&costs, 1), 0.8 * 20.5);
        costs.add(5, 30.0, 1);
        assert_eq!(hoped(&costs, 1), 0.9 * 20.5);
        costs.add(5, 30.0, 1);
        assert_eq!(hoped(&costs, 1), 30.0);
        (0..3).for_each(|_| costs.add(1, 10.0, 2 + FRESH));
        assert_eq!(hoped(&costs, 2 + FRESH), 10.0);
        assert_eq!(costs.curve(2 + FRESH, false).at(5.0), 30.0);
    }
}

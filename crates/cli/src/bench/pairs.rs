//! What choosing the width makes of the best fixed width, and of decoding plainly.
//!
//! Widths take turns, so each repetition makes a pair of two rows. Of the logarithms of what a token costs in one over what it costs
//! in the other come a mean and a bound that the truth is above of with a probability of 95 %.

use super::row::{PLAIN, Row};
use super::spread::{Spread, moments};
use glimmer_engine::DraftWidth;
use std::fmt::Write as _;

/// The 95th percentiles of Student's t for 1 to 30 degrees of freedom; with more it is nearly the last.
const T: [f64; 30] = [
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753, 1.746,
    1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697,
];

/// A ratio of rates, and what it is at least.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ratio {
    mean: f64,
    bound: f64,
}

impl Ratio {
    /// How many times as fast the one is as the other, by their costs.
    fn of(row: &Row, other: &Row) -> Option<Self> {
        let logs: Vec<f64> = row.costs.iter().zip(&other.costs).map(|(cost, other)| (other / cost).ln()).collect();
        let degrees = logs.len().checked_sub(1).filter(|&degrees| degrees > 0)?;
        let (mean, deviation) = moments(&logs);
        let t = T[degrees.min(T.len()) - 1];
        let bound = mean - t * deviation / (logs.len() as f64).sqrt();
        Some(Self { mean: mean.exp(), bound: bound.exp() })
    }

    fn cells(ratio: Option<Self>) -> String {
        ratio.map_or("- | -".into(), |Self { mean, bound }| format!("{mean:.3} | {bound:.3}"))
    }
}

/// For people, in Markdown: by the time of the processor per thread, where the system says it.
pub fn table(rows: &[Row], accept: Option<f64>) -> String {
    let mut out = String::from(
        "\n| prompt | best fixed | auto to it | at least (95 %) | auto to plain | at least (95 %) | auto to the formula |\n\
         |---|---:|---:|---:|---:|---:|---:|\n",
    );
    for rows in rows.chunk_by(|a, b| a.prompt == b.prompt) {
        let find = |width: DraftWidth| rows.iter().find(|row| row.width == width);
        let cost = |row: &Row| Spread::of(&row.costs).map_or(f64::INFINITY, |spread| spread.median);
        let fixed = rows.iter().filter(|row| row.width != DraftWidth::Auto && row.width != PLAIN);
        let best = fixed.min_by(|a, b| cost(a).total_cmp(&cost(b)));
        let (auto, plain) = (find(DraftWidth::Auto), find(PLAIN));
        let against = |other: Option<&Row>| auto.zip(other).and_then(|(auto, other)| Ratio::of(auto, other));
        let formula = accept.and_then(|accept| {
            let best = expected(rows, accept)?;
            auto?.speedup.map(|speedup| speedup / best)
        });
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} |",
            rows[0].prompt.replace('|', "\\|"),
            best.map_or("-".into(), Row::label),
            Ratio::cells(against(best)),
            Ratio::cells(against(plain)),
            formula.map_or("-".into(), |formula| format!("{formula:.3}")),
        );
    }
    out
}

/// The best speedup over the fixed widths that their mean times promise: E(w) t(1) / (t_verify(w) + t_draft(w) + t_observe(w)), where
/// E(w) = (1 - p^w) / (1 - p) are the tokens of a round of w rows.
fn expected(rows: &[Row], accept: f64) -> Option<f64> {
    let plain = rows.iter().find(|row| row.width == PLAIN)?.rounds.seconds()?;
    let promise = |row: &Row| match row.width {
        DraftWidth::Fixed(width) if width > 1 => {
            let tokens: f64 = (0..width).map(|place| accept.powi(place as i32)).sum();
            Some(tokens * plain / row.rounds.seconds()?)
        }
        _ => None,
    };
    rows.iter().filter_map(promise).reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::prompts::Encoded;

    fn row(width: DraftWidth, costs: &[f64]) -> Row {
        let prompt = Encoded { name: "a".into(), ids: vec![1], framing: "ids" };
        let mut row = Row::new(&prompt, width, &[], 1);
        row.costs.extend(costs);
        row
    }

    #[test]
    fn a_bound_is_below_the_mean_by_what_pairs_differ() {
        let auto = row(DraftWidth::Auto, &[1.0, 2.0, 1.5]);
        let same = Ratio::of(&auto, &row(5.into(), &[2.0, 4.0, 3.0])).unwrap();
        assert!((same.mean - 2.0).abs() < 1e-9 && (same.bound - 2.0).abs() < 1e-9, "{same:?}");
        // Logarithms -0.1, 0 and 0.1: a deviation of 0.1, and t is 2.92.
        let [low, high] = [(-0.1f64).exp(), 0.1f64.exp()];
        let other = Ratio::of(&auto, &row(5.into(), &[low, 2.0, 1.5 * high])).unwrap();
        assert!((other.mean - 1.0).abs() < 1e-9, "{other:?}");
        assert!((other.bound.ln() + 2.92 * 0.1 / 3f64.sqrt()).abs() < 1e-3, "{other:?}");
        assert_eq!(Ratio::of(&row(DraftWidth::Auto, &[1.0]), &auto), None);
    }

    #[test]
    fn the_best_fixed_width_is_the_cheapest() {
        let rows = [
            row(PLAIN, &[4.0, 4.0]),
            row(DraftWidth::Auto, &[2.0, 2.0]),
            row(2.into(), &[3.0, 3.0]),
            row(5.into(), &[1.0, 1.0]),
        ];
        let out = table(&rows, None);
        assert!(out.contains("| a | 5 | 0.500 | 0.500 | 2.000 | 2.000 | - |"), "{out}");
    }
}

//! Rows compared, and as a table.

use super::row::{PLAIN, Row, first_difference};
use super::spread::Spread;
use crate::failure::Failure;
use glimmer_engine::DraftWidth;
use std::fmt::Write as _;

/// Rows of a prompt whose tokens are not those of decoding plainly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    prompt: String,
    width: String,
    place: usize,
    /// What was expected there, and what was found; `None` is the end.
    tokens: [Option<u32>; 2],
}

impl From<Difference> for Failure {
    fn from(difference: Difference) -> Self {
        let Difference { prompt, width, place, tokens } = difference;
        let [expected, found] = tokens.map(|token| token.map_or("the end".into(), |token| token.to_string()));
        Failure::Runtime(format!(
            "prompt `{prompt}`, width {width}: token {place} differs, expected {expected}, found {found}; no speedup is given"
        ))
    }
}

/// Compares the rows of each prompt with the first of them, and gives every row its speedup, or none of them where tokens differ.
/// The rows of a prompt begin with the one without a drafter, if there is one.
pub fn compare(rows: &mut [Row]) -> Result<(), Difference> {
    let mut first: Option<Difference> = None;
    for row in rows.chunk_by_mut(|a, b| a.prompt == b.prompt) {
        let expected = row[0].token_ids.clone();
        for row in row {
            let other = first_difference(&expected, &row.token_ids);
            let other = other.map(|place| (place, row.token_ids.get(place).copied())).or(row.unsteady);
            row.differs = other.map(|(place, _)| place);
            if let (Some((place, found)), None) = (other, &first) {
                let tokens = [expected.get(place).copied(), found];
                first = Some(Difference { prompt: row.prompt.clone(), width: row.label(), place, tokens });
            }
        }
    }
    if let Some(difference) = first {
        return Err(difference);
    }
    for rows in rows.chunk_by_mut(|a, b| a.prompt == b.prompt) {
        let plain = rows[0].rate().filter(|_| rows[0].width == PLAIN).map(|rate| rate.median);
        for row in rows {
            row.speedup = row.rate().zip(plain).map(|(rate, plain)| rate.median / plain);
        }
    }
    Ok(())
}

/// Places of proposals that the table shows.
const PLACES: usize = 5;

/// For people, in Markdown.
pub fn table(rows: &[Row]) -> String {
    let mut out = String::from(
        "| prompt | width | tok/s | speedup | tokens a round | accepted, % by place | prefill tok/s |\n\
         |---|---:|---:|---:|---:|---|---:|\n",
    );
    let none = || String::from("-");
    for row in rows {
        let spread = |spread: Option<Spread>| spread.map_or_else(none, |spread| spread.to_string());
        let accepted: Vec<String> =
            row.rounds.acceptance().iter().take(PLACES).map(|share| format!("{:.0}", 100.0 * share)).collect();
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} |",
            row.prompt.replace('|', "\\|"),
            row.label(),
            spread(row.rate()),
            row.speedup.map_or_else(none, |speedup| format!("{speedup:.2}")),
            row.rounds.tokens_per_round().map_or_else(none, |tokens| format!("{tokens:.2}")),
            if accepted.is_empty() { none() } else { accepted.join(" ") },
            row.prefill().map_or_else(none, |rate| format!("{:.0}", rate.median)),
        );
    }
    let mut widths: Vec<DraftWidth> = Vec::new();
    for row in rows.iter().filter(|row| row.width != PLAIN) {
        if !widths.contains(&row.width) {
            widths.push(row.width);
        }
    }
    for width in widths {
        let speedups: Vec<f64> = rows.iter().filter(|row| row.width == width).filter_map(|row| row.speedup).collect();
        if speedups.len() > 1 {
            let mean = (speedups.iter().map(|x| x.ln()).sum::<f64>() / speedups.len() as f64).exp();
            let _ = writeln!(out, "| all (geometric mean) | {width} | | {mean:.2} | | | |");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::prompts::Encoded;
    use crate::bench::row::Run;
    use glimmer_engine::{Finish, Generation, Timings};
    use std::time::Duration;

    /// A row whose continuations took a second each.
    fn row(prompt: &str, width: DraftWidth, outputs: &[&[u32]]) -> Row {
        let run = |tokens: &&[u32]| Run {
            generation: Generation {
                token_ids: tokens.to_vec(),
                text: None,
                reasoning: String::new(),
                tool_messages: Vec::new(),
                finish: Finish::Length,
                rounds: Vec::new(),
                timings: Timings::default(),
            },
            time: Duration::from_secs(1),
            cpu: None,
        };
        let prompt = Encoded { name: prompt.into(), ids: vec![1], framing: "ids" };
        Row::new(&prompt, width, &outputs.iter().map(run).collect::<Vec<_>>(), 1)
    }

    #[test]
    fn a_speedup_is_given_where_tokens_are_equal() {
        let mut rows = [
            row("a", PLAIN, &[&[1, 2, 3]]),
            row("a", 5.into(), &[&[1, 2, 3], &[1, 2, 3]]),
            row("b", PLAIN, &[&[4, 5]]),
            row("b", 5.into(), &[&[4, 5]]),
        ];
        assert_eq!(compare(&mut rows), Ok(()));
        assert!(rows.iter().all(|row| row.speedup == Some(1.0) && row.differs.is_none()));
        assert!(table(&rows).contains("| all (geometric mean) | 5 | | 1.00 |"), "{}", table(&rows));
        // Nothing to compare it with.
        let mut alone = [row("a", DraftWidth::Auto, &[&[1, 2]]), row("a", 5.into(), &[&[1, 2]])];
        assert_eq!(compare(&mut alone), Ok(()));
        assert!(alone.iter().all(|row| row.speedup.is_none()));
    }

    #[test]
    fn where_a_token_differs_there_is_no_speedup_at_all() {
        let equal: &[u32] = &[1, 2, 3];
        for (outputs, place, line) in [
            (&[&[1u32, 9, 3][..]][..], 1, "token 1 differs, expected 2, found 9"),
            (&[&[1, 2][..]], 2, "token 2 differs, expected 3, found the end"),
            (&[&[1, 2, 3, 4][..]], 3, "token 3 differs, expected the end, found 4"),
            // Not the first continuation, but one after it.
            (&[equal, &[7, 2, 3][..]], 0, "token 0 differs, expected 1, found 7"),
        ] {
            let mut rows = [
                row("a", PLAIN, &[equal]),
                row("a", 5.into(), &[equal]),
                row("b", PLAIN, &[equal]),
                row("b", 8.into(), outputs),
            ];
            let difference = compare(&mut rows).unwrap_err();
            assert_eq!(rows.each_ref().map(|row| row.differs), [None, None, None, Some(place)]);
            assert!(rows.iter().all(|row| row.speedup.is_none()));
            assert!(!table(&rows).contains("geometric"));
            let Failure::Runtime(said) = difference.into() else { panic!("another failure") };
            assert!(said.starts_with("prompt `b`, width 8: ") && said.contains(line), "{said}");
        }
    }
}

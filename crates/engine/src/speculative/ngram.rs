//! Prompt lookup: what followed the same tokens earlier in the sequence is proposed again. For edits, quotations and code
//! that repeats itself; needs no weights.

use super::Draft;
use std::collections::HashMap;

/// The most rows of a round that looks up its proposals.
pub const BLOCK: usize = 16;
/// Tokens that have to be the same.
pub const SHORTEST: usize = 3;
/// Tokens that have to be the same where a drafter with weights could be asked instead.
pub const LONG: usize = 8;

/// The states whose latest occurrence is kept up to date with every token: those of the longest suffixes that occur elsewhere.
const REFRESHED: usize = 16;
const NONE: u32 = u32::MAX;

/// A suffix automaton of the verified tokens of one sequence.
///
/// It takes what is new when it is asked, so a token costs constant time (amortised), and tokens that were taken back cost
/// nothing unless they are in it already: then it is made anew. There are at most two states and three edges to a token, which
/// is less than 250 bytes.
#[derive(Default)]
pub struct Lookup {
    tokens: Vec<u32>,
    states: Vec<State>,
    edges: Vec<Edge>,
    /// Where the edge of a state and a token is.
    places: HashMap<(u32, u32), u32>,
    /// The state of the whole sequence.
    last: u32,
    /// The longest suffix of the sequence that occurs elsewhere too.
    found: Option<Match>,
}

/// Sequences that end at the same places.
#[derive(Clone, Copy)]
struct State {
    /// Tokens of the longest of them.
    len: u32,
    /// The state of its longest suffix that ends at other places as well.
    link: u32,
    /// A place where they end: the position of the last token. The latest where it was among the refreshed.
    end: u32,
    /// The first edge of its list.
    edges: u32,
}

struct Edge {
    token: u32,
    to: u32,
    next: u32,
}

/// An earlier occurrence of the newest tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Match {
    len: usize,
    /// The position of its last token.
    end: usize,
}

impl Lookup {
    /// Proposes at most `count` tokens that follow `verified` and `anchor`, the newest token: those that followed the longest
    /// suffix that occurs earlier, the latest occurrence of it. What is not there yet is taken from the proposals, as
    /// the text may be periodic. None where fewer than `shortest` tokens are the same.
    pub fn draft(&mut self, verified: &[u32], anchor: u32, count: usize, shortest: usize) -> Draft {
        self.bring_to(verified, anchor);
        let Some(Match { len, end }) = self.found.filter(|found| found.len >= shortest) else {
            return Draft::default();
        };
        let mut tokens = Vec::with_capacity(count);
        for at in end + 1..=end + count {
            let token = self.tokens.get(at).or_else(|| tokens.get(at - self.tokens.len()));
            tokens.extend(token.copied());
        }
        // Its odds are m to 1 after m equal tokens, until the controller knows better.
        let confidence = vec![len as f64 / (len + 1) as f64; tokens.len()];
        Draft { tokens, confidence }
    }

    /// Makes it the automaton of `verified` and `anchor`.
    fn bring_to(&mut self, verified: &[u32], anchor: u32) {
        let known = self.tokens.len();
        let extends = match self.tokens.split_last() {
            None => false,
            // Only the last token has been outside the cache, where everything else is only ever cut off.
            Some((newest, _)) => known <= verified.len() && verified[known - 1] == *newest,
        };
        if !extends {
            self.clear();
        }
        for &token in verified[self.tokens.len()..].iter().chain([&anchor]) {
            self.push(token);
        }
    }

    /// Forgets tokens from `len` on; the automaton is made anew where it has them.
    pub fn truncate(&mut self, len: usize) {
        if len < self.tokens.len() {
            self.clear();
        }
    }

    fn clear(&mut self) {
        *self = Self::default();
    }

    fn push(&mut self, token: u32) {
        if self.states.is_empty() {
            self.states.push(State { len: 0, link: NONE, end: 0, edges: NONE });
        }
        let position = self.tokens.len() as u32;
        self.tokens.push(token);
        let new = self.state(State { len: position + 1, link: 0, end: position, edges: NONE });
        let mut from = self.last;
        let link = loop {
            match self.places.get(&(from, token)) {
                Some(&place) => break self.suffix(from, token, self.edges[place as usize].to),
                None => self.connect(from, token, new),
            }
            from = self.states[from as usize].link;
            if from == NONE {
                break 0;
            }
        };
        self.states[new as usize].link = link;
        self.last = new;
        let State { len, end, .. } = self.states[link as usize];
        self.found = (len > 0).then_some(Match { len: len as usize, end: end as usize });
        let mut state = link;
        for _ in 0..REFRESHED {
            if state == 0 {
                break;
            }
            self.states[state as usize].end = position;
            state = self.states[state as usize].link;
        }
    }

    /// The state of the longest sequence of `from` with `token` behind it, which is in `to`, maybe among longer ones.
    fn suffix(&mut self, from: u32, token: u32, to: u32) -> u32 {
        let len = self.states[from as usize].len + 1;
        if self.states[to as usize].len == len {
            return to;
        }
        // Those that are no longer end at one more place from now on.
        let short = self.state(State { len, edges: NONE, ..self.states[to as usize] });
        let mut edge = self.states[to as usize].edges;
        while edge != NONE {
            let Edge { token, to, next } = self.edges[edge as usize];
            self.connect(short, token, to);
            edge = next;
        }
        self.states[to as usize].link = short;
        let mut from = from;
        while from != NONE {
            match self.places.get(&(from, token)) {
                Some(&place) if self.edges[place as usize].to == to => self.edges[place as usize].to = short,
                _ => break,
            }
            from = self.states[from as usize].link;
        }
        short
    }

    fn state(&mut self, state: State) -> u32 {
        self.states.push(state);
        self.states.len() as u32 - 1
    }

    fn connect(&mut self, from: u32, token: u32, to: u32) {
        let place = self.edges.len() as u32;
        self.edges.push(Edge { token, to, next: self.states[from as usize].edges });
        self.states[from as usize].edges = place;
        self.places.insert((from, token), place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// The longest suffix that ends earlier too, and all places where it does, by comparing.
    fn by_comparing(tokens: &[u32]) -> Option<(usize, Vec<usize>)> {
        (1..tokens.len()).rev().find_map(|len| {
            let suffix = &tokens[tokens.len() - len..];
            let ends: Vec<usize> =
                (len - 1..tokens.len() - 1).filter(|&e| &tokens[e + 1 - len..=e] == suffix).collect();
            (!ends.is_empty()).then_some((len, ends))
        })
    }

    fn texts() -> Vec<Vec<u32>> {
        let mut random = Random::new(3);
        let mut texts = vec![vec![7; 60], (0..60).map(|i| i % 5).collect(), (0..40).collect()];
        for vocab in [2, 3, 8, 30] {
            texts.push((0..200).map(|_| random.below(vocab)).collect());
        }
        // Copies with edits.
        let mut text: Vec<u32> = (0..50).map(|_| random.below(500)).collect();
        for copy in 0..4 {
            let mut part = text[..50].to_vec();
            part[10 * copy + 5] = 1000 + copy as u32;
            text.extend(part);
        }
        texts.push(text);
        texts
    }

    #[test]
    fn the_longest_suffix_is_found_and_its_latest_place() {
        for text in texts() {
            let mut lookup = Lookup::default();
            let (mut latest, mut all) = (0, 0);
            for end in 1..=text.len() {
                lookup.push(text[end - 1]);
                let expected = by_comparing(&text[..end]);
                assert_eq!(
                    lookup.found.map(|found| found.len),
                    expected.as_ref().map(|(len, _)| *len),
                    "{:?}",
                    &text[..end]
                );
                if let (Some(found), Some((_, ends))) = (lookup.found, expected) {
                    assert!(ends.contains(&found.end), "{found:?} of {:?}", &text[..end]);
                    latest += usize::from(ends.last() == Some(&found.end));
                    all += 1;
                }
            }
            assert!(latest * 100 >= all * 99, "{latest} of {all}");
            assert!(lookup.states.len() <= 2 * text.len() && lookup.edges.len() <= 3 * text.len());
        }
    }

    #[test]
    fn what_followed_is_proposed() {
        let mut lookup = Lookup::default();
        let draft = lookup.draft(&[1, 2, 3, 4, 5, 6, 9, 1, 2], 3, 4, 3);
        assert_eq!((draft.tokens, draft.confidence), (vec![4, 5, 6, 9], vec![0.75; 4]));
        // Periodic text goes on, also beyond what is there.
        assert_eq!(lookup.draft(&[1, 2, 3, 1, 2], 3, 7, 3).tokens, [1, 2, 3, 1, 2, 3, 1]);
        assert_eq!(lookup.draft(&[5, 5, 5], 5, 3, 3).tokens, [5, 5, 5]);
        assert_eq!(lookup.draft(&[1, 2, 8, 1], 2, 3, 3), Draft::default());
        assert_eq!(lookup.draft(&[], 2, 3, 1), Draft::default());
    }

    #[test]
    fn tokens_that_were_taken_back_are_forgotten() {
        for text in texts() {
            let mut lookup = Lookup::default();
            let mut random = Random::new(9);
            let mut verified = text[..20].to_vec();
            for _ in 0..60 {
                let anchor = random.below(9);
                let fresh = Lookup::default().draft(&verified, anchor, 9, 1);
                assert_eq!(lookup.draft(&verified, anchor, 9, 1), fresh);
                match random.below(4) {
                    0 => {
                        let len = verified.len() - random.below((verified.len() as u32).div_ceil(2)) as usize;
                        verified.truncate(len);
                        lookup.truncate(len);
                    }
                    // The anchor came out differently, as it does where an answer was cut and something else follows.
                    1 => verified.push(100),
                    _ => verified.extend([anchor, text[verified.len() % text.len()]]),
                }
            }
        }
    }

    #[test]
    fn a_long_text_takes_linear_time() {
        // Whoever walked all suffixes of these would not come to an end.
        for text in [vec![1; 300_000], (0..300_000).map(|i| i % 1000).collect()] {
            let draft = Lookup::default().draft(&text, text[0], 15, LONG);
            assert_eq!(draft.tokens, text[1..16]);
        }
    }
}

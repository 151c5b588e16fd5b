//! Telling the control tokens that a template writes from text that looks like them.

use crate::tokenizer::{Segment, Tokenizer};
use std::hash::{BuildHasher, Hasher, RandomState};

/// Stands for the special literals of a template: `digits` and the index of the literal.
pub(super) struct Marker {
    pub(super) digits: String,
    /// Literal and id, longest first: the first that fits at a place is the one meant.
    pub(super) specials: Vec<(String, u32)>,
}

impl Marker {
    /// Digits of an index. Digits alone survive every filter that changes the case or the escaping of text.
    const WIDTH: usize = 8;

    pub(super) fn new(tokenizer: &Tokenizer) -> Self {
        let mut specials: Vec<_> = tokenizer.specials().map(|(literal, id)| (literal.to_string(), id)).collect();
        specials.sort_by_key(|(literal, _)| std::cmp::Reverse(literal.len()));
        let random = || u128::from(RandomState::new().build_hasher().finish());
        let mut noise = random() << 64 | random();
        // No 1 but the first, so that the marker cannot overlap itself.
        let mut digits = "1".to_string();
        for _ in 0..30 {
            digits.push(['0', '2', '3', '4', '5', '6', '7', '8', '9'][(noise % 9) as usize]);
            noise /= 9;
        }
        Self { digits, specials }
    }

    /// `source` with markers for its special literals, and whether it holds parts of such literals beside them.
    pub(super) fn mark(&self, source: &str) -> (String, bool) {
        let mut marked = String::with_capacity(source.len());
        let mut rest = String::new();
        let mut from = 0;
        while let Some((at, index)) = self.find_literal(source, from) {
            marked.push_str(&source[from..at]);
            rest.push_str(&source[from..at]);
            marked.push_str(&format!("{}{index:0width$}", self.digits, width = Self::WIDTH));
            rest.push(' ');
            from = at + self.specials[index].0.len();
        }
        marked.push_str(&source[from..]);
        rest.push_str(&source[from..]);
        (marked, self.edges().iter().any(|edge| edge.len() > 1 && rest.contains(edge)))
    }

    /// What all special literals begin with, and what they end with.
    fn edges(&self) -> [&str; 2] {
        let Some((first, _)) = self.specials.first() else { return ["", ""] };
        let all = |fits: &dyn Fn(&str) -> bool| self.specials.iter().all(|(literal, _)| fits(literal));
        let cuts = || first.char_indices().map(|(at, _)| at).chain([first.len()]);
        let head = cuts().rev().map(|at| &first[..at]).find(|head| all(&|literal| literal.starts_with(head)));
        let tail = cuts().map(|at| &first[at..]).find(|tail| all(&|literal| literal.ends_with(tail)));
        [head.unwrap_or(""), tail.unwrap_or("")]
    }

    /// The next special literal at or after `from`: its place, and its index.
    pub(super) fn find_literal(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        let mut begins = [false; 256];
        for byte in self.specials.iter().filter_map(|(literal, _)| literal.bytes().next()) {
            begins[usize::from(byte)] = true;
        }
        let starts = text.bytes().enumerate().skip(from).filter(|(_, byte)| begins[usize::from(*byte)]);
        for (at, _) in starts {
            let fits = |(literal, _): &(String, u32)| text.as_bytes()[at..].starts_with(literal.as_bytes());
            if let Some(index) = self.specials.iter().position(fits) {
                return Some((at, index));
            }
        }
        None
    }

    /// Text and control tokens of a rendered prompt. `None` if what follows a marker is not an index.
    pub(super) fn split(&self, rendered: &str) -> Option<Vec<Segment>> {
        let mut segments = Vec::new();
        let mut rest = rendered;
        while let Some((text, after)) = rest.split_once(&self.digits) {
            if !text.is_empty() {
                segments.push(Segment::Text(text.to_string()));
            }
            let index: usize = after.get(..Self::WIDTH)?.parse().ok()?;
            segments.push(Segment::Control(self.specials.get(index)?.1));
            rest = &after[Self::WIDTH..];
        }
        if !rest.is_empty() {
            segments.push(Segment::Text(rest.to_string()));
        }
        Some(segments)
    }

    /// `text`, with the literals again in place of markers.
    pub(super) fn unmark(&self, text: &str) -> String {
        let mut out = String::new();
        for (n, part) in text.split(&self.digits).enumerate() {
            let index = part.get(..Self::WIDTH).and_then(|index| index.parse::<usize>().ok());
            match index.and_then(|index| self.specials.get(index)) {
                Some((literal, _)) if n > 0 => {
                    out.push_str(literal);
                    out.push_str(&part[Self::WIDTH..]);
                }
                _ => out.push_str(part),
            }
        }
        out
    }
}

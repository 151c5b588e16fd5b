//! Where a generation ends: the one place that cuts text and counts tokens.

use thiserror::Error;

/// Most stop strings of one request.
pub const MAX_STOPS: usize = 64;
/// Longest stop string in bytes.
pub const MAX_STOP_BYTES: usize = 1024;

/// What ends a generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopRule {
    /// Tokens that end it.
    pub eos: Vec<u32>,
    /// Treats the tokens in `eos` as any other.
    pub ignore_eos: bool,
    /// Most tokens of the output.
    pub max_tokens: Option<usize>,
    /// Strings that end it when the text contains them.
    pub strings: Vec<String>,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model or the request said so.
    Stop(StopCause),
    /// The limit of tokens was reached.
    Length,
}

/// What stopped a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// This end token.
    Token(u32),
    /// The stop string of this index.
    String(usize),
}

/// Applies a [`StopRule`] token by token.
pub struct Clip {
    rule: StopRule,
    matcher: StopMatcher,
    tokens: usize,
    finish: Option<FinishReason>,
}

/// What one token gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clipped {
    /// Text that is now final.
    pub emit: String,
    /// Set with the last token of the output, and from then on.
    pub finish: Option<FinishReason>,
}

impl Clip {
    /// Refuses stop strings by name.
    pub fn new(rule: StopRule) -> Result<Self, StopError> {
        let matcher = StopMatcher::new(&rule.strings)?;
        Ok(Self { rule, matcher, tokens: 0, finish: None })
    }

    /// Counts a token and the text that it completed. In this order: an end token counts but gives no text; a stop string
    /// counts up to the token that completes it and gives the text before it; the limit of tokens.
    /// After the end nothing counts.
    pub fn push(&mut self, token: u32, piece: &str) -> Clipped {
        if self.finish.is_some() || self.exhausted() {
            return Clipped { emit: String::new(), finish: Some(self.finish.unwrap_or(FinishReason::Length)) };
        }
        self.tokens += 1;
        let mut emit = String::new();
        if !self.rule.ignore_eos && self.rule.eos.contains(&token) {
            self.finish = Some(FinishReason::Stop(StopCause::Token(token)));
        } else {
            let step = self.matcher.push(piece);
            emit = step.emit;
            self.finish = match step.hit {
                Some(hit) => Some(FinishReason::Stop(StopCause::String(hit.which))),
                None => self.exhausted().then_some(FinishReason::Length),
            };
        }
        if self.finish.is_some() {
            emit.push_str(&self.matcher.finish());
        }
        Clipped { emit, finish: self.finish }
    }

    /// Whether the limit of tokens is reached; with a limit of 0 before the first.
    pub fn exhausted(&self) -> bool {
        self.rule.max_tokens.is_some_and(|limit| self.tokens >= limit)
    }

    /// Tokens of the output so far, an end token included.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The text held back, where the generation ends for a reason that is not the rule's (cancelled, context full).
    pub fn flush(&mut self) -> String {
        self.matcher.finish()
    }
}

/// Finds stop strings in text that arrives in pieces, and releases what certainly precedes the first.
///
/// The first is the one that ends earliest, and of those that end together the one that starts earliest.
pub struct StopMatcher {
    stops: Vec<Automaton>,
    /// Text received and not released.
    held: String,
    hit: Option<StopHit>,
}

/// What one piece of text gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopStep {
    /// Text that is now final.
    pub emit: String,
    /// Set when a stop string was found, and from then on.
    pub hit: Option<StopHit>,
}

/// A stop string that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopHit {
    /// Its index in the request.
    pub which: usize,
}

impl StopMatcher {
    /// Refuses empty, too long and too many strings.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self, StopError> {
        if stops.len() > MAX_STOPS {
            return Err(StopError::TooMany { found: stops.len() });
        }
        for (which, stop) in stops.iter().enumerate() {
            match stop.as_ref().len() {
                0 => return Err(StopError::Empty { which }),
                found if found > MAX_STOP_BYTES => return Err(StopError::TooLong { which, found }),
                _ => {}
            }
        }
        let stops = stops.iter().map(|stop| Automaton::new(stop.as_ref())).collect();
        Ok(Self { stops, held: String::new(), hit: None })
    }

    /// Takes the next piece of text. After a hit everything is cut.
    pub fn push(&mut self, piece: &str) -> StopStep {
        if self.hit.is_some() {
            return StopStep { emit: String::new(), hit: self.hit };
        }
        let before = self.held.len();
        self.held.push_str(piece);
        for (at, &byte) in piece.as_bytes().iter().enumerate() {
            let mut longest = 0;
            for (which, stop) in self.stops.iter_mut().enumerate() {
                if stop.advance(byte) && stop.pattern.len() > longest {
                    longest = stop.pattern.len();
                    self.hit = Some(StopHit { which });
                }
            }
            if self.hit.is_some() {
                self.held.truncate(before + at + 1 - longest);
                return StopStep { emit: std::mem::take(&mut self.held), hit: self.hit };
            }
        }
        // A partial match begins with a stop string's first byte, so this is a border between characters.
        let partial = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - partial);
        StopStep { emit: std::mem::replace(&mut self.held, rest), hit: None }
    }

    /// Releases what was held back, as no more text comes.
    pub fn finish(&mut self) -> String {
        for stop in &mut self.stops {
            stop.matched = 0;
        }
        std::mem::take(&mut self.held)
    }
}

/// The Knuth-Morris-Pratt automaton of one string, over bytes.
struct Automaton {
    pattern: Box<[u8]>,
    /// For each prefix, less one byte: the length of its longest proper border.
    borders: Box<[usize]>,
    /// Length of the longest prefix of the pattern that the text ends with.
    matched: usize,
}

impl Automaton {
    fn new(pattern: &str) -> Self {
        let pattern: Box<[u8]> = pattern.as_bytes().into();
        let mut borders = vec![0; pattern.len()];
        let mut border = 0;
        for at in 1..pattern.len() {
            while border > 0 && pattern[border] != pattern[at] {
                border = borders[border - 1];
            }
            border += usize::from(pattern[border] == pattern[at]);
            borders[at] = border;
        }
        Self { pattern, borders: borders.into(), matched: 0 }
    }

    /// Whether this byte completes the pattern. Then no more bytes may come.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.pattern[self.matched] != byte {
            self.matched = self.borders[self.matched - 1];
        }
        self.matched += usize::from(self.pattern[self.matched] == byte);
        self.matched == self.pattern.len()
    }
}

/// Stop strings that cannot be honoured.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StopError {
    /// An empty string is found everywhere.
    #[error("stop string {which} is empty, expected at least one character")]
    Empty {
        /// Its index.
        which: usize,
    },
    /// Longer than text is held back.
    #[error("stop string {which} has {found} bytes, expected at most {MAX_STOP_BYTES}")]
    TooLong {
        /// Its index.
        which: usize,
        /// Its length in bytes.
        found: usize,
    },
    /// More than are searched for.
    #[error("{found} stop strings, expected at most {MAX_STOPS}")]
    TooMany {
        /// Their number.
        found: usize,
    },
}

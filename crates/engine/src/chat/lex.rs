//! Jinja's tags and tokens, cut exactly where the template engine cuts them, or refused.

/// Where a tag ends, and what it holds.
pub(super) struct Tag<'s> {
    /// `{% … %}`, otherwise `{{ … }}`.
    pub(super) block: bool,
    pub(super) tokens: Vec<Token<'s>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Ident,
    Str,
    Number,
    Op,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'s> {
    pub(super) kind: Kind,
    pub(super) text: &'s str,
    /// Offset behind it in the source.
    pub(super) end: usize,
}

impl Token<'_> {
    pub(super) fn is(&self, kind: Kind, text: &str) -> bool {
        self.kind == kind && self.text == text
    }
}

pub(super) struct Lexer<'s> {
    source: &'s str,
    at: usize,
}

impl<'s> Lexer<'s> {
    pub(super) fn new(source: &'s str) -> Self {
        Self { source, at: 0 }
    }

    /// The line that has been reached, from 1.
    pub(super) fn line(&self) -> usize {
        1 + self.source.bytes().take(self.at).filter(|&byte| byte == b'\n').count()
    }

    fn rest(&self) -> &'s [u8] {
        self.source.as_bytes().get(self.at..).unwrap_or_default()
    }

    /// The next tag with an expression or a statement.
    pub(super) fn tag(&mut self) -> Result<Option<Tag<'s>>, &'static str> {
        loop {
            let starts = |pair: &[u8]| pair[0] == b'{' && matches!(pair[1], b'{' | b'%' | b'#');
            let Some(start) = self.rest().windows(2).position(starts) else { return Ok(None) };
            let marker = self.rest()[start + 1];
            self.at += start + 2;
            if matches!(self.rest().first(), Some(b'-' | b'+')) {
                self.at += 1;
            }
            match marker {
                b'#' => {
                    let end = find(self.rest(), b"#}").ok_or("unexpected end of comment")?;
                    self.at += end + 2;
                }
                b'%' => match basic_tag(self.rest(), b"raw") {
                    None => return self.tokens(true).map(Some),
                    Some(length) => {
                        self.at += length;
                        self.skip_raw()?;
                    }
                },
                _ => return self.tokens(false).map(Some),
            }
        }
    }

    fn skip_raw(&mut self) -> Result<(), &'static str> {
        loop {
            let block = find(self.rest(), b"{%").ok_or("unexpected end of raw block")?;
            self.at += block + 2;
            let control = usize::from(matches!(self.rest().first(), Some(b'-' | b'+')));
            if let Some(length) = basic_tag(&self.rest()[control..], b"endraw") {
                self.at += control + length;
                return Ok(());
            }
        }
    }

    fn tokens(&mut self, block: bool) -> Result<Tag<'s>, &'static str> {
        let end: &[u8] = if block { b"%}" } else { b"}}" };
        let mut tokens = Vec::new();
        let mut open = 0usize;
        loop {
            self.at += self.rest().iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            let rest = self.rest();
            let control = usize::from(matches!(rest.first(), Some(b'-' | b'+')));
            if open == 0 && (rest.starts_with(end) || rest[control..].starts_with(end)) {
                self.at += end.len() + if rest.starts_with(end) { 0 } else { control };
                return Ok(Tag { block, tokens });
            }
            let (kind, length) = token(self.source, self.at)?;
            let text = self.source.get(self.at..self.at + length).ok_or("unexpected character")?;
            match text {
                _ if kind != Kind::Op => {}
                "(" | "[" | "{" => open += 1,
                ")" | "]" | "}" => open = open.checked_sub(1).ok_or("unexpected closing bracket")?,
                _ => {}
            }
            self.at += length;
            tokens.push(Token { kind, text, end: self.at });
        }
    }
}

/// Kind and length of the token at `at`, which is no white space.
fn token(source: &str, at: usize) -> Result<(Kind, usize), &'static str> {
    let rest = &source.as_bytes()[at..];
    let word = |from: usize| rest[from..].iter().take_while(|&&c| c == b'_' || c.is_ascii_alphanumeric()).count();
    Ok(match rest {
        [] => return Err("unexpected end of input"),
        [b'/', b'/', ..] | [b'*', b'*', ..] | [b'=' | b'!' | b'>' | b'<', b'=', ..] => (Kind::Op, 2),
        [quote @ (b'\'' | b'"'), ..] => (Kind::Str, string(rest, *quote).ok_or("unexpected end of string")?),
        [c, ..] if c.is_ascii_digit() => (Kind::Number, number(rest, source.as_bytes()[..at].last() == Some(&b'.'))),
        [c, ..] if b"+-*/%.,:~|=><()[]{}".contains(c) => (Kind::Op, 1),
        // Names beyond ASCII would need the tables of the template engine to be cut where it cuts them.
        [b'_' | b'a'..=b'z' | b'A'..=b'Z', ..] if rest.get(word(0)).is_none_or(u8::is_ascii) => (Kind::Ident, word(0)),
        _ => return Err("unexpected character"),
    })
}

fn string(rest: &[u8], quote: u8) -> Option<usize> {
    let mut escaped = false;
    for (n, &c) in rest.iter().enumerate().skip(1) {
        match c {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            _ if c == quote => return Some(n + 1),
            _ => {}
        }
    }
    None
}

/// A number with all that the template engine takes to belong to it, be it valid or not.
fn number(rest: &[u8], after_dot: bool) -> usize {
    let (prefix, radix) = match rest {
        [b'0', b'b' | b'B' | b'o' | b'O', ..] => (2, 8),
        [b'0', b'x' | b'X', ..] => (2, 16),
        _ => (0, 10),
    };
    let mut length = prefix + rest[prefix..].iter().take_while(|c| c.is_ascii_digit()).count();
    let (mut fraction, mut exponent, mut sign) = (false, false, false);
    while let Some(c) = rest.get(length) {
        let whole = radix == 10 && !fraction && !exponent;
        match c {
            b'.' if whole && !after_dot => {
                let after = &rest[length + 1..];
                let power = matches!(after, [b'e' | b'E', b'+' | b'-' | b'0'..=b'9', ..]);
                if !power && matches!(after, [b'_' | b'a'..=b'z' | b'A'..=b'Z', ..]) {
                    break;
                }
                fraction = true;
            }
            b'e' | b'E' if radix == 10 && !exponent => exponent = true,
            b'+' | b'-' if exponent && !sign => sign = true,
            b'0'..=b'9' => sign |= exponent,
            b'a'..=b'f' | b'A'..=b'F' if radix == 16 => {}
            b'_' => {}
            _ => break,
        }
        length += 1;
    }
    length
}

/// The length of the rest of `{% NAME %}`, if that is what stands here.
fn basic_tag(rest: &[u8], name: &[u8]) -> Option<usize> {
    let blank = |from: usize| rest[from..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let mut at = blank(0);
    at += rest[at..].starts_with(name).then_some(name.len())?;
    at += blank(at);
    at += usize::from(matches!(rest.get(at), Some(b'-' | b'+')));
    rest[at..].starts_with(b"%}").then_some(at + 2)
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

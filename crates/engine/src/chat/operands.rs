//! Making a template's work measurable, before the template engine sees it.
//!
//! The engine counts instructions and the bytes that they make, but not what an operator does inside of its operands, and
//! values with shared parts are larger than what it took to make them. So every operand of every operator, filter, test
//! and call gets the filter [`BOUNDED`] behind it, which charges for the whole value. Where each operand ends is plain from
//! the tokens alone. Nesting and the number of operators in a tag are limited, because the engine recurses over both.

use super::lex::{Kind, Lexer, Tag, Token};

/// The filter behind every operand.
pub(super) const BOUNDED: &str = "_bounded";
/// The filter behind the operands of `*`, which would repeat a list.
pub(super) const SCALAR: &str = "_scalar";

/// Brackets in brackets, and blocks in blocks; each `elif` is one, too.
const MAX_DEPTH: usize = 100;
/// Operators, brackets and keywords in a tag.
const MAX_OPERATORS: usize = 1000;

/// `source` with filters behind its operands, or why it is no template for this purpose.
pub(super) fn mark(source: &str) -> Result<String, String> {
    let mut lexer = Lexer::new(source);
    let mut marked = String::with_capacity(source.len() * 2);
    let mut copied = 0;
    let mut blocks: Vec<usize> = Vec::new();
    loop {
        let located = |reason: &str, lexer: &Lexer<'_>| format!("syntax error: {reason} (line {})", lexer.line());
        let Some(tag) = lexer.tag().map_err(|reason| located(reason, &lexer))? else { break };
        nest(&mut blocks, &tag).map_err(|reason| located(reason, &lexer))?;
        let marks = Marks::of(&tag).map_err(|reason| located(&reason, &lexer))?;
        for (at, text) in marks {
            marked.push_str(&source[copied..at]);
            marked.push_str(text);
            copied = at;
        }
    }
    marked.push_str(&source[copied..]);
    Ok(marked)
}

fn nest(blocks: &mut Vec<usize>, tag: &Tag<'_>) -> Result<(), &'static str> {
    let Some(keyword) = tag.tokens.first().filter(|_| tag.block) else { return Ok(()) };
    match keyword.text {
        "for" | "if" | "macro" | "call" | "filter" | "with" => blocks.push(1),
        "set" if !tag.tokens.iter().any(|token| token.is(Kind::Op, "=")) => blocks.push(1),
        "elif" => *blocks.last_mut().ok_or("unexpected elif")? += 1,
        name if name.starts_with("end") => drop(blocks.pop()),
        _ => {}
    }
    if blocks.iter().sum::<usize>() > MAX_DEPTH { Err("too many blocks in blocks") } else { Ok(()) }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bracket {
    /// Grouping, a list, a map, a subscript or a call: an operand ends with it.
    Operand,
    /// Arguments of a filter or a test.
    Arguments,
    /// Parameters of a macro.
    Parameters,
}

/// What the last token ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Literal,
    Name,
    /// A name and attributes.
    Path,
    Operand,
    /// A filter or a test: no subscript or call can follow.
    Filtered,
}

/// What is known between two brackets, or outside of all.
#[derive(Default)]
struct Level {
    bracket: Option<Bracket>,
    /// The next name is a parameter.
    naming: bool,
    /// An operator that looks into its operands waits for its right side.
    strict: bool,
    /// A `*` waits for its right side.
    times: bool,
    /// An operator that the engine would compute while it compiles waits for its right side.
    arithmetic: bool,
    /// A test waits for its argument, which has no brackets of its own.
    argument: bool,
}

struct Marks<'t, 's> {
    tokens: &'t [Token<'s>],
    at: usize,
    marks: Vec<(usize, &'static str)>,
    levels: Vec<Level>,
    /// The outermost operand must stay the call that the statement wants.
    call: bool,
    operators: usize,
}

type Marked = Result<(), String>;

impl<'t, 's> Marks<'t, 's> {
    /// Offsets in the source, and what belongs there.
    fn of(tag: &'t Tag<'s>) -> Result<Vec<(usize, &'static str)>, String> {
        let levels = vec![Level::default()];
        let mut marks = Self { tokens: &tag.tokens, at: 0, marks: vec![], levels, call: false, operators: 0 };
        if tag.block {
            marks.statement()?
        } else {
            marks.expression()?
        }
        Ok(marks.marks)
    }

    fn statement(&mut self) -> Marked {
        let keyword = self.next().filter(|token| token.kind == Kind::Ident).ok_or("expected a statement")?;
        match keyword.text {
            "if" | "elif" | "with" => self.expression(),
            "include" => {
                self.level()?.strict = true;
                self.expression()
            }
            "for" | "set" => match self.target(if keyword.text == "for" { "in" } else { "=" })? {
                Some("|") => self.filter().and_then(|()| self.expression()),
                Some(_) => self.expression(),
                None => Ok(()),
            },
            "filter" => self.filter().and_then(|()| self.expression()),
            "macro" | "call" | "do" => {
                self.call = true;
                if keyword.text == "macro" {
                    self.next();
                }
                if keyword.text != "do" && self.next_is("(") {
                    self.at += 1;
                    self.open(Bracket::Parameters)?;
                }
                self.expression()
            }
            "else" | "break" | "continue" => Ok(()),
            name if name.starts_with("end") => Ok(()),
            name => Err(format!("`{name}` is no statement for chat templates")),
        }
    }

    /// Steps behind what is assigned to; what follows it: `end`, or `|` before filters, or nothing.
    fn target(&mut self, end: &str) -> Result<Option<&'s str>, String> {
        while let Some(token) = self.next() {
            match token.text {
                text if text == end || text == "|" => return Ok(Some(text)),
                "(" | ")" | "," | "." => self.count()?,
                _ if token.kind == Kind::Ident => {}
                text => return Err(unexpected(text)),
            }
        }
        Ok(None)
    }

    /// The tokens of expressions, to the end of the tag.
    fn expression(&mut self) -> Marked {
        while let Some(token) = self.next() {
            self.operand(token)?;
        }
        Ok(())
    }

    /// `token`, where an operand is expected.
    fn operand(&mut self, token: Token<'s>) -> Marked {
        let level = self.level()?;
        match (token.kind, token.text) {
            (Kind::Ident, _) if level.naming => {
                level.naming = false;
                match self.next() {
                    Some(next) if next.is(Kind::Op, "=") => Ok(()),
                    Some(next) if matches!(next.text, "," | ")") => self.operand(next),
                    next => Err(unexpected(next.map_or("end", |token| token.text))),
                }
            }
            (Kind::Ident, "not") if !level.argument => self.count(),
            (Kind::Ident, _) => self.after(Last::Name),
            (Kind::Number, _) => self.after(Last::Literal),
            (Kind::Str, _) => {
                self.at += self.tokens[self.at..].iter().take_while(|next| next.kind == Kind::Str).count();
                self.after(Last::Literal)
            }
            (Kind::Op, "(" | "[" | "{") => self.open(Bracket::Operand),
            (Kind::Op, ")" | "]" | "}") => match self.close()? {
                Some(last) => self.after(last),
                None => Ok(()),
            },
            (Kind::Op, ",") => self.comma(),
            // Signs, arguments that are spread out, and parts of a slice that are left out.
            (Kind::Op, "-" | "*" | "**" | ":") => self.count(),
            (_, text) => Err(unexpected(text)),
        }
    }

    /// What follows the end of an operand, up to where the next one is expected.
    fn after(&mut self, mut last: Last) -> Marked {
        loop {
            let end = self.tokens[self.at - 1].end;
            let next = self.tokens.get(self.at).copied();
            let text = next.filter(|token| token.kind != Kind::Str).map_or("", |token| token.text);
            if last != Last::Filtered {
                match text {
                    "." => {
                        self.at += 1;
                        self.count()?;
                        let name = self.next().filter(|token| matches!(token.kind, Kind::Ident | Kind::Number));
                        // It compares with what it keeps, which cannot be charged.
                        name.filter(|name| name.text != "changed").ok_or("unexpected attribute")?;
                        last = Last::Path;
                        continue;
                    }
                    "(" | "[" => {
                        self.at += 1;
                        return self.open(Bracket::Operand);
                    }
                    "=" if last == Last::Name => {
                        self.at += 1;
                        return Ok(());
                    }
                    _ => {}
                }
            }
            if self.call && self.levels.len() == 1 {
                return if next.is_none() { Ok(()) } else { Err(unexpected(text)) };
            }
            let level = self.level()?;
            if std::mem::take(&mut level.argument) {
                self.marks.push((end, "|_bounded)"));
                last = Last::Filtered;
            }
            let asked = matches!(last, Last::Name | Last::Path) && self.is_only_asked(text);
            let level = self.level()?;
            let goes_on = matches!(text, "|" | "is");
            let folds = level.arithmetic || is_arithmetic(text);
            let scalar = !goes_on && (level.times || text == "*");
            if !goes_on {
                (level.times, level.arithmetic) = (false, false);
            }
            if !asked && (last != Last::Literal || folds) {
                self.marks.push((end, if scalar { "|_scalar" } else { "|_bounded" }));
            }
            if next.is_none() {
                return Ok(());
            }
            self.at += 1;
            match text {
                "|" | "is" => {
                    if text == "is" && self.tokens.get(self.at).is_some_and(|token| token.is(Kind::Ident, "not")) {
                        self.at += 1;
                    }
                    self.filter_name()?;
                    if self.next_is("(") {
                        self.at += 1;
                        return self.open(Bracket::Arguments);
                    }
                    if text == "is" && self.tokens.get(self.at).is_some_and(begins_argument) {
                        self.marks.push((self.tokens[self.at - 1].end, " ("));
                        self.level()?.argument = true;
                        return Ok(());
                    }
                    last = Last::Filtered;
                }
                ")" | "]" | "}" => match self.close()? {
                    Some(closed) => last = closed,
                    None => return Ok(()),
                },
                "," => return self.comma(),
                "recursive" if self.tokens.len() == self.at => return Ok(()),
                "not" if self.tokens.get(self.at).is_some_and(|token| token.is(Kind::Ident, "in")) => {
                    self.at += 1;
                    self.level()?.strict = true;
                    return self.count();
                }
                "and" | "or" | "if" | "else" => {
                    self.level()?.strict = false;
                    return self.count();
                }
                ":" | "in" | "==" | "!=" | "<" | "<=" | ">" | ">=" => {
                    self.level()?.strict = true;
                    return self.count();
                }
                _ if is_arithmetic(text) => {
                    let level = self.level()?;
                    (level.times, level.arithmetic, level.strict) = (text == "*", true, true);
                    return self.count();
                }
                text => return Err(unexpected(text)),
            }
        }
    }

    /// Whether a stored value, with `next` behind it, is only stored again, iterated, printed, asked for its truth or
    /// compared with a literal: that takes no longer for a large one.
    fn is_only_asked(&self, next: &str) -> bool {
        let literal = |ahead: usize| {
            self.tokens.get(self.at + ahead).is_some_and(|token| matches!(token.kind, Kind::Str | Kind::Number))
        };
        let ends = |ahead: usize| {
            let next = self.tokens.get(self.at + ahead);
            next.is_none_or(|token| matches!(token.text, "and" | "or" | "if" | "else") && token.kind == Kind::Ident)
        };
        let compared = matches!(next, "==" | "!=") && ends(2) && literal(1);
        matches!(self.levels.as_slice(), [level] if !level.strict && !level.argument) && (ends(0) || compared)
    }

    fn comma(&mut self) -> Marked {
        let level = self.level()?;
        level.naming = level.bracket == Some(Bracket::Parameters);
        level.strict = true;
        Ok(())
    }

    /// A filter that stands before all, without an operand.
    fn filter(&mut self) -> Marked {
        self.filter_name()?;
        if self.next_is("(") {
            self.at += 1;
            return self.open(Bracket::Arguments);
        }
        self.after(Last::Filtered)
    }

    fn filter_name(&mut self) -> Marked {
        self.count()?;
        loop {
            self.next().filter(|token| token.kind == Kind::Ident).ok_or("expected a name")?;
            if !self.next_is(".") {
                return Ok(());
            }
            self.at += 1;
        }
    }

    fn open(&mut self, bracket: Bracket) -> Marked {
        let naming = bracket == Bracket::Parameters;
        self.levels.push(Level { bracket: Some(bracket), naming, ..Level::default() });
        if self.levels.len() > MAX_DEPTH { Err("too many brackets in brackets".into()) } else { self.count() }
    }

    /// What the closing bracket ended, unless an operand is expected behind it.
    fn close(&mut self) -> Result<Option<Last>, String> {
        match self.levels.pop().and_then(|level| level.bracket) {
            Some(Bracket::Operand) => Ok(Some(Last::Operand)),
            Some(Bracket::Arguments) => Ok(Some(Last::Filtered)),
            Some(Bracket::Parameters) => Ok(None),
            None => Err("unexpected closing bracket".into()),
        }
    }

    fn level(&mut self) -> Result<&mut Level, String> {
        self.levels.last_mut().ok_or_else(|| "unexpected closing bracket".into())
    }

    fn next(&mut self) -> Option<Token<'s>> {
        let token = self.tokens.get(self.at).copied()?;
        self.at += 1;
        Some(token)
    }

    fn next_is(&self, op: &str) -> bool {
        self.tokens.get(self.at).is_some_and(|token| token.is(Kind::Op, op))
    }

    fn count(&mut self) -> Marked {
        self.operators += 1;
        if self.operators > MAX_OPERATORS { Err("too many operators in a tag".into()) } else { Ok(()) }
    }
}

fn unexpected(text: &str) -> String {
    format!("unexpected `{}`", text.chars().take(40).collect::<String>())
}

fn is_arithmetic(text: &str) -> bool {
    matches!(text, "+" | "-" | "~" | "*" | "/" | "//" | "%" | "**")
}

/// What the template engine takes for the argument of a test.
fn begins_argument(token: &Token<'_>) -> bool {
    match token.kind {
        Kind::Ident => !matches!(token.text, "and" | "or" | "else" | "is"),
        Kind::Str | Kind::Number => true,
        Kind::Op => matches!(token.text, "+" | "-" | "[" | "{"),
    }
}

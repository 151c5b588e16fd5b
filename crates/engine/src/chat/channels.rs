//! Following the framing of what the model writes.
//!
//! A turn is a sequence of messages `<|start|>assistant to=RECIPIENT<|message|>BODY<|eom|>`, the last one closed by
//! `<|eot|>`. The prompt ends in `<|start|>assistant`, so the first header arrives without those two. Only control tokens
//! frame: the same characters as ordinary text are text. Bodies are passed on as they come, whatever they hold.

use crate::tokenizer::{Tokenizer, TokenizerError};

/// The control tokens of the framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// `<|start|>`, before a header.
    pub start: u32,
    /// `<|message|>`, between header and body.
    pub message: u32,
    /// `<|eom|>`, after a message that others follow.
    pub eom: u32,
    /// `<|eot|>`, after the last message of a turn.
    pub eot: u32,
    /// `<|end_of_text|>`.
    pub end_of_text: u32,
}

impl Frame {
    /// The ids that a tokenizer gives the framing; an error names the one that it lacks.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, TokenizerError> {
        Ok(Self {
            start: tokenizer.require_special("<|start|>")?,
            message: tokenizer.require_special("<|message|>")?,
            eom: tokenizer.require_special("<|eom|>")?,
            eot: tokenizer.require_special("<|eot|>")?,
            end_of_text: tokenizer.require_special("<|end_of_text|>")?,
        })
    }
}

/// Whom a message is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// The model itself: reasoning.
    Self_,
    /// The user: the answer.
    User,
    /// The tool of this name.
    Tool(String),
}

impl Recipient {
    fn named(name: &str) -> Self {
        match name {
            "self" => Self::Self_,
            "user" | "" => Self::User,
            tool => Self::Tool(tool.to_string()),
        }
    }
}

/// What the scanner tells of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelEvent {
    /// A message begins.
    Header {
        /// Whom it is for.
        recipient: Recipient,
    },
    /// More of a message to the model itself.
    Reasoning(String),
    /// More of a message to the user.
    Content(String),
    /// More of a message to a tool, uninterpreted.
    ToolText {
        /// The tool.
        recipient: String,
        /// The text.
        text: String,
    },
    /// The message, or the turn if none has begun, ends.
    EndMessage {
        /// Whether the turn ends with it.
        last: bool,
    },
}

/// Where the scanner stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State<'a> {
    /// Before the `<|message|>` of a message.
    Header,
    /// In the body of a message; a grammar for answers applies from the first body byte for the user.
    Body(&'a Recipient),
    /// The turn is over.
    Ended,
}

/// Reads the model's output after a prompt that ends in `<|start|>assistant`, token by token.
#[derive(Debug)]
pub struct Scanner {
    frame: Frame,
    place: Place,
    /// Text of a header, or the end of a body that may turn out to be a header. Bounded.
    held: String,
}

#[derive(Debug)]
enum Place {
    Header {
        /// Whether `<|start|>` came, after which a role must follow.
        started: bool,
        /// Whether the message before was cut off by this header rather than closed.
        open: bool,
    },
    Body(Recipient),
    Ended,
}

/// Longest name of a recipient.
const LONGEST_NAME: usize = 256;
const ROLE: &str = "assistant";

impl Scanner {
    /// A scanner at the end of the prompt.
    pub fn new(frame: Frame) -> Self {
        Self { frame, place: Place::Header { started: false, open: false }, held: String::new() }
    }

    /// Where the scanner stands after what was pushed.
    pub fn state(&self) -> State<'_> {
        match &self.place {
            Place::Header { .. } => State::Header,
            Place::Body(recipient) => State::Body(recipient),
            Place::Ended => State::Ended,
        }
    }

    /// Takes the next token and the text that detokenizing it completed, control tokens dropped. Nothing after the end of
    /// the turn is reported.
    pub fn push(&mut self, id: u32, text: &str, out: &mut Vec<ChannelEvent>) {
        // What a control token completes precedes it.
        self.text(text, out);
        let Frame { start, message, eom, eot, end_of_text } = self.frame;
        match id {
            _ if matches!(self.place, Place::Ended) => {}
            _ if id == message => self.message(out),
            _ if id == start => {
                let open = self.close_body(out) || matches!(self.place, Place::Header { open: true, .. });
                self.header(true, open);
            }
            _ if id == eom => {
                if self.close_body(out) || matches!(self.place, Place::Header { open: true, .. }) {
                    out.push(ChannelEvent::EndMessage { last: false });
                }
                self.header(false, false);
            }
            _ if id == eot || id == end_of_text => {
                self.close_body(out);
                self.end(out);
            }
            _ => {}
        }
    }

    /// The output is over, whether or not the model closed it: releases text that was held back.
    pub fn finish(&mut self, out: &mut Vec<ChannelEvent>) {
        self.close_body(out);
        if matches!(self.place, Place::Header { open: true, .. }) {
            out.push(ChannelEvent::EndMessage { last: false });
        }
        self.place = Place::Ended;
        self.held.clear();
    }

    fn text(&mut self, text: &str, out: &mut Vec<ChannelEvent>) {
        if text.is_empty() {
            return;
        }
        match &self.place {
            Place::Ended => {}
            Place::Header { started, open } => {
                let (started, open) = (*started, *open);
                self.held.push_str(text);
                match read_header(&self.held, started) {
                    Reading::Header(_) => {}
                    Reading::OtherRole => self.end(out),
                    // The model left the header out: what it wrote is for the user.
                    Reading::Body(body) => {
                        let body = body.to_string();
                        self.held.clear();
                        self.begin(Recipient::User, open, out);
                        self.text(&body, out);
                    }
                }
            }
            Place::Body(recipient) => {
                self.held.push_str(text);
                let ready = inline_header(&self.held).map_or(self.held.len(), |(at, _)| at);
                emit(recipient, &self.held[..ready], out);
                self.held.drain(..ready);
            }
        }
    }

    /// `<|message|>`: the header is complete, or the model went on to another message without closing this one.
    fn message(&mut self, out: &mut Vec<ChannelEvent>) {
        match &self.place {
            Place::Ended => {}
            Place::Header { started, open } => {
                let recipient = match read_header(&self.held, *started) {
                    Reading::Header(name) => Recipient::named(name),
                    Reading::OtherRole | Reading::Body(_) => Recipient::User,
                };
                let open = *open;
                self.held.clear();
                self.begin(recipient, open, out);
            }
            Place::Body(recipient) => match inline_header(&self.held) {
                Some((_, Some(name))) => {
                    let recipient = Recipient::named(name);
                    self.held.clear();
                    self.begin(recipient, true, out);
                }
                _ => {
                    emit(recipient, &self.held, out);
                    self.held.clear();
                    // In a call this is a known slip of the model; whoever reads the call must see it.
                    if matches!(recipient, Recipient::Tool(_)) {
                        emit(recipient, "<|message|>", out);
                    }
                }
            },
        }
    }

    /// Releases the text held back in a body; whether there was a body.
    fn close_body(&mut self, out: &mut Vec<ChannelEvent>) -> bool {
        let Place::Body(recipient) = &self.place else { return false };
        emit(recipient, &self.held, out);
        self.held.clear();
        true
    }

    fn header(&mut self, started: bool, open: bool) {
        self.held.clear();
        self.place = Place::Header { started, open };
    }

    fn begin(&mut self, recipient: Recipient, open: bool, out: &mut Vec<ChannelEvent>) {
        if open {
            out.push(ChannelEvent::EndMessage { last: false });
        }
        out.push(ChannelEvent::Header { recipient: recipient.clone() });
        self.place = Place::Body(recipient);
    }

    fn end(&mut self, out: &mut Vec<ChannelEvent>) {
        self.held.clear();
        self.place = Place::Ended;
        out.push(ChannelEvent::EndMessage { last: true });
    }
}

fn emit(recipient: &Recipient, text: &str, out: &mut Vec<ChannelEvent>) {
    if text.is_empty() {
        return;
    }
    let text = text.to_string();
    out.push(match recipient {
        Recipient::Self_ => ChannelEvent::Reasoning(text),
        Recipient::User => ChannelEvent::Content(text),
        Recipient::Tool(name) => ChannelEvent::ToolText { recipient: name.clone(), text },
    });
}

/// What the text before a `<|message|>` may be.
enum Reading<'t> {
    /// A header, or the beginning of one, for the recipient of this name.
    Header(&'t str),
    /// The header of somebody else's message.
    OtherRole,
    /// No header: a body from here on.
    Body(&'t str),
}

/// Reads `[assistant][ to=NAME]`. Without `<|start|>`, anything else is a body whose header is missing.
fn read_header(text: &str, started: bool) -> Reading<'_> {
    if ROLE.starts_with(text) {
        return Reading::Header("");
    }
    let (role, after_role) = match text.strip_prefix(ROLE) {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let no_header = match (started, role) {
        (true, true) => Reading::Body(after_role),
        (true, false) => Reading::OtherRole,
        (false, _) => Reading::Body(text),
    };
    let target = after_role.trim_start();
    let name = match target.strip_prefix("to=") {
        Some(name) => name.trim_end(),
        None if "to=".starts_with(target) => "",
        None => return no_header,
    };
    let blanks = text.len() - name.len() > LONGEST_NAME;
    if blanks || name.len() > LONGEST_NAME || name.contains(char::is_whitespace) {
        return no_header;
    }
    Reading::Header(name)
}

/// The end of a body that may be a header without `<|eom|><|start|>assistant`: ` to=NAME`, or the beginning of it. Its
/// place, and the name as far as it has come.
fn inline_header(text: &str) -> Option<(usize, Option<&str>)> {
    const OPENING: &str = " to=";
    let name_from = text.trim_end_matches(is_name).len();
    let (before, name) = text.split_at(name_from);
    if before.ends_with(OPENING) && name.len() <= LONGEST_NAME {
        return Some((name_from - OPENING.len(), Some(name).filter(|name| !name.is_empty())));
    }
    let partial = (1..OPENING.len() + 1).rev().find(|&n| text.ends_with(&OPENING[..n]))?;
    Some((text.len() - partial, None))
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/' | '@')
}

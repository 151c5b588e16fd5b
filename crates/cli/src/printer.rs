//! Streams a generation to stdout.

use crate::failure::{Failure, Outcome};
use crate::terminal;
use glimmer_engine::Event;
use std::io::{self, Write};

/// Prints events as they come, each at once.
pub struct Printer<W: Write = io::Stdout> {
    out: W,
    style: Style,
    /// What was printed last.
    channel: Option<Channel>,
    line_open: bool,
    failed: Option<io::Error>,
}

/// How things look.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// Nothing is printed.
    pub silent: bool,
    /// Ids are printed, as there is no text.
    pub ids: bool,
    /// Reasoning is printed.
    pub reasoning: bool,
    /// Reasoning is dimmed.
    pub dim: bool,
    /// Control characters are made visible.
    pub harmless: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Channel {
    Ids,
    Reasoning,
    Answer,
    Tool(String),
}

impl Printer {
    /// On stdout.
    pub fn new(style: Style) -> Self {
        Self::on(io::stdout(), style)
    }
}

impl<W: Write> Printer<W> {
    fn on(out: W, style: Style) -> Self {
        Self { out, style, channel: None, line_open: false, failed: None }
    }

    /// Prints what there is to print. Whether more will be read.
    pub fn event(&mut self, event: Event) -> bool {
        let (channel, text) = match event {
            _ if self.style.silent || self.failed.is_some() => return self.failed.is_none(),
            Event::Token(id) if self.style.ids => {
                let comma = if self.channel.is_some() { "," } else { "" };
                (Channel::Ids, format!("{comma}{id}"))
            }
            Event::Reasoning(text) if self.style.reasoning => (Channel::Reasoning, text),
            Event::Content(text) => (Channel::Answer, text),
            Event::ToolText { recipient, text } => (Channel::Tool(recipient), text),
            Event::Reasoning(_) | Event::Token(_) | Event::Prefill { .. } | Event::Notice(_) => return true,
        };
        self.failed = self.write(channel, &text).err();
        self.failed.is_none()
    }

    /// Ends the line. An error is one of any event.
    pub fn finish(&mut self) -> Outcome {
        let ended = match self.failed.take() {
            Some(error) => Err(error),
            None => self.end_line().and_then(|()| self.out.flush()),
        };
        ended.map_err(Failure::stdout)
    }

    fn write(&mut self, channel: Channel, text: &str) -> io::Result<()> {
        let text = if self.style.harmless { terminal::harmless(text) } else { text.into() };
        if self.channel.as_ref() != Some(&channel) {
            if self.channel.is_some() {
                self.end_line()?;
                self.out.write_all(b"\n")?;
            }
            if let Channel::Tool(name) = &channel {
                let name = terminal::on_one_line(name);
                write!(self.out, "[to {name}] ")?;
            }
        }
        // Dimmed piece by piece: the terminal is left as it was whenever the program ends.
        match self.style.dim && channel == Channel::Reasoning {
            true => write!(self.out, "\x1b[2m{text}\x1b[0m")?,
            false => self.out.write_all(text.as_bytes())?,
        }
        self.line_open = !text.ends_with('\n');
        self.channel = Some(channel);
        self.out.flush()
    }

    fn end_line(&mut self) -> io::Result<()> {
        match std::mem::take(&mut self.line_open) {
            true => self.out.write_all(b"\n"),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(style: Style, events: &[Event]) -> String {
        let mut printer = Printer::on(Vec::new(), style);
        assert!(events.iter().all(|event| printer.event(event.clone())));
        printer.finish().unwrap();
        String::from_utf8(printer.out).unwrap()
    }

    #[test]
    fn reasoning_stands_apart_from_the_answer() {
        let reasoning = |text: &str| Event::Reasoning(text.into());
        let content = |text: &str| Event::Content(text.into());
        let tool = |text: &str| Event::ToolText { recipient: "get\n".into(), text: text.into() };
        let events = [Event::Token(1), reasoning("a"), reasoning("b"), content("c\x1b[1m"), tool("t"), content("d\n")];
        let shown = Style { reasoning: true, ..Style::default() };
        assert_eq!(printed(shown, &events), "ab\n\nc\x1b[1m\n\n[to get] t\n\nd\n");
        let styled = Style { reasoning: true, dim: true, harmless: true, ..Style::default() };
        assert_eq!(printed(styled, &events), "\x1b[2ma\x1b[0m\x1b[2mb\x1b[0m\n\nc\\u{1b}[1m\n\n[to get] t\n\nd\n");
        assert_eq!(printed(Style::default(), &events), "c\x1b[1m\n\n[to get] t\n\nd\n");
        assert_eq!(printed(Style { silent: true, ..shown }, &events), "");
        assert_eq!(printed(shown, &[]), "");
    }

    #[test]
    fn ids_stand_for_text_that_there_is_not() {
        let style = Style { ids: true, ..Style::default() };
        let events = [Event::Prefill { done: 1, total: 1 }, Event::Token(7), Event::Token(0), Event::Token(12)];
        assert_eq!(printed(style, &events), "7,0,12\n");
        assert_eq!(printed(style, &events[..1]), "");
        assert_eq!(printed(Style { silent: true, ..style }, &events), "");
    }

    #[test]
    fn a_pipe_that_nobody_reads_ends_it() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut printer = Printer::on(Closed, Style::default());
        assert!(!printer.event(Event::Content("x".into())));
        assert!(!printer.event(Event::Token(1)));
        assert!(matches!(printer.finish(), Err(Failure::ClosedPipe)));
    }
}

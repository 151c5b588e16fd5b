//! A conversation at the terminal, or plain text continued line by line.

use crate::conversation::Conversation;
use crate::failure::{Failure, Outcome, say_error};
use crate::run::{Ready, Spoken};
use crate::signals::Interrupt;
use crate::terminal::say;
use glimmer_engine::{Finish, Session};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};
use std::fs;
use std::path::PathBuf;

const HELP: &str = "\
/system TEXT   other instructions from now on; without TEXT none
/regen         another answer to the last message
/save FILE     keeps the conversation
/load FILE     goes on with one that was kept
/exit          leaves, as does Ctrl-D
Ctrl-C stops an answer; once more, it leaves.
A line that begins with a space is always a message.";

const HELP_RAW: &str = "\
Every line is continued by itself.
/regen         another continuation of the last line
/exit          leaves, as does Ctrl-D
Ctrl-C stops a continuation; once more, it leaves.
A line that begins with a space is always text.";

/// What a line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Nothing,
    Text(&'a str),
    Help,
    System(Option<&'a str>),
    Regenerate,
    Save(PathBuf),
    Load(PathBuf),
    Exit,
}

/// Reads a line; an error is for the user.
fn parse(line: &str) -> Result<Line<'_>, String> {
    if line.trim().is_empty() {
        return Ok(Line::Nothing);
    }
    if let Some(text) = line.strip_prefix(' ') {
        return Ok(Line::Text(text));
    }
    if !line.starts_with('/') {
        return Ok(Line::Text(line));
    }
    let (command, rest) = line.trim_end().split_once(char::is_whitespace).unwrap_or((line.trim_end(), ""));
    let rest = Some(rest.trim()).filter(|rest| !rest.is_empty());
    let file = || rest.map(PathBuf::from).ok_or_else(|| format!("{command} needs a FILE"));
    match (command, rest) {
        ("/system", text) => Ok(Line::System(text)),
        ("/save", _) => Ok(Line::Save(file()?)),
        ("/load", _) => Ok(Line::Load(file()?)),
        ("/help" | "/regen" | "/exit", Some(rest)) => Err(format!("{command} takes nothing, found `{rest}`")),
        ("/help", None) => Ok(Line::Help),
        ("/regen", None) => Ok(Line::Regenerate),
        ("/exit", None) => Ok(Line::Exit),
        _ => Err(format!("unknown command {command}; /help lists those there are")),
    }
}

/// Until the user leaves.
pub fn run(ready: &Ready<'_>, session: &mut Session, interrupt: &Interrupt) -> Outcome {
    let mut editor = editor()?;
    let history = history_file();
    if let Some(history) = &history {
        let _ = editor.load_history(history); // The first time there is none.
    }
    if !ready.plan.quiet {
        say("/help lists commands, Ctrl-D leaves");
    } else {
        ready.say_drawn_seed();
    }
    let talk = Conversation::new(ready.plan.system.as_deref());
    let mut repl = Repl { ready, session, interrupt, talk, sample: 0 };
    let end = repl.read(&mut editor);
    if let Some(history) = &history {
        let _ = history.parent().map(fs::create_dir_all);
        let _ = editor.save_history(history);
    }
    end
}

fn editor() -> Outcome<Editor<(), FileHistory>> {
    let config = Config::builder().max_history_size(1000)?.auto_add_history(true).build();
    Ok(Editor::with_config(config)?)
}

/// `$XDG_STATE_HOME/glimmer/history`.
fn history_file() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("glimmer/history"))
}

struct Repl<'a> {
    ready: &'a Ready<'a>,
    session: &'a mut Session,
    interrupt: &'a Interrupt,
    /// Of plain text, what was said last and nothing else.
    talk: Conversation,
    /// Attempts at the present answer before this one.
    sample: u32,
}

impl Repl<'_> {
    fn read(&mut self, editor: &mut Editor<(), FileHistory>) -> Outcome {
        let mut stopped = false;
        loop {
            let line = match editor.readline("> ") {
                Ok(line) => line,
                Err(ReadlineError::Eof) => return Ok(()),
                Err(ReadlineError::Interrupted) if stopped => return Err(Failure::Interrupted),
                Err(ReadlineError::Interrupted) => {
                    stopped = true;
                    say("Ctrl-C once more leaves");
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            stopped = false;
            match parse(&line) {
                Ok(Line::Exit) => return Ok(()),
                Ok(line) => match self.perform(line) {
                    Ok(interrupted) => stopped = interrupted,
                    Err(Failure::Runtime(line)) => say_error(&line),
                    Err(end) => return Err(end),
                },
                Err(line) => say_error(&line),
            }
        }
    }

    /// Whether an answer was stopped by Ctrl-C.
    fn perform(&mut self, line: Line<'_>) -> Outcome<bool> {
        let chat = self.ready.chat;
        match line {
            Line::Nothing | Line::Exit => {}
            Line::Help => say(if chat { HELP } else { HELP_RAW }),
            Line::System(_) | Line::Save(_) | Line::Load(_) if !chat => {
                return Err(Failure::Runtime("there is no conversation: this is plain text".into()));
            }
            Line::System(text) => self.talk.set_system(text),
            Line::Save(path) => {
                self.talk.save(&path).map_err(Failure::Runtime)?;
                say(&format!("saved {} messages", self.talk.messages().len()));
            }
            Line::Load(path) => {
                let talk = Conversation::load(&path).map_err(Failure::Runtime)?;
                self.ready.engine.encode_chat(&talk.messages(), self.ready.effort())?;
                say(&format!("loaded {} messages", talk.messages().len()));
                self.talk = talk;
            }
            Line::Text(text) => {
                let before = self.talk.clone();
                if !chat {
                    self.talk = Conversation::new(None);
                }
                self.talk.say(text);
                self.sample = 0;
                return self.answer(before);
            }
            Line::Regenerate => {
                let before = self.talk.clone();
                if !self.talk.take_answer_back() {
                    return Err(Failure::Runtime("nothing was said yet".into()));
                }
                self.sample = self.sample.wrapping_add(1);
                return self.answer(before);
            }
        }
        Ok(false)
    }

    /// Answers the last message. Where there is no answer, the conversation is as it was `before`.
    fn answer(&mut self, before: Conversation) -> Outcome<bool> {
        let answered = self.try_answer();
        if !matches!(answered, Ok((_, true))) {
            self.talk = before;
        }
        answered.map(|(interrupted, _)| interrupted)
    }

    /// Whether Ctrl-C was pressed, and whether there is an answer.
    fn try_answer(&mut self) -> Outcome<(bool, bool)> {
        let ready = self.ready;
        let ids = match ready.chat {
            true => ready.engine.encode_chat(&self.talk.messages(), ready.effort())?,
            false => ready.engine.encode_raw(self.talk.last_text())?,
        };
        let request = ready.request(ids, self.sample);
        let spoken = ready.speak(self.session, &request, self.interrupt)?;
        if !ready.plan.quiet {
            say(&ready.ran(&request, &spoken).timing_line());
        }
        let Spoken { generation, interrupted, .. } = spoken;
        let answered = generation.finish != Finish::Cancelled || !generation.token_ids.is_empty();
        if answered && ready.chat {
            let text = generation.text.as_deref().unwrap_or_default();
            self.talk.answer(text, &generation.reasoning, &generation.tool_messages);
        }
        Ok((interrupted, answered))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_messages_or_commands() {
        for (line, expected) in [
            ("", Line::Nothing),
            ("  \t", Line::Nothing),
            ("hello", Line::Text("hello")),
            ("hello /exit", Line::Text("hello /exit")),
            (" /exit", Line::Text("/exit")),
            ("/help", Line::Help),
            ("/exit  ", Line::Exit),
            ("/regen", Line::Regenerate),
            ("/system", Line::System(None)),
            ("/system  Be brief. ", Line::System(Some("Be brief."))),
            ("/save a b.json", Line::Save("a b.json".into())),
            ("/load\tx", Line::Load("x".into())),
        ] {
            assert_eq!(parse(line), Ok(expected), "{line:?}");
        }
        for (line, word) in [
            ("/save", "/save needs a FILE"),
            ("/load  ", "/load needs a FILE"),
            ("/exit now", "`now`"),
            ("/etc/passwd", "unknown command /etc/passwd"),
            ("/", "unknown command /"),
            ("/EXIT", "unknown command /EXIT"),
        ] {
            assert!(parse(line).unwrap_err().contains(word), "{line:?}");
        }
    }
}

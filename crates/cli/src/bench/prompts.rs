//! What is continued: a set of prompts of different kinds.

use crate::failure::{Failure, Outcome};
use glimmer_engine::Engine;
use glimmer_engine::chat::message::Message;
use serde_json::{Map, Value};
use std::path::Path;
use std::{fs, io};

/// The set inside this program.
const SHIPPED: &str = include_str!("prompts.jsonl");
/// The longest name, in bytes.
const LONGEST_NAME: usize = 60;
/// What a template puts around messages has fewer tokens.
const FRAME: usize = 1024;

/// A prompt and what it is called.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    pub name: String,
    content: Content,
}

#[derive(Clone, Debug, PartialEq)]
enum Content {
    Text(String),
    Messages(Vec<Message>),
    Ids(Vec<u32>),
}

/// A prompt as the model reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    pub name: String,
    pub ids: Vec<u32>,
    /// `chat`, `raw`, `ids`, or `bytes` where they stand for tokens.
    pub framing: &'static str,
}

/// The set inside this program.
pub fn shipped() -> Outcome<Vec<Prompt>> {
    parse(SHIPPED).map_err(|what| Failure::Runtime(format!("the shipped prompts: {what}")))
}

/// The set in a file.
pub fn read(path: &Path) -> Outcome<Vec<Prompt>> {
    let refuse = |what: String| Failure::Runtime(format!("{}: {what}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => refuse("not UTF-8".into()),
        _ => refuse(error.to_string()),
    })?;
    parse(&text).map_err(refuse)
}

/// Reads a JSON object per line; empty lines are passed over.
fn parse(text: &str) -> Result<Vec<Prompt>, String> {
    let mut prompts: Vec<Prompt> = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let refuse = |what: String| format!("line {}: {what}", number + 1);
        let value = serde_json::from_str(line).map_err(|error| refuse(format!("not JSON: {error}")))?;
        let prompt = Prompt::from_value(value).map_err(refuse)?;
        if prompts.iter().any(|other| other.name == prompt.name) {
            return Err(refuse(format!("`name`: `{}` twice", prompt.name.escape_debug())));
        }
        prompts.push(prompt);
    }
    match prompts.is_empty() {
        true => Err("expected a JSON object per line, found none".into()),
        false => Ok(prompts),
    }
}

impl Prompt {
    fn from_value(value: Value) -> Result<Self, String> {
        let Value::Object(mut fields) = value else { return Err("expected an object".into()) };
        let name = match fields.remove("name") {
            Some(Value::String(name)) if (1..=LONGEST_NAME).contains(&name.len()) => name,
            Some(_) => return Err(format!("`name`: expected a text of 1 to {LONGEST_NAME} bytes")),
            None => return Err("`name` is missing".into()),
        };
        if name.contains(char::is_control) {
            return Err("`name`: expected no control characters".into());
        }
        let content = Content::take(&mut fields)?;
        match fields.keys().next() {
            Some(unknown) => Err(format!("unknown field `{}`", unknown.escape_debug())),
            None => Ok(Self { name, content }),
        }
    }

    /// As many tokens as it can have.
    pub fn longest(&self) -> usize {
        match &self.content {
            Content::Text(text) => text.len() + FRAME,
            Content::Messages(messages) => {
                messages.iter().map(|message| text_of(message).len() + FRAME).sum::<usize>() + FRAME
            }
            Content::Ids(ids) => ids.len(),
        }
    }

    /// The ids that the model reads.
    pub fn encode(&self, engine: &Engine) -> Outcome<Encoded> {
        let text = |text: &str| match engine.tokenizer() {
            Some(_) => Ok((engine.encode_raw(text)?, "raw")),
            None => Ok((text.bytes().map(|byte| u32::from(byte) % engine.vocab_size() as u32).collect(), "bytes")),
        };
        let encoded: Outcome<(Vec<u32>, &'static str)> = match &self.content {
            Content::Ids(ids) => Ok((ids.clone(), "ids")),
            Content::Messages(messages) if engine.can_chat() => {
                engine.encode_chat(messages, None).map(|ids| (ids, "chat")).map_err(Failure::from)
            }
            Content::Messages(messages) => text(&messages.iter().map(text_of).collect::<Vec<_>>().join("\n\n")),
            Content::Text(content) => text(content),
        };
        match encoded {
            Ok((ids, framing)) => Ok(Encoded { name: self.name.clone(), ids, framing }),
            Err(Failure::Runtime(line)) => Err(Failure::Runtime(format!("prompt `{}`: {line}", self.name))),
            Err(other) => Err(other),
        }
    }
}

impl Content {
    fn take(fields: &mut Map<String, Value>) -> Result<Self, String> {
        let found = ["prompt", "messages", "ids"].map(|key| fields.remove(key));
        match found {
            [Some(Value::String(text)), None, None] if !text.is_empty() => Ok(Self::Text(text)),
            [Some(_), None, None] => Err("`prompt`: expected a text that is not empty".into()),
            [None, Some(Value::Array(messages)), None] if !messages.is_empty() => {
                let message = |(n, value)| match Message::from_value(value) {
                    Ok(message) if message.fields().get("content").is_some_and(Value::is_string) => Ok(message),
                    Ok(_) => Err(format!("`messages`: message {n}: `content`: expected text")),
                    Err(error) => Err(format!("`messages`: message {n}: {error}")),
                };
                messages.into_iter().enumerate().map(message).collect::<Result<_, _>>().map(Self::Messages)
            }
            [None, Some(_), None] => Err("`messages`: expected a list that is not empty".into()),
            [None, None, Some(Value::Array(ids))] if !ids.is_empty() => {
                let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
                let ids = ids.iter().map(id).collect::<Option<_>>();
                ids.map(Self::Ids).ok_or_else(|| "`ids`: expected whole numbers below 2^32".into())
            }
            [None, None, Some(_)] => Err("`ids`: expected a list that is not empty".into()),
            _ => Err("expected one of `prompt`, `messages` and `ids`".into()),
        }
    }
}

fn text_of(message: &Message) -> &str {
    message.fields().get("content").and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_prompts_are_of_six_kinds() {
        let names: Vec<String> = shipped().unwrap().into_iter().map(|prompt| prompt.name).collect();
        assert_eq!(names, ["code", "repetitive code", "prose", "log", "json", "chat"]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, expected) in [
            ("", "expected a JSON object per line"),
            ("\n{\"name\": ", "line 2: not JSON"),
            ("[]", "line 1: expected an object"),
            ("{\"prompt\": \"x\"}", "line 1: `name` is missing"),
            ("{\"name\": \"\", \"prompt\": \"x\"}", "line 1: `name`: expected a text"),
            ("{\"name\": \"a\\nb\", \"prompt\": \"x\"}", "control"),
            ("{\"name\": \"a\"}", "line 1: expected one of"),
            ("{\"name\": \"a\", \"prompt\": \"x\", \"ids\": [1]}", "line 1: expected one of"),
            ("{\"name\": \"a\", \"prompt\": \"\"}", "`prompt`: expected a text that is not empty"),
            ("{\"name\": \"a\", \"ids\": [-1]}", "`ids`: expected whole numbers"),
            ("{\"name\": \"a\", \"ids\": []}", "`ids`: expected a list"),
            ("{\"name\": \"a\", \"messages\": [{\"role\": \"robot\"}]}", "message 0: message role `robot`"),
            ("{\"name\": \"a\", \"messages\": [{\"role\": \"user\"}]}", "message 0: `content`: expected text"),
            ("{\"name\": \"a\", \"ids\": [1], \"kind\": 2}", "unknown field `kind`"),
            ("{\"name\": \"a\", \"ids\": [1]}\n\n{\"name\": \"a\", \"ids\": [2]}", "line 3: `name`: `a` twice"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected) && !error.contains('\n'), "{text}: {error}");
        }
    }
}

//! The messages of a conversation, and the file that keeps them.

use glimmer_engine::ToolMessage;
use glimmer_engine::chat::message::Message;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// An optional system message, then turns of user and assistant; the assistant's may have several messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    system: Option<Message>,
    turns: Vec<Message>,
}

const FORMAT: &str = "glimmer-conversation";
const VERSION: u64 = 1;
/// More than any context holds.
const MAX_BYTES: u64 = 64 << 20;

impl Conversation {
    /// With these instructions, or none.
    pub fn new(system: Option<&str>) -> Self {
        Self { system: system.map(Message::system), turns: Vec::new() }
    }

    /// Other instructions for what is still to come; the turns stay.
    pub fn set_system(&mut self, system: Option<&str>) {
        self.system = system.map(Message::system);
    }

    /// Every message, in order.
    pub fn messages(&self) -> Vec<Message> {
        self.system.iter().chain(&self.turns).cloned().collect()
    }

    /// What was said last.
    pub fn last_text(&self) -> &str {
        let content = self.turns.last().and_then(|turn| turn.fields().get("content"));
        content.and_then(Value::as_str).unwrap_or_default()
    }

    /// The user speaks.
    pub fn say(&mut self, text: &str) {
        self.turns.push(Message::user(text));
    }

    /// The model answers. Its reasoning and what it said to tools are part of what it reads next time.
    pub fn answer(&mut self, text: &str, reasoning: &str, to_tools: &[ToolMessage]) {
        let mut reasoning = Some(reasoning).filter(|reasoning| !reasoning.is_empty());
        for ToolMessage { recipient, text } in to_tools {
            let message = Message::assistant(text.as_str(), reasoning.take());
            self.turns.push(message.with("recipient", recipient.as_str()));
        }
        // The answer comes last, whenever it was given: only then does it close the turn.
        match self.turns.pop_if(|_| text.is_empty() && !to_tools.is_empty()) {
            Some(last) => self.turns.push(last.with("end_turn", true)),
            None => self.turns.push(Message::assistant(text, reasoning)),
        }
    }

    /// Takes the last answer back, so that there can be another. Whether there is anything to answer.
    pub fn take_answer_back(&mut self) -> bool {
        while self.turns.pop_if(|turn| turn.role() == "assistant").is_some() {}
        !self.turns.is_empty()
    }

    /// Writes a file that [`load`](Self::load) reads. It appears whole or not at all.
    pub fn save(&self, path: &Path) -> Result<(), String> {
        let messages: Vec<Value> = self.messages().iter().map(|m| Value::Object(m.fields().clone())).collect();
        let text = format!("{:#}\n", json!({ "format": FORMAT, "version": VERSION, "messages": messages }));
        let unfinished = beside(path);
        let written = File::create_new(&unfinished)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&unfinished, path));
        written.map_err(|error| {
            let _ = fs::remove_file(&unfinished);
            format!("{}: {error}", path.display())
        })
    }

    /// Reads what [`save`](Self::save) wrote; anything else is refused, in one line.
    pub fn load(path: &Path) -> Result<Self, String> {
        let refuse = |what: &str| format!("{}: {what}", path.display());
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(|error| refuse(&error.to_string()))?;
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| refuse(&error.to_string()))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(refuse("longer than any conversation"));
        }
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| refuse(&format!("not JSON: {error}")))?;
        Self::from_value(value).map_err(|what| refuse(&what))
    }

    fn from_value(mut value: Value) -> Result<Self, String> {
        if value["format"] != FORMAT || value["version"] != VERSION {
            return Err(format!("expected \"format\": \"{FORMAT}\" and \"version\": {VERSION}"));
        }
        let Some(Value::Array(messages)) = value.get_mut("messages").map(Value::take) else {
            return Err("`messages`: expected a list".into());
        };
        let mut conversation = Self::default();
        for (n, message) in messages.into_iter().enumerate() {
            let message = Message::from_value(message).map_err(|error| format!("message {n}: {error}"))?;
            let expected = match conversation.turns.last() {
                None if n == 0 && message.role() == "system" => "system",
                Some(last) if last.role() == "user" || !closes_turn(last) => "assistant",
                _ => "user",
            };
            if message.role() != expected {
                return Err(format!("message {n}: expected role {expected}, found {}", message.role()));
            }
            for field in ["content", "reasoning_content"] {
                let found = message.fields().get(field);
                if !(found.is_some_and(Value::is_string) || (found.is_none() && field != "content")) {
                    return Err(format!("message {n}: `{field}`: expected text"));
                }
            }
            for (field, found) in message.fields() {
                match field.as_str() {
                    "role" | "content" | "reasoning_content" => {}
                    "recipient" if expected == "assistant" && !found.is_string() => {
                        return Err(format!("message {n}: `recipient`: expected text"));
                    }
                    "end_turn" if expected == "assistant" && !found.is_boolean() => {
                        return Err(format!("message {n}: `end_turn`: expected true or false"));
                    }
                    "recipient" | "end_turn" if expected == "assistant" => {}
                    _ => return Err(format!("message {n}: unknown field `{field}`")),
                }
            }
            match expected {
                "system" => conversation.system = Some(message),
                _ => conversation.turns.push(message),
            }
        }
        Ok(conversation)
    }
}

/// Whether a message of the assistant is the last of its turn: one to a tool says so, one to the user always is.
fn closes_turn(message: &Message) -> bool {
    let field = |name: &str| message.fields().get(name);
    field("end_turn") == Some(&Value::Bool(true)) || field("recipient").is_none_or(|name| name == "user")
}

/// A name that nothing has, in the same directory: only there is renaming atomic.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.unfinished", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use glimmer_engine::{Engine, EngineOptions, Source};

    fn talk() -> Conversation {
        let mut conversation = Conversation::new(Some("Be brief."));
        conversation.say("Add 2 and 3.\n\"now\" \u{1b} é");
        conversation.answer("5", "2 + 3 = 5.", &[]);
        conversation.say("Thanks.");
        conversation.answer("", "", &[]);
        conversation.say("And the weather?");
        conversation.answer("", "Look it up.", &[to("get_weather", "SF"), to("get_weather", "LA")]);
        conversation.say("Well?");
        conversation.answer("Warm.", "", &[to("log", "")]);
        conversation
    }

    fn to(recipient: &str, text: &str) -> ToolMessage {
        ToolMessage { recipient: recipient.into(), text: text.into() }
    }

    #[test]
    fn what_was_said_to_tools_is_kept() {
        let messages = talk().messages();
        let found: Vec<_> = messages[6..].iter().map(|m| Value::Object(m.fields().clone())).collect();
        let said =
            |content: &str, recipient: &str| json!({ "role": "assistant", "content": content, "recipient": recipient });
        let mut first = said("SF", "get_weather");
        first["reasoning_content"] = "Look it up.".into();
        let mut last = said("LA", "get_weather");
        last["end_turn"] = true.into();
        assert_eq!(found[..2], [first, last]);
        assert_eq!(found[3..], [said("", "log"), json!({ "role": "assistant", "content": "Warm." })]);
        let mut again = talk();
        assert!(again.take_answer_back());
        assert_eq!(again.messages(), messages[..9]);
        assert_eq!(again.last_text(), "Well?");
    }

    #[test]
    fn templates_render_what_was_said_to_tools() {
        let nano = Engine::load(&EngineOptions::new(Source::Nano), &mut |_| {}).unwrap();
        let encoded = nano.encode_chat(&talk().messages(), None).unwrap();
        let text = nano.tokenizer().unwrap().decode_with_specials(&encoded).unwrap();
        let framed = "<|start|>assistant to=self<|message|>Look it up.<|eom|>\
                      <|start|>assistant to=get_weather<|message|>SF<|eom|>\
                      <|start|>assistant to=get_weather<|message|>LA<|eot|>\
                      <|start|>user<|message|>Well?<|eot|>\
                      <|start|>assistant to=log<|message|><|eom|>\
                      <|start|>assistant to=user<|message|>Warm.<|eot|>";
        assert!(text.contains(framed), "{text}");
    }

    #[test]
    fn what_was_saved_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("talk.json");
        for conversation in [talk(), Conversation::default(), Conversation::new(None)] {
            conversation.save(&path).unwrap();
            assert_eq!(Conversation::load(&path).unwrap(), conversation);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing unfinished is left");
        let error = talk().save(&dir.path().join("absent/talk.json")).unwrap_err();
        assert!(error.contains("absent/talk.json: "), "{error}");
        assert!(talk().save(dir.path()).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing unfinished is left");
    }

    #[test]
    fn what_is_not_a_conversation_is_refused_in_one_line() {
        let message = |role: &str| json!({ "role": role, "content": "x" });
        let of = |messages: Value| json!({ "format": FORMAT, "version": VERSION, "messages": messages });
        for (value, expected) in [
            (json!([]), "\"format\""),
            (json!({ "messages": [] }), "\"version\": 1"),
            (json!({ "format": FORMAT, "version": 2, "messages": [] }), "\"version\": 1"),
            (of(json!({})), "`messages`: expected a list"),
            (of(json!(["x"])), "message 0: message is not an object"),
            (of(json!([message("robot")])), "message 0: message role `robot`"),
            (of(json!([message("assistant")])), "message 0: expected role user, found assistant"),
            (of(json!([message("user"), message("user")])), "message 1: expected role assistant, found user"),
            (of(json!([message("user"), message("system")])), "message 1: expected role assistant, found system"),
            (of(json!([{ "role": "user" }])), "message 0: `content`: expected text"),
            (of(json!([{ "role": "user", "content": [] }])), "message 0: `content`: expected text"),
            (
                of(json!([{ "role": "user", "content": "x", "reasoning_content": 1 }])),
                "`reasoning_content`: expected text",
            ),
            (
                of(json!([message("user"), { "role": "assistant", "content": "x", "recipient": 1 }])),
                "`recipient`: expected text",
            ),
            (
                of(json!([message("user"), { "role": "assistant", "content": "x", "end_turn": 1 }])),
                "`end_turn`: expected true",
            ),
            (
                of(
                    json!([message("user"), { "role": "assistant", "content": "x", "recipient": "t" }, message("user")]),
                ),
                "message 2: expected role assistant, found user",
            ),
            (of(json!([{ "role": "user", "content": "x", "recipient": "t" }])), "message 0: unknown field `recipient`"),
            (of(json!([{ "role": "user", "content": "x", "images": [] }])), "message 0: unknown field `images`"),
        ] {
            let error = Conversation::from_value(value.clone()).unwrap_err();
            assert!(error.contains(expected) && !error.contains('\n'), "{value}: {error}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        fs::write(&path, "{").unwrap();
        assert!(Conversation::load(&path).unwrap_err().contains("not JSON"));
        assert!(Conversation::load(dir.path()).is_err() && Conversation::load(&dir.path().join("absent")).is_err());
    }

    #[test]
    fn another_answer_replaces_the_last() {
        let mut conversation = Conversation::new(None);
        assert!(!conversation.take_answer_back());
        conversation.say("hi");
        assert!(conversation.take_answer_back());
        conversation.answer("a", "", &[]);
        assert!(conversation.take_answer_back());
        assert_eq!(conversation.messages(), [Message::user("hi")]);
        conversation.answer("b", "why", &[]);
        conversation.set_system(Some("s"));
        let fields: Vec<_> = conversation.messages().iter().map(|m| Value::Object(m.fields().clone())).collect();
        assert_eq!(fields[2], json!({ "role": "assistant", "content": "b", "reasoning_content": "why" }));
        assert_eq!(fields[0], json!({ "role": "system", "content": "s" }));
        assert_eq!(conversation.last_text(), "b");
        conversation.set_system(None);
        assert_eq!(conversation.messages().len(), 2);
    }
}

//! Messages of a conversation, and how hard the model should think.

use serde_json::{Map, Value};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// One message, as the chat template reads it: an object whose fields keep their order. Fields that only some templates
/// know (`tool_calls`, `name`, `tool_call_id`, `recipient`, `end_turn`) are set with [`Message::with`].
#[derive(Clone, Debug, PartialEq)]
pub struct Message(Map<String, Value>);

/// A message that no template would render as meant.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MessageError {
    /// Templates drop messages whose role they do not know.
    #[error("message role `{}` is not supported, expected system, user, assistant or tool", .0.escape_debug())]
    Role(String),
    /// Templates drop parts whose type they do not know.
    #[error("content part `{}` is not supported, expected text, image or video", .0.escape_debug())]
    Part(String),
    /// Not the shape of a message.
    #[error("message {0}")]
    Shape(&'static str),
}

impl Message {
    /// Instructions. Content is text, or a list of parts `{"type": "text" | "image" | "video", ...}`.
    pub fn system(content: impl Into<Value>) -> Self {
        Self::of("system", content.into())
    }

    /// What the user says.
    pub fn user(content: impl Into<Value>) -> Self {
        Self::of("user", content.into())
    }

    /// An earlier answer of the model, with the reasoning that led to it, if that is to be shown again.
    pub fn assistant(content: impl Into<Value>, reasoning: Option<&str>) -> Self {
        let message = Self::of("assistant", content.into());
        match reasoning {
            Some(reasoning) => message.with("reasoning_content", reasoning),
            None => message,
        }
    }

    /// The result of the tool `name`.
    pub fn tool(name: &str, content: impl Into<Value>) -> Self {
        Self::of("tool", content.into()).with("name", name)
    }

    /// Checks that templates render the whole of `value`, which holds the fields of one message.
    pub fn from_value(value: Value) -> Result<Self, MessageError> {
        let Value::Object(fields) = value else { return Err(MessageError::Shape("is not an object")) };
        match fields.get("role") {
            Some(Value::String(role)) if matches!(role.as_str(), "system" | "user" | "assistant" | "tool") => {}
            Some(Value::String(role)) => return Err(MessageError::Role(role.clone())),
            _ => return Err(MessageError::Shape("has no role")),
        }
        match fields.get("content") {
            None | Some(Value::Null | Value::String(_)) => {}
            Some(Value::Array(parts)) => parts.iter().try_for_each(check_part)?,
            Some(_) => return Err(MessageError::Shape("content is neither text nor a list of parts")),
        }
        Ok(Self(fields))
    }

    /// The same message with `field` set.
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0.insert(field.to_string(), value.into());
        self
    }

    /// Who speaks.
    pub fn role(&self) -> &str {
        self.0.get("role").and_then(Value::as_str).unwrap_or_default()
    }

    /// The fields in their order.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.0
    }

    fn of(role: &str, content: Value) -> Self {
        Self(Map::new()).with("role", role).with("content", content)
    }
}

fn check_part(part: &Value) -> Result<(), MessageError> {
    match part.get("type").and_then(Value::as_str) {
        Some("text") if part.get("text").is_some_and(Value::is_string) => Ok(()),
        Some("text") => Err(MessageError::Shape("part of type text has no text")),
        Some("image" | "video") => Ok(()),
        Some(other) => Err(MessageError::Part(other.to_string())),
        None => Err(MessageError::Shape("part has no type")),
    }
}

/// How much the model thinks before it answers. It cannot be told not to think at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReasoningStrength {
    /// Briefly.
    Low,
    /// Some.
    Medium,
    /// Thoroughly; what the model does when nothing is asked for.
    #[default]
    High,
    /// As much as it takes.
    Xhigh,
}

/// A strength as a caller asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedStrength {
    /// The strength that is used.
    pub strength: ReasoningStrength,
    /// The caller asked for less thinking than there is, and should be told.
    pub raised: bool,
}

/// A strength that there is not.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("reasoning strength `{}` is not known, expected low, medium, high or xhigh", .0.escape_debug())]
pub struct UnknownStrength(String);

impl ReasoningStrength {
    /// The word that templates read.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Xhigh => "xhigh",
        }
    }

    /// Reads a strength as clients spell it: `none`, `minimal` and `off` become the lowest there is, `max` the highest.
    pub fn request(text: &str) -> Result<RequestedStrength, UnknownStrength> {
        let (strength, raised) = match text {
            "low" => (Self::Low, false),
            "medium" => (Self::Medium, false),
            "high" => (Self::High, false),
            "xhigh" | "max" => (Self::Xhigh, false),
            "none" | "minimal" | "off" => (Self::Low, true),
            other => return Err(UnknownStrength(other.to_string())),
        };
        Ok(RequestedStrength { strength, raised })
    }
}

impl FromStr for ReasoningStrength {
    type Err = UnknownStrength;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::request(text).map(|requested| requested.strength)
    }
}

impl fmt::Display for ReasoningStrength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

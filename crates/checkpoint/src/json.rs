//! JSON objects as checkpoints hold them: parsed strictly and with bounds.

use crate::error::{Error, brief};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// Longest JSON that is parsed, in bytes. The safetensors format would allow headers of 100 MB; the header of the
/// full Muse-Glimmer-30B has less than 200 kB.
pub(crate) const MAX_BYTES: u64 = 8 << 20;

/// Most values in one document, and the same in words. A parsed value takes up to a hundred times its text.
const MAX_VALUES: usize = 100_000;
const AT_MOST: &str = "at most 100000 values";

/// Parses a document that has to be an object. `what` names it in messages: "config", "header".
///
/// Stricter than JSON asks for: a key that comes twice is refused, since readers disagree about which one counts.
pub(crate) fn parse_object(file: &str, what: &str, bytes: &[u8]) -> Result<Map<String, Value>, Error> {
    let malformed = |what: String, expected: &str, found: String| {
        Err(Error::Malformed { file: file.into(), what, expected: expected.into(), found })
    };
    if bytes.starts_with(b"\xef\xbb\xbf") {
        return malformed(what.into(), "a JSON object", "a byte order mark".into());
    }
    let mut state = State::default();
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = Document(&mut state).deserialize(&mut json).and_then(|value| json.end().map(|()| value));
    match value {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => malformed(what.into(), "a JSON object", shown(&other)),
        Err(e) => {
            let what = match state.path.as_str() {
                "" => what.into(),
                path => format!("field `{}` of the {what}", brief(path)),
            };
            match state.fault {
                Some((expected, found)) => malformed(what, expected, format!("{found} at line {}", e.line())),
                None => malformed(what, "valid JSON", format!("an error: {e}")),
            }
        }
    }
}

/// A value as messages show it: on one line, shortened.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::Array(list) if list.len() > 8 => format!("a list of {}", list.len()),
        Value::Object(_) => "an object".into(),
        Value::String(text) => format!("\"{}\"", brief(text)),
        other => brief(&other.to_string()),
    }
}

#[derive(Default)]
struct State {
    /// Where the parser is, dotted; left as it is when parsing fails.
    path: String,
    values: usize,
    /// Expected and found, where this module and not the JSON parser is displeased.
    fault: Option<(&'static str, &'static str)>,
}

impl State {
    fn fail<E: serde::de::Error>(&mut self, expected: &'static str, found: &'static str) -> E {
        self.fault = Some((expected, found));
        E::custom(expected)
    }
}

struct Document<'s>(&'s mut State);

impl<'de> DeserializeSeed<'de> for Document<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.0.values += 1;
        if self.0.values > MAX_VALUES {
            return Err(self.0.fail(AT_MOST, "more"));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Document<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| self.0.fail("a finite number", "infinity or NaN"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let parent = self.0.path.len();
        let mut list = Vec::new();
        loop {
            self.0.path.push_str(&format!("[{}]", list.len()));
            let Some(value) = seq.next_element_seed(Document(self.0))? else { break };
            list.push(value);
            self.0.path.truncate(parent);
        }
        self.0.path.truncate(parent);
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let parent = self.0.path.len();
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if parent > 0 {
                self.0.path.push('.');
            }
            self.0.path.push_str(&key);
            if map.contains_key(&key) {
                return Err(self.0.fail("the key once", "it again"));
            }
            let value = entries.next_value_seed(Document(self.0))?;
            map.insert(key, value);
            self.0.path.truncate(parent);
        }
        Ok(Value::Object(map))
    }
}

//! JSON for chat templates: caller's JSON as template values, and template values as the JSON that Python's `json.dumps`
//! writes, which is what the models were trained on.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use std::fmt::Write;

/// Deeper than JSON parsers go; keeps recursion off the end of the stack.
pub(super) const MAX_DEPTH: usize = 200;
/// Bytes of an indent or a separator.
const LONGEST_BLANK: usize = 64;
/// Bytes of a string that one step pays for: escaped, they can be six times as many.
const BYTES_PER_STEP: u64 = 16;

/// The template's view of a JSON value. `None` if it is nested too deeply.
pub(super) fn to_template(value: &serde_json::Value) -> Option<Value> {
    to_template_at(value, 0)
}

fn to_template_at(value: &serde_json::Value, depth: usize) -> Option<Value> {
    if depth > MAX_DEPTH {
        return None;
    }
    Some(match value {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(b) => Value::from(*b),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(n), ..) => Value::from(n),
            (_, Some(n), _) => Value::from(n),
            (.., n) => Value::from(n?),
        },
        serde_json::Value::String(text) => Value::from(text),
        serde_json::Value::Array(items) => {
            Value::from(items.iter().map(|item| to_template_at(item, depth + 1)).collect::<Option<Vec<_>>>()?)
        }
        serde_json::Value::Object(fields) => {
            let pairs = fields.iter().map(|(key, value)| Some((key.as_str(), to_template_at(value, depth + 1)?)));
            Value::from_pairs(pairs.collect::<Option<Vec<_>>>()?)
        }
    })
}

/// The `tojson` filter of Hugging Face's templates: no HTML escaping, non-ASCII kept, `", "` and `": "` between items.
pub(super) fn tojson(state: &State, value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent = match options.get::<Option<Value>>("indent")?.filter(|v| !v.is_none()) {
        None => None,
        Some(v) => Some(match v.as_usize() {
            Some(width) => " ".repeat(width.min(LONGEST_BLANK)),
            None => v.as_str().map(String::from).ok_or_else(|| invalid("indent is neither a number nor a string"))?,
        }),
    };
    let (item, key) = match options.get::<Option<Vec<String>>>("separators")?.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(invalid("separators are not a pair")),
        None => (if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string()),
    };
    let ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    if [&item, &key, indent.as_ref().unwrap_or(&item)].iter().any(|text| text.len() > LONGEST_BLANK) {
        return Err(invalid("indent or separators are too long"));
    }
    let mut writer = Writer { state, out: String::new(), indent, item, key, ensure_ascii, sort_keys };
    writer.value(value, 0)?;
    Ok(Value::from(writer.out))
}

struct Writer<'s, 'a, 'e> {
    state: &'s State<'a, 'e>,
    out: String,
    indent: Option<String>,
    item: String,
    key: String,
    ensure_ascii: bool,
    sort_keys: bool,
}

impl Writer<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid("the value is nested too deeply for JSON"));
        }
        let blank = self.indent.as_ref().map_or(0, String::len) * depth;
        self.state.consume_fuel(1 + blank as u64 / BYTES_PER_STEP)?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
                self.list('[', ']', &items, depth, |writer, item| writer.value(item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut pairs = Vec::new();
                for key in value.try_iter()?.checked() {
                    let key = key?;
                    let name = match key.kind() {
                        ValueKind::None => "null".to_string(),
                        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_string(),
                        ValueKind::Number => number(&key),
                        ValueKind::String => key.as_str().unwrap_or_default().to_string(),
                        other => return Err(invalid(format!("a key of type {other} is not possible in JSON"))),
                    };
                    pairs.push((name, value.get_item(&key)?));
                }
                if self.sort_keys {
                    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.list('{', '}', &pairs, depth, |writer, (name, value)| {
                    writer.string(name)?;
                    writer.out.push_str(&writer.key);
                    writer.value(value, depth + 1)
                })?;
            }
            other => return Err(invalid(format!("a value of type {other} is not possible in JSON"))),
        }
        Ok(())
    }

    fn list<T>(
        &mut self,
        open: char,
        close: char,
        items: &[T],
        depth: usize,
        mut write: impl FnMut(&mut Self, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for (n, item) in items.iter().enumerate() {
            if n > 0 {
                self.out.push_str(&self.item);
            }
            self.line(depth + 1);
            write(self, item)?;
        }
        if !items.is_empty() {
            self.line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            (0..depth).for_each(|_| self.out.push_str(indent));
        }
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        self.state.consume_fuel(text.len() as u64 / BYTES_PER_STEP)?;
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}"); // writing to a String cannot fail
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
        Ok(())
    }
}

/// A number as Python prints it.
pub(super) fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => python_float(float),
        _ => value.to_string(),
    }
}

/// The shortest digits that read back as `float`, with an exponent from 1e16 up and below 1e-4, as Python chooses.
fn python_float(float: f64) -> String {
    if !float.is_finite() {
        let word = if float.is_nan() { "NaN" } else { "Infinity" };
        return if float < 0.0 { format!("-{word}") } else { word.to_string() };
    }
    let text = format!("{float:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.abs())
        }
        _ if float.fract() == 0.0 => format!("{float:.1}"),
        _ => format!("{float}"),
    }
}

fn invalid(reason: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

//! What templates work with: Jinja as transformers sets it up, with a charge for all that the engine itself lets pass.

use super::json;
use super::operands::{BOUNDED, SCALAR};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior};
use std::sync::Arc;
use thiserror::Error as ThisError;

/// Caller's values are no deeper than JSON may be, and lie in a list of messages; keeps recursion off the end of the stack.
const MAX_DEPTH: usize = json::MAX_DEPTH + 16;
/// Macros in macros. The engine counts four for each.
const MAX_RECURSION: usize = 200;
/// Longest reason of an error, in characters.
pub(super) const MAX_REASON: usize = 2000;
/// Values that one step pays for looking at.
const VALUES_PER_STEP: u64 = 4;
/// Bytes that one step pays for comparing.
const BYTES_PER_STEP: u64 = 1024;
/// Bytes that one step pays for making.
const BYTES_MADE_PER_STEP: u64 = 64;
/// List items that one step pays for making.
const ITEMS_PER_STEP: u64 = 2;

/// What `raise_exception` was called with.
#[derive(Debug, ThisError)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

pub(super) fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_debug(false);
    environment.set_recursion_limit(MAX_RECURSION);
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|out, state, value| {
        if value.is_number() {
            return minijinja::escape_formatter(out, state, &Value::from(json::number(value)));
        }
        let value = bounded(state, value.clone())?;
        minijinja::escape_formatter(out, state, &value)
    });
    environment.add_filter(BOUNDED, bounded);
    environment.add_filter(SCALAR, scalar);
    environment.add_filter("tojson", json::tojson);
    // They join lists or mappings without making a new one, work on text or dump values; no chat template needs them.
    for name in ["chain", "zip", "batch", "slice", "groupby", "pprint", "sum", "urlencode"] {
        environment.remove_filter(name);
    }
    environment.remove_global("debug");
    environment.add_filter("split", |state: &State, value: &Value, separator: Option<Arc<str>>, most: Option<i64>| {
        pay_pieces(state, value.as_str().unwrap_or_default(), separator.clone().map(Value::from).as_ref())?;
        minijinja::filters::split(value, separator, most)
    });
    environment.add_filter("lines", |state: &State, value: &Value| {
        pay_pieces(state, value.as_str().unwrap_or_default(), None)?;
        minijinja::filters::lines(value)
    });
    environment.add_test("in", |state: &State, value: Value, container: Value| {
        let (value, container) = (bounded(state, value)?, bounded(state, container)?);
        minijinja::tests::is_in(state, &value, &container)
    });
    environment.add_function("raise_exception", |state: &State, message: Value| -> Result<Value, Error> {
        let message = bounded(state, message)?.to_string().chars().take(MAX_REASON).collect();
        Err(invalid("raise_exception").with_source(Raised(message)))
    });
    environment.add_function("strftime_now", |state: &State, format: String| {
        let widths = format.split(|c: char| !c.is_ascii_digit()).any(|number| number.len() > 4);
        if widths || format.len() > MAX_REASON {
            return Err(invalid("strftime_now: the format asks for too much"));
        }
        state.consume_fuel(format.len() as u64)?;
        jiff::fmt::strtime::format(format, &jiff::ZonedDateTime::now())
            .map_err(|e| invalid(format!("strftime_now: {e}")))
    });
    Ok(environment)
}

/// The value, after a charge for all that it holds, counted as often as it is held. A lazy list becomes one that is made,
/// so that lazy lists do not pile up.
fn bounded(state: &State, value: Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        let steps = text.len() as u64 / BYTES_PER_STEP;
        return if steps > 0 { state.consume_fuel(steps).map(|()| value) } else { Ok(value) };
    }
    if value.as_object().is_none() {
        return Ok(value);
    }
    let value = if is_lazy(&value) { Value::from(collect(state, &value)?) } else { value };
    let mut meter = Meter { state, values: 0, bytes: 0 };
    meter.look(&value, 0)?;
    meter.pay()?;
    Ok(value)
}

/// The operand of a `*`.
fn scalar(state: &State, value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map | ValueKind::Plain => {
            Err(invalid(format!("`*` of a value of type {}", value.kind())))
        }
        _ => bounded(state, value),
    }
}

fn is_lazy(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
        && value.downcast_object_ref::<Vec<Value>>().is_none()
        && value.downcast_object_ref::<Tuple>().is_none()
}

fn collect(state: &State, value: &Value) -> Result<Vec<Value>, Error> {
    let mut items = Vec::new();
    for item in value.try_iter()?.checked() {
        if (items.len() as u64).is_multiple_of(ITEMS_PER_STEP) {
            state.consume_fuel(1)?;
        }
        items.push(item?);
    }
    Ok(items)
}

struct Meter<'s, 'a, 'e> {
    state: &'s State<'a, 'e>,
    values: u64,
    bytes: u64,
}

impl Meter<'_, '_, '_> {
    fn look(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.values += 1;
        if depth > MAX_DEPTH {
            return Err(invalid("the value is nested too deeply"));
        }
        if self.values >= 1024 {
            self.pay()?;
        }
        if let Some(text) = value.as_str() {
            self.bytes += text.len() as u64;
        } else if let Some(items) = value.downcast_object_ref::<Vec<Value>>() {
            items.iter().try_for_each(|item| self.look(item, depth + 1))?;
        } else if let Some(items) = value.downcast_object_ref::<Tuple>() {
            items.iter().try_for_each(|item| self.look(item, depth + 1))?;
        } else if value.kind() == ValueKind::Map {
            let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
            for (key, value) in pairs.into_iter().flatten() {
                self.look(&key, depth + 1)?;
                self.look(&value, depth + 1)?;
            }
        } else if is_lazy(value) {
            for item in value.try_iter()?.checked() {
                self.look(&item?, depth + 1)?;
            }
        }
        Ok(())
    }

    fn pay(&mut self) -> Result<(), Error> {
        let steps = self.values / VALUES_PER_STEP + self.bytes / BYTES_PER_STEP;
        (self.values, self.bytes) = (0, 0);
        self.state.consume_fuel(steps)
    }
}

/// Python's methods.
fn method(state: &mut State, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let value = bounded(state, value.clone())?;
    if let Some(text) = value.as_str() {
        state.consume_fuel(text.len() as u64 / BYTES_MADE_PER_STEP)?;
        match name {
            "format" => pay_format(state, text, arguments)?,
            "split" | "splitlines" => pay_pieces(state, text, arguments.first())?,
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, &value, name, arguments)
}

/// The engine charges for the pieces when they are there.
fn pay_pieces(state: &State, text: &str, separator: Option<&Value>) -> Result<(), Error> {
    let pieces = match separator.and_then(Value::as_str) {
        Some(separator) => text.matches(separator).count(),
        None => text.split_whitespace().count() + text.matches('\n').count(),
    };
    state.consume_fuel(pieces as u64 / ITEMS_PER_STEP)
}

/// For the widths in a format, and for arguments that are put in many times.
fn pay_format(state: &State, format: &str, arguments: &[Value]) -> Result<(), Error> {
    for number in format.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty()) {
        let width: u64 = number.parse().map_err(|_| invalid("a number in the format is too large"))?;
        state.consume_fuel(width.saturating_mul(4) / BYTES_MADE_PER_STEP)?;
    }
    let fields = format.matches('{').count() as u64;
    for argument in arguments {
        let printed = argument.as_str().map_or_else(|| argument.to_string().len(), str::len) as u64;
        state.consume_fuel(fields.saturating_mul(printed) / BYTES_MADE_PER_STEP)?;
    }
    Ok(())
}

fn invalid(reason: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

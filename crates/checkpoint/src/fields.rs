//! Fields of a JSON object, read with their bounds.

use crate::error::{Error, brief};
use crate::json::shown;
use serde_json::{Map, Value};
use std::fmt::{Debug, Display};
use std::ops::RangeInclusive;

/// A view of a JSON object that knows which file it is in and where, so that every error can say so.
///
/// The `opt_` methods give `None` where the field is absent or `null`, and [`Error::Malformed`] (file, dotted path,
/// expected, found) where it is there with another type or out of bounds; nothing is rounded, clamped or converted,
/// but that an integer will do where a number is asked for.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    file: &'a str,
    map: &'a Map<String, Value>,
    /// Dotted, with a dot at the end; empty for the document itself.
    path: String,
    /// What the object belongs to, after the path in messages: " of tensor `x`".
    scope: String,
}

impl<'a> Fields<'a> {
    /// The fields of a whole document, of which `file` is the name in messages.
    pub fn new(file: &'a str, map: &'a Map<String, Value>) -> Self {
        Self { file, map, path: String::new(), scope: String::new() }
    }

    /// As [`new`](Self::new), for an object inside of `file` that messages call by name.
    pub(crate) fn of(file: &'a str, map: &'a Map<String, Value>, owner: &str) -> Self {
        Self { scope: format!(" of {owner}"), ..Self::new(file, map) }
    }

    /// The name of the file in messages.
    pub fn file(&self) -> &'a str {
        self.file
    }

    /// The keys that are there, in the order of the file.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.map.keys().map(String::as_str)
    }

    /// The value as it stands; `None` where it is absent or `null`.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    /// The fields of the object `key`.
    pub fn object(&self, key: &str) -> Result<Option<Fields<'a>>, Error> {
        self.opt(key, || "an object".into(), Value::as_object).map(|found| {
            found.map(|map| Fields { map, path: format!("{}{key}.", self.path), scope: self.scope.clone(), ..*self })
        })
    }

    /// An integer in `range`. `1.0` and `"1"` are none.
    pub fn opt_usize(&self, key: &str, range: RangeInclusive<usize>) -> Result<Option<usize>, Error> {
        self.opt(key, || within("an integer", &range), |v| usize_of(v).filter(|n| range.contains(n)))
    }

    /// An integer in `range`, for token ids and the like.
    pub fn opt_u32(&self, key: &str, range: RangeInclusive<u32>) -> Result<Option<u32>, Error> {
        self.opt(key, || within("an integer", &range), |v| u32_of(v).filter(|n| range.contains(n)))
    }

    /// A number that, rounded to f32, is finite and in `range`.
    pub fn opt_f32(&self, key: &str, range: RangeInclusive<f32>) -> Result<Option<f32>, Error> {
        self.opt(key, || within("a number", &range), |v| f32_of(v, &range))
    }

    /// `true` or `false`.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.opt(key, || "true or false".into(), Value::as_bool)
    }

    /// A string.
    pub fn opt_str(&self, key: &str) -> Result<Option<&'a str>, Error> {
        self.opt(key, || "a string".into(), Value::as_str)
    }

    /// A list of at most `max_len` integers that fit u32, or one such integer, which is a list of one.
    pub fn opt_u32_list(&self, key: &str, max_len: usize) -> Result<Option<Vec<u32>>, Error> {
        if let Some(one) = self.get(key).and_then(u32_of) {
            return Ok(Some(vec![one]));
        }
        self.opt_list(key, max_len, "integers from 0 to 4294967295", u32_of)
    }

    /// A list of at most `max_len` numbers, each as [`opt_f32`](Self::opt_f32) takes it.
    pub fn opt_f32_list(
        &self,
        key: &str,
        max_len: usize,
        range: RangeInclusive<f32>,
    ) -> Result<Option<Vec<f32>>, Error> {
        self.opt_list(key, max_len, &within("numbers", &range), |v| f32_of(v, &range))
    }

    /// A list of at most `max_len` strings.
    pub fn opt_str_list(&self, key: &str, max_len: usize) -> Result<Option<Vec<&'a str>>, Error> {
        self.opt_list(key, max_len, "strings", Value::as_str)
    }

    /// The error for a field that is not `expected`, in the words of the `opt_` methods; [`Error::Missing`] where it
    /// is absent. For conditions that only the caller knows.
    pub fn invalid(&self, key: &str, expected: impl Display) -> Error {
        let (file, what, expected) = (self.file.to_string(), self.describe(key), expected.to_string());
        match self.get(key) {
            Some(value) => Error::Malformed { file, what, expected, found: shown(value) },
            None => Error::Missing { file, what, expected, more: 0 },
        }
    }

    /// The field as messages name it, with the path to it.
    pub fn describe(&self, key: &str) -> String {
        format!("field `{}`{}", brief(&format!("{}{key}", self.path)), self.scope)
    }

    fn opt<T>(
        &self,
        key: &str,
        expected: impl FnOnce() -> String,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.invalid(key, expected()))
    }

    fn opt_list<T>(
        &self,
        key: &str,
        max_len: usize,
        items: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, Error> {
        let expected = || format!("a list of at most {max_len} {items}");
        let Some(list) = self.opt(key, expected, |v| v.as_array().filter(|list| list.len() <= max_len))? else {
            return Ok(None);
        };
        let mut out = Vec::with_capacity(list.len());
        for (i, value) in list.iter().enumerate() {
            let item = read(value).ok_or_else(|| Error::Malformed {
                file: self.file.into(),
                what: self.describe(&format!("{key}[{i}]")),
                expected: expected(),
                found: shown(value),
            })?;
            out.push(item);
        }
        Ok(Some(out))
    }
}

fn usize_of(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

fn u32_of(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

/// The bounds hold for what is used, so for the rounded number: 1e-50 is 0 and 1e39 is infinite.
fn f32_of(value: &Value, range: &RangeInclusive<f32>) -> Option<f32> {
    let number = value.as_f64()? as f32;
    (number.is_finite() && range.contains(&number)).then_some(number)
}

fn within<T: Debug>(noun: &str, range: &RangeInclusive<T>) -> String {
    format!("{noun} from {:?} to {:?}", range.start(), range.end())
}

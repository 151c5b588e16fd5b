//! Rendering a checkpoint's chat template to control tokens and ordinary text.
//!
//! A literal such as `<|eot|>` is a control token when the template writes it, and text when it comes from the caller.
//! The two are told apart exactly: before the template is compiled, each special literal in its source becomes a marker
//! of random digits, which the caller's strings cannot hold. What the template wrote is then found by marker in the
//! rendered text, whatever the template did with the caller's strings, which it sees as they are.

use super::bounded::{MAX_REASON, Raised, environment};
use super::marker::Marker;
use super::message::{Message, ReasoningStrength};
use super::{json, operands};
use crate::tokenizer::{Segment, Tokenizer};
use minijinja::value::Value as Jinja;
use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value};
use std::io::{self, Write};
use std::sync::OnceLock;
use thiserror::Error;

/// What can go wrong with a chat template.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TemplateError {
    /// The file, or what it holds, is not a template.
    #[error("{label}: {reason}")]
    Malformed {
        /// Name of the file.
        label: String,
        /// What is wrong, in one line.
        reason: String,
    },
    /// The template itself refuses the conversation (`raise_exception`).
    #[error("{label}: the template refuses this conversation: {message}")]
    Raised {
        /// Name of the file.
        label: String,
        /// The template's words.
        message: String,
    },
    /// The template failed on this conversation.
    #[error("{label}: {reason}")]
    Failed {
        /// Name of the file.
        label: String,
        /// What went wrong, in one line.
        reason: String,
    },
    /// The template does more work than any conversation of this size calls for.
    #[error("{label}: the template did not end within {steps} steps")]
    Endless {
        /// Name of the file.
        label: String,
        /// The bound that it reached.
        steps: u64,
    },
    /// The template puts a control token together from parts, so it cannot be told from text.
    #[error("{label}: the template builds `{literal}` from parts instead of writing it out")]
    Composed {
        /// Name of the file.
        label: String,
        /// The literal.
        literal: String,
    },
    /// An extra variable has the name of one that is set anyway.
    #[error("template variable `{0}` is set already")]
    Conflict(String),
    /// Some JSON of the caller is nested deeper than any parser would read.
    #[error("`{0}` is nested too deeply")]
    TooDeep(String),
}

/// What a template is rendered with.
#[derive(Clone, Debug, Default)]
pub struct RenderInput<'a> {
    /// The conversation.
    pub messages: &'a [Message],
    /// Declarations of the tools that the model may call.
    pub tools: &'a [Value],
    /// Left out, the template decides.
    pub reasoning_strength: Option<ReasoningStrength>,
    /// `YYYY-MM-DD`; left out, the template may take today's.
    pub current_date: Option<String>,
    /// Whether the prompt ends where the model is to speak.
    pub add_generation_prompt: bool,
    /// More variables for the template.
    pub extra: Map<String, Value>,
}

/// A chat template.
pub struct ChatTemplate {
    source: String,
    label: String,
    marker: Marker,
    /// Names of control tokens, and the markers that stand for them.
    specials: Vec<(String, String)>,
    /// Whether the source holds parts of special literals outside whole ones.
    composes: bool,
    /// Compiled by the first conversation: a run on plain text has no use for it.
    environment: OnceLock<Result<Environment<'static>, TemplateError>>,
}

/// Steps for a template's own work. A step is one instruction, or 64 bytes of text made.
const BASE_STEPS: u64 = 2_000_000;
/// No conversation gets more than this: seconds, and not minutes.
const MAX_STEPS: u64 = 200_000_000;
/// Real templates have a third of this at most, and compiling is not linear.
const MAX_SOURCE: usize = 64 << 10;
/// Bytes of a prompt for an empty conversation; a byte of the conversation allows for four.
const BASE_PROMPT: u64 = 16 << 20;

const NAME: &str = "template";

impl ChatTemplate {
    /// `source` is Hugging Face's Jinja; what is wrong with it is found when it is first rendered. `label` names it in
    /// errors. The control tokens are the tokenizer's.
    pub fn new(source: &str, label: impl Into<String>, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        let label = label.into();
        let environment = OnceLock::new();
        let marker = Marker::new(tokenizer);
        let (source, composes) = if source.len() > MAX_SOURCE {
            let reason = format!("{} bytes are too many for a template", source.len());
            environment.get_or_init(|| Err(malformed(&label, reason)));
            Default::default()
        } else {
            marker.mark(source)
        };
        let specials = tokenizer.named_specials().map(|(name, literal)| (name.to_string(), marker.mark(literal).0));
        let specials = specials.collect();
        Ok(Self { source, label, marker, specials, composes, environment })
    }

    /// The environment that holds the compiled template.
    fn environment(&self) -> Result<&Environment<'static>, TemplateError> {
        let compile = || {
            let marked = operands::mark(&without_generation_tags(&self.source))?;
            let compile = || {
                let mut environment = environment()?;
                for (name, marker) in &self.specials {
                    environment.add_global(name.clone(), marker.as_str());
                }
                environment.add_template_owned(NAME, marked)?;
                Ok(environment)
            };
            on_own_stack(compile).ok_or(NO_THREAD)?.map_err(|e: minijinja::Error| reason(&e))
        };
        let compiled = self
            .environment
            .get_or_init(|| compile().map_err(|reason: String| malformed(&self.label, self.marker.unmark(&reason))));
        compiled.as_ref().map_err(Clone::clone)
    }

    /// The template of a checkpoint, from the bytes of its `chat_template.jinja`, otherwise from the `chat_template` of its
    /// `tokenizer_config.json`; with the name of the file that it came from.
    pub fn find(
        jinja: Option<&[u8]>,
        tokenizer_config: Option<&[u8]>,
    ) -> Result<Option<(String, &'static str)>, TemplateError> {
        let file = "chat_template.jinja";
        if let Some(bytes) = jinja {
            let source = std::str::from_utf8(bytes).map_err(|e| malformed(file, format!("not UTF-8: {e}")))?;
            return Ok(Some((source.to_string(), file)));
        }
        let file = "tokenizer_config.json";
        let Some(bytes) = tokenizer_config else { return Ok(None) };
        let config: Value = serde_json::from_slice(bytes).map_err(|e| malformed(file, format!("not JSON: {e}")))?;
        match config.get("chat_template") {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(source)) => Ok(Some((source.clone(), file))),
            Some(Value::Array(entries)) => {
                let default = entries.iter().find(|entry| entry.get("name").and_then(Value::as_str) == Some("default"));
                let source = default.and_then(|entry| entry.get("template")).and_then(Value::as_str);
                let source = source.ok_or_else(|| malformed(file, "`chat_template` has no entry named `default`"))?;
                Ok(Some((source.to_string(), file)))
            }
            Some(_) => Err(malformed(file, "`chat_template` is neither a string nor a list")),
        }
    }

    /// The prompt for a conversation. Neighbouring text is one segment, so it is tokenized as the text that it is.
    pub fn render(&self, input: &RenderInput<'_>) -> Result<Vec<Segment>, TemplateError> {
        let (variables, strings) = self.variables(input)?;
        let bytes: u64 = strings.iter().map(|s| s.len() as u64).sum();
        let messages = input.messages.len() as u64;
        // Looking up the call of every tool message in all messages is quadratic, and templates do it.
        let steps =
            BASE_STEPS.saturating_add(bytes).saturating_add(messages.saturating_mul(messages).saturating_mul(16));
        let steps = steps.min(MAX_STEPS);

        let mut environment = self.environment()?.clone();
        environment.set_fuel(Some(steps));
        let mut prompt = Prompt { bytes: Vec::new(), left: BASE_PROMPT.saturating_add(bytes.saturating_mul(4)) };
        let render = || {
            let template = environment.get_template(NAME)?;
            template.render_captured_to(variables, &mut prompt).map(drop)
        };
        let rendered = on_own_stack(render).ok_or_else(|| self.failed(NO_THREAD))?;
        rendered.map_err(|e| self.failure(&e, steps))?;
        let rendered = String::from_utf8(prompt.bytes).map_err(|_| self.failed("the prompt is not UTF-8"))?;
        let segments = self.marker.split(&rendered).ok_or_else(|| self.failed("the template cut a control token"))?;
        if self.composes {
            self.check_composed(&segments, &strings)?;
        }
        Ok(segments)
    }

    /// The template's variables, and every string in them.
    fn variables<'i>(&self, input: &'i RenderInput<'_>) -> Result<(Jinja, Vec<&'i str>), TemplateError> {
        let mut strings = Vec::new();
        let mut variables: Vec<(&str, Jinja)> = Vec::new();
        let mut convert = |name: &str, value: &'i Value| {
            collect_strings(value, &mut strings);
            json::to_template(value).ok_or_else(|| TemplateError::TooDeep(name.to_string()))
        };
        let mut messages = Vec::new();
        for message in input.messages {
            let mut fields = Vec::new();
            for (key, value) in message.fields() {
                fields.push((key.as_str(), convert("messages", value)?));
            }
            messages.push(Jinja::from_pairs(fields));
        }
        variables.push(("messages", Jinja::from(messages)));
        let tools = input.tools.iter().map(|tool| convert("tools", tool)).collect::<Result<Vec<_>, _>>()?;
        variables.push(("tools", if tools.is_empty() { Jinja::from(()) } else { Jinja::from(tools) }));
        variables.push(("add_generation_prompt", Jinja::from(input.add_generation_prompt)));
        if let Some(strength) = input.reasoning_strength {
            variables.push(("reasoning_strength", Jinja::from(strength.as_str())));
        }
        if let Some(date) = &input.current_date {
            variables.push(("current_date", Jinja::from(date)));
        }
        for (name, value) in &input.extra {
            if variables.iter().any(|(other, _)| other == name) {
                return Err(TemplateError::Conflict(name.clone()));
            }
            variables.push((name, convert(name, value)?));
        }
        strings.extend(input.current_date.as_deref());
        strings.extend(input.messages.iter().flat_map(|m| m.fields().keys()).map(String::as_str));
        if strings.iter().any(|s| s.contains(&self.marker.digits)) {
            return Err(self.failed("the conversation holds this template's random marker"));
        }
        Ok((Jinja::from_pairs(variables), strings))
    }

    /// A special literal in the text that no string of the caller holds is one that the template composed.
    fn check_composed(&self, segments: &[Segment], strings: &[&str]) -> Result<(), TemplateError> {
        for segment in segments {
            let Segment::Text(text) = segment else { continue };
            let mut from = 0;
            while let Some((at, index)) = self.marker.find_literal(text, from) {
                let literal = &self.marker.specials[index].0;
                if !strings.iter().any(|s| s.contains(literal)) {
                    return Err(TemplateError::Composed { label: self.label.clone(), literal: literal.clone() });
                }
                from = at + literal.len();
            }
        }
        Ok(())
    }

    fn failed(&self, reason: &str) -> TemplateError {
        TemplateError::Failed { label: self.label.clone(), reason: reason.to_string() }
    }

    fn failure(&self, error: &minijinja::Error, steps: u64) -> TemplateError {
        let label = self.label.clone();
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(e) = cause {
            if let Some(Raised(message)) = e.downcast_ref() {
                return TemplateError::Raised { label, message: self.marker.unmark(&one_line(message)) };
            }
            if e.downcast_ref::<minijinja::Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
                return TemplateError::Endless { label, steps };
            }
            cause = e.source();
        }
        TemplateError::Failed { label, reason: self.marker.unmark(&reason(error)) }
    }
}

/// A prompt in the making, with a limit of its own: text that is made once can be written many times.
struct Prompt {
    bytes: Vec<u8>,
    left: u64,
}

impl Write for Prompt {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.left =
            self.left.checked_sub(text.len() as u64).ok_or_else(|| io::Error::other("the prompt is too long"))?;
        self.bytes.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Does `work` on a thread whose stack fits what the template engine recurses over: operators of a tag, blocks,
/// brackets, values and macros, all of which are bounded.
fn on_own_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    let work = std::sync::Mutex::new(Some(work));
    let run = || work.lock().ok()?.take().map(|work| work());
    let thread = |bytes| std::thread::Builder::new().name("template".into()).stack_size(bytes);
    std::thread::scope(|scope| {
        let roomy = thread(STACK).spawn_scoped(scope, run);
        let spawned = roomy.or_else(|_| thread(SMALLEST_STACK).spawn_scoped(scope, run));
        spawned.ok()?.join().ok()?
    })
}

const STACK: usize = 16 << 20;
/// The deepest templates of the tests fit in half of this.
const SMALLEST_STACK: usize = 4 << 20;
const NO_THREAD: &str = "the thread that works on the template did not start or failed";

/// `{% generation %}` marks the model's own words for training and is no tag of this Jinja: it becomes a plain block.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag, after)) = next_tag(rest) {
        out.push_str(before);
        let word = tag.trim_matches(|c: char| c.is_whitespace() || matches!(c, '-' | '+'));
        match word {
            "generation" => out.push_str(&format!("{{%{}%}}", tag.replace(word, "if true"))),
            "endgeneration" => out.push_str(&format!("{{%{}%}}", tag.replace(word, "endif"))),
            _ => out.push_str(&format!("{{%{tag}%}}")),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

fn next_tag(source: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = source.split_once("{%")?;
    let (tag, after) = rest.split_once("%}")?;
    Some((before, tag, after))
}

fn collect_strings<'v>(value: &'v Value, strings: &mut Vec<&'v str>) {
    // A list of what is left, because the caller's nesting has no bound here.
    let mut left = vec![value];
    while let Some(value) = left.pop() {
        match value {
            Value::String(text) => strings.push(text),
            Value::Array(items) => left.extend(items),
            Value::Object(fields) => {
                strings.extend(fields.keys().map(String::as_str));
                left.extend(fields.values());
            }
            _ => {}
        }
    }
}

/// An error and its causes, in one line, with the line of the template.
fn reason(error: &minijinja::Error) -> String {
    let mut text =
        error.detail().map_or_else(|| error.kind().to_string(), |detail| format!("{}: {detail}", error.kind()));
    if let Some(line) = error.line() {
        text.push_str(&format!(" (line {line})"));
    }
    let mut cause = std::error::Error::source(error);
    while let Some(e) = cause {
        text.push_str(&format!(": {e}"));
        cause = e.source();
    }
    one_line(&text)
}

/// `text`, or its beginning: errors of the engine quote values.
fn one_line(text: &str) -> String {
    let text: String = text.chars().take(MAX_REASON).collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn malformed(label: &str, reason: impl ToString) -> TemplateError {
    TemplateError::Malformed { label: label.to_string(), reason: one_line(&reason.to_string()) }
}

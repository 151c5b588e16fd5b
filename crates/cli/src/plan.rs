//! What was typed means this: validated, and independent of the parser.

use crate::args::{
    DraftKind, InspectArgs, MachineArgs, MemoryArgs, ModelArgs, OutputArgs, PassArgs, PromptArgs, RunArgs,
    SamplingArgs, Seed, Switch,
};
use crate::failure::{Failure, Outcome};
use crate::models;
use crate::prompt::Prompt;
use glimmer_engine::chat::message::RequestedStrength;
use glimmer_engine::hub::Repository;
use glimmer_engine::sampling::Sampling;
use glimmer_engine::stops::MAX_STOPS;
use glimmer_engine::{DraftWidth, EngineOptions, Source};
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

/// What a decision depends on besides the arguments.
pub struct Surroundings {
    pub stdin_terminal: bool,
    pub stdout_terminal: bool,
    pub exists: fn(&Path) -> bool,
}

impl Surroundings {
    pub fn look() -> Self {
        Self {
            stdin_terminal: io::stdin().is_terminal(),
            stdout_terminal: io::stdout().is_terminal(),
            exists: |path| path.exists(),
        }
    }
}

/// Whether a prompt may be asked for at the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    MayInteract,
    OneShot,
}

/// A run.
#[derive(Debug)]
pub struct RunPlan {
    pub options: EngineOptions,
    /// Rows of a round, where something decides them.
    pub width: Option<Width>,
    /// Who proposes, if it was said.
    kind: Option<DraftKind>,
    /// A drafter that comes with the target is used.
    pub draft: bool,
    /// A vision tower was named.
    pub vision: bool,
    pub prompt: Prompt,
    pub framing: Framing,
    pub system: Option<String>,
    pub effort: Option<RequestedStrength>,
    sampling: SamplingArgs,
    pub limit: Limit,
    pub stop: Vec<String>,
    pub ignore_eos: bool,
    pub show_reasoning: bool,
    pub json: bool,
    pub quiet: bool,
    /// Where rounds are written.
    pub trace: Option<PathBuf>,
    /// Something that the user may not have meant.
    pub doubt: Option<String>,
}

/// Rows of a round, and what says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Width {
    pub rows: DraftWidth,
    /// A flag, or a field of a file.
    pub from: String,
    /// It is a flag.
    pub typed: bool,
}

/// How a prompt is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// As a conversation.
    Chat,
    /// As plain text.
    Raw,
    /// As a conversation if the checkpoint has a template.
    ByTemplate,
}

/// Most tokens of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// What the context holds.
    Context,
    Tokens(usize),
    /// A conversation ends by itself, plain text need not.
    ByFraming,
}

/// Tokens of plain text that are written if nothing else was asked for.
const PLAIN_TEXT: usize = 256;

impl Limit {
    /// For an output that is, or is not, part of a conversation.
    pub fn tokens(self, chat: bool) -> Option<usize> {
        match self {
            Limit::Tokens(tokens) => Some(tokens),
            Limit::ByFraming if !chat => Some(PLAIN_TEXT),
            Limit::ByFraming | Limit::Context => None,
        }
    }
}

impl RunPlan {
    /// The checkpoint's settings, but for what was asked for.
    pub fn sampling(&self, defaults: &Sampling, seed: u64) -> Sampling {
        let args = &self.sampling;
        Sampling {
            temperature: args.temperature.unwrap_or(defaults.temperature),
            top_k: args.top_k.map_or(defaults.top_k, |k| usize::try_from(k).unwrap_or(0)),
            top_p: args.top_p.unwrap_or(defaults.top_p),
            min_p: args.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: args.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            presence_penalty: args.presence_penalty.unwrap_or(defaults.presence_penalty),
            frequency_penalty: args.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            logit_bias: args.logit_bias.clone(),
            seed,
            sample_index: 0,
        }
    }

    /// Has the models here, and settles what depends on them.
    pub fn obtain(&mut self) -> Outcome {
        let best = models::obtain(&mut self.options, self.draft)?;
        let needs = |flag: &str| {
            Err(Failure::Usage(format!(
                "{flag} needs a drafter: --draft-model names one, --draft-kind ngram needs none"
            )))
        };
        match (&self.width, self.kind) {
            _ if self.options.drafter.is_some() => {}
            (_, Some(DraftKind::Dflash | DraftKind::Hybrid)) => return needs("--draft-kind dflash or hybrid"),
            (Some(Width { from, .. }), None) => return needs(from),
            _ => {}
        }
        self.width = self.width.take().or(best);
        Ok(())
    }

    /// The seed, where one was given.
    pub fn seed(&self) -> Option<u64> {
        match self.sampling.seed {
            Some(Seed::Given(seed)) => Some(seed),
            Some(Seed::Drawn) | None => None,
        }
    }
}

/// The meaning of `run` and `generate`.
pub fn run(args: RunArgs, around: &Surroundings, manner: Manner) -> Outcome<RunPlan> {
    let RunArgs { first, second, literal, prompt, model, sampling, output } = args;
    let asked = Asked { model: model.model.clone(), first, second, literal };
    let Positionals { model: named, prompt: typed, doubt } = positionals(asked, &prompt, around)?;
    let target = match named {
        Some(name) => source(name, around)?,
        None => Source::Nano,
    };
    let framing = framing(&prompt, &output, &target)?;
    let prompt_from = prompt_from(typed, &prompt, &output, around, manner)?;
    let kind = model.draft_kind;
    let draft = !model.no_draft && kind != Some(DraftKind::Ngram);
    let vision = model.mmproj.is_some();
    let (options, width) = options(target, model, around)?;
    let OutputArgs { predict, stop, ignore_eos, show_reasoning, json, quiet, trace } = output;
    if stop.len() > MAX_STOPS {
        return Err(Failure::Usage(format!("--stop: {} texts, expected at most {MAX_STOPS}", stop.len())));
    }
    let plan = RunPlan {
        options,
        width,
        kind,
        draft,
        vision,
        prompt: prompt_from,
        framing,
        system: prompt.system,
        effort: prompt.effort,
        sampling,
        limit: match predict {
            None => Limit::ByFraming,
            Some(tokens) => usize::try_from(tokens).map_or(Limit::Context, Limit::Tokens),
        },
        stop,
        ignore_eos,
        show_reasoning: show_reasoning.map_or(around.stdout_terminal, |switch| switch == Switch::On),
        json,
        quiet,
        trace,
        doubt,
    };
    // No vocabulary is known yet, so the largest stands for it: what it refuses, all refuse.
    let sampling = plan.sampling(&Sampling::default(), 0);
    sampling.validate(u32::MAX as usize).map_err(|error| Failure::Usage(error.to_string()))?;
    Ok(plan)
}

/// The meaning of `inspect`.
pub fn inspect(args: InspectArgs) -> Outcome<InspectPlan> {
    let around = Surroundings::look();
    let InspectArgs { first, model, draft_model, mmproj, memory, json } = args;
    let target = source(first.or(model).unwrap_or_else(|| "nano".into()), &around)?;
    let drafter = match draft_model {
        Some(name) => Some(source(name, &around)?),
        None => (target == Source::Nano).then_some(Source::Nano),
    };
    let projector = mmproj.map(|name| source(name, &around)).transpose()?;
    let options = EngineOptions { drafter, projector, ..with_memory(EngineOptions::new(target), memory) };
    Ok(InspectPlan { options, json })
}

/// An inspection.
pub struct InspectPlan {
    pub options: EngineOptions,
    pub json: bool,
}

struct Asked {
    model: Option<OsString>,
    first: Option<OsString>,
    second: Option<OsString>,
    literal: Option<OsString>,
}

struct Positionals {
    model: Option<OsString>,
    prompt: Option<Prompt>,
    /// About which is which.
    doubt: Option<String>,
}

fn positionals(asked: Asked, prompt: &PromptArgs, around: &Surroundings) -> Outcome<Positionals> {
    let Asked { model, first, second, literal } = asked;
    let two = |what: &str, one: &OsStr, other: &str| {
        Err(Failure::Usage(format!("two {what}: `{}` and {other}", one.to_string_lossy())))
    };
    let other_prompt = match prompt {
        PromptArgs { text: Some(_), .. } => Some("--prompt"),
        PromptArgs { file: Some(_), .. } => Some("--file"),
        PromptArgs { prompt_ids: Some(_), .. } => Some("--prompt-ids"),
        _ => None,
    };
    if let (Some(literal), Some(other)) = (&literal, other_prompt) {
        return two("prompts", literal, other);
    }
    let word_for_word = literal.is_some();
    let prompt_given = other_prompt.or(literal.as_ref().map(|_| "the one after --"));
    let mut doubt = None;
    let (named, text) = match (first, second) {
        (Some(_), Some(second)) if prompt_given.is_some() => {
            return two("prompts", &second, prompt_given.unwrap_or_default());
        }
        (Some(first), Some(_)) if model.is_some() => return two("models", &first, "--model"),
        (first, Some(second)) => (first, Some(second)),
        (None, None) => (model, literal),
        (Some(first), None) => match (model, prompt_given) {
            (Some(_), Some(other)) => return two("prompts", &first, other),
            (Some(model), None) => (Some(model), Some(first)),
            (None, Some(_)) => (Some(first), literal),
            (None, None) if is_model(&first, around.exists) => (Some(first), None),
            (None, None) => {
                let text = first.to_string_lossy();
                if text.contains('/') && !text.contains(char::is_whitespace) {
                    doubt = Some(format!("there is no `{text}`, so it is taken as the prompt; -m names a model"));
                }
                (None, Some(first))
            }
        },
    };
    let prompt = match text.map(OsString::into_string) {
        None => None,
        Some(Ok(text)) if word_for_word => Some(Prompt::Text(text)),
        Some(Ok(text)) => Some(text_or_stdin(text)),
        Some(Err(_)) => return Err(Failure::Usage("the prompt is not UTF-8".into())),
    };
    Ok(Positionals { model: named, prompt, doubt })
}

/// The text of a file.
pub fn file(path: PathBuf) -> Prompt {
    if path.as_os_str() == STDIN { Prompt::Stdin } else { Prompt::File(path) }
}

fn text_or_stdin(text: String) -> Prompt {
    if text == STDIN { Prompt::Stdin } else { Prompt::Text(text) }
}

/// Whether a lone argument names a model. What looks like one is one, even if it is not there: a misspelt name must not
/// become a prompt.
fn is_model(text: &OsStr, exists: impl Fn(&Path) -> bool) -> bool {
    let Some(utf8) = text.to_str() else { return true };
    let named = Source::embedded(utf8).is_some() || utf8.ends_with(".gguf") || Repository::parse(utf8).is_some();
    named || (utf8 != STDIN && exists(Path::new(text)))
}

/// Standard input, where a prompt or a file is expected; a file of that name is `./-`.
const STDIN: &str = "-";

/// The model that a name stands for.
pub fn source(name: OsString, around: &Surroundings) -> Outcome<Source> {
    match name.is_empty() {
        true => Err(Failure::Usage("the model's path is empty".into())),
        false => Ok(Source::named(&name, around.exists)),
    }
}

fn framing(prompt: &PromptArgs, output: &OutputArgs, target: &Source) -> Outcome<Framing> {
    if prompt.chat {
        return Ok(Framing::Chat);
    }
    let needs =
        |flag: &str| Err(Failure::Usage(format!("{flag} needs --chat, as nano continues plain text by default")));
    let raw = prompt.raw || prompt.prompt_ids.is_some();
    match (raw, target) {
        (false, Source::Path(_) | Source::Repository(_) | Source::Snapshot { .. } | Source::NanoDrafter(_)) => {
            match (&prompt.system, &prompt.effort, &output.show_reasoning) {
                (None, None, None) => Ok(Framing::ByTemplate),
                _ => Ok(Framing::Chat),
            }
        }
        (true, _) if output.show_reasoning.is_some() => {
            let flag = if prompt.raw { "--raw" } else { "--prompt-ids" };
            Err(Failure::Usage(format!("--show-reasoning cannot be used with {flag}")))
        }
        (true, _) => Ok(Framing::Raw),
        (false, Source::Nano) if prompt.system.is_some() => needs("--system"),
        (false, Source::Nano) if prompt.effort.is_some() => needs("--reasoning-effort"),
        (false, Source::Nano) if output.show_reasoning.is_some() => needs("--show-reasoning"),
        (false, Source::Nano) => Ok(Framing::Raw),
    }
}

fn prompt_from(
    typed: Option<Prompt>,
    prompt: &PromptArgs,
    output: &OutputArgs,
    around: &Surroundings,
    manner: Manner,
) -> Outcome<Prompt> {
    if let Some(ids) = &prompt.prompt_ids {
        return Ok(Prompt::Ids(ids.clone()));
    }
    match typed.or_else(|| prompt.text.clone().map(text_or_stdin)) {
        Some(Prompt::Text(text)) if text.is_empty() => return Err(Failure::Usage("the prompt is empty".into())),
        Some(prompt) => return Ok(prompt),
        None => {}
    }
    match &prompt.file {
        Some(path) => return Ok(file(path.clone())),
        None if !around.stdin_terminal => return Ok(Prompt::Stdin),
        None => {}
    }
    let why = match (manner, around.stdout_terminal) {
        (Manner::OneShot, _) => "`generate` is not interactive",
        (_, false) => "standard output is not a terminal",
        _ if output.json => "--json is not interactive",
        _ => return Ok(Prompt::Interactive),
    };
    Err(Failure::Usage(format!(
        "no prompt: {why}; give one as an argument, with --prompt, --file or on standard input"
    )))
}

/// What the engine is made of, and the width of a round.
fn options(target: Source, model: ModelArgs, around: &Surroundings) -> Outcome<(EngineOptions, Option<Width>)> {
    let ModelArgs {
        model: _,
        draft_model,
        mmproj,
        no_draft,
        draft_kind,
        draft_width,
        spec_draft_n_max,
        memory,
        machine,
    } = model;
    let alone = draft_kind == Some(DraftKind::Ngram);
    let drafter = match draft_model {
        Some(_) if alone => {
            return Err(Failure::Usage("--draft-kind ngram uses no drafter: --draft-kind hybrid uses both".into()));
        }
        Some(name) => Some(source(name, around)?),
        None => (target == Source::Nano && !no_draft && !alone).then_some(Source::Nano),
    };
    let typed = |rows: DraftWidth, flag: &str| Some(Width { rows, from: flag.into(), typed: true });
    let width = match (draft_width, spec_draft_n_max) {
        (None, None) => None,
        (Some(width), _) => typed(width, "--draft-width"),
        (_, Some(proposals)) => typed(DraftWidth::Fixed(proposals as usize + 1), "--spec-draft-n-max"),
    };
    let ngram = alone || draft_kind == Some(DraftKind::Hybrid);
    let projector = mmproj.map(|name| source(name, around)).transpose()?;
    let options = EngineOptions { drafter, ngram, projector, ..with_memory(EngineOptions::new(target), memory) };
    Ok((with_machine(options, machine), width))
}

fn with_memory(options: EngineOptions, memory: MemoryArgs) -> EngineOptions {
    let context = memory.ctx_size.filter(|&n| n > 0).map(|n| n as usize);
    EngineOptions { context, ..with_passes(options, memory.passes) }
}

pub fn with_machine(options: EngineOptions, machine: MachineArgs) -> EngineOptions {
    let MachineArgs { threads, isa, activations } = machine;
    EngineOptions { threads: threads.map(|n| n as usize), isa, activations, ..options }
}

pub fn with_passes(options: EngineOptions, passes: PassArgs) -> EngineOptions {
    EngineOptions {
        cache_keys: passes.cache_type_k,
        cache_values: passes.cache_type_v,
        mmap: passes.mmap,
        prefill_chunk: passes.prefill_chunk.map_or(options.prefill_chunk, |n| n as usize),
        ..options
    }
}

#[cfg(test)]
mod tests;

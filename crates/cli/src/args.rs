//! What was typed.

mod bench;
mod cache;
mod pair;

pub use bench::{Bench, BenchArgs, BenchSampling, StepArgs};
pub use cache::{ListArgs, PullArgs, RemoveArgs};
pub use pair::{MakePairArgs, PairCommand, TuneArgs};

use crate::failure::{Failure, Outcome};
use crate::{flags, terminal};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum, value_parser};
use glimmer_engine::chat::message::{ReasoningStrength, RequestedStrength};
use glimmer_engine::synth::{Container, Shape, StoredAs};
use glimmer_engine::{ActivationType, DraftWidth, Isa, KvType};
use std::ffi::OsString;
use std::path::PathBuf;

/// Runs Muse-Glimmer on this machine: exactly, and with a drafter faster
#[derive(Parser, Debug)]
#[command(name = "glimmer", version, max_term_width = 100, subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Chats, or continues a text
    Run(Box<RunArgs>),
    /// The same as `run`, but never interactive
    Generate(Box<RunArgs>),
    /// Says what a checkpoint is, what memory it needs, and whether a drafter fits it
    Inspect(InspectArgs),
    /// Measures how well a model predicts a text, and how far it is from another
    ///
    /// The text is cut into windows that do not overlap, each a sequence of its own. Perplexity is that of every token with
    /// another before it. With --against, both models see the same tokens, and the distances are from the other one: the KL
    /// divergence of the distributions in nats, how often both have the same likeliest token, and the differences of logits.
    #[command(visible_aliases = ["perplexity", "kld"])]
    Score(Box<ScoreArgs>),
    /// Writes a checkpoint in another encoding or container
    ///
    /// A recipe says which encoding each matrix gets, and the container. Shipped ones: mlx-4bit, mlx-4bit-gs32, mlx-8bit,
    /// mlx-mxfp4, ud-q4, gguf-bf16, gguf-q8_0, gguf-q4_k_m, hf-bf16; anything else is a TOML file. Matrices that the encoding has no
    /// place for are listed. At the end the logits of what was written are compared with those of the source on a short text.
    Quantize(QuantizeArgs),
    /// Measures how fast a model runs here, with its drafter and without
    ///
    /// Every prompt is continued without a drafter and at each width, by turns, so that what disturbs the machine disturbs all alike.
    /// Rates are medians; the peak memory is that of the whole process so far. Where tokens differ no speedup is printed. Six prompts
    /// are part of the program: code, repetitive code, prose, a log, JSON and a chat; a checkpoint without a tokenizer reads
    /// their bytes as tokens. With -p or -d random tokens are timed instead, a prompt and decoding one after the other, as
    /// llama-bench does.
    Bench(Box<BenchArgs>),
    /// Makes bundles of a target and its drafter
    #[command(subcommand)]
    Pair(PairCommand),
    /// Measures which draft width is the best on this machine, and stores it
    ///
    /// Four short prompts are continued with rounds of every width by turns, which gives the same tokens at every width. What verifying and
    /// drafting took goes to glimmer/tuned.json under XDG_CONFIG_HOME (by default ~/.config), for these models, this processor and these
    /// settings: there, `--draft-width auto` begins with it instead of learning it, and the start line says so. The best width goes into
    /// dflash_pair.json if MODEL is a bundle's directory.
    Tune(Box<TuneArgs>),
    /// Writes a synthetic checkpoint: random weights in the container and encoding of a real one
    #[command(hide = true)]
    Synth(SynthArgs),
    /// Downloads a model of the hub, or what is missing of it, and prints where it is
    ///
    /// The cache is the one that all tools of the hub share. HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE are
    /// honoured, and HTTPS_PROXY. What was interrupted goes on where it ended, and every file is checked against its hash.
    #[command(visible_alias = "download")]
    Pull(PullArgs),
    /// Lists the models in the cache
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Removes models from the cache
    ///
    /// org/repo is all of a model, org/repo@REVISION a revision, org/repo:QUANT the files of a quantization. What another
    /// revision shares with it stays. At a terminal it asks first.
    #[command(visible_aliases = ["remove", "delete"])]
    Rm(RemoveArgs),
    /// Prints a completion script
    Completions {
        /// The shell that is to read it
        shell: clap_complete::Shell,
    },
}

#[derive(Args, Debug, Default)]
pub struct RunArgs {
    /// A directory, a .gguf file, or a model of the hub: org/repo, org/repo:QUANT, org/repo@REVISION. Left out: nano, a tiny
    /// test model inside this program.
    ///
    /// A model of the hub is downloaded if it is not in the cache. A directory with dflash_pair.json brings its drafter, and so
    /// does one with a folder `drafter`, or a .gguf file with a drafter for it beside it.
    /// A single argument is the model if it is an existing path, ends in .gguf, or looks like org/repo; otherwise it is the
    /// prompt, and nano runs. -m, -p and -- settle it.
    #[arg(value_name = "MODEL")]
    pub first: Option<OsString>,
    /// The prompt; without one it is read from standard input, or line by line at a terminal
    #[arg(value_name = "PROMPT")]
    pub second: Option<OsString>,
    /// The prompt, whatever it looks like
    #[arg(value_name = "PROMPT", last = true, hide = true)]
    pub literal: Option<OsString>,

    #[command(flatten)]
    pub prompt: PromptArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Prompt")]
pub struct PromptArgs {
    /// The prompt, - for standard input
    #[arg(short = 'p', long = "prompt", value_name = "TEXT")]
    pub text: Option<String>,
    /// Reads the prompt from a file, - for standard input; one line break at its end is dropped
    #[arg(short, long, value_name = "FILE", conflicts_with = "text")]
    pub file: Option<PathBuf>,
    /// The prompt as token ids, in place of a text
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with_all = ["text", "file", "chat", "system", "effort"])]
    pub prompt_ids: Option<Vec<u32>>,
    /// Frames the prompt as a conversation [default where the checkpoint named has a chat template]
    #[arg(long)]
    pub chat: bool,
    /// Continues the prompt as plain text
    #[arg(long, conflicts_with_all = ["chat", "system", "effort"])]
    pub raw: bool,
    /// Instructions that precede the conversation
    #[arg(long, value_name = "TEXT", visible_alias = "system-prompt")]
    pub system: Option<String>,
    /// How long the model reasons: low, medium, high or xhigh
    #[arg(
        id = "effort",
        long = "reasoning-effort",
        value_name = "LEVEL",
        visible_alias = "reasoning-strength",
        value_parser = ReasoningStrength::request
    )]
    pub effort: Option<RequestedStrength>,
    /// Templates are always rendered.
    #[arg(long, hide = true)]
    pub jinja: bool,
}

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// The model: a path, org/repo with :QUANT or @REVISION or without, or nano [also: -hf]
    #[arg(short = 'm', long, value_name = "MODEL")]
    pub model: Option<OsString>,
    /// The drafter, named as a model is [also: -md, -hfd] [default: what comes with the model]
    #[arg(long, value_name = "MODEL", visible_alias = "model-draft")]
    pub draft_model: Option<OsString>,
    /// The vision tower of a .gguf model, a file of its own [also: -mm] [default: one beside the model]. It is read and checked;
    /// images are not supported yet
    #[arg(long, value_name = "FILE")]
    pub mmproj: Option<OsString>,
    /// Decodes without a drafter
    #[arg(
        long,
        visible_alias = "no-drafter",
        conflicts_with_all = ["draft_model", "draft_kind", "draft_width", "spec_draft_n_max"]
    )]
    pub no_draft: bool,
    /// Who proposes: dflash, the drafter; ngram, whatever followed the same tokens earlier in prompt and output, for which no
    /// drafter is needed; hybrid, both, the drafter where little is the same [default: dflash where there is a drafter]
    #[arg(long, value_name = "KIND", alias = "spec-type", hide_possible_values = true)]
    pub draft_kind: Option<DraftKind>,
    /// Rows of a round: the newest token and N-1 proposals. auto chooses for every round what is likely to be the fastest, and
    /// leaves the drafter alone where it does not pay [default: auto, but a pair bundle's best where `glimmer tune` was never run]
    #[arg(long, value_name = "auto|N", visible_alias = "draft-block-size", value_parser = draft_width)]
    pub draft_width: Option<DraftWidth>,
    /// Proposals of a round, one less than the draft width
    #[arg(
        long,
        value_name = "K",
        aliases = ["draft", "draft-max", "draft-n", "num-draft-tokens"],
        value_parser = value_parser!(u32).range(1..u32::MAX as i64),
        conflicts_with = "draft_width"
    )]
    pub spec_draft_n_max: Option<u32>,
    #[command(flatten)]
    pub memory: MemoryArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// What the arithmetic runs on.
#[derive(Args, Debug, Default)]
pub struct MachineArgs {
    /// Threads [default: one per physical core that it may use]
    #[arg(short, long, value_name = "N", value_parser = value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Instruction set
    #[arg(long, value_name = "NAME", hide = true)]
    pub isa: Option<Isa>,
    /// What activations are multiplied as: auto, int8, bf16 (bf16 weights only) or f32 [default: auto,
    /// int8 for quantized weights]
    #[arg(long, value_name = "TYPE", default_value = "auto", hide_default_value = true)]
    pub activations: ActivationType,
}

/// What decides the memory that is needed.
#[derive(Args, Debug, Default)]
pub struct MemoryArgs {
    /// Tokens that prompt and answer may have together [default: the model's limit, also for 0]
    #[arg(short, long, value_name = "N")]
    pub ctx_size: Option<u32>,
    #[command(flatten)]
    pub passes: PassArgs,
}

/// What is kept of a pass, and how many rows it has.
#[derive(Args, Debug, Default)]
pub struct PassArgs {
    /// How keys are stored: f32, f16, bf16 or q8 [also: -ctk] [default: f32 for nano and f32 checkpoints, else f16]
    #[arg(long, value_name = "TYPE")]
    pub cache_type_k: Option<KvType>,
    /// How values are stored [also: -ctv] [default: f32 for nano and f32 checkpoints, else f16]
    #[arg(long, value_name = "TYPE")]
    pub cache_type_v: Option<KvType>,
    /// Leaves the weights in their files, mapped: takes little memory and is slow, the output is the same. Cutting such a
    /// file meanwhile crashes the program (SIGBUS)
    #[arg(long)]
    pub mmap: bool,
    /// Tokens of the prompt in one pass; changes speed and memory, never the output [also: -ub] [default: 512]
    #[arg(
        short = 'b',
        long,
        value_name = "N",
        aliases = ["batch-size", "ubatch-size", "prefill-step-size"],
        value_parser = value_parser!(u32).range(1..=1 << 20)
    )]
    pub prefill_chunk: Option<u32>,
}

/// What is left out is the checkpoint's own setting.
#[derive(Args, Debug, Default, Clone)]
#[command(next_help_heading = "Sampling [defaults: the checkpoint's]")]
pub struct SamplingArgs {
    /// 0 takes the likeliest token
    #[arg(long = "temp", value_name = "T", visible_alias = "temperature", allow_negative_numbers = true, value_parser = temperature)]
    pub temperature: Option<f32>,
    /// Keeps the K likeliest tokens; 0 or -1 keeps all
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = value_parser!(i64).range(-1..=u32::MAX as i64))]
    pub top_k: Option<i64>,
    /// Keeps the likeliest tokens that together reach this probability; 1 keeps all
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = top_p)]
    pub top_p: Option<f32>,
    /// Keeps tokens at least this likely relative to the likeliest; 0 keeps all
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = min_p)]
    pub min_p: Option<f32>,
    /// Holds back tokens of prompt and output; 1 is neutral
    #[arg(
        long = "repeat-penalty",
        value_name = "X",
        visible_alias = "repetition-penalty",
        allow_negative_numbers = true,
        value_parser = repetition_penalty
    )]
    pub repetition_penalty: Option<f32>,
    /// Holds back tokens of the output; 0 is neutral
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = penalty)]
    pub presence_penalty: Option<f32>,
    /// Holds back tokens of the output by how often they occurred; 0 is neutral
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = penalty)]
    pub frequency_penalty: Option<f32>,
    /// Adds to a token's logit; -inf bans it. May be repeated
    #[arg(long, value_name = "ID=BIAS", value_parser = bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Makes the output reproducible [default: one is drawn and printed, also for -1]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    pub seed: Option<Seed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seed {
    Drawn,
    Given(u64),
}

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Most tokens of the output; -1 for as many as the context holds [default: -1, for plain text 256]
    #[arg(
        short = 'n',
        long = "predict",
        value_name = "N",
        visible_aliases = ["n-predict", "max-tokens"],
        allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..=u32::MAX as i64)
    )]
    pub predict: Option<i64>,
    /// Ends the output before this text. May be repeated
    #[arg(long, value_name = "TEXT", value_parser = stop)]
    pub stop: Vec<String>,
    /// Goes on after tokens that end the output
    #[arg(long)]
    pub ignore_eos: bool,
    /// Whether a conversation shows the reasoning [default: on at a terminal, else off]
    #[arg(long, value_name = "on|off", hide_possible_values = true)]
    pub show_reasoning: Option<Switch>,
    /// Prints one JSON object, with everything there is to know, in place of the text
    #[arg(long)]
    pub json: bool,
    /// Prints no settings and no timings, but still a seed that was drawn
    #[arg(short, long)]
    pub quiet: bool,
    /// Writes to a file what each round did and how long it took: a JSON object per line
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

/// Who proposes.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftKind {
    #[value(alias = "draft-dflash")]
    Dflash,
    #[value(alias = "ngram-simple")]
    Ngram,
    Hybrid,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    On,
    Off,
}

#[derive(Args, Debug)]
pub struct InspectArgs {
    /// A directory, a .gguf file, a model of the hub (org/repo, with :QUANT or @REVISION or without), or nano for the one inside this program
    #[arg(value_name = "MODEL", required_unless_present = "model", conflicts_with = "model")]
    pub first: Option<OsString>,
    #[arg(short = 'm', long, hide = true)]
    pub model: Option<OsString>,
    /// A drafter to check against it [also: -md] [default: what comes with the model]
    #[arg(long, value_name = "MODEL", visible_alias = "model-draft")]
    pub draft_model: Option<OsString>,
    /// The vision tower of a .gguf model, a file of its own [also: -mm] [default: one beside the model]
    #[arg(long, value_name = "FILE")]
    pub mmproj: Option<OsString>,
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct ScoreArgs {
    /// A directory, a .gguf file, a model of the hub (org/repo, with :QUANT or @REVISION or without), or nano for the one inside this program
    #[arg(value_name = "MODEL", required_unless_present = "model", conflicts_with = "model")]
    pub first: Option<OsString>,
    #[arg(short = 'm', long, hide = true)]
    pub model: Option<OsString>,
    /// The text, - for standard input; one line break at its end is dropped
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// The model to compare it with. Both are held in memory, or in their files with --mmap
    #[arg(long, value_name = "MODEL")]
    pub against: Option<OsString>,
    /// Tokens of a window [default: 2048, or the model's limit if smaller]
    #[arg(short = 'c', long, value_name = "N", visible_alias = "ctx-size", value_parser = value_parser!(u32).range(2..))]
    pub window: Option<u32>,
    #[command(flatten)]
    pub passes: PassArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct QuantizeArgs {
    /// The checkpoint's directory or .gguf file, or nano for the one inside this program
    #[arg(value_name = "IN")]
    pub source: OsString,
    /// The directory or .gguf file to write, which must not exist
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
    /// A shipped recipe's name, or a TOML file
    #[arg(long, value_name = "NAME")]
    pub recipe: String,
    /// Runs IN over a text first, and weighs errors of a column by the mean square of its inputs. Affine encodings and K-quants
    /// are chosen by that; a few hundred kilobytes of text like that of later use will do
    #[arg(long, value_name = "TEXT")]
    pub imatrix: Option<PathBuf>,
    /// The target whose tokenizer goes into the GGUF file of a drafter
    #[arg(long, value_name = "MODEL")]
    pub tokenizer: Option<OsString>,
    /// Threads [default: one per physical core that it may use]
    #[arg(short, long, value_name = "N", value_parser = value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Leaves out the comparison with the source
    #[arg(long)]
    pub no_check: bool,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct SynthArgs {
    /// Its size: tiny, mid or full
    #[arg(long, value_name = "NAME")]
    pub shape: Shape,
    /// How matrices are stored: q4_k, q8_0, affine4g64, mxfp4, bf16, ...
    #[arg(long, value_name = "NAME")]
    pub encoding: StoredAs,
    /// gguf, hf or mlx [default: the encoding's own, for floats hf]
    #[arg(long, value_name = "NAME")]
    pub container: Option<Container>,
    /// The drafter for the target of this shape
    #[arg(long)]
    pub drafter: bool,
    /// Decides every weight
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// The file or directory to write, which must not exist
    #[arg(short, long, value_name = "PATH")]
    pub out: PathBuf,
}

/// Reads the command line. `None`: the answer was printed already.
pub fn parse(typed: impl IntoIterator<Item = OsString>) -> Outcome<Option<Cli>> {
    let known = flags::Known::of(&Cli::command());
    let error = match Cli::try_parse_from(flags::normalise(typed, &known).map_err(Failure::Usage)?) {
        Ok(cli) => return Ok(Some(cli)),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            terminal::print(&error.render().to_string())?;
            Ok(None)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Err(Failure::Help(error.render().to_string())),
        _ => Err(Failure::Usage(one_line(&error.render().to_string()))),
    }
}

/// What is wrong and the tips, without the usage.
fn one_line(rendered: &str) -> String {
    let mut out = String::new();
    let relevant = rendered.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    for line in relevant.map(str::trim).filter(|line| !line.is_empty()) {
        let joint = match &out {
            out if out.is_empty() => "",
            out if out.ends_with(':') => " ",
            _ => "; ",
        };
        out.push_str(joint);
        out.push_str(line.trim_start_matches("error: "));
    }
    out
}

fn number(text: &str, fits: impl Fn(f32) -> bool, expected: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number.is_finite() && fits(number) => Ok(number),
        _ => Err(format!("expected a number, {expected}")),
    }
}

fn draft_width(text: &str) -> Result<DraftWidth, String> {
    match text {
        "auto" => Ok(DraftWidth::Auto),
        text => match text.parse::<u32>() {
            Ok(rows) if rows >= 2 => Ok(DraftWidth::Fixed(rows as usize)),
            _ => Err("expected auto, or a whole number from 2 to the drafter's block size".into()),
        },
    }
}

fn temperature(text: &str) -> Result<f32, String> {
    number(text, |x| x >= 0.0, "0 or more")
}

fn top_p(text: &str) -> Result<f32, String> {
    number(text, |x| x > 0.0 && x <= 1.0, "above 0 and at most 1")
}

fn min_p(text: &str) -> Result<f32, String> {
    number(text, |x| (0.0..=1.0).contains(&x), "0 to 1")
}

fn repetition_penalty(text: &str) -> Result<f32, String> {
    number(text, |x| x > 0.0, "above 0")
}

fn penalty(text: &str) -> Result<f32, String> {
    number(text, |x| (-2.0..=2.0).contains(&x), "-2 to 2")
}

fn seed(text: &str) -> Result<Seed, String> {
    match text {
        "-1" => Ok(Seed::Drawn),
        text => text.parse().map(Seed::Given).map_err(|_| "expected a whole number below 2^64, or -1".into()),
    }
}

/// `ID=BIAS`, or as llama.cpp has it with a sign between the two.
fn bias(text: &str) -> Result<(u32, f32), String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (id, rest) = text.split_at(digits);
    let bias = match rest.strip_prefix('=') {
        Some(bias) => bias,
        None if rest.starts_with(['+', '-']) => rest,
        None => "",
    };
    match (id.parse(), bias.parse::<f32>()) {
        (Ok(id), Ok(bias)) if bias == f32::NEG_INFINITY || (-100.0..=100.0).contains(&bias) => Ok((id, bias)),
        _ => Err("expected ID=BIAS, a bias from -100 to 100 or -inf".into()),
    }
}

fn stop(text: &str) -> Result<String, String> {
    use glimmer_engine::stops::MAX_STOP_BYTES;
    match text.len() {
        1..=MAX_STOP_BYTES => Ok(text.into()),
        found => Err(format!("expected 1 to {MAX_STOP_BYTES} bytes, found {found}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parser_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_bias_has_an_id_and_a_number() {
        for (text, pair) in [
            ("5=1.5", (5, 1.5)),
            ("5=-1", (5, -1.0)),
            ("5+2", (5, 2.0)),
            ("5-2", (5, -2.0)),
            ("7=-inf", (7, f32::NEG_INFINITY)),
            ("7-inf", (7, f32::NEG_INFINITY)),
        ] {
            assert_eq!(bias(text), Ok(pair), "{text}");
        }
        for text in ["", "5", "=1", "5=", "5=x", "5x", "-1=1", "5=inf", "5=nan", "5=101", "4294967296=1"] {
            assert!(bias(text).is_err(), "{text}");
        }
    }
}

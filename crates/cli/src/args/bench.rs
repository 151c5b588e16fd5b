//! What was typed after `bench`.

use super::{DraftKind, MachineArgs, PassArgs, Switch, draft_width, min_p, number, temperature, top_p};
use clap::{Args, Subcommand, value_parser};
use glimmer_engine::DraftWidth;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub other: Option<Bench>,
    /// A directory, a .gguf file, a model of the hub (org/repo, with :QUANT or @REVISION or without), or nano for the one inside this program
    #[arg(value_name = "MODEL", required_unless_present = "model", conflicts_with = "model")]
    pub first: Option<OsString>,
    #[arg(short = 'm', long, hide = true)]
    pub model: Option<OsString>,
    /// The drafter, named as a model is [also: -md] [default: what comes with the model]
    #[arg(long, value_name = "MODEL", visible_alias = "model-draft")]
    pub draft_model: Option<OsString>,
    /// Who proposes: dflash, ngram or hybrid [default: dflash where there is a drafter]
    #[arg(long, value_name = "KIND", alias = "spec-type", hide_possible_values = true)]
    pub draft_kind: Option<DraftKind>,
    /// The prompts: a JSON object per line, with `name` and one of `prompt` (a text), `messages` (a conversation) and `ids`
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
    /// Widths of a round, auto or numbers [default: auto,2,5,8, as far as the drafter drafts]
    #[arg(long, value_name = "WIDTH,...", value_delimiter = ',', value_parser = draft_width)]
    pub widths: Option<Vec<DraftWidth>>,
    /// Whether every prompt is continued without a drafter too, which a speedup needs [default: on]
    #[arg(
        long,
        value_name = "on|off",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "on",
        hide_possible_values = true
    )]
    pub baseline: Option<Switch>,
    /// Most tokens of an output, or tokens to decode; with -p or -d 0 for none
    #[arg(short = 'n', long = "predict", value_name = "N", visible_alias = "n-gen", default_value_t = 128)]
    pub predict: u32,
    /// How often everything is measured
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Goes on after tokens that end the output
    #[arg(long)]
    pub ignore_eos: bool,
    #[command(flatten)]
    pub tokens: TokenArgs,
    /// Tokens that prompt and answer may have together [default: as many as they can have]
    #[arg(short, long, value_name = "N")]
    pub ctx_size: Option<u32>,
    #[command(flatten)]
    pub passes: PassArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Writes a JSON object for each prompt and width, - for standard output in place of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draws a chart of the rates
    #[arg(long, value_name = "FILE", conflicts_with_all = ["n_prompt", "n_depth"])]
    pub svg: Option<PathBuf>,
    /// The drafter takes its time, but each of its proposals is right with this probability.
    #[arg(long, value_name = "P", hide = true, value_parser = probability)]
    pub accept: Option<f64>,
    /// So many repetitions, in which widths take turns of a few tokens, and bounds of what auto makes of the best fixed width and of decoding plainly.
    #[arg(long, value_name = "N", hide = true, conflicts_with = "repetitions", value_parser = value_parser!(u32).range(2..=1000))]
    pub pairs: Option<u32>,
    #[command(flatten)]
    pub sampling: BenchSampling,
}

/// What llama-bench times.
#[derive(Args, Debug)]
pub struct TokenArgs {
    /// Times a prompt of N random tokens, 0 for none, and decoding after it [default: 512 with -d]
    #[arg(
        short = 'p',
        long = "n-prompt",
        id = "n_prompt",
        value_name = "N",
        conflicts_with_all = ["prompts", "widths", "baseline", "ignore_eos", "draft_model", "draft_kind", "accept", "pairs",
                              "temperature", "top_k", "top_p", "min_p"]
    )]
    pub prefill: Option<u32>,
    /// The same, each after N positions of random keys and values [default: 0]
    #[arg(
        short = 'd',
        long = "n-depth",
        id = "n_depth",
        value_name = "N",
        conflicts_with_all = ["prompts", "widths", "baseline", "ignore_eos", "draft_model", "draft_kind", "accept", "pairs",
                              "temperature", "top_k", "top_p", "min_p"]
    )]
    pub depth: Option<u32>,
}

/// How tokens are drawn while it is measured.
#[derive(Args, Debug)]
#[command(next_help_heading = "Sampling [defaults: greedy, else the checkpoint's]")]
pub struct BenchSampling {
    /// 0 takes the likeliest token [default: 0]
    #[arg(long = "temp", id = "temperature", value_name = "T", visible_alias = "temperature", allow_negative_numbers = true, value_parser = temperature)]
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
    /// Decides draws and random tokens
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

#[derive(Subcommand, Debug)]
pub enum Bench {
    /// Times single forward passes of several widths beside the machine's own limits
    ///
    /// A pass is of the target alone, with the logits of all its rows, after --depth positions of random keys and values.
    /// Passes of all widths take turns, so that what disturbs the machine disturbs all alike; its read bandwidth and the peak
    /// of its arithmetic are measured between them. `cpu ms` is the processor time that a pass takes, all threads added
    /// up; `GB/s` counts the bytes that the file has the matrices in; `limit ms` is what reading them at 88 % of
    /// the bandwidth takes, or multiplying at 62 % of the peak, whichever is more.
    Step(Box<StepArgs>),
}

#[derive(Args, Debug)]
pub struct StepArgs {
    /// A directory, a .gguf file, a model of the hub (org/repo, with :QUANT or @REVISION or without), or nano for the one inside this program
    #[arg(value_name = "MODEL", required_unless_present = "model", conflicts_with = "model")]
    pub first: Option<OsString>,
    #[arg(short = 'm', long, hide = true)]
    pub model: Option<OsString>,
    /// Rows of the passes
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1,2,3,4,5,6,8,16",
        value_parser = value_parser!(u32).range(1..)
    )]
    pub widths: Vec<u32>,
    /// Positions in the cache before each pass
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub depth: u32,
    /// Tokens of a prompt to time, with the last row's logits; 0 for none
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub prefill: u32,
    /// Tokens to decode one after the other; 0 for none
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub decode: u32,
    /// The fewest passes of each width
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(1..))]
    pub iterations: u32,
    /// Goes on with passes for so long
    #[arg(long, value_name = "S", default_value = "5", allow_negative_numbers = true, value_parser = seconds)]
    pub seconds: Duration,
    #[command(flatten)]
    pub passes: PassArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Decides tokens, keys and values
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Adds a line for each width to DIR/ARCH/DATE.csv
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

fn probability(text: &str) -> Result<f64, String> {
    number(text, |x| (0.0..=1.0).contains(&x), "0 to 1").map(f64::from)
}

fn seconds(text: &str) -> Result<Duration, String> {
    number(text, |x| (0.0..=86_400.0).contains(&x), "0 to 86400").map(Duration::from_secs_f32)
}

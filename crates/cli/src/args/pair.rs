//! Pair bundles, and tuning them.

use super::{MachineArgs, PassArgs};
use clap::{Args, Subcommand, value_parser};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub enum PairCommand {
    /// Makes a bundle: a directory with a target, a drafter that fits it, and dflash_pair.json
    ///
    /// Whether the two fit is seen first, and no weight is read for it. Files of weights get a second name where the file system allows
    /// it (hard links), which takes no room; else, and with --copy, they are copied. What is read beside weights is always copied.
    Make(MakePairArgs),
}

#[derive(Args, Debug)]
pub struct MakePairArgs {
    /// A directory, a .gguf file, a model of the hub (org/repo, with :QUANT or @REVISION or without), or nano for the one inside this program
    #[arg(value_name = "TARGET")]
    pub target: OsString,
    /// The drafter, named in the same way
    #[arg(value_name = "DRAFTER")]
    pub drafter: OsString,
    /// The directory to write, which must not exist
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
    /// The vision tower of a .gguf target, a file of its own [also: -mm] [default: one beside the target]
    #[arg(long, value_name = "FILE")]
    pub mmproj: Option<OsString>,
    /// Rows of a round that are known to be the best; `glimmer tune OUT` measures it
    #[arg(long, value_name = "N", visible_alias = "draft-block-size", value_parser = value_parser!(u32).range(2..))]
    pub draft_width: Option<u32>,
    /// Copies weights even where they could be linked
    #[arg(long)]
    pub copy: bool,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct TuneArgs {
    /// A directory, a .gguf file, a pair bundle, a model of the hub (org/repo, with :QUANT or @REVISION or without), or nano for the one inside
    /// this program
    #[arg(value_name = "MODEL", required_unless_present = "model", conflicts_with = "model")]
    pub first: Option<OsString>,
    #[arg(short = 'm', long, hide = true)]
    pub model: Option<OsString>,
    /// The drafter, named as a model is [also: -md] [default: what comes with the model]
    #[arg(long, value_name = "MODEL", visible_alias = "model-draft")]
    pub draft_model: Option<OsString>,
    /// Rows of the rounds; 1, which is decoding without a drafter, is always among them [default: up to the drafter's block size]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = value_parser!(u32).range(1..))]
    pub widths: Option<Vec<u32>>,
    /// Tokens of each generation
    #[arg(short = 'n', long, value_name = "N", default_value_t = 32, value_parser = value_parser!(u32).range(2..=4096))]
    pub tokens: u32,
    /// How often each of the four prompts is continued with each width
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    #[command(flatten)]
    pub passes: PassArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Stores nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

//! The cache of the hub.

use clap::Args;

#[derive(Args, Debug)]
pub struct PullArgs {
    /// org/repo, org/repo:QUANT for the GGUF file of a quantization, org/repo@REVISION
    #[arg(value_name = "NAME", required_unless_present = "model", conflicts_with = "model")]
    pub first: Option<String>,
    #[arg(short = 'm', long, hide = true)]
    pub model: Option<String>,
    /// A branch, a tag or a commit [default: main]
    #[arg(long)]
    pub revision: Option<String>,
}

#[derive(Args, Debug)]
pub struct ListArgs {
    /// Prints a JSON list
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct RemoveArgs {
    /// org/repo, org/repo@REVISION or org/repo:QUANT
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
    /// Does not ask
    #[arg(short, long)]
    pub yes: bool,
}

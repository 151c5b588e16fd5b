//! The `glimmer` command: what was typed ([`args`]), what it means ([`plan`]), and doing it.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod conversation;
mod failure;
mod flags;
mod inspect;
mod models;
mod output;
mod pair;
mod plan;
mod printer;
mod progress;
mod prompt;
mod quantize;
mod repl;
mod run;
mod score;
mod signals;
mod synth;
mod terminal;
mod trace;
mod tune;

use args::{Cli, Command};
use clap::CommandFactory;
use failure::Outcome;
use plan::Surroundings;
use std::process::ExitCode;

fn main() -> ExitCode {
    failure::report_panics();
    match perform() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn perform() -> Outcome {
    let Some(cli) = args::parse(std::env::args_os())? else { return Ok(()) };
    let around = Surroundings::look();
    match cli.command {
        Command::Run(args) => {
            let interrupt = signals::install()?;
            run::run(plan::run(*args, &around, plan::Manner::MayInteract)?, &around, &interrupt)
        }
        Command::Generate(args) => {
            let interrupt = signals::install()?;
            run::run(plan::run(*args, &around, plan::Manner::OneShot)?, &around, &interrupt)
        }
        Command::Inspect(args) => {
            signals::install()?;
            inspect::inspect(plan::inspect(args)?)
        }
        Command::Score(args) => score::score(*args, &around, &signals::install()?),
        Command::Quantize(args) => quantize::quantize(args, &around, &signals::install()?),
        Command::Bench(args) => bench::bench(*args, &around, &signals::install()?),
        Command::Pull(args) => {
            signals::install()?;
            models::pull(args)
        }
        Command::List(args) => models::list(&args),
        Command::Rm(args) => models::remove(args, &around),
        Command::Pair(args::PairCommand::Make(args)) => pair::make(args, &around, &signals::install()?),
        Command::Tune(args) => tune::tune(*args, &around, &signals::install()?),
        Command::Synth(args) => synth::synth(&args, &signals::install()?),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "glimmer", &mut script);
            terminal::print(&String::from_utf8_lossy(&script))
        }
    }
}

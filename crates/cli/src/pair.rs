//! Making pair bundles.

use crate::args::MakePairArgs;
use crate::failure::{Failure, Outcome};
use crate::plan::{Surroundings, source};
use crate::progress::Progress;
use crate::signals::Interrupt;
use crate::{models, terminal};
use glimmer_engine::EngineOptions;
use glimmer_engine::bundle::{MadePair, MakePair};
use serde_json::json;

/// Does what `pair make` says.
pub fn make(args: MakePairArgs, around: &Surroundings, interrupt: &Interrupt) -> Outcome {
    let MakePairArgs { target, drafter, out, mmproj, draft_width, copy, json } = args;
    let mut options = EngineOptions::new(source(target, around)?);
    options.drafter = Some(source(drafter, around)?);
    options.projector = mmproj.map(|name| source(name, around)).transpose()?;
    // Before a download, that is.
    MakePair::check(&out)?;
    models::obtain(&mut options, false)?;
    let make = MakePair { options, copy, width: draft_width.map(|rows| rows as usize) };
    let listening = interrupt.listen();
    let mut progress = Progress::writing();
    let made = make.make(&out, &mut |done, total| {
        progress.update(done, total);
        !listening.hit()
    })?;
    drop(progress);
    let MadePair { target, drafter, files, linked, copied } = made.ok_or(Failure::Interrupted)?;
    if json {
        let out = out.display().to_string();
        let made = json!({
            "bundle": out, "target": target, "drafter": drafter, "files": files, "linked_bytes": linked, "copied_bytes": copied,
        });
        return terminal::print(&format!("{made}\n"));
    }
    let (linked, copied) = (models::size(linked), models::size(copied));
    let line = format!("{}: {target} with {drafter}, {files} files, {linked} linked, {copied} copied", out.display());
    terminal::print(&format!("{}\n", terminal::on_one_line(&line)))
}

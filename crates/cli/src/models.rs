//! Models by name: having them here, and the commands over the cache.

use crate::args::{ListArgs, PullArgs, RemoveArgs};
use crate::failure::{Failure, Outcome};
use crate::plan::{Surroundings, Width};
use crate::progress::Progress;
use crate::terminal;
use glimmer_engine::hub::{Cached, Hub, Pulling, Repository};
use glimmer_engine::{EngineOptions, Obtained};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{self, BufRead, IsTerminal, Write as _};
use std::time::SystemTime;

/// Has the models here that were named, with their parts where they are bundles. Gives the width that a bundle recommends.
pub fn obtain(options: &mut EngineOptions, draft: bool) -> Outcome<Option<Width>> {
    let mut shown = Shown::default();
    let Obtained { width, notes } = options.obtain(draft, &mut |name, pulling| shown.update(name, pulling))?;
    for note in notes {
        terminal::say(&terminal::on_one_line(&format!("note: {note}")));
    }
    Ok(width.map(|width| Width { rows: width.rows.into(), from: width.field, typed: false }))
}

/// What is shown of a download.
#[derive(Default)]
struct Shown {
    progress: Option<Progress>,
}

impl Shown {
    fn update(&mut self, name: &Repository, pulling: Pulling<'_>) {
        match pulling {
            Pulling::Begins { files, bytes } => {
                let files = if files == 1 { "1 file".into() } else { format!("{files} files") };
                terminal::say(&format!("pulling {name}: {files}, {} to download", size(bytes)));
                self.progress = Some(Progress::pulling());
            }
            Pulling::Waits { file } => {
                let line = format!("note: another program downloads {file}; waiting for it");
                terminal::say(&terminal::on_one_line(&line));
            }
            Pulling::Has { done, total } => self.progress.iter_mut().for_each(|bar| bar.update(done, total)),
        }
    }
}

/// Does what `pull` says: the path of what can be opened goes to stdout.
pub fn pull(args: PullArgs) -> Outcome {
    let PullArgs { first, model, revision } = args;
    let name = first.or(model).unwrap_or_default();
    let named = Repository::parse(&name).ok_or_else(|| {
        Failure::Usage(format!(
            "{name} names no model of the hub: expected org/repo, org/repo:QUANT or org/repo@REVISION"
        ))
    })?;
    let named = match revision {
        Some(other) if named.revision.as_ref().is_some_and(|revision| *revision != other) => {
            return Err(Failure::Usage(format!("two revisions: {name} and --revision {other}")));
        }
        Some(revision) => named.at(&revision).ok_or_else(|| {
            Failure::Usage(format!("--revision: expected a branch, a tag or a commit, found {revision}"))
        })?,
        None => named,
    };
    let mut shown = Shown::default();
    let pulled = Hub::from_environment()?.pull(&named, &mut |pulling| shown.update(&named, pulling))?;
    drop(shown);
    let what = match pulled.fetched {
        0 => "complete, nothing to download".into(),
        bytes => format!("{} downloaded and checked", size(bytes)),
    };
    terminal::say(&format!("{named}: {what}, at revision {}", short(&pulled.commit)));
    terminal::print(&format!("{}\n", pulled.path.display()))
}

/// Does what `list` says.
pub fn list(args: &ListArgs) -> Outcome {
    let mut all = Hub::from_environment()?.list()?;
    all.sort_by(|a, b| (&a.name, &a.commit).cmp(&(&b.name, &b.commit)));
    if args.json {
        let all: Value = all.iter().map(to_json).collect();
        return terminal::print(&format!("{all:#}\n"));
    }
    terminal::print(&table(&all))
}

fn to_json(cached: &Cached) -> Value {
    let Cached { name, commit, refs, path, files, bytes, weights, complete, used } = cached;
    json!({
        "name": name,
        "revision": commit,
        "refs": refs,
        "bytes": bytes,
        "files": files,
        "weights": weights,
        "complete": complete,
        "last_used": used.and_then(|time| jiff::Timestamp::try_from(time).ok()).map(|time| time.to_string()),
        "path": path,
    })
}

fn table(all: &[Cached]) -> String {
    let mut rows = vec![["NAME", "REVISION", "SIZE", "WEIGHTS", "LAST USED"].map(String::from)];
    for Cached { name, commit, refs, bytes, weights, complete, used, .. } in all {
        let revision = match &refs[..] {
            [] => short(commit).to_string(),
            refs => format!("{} ({})", short(commit), refs.join(", ")),
        };
        let mut what = weights.join(", ");
        match (what.is_empty(), complete) {
            (true, _) if commit.is_empty() => what.push_str("(begun, not complete)"),
            (_, false) => what.push_str(if what.is_empty() { "(not complete)" } else { " (not complete)" }),
            _ => {}
        }
        let used = used.map_or("-".into(), ago);
        rows.push(
            [name.clone(), revision, size(*bytes), what, used].map(|cell| String::from(terminal::on_one_line(&cell))),
        );
    }
    let widths: [usize; 5] =
        std::array::from_fn(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0));
    let mut out = String::new();
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        let _ = writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    out
}

/// Does what `rm` says. At a terminal it asks first.
pub fn remove(args: RemoveArgs, around: &Surroundings) -> Outcome {
    let RemoveArgs { names, yes } = args;
    let hub = Hub::from_environment()?;
    // All are looked for before any is removed.
    names.iter().try_for_each(|name| hub.removal(name).map(drop))?;
    for name in &names {
        let removal = hub.removal(name)?;
        let line = format!("{}: {}", removal.name, size(removal.bytes));
        if !yes && around.stdin_terminal && io::stderr().is_terminal() && !confirmed(&line)? {
            terminal::say("nothing removed");
            continue;
        }
        removal.carry_out()?;
        terminal::say(&terminal::on_one_line(&format!("removed {line} freed")));
    }
    Ok(())
}

fn confirmed(line: &str) -> Outcome<bool> {
    let mut answer = String::new();
    let _ = write!(io::stderr(), "remove {}? [y/N] ", terminal::on_one_line(line));
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn short(commit: &str) -> &str {
    commit.get(..commit.len().min(12)).filter(|short| !short.is_empty()).unwrap_or("-")
}

/// Bytes, for people.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

fn ago(time: SystemTime) -> String {
    let seconds = time.elapsed().map_or(0, |elapsed| elapsed.as_secs());
    let (count, unit) = match seconds {
        0..3600 => (seconds / 60, "minute"),
        3600..86_400 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{count} {unit}{} ago", if count == 1 { "" } else { "s" })
}

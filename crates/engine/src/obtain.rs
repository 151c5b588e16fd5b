//! From what was named to what is opened: models of the hub are here then, bundles are taken apart, and what lies beside a model and
//! belongs to it is found.

use crate::hub::{Pulling, Repository};
use crate::{EngineError, EngineOptions, Source, speculative};
use glimmer_checkpoint::DRAFTER;
use glimmer_model::muse::MuseConfig;
use std::fs;
use std::path::{Path, PathBuf};

/// What came of having models here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Obtained {
    /// The width that a bundle recommends, where its drafter is the one that is used.
    pub width: Option<PairWidth>,
    /// What was found and not taken.
    pub note: Option<String>,
}

/// The width of a round that a pair bundle recommends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairWidth {
    /// Rows.
    pub rows: usize,
    /// The field that says so, as messages name it.
    pub field: String,
}

impl EngineOptions {
    /// Has target and drafter here, as [`Source::obtain`](crate::Source::obtain) does, and puts the parts of a pair bundle in its
    /// place: for a target its target and, if `draft` says so and no other was named, its drafter; for a drafter its drafter.
    /// A target that is no bundle may have its drafter in a folder `drafter`, or, where it is a GGUF file, in another one beside it:
    /// what such a file is, is read in it, and only one that fits the target is taken, if there are no two of them.
    ///
    /// # Errors
    /// For a model that cannot be had, and a bundle that cannot be honoured.
    pub fn obtain(
        &mut self,
        draft: bool,
        watch: &mut dyn FnMut(&Repository, Pulling<'_>),
    ) -> Result<Obtained, EngineError> {
        self.target.obtain(watch)?;
        let mut obtained = Obtained::default();
        if let Some(drafter) = &mut self.drafter {
            drafter.obtain(watch)?;
            if let Some(pair) = drafter.pair()? {
                *drafter = drafter.part(pair.drafter);
            }
        }
        if let Some(pair) = self.target.pair()? {
            if draft && self.drafter.is_none() {
                self.drafter = Some(self.target.part(pair.drafter));
                let field = format!("{}: field `benchmark.best_block_size`", pair.manifest);
                obtained.width = pair.width.map(|rows| PairWidth { rows, field });
            }
            self.target = self.target.part(pair.target);
        } else if draft && self.drafter.is_none() {
            (self.drafter, obtained.note) = beside(&self.target)?;
        }
        Ok(obtained)
    }
}

/// The drafter beside a target, or why none of several is it.
fn beside(target: &Source) -> Result<(Option<Source>, Option<String>), EngineError> {
    let (Source::Path(path) | Source::Snapshot { path, .. }) = target else { return Ok((None, None)) };
    let folder = if path.is_dir() { path.join(DRAFTER) } else { path.with_file_name(DRAFTER) };
    if folder.join("config.json").exists() {
        return Ok((Some(target.part(folder)), None));
    }
    let mut files = ggufs(&folder);
    if let Some(directory) = path.parent().filter(|_| path.is_file()) {
        files.extend(ggufs(directory));
    }
    // Nothing is known of the target yet, and most have no such neighbours.
    if files.iter().all(|file| file == path) {
        return Ok((None, None));
    }
    let checkpoint = target.open_target()?;
    let Ok(config) = MuseConfig::from_checkpoint(&checkpoint) else { return Ok((None, None)) };
    let fits = |file: &PathBuf| {
        // Whatever else is there is not what was asked for, so that it may be anything.
        let Ok(drafter) = glimmer_checkpoint::open(file) else { return false };
        matches!(speculative::drafter(&drafter), Ok(Some(_)))
            && speculative::bind(&drafter, &config.text, checkpoint.label()).is_ok()
    };
    files.retain(|file| file != path && fits(file));
    Ok(match &mut files[..] {
        [] => (None, None),
        [one] => (Some(target.part(std::mem::take(one))), None),
        several => {
            let names: Vec<_> =
                several.iter().map(|file| file.file_name().unwrap_or_default().to_string_lossy()).collect();
            let names = names.join(", ");
            let note = format!(
                "several drafters are beside {target}, and none of them is used: {names} (--draft-model names one)"
            );
            (None, Some(note))
        }
    })
}

/// Files of a directory that may be GGUF, by name and sorted; none where there is no such directory.
fn ggufs(directory: &Path) -> Vec<PathBuf> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_gguf = |path: &PathBuf| path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_gguf).collect();
    files.sort();
    files
}

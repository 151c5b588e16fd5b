//! From what was named to what is opened: models of the hub are here then, bundles are taken apart, and what lies beside a model and
//! belongs to it is found.

use crate::hub::{Pulling, Repository};
use crate::{EngineError, EngineOptions, Source, speculative};
use glimmer_checkpoint::DRAFTER;
use glimmer_model::muse::{self, MuseConfig};
use std::fs;
use std::path::{Path, PathBuf};

/// What came of having models here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Obtained {
    /// The width that a bundle recommends, where its drafter is the one that is used.
    pub width: Option<PairWidth>,
    /// What was found and not taken, and why.
    pub notes: Vec<String>,
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
    /// what such a file is, is read in it, and only one that fits the target is taken, if there are no two of them. A vision tower
    /// beside it, or beside a bundle's target, is found in the same way.
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
        if let Some(projector) = &mut self.projector {
            projector.obtain(watch)?;
        }
        let pair = self.target.pair()?;
        let is_pair = pair.is_some();
        if let Some(pair) = pair {
            if draft && self.drafter.is_none() {
                self.drafter = Some(self.target.part(pair.drafter));
                let field = format!("{}: field `benchmark.best_block_size`", pair.manifest);
                obtained.width = pair.width.map(|rows| PairWidth { rows, field });
            }
            self.target = self.target.part(pair.target);
        }
        let beside = Beside::of(&self.target)?;
        if draft && self.drafter.is_none() && !is_pair {
            match &beside.drafters[..] {
                [one] => self.drafter = Some(self.target.part(one.clone())),
                several => obtained.notes.extend(too_many(&self.target, several)),
            }
        }
        // They are the same in several precisions.
        if self.projector.is_none() {
            self.projector = beside.projectors.into_iter().next().map(|file| self.target.part(file));
            let unused = |why| format!("{why}; this vision tower beside the model is not used");
            obtained.notes.extend(beside.misfits.into_iter().map(unused).filter(|_| self.projector.is_none()));
        }
        Ok(obtained)
    }
}

/// What belongs to a target and lies beside it.
#[derive(Default)]
struct Beside {
    drafters: Vec<PathBuf>,
    projectors: Vec<PathBuf>,
    /// Why vision towers that are there do not fit.
    misfits: Vec<String>,
}

impl Beside {
    fn of(target: &Source) -> Result<Self, EngineError> {
        let (Source::Path(path) | Source::Snapshot { path, .. }) = target else { return Ok(Self::default()) };
        let folder = if path.is_dir() { path.join(DRAFTER) } else { path.with_file_name(DRAFTER) };
        let mut files = ggufs(&folder);
        if let Some(directory) = path.parent().filter(|_| path.is_file()) {
            files.extend(ggufs(directory).into_iter().filter(|file| file != path));
        }
        let has_folder = folder.join("config.json").exists();
        // Nothing is known of the target yet, and most have no such neighbours.
        if files.is_empty() && !has_folder {
            return Ok(Self::default());
        }
        let checkpoint = target.open_target()?;
        let Ok(config) = MuseConfig::from_checkpoint(&checkpoint) else { return Ok(Self::default()) };
        let mut found = Self { drafters: if has_folder { vec![folder] } else { Vec::new() }, ..Self::default() };
        for file in files {
            // Whatever else is there is not what was asked for, so that it may be anything.
            let Ok(other) = glimmer_checkpoint::open(&file) else { continue };
            if matches!(speculative::drafter(&other), Ok(Some(_)))
                && speculative::bind(&other, &config.text, checkpoint.label()).is_ok()
            {
                found.drafters.push(file);
            } else if muse::is_projector(&other)? {
                match muse::account_projector(&other, config.text.hidden_size) {
                    Ok(_) => found.projectors.push(file),
                    Err(why) => found.misfits.push(why.to_string()),
                }
            }
        }
        Ok(found)
    }
}

/// Why none of several drafters is the one.
fn too_many(target: &Source, drafters: &[PathBuf]) -> Option<String> {
    let name = |file: &PathBuf| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let names = drafters.iter().map(name).collect::<Vec<_>>().join(", ");
    let why = format!("several drafters are beside {target}, and none is used: {names} (--draft-model names one)");
    (!drafters.is_empty()).then_some(why)
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

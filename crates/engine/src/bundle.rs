//! Pair bundles: made of a target and a drafter that fit, and told which width is the best.

use crate::{EngineError, EngineOptions, Source, speculative};
use glimmer_checkpoint::write::{Staged, copy_file, free_space, link_file, write_file};
use glimmer_checkpoint::{
    Checkpoint, CheckpointFile, Content, DRAFTER, Error, MANIFEST, Pair, manifest, set_best_width,
};
use glimmer_model::muse::{self, MuseConfig};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The folder of the target.
const TARGET: &str = "target";

/// A bundle that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MakePair {
    /// Target, drafter and vision tower, [obtained](EngineOptions::obtain).
    pub options: EngineOptions,
    /// Weights are copied also where another name for the same file would do.
    pub copy: bool,
    /// Rows of a round that are known to be the best.
    pub width: Option<usize>,
}

/// A bundle that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadePair {
    /// The target, as it was named.
    pub target: String,
    /// The drafter.
    pub drafter: String,
    /// Files, the manifest aside.
    pub files: usize,
    /// Bytes that are shared with the files they came from.
    pub linked: u64,
    /// Bytes that were written.
    pub copied: u64,
}

/// A file and its place below the bundle.
struct Placed {
    to: PathBuf,
    file: CheckpointFile,
}

impl MakePair {
    /// Refuses a place where something is already.
    ///
    /// # Errors
    /// Where that is so.
    pub fn check(out: &Path) -> Result<(), EngineError> {
        Ok(Staged::new(out).map(drop)?)
    }

    /// Makes the bundle at `out`, where nothing may be yet; that the two fit is seen first, in their headers. Weights are linked where the
    /// file system allows it; small files are copied, since people edit them. `progress` is told the bytes that were copied and all that
    /// have to be, and may end it by returning false: then there is `None`, and nothing at `out`.
    ///
    /// # Errors
    /// Where the two do not fit, something is at `out`, or the files cannot be read or written.
    pub fn make(
        &self,
        out: &Path,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Option<MadePair>, EngineError> {
        // Without a slash at the end, behind which the name of what is not whole yet would go.
        let out = &out.components().collect::<PathBuf>();
        let target = self.options.open_target()?;
        let config = MuseConfig::from_checkpoint(&target)?;
        muse::account(&target, &config)?;
        let Some(drafter) = self.options.open_drafter()? else {
            return Err(EngineError::NoDrafter { label: target.label().into() });
        };
        let block = speculative::bind(&drafter, &config.text, target.label())?.block_size();
        if let Some(found) = self.width.filter(|width| !(2..=block).contains(width)) {
            let expected = format!("2 to {block}, the block size of {}", drafter.label());
            return Err(EngineError::Range { what: "the best width", found, expected });
        }
        let projector = self.options.open_projector(&config.text)?;
        let staged = Staged::new(out)?;
        let mut files = place(&target, TARGET)?;
        files.extend(place(&drafter, DRAFTER)?);
        files.extend(projector.as_ref().map_or(Ok(Vec::new()), |projector| place(projector, TARGET))?);
        staged.directory()?;
        for folder in [TARGET, DRAFTER] {
            let path = staged.part().join(folder);
            fs::create_dir(&path).map_err(|cause| io_error(out, cause))?;
        }
        let manifest = manifest(&path_of(&target, TARGET), &path_of(&drafter, DRAFTER), self.width);
        write_file(&staged.part().join(MANIFEST), &manifest)?;
        let Some((linked, copied)) = self.fill(&files, &staged, out, progress)? else { return Ok(None) };
        // What cannot be opened is not a bundle, whatever the names of its files.
        Pair::read(staged.part())?;
        staged.commit()?;
        let [target, drafter] = [&target, &drafter].map(|checkpoint| checkpoint.label().to_string());
        Ok(Some(MadePair { target, drafter, files: files.len(), linked, copied }))
    }

    /// Puts the files in their places; the bytes that were linked, and those that were copied.
    fn fill(
        &self,
        files: &[Placed],
        staged: &Staged,
        out: &Path,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Option<(u64, u64)>, EngineError> {
        let (mut linked, mut total, mut left) = (0, 0, Vec::new());
        for Placed { to, file } in files {
            let to = staged.part().join(to);
            match &file.content {
                Content::Embedded(bytes) => {
                    total += bytes.len() as u64;
                    left.push((to, file));
                }
                Content::Disk(from) => {
                    let bytes = fs::metadata(from).map_err(|cause| io_error(from, cause))?.len();
                    match file.weights && !self.copy && link_file(from, &to) {
                        true => linked += bytes,
                        false => {
                            total += bytes;
                            left.push((to, file));
                        }
                    }
                }
            }
        }
        if let Some(free) = free_space(staged.part()).filter(|&free| free < total) {
            let cause = io::Error::other(format!("{total} bytes have to be copied, but the disk has room for {free}"));
            return Err(io_error(out, cause).into());
        }
        let mut copied = 0;
        for (to, file) in left {
            let whole = match &file.content {
                Content::Embedded(bytes) => {
                    write_file(&to, bytes)?;
                    copied += bytes.len() as u64;
                    progress(copied, total)
                }
                Content::Disk(from) => copy_file(from, &to, &mut |more| {
                    copied += more;
                    progress(copied, total)
                })?,
            };
            if !whole {
                return Ok(None);
            }
        }
        Ok(Some((linked, copied)))
    }
}

fn place(checkpoint: &Checkpoint, folder: &str) -> Result<Vec<Placed>, EngineError> {
    let files = checkpoint.files()?.into_iter();
    Ok(files.map(|file| Placed { to: Path::new(folder).join(&file.name), file }).collect())
}

/// What the manifest names: the folder, or in it the file that GGUF is opened by.
fn path_of(checkpoint: &Checkpoint, folder: &str) -> String {
    match checkpoint.first_gguf() {
        Some(first) => format!("{folder}/{first}"),
        None => folder.into(),
    }
}

fn io_error(path: &Path, cause: io::Error) -> Error {
    Error::Io { file: path.display().to_string(), cause }
}

/// A bundle on disk that was named as a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    path: PathBuf,
    /// Its manifest, as messages name it.
    pub manifest: String,
}

impl Bundle {
    /// The bundle that a target is, where it was named by its path: those of the cache are not ours to edit.
    ///
    /// # Errors
    /// For a manifest that cannot be honoured.
    pub fn of(target: &Source) -> Result<Option<Self>, EngineError> {
        let Source::Path(path) = target else { return Ok(None) };
        Ok(target.pair()?.map(|pair| Self { path: path.clone(), manifest: pair.manifest }))
    }

    /// Writes into its manifest which width is the best; all else in there stays.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn set_best_width(&self, width: usize) -> Result<(), EngineError> {
        Ok(set_best_width(&self.path, width)?)
    }
}

//! The cache on this machine: where things are, what is there, and taking it away.

use super::name::is_commit;
use super::{Hub, Repository, files, io};
use crate::error::{Error, escape};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A revision of a model that is in the cache, or what is there of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cached {
    /// `org/repo`
    pub name: String,
    /// The commit; empty for what was begun and is not in any revision yet.
    pub commit: String,
    /// The branches and tags that are at it.
    pub refs: Vec<String>,
    /// Where it is.
    pub path: PathBuf,
    /// Files of it.
    pub files: usize,
    /// Bytes of them.
    pub bytes: u64,
    /// `safetensors`, and the quantizations of GGUF files.
    pub weights: Vec<String>,
    /// Whether there is something in it that can be opened.
    pub complete: bool,
    /// When it was read last, where the system keeps that.
    pub used: Option<SystemTime>,
}

/// Something of the cache that is to be taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// What it is.
    pub name: String,
    /// Bytes that become free.
    pub bytes: u64,
    /// Files and links.
    files: Vec<PathBuf>,
    /// Directories, with all that is in them.
    directories: Vec<PathBuf>,
}

const PREFIX: &str = "models--";

impl Hub {
    pub(super) fn folder(&self, id: &str) -> PathBuf {
        self.cache.join(folder_name(id))
    }

    /// Where locks are; other tools of the hub have theirs there too.
    pub(super) fn locks(&self, id: &str) -> PathBuf {
        self.cache.join(".locks").join(folder_name(id))
    }

    pub(super) fn snapshot(&self, id: &str, commit: &str) -> PathBuf {
        self.folder(id).join("snapshots").join(commit)
    }

    /// The commit that the cache has for the revision.
    pub(super) fn commit(&self, name: &Repository) -> Option<String> {
        let revision = name.revision();
        match is_commit(revision) {
            true => Some(revision.into()),
            false => commit_in(&self.folder(&name.id).join("refs").join(revision)),
        }
    }

    /// Has the revision be at the commit.
    pub(super) fn remember(&self, name: &Repository, commit: &str) -> Result<(), Error> {
        let revision = name.revision();
        if revision == commit || self.commit(name).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.folder(&name.id).join("refs").join(revision);
        let write = || {
            fs::create_dir_all(path.parent().unwrap_or(&path))?;
            fs::write(&path, commit)
        };
        write().map_err(|cause| io(&path, cause))
    }

    /// Every model in the cache, by name and commit.
    pub fn list(&self) -> Result<Vec<Cached>, Error> {
        let mut all = Vec::new();
        for (id, folder) in self.models()? {
            let refs = refs(&folder);
            for commit in names_in(&folder.join("snapshots")) {
                let path = folder.join("snapshots").join(&commit);
                let names: Vec<String> = files::walk(&path).into_iter().filter(|n| path.join(n).exists()).collect();
                let metas = || names.iter().filter_map(|name| fs::metadata(path.join(name)).ok());
                let openable = |quant: &String| files::complete(&path, Some(quant)).is_ok_and(|found| found.is_some());
                let weights = files::kinds(&names);
                all.push(Cached {
                    name: id.clone(),
                    refs: refs.iter().filter(|(_, at)| *at == commit).map(|(name, _)| name.clone()).collect(),
                    files: names.len(),
                    bytes: metas().map(|meta| meta.len()).sum(),
                    complete: !matches!(files::complete(&path, None), Ok(None)) || weights.iter().any(openable),
                    used: metas().filter_map(|meta| meta.accessed().ok()).max(),
                    weights,
                    commit,
                    path,
                });
            }
            let blobs = folder.join("blobs");
            let begun: Vec<_> = names_in(&blobs).into_iter().filter(|name| name.ends_with(".incomplete")).collect();
            if !begun.is_empty() {
                let bytes = begun.iter().filter_map(|name| fs::metadata(blobs.join(name)).ok()).map(|m| m.len()).sum();
                all.push(Cached {
                    name: id,
                    commit: String::new(),
                    refs: Vec::new(),
                    path: blobs,
                    files: begun.len(),
                    bytes,
                    weights: Vec::new(),
                    complete: false,
                    used: None,
                });
            }
        }
        Ok(all)
    }

    /// What removing `text` takes away: all of `org/repo`, a revision of it (`@` and a branch, a tag, or how a commit begins), or
    /// the files of a quantization. Blobs that something else refers to stay. Removes nothing itself.
    ///
    /// # Errors
    /// [`Error::Hub`] with what is there, where that is not; [`Error::Io`].
    pub fn removal(&self, text: &str) -> Result<Removal, Error> {
        let models = self.models()?;
        let name = Repository::parse(text).unwrap_or(Repository { id: text.into(), revision: None, quant: None });
        let Some((_, folder)) = models.iter().find(|(id, _)| *id == name.id) else {
            let known: Vec<String> = models.into_iter().map(|(id, _)| id).collect();
            let known = if known.is_empty() { "nothing".into() } else { files::listed(&known) };
            let cache = escape(&self.cache.to_string_lossy());
            return Err(self.failure(&name, format!("not in the cache: {cache} has {known}")));
        };
        if name.revision.is_none() && name.quant.is_none() {
            let bytes = files::walk(folder).iter().filter_map(|file| own_size(&folder.join(file))).sum();
            let directories = vec![folder.clone(), self.locks(&name.id)];
            return Ok(Removal { name: name.to_string(), bytes, files: Vec::new(), directories });
        }
        self.partial_removal(&name, folder)
    }

    fn partial_removal(&self, name: &Repository, folder: &Path) -> Result<Removal, Error> {
        let commits = names_in(&folder.join("snapshots"));
        let chosen = match &name.revision {
            None => commits.clone(),
            Some(revision) => {
                let at = self.commit(name).unwrap_or_else(|| revision.clone());
                let found: Vec<String> =
                    commits.iter().filter(|commit| at.len() >= 4 && commit.starts_with(&at)).cloned().collect();
                if found.len() != 1 {
                    let how = if found.is_empty() { "no" } else { "more than one" };
                    let what = format!("{how} such revision: the cache has {}", files::listed(&commits));
                    return Err(self.failure(name, what));
                }
                found
            }
        };
        let (mut gone, mut kept, mut directories) = (Vec::new(), Vec::new(), Vec::new());
        let mut left = Vec::new();
        for commit in &commits {
            let path = folder.join("snapshots").join(commit);
            let (all, mut removed) = (files::walk(&path), Vec::new());
            if chosen.contains(commit) {
                removed = name.quant.as_ref().map_or(all.clone(), |quant| files::of_quant(&all, quant));
            }
            match removed.len() == all.len() && chosen.contains(commit) {
                true => directories.push(path.clone()),
                false => left.push(commit.clone()),
            }
            for file in all {
                let list = if removed.contains(&file) { &mut gone } else { &mut kept };
                list.push(path.join(file));
            }
        }
        if let Some(quant) = name.quant.as_ref().filter(|_| gone.is_empty()) {
            let names: Vec<String> =
                commits.iter().flat_map(|commit| files::walk(&folder.join("snapshots").join(commit))).collect();
            let known = files::listed(&files::kinds(&names));
            return Err(self.failure(name, format!("nothing in the cache is {}: there are {known}", escape(quant))));
        }
        let blobs = fs::canonicalize(folder.join("blobs")).unwrap_or_default();
        let blob = |link: &PathBuf| fs::canonicalize(link).ok().filter(|at| at.parent() == Some(&blobs));
        let still: BTreeSet<PathBuf> = kept.iter().filter_map(blob).collect();
        let freed: BTreeSet<PathBuf> = gone.iter().filter_map(blob).filter(|at| !still.contains(at)).collect();
        let bytes = freed.iter().chain(&gone).filter_map(|file| own_size(file)).sum();
        let dangling = refs(folder).into_iter().filter(|(_, commit)| !left.contains(commit));
        let dangling = dangling.map(|(name, _)| folder.join("refs").join(name));
        let files = gone.iter().cloned().chain(freed).chain(dangling).collect();
        Ok(Removal { name: name.to_string(), bytes, files, directories })
    }

    /// Names and folders of the models in the cache.
    fn models(&self) -> Result<Vec<(String, PathBuf)>, Error> {
        match fs::read_dir(&self.cache) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(cause) => return Err(io(&self.cache, cause)),
            Ok(_) => {}
        }
        let id = |name: &String| Some(name.strip_prefix(PREFIX)?.replacen("--", "/", 1));
        let all = names_in(&self.cache).into_iter().filter_map(|name| Some((id(&name)?, self.cache.join(name))));
        Ok(all.filter(|(id, folder)| !id.is_empty() && folder.is_dir()).collect())
    }
}

impl Removal {
    /// Does it.
    ///
    /// # Errors
    /// [`Error::Io`], with what was removed until then gone.
    pub fn carry_out(self) -> Result<(), Error> {
        let gone = |path: &Path, result: std::io::Result<()>| match result {
            Err(cause) if cause.kind() != ErrorKind::NotFound => Err(io(path, cause)),
            _ => Ok(()),
        };
        self.files.iter().try_for_each(|file| gone(file, fs::remove_file(file)))?;
        self.directories.iter().try_for_each(|directory| gone(directory, fs::remove_dir_all(directory)))
    }
}

/// Has the snapshot's file be the blob: by a relative link, or where there are no links, by moving it there.
pub(super) fn link(blob: &Path, snapshot: &Path, file: &str) -> Result<(), Error> {
    let place = snapshot.join(file);
    let up = "../".repeat(2 + file.matches('/').count());
    let target = PathBuf::from(format!("{up}blobs")).join(blob.file_name().unwrap_or_default());
    if fs::read_link(&place).is_ok_and(|at| at == target) {
        return Ok(());
    }
    let make = || {
        fs::create_dir_all(place.parent().unwrap_or(snapshot))?;
        match fs::remove_file(&place) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => symlink(&target, &place),
        }
    };
    match make() {
        Ok(()) => Ok(()),
        // Another program made the same one meanwhile.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(_) => fs::rename(blob, &place).map_err(|cause| io(&place, cause)),
    }
}

#[cfg(unix)]
fn symlink(target: &Path, place: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, place)
}

#[cfg(windows)]
fn symlink(target: &Path, place: &Path) -> std::io::Result<()> {
    std::os::windows::fs::symlink_file(target, place)
}

fn folder_name(id: &str) -> String {
    format!("{PREFIX}{}", id.replace('/', "--"))
}

/// The commit that a file of `refs` holds.
fn commit_in(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(64).read_to_string(&mut text).ok()?;
    Some(text.trim().to_string()).filter(|commit| is_commit(commit))
}

/// Branches and tags with their commits.
fn refs(folder: &Path) -> Vec<(String, String)> {
    let at = folder.join("refs");
    files::walk(&at).into_iter().filter_map(|name| Some((name.clone(), commit_in(&at.join(name))?))).collect()
}

/// Sorted; none where there is no such directory.
fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Bytes of a file; none for a link.
fn own_size(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().filter(|meta| meta.is_file()).map(|meta| meta.len())
}

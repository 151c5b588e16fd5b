//! The Hugging Face hub: its cache on this machine, and the way to fill it.
//!
//! The cache is the one that all tools of the hub share, in their layout: `models--org--repo` holds `blobs`, named by the hash of
//! their content, `refs`, which give the commit of a branch or tag, and `snapshots` of commits, whose files are links to blobs.
//! Nothing is written that other tools do not know: whether a snapshot is complete is seen from its own files.

mod cache;
mod client;
mod download;
mod files;
mod listing;
mod name;
mod settings;

pub use cache::{Cached, Removal};
pub(crate) use files::SIDE_FILES;
pub use name::Repository;

use crate::error::{Error, escape};
use crate::pair::{MANIFEST, Manifest};
use crate::write::free_space;
use client::Client;
use download::{Download, Step, partial};
use listing::{Listed, Listing};
use std::fs;
use std::path::{Path, PathBuf};

/// The hub, and its cache on this machine.
#[derive(Clone, Debug)]
pub struct Hub {
    cache: PathBuf,
    endpoint: String,
    token: Option<String>,
    offline: bool,
}

/// What there is to tell of a download.
#[derive(Debug)]
pub enum Pulling<'a> {
    /// So many files and bytes are to come.
    Begins {
        /// Files that are not there, or not all of them.
        files: usize,
        /// Bytes of them that are missing.
        bytes: u64,
    },
    /// Another program downloads the same file, which is waited for.
    Waits {
        /// The file.
        file: &'a str,
    },
    /// How many bytes are there.
    Has {
        /// Those that are there.
        done: u64,
        /// All of them.
        total: u64,
    },
}

/// A model in the cache, complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// What is to be opened: a snapshot, or a GGUF file in it.
    pub path: PathBuf,
    /// The commit.
    pub commit: String,
    /// Bytes that were downloaded for it now.
    pub fetched: u64,
}

impl Hub {
    /// What `name` stands for in the cache, if all of it is there. Makes no request.
    ///
    /// # Errors
    /// [`Error::Hub`] where there is more than one thing that could be meant.
    pub fn find(&self, name: &Repository) -> Result<Option<Pulled>, Error> {
        let Some(commit) = self.commit(name) else { return Ok(None) };
        let found = files::complete(&self.snapshot(&name.id, &commit), name.quant.as_deref());
        let path = found.map_err(|what| self.failure(name, what))?;
        Ok(path.map(|path| Pulled { path, commit, fetched: 0 }))
    }

    /// What `name` stands for, from the cache where all of it is there, without any request, and from the hub otherwise.
    ///
    /// # Errors
    /// As [`pull`](Self::pull).
    pub fn obtain(&self, name: &Repository, watch: &mut dyn FnMut(Pulling<'_>)) -> Result<Pulled, Error> {
        match self.find(name)? {
            Some(found) => Ok(found),
            None => self.pull(name, watch),
        }
    }

    /// Makes the cache have what the hub has now under `name`. What is there is not downloaded again, and what was begun goes on.
    ///
    /// # Errors
    /// [`Error::Hub`] where there is no such model, where it cannot be had, is damaged, or has no room on the disk, and where it is
    /// missing and requests are forbidden; [`Error::Malformed`] for an answer that is none; [`Error::Io`].
    pub fn pull(&self, name: &Repository, watch: &mut dyn FnMut(Pulling<'_>)) -> Result<Pulled, Error> {
        if self.offline {
            return self.find(name)?.ok_or_else(|| self.missing_offline(name));
        }
        let client = Client::new(self, name);
        let listing = Listing::parse(&format!("{}, {name}", self.endpoint), &client.describe()?)?;
        let mut fetched = 0;
        let pair = match listing.file(MANIFEST).filter(|_| name.quant.is_none()) {
            Some(manifest) => {
                fetched += self.fetch(&client, name, &listing, &[manifest], &mut |_| {})?;
                Manifest::read(&self.snapshot(&name.id, &listing.commit))?
            }
            None => None,
        };
        let choice = files::choose(&listing.names(), name.quant.as_deref(), pair.as_ref());
        let choice = choice.map_err(|what| self.failure(name, what))?;
        let chosen: Vec<&Listed> = choice.files.iter().filter_map(|file| listing.file(file)).collect();
        fetched += self.fetch(&client, name, &listing, &chosen, watch)?;
        // Only now: until all of the new commit is there, the branch stays at one of which it is.
        self.remember(name, &listing.commit)?;
        let snapshot = self.snapshot(&name.id, &listing.commit);
        let path = choice.open.map_or_else(|| snapshot.clone(), |file| snapshot.join(file));
        Ok(Pulled { path, commit: listing.commit, fetched })
    }

    /// Has the files in the snapshot, and says how many bytes were missing.
    fn fetch(
        &self,
        client: &Client<'_>,
        name: &Repository,
        listing: &Listing,
        chosen: &[&Listed],
        watch: &mut dyn FnMut(Pulling<'_>),
    ) -> Result<u64, Error> {
        let folder = self.folder(&name.id);
        let blob = |file: &Listed| folder.join("blobs").join(file.hash.hex());
        let snapshot = self.snapshot(&name.id, &listing.commit);
        let size = |path: &Path| fs::metadata(path).map(|meta| meta.len()).ok();
        let is_there = |file: &Listed| size(&snapshot.join(&file.name)) == Some(file.size);
        let missing: Vec<&Listed> = chosen.iter().copied().filter(|file| !is_there(file)).collect();
        if missing.is_empty() {
            return Ok(0);
        }
        let locks = self.locks(&name.id);
        for directory in [&folder.join("blobs"), &snapshot, &locks] {
            fs::create_dir_all(directory).map_err(|cause| io(directory, cause))?;
        }
        let absent = |file: &&Listed| match size(&blob(file)) == Some(file.size) {
            true => 0,
            false => file.size.saturating_sub(size(&partial(&blob(file))).unwrap_or(0)),
        };
        let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0u64, u64::saturating_add);
        let bytes = sum(&mut missing.iter().map(absent));
        if let Some(room) = free_space(&folder).filter(|&room| room < bytes) {
            let (bytes, room, at) = (gigabytes(bytes), gigabytes(room), escape(&self.cache.to_string_lossy()));
            return Err(self.failure(name, format!("{bytes} are to be downloaded, and {at} has room for {room}")));
        }
        if bytes > 0 {
            watch(Pulling::Begins { files: missing.len(), bytes });
        }
        let total = sum(&mut missing.iter().map(|file| file.size));
        let mut before = 0u64;
        for file in missing {
            let (lock, commit) = (locks.join(format!("{}.lock", file.hash.hex())), &listing.commit);
            let download = Download { client, commit, file, blob: blob(file), lock };
            let result = download.run(&mut |step| match step {
                Step::Waiting => watch(Pulling::Waits { file: &file.name }),
                Step::At(at) => watch(Pulling::Has { done: before.saturating_add(at), total }),
            });
            result.map_err(|what| self.failure(name, what))?;
            cache::link(&download.blob, &snapshot, &file.name)?;
            before = before.saturating_add(file.size);
            watch(Pulling::Has { done: before, total });
        }
        Ok(bytes)
    }

    fn missing_offline(&self, name: &Repository) -> Error {
        let place = self.folder(&name.id);
        let place = escape(&place.to_string_lossy());
        let what = format!(
            "not, or not all of it, in the cache ({place}), and HF_HUB_OFFLINE forbids to download it: \
             `glimmer pull {name}` does without that"
        );
        self.failure(name, what)
    }

    fn failure(&self, name: &Repository, what: String) -> Error {
        Error::Hub { name: name.to_string(), what }
    }
}

fn io(path: &Path, cause: std::io::Error) -> Error {
    Error::Io { file: escape(&path.to_string_lossy()), cause }
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}

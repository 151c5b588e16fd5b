//! Writing checkpoints: headers first, then the bytes of one tensor after the other, as they are made.
//!
//! Nothing is there under its name before it is complete: a file or a directory is written beside it and renamed at the
//! end, and what is dropped before that is removed.

pub mod gguf;
pub mod safetensors;

mod copy;

pub use copy::{copy_file, free_space, link_file};

use crate::Error;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A place for a file or a directory that is not there yet, until it is [committed](Self::commit) or dropped.
#[derive(Debug)]
pub struct Staged {
    path: PathBuf,
    part: PathBuf,
}

impl Staged {
    /// Where `path` is to be. Nothing is made yet.
    ///
    /// # Errors
    /// [`Error::Exists`] where something is there already.
    pub fn new(path: &Path) -> Result<Self, Error> {
        let mut part = path.as_os_str().to_os_string();
        part.push(format!(".{}.part", std::process::id()));
        let staged = Self { path: path.into(), part: part.into() };
        staged.refuse_existing().map(|()| staged)
    }

    /// Makes a directory of it.
    pub fn directory(&self) -> Result<(), Error> {
        fs::create_dir(&self.part).map_err(|cause| io_error(&self.path, cause))
    }

    /// Where to write until then: a file, or files of the directory.
    pub fn part(&self) -> &Path {
        &self.part
    }

    /// Gives it its name.
    pub fn commit(self) -> Result<(), Error> {
        self.refuse_existing()?;
        fs::rename(&self.part, &self.path).map_err(|cause| io_error(&self.path, cause))
    }

    fn refuse_existing(&self) -> Result<(), Error> {
        match self.path.symlink_metadata() {
            Ok(_) => Err(Error::Exists { path: self.path.display().to_string() }),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(cause) => Err(io_error(&self.path, cause)),
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // After a commit there is nothing under that name. Where removing fails, the first error has said more.
        let _ = match self.part.is_dir() {
            true => fs::remove_dir_all(&self.part),
            false => fs::remove_file(&self.part),
        };
    }
}

fn io_error(path: &Path, cause: io::Error) -> Error {
    Error::Io { file: path.display().to_string(), cause }
}

/// Writes a small file.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    File::create_new(path).and_then(|mut file| file.write_all(bytes)).map_err(|cause| io_error(path, cause))
}

/// Writes a small file in place of what is there, which stays as it is where that fails.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut part = path.as_os_str().to_os_string();
    part.push(format!(".{}.part", std::process::id()));
    let part = PathBuf::from(part);
    let written = fs::write(&part, bytes).and_then(|()| File::open(&part)?.sync_all());
    written.and_then(|()| fs::rename(&part, path)).map_err(|cause| {
        let _ = fs::remove_file(&part);
        io_error(path, cause)
    })
}

/// A file of tensors whose header is written, and that takes their bytes in the header's order.
#[derive(Debug)]
pub struct Data {
    path: PathBuf,
    file: BufWriter<File>,
    /// Bytes of each tensor, what is to come last.
    slots: Vec<u64>,
    /// Bytes that the present one, the last of `slots`, still takes.
    left: u64,
    /// Every tensor begins at a multiple of this many bytes.
    alignment: u64,
    at: u64,
}

impl Data {
    /// Creates the file with its header, which ends at a multiple of `alignment`.
    fn create(path: &Path, header: &[u8], sizes: impl IntoIterator<Item = u64>, alignment: u64) -> Result<Self, Error> {
        assert!((header.len() as u64).is_multiple_of(alignment), "the header's length");
        let mut slots: Vec<u64> = sizes.into_iter().collect();
        slots.reverse();
        let left = slots.last().copied().unwrap_or(0);
        let mut data = File::create_new(path)
            .map(|file| Self {
                path: path.into(),
                file: BufWriter::with_capacity(1 << 16, file),
                slots,
                left,
                alignment,
                at: 0,
            })
            .map_err(|cause| io_error(path, cause))?;
        data.put(header)?;
        Ok(data)
    }

    /// Adds bytes to the present tensor; the one after it begins when it is complete.
    ///
    /// # Panics
    /// If they are more than it takes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        assert!(bytes.len() as u64 <= self.left, "{} bytes for a tensor that takes {}", bytes.len(), self.left);
        self.put(bytes)?;
        self.left -= bytes.len() as u64;
        if self.left == 0 {
            self.put(&vec![0; (self.at.next_multiple_of(self.alignment) - self.at) as usize])?;
            self.slots.pop();
            self.left = self.slots.last().copied().unwrap_or(0);
        }
        Ok(())
    }

    /// Closes the file.
    ///
    /// # Panics
    /// If a tensor is not complete.
    pub fn finish(mut self) -> Result<(), Error> {
        assert!(self.slots.is_empty(), "{} tensors are not complete", self.slots.len());
        self.file.flush().map_err(|cause| io_error(&self.path, cause))
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.at += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|cause| io_error(&self.path, cause))
    }
}

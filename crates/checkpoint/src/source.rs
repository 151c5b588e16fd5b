//! Where the files of a checkpoint are: a path on disk, or bytes in the binary.

use crate::error::{Error, brief, escape};
use crate::mapped;
use glimmer_encoding::SharedBytes;
use memmap2::Mmap;
use std::borrow::Cow;
use std::fmt;
use std::fs::{self, File, FileType};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A place that files are opened from by plain name. Displays as what a user knows it by, on one line.
pub(crate) enum Source {
    Path { path: PathBuf, is_directory: bool },
    Embedded { label: String, files: Vec<(&'static str, &'static [u8])> },
}

impl Source {
    /// What is at `path`, which has to exist.
    pub fn at(path: &Path) -> Result<Self, Error> {
        let file = escape(&path.to_string_lossy());
        match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => Ok(Source::Path { path: path.into(), is_directory: true }),
            Ok(meta) if meta.is_file() => Ok(Source::Path { path: path.into(), is_directory: false }),
            Ok(meta) => Err(not_a_file(file, meta.file_type())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(Error::NotFound { path: file }),
            Err(cause) => Err(Error::Io { file, cause }),
        }
    }

    /// Whether this has named files in it, and is not one file itself.
    pub fn is_directory(&self) -> bool {
        match self {
            Source::Path { is_directory, .. } => *is_directory,
            Source::Embedded { .. } => true,
        }
    }

    /// A file of this source, as messages name it; where this is one file itself, that one or one beside it.
    pub fn describe(&self, name: &str) -> String {
        match self {
            Source::Path { path, is_directory: false } if name.is_empty() => escape(&path.to_string_lossy()),
            Source::Path { path, is_directory: false } => escape(&path.with_file_name(name).to_string_lossy()),
            Source::Path { path, .. } => escape(&path.join(name).to_string_lossy()),
            Source::Embedded { label, .. } => format!("{}/{}", escape(label), escape(name)),
        }
    }

    /// This source itself, where it is one file: its plain name, and its bytes.
    pub fn single(&self) -> Result<Option<(String, Blob)>, Error> {
        let Source::Path { path, is_directory: false } = self else { return Ok(None) };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(open_file(path, self.to_string())?.map(|blob| (name, blob)))
    }

    /// Opens the file called `name`, or `None` where there is none; one file has no others.
    ///
    /// Refuses what is not a regular file before opening it: a pipe would hang, a device never end.
    pub fn open(&self, name: &str) -> Result<Option<Blob>, Error> {
        self.check_name(name)?;
        match self {
            Source::Path { is_directory: false, .. } => Ok(None),
            Source::Path { path, .. } => open_file(&path.join(name), self.describe(name)),
            Source::Embedded { files, .. } => Ok(files
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, bytes)| Blob { file: self.describe(name), bytes: Bytes::Embedded(bytes) })),
        }
    }

    /// Opens the file called `name` beside this source, which is one file itself, or `None` where there is none.
    pub fn beside(&self, name: &str) -> Result<Option<Blob>, Error> {
        self.check_name(name)?;
        match self {
            Source::Path { path, is_directory: false } => open_file(&path.with_file_name(name), self.describe(name)),
            _ => Ok(None),
        }
    }

    /// The whole file called `name`, at most `limit` bytes, or `None` where there is none.
    pub fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, Error> {
        let Some(blob) = self.open(name)? else { return Ok(None) };
        if blob.len()? > limit {
            let (expected, found) = (format!("at most {limit} bytes"), format!("{} bytes", blob.len()?));
            return Err(Error::Malformed { file: blob.file, what: "file size".into(), expected, found });
        }
        let bytes = blob.read_at(0, blob.len()? as usize)?;
        Ok(Some(bytes.into_owned()))
    }

    /// Names of the files that are there, for a look around; not sorted.
    pub fn names(&self) -> Result<Vec<String>, Error> {
        match self {
            Source::Path { path, .. } => {
                let io = |cause| Error::Io { file: self.to_string(), cause };
                let entries = fs::read_dir(path).map_err(io)?;
                entries.map(|e| e.map(|e| e.file_name().to_string_lossy().into_owned()).map_err(io)).collect()
            }
            Source::Embedded { files, .. } => Ok(files.iter().map(|(name, _)| name.to_string()).collect()),
        }
    }

    /// Whether the file called `name`, or this source itself, begins with `magic`.
    pub fn starts_with(&self, name: Option<&str>, magic: &[u8]) -> Result<bool, Error> {
        let blob = match (self, name) {
            (_, Some(name)) => self.open(name)?,
            (Source::Path { path, .. }, None) => open_file(path, self.to_string())?,
            (Source::Embedded { .. }, None) => None,
        };
        let Some(blob) = blob else { return Ok(false) };
        Ok(blob.len()? >= magic.len() as u64 && *blob.read_at(0, magic.len())? == *magic)
    }

    /// Names come from indexes and from callers: nothing that leads out of the directory gets through.
    fn check_name(&self, name: &str) -> Result<(), Error> {
        if is_plain(name) {
            return Ok(());
        }
        Err(Error::Malformed {
            file: self.to_string(),
            what: "file name".into(),
            expected: PLAIN_NAME.into(),
            found: format!("`{}`", brief(name)),
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&match self {
            Source::Path { path, .. } => escape(&path.to_string_lossy()),
            Source::Embedded { label, .. } => escape(label),
        })
    }
}

/// What [`is_plain`] demands, for messages.
pub(crate) const PLAIN_NAME: &str = "the plain name of a file in the same directory";

/// Whether `name` can only be a file of the directory itself, on any system.
pub(crate) fn is_plain(name: &str) -> bool {
    let separates = |c: char| matches!(c, '/' | '\\' | ':') || c.is_control();
    !matches!(name, "" | "." | "..") && name.len() <= 255 && !name.contains(separates)
}

/// An open file: a length, and reading at any offset from any thread.
pub(crate) struct Blob {
    file: String,
    bytes: Bytes,
}

enum Bytes {
    Disk(Disk),
    Embedded(&'static [u8]),
    Mapped(Arc<Mmap>),
}

impl Blob {
    /// The file, as messages name it.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Length in bytes, as it is now.
    pub fn len(&self) -> Result<u64, Error> {
        match &self.bytes {
            Bytes::Disk(disk) => disk.file.metadata().map(|m| m.len()).map_err(|cause| self.io(cause)),
            Bytes::Embedded(bytes) => Ok(bytes.len() as u64),
            Bytes::Mapped(map) => Ok(map.len() as u64),
        }
    }

    /// Whether bytes have to be read to be seen.
    pub fn is_on_disk(&self) -> bool {
        matches!(self.bytes, Bytes::Disk(_))
    }

    /// Whether it was mapped.
    pub fn is_mapped(&self) -> bool {
        matches!(self.bytes, Bytes::Mapped(_))
    }

    /// Maps it, if it is on disk.
    pub fn map(&mut self) -> Result<(), Error> {
        if let Bytes::Disk(disk) = &self.bytes {
            let map = mapped::map(&disk.file).map_err(|cause| self.io(cause))?;
            self.bytes = Bytes::Mapped(Arc::new(map));
        }
        Ok(())
    }

    /// The `len` bytes at `offset`. The caller has bounded `len` by the length of the file.
    pub fn read_at(&self, offset: u64, len: usize) -> Result<Cow<'_, [u8]>, Error> {
        if self.is_on_disk() {
            let mut buffer = vec![0; len];
            self.read_into(offset, &mut buffer)?;
            return Ok(Cow::Owned(buffer));
        }
        self.slice(offset, len).map(Cow::Borrowed)
    }

    /// Fills `to` with the bytes at `offset`.
    pub fn read_into(&self, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        match &self.bytes {
            Bytes::Disk(disk) => disk.read_exact_at(to, offset).map_err(|cause| match cause.kind() {
                io::ErrorKind::UnexpectedEof => self.cut(offset, to.len()),
                _ => self.io(cause),
            }),
            _ => self.slice(offset, to.len()).map(|bytes| to.copy_from_slice(bytes)),
        }
    }

    /// The bytes `range`, shared with the file where that is in memory.
    pub fn shared(&self, range: Range<u64>) -> Result<SharedBytes, Error> {
        let len = (range.end - range.start) as usize;
        let memory: Arc<dyn AsRef<[u8]> + Send + Sync> = match &self.bytes {
            Bytes::Disk(_) => return Ok(self.read_at(range.start, len)?.into_owned().into()),
            Bytes::Embedded(bytes) => Arc::new(*bytes),
            Bytes::Mapped(map) => map.clone(),
        };
        let cut = || self.cut(range.start, len);
        let range = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
        range.and_then(|(start, end)| SharedBytes::new(memory, start..end)).ok_or_else(cut)
    }

    /// What is in memory of it.
    fn slice(&self, offset: u64, len: usize) -> Result<&[u8], Error> {
        let all = match &self.bytes {
            Bytes::Disk(_) => &[][..],
            Bytes::Embedded(bytes) => bytes,
            Bytes::Mapped(map) => map,
        };
        let found = usize::try_from(offset).ok().and_then(|at| all.get(at..at.checked_add(len)?));
        found.ok_or_else(|| self.cut(offset, len))
    }

    /// The bytes `range` are read soon.
    pub fn ahead(&self, range: Range<u64>) {
        if let Bytes::Disk(disk) = &self.bytes {
            disk.advise(range, Advice::Ahead);
        }
    }

    /// The bytes `range` are not read again.
    pub fn done(&self, range: Range<u64>) {
        match &self.bytes {
            Bytes::Disk(disk) if disk.forget => disk.advise(range, Advice::Done),
            _ => {}
        }
    }

    /// From here on, what is [done](Self::done) with is not kept in the system's cache.
    pub fn forget_what_is_read(&mut self) {
        if let Bytes::Disk(disk) = &mut self.bytes {
            disk.forget = true;
        }
    }

    fn io(&self, cause: io::Error) -> Error {
        Error::Io { file: self.file.clone(), cause }
    }

    fn cut(&self, offset: u64, len: usize) -> Error {
        Error::Malformed {
            file: self.file.clone(),
            what: "file size".into(),
            expected: format!("{len} bytes at byte {offset}"),
            found: "the end of the file".into(),
        }
    }
}

fn open_file(path: &Path, file: String) -> Result<Option<Blob>, Error> {
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            // A link that leads nowhere is a broken download, not an absent file.
            return match fs::symlink_metadata(path) {
                Ok(meta) => Err(not_a_file(file, meta.file_type())),
                Err(_) => Ok(None),
            };
        }
        Err(cause) => return Err(Error::Io { file, cause }),
    };
    if !meta.is_file() {
        return Err(not_a_file(file, meta.file_type()));
    }
    match File::open(path) {
        Ok(disk) => Ok(Some(Blob { file, bytes: Bytes::Disk(Disk::new(disk)) })),
        Err(cause) => Err(Error::Io { file, cause }),
    }
}

/// A file that is read at offsets.
struct Disk {
    file: File,
    /// Whether what was read is not kept in the system's cache.
    forget: bool,
    /// Held from seek to read where the system cannot read at an offset.
    #[cfg(not(unix))]
    position: std::sync::Mutex<()>,
}

#[cfg(unix)]
impl Disk {
    fn new(file: File) -> Self {
        Self { file, forget: false }
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, buffer, offset)
    }
}

#[cfg(not(unix))]
impl Disk {
    fn new(file: File) -> Self {
        Self { file, forget: false, position: Default::default() }
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        use std::io::{Read, Seek, SeekFrom};
        let _held = self.position.lock().unwrap_or_else(|e| e.into_inner());
        (&self.file).seek(SeekFrom::Start(offset))?;
        (&self.file).read_exact(buffer)
    }
}

/// What the system is told of a range of bytes. That it is not taken is no error.
enum Advice {
    /// It is read soon.
    Ahead,
    /// It is not read again.
    Done,
}

impl Disk {
    #[cfg(target_os = "linux")]
    fn advise(&self, range: Range<u64>, advice: Advice) {
        use rustix::fs::{Advice as System, fadvise};
        let advice = match advice {
            Advice::Ahead => System::WillNeed,
            Advice::Done => System::DontNeed,
        };
        // No length would mean all that follows.
        if let Some(len) = std::num::NonZeroU64::new(range.end.saturating_sub(range.start)) {
            let _ = fadvise(&self.file, range.start, Some(len), advice);
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn advise(&self, _: Range<u64>, _: Advice) {}
}

fn not_a_file(file: String, kind: FileType) -> Error {
    let found = match kind {
        kind if kind.is_dir() => "a directory",
        kind if kind.is_symlink() => "a symbolic link that leads nowhere",
        _ => "a pipe, a socket or a device",
    };
    Error::Malformed { file, what: "kind of file".into(), expected: "a regular file".into(), found: found.into() }
}

//! One file: what is there already is kept, the rest is asked for, and its hash decides.

use super::client::{Client, Fault};
use super::listing::{Hash, Listed};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;
use ureq::http::{Response, header};

/// What is waited before the next attempt, after as many that brought nothing.
const WAITS: [Duration; 4] =
    [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];

const PIECE: usize = 1 << 18;

/// Where a file's bytes are kept, and how to have them.
pub(super) struct Download<'a> {
    pub client: &'a Client<'a>,
    pub commit: &'a str,
    pub file: &'a Listed,
    /// Where it will be.
    pub blob: PathBuf,
    /// What other programs that would write it hold as well.
    pub lock: PathBuf,
}

/// How far it has come.
pub(super) enum Step {
    /// Another program is at it.
    Waiting,
    /// Bytes that are there.
    At(u64),
}

impl Download<'_> {
    /// Makes sure of the file. An error says what is wrong, without the name of the repository.
    pub fn run(&self, watch: &mut dyn FnMut(Step)) -> Result<(), String> {
        if self.is_there() {
            return Ok(());
        }
        let _lock = lock(&self.lock, || watch(Step::Waiting))?;
        if self.is_there() {
            return Ok(());
        }
        let partial = partial(&self.blob);
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&partial);
        let file = file.as_mut().map_err(|error| at(&partial, error))?;
        let resumed = file.metadata().is_ok_and(|meta| meta.len() > 0);
        let mut found = self.fill(file, &partial, watch)?;
        if found != self.file.hash && resumed {
            // What another attempt left behind may be what is wrong.
            file.set_len(0).map_err(|error| at(&partial, &error))?;
            found = self.fill(file, &partial, watch)?;
        }
        if found != self.file.hash {
            let _ = fs::remove_file(&partial);
            let (name, expected) = (self.file.shown(), &self.file.hash);
            return Err(format!("{name}: expected {expected}, found {found}: it is damaged, and none of it was kept"));
        }
        file.sync_all().and_then(|()| fs::rename(&partial, &self.blob)).map_err(|error| at(&self.blob, &error))
    }

    fn is_there(&self) -> bool {
        fs::metadata(&self.blob).is_ok_and(|meta| meta.is_file() && meta.len() == self.file.size)
    }

    /// Fills the file up to its size, however often the server goes away. Gives its hash.
    fn fill(&self, file: &mut File, partial: &Path, watch: &mut dyn FnMut(Step)) -> Result<Hash, String> {
        let wrong = |error: io::Error| at(partial, &error);
        if file.metadata().map_err(wrong)?.len() > self.file.size {
            file.set_len(0).map_err(wrong)?;
        }
        let mut sink = Sink { file, hasher: Hasher::of(self.file), at: 0 };
        sink.read_what_is_there().map_err(wrong)?;
        watch(Step::At(sink.at));
        let (mut furthest, mut waits) = (sink.at, WAITS.iter());
        while sink.at < self.file.size {
            match self.transfer(&mut sink, partial, watch) {
                Ok(()) => {}
                Err(Fault::Lasting(what)) => return Err(what),
                Err(Fault::Passing(what)) => {
                    if sink.at > furthest {
                        (furthest, waits) = (sink.at, WAITS.iter());
                    }
                    match waits.next() {
                        Some(wait) => sleep(*wait),
                        None => {
                            let (name, at, size) = (self.file.shown(), sink.at, self.file.size);
                            return Err(format!(
                                "{name}: {what}; {at} of {size} bytes are here, and the next pull goes on from them"
                            ));
                        }
                    }
                }
            }
        }
        Ok(sink.hasher.finish())
    }

    /// One request, and what comes of it.
    fn transfer(&self, sink: &mut Sink<'_>, partial: &Path, watch: &mut dyn FnMut(Step)) -> Result<(), Fault> {
        let wrong = |error: io::Error| Fault::Lasting(at(partial, &error));
        let response = self.client.file(self.commit, &self.file.name, sink.at)?;
        match response.status().as_u16() {
            206 if begins_at(&response) == Some(sink.at) => {}
            200 if sink.at == 0 => {}
            // The server sends all of it, or does not know so many bytes: from the beginning, then.
            status => {
                sink.restart(self.file).map_err(wrong)?;
                watch(Step::At(0));
                if status != 200 {
                    return Err(Fault::Passing(format!("the server answered a range of it with status {status}")));
                }
            }
        }
        let mut body = response.into_body().into_reader();
        let mut piece = vec![0; PIECE];
        loop {
            let read = match body.read(&mut piece) {
                Ok(0) if sink.at < self.file.size => return Err(Fault::Passing("the connection ended early".into())),
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Fault::Passing(format!("the connection broke: {error}"))),
            };
            if sink.at + read as u64 > self.file.size {
                let _ = fs::remove_file(partial);
                let (name, size) = (self.file.shown(), self.file.size);
                return Err(Fault::Lasting(format!("{name}: expected {size} bytes, the server sends more")));
            }
            sink.write(&piece[..read]).map_err(wrong)?;
            watch(Step::At(sink.at));
        }
    }
}

/// Where what has arrived of a blob is kept meanwhile.
pub(super) fn partial(blob: &Path) -> PathBuf {
    let mut name = blob.as_os_str().to_owned();
    name.push(".incomplete");
    name.into()
}

/// The first byte that a response to a range has.
fn begins_at<B>(response: &Response<B>) -> Option<u64> {
    let range = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}

fn at(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", crate::error::escape(&path.to_string_lossy()))
}

/// The partial file, and the hash of what is in it.
struct Sink<'a> {
    file: &'a mut File,
    hasher: Hasher,
    at: u64,
}

impl Sink<'_> {
    fn read_what_is_there(&mut self) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(0))?;
        let mut piece = vec![0; PIECE];
        loop {
            match self.file.read(&mut piece)? {
                0 => return Ok(()),
                read => {
                    self.hasher.update(&piece[..read]);
                    self.at += read as u64;
                }
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn restart(&mut self, file: &Listed) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        (self.hasher, self.at) = (Hasher::of(file), 0);
        Ok(())
    }
}

/// Large files are named by their SHA-256, small ones as git names a blob.
enum Hasher {
    Sha256(Sha256),
    Git(Sha1),
}

impl Hasher {
    fn of(file: &Listed) -> Self {
        match file.hash {
            Hash::Sha256(_) => Hasher::Sha256(Sha256::new()),
            Hash::Git(_) => Hasher::Git(Sha1::new_with_prefix(format!("blob {}\0", file.size))),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::Git(hasher) => hasher.update(bytes),
        }
    }

    fn finish(self) -> Hash {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Hasher::Sha256(hasher) => Hash::Sha256(hex(&hasher.finalize())),
            Hasher::Git(hasher) => Hash::Git(hex(&hasher.finalize())),
        }
    }
}

/// Holds the lock until it is dropped, or the program ends. Where the system has no locks, nothing is held.
fn lock(path: &Path, waiting: impl FnOnce()) -> Result<File, String> {
    let file = File::create(path).map_err(|error| at(path, &error))?;
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        waiting();
        file.lock().map_err(|error| at(path, &error))?;
    }
    Ok(file)
}

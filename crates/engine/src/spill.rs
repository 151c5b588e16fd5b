//! Kept pages as files, which survive a restart.
//!
//! A file is one node of the [prefix cache](crate::prefix): the tokens of a page, the pages of the layers that the node has, and whose child
//! it is. Its name is a hash of all tokens up to there and of what the bits depend on: model, drafter, encodings, types. Files of
//! anything else are in other folders and are not looked at. A file is written beside its name first, and its own hash is checked
//! when its pages are wanted: what is damaged is as good as what is not there.

use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

/// What files begin with. Another layout of pages gets another one.
const MAGIC: &[u8; 16] = b"glimmer kv 1\0\0\0\0";
/// More layers than any model has.
const MOST_LAYERS: usize = 4096;

/// The hash that a node is known by.
pub type Key = [u8; 32];

/// A folder of nodes.
pub struct Spill {
    folder: PathBuf,
    root: Key,
    limit: u64,
}

/// What stands in the head of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its node.
    pub key: Key,
    /// The node before it; of the first page, the root.
    pub parent: Key,
    /// The tokens of the page.
    pub tokens: Vec<u32>,
    /// The layers of the target that it has.
    pub target: Vec<bool>,
    /// Layers of the drafter.
    pub drafter: usize,
    /// From where on the drafter observed the page.
    pub observed: usize,
    /// Bytes of a page of the target and of the drafter.
    pub page_bytes: [u64; 2],
    /// When it was used last, as far as the file system says.
    pub used: u64,
}

/// The pages of a file: of each layer of the target that it has, in order, and of the drafter.
pub type Pages = [Vec<Vec<u8>>; 2];

/// The key of the page of `tokens` behind `parent`.
pub fn key(parent: &Key, tokens: &[u32]) -> Key {
    let mut hash = Sha256::new_with_prefix(parent);
    tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
    hash.finalize().into()
}

impl Entry {
    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.head() + self.payload().unwrap_or(u64::MAX / 2) + size_of::<Key>() as u64
    }

    fn head(&self) -> u64 {
        (MAGIC.len() + 2 * size_of::<Key>() + 4 * 4 + 4 * self.tokens.len() + self.target.len() + 2 * 8) as u64
    }

    fn payload(&self) -> Option<u64> {
        let layers = self.target.iter().filter(|had| **had).count() as u64;
        layers.checked_mul(self.page_bytes[0])?.checked_add((self.drafter as u64).checked_mul(self.page_bytes[1])?)
    }

    fn write_head(&self, root: &Key, to: &mut impl Write) -> io::Result<()> {
        to.write_all(MAGIC)?;
        to.write_all(root)?;
        to.write_all(&self.parent)?;
        for number in [self.tokens.len(), self.target.len(), self.drafter, self.observed] {
            to.write_all(&(number as u32).to_le_bytes())?;
        }
        self.page_bytes.iter().try_for_each(|bytes| to.write_all(&bytes.to_le_bytes()))?;
        self.tokens.iter().try_for_each(|token| to.write_all(&token.to_le_bytes()))?;
        to.write_all(&self.target.iter().map(|&had| u8::from(had)).collect::<Vec<_>>())
    }

    /// The head of a file of this root; `None` where it is none.
    fn read_head(root: &Key, from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut magic = [0; MAGIC.len()];
        from.read_exact(&mut magic)?;
        let (mut of, mut parent) = (Key::default(), Key::default());
        from.read_exact(&mut of)?;
        from.read_exact(&mut parent)?;
        let mut numbers = [0; 4];
        for number in &mut numbers {
            let mut bytes = [0; 4];
            from.read_exact(&mut bytes)?;
            *number = u32::from_le_bytes(bytes) as usize;
        }
        let [tokens, layers, drafter, observed] = numbers;
        if magic != *MAGIC || of != *root || tokens > glimmer_backend::PAGE || layers.max(drafter) > MOST_LAYERS {
            return Ok(None);
        }
        let mut page_bytes = [0; 2];
        for number in &mut page_bytes {
            let mut bytes = [0; 8];
            from.read_exact(&mut bytes)?;
            *number = u64::from_le_bytes(bytes);
        }
        let (mut ids, mut had) = (vec![0; 4 * tokens], vec![0; layers]);
        from.read_exact(&mut ids)?;
        from.read_exact(&mut had)?;
        let tokens: Vec<u32> = ids.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id)).collect();
        let target = had.into_iter().map(|had| had != 0).collect();
        Ok(Some(Self { key: key(&parent, &tokens), parent, tokens, target, drafter, observed, page_bytes, used: 0 }))
    }
}

impl Spill {
    /// The folder of what has this hash, below `dir`, of at most `limit` bytes.
    pub fn open(dir: &Path, root: Key, limit: u64) -> io::Result<Self> {
        let folder = dir.join(hex(&root[..16]));
        fs::create_dir_all(&folder)?;
        Ok(Self { folder, root, limit })
    }

    /// Bytes that its files may have.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// What the first page of a sequence stands behind.
    pub fn root(&self) -> &Key {
        &self.root
    }

    /// What is there. Files that are not whole are removed.
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for file in fs::read_dir(&self.folder)? {
            let path = file?.path();
            match self.entry(&path) {
                Some(entry) => entries.push(entry),
                None if path.extension().is_some_and(|end| end == "kv" || end == "part") => {
                    let _ = fs::remove_file(&path);
                }
                None => {}
            }
        }
        Ok(entries)
    }

    fn entry(&self, path: &Path) -> Option<Entry> {
        let file = File::open(path).ok()?;
        let about = file.metadata().ok()?;
        let mut entry = Entry::read_head(&self.root, &mut BufReader::new(file)).ok()??;
        let since = about.modified().ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
        entry.used = since.map_or(0, |since| since.as_micros() as u64);
        (about.len() == entry.bytes() && path == self.path(&entry.key)).then_some(entry)
    }

    /// Writes a node.
    pub fn write(&self, entry: &Entry, pages: [&Vec<Vec<u8>>; 2]) -> io::Result<()> {
        let part = self.folder.join(format!("{}.{}.part", hex(&entry.key), std::process::id()));
        let written = File::create(&part).and_then(|file| {
            let mut to = Hashing { inner: io::BufWriter::new(file), hash: Sha256::new() };
            entry.write_head(&self.root, &mut to)?;
            pages.into_iter().flatten().try_for_each(|page| to.write_all(page))?;
            let Hashing { mut inner, hash } = to;
            inner.write_all(&hash.finalize())?;
            inner.flush()
        });
        let written = written.and_then(|()| fs::rename(&part, self.path(&entry.key)));
        if written.is_err() {
            let _ = fs::remove_file(&part);
        }
        written
    }

    /// The pages of a node; `None` where its file is gone or damaged.
    pub fn read(&self, entry: &Entry) -> Option<Pages> {
        let mut from = BufReader::with_capacity(1 << 20, File::open(self.path(&entry.key)).ok()?);
        let mut hash = Sha256::new();
        let head = Entry::read_head(&self.root, &mut from).ok()??;
        if (Entry { used: entry.used, ..head }) != *entry {
            return None;
        }
        let mut bytes = Vec::new();
        entry.write_head(&self.root, &mut bytes).ok()?;
        hash.update(&bytes);
        let mut pages = |count: usize, bytes: u64| -> Option<Vec<Vec<u8>>> {
            let page = |_| {
                let mut page = vec![0; bytes as usize];
                from.read_exact(&mut page).ok()?;
                hash.update(&page);
                Some(page)
            };
            (0..count).map(page).collect()
        };
        let target = pages(entry.target.iter().filter(|had| **had).count(), entry.page_bytes[0])?;
        let drafter = pages(entry.drafter, entry.page_bytes[1])?;
        let mut expected = Key::default();
        from.read_exact(&mut expected).ok()?;
        (hash.finalize()[..] == expected).then_some([target, drafter])
    }

    /// Removes a node's file.
    pub fn remove(&self, key: &Key) {
        // One that is gone already is what is wanted.
        let _ = fs::remove_file(self.path(key));
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(format!("{}.kv", hex(key)))
    }
}

/// Hashes what is written.
struct Hashing<W> {
    inner: W,
    hash: Sha256,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hash.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

//! Reading a header from front to back, never past the end of the file.

use crate::error::Error;
use crate::source::Blob;
use std::borrow::Cow;

/// Read at once.
const WINDOW: usize = 1 << 20;

/// Longest header that is read. That of Muse-Glimmer has about 10 MB, most of them the vocabulary.
const MAX_HEADER: u64 = 256 << 20;

/// A place in a file, with the bytes around it.
pub(super) struct Reader<'a> {
    blob: &'a Blob,
    len: u64,
    at: u64,
    window: Cow<'a, [u8]>,
    window_at: u64,
}

impl<'a> Reader<'a> {
    pub fn new(blob: &'a Blob) -> Result<Self, Error> {
        Ok(Self { blob, len: blob.len()?, at: 0, window: Cow::Borrowed(&[]), window_at: 0 })
    }

    /// From a byte on that was read before.
    pub fn at_byte(blob: &'a Blob, at: u64) -> Result<Self, Error> {
        let mut reader = Self::new(blob)?;
        reader.skip(at, "metadata")?;
        Ok(reader)
    }

    /// The file, as messages name it.
    pub fn file(&self) -> &'a str {
        self.blob.file()
    }

    /// Length of the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Bytes from the beginning of the file.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Goes `count` bytes further.
    pub fn skip(&mut self, count: u64, what: &str) -> Result<(), Error> {
        if count > self.len - self.at {
            let expected = format!("{count} bytes at byte {}", self.at);
            return Err(self.malformed(what, expected, format!("{} until the end of the file", self.len - self.at)));
        }
        if self.at + count > MAX_HEADER {
            return Err(self.malformed(what, format!("the header within {MAX_HEADER} bytes"), "more".into()));
        }
        self.at += count;
        Ok(())
    }

    /// The next `count` bytes, which are one window at most.
    pub fn bytes(&mut self, count: usize, what: &str) -> Result<&[u8], Error> {
        let begin = self.at;
        self.skip(count as u64, what)?;
        if begin < self.window_at || self.at > self.window_at + self.window.len() as u64 {
            let size = (self.len - begin).min(WINDOW.max(count) as u64) as usize;
            self.window = self.blob.read_at(begin, size)?;
            self.window_at = begin;
        }
        let offset = (begin - self.window_at) as usize;
        self.window.get(offset..offset + count).ok_or_else(|| Error::Malformed {
            file: self.blob.file().into(),
            what: what.into(),
            expected: format!("{count} bytes at byte {begin}"),
            found: "the end of the file".into(),
        })
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Error> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N, what)?);
        Ok(out)
    }

    pub fn u32(&mut self, what: &str) -> Result<u32, Error> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, what: &str) -> Result<u64, Error> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A number of things, at most `most`.
    pub fn count(&mut self, what: &str, most: u64) -> Result<u64, Error> {
        match self.u64(what)? {
            count if count <= most => Ok(count),
            count => Err(self.malformed(what, format!("at most {most}"), count.to_string())),
        }
    }

    /// A string of at most `most` bytes; nothing is allocated for one that the file has no room for.
    pub fn string(&mut self, what: &str, most: u64) -> Result<String, Error> {
        let len = self.u64(what)?;
        if len > most {
            return Err(self.malformed(what, format!("at most {most} bytes"), len.to_string()));
        }
        let bytes = self.bytes(len as usize, what)?.to_vec();
        String::from_utf8(bytes).map_err(|_| self.malformed(what, "UTF-8".into(), "other bytes".into()))
    }

    pub fn malformed(&self, what: &str, expected: String, found: String) -> Error {
        Error::Malformed { file: self.file().into(), what: what.into(), expected, found }
    }
}

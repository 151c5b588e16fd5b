//! An open checkpoint.

use crate::error::{Error, brief, escape};
use crate::gguf::side::Side;
use crate::hub::SIDE_FILES;
use crate::json::{self, parse_object};
use crate::pair::MANIFEST;
use crate::source::{Blob, Source};
use crate::{Cursor, Extent, Fields, Rows, Tensor, TensorInfo, TensorSpec, container};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// The largest side file that is read: a tokenizer of 200 000 tokens has about 30 MB.
const MAX_SIDE_FILE: u64 = 64 << 20;

/// A file that a checkpoint is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointFile {
    /// Its plain name.
    pub name: String,
    /// Whether it holds weights: such a file is large, and never edited.
    pub weights: bool,
    /// Where its bytes are.
    pub content: Content,
}

/// The bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// They are on disk, possibly behind a link.
    Disk(PathBuf),
    /// They are part of the binary.
    Embedded(&'static [u8]),
}

/// An open checkpoint: configuration, side files, and a table of tensors that are read on demand, from any thread.
///
/// Tensor names are those that Hugging Face gives, whatever the files call them.
pub struct Checkpoint {
    source: Source,
    label: String,
    config_file: String,
    config: Map<String, Value>,
    /// What lists the tensors, as messages name it: the one file of weights, or the index.
    table_file: String,
    /// Sorted by name.
    tensors: Vec<TensorInfo>,
    /// The open files by name.
    blobs: BTreeMap<String, Blob>,
    /// What small files are made from, where there are none.
    side: Option<Side>,
}

impl Checkpoint {
    /// Opens a checkpoint that is part of the binary, from the names and contents of its files; `label` stands for
    /// the path in messages. The same checks apply as for one on disk.
    ///
    /// # Errors
    /// As [`open`](crate::open).
    pub fn embedded(label: &str, files: &[(&'static str, &'static [u8])]) -> Result<Checkpoint, Error> {
        container::open(Source::Embedded { label: label.into(), files: files.to_vec() })
    }

    pub(crate) fn new(
        source: Source,
        config_file: &str,
        config: Map<String, Value>,
        table: &str,
        mut tensors: Vec<TensorInfo>,
        blobs: BTreeMap<String, Blob>,
    ) -> Self {
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        let label = match &source {
            Source::Path { path, .. } => path.to_string_lossy().into_owned(),
            Source::Embedded { label, .. } => label.clone(),
        };
        let (config_file, table_file) = (source.describe(config_file), source.describe(table));
        Self { source, label, config_file, config, table_file, tensors, blobs, side: None }
    }

    /// With small files that are made when they are asked for.
    pub(crate) fn with_side(self, side: Side) -> Self {
        Self { side: Some(side), ..self }
    }

    /// The same, known to the user by another label than its path.
    pub fn labelled(self, label: &str) -> Self {
        Self { label: label.into(), ..self }
    }

    /// What a user knows it by: the path that was opened, or the label that it was given.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// `config.json`, as it stands, or what the metadata of a GGUF file say in its terms.
    pub fn config(&self) -> &Map<String, Value> {
        &self.config
    }

    /// The configuration, to be read field by field.
    pub fn fields(&self) -> Fields<'_> {
        Fields::new(&self.config_file, &self.config)
    }

    /// The bytes of a small file beside the weights (`tokenizer.json`, `chat_template.jinja`, ...), or `None` where
    /// there is none. Of a GGUF file, what its metadata say in the terms of such a file.
    ///
    /// # Errors
    /// [`Error::Malformed`] where `name` is not a plain file name, where the file has more than 64 MiB, or where it is
    /// a directory, a pipe or the like; [`Error::Io`].
    pub fn file(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        self.small_file(name, MAX_SIDE_FILE)
    }

    fn small_file(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, Error> {
        match &self.side {
            Some(side) => side.read(&self.blobs[&side.file], name),
            None => self.source.read(name, limit),
        }
    }

    /// A small file that holds a JSON object (`generation_config.json`, ...), or `None` where there is none.
    ///
    /// # Errors
    /// As [`file`](Self::file), here with 8 MiB; [`Error::Malformed`] where it is not a JSON object, has a key twice, or
    /// more than 100 000 values.
    pub fn json(&self, name: &str) -> Result<Option<Map<String, Value>>, Error> {
        let Some(bytes) = self.small_file(name, json::MAX_BYTES)? else { return Ok(None) };
        parse_object(&self.source.describe(name), "file", &bytes).map(Some)
    }

    /// The files that it is made of: those of the weights, and of a directory what is read beside them. Whatever else is there is no
    /// part of it.
    ///
    /// # Errors
    /// [`Error::Io`], and [`Error::Malformed`] for what is no regular file.
    pub fn files(&self) -> Result<Vec<CheckpointFile>, Error> {
        let mut names: Vec<(String, bool)> = self.blobs.keys().map(|name| (name.clone(), true)).collect();
        if self.side.is_none() {
            for name in SIDE_FILES.into_iter().filter(|name| *name != MANIFEST) {
                if self.source.open(name)?.is_some() {
                    names.push((name.into(), false));
                }
            }
        }
        let content = |name: &str| match &self.source {
            Source::Path { path, is_directory: true } => Some(Content::Disk(path.join(name))),
            Source::Path { path, .. } => Some(Content::Disk(path.with_file_name(name))),
            Source::Embedded { files, .. } => {
                files.iter().find(|(known, _)| *known == name).map(|(_, bytes)| Content::Embedded(bytes))
            }
        };
        let file = |(name, weights): (String, bool)| Some(CheckpointFile { content: content(&name)?, name, weights });
        Ok(names.into_iter().filter_map(file).collect())
    }

    /// The file that it is opened by, where it is in GGUF files.
    pub fn first_gguf(&self) -> Option<&str> {
        self.side.as_ref().map(|side| side.file.as_str())
    }

    /// Every tensor, sorted by name.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let at = self.tensors.binary_search_by(|t| t.name.as_str().cmp(name)).ok()?;
        self.tensors.get(at)
    }

    /// Reads the tensor called `name`. Nothing is kept: reading it again reads the file again.
    ///
    /// # Errors
    /// [`Error::Missing`] where there is none of that name; [`Error::Malformed`] where the file has been cut since it
    /// was opened; [`Error::Io`].
    pub fn read(&self, name: &str) -> Result<Tensor<'_>, Error> {
        let info = self.tensor(name).ok_or_else(|| self.missing(name, "a tensor of this name", 0))?;
        self.read_info(info)
    }

    /// As [`read`](Self::read), where the shape has to be `shape`.
    pub(crate) fn read_shaped(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, Error> {
        let info = self.tensor(name).ok_or_else(|| self.missing(name, &format!("shape {shape:?}"), 0))?;
        self.check_shape(info, shape)?;
        self.read_info(info)
    }

    fn read_info<'a>(&'a self, info: &'a TensorInfo) -> Result<Tensor<'a>, Error> {
        Tensor::read(info, |extent| self.blob(extent)?.read_at(extent.range.start, extent.byte_len()))
    }

    /// The matrix called `name`, whose shape has to be `shape`; `watch` is told what is read of it.
    pub(crate) fn rows<'a>(
        &'a self,
        name: &str,
        shape: [usize; 2],
        watch: Option<&'a (dyn Fn(u64) + Sync)>,
    ) -> Result<Rows<'a>, Error> {
        let info = self.tensor(name).ok_or_else(|| self.missing(name, &format!("shape {shape:?}"), 0))?;
        self.check_shape(info, &shape)?;
        Rows::new(info, shape, |extent| self.blob(extent), watch)
    }

    fn blob(&self, extent: &Extent) -> Result<&Blob, Error> {
        self.blobs.get(&*extent.file).ok_or_else(|| self.missing(&extent.name, "its file", 0))
    }

    /// Maps the files of weights into memory. Matrices then stay there, and only what is looked at is ever read.
    ///
    /// A file that is cut or rewritten while it is mapped crashes the process, or changes its numbers: nothing can catch it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the checkpoint is part of the binary; [`Error::Io`].
    pub fn map(&mut self) -> Result<(), Error> {
        if let Source::Embedded { label, .. } = &self.source {
            let what = "it is part of this program: there is no file to map".into();
            return Err(Error::Unsupported { file: escape(label), what });
        }
        self.blobs.values_mut().try_for_each(Blob::map)
    }

    /// From here on, what is read piece by piece is not kept in the system's cache of files.
    pub fn forget_what_is_read(&mut self) {
        self.blobs.values_mut().for_each(Blob::forget_what_is_read);
    }

    /// Checks that the tensors are exactly those of `expected`: none is missing, none is unknown, each has its shape.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Unknown`] or [`Error::Malformed`], looked for in this order, for the first by name;
    /// the first two count the others.
    pub fn account(&self, expected: &[TensorSpec]) -> Result<(), Error> {
        let expected: BTreeMap<&str, &[usize]> =
            expected.iter().map(|s| (s.name.as_str(), s.shape.as_slice())).collect();

        let mut missing = expected.iter().filter(|(name, _)| self.tensor(name).is_none());
        if let Some((name, shape)) = missing.next() {
            return Err(self.missing(name, &format!("shape {shape:?}"), missing.count()));
        }
        let mut unknown = self.tensors.iter().filter(|t| !expected.contains_key(t.name.as_str()));
        if let Some(info) = unknown.next() {
            return Err(Error::Unknown {
                file: self.source.describe(&info.codes.file),
                what: format!("tensor `{}`", brief(&info.codes.name)),
                expected: "only tensors of the model".into(),
                found: format!("{} of shape {:?}", info.encoding, info.shape),
                more: unknown.count(),
            });
        }
        let shaped = |info: &TensorInfo| expected.get(info.name.as_str()).map_or(Ok(()), |s| self.check_shape(info, s));
        self.tensors.iter().try_for_each(shaped)
    }

    /// The place `prefix` among the tensor names, from where parts of a model are read; empty for the top.
    pub fn at(&self, prefix: &str) -> Cursor<'_> {
        Cursor::new(self, prefix.into())
    }

    /// The tensor called `name` as messages name it: the file, and its name there.
    pub fn describe(&self, name: &str) -> String {
        let (file, name) = match self.tensor(name) {
            Some(info) => (self.source.describe(&info.codes.file), info.codes.name.as_str()),
            None => (self.table_file.clone(), name),
        };
        format!("{file}: tensor `{}`", brief(name))
    }

    fn check_shape(&self, info: &TensorInfo, shape: &[usize]) -> Result<(), Error> {
        if info.shape == shape {
            return Ok(());
        }
        Err(Error::Malformed {
            file: self.source.describe(&info.codes.file),
            what: format!("tensor `{}`", brief(&info.codes.name)),
            expected: format!("shape {shape:?}"),
            found: format!("{:?}", info.shape),
        })
    }

    fn missing(&self, name: &str, expected: &str, more: usize) -> Error {
        let what = format!("tensor `{}`", brief(name));
        Error::Missing { file: self.table_file.clone(), what, expected: expected.into(), more }
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checkpoint({:?}, {} tensors)", self.label, self.tensors.len())
    }
}

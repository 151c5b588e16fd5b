//! A checkpoint in several files, each of which knows its number.

use super::{Header, header};
use crate::Fields;
use crate::error::{Error, brief};
use crate::source::{Blob, Source};
use std::collections::BTreeSet;

const MAX_PARTS: usize = 4096;

/// A file and what its header says.
pub(super) struct Part {
    pub name: String,
    pub blob: Blob,
    pub header: Header,
}

impl Part {
    fn read(name: String, blob: Blob) -> Result<Self, Error> {
        let header = header(&blob, &name)?;
        Ok(Self { name, blob, header })
    }

    fn fields(&self) -> Fields<'_> {
        Fields::new(self.blob.file(), &self.header.metadata)
    }
}

/// All files of the checkpoint that the opened one belongs to, the first first.
pub(super) fn gather(source: &Source, name: String, blob: Blob) -> Result<Vec<Part>, Error> {
    let opened = Part::read(name, blob)?;
    let count = opened.fields().opt_usize("split.count", 0..=MAX_PARTS)?.unwrap_or(1);
    if count <= 1 {
        return Ok(vec![opened]);
    }
    let number = number(&opened, count)?;
    let ending = |number: usize| format!("-{:05}-of-{count:05}.gguf", number + 1);
    let Some(stem) = opened.name.strip_suffix(&ending(number)).map(String::from) else {
        let expected = format!("a name that ends in {}, as it is part {} of {count}", ending(number), number + 1);
        let (file, found) = (opened.blob.file().into(), format!("`{}`", brief(&opened.name)));
        return Err(Error::Malformed { file, what: "file name".into(), expected, found });
    };
    let names: Vec<String> = (0..count).map(|number| format!("{stem}{}", ending(number))).collect();
    let mut missing = Vec::new();
    let mut blobs = Vec::new();
    for (i, name) in names.iter().enumerate().filter(|(i, _)| *i != number) {
        match source.beside(name)? {
            Some(blob) => blobs.push((i, blob)),
            None => missing.push(name),
        }
    }
    if let Some(first) = missing.first() {
        let (file, what) = (opened.blob.file().into(), format!("part `{}`", brief(first)));
        let (expected, more) = (format!("the file beside it, as the checkpoint has {count}"), missing.len() - 1);
        return Err(Error::Missing { file, what, expected, more });
    }
    let mut parts = Vec::with_capacity(count);
    for (i, blob) in blobs {
        let part = Part::read(names[i].clone(), blob)?;
        let fields = part.fields();
        if fields.opt_usize("split.count", 0..=usize::MAX)? != Some(count) {
            return Err(fields.invalid("split.count", format!("{count}, as in {}", opened.blob.file())));
        }
        if self::number(&part, count)? != i {
            return Err(fields.invalid("split.no", format!("{i}, as its name says")));
        }
        parts.push(part);
    }
    parts.insert(number, opened);
    check_tensors(&parts)?;
    Ok(parts)
}

fn number(part: &Part, count: usize) -> Result<usize, Error> {
    let fields = part.fields();
    let number = fields.opt_usize("split.no", 0..=usize::MAX)?.filter(|&number| number < count);
    number.ok_or_else(|| fields.invalid("split.no", format!("a number below {count}, the number of parts")))
}

/// Every tensor is in one file, and all are there.
fn check_tensors(parts: &[Part]) -> Result<(), Error> {
    let mut names = BTreeSet::new();
    for part in parts {
        if let Some(info) = part.header.tensors.iter().find(|info| !names.insert(info.name.as_str())) {
            let (file, what) = (part.blob.file().into(), format!("tensor `{}`", brief(&info.name)));
            let found = "it in another part as well".into();
            return Err(Error::Malformed { file, what, expected: "it in one part".into(), found });
        }
    }
    for part in parts {
        let fields = part.fields();
        if fields.opt_usize("split.tensors.count", 0..=usize::MAX)?.is_some_and(|count| count != names.len()) {
            let expected = format!("{}, which all parts have together", names.len());
            return Err(fields.invalid("split.tensors.count", expected));
        }
    }
    Ok(())
}

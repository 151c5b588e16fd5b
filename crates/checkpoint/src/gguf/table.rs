//! The table of tensors, and where their data lie.

use super::names;
use super::reader::Reader;
use crate::Fields;
use crate::error::{Error, brief};
use crate::tensor::{Extent, TensorInfo};
use glimmer_encoding::Encoding;
use std::collections::BTreeSet;
use std::sync::Arc;

const MAX_NAME: u64 = 255;
const MAX_DIMS: u32 = 4;

/// Reads `count` entries, and checks that their data fill the rest of the file.
pub(super) fn read(
    reader: &mut Reader<'_>,
    count: u64,
    metadata: &Fields<'_>,
    file: Arc<str>,
) -> Result<Vec<TensorInfo>, Error> {
    let mut tensors = Vec::new();
    let mut names = BTreeSet::new();
    for i in 0..count {
        let name = reader.string(&format!("name of tensor {i}"), MAX_NAME)?;
        let what = format!("tensor `{}`", brief(&name));
        let tensor = entry(reader, name, &what, &file)?;
        if !names.insert(tensor.name.clone()) {
            return Err(reader.malformed(&what, "the name once".into(), "it again".into()));
        }
        tensors.push(tensor);
    }
    place(reader, &mut tensors, alignment(metadata)?)?;
    Ok(tensors)
}

fn alignment(metadata: &Fields<'_>) -> Result<u64, Error> {
    const KEY: &str = "general.alignment";
    match metadata.opt_usize(KEY, 0..=usize::MAX)?.unwrap_or(32) as u64 {
        alignment if alignment.is_power_of_two() && alignment <= 1 << 20 => Ok(alignment),
        _ => Err(metadata.invalid(KEY, "a power of two up to 1048576")),
    }
}

/// One tensor; its range is relative to the data yet.
fn entry(reader: &mut Reader<'_>, name: String, what: &str, file: &Arc<str>) -> Result<TensorInfo, Error> {
    let dims = reader.u32(what)?;
    if !(1..=MAX_DIMS).contains(&dims) {
        return Err(reader.malformed(what, format!("1 to {MAX_DIMS} dimensions"), dims.to_string()));
    }
    let mut shape = Vec::with_capacity(dims as usize);
    for _ in 0..dims {
        let dim = reader.u64(what)?;
        match usize::try_from(dim).ok().filter(|&dim| dim > 0) {
            Some(dim) => shape.push(dim),
            None => return Err(reader.malformed(what, "dimensions of at least 1".into(), dim.to_string())),
        }
    }
    // The fastest comes first in the file.
    shape.reverse();
    let encoding = encoding(reader, what)?;
    let offset = reader.u64(what)?;
    let cols = shape.last().copied().unwrap_or(1);
    if !cols.is_multiple_of(encoding.block()) {
        let expected = format!("rows of a multiple of {} elements of {encoding}", encoding.block());
        return Err(reader.malformed(what, expected, cols.to_string()));
    }
    let end = encoding.tensor_sizes(&shape).and_then(|sizes| offset.checked_add(sizes.codes as u64));
    let Some(end) = end.filter(|&end| end <= reader.len()) else {
        let expected = format!("data within the {} bytes of the file", reader.len());
        let found = format!("{encoding} of shape {shape:?} at {offset} (is the file cut off?)");
        return Err(reader.malformed(what, expected, found));
    };
    let codes = Extent { name: name.clone(), file: file.clone(), range: offset..end };
    Ok(TensorInfo::whole(name, encoding, shape, codes))
}

fn encoding(reader: &mut Reader<'_>, what: &str) -> Result<Encoding, Error> {
    let kind = reader.u32(what)?;
    names::encoding(kind).ok_or_else(|| match names::refused(kind) {
        Some(name) => Error::Unsupported {
            file: reader.file().into(),
            what: format!("{what}: weights of type {name} cannot be read"),
        },
        None => reader.malformed(what, "a known type of tensor".into(), format!("type {kind}")),
    })
}

/// Data begin behind the table, each tensor's where the one before it ends, all at multiples of `alignment`. Only what
/// that leaves free belongs to no tensor.
fn place(reader: &Reader<'_>, tensors: &mut [TensorInfo], alignment: u64) -> Result<(), Error> {
    // Both are at most the length of a file and 2^20.
    let aligned = |at: u64| at.div_ceil(alignment) * alignment;
    let data = aligned(reader.at());
    let mut order: Vec<&mut TensorInfo> = tensors.iter_mut().collect();
    order.sort_by_key(|tensor| (tensor.codes.range.start, tensor.codes.range.end));
    let (mut end, mut before) = (0, "the table".to_string());
    for tensor in order {
        let what = format!("tensor `{}`", brief(&tensor.name));
        let (begin, expected) = (tensor.codes.range.start, aligned(end));
        if begin != expected {
            let fault = match begin {
                begin if begin < end => "they overlap",
                begin if !begin.is_multiple_of(alignment) => "not aligned",
                _ => "no tensor has the bytes between",
            };
            let expected = format!("its data to begin at {expected}, behind {before}, at a multiple of {alignment}");
            return Err(reader.malformed(&what, expected, format!("{begin} ({fault})")));
        }
        end = tensor.codes.range.end;
        let left = reader.len().saturating_sub(data);
        if end > left {
            let expected = format!("at least {end} bytes of data in the file");
            return Err(reader.malformed(&what, expected, format!("{left} (is the file cut off?)")));
        }
        tensor.codes.range = data + begin..data + end;
        before = format!("`{}`", brief(&tensor.name));
    }
    let found = reader.len().saturating_sub(data);
    if found > aligned(end) {
        let (expected, found) = (format!("{end} bytes, where {before} ends"), found.to_string());
        return Err(reader.malformed("data", expected, found));
    }
    Ok(())
}

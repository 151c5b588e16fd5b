//! Matrices that are read piece by piece.

use crate::source::Blob;
use crate::{Error, Extent, TensorInfo};
use glimmer_encoding::{Encoding, MemoryRows, Parts, RowOrder, RowSource, Scratch, Sizes, WeightView};
use std::ops::Range;

/// The rows of a matrix of a checkpoint. What a converter changed about their order is undone as they are read.
///
/// Rows of a file on disk are read at offsets, so that any number of threads may read at once.
pub struct Rows<'a> {
    info: &'a TensorInfo,
    shape: [usize; 2],
    place: Place<'a>,
    mapped: bool,
    watch: Option<&'a (dyn Fn(u64) + Sync)>,
}

/// Where the rows are.
enum Place<'a> {
    /// In memory: in a mapped file, or in the binary.
    Memory(MemoryRows),
    /// In files: codes, scales and biases, and what every scale is multiplied with.
    Files { parts: [Option<(&'a Blob, &'a Extent)>; 3], global_scale: Option<f32> },
}

impl<'a> Rows<'a> {
    /// A matrix whose shape is `shape`. `blob` gives the file that an extent is in.
    pub(crate) fn new(
        info: &'a TensorInfo,
        shape: [usize; 2],
        blob: impl Fn(&Extent) -> Result<&'a Blob, Error>,
        watch: Option<&'a (dyn Fn(u64) + Sync)>,
    ) -> Result<Self, Error> {
        let global_scale = info.global_scale(|extent| blob(extent)?.read_at(extent.range.start, extent.byte_len()))?;
        let extents = [Some(&info.codes), info.scales.as_ref(), info.biases.as_ref()];
        let place = if blob(&info.codes)?.is_on_disk() {
            let [codes, scales, biases] = extents.map(|e| e.map(|e| Ok((blob(e)?, e))).transpose());
            let parts = [codes?, scales?, biases?];
            for (blob, extent) in parts.iter().flatten() {
                blob.ahead(ahead(extent, extent.range.start..extent.range.start + AHEAD));
            }
            Place::Files { parts, global_scale }
        } else {
            let shared = |extent: &Extent| blob(extent)?.shared(extent.range.clone());
            let [codes, scales, biases] = extents.map(|e| e.map_or(Ok(Vec::new().into()), shared));
            let (parts, order) = ([codes?, scales?, biases?], info.layout.order());
            let rows = MemoryRows::new(info.encoding, shape, order, parts, global_scale);
            Place::Memory(rows.expect("the lengths are checked at opening"))
        };
        Ok(Self { info, shape, place, mapped: blob(&info.codes)?.is_mapped(), watch })
    }
}

impl RowSource for Rows<'_> {
    type Error = Error;

    fn encoding(&self) -> Encoding {
        self.info.encoding
    }

    fn shape(&self) -> [usize; 2] {
        self.shape
    }

    fn name(&self) -> Option<&str> {
        Some(&self.info.name)
    }

    fn read<'a>(&'a self, rows: Range<usize>, scratch: &'a mut Scratch) -> Result<WeightView<'a>, Error> {
        let view = match &self.place {
            Place::Memory(all) => all.rows(rows, scratch),
            Place::Files { parts, global_scale } => self.read_files(parts, *global_scale, rows, scratch)?,
        };
        if let Some(watch) = self.watch {
            watch(view.parts().sizes().total() as u64);
        }
        Ok(view)
    }

    fn mapped(&self) -> Option<MemoryRows> {
        match &self.place {
            Place::Memory(rows) if self.mapped => Some(rows.clone()),
            _ => None,
        }
    }
}

impl Rows<'_> {
    fn read_files<'a>(
        &self,
        parts: &[Option<(&Blob, &Extent)>; 3],
        global_scale: Option<f32>,
        rows: Range<usize>,
        scratch: &'a mut Scratch,
    ) -> Result<WeightView<'a>, Error> {
        assert!(rows.start <= rows.end && rows.end <= self.shape[0], "rows {rows:?} of {}", self.shape[0]);
        let (encoding, order) = (self.info.encoding, self.info.layout.order());
        let Sizes { codes, scales, biases } = encoding.sizes(self.shape[1]).unwrap_or_default();
        scratch.shape = [rows.len(), self.shape[1]];
        let buffers = [&mut scratch.codes, &mut scratch.scales, &mut scratch.biases];
        for ((part, len), to) in parts.iter().zip([codes, scales, biases]).zip(buffers) {
            to.resize(len * rows.len(), 0);
            if let Some((blob, extent)) = part {
                read_part(blob, extent, len, &rows, order, to)?;
            }
        }
        let Scratch { shape, codes, scales, biases } = scratch;
        let parts = Parts { codes, scales, biases, global_scale };
        Ok(WeightView::new(encoding, shape, parts).expect("the lengths are checked at opening"))
    }
}

impl Drop for Rows<'_> {
    fn drop(&mut self) {
        if let Place::Files { parts, .. } = &self.place {
            parts.iter().flatten().for_each(|(blob, extent)| blob.done(extent.range.clone()));
        }
    }
}

/// Bytes that a disk is to read ahead of the threads.
const AHEAD: u64 = 8 << 20;

/// What there is of a range of a file in an extent.
fn ahead(extent: &Extent, range: Range<u64>) -> Range<u64> {
    range.start.min(extent.range.end)..range.end.min(extent.range.end)
}

/// Reads rows of `len` bytes.
fn read_part(
    blob: &Blob,
    extent: &Extent,
    len: usize,
    rows: &Range<usize>,
    order: RowOrder,
    to: &mut [u8],
) -> Result<(), Error> {
    // Within the extent, as its length was checked at opening.
    let at = |row: usize| extent.range.start + (row * len) as u64;
    match order {
        RowOrder::Ascending => blob.read_into(at(rows.start), to)?,
        // A piece may end within a head, whose rows are spread over all of it.
        RowOrder::Interleaved { .. } => {
            let rows = rows.clone().map(|row| order.stored(row));
            to.chunks_exact_mut(len.max(1)).zip(rows).try_for_each(|(to, row)| blob.read_into(at(row), to))?;
        }
    }
    blob.ahead(ahead(extent, at(rows.start) + AHEAD..at(rows.end) + AHEAD));
    Ok(())
}

//! Weight matrices that are taken over piece by piece, a range of rows at a time.

use crate::{Encoding, Parts, Sizes, ViewError, WeightView};
use std::convert::Infallible;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A weight matrix whose rows can be read in any order, from several threads at once.
pub trait RowSource: Sync {
    /// Why rows cannot be read.
    type Error: Send;

    /// How the numbers are stored.
    fn encoding(&self) -> Encoding;
    /// Rows and columns.
    fn shape(&self) -> [usize; 2];
    /// What it is called, where it has a name.
    fn name(&self) -> Option<&str> {
        None
    }
    /// Some of the rows: where they are, if they are in memory, else in `scratch`.
    ///
    /// # Panics
    /// If there are not that many rows.
    fn read<'a>(&'a self, rows: Range<usize>, scratch: &'a mut Scratch) -> Result<WeightView<'a>, Self::Error>;
    /// All rows where they are, if they are to stay there and not to be copied.
    fn mapped(&self) -> Option<MemoryRows> {
        None
    }
}

/// Memory for the rows of one piece, to be used again for the next.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Rows and columns of the piece.
    pub shape: [usize; 2],
    /// As [`Parts::codes`].
    pub codes: Vec<u8>,
    /// As [`Parts::scales`].
    pub scales: Vec<u8>,
    /// As [`Parts::biases`].
    pub biases: Vec<u8>,
}

/// In which order the rows of a matrix are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowOrder {
    /// In their own.
    #[default]
    Ascending,
    /// The rows of each head of `head_dim` alternate between its first and its second half.
    Interleaved {
        /// Rows of a head, an even number.
        head_dim: usize,
    },
}

impl RowOrder {
    /// Where row `row` is among the stored ones: row j * head_dim / 2 + i of a head is its row 2 i + j there.
    pub fn stored(self, row: usize) -> usize {
        match self {
            RowOrder::Ascending => row,
            RowOrder::Interleaved { head_dim } => {
                let (head, row, half) = (row / head_dim, row % head_dim, head_dim / 2);
                head * head_dim + row % half * 2 + row / half
            }
        }
    }

    /// Which row is stored as row `stored`: the inverse of [`stored`](Self::stored).
    pub fn row(self, stored: usize) -> usize {
        match self {
            RowOrder::Ascending => stored,
            RowOrder::Interleaved { head_dim } => {
                let (head, at, half) = (stored / head_dim, stored % head_dim, head_dim / 2);
                head * head_dim + at % 2 * half + at / 2
            }
        }
    }
}

/// A range of bytes that many can share: of a buffer, or of a mapped file.
#[derive(Clone)]
pub struct SharedBytes {
    memory: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl SharedBytes {
    /// The bytes `range` of `memory`; `None` where it does not have them.
    pub fn new(memory: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Option<Self> {
        (*memory).as_ref().get(range.clone())?;
        Some(Self { memory, range })
    }

    fn bytes(&self) -> &[u8] {
        &(*self.memory).as_ref()[self.range.clone()]
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { memory: Arc::new(bytes), range }
    }
}

/// A weight matrix in memory, as stored. Cheap to clone.
#[derive(Clone)]
pub struct MemoryRows {
    encoding: Encoding,
    shape: [usize; 2],
    order: RowOrder,
    row: Sizes,
    codes: SharedBytes,
    scales: SharedBytes,
    biases: SharedBytes,
    global_scale: Option<f32>,
}

impl MemoryRows {
    /// A matrix whose `parts` are codes, scales and biases; those that its encoding does not keep apart are empty.
    pub fn new(
        encoding: Encoding,
        shape: [usize; 2],
        order: RowOrder,
        parts: [SharedBytes; 3],
        global_scale: Option<f32>,
    ) -> Result<Self, ViewError> {
        let [codes, scales, biases] = parts;
        let bytes = Parts { codes: codes.bytes(), scales: scales.bytes(), biases: biases.bytes(), global_scale };
        WeightView::new(encoding, &shape, bytes)?;
        let row = encoding.sizes(shape[1]).unwrap_or_default();
        Ok(Self { encoding, shape, order, row, codes, scales, biases, global_scale })
    }

    /// As [`RowSource::read`], which cannot fail here.
    pub fn rows<'a>(&'a self, rows: Range<usize>, scratch: &'a mut Scratch) -> WeightView<'a> {
        let Self { encoding, order, row, global_scale, .. } = *self;
        scratch.shape = [rows.len(), self.shape[1]];
        let Scratch { shape, codes, scales, biases } = scratch;
        let parts = Parts {
            codes: gather(self.codes.bytes(), row.codes, rows.clone(), order, codes),
            scales: gather(self.scales.bytes(), row.scales, rows.clone(), order, scales),
            biases: gather(self.biases.bytes(), row.biases, rows, order, biases),
            global_scale,
        };
        WeightView::new(encoding, shape, parts).expect("the lengths were checked when it was made")
    }
}

/// Rows of `len` bytes in their own order: as they lie, if that is how they are stored, else copied to `to`.
fn gather<'a>(bytes: &'a [u8], len: usize, rows: Range<usize>, order: RowOrder, to: &'a mut Vec<u8>) -> &'a [u8] {
    if order == RowOrder::Ascending {
        return &bytes[rows.start * len..rows.end * len];
    }
    to.clear();
    for row in rows.map(|row| order.stored(row)) {
        to.extend_from_slice(&bytes[row * len..(row + 1) * len]);
    }
    to
}

impl RowSource for MemoryRows {
    type Error = Infallible;

    fn encoding(&self) -> Encoding {
        self.encoding
    }

    fn shape(&self) -> [usize; 2] {
        self.shape
    }

    fn read<'a>(&'a self, rows: Range<usize>, scratch: &'a mut Scratch) -> Result<WeightView<'a>, Infallible> {
        Ok(self.rows(rows, scratch))
    }
}

impl fmt::Debug for MemoryRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryRows({} {:?})", self.encoding, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FloatType;

    #[test]
    fn interleaved_rows_are_found() {
        // Two heads of six rows of two bytes, numbered in their own order.
        let stored: Vec<u8> = [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11].iter().flat_map(|&r| [r, 100 + r]).collect();
        let order = RowOrder::Interleaved { head_dim: 6 };
        let parts = || [stored.clone(), Vec::new(), Vec::new()].map(SharedBytes::from);
        let encoding = Encoding::Dense(FloatType::F16);
        assert!((0..12).all(|row| order.row(order.stored(row)) == row));
        let rows = MemoryRows::new(encoding, [12, 1], order, parts(), None).unwrap();
        let mut scratch = Scratch::default();
        for range in [0..12, 2..9, 5..6, 12..12] {
            let expected: Vec<u8> = range.clone().flat_map(|r| [r as u8, 100 + r as u8]).collect();
            let view = rows.rows(range.clone(), &mut scratch);
            assert_eq!((view.rows(), view.cols(), view.parts().codes), (range.len(), 1, &*expected));
        }
        assert!(MemoryRows::new(encoding, [12, 2], order, parts(), None).is_err());
    }

    #[test]
    fn shared_bytes_are_within_their_memory() {
        let memory = Arc::new(vec![1, 2, 3]);
        assert_eq!(SharedBytes::new(memory.clone(), 1..3).unwrap().bytes(), [2, 3]);
        assert!(SharedBytes::new(memory.clone(), 1..4).is_none());
        #[expect(clippy::reversed_empty_ranges, reason = "what is wrong with it")]
        let backwards = 3..1;
        assert!(SharedBytes::new(memory, backwards).is_none());
    }
}

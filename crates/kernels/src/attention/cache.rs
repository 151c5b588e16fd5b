//! How keys and values lie in memory, and how they are stored there.
//!
//! A cache is a sequence of pages of [`CHUNK`] positions, whose borders are those of chunks. In a page both lie in blocks of sixteen positions. A
//! block of keys has a lane for each position, so that a score needs no sum across lanes; a block of values has a row for each, so
//! that a weight is multiplied with a part of a row.

use super::{Ahead, BLOCKS, CHUNK, Rounded};
use crate::dispatch::Kernels;
use crate::lanes::{BF16, Element, F16, F32, LANES};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// How a page lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Key and value heads.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

/// The keys and values of one page.
#[derive(Clone, Copy, Debug)]
pub struct KvPage<'a> {
    /// As [`KvLayout::key_len`] says.
    pub keys: KvData<'a>,
    /// As [`KvLayout::value_len`] says.
    pub values: KvData<'a>,
}

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Keys,
    Values,
}

impl KvLayout {
    /// Elements of the keys of a page: (heads, 16, head_dim, 16).
    pub fn key_len(&self) -> usize {
        self.heads * CHUNK * self.row_len(Side::Keys)
    }

    /// Elements of the values of a page: (heads, 256, head_dim rounded up to 16).
    pub fn value_len(&self) -> usize {
        self.heads * CHUNK * self.row_len(Side::Values)
    }

    /// Scales of the keys or of the values of a page that are stored in 8 bits: (heads, 256).
    pub fn scale_len(&self) -> usize {
        self.heads * CHUNK
    }

    pub(super) fn value_stride(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Elements that a head has at a position, padding included.
    pub(super) fn row_len(&self, side: Side) -> usize {
        match side {
            Side::Keys => self.head_dim,
            Side::Values => self.value_stride(),
        }
    }

    /// Positions of a page, counted from its first, in pieces of up to [`BLOCKS`] whole blocks.
    pub(super) fn runs(self, side: Side, head: usize, positions: Range<usize>) -> impl Iterator<Item = Run> {
        const BLOCKS_OF_PAGE: usize = CHUNK / LANES;
        let end = positions.end.div_ceil(LANES);
        (positions.start / LANES..end).step_by(BLOCKS).map(move |block| {
            let start = head * BLOCKS_OF_PAGE + block;
            let stored = start..start + BLOCKS.min(end - block);
            Run { side, block, stored, block_len: LANES * self.row_len(side) }
        })
    }
}

/// Blocks that lie together.
#[derive(Debug)]
pub(super) struct Run {
    pub side: Side,
    /// The first block, counted from the first of the page.
    pub block: usize,
    /// The same blocks, counted over all that the page has.
    stored: Range<usize>,
    /// Elements of a block.
    block_len: usize,
}

impl Run {
    /// The positions, counted from the first of the page.
    pub fn positions(&self) -> Range<usize> {
        self.block * LANES..(self.block + self.stored.len()) * LANES
    }

    fn elements(&self) -> Range<usize> {
        self.stored.start * self.block_len..self.stored.end * self.block_len
    }

    fn scales(&self) -> Range<usize> {
        self.stored.start * LANES..self.stored.end * LANES
    }
}

/// How keys and values are stored. A row attends to them as stored, its own included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// bfloat16.
    BF16,
    /// 8-bit integers with one f32 scale, max |x| / 127, for each head and position.
    Q8,
}

impl KvType {
    /// All of them.
    pub const ALL: [KvType; 4] = [KvType::F32, KvType::F16, KvType::BF16, KvType::Q8];

    /// Bytes of one head of `head_dim` elements at one position.
    pub fn head_bytes(self, head_dim: usize) -> usize {
        match self {
            KvType::F32 => 4 * head_dim,
            KvType::F16 | KvType::BF16 => 2 * head_dim,
            KvType::Q8 => head_dim + size_of::<f32>(),
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::BF16 => "bf16",
            KvType::Q8 => "q8",
        })
    }
}

impl FromStr for KvType {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.map(|kind| kind.to_string());
        match Self::ALL.into_iter().zip(&known).find(|(_, known)| *known == name) {
            Some((kind, _)) => Ok(kind),
            // Near enough to be taken for the same, and other numbers.
            None if name == "q8_0" => {
                Err("unknown cache type `q8_0` (`q8` has 8 bits too, and one scale per head)".into())
            }
            None => Err(format!("unknown cache type `{name}` (known: {})", known.join(", "))),
        }
    }
}

/// Keys or values, in the type they are stored as.
#[derive(Clone, Copy, Debug)]
pub enum KvData<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// 16-bit floats, as bits.
    F16(&'a [u16]),
    /// bfloat16, as bits.
    BF16(&'a [u16]),
    /// 8-bit codes in -127..=127 and, for every head and slot, what they are multiplied by: max |x| / 127. What is not
    /// finite makes the scale NaN, so that attention shows it.
    Q8 {
        /// Laid out as elements are.
        codes: &'a [i8],
        /// As [`KvLayout::scale_len`] says.
        scales: &'a [f32],
    },
}

/// Keys or values to be written.
#[derive(Debug)]
pub enum KvDataMut<'a> {
    /// As in [`KvData`].
    F32(&'a mut [f32]),
    /// As in [`KvData`].
    F16(&'a mut [u16]),
    /// As in [`KvData`].
    BF16(&'a mut [u16]),
    /// As in [`KvData`].
    Q8 {
        /// As in [`KvData`].
        codes: &'a mut [i8],
        /// As in [`KvData`].
        scales: &'a mut [f32],
    },
}

impl<'a> KvPage<'a> {
    pub(super) fn data(&self, side: Side) -> KvData<'a> {
        match side {
            Side::Keys => self.keys,
            Side::Values => self.values,
        }
    }
}

impl<'a> KvData<'a> {
    /// Asserts that there is as much as the layout says.
    pub(super) fn check(&self, layout: KvLayout, side: Side) {
        let (len, scales) = match self {
            KvData::F32(data) => (data.len(), layout.scale_len()),
            KvData::F16(data) | KvData::BF16(data) => (data.len(), layout.scale_len()),
            KvData::Q8 { codes, scales } => (codes.len(), scales.len()),
        };
        let expected = layout.heads * CHUNK * layout.row_len(side);
        assert!(len == expected && scales == layout.scale_len(), "{side:?}: {len} elements, {scales} scales");
    }

    /// A run as f32: in `to`, or where it is.
    pub(super) fn widen<'s>(self, kernels: &Kernels, run: &Run, to: &'s mut [f32]) -> &'s [f32]
    where
        'a: 's,
    {
        let elements = run.elements();
        let to = &mut to[..elements.len()];
        match self {
            KvData::F32(data) => return &data[elements],
            KvData::F16(data) => kernels.widen_f16(&data[elements], to),
            KvData::BF16(data) => kernels.widen_bf16(&data[elements], to),
            KvData::Q8 { codes, scales } => {
                let (codes, scales) = (&codes[elements], &scales[run.scales()]);
                kernels.widen_q8(&Rounded { codes, scales, by_lane: run.side == Side::Keys }, to);
            }
        }
        to
    }

    /// Where a run is.
    pub(super) fn ahead(self, run: &Run) -> Ahead {
        match self {
            KvData::F32(data) => Ahead::of(&data[run.elements()]),
            KvData::F16(data) | KvData::BF16(data) => Ahead::of(&data[run.elements()]),
            KvData::Q8 { codes, .. } => Ahead::of(&codes[run.elements()]),
        }
    }
}

/// Stores rows of keys (rows, heads * head_dim) from position `at` of a page on, each element rounded to the stored type, to the nearest and ties to
/// even. 8-bit codes are x (127 / max) for the head and position's own max |x|.
///
/// # Panics
/// If the lengths do not belong together, or the page has not so many rows.
pub fn store_keys(layout: KvLayout, keys: KvDataMut<'_>, at: usize, k: &[f32]) {
    store(layout, Side::Keys, keys, at, k);
}

/// Stores rows of values (rows, heads * head_dim) as [`store_keys`] stores keys.
///
/// # Panics
/// If the lengths do not belong together, or the page has not so many rows.
pub fn store_values(layout: KvLayout, values: KvDataMut<'_>, at: usize, v: &[f32]) {
    store(layout, Side::Values, values, at, v);
}

fn store(layout: KvLayout, side: Side, to: KvDataMut<'_>, at: usize, x: &[f32]) {
    let place = Place { layout, side, at };
    match to {
        KvDataMut::F32(to) => place.narrow::<F32>(to, x),
        KvDataMut::F16(to) => place.narrow::<F16>(to, x),
        KvDataMut::BF16(to) => place.narrow::<BF16>(to, x),
        KvDataMut::Q8 { codes, scales } => {
            assert_eq!(scales.len(), layout.scale_len());
            place.write(codes, x, |slot, x, put| {
                let max = x.iter().fold(0f32, |max, x| if x.abs() > max { x.abs() } else { max });
                let finite = x.iter().all(|x| x.is_finite());
                scales[slot] = if finite { max / 127.0 } else { f32::NAN };
                // A head of zeros, or of nothing that 8 bits could tell from zero, becomes zeros.
                let inverse = Some(127.0 / max).filter(|i| finite && i.is_finite()).unwrap_or(0.0);
                for (d, x) in x.iter().enumerate() {
                    put(d, if inverse == 0.0 { 0 } else { (x * inverse).round_ties_even().clamp(-127.0, 127.0) as i8 });
                }
            });
        }
    }
}

/// Where rows are stored.
struct Place {
    layout: KvLayout,
    side: Side,
    at: usize,
}

impl Place {
    fn narrow<E: Element>(&self, to: &mut [E::Bits], x: &[f32]) {
        self.write(to, x, |_, x, put| {
            for (d, &x) in x.iter().enumerate() {
                put(d, E::narrow(x));
            }
        });
    }

    /// Calls `head` with the index of the head's slot, its elements, and what puts an element of it where it belongs.
    fn write<T>(&self, to: &mut [T], x: &[f32], mut head: impl FnMut(usize, &[f32], &mut dyn FnMut(usize, T))) {
        let KvLayout { heads, head_dim } = self.layout;
        let row_len = self.layout.row_len(self.side);
        assert!(x.len().is_multiple_of(heads * head_dim) && to.len() == heads * CHUNK * row_len);
        assert!(self.at + x.len() / (heads * head_dim) <= CHUNK, "rows of one page");
        for (row, x) in x.chunks_exact(heads * head_dim).enumerate() {
            let slot = self.at + row;
            for (index, x) in x.chunks_exact(head_dim).enumerate() {
                let slot = index * CHUNK + slot;
                let block = (slot - slot % LANES) * row_len;
                let (start, step) = match self.side {
                    Side::Keys => (block + slot % LANES, LANES),
                    Side::Values => (block + slot % LANES * row_len, 1),
                };
                head(slot, x, &mut |d, element| to[start + d * step] = element);
            }
        }
    }
}

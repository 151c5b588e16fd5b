//! How packed weights lie in memory.
//!
//! A matrix is a sequence of tiles of sixteen output rows (the last one padded with zeros), a tile a sequence of blocks of 256
//! inputs, and a block is a header of scales followed by lines of codes, so that a product reads memory once and in order.
//!
//! A line of 64 bytes has eight slots of eight bytes: eight inputs of one row each. Lines come in pairs, one for half the
//! rows of the tile each ([`slot_of`]), so that the two halves, multiplied by the same eight activations, interleave into the
//! sixteen rows in order. 4-bit codes share a line: the first half's in the low nibbles, the second half's in the high
//! ones. Further bits lie in lines behind the nibbles of each 32 inputs, those of eight lines, or of four where they are pairs, at the next bits of a byte. Scales stay in
//! the bits that the file has them in, but for those of scattered bits, which become bytes.

use super::tile::{LINE, TILE_ROWS};
use glimmer_encoding::{Encoding, FloatType, GgmlType};

/// Inputs of a block.
pub const BLOCK: usize = 256;
/// Inputs whose codes lie together.
const TOGETHER: usize = 32;

/// How the codes of a block lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    /// Pairs of bits.
    Two,
    /// The same, and lines of single bits, the third.
    Three,
    /// Nibbles.
    Four,
    /// Nibbles, and lines of single bits, the fifth.
    Five,
    /// Nibbles, and lines of pairs of bits, the fifth and sixth.
    Six,
    /// Bytes.
    Eight,
    /// Places in a table.
    Book(Book),
}

/// The tables that codes may be places in. What is read are its values, less the smallest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Book {
    /// Nibbles that are small floats.
    E2M1,
    /// Nibbles of iq4_nl and iq4_xs.
    Iq4,
    /// Nibbles of iq3_xxs.
    Iq3Xxs,
    /// Nibbles of iq3_s.
    Iq3S,
    /// Three bits of iq2_xxs, iq2_xs and iq2_s.
    Iq2,
    /// Three bits of iq1_s and iq1_m.
    Iq1,
}

impl Codes {
    /// Bits that a code is stored in.
    pub(super) const fn bits(self) -> usize {
        match self {
            Codes::Two => 2,
            Codes::Three | Codes::Book(Book::Iq2 | Book::Iq1) => 3,
            Codes::Four | Codes::Book(_) => 4,
            Codes::Five => 5,
            Codes::Six => 6,
            Codes::Eight => 8,
        }
    }

    /// Bytes of the codes of a block of a tile.
    pub(super) const fn bytes(self) -> usize {
        BLOCK * TILE_ROWS / 8 * self.bits()
    }
}

/// What belongs to a group of inputs beside its codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// w = scale * code + bias, both f16.
    BiasedF16,
    /// w = scale * code + bias, both bf16.
    BiasedBF16,
    /// w = scale * (code - centre), f16.
    F16 {
        /// What a code is relative to.
        centre: u8,
    },
    /// w = scale * value, f16.
    BookF16,
    /// w = scale * value, the scale a power of two.
    E8M0,
    /// w = scale * value, the scale an 8-bit float.
    E4M3,
}

impl Scale {
    /// Bytes for one row and group.
    pub(super) const fn bytes(self) -> usize {
        match self {
            Scale::BiasedF16 | Scale::BiasedBF16 => 4,
            Scale::F16 { .. } | Scale::BookF16 => 2,
            Scale::E8M0 | Scale::E4M3 => 1,
        }
    }
}

/// The packed layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Per 256 inputs f16 scales for scales and mins, per 32 a 6-bit scale and a 6-bit min.
    KQuant(Codes),
    /// 2-bit codes; per 256 inputs f16 scales for scales and mins, per 16 a 4-bit scale and a 4-bit min.
    Q2K,
    /// 3-bit codes minus 4; per 256 inputs an f16 scale, per 16 a signed 8-bit scale.
    Q3K,
    /// 6-bit codes minus 32; per 256 inputs an f16 scale, per 16 a signed 8-bit scale.
    Q6K,
    /// Values of a table; per 256 inputs an f16 scale, per 16 an 8-bit scale plus 128.
    Book(Book),
    /// Per group of inputs a scale of its own.
    Grouped {
        /// How the codes lie.
        codes: Codes,
        /// Inputs of a group: 16, 32, 64 or 128.
        group: usize,
        /// Scale and bias.
        scale: Scale,
    },
}

/// d, dmin (f16 each), and three words of packed 6-bit scales and mins per row.
pub(super) const K_HEADER: usize = 2 * 2 * TILE_ROWS + 3 * LINE;
/// d and dmin (f16 each, the latter of q2_k only), and four words of the scales of sixteenths per row.
pub(super) const SIXTEENTHS: usize = 5 * LINE;

impl Kind {
    /// The layout of an encoding, where there is one.
    pub fn of(encoding: Encoding) -> Option<Self> {
        let grouped = |codes, group: usize, scale| Some(Kind::Grouped { codes, group, scale });
        match encoding {
            Encoding::Ggml(kind) => Some(Self::of_ggml(kind)),
            Encoding::MxFp4 => grouped(Codes::Book(Book::E2M1), 32, Scale::E8M0),
            Encoding::NvFp4 => grouped(Codes::Book(Book::E2M1), 16, Scale::E4M3),
            Encoding::Affine { bits, group, scale } => {
                let codes = match bits {
                    2 => Codes::Two,
                    3 => Codes::Three,
                    4 => Codes::Four,
                    5 => Codes::Five,
                    6 => Codes::Six,
                    8 => Codes::Eight,
                    _ => return None,
                };
                match scale {
                    FloatType::F16 => grouped(codes, group.into(), Scale::BiasedF16),
                    FloatType::BF16 => grouped(codes, group.into(), Scale::BiasedBF16),
                    FloatType::F32 => None,
                }
            }
            Encoding::MxFp8 | Encoding::Dense(_) => None,
        }
    }

    fn of_ggml(kind: GgmlType) -> Self {
        let grouped = |codes, group, scale| Kind::Grouped { codes, group, scale };
        match kind {
            GgmlType::Q4_0 => grouped(Codes::Four, 32, Scale::F16 { centre: 8 }),
            GgmlType::Q4_1 => grouped(Codes::Four, 32, Scale::BiasedF16),
            GgmlType::Q5_0 => grouped(Codes::Five, 32, Scale::F16 { centre: 16 }),
            GgmlType::Q5_1 => grouped(Codes::Five, 32, Scale::BiasedF16),
            GgmlType::Q8_0 => grouped(Codes::Eight, 32, Scale::F16 { centre: 128 }),
            GgmlType::Q2K => Kind::Q2K,
            GgmlType::Q3K => Kind::Q3K,
            GgmlType::Q4K => Kind::KQuant(Codes::Four),
            GgmlType::Q5K => Kind::KQuant(Codes::Five),
            GgmlType::Q6K => Kind::Q6K,
            GgmlType::Iq1S | GgmlType::Iq1M => Kind::Book(Book::Iq1),
            GgmlType::Iq2Xxs | GgmlType::Iq2Xs | GgmlType::Iq2S => Kind::Book(Book::Iq2),
            GgmlType::Iq3Xxs => Kind::Book(Book::Iq3Xxs),
            GgmlType::Iq3S => Kind::Book(Book::Iq3S),
            GgmlType::Iq4Nl => grouped(Codes::Book(Book::Iq4), 32, Scale::BookF16),
            GgmlType::Iq4Xs => Kind::Book(Book::Iq4),
            GgmlType::Tq1_0 | GgmlType::Tq2_0 => grouped(Codes::Two, 128, Scale::F16 { centre: 1 }),
            GgmlType::MxFp4 => grouped(Codes::Book(Book::E2M1), 32, Scale::E8M0),
            GgmlType::NvFp4 => grouped(Codes::Book(Book::E2M1), 16, Scale::E4M3),
        }
    }

    /// Bytes of scales at the beginning of a block.
    pub(super) const fn header(self) -> usize {
        match self {
            Kind::KQuant(_) => K_HEADER,
            Kind::Q2K | Kind::Q3K | Kind::Q6K | Kind::Book(_) => SIXTEENTHS,
            Kind::Grouped { group, scale, .. } => BLOCK / group * scale.bytes() * TILE_ROWS,
        }
    }

    /// How the codes of a block lie.
    pub(super) const fn codes(self) -> Codes {
        match self {
            Kind::KQuant(codes) | Kind::Grouped { codes, .. } => codes,
            Kind::Q2K => Codes::Two,
            Kind::Q3K => Codes::Three,
            Kind::Q6K => Codes::Six,
            Kind::Book(book) => Codes::Book(book),
        }
    }

    /// Whether scales are brain floats.
    pub(super) const fn brain(self) -> bool {
        matches!(self, Kind::Grouped { scale: Scale::BiasedBF16, .. })
    }

    /// Whether a block is read line by line: of others a long row of scales is read beside the codes, each when it is needed.
    pub(super) const fn in_order(self) -> bool {
        !matches!(self, Kind::Grouped { group: ..=32, scale: Scale::BiasedF16 | Scale::BiasedBF16, .. })
    }

    /// Bytes of a block.
    pub(super) const fn block_bytes(self) -> usize {
        self.header() + self.codes().bytes()
    }
}

/// Where the codes of a row of a tile lie: its slot, and 0 or 1 for the half.
pub const fn slot_of(row: usize) -> (usize, usize) {
    (row / 4 * 2 + row % 2, row / 2 % 2)
}

/// Puts the codes of one row of a block, which were zero, into their place.
pub(super) fn put_codes(codes: Codes, area: &mut [u8], row: usize, values: &[u8; BLOCK]) {
    let (slot, half) = slot_of(row);
    let areas = area.chunks_exact_mut(TOGETHER * TILE_ROWS / 8 * codes.bits());
    for (area, values) in areas.zip(values.as_chunks::<TOGETHER>().0) {
        for (group, values) in values.as_chunks::<8>().0.iter().enumerate() {
            // Eight codes of a byte each; no shift below moves a code out of its byte.
            let values = u64::from_le_bytes(*values);
            let line = 2 * group + half;
            let mut or = |line: usize, bits: u64| {
                if let Some(to) = area[line * LINE + 8 * slot..].first_chunk_mut::<8>() {
                    *to = (u64::from_le_bytes(*to) | bits).to_le_bytes();
                }
            };
            let low = |bits: u32| u64::from_le_bytes([(1 << bits) - 1; 8]);
            let nibbles = (values & low(4)) << (4 * half);
            let pairs = |of: u64| (of & low(2)) << (2 * (line % 4));
            let ones = |of: u64| (of & low(1)) << line;
            match codes.bits() {
                4 => or(group, nibbles),
                5 => {
                    or(group, nibbles);
                    or(4, ones(values >> 4));
                }
                6 => {
                    or(group, nibbles);
                    or(4 + line / 4, pairs(values >> 4));
                }
                8 => or(line, values),
                bits => {
                    or(line / 4, pairs(values));
                    if bits == 3 {
                        or(2, ones(values >> 2));
                    }
                }
            }
        }
    }
}

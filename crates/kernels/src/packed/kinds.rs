//! Which kernels a layout is multiplied by: the one place that knows.

use super::layout::{Book, Codes, Kind, Scale};
use super::read::{E2M1, Iq1, Iq2, Iq3S, Iq3Xxs, Iq4, Looked, Q2, Q3, Values};
use super::read::{Eight, Five, Four, Read, Six, Three, Two};
use super::scales::{Biased, F16Centred, Factors, Group, Minifloats, Powers};

/// A product, by each of the ways that blocks are made of: R reads codes.
pub(super) trait ByKind: Sized {
    /// Six-bit scales and mins for each 32 inputs.
    fn k_quant<R: Read>(self);
    /// Scales for each 16 inputs, and MINS.
    fn sixteenths<R: Read, const MINS: bool>(self);
    /// Groups that have float scales of their own.
    fn grouped<R: Read, G: Group>(self);
}

/// The product in the way that a layout has.
#[inline(always)]
pub(super) fn by_kind(kind: Kind, product: impl ByKind) {
    match kind {
        Kind::KQuant(Codes::Five) => product.k_quant::<Five>(),
        Kind::KQuant(_) => product.k_quant::<Four>(),
        Kind::Q2K => product.sixteenths::<Looked<Two, Q2>, true>(),
        Kind::Q3K => product.sixteenths::<Looked<Three, Q3>, false>(),
        Kind::Q6K => product.sixteenths::<Six, false>(),
        Kind::Book(Book::Iq1) => product.grouped::<Looked<Three, Iq1>, Factors<Iq1>>(),
        Kind::Book(Book::Iq2) => product.grouped::<Looked<Three, Iq2>, Factors<Iq2>>(),
        Kind::Book(Book::Iq3Xxs) => product.grouped::<Looked<Four, Iq3Xxs>, Factors<Iq3Xxs>>(),
        Kind::Book(Book::Iq3S) => product.grouped::<Looked<Four, Iq3S>, Factors<Iq3S>>(),
        Kind::Book(Book::Iq4 | Book::E2M1) => product.grouped::<Looked<Four, Iq4>, Factors<Iq4>>(),
        Kind::Grouped { codes, group, scale } => match (scale, group) {
            (Scale::F16 { .. }, _) => match codes {
                Codes::Two => product.grouped::<Two, F16Centred<128, 1>>(),
                Codes::Five => product.grouped::<Five, F16Centred<32, 16>>(),
                Codes::Eight => product.grouped::<Eight, F16Centred<32, 128>>(),
                _ => product.grouped::<Four, F16Centred<32, 8>>(),
            },
            (Scale::BookF16, _) => product.grouped::<Looked<Four, Iq4>, F16Centred<32, { Iq4::CENTRE }>>(),
            (Scale::E8M0, _) => product.grouped::<Looked<Four, E2M1>, Powers>(),
            (Scale::E4M3, _) => product.grouped::<Looked<Four, E2M1>, Minifloats>(),
            (Scale::BiasedF16 | Scale::BiasedBF16, 32) => affine::<Biased<32>>(codes, product),
            (Scale::BiasedF16 | Scale::BiasedBF16, 64) => affine::<Biased<64>>(codes, product),
            (Scale::BiasedF16 | Scale::BiasedBF16, _) => affine::<Biased<128>>(codes, product),
        },
    }
}

#[inline(always)]
fn affine<G: Group>(codes: Codes, product: impl ByKind) {
    match codes {
        Codes::Two => product.grouped::<Two, G>(),
        Codes::Three => product.grouped::<Three, G>(),
        Codes::Five => product.grouped::<Five, G>(),
        Codes::Six => product.grouped::<Six, G>(),
        Codes::Eight => product.grouped::<Eight, G>(),
        Codes::Four | Codes::Book(_) => product.grouped::<Four, G>(),
    }
}

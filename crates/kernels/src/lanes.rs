//! Sixteen virtual f32 lanes: the vocabulary that float kernels are written in, once.
//!
//! Each instruction set implements [`Lanes`] with as many registers as sixteen lanes take. Every operation is
//! elementwise and correctly rounded by IEEE 754, and the two reductions have one written order, so a kernel over `Lanes`
//! gives the same bits on every instruction set.

use half::{bf16, f16};

/// How many f32 values a vector holds.
pub const LANES: usize = 16;

/// The operations of one instruction set. A value of the type is the proof that the machine has it.
pub trait Lanes: Copy + Send + Sync + 'static {
    /// Sixteen f32.
    type V: Copy;

    /// About how many accumulators of this type fit the registers beside operands; shapes the blocks of matrix products.
    const ACCUMULATORS: usize;

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::V;
    /// Reads sixteen f32.
    fn load(self, from: &[f32; LANES]) -> Self::V;
    /// Reads sixteen bf16, widened exactly.
    fn load_bf16(self, from: &[u16; LANES]) -> Self::V;
    /// Reads sixteen pairs of bf16, widened exactly: the first of each, and the second.
    fn load_bf16_pairs(self, from: &[u16; 2 * LANES]) -> [Self::V; 2];
    /// Reads sixteen f16, widened exactly.
    fn load_f16(self, from: &[u16; LANES]) -> Self::V;
    /// Reads sixteen 8-bit integers.
    fn load_i8(self, from: &[i8; LANES]) -> Self::V;
    /// Asks for the cache line at `at`, which need not be there; a hint that changes no number.
    fn prefetch(self, _at: *const u8) {}
    /// Writes sixteen f32.
    fn store(self, v: Self::V, to: &mut [f32; LANES]);
    /// a + b
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// a - b
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// a b
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// a / b
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// a b + c, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `if a > b { a } else { b }`: a NaN in `b` stays, one in `a` is replaced.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `if a < b { a } else { b }`: a NaN in `b` stays, one in `a` is replaced.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `if a < b { x } else { y }`
    fn select_lt(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
    /// |a|
    fn abs(self, a: Self::V) -> Self::V;
    /// Nearest integer, ties to even, for |a| < 2^22.
    fn round(self, a: Self::V) -> Self::V;
    /// 2^n for integral n in -126..=127.
    fn exp2_int(self, n: Self::V) -> Self::V;
    /// The sum by halves: lanes i and i + 8, then i + 4, i + 2, i + 1.
    fn sum(self, v: Self::V) -> f32;
    /// The sums of four.
    #[inline(always)]
    fn sums(self, [a, b, c, d]: [Self::V; 4]) -> [f32; 4] {
        [self.sum(a), self.sum(b), self.sum(c), self.sum(d)]
    }
    /// The largest lane, by halves like [`sum`](Self::sum), with [`max`](Self::max).
    fn max_lane(self, v: Self::V) -> f32;
}

/// A stored element type that vectors are loaded from.
pub trait Element: Copy + Send + Sync + 'static {
    /// The element as plain bits, for which zero bits mean the number zero.
    type Bits: Copy + Default + Send + Sync + PartialEq + std::fmt::Debug;
    /// Sixteen elements, widened exactly.
    fn load<L: Lanes>(lanes: L, from: &[Self::Bits; LANES]) -> L::V;
    /// One element, widened exactly.
    fn widen(bits: Self::Bits) -> f32;
    /// The nearest element, ties to even.
    fn narrow(value: f32) -> Self::Bits;
}

/// IEEE binary32 elements.
#[derive(Clone, Copy, Debug)]
pub struct F32;
/// IEEE binary16 elements.
#[derive(Clone, Copy, Debug)]
pub struct F16;
/// bfloat16 elements.
#[derive(Clone, Copy, Debug)]
pub struct BF16;

impl Element for F32 {
    type Bits = f32;
    #[inline(always)]
    fn load<L: Lanes>(lanes: L, from: &[f32; LANES]) -> L::V {
        lanes.load(from)
    }
    fn widen(bits: f32) -> f32 {
        bits
    }
    fn narrow(value: f32) -> f32 {
        value
    }
}

impl Element for F16 {
    type Bits = u16;
    #[inline(always)]
    fn load<L: Lanes>(lanes: L, from: &[u16; LANES]) -> L::V {
        lanes.load_f16(from)
    }
    fn widen(bits: u16) -> f32 {
        f16::from_bits(bits).to_f32()
    }
    fn narrow(value: f32) -> u16 {
        f16::from_f32(value).to_bits()
    }
}

impl Element for BF16 {
    type Bits = u16;
    #[inline(always)]
    fn load<L: Lanes>(lanes: L, from: &[u16; LANES]) -> L::V {
        lanes.load_bf16(from)
    }
    fn widen(bits: u16) -> f32 {
        bf16::from_bits(bits).to_f32()
    }
    fn narrow(value: f32) -> u16 {
        bf16::from_f32(value).to_bits()
    }
}

/// Loads up to sixteen elements, the missing ones as zero.
#[inline(always)]
pub fn load_padded<L: Lanes, E: Element>(lanes: L, from: &[E::Bits]) -> L::V {
    let mut padded = [E::Bits::default(); LANES];
    padded[..from.len()].copy_from_slice(from);
    E::load(lanes, &padded)
}

/// Replaces each vector `x` of a slice by an expression of it; the tail goes through a zero-padded vector.
///
/// A macro and not a function of a closure: a closure that is not inlined would be compiled without the
/// instruction set's features.
macro_rules! map_lanes {
    ($lanes:expr, $xs:expr, $x:ident => $value:expr) => {{
        let (chunks, tail) = $xs.as_chunks_mut::<{ $crate::lanes::LANES }>();
        for chunk in chunks {
            let $x = $lanes.load(chunk);
            $lanes.store($value, chunk);
        }
        if !tail.is_empty() {
            let mut padded = [0.0; $crate::lanes::LANES];
            let $x = $crate::lanes::load_padded::<_, $crate::lanes::F32>($lanes, tail);
            $lanes.store($value, &mut padded);
            tail.copy_from_slice(&padded[..tail.len()]);
        }
    }};
}

/// Replaces each vector `x` of a slice by an expression of it and of the vector `y` of another; tails are zero-padded.
macro_rules! zip_lanes {
    ($lanes:expr, $xs:expr, $ys:expr, ($x:ident, $y:ident) => $value:expr) => {{
        assert_eq!($xs.len(), $ys.len());
        let (xs, x_tail) = $xs.as_chunks_mut::<{ $crate::lanes::LANES }>();
        let (ys, y_tail) = $ys.as_chunks::<{ $crate::lanes::LANES }>();
        for (chunk, y) in xs.iter_mut().zip(ys) {
            let ($x, $y) = ($lanes.load(chunk), $lanes.load(y));
            $lanes.store($value, chunk);
        }
        if !x_tail.is_empty() {
            let mut padded = [0.0; $crate::lanes::LANES];
            let $x = $crate::lanes::load_padded::<_, $crate::lanes::F32>($lanes, x_tail);
            let $y = $crate::lanes::load_padded::<_, $crate::lanes::F32>($lanes, y_tail);
            $lanes.store($value, &mut padded);
            x_tail.copy_from_slice(&padded[..x_tail.len()]);
        }
    }};
}

pub(crate) use {map_lanes, zip_lanes};

//! Activations rounded to 8 bits: the one rule, version 1.
//!
//! Each row is cut into groups of 256 inputs. Of a group, scale = max |x| / 127 and code = x / scale, computed as x (127 / max),
//! rounded to the nearest integer, ties to even; a group of zeros has scale 0. A shorter last group is
//! padded with zeros. A value that is not finite makes the scale NaN, so that the product shows it.

use super::layout::BLOCK;
use crate::dispatch::Kernels;
use crate::lanes::{LANES, Lanes};
use crate::pool::{Pool, Shared};
use crate::rows;
use std::mem::MaybeUninit;

/// 256 inputs of one row, and what products need of them.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Rounded {
    /// The codes, -127 to 127.
    pub codes: [i8; BLOCK],
    /// Per 16 inputs, -32 times the sum of inputs 0..4 and 8..12, and of 4..8 and 12..16: what centres codes of 6 bits,
    /// as they are summed.
    pub centres: [[i32; 2]; 16],
    /// The sums over 16, 32, 64 and 128 inputs, one after the other; see [`sums_at`].
    pub sums: [f32; 32],
    /// The sums over 16 inputs.
    pub sums16: [i16; 16],
    /// The sums over 32 inputs.
    pub sums32: [i16; 8],
    /// What a code of 1 is.
    pub scale: f32,
}

impl Rounded {
    const ZERO: Self =
        Self { codes: [0; BLOCK], centres: [[0; 2]; 16], sums: [0.0; 32], sums16: [0; 16], sums32: [0; 8], scale: 0.0 };

    /// N codes from `at` on.
    #[inline(always)]
    pub(crate) fn inputs<const N: usize>(&self, at: usize) -> &[i8; N] {
        self.codes[at..at + N].as_array().unwrap_or(&[0; N])
    }
}

/// Where in [`Rounded::sums`] the sums over `group` inputs begin.
pub const fn sums_at(group: usize) -> usize {
    match group {
        16 => 0,
        32 => 16,
        64 => 24,
        _ => 28,
    }
}

/// Rows of 8-bit activations.
#[derive(Clone, Debug, Default)]
pub struct Activations {
    rows: usize,
    inputs: usize,
    blocks: Vec<Rounded>, // (inputs / 256, rows)
}

impl Activations {
    /// Rounds `x` (rows, inputs).
    ///
    /// # Panics
    /// If `x` is not a whole number of rows.
    pub fn quantize(kernels: &Kernels, pool: &Pool, x: &[f32], inputs: usize) -> Self {
        let rows = rows::count(x, inputs);
        Self::as_made(kernels, pool, rows, inputs, |row| &x[row * inputs..(row + 1) * inputs])
    }

    /// Rounds rows as they are made: each is asked for once, by the thread that then rounds it while it is in its cache.
    pub(crate) fn as_made<'x>(
        kernels: &Kernels,
        pool: &Pool,
        rows: usize,
        inputs: usize,
        make: impl Fn(usize) -> &'x [f32] + Sync,
    ) -> Self {
        let all = |rounded: &(dyn Fn(usize, usize, &[f32]) + Sync)| {
            rows::share(pool, rows, inputs, &|row| {
                let x = make(row);
                assert_eq!(x.len(), inputs, "elements of a row");
                x.chunks(BLOCK).enumerate().for_each(|(number, x)| rounded(row, number, x));
            });
        };
        // SAFETY: each row is shared out once, and so is each of its groups.
        unsafe { Self::by_groups(kernels, rows, inputs, all) }
    }

    /// Rounds groups as `make` gives them to what it is called with: the row, the number of the group in it, and its elements.
    ///
    /// # Safety
    /// `make` gives each group of each row, and each once.
    pub(crate) unsafe fn by_groups(
        kernels: &Kernels,
        rows: usize,
        inputs: usize,
        make: impl FnOnce(&(dyn Fn(usize, usize, &[f32]) + Sync)),
    ) -> Self {
        let groups = rows * inputs.div_ceil(BLOCK);
        let mut blocks = Vec::with_capacity(groups);
        let shared = Shared::new(&mut blocks.spare_capacity_mut()[..groups]);
        make(&|row, number, x| {
            let at = number * rows + row;
            // SAFETY: each group of each row is given once.
            if let [to] = unsafe { shared.slice(at..at + 1) } {
                kernels.round(x, to);
            }
        });
        // SAFETY: each group of each row was written.
        unsafe { blocks.set_len(groups) };
        Self { rows, inputs, blocks }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs of a row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Groups of a row.
    pub fn blocks(&self) -> usize {
        self.inputs.div_ceil(BLOCK)
    }

    /// Group `number` of every row.
    #[inline(always)]
    pub fn of_rows(&self, number: usize) -> &[Rounded] {
        &self.blocks[number * self.rows..(number + 1) * self.rows]
    }
}

/// Rounds up to 256 inputs.
#[inline(always)]
pub(crate) fn round<L: Lanes>(l: L, x: &[f32], to: &mut MaybeUninit<Rounded>) {
    // Adding it leaves an integer in the low bits, rounded to nearest, ties to even.
    const INTEGER: f32 = 1.5 * (1 << 23) as f32;
    let to = to.write(Rounded::ZERO);
    let mut padded = [0.0; BLOCK];
    let x = x.as_array().unwrap_or_else(|| {
        padded[..x.len()].copy_from_slice(x);
        &padded
    });
    let xs = x.as_chunks::<LANES>().0;
    // Several of each, so that none waits for the one before: neither depends on the order.
    let mut max = [l.splat(0.0); 4];
    // Zero times anything finite is zero; the rest becomes NaN.
    let mut finite = [l.splat(0.0); 4];
    for four in xs.as_chunks::<4>().0 {
        for ((max, finite), x) in max.iter_mut().zip(&mut finite).zip(four) {
            let x = l.load(x);
            *max = l.max(*max, l.abs(x));
            *finite = l.fma(x, l.splat(0.0), *finite);
        }
    }
    let max = l.max_lane(l.max(l.max(max[0], max[1]), l.max(max[2], max[3])));
    if l.sum(l.add(l.add(finite[0], finite[1]), l.add(finite[2], finite[3]))).is_nan() {
        to.scale = f32::NAN;
        return;
    }
    to.scale = max / 127.0;
    if max == 0.0 {
        return;
    }
    let inverse = l.splat(127.0 / max);
    for (codes, x) in to.codes.as_chunks_mut::<LANES>().0.iter_mut().zip(xs) {
        let scaled = l.max(l.splat(-127.0), l.min(l.splat(127.0), l.mul(l.load(x), inverse)));
        let mut integers = [0f32; LANES];
        l.store(l.add(scaled, l.splat(INTEGER)), &mut integers);
        *codes = integers.map(|x| x.to_bits() as i8);
    }
    sum_up(to);
}

/// Fills in the sums of codes.
#[inline(always)]
fn sum_up(to: &mut Rounded) {
    const BYTES: u64 = 0x00ff_00ff_00ff_00ff;
    const HALVES: u64 = 0x0000_ffff_0000_ffff;
    // Eight codes a word, plus 128 so that none borrows from its neighbour; then two sums of four a word.
    let mut fours = [0u64; BLOCK / 8];
    for (fours, codes) in fours.iter_mut().zip(to.codes.as_chunks::<8>().0) {
        let codes = u64::from_le_bytes(codes.map(|code| code as u8)) ^ 0x8080_8080_8080_8080;
        let pairs = (codes & BYTES) + (codes >> 8 & BYTES);
        *fours = (pairs & HALVES) + (pairs >> 16 & HALVES);
    }
    let mut sums = [0i32; 32];
    for ((centre, sum), fours) in to.centres.iter_mut().zip(&mut sums).zip(fours.as_chunks::<2>().0) {
        let both = fours[0] + fours[1];
        let (even, odd) = (both as u32 as i32 - 8 * 128, (both >> 32) as i32 - 8 * 128);
        *centre = [-32 * even, -32 * odd];
        *sum = even + odd;
    }
    for size in [32, 64, 128] {
        let (smaller, larger) = sums.split_at_mut(sums_at(size));
        let pairs = smaller[sums_at(size / 2)..].as_chunks::<2>().0;
        larger.iter_mut().zip(pairs).for_each(|(sum, pair)| *sum = pair[0] + pair[1]);
    }
    to.sums = sums.map(|sum| sum as f32);
    to.sums16 = std::array::from_fn(|i| sums[i] as i16);
    to.sums32 = std::array::from_fn(|i| sums[sums_at(32) + i] as i16);
}

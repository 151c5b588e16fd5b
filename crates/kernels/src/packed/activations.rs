//! Activations rounded to 8 bits: the one rule, version 1.
//!
//! Each row is cut into groups of 256 inputs. Of a group, scale = max |x| / 127 and code = x / scale, computed as x (127 / max),
//! rounded to the nearest integer, ties to even; a group of zeros has scale 0. A shorter last group is
//! padded with zeros. A value that is not finite makes the scale NaN, so that the product shows it.

use super::layout::BLOCK;
use crate::dispatch::Kernels;
use crate::lanes::{F32, LANES, Lanes, load_padded};
use crate::pool::{Pool, Shared};

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
        /// Groups below which waking the other threads costs more than it saves.
        const WORTH_SHARING: usize = 64;
        assert!(inputs > 0 && x.len().is_multiple_of(inputs), "{} elements in rows of {inputs}", x.len());
        let (rows, numbers) = (x.len() / inputs, inputs.div_ceil(BLOCK));
        let mut blocks = vec![Rounded::ZERO; rows * numbers];
        let shared = Shared::new(&mut blocks);
        let row = |row: usize| {
            for (number, x) in x[row * inputs..(row + 1) * inputs].chunks(BLOCK).enumerate() {
                let at = number * rows + row;
                // SAFETY: each group of each row is taken once.
                if let [to] = unsafe { shared.slice(at..at + 1) } {
                    kernels.round(x, to);
                }
            }
        };
        if rows * numbers < WORTH_SHARING {
            (0..rows).for_each(row)
        } else {
            pool.run(rows, &row)
        }
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
pub(crate) fn round<L: Lanes>(l: L, x: &[f32], to: &mut Rounded) {
    // Adding and taking away leaves an integer in the low bits, rounded to nearest, ties to even.
    const INTEGER: f32 = 1.5 * (1 << 23) as f32;
    let (chunks, tail) = x.as_chunks::<LANES>();
    let mut max = l.splat(0.0);
    // Zero times anything finite is zero; the rest becomes NaN.
    let mut finite = l.splat(0.0);
    for chunk in chunks {
        let x = l.load(chunk);
        max = l.max(max, l.abs(x));
        finite = l.fma(x, l.splat(0.0), finite);
    }
    let tail = load_padded::<L, F32>(l, tail);
    max = l.max(max, l.abs(tail));
    finite = l.fma(tail, l.splat(0.0), finite);
    let max = l.max_lane(max);
    *to = Rounded::ZERO;
    if l.sum(finite).is_nan() {
        to.scale = f32::NAN;
        return;
    }
    to.scale = max / 127.0;
    if max == 0.0 {
        return;
    }
    let inverse = l.splat(127.0 / max);
    let mut integers = [[0f32; LANES]; BLOCK / LANES];
    for (number, lanes) in integers.iter_mut().enumerate() {
        let x = match chunks.get(number) {
            Some(chunk) => l.load(chunk),
            None if number == chunks.len() => tail,
            None => l.splat(0.0),
        };
        let scaled = l.max(l.splat(-127.0), l.min(l.splat(127.0), l.mul(x, inverse)));
        l.store(l.add(scaled, l.splat(INTEGER)), lanes);
    }
    for (code, x) in to.codes.iter_mut().zip(integers.as_flattened()) {
        *code = x.to_bits() as i8;
    }
    let mut fours = [0i32; BLOCK / 4];
    for (four, codes) in fours.iter_mut().zip(to.codes.as_chunks::<4>().0) {
        *four = i32::from(codes[0]) + i32::from(codes[1]) + i32::from(codes[2]) + i32::from(codes[3]);
    }
    for ((centre, sum), fours) in to.centres.iter_mut().zip(&mut to.sums).zip(fours.as_chunks::<4>().0) {
        let (even, odd) = (fours[0] + fours[2], fours[1] + fours[3]);
        *centre = [-32 * even, -32 * odd];
        *sum = (even + odd) as f32;
    }
    for size in [32, 64, 128] {
        let (smaller, larger) = to.sums.split_at_mut(sums_at(size));
        let pairs = smaller[sums_at(size / 2)..].as_chunks::<2>().0;
        larger.iter_mut().zip(pairs).for_each(|(sum, pair)| *sum = pair[0] + pair[1]);
    }
    for (to, sum) in to.sums16.iter_mut().zip(&to.sums) {
        *to = *sum as i16;
    }
    for (to, sum) in to.sums32.iter_mut().zip(&to.sums[sums_at(32)..]) {
        *to = *sum as i16;
    }
}

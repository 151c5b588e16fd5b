//! Activations rounded to 8 bits: the one rule, version 1.
//!
//! Each row is cut into groups of 256 inputs. Of a group, scale = max |x| / 127 and code = x / scale, computed as x (127 / max),
//! rounded to the nearest integer, ties to even; a group of zeros has scale 0. A shorter last group is
//! padded with zeros. A value that is not finite makes the scale NaN, so that the product shows it.

use super::layout::BLOCK;

/// Rows of 8-bit activations with what products need of them.
#[derive(Clone, Debug, Default)]
pub struct Activations {
    rows: usize,
    inputs: usize,
    blocks: usize,
    codes: Vec<i8>,   // (rows, blocks, 256)
    scales: Vec<f32>, // (rows, blocks)
    sums16: Vec<i16>, // (rows, blocks, 16): sums over 16 inputs
    sums32: Vec<i16>, // (rows, blocks, 8): sums over 32 inputs
}

impl Activations {
    /// Rounds `x` (rows, inputs).
    ///
    /// # Panics
    /// If `x` is not a whole number of rows.
    pub fn quantize(x: &[f32], inputs: usize) -> Self {
        assert!(inputs > 0 && x.len().is_multiple_of(inputs), "{} elements in rows of {inputs}", x.len());
        let rows = x.len() / inputs;
        let blocks = inputs.div_ceil(BLOCK);
        let mut out = Self {
            rows,
            inputs,
            blocks,
            codes: vec![0; rows * blocks * BLOCK],
            scales: vec![0.0; rows * blocks],
            sums16: vec![0; rows * blocks * 16],
            sums32: vec![0; rows * blocks * 8],
        };
        for (row, x) in x.chunks_exact(inputs).enumerate() {
            for (block, x) in x.chunks(BLOCK).enumerate() {
                out.quantize_group(row * blocks + block, x);
            }
        }
        out
    }

    fn quantize_group(&mut self, at: usize, x: &[f32]) {
        let codes = &mut self.codes[at * BLOCK..(at + 1) * BLOCK];
        let mut max = 0f32;
        let mut finite = true;
        for &x in x {
            finite &= x.is_finite();
            max = if x.abs() > max { x.abs() } else { max };
        }
        if !finite {
            self.scales[at] = f32::NAN;
            return;
        }
        self.scales[at] = max / 127.0;
        if max == 0.0 {
            return;
        }
        let inverse = 127.0 / max;
        for (code, &x) in codes.iter_mut().zip(x) {
            *code = (x * inverse).round_ties_even().clamp(-127.0, 127.0) as i8;
        }
        let sums16 = &mut self.sums16[at * 16..(at + 1) * 16];
        for (sum, codes) in sums16.iter_mut().zip(codes.chunks_exact(16)) {
            *sum = codes.iter().map(|&c| i16::from(c)).sum();
        }
        let sums32 = &mut self.sums32[at * 8..(at + 1) * 8];
        for (sum, pair) in sums32.iter_mut().zip(sums16.chunks_exact(2)) {
            *sum = pair[0] + pair[1];
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs of a row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Groups of 256 inputs of a row.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Codes of a group.
    #[inline(always)]
    pub fn codes(&self, row: usize, block: usize) -> &[i8; BLOCK] {
        let at = (row * self.blocks + block) * BLOCK;
        self.codes[at..at + BLOCK].as_array().unwrap_or(&[0; BLOCK])
    }

    /// Scale of a group.
    #[inline(always)]
    pub fn scale(&self, row: usize, block: usize) -> f32 {
        self.scales[row * self.blocks + block]
    }

    /// Sums over 16 inputs of a group.
    #[inline(always)]
    pub fn sums16(&self, row: usize, block: usize) -> &[i16] {
        let at = (row * self.blocks + block) * 16;
        &self.sums16[at..at + 16]
    }

    /// Sums over 32 inputs of a group.
    #[inline(always)]
    pub fn sums32(&self, row: usize, block: usize) -> &[i16] {
        let at = (row * self.blocks + block) * 8;
        &self.sums32[at..at + 8]
    }
}

//! [`Matrices`] in plain Rust.

use crate::isa::Scalar;
use crate::packed::activations::Rounded;
use crate::packed::layout::slot_of;
use crate::packed::matrices::{Lines, MATRIX_ROWS, Matrices, Matrix, Sums};
use crate::packed::tile::{LINE, TILE_ROWS};
use std::array::from_fn;

type Codes = [u8; LINE];
type Int = [i32; TILE_ROWS];

/// Nothing needs to be ready but the number of rows.
#[derive(Debug)]
pub struct Open {
    rows: usize,
    inputs: usize,
}

impl Matrices for Scalar {
    type Tile = Scalar;
    type Open = Open;

    const FROM: usize = 2;
    const FROM_PLAIN: usize = 2;

    fn tile(self) -> Scalar {
        self
    }
    fn lines(self, codes: [Codes; 8]) -> [Codes; 8] {
        from_fn(|line| {
            from_fn(|at| {
                let (slot, half) = slot_of(at / 4);
                codes[line / 2 * 2 + half][8 * slot + line % 2 * 4 + at % 4]
            })
        })
    }
    fn times(self, line: Codes, factor: Int) -> [Codes; 2] {
        let product = |at: usize, factor: i32| (i32::from(line[at]) * factor) as u8;
        [from_fn(|at| product(at, factor[at / 4] & 7)), from_fn(|at| product(at, factor[at / 4] >> 3))]
    }
    fn times_centred(self, line: Codes, factor: Int) -> [Codes; 2] {
        let product = |at: usize| (i32::from(line[at]) - 32) * factor[at / 4];
        [from_fn(|at| product(at) as u8), from_fn(|at| (product(at) >> 8) as u8)]
    }
    fn put(self, line: Codes, to: &mut Codes) {
        *to = line;
    }
    fn joined<const SHIFT: u32>(self, low: &Int, high: &Int) -> Int {
        from_fn(|row| low[row] + (high[row] << SHIFT))
    }
    fn int(self, sums: &Int) -> Int {
        *sums
    }
    fn open<const INPUTS: usize>(self, rows: usize) -> Open {
        assert!((1..=MATRIX_ROWS).contains(&rows), "matrices of {rows} rows");
        Open { rows, inputs: INPUTS }
    }
}

/// The sums over some inputs, from `at` on, with so many lines.
fn sum(x: &[Rounded], at: usize, lines: &[Codes], weight: impl Fn(u8) -> i32, sums: &mut Sums) {
    for (x, sums) in x.iter().zip(&mut sums.0) {
        *sums = from_fn(|row| {
            let inputs = lines.iter().flat_map(|line| &line[4 * row..4 * row + 4]);
            inputs.zip(&x.codes[at..]).map(|(&w, &x)| weight(w) * i32::from(x)).sum()
        });
    }
}

impl Matrix<Scalar> for Open {
    fn multiply<const SIGNED: bool, const QUARTER: usize>(
        &self,
        x: &[Rounded],
        low: &Lines,
        high: &Lines,
        sums: &mut [Sums; 2],
    ) {
        assert_eq!((x.len(), 64), (self.rows, self.inputs), "matrices");
        if QUARTER == 3 {
            sum(x, 0, &low.0, i32::from, &mut sums[0]);
            sum(x, 0, &high.0, |w| if SIGNED { i32::from(w as i8) } else { i32::from(w) }, &mut sums[1]);
        }
    }
    fn multiply_groups<const GROUP: usize, const QUARTER: usize>(
        &self,
        x: &[Rounded],
        lines: &Lines,
        sums: &mut [Sums],
    ) {
        assert_eq!((x.len(), GROUP.min(64)), (self.rows, self.inputs), "matrices");
        if QUARTER == 3 {
            for ((group, lines), sums) in lines.0.chunks_exact(GROUP / 4).enumerate().zip(sums) {
                sum(x, GROUP * group, lines, i32::from, sums);
            }
        }
    }
}

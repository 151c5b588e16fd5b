//! Products with a dense weight matrix: `out[r][o] = sum over k of x[r][k] weight[o][k]`.
//!
//! One accumulation order per element, whatever the number of rows, the block shape or the partition: input k goes to
//! accumulator k mod 16 by fused multiply-add, ascending, the tail zero-padded, and the sixteen are summed by halves.

use crate::dispatch::Kernels;
use crate::lanes::{Element, F32, LANES, Lanes, load_padded};
use crate::pool::{Pool, Shared};

/// A dense weight matrix (outs, k), row-major.
#[derive(Clone, Copy, Debug)]
pub enum Dense<'a> {
    /// f32 elements.
    F32(&'a [f32]),
    /// f16 elements as bits.
    F16(&'a [u16]),
    /// bf16 elements as bits.
    BF16(&'a [u16]),
}

impl Dense<'_> {
    fn len(&self) -> usize {
        match self {
            Dense::F32(w) => w.len(),
            Dense::F16(w) | Dense::BF16(w) => w.len(),
        }
    }
}

/// Rows of the weight that a thread takes at once: enough work to be worth claiming, small enough to share out.
const TILE: usize = 16;
/// Multiplications below which waking the other threads costs more than it saves.
const WORTH_SHARING: usize = 1 << 17;

/// `x` (rows, k) times `weight` (outs, k) transposed, into `out` (rows, outs).
///
/// # Panics
/// If the lengths do not belong together.
pub fn matmul(kernels: &Kernels, pool: &Pool, x: &[f32], weight: Dense<'_>, k: usize, out: &mut [f32]) {
    assert!(k > 0 && x.len().is_multiple_of(k) && weight.len().is_multiple_of(k), "operands of {k} inputs");
    let (rows, outs) = (x.len() / k, weight.len() / k);
    assert_eq!(out.len(), rows * outs, "output of {rows} rows of {outs}");
    let out = Shared::new(out);
    let task = |tile: usize| {
        let range = tile * TILE..outs.min((tile + 1) * TILE);
        // SAFETY: tiles are disjoint ranges of columns, and each is given to one thread once.
        let mut parts: Vec<&mut [f32]> =
            (0..rows).map(|row| unsafe { out.slice(row * outs + range.start..row * outs + range.end) }).collect();
        let elements = range.start * k..range.end * k;
        match weight {
            Dense::F32(w) => kernels.matmul_f32(x, &w[elements], k, &mut parts),
            Dense::F16(w) => kernels.matmul_f16(x, &w[elements], k, &mut parts),
            Dense::BF16(w) => kernels.matmul_bf16(x, &w[elements], k, &mut parts),
        }
    };
    let tiles = outs.div_ceil(TILE);
    if rows * outs * k < WORTH_SHARING { (0..tiles).for_each(task) } else { pool.run(tiles, &task) }
}

/// The same for one tile: `out[r]` takes row r's products with every row of `weight`.
#[inline(always)]
pub(crate) fn tile<L: Lanes, E: Element>(l: L, x: &[f32], weight: &[E::Bits], k: usize, out: &mut [&mut [f32]]) {
    if L::ACCUMULATORS >= 16 {
        tile_of::<L, E, 4, 4>(l, x, weight, k, out);
    } else {
        tile_of::<L, E, 2, 2>(l, x, weight, k, out);
    }
}

#[inline(always)]
fn tile_of<L: Lanes, E: Element, const R: usize, const O: usize>(
    l: L,
    x: &[f32],
    weight: &[E::Bits],
    k: usize,
    out: &mut [&mut [f32]],
) {
    let outs = weight.len() / k;
    let rows = out.len();
    let many = rows - rows % R;
    let mut o = 0;
    // A group of weight rows stays in the nearest cache while all rows of x pass by it.
    while o < outs {
        let group = if outs - o >= 4 { 4 } else { 1 };
        let w = |i: usize| &weight[(o + i) * k..(o + i + 1) * k];
        for r in (0..many).step_by(R) {
            let xs: [&[f32]; R] = std::array::from_fn(|i| &x[(r + i) * k..(r + i + 1) * k]);
            if group == 4 {
                for part in (0..4).step_by(O) {
                    let sums = block::<L, E, R, O>(l, xs, std::array::from_fn(|i| w(part + i)));
                    for (i, row) in sums.iter().enumerate() {
                        out[r + i][o + part..o + part + O].copy_from_slice(row);
                    }
                }
            } else {
                for (i, [sum]) in block::<L, E, R, 1>(l, xs, [w(0)]).into_iter().enumerate() {
                    out[r + i][o] = sum;
                }
            }
        }
        for r in many..rows {
            let xs = [&x[r * k..(r + 1) * k]];
            if group == 4 {
                let [sums] = block::<L, E, 1, 4>(l, xs, std::array::from_fn(w));
                out[r][o..o + 4].copy_from_slice(&sums);
            } else {
                let [[sum]] = block::<L, E, 1, 1>(l, xs, [w(0)]);
                out[r][o] = sum;
            }
        }
        o += group;
    }
}

/// R rows of x times O rows of the weight, one vector of accumulators for each pair.
#[inline(always)]
fn block<L: Lanes, E: Element, const R: usize, const O: usize>(
    l: L,
    x: [&[f32]; R],
    w: [&[E::Bits]; O],
) -> [[f32; O]; R] {
    let chunks = x[0].len() / LANES;
    let mut acc = [[l.splat(0.0); O]; R];
    let mut wide = [l.splat(0.0); O];
    let xs = x.map(|x| &x.as_chunks::<LANES>().0[..chunks]);
    let ws = w.map(|w| &w.as_chunks::<LANES>().0[..chunks]);
    for c in 0..chunks {
        for o in 0..O {
            wide[o] = E::load(l, &ws[o][c]);
        }
        for r in 0..R {
            let v = l.load(&xs[r][c]);
            for o in 0..O {
                acc[r][o] = l.fma(v, wide[o], acc[r][o]);
            }
        }
    }
    if !x[0].len().is_multiple_of(LANES) {
        for o in 0..O {
            wide[o] = load_padded::<L, E>(l, &w[o][chunks * LANES..]);
        }
        for r in 0..R {
            let v = load_padded::<L, F32>(l, &x[r][chunks * LANES..]);
            for o in 0..O {
                acc[r][o] = l.fma(v, wide[o], acc[r][o]);
            }
        }
    }
    let mut sums = [[0.0; O]; R];
    for r in 0..R {
        for o in 0..O {
            sums[r][o] = l.sum(acc[r][o]);
        }
    }
    sums
}

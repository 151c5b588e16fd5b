//! Kernels that treat each row of a matrix alike, shared out over the pool by rows.
//!
//! What makes the inputs of projections can round them in the same pass (`round`): the thread that made a row rounds it while
//! it is in its cache.

use crate::dispatch::Kernels;
use crate::packed::Activations;
use crate::pool::{Pool, Shared};
use crate::rope::Rotation;

/// Elements below which waking the other threads costs more than it saves.
const WORTH_SHARING: usize = 1 << 14;
/// Elements that a thread takes at once.
const TILE: usize = 1 << 11;

/// How many rows `x` (rows, cols) has.
///
/// # Panics
/// If they are not whole.
pub(crate) fn count(x: &[f32], cols: usize) -> usize {
    assert!(cols > 0 && x.len().is_multiple_of(cols), "{} elements in rows of {cols}", x.len());
    x.len() / cols
}

/// Calls `f` once for each of `rows` rows of `cols` elements, on all threads where that is worth it.
pub(crate) fn share(pool: &Pool, rows: usize, cols: usize, f: &(dyn Fn(usize) + Sync)) {
    if rows * cols < WORTH_SHARING {
        return (0..rows).for_each(f);
    }
    let together = (TILE / cols).max(1);
    pool.run(rows.div_ceil(together), &|tile| (tile * together..rows.min((tile + 1) * together)).for_each(f));
}

/// Calls `f` with the index and the elements of each row of `x` (rows, cols).
fn for_each_row(pool: &Pool, x: &mut [f32], cols: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    let rows = count(x, cols);
    let x = Shared::new(x);
    // SAFETY: each row is taken once.
    share(pool, rows, cols, &|row| f(row, unsafe { x.slice(row * cols..(row + 1) * cols) }));
}

/// The same; what becomes of the rows is rounded if `round`.
fn make_rows(
    kernels: &Kernels,
    pool: &Pool,
    x: &mut [f32],
    cols: usize,
    round: bool,
    f: impl Fn(usize, &mut [f32]) + Sync,
) -> Option<Activations> {
    if !round {
        for_each_row(pool, x, cols, f);
        return None;
    }
    let rows = count(x, cols);
    let x = Shared::new(x);
    Some(Activations::as_made(kernels, pool, rows, cols, |row| {
        // SAFETY: each row is asked for once.
        let x = unsafe { x.slice(row * cols..(row + 1) * cols) };
        f(row, x);
        x
    }))
}

/// Normalises every row of `x` (rows, cols): x / sqrt(mean(x^2) + eps) * weight * scale; no `weight` means ones.
///
/// # Panics
/// Here and below: if the lengths do not belong together.
pub fn rms_norm(
    kernels: &Kernels,
    pool: &Pool,
    x: &mut [f32],
    cols: usize,
    weight: Option<&[f32]>,
    eps: f32,
    scale: f32,
) {
    for_each_row(pool, x, cols, |_, x| kernels.rms_norm_row(x, weight, eps, scale));
}

/// The norm of every row of `x`, unscaled, into `out`, both (rows, cols).
#[expect(clippy::too_many_arguments, reason = "a norm, and where it goes")]
pub fn rms_norm_into(
    kernels: &Kernels,
    pool: &Pool,
    x: &[f32],
    cols: usize,
    weight: Option<&[f32]>,
    eps: f32,
    out: &mut [f32],
    round: bool,
) -> Option<Activations> {
    assert_eq!(x.len(), out.len());
    make_rows(kernels, pool, out, cols, round, |row, out| {
        out.copy_from_slice(&x[row * cols..(row + 1) * cols]);
        kernels.rms_norm_row(out, weight, eps, 1.0);
    })
}

/// Adds the norm of every row of `y` to `x`, both (rows, cols); `y` becomes its norm.
pub fn add_norm(
    kernels: &Kernels,
    pool: &Pool,
    x: &mut [f32],
    y: &mut [f32],
    cols: usize,
    weight: Option<&[f32]>,
    eps: f32,
) {
    assert_eq!(x.len(), y.len());
    let y = Shared::new(y);
    for_each_row(pool, x, cols, |row, x| {
        // SAFETY: each row is taken once.
        let y = unsafe { y.slice(row * cols..(row + 1) * cols) };
        kernels.rms_norm_row(y, weight, eps, 1.0);
        kernels.add_row(x, y);
    });
}

/// Turns every head of row r of `x` (rows, cols) by the angles of row r of `rotation`.
pub fn rope(kernels: &Kernels, pool: &Pool, x: &mut [f32], cols: usize, rotation: &Rotation) {
    assert!(x.len() == rotation.rows() * cols && cols.is_multiple_of(rotation.head_dim()));
    for_each_row(pool, x, cols, |row, x| {
        let (cos, sin) = rotation.row(row);
        kernels.rotate_row(x, cos, sin);
    });
}

/// x += y, both (rows, cols).
pub fn add(kernels: &Kernels, pool: &Pool, x: &mut [f32], y: &[f32], cols: usize) {
    assert_eq!(x.len(), y.len());
    for_each_row(pool, x, cols, |row, x| kernels.add_row(x, &y[row * cols..(row + 1) * cols]));
}

/// x *= sigmoid(gate), both (rows, cols).
pub fn gate(
    kernels: &Kernels,
    pool: &Pool,
    x: &mut [f32],
    gate: &[f32],
    cols: usize,
    round: bool,
) -> Option<Activations> {
    assert_eq!(x.len(), gate.len());
    make_rows(kernels, pool, x, cols, round, |row, x| kernels.gate_row(x, &gate[row * cols..(row + 1) * cols]))
}

/// gate = silu(gate) * up, both (rows, cols).
pub fn swiglu(
    kernels: &Kernels,
    pool: &Pool,
    gate: &mut [f32],
    up: &[f32],
    cols: usize,
    round: bool,
) -> Option<Activations> {
    assert_eq!(gate.len(), up.len());
    make_rows(kernels, pool, gate, cols, round, |row, gate| kernels.swiglu_row(gate, &up[row * cols..(row + 1) * cols]))
}

/// x = cap tanh(x multiplier / cap) for x (rows, cols).
pub fn softcap(kernels: &Kernels, pool: &Pool, x: &mut [f32], cols: usize, multiplier: f32, cap: f32) {
    for_each_row(pool, x, cols, |_, x| kernels.softcap_row(x, multiplier, cap));
}

/// A convolution along the rows of `x` (rows, cols) whose kernel each row brings: out\[i, c\] is the sum over taps t, ascending, of
/// (base\[t, c\] + dynamic\[i, t, c / group\]) * x\[i - t, c\]; there is nothing before the first row. `base` (2, taps, cols) and
/// `dynamic` (rows, 2, taps, cols / group) hold two kernels, of which `side` says which.
///
/// Products and sums are rounded one by one, which needs no instruction set to come out the same.
pub fn dynamic_conv(pool: &Pool, x: &[f32], cols: usize, base: &[f32], dynamic: &[f32], side: usize, out: &mut [f32]) {
    let rows = count(x, cols);
    let taps = count(base, 2 * cols);
    let groups = if rows == 0 { 1 } else { dynamic.len() / (2 * taps * rows) };
    assert!(
        side < 2 && dynamic.len() == rows * 2 * taps * groups && cols.is_multiple_of(groups) && x.len() == out.len()
    );
    let (base, group) = (&base[side * taps * cols..][..taps * cols], cols / groups);
    for_each_row(pool, out, cols, |row, out| {
        out.fill(0.0);
        let dynamic = &dynamic[(2 * row + side) * taps * groups..][..taps * groups];
        for tap in 0..taps.min(row + 1) {
            let (x, base) = (&x[(row - tap) * cols..][..cols], &base[tap * cols..][..cols]);
            let dynamic = &dynamic[tap * groups..][..groups];
            let inputs = x.chunks_exact(group).zip(base.chunks_exact(group)).zip(dynamic);
            for (out, ((x, base), &dynamic)) in out.chunks_exact_mut(group).zip(inputs) {
                for ((out, x), base) in out.iter_mut().zip(x).zip(base) {
                    *out += (base + dynamic) * x;
                }
            }
        }
    });
}

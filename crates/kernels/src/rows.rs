//! Kernels that treat each row of a matrix alike, shared out over the pool by rows.

use crate::dispatch::Kernels;
use crate::pool::{Pool, Shared};
use crate::rope::Rotation;

/// Elements below which waking the other threads costs more than it saves.
const WORTH_SHARING: usize = 1 << 15;
/// Elements that a thread takes at once.
const TILE: usize = 1 << 13;

/// Calls `f` with the index and the elements of each row of `x` (rows, cols).
fn for_each_row(pool: &Pool, x: &mut [f32], cols: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    assert!(cols > 0 && x.len().is_multiple_of(cols), "{} elements in rows of {cols}", x.len());
    if x.len() < WORTH_SHARING {
        return x.chunks_exact_mut(cols).enumerate().for_each(|(row, x)| f(row, x));
    }
    let rows = x.len() / cols;
    let x = Shared::new(x);
    let together = (TILE / cols).max(1);
    pool.run(rows.div_ceil(together), &|tile| {
        for row in tile * together..rows.min((tile + 1) * together) {
            // SAFETY: each row is given to one thread once.
            f(row, unsafe { x.slice(row * cols..(row + 1) * cols) });
        }
    });
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
    zip_rows(pool, x, y, cols, |x, y| kernels.add_row(x, y));
}

/// x *= sigmoid(gate), both (rows, cols).
pub fn gate(kernels: &Kernels, pool: &Pool, x: &mut [f32], gate: &[f32], cols: usize) {
    zip_rows(pool, x, gate, cols, |x, gate| kernels.gate_row(x, gate));
}

/// gate = silu(gate) * up, both (rows, cols).
pub fn swiglu(kernels: &Kernels, pool: &Pool, gate: &mut [f32], up: &[f32], cols: usize) {
    zip_rows(pool, gate, up, cols, |gate, up| kernels.swiglu_row(gate, up));
}

/// x = cap tanh(x multiplier / cap) for x (rows, cols).
pub fn softcap(kernels: &Kernels, pool: &Pool, x: &mut [f32], cols: usize, multiplier: f32, cap: f32) {
    for_each_row(pool, x, cols, |_, x| kernels.softcap_row(x, multiplier, cap));
}

fn zip_rows(pool: &Pool, x: &mut [f32], y: &[f32], cols: usize, f: impl Fn(&mut [f32], &[f32]) + Sync) {
    assert_eq!(x.len(), y.len());
    for_each_row(pool, x, cols, |row, x| f(x, &y[row * cols..(row + 1) * cols]));
}

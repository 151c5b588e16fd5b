//! Functions of single elements, one row at a time: the same element gets the same bits wherever it stands.

use crate::lanes::{Lanes, map_lanes, zip_lanes};
use crate::vmath::{sigmoid, tanh};

/// x += y
#[inline(always)]
pub(crate) fn add<L: Lanes>(l: L, x: &mut [f32], y: &[f32]) {
    zip_lanes!(l, x, y, (x, y) => l.add(x, y));
}

/// x *= sigmoid(gate); a gate that is not finite makes x NaN, where the sigmoid alone would hide it.
#[inline(always)]
pub(crate) fn gate<L: Lanes>(l: L, x: &mut [f32], gate: &[f32]) {
    let zero = l.splat(0.0);
    zip_lanes!(l, x, gate, (x, g) => l.fma(g, zero, l.mul(x, sigmoid(l, g))));
}

/// gate = silu(gate) * up, silu(g) = g sigmoid(g)
#[inline(always)]
pub(crate) fn swiglu<L: Lanes>(l: L, gate: &mut [f32], up: &[f32]) {
    zip_lanes!(l, gate, up, (g, u) => l.mul(l.mul(g, sigmoid(l, g)), u));
}

/// x = cap tanh(x multiplier / cap); an x that is not finite becomes NaN, where the tangent alone would hide it.
#[inline(always)]
pub(crate) fn softcap<L: Lanes>(l: L, x: &mut [f32], multiplier: f32, cap: f32) {
    let (multiplier, cap, zero) = (l.splat(multiplier), l.splat(cap), l.splat(0.0));
    map_lanes!(l, x, x => l.fma(x, zero, l.mul(tanh(l, l.div(l.mul(x, multiplier), cap)), cap)));
}

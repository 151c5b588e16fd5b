//! exp, sigmoid and tanh on sixteen lanes.
//!
//! Polynomials from the Cephes library (`expf`, `tanhf`); errors against f64 are below 3e-7 relative (`tests/kernels/rows.rs`).
//! A NaN argument gives NaN, so that a fault in the model reaches the logits and is reported there.

use crate::lanes::Lanes;

/// e^x; exactly 0 below -87, clamped at e^88 above.
#[inline(always)]
pub fn exp<L: Lanes>(l: L, x: L::V) -> L::V {
    let low = l.splat(-87.0);
    // `x` is the second operand of both, so that NaN passes through.
    let clamped = l.min(l.splat(88.0), l.max(low, x));
    let n = l.round(l.mul(clamped, l.splat(std::f32::consts::LOG2_E)));
    let r = l.fma(n, l.splat(-0.693_359_4), clamped);
    let r = l.fma(n, l.splat(2.121_944_4e-4), r); // |r| <= ln(2) / 2
    let mut p = l.splat(1.987_569_1e-4);
    for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1] {
        p = l.fma(p, r, l.splat(c));
    }
    let e = l.add(l.fma(l.mul(r, r), p, r), l.splat(1.0));
    l.select_lt(x, low, l.splat(0.0), l.mul(e, l.exp2_int(n)))
}

/// 1 / (1 + e^-x)
#[inline(always)]
pub fn sigmoid<L: Lanes>(l: L, x: L::V) -> L::V {
    let one = l.splat(1.0);
    l.div(one, l.add(one, exp(l, l.sub(l.splat(0.0), x))))
}

/// Hyperbolic tangent.
#[inline(always)]
pub fn tanh<L: Lanes>(l: L, x: L::V) -> L::V {
    let a = l.abs(x);
    // Small: an odd polynomial. Large: 1 - 2 / (e^2a + 1), with the sign of x put back.
    let z = l.mul(x, x);
    let mut p = l.splat(-5.704_988_7e-3);
    for c in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        p = l.fma(p, z, l.splat(c));
    }
    let small = l.fma(l.mul(p, z), x, x);
    let one = l.splat(1.0);
    let large = l.sub(one, l.div(l.splat(2.0), l.add(exp(l, l.add(a, a)), one)));
    let signed = l.select_lt(x, l.splat(0.0), l.sub(l.splat(0.0), large), large);
    l.select_lt(a, l.splat(0.625), small, signed)
}

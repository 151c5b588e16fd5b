//! Scalar functions in f64 that give the same bits on every machine.
//!
//! They use only additions, multiplications, divisions and bit operations, each correctly rounded by IEEE 754, so nothing
//! depends on a system's libm. Errors are below 1e-15 relative (see the tests), which is far inside what
//! rotation tables and sampling noise need.

/// ln 2, split so that `k * LN2_HI` is exact for |k| < 2^20.
const LN2_HI: f64 = 6.931_471_803_691_238e-1;
const LN2_LO: f64 = 1.908_214_929_270_587_7e-10;

/// Natural logarithm. `ln(0)` is negative infinity, negative arguments give NaN.
///
/// x = 2^k m with m in [sqrt(1/2), sqrt(2)); ln m = 2 artanh(s), s = (m - 1) / (m + 1), by its power series.
pub fn ln(x: f64) -> f64 {
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x == 0.0 {
        return f64::NEG_INFINITY;
    }
    if x == f64::INFINITY {
        return x;
    }
    // Subnormals are scaled into the normal range first.
    let (x, shift) = if x < f64::MIN_POSITIVE { (x * 2f64.powi(54), -54) } else { (x, 0) };
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) as i64 - 1023) as i32 + shift;
    let mut m = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | (1023 << 52)); // [1, 2)
    if m > std::f64::consts::SQRT_2 {
        m *= 0.5;
        exponent += 1;
    }
    let s = (m - 1.0) / (m + 1.0); // |s| <= 0.1716
    let z = s * s;
    let mut series = 0.0;
    for n in (1..12).rev() {
        series = series * z + 1.0 / (2 * n + 1) as f64;
    }
    let tail = 2.0 * s * z * series; // ln m - 2 s
    let k = exponent as f64;
    k * LN2_HI + (2.0 * s + (tail + k * LN2_LO))
}

/// e to the x. Overflows to infinity above 709.78, underflows to zero below -745.1.
pub fn exp(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x > 709.782_712_893_384 {
        return f64::INFINITY;
    }
    if x < -745.2 {
        return 0.0;
    }
    let k = (x * std::f64::consts::LOG2_E).round_ties_even();
    let r = (x - k * LN2_HI) - k * LN2_LO; // |r| <= ln(2) / 2
    let mut p = 1.0;
    for n in (1..15).rev() {
        p = 1.0 + p * (r * (1.0 / n as f64));
    }
    // Two factors, so that results near the subnormal range are scaled only once into it.
    let k = k as i32;
    let half = k / 2;
    p * power_of_two(half) * power_of_two(k - half)
}

/// 2^k for -1022 <= k <= 1023.
fn power_of_two(k: i32) -> f64 {
    f64::from_bits(((k + 1023) as u64) << 52)
}

/// `base` to the power `exponent`, for a positive base.
pub fn pow(base: f64, exponent: f64) -> f64 {
    exp(exponent * ln(base))
}

/// Sine and cosine of `x` radians, for |x| below 2^30 (rotation angles of a few million positions are far below).
pub fn sin_cos(x: f64) -> (f64, f64) {
    // pi/2 in three pieces of 33 bits each: the products with the quadrant are exact below 2^20 quadrants.
    const PIO2_1: f64 = 1.570_796_326_734_125_6;
    const PIO2_2: f64 = 6.077_100_506_303_966e-11;
    const PIO2_3: f64 = 2.022_266_248_795_950_6e-21;
    let quadrant = (x * std::f64::consts::FRAC_2_PI).round_ties_even();
    let r = ((x - quadrant * PIO2_1) - quadrant * PIO2_2) - quadrant * PIO2_3; // |r| <= pi / 4
    let z = r * r;
    let (mut s, mut c) = (1.0, 1.0);
    for n in (1..10).rev() {
        let n = n as f64;
        s = 1.0 - s * z / ((2.0 * n) * (2.0 * n + 1.0));
        c = 1.0 - c * z / ((2.0 * n - 1.0) * (2.0 * n));
    }
    s *= r;
    match (quadrant as i64).rem_euclid(4) {
        0 => (s, c),
        1 => (c, -s),
        2 => (-s, -c),
        _ => (-c, s),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(ours: f64, theirs: f64, what: &str) {
        let error = (ours - theirs).abs() / theirs.abs().max(1e-300);
        assert!(error < 1e-15 || ours == theirs, "{what}: {ours:e} against {theirs:e}, error {error:e}");
    }

    #[test]
    fn agrees_with_the_system() {
        let mut x = 1e-310;
        while x < 1e300 {
            close(ln(x), x.ln(), &format!("ln {x:e}"));
            x *= 1.37;
        }
        for i in -7000..7000 {
            let x = i as f64 * 0.1013;
            close(exp(x), x.exp(), &format!("exp {x}"));
        }
        for i in 0..200_000 {
            let x = i as f64 * 0.731;
            let (s, c) = sin_cos(x);
            assert!((s - x.sin()).abs() < 4e-16 && (c - x.cos()).abs() < 4e-16, "sin_cos {x}");
        }
        assert_eq!(ln(1.0), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(ln(0.0), f64::NEG_INFINITY);
        assert!(ln(-1.0).is_nan());
    }
}

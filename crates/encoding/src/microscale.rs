//! Codes of four or eight bits that are floats themselves, with a small scale for each group: mxfp4, mxfp8, nvfp4.
//!
//! Layout as MLX has it: two codes of four bits in a byte, the earlier element in the low half; scales apart.

use crate::{Codebook, EncodedRows, Parts};

/// Elements that share a scale in the MX formats.
pub const MX_GROUP: usize = 32;
/// Elements that share a scale in nvfp4.
pub const NV_GROUP: usize = 16;

const E2M1_MAX: f32 = 6.0;
const E4M3_MAX: f32 = 448.0;

/// A float of a sign, two bits of exponent and one of mantissa; bits above are ignored.
pub fn e2m1(code: u8) -> f32 {
    let magnitude = Codebook::E2M1.value(code & 7) * Codebook::E2M1.unit;
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// A float of a sign, four bits of exponent and three of mantissa; no infinities, two NaNs.
pub fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (code >> 3 & 15, f32::from(code & 7));
    let magnitude = match exponent {
        _ if code & 0x7f == 0x7f => f32::NAN,
        0 => mantissa / 512.0,
        _ => (8.0 + mantissa) * power(i32::from(exponent) - 10),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// A power of two: 2^(code - 127); the highest code is NaN.
pub fn e8m0(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

/// 2^n, for an n that f32 has as a normal number.
fn power(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

pub fn decode_mxfp4(parts: Parts<'_>, out: &mut [f32]) {
    let groups = parts.codes.chunks_exact(MX_GROUP / 2).zip(parts.scales);
    for (out, (codes, &scale)) in out.chunks_exact_mut(MX_GROUP).zip(groups) {
        decode_halves(codes, e8m0(scale), out);
    }
}

pub fn decode_mxfp8(parts: Parts<'_>, out: &mut [f32]) {
    let groups = parts.codes.chunks_exact(MX_GROUP).zip(parts.scales);
    for (out, (codes, &scale)) in out.chunks_exact_mut(MX_GROUP).zip(groups) {
        let scale = e8m0(scale);
        out.iter_mut().zip(codes).for_each(|(w, &code)| *w = e4m3(code) * scale);
    }
}

pub fn decode_nvfp4(parts: Parts<'_>, out: &mut [f32]) {
    let groups = parts.codes.chunks_exact(NV_GROUP / 2).zip(parts.scales);
    for (out, (codes, &scale)) in out.chunks_exact_mut(NV_GROUP).zip(groups) {
        decode_halves(codes, parts.global_scale.map_or(e4m3(scale), |global| e4m3(scale) * global), out);
    }
}

fn decode_halves(codes: &[u8], scale: f32, out: &mut [f32]) {
    for (pair, &code) in out.chunks_exact_mut(2).zip(codes) {
        pair[0] = e2m1(code) * scale;
        pair[1] = e2m1(code >> 4) * scale;
    }
}

pub fn encode_mxfp4(row: &[f32], out: &mut EncodedRows) {
    for values in row.chunks_exact(MX_GROUP) {
        let scale = shared_exponent(absmax(values), E2M1_MAX);
        encode_halves(values, e8m0(scale), &mut out.codes);
        out.scales.push(scale);
    }
}

pub fn encode_mxfp8(row: &[f32], out: &mut EncodedRows) {
    for values in row.chunks_exact(MX_GROUP) {
        let scale = shared_exponent(absmax(values), E4M3_MAX);
        out.codes.extend(values.iter().map(|v| to_e4m3(v / e8m0(scale))));
        out.scales.push(scale);
    }
}

/// Without a scale of the whole tensor.
pub fn encode_nvfp4(row: &[f32], out: &mut EncodedRows) {
    for values in row.chunks_exact(NV_GROUP) {
        let scale = to_e4m3(absmax(values) / E2M1_MAX);
        encode_halves(values, e4m3(scale), &mut out.codes);
        out.scales.push(scale);
    }
}

fn encode_halves(values: &[f32], scale: f32, codes: &mut Vec<u8>) {
    // Where the scale was too small to be stored, nothing can be.
    let code = |v: f32| if scale == 0.0 { 0 } else { to_e2m1(v / scale) };
    codes.extend(values.chunks_exact(2).map(|pair| code(pair[0]) | code(pair[1]) << 4));
}

pub fn absmax(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |max, v| max.max(v.abs()))
}

/// The smallest power of two that brings `absmax` down to `largest`; 1 for a group of zeros.
fn shared_exponent(absmax: f32, largest: f32) -> u8 {
    let ratio = absmax / largest;
    if ratio == 0.0 {
        return 127;
    }
    let bits = ratio.to_bits();
    // Rounded up; a subnormal ratio lies below 2^-126.
    let exponent = (bits >> 23) + u32::from(bits & 0x7f_ffff != 0);
    exponent.clamp(1, 254) as u8
}

/// Nearest, ties to the even code; beyond the largest is the largest. What becomes zero loses its sign.
pub fn to_e2m1(value: f32) -> u8 {
    let x = value.abs();
    let above = [x > 0.25, x >= 0.75, x > 1.25, x >= 1.75, x > 2.5, x >= 3.5, x > 5.0];
    match above.into_iter().map(u8::from).sum::<u8>() {
        0 => 0,
        code => code | u8::from(value.is_sign_negative()) << 3,
    }
}

/// Nearest, ties to even; beyond the largest is the largest.
pub fn to_e4m3(value: f32) -> u8 {
    let sign = u8::from(value.is_sign_negative()) << 7;
    if value.is_nan() {
        return sign | 0x7f;
    }
    let x = value.abs().min(E4M3_MAX);
    let exponent = ((x.to_bits() >> 23) as i32 - 127).max(-6);
    // In units of the last place: 8 to 16 for normal numbers, less for subnormal ones; 16 carries into the exponent.
    let units = (x * power(3 - exponent)).round_ties_even() as u8;
    sign | ((((exponent + 6) as u8) << 3) + units)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_a_round_trip() {
        for code in 0..=255u8 {
            let value = e4m3(code);
            assert!(value.is_nan() || to_e4m3(value) == code, "{code:#x} is {value}");
            assert_eq!(to_e2m1(e2m1(code)), if code & 15 == 8 { 0 } else { code & 15 });
            if (1..255).contains(&code) {
                assert_eq!(shared_exponent(e8m0(code), 1.0), code);
            }
        }
        assert_eq!((e4m3(0x7e), e4m3(1), e4m3(0x38)), (448.0, 2f32.powi(-9), 1.0));
        assert_eq!((e8m0(0), e8m0(127)), (2f32.powi(-127), 1.0));
        assert_eq!((to_e4m3(1e9), to_e2m1(f32::INFINITY)), (0x7e, 7));
    }
}

//! q8_0: f16 scale, then 32 signed bytes. w = d * code.

use super::{Format, extreme, half, inverse, set_half};

pub const FORMAT: Format = Format { name: "q8_0", elements: 32, bytes: 34, decode, encode };

fn decode(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    out.iter_mut().zip(&block[2..]).for_each(|(w, &byte)| *w = d * f32::from(byte as i8));
}

/// Codes are chosen for the scale before it is rounded, as ggml does it.
fn encode(values: &[f32], block: &mut [u8]) {
    let d = extreme(values).abs() / 127.0;
    set_half(block, 0, d);
    let inverse = inverse(d);
    block[2..].iter_mut().zip(values).for_each(|(byte, v)| *byte = (v * inverse).round() as i8 as u8);
}

//! q4_0: f16 scale, then 16 bytes: elements 0 to 15 in the low halves, 16 to 31 in the high ones. w = d * (code - 8).

use super::{Format, extreme, half, inverse, set_half};

pub const FORMAT: Format = Format { name: "q4_0", elements: 32, bytes: 18, decode, encode };

fn decode(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    let (low, high) = out.split_at_mut(16);
    for (i, &byte) in block[2..].iter().enumerate() {
        low[i] = d * (f32::from(byte & 15) - 8.0);
        high[i] = d * (f32::from(byte >> 4) - 8.0);
    }
}

/// The extreme value becomes code 0, which is -8 steps; codes are chosen for the scale before it is rounded, as ggml
/// does it.
fn encode(values: &[f32], block: &mut [u8]) {
    let d = extreme(values) / -8.0;
    set_half(block, 0, d);
    let inverse = inverse(d);
    let code = |v: f32| ((v * inverse + 8.5) as u8).min(15);
    for i in 0..16 {
        block[2 + i] = code(values[i]) | code(values[16 + i]) << 4;
    }
}

//! q8_0: f16 scale, then 32 signed bytes. w = d * byte; a code is the byte plus 128.

use super::{Format, Pack, extreme, half, inverse, set_half};

pub const FORMAT: Format = Format {
    name: "q8_0",
    elements: 32,
    bytes: 34,
    halves: &[0],
    codes,
    decode,
    encode: Some(Pack::Plain(encode)),
    sixteenths: None,
};

fn codes(block: &[u8], codes: &mut [u8]) {
    codes.iter_mut().zip(&block[2..]).for_each(|(code, byte)| *code = byte ^ 0x80);
}

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

//! Random bytes that are weights of an encoding: zero-mean, of a given standard deviation, never NaN.

use crate::random::Random;
use glimmer_encoding::{Encoding, FloatType, GgmlType, e2m1, e4m3, e8m0};

/// What a run of bytes is drawn as.
#[derive(Clone, Copy, Debug)]
pub enum Fill {
    /// Codes of a matrix, or whole blocks, or floats.
    Codes {
        encoding: Encoding,
        /// Of the weights.
        deviation: f32,
    },
    /// The scales of such a matrix.
    Scales { encoding: Encoding, deviation: f32 },
    /// The biases that go with them.
    Biases { encoding: Encoding, deviation: f32 },
    /// The scale of all of it.
    GlobalScale { deviation: f32 },
    /// A vector of numbers within `spread` of `centre`.
    Around { float: FloatType, centre: f32, spread: f32 },
}

impl Fill {
    /// The scales that go with codes.
    pub fn scales(self) -> Self {
        match self {
            Fill::Codes { encoding, deviation } => Fill::Scales { encoding, deviation },
            other => other,
        }
    }

    /// The biases that go with codes.
    pub fn biases(self) -> Self {
        match self {
            Fill::Codes { encoding, deviation } => Fill::Biases { encoding, deviation },
            other => other,
        }
    }

    /// The global scale that goes with codes.
    pub fn global_scale(self) -> Self {
        match self {
            Fill::Codes { deviation, .. } => Fill::GlobalScale { deviation },
            other => other,
        }
    }

    /// Bytes that have to be drawn together.
    pub fn unit(self) -> usize {
        match self {
            Fill::Codes { encoding: Encoding::Ggml(kind), .. } => kind.block_bytes(),
            _ => 8,
        }
    }

    /// Draws a whole number of units, or what is left of the last.
    pub fn draw(self, random: &mut Random, out: &mut [u8]) {
        match self {
            Fill::Codes { encoding: Encoding::Dense(float), deviation } => {
                floats(float, out, &mut || deviation * random.normal());
            }
            Fill::Codes { encoding: Encoding::Ggml(kind), deviation } => blocks(kind, deviation, random, out),
            Fill::Codes { encoding: Encoding::MxFp8, .. } => {
                bytes(random, out);
                out.iter_mut().for_each(|code| *code = moderate(*code));
            }
            Fill::Codes { .. } => bytes(random, out),
            Fill::Scales { encoding: Encoding::Affine { bits, scale, .. }, deviation } => {
                floats(scale, out, &mut || affine_scale(bits, deviation, random));
            }
            Fill::Biases { encoding: Encoding::Affine { bits, scale, .. }, deviation } => {
                let middle = f32::from(u8::MAX >> (8 - bits)) / 2.0;
                floats(scale, out, &mut || -middle * affine_scale(bits, deviation, random));
            }
            Fill::Scales { encoding, deviation } => {
                let codes =
                    if encoding == Encoding::MxFp8 { rms((0..=u8::MAX).map(|c| e4m3(moderate(c)))) } else { fp4_rms() };
                let power = Neighbours::of(deviation / codes, e8m0, 0xfe);
                out.iter_mut().for_each(|scale| {
                    *scale = match encoding {
                        Encoding::NvFp4 => NV_SCALES.start + random.below(NV_SCALES.len() as u32) as u8,
                        _ => power.draw(random),
                    }
                });
            }
            Fill::GlobalScale { deviation } => {
                // What the format stores is the largest magnitude: of the largest code at the largest scale.
                let scale = deviation / fp4_rms() / rms(NV_SCALES.map(e4m3));
                floats(FloatType::F32, out, &mut || scale * 6.0 * 448.0);
            }
            Fill::Biases { .. } => unreachable!("only affine matrices have biases"),
            Fill::Around { float, centre, spread } => {
                floats(float, out, &mut || centre + spread * (2.0 * random.unit() - 1.0));
            }
        }
    }
}

fn bytes(random: &mut Random, out: &mut [u8]) {
    for part in out.chunks_mut(8) {
        part.copy_from_slice(&random.bits().to_le_bytes()[..part.len()]);
    }
}

fn floats(float: FloatType, out: &mut [u8], next: &mut dyn FnMut() -> f32) {
    const TOGETHER: usize = 1024;
    let mut values = [0.0; TOGETHER];
    for part in out.chunks_mut(TOGETHER * float.size()) {
        let values = &mut values[..part.len() / float.size()];
        values.iter_mut().for_each(|value| *value = next());
        part.copy_from_slice(&float.encode(values));
    }
}

/// A scale for which codes drawn evenly give about this deviation.
fn affine_scale(bits: u8, deviation: f32, random: &mut Random) -> f32 {
    let levels = (1u32 << bits) as f32;
    deviation * (12.0 / (levels * levels - 1.0)).sqrt() * jitter(random)
}

/// Around 1.
fn jitter(random: &mut Random) -> f32 {
    0.75 + 0.5 * random.unit()
}

/// The same with either sign: codes whose mean is not zero have one that is over many blocks.
fn signed_jitter(random: &mut Random) -> f32 {
    let offset = random.unit() - 0.5;
    offset + 1f32.copysign(offset) * 0.75
}

/// Scales of nvfp4, by their E4M3 codes: around 256, far from what would be rounded to nothing.
const NV_SCALES: std::ops::Range<u8> = 0x74..0x7c;

fn fp4_rms() -> f32 {
    rms((0..16).map(e2m1))
}

fn rms(values: impl Iterator<Item = f32> + Clone) -> f32 {
    let count = values.clone().count() as f32;
    (values.map(|x| x * x).sum::<f32>() / count).sqrt()
}

/// An E4M3 code of a middling exponent, so that neither a few codes weigh most nor any is NaN.
fn moderate(code: u8) -> u8 {
    code & 0x87 | ((code >> 3 & 7) + 4) << 3
}

/// Two neighbouring scales, by their codes, in such proportion that their mean square is right.
struct Neighbours {
    lower: u8,
    /// How often it is the upper.
    upper: f32,
}

impl Neighbours {
    /// Of codes up to `most`, whose values ascend.
    fn of(scale: f32, value: fn(u8) -> f32, most: u8) -> Self {
        let lower = (1..most - 1).rev().find(|&code| value(code) <= scale).unwrap_or(1);
        let square = |x: f32| x * x;
        let (low, high) = (square(value(lower)), square(value(lower + 1)));
        Self { lower, upper: (square(scale) - low) / (high - low) }
    }

    fn draw(&self, random: &mut Random) -> u8 {
        self.lower + u8::from(random.unit() < self.upper)
    }
}

fn blocks(kind: GgmlType, deviation: f32, random: &mut Random, out: &mut [u8]) {
    let neighbours = match kind {
        GgmlType::NvFp4 => Neighbours::of(deviation / fp4_rms(), e4m3, 0x7e),
        _ => Neighbours::of(deviation / fp4_rms(), e8m0, 0xfe),
    };
    for block in out.chunks_exact_mut(kind.block_bytes()) {
        // Codes, and scales that are set next.
        bytes(random, block);
        match kind {
            // d (code - centre), the deviation of codes of N levels being sqrt((N^2 - 1) / 12)
            GgmlType::Q4_0 => half(&mut block[..2], deviation / 4.61 * signed_jitter(random)),
            GgmlType::Q5_0 => half(&mut block[..2], deviation / 9.23 * signed_jitter(random)),
            GgmlType::Q8_0 => {
                half(&mut block[..2], deviation / 73.6 * signed_jitter(random));
                block[2..].iter_mut().for_each(|code| *code = if *code == 0x80 { 0x81 } else { *code });
            }
            // d code + m, with m in the middle
            GgmlType::Q4_1 | GgmlType::Q5_1 => {
                let (codes, middle) = if kind == GgmlType::Q4_1 { (4.61, 7.5) } else { (9.23, 15.5) };
                let d = deviation / codes * jitter(random);
                half(&mut block[..2], d);
                half(&mut block[2..4], -middle * d);
            }
            GgmlType::Q2K => {
                // As in `mins_block`; scales are 8 to 15.
                let d = deviation / (1.118 * 11.73) * jitter(random);
                half(&mut block[80..82], d);
                half(&mut block[82..], 1.5 * d);
                block[..16].iter_mut().for_each(|scale| *scale = (8 + (*scale & 7)) * 0x11);
            }
            GgmlType::Q4K => mins_block(deviation / 4.61, 7.5, random, block),
            GgmlType::Q5K => mins_block(deviation / 9.23, 15.5, random, block),
            // d scale (code - 4), the codes' deviation being 2.35 and scales of any 6 bits
            GgmlType::Q3K => half(&mut block[108..], deviation / (2.345 * 18.48) * jitter(random)),
            GgmlType::Q6K => {
                // d scale (code - 32), the codes' deviation being 18.5 and scales 64 to 127 of either sign
                block[192..208].iter_mut().for_each(|scale| {
                    let size = 64 + (*scale & 63);
                    *scale = if *scale & 64 == 0 { size } else { size.wrapping_neg() };
                });
                half(&mut block[208..], deviation / (18.47 * 97.3) * jitter(random));
            }
            // Measured: what bytes drawn evenly are with d = 1.
            GgmlType::Iq1S => half(&mut block[..2], deviation / 7.20 * signed_jitter(random)),
            GgmlType::Iq1M => {
                // The f16 is in the upper quarters of four words.
                let mut d = [0; 2];
                half(&mut d, deviation / 7.20 * signed_jitter(random));
                for (i, word) in block[48..].as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    word[1] = word[1] & 15 | ((u16::from_le_bytes(d) >> (4 * i)) as u8) << 4;
                }
            }
            GgmlType::Iq2Xxs => half(&mut block[..2], deviation / 53.5 * jitter(random)),
            GgmlType::Iq2Xs => half(&mut block[..2], deviation / 55.9 * jitter(random)),
            GgmlType::Iq2S => half(&mut block[..2], deviation / 56.3 * jitter(random)),
            GgmlType::Iq3Xxs => half(&mut block[..2], deviation / 142.5 * jitter(random)),
            GgmlType::Iq3S => half(&mut block[..2], deviation / 140.2 * jitter(random)),
            GgmlType::Iq4Nl => half(&mut block[..2], deviation / 67.5 * signed_jitter(random)),
            GgmlType::Iq4Xs => half(&mut block[..2], deviation / 1248.0 * jitter(random)),
            GgmlType::Tq1_0 => half(&mut block[52..], deviation / 0.817 * jitter(random)),
            GgmlType::Tq2_0 => {
                // Of the four codes there is one too many, which becomes the middle.
                block[..64].iter_mut().for_each(|codes| *codes &= !((*codes >> 1 & *codes & 0x55) << 1));
                half(&mut block[64..], deviation * 2f32.sqrt() * jitter(random));
            }
            GgmlType::MxFp4 => block[0] = neighbours.draw(random),
            GgmlType::NvFp4 => block[..4].iter_mut().for_each(|scale| *scale = neighbours.draw(random)),
        }
    }
}

/// d scale code - dmin min, with mins that equal the scales and dmin `middle` times d, so that the mean is zero. Scales are 32
/// to 63.
fn mins_block(deviation: f32, middle: f32, random: &mut Random, block: &mut [u8]) {
    let d = deviation / 48.4 * jitter(random);
    half(&mut block[..2], d);
    half(&mut block[2..4], middle * d);
    let bits = random.bits().to_le_bytes();
    for i in 0..4 {
        let (first, last) = (32 + (bits[i] & 31), 32 + (bits[i + 4] & 31));
        let low = first | last >> 4 << 6;
        (block[4 + i], block[8 + i], block[12 + i]) = (low, low, last & 15 | last << 4);
    }
}

fn half(to: &mut [u8], value: f32) {
    to.copy_from_slice(&FloatType::F16.encode(&[value]));
}

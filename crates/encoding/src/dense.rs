//! Unquantized floats: f32, f16, bf16.

use half::{bf16, f16};
use std::fmt;

/// The type of a dense element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
}

impl FloatType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            FloatType::F32 => 4,
            FloatType::F16 | FloatType::BF16 => 2,
        }
    }

    /// Widens `bytes` (little endian) to f32; exact for all three types.
    ///
    /// # Panics
    /// If `bytes.len() != out.len() * self.size()`.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len(), out.len() * self.size(), "bytes of {} elements of {self}", out.len());
        match self {
            FloatType::F32 => {
                let (chunks, _) = bytes.as_chunks::<4>();
                out.iter_mut().zip(chunks).for_each(|(o, &c)| *o = f32::from_le_bytes(c));
            }
            FloatType::F16 => {
                let (chunks, _) = bytes.as_chunks::<2>();
                out.iter_mut().zip(chunks).for_each(|(o, &c)| *o = f16::from_le_bytes(c).to_f32());
            }
            FloatType::BF16 => {
                let (chunks, _) = bytes.as_chunks::<2>();
                out.iter_mut().zip(chunks).for_each(|(o, &c)| *o = bf16::from_le_bytes(c).to_f32());
            }
        }
    }

    /// What becomes of a value that is stored in this type.
    pub fn round(self, value: f32) -> f32 {
        match self {
            FloatType::F32 => value,
            FloatType::F16 => f16::from_f32(value).to_f32(),
            FloatType::BF16 => bf16::from_f32(value).to_f32(),
        }
    }

    /// Rounds `values` to this type (nearest, ties to even), little endian.
    pub fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            FloatType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            FloatType::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
            FloatType::BF16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        }
    }
}

impl fmt::Display for FloatType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FloatType::F32 => "f32",
            FloatType::F16 => "f16",
            FloatType::BF16 => "bf16",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_value_survives_a_round_trip() {
        for float in [FloatType::F16, FloatType::BF16] {
            for bits in 0..=u16::MAX {
                let mut wide = [0f32];
                float.decode(&bits.to_le_bytes(), &mut wide);
                let back = float.encode(&wide);
                let mut again = [0f32];
                float.decode(&back, &mut again);
                assert!(wide[0].is_nan() && again[0].is_nan() || back == bits.to_le_bytes(), "{float} {bits:#06x}");
            }
        }
    }

    #[test]
    fn rounds_to_nearest_even() {
        // 1 + 2^-8 lies half-way between two bf16 values, 1 + 2^-11 between two f16 values.
        for (float, value, expected) in [
            (FloatType::BF16, 1.0 + 2f32.powi(-8), 1.0),
            (FloatType::BF16, 1.0 + 3.0 * 2f32.powi(-8), 1.0 + 2f32.powi(-6)),
            (FloatType::F16, 1.0 + 2f32.powi(-11), 1.0),
            (FloatType::F16, 1.0 + 3.0 * 2f32.powi(-11), 1.0 + 2f32.powi(-9)),
        ] {
            let mut out = [0f32];
            float.decode(&float.encode(&[value]), &mut out);
            assert_eq!(out[0], expected, "{float} {value}");
        }
    }
}

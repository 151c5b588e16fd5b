//! Codes that are places in a table of values.

/// A table of values. w = scale * unit * values\[code\].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Codebook {
    /// What codes stand for; those that no code reaches are 0.
    pub values: [i8; 16],
    /// What one of them counts.
    pub unit: f32,
}

impl Codebook {
    /// Floats of a sign, two bits of exponent and one of mantissa.
    pub const E2M1: Self = Self { values: [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], unit: 0.5 };
    /// iq1_s, iq1_m: -1, 0 or 1, less an eighth in the upper half, and else an eighth more.
    pub const IQ1: Self = Self { values: [-7, 1, 9, 0, -9, -1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0], unit: 0.125 };
    /// iq2_xxs, iq2_xs, iq2_s: three magnitudes, negative in the upper half.
    pub const IQ2: Self = Self { values: [8, 25, 43, 0, -8, -25, -43, 0, 0, 0, 0, 0, 0, 0, 0, 0], unit: 0.125 };
    /// iq3_xxs: eight magnitudes, negative in the upper half.
    pub const IQ3_XXS: Self =
        Self { values: [4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62], unit: 0.25 };
    /// iq3_s: eight magnitudes, negative in the upper half.
    pub const IQ3_S: Self = Self { values: [1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15], unit: 1.0 };
    /// iq4_nl, iq4_xs.
    pub const IQ4: Self =
        Self { values: [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], unit: 1.0 };

    /// The value of a code; bits above the fourth are ignored.
    pub fn value(&self, code: u8) -> f32 {
        self.values[usize::from(code & 15)].into()
    }

    /// The code of the value nearest to `x`, the first of several.
    pub(crate) fn nearest(&self, x: f32) -> u8 {
        let away = |code: u8| (self.value(code) - x).abs();
        (1..16).fold(0, |best, code| if away(code) < away(best) { code } else { best })
    }
}

//! The same number, measured several times.

use serde_json::{Value, json};
use std::fmt;

/// What several measurements say together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// The standard deviation; 0 of a single measurement.
    pub deviation: f64,
}

impl Spread {
    /// `None` of nothing.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let n = sorted.len();
        let (_, deviation) = moments(samples);
        Some(Self { median: (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0, min, max, deviation })
    }

    pub fn json(&self) -> Value {
        json!({ "median": self.median, "min": self.min, "max": self.max, "deviation": self.deviation })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.median < 100.0 { 2 } else { 1 };
        write!(f, "{:.digits$} ± {:.digits$}", self.median, self.deviation)
    }
}

/// Mean and standard deviation.
pub fn moments(samples: &[f64]) -> (f64, f64) {
    let n = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / n;
    let squares: f64 = samples.iter().map(|x| (x - mean).powi(2)).sum();
    (mean, if samples.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_that_of_the_samples() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[3.0]), Some(Spread { median: 3.0, min: 3.0, max: 3.0, deviation: 0.0 }));
        let spread = Spread::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (2.5, 1.0, 4.0));
        assert!((spread.deviation - (5.0f64 / 3.0).sqrt()).abs() < 1e-12);
        assert_eq!(spread.to_string(), "2.50 ± 1.29");
    }
}

//! Numbers that look random and are the same for the same seed: for synthetic weights and caches, not for draws.

/// SplitMix64: Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators (OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The sequence of a seed and a name, unrelated to that of another name.
    pub fn named(seed: u64, name: &str) -> Self {
        // FNV-1a tells names apart; a step of the generator spreads what it gives.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        Self(Self(seed ^ hash).bits())
    }

    /// 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`, which is small beside 2^32.
    #[inline]
    pub fn below(&mut self, n: u32) -> u32 {
        (((self.bits() >> 32) * u64::from(n)) >> 32) as u32
    }

    /// In 0..1.
    #[inline]
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 24) as f32
    }

    /// Of mean 0 and variance 1, nearly normal and never beyond 3.5: the sum of four uniform numbers.
    #[inline]
    pub fn normal(&mut self) -> f32 {
        let bits = self.bits();
        let sum: u32 = [0, 16, 32, 48].into_iter().map(|at| (bits >> at) as u32 & 0xffff).sum();
        // Each has variance 65536^2 / 12, four of them a third of 65536^2.
        (sum as f32 - 2.0 * 65535.0) * (1.732_050_8 / 65536.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        let mut random = Random::new(1234567);
        let first: Vec<u64> = (0..3).map(|_| random.bits()).collect();
        assert_eq!(first, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn numbers_have_the_moments_they_should() {
        let mut random = Random::named(7, "moments");
        let n = 100_000;
        let normal: Vec<f64> = (0..n).map(|_| f64::from(random.normal())).collect();
        let mean = normal.iter().sum::<f64>() / n as f64;
        let variance = normal.iter().map(|x| x * x).sum::<f64>() / n as f64;
        assert!(mean.abs() < 0.015 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        assert!(normal.iter().all(|x| x.abs() < 3.5));
        let unit: Vec<f32> = (0..n).map(|_| random.unit()).collect();
        assert!(unit.iter().all(|x| (0.0..1.0).contains(x)));
        let counts = (0..n).fold([0usize; 5], |mut counts, _| {
            counts[random.below(5) as usize] += 1;
            counts
        });
        assert!(counts.iter().all(|&c| c.abs_diff(n / 5) < 600), "{counts:?}");
        assert_ne!(Random::named(7, "a").bits(), Random::named(7, "b").bits());
        assert_ne!(Random::named(7, "a").bits(), Random::named(8, "a").bits());
    }
}

//! A small random source whose whole state is its seed, so that a run can be repeated.

/// xoshiro256++, seeded through splitmix64.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The same seed gives the same numbers on every machine.
    pub fn new(seed: u64) -> Self {
        let mut state = [0; 4];
        for (index, word) in state.iter_mut().enumerate() {
            *word = mix64(seed.wrapping_add((index as u64 + 1).wrapping_mul(GOLDEN)));
        }
        Self { state }
    }

    /// A source of its own for part `index` of a run with this seed.
    pub fn for_part(seed: u64, index: u64) -> Self {
        Self::new(mix64(seed ^ mix64(index.wrapping_add(GOLDEN))))
    }

    /// Any 64 bits, all equally likely.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let shifted = b << 17;
        let c = c ^ a;
        let d = d ^ b;
        self.state = [a ^ d, b ^ c, c ^ shifted, d.rotate_left(45)];
        result
    }

    /// A number in `0..bound`; the bias is below 2^-32 for every bound used here.
    ///
    /// # Panics
    /// When `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing is below zero");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A draw from the exponential distribution with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// True in `percent` of 100 draws.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Fills `bytes` with random ones.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let random = self.next_u64().to_le_bytes();
            piece.copy_from_slice(&random[..piece.len()]);
        }
    }
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The finaliser of splitmix64: a bijection that spreads every bit.
pub fn mix64(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_decides_everything() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            (0..100).map(|_| rng.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert_ne!(Rng::for_part(7, 0).next_u64(), Rng::for_part(7, 1).next_u64());
    }

    #[test]
    fn draws_have_the_means_they_claim() {
        let mut rng = Rng::new(1);
        let n = 200_000;
        let mean = |sum: f64| sum / f64::from(n);
        let unit = mean((0..n).map(|_| rng.unit()).sum());
        let exponential = mean((0..n).map(|_| rng.exponential()).sum());
        let below = mean((0..n).map(|_| rng.below(11) as f64).sum());
        assert!((unit - 0.5).abs() < 0.01, "{unit}");
        assert!((exponential - 1.0).abs() < 0.02, "{exponential}");
        assert!((below - 5.0).abs() < 0.05, "{below}");
    }
}
